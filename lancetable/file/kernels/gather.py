"""Random access to values in the chunks of mini-block pages, for reads of a few rows.

    data  ....[piece 0]......[piece 1]..      starts, sizes: (n,) piece of each value; pieces ascend and may repeat
                  ^ value 0      ^ value 1    counts: (n,) values in the piece; value_indices: (n,) index of each in it

A piece is the buffer of one chunk, as in miniblock.py. Only bytes that determine a requested value are read and
checked. A compiled kernel computes the position of each value; the NumPy form decodes each piece once and selects from
the result. Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import miniblock, native, rle
from lancetable.file.kernels.bitpacking import BIT_WORDS, take_bits
from lancetable.file.kernels.levels import LEVEL, Levels

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
    value_indices: Ints

    def distinct(self) -> tuple[Ints, Ints]:
        """Return the first index of each distinct piece, and for each value the number of its distinct piece, (n,)."""
        is_new = np.diff(self.starts, prepend=-1) != 0
        return np.flatnonzero(is_new), np.cumsum(is_new) - 1

    def check(self, sizes: Ints | None = None) -> None:
        """Raise CorruptFileError if an index is outside its piece or the size of a piece differs from `sizes`."""
        if (self.value_indices < 0).any() or (self.value_indices >= self.counts).any():
            raise CorruptFileError("value is outside its page")
        if sizes is not None and (self.sizes != sizes).any():
            raise CorruptFileError("wrong size of values in a chunk")


def _decoded(pieces: Pieces, decode: Callable[[Ints], npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Decode each distinct piece once with `decode`, and select the requested values."""
    pieces.check()
    first_indices, piece_numbers = pieces.distinct()
    values = decode(first_indices)
    counts = pieces.counts[first_indices]
    return values[(np.cumsum(counts) - counts)[piece_numbers] + pieces.value_indices]


def fixed(pieces: Pieces, width: int) -> Bytes:
    """Select values of `width` bytes; return their bytes. Raises CorruptFileError if a piece has the wrong size."""
    # Reject a width larger than all pieces before memory is allocated for it.
    if width > _USUAL_BYTES and len(pieces.sizes) and width > int(pieces.sizes.max()):
        raise CorruptFileError("wrong size of values in a chunk")
    if native is not None:
        return native.gather_fixed(*pieces, width)
    pieces.check(pieces.counts * width)
    return miniblock.gather_rows(pieces.data, pieces.starts + pieces.value_indices * width, width).reshape(-1)


