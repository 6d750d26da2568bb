"""Variable-width values: offsets, validity, gather, and validation of UTF-8.

A page stores the end of every value, and marks a null by adding an adjustment A that is larger than any end:

    ['x', 'yy', null]   A = 4   ends 1, 3, 3 + 4   ->   offsets 0 1 3 3, validity 1 1 0

Arrow stores n + 1 offsets from 0 on and a bitmap. Source: protos/encodings_v2_0.proto.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import native
from lancetable.file.kernels.bitpacking import aligned

MAX_INT32: Final = (1 << 31) - 1
_BLOCK_ROWS: Final = 16 * 1024
_FEW_BYTES: Final = 4096
_INT32: Final[np.dtype[Any]] = np.dtype(np.int32)
_INT64: Final[np.dtype[Any]] = np.dtype(np.int64)
_LARGE: Final = frozenset({pa.large_string().id, pa.large_binary().id, pa.large_list(pa.null()).id})
_STRINGS: Final = frozenset({pa.string().id, pa.large_string().id})

Offsets = npt.NDArray[Any]  # int32 or int64

_OFFSET_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    pa.string().id: _INT32,
    pa.binary().id: _INT32,
    pa.large_string().id: _INT64,
    pa.large_binary().id: _INT64,
}


def offset_dtype(data_type: pa.DataType) -> np.dtype[Any] | None:
    """Return the type of the offsets of a string or binary type, None for other types."""
    return _OFFSET_DTYPES.get(data_type.id)


def is_string(data_type: pa.DataType) -> bool:
    """Return True for strings and large strings."""
    return data_type.id in _STRINGS


def offsets_of(array: pa.Array) -> npt.NDArray[Any]:
    """Return the offsets, of shape (n + 1,), of a string, binary or list array; copied only if they are unaligned."""
    dtype = _INT64 if array.type.id in _LARGE else _INT32
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None or buffer.size == 0:
        return np.zeros(len(array) + 1, dtype)
    return aligned(np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize))


def offsets_of_sizes(sizes: npt.NDArray[Any], dtype: Any = np.int64) -> npt.NDArray[Any]:
    """Return the (n + 1,) offsets of consecutive values with these sizes, the first one 0."""
    offsets: npt.NDArray[Any] = np.zeros(len(sizes) + 1, dtype)
    np.add.accumulate(sizes, out=offsets[1:])
    return offsets


def offsets_from_ends(
    ends: npt.NDArray[np.uint64],
    null_adjustment: int,
    limit: int,
    dtype: np.dtype[Any],
    base: int = 0,
) -> tuple[Offsets, npt.NDArray[np.bool_] | None]:
    """Convert (n,) stored ends to (n + 1,) offsets from 0 on, and (n,) validity or None if nothing is null.

    Parameters
    ----------
    ends
        The stored ends, with the adjustment added to those of nulls.
    null_adjustment
        The number that is added to the ends of nulls.
    limit
        The largest valid end.
    dtype
        The type of the offsets, int32 or int64.
    base
        The start of the first value: the stored end of the previous value without its adjustment.

    Raises
    ------
    CorruptFileError
        If ends decrease, exceed the limit or do not fit the type.
    """
    offsets, valid, step, end = np.zeros(len(ends) + 1, dtype), None, max(len(ends), 1), base
    adjustment = np.uint64(null_adjustment)
    if len(ends) and int(ends.max()) >= null_adjustment:
        valid, step = ends < adjustment, _BLOCK_ROWS  # blocks keep intermediate results in the processor's cache
    for start in range(0, len(ends), step):
        plain = ends[start : start + step]
        if valid is not None:
            # Without an adjustment the difference wraps around to a larger number, so the minimum is always the end.
            plain = np.minimum(plain, plain - adjustment)
        if int(plain[0]) < end or (plain[1:] < plain[:-1]).any():
            raise CorruptFileError("value ends before it starts")
        end = int(plain[-1])
        if end > limit:
            raise CorruptFileError("value is outside its page", f"{base} to {limit}", end)
        check_total_bytes(end - base, dtype)
        np.subtract(plain, np.uint64(base), out=offsets[start + 1 : start + 1 + len(plain)], casting="unsafe")
    return offsets, valid


def check_total_bytes(total_bytes: int, dtype: np.dtype[Any]) -> None:
    """Raise CorruptFileError if offsets of type `dtype` cannot represent a total size."""
    if total_bytes > np.iinfo(dtype).max:
        raise CorruptFileError("values are too long for their type", f"at most {np.iinfo(dtype).max}", total_bytes)


def offsets_to_ends(offsets: Offsets, valid: npt.NDArray[np.bool_] | None) -> tuple[npt.NDArray[np.uint64], int]:
    """Convert (n + 1,) offsets and (n,) validity to (n,) stored ends and the null adjustment, the last end plus one."""
    total = int(offsets[-1]) - int(offsets[0])
    adjustment = total + 1
    ends = np.subtract(offsets[1:], offsets[0], dtype=np.int64).view(np.uint64)
    if valid is not None:
        ends = np.where(valid, ends, ends + np.uint64(adjustment))
    return ends, adjustment


def pack_validity(valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Convert (n,) booleans to Arrow's validity bitmap."""
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def gather(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Gather the values `data[starts[i]:ends[i]]`, which may overlap and be in any order.

    Returns (n + 1,) offsets and the bytes. Raises CorruptFileError if a value ends before it starts or is outside the
    data.
    """
    if native is not None:
        return native.gather(starts, ends, data)
    if (starts < 0).any() or (ends < starts).any() or (ends > len(data)).any():
        raise CorruptFileError("value is outside its page", f"0 to {len(data)}")
    values = [data.data[start:end] for start, end in zip(starts.tolist(), ends.tolist())]
    return np.append(0, np.cumsum(ends - starts)), np.frombuffer(b"".join(values), np.uint8)


def take(
    offsets: Offsets, data: npt.NDArray[np.uint8], rows: npt.NDArray[Any], validity: pa.Buffer | None = None
) -> tuple[Offsets, npt.NDArray[np.uint8]]:
    """Gather the values at `rows`, in any order, of (n + 1,) offsets into `data`.

    Returns offsets of the same type, and the bytes. Rows that are not set in the bitmap `validity` become empty and may
    be out of range.

    Raises CorruptFileError for rows out of range, values that end before they start or are outside the data, and a
    result that exceeds the type of the offsets.
    """
    if rows.dtype.kind == "i":
        rows = rows.astype(np.int64, copy=False)
    if native is not None:
        # Negative rows are out of range, like the large numbers that have the same bytes.
        numbers = rows.view(np.uint64) if rows.dtype.kind == "i" else rows
        return native.take(aligned(offsets), data, aligned(numbers), validity)
    valid = np.ones(len(rows), np.bool_)
    if validity is not None:
        valid = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little", count=len(rows)).view(np.bool_)
    used = rows[valid]
    if (used < 0).any() or (used >= len(offsets) - 1).any():
        raise CorruptFileError("dictionary index out of range", f"below {len(offsets) - 1}")
    spans = np.zeros((2, len(rows)), np.int64)
    spans[:, valid] = offsets[:-1][used], offsets[1:][used]
    new_offsets, chosen = gather(spans[0], spans[1], data)
    check_total_bytes(int(new_offsets[-1]), offsets.dtype)
    return new_offsets.astype(offsets.dtype, copy=False), chosen


def take_items(items: pa.Array, numbers: npt.NDArray[Any], validity: pa.Buffer | None) -> tuple[pa.Buffer, pa.Buffer]:
    """Gather strings or binaries at checked indices. Returns the buffers of offsets and bytes; nulls have no bytes."""
    content = items.buffers()[2]
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.empty(0, np.uint8)
    new_offsets, chosen = take(offsets_of(items), data, numbers, validity)
    return pa.py_buffer(new_offsets), pa.py_buffer(chosen)


def taken_bytes(items: pa.Array, numbers: npt.NDArray[Any], limit: int) -> int:
    """Return the total size of the strings or binaries at indices, or a cheap upper bound if that is within `limit`."""
    size_bytes = int(items.nbytes) * len(numbers)
    if size_bytes <= limit:
        return size_bytes
    lengths = np.asarray(pc.binary_length(items).fill_null(0))
    longest = int(lengths.max(initial=0)) * len(numbers)
    return longest if longest <= limit else int(np.bincount(numbers.astype(np.int64), minlength=len(lengths)) @ lengths)


def is_ascii(data: npt.NDArray[np.uint8]) -> bool:
    """Return True if no byte has its high bit set."""
    if len(data) <= _FEW_BYTES:
        return data.tobytes().isascii()
    return int(data.max()) < 0x80


def check_utf8(offsets: Offsets, data: npt.NDArray[np.uint8]) -> None:
    """Raise CorruptFileError unless each value at (n + 1,) checked offsets is valid UTF-8."""
    start, end = int(offsets[0]), int(offsets[-1])
    used = data[start:end]
    if is_ascii(used):
        return
    # Validate all bytes as one string, which is faster; then check that no value begins inside a character.
    ends = pa.py_buffer(np.array((0, len(used)), np.int64))
    whole = pa.Array.from_buffers(pa.large_string(), 1, [None, ends, pa.py_buffer(used)])
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptFileError("a string is not UTF-8") from error
    first_bytes = used.take(offsets[offsets < end] - start)
    if (first_bytes & np.uint8(0xC0) == 0x80).any():  # 10xxxxxx continues a character
        raise CorruptFileError("a string is not UTF-8")


def prefix_end(prefix: str) -> str | None:
    """Return the smallest string, in UTF-8 order, above all strings that start with `prefix`; None if none exists."""
    for at in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[at]) + 1
        if point == 0xD800:
            point = 0xE000  # skip the surrogates, which UTF-8 cannot encode
        if point <= 0x10FFFF:
            return prefix[:at] + chr(point)
    return None
