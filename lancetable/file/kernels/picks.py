"""Random access to values in the chunks of mini-block pages, for reads of a few rows.

    data  ....[piece 0]......[piece 1]..      starts, sizes: (n,) the piece of each value, ascending, possibly repeated
                  ^ places[0]    ^ places[1]  counts: (n,) values in the piece; places: (n,) index of the value in it

A piece is the buffer of one chunk, as in miniblock.py. Only bytes that determine a requested value are read and
checked. A compiled kernel computes the position of each value; the NumPy form decodes each piece once and selects from
the result. Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import miniblock, native
from lancetable.file.kernels.levels import LEVEL, Levels

__all__ = [
    "FLAT",
    "INLINE",
    "OUT_OF_LINE",
    "RUNS",
    "Pieces",
    "Stored",
    "bits",
    "chunks_of_rows",
    "entries_of_rows",
    "fixed",
    "inline",
    "locate",
    "locate_lists",
    "out_of_line",
    "runs",
    "spread",
    "streams",
    "variable",
]

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Encodings of the levels of a chunk; bits 8 and above are the width of out-of-line packed levels.
FLAT: Final = 1
INLINE: Final = 2
OUT_OF_LINE: Final = 3
RUNS: Final = 4
_WIDTH_SHIFT: Final = 8
_USUAL_BYTES: Final = 4096  # larger widths are checked before memory is allocated


class Pieces(NamedTuple):
    """One piece of `data` for each requested value, and the index of the value in its piece."""

    data: Bytes
    starts: Ints
    sizes: Ints
    counts: Ints
    places: Ints

    def once(self) -> tuple[Ints, Ints]:
        """Return the first index of each distinct piece, and the (n,) number of the piece of each value."""
        new = np.empty(len(self.starts), np.bool_)
        new[:1] = True
        np.not_equal(self.starts[1:], self.starts[:-1], out=new[1:])
        return np.flatnonzero(new), np.cumsum(new) - 1

    def check(self) -> None:
        """Raise CorruptFileError for an index outside its piece."""
        if len(self.places) and (int(self.places.min()) < 0 or (self.places >= self.counts).any()):
            raise CorruptFileError("value is outside its page")


def _decoded(pieces: Pieces, decode: Callable[[Ints], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Select the requested values after `decode` has decoded each distinct piece once."""
    pieces.check()
    which, piece = pieces.once()
    values = decode(which)
    counts = pieces.counts[which]
    found: npt.NDArray[Any] = values[(np.cumsum(counts) - counts)[piece] + pieces.places]
    return found


def fixed(pieces: Pieces, width: int) -> Bytes:
    """Select values of `width` bytes; return their bytes. Raises CorruptFileError if values do not fill their piece."""
    data, starts, sizes, counts, places = pieces
    # Reject a width larger than all pieces before memory is allocated for it.
    if width > _USUAL_BYTES and len(sizes) and width > int(sizes.max()):
        raise CorruptFileError("values do not fill their chunk")
    if native is not None:
        found: Bytes = native.pick_fixed(data, starts, sizes, counts, places, width)
        return found
    pieces.check()
    if (sizes != counts * width).any():
        raise CorruptFileError("values do not fill their chunk")
    return np.ascontiguousarray(miniblock.gather_rows(data, starts + places * width, width)).reshape(-1)


def bits(pieces: Pieces) -> Bytes:
    """Select values of one bit, the lowest of a byte first; return a bitmap. Raises the errors of `fixed`."""
    data, starts, sizes, counts, places = pieces
    if native is not None:
        found: Bytes = native.pick_bits(data, starts, sizes, counts, places)
        return found
    pieces.check()
    if (sizes != (counts + 7) >> 3).any():
        raise CorruptFileError("values do not fill their chunk")
    octets = data[starts + (places >> 3)]
    return np.packbits((octets >> (places & 7).astype(np.uint8)) & np.uint8(1), bitorder="little")


