"""Every documented error of pylance: the same `except` clauses catch the errors of lancetable, which have their own
classes.
"""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import lancetable as lance
from lancetable import LanceDataset, LanceOperation, errors
from lancetable.fragment import write_fragments
from lancetable.testing.os_faults import failing

VE, OE, TE, OF = ValueError, OSError, TypeError, OverflowError
TABLE = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "s": ["a", "b", None]})

Case = tuple[str, type[BaseException], type[BaseException], Callable[[LanceDataset, Path], Any]]

# situation, class of pylance, class of lancetable, call
CASES: list[Case] = [
    # dataset()
    ("missing table", VE, errors.DatasetNotFoundError, lambda ds, tmp: lance.dataset(tmp / "no")),
    ("empty directory", VE, errors.DatasetNotFoundError, lambda ds, tmp: lance.dataset(empty_directory(tmp))),
    ("missing version", VE, errors.VersionNotFoundError, lambda ds, tmp: lance.dataset(ds.uri, version=9)),
    ("unknown tag", VE, errors.RefNotFoundError, lambda ds, tmp: lance.dataset(ds.uri, version="no")),
    ("before version 1", VE, errors.VersionNotFoundError, lambda ds, tmp: lance.dataset(ds.uri, asof="2001-01-01")),
    ("unknown scheme", VE, errors.InvalidInputError, lambda ds, tmp: lance.dataset("nope://a/b")),
    ("no uri", VE, errors.InvalidInputError, lambda ds, tmp: lance.dataset()),
    ("bad time", VE, errors.InvalidInputError, lambda ds, tmp: lance.dataset(ds.uri, asof="soon")),
    ("version a float", OE, errors.InvalidOperationError, lambda ds, tmp: lance.dataset(ds.uri, version=1.5)),
    ("version a tuple", OE, errors.InvalidOperationError, lambda ds, tmp: lance.dataset(ds.uri, version=(None, 1))),
    ("version -1", OF, errors.OutOfRangeError, lambda ds, tmp: lance.dataset(ds.uri, version=-1)),
    ("uri a number", TE, TypeError, lambda ds, tmp: lance.dataset(3)),
    ("empty manifest", VE, errors.CorruptFileError, lambda ds, tmp: lance.dataset(cut_manifest(ds, 0))),
    ("short manifest", VE, errors.CorruptFileError, lambda ds, tmp: lance.dataset(cut_manifest(ds, 30))),
    # checkout_version, read_transaction
    ("checkout of a missing version", OE, errors.VersionNotFoundError, lambda ds, tmp: ds.checkout_version(9)),
    ("checkout of an unknown tag", OE, errors.RefNotFoundError, lambda ds, tmp: ds.checkout_version("no")),
    ("checkout of an empty tag", OE, errors.InvalidRefError, lambda ds, tmp: ds.checkout_version("")),
    ("checkout of an unknown branch", VE, errors.RefNotFoundError, lambda ds, tmp: ds.checkout_version(("no", 1))),
    ("checkout of None", VE, errors.InvalidInputError, lambda ds, tmp: ds.checkout_version(None)),
    ("transaction of a missing version", OE, errors.VersionNotFoundError, lambda ds, tmp: ds.read_transaction(99)),
    # writing
    ("create twice", OE, errors.AlreadyExistsError, lambda ds, tmp: lance.write_dataset(TABLE, ds.uri)),
    ("bad mode", VE, errors.InvalidInputError, lambda ds, tmp: lance.write_dataset(TABLE, ds.uri, mode="x")),
    ("unknown format", VE, errors.InvalidInputError, lambda ds, tmp: new(tmp, TABLE, data_storage_version="7")),
    ("iterator without schema", VE, errors.InvalidInputError, lambda ds, tmp: new(tmp, iter(TABLE.to_batches()))),
    ("not tabular", TE, TypeError, lambda ds, tmp: new(tmp, 3)),
    ("extra column", OE, errors.SchemaMismatchError, lambda ds, tmp: ds.insert(TABLE.append_column("z", [[1, 2, 3]]))),
    (
        "other type",
        OE,
        errors.SchemaMismatchError,
        lambda ds, tmp: ds.insert(pa.table({"id": pa.array([1], pa.int32())})),
    ),
    ("missing required column", OE, errors.SchemaMismatchError, lambda ds, tmp: required(tmp).insert({"s": ["x"]})),
    ("null in a required column", OE, errors.SchemaMismatchError, lambda ds, tmp: required(tmp).insert({"r": [None]})),
    ("unsupported type", OE, errors.UnsupportedFeatureError, lambda ds, tmp: new(tmp, intervals())),
    ("dotted name", OE, errors.InvalidSchemaError, lambda ds, tmp: new(tmp, {"a.b": [1]})),
    ("reserved name", OE, errors.InvalidSchemaError, lambda ds, tmp: new(tmp, {"_rowid": [1]})),
    ("duplicate name", OE, errors.InvalidSchemaError, lambda ds, tmp: new(tmp, pa.table([[1], [2]], ["a", "a"]))),
    (
        "batch that cannot be cast",
        OE,
        errors.SchemaMismatchError,
        lambda ds, tmp: new(tmp, iter(texts()), TABLE.schema),
    ),
    ("no rows per file", VE, errors.InvalidInputError, lambda ds, tmp: new(tmp, TABLE, max_rows_per_file=0)),
    (
        "format that is not written yet",
        OE,
        errors.UnsupportedFeatureError,
        lambda ds, tmp: new(tmp, TABLE, data_storage_version="2.3"),
    ),
    # scans
    ("unknown column", VE, errors.ColumnNotFoundError, lambda ds, tmp: ds.to_table(columns=["no"])),
    ("duplicate column", VE, errors.InvalidInputError, lambda ds, tmp: ds.to_table(columns=["id", "id"])),
    ("order by unknown", VE, errors.ColumnNotFoundError, lambda ds, tmp: ds.to_table(order_by=["no"])),
    ("negative batch_size", OF, errors.OutOfRangeError, lambda ds, tmp: ds.scanner(batch_size=-1)),
    ("negative limit", VE, errors.InvalidInputError, lambda ds, tmp: ds.scanner(limit=-1)),
    ("negative offset", VE, errors.InvalidInputError, lambda ds, tmp: ds.scanner(offset=-1)),
    ("limit of text", TE, TypeError, lambda ds, tmp: ds.scanner(limit="1")),
    ("limit of 2^63", OF, errors.OutOfRangeError, lambda ds, tmp: ds.scanner(limit=2**63)),
    ("batch_size 0", VE, errors.InvalidInputError, lambda ds, tmp: ds.to_table(batch_size=0)),
    ("deleted rows without ids", VE, errors.InvalidInputError, lambda ds, tmp: ds.to_table(include_deleted_rows=True)),
    ("fragments by number", TE, TypeError, lambda ds, tmp: ds.scanner(fragments=[0])),
    ("filter syntax", VE, errors.InvalidSqlError, lambda ds, tmp: ds.to_table(filter="id >")),
    ("filter column", VE, errors.ColumnNotFoundError, lambda ds, tmp: ds.to_table(filter="nope > 1")),
    ("filter types", VE, errors.InvalidSqlError, lambda ds, tmp: ds.to_table(filter="s + 1 > 2")),
    ("filter not boolean", VE, errors.InvalidSqlError, lambda ds, tmp: ds.to_table(filter="id + 1")),
    ("filter fails on a value", VE, errors.InvalidSqlError, lambda ds, tmp: ds.to_table(filter="1 / (id - id) = 1")),
    ("filter of another type", TE, TypeError, lambda ds, tmp: ds.scanner(filter=3)),
    (
        "expression on an unknown column",
        VE,
        errors.ColumnNotFoundError,
        lambda ds, tmp: ds.to_table(filter=pc.field("no") > 1),
    ),
    (
        "vector search in a missing column",
        VE,
        errors.ColumnNotFoundError,
        lambda ds, tmp: ds.to_table(nearest={"column": "missing", "q": [1]}),
    ),
    ("vector search in numbers", TE, TypeError, lambda ds, tmp: ds.to_table(nearest={"column": "id", "q": [1]})),
    ("count: syntax", OE, errors.InvalidSqlError, lambda ds, tmp: ds.count_rows("id >")),
    ("count: column", OE, errors.ColumnNotFoundError, lambda ds, tmp: ds.count_rows("nope > 1")),
    ("count: bool", TE, TypeError, lambda ds, tmp: ds.count_rows(True)),
    ("delete: syntax", OE, errors.InvalidSqlError, lambda ds, tmp: ds.delete("id >")),
    ("delete: column", OE, errors.ColumnNotFoundError, lambda ds, tmp: ds.delete("nope > 1")),
    ("delete: None", TE, TypeError, lambda ds, tmp: ds.delete(None)),
    ("fragment delete: syntax", OE, errors.InvalidSqlError, lambda ds, tmp: ds.get_fragment(0).delete("id >")),
    ("blob_handling", VE, errors.InvalidInputError, lambda ds, tmp: ds.scanner(blob_handling="x")),
    ("blob_mode", VE, errors.InvalidInputError, lambda ds, tmp: ds.to_pandas(blob_mode="x")),
    # take, sample, slice
    ("take past the end", OE, errors.OutOfRangeError, lambda ds, tmp: ds.take([3])),
    ("take negative", OF, errors.OutOfRangeError, lambda ds, tmp: ds.take([-1])),
    ("take text", TE, TypeError, lambda ds, tmp: ds.take(["a"])),
    ("take unknown column", VE, errors.ColumnNotFoundError, lambda ds, tmp: ds.take([0], columns=["no"])),
    ("row id past the end", OE, errors.OutOfRangeError, lambda ds, tmp: ds._take_rows([3])),
    ("fragment take past the end", OE, errors.OutOfRangeError, lambda ds, tmp: ds.get_fragment(0).take([3])),
    ("sample too large", VE, errors.InvalidInputError, lambda ds, tmp: ds.sample(4)),
    ("slice from below 0", VE, errors.InvalidInputError, lambda ds, tmp: ds.slice(-1, 2)),
    ("slice backwards", VE, errors.InvalidInputError, lambda ds, tmp: ds.slice(2, 1)),
    ("fragment id of text", TE, TypeError, lambda ds, tmp: ds.get_fragment("0")),
    ("fragments by filter", VE, errors.UnsupportedFeatureError, lambda ds, tmp: ds.get_fragments(pc.field("id") > 1)),
    # tags
    ("tag twice", VE, errors.AlreadyExistsError, lambda ds, tmp: [ds.tags.create("t"), ds.tags.create("t")]),
    ("get unknown tag", VE, errors.RefNotFoundError, lambda ds, tmp: ds.tags.get_version("no")),
    ("update unknown tag", VE, errors.RefNotFoundError, lambda ds, tmp: ds.tags.update("no", 1)),
    ("delete unknown tag", VE, errors.RefNotFoundError, lambda ds, tmp: ds.tags.delete("no")),
    ("tag of a missing version", VE, errors.VersionNotFoundError, lambda ds, tmp: ds.tags.create("t", 9)),
    ("bad tag name", OE, errors.InvalidRefError, lambda ds, tmp: ds.tags.create("a b")),
    ("bad order of tags", VE, errors.InvalidInputError, lambda ds, tmp: ds.tags.list_ordered("up")),
    # commits
    (
        "commit without read version",
        VE,
        errors.InvalidInputError,
        lambda ds, tmp: commit(ds, LanceOperation.Append([])),
    ),
    ("commit of something else", TE, TypeError, lambda ds, tmp: commit(ds, "append")),
    (
        "commit from a missing version",
        OE,
        errors.VersionNotFoundError,
        lambda ds, tmp: commit(ds.uri, LanceOperation.Append([]), 99),
    ),
    (
        "commit to nothing",
        OE,
        errors.DatasetNotFoundError,
        lambda ds, tmp: commit(tmp / "no", LanceOperation.Append([]), 1),
    ),
    (
        "no operation to commit",
        OE,
        errors.UnsupportedFeatureError,
        lambda ds, tmp: commit(ds, LanceOperation.Clone(True, "x", 1, "/x", None), 1),
    ),
    ("empty batch of commits", OE, errors.InvalidOperationError, lambda ds, tmp: LanceDataset.commit_batch(ds, [])),
    (
        "batch of other operations",
        OE,
        errors.UnsupportedFeatureError,
        lambda ds, tmp: LanceDataset.commit_batch(ds, [restoring()]),
    ),
    (
        "conflict in commit",
        lance.commit.CommitConflictError,
        errors.CommitConflictError,
        lambda ds, tmp: conflicting_commit(ds),
    ),
    ("conflict in restore", OE, errors.CommitConflictError, lambda ds, tmp: conflicting_delete(ds)),
    ("delete that lost", OE, errors.RetryableCommitConflictError, lambda ds, tmp: lost_delete(ds)),
    ("negative retries", OF, errors.OutOfRangeError, lambda ds, tmp: ds.delete("id = 1", conflict_retries=-1)),
    # drop, damage
    ("drop nothing", OE, errors.DatasetNotFoundError, lambda ds, tmp: LanceDataset.drop(tmp / "no")),
    ("drop what is no table", VE, errors.InvalidInputError, lambda ds, tmp: LanceDataset.drop(occupied(tmp))),
    ("truncated data file", VE, errors.CorruptFileError, lambda ds, tmp: damaged(ds, "cut").to_table()),
    ("missing data file", VE, errors.NotFoundError, lambda ds, tmp: damaged(ds, "remove").to_table()),
    ("validate of a truncated file", OE, errors.CorruptFileError, lambda ds, tmp: damaged(ds, "cut").validate()),
    ("validate of a missing file", OE, errors.NotFoundError, lambda ds, tmp: damaged(ds, "remove").validate()),
    ("missing deletion file", OE, errors.NotFoundError, lambda ds, tmp: without_deletions(ds).validate()),
]


