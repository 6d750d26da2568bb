"""Conversion between Arrow extension types and the field metadata that describes them.

pa.json_()  <->  ARROW:extension:name, ARROW:extension:metadata

The conversion uses the Arrow C data interface, because only that interface exposes the parameters of every extension
type and resolves the registered ones at every depth.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import pyarrow as pa


class SchemaCapsule:
    """Wrapper that exports an Arrow field or schema only through the C data interface, so that pyarrow imports it."""

    __slots__ = ("_arrow",)

    def __init__(self, arrow: pa.Field | pa.Schema) -> None:
        self._arrow = arrow

    def __arrow_c_schema__(self) -> object:
        return self._arrow.__arrow_c_schema__()


def restore_extensions(arrow: pa.Field) -> pa.Field:
    """Return the field with each extension type that is registered in this process restored from its metadata.

    Importing through the C data interface resolves extension names at every depth, which pyarrow's constructors do not.
    """
    try:
        return pa.field(SchemaCapsule(arrow))
    except (pa.ArrowException, ValueError, TypeError, KeyError):
        # The registered type rejects this storage type or these parameters: return the storage type.
        return arrow


class _ArrowSchema(ctypes.Structure):
    """First members of struct ArrowSchema of the Arrow C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


_capsule_pointer: Any = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def extension_metadata(data_type: pa.BaseExtensionType) -> dict[bytes, bytes]:
    """Return the name and the serialized parameters of an extension type, as field metadata.

    pyarrow does not expose the parameters of its built-in extension types in Python; the C data interface does.
    """
    capsule = pa.field("", data_type).__arrow_c_schema__()
    exported = _ArrowSchema.from_address(_capsule_pointer(capsule, b"arrow_schema"))
    return _parse_c_metadata(exported.metadata)


def _parse_c_metadata(address: int | None) -> dict[bytes, bytes]:
    """Parse metadata of the C data interface.

    The layout is an int32 count, then for each pair: int32 length, key, int32 length, value.
    """
    if not address:
        return {}

    def parse_item(position: int) -> tuple[bytes, int]:
        (length,) = struct.unpack("=i", ctypes.string_at(position, 4))
        return ctypes.string_at(position + 4, length), position + 4 + length

    (count,) = struct.unpack("=i", ctypes.string_at(address, 4))
    metadata: dict[bytes, bytes] = {}
    position = address + 4
    for _ in range(count):
        key, position = parse_item(position)
        metadata[key], position = parse_item(position)
    return metadata
