"""Changes of the fragments that index segments cover, by the operations that are committed."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyroaring
import pytest

from lancetable.commit.build_manifest import build_manifest
from lancetable.commit.conflicts import Context, Severity, check
from lancetable.errors import RetryableCommitConflictError
from lancetable.format import feature_flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.index import IndexMetadata, covered_fragments, parse_indices
from lancetable.format.schema import Schema
from lancetable.format.transaction import Transaction
from lancetable.proto import index_pb2, table_pb2
from lancetable.rowids import RowIdSequence

# Fields: id 0, tags 1 with items 2, st 3 with x 4 and y 5.
SCHEMA = Schema.from_arrow(
    pa.schema({"id": pa.int64(), "tags": pa.list_(pa.string()), "st": pa.struct({"x": pa.int64(), "y": pa.int64()})})
)
LEAVES = (0, 2, 4, 5)


def data_file(name: str, *fields: int) -> DataFile:
    return DataFile(f"{name}.lance", fields, tuple(range(len(fields))), 2, 1, 100)


def fragment(fragment_id: int, *files: DataFile, row_ids: range | None = None, num_rows: int = 10) -> Fragment:
    ids = None if row_ids is None else RowIdSequence.from_range(row_ids.start, row_ids.stop).to_bytes()
    return Fragment(fragment_id, files or (data_file(f"f{fragment_id}", *LEAVES),), num_rows, row_ids=ids)


def index(name: str, field: int, covered: list[int] | None, kind: str = "BTree", **values: Any) -> IndexMetadata:
    bitmap = None if covered is None else pyroaring.BitMap(covered).serialize()
    url = f"/lance.table.{kind}IndexDetails"
    return IndexMetadata(uuid.uuid4(), name, (field,), fragment_bitmap=bitmap, type_url=url, **values)


def commit(
    fragments: list[Fragment], indices: list[IndexMetadata], operation: tx.Operation, *, stable: bool = False
) -> list[tuple[str, list[int] | None]]:
    """Apply an operation, and return the name and coverage of each index segment of the new version."""
    manifest = table_pb2.Manifest(
        version=7,
        fields=SCHEMA.to_protos(),
        fragments=[each.to_proto() for each in fragments],
        next_row_id=1000,
        reader_feature_flags=feature_flags.STABLE_ROW_IDS if stable else 0,
    )
    manifest.data_format.file_format, manifest.data_format.version = "lance", "2.1"
    manifest.max_fragment_id = max((each.id for each in fragments), default=0)
    section = table_pb2.IndexSection(indices=[each.to_proto() for each in indices]).SerializeToString()
    built = build_manifest(manifest, section, Transaction.create(7, operation), version=8, timestamp_ns=1)
    found = parse_indices(built.index_section)
    sets = [covered_fragments(each.fragment_bitmap, each.name) for each in found]
    return [(each.name, None if covered is None else list(covered)) for each, covered in zip(found, sets)]


# --- new values of a column


@pytest.mark.parametrize(("file_field", "index_field"), [(2, 1), (4, 3), (3, 4), (4, 4)])
def test_new_values_of_a_field_uncover_indexes_of_its_ancestors_and_descendants(
    file_field: int, index_field: int
) -> None:
    fragments = [fragment(0, data_file("a", 0), data_file("b", file_field)), fragment(1)]
    replacement = tx.DataReplacement((tx.DataReplacementGroup(0, data_file("new", file_field)),))
    indices = [index("changed", index_field, [0, 1]), index("other", 0, [0, 1])]
    assert commit(fragments, indices, replacement) == [("changed", [1]), ("other", [0, 1])]


def test_a_sibling_field_is_not_uncovered() -> None:
    fragments = [fragment(0, data_file("a", 0, 2, 5), data_file("b", 4))]
    replacement = tx.DataReplacement((tx.DataReplacementGroup(0, data_file("new", 4)),))
    assert commit(fragments, [index("y", 5, [0])], replacement) == [("y", [0])]


def test_a_merge_uncovers_fragments_whose_columns_are_in_other_files() -> None:
    before = [fragment(0, data_file("a", 0), data_file("b", 2, 4, 5)), fragment(1), fragment(2)]
    after = (before[0], replace(before[1], files=(data_file("new", *LEAVES),)), before[2])
    after = (replace(after[0], files=(after[0].files[0], data_file("c", 2, 4, 5))), *after[1:])
    indices = [index("id", 0, [0, 1, 2]), index("tags", 1, [0, 1, 2])]
    assert commit(before, indices, tx.Merge(after, SCHEMA)) == [("id", [0, 2]), ("tags", [2])]


def test_conflict_check_of_a_new_index_considers_related_fields() -> None:
    created = tx.CreateIndex((index("tags", 1, [0]),))
    replaced = tx.DataReplacement((tx.DataReplacementGroup(0, data_file("new", 2)),))
    rewritten = tx.Update(updated_fragments=(fragment(0),), fields_modified=(2,), mode=tx.UpdateMode.REWRITE_COLUMNS)
    related = Context(related_fields=SCHEMA.related_ids)
    assert check(created, replaced, related).severity is Severity.RETRYABLE
    assert check(replaced, created, related).severity is Severity.RETRYABLE
    assert check(created, rewritten, related).severity is Severity.REBASABLE
    other = tx.DataReplacement((tx.DataReplacementGroup(0, data_file("new", 4)),))
    assert check(created, other, related).severity is Severity.COMPATIBLE


def test_the_fragment_reuse_index_is_not_removed_next_to_new_segments() -> None:
    record = IndexMetadata(uuid.uuid4(), "__lance_frag_reuse", ())
    removal = tx.CreateIndex((), (record,))
    assert check(removal, tx.CreateIndex((index("new", 0, [0]),)), Context()).severity is Severity.RETRYABLE
    assert check(removal, tx.CreateIndex((), (index("old", 0, [0]),)), Context()).severity is Severity.COMPATIBLE


# --- moved rows


def moved(changed: tuple[int, ...], *, num_rows: int = 4) -> tx.Update:
    """Return an update that moves four rows of fragments 0 and 1 to a new fragment."""
    new = fragment(0, data_file("new", *LEAVES), row_ids=range(5, 9), num_rows=num_rows)
    kept = (fragment(0, row_ids=range(10)), fragment(1, row_ids=range(10, 20)))
    return tx.Update(updated_fragments=kept, new_fragments=(new,), fields_for_preserving_frag_bitmap=changed)


TWO = [fragment(0, row_ids=range(10)), fragment(1, row_ids=range(10, 20))]


@pytest.mark.parametrize("kind", ["Bitmap", "LabelList", "NGram", "Inverted", "Vector", "BTree"])
def test_moved_rows_stay_covered_by_indexes_of_row_ids(kind: str) -> None:
    version = {"index_version": 0} if kind == "BTree" else {}
    covering = [index("i", 0, [0, 1], kind, **version)]
    assert commit(TWO, covering, moved((4,)), stable=True) == [("i", [0, 1, 2])]


@pytest.mark.parametrize(("target", "covered"), [("Bitmap", [0, 1, 2]), ("NGram", [0, 1, 2]), ("ZoneMap", [0, 1])])
def test_the_target_of_a_json_index_determines_its_rows(target: str, covered: list[int]) -> None:
    details = index_pb2.JsonIndexDetails(path="x")
    details.target_details.type_url = f"/lance.table.{target}IndexDetails"
    json = index("i", 0, [0, 1]).with_details("/lance.index.pb.JsonIndexDetails", details.SerializeToString())
    assert commit(TWO, [json], moved((4,)), stable=True) == [("i", covered)]


def test_moved_rows_are_not_covered_by_indexes_of_addresses() -> None:
    for kind in ("ZoneMap", "BloomFilter", "BTree"):
        covering = [index("i", 0, [0, 1], kind, index_version=1)]
        assert commit(TWO, covering, moved((4,)), stable=True) == [("i", [0, 1])]


def test_moved_rows_are_not_covered_if_an_indexed_value_may_have_changed() -> None:
    for changed in ((0,), (), (4, 0)):
        assert commit(TWO, [index("i", 0, [0, 1], "Bitmap")], moved(changed), stable=True) == [("i", [0, 1])]
    assert commit(TWO, [index("tags", 1, [0, 1], "LabelList")], moved((2,)), stable=True) == [("tags", [0, 1])]


def test_moved_rows_are_not_covered_if_some_originals_are_not_covered() -> None:
    assert commit(TWO, [index("i", 0, [0], "Bitmap")], moved((4,)), stable=True) == [("i", [0])]
    # One segment covers each original; neither contains all rows of the new fragment.
    parts = [index("i", 0, [0], "Bitmap"), index("i", 0, [1], "Bitmap")]
    assert commit(TWO, parts, moved((4,)), stable=True) == [("i", [0]), ("i", [1])]


def test_a_fragment_with_inserted_rows_is_not_covered() -> None:
    covering = [index("i", 0, [0, 1], "Bitmap")]
    assert commit(TWO, covering, moved((4,), num_rows=5), stable=True) == [("i", [0, 1])]


# --- segments without fragments


def test_segments_without_live_fragments_are_removed_but_for_the_oldest() -> None:
    fragments = [fragment(number) for number in range(4)]
    segments = [
        index("i", 0, [0], dataset_version=3),
        index("i", 0, [1], dataset_version=5),
        index("j", 0, [1], dataset_version=9),
        index("j", 0, [0], dataset_version=4),
        index("k", 0, [0], dataset_version=4),
        index("n", 0, None),
    ]
    after = commit(fragments, segments, tx.Delete((), (0,)))
    assert after == [("i", [1]), ("j", [1]), ("k", [0]), ("n", None)]
    after = commit(fragments, segments, tx.Delete((), (0, 1)))
    assert after == [("i", [0]), ("j", [0]), ("k", [0]), ("n", None)]


def test_an_append_keeps_empty_segments() -> None:
    segments = [index("i", 0, [0]), index("i", 0, [])]
    assert commit([fragment(0)], segments, tx.Append((fragment(0),))) == [("i", [0]), ("i", [])]


# --- creation


def test_removing_a_segment_that_was_rewritten_is_a_retryable_conflict() -> None:
    old, current = index("i", 0, [0]), index("i", 0, [0])
    with pytest.raises(RetryableCommitConflictError, match="replaced by another commit"):
        commit([fragment(0)], [current], tx.CreateIndex((), (old,)))
    with pytest.raises(RetryableCommitConflictError, match="replaced by another commit"):
        commit([fragment(0)], [current], tx.CreateIndex((index("i", 0, [0]),), (old,)))


def test_removing_a_segment_of_an_index_that_is_gone_succeeds() -> None:
    assert commit([fragment(0)], [index("j", 0, [0])], tx.CreateIndex((), (index("i", 0, [0]),))) == [("j", [0])]


def test_creating_an_index_on_a_dropped_field_is_a_retryable_conflict() -> None:
    with pytest.raises(RetryableCommitConflictError, match="fields \\[9\\]"):
        commit([fragment(0)], [], tx.CreateIndex((index("i", 9, [0]),)))


def test_a_rewritten_segment_is_below_the_root_of_the_table() -> None:
    old = index("i", 0, [0], base_id=3)
    rewritten = tx.RewrittenIndex(old.uuid, uuid.uuid4(), None, 0)
    group = tx.RewriteGroup((fragment(0),), (fragment(5),))
    manifest = table_pb2.Manifest(version=7, fields=SCHEMA.to_protos(), fragments=[fragment(0).to_proto()])
    manifest.data_format.file_format, manifest.data_format.version = "lance", "2.1"
    manifest.max_fragment_id = 5
    section = table_pb2.IndexSection(indices=[old.to_proto()]).SerializeToString()
    transaction = Transaction.create(7, tx.Rewrite((group,), (rewritten,)))
    built = build_manifest(manifest, section, transaction, version=8, timestamp_ns=1)
    (found,) = parse_indices(built.index_section)
    assert (found.uuid, found.base_id) == (rewritten.new_id, None)
