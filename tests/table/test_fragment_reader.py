"""Reads of the rows of a fragment: several files, deletions, virtual columns, and damaged metadata."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError, LanceError, OutOfRangeError, UnsupportedFeatureError
from lancetable.format.fragment import Fragment
from lancetable.format.manifest import Manifest
from lancetable.format.schema import Field
from lancetable.proto import file_pb2, table_pb2
from lancetable.table.fragment_reader import (
    CREATED_AT,
    LAST_UPDATED_AT,
    ROW_ADDRESS,
    ROW_ID,
    Rows,
    narrow,
    read_selection,
    select,
    virtual_column,
)
from lancetable.table.row_counts import live_offsets, physical_offsets, physical_rows, row_count_index
from lancetable.table.row_id_lookup import row_id_index
from lancetable.table.row_sizes import bytes_per_row
from lancetable.table.version import TableVersion, open_version

NUM_ROWS = 50
Change = Callable[[table_pb2.Manifest], None]


def read_rows(
    version: TableVersion,
    fragment: Fragment,
    columns: Sequence[Field],
    rows: Rows = None,
    *,
    keep_deleted: bool = False,
    virtual: Sequence[str] = (),
) -> pa.Table:
    """Return stored and virtual columns of some rows of a fragment."""
    selection = select(version, fragment, rows, keep_deleted=keep_deleted)
    arrays = dict(zip([column.name for column in columns], read_selection(version, selection, columns)))
    arrays.update({name: virtual_column(version, selection, name) for name in virtual})
    assert all(len(array) == selection.num_rows for array in arrays.values())
    return pa.table(arrays)


@pytest.fixture(scope="module", params=["plain", "stable"])
def deleted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TableVersion:
    """Write one fragment of 50 rows, `k` = 0..49, and delete those with k % 5 = 2 or k < 4."""
    path = str(tmp_path_factory.mktemp("fragments") / "t")
    table = pa.table({"k": np.arange(NUM_ROWS), "s": [f"s{i}" for i in range(NUM_ROWS)]})
    stable = request.param == "stable"
    lance.write_dataset(table, path, data_storage_version="2.0", enable_stable_row_ids=stable)
    lance.dataset(path).delete("k % 5 = 2 or k < 4")
    return open_version(path)


LIVE = [k for k in range(NUM_ROWS) if k % 5 != 2 and k >= 4]


@given(data=st.data(), keep_deleted=st.booleans(), as_range=st.booleans())
def test_rows_are_read_with_their_virtual_columns(
    deleted: TableVersion, data: st.DataObject, keep_deleted: bool, as_range: bool
) -> None:
    fragment = deleted.manifest.fragments[0]
    wanted: Any
    if as_range:
        start = data.draw(st.integers(0, NUM_ROWS))
        wanted = range(start, data.draw(st.integers(start, NUM_ROWS)))
    else:
        wanted = np.array(sorted(data.draw(st.sets(st.integers(0, NUM_ROWS - 1)))), np.int64)
    expected = [k for k in wanted if keep_deleted or k in LIVE]
    virtual = [ROW_ID, ROW_ADDRESS, CREATED_AT, LAST_UPDATED_AT]
    table = read_rows(deleted, fragment, deleted.schema.fields, wanted, keep_deleted=keep_deleted, virtual=virtual)
    alive = [k if k in LIVE else None for k in expected]
    assert table.to_pydict() == {
        "k": expected,
        "s": [f"s{k}" for k in expected],
        "_rowid": alive,
        "_rowaddr": alive,
        "_row_created_at_version": [1] * len(expected),
        "_row_last_updated_at_version": [1] * len(expected),
    }


@given(data=st.data())
def test_narrow_keeps_the_rows_of_the_mask(deleted: TableVersion, data: st.DataObject) -> None:
    fragment = deleted.manifest.fragments[0]
    start = data.draw(st.integers(0, 45))
    rows: Any = range(start, data.draw(st.integers(start + 5, NUM_ROWS)))
    if data.draw(st.booleans()):
        rows = np.arange(rows.start, rows.stop, 2)
    selection = select(deleted, fragment, rows, keep_deleted=data.draw(st.booleans()))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=selection.num_rows, max_size=selection.num_rows)), bool)
    if not mask.any():
        return
    narrowed = narrow(selection, mask, int(mask.sum()))
    assert narrowed.offsets().tolist() == selection.offsets()[mask].tolist()
    assert narrowed.num_rows == int(mask.sum())
    if selection.deleted is not None:
        assert narrowed.deleted is not None
        assert narrowed.deleted.tolist() == selection.deleted[mask].tolist()


def test_ordinals_are_converted_to_offsets_of_live_rows(deleted: TableVersion) -> None:
    fragment = deleted.manifest.fragments[0]
    found = live_offsets(deleted, fragment)
    assert found is not None
    assert found.tolist() == LIVE
    assert physical_offsets(deleted, fragment, np.arange(len(LIVE))).tolist() == LIVE
    assert row_count_index(deleted).num_rows == len(LIVE)


def test_a_selection_without_columns_keeps_its_row_count(deleted: TableVersion) -> None:
    selection = select(deleted, deleted.manifest.fragments[0], None)
    assert selection.num_rows == len(LIVE)
    assert read_selection(deleted, selection, []) == []


def test_rows_past_the_end_are_rejected(deleted: TableVersion) -> None:
    fragment = deleted.manifest.fragments[0]
    for rows in (range(51), range(51, 52), np.array([-1]), np.array([3, 50]), range(0, 10, 2)):
        with pytest.raises(OutOfRangeError):
            read_rows(deleted, fragment, deleted.schema.fields, rows)


def test_the_row_id_index_contains_only_live_rows(deleted: TableVersion) -> None:
    if not deleted.manifest.has_stable_row_ids:
        pytest.skip("ids are addresses")
    addresses, found = row_id_index(deleted).find(np.arange(NUM_ROWS + 5))
    assert np.flatnonzero(found).tolist() == LIVE
    assert addresses[found].tolist() == LIVE


# --- several files ---------------------------------------------------------------------------------------------------


def changed(version: TableVersion, change: Change) -> TableVersion:
    """Return the version with a modified manifest."""
    message = version.manifest.to_proto()
    change(message)
    return replace(version, file=replace(version.file, manifest=Manifest(message, "changed")))


def field(name: str, number: int, parent: int, kind: str) -> file_pb2.Field:
    return file_pb2.Field(name=name, id=number, parent_id=parent, logical_type=kind, nullable=True)


@pytest.fixture
def two_files(tmp_path: Path) -> TableVersion:
    """Return a struct and a list of structs whose fields `x` and `p` are in one file, `y` and `q` in another.

    ids: k 0, st 1, x 2, l 3, item 4, p 5, y 6, q 7, gone 8 (in no file)
    """
    items = [[], [1, 2], None, [3]]
    one = pa.table(
        {
            "k": [0, 1, 2, 3],
            "st": pa.array([{"x": i} for i in range(4)]),
            "l": pa.array([None if each is None else [{"p": p} for p in each] for each in items]),
        }
    )
    two = pa.table(
        {
            "st": pa.array([{"y": f"y{i}"} for i in range(4)]),
            "l": pa.array([None if each is None else [{"q": float(p)} for p in each] for each in items]),
        }
    )
    paths = [tmp_path / "one", tmp_path / "two"]
    for path, table in zip(paths, (one, two)):
        lance.write_dataset(table, str(path), data_storage_version="2.0")
    first, second = (open_version(str(path)) for path in paths)
    (other,) = second.manifest.fragments[0].files
    shutil.copy(paths[1] / "data" / other.path, paths[0] / "data" / other.path)

    def join(message: table_pb2.Manifest) -> None:
        message.fields.extend([field("y", 6, 1, "string"), field("q", 7, 4, "double"), field("gone", 8, 1, "int64")])
        file = message.fragments[0].files.add()
        file.CopyFrom(second.manifest.message.fragments[0].files[0])
        # st y l item q of the second file under the ids of the table
        file.fields[:] = [1, 6, 3, 4, 7]

    return changed(first, join)


def test_structs_in_several_files_are_merged(two_files: TableVersion) -> None:
    table = read_rows(two_files, two_files.manifest.fragments[0], two_files.schema.fields)
    assert table.column("k").to_pylist() == [0, 1, 2, 3]
    assert table.column("st").to_pylist() == [{"x": i, "y": f"y{i}", "gone": None} for i in range(4)]
    assert table.column("l").to_pylist() == [
        [], [{"p": 1, "q": 1.0}, {"p": 2, "q": 2.0}], None, [{"p": 3, "q": 3.0}],
    ]  # fmt: skip


def test_parts_of_a_struct_are_read_from_their_file(two_files: TableVersion) -> None:
    fields = two_files.schema.project(["st.y", "k"]).fields
    table = read_rows(two_files, two_files.manifest.fragments[0], fields, np.array([1, 3]))
    assert table.to_pydict() == {"st": [{"y": "y1"}, {"y": "y3"}], "k": [1, 3]}
    fields = two_files.schema.project(["st.gone"]).fields
    table = read_rows(two_files, two_files.manifest.fragments[0], fields)
    assert table.column("st").to_pylist() == [None] * 4


def test_lists_of_different_lengths_are_rejected(two_files: TableVersion, tmp_path: Path) -> None:
    other = pa.table({"st": pa.array([{"y": "y"}] * 4), "l": pa.array([[{"q": 1.0}]] * 4)})
    lance.write_dataset(other, str(tmp_path / "three"), data_storage_version="2.0")
    (file,) = open_version(str(tmp_path / "three")).manifest.fragments[0].files
    name = two_files.manifest.fragments[0].files[1].path
    shutil.copy(tmp_path / "three" / "data" / file.path, tmp_path / "one" / "data" / name)

    def resized(message: table_pb2.Manifest) -> None:
        message.fragments[0].files[1].file_size_bytes = 0

    version = changed(two_files, resized)
    with pytest.raises(CorruptFileError, match="lengths"):
        read_rows(version, version.manifest.fragments[0], version.schema.fields)


# --- modified manifests ----------------------------------------------------------------------------------------------


@pytest.fixture
def simple(tmp_path: Path) -> TableVersion:
    table = pa.table({"k": np.arange(10), "s": [f"s{i}" for i in range(10)]})
    lance.write_dataset(table, str(tmp_path / "t"), data_storage_version="2.0")
    return open_version(str(tmp_path / "t"))


def read_all(version: TableVersion) -> pa.Table:
    return read_rows(version, version.manifest.fragments[0], version.schema.fields)


def test_tombstones_and_unknown_field_ids_are_ignored(simple: TableVersion) -> None:
    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].files[0].fields[:] = [-2, 1]
        message.fields.append(field("later", 9, -1, "list"))
        message.fields.append(field("item", 10, 9, "int8"))

    table = read_all(changed(simple, change))
    assert table.column("k").to_pylist() == [None] * 10
    assert table.column("s").to_pylist() == [f"s{i}" for i in range(10)]
    assert table.column("later").type == pa.list_(pa.int8())
    assert table.column("later").null_count == 10


def test_a_missing_row_count_is_read_from_the_file(simple: TableVersion) -> None:
    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].physical_rows = 0
        message.fragments[0].files[0].file_size_bytes = 0

    version = changed(simple, change)
    assert physical_rows(version, version.manifest.fragments[0]) == 10
    assert row_count_index(version).num_rows == 10
    assert read_all(version).num_rows == 10


def test_a_wrong_row_count_is_rejected(simple: TableVersion) -> None:
    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].physical_rows = 11

    with pytest.raises(CorruptFileError, match="11") as caught:
        read_all(changed(simple, change))
    assert (caught.value.expected, caught.value.found) == (11, 10)


def test_a_missing_column_index_is_rejected(simple: TableVersion) -> None:
    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].files[0].column_indices[:] = [0, 7]

    with pytest.raises(CorruptFileError):
        read_all(changed(simple, change))


@pytest.mark.parametrize(("fields", "columns"), [([0, 0], [0, 1]), ([0, 1], [1, 1])])
def test_a_field_or_column_listed_twice_is_rejected(
    simple: TableVersion, fields: list[int], columns: list[int]
) -> None:
    """A flipped bit can produce these; without the check, a column would be null or have values of another one."""

    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].files[0].fields[:] = fields
        message.fragments[0].files[0].column_indices[:] = columns

    with pytest.raises(CorruptFileError, match="twice"):
        read_all(changed(simple, change))


@pytest.mark.parametrize(
    "path", ["../secret.lance", "/etc/passwd", "a/../../b", "C:/x", "a\\b", "", "file:///etc/passwd"]
)
def test_unsafe_paths_are_rejected_before_any_read(simple: TableVersion, path: str) -> None:
    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].files[0].path = path

    class Closed:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"the store was asked to {name}")

    version = replace(changed(simple, change), store=Closed())  # type: ignore[arg-type]  # any use of it fails
    with pytest.raises(CorruptFileError):
        read_all(version)


def test_a_missing_data_file_raises_a_typed_error(simple: TableVersion) -> None:
    def change(message: table_pb2.Manifest) -> None:
        message.fragments[0].files[0].path = "nothing.lance"

    with pytest.raises(LanceError):
        read_all(changed(simple, change))


def test_overlays_and_missing_hidden_columns_are_rejected(simple: TableVersion, deleted: TableVersion) -> None:
    def overlay(message: table_pb2.Manifest) -> None:
        message.fragments[0].overlays.add()

    with pytest.raises(UnsupportedFeatureError, match="overlay"):
        read_all(changed(simple, overlay))

    def spilled(message: table_pb2.Manifest) -> None:
        message.fragments[0].column_row_ids.SetInParent()
        message.reader_feature_flags |= 2

    version = changed(simple, spilled)
    with pytest.raises(CorruptFileError, match="hidden column -3"):
        read_rows(version, version.manifest.fragments[0], [], virtual=[ROW_ID])


def test_row_ids_and_versions_are_read_from_hidden_columns(tmp_path: Path) -> None:
    path = str(tmp_path / "spilled.lance")
    theirs = lance.write_dataset(
        pa.table({"id": pa.array(range(60), pa.int64())}),
        path,
        enable_stable_row_ids=True,
        data_storage_version="2.1",
        max_rows_per_file=20,
    )
    theirs.update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "1"})
    theirs.update({"id": "id + 100"}, where="id % 3 = 1")
    theirs.optimize.compact_files(target_rows_per_fragment=40)
    theirs = lance.dataset(path)
    theirs.delete("id = 50")
    fields = {field for each in theirs.get_fragments() for file in each.data_files() for field in file.fields}
    assert {-3, -4, -5} <= fields
    ours = open_version(path)
    columns = ["id", "_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version"]
    expected = theirs.to_table(columns=columns)
    read = [read_rows(ours, part, ours.schema.fields, virtual=columns[1:]) for part in ours.manifest.fragments]
    assert pa.concat_tables(read).to_pydict() == expected.to_pydict()
    wanted = expected["_rowid"].to_numpy()[::-3]
    addresses, found = row_id_index(ours).find(wanted)
    assert found.all() and addresses.tolist() == expected["_rowaddr"].to_pylist()[::-3]


def test_row_sizes_are_the_sizes_of_the_columns(simple: TableVersion) -> None:
    fragment = simple.manifest.fragments[0]
    (k, s) = simple.schema.fields
    assert bytes_per_row(simple, fragment, [k]) == 8
    assert bytes_per_row(simple, fragment, [k, s]) > 8
