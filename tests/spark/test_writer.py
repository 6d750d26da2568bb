"""Calls of the writer and the reader as Spark makes them, without a session and Java."""

from __future__ import annotations

import pickle
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import (
    AlreadyExistsError,
    CommitStateUnknownError,
    InvalidInputError,
    RetryableCommitConflictError,
    SchemaMismatchError,
)
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction

st = pytest.importorskip("pyspark.sql.types", reason="PySpark is not installed")

from lancetable.ops import commit as commits  # noqa: E402
from lancetable.spark.data_source import LanceDataSource  # noqa: E402  # after importorskip
from lancetable.spark.options import SourceOptions  # noqa: E402
from lancetable.spark.pinned_version import pin_of  # noqa: E402
from lancetable.spark.reader import LanceReader  # noqa: E402
from lancetable.spark.types import spark_schema, wire_schema  # noqa: E402
from lancetable.spark.writer import LanceWriter  # noqa: E402

SCHEMA = st.StructType([st.StructField("id", st.LongType())])


def options(path: Path, **more: str) -> SourceOptions:
    return SourceOptions.parse({"path": str(path), **more})


def write(writer: LanceWriter, *values: int) -> Any:
    """Run a task like an executor, which has a copy of the writer."""
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


def test_an_overwrite_with_a_version_changes_the_format_of_the_table(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"id": [7]}), path, data_storage_version="2.2")
    writer = LanceWriter(options(path, data_storage_version="2.0"), SCHEMA, overwrite=True)
    writer.commit([write(writer, 1, 2)])
    manifest = lancetable.dataset(path).table_version.manifest
    assert (manifest.data_format, manifest.message.reader_feature_flags) == ("2.0", 0)
    writer = LanceWriter(options(tmp_path / "empty", data_storage_version="2.0"), SCHEMA, overwrite=False)
    writer.commit([])
    assert lancetable.dataset(tmp_path / "empty").data_storage_version == "2.0"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_abort_after_a_successful_commit_removes_nothing(tmp_path: Path, exists: bool, overwrite: bool) -> None:
    """Spark aborts if the committing process dies or returns an error, even if the commit succeeded before."""
    path = tmp_path / "t.lance"
    if exists:
        lancetable.write_dataset(pa.table({"id": [0]}), path)
    writer = LanceWriter(options(path), SCHEMA, overwrite=overwrite)
    messages = [write(writer, 1), None, write(writer, 2)]
    pickle.loads(pickle.dumps(writer)).commit(messages)
    pickle.loads(pickle.dumps(writer)).abort(messages)
    expected = [0, 1, 2] if exists and not overwrite else [1, 2]
    assert lancetable.dataset(path).to_table()["id"].to_pylist() == expected
    # Committing once more does not commit twice.
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


def test_change_with_a_lower_number_is_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.table({"id": [0]}), path)

    def run(number: int) -> None:
        writer = LanceWriter(options(path, txnAppId="app", txnVersion=str(number)), SCHEMA, overwrite=False)
        pickle.loads(pickle.dumps(writer)).commit([write(writer, number)])

    run(7)
    run(7)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
    run(3)
    assert "change 3 of 'app' is skipped, because its change 7 was committed before" in caplog.text
    assert lancetable.dataset(path).to_table()["id"].to_pylist() == [0, 7]
    assert len(data_files(path)) == 2


def test_an_application_without_a_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="txnAppId 'app' requires txnVersion"):
        LanceWriter(options(tmp_path / "t.lance", txnAppId="app"), SCHEMA, overwrite=False)


