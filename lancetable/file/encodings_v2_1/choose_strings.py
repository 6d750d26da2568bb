"""Pages of strings and bytes: a dictionary, FSST with compiled kernels, else offsets and bytes; constants in 2.2.

Long values are compressed with zstd, others with zstd or LZ4 on request, by field metadata.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from lancetable.file import kernels
from lancetable.file.encodings_v2_1 import stats
from lancetable.file.encodings_v2_1.base import Compressive
from lancetable.file.encodings_v2_1.block import VariableWidth
from lancetable.file.encodings_v2_1.choose_dictionary import (
    MIN_DICTIONARY_VALUES,
    all_in_dictionary,
    dictionary_if_smaller,
)
from lancetable.file.encodings_v2_1.choose_layout import (
    MAX_VALUES,
    TARGET_BYTES,
    Column,
    chunk_layout,
    chunk_or_zip,
    if_smaller,
    null_struct_above_list,
    plain_layout,
    prefers_full_zip,
    suits_constant,
    valid_positions,
)
from lancetable.file.encodings_v2_1.chunks import Chunked, EncodedLayout, Limits
from lancetable.file.encodings_v2_1.compressive.fsst import compress_strings
from lancetable.file.encodings_v2_1.compressive.general import General, compress_values
from lancetable.file.encodings_v2_1.compressive.variable import encode_variable, values_per_chunk, variable_of
from lancetable.file.encodings_v2_1.layouts.constant import encode_constant
from lancetable.file.encodings_v2_1.layouts.fullzip import encode_fullzip_variable
from lancetable.file.encodings_v2_1.layouts.miniblock import chunk_limits
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.encodings_v2_1.wishes import zstd_level
from lancetable.file.kernels import native

__all__ = ["encode_strings"]

_ZIP_COMPRESSED_BYTES: Final = 32 << 10  # longer values are compressed with zstd
_MIN_FSST_BYTES: Final = 32 << 10
_MIN_FSST_LENGTH: Final = 5
_MIN_DICTIONARY_BYTES: Final = 4096  # smaller pages are not tested for a dictionary


def _string_page(
    column: Column, shredded: Shredded, block: VariableWidth, symbols: Compressive | None
) -> EncodedLayout | None:
    """Encode strings, bytes or codes without levels with a single call of a compiled kernel; None if impossible."""
    if native is None or column.options.general is not None or column.options.chunk_bytes is not None:
        return None
    if shredded.definition is not None or shredded.repetition is not None:
        return None
    limits = chunk_limits(shredded, column.large, TARGET_BYTES[column.version], MAX_VALUES[column.version])
    per_chunk = values_per_chunk(block.offsets, limits)
    if per_chunk < 2:
        return None
    word = block.offsets.dtype.itemsize
    found = native.text_page(block.offsets, word, block.data, per_chunk, limits.max_bytes, column.large)
    if found is None:
        return None
    if symbols is None:
        layout, encoding = plain_layout(variable_of(block), shredded.layers, block.length, column.large)
    else:
        layout, encoding = chunk_layout(symbols, shredded.layers, block.length, column.large), None
    return EncodedLayout(layout, ((found[0],), (found[1],)), encoding)


def _constant_variable(shredded: Shredded, block: VariableWidth) -> EncodedLayout | None:
    valid = valid_positions(shredded)
    lengths = np.diff(block.offsets)
    starts = block.offsets[:-1]
    if valid is not None:
        lengths, starts = lengths[valid], starts[valid]
    if not stats.is_constant(lengths):
        return None
    length, first = int(lengths[0]), int(starts[0])
    data = np.frombuffer(block.data, np.uint8)
    # Nulls have no bytes, so the other values are contiguous.
    if length and not stats.is_constant(data[first : first + length * len(lengths)].reshape(-1, length)):
        return None
    offsets = np.array([0, length], block.offsets.dtype)
    return encode_constant(shredded, [offsets.tobytes(), data[first : first + length].tobytes()])


def encode_strings(column: Column, shredded: Shredded, block: VariableWidth) -> EncodedLayout:
    """Encode strings or bytes as a page. Raises LevelsTooDense."""
    if column.large and suits_constant(shredded):
        page = _constant_variable(shredded, block)
        if page is not None:
            return page
    offsets = block.offsets
    content = int(offsets[-1]) - int(offsets[0])
    longest = int(np.diff(offsets).max())
    word = offsets.dtype.itemsize
    tries_fsst = _tries_fsst(column, shredded.values.type, content, longest)
    count = block.length
    if count >= MIN_DICTIONARY_VALUES and content + word * count >= _MIN_DICTIONARY_BYTES:
        # FSST reduces strings to about 55 percent.
        plain = int(content * (0.55 if tries_fsst else 1)) + word * count
        page = dictionary_if_smaller(column, shredded, shredded.values, lambda: plain, content / count + word)
        if page is not None:
            return page
    strings = compress_strings(block) if tries_fsst else None
    packed, encoding = strings if strings is not None else (block, None)
    general = column.options.general

    def chunk(limits: Limits) -> Chunked:
        chunked = encode_variable(packed, limits)
        if encoding is not None:
            return chunked._replace(encoding=encoding)
        return chunked if general is None else if_smaller(chunked, *general)

    def zipped() -> EncodedLayout:
        large_values = longest > _ZIP_COMPRESSED_BYTES and column.options.compression not in ("none", "fsst")
        compresses = (large_values or general is not None) and content >= _MIN_FSST_BYTES
        if not column.large and not column.options.structure and null_struct_above_list(shredded):
            page = all_in_dictionary(column, shredded, compresses)
            if page is not None:
                return page
        if compresses:
            level = zstd_level("zstd", column.options.level)
            compressed = compress_values(block, "zstd", level)
            return encode_fullzip_variable(shredded, compressed, General("zstd", variable_of(block), level))
        return encode_fullzip_variable(shredded, packed, encoding or variable_of(packed))

    zips = prefers_full_zip(column, shredded, longest)
    found = None if zips else _string_page(column, shredded, packed, encoding)
    return chunk_or_zip(column, shredded, zips, chunk, zipped) if found is None else found


def _tries_fsst(column: Column, data_type: pa.DataType, content: int, longest: int) -> bool:
    if not kernels.NATIVE or content < _MIN_FSST_BYTES:
        return False
    if column.options.compression:
        return column.options.compression == "fsst"
    is_string = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    if longest > _ZIP_COMPRESSED_BYTES:
        return False
    return is_string and longest >= _MIN_FSST_LENGTH
