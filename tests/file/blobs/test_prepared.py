"""Blob files written outside of a table: bytes, descriptors and results match pylance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import DataFile, FragmentMetadata

import lancetable
from lancetable.errors import InvalidInputError, InvalidOperationError, UnsupportedFeatureError
from lancetable.file import LanceFileReader, LanceFileSession, LanceFileWriter
from lancetable.file.blobs.descriptions import PREPARED

VALUES = [b"hello", None, b"", b"world", b"last", b"bigger", b"inline!", None, b"", b"llo", b"bigger"]


def prepared(library: Any, base: Path) -> tuple[pa.Table, list[str]]:
    """Return a table with a prepared column and a number column, and the descriptors; write blob files below `base`."""
    session = library.file.LanceFileSession(str(base))
    packed = session.open_packed_blob_writer("data/abc.lance", 3)
    packed.write_blobs(pa.chunked_array([pa.array([b"?", b"hello", None]).slice(1), pa.array([b"", b"world"])]))
    packed.write_blob(b"last")
    found = packed.finish()
    dedicated = session.open_dedicated_blob_writer("data/abc.lance", 6)
    dedicated.write(b"big")
    dedicated.write(b"ger")
    found.append(dedicated.finish())
    builder = library.BlobDescriptorArrayBuilder("b")
    builder.extend(found[:-1])
    builder.append(found[-1])
    builder.append_inline(b"inline!")
    builder.append_null()
    builder.append_inline(b"")
    builder.extend_packed(3, [2], [3])
    builder.append_dedicated(6, 6)
    array = builder.finish()
    schema = pa.schema([builder.field, pa.field("id", pa.int64())])
    return pa.Table.from_arrays([array, pa.array(range(len(array)))], schema=schema), [repr(each) for each in found]


def files_below(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_blob_files_and_columns_match_pylance(tmp_path: Path) -> None:
    made = {library.__name__: prepared(library, tmp_path / library.__name__) for library in (lance, lancetable)}
    (theirs, their_words), (ours, our_words) = made["lance"], made["lancetable"]
    assert ours.equals(theirs) and ours.schema.equals(theirs.schema, check_metadata=True)
    assert our_words == their_words
    assert files_below(tmp_path / "lancetable") == files_below(tmp_path / "lance")


@pytest.mark.parametrize("library", [lance, lancetable])
def test_tables_with_prepared_blobs_are_readable_by_both_implementations(library: Any, tmp_path: Path) -> None:
    uri = tmp_path / "t"
    empty = pa.schema([lance.blob_field("b"), pa.field("id", pa.int64())])
    lance.write_dataset(empty.empty_table(), str(uri), data_storage_version="2.2")
    table, _ = prepared(library, uri)
    path = uri / "data" / "abc.lance"
    with library.file.LanceFileWriter(str(path), table.schema, version="2.2") as writer:
        writer.write_batch(table)
    schema = LanceFileReader(str(path)).metadata().schema
    assert schema.field("b").metadata[b"lance-encoding:blob"] == b"true"
    file = DataFile(path.name, [0, 1], [0, 1], 2, 2, path.stat().st_size)
    fragment = FragmentMetadata(0, [file], table.num_rows)
    lance.LanceDataset.commit(str(uri), lance.LanceOperation.Append([fragment]), read_version=1)
    for reader in (lance, lancetable):
        blobs = reader.dataset(str(uri)).take_blobs("b", indices=list(range(len(VALUES))))
        assert [None if blob is None else blob.readall() for blob in blobs] == VALUES


def test_finish_array_returns_a_prepared_column(tmp_path: Path) -> None:
    for library in (lance, lancetable):
        packed = library.file.LanceFileSession(str(tmp_path)).open_packed_blob_writer("a.lance", 1)
        packed.write_blobs(pa.array([b"ab", b"cd"], pa.binary(2)))
        with pytest.raises(ValueError, match="finish_array"):
            _ = packed.field
        assert packed.path.endswith("a/" + "1" + "0" * 31 + ".blob") and not packed.path.startswith("/")
        array = packed.finish_array("c")
        assert array.type == PREPARED == packed.field.type and packed.field.name == "c"
        assert [row["position"] for row in array.to_pylist()] == [0, 2]


def test_invalid_blob_calls_raise(tmp_path: Path) -> None:
    session = LanceFileSession(tmp_path)
    for number in (0, -1, 1 << 32):
        with pytest.raises(InvalidInputError, match="blob id"):
            session.open_packed_blob_writer("a.lance", number)
    with pytest.raises(InvalidInputError, match=r"\.lance"):
        session.open_dedicated_blob_writer("a", 1)
    with pytest.raises(InvalidInputError):
        session.open_dedicated_blob_writer("../a.lance", 1)
    writer = session.open_packed_blob_writer("a.lance", 1)
    with pytest.raises(InvalidInputError, match="binary"):
        writer.write_blobs(pa.array(["text"]))
    assert not files_below(tmp_path).keys() & {"a/" + "1" + "0" * 31 + ".blob"}
    writer.finish()
    with pytest.raises(InvalidOperationError, match="finished"):
        writer.write_blob(b"late")
    builder = lancetable.BlobDescriptorArrayBuilder("b")
    with pytest.raises(InvalidInputError, match="differ"):
        builder.extend_packed(1, [0], [1, 2])
    with pytest.raises(InvalidInputError):
        builder.append_dedicated(1, -1)
    with pytest.raises(TypeError):
        builder.append(3)  # type: ignore[arg-type]  # on purpose
    field = builder.field
    for row, error in (
        ({"kind": 3, "uri": "file:///etc/passwd"}, UnsupportedFeatureError),
        ({"kind": 0}, InvalidInputError),
        ({"kind": 1, "blob_id": 1, "blob_size": 1}, InvalidInputError),
        ({"data": b"x"}, InvalidInputError),
    ):
        with pytest.raises(error), LanceFileWriter(tmp_path / "f.lance", pa.schema([field]), version="2.2") as file:
            file.write_batch(pa.record_batch([pa.array([row], PREPARED)], schema=pa.schema([field])))
    with pytest.raises(UnsupportedFeatureError, match=r"2\.2"):
        LanceFileWriter(tmp_path / "f.lance", pa.schema([field]), version="2.1")
    assert not (tmp_path / "f.lance").exists()
