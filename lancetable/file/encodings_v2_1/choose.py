"""What the writer of 2.1 and 2.2 files picks for a page.

    layout        constant           all null; in 2.2 also one value throughout
                  mini-block         values below 256 bytes
                  full-zip           longer values, and what no chunk can hold
    dictionary    Arrow dictionaries; strings, bytes, values of 16 and in 2.2 of 8 bytes with few distinct ones
    numbers       the smallest of run lengths, bit packing and plain values
    strings       FSST where compiled kernels run, else offsets and bytes
    on request    zstd or LZ4 around any of these; byte stream split below it

Field metadata `lance-encoding:...` has the last word, see wishes.py. What cannot be stored is refused before,
in storable.py.
Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import UnsupportedFeatureError
from lancetable.file import kernels
from lancetable.file.encodings_v2_1 import stats
from lancetable.file.encodings_v2_1.base import Compressive, pack_page
from lancetable.file.encodings_v2_1.block import FixedWidth, VariableWidth, is_variable, type_bits
from lancetable.file.encodings_v2_1.chunks import (
    Chunked,
    ChunkTooLarge,
    EncodedLayout,
    LevelsTooDense,
    Limits,
    fixed_values,
    offsets_of,
    power_of_two,
    variable_values,
)
from lancetable.file.encodings_v2_1.compressive.bitpacking import InlineBitpacking, encode_inline, inline_bytes
from lancetable.file.encodings_v2_1.compressive.byte_stream_split import encode_byte_streams
from lancetable.file.encodings_v2_1.compressive.fixed_size_list import FixedSizeLists, encode_lists, lists_of, zip_lists
from lancetable.file.encodings_v2_1.compressive.flat import Flat, encode_flat
from lancetable.file.encodings_v2_1.compressive.fsst import compress_strings
from lancetable.file.encodings_v2_1.compressive.general import (
    General,
    compress_block,
    compress_chunks,
    compress_values,
)
from lancetable.file.encodings_v2_1.compressive.packed_struct import PackedRows, encode_rows, rows_of, variable_rows_of
from lancetable.file.encodings_v2_1.compressive.rle import encode_runs
from lancetable.file.encodings_v2_1.compressive.variable import encode_variable, encode_variable_block, variable_of
from lancetable.file.encodings_v2_1.layouts.constant import encode_all_null, encode_constant
from lancetable.file.encodings_v2_1.layouts.fullzip import encode_fullzip_fixed, encode_fullzip_variable
from lancetable.file.encodings_v2_1.layouts.miniblock import EncodedItems, MiniBlock, chunk_limits, encode_miniblock
from lancetable.file.encodings_v2_1.repdef import ALL_VALID_ITEM, NULLABLE_ITEM
from lancetable.file.encodings_v2_1.shred import Leaf, Shredded, Step, StepKind, shred
from lancetable.file.encodings_v2_1.wishes import NO_WISHES, Wishes, zstd_level
from lancetable.file.kernels import native
from lancetable.file.kernels.bitpacking import BLOCK_VALUES
from lancetable.file.kernels.distinct import index_values
from lancetable.format.version import FileVersion

__all__ = ["Column", "encode_pages", "pages_repeat_items"]

_FULL_ZIP_BYTES: Final = 256  # values from this size on are zipped
_ZIP_COMPRESSED_BYTES: Final = 32 << 10  # and from this size on compressed
_MIN_COMPRESSED_BYTES: Final = 4096
_MIN_FSST_BYTES: Final = 32 << 10
_MIN_FSST_LENGTH: Final = 5
_MIN_DICTIONARY_VALUES: Final = 100
_FEW_LEVELS: Final = 64
_SAMPLE_BYTES: Final = 64 << 10
_MAX_ZIPPED_ITEMS: Final = (1 << 32) - 1
_PLAIN_BITS: Final = frozenset({1, 8, 16, 32, 64, 128})
_DICTIONARY_SHARE: Final = 0.5  # of the values: larger dictionaries hardly matter
_REPEATED_SHARE: Final = 0.02  # of a column that several copies of a dictionary may add

# What a chunk should hold, and how many values at most: as large as readers take well.
_TARGET_BYTES: Final = {FileVersion.V2_1: 16 << 10, FileVersion.V2_2: 32 << 10}
_MAX_VALUES: Final = {FileVersion.V2_1: 16 << 10, FileVersion.V2_2: 32 << 10}


class Column(NamedTuple):
    """A leaf, what its metadata asks for, and the version of the file."""

    leaf: Leaf
    wishes: Wishes
    version: FileVersion

    @property
    def large(self) -> bool:
        """Whether chunks are those of version 2.2."""
        return self.version is not FileVersion.V2_1


class EncodedRows(NamedTuple):
    """A page of `num_rows` rows; `length` is what Page.length says."""

    page: EncodedLayout
    num_rows: int
    length: int


def encode_pages(column: Column, array: pa.Array) -> Iterator[EncodedRows]:
    """One page of a leaf from a top-level array, or several where one cannot hold all levels."""
    shredded = shred(array, column.leaf.steps, plain_lists=column.large)
    try:
        page = encode_values(column, shredded)
    except LevelsTooDense:
        half = len(array) // 2
        if not half:
            raise UnsupportedFeatureError("too many empty lists in a single row", feature="dense levels") from None
        yield from encode_pages(column, array.slice(0, half))
        yield from encode_pages(column, array.slice(half))
        return
    length = shredded.num_rows
    for step in column.leaf.steps:
        if step.kind is StepKind.FIXED:
            length *= step.number
    yield EncodedRows(page, shredded.num_rows, length)


def encode_values(column: Column, shredded: Shredded) -> EncodedLayout:
    """A page of the values of a leaf. Raises LevelsTooDense."""
    values = shredded.values
    data_type = values.type
    if pa.types.is_null(data_type):
        return encode_all_null(shredded, column.large)
    if pa.types.is_struct(data_type) and data_type.num_fields == 0:
        if shredded.definition is not None:
            raise UnsupportedFeatureError("a null struct without children cannot be stored", feature="empty struct")
        # Readers know that these are not null.
        return encode_all_null(replace(shredded, layers=(NULLABLE_ITEM,)), column.large)
    definition = shredded.visible_definition
    if len(values) == 0:
        return encode_all_null(shredded, column.large)
    all_null = definition is not None and int(definition.min()) > 0
    # Old readers of 2.1 lose the nulls in lists of nothing else, unless they are stored like values.
    if all_null and (column.large or not shredded.num_lists):
        return encode_all_null(shredded, column.large)
    if pa.types.is_dictionary(data_type):
        return _encode_dictionary_array(column, shredded)
    if pa.types.is_struct(data_type):
        return _encode_struct(column, shredded)
    if is_variable(data_type):
        missing = None if definition is None else definition > 0
        return _encode_variable(column, shredded, variable_values(values, missing))
    if pa.types.is_fixed_size_list(data_type):
        return _encode_lists(column, shredded, lists_of(values))
    if data_type == pa.binary(0):
        return encode_constant(shredded, [b""])
    return _encode_fixed(column, shredded, fixed_values(values))


# ------------------------------------------------------------------------------------------------------------ layouts


def _zips(column: Column, shredded: Shredded, value_bytes: int) -> bool:
    """Whether values of at most this size are zipped, as long as they can be."""
    if column.wishes.structure:
        return column.wishes.structure == "fullzip"
    if value_bytes < _FULL_ZIP_BYTES:
        return False
    if column.large or 4 * value_bytes > _TARGET_BYTES[FileVersion.V2_1]:
        return True
    # Old readers of 2.1 fail on zipped values in lists below a struct that can be null.
    seen_list = False
    for layer in shredded.layers:
        if layer is NULLABLE_ITEM and seen_list:
            return False
        seen_list |= layer not in (ALL_VALID_ITEM, NULLABLE_ITEM)
    return True


def _chunked_page(
    column: Column,
    shredded: Shredded,
    chunk: Callable[[Limits], Chunked],
    dictionary: EncodedItems | None = None,
) -> EncodedLayout:
    """A mini-block page; `chunk` encodes the values within limits, which shrink until every chunk fits.

    Raises LevelsTooDense or ChunkTooLarge.
    """
    target = _TARGET_BYTES[column.version]
    if column.wishes.chunk_bytes is not None:
        target = min(max(column.wishes.chunk_bytes, 64), 1 << 20 if column.large else 28 << 10)
    limits = chunk_limits(shredded, column.large, target, _MAX_VALUES[column.version])
    while limits.max_values > 2:
        with suppress(ChunkTooLarge):
            return encode_miniblock(shredded, chunk(limits), column.large, dictionary)
        limits = limits._replace(max_values=limits.max_values // 2, target_bytes=max(limits.target_bytes // 2, 1))
    return encode_miniblock(shredded, chunk(limits), column.large, dictionary)


def _chunk_or_zip(
    column: Column,
    shredded: Shredded,
    zips: bool,
    chunk: Callable[[Limits], Chunked],
    zipped: Callable[[], EncodedLayout] | None,
) -> EncodedLayout:
    """The layout that is wanted; the other one where it cannot hold the values. Raises LevelsTooDense."""
    if zips and zipped is not None:
        return zipped()
    try:
        return _chunked_page(column, shredded, chunk)
    except (ChunkTooLarge, LevelsTooDense) as error:
        if isinstance(error, LevelsTooDense) and shredded.num_rows > 1:
            raise
        if zipped is None:
            raise LevelsTooDense from error
        return zipped()


# ------------------------------------------------------------------------------------------------------- fixed width


def _encode_fixed(column: Column, shredded: Shredded, block: FixedWidth) -> EncodedLayout:
    if column.large and _folds(shredded):
        page = _constant_fixed(shredded, block)
        if page is not None:
            return page
    dictionary = _fixed_dictionary(column, shredded, block)
    if dictionary is not None:
        return dictionary
    page = _plain_page(column, shredded, block)
    if page is not None:
        return page

    def zipped() -> EncodedLayout:
        return encode_fullzip_fixed(shredded, block, Flat(block.bits))

    return _chunk_or_zip(
        column,
        shredded,
        _zips(column, shredded, block.bits // 8),
        lambda limits: chunk_fixed(block, column.wishes, limits),
        zipped if block.bits % 8 == 0 else None,
    )


def _plain_page(column: Column, shredded: Shredded, block: FixedWidth) -> EncodedLayout | None:
    """Small values without levels or wishes, all chunks in one step of a compiled kernel; None for others."""
    if native is None or column.wishes is not NO_WISHES or block.bits not in _PLAIN_BITS:
        return None
    if shredded.definition is not None or shredded.repetition is not None or block.length == 0:
        return None
    most, target = _MAX_VALUES[column.version], _TARGET_BYTES[column.version]
    found = native.number_page(block.data, block.bits, block.length, most, target, column.large)
    if found is None:
        return None
    is_packed, words, chunks = found
    layout, encoding = _plain_layout(is_packed, block.bits, shredded.layers, block.length, column.large)
    return EncodedLayout(layout, ((words,), (chunks,)), encoding)


@lru_cache(maxsize=256)
def _plain_layout(
    is_packed: bool, bits: int, layers: tuple[int, ...], num_items: int, large: bool
) -> tuple[MiniBlock, bytes]:
    """The layout of such a page and its message: much the same in all columns of a file."""
    values = InlineBitpacking(bits) if is_packed else Flat(bits)
    layout = MiniBlock(None, None, values, None, 0, layers, num_items, large, False)
    return layout, pack_page(layout)


def chunk_fixed(block: FixedWidth, wishes: Wishes, limits: Limits) -> Chunked:
    """Values of fixed width in the smallest encoding."""
    general = wishes.general
    if general is None:
        return _chunk_plain(block, wishes, limits)
    scheme, level = general
    can_split = block.bits in (32, 64) and wishes.byte_streams != "off"
    if can_split and (wishes.byte_streams == "on" or _splits_well(block, wishes, scheme, level)):
        return _if_smaller(encode_byte_streams(block, limits), scheme, level)
    return _if_smaller(_chunk_plain(block, wishes, limits), scheme, level)


def _chunk_plain(block: FixedWidth, wishes: Wishes, limits: Limits) -> Chunked:
    if block.bits not in (8, 16, 32, 64) or wishes.compression == "none" or block.length == 0:
        return encode_flat(block, limits)
    values = block.numbers()
    width = block.bits // 8
    best = block.length * width
    encoder: Callable[[], Chunked] = lambda: encode_flat(block, limits)  # noqa: E731
    if limits.max_values >= BLOCK_VALUES:
        widths = stats.block_widths(values)
        packed = inline_bytes(widths, block.bits)
        if packed < best:
            best = packed
            encoder = lambda: encode_inline(values)  # noqa: E731
    # Runs are counted only where a sample shows that they might win.
    share = wishes.run_share
    if stats.estimate_runs(values) * (width + 1) < 2 * best:
        runs = stats.count_runs(values)
        per_chunk = _values_of_runs(block.length, runs, width, limits)
        pieces = runs + block.length // per_chunk + block.length // 255
        if pieces * (width + 1) < best and (share is None or runs < share * block.length):
            return encode_runs(values, per_chunk)
    return encoder()


def _values_of_runs(count: int, runs: int, width: int, limits: Limits) -> int:
    """Values for a chunk of runs: longer runs, more values."""
    bytes_of_value = max((runs + count / 255) * (width + 1) / count, 1e-6)
    return power_of_two(max(1, min(limits.max_values, int(limits.target_bytes / 2 / bytes_of_value))))


def _splits_well(block: FixedWidth, wishes: Wishes, scheme: str, level: int | None) -> bool:
    """Whether a sample is smaller as byte streams than without."""
    width = block.bits // 8
    count = min(block.length, _SAMPLE_BYTES // width)
    third = count // 3
    step = (block.length - third) // 2 if third else 0
    data = np.frombuffer(block.data, np.uint8).reshape(-1, width)
    rows = np.concatenate([data[at : at + third] for at in (0, step, 2 * step)]) if third else data[:count]
    sample = FixedWidth(block.bits, rows.reshape(-1), len(rows))
    if len(rows) == 0:
        return False
    limits = Limits(1 << 14, 1 << 20, 16 << 10)
    split = compress_chunks(encode_byte_streams(sample, limits), scheme, level)
    other = compress_chunks(_chunk_plain(sample, wishes, limits), scheme, level)
    return split.size_bytes < other.size_bytes


def _if_smaller(chunked: Chunked, scheme: str, level: int | None) -> Chunked:
    first = sum(int(runs.offsets[-1] - runs.offsets[0]) for runs in chunked.buffers[0])
    if first < _MIN_COMPRESSED_BYTES:
        return chunked
    packed = compress_chunks(chunked, scheme, level)
    return packed if packed.size_bytes < chunked.size_bytes else chunked


# --------------------------------------------------------------------------------------------------------- constants


def _folds(shredded: Shredded) -> bool:
    """Whether one value and plain levels take less than chunks would."""
    return (shredded.definition is None and shredded.repetition is None) or shredded.num_entries <= _FEW_LEVELS


def _shown(shredded: Shredded) -> npt.NDArray[np.int64] | None:
    """The values that are not null, None if none is."""
    definition = shredded.visible_definition
    return None if definition is None or not definition.any() else np.flatnonzero(definition == 0)


def _constant_fixed(shredded: Shredded, block: FixedWidth) -> EncodedLayout | None:
    shown = _shown(shredded)
    if block.bits % 8:
        octets = np.frombuffer(block.data, np.uint8)
        whole = octets[: block.length // 8]
        if shown is None and len(whole) and not stats.is_constant(whole):
            return None
        bits = np.unpackbits(octets, count=block.length, bitorder="little")
        values: npt.NDArray[Any] = bits.reshape(-1, 1)
    else:
        width = block.bits // 8
        if block.bits in (8, 16, 32, 64):
            values = block.numbers()
        else:
            values = np.frombuffer(block.data, np.uint8).reshape(-1, width)
    if shown is not None:
        values = values[shown]
    if not stats.is_constant(values):
        return None
    return encode_constant(shredded, [values[0].tobytes()])


def _constant_variable(shredded: Shredded, block: VariableWidth) -> EncodedLayout | None:
    shown = _shown(shredded)
    lengths = np.diff(block.offsets)
    starts = block.offsets[:-1]
    if shown is not None:
        lengths, starts = lengths[shown], starts[shown]
    if not stats.is_constant(lengths):
        return None
    length, first = int(lengths[0]), int(starts[0])
    data = np.frombuffer(block.data, np.uint8)
    # Nulls have no bytes, so the values lie side by side.
    if length and not stats.is_constant(data[first : first + length * len(lengths)].reshape(-1, length)):
        return None
    offsets = np.array([0, length], block.offsets.dtype)
    return encode_constant(shredded, [offsets.tobytes(), data[first : first + length].tobytes()])


# -------------------------------------------------------------------------------------------------------- dictionary


def _encode_dictionary_array(column: Column, shredded: Shredded) -> EncodedLayout:
    array = shredded.values
    items, indices = array.dictionary, array.indices
    if items.null_count:
        # Null items have become levels; their numbers may go on to stand for them.
        items = _without_nulls(items)
    if len(items) == 0:
        items = _one_empty(items.type)
    return _dictionary_page(column, shredded, _filled(indices), items)


def _without_nulls(items: pa.Array) -> pa.Array:
    return items.fill_null(_one_empty(items.type)[0])


def _one_empty(data_type: pa.DataType) -> pa.Array:
    bits = type_bits(data_type)
    if bits is None:
        dtype = np.int64 if pa.types.is_large_string(data_type) or pa.types.is_large_binary(data_type) else np.int32
        return pa.Array.from_buffers(data_type, 1, [None, pa.py_buffer(np.zeros(2, dtype)), pa.py_buffer(b"")])
    return pa.Array.from_buffers(data_type, 1, [None, pa.py_buffer(bytes((bits + 7) // 8))])


def _filled(indices: pa.Array) -> FixedWidth:
    """Indices with 0 where they are null."""
    return fixed_values(indices.fill_null(0) if indices.null_count else indices)


def _dictionary_page(column: Column, shredded: Shredded, indices: FixedWidth, items: pa.Array) -> EncodedLayout:
    dictionary = _encode_items(column, items)
    try:
        return _chunked_page(column, shredded, lambda limits: chunk_fixed(indices, column.wishes, limits), dictionary)
    except ChunkTooLarge as error:
        raise LevelsTooDense from error


def _encode_items(column: Column, items: pa.Array) -> EncodedItems:
    """The items of a dictionary in block form."""
    encoding: Compressive
    if is_variable(items.type):
        block = variable_values(items)
        encoding, data = variable_of(block), encode_variable_block(block)
    else:
        values = fixed_values(items)
        encoding, data = Flat(values.bits), bytes(values.data)
    if not column.large or column.wishes.dictionary_compression == "none" or len(data) < _MIN_COMPRESSED_BYTES:
        return EncodedItems(encoding, data, len(items))
    scheme = column.wishes.dictionary_compression or "lz4"
    packed = compress_block(encoding, data, scheme, zstd_level(scheme, column.wishes.dictionary_level))
    return EncodedItems(*packed, len(items))


def _fixed_dictionary(column: Column, shredded: Shredded, block: FixedWidth) -> EncodedLayout | None:
    """A dictionary for values of 16 bytes, in 2.2 also of 8, where it is much smaller."""
    if block.length < _MIN_DICTIONARY_VALUES or not (block.bits == 128 or (block.bits == 64 and column.large)):
        return None
    if column.wishes.compression == "none":
        return None
    width = block.bits // 8
    kind = pa.int64() if block.bits == 64 else pa.binary(width)
    array = pa.Array.from_buffers(kind, block.length, [None, pa.py_buffer(block.data)])

    def plain() -> int:
        if block.bits == 128:
            return block.length * width
        values = block.numbers()
        runs = 9 * (stats.estimate_runs(values) + block.length // 255)
        return min(block.length * width, inline_bytes(stats.block_widths(values), 64), runs)

    return _dictionary_if_smaller(column, shredded, array, plain, width)


def _dictionary_if_smaller(
    column: Column, shredded: Shredded, array: pa.Array, plain: Callable[[], int], item_bytes: float
) -> EncodedLayout | None:
    """A page with a dictionary if it takes clearly less than `plain()` bytes for values of this mean size."""
    wishes = column.wishes
    count = len(array)
    most = int(count / wishes.dictionary_divisor)
    distinct = stats.count_distinct(array, most, item_bytes)
    if distinct is None:
        return None
    plain_bytes = plain()
    if _dictionary_bytes(distinct, count, item_bytes) > wishes.dictionary_ratio * plain_bytes:
        return None
    found = index_values(array, most)
    if found is None or len(found.items) == 0:
        return None
    items, indices = found.items, found.indices.view(np.uint8)
    if _dictionary_bytes(len(items), count, items.nbytes / len(items)) > plain_bytes:
        return None
    return _dictionary_page(column, shredded, FixedWidth(32, indices, count), items)


def pages_repeat_items(column: Column, array: pa.Array, parts: int) -> bool:
    """Whether pages of so many parts of a top-level array would each hold much the same dictionary, of notable size."""
    values = _values_below(array, column.leaf.steps)
    count = len(values)
    if pa.types.is_dictionary(values.type):
        return _much_repeated(count, len(values.dictionary), values.dictionary.nbytes, parts)
    if count < _MIN_DICTIONARY_VALUES or column.wishes.compression == "none" or pa.types.is_null(values.type):
        return False
    if not is_variable(values.type):
        bits, data = type_bits(values.type), values.buffers()[1]
        if data is None or not (bits == 128 or (bits == 64 and column.large)) or values.type.num_fields:
            return False
        kind = pa.int64() if bits == 64 else pa.binary(16)
        values = pa.Array.from_buffers(kind, count, [None, data], offset=values.offset)
    item_bytes = values.nbytes / count
    distinct = stats.count_distinct(values, int(count / column.wishes.dictionary_divisor), item_bytes)
    if distinct is None or _dictionary_bytes(distinct, count, item_bytes) > _DICTIONARY_SHARE * values.nbytes:
        return False
    return _much_repeated(count, distinct, int(distinct * item_bytes), parts)


def _much_repeated(count: int, distinct: int, items_bytes: int, parts: int) -> bool:
    return (parts - 1) * items_bytes > _REPEATED_SHARE * (items_bytes + _dictionary_bytes(distinct, count, 0))


def _values_below(array: pa.Array, steps: Sequence[Step]) -> pa.Array:
    """About the values of a leaf: those under nulls too."""
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


# ----------------------------------------------------------------------------------------------------------- variable


def _encode_variable(column: Column, shredded: Shredded, block: VariableWidth) -> EncodedLayout:
    if column.large and _folds(shredded):
        page = _constant_variable(shredded, block)
        if page is not None:
            return page
    offsets = block.offsets
    content = int(offsets[-1]) - int(offsets[0])
    longest = int(np.diff(offsets).max())
    word = offsets.dtype.itemsize
    tries_fsst = _tries_fsst(column, shredded.values.type, content, longest)
    count = block.length
    if count >= _MIN_DICTIONARY_VALUES:
        # What the codes of FSST usually save.
        plain = int(content * (0.55 if tries_fsst else 1)) + word * count
        page = _dictionary_if_smaller(column, shredded, shredded.values, lambda: plain, content / count + word)
        if page is not None:
            return page
    strings = compress_strings(block) if tries_fsst else None
    packed, encoding = strings if strings is not None else (block, None)
    general = column.wishes.general

    def chunk(limits: Limits) -> Chunked:
        chunked = encode_variable(packed, limits)
        if encoding is not None:
            return chunked._replace(encoding=encoding)
        return chunked if general is None else _if_smaller(chunked, *general)

    def zipped() -> EncodedLayout:
        large_values = longest > _ZIP_COMPRESSED_BYTES and column.wishes.compression not in ("none", "fsst")
        if (large_values or general is not None) and content >= _MIN_FSST_BYTES:
            level = zstd_level("zstd", column.wishes.level)
            compressed = compress_values(block, "zstd", level)
            return encode_fullzip_variable(shredded, compressed, General("zstd", variable_of(block), level))
        return encode_fullzip_variable(shredded, packed, encoding or variable_of(packed))

    return _chunk_or_zip(column, shredded, _zips(column, shredded, longest), chunk, zipped)


def _tries_fsst(column: Column, data_type: pa.DataType, content: int, longest: int) -> bool:
    if not kernels.NATIVE or content < _MIN_FSST_BYTES:
        return False
    if column.wishes.compression:
        return column.wishes.compression == "fsst"
    is_string = pa.types.is_string(data_type) or pa.types.is_large_string(data_type)
    if longest > _ZIP_COMPRESSED_BYTES:
        return False
    return is_string and longest >= _MIN_FSST_LENGTH


# ------------------------------------------------------------------------------------------ fixed-size lists, structs


def _encode_lists(column: Column, shredded: Shredded, lists: FixedSizeLists) -> EncodedLayout:
    rows: list[FixedWidth] = []

    def zipped() -> EncodedLayout:
        rows.append(zip_lists(lists))
        return encode_fullzip_fixed(shredded, rows[0], lists.encoding)

    bits = lists.item_bits
    general = column.wishes.general

    def chunk(limits: Limits) -> Chunked:
        chunked = encode_lists(lists, limits)
        return chunked if general is None or lists.validity else _if_smaller(chunked, *general)

    can_zip = lists.items.bits % 8 == 0
    return _chunk_or_zip(column, shredded, _zips(column, shredded, bits // 8), chunk, zipped if can_zip else None)


def _encode_struct(column: Column, shredded: Shredded) -> EncodedLayout:
    packed = rows_of(shredded.values)
    if packed is not None:
        rows: PackedRows = packed
        general = column.wishes.general

        def chunk(limits: Limits) -> Chunked:
            chunked = encode_rows(rows, limits)
            return chunked if general is None else _if_smaller(chunked, *general)

        return _chunk_or_zip(column, shredded, False, chunk, None)
    if not column.large:
        raise UnsupportedFeatureError(
            "packed structs with children of variable width need data file version 2.2", feature="packed struct"
        )
    definition = shredded.visible_definition
    valid = None if definition is None or not definition.any() else definition == 0
    encoding, values = variable_rows_of(shredded.values, valid)
    return encode_fullzip_variable(shredded, values, encoding)
