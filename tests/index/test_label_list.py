"""LABEL_LIST indexes: files of both libraries, merges, and mapped rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.index.bitmap import FILE_NAME, write_bitmaps
from lancetable.index.label_list import KIND
from lancetable.index.queries import HasLabels, IsNull
from tests.index import indexed_tables as tables
from tests.index.segment_files import (
    DELETED,
    ListedMapping,
    build_index,
    field_of,
    replace_index,
    writer_of,
)

lance = pytest.importorskip("lance")

FORMS = list(itertools.product([False, True], ["2.0", "2.1", "2.2"]))
INTEGERS = [kind for kind in tables.NUMBERS if pa.types.is_integer(kind)]
LABEL_TYPES = [*tables.ORDERED_TYPES, pa.dictionary(pa.int32(), pa.string())]


def lists_of_type(label_type: pa.DataType, n: int, seed: int = 0) -> pa.Array:
    """Return lists of zero to four labels, which may repeat or be null; some lists are null."""
    rng = np.random.default_rng(seed)
    plain = label_type.value_type if pa.types.is_dictionary(label_type) else label_type
    labels = tables.values_of_type(plain, 4 * n, seed)
    ends = np.append(0, np.cumsum(rng.integers(0, 5, n)))
    nulls = pa.array(rng.random(n) < 0.15)
    labels = labels[: ends[-1]]
    if pa.types.is_dictionary(label_type):
        labels = labels.dictionary_encode()
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), labels, mask=nulls)


def queries_of(lists: pa.Array) -> list[HasLabels]:
    labels = lists.flatten()
    if pa.types.is_dictionary(labels.type):
        labels = labels.dictionary_decode()
    labels = labels.drop_null()
    if pa.types.is_floating(labels.type):
        labels = labels.filter(pa.array([not math.isnan(label) for label in labels.to_pylist()]))
    chosen = [labels[start : start + size] for start, size in ((0, 1), (5, 2), (9, 3), (20, 30))]
    chosen += [pa.concat_arrays([chosen[0], pa.nulls(1, labels.type)]), pa.nulls(1, labels.type)]
    chosen.append(pa.array([tables.value_number(labels.type, 9999)], labels.type))
    return [HasLabels("v", values, all_of_them) for values in chosen for all_of_them in (False, True)]


def selects(query: HasLabels, labels: list[Any] | None) -> bool | None:
    if labels is None:
        return None
    found = [value in labels for value in query.values.to_pylist()]
    return all(found) if query.all_of_them else any(found)


def assert_answers(dataset: lancetable.LanceDataset, queries: Iterable[HasLabels]) -> None:
    table = dataset.to_table(columns=["v"], with_row_address=True)
    rows, lists = table["_rowaddr"].to_pylist(), table["v"].to_pylist()
    for query in queries:
        for segment in tables.segments(dataset):
            expected = [(row, selects(query, labels)) for row, labels in zip(rows, lists, strict=True)]
            covered = {row for row in rows if row >> 32 in segment.fragments}
            result = segment.search(query)
            assert set(result.true) & covered == {row for row, found in expected if found} & covered, query
            assert set(result.null) & covered == {row for row, found in expected if found is None} & covered, query


def create_by_pylance(path: Path) -> None:
    lance.dataset(str(path)).create_scalar_index("v", "LABEL_LIST", name="v_idx")


# Types of literals that pylance does not convert to the type of the labels.
CAST_TYPES = {
    **{kind: ("UInt" if pa.types.is_unsigned_integer(kind) else "Int") + str(kind.bit_width) for kind in INTEGERS},
    pa.binary(): "Binary",
    pa.large_binary(): "LargeBinary",
    pa.binary(4): "FixedSizeBinary(4)",
}


def literal(value: pa.Scalar) -> str:
    text = tables.sql_literal(value) if value.is_valid else "NULL"
    cast_type = CAST_TYPES.get(value.type)
    return text if cast_type is None else f"arrow_cast({text}, '{cast_type}')"


def assert_pylance_answers(dataset: lancetable.LanceDataset, queries: Iterable[HasLabels]) -> None:
    theirs = lance.dataset(dataset.uri)
    for query in queries:
        labels = ", ".join(map(literal, query.values))
        sql = f"array_has_{'all' if query.all_of_them else 'any'}(v, [{labels}])"
        for predicate in (sql, f"NOT {sql}"):
            found = theirs.to_table(columns=["id"], filter=predicate)["id"].to_pylist()
            scanned = theirs.scanner(columns=["id"], filter=predicate, use_scalar_index=False).to_table()
            assert sorted(found) == sorted(scanned["id"].to_pylist()), predicate
        assert "(LabelList)" in theirs.scanner(filter=sql).explain_plan(), sql


@pytest.mark.parametrize("label_type", LABEL_TYPES, ids=str)
def test_indexes_of_pylance_answer_as_the_table(tmp_path: Path, label_type: pa.DataType) -> None:
    lists = lists_of_type(label_type, 60)
    for number, (stable, version) in enumerate(FORMS):
        path = tmp_path / str(number)
        tables.write_table(path, lists, version=version, stable=stable, fragments=3).delete("id % 11 = 3")
        create_by_pylance(path)
        assert_answers(lancetable.dataset(str(path)), queries_of(lists))


@pytest.mark.parametrize("label_type", LABEL_TYPES, ids=str)
def test_written_indexes_are_used_by_pylance(tmp_path: Path, label_type: pa.DataType) -> None:
    lists = lists_of_type(label_type, 60)
    queries = queries_of(lists)
    for number, (stable, version) in enumerate(FORMS):
        path = tmp_path / str(number)
        dataset = tables.write_table(path, lists, version=version, stable=stable, fragments=3)
        dataset.delete("id % 11 = 3")
        dataset = build_index(dataset, KIND)
        assert_answers(dataset, queries)
        assert_pylance_answers(dataset, queries[number :: len(FORMS)])


@pytest.mark.parametrize(
    "lists",
    [
        pa.array([["a", "b"], None, [], ["b"]], pa.large_list(pa.string())),
        pa.array([["a", "b"], None, [], ["b"]], pa.list_(pa.large_string())),
        pa.array([[], None], pa.list_(pa.string())),
        pa.array([None, None], pa.list_(pa.string())),
        pa.array([], pa.list_(pa.string())),
    ],
)
def test_other_lists_can_be_indexed(tmp_path: Path, lists: pa.Array) -> None:
    dataset = build_index(tables.write_table(tmp_path, lists), KIND)
    labels = pa.array(["b"], lists.type.value_type)
    assert_answers(dataset, [HasLabels("v", labels)])
    if len(lists) and lists.null_count < len(lists):
        assert_pylance_answers(dataset, [HasLabels("v", pa.array(["b"]))])


def test_lists_of_nulls_can_be_indexed(tmp_path: Path) -> None:
    lists = pa.array([[None], None, [], [None, None]], pa.list_(pa.null()))
    dataset = build_index(tables.write_table(tmp_path, lists), KIND)
    assert_answers(dataset, [HasLabels("v", pa.nulls(1))])


def test_sets_of_rows_are_those_of_pylance(tmp_path: Path) -> None:
    def read(dataset: lancetable.LanceDataset) -> tuple[Any, ...]:
        (segment,) = tables.segments(dataset)
        reader = segment.files.open(FILE_NAME)
        table = reader.read(["keys", "bitmaps"])
        return table["keys"].to_pylist().__repr__(), table["bitmaps"], reader.text("lance:index_stats"), reader.schema

    for number, label_type in enumerate(LABEL_TYPES):
        path = tmp_path / str(number)
        tables.write_table(path, lists_of_type(label_type, 100))
        create_by_pylance(path)
        dataset = lancetable.dataset(str(path))
        theirs = read(dataset)
        assert read(build_index(dataset, KIND)) == theirs


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("label_type", [pa.string(), pa.int32(), pa.float64(), LABEL_TYPES[-1]], ids=str)
def test_merged_segments_answer_as_the_table(tmp_path: Path, label_type: pa.DataType, stable: bool) -> None:
    lists = lists_of_type(label_type, 80)
    dataset = tables.write_table(tmp_path, lists, stable=stable, fragments=4)
    dataset = tables.commit(dataset, *(tables.build(dataset, "LABEL_LIST", [fragment]) for fragment in (0, 1)))
    assert_answers(dataset, queries_of(lists))
    sources = [(segment.open(), lambda rows: np.ones(len(rows), np.bool_)) for segment in tables.segments(dataset)]
    new = tables.batches_of(dataset, tables.row_column_of(dataset, True), [2, 3])
    name, writer = writer_of(dataset)
    KIND.merge(writer, field_of(dataset), sources, new, {})
    dataset = replace_index(dataset, KIND, name, writer)
    assert_answers(dataset, queries_of(lists))
    assert_pylance_answers(dataset, queries_of(lists)[:4])


@pytest.mark.parametrize("label_type", [pa.string(), LABEL_TYPES[-1]], ids=str)
def test_rows_are_mapped_after_a_compaction(tmp_path: Path, label_type: pa.DataType) -> None:
    lists = lists_of_type(label_type, 60)
    dataset = build_index(tables.write_table(tmp_path, lists, fragments=1), KIND)
    (segment,) = tables.segments(dataset)
    mapping = ListedMapping(np.arange(60, dtype=np.uint64), np.arange(60, dtype=np.uint64)[::-1].copy())
    mapping.new[7] = DELETED
    name, writer = writer_of(dataset)
    assert KIND.remap(writer, segment.open(), mapping)
    (mapped,) = tables.segments(replace_index(dataset, KIND, name, writer))
    for query in queries_of(lists):
        before, after = segment.search(query), mapped.search(query)
        assert set(after.true) == {59 - row for row in before.true if row != 7}
        assert set(after.null) == {59 - row for row in before.null if row != 7}


def with_version_0(dataset: lancetable.LanceDataset) -> lancetable.LanceDataset:
    """Commit an index of version 0, as pylance wrote it until 0.36: without the rows of null lists."""
    (segment,) = tables.segments(build_index(dataset, KIND))
    name, writer = writer_of(dataset)
    file = segment.open().file
    write_bitmaps(writer, file.keys.stored_type, file.postings(lambda rows: (rows, np.ones(len(rows), np.bool_))))
    covered = [fragment.fragment_id for fragment in dataset.get_fragments()]
    return tables.commit(dataset, tables.entry_of(dataset, name, 0, covered, writer, (KIND.type_url, b"")))


LABELS_OF_ROWS = [["a"], None, [], ["b", "a", None], [None], None, ["b"], ["a", "a"]]
FILTERS = [
    "array_has(v, 'a')",
    "array_has_any(v, ['a', 'b'])",
    "array_has_all(v, ['a', 'b'])",
    "array_has(v, 'c')",
    "array_has(v, 'a') AND id > 2",
    "array_has(v, 'a') OR array_has(v, 'b')",
]


def assert_same_rows(dataset: lancetable.LanceDataset) -> None:
    for text in [*FILTERS, *(f"NOT ({text})" for text in FILTERS)]:
        options = {"columns": ["id"], "filter": text}
        scanned = dataset.scanner(**options, use_scalar_index=False).to_table()
        assert dataset.to_table(**options) == scanned, text
        assert dataset.count_rows(text) == len(scanned)


@pytest.mark.parametrize("stable", [False, True])
def test_version_0_selects_rows_that_are_checked(tmp_path: Path, stable: bool) -> None:
    dataset = tables.write_table(tmp_path, pa.array(LABELS_OF_ROWS), stable=stable)
    dataset = with_version_0(dataset)
    for text in FILTERS:
        assert "(LabelList)" in dataset.scanner(filter=text).explain_plan()
        assert "ScalarIndexQuery" not in dataset.scanner(filter=f"NOT ({text})").explain_plan()
    assert_same_rows(dataset)
    dataset.delete("id = 7")
    dataset.optimize.compact_files()
    (segment,) = tables.segments(dataset)
    assert (segment.files.metadata.index_version, len(segment.fragments)) == (0, 1)
    assert_same_rows(dataset)
    dataset.prewarm_index("v_idx")


def test_version_0_is_replaced_by_version_1_when_it_is_extended(tmp_path: Path) -> None:
    dataset = with_version_0(tables.write_table(tmp_path, pa.array(LABELS_OF_ROWS)))
    dataset.insert(dataset.to_table())
    dataset.optimize.optimize_indices()
    (segment,) = tables.segments(dataset)
    assert (segment.files.metadata.index_version, len(segment.fragments)) == (1, 3)
    assert "NOT([array_has" in dataset.scanner(filter="NOT array_has(v, 'a')").explain_plan()
    assert_same_rows(dataset)


def test_a_missing_set_of_null_lists_is_reported(tmp_path: Path) -> None:
    dataset = tables.write_table(tmp_path, pa.array([["a"]]))
    name, writer = writer_of(dataset)
    writer.write_file(FILE_NAME, pa.table({"keys": pa.array([], pa.string()), "bitmaps": pa.array([], pa.binary())}))
    (segment,) = tables.segments(replace_index(dataset, KIND, name, writer))
    with pytest.raises(CorruptFileError, match="label_list_nulls"):
        segment.search(HasLabels("v", pa.array(["a"])))


def test_other_queries_are_not_answered() -> None:
    assert not KIND.answers(IsNull("v"), b"")
    assert not KIND.answers(HasLabels("v", pa.array([], pa.string())), b"")
    assert KIND.answers(HasLabels("v", pa.array(["a"])), b"")


@pytest.mark.parametrize("values", [pa.array([1]), pa.array([[[1]]]), pa.array([[{"a": 1}]])])
def test_other_types_are_refused(tmp_path: Path, values: pa.Array) -> None:
    field = field_of(tables.write_table(tmp_path, values))
    with pytest.raises(UnsupportedFeatureError, match="LABEL_LIST"):
        KIND.check_field(field, "v")


def test_prewarming_reads_all_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (segment,) = tables.segments(build_index(tables.write_table(tmp_path, pa.array([["a"], None, [None]])), KIND))
    segment.open().prewarm()
    monkeypatch.setattr("lancetable.index.index_files.read_columns", None)
    assert len(segment.search(HasLabels("v", pa.array(["a", None]))).true) == 2
