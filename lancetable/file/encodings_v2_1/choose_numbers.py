"""Pages of fixed-width values: in 2.2 constants and dictionaries, otherwise chunks or full-zip entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lancetable.file.encodings_v2_1 import stats
from lancetable.file.encodings_v2_1.block import FixedWidth
from lancetable.file.encodings_v2_1.choose_chunks import chunk_fixed, plain_page
from lancetable.file.encodings_v2_1.choose_dictionary import fixed_dictionary
from lancetable.file.encodings_v2_1.choose_layout import LeafRows
from lancetable.file.encodings_v2_1.chunks import EncodedLayout
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.layouts.constant import encode_constant
from lancetable.file.encodings_v2_1.layouts.fullzip import encode_fullzip_fixed
from lancetable.file.kernels.bitpacking import BIT_WORDS


def encode_numbers(rows: LeafRows, block: FixedWidth) -> EncodedLayout:
    """Encode fixed-width values as a page. Raises LevelsTooDense if one page cannot store the levels."""
    page = _constant_page(rows, block) or fixed_dictionary(rows, block) or plain_page(rows, block)
    return page or rows.chunk_or_full_zip(
        block.bits // 8,
        lambda limits: chunk_fixed(block, rows.spec.options, limits),
        None if block.bits % 8 else lambda: encode_fullzip_fixed(rows.shredded, block, Flat(block.bits)),
    )


def _constant_page(rows: LeafRows, block: FixedWidth) -> EncodedLayout | None:
    if not rows.can_be_constant:
        return None
    valid = rows.valid_positions
    values: npt.NDArray[Any]
    if block.bits % 8:
        octets = np.frombuffer(block.data, np.uint8)
        whole = octets[: block.length // 8]
        if valid is None and len(whole) and not stats.is_constant(whole):
            return None
        values = np.unpackbits(octets, count=block.length, bitorder="little").reshape(-1, 1)
    else:
        values = block.numbers() if block.bits in BIT_WORDS else block.rows()
    if valid is not None:
        values = values[valid]
    if not stats.is_constant(values):
        return None
    return encode_constant(rows.shredded, [values[0].tobytes()])
