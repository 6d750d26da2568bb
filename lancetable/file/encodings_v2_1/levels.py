"""Encoding of levels: one encoding for a page, in the block form, applied to the levels of each chunk.

The encoding is the smallest of uncompressed, bit packing to the width of the highest level and, in 2.2, run lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from lancetable.file.encodings_v2_1.base import Compressive, Ints
from lancetable.file.encodings_v2_1.compressive.bitpacking import encode_out_of_line, out_of_line_bytes
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.rle import encode_run_blocks, run_starts
from lancetable.file.kernels.interleave import Runs
from lancetable.file.kernels.levels import Levels, highest

__all__ = ["EncodedLevels", "encode_levels", "level_width"]

_LEVEL_BITS: Final = 16


class EncodedLevels(NamedTuple):
    """The levels of a page: their encoding, and the streams of all chunks."""

    encoding: Compressive
    streams: Sequence[Runs]  # run i of each is part of the levels of chunk i


def level_width(levels: Levels) -> int:
    """Return the bits of the largest level."""
    return highest(levels).bit_length()


def encode_levels(levels: Levels, bounds: Ints, runs_allowed: bool) -> EncodedLevels:
    """Encode levels, split at the (chunks + 1,) `bounds`, in the smallest form; run lengths only if `runs_allowed`."""
    width = level_width(levels)
    packed_bytes = out_of_line_bytes(np.diff(bounds), width, _LEVEL_BITS)
    plain_bytes = 2 * len(levels)
    if runs_allowed and width:
        starts = run_starts(levels, bounds)
        run_bytes = 8 * (len(bounds) - 1) + 3 * (len(starts) + len(levels) // 255)
        if run_bytes < min(packed_bytes, plain_bytes):
            return EncodedLevels(*encode_run_blocks(levels, starts, bounds))
    if plain_bytes <= packed_bytes:
        return EncodedLevels(Flat(_LEVEL_BITS), [Runs(levels, bounds * 2)])
    return EncodedLevels(*encode_out_of_line(levels, bounds, width))
