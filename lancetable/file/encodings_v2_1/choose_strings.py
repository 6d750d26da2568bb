"""Pages of strings and binaries: a dictionary, FSST with compiled kernels, or offsets and bytes; in 2.2 also constants.

Long values are compressed with zstd. Others are compressed with zstd or LZ4 if field metadata requests it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from lancetable.file import kernels
from lancetable.file.encodings_v2_1 import stats
from lancetable.file.encodings_v2_1.block import VariableWidth
from lancetable.file.encodings_v2_1.choose_dictionary import (
    MIN_DICTIONARY_VALUES,
    all_in_dictionary,
    dictionary_if_smaller,
)
from lancetable.file.encodings_v2_1.choose_layout import LeafRows, LeafSpec, if_smaller, page_of_chunks
from lancetable.file.encodings_v2_1.chunks import Chunked, ChunkLimits, EncodedLayout
from lancetable.file.encodings_v2_1.compressive.fsst import compress_strings
from lancetable.file.encodings_v2_1.compressive.general_compression import General, compress_values
from lancetable.file.encodings_v2_1.compressive.variable import encode_variable, values_per_chunk, variable_of
from lancetable.file.encodings_v2_1.encoding_options import zstd_level
from lancetable.file.encodings_v2_1.layouts.constant import encode_constant
from lancetable.file.encodings_v2_1.layouts.fullzip import encode_fullzip_variable
from lancetable.file.kernels import varbin

_ZIP_COMPRESSED_BYTES: Final = 32 << 10  # longer values are compressed with zstd
MIN_FSST_BYTES: Final = 32 << 10
_MIN_FSST_LENGTH: Final = 5
MIN_DICTIONARY_BYTES: Final = 4096  # smaller pages are not tested for a dictionary


def _constant_page(rows: LeafRows, block: VariableWidth) -> EncodedLayout | None:
    if not rows.can_be_constant:
        return None
    valid = rows.valid_positions
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
    return encode_constant(rows.shredded, [offsets.tobytes(), data[first : first + length].tobytes()])


def encode_strings(rows: LeafRows, block: VariableWidth) -> EncodedLayout:
    """Encode strings or binaries as a page. Raises LevelsTooDense if one page cannot store the levels."""
    page = _constant_page(rows, block)
    if page is not None:
        return page
    offsets = block.offsets
    content = int(offsets[-1]) - int(offsets[0])
    longest = int((offsets[1:] - offsets[:-1]).max())
    word = offsets.dtype.itemsize
    tries_fsst = _tries_fsst(rows.spec, rows.shredded.values.type, content, longest)
    count = block.length
    if count >= MIN_DICTIONARY_VALUES and content + word * count >= MIN_DICTIONARY_BYTES:
        # FSST reduces strings to about 55 percent.
        plain = int(content * (0.55 if tries_fsst else 1)) + word * count
        page = dictionary_if_smaller(rows, rows.shredded.values, lambda: plain, content / count + word)
        if page is not None:
            return page
    if not tries_fsst:
        page = _plain_page(rows, block, longest)
        if page is not None:
            return page
    strings = compress_strings(block) if tries_fsst else None
    packed, encoding = strings if strings is not None else (block, None)
    general = rows.spec.options.general

    def chunk(limits: ChunkLimits) -> Chunked:
        chunked = encode_variable(packed, limits)
        return if_smaller(chunked, general) if encoding is None else chunked._replace(encoding=encoding)

    def full_zip() -> EncodedLayout:
        large_values = longest > _ZIP_COMPRESSED_BYTES and rows.spec.options.compression not in ("none", "fsst")
        compresses = (large_values or general is not None) and content >= MIN_FSST_BYTES
        if not rows.spec.large_chunks and not rows.spec.options.structure and rows.has_null_struct_above_list:
            page = all_in_dictionary(rows, compresses)
            if page is not None:
                return page
        if compresses:
            level = zstd_level("zstd", rows.spec.options.level)
            compressed = compress_values(block, "zstd", level)
            return encode_fullzip_variable(rows.shredded, compressed, General("zstd", variable_of(block), level))
        return encode_fullzip_variable(rows.shredded, packed, encoding or variable_of(packed))

    return rows.chunk_or_full_zip(longest, chunk, full_zip)


def _plain_page(rows: LeafRows, block: VariableWidth, longest: int) -> EncodedLayout | None:
    """Encode a page with a single call of a compiled kernel; None if it has lists, options or too long values."""
    if kernels.native is None or not rows.is_plain or rows.prefers_full_zip(longest):
        return None
    limits, word = rows.limits, block.offsets.dtype.itemsize
    per_chunk = values_per_chunk(block.offsets, limits)
    if per_chunk < 2:
        return None
    max_bytes = limits.max_bytes - word  # with the padding after the bytes of a chunk
    definition, large = rows.shredded.definition, rows.spec.large_chunks
    encoded = kernels.native.string_page(block.offsets, block.data, definition, per_chunk, max_bytes, large)
    return None if encoded is None else page_of_chunks(rows, variable_of(block), block.length, encoded)


def _tries_fsst(spec: LeafSpec, data_type: pa.DataType, content: int, longest: int) -> bool:
    if not kernels.NATIVE or content < MIN_FSST_BYTES:
        return False
    if spec.options.compression:
        return spec.options.compression == "fsst"
    return varbin.is_string(data_type) and _MIN_FSST_LENGTH <= longest <= _ZIP_COMPRESSED_BYTES
