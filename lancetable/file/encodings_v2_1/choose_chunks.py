"""Choice of the encoding of numbers in chunks: the smallest of run lengths, bit packing and uncompressed values.

Byte stream split and zstd or LZ4 are applied if field metadata requests it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from lancetable.file.encodings_v2_1 import stats
from lancetable.file.encodings_v2_1.block import FixedWidth
from lancetable.file.encodings_v2_1.choose_layout import LeafRows, if_smaller, page_of_chunks
from lancetable.file.encodings_v2_1.chunks import Chunked, ChunkLimits, EncodedLayout, power_of_two
from lancetable.file.encodings_v2_1.compressive.bitpacking import InlineBitpacking, encode_inline, inline_bytes
from lancetable.file.encodings_v2_1.compressive.byte_stream_split import encode_byte_streams
from lancetable.file.encodings_v2_1.compressive.flat import Flat, encode_flat
from lancetable.file.encodings_v2_1.compressive.general_compression import compress_chunks
from lancetable.file.encodings_v2_1.compressive.rle import encode_runs
from lancetable.file.encodings_v2_1.encoding_options import EncodingOptions
from lancetable.file.encodings_v2_1.layouts.miniblock import EncodedItems
from lancetable.file.kernels import native
from lancetable.file.kernels.bitpacking import BLOCK_VALUES

_SAMPLE_BYTES: Final = 64 << 10
_PLAIN_BITS: Final = frozenset({1, 8, 16, 32, 64, 128})


def plain_page(rows: LeafRows, block: FixedWidth, items: EncodedItems | None = None) -> EncodedLayout | None:
    """Encode a page with a single call of a compiled kernel; return None if it has lists, options or other widths.

    If `items` is given, the values are indices of these items.
    """
    if native is None or not rows.is_plain or block.length == 0 or block.bits not in _PLAIN_BITS:
        return None
    definition, large = rows.shredded.definition, rows.spec.large_chunks
    max_values, _, target = rows.limits
    encoded = native.number_page(block.data, definition, block.bits, block.length, max_values, target, large)
    if encoded is None:
        return None
    *chunks, is_packed = encoded
    values = InlineBitpacking(block.bits) if is_packed else Flat(block.bits)
    return page_of_chunks(rows, values, block.length, chunks, items)


def chunk_fixed(block: FixedWidth, options: EncodingOptions, limits: ChunkLimits) -> Chunked:
    """Encode fixed-width values in the smallest encoding."""
    can_split = options.general is not None and block.bits in (32, 64) and options.byte_streams != "off"
    if can_split and (options.byte_streams == "on" or _splits_well(block, options)):
        return if_smaller(encode_byte_streams(block, limits), options.general)
    return if_smaller(_chunk_plain(block, options, limits), options.general)


def _chunk_plain(block: FixedWidth, options: EncodingOptions, limits: ChunkLimits) -> Chunked:
    if block.bits not in (8, 16, 32, 64) or options.compression == "none" or block.length == 0:
        return encode_flat(block, limits)
    values = block.numbers()
    width = block.bits // 8
    flat_bytes = best = block.length * width
    if limits.max_values >= BLOCK_VALUES:
        best = min(best, inline_bytes(stats.block_widths(values), block.bits))
    # Count the runs only if a sample suggests that they may be smaller.
    share = options.run_share
    if stats.estimate_runs(values) * (width + 1) < 2 * best:
        runs = stats.count_runs(values)
        per_chunk = _values_of_runs(block.length, runs, width, limits)
        pieces = runs + block.length // per_chunk + block.length // 255
        if pieces * (width + 1) < best and (share is None or runs < share * block.length):
            return encode_runs(values, per_chunk)
    return encode_inline(values) if best < flat_bytes else encode_flat(block, limits)


def _values_of_runs(count: int, runs: int, width: int, limits: ChunkLimits) -> int:
    """Return the number of values for a chunk of runs, which increases with the mean length of the runs."""
    bytes_of_value = max((runs + count / 255) * (width + 1) / count, 1e-6)
    return power_of_two(max(1, min(limits.max_values, int(limits.target_bytes / 2 / bytes_of_value))))


def _splits_well(block: FixedWidth, options: EncodingOptions) -> bool:
    """Return True if byte stream split makes a compressed sample smaller."""
    assert options.general is not None
    width = block.bits // 8
    count = min(block.length, _SAMPLE_BYTES // width)
    third = count // 3
    step = (block.length - third) // 2 if third else 0
    data = np.frombuffer(block.data, np.uint8).reshape(-1, width)
    rows = np.concatenate([data[at : at + third] for at in (0, step, 2 * step)]) if third else data[:count]
    sample = FixedWidth(block.bits, rows.reshape(-1), len(rows))
    if len(rows) == 0:
        return False
    limits = ChunkLimits(1 << 14, 1 << 20, 16 << 10)
    split = compress_chunks(encode_byte_streams(sample, limits), *options.general)
    other = compress_chunks(_chunk_plain(sample, options, limits), *options.general)
    return split.size_bytes < other.size_bytes
