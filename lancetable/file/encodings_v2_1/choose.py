"""Choice of layout and encoding for a page of 2.1 and 2.2 files.

    layout        constant           all null; in 2.2 also one value for all rows
                  mini-block         values below 256 bytes
                  full-zip           longer values, and values that do not fit into chunks: choose_layout.py
    dictionary    Arrow dictionaries; strings, bytes, values of 16 and in 2.2 of 8 bytes, with few distinct ones:
                  choose_dictionary.py
    numbers       the smallest of run lengths, bit packing and uncompressed values: choose_numbers.py, choose_chunks.py
    strings       FSST if the compiled kernels are available, else offsets and bytes: choose_strings.py
    on request    zstd or LZ4 applied to any of these, and byte stream split below them

Field metadata `lance-encoding:...` overrides these choices; see encoding_options.py. Unsupported types are rejected
earlier, in supported_types.py. Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.encodings_v2_1.base import Compressive
from lancetable.file.encodings_v2_1.block import is_number, is_variable, type_bits
from lancetable.file.encodings_v2_1.choose_dictionary import encode_dictionary_array, encode_items, one_empty
from lancetable.file.encodings_v2_1.choose_layout import LeafRows, LeafSpec, if_smaller
from lancetable.file.encodings_v2_1.choose_numbers import encode_numbers
from lancetable.file.encodings_v2_1.choose_strings import encode_strings
from lancetable.file.encodings_v2_1.chunks import (
    Chunked,
    ChunkTooLarge,
    EncodedLayout,
    LevelsTooDense,
    fixed_values,
    variable_values,
)
from lancetable.file.encodings_v2_1.compressive.fixed_size_list import FixedSizeLists, encode_lists, lists_of
from lancetable.file.encodings_v2_1.compressive.flat import Flat, encode_flat
from lancetable.file.encodings_v2_1.compressive.packed_struct import rows_of, variable_rows_of
from lancetable.file.encodings_v2_1.layouts.constant import encode_all_null, encode_constant
from lancetable.file.encodings_v2_1.layouts.fullzip import encode_fullzip_fixed, encode_fullzip_variable
from lancetable.file.encodings_v2_1.layouts.miniblock import EncodedItems, encode_miniblock
from lancetable.file.encodings_v2_1.repdef import layers_of
from lancetable.file.encodings_v2_1.shred import Shredded, StepKind, shred
from lancetable.file.kernels.interleave import runs_of
from lancetable.proto import encodings_v2_1_pb2 as pb


class EncodedRows(NamedTuple):
    """Page of `num_rows` rows. `length` is the value of Page.length, which counts the items of fixed-size lists."""

    page: EncodedLayout
    num_rows: int
    length: int


def encode_pages(spec: LeafSpec, array: pa.Array) -> list[EncodedRows]:
    """Encode a leaf of a top-level array as one page, or as several if one page cannot store all levels.

    Raises UnsupportedFeatureError if a single row has too many levels or a value cannot be stored.
    """
    shredded = shred(array, spec.leaf.steps, plain_lists=spec.large_chunks)
    try:
        page = encode_values(LeafRows(spec, shredded))
    except LevelsTooDense:
        half = len(array) // 2
        if not half:
            raise UnsupportedFeatureError(
                "a single row has too many empty lists for a page; split the row", feature="dense levels"
            ) from None
        return encode_pages(spec, array.slice(0, half)) + encode_pages(spec, array.slice(half))
    items_per_row = math.prod([step.number for step in spec.leaf.steps if step.kind is StepKind.FIXED])
    return [EncodedRows(page, shredded.num_rows, shredded.num_rows * items_per_row)]


def encode_values(rows: LeafRows) -> EncodedLayout:
    """Encode the values of a leaf as a page.

    Raises LevelsTooDense if one page cannot store the levels, and UnsupportedFeatureError for some structs.
    """
    values = rows.shredded.values
    data_type = values.type
    if len(values) and not rows.has_levels:
        if is_variable(data_type):
            return encode_strings(rows, variable_values(values))
        if is_number(data_type):
            return encode_numbers(rows, fixed_values(values))
    if pa.types.is_null(data_type):
        return encode_all_null(rows.shredded, rows.spec.large_chunks)
    if pa.types.is_struct(data_type) and data_type.num_fields == 0:
        if rows.shredded.definition is not None:
            raise UnsupportedFeatureError("a null struct without children cannot be stored", feature="empty struct")
        # Readers do not treat these structs as null.
        return encode_all_null(rows.shredded._replace(layers=(pb.REPDEF_NULLABLE_ITEM,)), rows.spec.large_chunks)
    definition = rows.shredded.visible_definition
    if len(values) == 0:
        return _encode_nothing(rows)
    all_null = definition is not None and int(definition.min()) > 0
    # Old readers of 2.1 lose the nulls in lists that contain only nulls, unless the nulls are stored in chunks.
    if all_null and (rows.spec.large_chunks or not rows.shredded.num_lists):
        return encode_all_null(rows.shredded, rows.spec.large_chunks)
    if pa.types.is_dictionary(data_type):
        return encode_dictionary_array(rows)
    if pa.types.is_struct(data_type):
        return _encode_struct(rows)
    if is_variable(data_type):
        missing = None if definition is None else definition > 0
        return encode_strings(rows, variable_values(values, missing))
    if pa.types.is_fixed_size_list(data_type):
        return _encode_lists(rows, lists_of(values))
    if data_type == pa.binary(0):
        return encode_constant(rows.shredded, [b""])
    return encode_numbers(rows, fixed_values(values))


def _encode_nothing(rows: LeafRows) -> EncodedLayout:
    """Encode a page that contains only null and empty lists. Raises LevelsTooDense."""
    if not rows.spec.large_chunks and rows.shredded.num_lists > 1 and _reaches_inside(rows.shredded):
        # Old readers of 2.1 lose the inner lists of such a constant page, but can read a chunk without values.
        try:
            return encode_miniblock(rows.shredded, *_no_values(rows.spec, rows.shredded.values.type))
        except ChunkTooLarge as error:
            if rows.shredded.num_rows > 1:
                raise LevelsTooDense from error
    return encode_all_null(rows.shredded, rows.spec.large_chunks)


def _reaches_inside(shredded: Shredded) -> bool:
    """Return True if an outermost list has items. False for packed structs, which old readers lack in lists."""
    if pa.types.is_struct(shredded.values.type):
        return False
    definition = shredded.definition
    return definition is None or int(definition.min()) <= layers_of(shredded.layers).tops[-2]


def _no_values(spec: LeafSpec, data_type: pa.DataType) -> tuple[Chunked, bool, EncodedItems | None]:
    """Return the arguments of `encode_miniblock` for one chunk without values: chunk, size flag and dictionary."""
    encoding: Compressive = Flat(32)
    items = None
    if pa.types.is_fixed_size_list(data_type):
        encoding = lists_of(pa.array([], data_type)).encoding
    elif is_variable(data_type):  # old readers require a dictionary with at least one item
        items = encode_items(spec, one_empty(data_type))
    elif pa.types.is_dictionary(data_type):
        encoding, items = Flat(data_type.index_type.bit_width), encode_items(spec, one_empty(data_type.value_type))
    else:
        bits = type_bits(data_type)
        assert bits is not None
        encoding = Flat(bits)
    return Chunked(encoding, np.zeros(1, np.int64), [[runs_of(b"", 0, 1)]]), spec.large_chunks, items


def _encode_lists(rows: LeafRows, lists: FixedSizeLists) -> EncodedLayout:
    general = None if lists.validity else rows.spec.options.general
    return rows.chunk_or_full_zip(
        lists.encoding.bits // 8,
        lambda limits: if_smaller(encode_lists(lists, limits), general),
        None if lists.items.bits % 8 else lambda: encode_fullzip_fixed(rows.shredded, lists.full_zip(), lists.encoding),
    )


def _encode_struct(rows: LeafRows) -> EncodedLayout:
    packed = rows_of(rows.shredded.values)
    if packed is not None:
        encoding, records = packed
        general = rows.spec.options.general
        return rows.chunk_or_full_zip(
            0, lambda limits: if_smaller(encode_flat(records, limits)._replace(encoding=encoding), general), None
        )
    if not rows.spec.large_chunks:
        raise UnsupportedFeatureError(
            "packed structs with children of variable width need data file version 2.2", feature="packed struct"
        )
    definition = rows.shredded.visible_definition
    valid = None if definition is None or not definition.any() else definition == 0
    variable_encoding, values = variable_rows_of(rows.shredded.values, valid)
    return encode_fullzip_variable(rows.shredded, values, variable_encoding)
