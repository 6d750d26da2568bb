"""Behaviour that code written for pylance relies on besides names and values: messages, warnings, deprecated calls."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable as lance
from lancetable import LanceDataset, LanceOperation
from lancetable.file import LanceFileWriter
from lancetable.optimize import Compaction, CompactionPlan
from lancetable.progress import FileSystemFragmentWriteProgress

TABLE = pa.table({"id": pa.array(range(10)), "s": [f"v{i}" for i in range(10)]})


@pytest.fixture
def ds(tmp_path: Path) -> LanceDataset:
    return lance.write_dataset(TABLE, tmp_path / "t", max_rows_per_file=4)


def overwrite_twice(ds: LanceDataset) -> None:
    operation = LanceOperation.Overwrite(TABLE.schema, [])
    for _ in range(2):
        LanceDataset.commit(ds.uri, operation, read_version=1, max_retries=0)


TEXTS: dict[str, tuple[type[Exception], str, Callable[[LanceDataset], Any]]] = {
    "a filter that does not parse": (ValueError, "Invalid user input: ", lambda ds: ds.to_table(filter="s AN")),
    "a filter of two types": (ValueError, "Invalid user input: ", lambda ds: ds.to_table(filter="s > 10")),
    "an unknown column": (
        ValueError,
        "Invalid user input: No field named foo",
        lambda ds: ds.to_table(filter="foo = 7"),
    ),
    "a filter that is no boolean": (ValueError, "does not return a boolean", lambda ds: ds.to_table(filter="id")),
    "too few new values": (
        OSError,
        "Stream ended before producing values for all rows in dataset",
        lambda ds: ds.add_columns(pa.table({"n": [1]}).to_reader()),
    ),
    "too many new values": (
        OSError,
        "Stream produced more values than expected for dataset",
        lambda ds: ds.add_columns(pa.table({"n": [1] * 11}).to_reader()),
    ),
    "an overwrite that comes too late": (OSError, "Commit conflict for version 2", overwrite_twice),
    "a data file without a schema": (
        ValueError,
        "Schema is unknown and file cannot be created",
        lambda ds: LanceFileWriter(f"{ds.uri}/x.lance").close(),
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_error_messages_are_found_by_clients_of_pylance(ds: LanceDataset, case: str) -> None:
    kind, text, call = TEXTS[case]
    with pytest.raises(kind, match=text):
        call(ds)


def test_error_of_a_lock_without_a_message(ds: LanceDataset) -> None:
    @contextmanager
    def lock(version: int) -> Iterator[None]:
        raise lance.CommitConflictError
        yield

    with pytest.raises(lance.CommitConflictError, match="CommitConflictError: the commit lock refused version 2"):
        lance.dataset(ds.uri, commit_lock=lock).delete("id = 1")


def test_a_merge_with_a_schema_of_arrow_warns(ds: LanceDataset) -> None:
    made = [each.merge_columns({"n": "id + 1"})[0] for each in ds.get_fragments()]
    schema = TABLE.schema.append(pa.field("n", pa.int64()))
    with pytest.warns(DeprecationWarning, match="LanceSchema"):
        operation = LanceOperation.Merge(made, schema)
    assert LanceDataset.commit(ds.uri, operation, read_version=1).to_table().num_columns == 3


def test_config_is_changed_although_the_next_versions_were_removed(ds: LanceDataset) -> None:
    """The changes of those versions are unknown, and do not affect the config."""
    other = lance.dataset(ds.uri)
    for _ in range(3):
        other.insert(TABLE)
    time.sleep(0.01)
    other.cleanup_old_versions(timedelta(0))
    ds.update_config({"a": "b"})
    assert ds.version == 5 and ds.config()["a"] == "b" and ds.count_rows() == 40


def test_compaction_plans_are_compared_by_value(ds: LanceDataset) -> None:
    plan = Compaction.plan(ds, {"target_rows_per_fragment": 8})
    assert plan == CompactionPlan.from_json(plan.json()) and hash(plan) == hash(CompactionPlan.from_json(plan.json()))
    assert plan != Compaction.plan(ds, {"target_rows_per_fragment": 9})
    result = plan.tasks[0].execute(ds)
    assert repr(result).startswith("RewriteResult(read_version=1, new_fragments=[")
    assert "], old_fragments=[FragmentMetadata(id=0, " in repr(result)


def test_progress_of_one_fragment_has_its_id(tmp_path: Path) -> None:
    """Files of a failed write identify their fragment."""

    def rows() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise ZeroDivisionError

    progress = FileSystemFragmentWriteProgress(str(tmp_path / "p"), metadata={"worker": "3"})
    reader = pa.RecordBatchReader.from_batches(TABLE.schema, rows())
    with pytest.raises(ZeroDivisionError):
        lance.LanceFragment.create(tmp_path / "t", reader, fragment_id=7, progress=progress)
    written = {path.name: json.loads(path.read_text()) for path in (tmp_path / "p").iterdir()}
    assert written["fragment_7.in_progress"] == {"fragment_id": 7, "metadata": {"worker": "3"}}
    assert written["fragment_7.json"]["id"] == 7
    assert lance.LanceFragment.create(tmp_path / "t", TABLE, fragment_id=7, progress=progress).id == 7
    assert [path.name for path in (tmp_path / "p").iterdir()] == ["fragment_7.json"]


def test_a_table_in_memory_can_be_created_again(tmp_path: Path) -> None:
    """Each call of pylance uses a new in-memory store; handles on the older table keep it."""
    for uri in ("memory://compatibility/again", "memory://"):
        first = lance.write_dataset(TABLE, uri)
        first.delete("id = 3")
        second = lance.write_dataset(TABLE.slice(0, 2), uri)
        assert (first.count_rows(), second.count_rows(), lance.dataset(uri).count_rows()) == (9, 2, 2)
        first.insert(TABLE)
        assert (first.to_table().num_rows, first.version, second.latest_version) == (19, 3, 1)
        with pytest.raises(lance.AlreadyExistsError):
            lance.write_dataset(TABLE, second, mode="create")
    lance.write_dataset(TABLE, "memory://compatibility/other")
    lance.write_dataset(TABLE, "memory://")
    assert lance.dataset("memory://compatibility/other").count_rows() == 10
    for uri in ("memory://compatibility/again", "memory://compatibility/other"):
        LanceDataset.drop(uri)
    with pytest.raises(lance.AlreadyExistsError):
        for _ in range(2):
            lance.write_dataset(TABLE, tmp_path / "t")
