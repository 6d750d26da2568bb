"""Logical types of the format and the corresponding Arrow types."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lancetable.errors import CorruptFileError, InvalidSchemaError, UnsupportedFeatureError
from lancetable.format import logical_types
from lancetable.format.logical_types import encoding_of, from_arrow, leaf_type, num_children, to_arrow

# (Arrow type, string, encoding number); both directions
CASES = [
    (pa.null(), "null", 0),
    (pa.bool_(), "bool", 1),
    (pa.int8(), "int8", 1),
    (pa.uint64(), "uint64", 1),
    (pa.float16(), "halffloat", 1),
    (pa.float32(), "float", 1),
    (pa.float64(), "double", 1),
    (pa.utf8(), "string", 2),
    (pa.large_utf8(), "large_string", 2),
    (pa.binary(), "binary", 2),
    (pa.large_binary(), "large_binary", 2),
    (pa.binary(5), "fixed_size_binary:5", 1),
    (pa.date32(), "date32:day", 1),
    (pa.date64(), "date64:ms", 1),
    (pa.time32("ms"), "time32:ms", 1),
    (pa.time64("ns"), "time64:ns", 1),
    (pa.timestamp("us"), "timestamp:us:-", 1),
    (pa.timestamp("ns", "America/New_York"), "timestamp:ns:America/New_York", 1),
    (pa.timestamp("s", "+05:30"), "timestamp:s:+05:30", 1),
    (pa.duration("ms"), "duration:ms", 1),
    (pa.decimal128(10, -2), "decimal:128:10:-2", 1),
    (pa.decimal256(76, 3), "decimal:256:76:3", 1),
    (pa.list_(pa.int32(), 2), "fixed_size_list:int32:2", 1),
    (pa.list_(pa.list_(pa.int32(), 2), 3), "fixed_size_list:fixed_size_list:int32:2:3", 1),
    (pa.list_(pa.timestamp("us"), 2), "fixed_size_list:timestamp:us:-:2", 1),
    (pa.list_(pa.timestamp("us", "+02:00"), 2), "fixed_size_list:timestamp:us:+02:00:2", 1),
    (pa.list_(pa.decimal128(10, 2), 2), "fixed_size_list:decimal:128:10:2:2", 1),
    (pa.list_(pa.binary(3), 2), "fixed_size_list:fixed_size_binary:3:2", 1),
    (pa.list_(pa.dictionary(pa.int8(), pa.utf8()), 2), "fixed_size_list:dict:string:int8:false:2", 1),
    (pa.dictionary(pa.int8(), pa.utf8()), "dict:string:int8:false", 3),
    (pa.dictionary(pa.uint64(), pa.large_binary()), "dict:large_binary:uint64:false", 3),
]


@pytest.mark.parametrize(("data_type", "text", "encoding"), CASES, ids=[case[1] for case in CASES])
def test_types_are_converted_in_both_directions(data_type, text, encoding):
    assert from_arrow(data_type) == text
    assert to_arrow(text) == data_type
    assert leaf_type(text) == data_type
    assert num_children(text) == 0
    assert encoding_of(text) == encoding


def test_nested_types_are_built_from_their_children():
    item = pa.field("item", pa.int32())
    point = pa.field("item", pa.struct([("x", pa.int8())]))
    assert to_arrow("list", children=[item]) == pa.list_(item)
    assert to_arrow("large_list.struct", children=[point]) == pa.large_list(point)
    assert to_arrow("fixed_size_list:struct:4", children=[point]) == pa.list_(point, 4)
    assert to_arrow("struct", children=[item, point.with_name("p")]) == pa.struct([item, point.with_name("p")])
    entries = pa.field("entries", pa.struct([pa.field("key", pa.utf8(), False), ("value", pa.int8())]), False)
    assert to_arrow("map", children=[entries]) == pa.map_(pa.utf8(), pa.int8())
    for text, count in (("list", 1), ("large_list.struct", 1), ("map", 1), ("fixed_size_list:struct:4", 1)):
        assert leaf_type(text) is None
        assert num_children(text) == count
    assert num_children("struct") is None
    assert from_arrow(pa.list_(point)) == "list.struct"
    assert from_arrow(pa.large_list(item)) == "large_list"
    assert from_arrow(pa.list_(point, 4)) == "fixed_size_list:struct:4"
    assert from_arrow(pa.map_(pa.utf8(), pa.int8())) == "map"


def test_properties_without_a_logical_type_are_dropped():
    assert from_arrow(pa.string_view()) == "string"
    assert from_arrow(pa.binary_view()) == "binary"
    assert from_arrow(pa.dictionary(pa.int8(), pa.utf8(), ordered=True)) == "dict:string:int8:false"
    assert from_arrow(pa.list_(pa.field("x", pa.int8(), nullable=False), 2)) == "fixed_size_list:int8:2"


def test_bfloat16_items_keep_their_extension_name():
    item = pa.field("item", pa.binary(2), metadata={"ARROW:extension:name": "lance.bfloat16"})
    assert from_arrow(pa.list_(item, 4)) == "fixed_size_list:lance.bfloat16:4"
    restored = to_arrow("fixed_size_list:lance.bfloat16:4")
    assert restored.value_field.metadata[b"ARROW:extension:name"] == b"lance.bfloat16"


@pytest.mark.parametrize(
    "data_type",
    [
        pa.decimal32(5, 1),
        pa.decimal64(5, 1),
        pa.list_view(pa.int32()),
        pa.run_end_encoded(pa.int32(), pa.int32()),
        pa.month_day_nano_interval(),
        pa.dense_union([pa.field("a", pa.int32())]),
        pa.list_(pa.list_(pa.int32()), 2),
        pa.dictionary(pa.int8(), pa.struct([("a", pa.int8())])),
        pa.dictionary(pa.int8(), pa.list_(pa.int8())),
        pa.dictionary(pa.int8(), pa.decimal128(10, 2)),
        pa.dictionary(pa.int8(), pa.timestamp("us")),
        pa.dictionary(pa.int8(), pa.binary(3)),
        pa.dictionary(pa.int8(), pa.dictionary(pa.int8(), pa.utf8())),
    ],
    ids=str,
)
def test_unsupported_types_raise(data_type):
    with pytest.raises(UnsupportedFeatureError, match="Unsupported data type"):
        from_arrow(data_type)


def test_fixed_size_lists_of_size_0_raise():
    with pytest.raises(InvalidSchemaError, match="positive"):
        from_arrow(pa.list_(pa.int8(), 0))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "INT32",
        "float128",
        "timestamp:us",
        "timestamp:year:-",
        "decimal:32:5:1",
        "decimal:128:99:2",
        "time32:us",
        "decimal:128:a:b",
        "dict:string:float:false",
        "dict:list:int8:false",
        "dict:string:int8:maybe",
        "dict:x",
        "list:",
        "fixed_size_list:list:2",
        "fixed_size_list:map:2",
        "fixed_size_list:json:2",
        ":",
        "duration:day",
        "x" * 10000,
    ],
)
def test_unknown_logical_types_raise(text):
    with pytest.raises(UnsupportedFeatureError, match="unknown logical type") as caught:
        leaf_type(text)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "fixed_size_list:int8:0",
        "fixed_size_list:int8:-1",
        "fixed_size_list:int8:2147483648",
        "fixed_size_binary:x",
        "fixed_size_list:fixed_size_list:int8:65536:65536",
        "fixed_size_list:int8:" + "9" * 5000,
        "fixed_size_binary:",
        "fixed_size_list:struct:0",
        "decimal:128:5:1000",
        "fixed_size_list:int8:٣",
    ],
)
def test_impossible_sizes_raise(text):
    with pytest.raises(CorruptFileError):
        leaf_type(text)


def test_too_deep_nesting_raises():
    text = "fixed_size_list:" * 5000 + "int8" + ":1" * 5000
    with pytest.raises(UnsupportedFeatureError):
        leaf_type(text)


def test_json_is_stored_as_bytes():
    assert from_arrow(pa.json_()) == "json"
    assert to_arrow("json") == pa.large_binary()
    assert logical_types.storage_type(pa.json_()) == pa.utf8()