@pytest.fixture
def ds(tmp_path: Path) -> LanceDataset:
    return lance.write_dataset(TABLE, tmp_path / "t.lance")


@pytest.mark.parametrize(("situation", "theirs", "ours", "provoke"), CASES, ids=[case[0] for case in CASES])
def test_errors_are_caught_like_those_of_pylance(
    situation: str,
    theirs: type[BaseException],
    ours: type[BaseException],
    provoke: Any,
    ds: LanceDataset,
    tmp_path: Path,
) -> None:
    with pytest.raises(theirs) as caught:
        provoke(ds, tmp_path)
    error = caught.value
    assert isinstance(error, ours), repr(error)
    assert issubclass(type(error), ours)
    assert str(error) and not str(error).startswith("[Errno")
    if isinstance(error, errors.LanceError):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)


def test_the_errno_of_a_store_error_is_that_of_the_system(ds: LanceDataset) -> None:
    with pytest.raises(errors.StoreError) as caught, failing(1, "EACCES", forever=True):
        lance.dataset(ds.uri)
    assert caught.value.errno == errno.EACCES
    assert pickle.loads(pickle.dumps(caught.value)).errno == errno.EACCES
    assert errors.StoreError("no system").errno is None


def test_exception_of_the_input_iterator_is_raised_and_leaves_no_files(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield TABLE.to_batches()[0]
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        lance.write_dataset(batches(), tmp_path / "t", TABLE.schema)
    assert [path for path in (tmp_path / "t").rglob("*") if path.is_file()] == []


def test_calls_that_pylance_accepts_raise_nothing(ds: LanceDataset) -> None:
    assert ds.slice(2, 99).num_rows == 1
    assert ds.get_fragment(9) is None
    assert ds.take([]).num_rows == 0
    assert ds.scanner(fragments=[]).to_table().num_rows == 0
    ds.scanner(filter="id >", columns=["no"])  # checked when it is read


def test_lock_surrounds_the_commit_and_its_conflict_is_raised(tmp_path: Path) -> None:
    versions: list[int] = []

    @contextmanager
    def lock(version: int) -> Iterator[None]:
        versions.append(version)
        if version == 2:
            raise lance.commit.CommitConflictError("taken")
        yield

    ds = lance.write_dataset(TABLE, tmp_path / "t", commit_lock=lock)
    assert versions == [1]
    with pytest.raises(lance.commit.CommitConflictError, match="taken"):
        lance.write_dataset(TABLE, ds.uri, mode="append", commit_lock=lock)
    assert lance.dataset(ds.uri).version == 1


def test_stubs_name_the_feature(ds: LanceDataset) -> None:
    with pytest.raises(NotImplementedError, match=r"the MemWAL .*out of scope"):
        ds.initialize_mem_wal()
    for kind in ("BTREE", "IVF_RQ"):
        with pytest.raises(NotImplementedError, match=f"index types supported. Got {kind}"):
            ds.create_index("id", kind)
    for arguments in ({"namespace_client": object()}, {"base_store_params": {"a": {}}}):
        with pytest.raises(NotImplementedError):
            lance.dataset(ds.uri, **arguments)


# ------------------------------------------------------------------------------------------------ causes of the errors


def new(tmp: Path, data: Any, schema: pa.Schema | None = None, **arguments: Any) -> LanceDataset:
    return lance.write_dataset(data, tmp / "new", schema, **arguments)


def texts() -> list[pa.RecordBatch]:
    return [pa.record_batch({"id": ["x"], "s": ["y"]})]


def intervals() -> pa.Table:
    return pa.table({"i": pa.array([None], pa.month_day_nano_interval())})


def required(tmp: Path) -> LanceDataset:
    schema = pa.schema([pa.field("r", pa.int64(), nullable=False), pa.field("s", pa.string())])
    return lance.write_dataset(pa.table({"r": [1], "s": ["a"]}, schema=schema), tmp / "required")


def empty_directory(tmp: Path) -> Path:
    (tmp / "empty").mkdir()
    return tmp / "empty"


def occupied(tmp: Path) -> Path:
    (tmp / "other").mkdir()
    (tmp / "other" / "file.txt").write_text("mine")
    return tmp / "other"


def cut_manifest(ds: LanceDataset, size: int) -> str:
    (path,) = (Path(ds.uri) / "_versions").glob("*.manifest")
    os.truncate(path, size)
    return ds.uri


def damaged(ds: LanceDataset, how: str) -> LanceDataset:
    (path,) = (Path(ds.uri) / "data").iterdir()
    if how == "cut":
        path.write_bytes(path.read_bytes()[:50])
    else:
        path.unlink()
    return lance.dataset(ds.uri)


def without_deletions(ds: LanceDataset) -> LanceDataset:
    ds.delete("id = 1")
    for path in (Path(ds.uri) / "_deletions").iterdir():
        path.unlink()
    return lance.dataset(ds.uri)


def commit(target: Any, operation: Any, read_version: int | None = None) -> LanceDataset:
    return LanceDataset.commit(target, operation, read_version)


def restoring() -> lance.Transaction:
    return lance.Transaction(1, LanceOperation.Restore(1))


def conflicting_commit(ds: LanceDataset) -> None:
    fragments = write_fragments(TABLE, ds.uri)
    lance.dataset(ds.uri).insert(TABLE, mode="overwrite")
    commit(ds, LanceOperation.Append(fragments), 1)


def conflicting_delete(ds: LanceDataset) -> None:
    lance.dataset(ds.uri).insert(TABLE, mode="overwrite")
    ds.delete("id = 1")


def lost_delete(ds: LanceDataset) -> None:
    lance.dataset(ds.uri).delete("id = 1")
    ds.delete("id = 1", conflict_retries=0, retry_timeout=timedelta(seconds=5))
