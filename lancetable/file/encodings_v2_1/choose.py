"""Choice of layout and encoding for a page of 2.1 and 2.2 files.

    layout        constant           all null; in 2.2 also a single value throughout
                  mini-block         values below 256 bytes
                  full-zip           longer values, and values that do not fit into chunks: choose_layout.py
    dictionary    Arrow dictionaries; strings, bytes, values of 16 and in 2.2 of 8 bytes, with few distinct ones:
                  choose_dictionary.py
    numbers       the smallest of run lengths, bit packing and uncompressed values: choose_numbers.py, choose_chunks.py
    strings       FSST if the compiled kernels are available, else offsets and bytes: choose_strings.py
    on request    zstd or LZ4 applied to any of these, and byte stream split below them

Field metadata `lance-encoding:...` overrides these choices, see wishes.py. Unsupported types are rejected earlier, in
storable.py. Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Compressive
from lancetable.file.encodings_v2_1.block import FixedWidth, is_variable, type_bits
from lancetable.file.encodings_v2_1.choose_dictionary import encode_dictionary_array, encode_items, one_empty
from lancetable.file.encodings_v2_1.choose_layout import Column, chunk_or_zip, if_smaller, prefers_full_zip
from lancetable.file.encodings_v2_1.choose_numbers import encode_numbers
from lancetable.file.encodings_v2_1.choose_strings import encode_strings
from lancetable.file.encodings_v2_1.chunks import (
    Chunked,
    ChunkTooLarge,
    EncodedLayout,
    LevelsTooDense,
    Limits,
    fixed_values,
    variable_values,
)
from lancetable.file.encodings_v2_1.compressive.fixed_size_list import FixedSizeLists, encode_lists, lists_of, zip_lists
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.packed_struct import PackedRows, encode_rows, rows_of, variable_rows_of
from lancetable.file.encodings_v2_1.layouts.constant import encode_all_null, encode_constant
from lancetable.file.encodings_v2_1.layouts.fullzip import encode_fullzip_fixed, encode_fullzip_variable
from lancetable.file.encodings_v2_1.layouts.miniblock import EncodedItems, encode_miniblock
from lancetable.file.encodings_v2_1.repdef import NULLABLE_ITEM, layers_of
from lancetable.file.encodings_v2_1.shred import Shredded, StepKind, shred
from lancetable.file.kernels.interleave import runs_of

__all__ = ["EncodedRows", "encode_pages"]


class EncodedRows(NamedTuple):
    """A page of `num_rows` rows; `length` is the value of Page.length, which counts items of fixed-size lists."""

    page: EncodedLayout
    num_rows: int
    length: int


def encode_pages(column: Column, array: pa.Array) -> Iterator[EncodedRows]:
    """Encode a leaf of a top-level array as one page, or as several if one page cannot store all levels.

    Raises UnsupportedFeatureError if a single row has too many levels or a value cannot be stored.
    """
    shredded = shred(array, column.leaf.steps, plain_lists=column.large)
    try:
        page = encode_values(column, shredded)
    except LevelsTooDense:
        half = len(array) // 2
        if not half:
            raise UnsupportedFeatureError(
                "a single row has too many empty lists for a page; split the row", feature="dense levels"
            ) from None
        yield from encode_pages(column, array.slice(0, half))
        yield from encode_pages(column, array.slice(half))
        return
    length = shredded.num_rows
    for step in column.leaf.steps:
        if step.kind is StepKind.FIXED:
            length *= step.number
    yield EncodedRows(page, shredded.num_rows, length)


def encode_values(column: Column, shredded: Shredded) -> EncodedLayout:
    """Encode the values of a leaf as a page. Raises LevelsTooDense, and UnsupportedFeatureError for some structs."""
    values = shredded.values
    data_type = values.type
    if pa.types.is_null(data_type):
        return encode_all_null(shredded, column.large)
    if pa.types.is_struct(data_type) and data_type.num_fields == 0:
        if shredded.definition is not None:
            raise UnsupportedFeatureError("a null struct without children cannot be stored", feature="empty struct")
        # Readers do not treat these structs as null.
        return encode_all_null(replace(shredded, layers=(NULLABLE_ITEM,)), column.large)
    definition = shredded.visible_definition
    if len(values) == 0:
        return _encode_nothing(column, shredded)
    all_null = definition is not None and int(definition.min()) > 0
    # Old readers of 2.1 lose the nulls of lists that contain nothing else, unless they are stored in chunks.
    if all_null and (column.large or not shredded.num_lists):
        return encode_all_null(shredded, column.large)
    if pa.types.is_dictionary(data_type):
        return encode_dictionary_array(column, shredded)
    if pa.types.is_struct(data_type):
        return _encode_struct(column, shredded)
    if is_variable(data_type):
        missing = None if definition is None else definition > 0
        return encode_strings(column, shredded, variable_values(values, missing))
    if pa.types.is_fixed_size_list(data_type):
        return _encode_lists(column, shredded, lists_of(values))
    if data_type == pa.binary(0):
        return encode_constant(shredded, [b""])
    return encode_numbers(column, shredded, fixed_values(values))


def _encode_nothing(column: Column, shredded: Shredded) -> EncodedLayout:
    """Encode a page that contains only null and empty lists. Raises LevelsTooDense."""
    if not column.large and shredded.num_lists > 1 and _reaches_inside(shredded):
        # Old readers of 2.1 lose the inner lists of such a constant page, but can read a chunk without values.
        try:
            return encode_miniblock(shredded, *_no_values(column, shredded.values.type))
        except ChunkTooLarge as error:
            if shredded.num_rows > 1:
                raise LevelsTooDense from error
    return encode_all_null(shredded, column.large)


def _reaches_inside(shredded: Shredded) -> bool:
    """Return whether an outermost list has items; False for packed structs: old readers have none in lists."""
    if pa.types.is_struct(shredded.values.type):
        return False
    definition = shredded.definition
    return definition is None or int(definition.min()) <= layers_of(shredded.layers).tops[-2]


def _no_values(column: Column, data_type: pa.DataType) -> tuple[Chunked, bool, EncodedItems | None]:
    """Return one chunk without values, whether chunks are large, and the dictionary."""
    encoding: Compressive = Flat(32)
    items = None
    if pa.types.is_fixed_size_list(data_type):
        encoding = lists_of(pa.array([], data_type)).encoding
    elif is_variable(data_type):  # old readers require a dictionary with at least one item
        items = encode_items(column, one_empty(data_type))
    elif pa.types.is_dictionary(data_type):
        encoding, items = Flat(data_type.index_type.bit_width), encode_items(column, one_empty(data_type.value_type))
    else:
        bits = type_bits(data_type)
        assert bits is not None
        encoding = Flat(bits)
    return Chunked(encoding, np.zeros(1, np.int64), [[runs_of(b"", 0, 1)]]), column.large, items


def _encode_lists(column: Column, shredded: Shredded, lists: FixedSizeLists) -> EncodedLayout:
    rows: list[FixedWidth] = []

    def zipped() -> EncodedLayout:
        rows.append(zip_lists(lists))
        return encode_fullzip_fixed(shredded, rows[0], lists.encoding)

    bits = lists.item_bits
    general = column.options.general

    def chunk(limits: Limits) -> Chunked:
        chunked = encode_lists(lists, limits)
        return chunked if general is None or lists.validity else if_smaller(chunked, *general)

    can_zip = lists.items.bits % 8 == 0
    return chunk_or_zip(
        column, shredded, prefers_full_zip(column, shredded, bits // 8), chunk, zipped if can_zip else None
    )


def _encode_struct(column: Column, shredded: Shredded) -> EncodedLayout:
    packed = rows_of(shredded.values)
    if packed is not None:
        rows: PackedRows = packed
        general = column.options.general

        def chunk(limits: Limits) -> Chunked:
            chunked = encode_rows(rows, limits)
            return chunked if general is None else if_smaller(chunked, *general)

        return chunk_or_zip(column, shredded, False, chunk, None)
    if not column.large:
        raise UnsupportedFeatureError(
            "packed structs with children of variable width need data file version 2.2", feature="packed struct"
        )
    definition = shredded.visible_definition
    valid = None if definition is None or not definition.any() else definition == 0
    encoding, values = variable_rows_of(shredded.values, valid)
    return encode_fullzip_variable(shredded, values, encoding)
