"""Updates, merges and stable row ids, compared with pylance and a plain model, and under concurrent commits."""

from __future__ import annotations

import os
import random
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable
from lancetable.errors import (
    AlreadyExistsError,
    ColumnNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    InvalidSqlError,
    RetryableCommitConflictError,
    SchemaMismatchError,
    UnsupportedFeatureError,
)
from lancetable.ops.change import rewritten_rows

VERSIONS = ["_row_created_at_version", "_row_last_updated_at_version"]
STORIES = int(12 * float(os.environ.get("LANCETABLE_TEST_SCALE", "1")))


def table(ids: list[int], values: list[int] | None = None) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "s": pa.array([f"s{each}" for each in ids]),
            "v": pa.array(ids if values is None else values, pa.int32()),
        }
    )


def new(path: Path, *, rows: pa.Table | None = None, stable: bool = True, per: int = 4) -> lancetable.LanceDataset:
    rows = table(list(range(10))) if rows is None else rows
    return lancetable.write_dataset(rows, str(path), max_rows_per_file=per, enable_stable_row_ids=stable)


def row_ids(dataset: Any) -> dict[int, int]:
    found = dataset.to_table(columns=["id", "_rowid"])
    return dict(zip(found["id"].to_pylist(), found["_rowid"].to_pylist(), strict=True))


def files_below(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()}


# --- in turns with pylance -------------------------------------------------------------------------------------------


def answer_of(run: Callable[[], Any]) -> Any:
    """Return the result of a change, or the class of its error."""
    try:
        return run()
    except (ValueError, OSError) as error:
        words = ("mbiguous", "found matching row", "cannot express", "not configured")
        return next((word for word in words if word in str(error)), str(error))


