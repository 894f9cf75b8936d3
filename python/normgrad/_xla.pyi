from typing import Any

cpu: Any  # capsules
cuda: Any
