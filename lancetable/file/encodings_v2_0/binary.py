"""Binary: strings and binaries as 64-bit end offsets and one contiguous buffer of bytes.

    ['x', 'yy', null]   A = 4   ends 1, 3, 3 + 4   bytes 'xyy'

The null adjustment A, which is larger than any end, is added to the end of a null. The 0 before the first end is
omitted. Reading a row needs its own end and the previous one. Source: protos/encodings_v2_0.proto, Binary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.column_interfaces import Decoded
from lancetable.file.encodings_v2_0.base import ArrayEncoding, BufferList, ParsedMessage
from lancetable.file.encodings_v2_0.flat import Flat, bitmap_piece
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import MAPPED, ReadPlan, Slots, cluster, gap_within, join, positions
from lancetable.file.kernels import varbin
from lancetable.file.kernels.compression import compress
from lancetable.store.base import ByteRange

_MAX_INT64: Final = (1 << 63) - 1
_BLOCK_ROWS: Final = 32 * 1024  # ends per write: 256 KiB, more than the buffer of the writer


@dataclass(frozen=True, slots=True)
class Binary(ParsedMessage):
    """Strings or binaries: their ends (`indices`), their bytes, and the null adjustment."""

    oneof_case: ClassVar[str] = "binary"

    indices: ArrayEncoding
    bytes: ArrayEncoding
    null_adjustment: int

    def read(self, page: Page, data_type: pa.DataType, length: int, slots: Slots, max_gap: int) -> ReadPlan[Decoded]:
        dtype = checked_offset_dtype(page, data_type)
        if self.null_adjustment == 0:
            raise page.corrupt("the null adjustment is 0")
        rows = positions(slots)
        content = unwrap(self.bytes)
        if not isinstance(content, Flat) or content.bits_per_value != 8:
            raise page.unsupported(f"bytes in encoding {content.oneof_case}")
        if isinstance(rows, range):
            decoded = yield from self._read_range(page, content, dtype, length, rows)
        else:
            decoded = yield from self._read_rows(page, content, dtype, length, rows, max_gap)
        check_strings(decoded, data_type)
        return decoded

    def _read_range(
        self, page: Page, content: Flat, dtype: np.dtype[Any], length: int, rows: range
    ) -> ReadPlan[Decoded]:
        ends = unwrap(self.indices)
        data = None
        if len(rows) == length and not content.compression and isinstance(ends, Flat) and ends.is_plain(64):
            # The whole page is read, so the range of its bytes does not depend on the ends: fetch both in one round.
            raw, data = yield (ends.plain_range(page, length, rows), page.buffer(content.buffer))
            stored = np.frombuffer(raw, "<u8", length)
        else:
            end_rows = range(max(rows.start - 1, 0), rows.stop)
            stored = yield from fetch_ends(ends, page, length, end_rows, MAPPED)
        whole = data if data is not None else (yield from self._decompressed(page, content, length))
        size = page.buffer(content.buffer).end - page.buffer(content.buffer).start if whole is None else len(whole)
        offsets, validity, base = offsets_of_range(stored, rows, self.null_adjustment, size, dtype)
        end = base + int(offsets[-1])
        if whole is None:
            start = page.buffer(content.buffer).start
            (data,) = yield (ByteRange(start + base, start + end),)
        else:
            data = whole[base:end]
        return Decoded(len(rows), (pa.py_buffer(offsets), pa.py_buffer(data)), validity)

    def _read_rows(
        self, page: Page, content: Flat, dtype: np.dtype[Any], length: int, rows: npt.NDArray[np.int64], max_gap: int
    ) -> ReadPlan[Decoded]:
        starts, ends, valid = yield from fetch_spans(self.indices, page, length, rows, self.null_adjustment, max_gap)
        whole = yield from self._decompressed(page, content, length)
        location = page.buffer(content.buffer)
        size = location.end - location.start if whole is None else len(whole)
        if int(ends[-1]) > size:
            raise page.corrupt("a value exceeds the bytes of its page", f"at most {size}", int(ends[-1]))
        if whole is None:
            base = location.start
            ranges, shift = cluster(starts + base, ends + base, gap_within(max_gap, size, len(starts)))
            buffers = yield ranges
            data = join(buffers)
            shift = shift - base
            starts = starts - shift
            ends = ends - shift
        else:
            data = whole
        validity = None if valid is None else varbin.pack_validity(valid)
        total = int((ends - starts).sum())
        if dtype.itemsize == 4 and total > varbin.MAX_INT32:
            raise page.corrupt("the values are too long for their type", f"at most {varbin.MAX_INT32} bytes", total)
        offsets, selected = select_spans(starts, ends, data, dtype)
        return Decoded(len(rows), (offsets, selected), validity)

    def _decompressed(self, page: Page, content: Flat, length: int) -> ReadPlan[memoryview | None]:
        """Plan reading and decompressing the bytes of a page; return None if they are not compressed."""
        if not content.is_compressed:
            return None
        last = yield from fetch_ends(self.indices, page, length, range(length - 1, length), MAPPED)
        # The last end is the largest one; otherwise the page is corrupt, which is detected later.
        return (yield from content.fetch_all(page, _end(last[0], self.null_adjustment)))


def checked_offset_dtype(page: Page, data_type: pa.DataType) -> np.dtype[Any]:
    """Return the type of the offsets of strings or binaries. Raises CorruptFileError for other types."""
    dtype = varbin.offset_dtype(data_type)
    if dtype is None:
        raise page.corrupt("string or binary encoding in a column of another type", found=str(data_type))
    return dtype


def unwrap(encoding: ArrayEncoding) -> ArrayEncoding:
    """Return the encoding inside of Nullable wrappers without nulls."""
    while isinstance(encoding, Nullable) and encoding.values is not None and encoding.validity is None:
        encoding = encoding.values
    return encoding


def fetch_ends(
    indices: ArrayEncoding, page: Page, length: int, rows: Slots, max_gap: int
) -> ReadPlan[npt.NDArray[np.uint64]]:
    """Plan reading the stored ends of `rows`, including null adjustments.

    Raises CorruptFileError if the ends are not 64 bits wide or have nulls.
    """
    indices = unwrap(indices)
    if isinstance(indices, Flat):
        if indices.bits_per_value != 64:
            raise page.corrupt("wrong width of offsets", "64 bits", indices.bits_per_value)
        data = yield from indices.fetch(page, length, rows, max_gap)
    else:
        decoded = yield from indices.read(page, pa.uint64(), length, rows, max_gap)
        if decoded.validity is not None or not decoded.buffers:
            raise page.corrupt("offsets are nullable")
        data = decoded.buffers[0]
    return np.frombuffer(data, "<u8", len(rows))


def offsets_of_range(
    stored: npt.NDArray[np.uint64], rows: range, adjustment: int, limit: int, dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], pa.Buffer | None, int]:
    """Convert the stored ends of `rows`, after the end of the previous row if there is one, to Arrow offsets.

    Returns offsets from 0 on, the validity bitmap or None, and the start of the first value. Raises CorruptFileError if
    the ends are invalid or exceed `limit`.
    """
    base = 0
    if rows.start:
        base = _end(stored[0], adjustment)
        stored = stored[1:]
    offsets, valid = varbin.offsets_from_ends(stored, adjustment, limit, dtype, base)
    return offsets, None if valid is None else varbin.pack_validity(valid), base


def _end(stored: np.uint64, adjustment: int) -> int:
    end = int(stored)
    return end - adjustment if end >= adjustment else end


def fetch_spans(
    indices: ArrayEncoding,
    page: Page,
    length: int,
    rows: npt.NDArray[np.int64],
    adjustment: int,
    max_gap: int,
) -> ReadPlan[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]]:
    """Plan reading the start and end of single values.

    Parameters
    ----------
    indices
        Encoding of the ends.
    page
        Page of the values.
    length
        Number of values of the page.
    rows
        Ascending row numbers.
    adjustment
        Null adjustment.
    max_gap
        Coalescing distance in bytes.

    Returns
    -------
    starts, ends
        Ascending spans that do not overlap. The span of a null is empty.
    valid
        Validity mask, or None if all values are valid.

    Raises
    ------
    CorruptFileError
        If the spans descend or overlap.
    """
    end_rows: Slots
    if max_gap == MAPPED:
        end_rows = range(max(int(rows[0]) - 1, 0), int(rows[-1]) + 1)
        positions_of_ends = rows - end_rows.start
    else:
        end_rows = np.union1d(rows, np.maximum(rows - 1, 0))
        positions_of_ends = np.searchsorted(end_rows, rows)
    stored = yield from fetch_ends(indices, page, length, end_rows, max_gap)
    starts, ends, valid = spans_of(stored, positions_of_ends, rows == 0, np.uint64(adjustment))
    if int(ends.max()) > _MAX_INT64 or (starts > ends).any() or (ends[:-1] > starts[1:]).any():
        raise page.corrupt("a value ends before it starts")
    return starts.view(np.int64), (ends if valid is None else np.where(valid, ends, starts)).view(np.int64), valid


def spans_of(
    stored: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64], is_first: npt.NDArray[np.bool_], adjustment: Any
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.bool_] | None]:
    """Return start, end and validity (None if all are valid) of values from the stored ends at `indices`.

    `is_first` marks the values that begin at 0 because they are the first ones of their page. `adjustment` is one null
    adjustment, or one for each value. The spans are not checked.
    """
    ends, starts = stored.take(indices), stored.take(np.maximum(indices - 1, 0))
    valid = ends < adjustment
    all_valid = bool(valid.all())
    if not all_valid:
        ends = np.minimum(ends, ends - adjustment)  # subtracts from nulls only: the difference wraps around for others
    starts = np.minimum(starts, starts - adjustment)
    starts[is_first] = 0
    return starts, ends, None if all_valid else valid


def select_spans(
    starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], data: Any, dtype: np.dtype[Any]
) -> tuple[pa.Buffer, pa.Buffer]:
    """Gather ascending spans of `data`. Returns Arrow offsets of type `dtype` and the concatenated bytes."""
    if len(starts) == 1:
        start, end = int(starts[0]), int(ends[0])
        return pa.py_buffer(np.array([0, end - start], dtype)), pa.py_buffer(data[start:end])
    offsets, gathered = varbin.gather(starts, ends, np.frombuffer(data, np.uint8))
    return pa.py_buffer(offsets.astype(dtype, copy=False)), pa.py_buffer(gathered)


def check_strings(decoded: Decoded, data_type: pa.DataType) -> None:
    """Raise CorruptFileError if a string is not valid UTF-8. Nulls and binaries are not checked."""
    data = decoded.buffers[1]
    if not varbin.is_string(data_type) or data is None or not data.size:
        return
    offsets = np.frombuffer(decoded.buffers[0], varbin.offset_dtype(data_type), decoded.length + 1)
    try:
        varbin.check_utf8(offsets, np.frombuffer(data, np.uint8))
    except CorruptFileError:
        if decoded.validity is None:
            raise
        # The invalid bytes may belong to nulls.
        try:
            decoded.to_array(data_type).validate(full=True)
        except pa.ArrowInvalid as error:
            raise CorruptFileError("a string is not UTF-8") from error


# ------------------------------------------------------------------------------------------------------------ encode


def encode_binary(
    arrays: Sequence[pa.Array], buffers: BufferList, compression: str = "", level: int | None = None
) -> Binary:
    """Encode strings or binaries of one type. Their bytes, including those of nulls, are not copied."""
    # The start of the first value and the end of the last value of each array.
    spans = [(int(offsets[0]), int(offsets[-1])) for offsets in map(varbin.offsets_of, arrays)]
    adjustment = sum(stop - start for start, stop in spans) + 1
    indices = Flat(64, buffers.add(_stored_ends(arrays, spans, adjustment)))
    pieces: list[Any] = []
    for array, (start, stop) in zip(arrays, spans):
        if stop > start:
            pieces.append(array.buffers()[2].slice(start, stop - start))
    if compression not in ("", "none"):
        pieces = [compress(compression, b"".join(memoryview(piece) for piece in pieces), level)]
    return Binary(Nullable(indices), Flat(8, buffers.add(pieces), compression, level), adjustment)


def _stored_ends(
    arrays: Sequence[pa.Array], spans: Sequence[tuple[int, int]], adjustment: int
) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield blocks of stored ends, computed while they are written.

    All blocks use the same memory, which stays in the CPU cache. A block is valid until the next one is requested.
    """
    memory = np.empty(min(_BLOCK_ROWS, max(map(len, arrays))), np.int64)
    base = 0
    for array, (start, stop) in zip(arrays, spans):
        offsets = varbin.offsets_of(array)
        nulls = nulls_of(array) if array.null_count else None
        for first in range(0, len(array), _BLOCK_ROWS):
            last = min(first + _BLOCK_ROWS, len(array))
            block = memory[: last - first]
            np.add(offsets[first + 1 : last + 1], base - start, out=block, dtype=np.int64)
            if nulls is not None:
                # Multiplication is faster than a masked addition, which tests the mask for each value.
                block += np.multiply(nulls[first:last], adjustment, dtype=np.int64)
            yield block.view(np.uint64)
        base += stop - start


def nulls_of(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return an array of shape (n,) with 1 for nulls and 0 for other values. The array must have nulls."""
    bitmap = bitmap_piece(array, 0)
    return np.unpackbits(~bitmap, bitorder="little", count=len(array))
