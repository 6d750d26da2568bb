"""Create, append and overwrite: accepted data, the tables that pylance reads, removal of files after failures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
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
    InvalidSchemaError,
    LanceError,
    RetryableCommitConflictError,
    SchemaMismatchError,
    StoreError,
)
from lancetable.format import transaction as tx
from lancetable.format.version import FileVersion
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.ops.write import write
from lancetable.ops.write.write import WriteOptions
from lancetable.store import open as store_open
from lancetable.table import transactions
from lancetable.table.fragment_writer import WriteLimits
from lancetable.table.version import TableVersion, latest, open_version
from lancetable.testing.stores import CountingStore, FaultyStore


def create(path: Path, table: pa.Table, **options: Any) -> TableVersion:
    return write.create(path, table.schema, iter(table.to_batches()), WriteOptions(**options))


def append(version: TableVersion, table: pa.Table, **options: Any) -> TableVersion:
    return write.append(version, table.schema, iter(table.to_batches()), WriteOptions(**options))


def overwrite(version: TableVersion, table: pa.Table, **options: Any) -> TableVersion:
    return write.overwrite(version, table.schema, iter(table.to_batches()), WriteOptions(**options))


def read(version: TableVersion) -> pa.Table:
    return lance.dataset(version.uri).to_table()


def rows(*ids: int, **columns: Any) -> pa.Table:
    texts = pa.array([f"s{i}" for i in ids], pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "s": texts, **columns})


def files(path: Path) -> set[str]:
    return {str(each.relative_to(path)) for each in path.rglob("*") if each.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.lance"


# --- create ----------------------------------------------------------------------------------------------------------


def test_create(path: Path) -> None:
    table = rows(1, 2, 3)
    version = create(path, table, properties={"__lance_commit_message": "first", "a": "b"})
    assert version.version == 1
    ds = lance.dataset(str(path))
    assert ds.to_table() == table
    assert (ds.version, ds.data_storage_version, ds.has_stable_row_ids) == (1, "2.2", False)
    (transaction,) = ds.get_transactions()
    assert transaction.transaction_properties == {"__lance_commit_message": "first", "a": "b"}
    assert (path / "_versions" / "latest_version_hint.json").read_bytes() == b'{"version":1}'
    ds.validate()


def test_create_on_an_existing_table_fails_before_reading_rows(path: Path) -> None:
    create(path, rows(1))
    before = files(path)

    def never() -> Iterator[pa.RecordBatch]:
        raise AssertionError("the data must not be read")
        yield

    with pytest.raises(AlreadyExistsError, match="Dataset already exists"):
        write.create(path, rows(1).schema, never())
    with pytest.raises(OSError, match="Dataset already exists"):
        create(path, rows(1))
    assert files(path) == before


def test_tables_without_rows_or_columns_can_be_created(path: Path) -> None:
    assert create(path, rows()).manifest.fragments.num_rows() == 0
    assert read(open_version(path)).schema == rows().schema
    empty = create(path.with_name("none"), pa.table({}))
    assert lance.dataset(empty.uri).schema == pa.schema([])


def test_v1_manifest_names_on_request(path: Path) -> None:
    append(create(path, rows(1), v2_manifest_paths=False), rows(2))
    assert {name for name in files(path) if name.endswith("manifest")} == {
        "_versions/1.manifest",
        "_versions/2.manifest",
    }
    assert lance.dataset(str(path)).count_rows() == 2


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        (WriteLimits(max_rows_per_file=4), [4, 4, 2]),
        (WriteLimits(max_rows_per_file=10), [10]),
        (WriteLimits(max_bytes_per_file=1), [3, 3, 3, 1]),
    ],
)
def test_files_are_split_at_the_limits(path: Path, limits: WriteLimits, sizes: list[int]) -> None:
    table = rows(*range(10))
    version = write.create(path, table.schema, iter(table.to_batches(max_chunksize=3)), WriteOptions(limits=limits))
    ds = lance.dataset(str(path))
    assert [fragment.count_rows() for fragment in ds.get_fragments()] == sizes
    assert ds.to_table() == table
    for fragment in version.manifest.fragments:
        for file in fragment.files:
            assert (path / "data" / file.path).stat().st_size == file.size_bytes


@pytest.mark.parametrize("name", ["max_rows_per_file", "max_bytes_per_file", "data_cache_bytes", "max_page_bytes"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        WriteLimits(**{name: 0})


def test_progress_reports_begin_and_completion_of_each_file(path: Path) -> None:
    told: list[tuple[str, int | None]] = []
    create(
        path,
        rows(*range(5)),
        limits=WriteLimits(max_rows_per_file=3),
        progress=lambda what, fragment: told.append((what, fragment.physical_rows)),
    )
    assert told == [("begin", None), ("complete", 3), ("begin", None), ("complete", 2)]


@pytest.mark.parametrize("names", [["a", "a"], ["a.b"], ["_rowid"]])
def test_invalid_column_names_are_refused(path: Path, names: list[str]) -> None:
    table = pa.table([pa.array([1])] * len(names), names=names)
    with pytest.raises(InvalidSchemaError):
        create(path, table)
    assert not path.exists()


# --- append ----------------------------------------------------------------------------------------------------------


def test_append(path: Path) -> None:
    first = create(path, rows(1, 2))
    second = append(first, rows(3), properties={"k": "v"})
    assert (second.version, read(second)["id"].to_pylist()) == (2, [1, 2, 3])
    assert [fragment.id for fragment in second.manifest.fragments] == [0, 1]
    transaction = transactions.read(second.store, second.base, second.file)
    assert transaction is not None
    assert (transaction.read_version, transaction.properties) == (1, {"k": "v"})
    assert append(first, rows(4)).version == 3  # through an old handle, on top of the newest
    assert append(second, rows()).version == 4
    assert latest(first).manifest.fragments.num_rows() == 4


def test_both_libraries_append_to_one_table(path: Path) -> None:
    lance.write_dataset(rows(1), str(path), data_storage_version="2.0")
    append(open_version(path), rows(2))
    lance.write_dataset(rows(3), str(path), mode="append")
    assert (
        read(append(open_version(path), rows(4))) == pa.concat_tables([rows(i) for i in (1, 2, 3, 4)]).combine_chunks()
    )


POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
BASE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("s", pa.string()),
        pa.field("p", POINT),
        pa.field("l", pa.list_(pa.int32())),
    ]
)


def full(**changes: Any) -> pa.Table:
    """Return one row of BASE with some columns replaced, or left out if None."""
    columns = {
        "id": pa.array([1], pa.int64()),
        "s": pa.array(["a"]),
        "p": pa.array([{"x": 1, "y": "b"}], POINT),
        "l": pa.array([[1, 2]], pa.list_(pa.int32())),
    } | changes
    return pa.table({name: values for name, values in columns.items() if values is not None})


ROW = {"id": 1, "s": "a", "p": {"x": 1, "y": "b"}, "l": [1, 2]}
ACCEPTED = {
    "as it is": (full(), ROW),
    "other order": (full().select(["l", "p", "s", "id"]), ROW),
    "missing columns": (full(s=None, l=None), ROW | {"s": None, "l": None}),
    "only the required": (full(s=None, l=None, p=None), ROW | {"s": None, "l": None, "p": None}),
    "other metadata": (full().replace_schema_metadata({"k": "v"}), ROW),
    "string view": (full(s=pa.array(["a"], pa.string_view())), ROW),
    "children in another order": (
        full(p=pa.array([{"y": "b", "x": 1}], pa.struct([("y", pa.string()), ("x", pa.int64())]))),
        ROW,
    ),
    "missing child": (full(p=pa.array([{"x": 1}], pa.struct([("x", pa.int64())]))), ROW | {"p": {"x": 1, "y": None}}),
    "list item not null": (
        full(l=pa.array([[1, 2]], pa.list_(pa.field("item", pa.int32(), nullable=False)))),
        ROW,
    ),
    "nullable type, no nulls": (full().cast(pa.schema([field.with_nullable(True) for field in BASE])), ROW),
}
REFUSED = {
    "extra column": (full(z=pa.array([1])), "unexpected=[z]"),
    "missing required": (full(id=None), "missing=[id]"),
    "no columns at all": (pa.table({}), "missing=[id]"),
    "other case": (full().rename_columns(["ID", "s", "p", "l"]), "unexpected=[ID]"),
    "narrower type": (full(id=pa.array([1], pa.int32())), "`id` should have type int64 but type was int32"),
    "large string": (full(s=pa.array(["a"], pa.large_string())), "should have type string but type was large_string"),
    "dictionary": (full(s=pa.array(["a"]).dictionary_encode()), "should have type string but type was dict"),
    "extra child": (
        full(p=pa.array([{"x": 1, "z": 1}], pa.struct([("x", pa.int64()), ("z", pa.int64())]))),
        "`p` had mismatched children: fields did not match, missing=[], unexpected=[p.z]",
    ),
    "child of another type": (
        full(p=pa.array([{"x": 1.0}], pa.struct([("x", pa.float64())]))),
        "`p.x` should have type int64",
    ),
    "item of another name": (
        full(l=pa.array([[1]], pa.list_(pa.field("element", pa.int32())))),
        "unexpected=[l.element]",
    ),
    "item of another type": (full(l=pa.array([[1]], pa.list_(pa.int64()))), "`l.item` should have type int32"),
}


@pytest.fixture
def typed(path: Path) -> TableVersion:
    return create(path, BASE.empty_table())


@pytest.mark.parametrize(("table", "expected"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_append_accepts(typed: TableVersion, table: pa.Table, expected: dict[str, Any]) -> None:
    theirs = lance.write_dataset(BASE.empty_table(), typed.uri + ".theirs", data_storage_version="2.0")
    assert lance.write_dataset(table, theirs.uri, mode="append").to_table().to_pylist() == [expected]
    found = read(append(typed, table))
    assert found.to_pylist() == [expected]
    assert found.schema == BASE


@pytest.mark.parametrize(("table", "complaint"), REFUSED.values(), ids=REFUSED.keys())
def test_append_refuses(typed: TableVersion, path: Path, table: pa.Table, complaint: str) -> None:
    before = files(path)
    with pytest.raises(SchemaMismatchError) as caught:
        append(typed, table)
    assert str(caught.value).startswith("Append with different schema: ")
    assert complaint in str(caught.value)
    with pytest.raises(OSError, match="Append with different schema"):
        lance.write_dataset(table, str(path), mode="append")
    assert files(path) == before


REQUIRED_CHILD = pa.struct([pa.field("x", pa.int64(), nullable=False)])
NULLS = {
    "column": (BASE.field("id"), pa.array([1, None], pa.int64()), "id"),
    "child": (pa.field("p", REQUIRED_CHILD), pa.array([{"x": 1}, {"x": None}], REQUIRED_CHILD), "p.x"),
    "item's child": (pa.field("l", pa.list_(REQUIRED_CHILD)), pa.array([[{"x": None}]], pa.list_(REQUIRED_CHILD)), "x"),
}


@pytest.mark.parametrize(("field", "values", "named"), NULLS.values(), ids=NULLS.keys())
def test_nulls_in_required_columns_are_refused(path: Path, field: pa.Field, values: pa.Array, named: str) -> None:
    batch = pa.RecordBatch.from_arrays([values], schema=pa.schema([field]))
    version = write.create(path, batch.schema, iter([]))
    before = files(path)
    with pytest.raises(SchemaMismatchError, match="contained null values") as caught:
        write.append(version, batch.schema, iter([batch]))
    assert named in str(caught.value)
    assert files(path) == before


def test_children_of_a_null_parent_may_be_null(path: Path) -> None:
    values = pa.array([[{"x": 1}], None, []], pa.list_(REQUIRED_CHILD))
    batch = pa.RecordBatch.from_arrays([values], schema=pa.schema([pa.field("l", values.type)]))
    assert read(write.create(path, batch.schema, iter([batch])))["l"].to_pylist() == values.to_pylist()


def test_batches_are_converted_to_storage_types(path: Path) -> None:
    view = pa.struct([("v", pa.string_view()), ("l", pa.list_(pa.string_view()))])
    batch = pa.record_batch(
        {
            "s": pa.array(["a", None, "c"], pa.string_view()),
            "b": pa.array([b"a", None, b"c"], pa.binary_view()),
            "n": pa.array([{"v": "x", "l": ["y", None]}, {"v": "z", "l": []}, {"v": None, "l": None}], view),
            "ll": pa.array([[["p"]], None, [None, []]], pa.list_(pa.list_(pa.string_view()))),
            "u": pa.array([b"0" * 16] * 3, pa.uuid()),
        }
    )
    found = read(write.create(path, batch.schema, iter([batch, batch.slice(1)])))
    assert found["s"].type == pa.string()
    assert found["u"].type == pa.uuid()
    assert found["n"].type == pa.struct([("v", pa.string()), ("l", pa.list_(pa.string()))])
    assert found.to_pylist() == batch.to_pylist() + batch.to_pylist()[1:]


def test_a_batch_with_another_schema_is_refused(typed: TableVersion, path: Path) -> None:
    before = files(path)
    wrong = pa.record_batch({"id": pa.array([1], pa.int64())})
    with pytest.raises(SchemaMismatchError, match="expected 1 column"):
        write.append(typed, BASE, iter([*full().to_batches(), wrong]))
    text = full().to_batches()[0].set_column(0, BASE.field(0).with_type(pa.string()), pa.array(["x"]))
    with pytest.raises(SchemaMismatchError, match="'id'"):
        write.append(typed, BASE, iter([text]))
    assert files(path) == before


def test_json_is_stored_as_by_pylance(path: Path) -> None:
    if not hasattr(pa, "json_"):
        pytest.skip("this pyarrow has no JSON type")
    texts = ['{"a":1,"b":[true,null,"x"]}', None, "[]"]
    batch = pa.record_batch({"j": pa.array(texts, pa.json_())})
    version = write.create(path, batch.schema, iter([batch]))
    theirs = lance.write_dataset(pa.table(batch), str(path) + "theirs", data_storage_version="2.0")
    assert lance.dataset(version.uri).to_table() == theirs.to_table()
    assert append(version, pa.table(batch)).manifest.fragments.num_rows() == 6


# --- overwrite -------------------------------------------------------------------------------------------------------


def test_overwrite(path: Path) -> None:
    first = create(path, rows(1, 2).replace_schema_metadata({"old": "1"}))
    ds = lance.dataset(str(path))
    ds.update_config({"kept": "yes"})
    ds.update_metadata({"also": "kept"})
    ds.create_scalar_index("id", "BTREE")
    ds.drop_columns(["id"])
    table = pa.table({"q": [1.5]}).replace_schema_metadata({"new": "2"})
    version = overwrite(latest(first), table)
    ds = lance.dataset(str(path))
    assert ds.to_table() == table
    assert ds.schema.metadata == {b"new": b"2"}
    assert (ds.config(), ds.metadata, ds.has_index) == ({"kept": "yes"}, {"also": "kept"}, False)
    assert [field.id for field in version.schema.fields] == [0]
    assert [fragment.id for fragment in version.manifest.fragments] == [1]
    assert lance.dataset(str(path), version=1).to_table()["id"].to_pylist() == [1, 2]


def test_overwrite_keeps_or_changes_the_format(path: Path) -> None:
    lance.write_dataset(rows(1), str(path), data_storage_version="2.2")
    version = overwrite(open_version(path), rows(2), file_version=FileVersion.V2_0)
    assert version.manifest.data_format == "2.0"
    assert lance.dataset(str(path)).data_storage_version == "2.0"
    assert overwrite(version, rows(3)).manifest.data_format == "2.0"


def test_append_in_another_format_marks_the_table(path: Path) -> None:
    lance.write_dataset(rows(1), str(path), data_storage_version="2.2")
    version = append(open_version(path), rows(2), file_version=FileVersion.V2_0)
    assert version.manifest.data_format == "2.2"
    assert (version.manifest.reader_flags, version.manifest.writer_flags) == (256, 256)
    assert read(version)["id"].to_pylist() == [1, 2]
    lance.write_dataset(rows(1), str(path) + "old", data_storage_version="0.1")
    with pytest.raises(SchemaMismatchError, match="cannot be mixed"):
        append(open_version(str(path) + "old"), rows(2), file_version=FileVersion.V2_0)


def test_the_second_of_two_overwrites_of_one_version_conflicts(path: Path) -> None:
    first = create(path, rows(1))
    overwrite(first, rows(2))
    before = files(path)
    with pytest.raises(RetryableCommitConflictError):
        overwrite(first, rows(3))
    assert files(path) == before


# --- tables with stable row ids --------------------------------------------------------------------------------------


def test_append_continues_stable_row_ids(path: Path) -> None:
    lance.write_dataset(rows(1), str(path), data_storage_version="2.0", enable_stable_row_ids=True)
    for act, expected in ((append, [0, 1]), (overwrite, [2])):
        act(open_version(path), rows(2))
        assert lance.dataset(str(path)).to_table(columns=["_rowid"])["_rowid"].to_pylist() == expected


# --- write_fragments -------------------------------------------------------------------------------------------------


def test_write_fragments_for_an_append(path: Path) -> None:
    version = create(path, rows(1))
    table = rows(2, 3)
    transaction = write.write_fragments(version, table.schema, iter(table.to_batches()))
    assert isinstance(transaction.operation, tx.Append)
    assert [fragment.id for fragment in transaction.operation.fragments] == [0]
    assert latest(version) is version
    written = FragmentMetadata.from_format(transaction.operation.fragments[0])
    data = lance.FragmentMetadata.from_json(json.dumps(written.to_json()))
    ds = lance.LanceDataset.commit(str(path), lance.LanceOperation.Append([data]), read_version=1)
    assert ds.to_table()["id"].to_pylist() == [1, 2, 3]


def test_fragments_are_removed_if_syncing_them_fails(path: Path) -> None:
    version = create(path, rows(1))
    before = files(path)
    store = FaultyStore(version.store)
    store.fail("sync")
    with pytest.raises(StoreError):
        write.write_fragments(replace(version, store=store), rows(2).schema, rows(2).to_batches())
    assert files(path) == before


def test_nulls_are_found_in_wide_rows_with_required_columns(path: Path) -> None:
    schema = pa.schema([pa.field(f"c{i}", pa.int8(), nullable=i != 700) for i in range(900)])
    table = pa.Table.from_arrays([pa.array([i % 100], pa.int8()) for i in range(900)], schema=schema)
    version = write.create(path, schema, table.to_batches())
    assert write.append(version, schema, table.select(sorted(schema.names)).to_batches()).version == 2
    broken = pa.RecordBatch.from_arrays(
        [pa.array([None if i == 700 else 1], pa.int8()) for i in range(900)], names=schema.names
    )
    with pytest.raises(SchemaMismatchError, match="`c700` contained null"):
        write.append(version, schema, [broken])


@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_write_fragments_for_a_new_table(path: Path, mode: Any) -> None:
    transaction = write.write_fragments(path, rows(1).schema, iter(rows(1).to_batches()), mode=mode)
    assert isinstance(transaction.operation, tx.Overwrite)
    assert transaction.read_version == 0
    assert {name.split("/")[0] for name in files(path)} == {"data"}
    names = [file.path for fragment in transaction.operation.fragments for file in fragment.files]
    write.discard_fragments(path, names)
    assert files(path) == set()


# --- failures --------------------------------------------------------------------------------------------------------


def test_an_error_of_the_input_iterator_is_raised_unchanged(path: Path) -> None:
    version = create(path, rows(1))
    before = files(path)

    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(*range(100)).to_batches()
        raise KeyError("theirs")

    for target in (version, None):
        limits = WriteLimits(max_rows_per_file=30)
        with pytest.raises(KeyError, match="theirs"):
            if target is None:
                write.create(path.with_name("new"), rows(1).schema, batches(), WriteOptions(limits=limits))
            else:
                write.append(target, rows(1).schema, batches(), WriteOptions(limits=limits))
    assert files(path) == before
    assert files(path.with_name("new")) == set()


@pytest.mark.parametrize("how", ["before", "lost_reply"])
def test_a_failing_store_call_leaves_no_partial_append(tmp_path: Path, how: Any) -> None:
    def fresh(name: str) -> tuple[Path, TableVersion]:
        path = tmp_path / name
        return path, create(path, rows(1))

    path, version = fresh("counted")
    counting = CountingStore(version.store)
    append(replace(version, store=counting), rows(2))
    for call in range(1, counting.total_requests + 1):
        path, version = fresh(f"{how}{call}")
        before = files(path)
        store = FaultyStore(version.store)
        store.fail("*", call, how=how)
        try:
            append(replace(version, store=store), rows(2))
            expected = {2}
        except CommitStateUnknownError:
            expected = {1, 2}
        except LanceError:
            expected = {1}
        found = lance.dataset(str(path))
        assert found.version in expected, counting.log[call - 1]
        assert found.to_table()["id"].to_pylist() == [1, 2][: found.version]
        if expected == {1} and how == "before":
            assert files(path) == before, counting.log[call - 1]


def test_a_failing_store_call_leaves_no_partial_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[FaultyStore | CountingStore] = []
    wrap: list[Callable[[Any], Any]] = [CountingStore]

    def open_wrapped(uri: Any, options: Any = None) -> Any:
        store, base = store_open.open_store(uri, options)
        stores.append(wrap[0](store))
        return stores[-1], base

    monkeypatch.setattr("lancetable.table.version.open_store", open_wrapped)
    create(tmp_path / "counted", rows(1))
    counted = stores[-1]
    assert isinstance(counted, CountingStore)
    for call in range(1, counted.total_requests + 1):

        def failing(inner: Any, call: int = call) -> FaultyStore:
            store = FaultyStore(inner)
            store.fail("*", call)
            return store

        wrap[0] = failing
        path = tmp_path / f"{call}"
        try:
            create(path, rows(1))
        except LanceError:
            with pytest.raises(ValueError):
                lance.dataset(str(path))
            assert files(path) == set(), counted.log[call - 1]
        else:
            assert lance.dataset(str(path)).count_rows() == 1


def test_files_are_kept_if_the_outcome_of_the_commit_is_unknown(path: Path) -> None:
    version = create(path, rows(1))
    store = FaultyStore(version.store)
    store.fail("put_if_absent", how="lost_reply")
    store.fail("read_all", path_part="_versions", forever=True)
    store.fail("read_tail", path_part="_versions/1844", forever=True)
    with pytest.raises(CommitStateUnknownError):
        append(replace(version, store=store), rows(2))
    assert lance.dataset(str(path)).to_table()["id"].to_pylist() == [1, 2]


def test_data_is_synced_before_the_manifest_appears(path: Path) -> None:
    version = create(path, rows(1))
    counting = CountingStore(version.store)
    append(replace(version, store=counting), rows(2))
    methods = [method for method, _, _ in counting.log]
    assert methods.index("writer.close") < methods.index("sync") < methods.index("put_if_absent")


def test_a_full_disk_raises_store_error(path: Path) -> None:
    version = create(path, rows(1))
    before = files(path)
    store = FaultyStore(version.store)
    store.fail("writer.write", error=StoreError("no space left on device"))
    with pytest.raises(StoreError, match="no space"):
        append(replace(version, store=store), rows(2))
    assert files(path) == before


WRITER = """
import sys
import pyarrow as pa
uri, writer, library = sys.argv[1], int(sys.argv[2]), sys.argv[3]
sys.stdin.readline()
for step in range(8):
    table = pa.table({"id": pa.array([writer * 100 + step], pa.int64()), "s": ["x"]})
    if library == "pylance":
        lance.write_dataset(table, uri, mode="append")
    else:
        write.append(open_version(uri), table.schema, iter(table.to_batches()))
