"""Encoding of levels: one encoding for a page, in the block form, applied to the levels of each chunk.

The encoding is the smallest of uncompressed levels, bit packing to the width of the highest level and, in 2.2, run
lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from lancetable.file.encodings_v2_1.base import Compressive, Ints
from lancetable.file.encodings_v2_1.compressive.bitpacking import encode_out_of_line, out_of_line_bytes
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.rle import encode_run_blocks, run_starts
from lancetable.file.kernels.interleave import Runs
from lancetable.file.kernels.levels import Levels, highest

_LEVEL_BITS: Final = 16


def encode_levels(levels: Levels, bounds: Ints, runs_allowed: bool) -> tuple[Compressive, Sequence[Runs]]:
    """Encode levels, split at the (chunks + 1,) `bounds`, in the smallest form; run lengths only if `runs_allowed`.

    Returns the encoding and the streams; run i of each stream belongs to the levels of chunk i.
    """
    width = highest(levels).bit_length()
    packed_bytes = out_of_line_bytes(np.diff(bounds), width, _LEVEL_BITS)
    plain_bytes = 2 * len(levels)
    if runs_allowed and width:
        starts = run_starts(levels, bounds)
        run_bytes = 8 * (len(bounds) - 1) + 3 * (len(starts) + len(levels) // 255)
        if run_bytes < min(packed_bytes, plain_bytes):
            return encode_run_blocks(levels, starts, bounds)
    if plain_bytes <= packed_bytes:
        return Flat(_LEVEL_BITS), [Runs(levels, bounds * 2)]
    return encode_out_of_line(levels, bounds, width)
