"""What a refused call raises. The message is the library's sentence: which argument, what was
expected, what came. A refused call changes no byte of any output."""

from __future__ import annotations

__all__ = ["Error", "ArgumentError", "ArrayTypeError", "DeviceError", "InternalError"]


class Error(Exception):
    """The base of all; ``code`` is the C++ library's name of the reason."""

    def __init__(self, message: str, code: str = "bad_argument") -> None:
        super().__init__(message)
        self.code = code


class ArgumentError(Error, ValueError):
    """An argument is out of its range, shapes or strides do not fit, or buffers overlap."""


class ArrayTypeError(Error, TypeError):
    """An element type is not supported or does not fit the others, or an object is no array."""


class DeviceError(Error, RuntimeError):
    """The device, or the implementation that NORMGRAD_IMPL asks for, is not in this build."""


class InternalError(Error, RuntimeError):
    """Out of memory, or the device failed."""


# In the order of normgrad::Code.
_CODES: list[tuple[str, type[Error]]] = [
    ("ok", InternalError),
    ("null_pointer", ArgumentError),
    ("bad_argument", ArgumentError),
    ("bad_dtype", ArrayTypeError),
    ("bad_shape", ArgumentError),
    ("bad_strides", ArgumentError),
    ("insufficient_workspace", ArgumentError),
    ("unsupported_device", DeviceError),
    ("internal", InternalError),
]


def of_code(code: int, message: str) -> Error:
    name, kind = _CODES[code]
    return kind(message, name)
