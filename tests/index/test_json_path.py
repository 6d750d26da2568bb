"""JSON indexes: values at a path, targets of several kinds, files of both libraries."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lancetable.format.index import IndexMetadata
from lancetable.index.json_path import KIND, JsonPath
from lancetable.index.kind import kind_named
from lancetable.index.queries import AtJsonPath, Contains, IndexQuery, IsIn, IsNull, Range
from lancetable.index.segments import SegmentFiles, index_segments
from lancetable.ops.index.segment_builder import commit_segments
from lancetable.proto import index_pb2
from tests.index import indexed_tables as tables
from tests.index.segment_files import ListedMapping, field_of, replace_index, writer_of

lance = pytest.importorskip("lance")

STABLE = [False, True]
TARGETS = ["BTREE", "BITMAP", "ZONEMAP"]
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [3, 1, 0, -5, 1, 2**63 - 1, -(2**63), 7],
    pa.float64(): [1.5, 2, 0, -1.25, 2, 1e300, 2**64, 7],
    pa.string(): ["a", "b", "", "ä", "b", "true", "1", "zz"],
    pa.bool_(): [True, False, True, True, False, False, True, True],
}
GETTERS = {pa.int64(): "int", pa.float64(): "float", pa.string(): "string", pa.bool_(): "bool"}
OTHERS: list[Any] = [None, "null", "{}", '{"x": null}', "7", '["x"]', '{"y": 1}']
"""Documents without a value at the path x."""


def documents_of(values: list[Any]) -> list[str | None]:
    return [*OTHERS[:3], *(json.dumps({"x": value, "z": [1]}) for value in values), *OTHERS[3:]]


def queries_of(values: list[Any], data_type: pa.DataType) -> list[IndexQuery]:
    array = pa.array([float(value) for value in values] if data_type == pa.float64() else values, data_type)
    found: list[IndexQuery] = [IsNull("v"), IsIn("v", array[:1]), IsIn("v", array[2:4])]
    if data_type != pa.bool_():
        found += [
            Range("v", array[1]),
            Range("v", upper=array[1], includes_upper=False),
            Range("v", array[2], array[0]),
        ]
    return found


def write_table(path: Path, documents: list[Any], stable: bool = False) -> lancetable.LanceDataset:
    table = pa.table({"id": range(len(documents)), "v": pa.array(documents, pa.json_())})
    lance.write_dataset(table, str(path), data_storage_version="2.2", enable_stable_row_ids=stable, max_rows_per_file=6)
    return lancetable.dataset(str(path))


def batches_of(dataset: lancetable.LanceDataset, kind: JsonPath, ids: Any = None) -> Iterable[pa.RecordBatch]:
    stores_ids = kind.stores_row_ids(kind.version_for(stable_row_ids=dataset.has_stable_row_ids))
    return tables.batches_of(dataset, tables.row_column_of(dataset, stores_ids), ids)


def build(dataset: lancetable.LanceDataset, target: str, path: str = "x", **parameters: Any) -> lancetable.LanceDataset:
    options = {"path": path, "target_index_type": target, "target_index_parameters": parameters}
    kind = KIND.for_options(options)
    name, writer = writer_of(dataset)
    details = kind.build(writer, field_of(dataset), batches_of(dataset, kind), options)
    return replace_index(dataset, kind, name, writer, details.SerializeToString())


def create_by_pylance(path: Path, target: str, json_path: str = "x") -> lancetable.LanceDataset:
    from lance.indices import IndexConfig

    config = IndexConfig(index_type="json", parameters={"target_index_type": target.lower(), "path": json_path})
    lance.dataset(str(path)).create_scalar_index("v", config, name="v_idx")
    return lancetable.dataset(str(path))


def assert_answers(
    dataset: lancetable.LanceDataset, query: IndexQuery, data_type: pa.DataType, values: list[Any]
) -> None:
    """Check the answer for the value of each row, which is None for rows without a value."""
    (segment,) = tables.segments(dataset)
    wrapped = AtJsonPath("v", "x", data_type, query)
    assert segment.answers(wrapped)
    result = segment.search(wrapped)
    rows = dataset.to_table(columns=["id"], with_row_address=True)["_rowaddr"].to_pylist()
    if data_type == pa.float64():
        values = [None if value is None else float(value) for value in values]
    true, null = tables.answer(query, rows, values)
    if segment.kind is not None and segment.kind.plan_name != "ZoneMap":
        assert (set(result.true), set(result.null)) == (true, null), query
    else:
        assert set(result.true) >= true, query


def assert_pylance_answers(dataset: lancetable.LanceDataset, query: IndexQuery, data_type: pa.DataType) -> None:
    sql = tables.sql_of(query)
    assert sql is not None
    if data_type == pa.bool_() and isinstance(query, IsIn):
        sql = f"v is {query.values[0]}"
    elif "-9223372036854775808" in sql:
        return
    sql = sql.replace("v ", f"json_get_{GETTERS[data_type]}(v, 'x') ")
    theirs = lance.dataset(dataset.uri)
    found = theirs.to_table(columns=["id"], filter=sql)["id"].to_pylist()
    scanned = theirs.scanner(columns=["id"], filter=sql, use_scalar_index=False).to_table()["id"].to_pylist()
    assert sorted(found) == sorted(scanned), sql
    assert "Json(" in theirs.scanner(filter=sql).explain_plan(), sql


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("data_type", VALUES, ids=str)
def test_indexes_of_both_libraries_answer_as_the_documents(tmp_path: Path, target: str, data_type: pa.DataType) -> None:
    values = VALUES[data_type]
    in_rows = [*[None] * 3, *values, *[None] * 4]
    for stable in STABLE:
        if stable and target != "BITMAP":
            continue
        path = tmp_path / str(stable)
        write_table(path, documents_of(values), stable)
        theirs = create_by_pylance(path, target)
        for query in queries_of(values, data_type):
            assert_answers(theirs, query, data_type, in_rows)
        ours = build(theirs, target)
        for query in queries_of(values, data_type):
            assert_answers(ours, query, data_type, in_rows)
            assert_pylance_answers(ours, query, data_type)


@pytest.mark.parametrize("stable", STABLE)
def test_trigrams_of_strings_are_indexed(tmp_path: Path, stable: bool) -> None:
    values = ["hello world", "world", "abc"]
    dataset = build(write_table(tmp_path, documents_of(values), stable), "NGRAM")
    query = AtJsonPath("v", "x", pa.string(), Contains("v", "world"))
    (segment,) = tables.segments(dataset)
    assert segment.answers(query)
    assert segment.kind is not None
    assert segment.kind.plan_name == "NGram"
    assert len(segment.search(query).true) == 2
    sql = "contains(json_get_string(v, 'x'), 'world')"
    theirs = lance.dataset(str(tmp_path))
    assert theirs.to_table(columns=["id"], filter=sql)["id"].to_pylist() == [3, 4]
    assert "@v_idx(NGram)" in theirs.scanner(filter=sql).explain_plan()


@pytest.mark.parametrize("target", ["BTREE", "ZONEMAP", "BLOOMFILTER"])
def test_targets_with_addresses_are_refused_for_stable_row_ids(target: str) -> None:
    """pylance 14.0.2 refuses a BTREE, and returns wrong rows for the others."""
    kind = KIND.for_options({"path": "x", "target_index_type": target})
    with pytest.raises(UnsupportedFeatureError, match="stable row ids"):
        kind.version_for(stable_row_ids=True)
    assert kind.version_for(stable_row_ids=False) == 0


def test_a_bloom_filter_is_not_used(tmp_path: Path) -> None:
    """Its file does not contain the type of the values."""
    write_table(tmp_path, documents_of([1, 2]))
    (segment,) = tables.segments(create_by_pylance(tmp_path, "BLOOMFILTER"))
    assert not segment.answers(AtJsonPath("v", "x", pa.int64(), IsIn("v", pa.array([1]))))


@pytest.mark.parametrize(
    ("values", "data_type"),
    [
        ([1, 2], pa.int64()),
        ([1.5, 2], pa.float64()),
        ([2.0, 3.0], pa.float64()),
        ([2**63, 1], pa.float64()),
        (["a", None], pa.string()),
        ([None, None], pa.string()),
        ([], pa.string()),
        ([None, True], pa.bool_()),
    ],
)
def test_the_first_value_determines_the_type(tmp_path: Path, values: list[Any], data_type: pa.DataType) -> None:
    write_table(tmp_path, documents_of(values))
    theirs = create_by_pylance(tmp_path, "BITMAP")
    for dataset in (theirs, build(theirs, "BITMAP")):
        (segment,) = tables.segments(dataset)
        accepted = [t for t in GETTERS if segment.answers(AtJsonPath("v", "x", t, IsNull("v")))]
        assert accepted == [data_type]
        other = next(t for t in GETTERS if t != data_type)
        with pytest.raises(InvalidInputError, match="stores values of type"):
            segment.search(AtJsonPath("v", "x", other, IsNull("v")))


@pytest.mark.parametrize("values", [[1, 2.5], [1, "a"], ["a", 1], [True, 1], [1, True], [1, [1]], [[1]], [{"a": 1}]])
def test_values_of_several_types_are_refused(tmp_path: Path, values: list[Any]) -> None:
    dataset = write_table(tmp_path, documents_of(values))
    with pytest.raises(InvalidInputError, match="JSON path 'x'"):
        build(dataset, "BITMAP")
    with pytest.raises(ValueError, match="JSON"):
        create_by_pylance(tmp_path, "BITMAP")


@pytest.mark.parametrize("path", ["x.y", "$.x.y", 'x["y"]', "a[1]", "$.a[last]", "x.none"])
def test_values_at_paths_are_those_of_pylance(tmp_path: Path, path: str) -> None:
    documents = [json.dumps(document) for document in ({"x": {"y": 4}, "a": [1, 2]}, {"x": 3, "a": 5}, {"a": []}, [1])]
    write_table(tmp_path, documents)
    theirs = create_by_pylance(tmp_path, "BITMAP", path)

    def content(dataset: lancetable.LanceDataset) -> Any:
        (segment,) = tables.segments(dataset)
        return segment.files.open("bitmap_page_lookup.lance").read(["keys", "bitmaps"]).to_pydict()

    assert content(build(theirs, "BITMAP", path)) == content(theirs)
    # json_get selects a member by its whole name, so the index would give another answer than a scan.
    (segment,) = tables.segments(theirs)
    assert not segment.answers(AtJsonPath("v", path, pa.int64(), IsNull("v")))


def test_only_queries_of_the_path_are_answered(tmp_path: Path) -> None:
    dataset = build(write_table(tmp_path, documents_of([1, 2])), "BITMAP")
    (segment,) = tables.segments(dataset)
    assert segment.answers(AtJsonPath("v", "x", pa.int64(), IsNull("v")))
    assert not segment.answers(AtJsonPath("v", "y", pa.int64(), IsNull("v")))
    assert not segment.answers(AtJsonPath("v", "x", pa.int64(), Contains("v", "abc")))
    assert not segment.answers(IsNull("v"))


@pytest.mark.parametrize("target", TARGETS)
def test_segments_are_merged_and_mapped(tmp_path: Path, target: str) -> None:
    values = VALUES[pa.int64()]
    in_rows = [*[None] * 3, *values, *[None] * 4]
    dataset = build(write_table(tmp_path, documents_of(values)), target)
    (segment,) = tables.segments(dataset)
    assert isinstance(segment.kind, JsonPath)
    name, writer = writer_of(dataset)
    in_old = [(segment.open(), lambda rows: rows >> np.uint64(32) == 0)]
    details = segment.kind.merge(writer, field_of(dataset), in_old, batches_of(dataset, segment.kind, [1, 2]), {})
    dataset = replace_index(dataset, segment.kind, name, writer, details.SerializeToString())
    for query in queries_of(values, pa.int64()):
        assert_answers(dataset, query, pa.int64(), in_rows)
        assert_pylance_answers(dataset, query, pa.int64())
    if target != "ZONEMAP":
        (segment,) = tables.segments(dataset)
        assert isinstance(segment.kind, JsonPath)
        name, writer = writer_of(dataset)
        rows = np.array(list(itertools.chain(range(6), range(1 << 32, 6 + (1 << 32)))), np.uint64)
        mapping = ListedMapping(rows, np.roll(rows, 6))
        assert segment.kind.remap(writer, segment.open(), mapping)
        dataset = replace_index(dataset, segment.kind, name, writer, segment.files.details)
        (mapped,) = tables.segments(dataset)
        query = AtJsonPath("v", "x", pa.int64(), IsIn("v", pa.array([3])))
        assert set(mapped.search(query).true) == {3 + (1 << 32)}


def test_segments_with_different_paths_are_not_merged(tmp_path: Path) -> None:
    dataset = write_table(tmp_path, documents_of([1]))
    opened = []
    for path in ("x", "y"):
        dataset = build(dataset, "BITMAP", path)
        (segment,) = tables.segments(dataset)
        opened.append((segment.open(), lambda rows: rows >= 0))
    _, writer = writer_of(dataset)
    assert segment.kind is not None
    with pytest.raises(InvalidInputError, match="differ"):
        segment.kind.merge(writer, field_of(dataset), opened, [], {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "x"}, "target_index_type"),
        ({"target_index_type": "BITMAP"}, "path"),
        ({"path": 3, "target_index_type": "BITMAP"}, "path"),
        ({"path": "x[", "target_index_type": "BITMAP"}, "invalid JSON path"),
        ({"path": "x", "target_index_type": "BITMAP", "target_index_parameters": "{"}, "not JSON"),
        ({"path": "x", "target_index_type": "BITMAP", "target_index_parameters": "[]"}, "object"),
        ({"path": "x", "target_index_type": "BITMAP", "target_index_parameters": {"a": 1}}, "'a'"),
    ],
)
def test_invalid_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    dataset = write_table(tmp_path, documents_of([1]))
    with pytest.raises(InvalidInputError, match=message):
        kind = KIND.for_options(options)
        kind.build(writer_of(dataset)[1], field_of(dataset), batches_of(dataset, kind), options)


def test_unknown_targets_are_refused_or_not_used(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="wrong"):
        KIND.for_options({"path": "x", "target_index_type": "wrong"})
    message = index_pb2.JsonIndexDetails(path="x")
    message.target_details.type_url = "/lance.index.pb.NewIndexDetails"
    entry = IndexMetadata(uuid.uuid4(), "i").with_details(KIND.type_url, message.SerializeToString())
    files = SegmentFiles(write_table(tmp_path, documents_of([1])).table_version, entry)
    assert KIND.for_segment(files) is None
    with pytest.raises(CorruptFileError):
        KIND.for_segment(replace(files, metadata=entry.with_details(KIND.type_url, b"\x0a\xff")))
    with pytest.raises(InvalidInputError, match="target_index_type"):
        KIND.version_for(stable_row_ids=False)


def test_an_index_with_malformed_settings_can_be_dropped(tmp_path: Path) -> None:
    dataset = build(write_table(tmp_path / "t", documents_of([1, 2, 3])), "BTREE")
    (segment,) = index_segments(dataset.table_version)
    entry = segment.files.metadata
    commit_segments(dataset.table_version, [entry.with_details(entry.type_url, b"\xff\xff")], [entry])
    damaged = lancetable.dataset(dataset.uri)
    for use in (damaged.describe_indices, lambda: damaged.to_table(filter="json_get_int(v, 'x') = 1")):
        with pytest.raises(CorruptFileError, match=f"index '{entry.name}': malformed settings; drop the index"):
            use()
    damaged.drop_index(entry.name)
    assert damaged.describe_indices() == []
    assert damaged.to_table(filter="json_get_int(v, 'x') = 1").num_rows == 1


def test_other_columns_are_refused(tmp_path: Path) -> None:
    field = field_of(tables.write_table(tmp_path, pa.array(["{}"])))
    with pytest.raises(UnsupportedFeatureError, match="JSON column"):
        KIND.check_field(field, "v")
    assert kind_named("json") is KIND
