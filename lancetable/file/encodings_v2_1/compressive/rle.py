"""Run-length encoding: one value and one length for each run.   [a a a b] -> values [a b], lengths [3 1]

    chunk   buffer 0: values, buffer 1: lengths of one byte
    block   u64 size of the values, values, lengths

Source: protos/encodings_v2_1.proto, Rle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_1.base import Chunks, Compressive, Ints
from lancetable.file.encodings_v2_1.block import Block, FixedWidth
from lancetable.file.encodings_v2_1.chunks import Chunked, even_counts
from lancetable.file.encodings_v2_1.compressive.flat import Flat, check_flat
from lancetable.file.kernels import gather, miniblock, rle
from lancetable.file.kernels.bitpacking import BIT_WORDS
from lancetable.file.kernels.gather import Pieces
from lancetable.file.kernels.interleave import Runs, runs_of


@dataclass(frozen=True, slots=True)
class Rle(Compressive):
    """One value for each run, and the length of each run in one byte."""

    oneof_case: ClassVar[str] = "rle"

    values: Flat
    run_lengths: Flat  # 8

    @property
    def num_buffers(self) -> int:
        return 2

    def decode_chunks(self, buffers: Sequence[Chunks], counts: Ints, limit: int) -> FixedWidth:
        values, lengths = buffers
        dtype = BIT_WORDS[self.values.bits_per_value]
        runs = lengths.sizes
        if (values.sizes != runs * dtype.itemsize).any():
            raise CorruptFileError("run values and run lengths differ in number")
        # A length is one byte, so it expands to at most 255 values, independent of the counts.
        if int(runs.sum()) * 255 * dtype.itemsize > limit and int(counts.sum()) * dtype.itemsize > limit:
            raise CorruptFileError("runs expand to too many bytes", limit="page_bytes")
        expanded = miniblock.run_lengths(
            miniblock.join_pieces(*values).view(dtype), miniblock.join_pieces(*lengths), runs, counts
        )
        return FixedWidth.of_numbers(expanded)

    def pick_chunks(self, buffers: Sequence[Pieces], limit: int) -> Block:
        values, lengths = buffers
        if values.data is not lengths.data:  # the values were compressed; lengths never are
            return Compressive.pick_chunks(self, buffers, limit)
        picked = gather.runs(lengths, values.starts, values.sizes, BIT_WORDS[self.values.bits_per_value])
        return FixedWidth.of_numbers(picked)

    def decode_blocks(self, chunks: Chunks, counts: Ints, limit: int) -> FixedWidth:
        data, starts, sizes = chunks
        if len(counts) and int(sizes.min()) < 8:
            raise CorruptFileError("run-length block is truncated", "8 bytes or more", int(sizes.min()))
        head = miniblock.gather_rows(data, starts, 8).view("<u8").reshape(-1)
        values = np.minimum(head, np.uint64(1 << 62)).astype(np.int64)
        lengths = sizes - 8 - values
        if len(counts) and int(lengths.min()) < 0:
            expected = f"at most {int(sizes.max()) - 8} bytes"
            raise CorruptFileError("run values exceed their buffer", expected, int(head.max()))
        return self.decode_chunks(
            [Chunks(data, starts + 8, values), Chunks(data, starts + 8 + values, lengths)], counts, limit
        )

    def check(self) -> None:
        check_flat(self.values, BIT_WORDS, "run values")
        check_flat(self.run_lengths, [8], "run lengths")


# ------------------------------------------------------------------------------------------------------------- encode


def encode_runs(values: npt.NDArray[Any], per_chunk: int) -> Chunked:
    """Encode (n,) unsigned values as runs that end at the bounds of chunks."""
    counts = even_counts(len(values), per_chunk)
    bounds = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    run_values, lengths, offsets = _split_runs(values, run_starts(values, bounds), bounds)
    bits = 8 * values.dtype.itemsize
    buffers = [[Runs(run_values, offsets * (bits // 8))], [Runs(lengths, offsets)]]
    return Chunked(Rle(Flat(bits), Flat(8)), counts, buffers)


def encode_run_blocks(values: npt.NDArray[Any], starts: Ints, bounds: Ints) -> tuple[Rle, list[Runs]]:
    """Encode chunks in the block form. Chunks are split at the (k + 1,) `bounds`; runs begin at `starts`."""
    run_values, lengths, offsets = _split_runs(values, starts, bounds)
    width = values.dtype.itemsize
    heads = (np.diff(offsets) * width).astype("<u8")
    streams = [runs_of(heads, 8, len(heads)), Runs(run_values, offsets * width), Runs(lengths, offsets)]
    return Rle(Flat(8 * width), Flat(8)), streams


def run_starts(values: npt.NDArray[Any], bounds: Ints) -> Ints:
    """Return the positions where runs start; runs do not cross the (k + 1,) `bounds`."""
    first = np.empty(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    first[bounds[:-1]] = True
    return np.flatnonzero(first)


def _split_runs(
    values: npt.NDArray[Any], starts: Ints, bounds: Ints
) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8], Ints]:
    """Return the values and lengths, at most 255, of the runs that begin at `starts`, and the offsets of the chunks."""
    lengths = np.diff(starts, append=len(values))
    run_values = values[starts]
    if len(lengths) and int(lengths.max()) > rle.MAX_RUN:
        pieces = -(-lengths // rle.MAX_RUN)
        out = np.full(int(pieces.sum()), rle.MAX_RUN, np.int64)
        out[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * rle.MAX_RUN
        run_values, lengths = np.repeat(run_values, pieces), out
    offsets = np.searchsorted(np.cumsum(lengths), bounds, "right").astype(np.int64)
    offsets[0] = 0
    return run_values, lengths.astype(np.uint8), offsets
