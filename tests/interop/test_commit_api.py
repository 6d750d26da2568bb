"""`commit`, `commit_batch` and the calls that read transactions, on both libraries.

A call that succeeds must return the same values. A call that fails must raise an error that an `except` clause for
pylance catches; the class that pylance raises is given with the call.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import lance.commit
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidOperationError

pytestmark = pytest.mark.filterwarnings("ignore:.*a pyarrow.Schema:DeprecationWarning")

ROWS = pa.table({"id": pa.array(range(4), pa.int64()), "s": ["a", "b", "c", "d"]})
OPTIONS = {"data_storage_version": "2.0"}
Call = Callable[[Any, str], Any]


def fresh(module: Any, directory: Path) -> str:
    uri = str(directory / f"{module.__name__}.lance")
    module.write_dataset(ROWS, uri, **OPTIONS)
    return uri


def fragments(module: Any, uri: str) -> list[Any]:
    made: list[Any] = module.fragment.write_fragments(ROWS.slice(0, 2), uri, **OPTIONS)
    return made


def told(dataset: Any) -> tuple[Any, ...]:
    """Return the version, its transaction and the number of rows."""
    transaction = dataset.read_transaction(dataset.version)
    properties = transaction.transaction_properties
    operation = type(transaction.operation).__name__
    return dataset.version, transaction.read_version, operation, properties, dataset.count_rows()


def append(module: Any, uri: str, **options: Any) -> Any:
    operation = module.LanceOperation.Append(fragments(module, uri))
    return module.LanceDataset.commit(uri, operation, **{"read_version": 1, **options})


def append_transaction(module: Any, uri: str, read_version: int = 1, **properties: str) -> Any:
    operation = module.LanceOperation.Append(fragments(module, uri))
    return module.Transaction(read_version, operation, transaction_properties=properties)


class Lock:
    """Lock that records its use by a commit."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    @contextlib.contextmanager
    def __call__(self, version: int) -> Iterator[None]:
        self.log.append(version)
        yield
        self.log.append("released")


def with_lock(module: Any, uri: str) -> Any:
    lock = Lock()
    return told(append(module, uri, commit_lock=lock)), lock.log


def detached(module: Any, uri: str) -> Any:
    made = append(module, uri, detached=True)
    version = made.version
    seen = [each.dataset(uri, version=version).count_rows() for each in (lance, lancetable)]
    versions = [each["version"] for each in module.dataset(uri).versions()]
    kinds = sorted(name[0] for name in os.listdir(f"{uri}/_versions"))
    return version >> 63, told(made)[1:], seen, module.dataset(uri).version, versions, kinds


def detached_on_detached(module: Any, uri: str) -> Any:
    first = append(module, uri, detached=True)
    operation = module.LanceOperation.Append(fragments(module, uri))
    second = module.LanceDataset.commit(first, operation, read_version=first.version, detached=True)
    return second.version >> 63, second.count_rows()


def batch(module: Any, uri: str) -> Any:
    module.write_dataset(ROWS, uri, mode="append")
    parts = [append_transaction(module, uri, 1, a="1"), append_transaction(module, uri, 2, a="2")]
    result = module.LanceDataset.commit_batch(uri, parts)
    merged, dataset = result["merged"], result["dataset"]
    same = merged.uuid == dataset.read_transaction(3).uuid
    return sorted(result), told(dataset), merged.read_version, len(merged.operation.fragments), same


def batch_of_one(module: Any, uri: str) -> Any:
    part = append_transaction(module, uri, a="1")
    merged = module.LanceDataset.commit_batch(uri, [part])["merged"]
    return merged.uuid == part.uuid, merged.transaction_properties, merged.read_version


def recent(module: Any, uri: str) -> Any:
    for _ in range(11):
        module.write_dataset(ROWS, uri, mode="append")
    dataset = module.dataset(uri)
    names = [type(each.operation).__name__ for each in dataset.get_transactions(100)]
    counts = [len(dataset.get_transactions(number)) for number in (0, 1, 3)]
    return names, counts, len(dataset.get_transactions()), len(module.dataset(uri, version=3).get_transactions())


