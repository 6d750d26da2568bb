"""Manifests: fields as reported by pylance, the list of fragments, and invalid messages."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.format.fragment import Fragment
from lancetable.format.manifest import BasePath, FragmentList, Manifest, WriterVersion
from lancetable.format.schema import Schema
from lancetable.format.version import STABLE_VERSION, FileVersion
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.proto import file_pb2, table_pb2


def fragment_list(*ids: int) -> FragmentList:
    return FragmentList([table_pb2.DataFragment(id=each, physical_rows=each + 1) for each in ids])


# ------------------------------------------------------------------------------------------------ against pylance


def test_fields_equal_those_that_pylance_reports(write_with_pylance, latest_manifest):
    dataset, _ = write_with_pylance(pa.table({"a": range(100)}), max_rows_per_file=30, enable_stable_row_ids=True)
    dataset.delete("a % 30 = 7")
    dataset.update_config({"k": "v"})
    manifest = latest_manifest(dataset)
    assert manifest.version == dataset.version == 3
    assert manifest.schema.to_arrow().equals(dataset.schema, check_metadata=True)
    # pylance converts times through floating point, which can change the microsecond.
    assert abs(manifest.timestamp.astimezone().replace(tzinfo=None) - dataset.versions()[-1]["timestamp"]) <= timedelta(
        microseconds=1
    )
    assert manifest.fragments.num_rows() == dataset.count_rows() == 96
    assert manifest.fragments.ids().tolist() == [f.fragment_id for f in dataset.get_fragments()]
    assert [FragmentMetadata.from_format(f).to_json() for f in manifest.fragments] == [
        f.metadata.to_json() for f in dataset.get_fragments()
    ]
    assert manifest.max_field_id == dataset.max_field_id
    assert manifest.data_format == dataset.data_storage_version == "2.0"
    assert manifest.has_stable_row_ids
    assert manifest.config == {"k": "v"}
    assert (manifest.max_fragment_id, manifest.next_row_id) == (3, 100)
    assert manifest.writer_version is not None and manifest.writer_version.library == "lance"
    assert manifest.branch is None and manifest.index_section is None
    assert manifest.transaction_section is not None and manifest.transaction_file.startswith("2-")


def test_branches_have_base_paths(write_with_pylance, latest_manifest):
    dataset, _ = write_with_pylance(pa.table({"a": [1]}))
    branch = dataset.create_branch("dev")
    manifest = latest_manifest(branch)
    assert manifest.branch == "dev"
    (base,) = manifest.base_paths.values()
    assert base.is_dataset_root and Path(base.path) == Path(dataset.uri)
    assert manifest.fragments[0].files[0].base_id == base.id


def test_messages_of_the_corpus_round_trip(corpus):
    """All fields of manifests of other writers are known, and their fragments are converted back to equal messages."""
    paths = sorted(corpus.glob("tables/**/_versions/*.manifest"))
    assert paths
    for path in paths:
        data = path.read_bytes()
        start = int.from_bytes(data[-16:-8], "little")
        manifest = Manifest.from_bytes(memoryview(data)[start + 4 : -16], str(path))
        for message in manifest.fragments.messages():
            assert Fragment.from_proto(message).to_proto() == message, path
        assert manifest.schema.to_protos() == list(manifest.message.fields), path
        manifest.schema.to_arrow()
        assert manifest.file_version.number == manifest.data_format
        assert manifest.timestamp.year >= 2020


# ----------------------------------------------------------------------------------------------------- fragment list


def test_fragments_are_found_by_id():
    fragments = fragment_list(2, 5, 9)
    assert [fragments.position(each) for each in (2, 5, 9, 0, 3, 10, 2**32 - 1)] == [0, 1, 2, None, None, None, None]
    assert fragments.by_id(5) == fragments[1]
    assert fragments.by_id(6) is None
    assert fragment_list().position(0) is None


@given(st.lists(st.integers(0, 30), unique=True))
def test_fragment_ids_may_have_any_order(ids):
    fragments = fragment_list(*ids)
    assert fragments.ids().tolist() == ids
    assert [fragment.id for fragment in fragments] == ids
    for wanted in range(32):
        assert fragments.position(wanted) == (ids.index(wanted) if wanted in ids else None)


def test_duplicate_fragment_ids_raise():
    for ids in ((1, 1), (3, 1, 3)):
        with pytest.raises(CorruptFileError, match="twice"):
            fragment_list(*ids).ids()


@pytest.mark.parametrize("inner", [False, True])
def test_duplicate_field_names_raise(inner):
    fields = Schema.from_arrow(
        pa.schema([("x", pa.int64()), ("p", pa.struct({"a": pa.int8(), "b": pa.int8()})), ("b", pa.int8())])
    )
    message = table_pb2.Manifest(fields=fields.to_protos())
    assert len(Manifest(message).schema.fields) == 3
    message.fields[3 if inner else 4].name = "a" if inner else "x"
    with pytest.raises(
        CorruptFileError, match="field 'p' has two fields named 'a'" if inner else "two fields named 'x'"
    ):
        _ = Manifest(message, "_versions/1.manifest").schema


def test_fragment_list_behaves_like_a_sequence():
    fragments = fragment_list(2, 5, 9)
    assert len(fragments) == 3
    assert fragments[-1].id == 9
    assert [fragment.id for fragment in fragments[1:]] == [5, 9]
    assert fragments[0] is fragments[0]
    with pytest.raises(IndexError):
        _ = fragments[3]


def test_row_count_is_none_if_a_count_is_missing():
    messages = [
        table_pb2.DataFragment(physical_rows=10),
        table_pb2.DataFragment(id=1, physical_rows=5, deletion_file=table_pb2.DeletionFile(num_deleted_rows=2)),
    ]
    assert FragmentList(messages).num_rows() == 13
    messages.append(table_pb2.DataFragment(id=2, physical_rows=5, deletion_file=table_pb2.DeletionFile()))
    fragments = FragmentList(messages)
    assert fragments.physical_rows().tolist() == [10, 5, 5]
    assert fragments.num_deleted_rows().tolist() == [0, 2, -1]
    assert fragments.num_rows() is None
    assert FragmentList([table_pb2.DataFragment()]).num_rows() is None
    assert FragmentList([]).num_rows() == 0


def test_impossible_row_counts_raise():
    for message in (
        table_pb2.DataFragment(physical_rows=2**64 - 1),
        table_pb2.DataFragment(physical_rows=5, deletion_file=table_pb2.DeletionFile(num_deleted_rows=2**63)),
    ):
        with pytest.raises(CorruptFileError, match="32 bits"):
            FragmentList([message]).num_rows()


def test_invalid_fragment_raises_on_access():
    fragments = FragmentList([table_pb2.DataFragment(), table_pb2.DataFragment(id=2**40)])
    assert fragments[0].id == 0
    with pytest.raises(CorruptFileError, match="32 bits"):
        _ = fragments[1]


def test_fragments_are_created_on_access(monkeypatch):
    made = []
    make = Fragment.from_proto
    monkeypatch.setattr(Fragment, "from_proto", lambda message: made.append(message.id) or make(message))
    message = table_pb2.Manifest(writer_version={"library": "lance", "version": "1.0.0"})
    for each in range(100_000):
        message.fragments.add(id=each, physical_rows=7)
    data = message.SerializeToString()
    manifest = Manifest.from_bytes(data)
    assert len(manifest.fragments) == 100_000
    assert manifest.fragments.position(99_999) == 99_999
    assert manifest.fragments.num_rows() == 700_000
    assert made == []
    assert manifest.fragments[5].id == 5
    assert made == [5]


# ---------------------------------------------------------------------------------------------------------- manifest


def test_missing_fields_are_none():
    manifest = Manifest(table_pb2.Manifest())
    assert manifest.transaction_section is None and manifest.index_section is None
    assert manifest.max_fragment_id is None and manifest.branch is None and manifest.transaction_file is None
    assert manifest.data_format is None and manifest.writer_version is None
    manifest = Manifest(table_pb2.Manifest(transaction_section=0, transaction_section_deprecated=9, max_fragment_id=0))
    assert (manifest.transaction_section, manifest.max_fragment_id) == (0, 0)
    assert Manifest(table_pb2.Manifest(transaction_section_deprecated=0)).transaction_section == 0
    assert Manifest(table_pb2.Manifest(index_section=0)).index_section == 0


def test_file_version_of_a_manifest():
    def version(**values: object) -> FileVersion:
        return Manifest(table_pb2.Manifest(**values), "m").file_version

    def data_format(number: str) -> table_pb2.Manifest.DataStorageFormat:
        return table_pb2.Manifest.DataStorageFormat(file_format="lance", version=number)

    file = table_pb2.DataFile(path="a", file_major_version=2, file_minor_version=1)
    assert version(data_format=data_format("2.1")) is FileVersion.V2_1
    assert version(fragments=[table_pb2.DataFragment(files=[file])]) is FileVersion.V2_1
    assert version(writer_feature_flags=4) is STABLE_VERSION
    assert version() is FileVersion.LEGACY
    legacy = data_format("0.1")
    assert version(data_format=legacy, writer_feature_flags=4) is FileVersion.LEGACY
    assert version(data_format=legacy, fragments=[table_pb2.DataFragment(files=[file])]) is FileVersion.V2_1
    with pytest.raises(CorruptFileError, match="stable"):
        version(data_format=data_format("stable"))
    with pytest.raises(UnsupportedFeatureError, match=r"2\.3"):
        version(data_format=data_format("2.3"))


def test_timestamps_are_converted_and_validated():
    message = table_pb2.Manifest()
    message.timestamp.seconds, message.timestamp.nanos = 1_700_000_000, 123_456_789
    manifest = Manifest(message)
    assert manifest.timestamp == datetime(2023, 11, 14, 22, 13, 20, 123456, timezone.utc)
    assert manifest.timestamp_ns == 1_700_000_000_123_456_789
    message.timestamp.seconds = 2**62
    with pytest.raises(CorruptFileError, match="not a valid date"):
        _ = manifest.timestamp


def test_manifests_can_be_pickled_and_copied():
    manifest = Manifest(table_pb2.Manifest(version=3, config={"a": "b"}), "some/path")
    again = pickle.loads(pickle.dumps(manifest))
    assert (again.version, again.path, again.config) == (3, "some/path", {"a": "b"})
    copy = manifest.to_proto()
    copy.version = 4
    assert manifest.version == 3


def test_malformed_bytes_raise():
    with pytest.raises(CorruptFileError, match="some/path"):
        Manifest.from_bytes(b"\xff\xff\xff", "some/path")


@pytest.mark.parametrize("value", [BasePath(0, "/x"), BasePath(7, "s3://b/p", True, "name")])
def test_base_paths_round_trip(value):
    assert BasePath.from_proto(value.to_proto()) == value


@pytest.mark.parametrize("value", [WriterVersion("lance", "14.0.2"), WriterVersion("x", "1", "rc1", "b")])
def test_writer_versions_round_trip(value):
    assert WriterVersion.from_proto(value.to_proto()) == value


def test_an_invalid_schema_is_reported_with_the_path_of_the_manifest():
    message = table_pb2.Manifest(fields=[file_pb2.Field(name="a", id=1, parent_id=7, logical_type="int64")])
    for path in ("first/path", "second/path"):
        with pytest.raises(CorruptFileError, match="precedes its parent") as caught:
            _ = Manifest.from_bytes(message.SerializeToString(), path).schema
        assert caught.value.path == path
