"""Index metadata: known and unknown fields, and invalid sections."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from lancetable.errors import CorruptFileError
from lancetable.format.index import IndexFile, IndexMetadata, parse_indices
from lancetable.proto import table_pb2


def message() -> table_pb2.IndexMetadata:
    index = table_pb2.IndexMetadata(
        uuid=table_pb2.UUID(uuid=bytes(range(16))),
        fields=[3],
        name="a_idx",
        dataset_version=7,
        fragment_bitmap=b"bitmap",
        index_version=0,
        created_at=12,
        base_id=0,
        files=[table_pb2.IndexFile(path="page_data.lance", size_bytes=5)],
    )
    index.index_details.type_url = "/lance.table.BTreeIndexDetails"
    index.index_details.value = b"\x08\x01"
    # Fields 12 and 13, which are not in the message definition.
    index.MergeFromString(bytes([12 << 3, 5, 13 << 3 | 2, 2, 0x0A, 0x00]))
    return index


def test_fields_are_read():
    index = IndexMetadata.from_proto(message())
    assert index.uuid == uuid.UUID(bytes=bytes(range(16)))
    assert (index.name, index.fields, index.dataset_version) == ("a_idx", (3,), 7)
    assert (index.index_version, index.created_at_ms, index.base_id) == (0, 12, 0)
    assert index.files == (IndexFile("page_data.lance", 5),)
    assert index.type_url.endswith(".BTreeIndexDetails")


def test_unknown_fields_are_preserved():
    assert IndexMetadata.from_proto(message()).to_proto() == message()
    changed = replace(IndexMetadata.from_proto(message()), fragment_bitmap=b"other", base_id=None).to_proto()
    expected = message()
    expected.fragment_bitmap = b"other"
    expected.ClearField("base_id")
    assert changed == expected
    assert bytes([12 << 3, 5]) in changed.SerializeToString()


def test_sections_round_trip():
    section = table_pb2.IndexSection(indices=[message(), message()])
    indices = parse_indices(section.SerializeToString())
    assert [index.to_proto() for index in indices] == list(section.indices)
    assert parse_indices(b"") == parse_indices(None) == ()


def test_invalid_sections_raise():
    with pytest.raises(CorruptFileError, match="some/path"):
        parse_indices(b"\xff", "some/path")
    with pytest.raises(CorruptFileError, match="expected 16, found 3"):
        IndexMetadata.from_proto(table_pb2.IndexMetadata(uuid=table_pb2.UUID(uuid=b"abc")))


def test_indices_of_pylance_round_trip(write_with_pylance, latest_manifest):
    from pathlib import Path

    import pyarrow as pa

    dataset, _ = write_with_pylance(pa.table({"a": range(100)}))
    dataset.create_scalar_index("a", "BTREE")
    manifest = latest_manifest(dataset)
    assert manifest.index_section is not None
    path = sorted((Path(dataset.uri) / "_versions").glob("*.manifest"))[0]
    data = path.read_bytes()[manifest.index_section :]
    size = int.from_bytes(data[:4], "little")
    indices = parse_indices(data[4 : 4 + size])
    assert [index.name for index in indices] == ["a_idx"]
    assert [index.to_proto() for index in indices] == list(
        table_pb2.IndexSection.FromString(data[4 : 4 + size]).indices
    )
