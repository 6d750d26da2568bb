"""Extension and merging of index segments, compared with pylance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidInputError
from lancetable.indices import IndexConfig

KINDS = {"BTREE": "id", "BITMAP": "s", "LABEL_LIST": "tags", "NGRAM": "s", "ZONEMAP": "id", "BLOOMFILTER": "id"}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_indices_to_merge": 0},
    {"num_indices_to_merge": 1},
    {"num_indices_to_merge": 2},
    {"num_indices_to_merge": 9},
    {"index_names": ["btree"]},
    {"index_names": []},
    {"index_names": ["nope"]},
]


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table(
        {
            "id": ids,
            "s": [None if i % 7 == 0 else f"value {i % 5}" for i in ids],
            "tags": [["x", "y", "z"][: i % 4] for i in ids],
            "o": [i % 3 for i in ids],
        }
    )


def write(path: Path, *, stable: bool = False, kinds: Any = KINDS) -> str:
    ds = lancetable.write_dataset(rows(0, 90), str(path), max_rows_per_file=30, enable_stable_row_ids=stable)
    for kind in kinds:
        ds.create_scalar_index(KINDS[kind], kind, kind.lower())
    return str(path)


def coverage(uri: str) -> dict[str, list[list[int]]]:
    """Return the fragments of the segments of each index, as pylance reads them."""
    indexes = lance.dataset(uri).describe_indices()
    return {index.name: [sorted(segment.fragment_ids) for segment in index.segments] for index in indexes}


def check(uri: str) -> None:
    """Compare the answers of both libraries with and without indexes."""
    for predicate in (
        "id = 7",
        "id > 80",
        "s = 'value 1'",
        "s IS NULL",
        "contains(s, 'lue 2')",
        "array_has(tags, 'y')",
    ):
        found = [
            sorted(ds.scanner(columns=["id"], filter=predicate, use_scalar_index=use).to_table()["id"].to_pylist())
            for ds in (lance.dataset(uri), lancetable.dataset(uri))
            for use in (False, True)
        ]
        assert found == found[:1] * 4, (predicate, found, coverage(uri))


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_same_segments_are_written_as_by_pylance(tmp_path: Path, options: dict[str, Any], stable: bool) -> None:
    covered, versions = [], []
    for library in (lance, lancetable):
        uri = write(tmp_path / library.__name__, stable=stable)
        for start in (90, 100):
            ds = library.dataset(uri)
            ds.insert(rows(start, start + 10))
            ds.optimize.optimize_indices(**({"num_indices_to_merge": 0} if start == 90 else options))
        library.dataset(uri).optimize.optimize_indices(**options)
        check(uri)
        covered.append(coverage(uri))
        versions.append(library.dataset(uri).version)
    assert covered[0] == covered[1]
    assert versions[0] == versions[1]


def test_entries_of_removed_fragments_are_left_out(tmp_path: Path) -> None:
    uri = write(tmp_path / "t.lance")
    ds = lancetable.dataset(uri)
    ds.delete("id < 30")
    ds.insert(rows(90, 95))
    ds.optimize.optimize_indices()
    assert coverage(uri) == {kind.lower(): [[1, 2, 3]] for kind in KINDS}
    check(uri)


def test_merged_segments_keep_the_oldest_version_and_rebuilt_ones_have_the_newest(tmp_path: Path) -> None:
    ds = lancetable.dataset(write(tmp_path / "t.lance", kinds=["BTREE"]))
    ds.insert(rows(90, 95))
    ds.optimize.optimize_indices()
    assert ds.describe_indices()[0].segments[0].dataset_version == 1
    ds.optimize.optimize_indices(retrain=True)
    assert ds.describe_indices()[0].segments[0].dataset_version == 4


PARAMETERS = {
    "btree": {"zone_size": 16},
    "zonemap": {"rows_per_zone": 7},
    "bloomfilter": {"number_of_items": 10, "probability": 0.01},
}


@pytest.mark.parametrize("kind", PARAMETERS)
@pytest.mark.parametrize("options", [{}, {"num_indices_to_merge": 0}, {"num_indices_to_merge": 2}, {"retrain": True}])
def test_parameters_of_an_index_are_kept(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    ds = lancetable.write_dataset(rows(0, 90), str(tmp_path / "t.lance"), max_rows_per_file=30)
    ds.create_scalar_index("id", IndexConfig(kind, PARAMETERS[kind]))
    ds.insert(rows(90, 120))
    ds.optimize.optimize_indices(**options)
    for segment in ds.stats.index_stats("id_idx")["segments"]:
        expected = {name: value for name, value in PARAMETERS[kind].items() if name != "zone_size"}
        assert expected.items() <= segment.items()
        if kind == "btree":
            assert segment["num_pages"] in (-(-30 // 16), -(-90 // 16), -(-120 // 16))
    check(ds.uri)


def test_an_empty_index_is_filled(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows(0, 90), str(tmp_path / "t.lance"), max_rows_per_file=30)
    for kind, column in KINDS.items():
        ds.create_scalar_index(column, kind, kind.lower(), train=False)
    assert all(index.num_rows_indexed == 0 for index in ds.describe_indices())
    check(ds.uri)
    ds.optimize.optimize_indices()
    assert coverage(ds.uri) == {kind.lower(): [[0, 1, 2]] for kind in KINDS}
    check(ds.uri)


# --- old entries of rows that another segment covers


UPDATES = {
    "some rows": lambda ds: ds.update({"s": "'new'"}, where="id < 5"),
    "all rows of a fragment": lambda ds: ds.update({"s": "'new'"}, where="id < 30"),
    "rows, then a compaction": lambda ds: (
        ds.update({"s": "'new'"}, where="id < 5"),
        ds.optimize.compact_files(target_rows_per_fragment=40),
    ),
    "a column": lambda ds: (
        ds.merge_insert("id")
        .when_matched_update_all()
        .write_mode("rewrite_columns")
        .execute(pa.table({"id": [1, 2, 40], "s": ["new"] * 3}))
    ),
}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
@pytest.mark.parametrize("options", [{}, {"num_indices_to_merge": 0}, {"num_indices_to_merge": 1}], ids=str)
@pytest.mark.parametrize("update", UPDATES)
def test_no_segment_keeps_old_values_of_rows_that_another_one_covers(
    tmp_path: Path, update: str, options: dict[str, Any], stable: bool
) -> None:
    uri = write(tmp_path / "t.lance", stable=stable, kinds=["BITMAP", "NGRAM"])
    ds = lancetable.dataset(uri)
    ds.create_scalar_index("s", "BTREE", "another")
    ds.insert(rows(90, 100))
    ds.optimize.optimize_indices(num_indices_to_merge=0)
    UPDATES[update](ds)
    check(uri)
    ds.optimize.optimize_indices(**options)
    check(uri)
    live = {fragment.fragment_id for fragment in ds.get_fragments()}
    assert all({number for part in parts for number in part} >= live for parts in coverage(uri).values())


# --- changes between plan and commit


def test_work_that_is_committed_meanwhile_is_planned_again(tmp_path: Path) -> None:
    uri = write(tmp_path / "t.lance", kinds=["BTREE"])
    first, second = lancetable.dataset(uri), lancetable.dataset(uri)
    first.insert(rows(90, 100))
    second.checkout_latest()
    first.optimize.optimize_indices()
    second.optimize.optimize_indices()
    assert coverage(uri) == {"btree": [[0, 1, 2, 3]]}
    assert len({path.parent for path in (tmp_path / "t.lance" / "_indices").glob("*/*")}) == 2
    assert lancetable.dataset(uri).version == 4


def test_a_failed_build_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancetable.ops.index import optimize

    uri = write(tmp_path / "t.lance", kinds=["BTREE", "BITMAP"])
    ds = lancetable.dataset(uri)
    ds.insert(rows(90, 100))
    before = {path for path in (tmp_path / "t.lance").rglob("*") if path.is_file()}
    original, calls = optimize.merge_segments, []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("no more")
        return original(*arguments, **options)

    monkeypatch.setattr(optimize, "merge_segments", failing)
    with pytest.raises(RuntimeError, match="no more"):
        ds.optimize.optimize_indices()
    assert {path for path in (tmp_path / "t.lance").rglob("*") if path.is_file()} == before


def test_progress_of_builds_counts_the_rows(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows(0, 90), str(tmp_path / "t.lance"), max_rows_per_file=30)
    events: list[lancetable.IndexProgress] = []
    ds.create_scalar_index("id", "BTREE", progress_callback=events.append)
    assert (events[0].event, events[0].completed, events[0].total, events[0].unit) == ("start", 0, 90, "rows")
    assert (events[-1].event, events[-1].completed, events[-1].fraction) == ("complete", 90, 1.0)
    assert {event.stage for event in events} == {"load_data"}
    reports: list[Any] = []
    ds.insert(rows(90, 100))
    ds.optimize.optimize_indices(progress=reports.append)
    assert (reports[-1].what, reports[-1].num_rows, reports[-1].total_rows, reports[-1].done) == (
        "optimize_indices",
        10,
        10,
        True,
    )


def test_an_exception_of_the_progress_callback_cancels_the_build(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows(0, 90), str(tmp_path / "t.lance"), max_rows_per_file=30)

    def stop(event: lancetable.IndexProgress) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        ds.create_scalar_index("id", "BTREE", progress_callback=stop)
    assert not ds.has_index and not list((tmp_path / "t.lance").glob("_indices/*/*"))


@pytest.mark.parametrize("kind", ["BITMAP", "BTREE", "ZONEMAP"])
def test_the_type_of_values_in_documents_is_determined_by_the_first_value_that_is_not_null(
    tmp_path: Path, kind: str
) -> None:
    uri = str(tmp_path / "t.lance")
    ds = lancetable.write_dataset(documents([None] * 3), uri, data_storage_version="2.2")
    config = IndexConfig("json", {"path": "x", "target_index_type": kind})
    ds.create_scalar_index("j", config, "empty", train=False)
    ds.create_scalar_index("j", config, "nulls")
    ds.insert(documents([2.5, None]))
    ds.optimize.optimize_indices(num_indices_to_merge=0)
    ds.insert(documents([1, None, 7]))
    ds.optimize.optimize_indices(num_indices_to_merge=9)
    assert coverage(uri) == {"empty": [[0, 1, 2]], "nulls": [[0, 1, 2]]}
    for predicate, num_rows in (("= 1", 1), ("> 2", 2), ("IS NULL", 5)):
        filter = f"json_get_float(j, 'x') {predicate}"
        for ds in (lancetable.dataset(uri), lance.dataset(uri)):
            assert "ScalarIndexQuery" in ds.scanner(filter=filter).explain_plan()
            assert ds.to_table(filter=filter).num_rows == num_rows, predicate


def documents(values: list[Any]) -> pa.Table:
    """Return JSON documents with these values of the key x."""
    return pa.table({"j": pa.array([json.dumps({"x": value}) for value in values], pa.json_())})


@pytest.mark.parametrize("kind", ["BITMAP", "BTREE"])
@pytest.mark.parametrize(("old", "new"), [([1, 2], ["a", "b"]), ([1, 2], [1.5, 2]), ([1.5, 2], [1, 2]), ([True], [1])])
def test_the_type_of_values_in_documents_is_determined_again_if_no_segment_remains(
    tmp_path: Path, kind: str, old: list[Any], new: list[Any]
) -> None:
    getter = {str: "string", int: "int", float: "float"}[type(new[0])]
    filter = f"json_get_{getter}(j, 'x') = {new[0]!r}"
    for options in ({}, {"retrain": True}):
        uri = str(tmp_path / str(len(options)))
        ds = lancetable.write_dataset(documents(old), uri, data_storage_version="2.2")
        ds.create_scalar_index("j", IndexConfig("json", {"path": "x", "target_index_type": kind}), "i")
        ds.insert(documents(new))
        if old != [1.5, 2]:
            with pytest.raises(InvalidInputError, match="several types"):
                ds.optimize.optimize_indices(**options)
        ds.delete("_rowaddr < 4294967296")
        ds.optimize.optimize_indices(**options)
        for library in (lance, lancetable):
            ds = library.dataset(uri)
            assert "ScalarIndexQuery" in ds.scanner(filter=filter).explain_plan()
            assert ds.count_rows(filter) == 1


def test_a_delta_of_documents_has_the_type_of_the_other_segments(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    ds = lancetable.write_dataset(documents([1.5, 2]), uri, data_storage_version="2.2")
    ds.create_scalar_index("j", IndexConfig("json", {"path": "x", "target_index_type": "BITMAP"}), "i")
    ds.insert(documents([1, 2]))
    ds.optimize.optimize_indices(num_indices_to_merge=0)
    assert coverage(uri) == {"i": [[0], [1]]}
    assert ds.count_rows("json_get_float(j, 'x') = 2") == 2
    ds.insert(documents(["a"]))
    with pytest.raises(InvalidInputError, match="several types"):
        ds.optimize.optimize_indices(num_indices_to_merge=0)
