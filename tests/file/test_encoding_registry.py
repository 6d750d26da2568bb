"""Every oneof case of a 2.0 page has a class, and its message round-trips."""

from __future__ import annotations

import pytest

from lancetable.errors import UnsupportedFeatureError
from lancetable.file.encodings_v2_0.base import pack_page
from lancetable.file.encodings_v2_0.binary import Binary
from lancetable.file.encodings_v2_0.dictionary import Dictionary
from lancetable.file.encodings_v2_0.fixed_size_list import FixedSizeList
from lancetable.file.encodings_v2_0.flat import Flat
from lancetable.file.encodings_v2_0.lists import List
from lancetable.file.encodings_v2_0.nullable import Nullable
from lancetable.file.encodings_v2_0.registry import ENCODINGS, from_message, to_message
from lancetable.file.encodings_v2_0.struct import SimpleStruct
from lancetable.file.footer import BufferRef
from lancetable.file.reader import FAMILIES
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_0_pb2 as pb

# Oneof cases for the mini-blocks of 2.1, which 2.0 pages do not use, and the case that no writer uses.
LATER = {
    "constant",
    "inline_bitpacking",
    "out_of_line_bitpacking",
    "variable",
    "packed_struct_fixed_width_mini_block",
    "block",
    "rle",
    "general_mini_block",
    "byte_stream_split",
}

FLAT = Flat(32, BufferRef(1))
ENDS = Nullable(Flat(64, BufferRef(0)))

TREES = [
    FLAT,
    Flat(8, BufferRef(2, 1), "zstd", 9),
    Flat(8, BufferRef(2, 2), "none"),
    Nullable(None),
    Nullable(FLAT),
    Nullable(FLAT, Flat(1, BufferRef(0))),
    FixedSizeList(4, Nullable(FLAT)),
    List(ENDS, 5, 4),
    SimpleStruct(),
    Binary(ENDS, Flat(8, BufferRef(1)), 9),
    Dictionary(Nullable(Flat(8, BufferRef(0))), Binary(ENDS, Flat(8, BufferRef(1)), 3), 2),
]


def test_every_oneof_case_has_a_class() -> None:
    names = {field.name for field in pb.ArrayEncoding.DESCRIPTOR.oneofs_by_name["array_encoding"].fields}
    assert names - LATER == ENCODINGS.keys()
    assert all(encoding.oneof_case == name for name, encoding in ENCODINGS.items())


@pytest.mark.parametrize("encoding", TREES, ids=lambda encoding: type(encoding).__name__)
def test_messages_round_trip(encoding: Nullable) -> None:
    assert from_message(to_message(encoding)) == encoding


def test_unknown_oneof_cases_raise_with_their_name() -> None:
    present = {field.name for field in pb.ArrayEncoding.DESCRIPTOR.fields} & LATER
    for name in present:
        message = pb.ArrayEncoding()
        getattr(message, name).SetInParent()
        with pytest.raises(UnsupportedFeatureError, match=name):
            from_message(message)


def test_messages_have_the_bytes_of_the_format_example() -> None:
    page = pack_page(Nullable(Flat(32, BufferRef(1)), Flat(1, BufferRef(0))))
    url = b"/lance.encodings.ArrayEncoding"
    value = bytes.fromhex("1214 1212 0a06 0a04 0801 1200 1208 0a06 0820 1202 0801")
    assert page == b"\x0a" + bytes([len(url)]) + url + b"\x12" + bytes([len(value)]) + value


def test_families_exist_for_known_versions_only() -> None:
    assert FAMILIES.keys() <= set(FileVersion)
    assert FileVersion.V2_0 in FAMILIES