def all_maps(module: Any, uri: str) -> Any:
    kinds = module.LanceOperation
    maps = [kinds.UpdateMap({key: "1", "none": None}) for key in "abcd"]
    operation = kinds.UpdateConfig(maps[0], maps[1], maps[2], {1: maps[3]})
    dataset = module.LanceDataset.commit(uri, operation, read_version=1)
    read = dataset.read_transaction(2).operation
    return dataset.schema.metadata, dataset.schema.field("s").metadata, dataset.config(), repr(read)


def bases(module: Any, uri: str) -> Any:
    dataset = module.dataset(uri)
    added = [module.DatasetBasePath("/some/where", "n", True), module.DatasetBasePath("/else/where", id=7)]
    same = dataset.add_bases(added, {"k": "v"}) is dataset
    found = {number: (base.name, base.path, base.is_dataset_root) for number, base in dataset.base_paths().items()}
    return same, dataset.version, found, dataset.read_transaction(2).transaction_properties


def index_entries(module: Any, uri: str) -> Any:
    index = importlib.import_module(f"{module.__name__}.dataset").Index
    details = ("/lance.index.pb.BTreeIndexDetails", b"")
    uuid = "5c1a1f0e-7f53-4ac0-90b5-0dbbf1b2a1d4"
    entry = index(uuid, "s_idx", [1], 1, {0}, 0, index_details=details)
    operation = module.LanceOperation.CreateIndex([entry], [])
    dataset = module.LanceDataset.commit(uri, operation, read_version=1)
    read = dataset.read_transaction(2).operation.new_indices[0]
    dropped = module.LanceDataset.commit(uri, module.LanceOperation.CreateIndex([], [entry]), read_version=2)
    facts = (read.uuid, read.name, read.fields, read.dataset_version, set(read.fragment_ids), read.index_version)
    return facts, read.index_details, dropped.version, len(lance.dataset(uri).describe_indices())


def merge(module: Any, uri: str, change: Callable[[list[Any]], list[Any]]) -> Any:
    """Commit a Merge that keeps the schema and replaces the fragments with the result of `change`."""
    dataset = module.dataset(uri)
    found = change([fragment.metadata for fragment in dataset.get_fragments()])
    operation = module.LanceOperation.Merge(found, dataset.lance_schema)
    return module.LanceDataset.commit(uri, operation, read_version=dataset.version)


def merge_with_new_rows(module: Any, uri: str) -> Any:
    """Merge new fragments with the id 0, like the first existing one, and with a reserved id."""
    new, reserved = fragments(module, uri), fragments(module, uri)
    reserved[0].id = 7
    merged = merge(module, uri, lambda found: [*found, *new, *reserved])
    merged.insert(ROWS)
    return [fragment.fragment_id for fragment in merged.get_fragments()], merged.count_rows()


def changed(found: list[Any], **fields: Any) -> list[Any]:
    """Return the fragments, with fields of the first one replaced."""
    text = {**json.loads(json.dumps(found[0].to_json())), **fields}
    return [type(found[0]).from_json(json.dumps(text)), *found[1:]]


def without_fields(module: Any, uri: str) -> list[Any]:
    """Return a fragment with a data file that lists no fields."""
    found = fragments(module, uri)
    file = {**json.loads(json.dumps(found[0].to_json()))["files"][0], "fields": [], "column_indices": []}
    return changed(found, files=[file])


def old_table(module: Any, uri: str) -> str:
    module.write_dataset(ROWS, f"{uri}0", data_storage_version="0.1")
    return f"{uri}0"


def part_of_old_table(module: Any, uri: str) -> Any:
    uri = old_table(module, uri)
    found = module.fragment.write_fragments(ROWS.select(["id"]), uri, data_storage_version="0.1", mode="overwrite")
    return module.LanceDataset.commit(uri, module.LanceOperation.Append(found), read_version=1)


