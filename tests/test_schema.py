"""Schemas with ids, and their JSON form, which equals that of pylance."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidInputError, InvalidSchemaError
from lancetable.schema import LanceSchema

# Each type, and the JSON that pylance 14.0.2 returns for it.
TYPES = [
    (pa.int8(), {"type": "int8"}),
    (pa.uint64(), {"type": "uint64"}),
    (pa.float16(), {"type": "halffloat"}),
    (pa.float32(), {"type": "float"}),
    (pa.float64(), {"type": "double"}),
    (pa.bool_(), {"type": "bool"}),
    (pa.string(), {"type": "string"}),
    (pa.large_string(), {"type": "large_string"}),
    (pa.binary(), {"type": "binary"}),
    (pa.large_binary(), {"type": "large_binary"}),
    (pa.binary(4), {"type": "fixed_size_binary", "length": 4}),
    (pa.date32(), {"type": "date32:day"}),
    (pa.date64(), {"type": "date64:ms"}),
    (pa.time32("s"), {"type": "time32:s"}),
    (pa.time64("us"), {"type": "time64:us"}),
    (pa.timestamp("us"), {"type": "timestamp:us:-"}),
    (pa.timestamp("ns", "UTC"), {"type": "timestamp:ns:UTC"}),
    (pa.duration("ms"), {"type": "duration:ms"}),
    (pa.decimal128(10, 2), {"type": "decimal:128:10:2"}),
    (pa.decimal256(40, 2), {"type": "decimal:256:40:2"}),
    (pa.null(), {"type": "null"}),
    (pa.dictionary(pa.int8(), pa.string()), {"type": "dict:string:int8:false"}),
    (
        pa.list_(pa.int32()),
        {"type": "list", "fields": [{"name": "item", "type": {"type": "int32"}, "nullable": True}]},
    ),
    (
        pa.large_list(pa.field("item", pa.int32(), nullable=False)),
        {"type": "large_list", "fields": [{"name": "item", "type": {"type": "int32"}, "nullable": False}]},
    ),
    (
        pa.list_(pa.float32(), 3),
        {
            "type": "fixed_size_list",
            "fields": [{"name": "item", "type": {"type": "float"}, "nullable": True}],
            "length": 3,
        },
    ),
    (
        pa.struct([pa.field("x", pa.int32(), metadata={"k": "v"}), pa.field("y", pa.string(), False)]),
        {
            "type": "struct",
            "fields": [
                {"name": "x", "type": {"type": "int32"}, "nullable": True, "metadata": {"k": "v"}},
                {"name": "y", "type": {"type": "string"}, "nullable": False},
            ],
        },
    ),
]


@pytest.mark.parametrize(
    ("data_type", "described"), TYPES, ids=lambda value: str(value) if isinstance(value, pa.DataType) else ""
)
def test_types_round_trip_through_json(data_type: pa.DataType, described: dict[str, object]) -> None:
    schema = pa.schema([pa.field("c", data_type, metadata={"m": "1"})], metadata={"top": "z"})
    expected = {
        "fields": [{"name": "c", "type": described, "nullable": True, "metadata": {"m": "1"}}],
        "metadata": {"top": "z"},
    }
    assert lancetable.schema_to_json(schema) == expected
    assert lancetable.json_to_schema(expected).equals(schema, check_metadata=True)


def test_json_equals_that_of_pylance() -> None:
    lance = pytest.importorskip("lance")
    schema = pa.schema([pa.field(f"c{i}", data_type, i % 2 == 0) for i, (data_type, _) in enumerate(TYPES)])
    assert lancetable.schema_to_json(schema) == lance.schema_to_json(schema)


def test_extension_types_keep_their_name() -> None:
    schema = pa.schema([pa.field("u", pa.uuid())])
    described = lancetable.schema_to_json(schema)
    assert described["fields"][0]["type"] == {"type": "fixed_size_binary", "length": 16}
    assert described["fields"][0]["metadata"]["ARROW:extension:name"] == "arrow.uuid"
    assert lancetable.json_to_schema(described).field("u").type == pa.uuid()


def test_types_without_a_json_form_are_rejected() -> None:
    with pytest.raises(ValueError, match="map"):
        lancetable.schema_to_json(pa.schema({"m": pa.map_(pa.string(), pa.int8())}))
    for wrong in ({}, {"fields": [{"name": "a"}]}, {"fields": 3}):
        with pytest.raises(InvalidInputError):
            lancetable.json_to_schema(wrong)


def test_fields_have_ids_in_depth_first_order() -> None:
    inner = pa.struct({"x": pa.int8(), "y": pa.list_(pa.int8())})
    schema = LanceSchema.from_pyarrow(pa.schema({"a": pa.int64(), "St": inner}))
    assert [(field.name(), field.id()) for field in schema.fields()] == [("a", 0), ("St", 1)]
    assert [(child.name(), child.id()) for child in schema.fields()[1].children()] == [("x", 2), ("y", 3)]
    found = schema.field("St.y")
    assert found is not None and found.id() == 3
    assert found.to_arrow() == pa.field("y", pa.list_(pa.int8()))
    assert schema.field("st.y") is None
    assert schema.field_case_insensitive("st.Y") == found
    assert schema.field_case_insensitive("nope") is None
    assert schema.to_pyarrow() == pa.schema({"a": pa.int64(), "St": inner})
    assert repr(schema).startswith("Schema {") and 'name: "y", id: 3' in repr(schema)


def test_primary_key_is_ordered_by_position() -> None:
    key, position = "lance-schema:unenforced-primary-key", "lance-schema:unenforced-primary-key:position"
    schema = LanceSchema.from_pyarrow(
        pa.schema(
            [
                pa.field("a", pa.int8(), False, metadata={key: "true", position: "2"}),
                pa.field("b", pa.int8(), False, metadata={key: "true", position: "1"}),
                pa.field("c", pa.int8()),
            ]
        )
    )
    assert [field.name() for field in schema.unenforced_primary_key()] == ["b", "a"]
    assert [field.unenforced_primary_key_position() for field in schema.fields()] == [2, 1, None]
    assert [field.is_unenforced_primary_key() for field in schema.fields()] == [True, True, False]
    assert schema.unenforced_clustering_key() == []
    assert schema.fields()[0].metadata[position] == "2"


def test_schemas_compare_and_pickle() -> None:
    one = LanceSchema.from_pyarrow(pa.schema({"a": pa.int64()}))
    assert one == LanceSchema.from_pyarrow(pa.schema({"a": pa.int64()})) == pickle.loads(pickle.dumps(one))
    assert one != LanceSchema.from_pyarrow(pa.schema({"b": pa.int64()}))
    assert pickle.loads(pickle.dumps(one.fields()[0])) == one.fields()[0]
    with pytest.raises(InvalidSchemaError):
        LanceSchema.from_pyarrow(pa.schema({"_rowid": pa.int64()}))
    with pytest.raises(TypeError):
        LanceSchema.from_pyarrow("a: int64")  # type: ignore[arg-type]  # the point
