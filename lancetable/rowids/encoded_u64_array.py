"""EncodedU64Array: 64-bit values as 16- or 32-bit offsets from a base, or plain.    base 1000 + [0 7 3]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from lancetable.errors import CorruptFileError
from lancetable.format.row_address import U64Array
from lancetable.proto import rowids_pb2

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "u16_array": np.dtype("<u2"),
    "u32_array": np.dtype("<u4"),
    "u64_array": np.dtype("<u8"),
}
MAX_U64: Final = 2**64 - 1


def decode(message: rowids_pb2.EncodedU64Array, path: str | None = None) -> U64Array:
    """Return the (n,) values of an encoded array.

    Raises CorruptFileError for an unknown encoding, a length that is not a multiple of the value size, and values that
    exceed 64 bits.
    """
    oneof_case = message.WhichOneof("array")
    if oneof_case is None:
        raise CorruptFileError("unknown encoding of a row id array", sorted(_DTYPES), path=path)
    dtype = _DTYPES[oneof_case]
    data = message.u64_array.values if oneof_case == "u64_array" else getattr(message, oneof_case).offsets
    if len(data) % dtype.itemsize:
        raise CorruptFileError("wrong number of bytes", f"a multiple of {dtype.itemsize}", len(data), path=path)
    values: U64Array = np.frombuffer(data, dtype).astype(np.uint64)
    if oneof_case == "u64_array" or not len(values):
        return values
    base = getattr(message, oneof_case).base
    if base > MAX_U64 - int(values.max()):
        raise CorruptFileError(f"values with base {base} exceed 64 bits", path=path)
    values += np.uint64(base)
    return values


def encode(values: U64Array) -> rowids_pb2.EncodedU64Array:
    """Encode (n,) values in the narrowest form for their range; the base is the smallest value."""
    message = rowids_pb2.EncodedU64Array()
    width = offset_bytes(values)
    if width == 8:
        message.u64_array.values = values.astype("<u8").tobytes()
        return message
    base = values.min()
    narrow = message.u16_array if width == 2 else message.u32_array
    narrow.base = int(base)
    narrow.offsets = (values - base).astype(f"<u{width}").tobytes()
    return message


def offset_bytes(values: U64Array) -> int:
    """Return the bytes per value of the narrowest form; 8, the plain form, for an empty array."""
    if not len(values):
        return 8
    spread = int(values.max()) - int(values.min())
    if spread <= 0xFFFF:
        return 2
    return 4 if spread <= 0xFFFF_FFFF else 8