def column_of_old_table(module: Any, uri: str) -> Any:
    uri = old_table(module, uri)
    found = [fragment.metadata for fragment in module.dataset(uri).get_fragments()]
    operation = module.LanceOperation.Merge(found, ROWS.schema.append(pa.field("n", pa.int64())))
    return module.LanceDataset.commit(uri, operation, read_version=1)


WORK: dict[str, Call] = {
    "merge with new rows": merge_with_new_rows,
    "append": lambda m, uri: told(append(m, uri)),
    "message": lambda m, uri: told(append(m, uri, commit_message="hello")),
    "transaction": lambda m, uri: told(m.LanceDataset.commit(uri, append_transaction(m, uri, a="b"))),
    "no retries": lambda m, uri: told(append(m, uri, max_retries=0)),
    "no limit": lambda m, uri: told(append(m, uri, commit_timeout=None)),
    "create": lambda m, uri: told(m.LanceDataset.commit(uri + "2", m.LanceOperation.Overwrite(ROWS.schema, []))),
    "V1 names": lambda m, uri: (
        m.LanceDataset.commit(
            uri + "2", m.LanceOperation.Overwrite(ROWS.schema, []), enable_v2_manifest_paths=False
        ).version,
        os.listdir(f"{uri}2/_versions"),
    ),
    "lock": with_lock,
    "detached": detached,
    "detached on detached": detached_on_detached,
    "batch": batch,
    "batch of one": batch_of_one,
    "recent": recent,
    "all maps": all_maps,
    "bases": bases,
    "index entries": index_entries,
}


def commit(operation: str, *arguments: Any, **options: Any) -> Call:
    """Return a call that commits an operation of this name on version 1."""

    def call(module: Any, uri: str) -> Any:
        made = getattr(module.LanceOperation, operation)(*arguments)
        return module.LanceDataset.commit(uri, made, **{"read_version": 1, **options})

    return call


def twice(operation: str, *arguments: Any) -> Call:
    once = commit(operation, *arguments)

    def call(module: Any, uri: str) -> Any:
        once(module, uri)
        return once(module, uri)

    return call


def refusing(version: int) -> Any:
    raise ValueError("no lock")


def after(change: Call, call: Call) -> Call:
    def both(module: Any, uri: str) -> Any:
        change(module, uri)
        return call(module, uri)

    return both


