"""The pages of one field, and how values are found in many of them at once.

    batch        0          1          2
    page      [a b c d]  [e f g h]  [i j]        spans (0, 2, 2) (1, 0, 4) (2, 0, 1)  ->  c d e f g h i

A file has many small batches (1,024 rows as a rule), so nothing here loops over them: spans are arrays, one entry for
each stretch of values within one page, and the bytes of all of them are gathered in one step.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.fetch import MAPPED, ReadPlan, cluster, join
from lancetable.file.kernels import varbin
from lancetable.file.legacy_container import LegacyMetadata, PageRow
from lancetable.store.base import ByteRange

__all__ = ["Node", "Pages", "Spans", "TooLongError", "fetch_bits", "fetch_joined", "offsets_of_runs", "zeros"]

Int64 = npt.NDArray[np.int64]

_EMPTY: Final = memoryview(b"")
MAX_INT32: Final = 2**31 - 1


class TooLongError(CorruptFileError):
    """Values of several batches together do not fit the type of their offsets; apart they may."""


class Spans(NamedTuple):
    """Stretches of values: (n,) the batch of each, its first value within the page, how many; and the sum of these."""

    batches: Int64
    firsts: Int64
    counts: Int64
    total: int


class Node(Protocol):
    """Reads the values of one field, with all below it, as one array."""

    def read(self, spans: Spans, gap: int) -> ReadPlan[pa.Array]: ...


class Pages:
    """The pages of one field whose values take `width_bits` each; held against the size of the file.

    `expected` (batches,) is how many entries each page must have, None below lists, where the offsets say. A page of
    offsets has one entry more than lists.
    """

    __slots__ = ("file", "lengths", "name", "positions")

    def __init__(self, file: LegacyMetadata, row: PageRow, width_bits: int, expected: Int64 | None, name: str) -> None:
        self.file = file
        self.name = name
        self.positions, self.lengths = positions, lengths = row
        if not len(positions):
            return
        if expected is not None and not np.array_equal(lengths, expected):
            at = int(np.flatnonzero(lengths != expected)[0])
            raise self.corrupt(f"batch {at}: wrong number of values", int(expected[at]), int(lengths[at]))
        size = file.size_bytes
        limit = size * 8 // max(width_bits, 1)
        if (lengths < 0).any() or int(lengths.max()) > limit:
            raise self.corrupt("a page has an impossible number of values", f"at most {limit}", int(lengths.max()))
        sizes = (lengths * width_bits + 7) >> 3
        if (positions < 0).any() or (positions > size - sizes).any():
            raise self.corrupt("a page lies outside of the file", f"within {size}", int(positions.max()))
        if sizes.sum(dtype=np.float64) > size:
            raise self.corrupt("pages lie one over the other", f"{size} bytes", int(sizes.sum(dtype=np.float64)))

    def check(self, spans: Spans, extra: int = 0) -> None:
        """Raise CorruptFileError if a span ends beyond its page; `extra` entries of each page begin no value."""
        if len(spans.batches) and (spans.firsts + spans.counts > self.lengths[spans.batches] - extra).any():
            raise self.corrupt("values beyond the end of a page")

    def corrupt(self, what: str, expected: object = None, found: object = None) -> CorruptFileError:
        """The error for these pages, to be raised."""
        return self.file.corrupt(f"field {self.name!r}: {what}", expected, found)


def fetch_joined(file: LegacyMetadata, starts: Int64, ends: Int64, gap: int) -> ReadPlan[Any]:
    """The bytes of stretches of the file, one after the other; not copied where they lie so.

    Raises CorruptFileError for a stretch that ends before it starts or outside of the file.
    """
    if not len(starts):
        return _EMPTY
    if (starts < 0).any() or (ends < starts).any() or int(ends.max()) > file.size_bytes:
        raise file.corrupt("values outside of the file", f"within {file.size_bytes}", int(ends.max()))
    # Neighbouring rows share the entry between them, and nothing else.
    if (ends - starts).sum(dtype=np.float64) > 2 * file.size_bytes:
        raise file.corrupt("values lie one over the other", f"within {file.size_bytes} bytes")
    if len(starts) == 1 or bool((starts[1:] == ends[:-1]).all()):
        if starts[0] == ends[-1]:
            return _EMPTY
        (data,) = yield (ByteRange(int(starts[0]), int(ends[-1])),)
        return data
    shift: Int64 | int
    if gap == MAPPED:
        shift = int(starts.min())
        (data,) = yield (ByteRange(shift, int(ends.max())),)
    elif (starts[1:] >= ends[:-1]).all():
        ranges, shift = cluster(starts, ends, gap)
        data = join((yield ranges))
    else:
        ranges = [ByteRange(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        return join((yield ranges))
    return varbin.gather(starts - shift, ends - shift, np.frombuffer(data, np.uint8))[1]


def fetch_bits(pages: Pages, spans: Spans, gap: int) -> ReadPlan[Any]:
    """Bits of bitmap pages -> a bitmap of all of them side by side."""
    first_bits = spans.firsts & 7
    starts = pages.positions[spans.batches] + (spans.firsts >> 3)
    ends = pages.positions[spans.batches] + ((spans.firsts + spans.counts + 7) >> 3)
    data = yield from fetch_joined(pages.file, starts, ends, gap)
    if not first_bits.any() and not (spans.counts[:-1] & 7).any():
        return data
    # Where the bits of a span begin in the joined bytes, less what comes out before it.
    sizes = ends - starts
    begin = (np.cumsum(sizes) - sizes) * 8 + first_bits - (np.cumsum(spans.counts) - spans.counts)
    at = np.repeat(begin, spans.counts)
    at += np.arange(spans.total)
    octets = np.frombuffer(data, np.uint8)
    bits = (octets[at >> 3] >> (at & 7).astype(np.uint8)) & np.uint8(1)
    return np.packbits(bits, bitorder="little")


def offsets_of_runs(entries: Int64, counts: Int64, dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], Int64, Int64]:
    """Runs of `counts + 1` ascending entries each, side by side -> (offsets from 0 on, first entry of each run, last).

    Raises CorruptFileError where entries decrease, TooLongError if the offsets do not fit `dtype`.
    """
    if int(entries.min()) < 0:
        raise CorruptFileError("a value begins before the file")
    if len(counts) == 1:
        first, last = entries[:1], entries[-1:]
        if (entries[1:] < entries[:-1]).any():
            raise CorruptFileError("a value ends before it starts")
        _check_total(int(last[0]) - int(first[0]), dtype)
        return (entries - first[0]).astype(dtype), first, last
    run_starts = np.cumsum(counts + 1) - (counts + 1)
    first, last = entries[run_starts], entries[run_starts + counts]
    if len(counts) == len(entries) // 2 and not (counts != 1).any():
        lengths = last - first
    else:
        steps = np.diff(entries)
        lengths = np.delete(steps, run_starts[1:] - 1)
    if len(lengths) and int(lengths.min()) < 0:
        raise CorruptFileError("a value ends before it starts")
    # In floating point, where nothing wraps; below 2^53 it is exact.
    _check_total(int((last - first).sum(dtype=np.float64)), dtype)
    offsets = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=offsets[1:])
    return offsets, first, last


def _check_total(total: int, dtype: np.dtype[Any]) -> None:
    if total > np.iinfo(dtype).max:
        raise TooLongError("values too long for their type", expected=np.iinfo(dtype).max, found=total)


def zeros(count: int) -> Int64:
    """(count,) zeros."""
    return np.zeros(count, np.int64)
