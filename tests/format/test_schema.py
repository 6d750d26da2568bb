"""Schemas: field messages, Arrow types, ids, look-up by path and projections."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    InvalidInputError,
    InvalidSchemaError,
    UnsupportedFeatureError,
)
from lancetable.format.field_paths import format_path, parse_path
from lancetable.format.schema import RESERVED_NAMES, Schema
from lancetable.proto import file_pb2
from lancetable.testing.strategies import TYPE_CASES, schemas

POINT = pa.struct([("x", pa.float64()), ("y", pa.int32())])
NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("point", POINT),
        pa.field("tags", pa.list_(pa.utf8())),
        pa.field("track", pa.list_(POINT)),
        pa.field("vector", pa.list_(pa.float32(), 4)),
    ],
    metadata={"owner": "us"},
)


def messages(*rows):
    """Return messages from (name, id, parent id, logical type)."""
    return [file_pb2.Field(name=n, id=i, parent_id=p, logical_type=t, nullable=True) for n, i, p, t in rows]


# ------------------------------------------------------------------------------------------------ against pylance


@pytest.mark.parametrize("name", sorted(TYPE_CASES))
def test_messages_and_arrow_type_are_those_of_pylance(name, write_with_pylance):
    case = TYPE_CASES[name]
    data = case.table(np.random.default_rng(1), 3)
    dataset, manifest = write_with_pylance(data)
    ours = Schema.from_arrow(data.schema)
    written = list(manifest.message.fields)
    for message in written:
        # pylance sets this empty message only if there are values.
        if not message.HasField("dictionary") and message.logical_type.startswith("dict:"):
            message.dictionary.SetInParent()
    assert [m.SerializeToString(deterministic=True) for m in ours.to_protos()] == [
        m.SerializeToString(deterministic=True) for m in written
    ]
    theirs = dataset.schema
    assert ours.to_arrow().equals(theirs, check_metadata=True)
    assert Schema.from_protos(written).to_arrow().equals(theirs, check_metadata=True)


ODD_FIELDS = [
    pa.field("a", pa.string_view()),
    pa.field("a", pa.binary_view()),
    pa.field("a", pa.list_(pa.string_view())),
    pa.field("a", pa.dictionary(pa.int8(), pa.utf8(), ordered=True)),
    pa.field("a", pa.list_(pa.field("x", pa.int32(), nullable=False), 2)),
    pa.field("a", pa.json_(pa.large_utf8())),
    pa.field("a", pa.list_(pa.uuid())),
    pa.field("a", pa.list_(pa.uuid(), 2)),
    pa.field("a", pa.struct([("j", pa.json_()), ("u", pa.list_(pa.uuid()))])),
    pa.field("a", pa.list_(pa.struct([("q", pa.int8())]), 2)),
    pa.field("a", pa.opaque(pa.int32(), "t", "v"), metadata={"k": "v"}),
    pa.field("a", pa.fixed_shape_tensor(pa.float32(), [2, 3], dim_names=["r", "c"], permutation=[1, 0])),
    pa.field("a", pa.int32(), metadata={"ARROW:extension:name": "my.ext"}),
    pa.field("", pa.int32()),
    pa.field("a", pa.timestamp("s", "")),
    pa.field("s", pa.struct([("a.b", pa.int8()), ("_rowid", pa.int8())])),
    pa.field("s", pa.struct([("a", pa.int8()), ("a", pa.int8())])),
    pa.field("a", pa.int8(), False, {"lance-schema:unenforced-primary-key": "true"}),
    pa.field("a", pa.int8(), False, {"lance-schema:unenforced-primary-key": "1"}),
    pa.field("a", pa.int8(), False, {"lance-schema:unenforced-primary-key:position": "3"}),
    pa.field("a", pa.int8(), False, {"lance-schema:unenforced-clustering-key:position": "2"}),
    pa.field("a", pa.int8(), False, {"lance-schema:unenforced-clustering-key": "true"}),
]


@pytest.mark.parametrize("field", ODD_FIELDS, ids=[f"{index}-{field.type}" for index, field in enumerate(ODD_FIELDS)])
def test_unusual_fields_are_converted_as_by_pylance(field, write_with_pylance):
    arrow = pa.schema([field], metadata={"x": "y"})
    dataset, manifest = write_with_pylance(arrow)
    ours = Schema.from_arrow(arrow)
    for message in manifest.message.fields:
        if message.logical_type.startswith("dict:"):
            message.dictionary.SetInParent()
    assert ours.to_protos() == list(manifest.message.fields)
    assert ours.metadata == manifest.schema_metadata
    assert ours.to_arrow().equals(dataset.schema, check_metadata=True)


def test_bfloat16_is_converted_as_by_pylance(write_with_pylance):
    lance_arrow = pytest.importorskip("lance.arrow")
    bfloat16 = lance_arrow.BFloat16Type()
    arrow = pa.schema([("a", bfloat16), ("b", pa.list_(bfloat16, 4)), ("c", pa.list_(bfloat16))])
    dataset, manifest = write_with_pylance(arrow)
    ours = Schema.from_arrow(arrow)
    assert ours.to_protos() == list(manifest.message.fields)
    assert ours.to_arrow().equals(dataset.schema, check_metadata=True)
    assert [field.data_type for field in ours.fields][:2] == [pa.binary(2), pa.list_(pa.binary(2), 4)]


REFUSED = [
    (pa.schema([("a", pa.int8()), ("a", pa.int8())]), InvalidSchemaError, "duplicate"),
    (pa.schema([("a.b", pa.int8())]), InvalidSchemaError, "dot"),
    *[(pa.schema([(name, pa.int8())]), InvalidSchemaError, name) for name in sorted(RESERVED_NAMES)],
    (pa.schema([("a", pa.decimal32(5, 1))]), UnsupportedFeatureError, "'a'.*decimal32"),
    (pa.schema([("s", pa.struct([("v", pa.list_view(pa.int8()))]))]), UnsupportedFeatureError, r"'s\.v'"),
    (pa.schema([("a", pa.list_(pa.int8(), 0))]), InvalidSchemaError, "'a'.*positive"),
    (pa.schema([("a", pa.dictionary(pa.int8(), pa.list_(pa.int8())))]), UnsupportedFeatureError, "'a'"),
    (
        pa.schema([pa.field("a", pa.int8(), True, {"lance-schema:unenforced-primary-key": "true"})]),
        InvalidSchemaError,
        "nullable",
    ),
    (
        pa.schema(
            [
                pa.field(
                    "s",
                    pa.struct([pa.field("a", pa.int8(), False, {"lance-schema:unenforced-primary-key": "true"})]),
                )
            ]
        ),
        InvalidSchemaError,
        "nullable",
    ),
]


@pytest.mark.parametrize(("arrow", "error", "text"), REFUSED, ids=[str(case[2]) for case in REFUSED])
def test_invalid_schemas_are_refused_as_by_pylance(arrow, error, text, write_with_pylance):
    with pytest.raises(error, match=text):
        Schema.from_arrow(arrow)
    with pytest.raises((OSError, ValueError)):
        write_with_pylance(arrow)


def test_names_are_not_checked_on_request():
    assert Schema.from_arrow(pa.schema([("_rowid", pa.uint64())]), check=False).names == ["_rowid"]


# ----------------------------------------------------------------------------------------------------- round trips


@given(schemas())
def test_messages_round_trip(arrow):
    schema = Schema.from_arrow(arrow, check=False)
    again = Schema.from_protos(schema.to_protos(), schema.metadata)
    assert again == schema
    assert pickle.loads(pickle.dumps(again)) == schema
    # Converted to Arrow and back, the schema has consecutive ids and the same Arrow form.
    renumbered = Schema.from_arrow(again.to_arrow(), check=False)
    assert [field.id for field in renumbered.walk()] == list(range(len(renumbered.ids())))
    assert renumbered.to_arrow().equals(schema.to_arrow(), check_metadata=True)


def test_ids_are_numbered_depth_first():
    schema = Schema.from_arrow(NESTED, first_id=10)
    assert [(f.name, f.id, f.parent_id) for f in schema.walk()] == [
        ("id", 10, -1),
        ("point", 11, -1),
        ("x", 12, 11),
        ("y", 13, 11),
        ("tags", 14, -1),
        ("item", 15, 14),
        ("track", 16, -1),
        ("item", 17, 16),
        ("x", 18, 17),
        ("y", 19, 17),
        ("vector", 20, -1),
    ]
    assert schema.max_id == 20
    assert Schema(()).max_id == -1
    assert schema.by_id[18].name == "x"
    assert schema.path_of(18) == "track.item.x"


def test_storage_types_hide_extensions():
    schema = Schema.from_arrow(pa.schema([("u", pa.uuid()), ("l", pa.list_(pa.uuid())), ("j", pa.json_())]))
    assert [field.data_type for field in schema.fields] == [pa.binary(16), pa.list_(pa.binary(16)), pa.large_binary()]
    assert schema.to_storage_arrow().field("u").metadata[b"ARROW:extension:name"] == b"arrow.uuid"


def test_extension_that_does_not_fit_its_storage_is_read_as_its_storage():
    fields = messages(("a", 0, -1, "int32"), ("u", 1, -1, "fixed_size_binary:16"))
    fields[0].extension_name = "arrow.uuid"
    fields[1].extension_name = "arrow.uuid"
    arrow = Schema.from_protos(fields).to_arrow()
    assert arrow.field("a").type == pa.int32()
    assert arrow.field("a").metadata[b"ARROW:extension:name"] == b"arrow.uuid"
    assert arrow.field("u").type == pa.uuid()


# ------------------------------------------------------------------------------------------------- untrusted schemas


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (messages(("a", 1, 0, "int8"), ("s", 0, -1, "struct")), "precedes its parent"),
        (messages(("a", 0, 0, "int8")), "precedes its parent"),
        (messages(("a", 0, 7, "int8")), "precedes its parent"),
        (messages(("a", 0, -2, "int8")), "precedes its parent"),
        (messages(("a", 0, -1, "int8"), ("b", 0, -1, "int8")), "'b'.*id of column 'a'"),
        (messages(("a", -1, -1, "int8")), "negative"),
        (messages(("a", 0, -1, "int8"), ("b", 1, 0, "int8")), "child of column 'a', which cannot have children"),
        (messages(("a", 0, -1, "list")), "child fields .expected 1, found 0"),
        (messages(("a", 0, -1, "list"), ("i", 1, 0, "int8"), ("j", 2, 0, "int8")), "child fields .expected 1, found 2"),
        (messages(("a", 0, -1, "list.struct"), ("i", 1, 0, "int8")), "cannot store int8"),
        (messages(("a", 0, -1, "fixed_size_list:struct:2"), ("i", 1, 0, "int8")), "cannot store int8"),
        (messages(("a", 0, -1, "map"), ("e", 1, 0, "struct"), ("k", 2, 1, "int8")), "cannot store struct"),
        (messages(("a", 0, -1, "fixed_size_list:int8:0")), "size"),
        (messages(*[(f"s{i}", i, i - 1, "struct") for i in range(65)]), "deeper than 64"),
        (messages(*[(f"s{i}", i, i - 1, "struct") for i in range(64)], ("x", 64, 63, "int8")), "deeper than 64"),
    ],
)
def test_invalid_trees_raise(fields, text):
    with pytest.raises(CorruptFileError, match=text) as caught:
        Schema.from_protos(fields, path="some/file")
    assert caught.value.path == "some/file"


def test_non_nullable_null_fields_are_read():
    fields = messages(("s", 0, -1, "struct"), ("n", 1, 0, "null"), ("m", 2, -1, "null"))
    for field in fields:
        field.nullable = False
    schema = Schema.from_protos(fields)
    for arrow in (schema.to_arrow(), schema.to_storage_arrow()):
        assert arrow.field("m").type == pa.null() and not arrow.field("m").nullable
        assert not arrow.field("s").type.field(0).nullable
    assert Schema.from_arrow(schema.to_arrow()).to_protos()[2].nullable is False


def test_encoding_numbers_are_preserved():
    (field,) = messages(("a", 0, -1, "int8"))
    field.encoding = 77
    assert Schema.from_protos([field]).to_protos() == [field]


def test_64_levels_are_accepted():
    schema = Schema.from_protos(messages(*[(f"s{i}", i, i - 1, "struct") for i in range(64)]))
    assert len(list(schema.walk())) == 64
    assert schema.to_arrow().field(0).type.num_fields == 1


def test_unknown_type_names_column_and_type():
    with pytest.raises(UnsupportedFeatureError, match=r"'b'.*'tensor:7'") as caught:
        Schema.from_protos(messages(("a", 0, -1, "int8"), ("b", 1, -1, "tensor:7")), path="m")
    assert (caught.value.column, caught.value.path) == ("b", "m")


@given(st.lists(st.tuples(st.integers(-2, 6), st.integers(-2, 6), st.sampled_from(["struct", "list", "int8", "?"]))))
def test_any_list_of_fields_parses_or_is_refused(rows):
    fields = messages(*[(f"f{i}", i, parent, kind) for i, parent, kind in rows])
    try:
        schema = Schema.from_protos(fields)
    except (CorruptFileError, UnsupportedFeatureError):
        return
    assert schema.ids() == {i for i, _, _ in rows}
    schema.to_arrow()


# --------------------------------------------------------------------------------------------------------- look-up


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a", ["a"]),
        ("a.b.c", ["a", "b", "c"]),
        ("`a.b`", ["a.b"]),
        ("x.`a.b`.c", ["x", "a.b", "c"]),
        ("`a``b`", ["a`b"]),
    ],
)
def test_field_paths_are_parsed_and_formatted(path, names):
    assert parse_path(path) == names
    assert format_path(names) == path


@pytest.mark.parametrize("path", ["", ".", "a.", ".a", "a..b", "`a", "`a`b", "a.`b", "``"])
def test_invalid_field_paths_raise(path):
    with pytest.raises(InvalidInputError):
        parse_path(path)


@given(st.lists(st.text("ab.`", min_size=1, max_size=4), min_size=1, max_size=3))
def test_field_paths_round_trip(names):
    assert parse_path(format_path(names)) == names


def test_fields_are_found_by_path():
    schema = Schema.from_arrow(NESTED)
    assert schema.field("point.y").id == 3
    assert schema.field("track.item.x").id == 8
    assert schema.field("`point`.`x`").id == 2
    for path in ("Point", "point.z", "point.x.y", "nope", "id.x"):
        assert schema.field(path) is None
    assert schema.field_case_insensitive("POINT.X").id == 2
    assert schema.field_case_insensitive("nope") is None
    two = Schema.from_arrow(pa.schema([("a", pa.int8()), ("A", pa.int8())]))
    assert two.field_case_insensitive("A").id == 1
    assert Schema.from_arrow(pa.schema([("aB", pa.int8()), ("Ab", pa.int8())])).field_case_insensitive("AB") is None


# -------------------------------------------------------------------------------------------------- changed schemas


def ids(schema):
    return [field.id for field in schema.walk()]


def test_projection_keeps_ids_and_the_requested_order():
    schema = Schema.from_arrow(NESTED)
    assert ids(schema.project(["tags", "id"])) == [4, 5, 0]
    assert ids(schema.project(["point.y"])) == [1, 3]
    assert ids(schema.project(["point.y", "id", "point.x"])) == [1, 2, 3, 0]
    assert ids(schema.project(["track.item.y"])) == [6, 7, 9]
    assert ids(schema.project(["point.y", "point"])) == ids(schema.project(["point"])) == [1, 2, 3]
    assert schema.project([]).fields == ()
    assert schema.project(["track.item.y"]).field("track").data_type == pa.list_(pa.struct([("y", pa.int32())]))
    assert schema.project(["id"]).metadata == schema.metadata
    with pytest.raises(ColumnNotFoundError, match=r"point\.z"):
        schema.project(["point.z"])


def test_projection_by_id_keeps_the_order_of_the_schema():
    schema = Schema.from_arrow(NESTED)
    assert ids(schema.project_ids([5, 0])) == [0, 4, 5]
    assert ids(schema.project_ids([8])) == [6, 7, 8]


def test_without_removes_fields_and_empty_parents():
    schema = Schema.from_arrow(NESTED)
    assert ids(schema.without({0, 3})) == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert ids(schema.without({2, 3})) == [0, 4, 5, 6, 7, 8, 9, 10]


def test_merge_adds_new_fields():
    schema = Schema.from_arrow(NESTED)
    more = pa.schema([pa.field("point", pa.struct([("x", pa.float64()), ("z", POINT)])), pa.field("new", pa.int8())])
    merged = schema.merge(more)
    assert merged.field("point.z.y").id == 13
    assert merged.field("point.z").parent_id == 1
    assert merged.field("new").id == 14
    assert ids(merged)[:4] == [0, 1, 2, 3]
    assert Schema.from_protos(merged.to_protos(), merged.metadata) == merged
    with pytest.raises(InvalidSchemaError, match="'id'"):
        schema.merge(pa.schema([("id", pa.utf8())]))


def test_replace_field_changes_a_copy():
    schema = Schema.from_arrow(NESTED)
    from dataclasses import replace

    renamed = schema.replace_field(replace(schema.field("point.x"), name="east"))
    assert renamed.field("point.east").id == 2
    assert renamed.to_arrow().field("point").type.field(0).name == "east"
    assert schema.to_arrow().field("point").type.field(0).name == "x"


def test_key_columns_are_ordered_by_position():
    fields = [
        pa.field("a", pa.int8(), False, {"lance-schema:unenforced-primary-key": "true"}),
        pa.field("b", pa.int8(), False, {"lance-schema:unenforced-primary-key:position": "2"}),
        pa.field("c", pa.int8(), False, {"lance-schema:unenforced-primary-key:position": "1"}),
        pa.field("d", pa.int8(), True, {"lance-schema:unenforced-clustering-key:position": "1"}),
    ]
    schema = Schema.from_arrow(pa.schema(fields))
    assert [field.name for field in schema.primary_key()] == ["c", "b", "a"]
    assert [field.name for field in schema.clustering_key()] == ["d"]


def test_packed_structs_and_blobs_are_recognized():
    packed = Schema.from_arrow(pa.schema([TYPE_CASES["struct packed"].field("p"), TYPE_CASES["blob"].field("b")]))
    assert packed.field("p").is_packed and not packed.field("b").is_packed
    assert packed.field("b").is_blob and not packed.field("p").is_blob
    plain = pa.schema([pa.field("p", POINT, metadata={"packed": "false"}), ("b", pa.large_binary())])
    assert not any(field.is_packed or field.is_blob for field in Schema.from_arrow(plain).walk())


def test_fields_of_a_blob_description_have_no_ids() -> None:
    """Data files of 2.2 describe a blob by fields that follow it, all with the id -1."""
    metadata = {"lance-encoding:blob": b"true"}
    blob = file_pb2.Field(name="b", id=1, parent_id=-1, logical_type="struct", metadata=metadata)
    parts = [file_pb2.Field(name=name, id=-1, parent_id=-1, logical_type="uint64") for name in ("position", "size")]
    after = file_pb2.Field(name="a", id=2, parent_id=-1, logical_type="int8")
    protos = [blob, *parts, after]
    schema = Schema.from_protos(protos)
    assert [[child.name for child in field.children] for field in schema.fields] == [["position", "size"], []]
    assert set(schema.by_id) == {1, 2} and schema.path_of(1) == "b"
    assert [message.name for message in schema.to_protos()] == ["b", "position", "size", "a"]
    with pytest.raises(CorruptFileError, match="negative"):
        Schema.from_protos([after, *parts])


def test_related_ids_are_those_of_ancestors_and_descendants() -> None:
    inner = pa.struct({"a": pa.int32(), "b": pa.list_(pa.int32())})
    schema = Schema.from_arrow(pa.schema({"x": pa.int32(), "s": pa.struct({"t": inner, "u": pa.int32()})}))
    names = {schema.path_of(field.id): field.id for field in schema.walk()}
    related = schema.related_ids([names["s.t"]])
    assert related == {names[path] for path in ("s", "s.t", "s.t.a", "s.t.b", "s.t.b.item")}
    assert schema.related_ids([names["s.u"]]) == {names["s"], names["s.u"]}
    assert schema.related_ids([99]) == {99}
    assert schema.related_ids([]) == set()


def test_equal_messages_are_parsed_once():
    message = file_pb2.Schema(fields=Schema.from_arrow(pa.schema({"a": pa.int64()})).to_protos())
    first, again = (Schema.from_bytes(message.SerializeToString()) for _ in range(2))
    assert first is again
    message.metadata["k"] = b"v"
    assert Schema.from_bytes(message.SerializeToString()).metadata == {"k": b"v"}


def test_derived_values_are_computed_once_and_not_pickled():
    schema = Schema.from_arrow(pa.schema({"a": pa.int64()}))
    assert schema.derive("key", lambda: [1]) is schema.derive("key", lambda: [2])
    copy = pickle.loads(pickle.dumps(schema))
    assert copy == schema
    assert copy.derive("key", lambda: [3]) == [3]


def test_the_number_of_derived_values_is_bounded():
    schema = Schema.from_arrow(pa.schema({"a": pa.int64()}))
    first = schema.derive(0, list)
    for key in range(1, 1000):
        schema.derive(key, list)
    assert schema.derive(0, list) is not first
