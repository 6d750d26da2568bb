"""Conversion between Arrow extension types and the field metadata that describes them.

pa.json_()  <->  ARROW:extension:name, ARROW:extension:metadata

The conversion uses the Arrow C data interface, because only that interface exposes the parameters of every extension
type and resolves the registered ones.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, ClassVar, Final

import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.format.logical_types import EXTENSION_METADATA_KEY, EXTENSION_NAME_KEY


class SchemaCapsule:
    """Wrapper that exports an Arrow field or schema only through the C data interface, so that pyarrow imports it."""

    __slots__ = ("_arrow",)

    def __init__(self, arrow: pa.Field | pa.Schema) -> None:
        self._arrow = arrow

    def __arrow_c_schema__(self) -> object:
        return self._arrow.__arrow_c_schema__()


class Extension(pa.ExtensionType):  # type: ignore[misc]  # pyarrow comes without types
    """Base class of extension types that are known without being registered with pyarrow.

    They are not registered, because pylance registers types with the same names on import, which would then fail. A
    registered type takes precedence.
    """

    name: ClassVar[str]
    array: ClassVar[type]
    scalar: ClassVar[type] = pa.ExtensionScalar
    storage_types: ClassVar[tuple[pa.DataType, ...]] = ()  # the first is the default; empty: any type

    def __init_subclass__(cls) -> None:
        _UNREGISTERED[cls.name.encode()] = cls

    def __init__(self, storage_type: pa.DataType | None = None) -> None:
        super().__init__(self.storage_types[0] if storage_type is None else storage_type, self.name)
        if self.storage_types and self.storage_type not in self.storage_types:
            allowed = " or ".join(map(str, self.storage_types))
            raise InvalidInputError(f"storage_type of {type(self).__name__} must be {allowed}, not {storage_type}")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Extension:
        return cls(storage_type)

    def __arrow_ext_class__(self) -> type:
        return self.array

    def __arrow_ext_scalar_class__(self) -> type:
        return self.scalar

    def known(self) -> pa.BaseExtensionType:
        """Return the registered type with this name, or this type."""
        registered = pa.field(SchemaCapsule(pa.field("", self))).type
        return registered if isinstance(registered, pa.BaseExtensionType) else self

    def wrap(self, storage: pa.Array) -> Any:
        """Return an array of the known type."""
        return pa.ExtensionArray.from_storage(self.known(), storage)


_UNREGISTERED: Final[dict[bytes, type[Extension]]] = {}


def restore_extension(arrow: pa.Field) -> pa.Field:
    """Return the field with its extension type, or that of the items of fixed-size lists, if the type is known.

    Known types are the types registered in this process and the imported subclasses of `Extension`.
    """
    try:
        if pa.types.is_fixed_size_list(arrow.type):
            arrow = arrow.with_type(pa.list_(restore_extension(arrow.type.value_field), arrow.type.list_size))
        restored = pa.field(SchemaCapsule(arrow))
        found = restored.type
        if isinstance(found, pa.FixedShapeTensorType):  # the interface restores only registered item types
            rest = {"dim_names": found.dim_names, "permutation": found.permutation}
            return restored.with_type(pa.fixed_shape_tensor(arrow.type.value_type, found.shape, **rest))
        if isinstance(found, pa.BaseExtensionType):
            return restored if found.storage_type.equals(arrow.type) else arrow
        metadata = dict(arrow.metadata or {})
        unregistered = _UNREGISTERED.get(metadata.pop(EXTENSION_NAME_KEY.encode(), b""))
        if unregistered is None:
            return arrow
        serialized = metadata.pop(EXTENSION_METADATA_KEY.encode(), b"")
        found = unregistered.__arrow_ext_deserialize__(arrow.type, serialized)
        return pa.field(arrow.name, found, arrow.nullable, metadata or None)
    except (pa.ArrowException, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        # The type rejects this storage type or these parameters: return the storage type.
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