def bits(pieces: Pieces) -> Bytes:
    """Select values of one bit, the lowest of a byte first; return a bitmap. Raises the errors of `fixed`."""
    if native is not None:
        return native.gather_bits(*pieces)
    pieces.check((pieces.counts + 7) // 8)
    return take_bits(pieces.data, 8 * pieces.starts + pieces.value_indices)


def inline(pieces: Pieces, width: int) -> Bytes:
    """Select bit-packed values that are stored after their width, and return them as numbers of `width` bytes.

    See `miniblock.unpack_inline`.
    """
    if native is not None:
        return native.gather_inline(*pieces, 8 * width)
    data, starts, sizes, counts, _ = pieces
    word = BIT_WORDS[8 * width]
    values = _decoded(pieces, lambda n: miniblock.unpack_inline(data, starts[n], sizes[n], counts[n], word))
    return values.view(np.uint8)


def out_of_line(pieces: Pieces, width: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Select bit-packed values of one width; see `miniblock.unpack_out_of_line`."""
    data, starts, sizes, counts, _ = pieces
    if native is not None:
        return native.gather_out_of_line(*pieces, width, 8 * dtype.itemsize).view(dtype)
    return _decoded(pieces, lambda n: miniblock.unpack_out_of_line(data, starts[n], sizes[n], counts[n], width, dtype))


def variable(pieces: Pieces, offset_bytes: int) -> tuple[Ints, Ints]:
    """Return the start and end positions in `data` of values stored after offsets; see `miniblock.variable`."""
    data, starts, sizes, counts, indices = pieces
    if native is not None:
        return native.gather_variable(*pieces, offset_bytes)
    pieces.check()
    if (counts >= sizes // offset_bytes).any():
        raise CorruptFileError("first offset is inside the offset table")
    offsets = miniblock.gather_rows(data, starts + indices * offset_bytes, 2 * offset_bytes).view(f"<u{offset_bytes}")
    begins, ends = offsets.T
    if (begins < (counts + 1) * offset_bytes).any():
        raise CorruptFileError("first offset is inside the offset table")
    if (ends < begins).any():
        raise CorruptFileError("value ends before it starts")
    if (ends > sizes).any():
        raise CorruptFileError("value is outside its page")
    return starts + begins.astype(np.int64), starts + ends.astype(np.int64)


def runs(pieces: Pieces, value_starts: Ints, value_sizes: Ints, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Select run-length encoded values; see `miniblock.run_lengths`.

    `pieces` locates the run lengths; `value_starts` and `value_sizes` locate the values of the runs.
    """
    data, starts, sizes, counts, _ = pieces
    if native is not None:
        return native.gather_runs(*pieces, value_starts, value_sizes, dtype.itemsize).view(dtype)
    if (value_sizes != sizes * dtype.itemsize).any():
        raise CorruptFileError("wrong size of values in a chunk")

    def decode(indices: Ints) -> npt.NDArray[Any]:
        run_values = miniblock.join_pieces(data, value_starts[indices], value_sizes[indices]).view(dtype)
        lengths = miniblock.join_pieces(data, starts[indices], sizes[indices])
        return miniblock.run_lengths(run_values, lengths, sizes[indices], counts[indices])

    return _decoded(pieces, decode)


def streams(pieces: Pieces, width: int) -> Bytes:
    """Select values that are stored as `width` byte streams; return their bytes. See `miniblock.byte_streams`."""
    pieces.check(pieces.counts * width)
    positions = (pieces.starts + pieces.value_indices)[:, None] + pieces.counts[:, None] * np.arange(width)
    return pieces.data[positions].reshape(-1)


# -------------------------------------------------------------------------------------------------- chunks with rows


ChunkTable = tuple[Ints, Ints, Ints]
"""The chunks of a page: their starts, their ends, and the (chunks + 1,) numbers of values before each."""


def locate(tables: Sequence[ChunkTable], rows: Sequence[Ints]) -> Ints:
    """Locate the values of ascending `rows` of each of several pages without lists.

    Returns (4, n): start, end and number of values of the chunk of each row, and the index of its value in the chunk.
    """
    if native is not None:
        return native.locate(tables, rows)
    parts = []
    for (starts, ends, values), page_rows in zip(tables, rows):
        chunks = np.searchsorted(values, page_rows, "right") - 1
        parts.append([starts[chunks], ends[chunks], np.diff(values)[chunks], page_rows - values[chunks]])
    return np.concatenate(parts, axis=1)


def locate_lists(
    tables: Sequence[ChunkTable],
    indices: Sequence[tuple[Ints, Bools]],
    rows: Sequence[Ints],
    codes: Sequence[tuple[int, int]],
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
    codes
        The encodings of repetition and definition levels of each page, FLAT to RUNS.

    Returns
    -------
    tuple
        (8, k): for each chunk its start, end, number of values, chunk number, first row that starts in it, number of
        rows that start in it, and the two encodings of its levels; (n,) all rows, numbered consecutively across pages;
        and the number of these chunks before each page and after the last one. The chunk numbers of different pages
        are not consecutive.
    """
    if native is not None:
        return native.locate_lists(tables, indices, rows, codes)
    parts, all_rows, bounds = [], [], [0]
    chunks_before = rows_before = 0
    for (starts, ends, values), (row_starts, continues), page_rows, page_codes in zip(tables, indices, rows, codes):
        chunks = chunks_of_rows(row_starts, continues, page_rows)
        parts.append(
            [
                starts[chunks],
                ends[chunks],
                np.diff(values)[chunks],
                chunks + chunks_before,
                row_starts[chunks] + rows_before,
                np.diff(row_starts)[chunks],
                *[np.full(len(chunks), code) for code in page_codes],
            ]
        )
        all_rows.append(page_rows + rows_before)
        bounds.append(bounds[-1] + len(chunks))
        chunks_before += len(starts) + 1
        rows_before += int(row_starts[-1])
    return np.concatenate(parts, axis=1), np.concatenate(all_rows), bounds


# ------------------------------------------------------------------------------------------------------ rows of lists


class StoredLevels(NamedTuple):
    """The stored levels of (k,) chunks: positions and sizes in the data, and encodings (FLAT to RUNS)."""

    starts: Ints
    sizes: Ints
    codes: Ints


def chunks_of_rows(starts: Ints, continues: Bools, rows: Ints) -> Ints:
    """Return the ascending chunks that contain ascending `rows`, which may continue from one chunk into the next.

    `starts` (chunks + 1,) is the number of rows that start before each chunk; `continues` (chunks,) is True if the last
    row of a chunk continues in the next one.
    """
    chunks = set()
    for row, chunk in zip(rows.tolist(), (np.searchsorted(starts, rows, "right") - 1).tolist()):
        chunks.add(chunk)
        while continues[chunk] and starts[chunk + 1] == row + 1 and chunk + 1 < len(continues):
            chunk += 1
            chunks.add(chunk)
    return np.array(sorted(chunks), np.int64)


def entries_of_rows(
    data: Bytes,
    repetition: StoredLevels,
    definition: StoredLevels | None,
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
        The number of entries of each chunk, and the number of visible entries, which have a value.
    chunks
        The number of each chunk; the numbers of chunks of different pages are not consecutive.
    first_rows, num_rows
        The first row that starts in each chunk, and the number of rows that start in it.
    rows
        The requested rows.
    num_lists, top, highest
        The highest repetition level, the highest definition level of visible entries, and the highest definition level.

    Returns
    -------
    tuple
        Repetition and definition levels, and (3, m) spans of contiguous visible entries: the chunk (0 to k - 1), the
        index of the first value in the chunk, and the number of values.

    Raises
    ------
    CorruptFileError
        If levels and counts are inconsistent.
    """
    if native is not None:
        return native.entries_of_rows(
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
    repeated = _levels(data, repetition, num_levels)
    defined = np.zeros(len(repeated), LEVEL) if definition is None else _levels(data, definition, num_levels)
    is_start, is_visible = repeated >= num_lists, defined <= top
    chunk = np.repeat(np.arange(len(chunks)), num_levels)
    if (np.bincount(chunk[is_start], minlength=len(chunks)) != num_rows).any() or (
        np.bincount(chunk[is_visible], minlength=len(chunks)) != counts
    ).any():
        raise CorruptFileError("rows of a chunk do not match the repetition index")
    # Entries before the first row start of a chunk continue the last row of the previous chunk, if that was read.
    started = np.cumsum(is_start) - (np.cumsum(num_rows) - num_rows)[chunk]
    is_known = (started > 0) | (np.diff(chunks, prepend=-2) == 1)[chunk]
    row = np.where(is_known, first_rows[chunk] + started - 1, -1)
    if not np.isin(rows, row[is_start]).all():
        raise CorruptFileError("rows of a chunk do not match the repetition index")
    is_selected = np.isin(row, rows)
    if (repeated[is_selected] > num_lists).any() or (defined[is_selected] > highest).any():
        raise CorruptFileError("level out of range")
    seen = np.flatnonzero(is_selected & is_visible)
    value_indices = np.cumsum(is_visible)[seen] - 1 - (np.cumsum(counts) - counts)[chunk[seen]]
    selected_definition = None if definition is None else defined[is_selected]
    return repeated[is_selected], selected_definition, _spans(chunk[seen], value_indices)


def _spans(chunks: Ints, value_indices: Ints) -> Ints:
    """Group values into (3, m) spans of contiguous ones: chunk, index of the first value, and length."""
    is_first = (np.diff(chunks, prepend=-1) != 0) | (np.diff(value_indices, prepend=-1) != 1)
    begins = np.flatnonzero(is_first)
    return np.stack((chunks[begins], value_indices[begins], np.diff(begins, append=len(chunks))))


def expand_spans(spans: Ints, starts: Ints, sizes: Ints, counts: Ints) -> Ints:
    """Expand (3, m) spans to single values; (b, k) `starts` and `sizes` are the buffers of the chunks.

    Returns (2 b + 2, n): for each value the start and size of its chunk in each buffer, the number of values of the
    chunk, and the index of the value in it.
    """
    if native is not None:
        return native.expand_spans(spans, starts, sizes, counts)
    chunks, first, lengths = spans
    chunk = np.repeat(chunks, lengths)
    value_indices = np.repeat(first - np.cumsum(lengths) + lengths, lengths) + np.arange(len(chunk))
    buffers = np.stack((starts, sizes), axis=1).reshape(2 * len(starts), len(counts))
    return np.vstack((buffers[:, chunk], counts[chunk], value_indices))


def _levels(data: Bytes, stored: StoredLevels, counts: Ints) -> Levels:
    """Decode the levels of all chunks."""
    parts = [np.empty(0, LEVEL)]
    for start, size, code, count in zip(*map(np.ndarray.tolist, (*stored, counts))):
        piece = np.array([start]), np.array([size]), np.array([count])
        kind, width = code % (1 << _WIDTH_SHIFT), code >> _WIDTH_SHIFT
        if kind == INLINE:
            parts.append(miniblock.unpack_inline(data, *piece, LEVEL))
        elif kind == OUT_OF_LINE:
            parts.append(miniblock.unpack_out_of_line(data, *piece, width, LEVEL))
        elif kind == RUNS:  # u64 size of the values, values, lengths of one byte
            lengths = start + 8 + int.from_bytes(data[start : start + 8], "little")
            if size < 8 or lengths - start - 8 != (start + size - lengths) * LEVEL.itemsize:
                raise CorruptFileError("wrong size of values in a chunk")
            parts.append(rle.expand(data[start + 8 : lengths].view(LEVEL), data[lengths : start + size], count))
        else:
            if size != count * LEVEL.itemsize:
                raise CorruptFileError("wrong size of values in a chunk")
            parts.append(data[start : start + size].view(LEVEL))
    return np.concatenate(parts)
