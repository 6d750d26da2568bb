"""What Spark calls on the writer and the reader, called directly: no session, no Java."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import AlreadyExistsError, CommitStateUnknownError, RetryableCommitConflictError
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction

st = pytest.importorskip("pyspark.sql.types", reason="PySpark is not installed")

from lancetable.ops import commit as commits  # noqa: E402
from lancetable.spark.options import SourceOptions  # noqa: E402
from lancetable.spark.reader import LanceReader  # noqa: E402
from lancetable.spark.source import LanceDataSource  # noqa: E402
from lancetable.spark.writer import LanceWriter  # noqa: E402

SCHEMA = st.StructType([st.StructField("id", st.LongType())])


def options(path: Path, **more: str) -> SourceOptions:
    return SourceOptions.parse({"path": str(path), **more})


def write(writer: LanceWriter, *values: int) -> Any:
    """A task on an executor, which has a copy of the writer."""
    copy = pickle.loads(pickle.dumps(writer))
    return copy.write(iter([pa.record_batch({"id": pa.array(values, pa.int64())})]))


def data_files(path: Path) -> set[str]:
    return {each.name for each in (path / "data").glob("*")}


def test_a_table_that_appears_during_the_job_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    writer = LanceWriter(options(path), SCHEMA, overwrite=False)
    message = write(writer, 1, 2)
    lancetable.write_dataset(pa.table({"id": [7]}), path)
    with pytest.raises(AlreadyExistsError):
        writer.commit([message])
    writer.abort([message])
    assert lancetable.dataset(path).to_table()["id"].to_pylist() == [7]
    assert len(data_files(path)) == 1


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_abort_after_a_commit_that_landed_removes_nothing(tmp_path: Path, exists: bool, overwrite: bool) -> None:
    """Spark aborts when the process that committed died, or answered with an error, whatever had happened by then."""
    path = tmp_path / "t.lance"
    if exists:
        lancetable.write_dataset(pa.table({"id": [0]}), path)
    writer = LanceWriter(options(path), SCHEMA, overwrite=overwrite)
    messages = [write(writer, 1), None, write(writer, 2)]
    pickle.loads(pickle.dumps(writer)).commit(messages)
    pickle.loads(pickle.dumps(writer)).abort(messages)
    expected = [0, 1, 2] if exists and not overwrite else [1, 2]
    assert lancetable.dataset(path).to_table()["id"].to_pylist() == expected
    # Committing once more is no second commit.
    version = lancetable.dataset(path).version
    if exists:
        pickle.loads(pickle.dumps(writer)).commit(messages)
    assert lancetable.dataset(path).version == version


def test_abort_after_an_unknown_outcome_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"id": [0]}), path)
    writer = LanceWriter(options(path), SCHEMA, overwrite=False)
    message = write(writer, 1)
    landed = commits.commit

    def lose(*args: Any, **kwargs: Any) -> None:
        landed(*args, **kwargs)
        raise CommitStateUnknownError("no reply")

    monkeypatch.setattr(commits, "commit", lose)
    with pytest.raises(CommitStateUnknownError):
        writer.commit([message])
    writer.abort([message])
    assert lancetable.dataset(path).to_table()["id"].to_pylist() == [0, 1]


def test_abort_after_a_conflict_removes_the_files(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    first = lancetable.write_dataset(pa.table({"id": [0]}), path)
    writer = LanceWriter(options(path), SCHEMA, overwrite=False)
    message = write(writer, 1)
    schema = first.table_version.schema
    commits.commit(
        first.table_version, Transaction.create(1, tx.Merge(tuple(first.table_version.manifest.fragments), schema))
    )
    with pytest.raises(RetryableCommitConflictError):
        writer.commit([message])
    assert len(data_files(path)) == 2
    writer.abort([message])
    assert len(data_files(path)) == 1


def test_a_tag_on_a_branch_is_read_from_the_branch(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    main = lance.write_dataset(pa.table({"id": [0]}), str(path))
    branch = main.create_branch("side")
    branch = lance.write_dataset(pa.table({"id": [1]}), branch, mode="append")
    lance.write_dataset(pa.table({"id": [5]}), str(path), mode="append")
    main.tags.create("here", ("side", branch.version))
    source = LanceDataSource({"path": str(path), "tag": "here"})
    reader = pickle.loads(pickle.dumps(source.reader(source.schema())))
    assert isinstance(reader, LanceReader)
    main.tags.delete("here")  # what was pinned does not depend on it any more
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sorted(value for batch in batches for value in batch["id"].to_pylist()) == [0, 1]