def test_timestamp_on_a_branch_selects_a_version_of_the_branch(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    main = lancetable.write_dataset(pa.table({"id": [0]}), path)
    branch = main.create_branch("side")
    branch.insert(pa.table({"id": [1]}))
    moment = datetime.now().isoformat()
    branch.insert(pa.table({"id": [2]}))
    main.insert(pa.table({"id": [3]}))
    pin = pin_of(options(path, branch="side", timestampAsOf=moment))
    assert pin.open().uri.endswith("side") and pin.version == branch.version - 1
    with pytest.raises(InvalidInputError, match="exclude each other, because a tag belongs to one branch"):
        pin_of(options(path, branch="side", tag="here"))


def append(path: Path, frame: pa.Table) -> None:
    """Append a frame as Spark does."""
    schema = spark_schema(frame.schema)
    writer = LanceWriter(options(path), schema, overwrite=False)
    batches = frame.cast(wire_schema(schema)).to_batches()
    writer.commit([pickle.loads(pickle.dumps(writer)).write(iter(batches))])


X, XY, Y = (pa.struct([(name, pa.int64()) for name in names]) for names in ("x", "xy", "y"))
UTC, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("given", "value", "stored", "message"),
    [
        (XY, {"x": 1, "y": 2}, X, "field 'c.y' of the frame is not in the table .*mergeSchema"),
        (Y, {"y": 2}, X, "field 'c.y' of the frame is not in the table .*mergeSchema"),
        (
            pa.list_(XY),
            [{"x": 1, "y": 2}],
            pa.list_(X),
            "field 'c.item.y' of the frame is not in the table .*mergeSchema",
        ),
        (
            pa.map_(pa.string(), XY),
            [("a", {"x": 1, "y": 2})],
            pa.map_(pa.string(), X),
            "field 'c.entries.value.y' of the frame is not in the table .*drop",
        ),
        (UTC, datetime(2026, 1, 1, tzinfo=timezone.utc), NAIVE, "time zone of the session"),
        (NAIVE, datetime(2026, 1, 1), UTC, "time zone of the session"),
        (pa.date32(), date(2026, 1, 1), UTC, "time zone of the session"),
        (UTC, datetime(2026, 1, 1, tzinfo=timezone.utc), pa.date32(), "time zone of the session"),
        (pa.float64(), 1.239, pa.decimal128(10, 2), "would change values"),
        (pa.int64(), 7, pa.bool_(), "would change values"),
        (pa.list_(pa.float64()), [1e300], pa.list_(pa.float32(), 1), "1e[+]300 not in range of float"),
        (pa.float64(), 1e300, pa.float32(), "1e[+]300 not in range of float"),
        (pa.float64(), 0.5, pa.int64(), "truncated"),
        (pa.int64(), None, pa.field("c", pa.int64(), nullable=False), "(?i)null"),
        (pa.list_(pa.int64()), [None], pa.list_(pa.field("item", pa.int64(), nullable=False)), "(?i)null"),
    ],
)
def test_an_append_that_would_change_values_is_refused(
    tmp_path: Path, given: pa.DataType, value: Any, stored: pa.DataType | pa.Field, message: str
) -> None:
    path = tmp_path / "t.lance"
    field = stored if isinstance(stored, pa.Field) else pa.field("c", stored)
    lancetable.write_dataset(pa.schema([field]).empty_table(), path)
    with pytest.raises((SchemaMismatchError, InvalidInputError), match=message):
        append(path, pa.table({"c": pa.array([value], given)}))
    assert lancetable.dataset(path).count_rows() == 0


def test_append_fills_missing_columns_with_nulls(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    lancetable.write_dataset(pa.schema([("a", pa.int64()), ("c", XY)]).empty_table(), path)
    append(path, pa.table({"c": pa.array([{"y": 1}], Y)}))
    append(path, pa.table({"a": [1]}))
    found = lancetable.dataset(path).to_table().to_pylist()
    assert found == [{"a": None, "c": {"x": None, "y": 1}}, {"a": 1, "c": None}]


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
    main.tags.delete("here")  # the pinned version no longer depends on the tag
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert sorted(value for batch in batches for value in batch["id"].to_pylist()) == [0, 1]