def inline(pieces: Pieces, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Select bit-packed values that are stored after their width; see `miniblock.unpack_inline`."""
    data, starts, sizes, counts, places = pieces
    if native is not None:
        found: npt.NDArray[Any] = native.pick_inline(data, starts, sizes, counts, places, 8 * dtype.itemsize).view(
            dtype
        )
        return found
    return _decoded(pieces, lambda n: miniblock.unpack_inline(data, starts[n], sizes[n], counts[n], dtype))


def out_of_line(pieces: Pieces, width: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Select bit-packed values of one width; see `miniblock.unpack_out_of_line`."""
    data, starts, sizes, counts, places = pieces
    if native is not None:
        found: npt.NDArray[Any] = native.pick_out_of_line(
            data, starts, sizes, counts, places, width, 8 * dtype.itemsize
        ).view(dtype)
        return found
    return _decoded(pieces, lambda n: miniblock.unpack_out_of_line(data, starts[n], sizes[n], counts[n], width, dtype))


def variable(pieces: Pieces, offset_bytes: int) -> tuple[Ints, Ints]:
    """Return the start and end positions in `data` of values stored after offsets; see `miniblock.variable`."""
    data, starts, sizes, counts, places = pieces
    if native is not None:
        span: tuple[Ints, Ints] = native.pick_variable(data, starts, sizes, counts, places, offset_bytes)
        return span
    pieces.check()
    if (counts >= sizes // offset_bytes).any():
        raise CorruptFileError("offset points into the offsets")
    stored = miniblock.gather_rows(data, starts + places * offset_bytes, 2 * offset_bytes)
    pairs = np.ascontiguousarray(stored).view(f"<u{offset_bytes}").reshape(-1, 2)
    if (pairs[:, 0] < (counts + 1) * offset_bytes).any():
        raise CorruptFileError("offset points into the offsets")
    if (pairs[:, 1] < pairs[:, 0]).any() or (pairs[:, 1] > sizes).any():
        raise CorruptFileError("offsets decrease or exceed their chunk")
    ends = pairs.astype(np.int64)
    return starts + ends[:, 0], starts + ends[:, 1]


def runs(pieces: Pieces, value_starts: Ints, value_sizes: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Select run-length encoded values, with the lengths in `pieces` and the values of the runs separate.

    See `miniblock.run_lengths`.
    """
    data, starts, sizes, counts, places = pieces
    if native is not None:
        found: npt.NDArray[Any] = native.pick_runs(
            data, value_starts, value_sizes, starts, sizes, counts, places, dtype.itemsize
        ).view(dtype)
        return found
    if (value_sizes != sizes * dtype.itemsize).any():
        raise CorruptFileError("run values and run lengths differ in number")

    def decode(which: Ints) -> npt.NDArray[Any]:
        values = miniblock.join_pieces(data, value_starts[which], value_sizes[which]).view(dtype)
        lengths = miniblock.join_pieces(data, starts[which], sizes[which])
        return miniblock.run_lengths(values, lengths, sizes[which], counts[which])

    return _decoded(pieces, decode)


def streams(pieces: Pieces, width: int) -> Bytes:
    """Select values that are stored as `width` byte streams; return their bytes. See `miniblock.byte_streams`."""
    data, starts, sizes, counts, places = pieces
    if native is not None:
        found: Bytes = native.pick_streams(data, starts, sizes, counts, places, width)
        return found
    pieces.check()
    if (sizes != counts * width).any():
        raise CorruptFileError("values do not fill their chunk")
    at = (starts + places)[:, None] + counts[:, None] * np.arange(width)
    return data[at].reshape(-1)


# ------------------------------------------------------------------------------------------------ the chunks of rows


Table = tuple[Ints, Ints, Ints]
"""The chunks of a page: their starts, their ends, and the (chunks + 1,) number of values before each."""


def locate(tables: Sequence[Table], rows: Sequence[Ints]) -> Ints:
    """Locate ascending `rows` of each of several pages, one value each.

    Returns (4, n) start, end and number of values of the chunk, and the index of the value in it.
    """
    if native is not None:
        found: Ints = native.locate(tables, rows)
        return found
    parts = []
    for (starts, ends, values), wanted in zip(tables, rows):
        chosen = np.searchsorted(values, wanted, "right") - 1
        before = values[chosen]
        parts.append(np.stack((starts[chosen], ends[chosen], values[chosen + 1] - before, wanted - before)))
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def locate_lists(
    tables: Sequence[Table],
    indices: Sequence[tuple[Ints, Bools]],
    rows: Sequence[Ints],
    forms: Sequence[tuple[int, int]],
) -> tuple[Ints, Ints, list[int]]:
    """Locate the chunks that contain ascending `rows` of each of several pages, as if the pages were one.

    Parameters
    ----------
    tables
        The chunks of each page.
    indices
        For each page `starts` and `continues`, as for `chunks_of_rows`.
    rows
        The rows of each page.
    forms
        The encodings of repetition and definition levels of each page, FLAT to RUNS.

    Returns
    -------
    tuple
        (8, k) for each chunk: start, end, values, number, the first row that starts in it, their number, and the two
        forms; (n,) all rows, numbered consecutively across pages; and the number of these chunks before each page and
        after the last one. The numbers of chunks of different pages are not consecutive.
    """
    if native is not None:
        found: tuple[Ints, Ints, list[int]] = native.locate_lists(tables, indices, rows, forms)
        return found
    parts, every, bounds = [], [], [0]
    chunks_before = rows_before = 0
    for (starts, ends, values), (firsts, continues), wanted, of_page in zip(tables, indices, rows, forms):
        chosen = chunks_of_rows(firsts, continues, wanted)
        part = np.empty((8, len(chosen)), np.int64)
        part[0] = starts[chosen]
        part[1] = ends[chosen]
        part[2] = values[chosen + 1] - values[chosen]
        part[3] = chosen + chunks_before
        part[4] = firsts[chosen] + rows_before
        part[5] = firsts[chosen + 1] - firsts[chosen]
        part[6], part[7] = of_page
        parts.append(part)
        every.append(wanted + rows_before)
        bounds.append(bounds[-1] + len(chosen))
        chunks_before += len(starts) + 1
        rows_before += int(firsts[-1])
    return np.concatenate(parts, axis=1), np.concatenate(every), bounds


# ------------------------------------------------------------------------------------------------------- rows of lists


class Stored(NamedTuple):
    """The stored levels of (k,) chunks: positions and sizes in the data, and encodings (FLAT to RUNS)."""

    starts: Ints
    sizes: Ints
    forms: Ints


def chunks_of_rows(starts: Ints, continues: Bools, rows: Ints) -> Ints:
    """Return the ascending chunks that contain ascending `rows`, which may continue from one chunk into the next.

    `starts` (chunks + 1,) are the rows that start before each chunk; `continues` (chunks,) is whether the last row of a
    chunk continues in the next one.
    """
    if native is not None:
        found: Ints = native.chunks_of_rows(starts, continues, rows)
        return found
    first = np.searchsorted(starts, rows, "right") - 1
    # A row continues through chunks in which no row starts.
    stops = np.flatnonzero(~continues | (np.diff(starts) > 0))
    goes_on = continues[first] & (rows == starts[first + 1] - 1)
    last = first.copy()
    if goes_on.any():
        # It ends in the first later chunk in which a row starts or that does not continue.
        at = np.searchsorted(stops, first[goes_on] + 1)
        ends = np.append(stops, len(continues) - 1)[at]
        last[goes_on] = np.minimum(ends, len(continues) - 1)
    edges = np.zeros(len(continues) + 1, np.int64)
    np.add.at(edges, first, 1)
    np.add.at(edges, last + 1, -1)
    return np.flatnonzero(np.cumsum(edges[:-1]))


def entries_of_rows(
    data: Bytes,
    repetition: Stored,
    definition: Stored | None,
    num_levels: Ints,
    counts: Ints,
    chunks: Ints,
    first_rows: Ints,
    num_rows: Ints,
    rows: Ints,
    num_lists: int,
    top: int,
    highest: int,
) -> tuple[Levels, Levels | None, Ints]:
    """Select the entries of ascending `rows` in (k,) chunks.

    Parameters
    ----------
    data
        The bytes of the chunks.
    repetition, definition
        The stored levels of the chunks.
    num_levels, counts
        The number of entries of each chunk, and how many of them are visible.
    chunks
        The number of each chunk in its column; those of different pages are not consecutive.
    first_rows, num_rows
        The first row that starts in each chunk, and how many rows do.
    rows
        The requested rows.
    num_lists, top, highest
        The highest repetition level, the highest definition level of visible entries, and the highest definition level.

    Returns
    -------
    tuple
        Repetition and definition levels, and (3, m) spans of contiguous visible entries: their chunk (0 to k - 1), the
        index of the first one among the values of the chunk, and their number.

    Raises
    ------
    CorruptFileError
        If levels and counts are inconsistent.
    """
    if native is not None:
        found: tuple[Levels, Levels | None, Ints] = native.entries_of_rows(
            data,
            repetition,
            definition,
            num_levels,
            counts,
            chunks,
            first_rows,
            num_rows,
            rows,
            num_lists,
            top,
            highest,
        )
        return found
    repeated = _levels(data, repetition, num_levels)
    definition_levels = None if definition is None else _levels(data, definition, num_levels)
    visible = np.ones(len(repeated), np.bool_) if definition_levels is None else definition_levels <= top
    # The chunk of each entry.
    owner = np.repeat(np.arange(len(chunks)), num_levels)
    starts = np.flatnonzero(repeated >= num_lists)
    if (np.bincount(owner[starts], minlength=len(chunks)) != num_rows).any() or (
        np.bincount(owner[visible], minlength=len(chunks)) != counts
    ).any():
        raise CorruptFileError("rows of a chunk do not match the repetition index")
    names = first_rows[owner[starts]] + np.arange(len(starts)) - (np.cumsum(num_rows) - num_rows)[owner[starts]]
    at = np.searchsorted(names, rows)
    if len(rows) and (int(at[-1]) >= len(names) or (names[at] != rows).any()):
        raise CorruptFileError("rows of a chunk do not match the repetition index")
    # A row ends where the next one starts, or at the end of consecutive chunks.
    run_ends = np.append(np.cumsum(num_levels)[:-1][np.diff(chunks) != 1], len(repeated))
    ends = np.minimum(np.append(starts[1:], len(repeated)), run_ends[np.searchsorted(run_ends, starts, "right")])
    entries = _numbers_of(starts[at], ends[at] - starts[at])
    if len(entries) and (
        int(repeated[entries].max()) > num_lists
        or (definition_levels is not None and int(definition_levels[entries].max()) > highest)
    ):
        raise CorruptFileError("level out of range")
    seen = entries[visible[entries]]
    place = np.cumsum(visible)[seen] - 1 - (np.cumsum(counts) - counts)[owner[seen]]
    return (
        repeated[entries],
        None if definition_levels is None else definition_levels[entries],
        _spans(owner[seen], place),
    )


def _numbers_of(firsts: Ints, lengths: Ints) -> Ints:
    """Concatenate ranges of numbers: firsts 3, 7 and lengths 2, 1 -> 3 4 7."""
    numbers: Ints = np.repeat(firsts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
    return numbers


def _spans(chunks: Ints, places: Ints) -> Ints:
    """Group values into (3, m) spans of contiguous ones: chunk, index of the first value, and length."""
    new = np.ones(len(chunks), np.bool_)
    new[1:] = (chunks[1:] != chunks[:-1]) | (places[1:] != places[:-1] + 1)
    begins = np.flatnonzero(new)
    return np.stack((chunks[begins], places[begins], np.diff(np.append(begins, len(chunks)))))


def spread(spans: Ints, starts: Ints, sizes: Ints, counts: Ints) -> Ints:
    """Expand (3, m) spans to single values; (b, k) `starts` and `sizes` are the buffers of the chunks.

    Returns (2 b + 2, n): start and size of the chunk in each buffer, its number of values, and the index of the value.
    """
    if native is not None:
        found: Ints = native.spread(spans, starts, sizes, counts)
        return found
    own, first, lengths = spans
    owner = np.repeat(own, lengths)
    out = np.empty((2 * len(starts) + 2, len(owner)), np.int64)
    out[0:-2:2] = starts[:, owner]
    out[1:-2:2] = sizes[:, owner]
    out[-2] = counts[owner]
    out[-1] = _numbers_of(first, lengths)
    return out


def _levels(data: Bytes, stored: Stored, counts: Ints) -> Levels:
    """Decode the levels of all chunks."""
    parts = []
    edges = [0, *(np.flatnonzero(np.diff(stored.forms)) + 1).tolist(), len(counts)]
    for begin, end in itertools.pairwise(edges):
        starts, sizes, number = stored.starts[begin:end], stored.sizes[begin:end], counts[begin:end]
        width, form = divmod(int(stored.forms[begin]), 1 << _WIDTH_SHIFT)
        if form == INLINE:
            parts.append(miniblock.unpack_inline(data, starts, sizes, number, LEVEL))
        elif form == OUT_OF_LINE:
            parts.append(miniblock.unpack_out_of_line(data, starts, sizes, number, width, LEVEL))
        elif form == RUNS:
            parts.append(_run_levels(data, starts, sizes, number))
        else:
            if (sizes != number * LEVEL.itemsize).any():
                raise CorruptFileError("values do not fill their chunk")
            parts.append(miniblock.join_pieces(data, starts, sizes).view(LEVEL))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _run_levels(data: Bytes, starts: Ints, sizes: Ints, counts: Ints) -> Levels:
    """Decode run-length encoded levels in one buffer: u64 size of the values, values, lengths of one byte."""
    if int(sizes.min()) < 8:
        raise CorruptFileError("run-length block is truncated", expected=8, found=int(sizes.min()))
    head = np.ascontiguousarray(miniblock.gather_rows(data, starts, 8)).view("<u8").reshape(-1)
    values = np.minimum(head, np.uint64(1) << np.uint64(62)).astype(np.int64)
    lengths = sizes - 8 - values
    if (values != lengths * LEVEL.itemsize).any() or int(lengths.min()) < 0:
        raise CorruptFileError("run values and run lengths differ in number")
    return miniblock.run_lengths(
        miniblock.join_pieces(data, starts + 8, values).view(LEVEL),
        miniblock.join_pieces(data, starts + 8 + values, lengths),
        lengths,
        counts,
    )