class Story:
    """Random changes of two tables, one by each library. The row order of pylance depends on its threads."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.stable = self.rng.random() < 0.6
        version = self.rng.choice(["2.0", "2.1", "2.2"])
        per = self.rng.choice([7, 30, 1000])
        rows = self.rows(self.rng.randrange(1, 100))
        self.both = [
            library.write_dataset(
                rows,
                str(root / library.__name__),
                enable_stable_row_ids=self.stable,
                data_storage_version=version,
                max_rows_per_file=per,
            )
            for library in (lance, lancetable)
        ]
        self.log: list[Any] = [version, per, self.stable]
        self.same_ids = True

    def rows(self, count: int, columns: list[str] | None = None) -> pa.Table:
        rng = self.rng
        data = {
            "k": pa.array([None if rng.random() < 0.05 else rng.randrange(60) for _ in range(count)], pa.int64()),
            "j": pa.array([rng.choice(["a", "b", "c", None]) for _ in range(count)], pa.string()),
            "u": pa.array([rng.random() for _ in range(count)], pa.float64()),
            "l": pa.array([rng.choice([None, [], [rng.randrange(9), 2]]) for _ in range(count)], pa.list_(pa.int32())),
        }
        return pa.table({name: data[name] for name in columns or data})

    def step(self) -> None:
        rng = self.rng
        operation = rng.choice(["merge", "merge", "merge", "update", "delete", "append"])
        if operation == "append":
            rows = self.rows(rng.randrange(1, 20))
            self.change(operation, lambda ds: ds.insert(rows))
        elif operation == "delete":
            where = rng.choice(["k % 3 = 0", "k < 10", "k > 50"])
            self.change((operation, where), lambda ds: ds.delete(where))
        elif operation == "update":
            updates = rng.choice([{"u": "u + 1"}, {"j": "concat('q', j)"}, {"k": "k + 1"}, {"l": "NULL", "u": "k"}])
            condition = rng.choice([None, "k % 4 = 1", "u < 0.5", "j = 'a'", "false"])
            self.change((operation, updates, condition), lambda ds: ds.update(updates, where=condition))
        else:
            self.merge()

    def merge(self) -> None:
        rng = self.rng
        on = rng.choice([["k"], ["k", "j"], ["j", "k"], ["u"]])
        columns = ["k", "j", "u", "l"] if rng.random() < 0.6 else [*dict.fromkeys([*on, rng.choice(["u", "l"])])]
        source = self.rows(rng.randrange(1, 40), columns)
        if rng.random() < 0.8:
            keys = [tuple(row.values()) for row in source.select(on).to_pylist()]
            source = source.take([at for at, key in enumerate(keys) if None in key or key not in keys[:at]])
        matched = rng.choice(["update", "update", "condition", "delete", "fail", None])
        condition = rng.choice(
            ["target.u < 0.5", "target.k % 2 = 0", "source.u > target.u" if "u" in columns else "true"]
        )
        insert = rng.random() < 0.6
        # pylance 14 fails on deletions of both kinds together.
        by_source = rng.choice([None, None, None, "", "k < 20"]) if matched != "delete" else None
        mode = rng.choice([None, None, "rewrite_columns", "rewrite_rows"])

        def run(dataset: Any) -> Any:
            builder = dataset.merge_insert(on)
            if matched == "update":
                builder.when_matched_update_all()
            elif matched == "condition":
                builder.when_matched_update_all(condition)
            elif matched == "delete":
                builder.when_matched_delete()
            elif matched == "fail":
                builder.when_matched_fail()
            if insert:
                builder.when_not_matched_insert_all()
            if by_source is not None:
                builder.when_not_matched_by_source_delete(by_source or None)
            if mode is not None:
                builder.write_mode(mode)
            return builder.execute(source)

        self.change(("merge", on, columns, matched, condition, insert, by_source, mode), run)

    def change(self, what: Any, run: Any) -> None:
        answers = [answer_of(lambda each=each: run(each)) for each in self.both]
        self.log.append((what, answers))
        assert answers[0] == answers[1], self.log
        if isinstance(answers[0], dict) and answers[0].get("num_inserted_rows", 0) > 1:
            self.same_ids = False  # inserted rows get their ids in another order
        self.compare()

    def compare(self) -> None:
        theirs, ours = self.both
        columns = [*theirs.schema.names, *(VERSIONS if self.stable else [])]
        rows = [sorted(map(str, each.to_table(columns=columns).to_pylist())) for each in self.both]
        assert rows[0] == rows[1], self.log
        shapes = [
            sorted((each.physical_rows, each.num_deletions, len(each.data_files())) for each in dataset.get_fragments())
            for dataset in self.both
        ]
        assert shapes[0] == shapes[1], self.log
        manifests = [lancetable.dataset(each.uri).table_version.manifest.message for each in self.both]
        facts = [(each.next_row_id, each.max_fragment_id, each.reader_feature_flags) for each in manifests]
        assert facts[0] == facts[1], self.log
        if self.same_ids:
            ids = [sorted(each.to_table(columns=["_rowid"])["_rowid"].to_pylist()) for each in self.both]
            assert not self.stable or ids[0] == ids[1], self.log
        # pylance reads tables of lancetable with the same result.
        everything = [*theirs.schema.names, "_rowid", "_rowaddr", *VERSIONS]
        read = lance.dataset(ours.uri).to_table(columns=everything)
        assert read.to_pydict() == ours.to_table(columns=everything).to_pydict(), self.log


@pytest.mark.parametrize("seed", range(STORIES))
def test_random_changes_equal_those_of_pylance(seed: int, tmp_path: Path) -> None:
    story = Story(tmp_path, seed)
    for _ in range(6):
        story.step()


def test_row_id_sequences_and_counters_equal_those_of_pylance(tmp_path: Path) -> None:
    found = []
    for library in (lance, lancetable):
        uri = str(tmp_path / library.__name__)
        ds = library.write_dataset(
            table(list(range(8))), uri, enable_stable_row_ids=True, data_storage_version="2.1", max_rows_per_file=3
        )
        ds.insert(table(list(range(100, 104))))
        ds.delete("id = 3")
        ds.update({"v": "v + 1"}, where="id IN (1, 2, 5)")
        merged = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merged.execute(table([6, 200, 0]))
        ds = library.write_dataset(table([7]), uri, mode="overwrite")
        ds.checkout_version(2).restore()
        library.dataset(uri).insert(table([9]))
        ds = lancetable.dataset(uri)
        manifests = [ds.checkout_version(each).table_version.manifest.message for each in range(1, ds.version + 1)]
        sequences = [
            (each.id, each.inline_created_at_versions, each.inline_last_updated_at_versions)
            for manifest in manifests
            for each in manifest.fragments
        ]
        ids = [
            lance.dataset(uri, version=manifest.version).to_table(columns=["_rowid"], filter="id < 200").num_rows
            for manifest in manifests
        ]
        found.append(
            (sequences, ids, [(m.next_row_id, m.reader_feature_flags, m.writer_feature_flags) for m in manifests])
        )
        # New ranges are bytes that only one form has.
        found[-1] += ([each.inline_row_ids for each in manifests[1].fragments],)
    assert found[0] == found[1]


# --- update ----------------------------------------------------------------------------------------------------------


def test_update_reads_old_values_and_casts_results(tmp_path: Path) -> None:
    ds = new(tmp_path / "t")
    assert ds.update({"id": "v + 100", "v": "id", "s": "v"}, where="id >= 8") == {"num_rows_updated": 2}
    assert ds.to_table(filter="id >= 100").to_pydict() == {"id": [108, 109], "s": ["8", "9"], "v": [8, 9]}
    assert ds.update({"v": "2.7"}, where="id = 0") == {"num_rows_updated": 1}
    assert ds.to_table(filter="id = 0")["v"].to_pylist() == [2]
    assert ds.update({"v": "0"}, where="false") == {"num_rows_updated": 0}
    version = ds.version
    for updates, where, error in [
        ({}, None, InvalidInputError),
        ({"nope": "1"}, None, ColumnNotFoundError),
        ({"v": "'x'"}, None, InvalidSqlError),
        ({"v": "1 / 0"}, None, InvalidSqlError),
        ({"v": "1"}, "v", InvalidSqlError),
        ({"v": 1}, None, TypeError),
        ({"v": "1"}, 5, TypeError),
    ]:
        with pytest.raises(error):
            ds.update(updates, where=where)
    assert ds.version == lancetable.dataset(ds.uri).version == version


def test_update_of_nested_and_required_columns(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), ("st", pa.struct([("a", pa.int32())]))])
    ds = new(tmp_path / "t", rows=pa.table({"id": [1, 2], "st": [{"a": 1}, None]}, schema=schema))
    with pytest.raises(UnsupportedFeatureError, match=r"st\.a"):
        ds.update({"st.a": "1"})
    with pytest.raises(SchemaMismatchError, match="non-null"):
        ds.update({"id": "NULL"})
    before = files_below(tmp_path / "t")
    with pytest.raises(SchemaMismatchError):
        ds.update({"id": "CASE WHEN id = 2 THEN NULL ELSE id END"})
    assert files_below(tmp_path / "t") == before
    ds.update({"st": "NULL"}, where="id = 1")
    assert ds.to_table()["st"].to_pylist() == [None, None]


def test_update_of_lists_json_and_blobs(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": [1, 2],
            "vec": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "blob": pa.array([b"one", b"two"], pa.large_binary()),
        },
        schema=pa.schema(
            [
                ("id", pa.int64()),
                ("vec", pa.list_(pa.float32(), 2)),
                pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
            ]
        ),
    )
    for version in ("2.1", "2.2"):
        ds = lancetable.write_dataset(rows, str(tmp_path / version), data_storage_version=version)
        ds.update({"vec": "[7.0, 8.0]"}, where="id = 2")
        assert ds.to_table(columns=["vec"])["vec"].to_pylist() == [[1.0, 2.0], [7.0, 8.0]]
        assert [each.read() for each in ds.take_blobs("blob", indices=[0, 1])] == [b"one", b"two"]


# --- merge insert ----------------------------------------------------------------------------------------------------


def test_an_upsert_keeps_row_ids_and_reports_counts(tmp_path: Path) -> None:
    ds = new(tmp_path / "t")
    before = row_ids(ds)
    builder = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    assert builder.execute(table([20, 3, 8, 21], [1, 2, 3, 4])) == {
        "num_inserted_rows": 2,
        "num_updated_rows": 2,
        "num_deleted_rows": 0,
    }
    after = row_ids(ds)
    assert {key: after[key] for key in before} == before
    assert [after[20], after[21]] == [10, 11]
    versions = ds.to_table(columns=["id", *VERSIONS], filter="id IN (3, 4, 20)").to_pylist()
    assert {row["id"]: (row[VERSIONS[0]], row[VERSIONS[1]]) for row in versions} == {3: (1, 2), 4: (1, 1), 20: (2, 2)}
    assert ds.take_row_ids([before[8], after[20], 99])["v"].to_pylist() == [3, 1]


def test_repeated_source_keys_are_refused_or_resolved(tmp_path: Path) -> None:
    ds = new(tmp_path / "t")
    source = table([5, 30, 5, 30], [1, 2, 3, 4])
    before = files_below(tmp_path / "t")
    upsert = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(InvalidOperationError, match=r"Ambiguous.*\(id = 5\)"):
        upsert.execute(source)
    assert files_below(tmp_path / "t") == before and ds.version == 1
    # A condition may leave one of them.
    chosen = ds.merge_insert("id").when_matched_update_all("source.v > 2").execute(source)
    assert chosen["num_updated_rows"] == 1 and ds.to_table(filter="id = 5")["v"].to_pylist() == [3]
    for keep, expected in (("first", [1, 2]), ("last", [3, 4])):
        ds = new(tmp_path / keep)
        upsert = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        counts = upsert.when_source_repeated(keep).execute(source)
        assert (counts["num_updated_rows"], counts["num_inserted_rows"]) == (1, 1)
        assert ds.to_table(filter="id IN (5, 30)").sort_by("id")["v"].to_pylist() == expected
    with pytest.raises(InvalidInputError, match="first"):
        upsert.when_source_repeated("any")


def test_invalid_merges_are_refused(tmp_path: Path) -> None:
    ds = new(tmp_path / "t")
    with pytest.raises(InvalidInputError, match="not configured"):
        ds.merge_insert("id").execute(table([1]))
    with pytest.raises(InvalidInputError, match="join keys"):
        ds.merge_insert()
    with pytest.raises(ColumnNotFoundError, match="nope"):
        ds.merge_insert("nope")
    for source, error in [
        (pa.table({"s": ["x"]}), ColumnNotFoundError),
        (table([1]).append_column("z", [[1]]), SchemaMismatchError),
        (table([1]).set_column(0, "id", pa.array([1], pa.int32())), SchemaMismatchError),
    ]:
        with pytest.raises(error):
            ds.merge_insert("id").when_matched_update_all().execute(source)
    with pytest.raises(ColumnNotFoundError):
        ds.merge_insert("id").when_matched_update_all("v > 1").execute(table([1]))
    with pytest.raises(InvalidOperationError, match=r"id = 1\b"):
        ds.merge_insert("id").when_matched_fail().execute(table([77, 1]))
    with pytest.raises(InvalidOperationError, match="covers every"):
        ds.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(table([1]))
    with pytest.raises(UnsupportedFeatureError):
        ds.merge_insert("id").mark_sstables_as_compacted([])


def test_merge_uses_the_primary_key_by_default(tmp_path: Path) -> None:
    key = pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
    rows = pa.table([pa.array([1, 2]), pa.array([5, 6])], schema=pa.schema([key, ("v", pa.int64())]))
    ds = new(tmp_path / "t", rows=rows)
    ds.merge_insert().when_matched_delete().execute(pa.table({"id": pa.array([2])}))
    assert ds.to_table().to_pydict() == {"id": [1], "v": [5]}


def test_execute_uncommitted_and_explain_plan_leave_the_table_unchanged(tmp_path: Path) -> None:
    ds = new(tmp_path / "t")
    upsert = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    assert "on=[id], when_matched=UpdateAll, when_not_matched=InsertAll" in upsert.explain_plan(verbose=True)
    before = files_below(tmp_path / "t")
    assert "num_updated_rows=1" in upsert.analyze_plan(table([1, 50]))
    assert files_below(tmp_path / "t") == before
    transaction, counts = upsert.execute_uncommitted(table([1, 50], [70, 80]))
    assert ds.version == 1 and counts["num_inserted_rows"] == 1
    committed = lancetable.LanceDataset.commit(ds.uri, transaction)
    assert committed.to_table(filter="v IN (70, 80)")["id"].to_pylist() == [1, 50]
    assert row_ids(lance.dataset(ds.uri)) == {**dict(zip(range(10), range(10), strict=True)), 50: 10}


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"])
def test_plans_of_merges_that_look_up_keys_in_an_exact_index_are_refused_by_both(tmp_path: Path, kind: str) -> None:
    uri = new(tmp_path / "t").uri
    lancetable.dataset(uri).create_scalar_index("id", kind)
    for library in (lancetable, lance):
        upsert = library.dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        if kind in ("BTREE", "BITMAP"):
            with pytest.raises(OSError, match="does not support explain_plan"):
                upsert.explain_plan()
        else:
            assert "MergeInsert" in upsert.explain_plan()
        assert "Index" not in upsert.use_index(False).explain_plan()
    upsert = lancetable.dataset(uri).merge_insert("id").when_matched_update_all()
    assert "IndexLookup: the keys of a small source in [id_idx]" in upsert.analyze_plan(table([1, 50]))


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("on", [["id"], ["s"], ["id", "s"]], ids="-".join)
def test_a_source_that_exceeds_the_memory_budget_is_spilled(
    on: list[str], stable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spilled = tmp_path / "spill"
    spilled.mkdir()
    monkeypatch.setenv("LANCETABLE_MEMORY_BYTES", "20000")
    monkeypatch.setattr(tempfile, "tempdir", str(spilled))
    rng = np.random.default_rng(1)
    ids = rng.permutation(8000)
    rows, source = table(ids.tolist()), table((ids + 4000).tolist(), rng.permutation(8000).tolist())
    results = []
    for name, data in (
        ("memory", source),
        ("spilled", pa.RecordBatchReader.from_batches(source.schema, source.to_batches(max_chunksize=500))),
    ):
        ds = new(tmp_path / name, rows=rows, stable=stable, per=3000)
        ds.delete("id % 11 = 0")
        merge = ds.merge_insert(on).when_matched_update_all("source.v > target.v").when_not_matched_insert_all()
        counts = merge.when_not_matched_by_source_delete("v < 2000").execute(data)
        columns = ["id", "s", "v", *(VERSIONS if stable else [])]
        results.append((counts, ds.to_table(columns=columns).sort_by("id").to_pydict()))
        assert not list(spilled.iterdir())
    assert results[0] == results[1]

    def failing() -> Any:
        for at, batch in enumerate(source.to_batches(max_chunksize=500)):
            if at == 10:
                assert list(spilled.iterdir())
                raise RuntimeError("mine")
            yield batch

    with pytest.raises(RuntimeError, match="mine"):
        ds.merge_insert("id").when_matched_update_all().execute(failing(), schema=source.schema)
    assert not list(spilled.iterdir())


KEYS = st.one_of(st.none(), st.integers(0, 8), st.sampled_from([-(2**63), 2**63 - 1, 10**12]))


@given(
    st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=20),
    st.lists(st.tuples(KEYS, st.integers(0, 9)), max_size=12),
    st.sampled_from(["update", "newer", "delete", "keep"]),
    st.booleans(),
    st.sampled_from([None, "true", "v < 5"]),
    st.sampled_from(["first", "last"]),
)
def test_merges_equal_those_of_a_plain_model(old, incoming, matched, insert, by_source, keep):
    if matched == "keep" and not insert and by_source is None:
        insert = True
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("n", pa.int64())])
    rows = pa.table([[k for k, _ in old], [v for _, v in old], range(len(old))], schema=schema)
    ds = lancetable.write_dataset(rows, f"memory://{uuid.uuid4()}", max_rows_per_file=6)
    source = pa.table([[k for k, _ in incoming], [v for _, v in incoming]], schema=schema.remove(2))

    builder = ds.merge_insert("k").when_source_repeated(keep)
    if matched in ("update", "newer"):
        builder.when_matched_update_all("source.v > target.v" if matched == "newer" else None)
    elif matched == "delete":
        builder.when_matched_delete()
    if insert:
        builder.when_not_matched_insert_all()
    if by_source is not None:
        builder.when_not_matched_by_source_delete(by_source)
    counts = builder.execute(source)

    chosen: dict[int, int] = {}
    for k, v in incoming:
        if k is not None and (keep == "last" or k not in chosen):
            chosen[k] = v
    expected, seen = [], {"num_inserted_rows": 0, "num_updated_rows": 0, "num_deleted_rows": 0}
    for n, (k, v) in enumerate(old):
        hit = k is not None and k in chosen
        gone = matched == "delete" if hit else by_source == "true" or (by_source is not None and v < 5)
        if gone:
            seen["num_deleted_rows"] += 1
            continue
        changed = hit and (matched == "update" or (matched == "newer" and chosen[k] > v))
        seen["num_updated_rows"] += changed
        expected.append((k, chosen[k] if changed else v, n))
    if insert:
        known = {k for k, _ in old}
        inserted = [(k, v, None) for k, v in incoming if k is None]
        inserted += [(k, v, None) for k, v in chosen.items() if k not in known]
        seen["num_inserted_rows"] = len(inserted)
        expected += inserted
    assert counts == seen
    assert sorted(map(str, ds.to_table().to_pylist())) == sorted(
        str(dict(zip(schema.names, row, strict=True))) for row in expected
    )


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_pylance_finds_changed_rows_through_its_indexes(stable: bool, tmp_path: Path) -> None:
    covered = []
    for library in (lance, lancetable):
        uri = str(tmp_path / library.__name__)
        theirs = lance.write_dataset(
            table(list(range(20))), uri, max_rows_per_file=5, enable_stable_row_ids=stable, data_storage_version="2.1"
        )
        theirs.create_scalar_index("id", "BTREE")
        theirs.create_scalar_index("v", "BTREE")
        ds = library.dataset(uri)
        ds.update({"s": "'new'"}, where="id IN (1, 2, 7)")
        ds.update({"v": "v + 100"}, where="id IN (3, 8)")
        ds.merge_insert("id").when_matched_update_all().execute(table([4, 5], [204, 205]))
        columns = table([10], [210]).select(["id", "v"])
        ds.merge_insert("id").when_matched_update_all().write_mode("rewrite_columns").execute(columns)
        read = lance.dataset(uri)
        found = read.to_table(filter="id IN (1, 3, 4, 10, 11)").sort_by("id")["v"].to_pylist()
        assert found == [1, 103, 204, 210, 11]
        assert read.to_table(filter="v > 99").sort_by("id")["id"].to_pylist() == [3, 4, 5, 8, 10]
        covered.append({index.name: sorted(index.segments[0].fragment_ids) for index in read.describe_indices()})
    assert covered[0] == covered[1]


# --- conflicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_concurrent_changes_of_different_rows_are_both_committed(stable: bool, tmp_path: Path) -> None:
    one = new(tmp_path / "t", stable=stable)
    other, third = lancetable.dataset(one.uri), lance.dataset(one.uri)
    one.update({"v": "100"}, where="id = 1")
    other.update({"v": "200"}, where="id = 2")
    third.delete("id = 3")
    one.merge_insert("id").when_matched_update_all().execute(table([0], [300]))
    final = lancetable.dataset(one.uri)
    assert final.to_table(columns=["id", "v"]).sort_by("id").to_pydict() == {
        "id": [0, 1, 2, 4, 5, 6, 7, 8, 9],
        "v": [300, 100, 200, 4, 5, 6, 7, 8, 9],
    }
    assert final.to_table().num_rows == lance.dataset(one.uri).count_rows()
    if stable:
        assert row_ids(final) == {each: each for each in (0, 1, 2, 4, 5, 6, 7, 8, 9)} == row_ids(lance.dataset(one.uri))


def test_concurrent_changes_of_the_same_rows_are_retried(tmp_path: Path) -> None:
    one = new(tmp_path / "t")
    others = [lancetable.dataset(one.uri) for _ in range(3)]
    one.update({"v": "v + 10"}, where="id = 1")
    others[0].update({"v": "v + 100"}, where="id = 1")
    assert others[0].to_table(filter="id = 1")["v"].to_pylist() == [111]
    counts = others[1].merge_insert("id").when_matched_update_all("target.v != 5").execute(table([1, 5], [7, 7]))
    assert counts["num_updated_rows"] == 1 and others[1].to_table(filter="id = 1")["v"].to_pylist() == [7]
    before = files_below(tmp_path / "t")
    with pytest.raises(RetryableCommitConflictError, match="0 retries"):
        others[2].update({"v": "0"}, where="id = 1", conflict_retries=0)
    with pytest.raises(RetryableCommitConflictError, match="0 retries"):
        others[2].merge_insert("id").when_matched_update_all().conflict_retries(0).execute(table([1]))
    assert files_below(tmp_path / "t") == before
    assert row_ids(lance.dataset(one.uri)) == {each: each for each in range(10)}


@pytest.mark.parametrize("change", ["delete", "update", "delete all"])
def test_a_change_without_retries_names_the_change_that_came_first(tmp_path: Path, change: str) -> None:
    one = new(tmp_path / "t")
    other = lancetable.dataset(one.uri)
    if change == "delete all":
        one.delete("true")
    elif change == "delete":
        one.delete("id = 1")
    else:
        one.update({"v": "7"}, where="id = 1")
    with pytest.raises(RetryableCommitConflictError, match="0 retries") as raised:
        other.update({"v": "0"}, where="id = 1", conflict_retries=0)
    expected = "Update" if change == "update" else "Delete"
    assert (raised.value.version, raised.value.other_operation, raised.value.attempts) == (2, expected, 1)


def test_concurrent_inserts_of_one_primary_key_insert_it_once(tmp_path: Path) -> None:
    key = pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
    schema = pa.schema([key, ("v", pa.int64())])

    def rows(*values: int) -> pa.Table:
        return pa.table([values, values], schema=schema)

    one = new(tmp_path / "t", rows=rows(1))
    other, third = lancetable.dataset(one.uri), lancetable.dataset(one.uri)
    for ds, values in ((one, (2, 3)), (other, (3, 4))):
        ds.merge_insert().when_not_matched_insert_all().execute(rows(*values))
    one.insert(rows(5))
    counts = third.merge_insert().when_not_matched_insert_all().execute(rows(5, 6))
    assert counts["num_inserted_rows"] == 1
    assert third.to_table()["id"].to_pylist() == [1, 2, 3, 4, 5, 6]


# --- columns of another table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_merge_adds_joined_columns(stable: bool, tmp_path: Path) -> None:
    right = pa.table({"k": pa.array([0, 2, 2, 5, 9], pa.int64()), "x": [1.0, 2.0, 3.0, None, 5.0]})
    found = []
    for library in (lance, lancetable):
        uri = str(tmp_path / library.__name__)
        ds = library.write_dataset(table(list(range(6))), uri, max_rows_per_file=4, enable_stable_row_ids=stable)
        ds.delete("id = 1")
        ds.merge(right, "id", "k")
        ds.merge(pa.table({"_rowid": pa.array([0, 3], pa.uint64()), "z": ["a", "b"]}), "_rowid")
        found.append(lance.dataset(uri).to_table(columns=["id", "x", "z", "_rowid", *VERSIONS]).to_pydict())
    assert found[0] == found[1]
    for data, left, key, error in [
        (right, "nope", "k", ColumnNotFoundError),
        (right, "id", "nope", ColumnNotFoundError),
        (right, "v", "k", SchemaMismatchError),
        (right, "id", "k", AlreadyExistsError),
        (right.select(["k"]), "id", "k", InvalidInputError),
    ]:
        with pytest.raises(error):
            ds.merge(data, left, key)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_update_columns_updates_matched_rows_of_a_fragment(stable: bool, tmp_path: Path) -> None:
    found = []
    for library in (lance, lancetable):
        uri = str(tmp_path / library.__name__)
        ds = library.write_dataset(
            table(list(range(6))), uri, max_rows_per_file=4, enable_stable_row_ids=stable, data_storage_version="2.1"
        )
        ds.delete("id = 1")
        fragment = ds.get_fragments()[0]
        data = pa.table({"_rowid": pa.array([2, 3, 5], pa.uint64()), "v": pa.array([20, None, 50], pa.int32())})
        metadata, fields, offsets = fragment.update_columns(data, with_offsets=True)
        operation = library.LanceOperation.Update(
            updated_fragments=[metadata],
            fields_modified=fields,
            update_mode="rewrite_columns",
            updated_fragment_offsets={0: offsets},
        )
        library.LanceDataset.commit(uri, operation, read_version=ds.version)
        read = lance.dataset(uri).to_table(columns=["id", "s", "v", "_rowid", *VERSIONS]).to_pydict()
        found.append((fields, offsets, [list(each.fields) for each in metadata.files], read))
    assert found[0] == found[1]


def test_append_with_schema_merge_extends_the_table(tmp_path: Path) -> None:
    ds = new(tmp_path / "t", rows=table([1, 2]))
    rows = pa.table({"new": [True], "v": pa.array([2**40], pa.int64()), "id": pa.array([3], pa.int8())})
    with pytest.raises(SchemaMismatchError):
        ds.insert(rows)
    ds.insert(rows, schema_mode="merge")
    assert ds.to_table().to_pydict() == {
        "id": [1, 2, 3],
        "s": ["s1", "s2", None],
        "v": [1, 2, 2**40],
        "new": [None, None, True],
    }
    assert ds.schema.field("v").type == pa.int64() and ds.schema.field("id").type == pa.int64()
    assert row_ids(lance.dataset(ds.uri)) == {1: 0, 2: 1, 3: 2}
    with pytest.raises(SchemaMismatchError, match="neither"):
        ds.insert(pa.table({"id": [1], "v": ["x"]}), schema_mode="merge")
    with pytest.raises(InvalidInputError):
        lancetable.write_dataset(rows, ds.uri, mode="overwrite", schema_mode="merge")


def test_schema_merge_extends_structs_and_items_of_lists(tmp_path: Path) -> None:
    inner = pa.struct([("x", pa.int32())])
    first = {
        "s": pa.array([{"x": 1}], inner),
        "l": pa.array([[{"x": 1}]], pa.list_(inner)),
        "f": pa.array([1], pa.int32()),
    }
    ds = lancetable.write_dataset(pa.table(first), tmp_path / "t")
    more = {"l": [[{"y": "a", "x": 2**40}]], "s": [{"y": "b"}], "f": [0.5]}
    ds.insert(pa.table(more), schema_mode="merge")
    rows = [
        {"s": {"x": 1, "y": None}, "l": [{"x": 1, "y": None}], "f": 1.0},
        {"s": {"x": None, "y": "b"}, "l": [{"x": 2**40, "y": "a"}], "f": 0.5},
    ]
    assert ds.to_table().to_pylist() == lance.dataset(ds.uri).to_table().to_pylist() == rows


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        (pa.list_(pa.float32(), 2), pa.list_(pa.float64(), 2)),
        (pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
        (pa.map_(pa.string(), pa.struct([])), pa.map_(pa.string(), pa.struct([("x", pa.int32())]))),
    ],
)
def test_schema_merge_refuses_changes_in_maps_and_vectors(tmp_path: Path, stored: Any, given: Any) -> None:
    ds = lancetable.write_dataset(pa.schema([("c", stored)]).empty_table(), tmp_path / "t")
    with pytest.raises(SchemaMismatchError, match="neither"):
        ds.insert(pa.table({"c": pa.nulls(1, given)}), schema_mode="merge")
    assert lancetable.dataset(ds.uri).version == 1


def test_stable_row_ids_continue_after_truncate(tmp_path: Path) -> None:
    ds = new(tmp_path / "t")
    ds.truncate_table()
    assert ds.count_rows() == 0 and not ds.get_fragments()
    ds.insert(table([1]))
    assert row_ids(ds) == {1: 10} == row_ids(lance.dataset(ds.uri))


def test_windows_of_dense_rows_are_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows between selected rows are read as well if they are few, so windows are limited by the rows read."""
    monkeypatch.setattr(rewritten_rows, "rows_per_window", lambda version, fragment, fields: 4000)
    ds = lancetable.write_dataset(pa.table({"id": pa.array(range(100))}), tmp_path / "t")
    version, fragment = ds.table_version, ds.table_version.manifest.fragments[0]
    for step, expected in ((1, 4000), (2, 4000), (3, 2666), (4, 2000), (5, 4000), (1000, 4000)):
        rows = [(fragment, np.arange(0, 10_000 * step, step, dtype=np.int64))]
        windows = list(rewritten_rows.windows_of(version, [], rows))
        assert {len(each.offsets) for each in windows[:-1]} <= {expected, expected + 1}
        assert np.array_equal(np.concatenate([each.offsets for each in windows]), rows[0][1])
    fourth = np.arange(0, 40_000, 4, dtype=np.int64)
    for uneven in (np.append(fourth, 10**7), np.concatenate([np.arange(40_000), 40_000 + fourth])):
        windows = list(rewritten_rows.windows_of(version, [], [(fragment, uneven)]))
        assert np.array_equal(np.concatenate([each.offsets for each in windows]), uneven)
        spans = [(len(each.offsets), int(each.offsets[-1] - each.offsets[0]) + 1) for each in windows]
        assert all(span <= 8000 for count, span in spans if count * 4 >= span)
