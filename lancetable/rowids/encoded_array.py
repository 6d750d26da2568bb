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

__all__ = ["Arrays", "decode", "decode_many", "encode", "has_values", "offset_bytes"]

_DTYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "u16_array": np.dtype("<u2"),
    "u32_array": np.dtype("<u4"),
    "u64_array": np.dtype("<u8"),
}
MAX_U64: Final = 2**64 - 1


def decode(message: rowids_pb2.EncodedU64Array, path: str | None = None) -> U64Array:
    """(n,) values. Raises CorruptFileError for an unknown form, broken length, or values beyond 64 bits."""
    arm = message.WhichOneof("array")
    if arm is None:
        raise CorruptFileError("an encoded array without a known form", path=path, expected=sorted(_DTYPES))
    dtype = _DTYPES[arm]
    data = message.u64_array.values if arm == "u64_array" else getattr(message, arm).offsets
    if len(data) % dtype.itemsize:
        raise CorruptFileError(
            f"{len(data)} bytes are no whole number of {dtype.itemsize}-byte values", path=path, found=len(data)
        )
    values: U64Array = np.frombuffer(data, dtype).astype(np.uint64)
    if arm == "u64_array" or not len(values):
        return values
    base = getattr(message, arm).base
    if base > MAX_U64 - int(values.max()):
        raise CorruptFileError(f"values beyond 64 bits from base {base}", path=path, expected=MAX_U64, found=base)
    values += np.uint64(base)
    return values


@dataclass(frozen=True, slots=True, eq=False)
class Arrays:
    """Many arrays one after the other, as they are stored: (n,) offsets; (k,) the base and the size of each array, and
    whether its values ascend."""

    offsets: npt.NDArray[Any]
    bases: U64Array
    counts: npt.NDArray[np.int64]
    rising: npt.NDArray[np.bool_]

    def values(self) -> U64Array:
        """(n,) values."""
        values: U64Array = self.offsets.astype(np.uint64)
        values += np.repeat(self.bases, self.counts)
        return values


def decode_many(messages: Sequence[rowids_pb2.EncodedU64Array], path: str | None = None) -> Arrays:
    """The same for many arrays at once, without those that are empty; raises as `decode`.

    Other writers put ids down in hundreds of short arrays, and most look-ups need none of their values.
    """
    arms = [message.WhichOneof("array") for message in messages]
    arm = arms[0]
    if arm not in ("u16_array", "u32_array") or arms.count(arm) != len(arms):
        parts = [values for values in (decode(message, path) for message in messages) if len(values)]
        counts = np.array([len(part) for part in parts], np.int64)
        values = np.concatenate([*parts, np.zeros(0, np.uint64)])
        return Arrays(values, np.zeros(len(parts), np.uint64), counts, _rising(values, counts))
    dtype = _DTYPES[arm]
    narrow = [message.u16_array if arm == "u16_array" else message.u32_array for message in messages]
    pieces = [each.offsets for each in narrow]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    if (sizes % dtype.itemsize).any():
        raise CorruptFileError(f"an array that is no whole number of {dtype.itemsize}-byte values", path=path)
    offsets = np.frombuffer(b"".join(pieces), dtype)
    filled = sizes > 0
    bases, counts = np.array([each.base for each in narrow], np.uint64)[filled], sizes[filled] // dtype.itemsize
    if len(counts):
        greatest = np.maximum.reduceat(offsets, np.cumsum(counts) - counts).astype(np.uint64)
        if (bases > np.uint64(MAX_U64) - greatest).any():
            raise CorruptFileError("values beyond 64 bits", path=path, expected=MAX_U64)
    return Arrays(offsets, bases, counts, _rising(offsets, counts))


def _rising(offsets: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which of the arrays one after the other, none of them empty, ascend."""
    rising, ends = np.ones(len(counts), np.bool_), np.cumsum(counts)
    falls = offsets[1:] <= offsets[:-1]
    falls[ends[:-1] - 1] = False  # the first of each array follows on none
    rising[np.searchsorted(ends, np.flatnonzero(falls) + 1, side="right")] = False
    return rising


def has_values(message: rowids_pb2.EncodedU64Array) -> bool:
    """Whether an array is not empty."""
    arm = message.WhichOneof("array")
    return bool(message.u64_array.values if arm == "u64_array" else arm and getattr(message, arm).offsets)


def encode(values: U64Array) -> rowids_pb2.EncodedU64Array:
    """(n,) values -> the narrowest form that holds their spread, with the smallest value as base."""
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
    """Bytes per value of the narrowest form; an empty array takes the plain one."""
    if not len(values):
        return 8
    spread = int(values.max()) - int(values.min())
    if spread <= 0xFFFF:
        return 2
    return 4 if spread <= 0xFFFF_FFFF else 8
