"""Pages of values of fixed width: constants and dictionaries in 2.2, else chunks or zipped values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lancetable.file.encodings_v2_1 import stats
from lancetable.file.encodings_v2_1.block import FixedWidth
from lancetable.file.encodings_v2_1.choose_chunks import chunk_fixed
from lancetable.file.encodings_v2_1.choose_dictionary import fixed_dictionary
from lancetable.file.encodings_v2_1.choose_layout import (
    MAX_VALUES,
    TARGET_BYTES,
    Column,
    chunk_or_zip,
    plain_layout,
    prefers_full_zip,
    suits_constant,
    valid_positions,
)
from lancetable.file.encodings_v2_1.chunks import EncodedLayout
from lancetable.file.encodings_v2_1.compressive.bitpacking import InlineBitpacking
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.layouts.constant import encode_constant
from lancetable.file.encodings_v2_1.layouts.fullzip import encode_fullzip_fixed
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.encodings_v2_1.wishes import NO_OPTIONS
from lancetable.file.kernels import native

__all__ = ["encode_numbers"]

_PLAIN_BITS: Final = frozenset({1, 8, 16, 32, 64, 128})


def encode_numbers(column: Column, shredded: Shredded, block: FixedWidth) -> EncodedLayout:
    """Encode values of fixed width as a page. Raises LevelsTooDense."""
    if column.large and suits_constant(shredded):
        page = _constant_fixed(shredded, block)
        if page is not None:
            return page
    dictionary = fixed_dictionary(column, shredded, block)
    if dictionary is not None:
        return dictionary
    page = _plain_page(column, shredded, block)
    if page is not None:
        return page

    def zipped() -> EncodedLayout:
        return encode_fullzip_fixed(shredded, block, Flat(block.bits))

    return chunk_or_zip(
        column,
        shredded,
        prefers_full_zip(column, shredded, block.bits // 8),
        lambda limits: chunk_fixed(block, column.options, limits),
        zipped if block.bits % 8 == 0 else None,
    )


def _plain_page(column: Column, shredded: Shredded, block: FixedWidth) -> EncodedLayout | None:
    """Encode a page without levels and options with a single call of a compiled kernel; return None if impossible."""
    if native is None or column.options is not NO_OPTIONS or block.bits not in _PLAIN_BITS:
        return None
    if shredded.definition is not None or shredded.repetition is not None or block.length == 0:
        return None
    most, target = MAX_VALUES[column.version], TARGET_BYTES[column.version]
    found = native.number_page(block.data, block.bits, block.length, most, target, column.large)
    if found is None:
        return None
    is_packed, words, chunks = found
    values = InlineBitpacking(block.bits) if is_packed else Flat(block.bits)
    layout, encoding = plain_layout(values, shredded.layers, block.length, column.large)
    return EncodedLayout(layout, ((words,), (chunks,)), encoding)


def _constant_fixed(shredded: Shredded, block: FixedWidth) -> EncodedLayout | None:
    valid = valid_positions(shredded)
    if block.bits % 8:
        octets = np.frombuffer(block.data, np.uint8)
        whole = octets[: block.length // 8]
        if valid is None and len(whole) and not stats.is_constant(whole):
            return None
        bits = np.unpackbits(octets, count=block.length, bitorder="little")
        values: npt.NDArray[Any] = bits.reshape(-1, 1)
    else:
        width = block.bits // 8
        if block.bits in (8, 16, 32, 64):
            values = block.numbers()
        else:
            values = np.frombuffer(block.data, np.uint8).reshape(-1, width)
    if valid is not None:
        values = values[valid]
    if not stats.is_constant(values):
        return None
    return encode_constant(shredded, [values[0].tobytes()])
