"""build_manifest without files: every operation, common fields of all commits, and rejected operations."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyroaring
import pytest

import lancetable
from lancetable.commit.assign_ids import number_fragments, reserve_fragment_ids
from lancetable.commit.build_manifest import build_first_manifest, build_manifest
from lancetable.commit.manifest_draft import ManifestParts
from lancetable.errors import (
    CorruptFileError,
    InvalidOperationError,
    RetryableCommitConflictError,
    UnsupportedFeatureError,
)
from lancetable.format import feature_flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import TOMBSTONE, DataFile, DeletionFile, DeletionKind, Fragment
from lancetable.format.index import IndexFile, IndexMetadata, covered_fragments, parse_indices
from lancetable.format.manifest import BasePath, Manifest
from lancetable.format.schema import Field, Schema
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.proto import table_pb2
from lancetable.rowids import RowIdSequence, RowVersionSequence

SCHEMA = Schema((Field("a", 0, -1, "int64"), Field("b", 1, -1, "string")), {"schema": b"metadata"})


def file(name: str = "x", *fields: int, version: tuple[int, int] = (2, 0)) -> DataFile:
    fields = fields or (0, 1)
    return DataFile(f"{name}.lance", fields, tuple(range(len(fields))), *version, 100)


def fragment(fragment_id: int = 0, *files: DataFile, rows: int = 10, deleted: int = 0) -> Fragment:
    deletion = DeletionFile(DeletionKind.BITMAP, 1, 5, deleted) if deleted else None
    return Fragment(fragment_id, files or (file(),), rows, deletion)


def index(name: str, fields: tuple[int, ...], covered: list[int] | None) -> IndexMetadata:
    bitmap = None if covered is None else pyroaring.BitMap(covered).serialize()
    return IndexMetadata(uuid.uuid4(), name, fields, 1, bitmap, 0, type_url="/lance.table.BTreeIndexDetails")


def index_section(*indices: IndexMetadata) -> bytes:
    return table_pb2.IndexSection(indices=[index.to_proto() for index in indices]).SerializeToString()


def manifest(*fragments: Fragment, **changes: Any) -> table_pb2.Manifest:
    message = table_pb2.Manifest(
        version=7,
        fields=SCHEMA.to_protos(),
        schema_metadata=SCHEMA.metadata,
        fragments=[each.to_proto() for each in fragments],
        config={"kept": "config"},
        table_metadata={"kept": "metadata"},
        branch="dev",
        **changes,
    )
    message.data_format.file_format, message.data_format.version = "lance", "2.0"
    if fragments and "max_fragment_id" not in changes:
        message.max_fragment_id = max(each.id for each in fragments)
    return message


def build(
    before: table_pb2.Manifest, operation: tx.Operation, indices: tuple[IndexMetadata, ...] = (), **options: Any
) -> ManifestParts:
    untouched = before.SerializeToString(deterministic=True)
    section = index_section(*indices) if indices else None
    transaction = Transaction.create(7, operation, tag="a tag")
    built = build_manifest(before, section, transaction, version=8, timestamp_ns=1_500_000_000, **options)
    assert before.SerializeToString(deterministic=True) == untouched
    message = built.message
    assert (message.version, message.timestamp.seconds, message.timestamp.nanos) == (8, 1, 500_000_000)
    assert message.transaction_file == f"7-{transaction.uuid}.txn"
    assert (message.tag, message.writer_version.library) == ("a tag", "lancetable")
    if not isinstance(operation, tx.Restore):
        assert message.branch == "dev"
    assert ids(built) == sorted(ids(built))
    return built


def ids(built: ManifestParts) -> list[int]:
    return [each.id for each in built.message.fragments]


def indices_of(built: ManifestParts) -> dict[str, list[int] | None]:
    if built.index_section is None:
        return {}
    found = parse_indices(built.index_section)
    return {
        each.name: None if (covered := covered_fragments(each.fragment_bitmap, each.name)) is None else list(covered)
        for each in found
    }


# --- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("highest", "present", "expected"), [(None, [], [0, 1]), (4, [1, 2], [5, 6]), (0, [3], [4, 5])]
)
def test_new_fragments_get_ids_above_all_used_ones(
    highest: int | None, present: list[int], expected: list[int]
) -> None:
    message = table_pb2.Manifest(fragments=[table_pb2.DataFragment(id=number) for number in present])
    if highest is not None:
        message.max_fragment_id = highest
    new = [table_pb2.DataFragment(), table_pb2.DataFragment()]
    number_fragments(message, new)
    assert [each.id for each in new] == expected
    assert message.max_fragment_id == expected[-1]


def test_chosen_fragment_ids_are_kept_or_rejected_if_in_use() -> None:
    message = table_pb2.Manifest(max_fragment_id=3, fragments=[table_pb2.DataFragment(id=3)])
    new = [table_pb2.DataFragment(id=77), table_pb2.DataFragment()]
    number_fragments(message, new)
    assert ([each.id for each in new], message.max_fragment_id) == ([77, 78], 78)
    with pytest.raises(InvalidOperationError, match="in use"):
        number_fragments(message, [table_pb2.DataFragment(id=3)])
    with pytest.raises(InvalidOperationError, match="no fragment ids left"):
        number_fragments(table_pb2.Manifest(max_fragment_id=2**32 - 1), [table_pb2.DataFragment()])


def test_fragment_counter_is_absent_without_fragments() -> None:
    message = table_pb2.Manifest()
    number_fragments(message, [])
    assert not message.HasField("max_fragment_id")


def test_reserve_fragment_ids() -> None:
    message = table_pb2.Manifest(max_fragment_id=3)
    reserve_fragment_ids(message, 4)
    assert message.max_fragment_id == 7
    with pytest.raises(InvalidOperationError):
        reserve_fragment_ids(message, 2**32)


# --- appliers --------------------------------------------------------------------------------------------------------


def test_first_manifest() -> None:
    operation = tx.Overwrite((fragment(), fragment()), SCHEMA, {"k": "v"}, (BasePath(0, "/b", True),))
    built = build_first_manifest(Transaction.create(0, operation), FileVersion.V2_0, timestamp_ns=5, config={"c": "d"})
    message = built.message
    assert (message.version, ids(built), message.max_fragment_id) == (1, [0, 1], 1)
    assert message.data_format.version == "2.0"
    assert dict(message.config) == {"k": "v", "c": "d"}
    assert Manifest(message).schema == SCHEMA
    assert [base.id for base in message.base_paths] == [1]
    assert message.writer_feature_flags == feature_flags.TABLE_CONFIG | feature_flags.BASE_PATHS
    assert message.reader_feature_flags == feature_flags.BASE_PATHS
    with pytest.raises(InvalidOperationError):
        build_first_manifest(Transaction.create(0, tx.Append()), FileVersion.V2_0, timestamp_ns=5)


def test_append() -> None:
    built = build(manifest(fragment(4)), tx.Append((fragment(), fragment())))
    assert ids(built) == [4, 5, 6]
    assert (built.message.reader_feature_flags, built.message.writer_feature_flags) == (0, feature_flags.TABLE_CONFIG)


def test_mixed_file_versions_flag_is_permanent() -> None:
    built = build(manifest(), tx.Append((fragment(0, file("x", 0, 1, version=(2, 1))),)))
    assert built.message.reader_feature_flags == feature_flags.MIXED_FILE_VERSIONS
    again = build_manifest(
        built.message, None, Transaction.create(8, tx.Append((fragment(),))), version=9, timestamp_ns=1
    )
    assert again.message.reader_feature_flags == feature_flags.MIXED_FILE_VERSIONS


def test_missing_deletion_flag_of_another_writer_is_set() -> None:
    for library, expected in (("careless", feature_flags.DELETIONS), ("lancetable", 0)):
        before = manifest(fragment(1, deleted=2), fragment(2))
        before.writer_version.library = library
        built = build(before, tx.Append((fragment(0),)))
        assert (
            built.message.reader_feature_flags
            == built.message.writer_feature_flags & feature_flags.DELETIONS
            == expected
        )


def test_delete() -> None:
    before = manifest(fragment(1), fragment(2), fragment(3))
    built = build(before, tx.Delete((fragment(2, deleted=3),), (3,), "p"), (index("i", (0,), [1, 2, 3]),))
    assert ids(built) == [1, 2]
    assert built.message.fragments[1].deletion_file.num_deleted_rows == 3
    assert built.message.reader_feature_flags == feature_flags.DELETIONS
    assert built.message.max_fragment_id == 3
    assert indices_of(built) == {"i": [1, 2, 3]}
    for gone in (tx.Delete((fragment(9),)), tx.Delete((), (9,))):
        with pytest.raises(RetryableCommitConflictError, match=r"\[9\]"):
            build(before, gone)


def test_overwrite() -> None:
    schema = Schema((Field("q", 0, -1, "double"),), {"new": b"x"})
    operation = tx.Overwrite((fragment(0, file("y", 0, version=(2, 1))),), schema, {"more": "config"})
    built = build(manifest(fragment(3), max_fragment_id=1), operation, (index("i", (0,), [3]),))
    message = built.message
    assert (ids(built), built.index_section) == ([4], None)
    assert dict(message.config) == {"kept": "config", "more": "config"}
    assert dict(message.table_metadata) == {"kept": "metadata"}
    assert dict(message.schema_metadata) == {"new": b"x"}
    assert message.data_format.version == "2.0"
    assert message.reader_feature_flags == feature_flags.MIXED_FILE_VERSIONS
    built = build(manifest(fragment(3)), operation, file_version=FileVersion.V2_1)
    assert (built.message.data_format.version, built.message.reader_feature_flags) == ("2.1", 0)
    empty = build(manifest(fragment(3)), tx.Overwrite((), schema), file_version=FileVersion.V2_2)
    assert (ids(empty), empty.message.max_fragment_id, empty.message.data_format.version) == ([], 3, "2.2")
    assert build(manifest(), tx.Overwrite((), schema)).message.data_format.version == "2.0"
    with pytest.raises(InvalidOperationError, match="cannot add base paths"):
        build(manifest(), tx.Overwrite((), schema, {}, (BasePath(0, "/b"),)))


def test_restore() -> None:
    old = manifest(fragment(1), next_row_id=5)
    old.config.clear()
    old_section = index_section(index("old", (0,), [1]))
    newest = manifest(fragment(6), max_fragment_id=9, next_row_id=50)
    built = build(newest, tx.Restore(3), (index("new", (0,), [6]),), restored=ManifestParts(old, old_section))
    assert (ids(built), built.message.max_fragment_id, built.message.next_row_id) == ([1], 9, 50)
    assert dict(built.message.config) == {}
    assert indices_of(built) == {"old": [1]}
    with pytest.raises(InvalidOperationError):
        build(newest, tx.Restore(3))


def test_update_of_rows_and_of_columns() -> None:
    before = manifest(fragment(0), fragment(1), fragment(2))
    covering = (index("a", (0,), [0, 1, 2]), index("b", (1,), [0, 1, 2]))
    rows = tx.Update((2,), (fragment(1, deleted=2),), (fragment(),), (1,))
    built = build(before, rows, covering)
    assert ids(built) == [0, 1, 3]
    assert indices_of(built) == {"a": [0, 1, 2], "b": [0, 1, 2]}
    changed = fragment(1, file("x", 0, TOMBSTONE), file("y", 1))
    built = build(before, tx.Update((), (changed,), (), (1,), mode=tx.UpdateMode.REWRITE_COLUMNS), covering)
    assert [each.path for each in built.message.fragments[1].files] == ["x.lance", "y.lance"]
    assert indices_of(built) == {"a": [0, 1, 2], "b": [0, 2]}
    with pytest.raises(UnsupportedFeatureError):
        build(before, tx.Update(compacted_sstables=(b"",)))


def test_files_without_a_live_field_are_dropped() -> None:
    before = manifest(fragment(0, file("x", 0), file("y", 1)))
    gone = fragment(0, file("x", 0), file("y", TOMBSTONE), file("z", 1), file("w", 17))
    built = build(before, tx.Delete((gone,)))
    assert [each.path for each in built.message.fragments[0].files] == ["x.lance", "z.lance"]
    built = build(before, tx.Append((fragment(0, file("late", 17), file("x", 0)),)))
    assert [each.path for each in built.message.fragments[1].files] == ["x.lance"]
    hidden = fragment(0, file("x", 0), file("ids", -3))
    built = build(before, tx.Delete((hidden,)))
    assert len(built.message.fragments[0].files) == 2


def test_project() -> None:
    before = manifest(fragment(0, file("x", 0), file("y", 1)), fragment(1))
    only_a = Schema((replace(SCHEMA.fields[0], name="renamed"),))
    built = build(before, tx.Project(only_a), (index("a", (0,), [0]), index("b", (1,), [0]), index("ab", (0, 1), None)))
    assert [[each.path for each in f.files] for f in built.message.fragments] == [["x.lance"], ["x.lance"]]
    assert Manifest(built.message).schema.names == ["renamed"]
    assert dict(built.message.schema_metadata) == dict(SCHEMA.metadata)
    assert indices_of(built) == {"a": [0]}


def test_merge() -> None:
    before = manifest(fragment(0), fragment(1))
    schema = Schema((SCHEMA.fields[0], Field("c", 2, -1, "int32")), {"m": b"n"})
    wider = fragment(0, file(), file("new", 2))
    built = build(before, tx.Merge((wider, fragment(1)), schema), (index("b", (1,), [0]),))
    assert (ids(built), built.message.max_fragment_id) == ([0, 1], 1)
    assert len(built.message.fragments[0].files) == 2
    assert dict(built.message.schema_metadata) == {"m": b"n"}
    assert built.index_section is None


def test_config_and_metadata() -> None:
    before = manifest()
    update = tx.UpdateConfig(
        tx.UpdateMap({"a": "1", "kept": None}),
        tx.UpdateMap({"b": "2"}, replace=True),
        tx.UpdateMap({"c": "3"}),
        {0: tx.UpdateMap({"lance-schema:unenforced-primary-key": "true"})},
    )
    message = build(before, update).message
    assert dict(message.config) == {"a": "1"}
    assert dict(message.table_metadata) == {"b": "2"}
    assert dict(message.schema_metadata) == {"schema": b"metadata", "c": b"3"}
    assert message.fields[0].metadata["lance-schema:unenforced-primary-key"] == b"true"
    assert message.fields[0].unenforced_primary_key
    cleared = build(before, tx.UpdateConfig(tx.UpdateMap({}, replace=True))).message
    assert cleared.writer_feature_flags == 0
    with pytest.raises(InvalidOperationError, match="field 9"):
        build(before, tx.UpdateConfig(field_metadata={9: tx.UpdateMap({"a": "b"})}))


def test_rewrite() -> None:
    before = manifest(fragment(0), fragment(1), fragment(2), fragment(3), max_fragment_id=9)
    swapped, kept, none = index("swapped", (0,), [0, 1]), index("kept", (1,), [0, 1, 2, 3]), index("none", (1,), None)
    system = index("__lance_frag_reuse", (), [0])
    new_id = uuid.uuid4()
    operation = tx.Rewrite(
        (tx.RewriteGroup((fragment(0), fragment(1)), (fragment(9),)), tx.RewriteGroup((fragment(2),), (fragment(8),))),
        (tx.RewrittenIndex(swapped.uuid, new_id, None, 1, (IndexFile("f", 3),)),),
    )
    built = build(before, operation, (swapped, kept, none, system))
    assert ids(built) == [3, 8, 9]
    assert indices_of(built) == {"swapped": [9], "kept": [3], "none": None, "__lance_frag_reuse": [0]}
    assert built.index_section is not None
    after = parse_indices(built.index_section)[0]
    assert (after.uuid, after.index_version, after.files) == (new_id, 1, (IndexFile("f", 3),))


def test_data_replacement() -> None:
    before = manifest(fragment(0, file("x", 0), file("y", 1)), fragment(1, file("z", 0)))
    covering = (index("a", (0,), [0, 1]), index("b", (1,), [0, 1]))

    def replacing(fragment_id: int, new: DataFile) -> tx.DataReplacement:
        return tx.DataReplacement((tx.DataReplacementGroup(fragment_id, new),))

    built = build(before, replacing(0, file("new", 1)), covering)
    assert [each.path for each in built.message.fragments[0].files] == ["x.lance", "new.lance"]
    assert indices_of(built) == {"a": [0, 1], "b": [1]}
    built = build(before, replacing(1, file("new", 1)))
    assert [each.path for each in built.message.fragments[1].files] == ["z.lance", "new.lance"]
    with pytest.raises(InvalidOperationError, match="exactly the fields"):
        build(before, replacing(0, file("new", 0, 1)))
    with pytest.raises(RetryableCommitConflictError):
        build(before, replacing(5, file("new", 1)))
    both = tx.DataReplacement((tx.DataReplacementGroup(0, file("n", 0)), tx.DataReplacementGroup(1, file("n", 0, 1))))
    with pytest.raises(InvalidOperationError, match="have the same fields"):
        build(before, both)


def test_base_paths() -> None:
    before = manifest()
    before.base_paths.add(id=0, path="/first", is_dataset_root=True)
    built = build(before, tx.UpdateBases((BasePath(0, "/second"), BasePath(7, "/third", True, "n"), BasePath(0, "/4"))))
    assert [(base.id, base.path) for base in built.message.base_paths] == [
        (0, "/first"),
        (1, "/second"),
        (7, "/third"),
        (8, "/4"),
    ]
    assert built.message.reader_feature_flags == feature_flags.BASE_PATHS
    with pytest.raises(InvalidOperationError, match="already"):
        build(before, tx.UpdateBases((BasePath(0, "/first"),)))


def test_create_and_drop_index() -> None:
    old, new = index("old", (0,), [0]), index("new", (1,), [1])
    built = build(manifest(), tx.CreateIndex((new,), (old,)), (old,))
    assert indices_of(built) == {"new": [1]}
    assert build(manifest(), tx.CreateIndex((), (old,)), (old,)).index_section is None


def test_unchanged_index_section_keeps_its_bytes() -> None:
    # An unknown protobuf field must survive a commit that does not change indices.
    section = index_section(index("i", (0,), [0])) + b"\xfa\x01\x03abc"
    for operation in (tx.Append(), tx.ReserveFragments(1), tx.Project(SCHEMA), tx.UpdateConfig()):
        built = build_manifest(
            manifest(fragment(0)), section, Transaction.create(7, operation), version=8, timestamp_ns=1
        )
        assert built.index_section == section


# --- refusals --------------------------------------------------------------------------------------------------------


def test_stable_row_ids() -> None:
    before = manifest(fragment(0), reader_feature_flags=2, writer_feature_flags=2, next_row_id=10)
    untouched = [tx.Delete((), (0,)), tx.Project(SCHEMA), tx.UpdateConfig(), tx.ReserveFragments(1), tx.UpdateBases()]
    for operation in [*untouched, tx.Append(), tx.Overwrite((), SCHEMA), tx.Update(), tx.Rewrite()]:
        built = build(before, operation)
        assert built.message.reader_feature_flags & feature_flags.STABLE_ROW_IDS
        assert built.message.writer_feature_flags & feature_flags.STABLE_ROW_IDS
        assert built.message.next_row_id == 10


def lineage(message: table_pb2.DataFragment) -> tuple[list[int], list[int], list[int]]:
    """Return row ids, created-at versions and last-updated versions."""
    return (
        RowIdSequence.from_bytes(message.inline_row_ids).values().tolist(),
        RowVersionSequence.from_bytes(message.inline_created_at_versions).values().tolist(),
        RowVersionSequence.from_bytes(message.inline_last_updated_at_versions).values().tolist(),
    )


def with_lineage(each: Fragment, ids: list[int], created: list[int] | None = None) -> Fragment:
    made = None if created is None else RowVersionSequence.from_values(np.array(created)).to_bytes()
    return replace(
        each, row_ids=RowIdSequence.from_values(np.array(ids)).to_bytes(), created_at=made, last_updated_at=made
    )


def test_row_ids_and_versions_of_new_and_moved_rows() -> None:
    old = with_lineage(fragment(0, rows=3), [7, 3, 9], [2, 4, 4])
    gone = with_lineage(fragment(1, rows=3), [3, 20, 21], [4, 6, 5])
    before = manifest(old, gone, reader_feature_flags=2, writer_feature_flags=2, next_row_id=30)
    appended = build(before, tx.Append((fragment(rows=3), fragment(rows=2)))).message
    added = [lineage(each) for each in appended.fragments[2:]]
    assert added == [([30, 31, 32], [8] * 3, [8] * 3), ([33, 34], [8] * 2, [8] * 2)]
    assert appended.next_row_id == 35
    # Two rows are moved, one is new.
    moved = with_lineage(fragment(rows=3), [21, 3])
    marked = replace(old, deletion_file=fragment(0, rows=3, deleted=1).deletion_file)
    built = build(before, tx.Update((1,), (marked,), (moved, fragment(rows=1)))).message
    assert [lineage(each) for each in built.fragments] == [
        ([7, 3, 9], [2, 4, 4], [2, 4, 4]),
        ([21, 3, 30], [5, 4, 8], [8] * 3),
        ([31], [8], [8]),
    ]
    # Unknown row ids count as created in the first version.
    strange = build(before, tx.Update((), (), (with_lineage(fragment(rows=3), [99, 98, 97]),))).message
    assert lineage(strange.fragments[2]) == ([99, 98, 97], [1] * 3, [8] * 3)
    with pytest.raises(InvalidOperationError, match="row ids"):
        build(before, tx.Append((with_lineage(fragment(rows=2), [1, 2, 3]),)))
    with pytest.raises(InvalidOperationError, match="row ids"):
        build(before, tx.Rewrite((tx.RewriteGroup((old,), (fragment(rows=3),)),)))


def test_rewritten_columns_change_the_last_updated_versions() -> None:
    old = with_lineage(fragment(0, rows=3), [7, 3, 9], [2, 4, 4])
    before = manifest(old, reader_feature_flags=2, writer_feature_flags=2, next_row_id=30)
    changed = replace(old, files=(*old.files, file("y", 5)))

    def versions(operation: tx.Operation) -> list[int]:
        return lineage(build(before, operation).message.fragments[0])[2]

    update = tx.Update((), (changed,), (), (5,), mode=tx.UpdateMode.REWRITE_COLUMNS)
    assert versions(update) == [2, 4, 4]
    bitmap = pyroaring.BitMap([0, 2]).serialize()
    assert versions(replace(update, updated_offset_bitmaps={0: bitmap})) == [8, 4, 8]
    with pytest.raises(InvalidOperationError, match="3 rows"):
        versions(replace(update, updated_offset_bitmaps={0: pyroaring.BitMap([3]).serialize()}))
    assert versions(tx.Merge((changed,), SCHEMA)) == [8, 8, 8]
    assert versions(tx.Merge((old,), SCHEMA)) == [2, 4, 4]
    assert versions(tx.DataReplacement((tx.DataReplacementGroup(0, file("z", 0, 1)),))) == [8, 8, 8]


@pytest.mark.parametrize("operation", [tx.Clone(True, 1, "x"), tx.UpdateMemWalState(), tx.DataOverlay()])
def test_unsupported_operations_raise(operation: tx.Operation) -> None:
    with pytest.raises(UnsupportedFeatureError, match=type(operation).__name__):
        build(manifest(), operation)
    with pytest.raises(UnsupportedFeatureError):
        build(manifest(), tx.UnknownOperation(b""))


def test_duplicate_fragment_ids_raise() -> None:
    with pytest.raises(InvalidOperationError, match="lists fragment 1 twice"):
        build(manifest(), tx.Merge((fragment(1), fragment(1)), SCHEMA))


def test_damaged_index_bitmap_raises() -> None:
    broken = replace(index("i", (0,), [0]), fragment_bitmap=b"\x00" * 20)
    with pytest.raises(CorruptFileError, match="index i"):
        build(manifest(fragment(0)), tx.Rewrite((tx.RewriteGroup((fragment(0),), (fragment(5),)),)), (broken,))


@pytest.mark.parametrize("library", [lancetable, lance])
def test_file_written_for_another_schema_raises(tmp_path: Path, library: Any) -> None:
    """Field 1 is a string in the file and a struct in the schema of the overwrite."""
    uri, rows = str(tmp_path / "t"), [{"a": 1, "b": "x"}]
    ds = library.write_dataset(pa.table({"id": [1], "s": ["x"], "t": rows}), uri)
    ds.drop_columns(["id"])
    fragments = library.fragment.write_fragments(pa.table({"s": ["y"], "t": rows}), uri, mode="append")
    schema = library.dataset(uri).schema
    with pytest.raises(OSError, match=r"'t'"):
        library.LanceDataset.commit(uri, library.LanceOperation.Overwrite(schema, fragments), read_version=2)
    assert library.dataset(uri).to_table().to_pylist() == [{"s": "x", "t": rows[0]}]
