"""Pages of one field, and vectorized reading of values from many pages.

    batch        0          1          2
    page      [a b c d]  [e f g h]  [i j]        spans (0, 2, 2) (1, 0, 4) (2, 0, 1)  ->  c d e f g h i

Batches are small (usually 1,024 rows) and numerous, so this module does not loop over them. Spans are arrays with one
entry for each range of values within a page, and the bytes of all spans are gathered in one step.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.io_scheduler import MAPPED, ReadPlan, cluster, join
from lancetable.file.kernels import varbin
from lancetable.file.kernels.bitpacking import take_bits
from lancetable.file.legacy_footer import LegacyMetadata, PageRow
from lancetable.store.base import ByteRange

Int64 = npt.NDArray[np.int64]

_EMPTY: Final = memoryview(b"")


class TooLongError(CorruptFileError):
    """Error for values of several batches that together exceed their offset type; fewer batches may fit."""


class Spans(NamedTuple):
    """Ranges of values: arrays of shape (n,) with the batch, the first value in its page, and the number of values.

    `total` is the sum of `counts`.
    """

    batches: Int64
    firsts: Int64
    counts: Int64
    total: int


class FieldNode(Protocol):
    """Reader of one field and its descendants."""

    def read(self, spans: Spans, max_gap: int) -> ReadPlan[pa.Array]:
        """Plan reading the values of spans into one array; `max_gap` is the coalescing distance in bytes.

        Raises CorruptFileError if the pages are invalid, and TooLongError if the values exceed their offset type.
        """


class Pages:
    """Pages of one field, validated against the size of the file.

    Parameters
    ----------
    file
        Metadata of the file.
    row
        Row of the page table for the field.
    width_bits
        Size of an entry.
    expected
        Required number of entries of each page, of shape (batches,). None inside of lists, where it depends on the
        offsets. A page of list offsets has one entry more than the number of lists.
    name
        Name of the field, for error messages.

    Raises
    ------
    CorruptFileError
        If a page has the wrong number of entries or exceeds the file, or pages overlap.
    """

    __slots__ = ("file", "lengths", "name", "positions")

    def __init__(self, file: LegacyMetadata, row: PageRow, width_bits: int, expected: Int64 | None, name: str) -> None:
        self.file = file
        self.name = name
        self.positions, self.lengths = positions, lengths = row
        if not len(positions):
            return
        if expected is not None and not np.array_equal(lengths, expected):
            batch = int(np.flatnonzero(lengths != expected)[0])
            raise self.corrupt(f"batch {batch}: wrong number of values", int(expected[batch]), int(lengths[batch]))
        size = file.size_bytes
        limit = size * 8 // max(width_bits, 1)
        if (lengths < 0).any() or int(lengths.max()) > limit:
            raise self.corrupt("too many values in a page", f"at most {limit}", int(lengths.max()))
        sizes = (lengths * width_bits + 7) >> 3
        if (positions < 0).any() or (positions > size - sizes).any():
            raise self.corrupt("a page exceeds the file", f"within {size} bytes", int(positions.max()))
        if sizes.sum(dtype=np.float64) > size:
            raise self.corrupt("pages overlap", f"at most {size} bytes", int(sizes.sum(dtype=np.float64)))

    def check(self, spans: Spans, extra: int = 0) -> None:
        """Raise CorruptFileError if a span ends beyond its page. `extra` is the number of entries after the values."""
        if len(spans.batches) and (spans.firsts + spans.counts > self.lengths[spans.batches] - extra).any():
            raise self.corrupt("values exceed their page")

    def corrupt(self, what: str, expected: object = None, found: object = None) -> CorruptFileError:
        """Return a CorruptFileError for this field; the caller raises it."""
        return self.file.corrupt(f"field {self.name!r}: {what}", expected, found)


def fetch_joined(file: LegacyMetadata, starts: Int64, ends: Int64, max_gap: int) -> ReadPlan[Any]:
    """Plan reading and concatenating ranges of the file. Ranges that are contiguous in the file are not copied.

    Raises CorruptFileError if a range ends before it starts or exceeds the file, or if ranges overlap too much.
    """
    if not len(starts):
        return _EMPTY
    if (starts < 0).any() or (ends < starts).any() or int(ends.max()) > file.size_bytes:
        raise file.corrupt("values exceed the file", f"within {file.size_bytes} bytes", int(ends.max()))
    # The ranges of neighbouring rows overlap by one entry at most, which less than doubles their total size.
    if (ends - starts).sum(dtype=np.float64) > 2 * file.size_bytes:
        raise file.corrupt("values overlap", f"at most {2 * file.size_bytes} bytes in total")
    if len(starts) == 1 or bool((starts[1:] == ends[:-1]).all()):
        if starts[0] == ends[-1]:
            return _EMPTY
        (data,) = yield (ByteRange(int(starts[0]), int(ends[-1])),)
        return data
    shift: Int64 | int
    if max_gap == MAPPED:
        shift = int(starts.min())
        (data,) = yield (ByteRange(shift, int(ends.max())),)
    elif (starts[1:] >= ends[:-1]).all():
        ranges, shift = cluster(starts, ends, max_gap)
        data = join((yield ranges))
    else:
        ranges = [ByteRange(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return join((yield ranges))
    return varbin.gather(starts - shift, ends - shift, np.frombuffer(data, np.uint8))[1]


def fetch_bits(pages: Pages, spans: Spans, max_gap: int) -> ReadPlan[Any]:
    """Plan reading spans of bits into one bitmap."""
    first_bits = spans.firsts & 7
    starts = pages.positions[spans.batches] + (spans.firsts >> 3)
    ends = pages.positions[spans.batches] + ((spans.firsts + spans.counts + 7) >> 3)
    data = yield from fetch_joined(pages.file, starts, ends, max_gap)
    if not first_bits.any() and not (spans.counts[:-1] & 7).any():
        return data
    # Start of the bits of each span in the fetched bytes, minus the number of bits of all spans before it.
    sizes = ends - starts
    shifts = (np.cumsum(sizes) - sizes) * 8 + first_bits - (np.cumsum(spans.counts) - spans.counts)
    bit_index = np.repeat(shifts, spans.counts)
    bit_index += np.arange(spans.total)
    return take_bits(np.frombuffer(data, np.uint8), bit_index)


def offsets_of_runs(
    pages: Pages, entries: Int64, counts: Int64, dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], Int64, Int64]:
    """Convert runs of positions to Arrow offsets.

    Parameters
    ----------
    pages
        Pages that contain the positions.
    entries
        Concatenated runs; run i has `counts[i] + 1` ascending positions.
    counts
        Number of values of each run.
    dtype
        Type of the offsets.

    Returns
    -------
    offsets
        Offsets of the values of all runs, from 0 on.
    first, last
        First and last position of each run.

    Raises
    ------
    CorruptFileError
        If a position is negative or positions descend within a run.
    TooLongError
        If the offsets exceed the range of `dtype`.
    """
    run_starts = np.cumsum(counts + 1) - (counts + 1)
    first, last = entries[run_starts], entries[run_starts + counts]
    if len(counts) == len(entries) // 2 and not (counts != 1).any():
        lengths = last - first
    else:
        lengths = np.delete(np.diff(entries), run_starts[1:] - 1)
    if int(entries.min()) < 0 or (len(lengths) and int(lengths.min()) < 0):
        raise pages.corrupt("a value ends before it starts, or its position is negative")
    # Floating point does not overflow, and is exact below 2^53.
    _check_total(int((last - first).sum(dtype=np.float64)), dtype)
    return varbin.offsets_of_sizes(lengths, dtype), first, last


def _check_total(total: int, dtype: np.dtype[Any]) -> None:
    limit = np.iinfo(dtype).max
    if total > limit:
        raise TooLongError(f"{total} bytes of values are too long for their type", expected=limit, found=total)
