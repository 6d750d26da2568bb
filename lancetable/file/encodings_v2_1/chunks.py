"""Values split into mini-block chunks, and the conversion of Arrow arrays to such values.

array  ->  FixedWidth or VariableWidth  ->  Chunked: an encoding, and for each buffer the runs of all chunks
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.column_interfaces import BufferPieces
from lancetable.file.encodings_v2_0.flat import bitmap_piece
from lancetable.file.encodings_v2_1.base import Compressive, Ints, PageLayout
from lancetable.file.encodings_v2_1.block import FixedWidth, VariableWidth, type_bits
from lancetable.file.kernels.interleave import Runs
from lancetable.file.kernels.varbin import offsets_of


class ChunkLimits(NamedTuple):
    """Maximum number of values of a chunk, maximum size of its value buffers with padding, and target size."""

    max_values: int
    max_bytes: int
    target_bytes: int


class Chunked(NamedTuple):
    """Encoded values, split into chunks.

    `counts` are the numbers of values of the chunks, all but the last a power of two. `buffers` has the streams of each
    value buffer; the i-th runs of these streams together are the buffer of chunk i.
    """

    encoding: Compressive
    counts: Ints
    buffers: Sequence[Sequence[Runs]]

    @property
    def size_bytes(self) -> int:
        """The size of all value buffers."""
        return sum(int(runs.offsets[-1] - runs.offsets[0]) for streams in self.buffers for runs in streams)


class ChunkTooLarge(Exception):
    """Error for a chunk that exceeds a limit of the format. Retry with fewer values per chunk or another layout."""


class LevelsTooDense(Exception):
    """Error for too many levels between two values of a chunk. Retry with fewer rows per page or another layout."""


class EncodedLayout(NamedTuple):
    """An encoded page."""

    layout: PageLayout
    buffers: Sequence[BufferPieces]


def power_of_two(count: int) -> int:
    """Return the largest power of two not above `count`, which is positive."""
    return 1 << (count.bit_length() - 1)


def even_counts(total: int, per_chunk: int) -> Ints:
    """Return counts of `per_chunk` values for every chunk but the last, which has the rest."""
    return np.diff(np.arange(0, total, per_chunk), append=total)


def nulls_of(array: pa.Array) -> npt.NDArray[np.bool_] | None:
    """Return an (n,) mask of the null values; None if nothing is null. Null dictionary items count as nulls."""
    if pa.types.is_null(array.type):
        return np.ones(len(array), np.bool_) if len(array) else None
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        array = array.dictionary.take(array.indices)
    if array.null_count == 0:
        return None
    return np.unpackbits(~bitmap_piece(array, 0), bitorder="little", count=len(array)).view(np.bool_)


def fixed_values(array: pa.Array) -> FixedWidth:
    """Return the values of a fixed-width array, without a copy if they begin at a byte; nulls have arbitrary values."""
    bits = type_bits(array.type)
    assert bits is not None
    data = array.buffers()[1]
    first, count = array.offset, len(array)
    if data is None or count == 0:
        return FixedWidth(bits, np.zeros((count * bits + 7) // 8, np.uint8), count)
    if bits % 8 == 0:
        width = bits // 8
        return FixedWidth(bits, np.frombuffer(data, np.uint8, count * width, first * width), count)
    bitmap = bitmap_piece(array, 1)
    if count % 8:  # clear the bits after the last value
        bitmap = np.packbits(np.unpackbits(bitmap, bitorder="little", count=count), bitorder="little")
    return FixedWidth(bits, bitmap, count)


def variable_values(array: pa.Array, missing: npt.NDArray[np.bool_] | None = None) -> VariableWidth:
    """Return strings or binaries, without a copy unless nulls have bytes, which are removed.

    `missing` (n,) marks the values to treat as null; the nulls of the array by default.
    """
    offsets = offsets_of(array)
    if missing is None:
        missing = nulls_of(array)
    if missing is not None and ((offsets[1:] != offsets[:-1]) & missing).any():
        bitmap = pa.py_buffer(np.packbits(~missing, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(np.ascontiguousarray(offsets)), array.buffers()[2]]
        kind = pa.large_binary() if offsets.dtype.itemsize == 8 else pa.binary()
        array = pa.Array.from_buffers(kind, len(array), buffers).fill_null(b"")
        offsets = offsets_of(array)
    data = array.buffers()[2]
    return VariableWidth(offsets, np.frombuffer(b"" if data is None else data, np.uint8))
