"""Compaction: plans and results compared with pylance; rows, ids, versions and indices stay valid."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import lance
import lance.optimize
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable
from lancetable.optimize import Compaction, CompactionPlan, CompactionTask, RewriteResult

OPTIMIZE = {lancetable: lancetable.optimize, lance: lance.optimize}


def write(library: Any, path: Path, sizes: list[int], version: str = "2.1", stable: bool = False) -> Any:
    """Write a table with one fragment of each size."""
    ds, start = None, 0
    for size in sizes:
        table = pa.table(
            {"a": pa.array(range(start, start + size)), "s": [f"t{k}" for k in range(start, start + size)]}
        )
        start += size
        if ds is None:
            ds = library.write_dataset(table, path, data_storage_version=version, enable_stable_row_ids=stable)
        else:
            ds.insert(table)
    return ds


def seen(ds: Any, stable: bool = False) -> dict[str, Any]:
    columns = ["_row_created_at_version", "_row_last_updated_at_version"] if stable else []
    return {
        "version": ds.version,
        "fragments": [(each.fragment_id, each.physical_rows, each.num_deletions) for each in ds.get_fragments()],
        "rows": ds.to_table(columns=["a", "s", *columns], with_row_id=True).to_pydict(),
    }


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_plans_and_results_match_pylance(tmp_path: Path, version: str, stable: bool) -> None:
    rng = np.random.default_rng([int(version[-1]), stable])
    for trial in range(4):
        sizes = rng.integers(1, 30, 8).tolist()
        options = {"target_rows_per_fragment": int(rng.integers(1, 60)), "materialize_deletions_threshold": 0.3}
        if trial == 3:
            options["max_source_rows"] = 40
        gone = rng.choice(sum(sizes), sum(sizes) // 4, replace=False).tolist()
        outcomes, plans = [], []
        for library in (lance, lancetable):
            path = tmp_path / f"{library.__name__}{trial}"
            ds = write(library, path, sizes, version, stable)
            ds.delete(f"a IN ({', '.join(map(str, gone))})")
            plan = OPTIMIZE[library].Compaction.plan(ds, options)
            plans.append([[each.id for each in task.fragments] for task in plan.tasks])
            metrics = ds.optimize.compact_files(**options)
            told = [
                getattr(metrics, name)
                for name in ("fragments_removed", "fragments_added", "files_removed", "files_added")
            ]
            other = lancetable if library is lance else lance
            assert seen(other.dataset(path), stable) == seen(ds, stable)
            outcomes.append((told, seen(ds, stable)))
        assert plans[0] == plans[1]
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(("num_rows", "target"), [(19, 6), (19, 5), (7, 2), (23, 4), (20, 5)])
def test_files_of_a_large_fragment_differ_by_a_row_at_most(tmp_path: Path, num_rows: int, target: int) -> None:
    sizes = []
    for library in (lance, lancetable):
        path = tmp_path / library.__name__
        ds = write(library, path, [2 * num_rows])
        ds.delete("a % 2 = 1")
        ds.optimize.compact_files(target_rows_per_fragment=target)
        sizes.append([each.physical_rows for each in ds.get_fragments()])
        assert max(sizes[-1]) - min(sizes[-1]) <= 1
    assert sizes[0] == sizes[1]


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), max_size=12), st.integers(0, 70))
def test_plan_groups_adjacent_fragments_once_and_in_order(sizes: list[tuple[int, int]], target: int) -> None:
    ds = lancetable.write_dataset(pa.table({"a": [0]}), f"memory://plans-{id(sizes)}")
    for size, _ in sizes:
        ds.insert(pa.table({"a": list(range(size))}))
    tasks = Compaction.plan(ds, {"target_rows_per_fragment": target}).tasks
    ids = [[each.id for each in task.fragments] for task in tasks]
    flat = [each for task in ids for each in task]
    assert flat == sorted(set(flat))
    for task in tasks:
        assert [each.id for each in task.fragments] == list(range(task.fragments[0].id, task.fragments[-1].id + 1))
        assert len(task.fragments) > 1
        assert all(each.physical_rows < target for each in task.fragments)
    lancetable.LanceDataset.drop(ds.uri)


def test_tasks_can_be_exchanged_as_json_and_pickles_with_pylance(tmp_path: Path) -> None:
    ds = write(lancetable, tmp_path / "t", [3, 3, 50, 3, 3])
    ds.delete("a = 1")
    plan = Compaction.plan(ds, {"target_rows_per_fragment": 10})
    assert plan.num_tasks() == len(plan) == 2
    again = CompactionPlan.from_json(plan.json())
    assert again.tasks == plan.tasks == pickle.loads(pickle.dumps(plan)).tasks
    ours = CompactionTask.from_json(again.tasks[0].json()).execute(lancetable.dataset(ds.uri))
    ours = RewriteResult.from_json(pickle.loads(pickle.dumps(ours)).json())
    theirs_plan = lance.optimize.Compaction.plan(lance.dataset(ds.uri), {"target_rows_per_fragment": 10})
    theirs = CompactionTask.from_json(theirs_plan.tasks[1].json()).execute(ds)
    metrics = Compaction.commit(ds, [theirs, ours])
    assert (metrics.fragments_removed, metrics.fragments_added) == (4, 2)
    assert sorted(lance.dataset(ds.uri).to_table()["a"].to_pylist()) == [k for k in range(62) if k != 1]


@pytest.mark.parametrize("stable", [False, True])
def test_concurrent_deletes_are_never_undone(tmp_path: Path, stable: bool) -> None:
    ds = write(lancetable, tmp_path / "t", [5, 5, 5, 50, 5, 5], stable=stable)
    plan = Compaction.plan(ds, {"target_rows_per_fragment": 12})
    results = [each.execute(ds) for each in plan.tasks]
    other = lancetable.dataset(ds.uri)
    other.delete("a = 2 OR a BETWEEN 5 AND 9 OR a = 71")  # of several fragments, and all of one
    other.update({"s": "'new'"}, where="a IN (3, 74)")
    Compaction.commit(ds, results)
    expected = [k for k in range(75) if k not in (2, *range(5, 10), 71)]
    for library in (lancetable, lance):
        rows = library.dataset(ds.uri).to_table().to_pydict()
        assert sorted(rows["a"]) == expected
        assert [a for a, s in zip(rows["a"], rows["s"], strict=True) if s == "new"] == [3, 74]
    ds.validate()


@pytest.mark.parametrize("change", ["restore", "add column", "compact"])
def test_other_changes_of_compacted_fragments_are_conflicts(tmp_path: Path, change: str) -> None:
    ds = write(lancetable, tmp_path / "t", [5, 5])
    ds.delete("a = 7")
    before = ds.version
    results = [each.execute(ds) for each in Compaction.plan(ds).tasks]
    other = lancetable.dataset(ds.uri)
    if change == "restore":
        other.checkout_version(before - 1).restore()
    elif change == "add column":
        other.add_columns({"b": "a + 1"})
    else:
        other.optimize.compact_files()
    with pytest.raises(lancetable.CommitConflictError):
        Compaction.commit(ds, results)
    assert len(lancetable.dataset(ds.uri).to_table()) == (10 if change == "restore" else 9)


def test_concurrent_appends_do_not_conflict(tmp_path: Path) -> None:
    ds = write(lancetable, tmp_path / "t", [5, 5])
    results = [each.execute(ds) for each in Compaction.plan(ds).tasks]
    lancetable.write_dataset(pa.table({"a": [99], "s": ["x"]}), ds.uri, mode="append")
    Compaction.commit(ds, results)
    assert ds.to_table()["a"].to_pylist() == [99, *range(10)]


@pytest.mark.parametrize("library", [lancetable, lance])
def test_commit_after_an_overwrite_reserves_no_ids(tmp_path: Path, library: Any) -> None:
    old = write(library, tmp_path / "t", [5, 5])
    library.write_dataset(pa.table({"a": [1]}), tmp_path / "t", mode="overwrite")
    newest = library.dataset(tmp_path / "t")
    before = newest.version
    with pytest.raises(OSError, match="Incompatible transaction"):
        old.optimize.compact_files()
    newest.checkout_latest()
    assert newest.version == before


def test_a_failed_compaction_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = write(lancetable, tmp_path / "t", [5, 5])
    files = set((tmp_path / "t" / "data").iterdir())

    def race(*args: object, **kwargs: object) -> Any:
        lancetable.dataset(ds.uri).add_columns({"b": "a"})
        return real(*args, **kwargs)

    from lancetable.ops.maintain import compact

    real = compact.commit
    monkeypatch.setattr(compact, "commit", race)
    with pytest.raises(lancetable.RetryableCommitConflictError):
        ds.optimize.compact_files()
    named = {file.path for fragment in lancetable.dataset(ds.uri).get_fragments() for file in fragment.data_files()}
    assert {file.name for file in (tmp_path / "t" / "data").iterdir()} == named > {file.name for file in files}


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"])
@pytest.mark.parametrize("stable", [False, True])
def test_index_finds_every_row_after_compaction(tmp_path: Path, kind: str, stable: bool) -> None:
    theirs = write(lance, tmp_path / "t", [300, 300, 300], stable=stable)
    theirs.create_scalar_index("a", kind)
    ds = lancetable.dataset(tmp_path / "t")
    ds.delete("a = 5")
    ds.optimize.compact_files()
    theirs = lance.dataset(tmp_path / "t")
    for value, count in ((5, 0), (7, 1), (450, 1), (899, 1)):
        assert theirs.to_table(filter=f"a = {value}").num_rows == count
    assert len(theirs.describe_indices()) == 1


def vectors(first: int, last: int) -> pa.Table:
    values = pa.array(np.random.default_rng(0).random((600, 8), np.float32)[first:last].ravel())
    return pa.table({"a": range(first, last), "v": pa.FixedSizeListArray.from_arrays(values, 8)})


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_HNSW_SQ"])
@pytest.mark.parametrize("stable", [False, True])
def test_vector_index_finds_every_row_after_compaction(tmp_path: Path, kind: str, stable: bool) -> None:
    """Compaction keeps the coverage of the index, as in pylance."""
    covered = {}
    for library in (lance, lancetable):
        path = tmp_path / library.__name__
        theirs = lance.write_dataset(vectors(0, 500), path, max_rows_per_file=100, enable_stable_row_ids=stable)
        options = {"num_sub_vectors": 2} if kind == "IVF_PQ" else {}
        theirs.create_index("v", kind, num_partitions=2, **options)
        lance.write_dataset(vectors(500, 600), path, mode="append")  # not covered
        theirs.checkout_latest()
        theirs.delete("a % 7 = 3")
        library.dataset(path).optimize.compact_files(target_rows_per_fragment=200)
        theirs = lance.dataset(path)
        covered[library] = [sorted(segment.fragment_ids) for segment in theirs.describe_indices()[0].segments]
        vector = vectors(0, 600)["v"].to_pylist()
        for row in range(0, 600, 11):
            query = {"column": "v", "q": vector[row], "k": 1, "nprobes": 2, "refine_factor": 100}
            for fast in (False, True):  # the fast search reads only covered fragments
                found = theirs.to_table(columns=["a", "_distance"], nearest=query, fast_search=fast)
                hit = found.to_pylist()[:1] == [{"a": row, "_distance": 0.0}]
                assert hit == (row % 7 != 3 and (not fast or row < 500)), row
    assert covered[lancetable] == covered[lance]
    assert len(covered[lance][0]) == 2


def test_changed_columns_and_blobs_are_kept(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.int64()),
            pa.field("gone", pa.int64()),
            pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        ]
    )
    for k in range(3):
        table = pa.table({"a": [k], "gone": [k], "b": [b"x" * (k + 1) * 1000]}, schema=schema)
        ds = lancetable.write_dataset(table, tmp_path / "t", mode="append" if k else "create")
    ds.drop_columns(["gone"])
    ds.add_columns({"more": "a + 1"})
    ds.optimize.compact_files()
    assert [file.fields for file in ds.get_fragments()[0].metadata.files] == [
        [0, 2, 5]
    ]  # a blob field of 2.2 reserves ids
    for library in (lance, lancetable):
        found = library.dataset(tmp_path / "t")
        assert found.to_table(columns=["a", "more"]).to_pydict() == {"a": [0, 1, 2], "more": [1, 2, 3]}
        assert [blob.readall() for blob in found.take_blobs("b", indices=[0, 1, 2])] == [
            b"x" * (k + 1) * 1000 for k in range(3)
        ]


def test_settings_are_read_from_the_table_config(tmp_path: Path) -> None:
    ds = write(lancetable, tmp_path / "t", [5, 5, 5])
    ds.update_config({"lance.compaction.target_rows_per_fragment": "5"})
    assert Compaction.plan(ds).num_tasks() == 0
    assert Compaction.plan(ds, {"target_rows_per_fragment": 6}).num_tasks() == 1
    ds.update_config({"lance.compaction.target_rows_per_fragment": "many"})
    with pytest.raises(lancetable.InvalidInputError, match="target_rows_per_fragment"):
        Compaction.plan(ds)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"compaction_mode": "squeeze"}, lancetable.InvalidInputError),
        ({"compaction_mode": "force_binary_copy"}, lancetable.UnsupportedFeatureError),
        ({"target": 1}, lancetable.InvalidInputError),
        ({"target_rows_per_fragment": "1"}, TypeError),
        ({"batch_size": -1}, lancetable.InvalidInputError),
    ],
)
def test_invalid_options_raise(tmp_path: Path, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Compaction.plan(write(lancetable, tmp_path / "t", [1]), options)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"task": 1, "read_version": 1, "options": {}}',
        json.dumps({"task": {"fragments": [{"id": 0}]}, "read_version": 1, "options": {}}),
    ],
)
def test_invalid_task_json_raises(text: str) -> None:
    with pytest.raises((lancetable.InvalidInputError, ValueError)):
        CompactionTask.from_json(text)


def test_task_of_another_table_raises(tmp_path: Path) -> None:
    task = Compaction.plan(write(lancetable, tmp_path / "t", [5, 5])).tasks[0]
    other = write(lancetable, tmp_path / "other", [5, 5])
    with pytest.raises(lancetable.InvalidOperationError, match="fragment 0"):
        task.execute(other)
