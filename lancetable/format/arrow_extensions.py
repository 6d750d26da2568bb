"""Extension types of Arrow: their names and parameters as metadata of fields, and back.

pa.json_()  <->  ARROW:extension:name, ARROW:extension:metadata        through the C data interface, the one door
                                                                       that shows and resolves all of them
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pyarrow as pa

__all__ = ["SchemaCapsule", "extension_metadata", "restore_extensions"]


class SchemaCapsule:
    """Shows an Arrow field or schema through the C data interface only, so that pyarrow imports it anew."""

    __slots__ = ("_arrow",)

    def __init__(self, arrow: pa.Field | pa.Schema) -> None:
        self._arrow = arrow

    def __arrow_c_schema__(self) -> object:
        return self._arrow.__arrow_c_schema__()


def restore_extensions(arrow: pa.Field) -> pa.Field:
    """The same field, with every extension type that is registered in this process in place of its metadata.

    Importing is pyarrow's one door that resolves extension names, nested ones too.
    """
    try:
        return pa.field(SchemaCapsule(arrow))
    except (pa.ArrowException, ValueError, TypeError, KeyError):
        # The name is known but not with this storage or parameters: show what is stored.
        return arrow


class _ArrowSchema(ctypes.Structure):
    """The start of struct ArrowSchema of the Arrow C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


_capsule_pointer: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def extension_metadata(data_type: pa.BaseExtensionType) -> dict[bytes, bytes]:
    """Name and serialized parameters of an extension type, as field metadata.

    pyarrow's own extension types do not show their parameters in Python, but the C data interface carries them.
    """
    capsule = pa.field("", data_type).__arrow_c_schema__()
    exported = _ArrowSchema.from_address(_capsule_pointer(capsule, b"arrow_schema"))
    return _parse_c_metadata(exported.metadata)


def _parse_c_metadata(address: int | None) -> dict[bytes, bytes]:
    """int32 count, then for each pair: int32 length, key, int32 length, value."""
    if not address:
        return {}

    def take(position: int) -> tuple[bytes, int]:
        (length,) = struct.unpack("=i", ctypes.string_at(position, 4))
        return ctypes.string_at(position + 4, length), position + 4 + length

    (count,) = struct.unpack("=i", ctypes.string_at(address, 4))
    metadata: dict[bytes, bytes] = {}
    position = address + 4
    for _ in range(count):
        key, position = take(position)
        metadata[key], position = take(position)
    return metadata
