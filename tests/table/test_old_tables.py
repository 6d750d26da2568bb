"""Tables of old releases: known faults of their manifests are tolerated and repaired.

The faults are made here, on new tables. Where LANCETABLE_OLD_TABLES names a directory with tables of old releases (the
`test_data` and `historical_datasets` of the reference implementation), they are compared with what pylance reads.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidOperationError, LanceError
from lancetable.proto import table_pb2
from lancetable.table.manifest_files import pack
from lancetable.table.version import open_version


def table_of(uri: Path, storage: str = "0.1") -> pa.Table:
    """Create two fragments of five rows, with one row of the first deleted."""
    table = pa.table({"a": range(10), "s": [f"s{i}" for i in range(10)]})
    lance.write_dataset(table, uri, data_storage_version=storage, max_rows_per_file=5)
    lance.dataset(uri).delete("a = 2")
    return lance.dataset(uri).to_table(with_row_id=True)


def edit(uri: Path, change: Callable[[table_pb2.Manifest], None]) -> None:
    """Rewrite the newest manifest with a modification."""
    version = open_version(str(uri))
    message = version.manifest.to_proto()
    change(message)
    data = version.file.transaction_section(version.store)
    assert data is not None
    Path(version.location.path).write_bytes(pack(message, bytes(data), None))


def without_counts(message: table_pb2.Manifest) -> None:
    for fragment in message.fragments:
        fragment.physical_rows = 0
        if fragment.HasField("deletion_file"):
            fragment.deletion_file.num_deleted_rows = 0


def without_writer(message: table_pb2.Manifest) -> None:
    """Remove the writer and store live row counts, as some releases did that did not record their version."""
    message.ClearField("writer_version")
    message.fragments[0].physical_rows = 4
    message.fragments[0].deletion_file.num_deleted_rows = 3


def without_format(message: table_pb2.Manifest) -> None:
    message.ClearField("data_format")


def without_file_versions(message: table_pb2.Manifest) -> None:
    for fragment in message.fragments:
        for file in fragment.files:
            file.file_major_version = file.file_minor_version = 0


def without_sizes(message: table_pb2.Manifest) -> None:
    for fragment in message.fragments:
        for file in fragment.files:
            file.file_size_bytes = 0


def without_highest_id(message: table_pb2.Manifest) -> None:
    message.ClearField("max_fragment_id")


def without_transaction(message: table_pb2.Manifest) -> None:
    message.transaction_file = ""


def without_flags(message: table_pb2.Manifest) -> None:
    message.reader_feature_flags = message.writer_feature_flags = 0


def old_writer(message: table_pb2.Manifest) -> None:
    message.writer_version.library, message.writer_version.version = "lance", "0.10.5"


FAULTS = [
    without_counts, without_writer, without_format, without_file_versions, without_sizes, without_highest_id,
    without_transaction, without_flags,
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_known_faults_are_tolerated_and_repaired(fault: Callable[[Any], None], tmp_path: Path) -> None:
    uri = tmp_path / "t"
    expected = table_of(uri)

    def change(message: table_pb2.Manifest) -> None:
        old_writer(message)
        fault(message)

    edit(uri, change)
    dataset = lancetable.dataset(uri)
    assert dataset.to_table(with_row_id=True).equals(expected)
    assert (dataset.count_rows(), dataset.count_rows("a > 3"), len(dataset)) == (9, 6, 9)
    assert dataset.take([1, 2, 8]).column("a").to_pylist() == [1, 3, 9]
    assert dataset.data_storage_version == "0.1"
    assert [each.physical_rows for each in dataset.get_fragments()] == [5, 5]
    dataset.insert(pa.table({"a": [10], "s": ["s10"]}))
    message = open_version(str(uri)).manifest.message
    assert message.data_format.version == "0.1" and message.max_fragment_id == 2
    assert [each.physical_rows for each in message.fragments] == [5, 5, 1]
    assert message.fragments[0].deletion_file.num_deleted_rows == 1
    assert all(file.file_size_bytes for fragment in message.fragments for file in fragment.files)
    assert (message.reader_feature_flags, message.writer_feature_flags) == (1, 1)
    assert lance.dataset(uri).to_table().column("a").to_pylist() == [0, 1, *range(3, 11)]


def test_a_recorded_format_older_than_the_files_is_corrected_by_the_next_commit(tmp_path: Path) -> None:
    """Release 0.16 still recorded 0.1 when tables were overwritten in 2.0."""
    uri = tmp_path / "t"
    table_of(uri, "2.0")

    def change(message: table_pb2.Manifest) -> None:
        old_writer(message)
        message.data_format.version = "0.1"

    edit(uri, change)
    dataset = lancetable.dataset(uri)
    assert (dataset.count_rows(), dataset.data_storage_version) == (9, "0.1")
    assert lance.dataset(uri).data_storage_version == "0.1"
    dataset.insert(pa.table({"a": [10], "s": ["s10"]}))
    assert open_version(str(uri)).manifest.data_format == dataset.data_storage_version == "2.0"
    assert lance.dataset(uri).count_rows() == 10


def test_a_table_of_mixed_file_versions_is_not_written(tmp_path: Path) -> None:
    """Release 0.16 appended files of another version to such a table; only an older version is usable."""
    uri, other = tmp_path / "t", tmp_path / "u"
    table_of(uri)
    lance.write_dataset(pa.table({"a": [1], "s": ["x"]}), other, data_storage_version="2.0")
    (file,) = open_version(str(other)).manifest.fragments[0].files
    shutil.copy(other / "data" / file.path, uri / "data")

    def change(message: table_pb2.Manifest) -> None:
        old_writer(message)
        message.fragments.add(id=2, physical_rows=1, files=[file.to_proto()])

    edit(uri, change)
    with pytest.raises(InvalidOperationError, match="restore an older version"):
        lancetable.dataset(uri).delete("a = 3")
    lancetable.dataset(uri, version=1).restore()
    assert lance.dataset(uri).count_rows() == 10


def test_a_reused_field_id_is_read_from_the_newest_file(tmp_path: Path) -> None:
    """Releases before 0.11 reused the id of a dropped column; the newest file contains the current column."""
    uri = tmp_path / "t"
    lance.write_dataset(pa.table({"x": range(4)}), uri, data_storage_version="0.1", max_rows_per_file=2)
    lance.dataset(uri).add_columns({"y": "x * 2"})
    lance.dataset(uri).add_columns({"z": "x * 4"})

    def change(message: table_pb2.Manifest) -> None:
        old_writer(message)
        del message.fields[1]
        message.fields[1].id = 1
        for fragment in message.fragments:
            fragment.files[2].fields[0] = 1

    edit(uri, change)
    dataset = lancetable.dataset(uri)
    assert dataset.to_table().to_pydict() == {"x": [0, 1, 2, 3], "z": [0, 4, 8, 12]}
    with pytest.raises(InvalidOperationError, match="delete"):
        dataset.insert(pa.table({"x": [4], "z": [5]}))
    dataset.delete("x = 1")
    assert dataset.to_table().to_pydict() == {"x": [0, 2, 3], "z": [0, 8, 12]}
    assert [field.id() for field in lancetable.dataset(uri).lance_schema.fields()] == [0, 2]
    assert lance.dataset(uri).to_table().to_pydict() == {"x": [0, 2, 3], "z": [0, 8, 12]}
    assert [len(each.files) for each in open_version(str(uri)).manifest.fragments] == [2, 2]


def test_the_coverage_of_an_old_index_is_ignored(tmp_path: Path) -> None:
    """Compaction before 0.8.15 wrote wrong coverage; pylance recomputes missing coverage."""
    uri = tmp_path / "t"
    table_of(uri, "2.0")
    lance.dataset(uri).create_scalar_index("a", "BTREE")
    version = open_version(str(uri))
    section = version.file.index_section(version.store)
    message, data = version.manifest.to_proto(), version.file.transaction_section(version.store)
    message.writer_version.library, message.writer_version.version = "lance", "0.8.14"
    assert section is not None and data is not None
    Path(version.location.path).write_bytes(pack(message, bytes(data), bytes(section)))
    lancetable.dataset(uri).delete("a = 7")
    after = open_version(str(uri))
    (index,) = table_pb2.IndexSection.FromString(bytes(after.file.index_section(after.store) or b"")).indices
    assert not index.fragment_bitmap
    assert lance.dataset(uri).to_table(filter="a = 8").num_rows == 1


def test_v1_names_with_a_latest_manifest_are_read(tmp_path: Path) -> None:
    """Releases before 0.14 wrote V1 names and `_latest.manifest`, which is ignored."""
    uri = tmp_path / "t"
    lance.write_dataset(pa.table({"a": [1]}), uri, data_storage_version="0.1", enable_v2_manifest_paths=False)
    shutil.copy(uri / "_versions" / "1.manifest", uri / "_latest.manifest")
    (uri / "_versions" / "latest_version_hint.json").unlink()
    lancetable.dataset(uri).delete("a = 2")
    assert (uri / "_versions" / "2.manifest").exists()
    assert lance.dataset(uri).version == 2


def test_strings_stored_as_lists_of_bytes_are_read(tmp_path: Path) -> None:
    """Release 0.13 stored strings in 2.0 files as two columns: ends and bytes."""
    from lancetable.file.reader import open_data_file, read_columns
    from lancetable.format.schema import Schema
    from lancetable.proto import encodings_v2_0_pb2 as pb
    from lancetable.store.memory import MemoryStore
    from tests.support.synthetic_files import Column, Page, build_file

    def flat(bits: int) -> pb.ArrayEncoding:
        values = pb.ArrayEncoding(flat=pb.Flat(bits_per_value=bits, buffer=pb.Buffer()))
        return pb.ArrayEncoding(nullable=pb.Nullable(no_nulls=pb.Nullable.NoNull(values=values)))

    lists = pb.ArrayEncoding(list=pb.List(offsets=flat(64), null_offset_adjustment=7, num_items=6))
    ends = struct.pack("<4Q", 3, 3 + 7, 4, 6)
    schema = Schema.from_arrow(pa.schema([("s", pa.string())]))
    store = MemoryStore.private()
    pages = [Column([Page(4, lists, [ends])]), Column([Page(6, flat(8), [b"fooxyz"])])]
    store.put("f", build_file(schema, 4, pages))
    meta = open_data_file(store, "f")
    (found,) = read_columns(store, "f", meta, schema.fields, {0: 0})
    assert found.to_pylist() == ["foo", None, "x", "yz"]


# -------------------------------------------------------------------------------------------------- of real releases


def old_tables() -> list[Any]:
    root = os.environ.get("LANCETABLE_OLD_TABLES")
    if not root:
        return [pytest.param("", marks=pytest.mark.skip(reason="LANCETABLE_OLD_TABLES is not set"))]
    found = {path.parent.parent for path in Path(root).rglob("_versions/*.manifest")}
    return [pytest.param(str(path), id=str(path.relative_to(root))) for path in sorted(found)]


@pytest.mark.parametrize("uri", old_tables())
def test_tables_of_old_releases_equal_pylance(uri: str, tmp_path: Path) -> None:
    ours, theirs = lancetable.dataset(uri), lance.dataset(uri)
    assert [each["version"] for each in ours.versions()] == [each["version"] for each in theirs.versions()]
    for each in theirs.versions():
        our, their = (library.dataset(uri, version=each["version"]) for library in (lancetable, lance))
        try:
            expected = their.to_table(with_row_id=True)
        except (OSError, pa.ArrowInvalid):  # some tables lack their data files
            with pytest.raises(LanceError):
                our.to_table()
            continue
        if "corrupt_schema" in uri and each["version"] == 6:
            # pylance shows the dropped columns until its next commit repairs the schema.
            copy = tmp_path / "copy"
            shutil.copytree(uri, copy)
            lance.dataset(copy).delete("false")
            expected = lance.dataset(copy).to_table(with_row_id=True)
        found = our.to_table(with_row_id=True)
        assert found.schema.equals(expected.schema) and found.to_pylist() == expected.to_pylist()
        assert our.count_rows() == expected.num_rows
        rows = [0, expected.num_rows // 2] if expected.num_rows else []
        taken = expected.drop_columns(["_rowid"]).take(pa.array(rows, pa.int64()))
        assert our.take(rows).to_pylist() == taken.to_pylist()


@pytest.mark.parametrize("uri", old_tables())
def test_tables_of_old_releases_accept_commits(uri: str, tmp_path: Path) -> None:
    """pylance reads the result of a commit on a copy of the table."""
    copy = tmp_path / "t"
    shutil.copytree(uri, copy)
    dataset = lancetable.dataset(copy)
    if "no_fix" in uri:
        with pytest.raises(InvalidOperationError):
            dataset.delete("false")
        return
    try:
        expected = dataset.to_table()
    except LanceError:
        return  # its data files are missing
    if not expected.num_rows:
        return
    if "corrupt_schema" in uri:
        with pytest.raises(InvalidOperationError, match="delete"):
            dataset.insert(expected.slice(0, 1))
        dataset.delete("false")
    dataset.insert(expected.slice(0, 1))
    dataset.delete("false")
    assert lance.dataset(copy).to_table().to_pylist() == [*expected.to_pylist(), expected.slice(0, 1).to_pylist()[0]]


def test_metadata_of_fragments_without_recorded_counts_equals_that_of_pylance(tmp_path: Path) -> None:
    uri = tmp_path / "t"
    table_of(uri)

    def change(message: table_pb2.Manifest) -> None:
        old_writer(message)
        without_counts(message)

    edit(uri, change)
    ours, theirs = ([each.metadata for each in library.dataset(uri).get_fragments()] for library in (lancetable, lance))
    assert [each.physical_rows for each in ours] == [each.physical_rows for each in theirs] == [None, None]
    assert [each.num_deletions for each in ours] == [each.num_deletions for each in theirs] == [None, 0]
    assert [each.to_json() for each in ours] == [each.to_json() for each in theirs]
    assert [each.num_rows for each in ours] == [None, None]  # a TypeError in pylance
    task = lancetable.optimize.Compaction.plan(lancetable.dataset(uri)).tasks[0]
    task = lancetable.optimize.CompactionTask.from_json(task.json())
    assert task.execute(lancetable.dataset(uri)).metrics.fragments_removed == 2
    operation = lancetable.LanceOperation.Merge(ours, lancetable.dataset(uri).lance_schema)
    committed = lancetable.LanceDataset.commit(uri, operation, read_version=2)
    assert committed.count_rows() == lance.dataset(uri).count_rows() == 9
    assert [each.metadata.num_rows for each in committed.get_fragments()] == [4, 5]