"""
IMPORTS = {
    "pylance": "import lance\n",
    "ours": "from lancetable.ops.write import write\nfrom lancetable.table.version import open_version\n",
}


def test_concurrent_appends_of_both_libraries_are_all_committed(path: Path) -> None:
    create(path, rows())
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", IMPORTS[library] + WRITER, str(path), str(number), library], stdin=subprocess.PIPE
        )
        for number, library in enumerate(["ours", "pylance", "ours", "pylance"])
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    found = lance.dataset(str(path))
    assert found.version == open_version(path).version == 33
    assert sorted(found.to_table()["id"].to_pylist()) == [100 * w + step for w in range(4) for step in range(8)]
    assert open_version(path).manifest.fragments.ids().tolist() == list(range(32))
    uuids = {transaction.uuid for transaction in found.get_transactions(50)}
    assert len(uuids) == 33


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_tables_of_many_tiny_batches_are_readable(tmp_path: Path, version: str) -> None:
    """Tiny batches are coalesced unless their dictionaries differ; rows and their order stay the same."""
    letters = [pa.array([chr(97 + number % 26)] * 3).dictionary_encode() for number in range(600)]
    schema = pa.schema([("i", pa.int64()), ("d", letters[0].type), ("s", pa.string())])
    batches = [
        pa.record_batch([pa.array([number, None, -number]), letter, pa.array(["x" * (number % 5), None, ""])], schema)
        for number, letter in enumerate(letters)
    ]
    large = pa.record_batch([pa.array(range(3000)), pa.array(["z"] * 3000).dictionary_encode(), ["y"] * 3000], schema)
    table = pa.Table.from_batches([*batches[:300], large, *batches[300:], batches[0].slice(0, 0)])
    for limits in ({}, {"max_rows_per_file": 1000}, {"max_bytes_per_file": 4096}):
        path = tmp_path / f"table{min(limits.values(), default=0)}"
        written = lancetable.write_dataset(table, str(path), data_storage_version=version, **limits)
        assert written.to_table().to_pylist() == table.to_pylist()
        assert (len(written.get_fragments()) > 3) is bool(limits)
