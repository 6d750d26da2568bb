"""The public API and pylance on the same tables: equal results, and commits of what the other library wrote."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable

lance = pytest.importorskip("lance")

SCHEMA = pa.schema({"id": pa.int64(), "s": pa.string(), "p": pa.struct({"x": pa.float64(), "l": pa.list_(pa.int32())})})


def rows(first: int, number: int) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"id": i, "s": None if i % 5 == 0 else f"v{i}", "p": {"x": i / 4, "l": list(range(i % 3))}}
            for i in range(first, first + number)
        ],
        schema=SCHEMA,
    )


@pytest.fixture(params=["ours", "theirs"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any]:
    """Open one table with both libraries: 20 rows in files of 6, some deleted, a tag, an old version."""
    writer: Any = lancetable if request.param == "ours" else lance
    uri = str(tmp_path / "t.lance")
    ds = writer.write_dataset(rows(0, 20), uri, max_rows_per_file=6, data_storage_version="2.0", commit_message="one")
    ds.delete("id IN (1, 2, 7)")
    ds.insert(rows(20, 5))
    ds.tags.create("t", 2)
    return lancetable.dataset(uri), lance.dataset(uri)


ANSWERS = [
    lambda ds: ds.schema,
    lambda ds: ds.lance_schema.to_pyarrow(),
    lambda ds: [(f.name(), f.id(), f.metadata, [c.id() for c in f.children()]) for f in ds.lance_schema.fields()],
    lambda ds: (ds.version, ds.latest_version, ds.data_storage_version, ds.max_field_id, ds.has_index),
    lambda ds: (ds.has_stable_row_ids, ds.metadata, ds.schema_metadata, ds.config(), len(ds)),
    lambda ds: [(each["version"], each["metadata"]) for each in ds.versions()],
    lambda ds: ds.version_refs(),
    lambda ds: ds.get_version()["metadata"],
    lambda ds: ds.tags.list(),
    lambda ds: ds.tags.list_ordered("asc"),
    lambda ds: set(ds.fragment_ids()),
    lambda ds: [f.metadata.to_json() for f in ds.get_fragments()],
    lambda ds: [repr(f.metadata) for f in ds.get_fragments()],
    lambda ds: [(f.fragment_id, f.physical_rows, f.num_deletions, f.deletion_file()) for f in ds.get_fragments()],
    lambda ds: [(repr(f.data_files()), f.schema, f.count_rows(), f.count_rows("id > 3")) for f in ds.get_fragments()],
    lambda ds: ds.stats.dataset_stats(),
    lambda ds: ds.stats.dataset_stats(5),
    lambda ds: [(each.id, each.bytes_on_disk) for each in ds.stats.data_stats().fields],
    lambda ds: [type(each.operation).__name__ for each in ds.get_transactions()],
    lambda ds: [(each.uuid, each.read_version, each.transaction_properties) for each in ds.get_transactions()],
    lambda ds: repr(ds.read_transaction(2)),
    lambda ds: repr(ds.read_transaction(3)),
    lambda ds: repr(ds.checkout_version("t").get_fragments()[0].metadata),
    lambda ds: ds.count_rows("s IS NULL"),
    lambda ds: ds.to_table(),
    lambda ds: ds.to_table(columns=["p.x", "id"]),
    lambda ds: ds.to_table(columns={"y": "id * 2", "s": "s"}),
    lambda ds: ds.to_table(columns=["id"], filter="p.x > 2.5 AND s IS NOT NULL"),
    lambda ds: ds.to_table(filter=(pc.field("id") > 3) & (pc.field("id") < 22)),
    lambda ds: ds.to_table(columns=["id"], with_row_id=True, with_row_address=True, limit=4, offset=3),
    lambda ds: ds.to_table(columns=["id", "_rowoffset", "_rowid"]),
    lambda ds: ds.to_table(columns=["id"], with_row_id=True, include_deleted_rows=True),
    lambda ds: ds.to_table(columns=[], with_row_id=True),
    lambda ds: ds.to_table(columns=["id", "s"], order_by=["s", "id"]),
    lambda ds: ds.head(3, columns=["id"], filter="id > 5"),
    lambda ds: ds.slice(2, 9),
    lambda ds: ds.take([16, 0, 0, 3]),
    lambda ds: ds.take([1, 5], columns=["p.x"]),
    lambda ds: ds.take([1, 5], columns={"z": "id + 1"}),
    lambda ds: ds.take([1], columns=["_rowid", "id"]),
    lambda ds: ds._take_rows([0, 1, 3, 1 << 32]),
    lambda ds: ds.scanner(fragments=[ds.get_fragment(2), ds.get_fragment(0)], columns=["id"]).to_table(),
    lambda ds: ds.scanner(columns=["id"], filter="id > 5").count_rows(),
    lambda ds: ds.scanner(columns=["p.l", "id"]).projected_schema,
    lambda ds: ds.get_fragment(1).take([0, 2]),
    lambda ds: ds.get_fragment(1).head(2),
    lambda ds: ds.get_fragment(0).to_table(columns=["id"], filter="id > 2", with_row_id=True),
    lambda ds: ds.to_pandas(columns=["id", "s"]).to_dict("list"),
    lambda ds: ds.checkout_version(1).count_rows(),
    lambda ds: sorted(ds.all_files().read_all().drop(["last_modified"]).to_pylist(), key=lambda row: row["path"]),
]


@pytest.mark.parametrize("question", ANSWERS, ids=range(len(ANSWERS)))
def test_both_libraries_return_the_same(pair: tuple[Any, Any], question: Any) -> None:
    ours, theirs = (question(ds) for ds in pair)
    if isinstance(ours, pa.Table):
        assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert ours == theirs


def same_history(ours: Any, theirs: Any) -> None:
    for our, their in zip(ours.versions(), theirs.versions(), strict=True):
        assert (our["version"], our["metadata"]) == (their["version"], their["metadata"])
        # pylance converts to a float, which rounds; lancetable truncates.
        assert abs(our["timestamp"] - their["timestamp"]) <= timedelta(microseconds=1)


def test_histories_agree(pair: tuple[Any, Any]) -> None:
    same_history(*pair)


def test_each_library_commits_fragments_of_the_other(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    written = lancetable.fragment.write_fragments(rows(100, 3), ours)
    foreign = [lance.FragmentMetadata.from_json(json.dumps(fragment.to_json())) for fragment in written]
    committed = lance.LanceDataset.commit(theirs.uri, lance.LanceOperation.Append(foreign), read_version=3)
    assert committed.to_table(filter="id >= 100") == rows(100, 3)
    written = lance.fragment.write_fragments(rows(200, 3), theirs.uri, data_storage_version="2.0")
    native = [lancetable.FragmentMetadata.from_json(json.dumps(fragment.to_json())) for fragment in written]
    back = lancetable.LanceDataset.commit(ours.uri, lancetable.LanceOperation.Append(native), read_version=4)
    assert back.to_table(filter="id >= 200") == rows(200, 3)
    assert lance.dataset(ours.uri).to_table() == back.to_table()


def test_each_library_commits_deletions_of_the_other(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    left = ours.get_fragment(1).delete("id = 8")
    foreign = lance.FragmentMetadata.from_json(json.dumps(left.to_json()))
    lance.LanceDataset.commit(theirs.uri, lance.LanceOperation.Delete([foreign], [], "id = 8"), read_version=3)
    left = lance.dataset(theirs.uri).get_fragment(2).delete("id = 13")
    native = lancetable.FragmentMetadata.from_json(json.dumps(left.to_json()))
    operation = lancetable.LanceOperation.Delete([native], [], "id = 13")
    result = lancetable.LanceDataset.commit(ours.uri, operation, read_version=4)
    assert lance.dataset(ours.uri).to_table() == result.to_table()
    assert result.count_rows("id IN (8, 13)") == 0


@pytest.mark.parametrize("seed", range(4))
def test_alternating_commits_agree(tmp_path: Path, seed: int) -> None:
    uri = str(tmp_path / "t.lance")
    choose = random.Random(seed)
    lancetable.write_dataset(rows(0, 10), uri, max_rows_per_file=4)
    next_id = 10
    for step in range(12):
        writer: Any = choose.choice([lancetable, lance])
        ds = writer.dataset(uri)
        action = choose.choice(["append", "append", "delete", "delete", "overwrite", "restore", "tag", "truncate"])
        if action == "append":
            ds.insert(rows(next_id, choose.randrange(0, 6)))
            next_id += 6
        elif action == "delete":
            ds.delete(f"id % {choose.randrange(2, 6)} = {choose.randrange(3)}")
        elif action == "overwrite":
            ds.insert(rows(next_id, 9), mode="overwrite", max_rows_per_file=5)
            next_id += 9
        elif action == "restore":
            writer.dataset(uri, version=choose.randrange(1, ds.version + 1)).restore()
        elif action == "tag":
            ds.tags.create(f"t{step}", choose.randrange(1, ds.version + 1))
        else:
            ds.truncate_table()
        ours, theirs = lancetable.dataset(uri), lance.dataset(uri)
        assert ours.version == theirs.version, (step, action)
        assert ours.to_table(with_row_id=True) == theirs.to_table(with_row_id=True), (step, action)
        same_history(ours, theirs)
        assert ours.tags.list() == theirs.tags.list()
        theirs.validate()
        ours.validate()
    for version in range(1, ours.version + 1):
        assert lancetable.dataset(uri, version=version).to_table() == lance.dataset(uri, version=version).to_table()