FAIL: dict[str, tuple[Call, type[BaseException]]] = {
    "message and transaction": (
        lambda m, uri: m.LanceDataset.commit(uri, append_transaction(m, uri), commit_message="x"),
        ValueError,
    ),
    "no read version": (commit("Append", [], read_version=None), ValueError),
    "no operation": (lambda m, uri: m.LanceDataset.commit(uri, "x", read_version=1), TypeError),
    "no uri": (lambda m, uri: m.LanceDataset.commit(5, m.LanceOperation.Append([]), read_version=1), TypeError),
    "no such read version": (commit("Append", [], read_version=99), OSError),
    "no table": (lambda m, uri: append(m, uri + "2"), OSError),
    "no version to restore": (commit("Restore", 9, read_version=None), OSError),
    "negative retries": (commit("Append", [], max_retries=-1), OverflowError),
    "no time": (commit("Append", [], commit_timeout=timedelta(0)), OSError),
    "negative time": (commit("Append", [], commit_timeout=timedelta(seconds=-1)), ValueError),
    "time without a unit": (commit("Append", [], commit_timeout=5), TypeError),
    "lock that is none": (commit("Append", [], commit_lock="x"), TypeError),
    "lock that raises": (commit("Append", [], commit_lock=refusing), OSError),
    "batch of nothing": (lambda m, uri: m.LanceDataset.commit_batch(uri, []), OSError),
    "batch of deletes": (
        lambda m, uri: m.LanceDataset.commit_batch(uri, [m.Transaction(1, m.LanceOperation.Delete([], [], ""))]),
        OSError,
    ),
    "batch without time": (
        lambda m, uri: m.LanceDataset.commit_batch(uri, [append_transaction(m, uri)], commit_timeout=timedelta(0)),
        OSError,
    ),
    "transaction of a missing version": (lambda m, uri: m.dataset(uri).read_transaction(99), OSError),
    "retryable conflict": (twice("Delete", [], [0], "true"), OSError),
    "incompatible conflict": (
        after(
            lambda m, uri: m.write_dataset(ROWS, uri, mode="overwrite"),
            commit("Delete", [], [0], "true"),
        ),
        OSError,
    ),
    "strict overwrite": (
        after(
            lambda m, uri: m.write_dataset(ROWS, uri, mode="append"),
            commit("Overwrite", ROWS.schema, [], max_retries=0),
        ),
        OSError,
    ),
    "unknown field": (
        lambda m, uri: m.LanceDataset.commit(
            uri,
            m.LanceOperation.UpdateConfig(field_metadata_updates={9: m.LanceOperation.UpdateMap({"k": "v"})}),
            read_version=1,
        ),
        OSError,
    ),
    "clone": (commit("Clone", True, "x", 1, "/x", None), OSError),
    "merge without a fragment": (lambda m, uri: merge(m, uri, lambda found: []), OSError),
    "merge with another fragment instead": (
        lambda m, uri: merge(m, uri, lambda found: changed(fragments(m, uri), id=7)),
        OSError,
    ),
    "merge with other rows": (lambda m, uri: merge(m, uri, lambda found: changed(found, physical_rows=3)), OSError),
    "append of a file without fields": (
        lambda m, uri: m.LanceDataset.commit(uri, m.LanceOperation.Append(without_fields(m, uri)), read_version=1),
        OSError,
    ),
    "overwrite with a file without fields": (
        lambda m, uri: m.LanceDataset.commit(uri, m.LanceOperation.Overwrite(ROWS.schema, without_fields(m, uri))),
        OSError,
    ),
    "update with a file without fields": (
        lambda m, uri: m.LanceDataset.commit(
            uri, m.LanceOperation.Update(new_fragments=without_fields(m, uri)), read_version=1
        ),
        OSError,
    ),
    "part of a 0.1 table": (part_of_old_table, OSError),
    "column of a 0.1 table": (column_of_old_table, OSError),
    "fewer than no transactions": (lambda m, uri: m.dataset(uri).get_transactions(-1), OverflowError),
    "no number of transactions": (lambda m, uri: m.dataset(uri).get_transactions(None), TypeError),
    "base that is there": (
        lambda m, uri: [m.dataset(uri).add_bases([m.DatasetBasePath("/some/where")]) for _ in range(2)],
        ValueError,
    ),
    "child of a detached version": (
        lambda m, uri: [
            m.LanceDataset.commit(each, m.LanceOperation.Append([]), read_version=each.version)
            for each in [append(m, uri, detached=True)]
        ],
        OSError,
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_results_equal_those_of_pylance(name: str, tmp_path: Path) -> None:
    theirs, ours = (WORK[name](module, fresh(module, tmp_path)) for module in (lance, lancetable))
    assert ours == theirs


@pytest.mark.parametrize("name", FAIL)
def test_errors_are_caught_by_clauses_for_pylance(name: str, tmp_path: Path) -> None:
    call, kind = FAIL[name]
    with pytest.raises(kind) as theirs:
        call(lance, fresh(lance, tmp_path))
    uri = fresh(lancetable, tmp_path)
    with pytest.raises(kind) as ours:
        call(lancetable, uri)
    if isinstance(theirs.value, lance.commit.CommitConflictError) and name != "strict overwrite":
        assert isinstance(ours.value, lancetable.commit.CommitConflictError)
        assert ours.value.retryable == theirs.value.retryable


def test_intended_differences(tmp_path: Path) -> None:
    """A transaction committed twice is one commit; a detached version is based on the version it was prepared on."""
    uri = fresh(lancetable, tmp_path)
    transaction = append_transaction(lancetable, uri)
    versions = [lancetable.LanceDataset.commit(uri, transaction).version for _ in range(2)]
    assert versions == [2, 2]
    stale = append(lancetable, uri, detached=True)
    assert stale.count_rows() == 4 + 2
    with pytest.raises(InvalidOperationError, match="commit_timeout"):
        append(lancetable, uri, commit_timeout=timedelta(0))
