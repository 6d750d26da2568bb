"""Fragments, data files and deletion files: round trips through messages and JSON, and invalid input."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest
from hypothesis import given

from lancetable import fragment_metadata
from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedFeatureError
from lancetable.format.fragment import DataFile, DeletionFile, DeletionKind, Fragment, SequenceLocation
from lancetable.format.version import FileVersion
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.proto import table_pb2
from lancetable.testing.strategies import data_files, deletion_files, fragments


def fragment_to_json(fragment):
    return FragmentMetadata.from_format(fragment).to_json()


def fragment_from_json(value):
    return FragmentMetadata.from_json(json.dumps(value)).to_format()


FILE = DataFile("a.lance", (0, 1), (0, 1), 2, 0, 100)


@given(fragments())
def test_messages_and_json_round_trip(fragment):
    assert Fragment.from_proto(fragment.to_proto()) == fragment
    parsed = table_pb2.DataFragment.FromString(fragment.to_proto().SerializeToString())
    assert Fragment.from_proto(parsed) == fragment
    assert fragment_from_json(fragment_to_json(fragment)) == fragment
    assert pickle.loads(pickle.dumps(fragment)) == fragment


@given(data_files(), deletion_files())
def test_files_round_trip(file, deletion):
    assert DataFile.from_json(json.loads(json.dumps(fragment_metadata.DataFile.from_format(file).asdict()))) == file
    assert DeletionFile.from_proto(deletion.to_proto()) == deletion
    assert DeletionFile.from_json(fragment_metadata.DeletionFile.from_format(deletion).asdict()) == deletion


def test_json_equals_that_of_pylance(write_with_pylance, latest_manifest):
    lance = pytest.importorskip("lance")
    dataset, _ = write_with_pylance(pa.table({"a": range(10)}), enable_stable_row_ids=True)
    dataset.delete("a = 3")
    manifest = latest_manifest(dataset)
    ours = fragment_to_json(manifest.fragments[0])
    theirs = dataset.get_fragments()[0].metadata.to_json()
    assert ours == theirs
    assert list(ours) == list(theirs)
    assert list(ours["files"][0]) == list(theirs["files"][0])
    assert list(ours["deletion_file"]) == list(theirs["deletion_file"])
    assert lance.FragmentMetadata.from_json(json.dumps(ours)) == dataset.get_fragments()[0].metadata
    assert fragment_from_json(theirs) == manifest.fragments[0]
    assert manifest.fragments[0].num_rows == 9


def test_base_id_0_differs_from_a_missing_one():
    assert DataFile.from_proto(table_pb2.DataFile(path="a", base_id=0)).base_id == 0
    assert DataFile.from_proto(table_pb2.DataFile(path="a")).base_id is None
    assert DataFile("a", (), (), base_id=0).to_proto().HasField("base_id")
    assert not DataFile("a", (), ()).to_proto().HasField("base_id")


def test_row_counts_and_names_of_deletion_files():
    deletion = DeletionFile(DeletionKind.BITMAP, 4, 77, 3)
    assert Fragment(0, (FILE,), 10, deletion).num_rows == 7
    assert Fragment(0, (FILE,), 10).num_rows == 10
    assert Fragment(0, (FILE,)).num_rows is None
    assert Fragment(0, (FILE,), 10, DeletionFile(DeletionKind.BITMAP, 4, 77)).num_rows is None
    assert deletion.name(5) == "5-4-77.bin"
    assert DeletionFile(DeletionKind.ARROW_ARRAY, 4, 77).name(5) == "5-4-77.arrow"


def test_file_version_of_a_data_file():
    assert FILE.file_version is FileVersion.V2_0
    assert DataFile("a", (0,), (), 0, 2).file_version is FileVersion.LEGACY
    assert DataFile("a", (0,), (), 0, 2).is_legacy and not FILE.is_legacy
    with pytest.raises(UnsupportedFeatureError, match=r"b\.lance"):
        _ = DataFile("b.lance", (0,), (0,), 2, 3).file_version


def test_places_of_lineage_are_distinguished():
    message = table_pb2.DataFragment()
    message.column_row_ids.SetInParent()
    message.external_created_at_versions.path = "x"
    fragment = Fragment.from_proto(message)
    assert fragment.row_ids is SequenceLocation.COLUMN
    assert fragment.created_at is SequenceLocation.EXTERNAL
    assert fragment.last_updated_at is None
    assert Fragment(0, row_ids=SequenceLocation.COLUMN).to_proto().WhichOneof("row_id_sequence") == "column_row_ids"
    with pytest.raises(ValueError, match="cannot write"):
        Fragment(0, row_ids=SequenceLocation.EXTERNAL).to_proto()


def test_overlays_are_preserved():
    message = table_pb2.DataFragment(id=3)
    overlay = message.overlays.add(committed_version=4)
    overlay.data_file.path = "o.lance"
    assert Fragment.from_proto(message).to_proto() == message


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (table_pb2.DataFragment(id=2**32), "32 bits"),
        (table_pb2.DataFragment(physical_rows=2**32 + 1), "32 bits"),
        (table_pb2.DataFragment(physical_rows=3, deletion_file=table_pb2.DeletionFile(num_deleted_rows=4)), "deleted"),
        (table_pb2.DataFragment(deletion_file=table_pb2.DeletionFile(file_type=7)), "unknown kind"),
        (table_pb2.DataFragment(files=[table_pb2.DataFile(path="../x")]), "contains a '.' or '..' segment"),
        (table_pb2.DataFragment(files=[table_pb2.DataFile(path="")]), "empty"),
        (table_pb2.DataFragment(files=[table_pb2.DataFile(path="a", fields=[1], file_major_version=2)]), "indices"),
        (table_pb2.DataFragment(files=[table_pb2.DataFile(path="a", fields=[1], column_indices=[0, 1])]), "indices"),
        (table_pb2.DataFragment(files=[table_pb2.DataFile(path="a", fields=[-6], column_indices=[0])]), "field id -6"),
        (table_pb2.DataFragment(files=[table_pb2.DataFile(path="a", fields=[1], column_indices=[-2])]), "negative"),
    ],
)
def test_invalid_messages_raise(message, text):
    with pytest.raises(CorruptFileError, match=text):
        Fragment.from_proto(message)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"id": 0},
        {"id": "x", "files": [], "physical_rows": 1},
        {"id": -1, "files": [], "physical_rows": 1},
        {"id": 0, "files": [{"fields": [0]}], "physical_rows": 1},
        {"id": 0, "files": [{"path": "/etc/passwd", "fields": []}], "physical_rows": 1},
        {"id": 0, "files": [], "physical_rows": 1, "deletion_file": {"file_type": "other"}},
        {"id": 0, "files": [], "physical_rows": 1, "row_id_meta": {"Inline": [300]}},
        {"id": 0, "files": [], "physical_rows": 1, "row_id_meta": {"Inline": 5.5}},
        {"id": 0, "files": [], "physical_rows": 1, "row_id_meta": {"Elsewhere": 1}},
        {"id": 0, "files": [], "physical_rows": 1, "created_at_version_meta": "x"},
        {"id": 0, "files": [7], "physical_rows": 1},
        {"id": 0, "files": 7, "physical_rows": 1},
    ],
)
def test_invalid_json_raises(value):
    with pytest.raises(InvalidInputError):
        fragment_from_json(value)
