"""EncodedU64Array: 64-bit values as 16- or 32-bit offsets from a base, or plain.    base 1000 + [0 7 3]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

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
        raise CorruptFileError("an encoded array has no known form", path=path, expected=sorted(_DTYPES))
    dtype = _DTYPES[oneof_case]
    data = message.u64_array.values if oneof_case == "u64_array" else getattr(message, oneof_case).offsets
    if len(data) % dtype.itemsize:
        raise CorruptFileError(
            f"{len(data)} bytes are not a multiple of the value size {dtype.itemsize}", path=path, found=len(data)
        )
    values: U64Array = np.frombuffer(data, dtype).astype(np.uint64)
    if oneof_case == "u64_array" or not len(values):
        return values
    base = getattr(message, oneof_case).base
    if base > MAX_U64 - int(values.max()):
        raise CorruptFileError(f"values with base {base} exceed 64 bits", path=path, expected=MAX_U64, found=base)
    values += np.uint64(base)
    return values


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """Several non-empty arrays, concatenated and still encoded.

    `offsets` is (n,); the others have one entry for each of the k arrays: its base, its number of values, and whether
    its values are strictly ascending.
    """

    offsets: npt.NDArray[Any]
    bases: U64Array
    counts: npt.NDArray[np.int64]
    ascending: npt.NDArray[np.bool_]

    def values(self) -> U64Array:
        """Return the (n,) decoded values."""
        values: U64Array = self.offsets.astype(np.uint64)
        values += np.repeat(self.bases, self.counts)
        return values


def decode_many(messages: Sequence[rowids_pb2.EncodedU64Array], path: str | None = None) -> Arrays:
    """Concatenate several encoded arrays without decoding them; empty arrays are left out.

    Other writers store ids in hundreds of short arrays, and most lookups need none of the decoded values. Raises the
    errors of `decode`.
    """
    cases = [message.WhichOneof("array") for message in messages]
    oneof_case = cases[0]
    if oneof_case not in ("u16_array", "u32_array") or cases.count(oneof_case) != len(cases):
        parts = [values for values in (decode(message, path) for message in messages) if len(values)]
        counts = np.array([len(part) for part in parts], np.int64)
        values = np.concatenate([*parts, np.zeros(0, np.uint64)])
        return Arrays(values, np.zeros(len(parts), np.uint64), counts, _is_ascending(values, counts))
    dtype = _DTYPES[oneof_case]
    narrow = [message.u16_array if oneof_case == "u16_array" else message.u32_array for message in messages]
    buffers = [array.offsets for array in narrow]
    sizes = np.array([len(buffer) for buffer in buffers], np.int64)
    if (sizes % dtype.itemsize).any():
        raise CorruptFileError(f"the size of an array is not a multiple of the value size {dtype.itemsize}", path=path)
    offsets = np.frombuffer(b"".join(buffers), dtype)
    filled = sizes > 0
    bases, counts = np.array([array.base for array in narrow], np.uint64)[filled], sizes[filled] // dtype.itemsize
    if len(counts):
        greatest = np.maximum.reduceat(offsets, np.cumsum(counts) - counts).astype(np.uint64)
        if (bases > np.uint64(MAX_U64) - greatest).any():
            raise CorruptFileError("values exceed 64 bits", path=path, expected=MAX_U64)
    return Arrays(offsets, bases, counts, _is_ascending(offsets, counts))


def _is_ascending(offsets: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return for each of the concatenated, non-empty arrays whether it is strictly ascending."""
    ascending, ends = np.ones(len(counts), np.bool_), np.cumsum(counts)
    descents = offsets[1:] <= offsets[:-1]
    descents[ends[:-1] - 1] = False  # between two arrays
    ascending[np.searchsorted(ends, np.flatnonzero(descents) + 1, side="right")] = False
    return ascending


def has_values(message: rowids_pb2.EncodedU64Array) -> bool:
    """Return True if an array is not empty."""
    oneof_case = message.WhichOneof("array")
    return bool(
        message.u64_array.values if oneof_case == "u64_array" else oneof_case and getattr(message, oneof_case).offsets
    )


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
