"""Compactions of tables with indexes: rewritten segments, also of distributed and of deferred compactions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.optimize import Compaction as TheirCompaction
from lance.optimize import RewriteResult as TheirResult

import lancetable
from lancetable.errors import (
    CorruptFileError,
    InvalidOperationError,
    RetryableCommitConflictError,
    UnsupportedFeatureError,
)
from lancetable.indices import IndexConfig
from lancetable.optimize import Compaction, RewriteResult

KINDS = {"BTREE": "id", "BITMAP": "s", "LABEL_LIST": "tags", "NGRAM": "s", "ZONEMAP": "id", "BLOOMFILTER": "id"}
REMAPPED = ["bitmap", "btree", "label_list", "ngram"]


def rows(start: int, end: int) -> pa.Table:
    ids = range(start, end)
    return pa.table(
        {
            "id": ids,
            "s": [None if i % 7 == 0 else f"value {i % 5}" for i in ids],
            "tags": [["x", "y", "z"][: i % 4] for i in ids],
            "o": [0] * len(ids),
        }
    )


def write(path: Path, *, stable: bool = False) -> lancetable.LanceDataset:
    ds = lancetable.write_dataset(rows(0, 120), str(path), max_rows_per_file=30, enable_stable_row_ids=stable)
    for kind, column in KINDS.items():
        ds.create_scalar_index(column, kind, kind.lower())
    return ds


def coverage(uri: str) -> dict[str, list[list[int]]]:
    """Return the live fragments that the segments of each index cover, as pylance reads them."""
    ds = lance.dataset(uri)
    live = {fragment.fragment_id for fragment in ds.get_fragments()}
    indexes = [index for index in ds.describe_indices() if not index.name.startswith("__")]
    return {index.name: [sorted({*each.fragment_ids} & live) for each in index.segments] for index in indexes}


def check(uri: str) -> None:
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


@pytest.mark.parametrize("kind", ["BITMAP", "NGRAM"])
def test_json_indexes_of_row_ids_stay_complete_as_in_pylance(tmp_path: Path, kind: str) -> None:
    documents = pa.array([json.dumps({"x": f"value {number % 5}"}) for number in range(60)], pa.json_())
    table = pa.table({"id": range(60), "o": [0] * 60, "j": documents})
    filter = "json_get_string(j, 'x') = 'value 1'" if kind == "BITMAP" else "contains(json_get_string(j, 'x'), 'lue 1')"
    for library in (lance, lancetable):
        uri = str(tmp_path / library.__name__)
        lance.write_dataset(table, uri, max_rows_per_file=20, enable_stable_row_ids=True, data_storage_version="2.2")
        config = IndexConfig("json", {"path": "x", "target_index_type": kind})
        lancetable.dataset(uri).create_scalar_index("j", config, "json")
        ds = library.dataset(uri)
        ds.update({"o": "1"}, where="id % 7 = 1")
        assert coverage(uri) == {"json": [[0, 1, 2, 3]]}
        ds.optimize.compact_files(target_rows_per_fragment=1000)
        assert coverage(uri) == {"json": [[4]]}
        for ds in (lance.dataset(uri), lancetable.dataset(uri)):
            assert "ScalarIndexQuery" in ds.scanner(filter=filter).explain_plan()
            assert ds.count_rows(filter) == 12


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
@pytest.mark.parametrize("target", [50, 70, 1000])
def test_coverage_after_a_compaction_equals_that_of_pylance(tmp_path: Path, target: int, stable: bool) -> None:
    covered = []
    for library in (lance, lancetable):
        uri = write(tmp_path / library.__name__, stable=stable).uri
        ds = library.dataset(uri)
        ds.delete("id % 7 = 3 OR id BETWEEN 30 AND 59")
        ds.insert(rows(120, 140))
        ds.optimize.compact_files(target_rows_per_fragment=target)
        check(uri)
        covered.append({name: [len(part) for part in parts] for name, parts in coverage(uri).items()})
        ds.optimize.optimize_indices()
        check(uri)
    assert covered[1] == covered[0] or target == 50  # libraries group fragments of several tasks differently


def test_indexes_of_addresses_are_rewritten_and_those_of_row_ids_kept(tmp_path: Path) -> None:
    for stable in (False, True):
        ds = write(tmp_path / str(stable), stable=stable)
        before = {index.name: [part.uuid for part in index.segments] for index in ds.describe_indices()}
        ds.optimize.compact_files()
        after = {index.name: [part.uuid for part in index.segments] for index in ds.describe_indices()}
        rewritten = {name for name in before if before[name] != after[name]}
        assert rewritten == ({"btree"} if stable else {*REMAPPED})
        assert {name for name, (part,) in coverage(ds.uri).items() if part} == {*REMAPPED}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
@pytest.mark.parametrize(
    "between", ["nothing", "delete", "delete a fragment", "update", "append", "create", "optimize", "drop"]
)
def test_distributed_compactions_rewrite_the_indexes_of_the_newest_version(
    tmp_path: Path, between: str, stable: bool
) -> None:
    ds = write(tmp_path / "t.lance", stable=stable)
    ds.delete("id % 7 = 3")
    ds.insert(rows(120, 140))
    plan = Compaction.plan(ds, {"target_rows_per_fragment": 60})
    results = [RewriteResult.from_json(task.execute(ds).json()) for task in plan]
    other = lancetable.dataset(ds.uri)
    changes: dict[str, Any] = {
        "nothing": lambda: None,
        "delete": lambda: other.delete("id % 11 = 0"),
        "delete a fragment": lambda: other.delete("id BETWEEN 30 AND 59"),
        "update": lambda: other.update({"s": "'value 1'"}, where="id % 13 = 0"),
        "append": lambda: other.insert(rows(140, 150)),
        "create": lambda: other.create_scalar_index("o", "BTREE", "new"),
        "optimize": lambda: other.optimize.optimize_indices(),
        "drop": lambda: other.drop_index("bitmap"),
    }
    changes[between]()
    existing = {fragment.fragment_id for fragment in lancetable.dataset(ds.uri).get_fragments()}
    Compaction.commit(ds, results[::-1])
    check(ds.uri)
    covered = coverage(ds.uri)
    moved = {fragment.fragment_id for fragment in ds.get_fragments()} - existing
    assert moved
    assert ("bitmap" in covered) == (between != "drop")
    for name in {*REMAPPED, "new"} & covered.keys():
        assert moved & {number for part in covered[name] for number in part}, (name, covered)
    ds.optimize.optimize_indices()
    check(ds.uri)
    ds.validate()


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
def test_tasks_of_one_library_are_committed_by_the_other(tmp_path: Path, stable: bool) -> None:
    for executing, committing in ((lancetable, lance), (lance, lancetable)):
        ds = write(tmp_path / executing.__name__, stable=stable)
        ds.delete("id % 7 = 3")
        steps: Any = {lance: TheirCompaction, lancetable: Compaction}
        parse: Any = {lance: TheirResult, lancetable: RewriteResult}
        base = executing.dataset(ds.uri)
        results = [task.execute(base).json() for task in steps[executing].plan(base, {}).tasks]
        steps[committing].commit(committing.dataset(ds.uri), [parse[committing].from_json(text) for text in results])
        assert {name for name, (part,) in coverage(ds.uri).items() if part} == {*REMAPPED}
        check(ds.uri)


def test_results_of_tables_without_indexes_contain_no_addresses(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows(0, 60), str(tmp_path / "t.lance"), max_rows_per_file=30)
    (task,) = Compaction.plan(ds)
    assert '"row_addrs": null' in task.execute(ds).json()


def test_files_of_a_failed_compaction_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancetable.ops.maintain import compact

    ds = write(tmp_path / "t.lance")
    files = {path for path in (tmp_path / "t.lance").rglob("*") if path.is_file()}

    def failing(*_: Any, **__: Any) -> Any:
        raise RetryableCommitConflictError("no")

    monkeypatch.setattr(compact, "DEFAULT_MAX_RETRIES", 1)
    original = compact.commit_transaction
    monkeypatch.setattr(
        compact,
        "commit_transaction",
        lambda base, transaction: (
            failing() if transaction.operation.__class__.__name__ == "Rewrite" else original(base, transaction)
        ),
    )
    with pytest.raises(RetryableCommitConflictError):
        ds.optimize.compact_files()
    left = {path for path in (tmp_path / "t.lance").rglob("*") if path.is_file()} - files
    assert not [path for path in left if "_indices" in str(path) or "data" in str(path)]


def test_a_damaged_index_stops_a_compaction_with_its_path(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows(0, 60), str(tmp_path / "t.lance"), max_rows_per_file=30)
    ds.create_scalar_index("id", "BTREE")
    for file in (tmp_path / "t.lance" / "_indices").rglob("page_data.lance"):
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CorruptFileError, match=r"page_data\.lance"):
        lancetable.dataset(ds.uri).optimize.compact_files()
    assert lancetable.dataset(ds.uri).count_rows("o = 0") == 60
    ds.drop_index("id_idx")
    ds.optimize.compact_files()
    assert ds.count_rows("id = 7") == 1


# --- deferred


def deferred(path: Path, library: Any) -> str:
    """Write a table that a library has compacted without rewriting the indexes."""
    ds = write(path)
    ds.delete("id % 7 = 3")
    library.dataset(ds.uri).optimize.compact_files(defer_index_remap=True, target_rows_per_fragment=60)
    return ds.uri


def test_a_deferred_compaction_records_the_moves_like_pylance(tmp_path: Path) -> None:
    from lancetable.index.segments import fragment_reuse

    read = []
    for library in (lance, lancetable):
        uri = deferred(tmp_path / library.__name__, library)
        check(uri)
        names = [index.name for index in lance.dataset(uri).describe_indices()]
        assert "__lance_frag_reuse" in names
        reuse = fragment_reuse(lancetable.dataset(uri).table_version)
        assert reuse is not None
        addresses = np.array([fragment << 32 | row for fragment in range(6) for row in range(32)], np.uint64)
        new, exists = reuse.apply(addresses)
        read.append((reuse.old_fragments, exists.tolist(), len(coverage(uri)["btree"])))
        before = pa.array(addresses)
        ours = lancetable.dataset(uri).remap_row_addrs(before)
        assert ours is not None and ours.equals(lance.dataset(uri).remap_row_addrs(before))
        assert [row for row, live in zip(new.tolist(), exists.tolist()) if live] == ours.drop_null().to_pylist()
    assert read[0] == read[1]
    assert lancetable.dataset(write(tmp_path / "none").uri).remap_row_addrs(pa.array([1], pa.uint64())) is None


@pytest.mark.parametrize("first", [lance, lancetable], ids=["theirs", "ours"])
@pytest.mark.parametrize("second", [lance, lancetable], ids=["theirs", "ours"])
def test_changes_after_a_deferred_compaction_keep_right_answers(tmp_path: Path, first: Any, second: Any) -> None:
    uri = deferred(tmp_path / "t.lance", first)
    second.dataset(uri).insert(rows(120, 150))
    check(uri)
    second.dataset(uri).delete("id % 5 = 1")
    check(uri)
    ds = second.dataset(uri)
    columns = pa.table({"id": [4, 5], "s": ["value 1"] * 2})
    if second is lancetable:
        ds.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(columns)
    else:
        ds.merge_insert("id").when_matched_update_all().execute(columns)
    check(uri)
    first.dataset(uri).optimize.compact_files(defer_index_remap=True, target_rows_per_fragment=100)
    check(uri)
    second.dataset(uri).optimize.compact_files(target_rows_per_fragment=1000)
    check(uri)
    second.dataset(uri).optimize.optimize_indices(num_indices_to_merge=9)
    check(uri)
    second.dataset(uri).update({"s": "'value 2'"}, where="id < 20")
    first.dataset(uri).optimize.optimize_indices(num_indices_to_merge=9)
    check(uri)


def test_optimizing_rewrites_the_indexes_and_removes_the_record(tmp_path: Path) -> None:
    uri = deferred(tmp_path / "t.lance", lancetable)
    ds = lancetable.dataset(uri)
    covered = coverage(uri)
    ds.optimize.optimize_indices()
    assert coverage(uri) == covered
    assert sorted(index.name for index in ds.describe_indices()) == sorted(kind.lower() for kind in KINDS)
    assert ds.remap_row_addrs(pa.array([1], pa.uint64())) is None
    check(uri)
    version = ds.version
    ds.optimize.optimize_indices()
    assert ds.version == version


def test_the_record_is_not_dropped_while_an_index_needs_it(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance")
    ds.optimize.compact_files(defer_index_remap=True)
    names = [index.name for index in ds.describe_indices()]
    assert ds.stats.index_stats("__lance_frag_reuse") == lance.dataset(ds.uri).stats.index_stats("__lance_frag_reuse")
    with pytest.raises(UnsupportedFeatureError, match="optimize_indices"):
        ds.prewarm_index("__lance_frag_reuse")
    with pytest.raises(InvalidOperationError, match="optimize_indices"):
        ds.drop_index("__lance_frag_reuse")
    for name in names:
        if name != "__lance_frag_reuse":
            ds.drop_index(name)
    ds.drop_index("__lance_frag_reuse")
    assert not ds.has_index


def test_a_large_record_is_stored_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancetable.ops.index import deferred_remap

    monkeypatch.setattr(deferred_remap, "_MAX_INLINE_BYTES", 10)
    uri = deferred(tmp_path / "t.lance", lancetable)
    assert len(list((tmp_path / "t.lance" / "_indices").rglob("details.binpb"))) == 1
    check(uri)
    ds = lancetable.dataset(uri)
    ds.insert(rows(120, 130))
    check(uri)


def test_no_record_is_written_without_an_index_of_the_rows(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows(0, 60), str(tmp_path / "t.lance"), max_rows_per_file=30)
    ds.optimize.compact_files(defer_index_remap=True)
    assert not ds.has_index and len(ds.get_fragments()) == 1


def test_deferral_is_a_setting_of_the_table_and_of_the_commit(tmp_path: Path) -> None:
    ds = write(tmp_path / "configured")
    ds.update_config({"lance.compaction.defer_index_remap": "true"})
    ds.optimize.compact_files()
    assert "__lance_frag_reuse" in [index.name for index in ds.describe_indices()]
    ds = write(tmp_path / "steps")
    results = [task.execute(ds) for task in Compaction.plan(ds)]
    Compaction.commit(ds, results, {"defer_index_remap": True})
    assert "__lance_frag_reuse" in [index.name for index in ds.describe_indices()]
    check(ds.uri)


def test_deferral_is_refused_with_stable_row_ids(tmp_path: Path) -> None:
    ds = write(tmp_path / "t.lance", stable=True)
    with pytest.raises(UnsupportedFeatureError, match="stable row ids"):
        ds.optimize.compact_files(defer_index_remap=True)
    with pytest.raises(OSError, match="stable row"):
        lance.dataset(ds.uri).optimize.compact_files(defer_index_remap=True)


def test_an_index_that_covers_a_part_of_a_group_prevents_deferral(tmp_path: Path) -> None:
    ds = lancetable.write_dataset(rows(0, 60), str(tmp_path / "t.lance"), max_rows_per_file=30)
    results = [task.execute(ds) for task in Compaction.plan(ds)]
    other = lancetable.dataset(ds.uri)
    part = other.create_index_uncommitted("id", "BTREE", "i", fragment_ids=[0])
    other.commit_existing_index_segments("i", "id", [part])
    with pytest.raises(RetryableCommitConflictError, match="covers only fragments"):
        Compaction.commit(ds, results, {"defer_index_remap": True})
    Compaction.commit(ds, results)
    check(ds.uri)
