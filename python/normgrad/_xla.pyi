from types import CapsuleType

cpu: CapsuleType
cuda: CapsuleType
