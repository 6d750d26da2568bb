"""Dictionary pages: Arrow dictionaries, and columns with few distinct values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from lancetable.file.encodings_v2_1 import stats
from lancetable.file.encodings_v2_1.base import Compressive
from lancetable.file.encodings_v2_1.block import FixedWidth, is_variable, type_bits
from lancetable.file.encodings_v2_1.choose_chunks import chunk_fixed, plain_page
from lancetable.file.encodings_v2_1.choose_layout import MIN_COMPRESSED_BYTES, LeafRows, LeafSpec
from lancetable.file.encodings_v2_1.chunks import (
    ChunkTooLarge,
    EncodedLayout,
    LevelsTooDense,
    fixed_values,
    variable_values,
)
from lancetable.file.encodings_v2_1.compressive.bitpacking import inline_bytes
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.general_compression import compress_block
from lancetable.file.encodings_v2_1.compressive.variable import encode_variable_block, variable_of
from lancetable.file.encodings_v2_1.encoding_options import zstd_level
from lancetable.file.encodings_v2_1.layouts.miniblock import EncodedItems
from lancetable.file.encodings_v2_1.shred import Step, StepKind
from lancetable.file.kernels.distinct import index_values
from lancetable.file.kernels.varbin import offsets_of

MIN_DICTIONARY_VALUES: Final = 100
_ITEM_TYPES: Final[dict[int | None, pa.DataType]] = {64: pa.int64(), 128: pa.binary(16)}
_DICTIONARY_SHARE: Final = 0.5  # relative to the values; a larger dictionary saves too little to avoid splitting it
_REPEATED_SHARE: Final = 0.02  # relative size that repeated dictionaries may add to a column


def encode_dictionary_array(rows: LeafRows) -> EncodedLayout:
    """Encode an Arrow dictionary array as a page. Raises LevelsTooDense."""
    array = rows.shredded.values
    items, indices = array.dictionary, array.indices
    if items.null_count:
        # The levels mark rows with a null item as null, so the item may have any value.
        items = items.fill_null(one_empty(items.type)[0])
    if len(items) == 0:
        items = one_empty(items.type)
    indices = fixed_values(indices.fill_null(0) if indices.null_count else indices)
    return _indexed_page(rows, indices, encode_items(rows.spec, items))


def one_empty(data_type: pa.DataType) -> pa.Array:
    """Return an array of one empty string or one zero."""
    bits = type_bits(data_type)
    if bits is None:
        return pa.array([b""], data_type)
    return pa.Array.from_buffers(data_type, 1, [None, pa.py_buffer(bytes((bits + 7) // 8))])


def _indexed_page(rows: LeafRows, indices: FixedWidth, items: EncodedItems) -> EncodedLayout:
    page = plain_page(rows, indices, items)
    if page is not None:
        return page
    try:
        return rows.encode_chunks(lambda limits: chunk_fixed(indices, rows.spec.options, limits), items)
    except ChunkTooLarge as error:
        raise LevelsTooDense from error


def encode_items(spec: LeafSpec, items: pa.Array) -> EncodedItems:
    """Encode the items of a dictionary in the block form."""
    encoding: Compressive
    if is_variable(items.type):
        block = variable_values(items)
        encoding, data = variable_of(block), encode_variable_block(block)
    else:
        values = fixed_values(items)
        encoding, data = Flat(values.bits), bytes(values.data)
    if not spec.large_chunks or spec.options.dictionary_compression == "none" or len(data) < MIN_COMPRESSED_BYTES:
        return EncodedItems(encoding, data, len(items))
    scheme = spec.options.dictionary_compression or "lz4"
    packed = compress_block(encoding, data, scheme, zstd_level(scheme, spec.options.dictionary_level))
    return EncodedItems(*packed, len(items))


def fixed_dictionary(rows: LeafRows, block: FixedWidth) -> EncodedLayout | None:
    """Encode values of 16 bytes, in 2.2 also of 8, with a dictionary if that is much smaller; otherwise return None."""
    kind = _ITEM_TYPES.get(block.bits)
    if block.length < MIN_DICTIONARY_VALUES or kind is None or (block.bits == 64 and not rows.spec.large_chunks):
        return None
    if rows.spec.options.compression == "none":
        return None
    width = block.bits // 8
    array = pa.Array.from_buffers(kind, block.length, [None, pa.py_buffer(block.data)])

    def plain() -> int:
        if block.bits == 128:
            return block.length * width
        values = block.numbers()
        runs = 9 * (stats.estimate_runs(values) + block.length // 255)
        return min(block.length * width, inline_bytes(stats.block_widths(values), 64), runs)

    return dictionary_if_smaller(rows, array, plain, width)


def dictionary_if_smaller(
    rows: LeafRows, array: pa.Array, plain: Callable[[], int], item_bytes: float
) -> EncodedLayout | None:
    """Encode a page with a dictionary if that needs much less than `plain()` bytes; otherwise return None.

    `item_bytes` is the mean size of the values.
    """
    options = rows.spec.options
    count = len(array)
    max_distinct = int(count / options.dictionary_divisor)
    indexed = None
    if stats.counts_exactly(count, item_bytes):
        indexed = index_values(array, max_distinct)
        distinct = None if indexed is None else len(indexed.items)
    else:
        distinct = stats.count_distinct(array, max_distinct, item_bytes)
    if distinct is None:
        return None
    plain_bytes = plain()
    if _dictionary_bytes(distinct, count, item_bytes) > options.dictionary_ratio * plain_bytes:
        return None
    indexed = indexed or index_values(array, max_distinct)
    if indexed is None or len(indexed.items) == 0:
        return None
    items = indexed.items
    if _dictionary_bytes(len(items), count, items.nbytes / len(items)) > plain_bytes:
        return None
    return _indexed_page(rows, FixedWidth.of_numbers(indexed.indices), encode_items(rows.spec, items))


def all_in_dictionary(rows: LeafRows, compressed: bool) -> EncodedLayout | None:
    """Encode strings that do not fit into chunks with a dictionary of any size; return None if all are null."""
    indexed = index_values(rows.shredded.values, len(rows.shredded.values))
    if indexed is None or len(indexed.items) == 0:
        return None
    items = encode_items(rows.spec, indexed.items)
    if compressed and len(items.data) >= MIN_COMPRESSED_BYTES:
        level = zstd_level("zstd", rows.spec.options.level)
        items = EncodedItems(*compress_block(items.encoding, items.data, "zstd", level), items.num_items)
    return _indexed_page(rows, FixedWidth.of_numbers(indexed.indices), items)


def pages_repeat_items(spec: LeafSpec, array: pa.Array, parts: int) -> bool:
    """Return True if splitting a top-level array into `parts` pages would repeat a dictionary of considerable size."""
    values = _values_below(array, spec.leaf.steps)
    count = len(values)
    if pa.types.is_dictionary(values.type):
        return _much_repeated(count, len(values.dictionary), values.dictionary.nbytes, parts)
    if count < MIN_DICTIONARY_VALUES or spec.options.compression == "none" or pa.types.is_null(values.type):
        return False
    if not is_variable(values.type):
        bits, data = type_bits(values.type), values.buffers()[1]
        kind = _ITEM_TYPES.get(bits)
        if data is None or kind is None or (bits == 64 and not spec.large_chunks) or values.type.num_fields:
            return False
        values = pa.Array.from_buffers(kind, count, [None, data], offset=values.offset)
    item_bytes = values.nbytes / count
    distinct = stats.count_distinct(values, int(count / spec.options.dictionary_divisor), item_bytes)
    if distinct is None or _dictionary_bytes(distinct, count, item_bytes) > _DICTIONARY_SHARE * values.nbytes:
        return False
    return _much_repeated(count, distinct, int(distinct * item_bytes), parts)


def _much_repeated(count: int, distinct: int, items_bytes: int, parts: int) -> bool:
    return (parts - 1) * items_bytes > _REPEATED_SHARE * (items_bytes + _dictionary_bytes(distinct, count, 0))


def _values_below(array: pa.Array, steps: Sequence[Step]) -> pa.Array:
    """Return the values of a leaf, including those below nulls, as an approximation."""
    for step in steps:
        if step.kind is StepKind.STRUCT:
            array = array.field(step.number)
        elif step.kind is StepKind.LIST:
            offsets = offsets_of(array)
            array = array.values.slice(int(offsets[0]), int(offsets[-1]) - int(offsets[0]))
        else:
            array = array.values.slice(array.offset * step.number, len(array) * step.number)
    return array


def _dictionary_bytes(distinct: int, count: int, item_bytes: float) -> float:
    return distinct * item_bytes + count * max(distinct - 1, 1).bit_length() / 8
