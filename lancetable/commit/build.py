"""Construction of the next manifest: the newest manifest with one operation applied.

One function per operation changes a copy of the newest manifest's protobuf message. Fragments that the operation does
not change are copied as messages and never parsed. Fields that every commit sets (version, timestamp, feature flags,
fragment order, writer version) are set once, at the end.
"""

from __future__ import annotations

import uuid as uuid_module
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cache, singledispatch
from importlib import metadata
from typing import Any

import numpy as np
import pyarrow as pa
import pyroaring

from lancetable.commit import idempotency
from lancetable.commit.assign_ids import (
    assign_row_ids,
    fragment_ids,
    number_fragments,
    reserve_fragment_ids,
    stamp_moved,
    stamp_new,
    stamp_rows,
    stamp_updated,
    used_fragment_ids,
)
from lancetable.errors import (
    InvalidOperationError,
    RetryableCommitConflictError,
    UnsupportedFeatureError,
)
from lancetable.file.column_numbers import column_of, is_single_column
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import TOMBSTONE, DataFile, Fragment
from lancetable.format.index import index_messages
from lancetable.format.manifest import BasePath, Manifest
from lancetable.format.paths import transaction_name
from lancetable.format.schema import Schema
from lancetable.format.transaction import Operation, Transaction, UpdateMap
from lancetable.format.version import FileVersion
from lancetable.proto import file_pb2, table_pb2
from lancetable.table.deletion_file_codec import parse_roaring

_MAX_COVERED = 1 << 24  # fragments of one index; a manifest with more would exceed its own size limit


@dataclass(frozen=True, slots=True)
class ManifestParts:
    """Parts of a manifest file: the message, the serialized index section, and the dictionary values of format 0.1."""

    message: table_pb2.Manifest
    index_section: bytes | None
    head: bytes = b""


def build_manifest(
    newest: table_pb2.Manifest,
    index_section: bytes | None,
    transaction: Transaction,
    *,
    version: int,
    timestamp_ns: int,
    restored: ManifestParts | None = None,
    file_version: FileVersion | None = None,
) -> ManifestParts:
    """Build the manifest of `version` by applying `transaction` to a copy of `newest`.

    Parameters
    ----------
    newest
        The newest manifest. It is not changed.
    index_section
        Serialized index section of `newest`, or None.
    transaction
        The transaction to apply.
    version, timestamp_ns
        Number and commit time of the new version.
    restored
        The version to restore. Required for Restore only.
    file_version
        New data format, for an Overwrite or a Merge.

    Returns
    -------
    ManifestParts
        The new manifest, which nothing else refers to, and its index section.

    Raises
    ------
    InvalidOperationError
        If the transaction does not fit the table.
    RetryableCommitConflictError
        If fragments that the transaction refers to do not exist any more.
    UnsupportedFeatureError
        If the operation or the table cannot be written yet.
    CorruptFileError
        If a bitmap or an index section is damaged.
    """
    message = table_pb2.Manifest()
    message.CopyFrom(newest)
    draft = _Draft(message, index_section, version, restored, file_version)
    apply(transaction.operation, draft)
    _finish(draft, newest, transaction, timestamp_ns)
    return ManifestParts(message, draft.index_section)


def build_first_manifest(
    transaction: Transaction,
    file_version: FileVersion,
    *,
    timestamp_ns: int,
    config: Mapping[str, str] | None = None,
    stable_row_ids: bool = False,
) -> ManifestParts:
    """Build the manifest of version 1 from an Overwrite. Stable row ids can be enabled only here.

    Raises InvalidOperationError if the operation is not an Overwrite. See `build_manifest`.
    """
    if not isinstance(transaction.operation, tx.Overwrite):
        raise InvalidOperationError(
            f"a table is created by an Overwrite, got {type(transaction.operation).__name__}; pass an Overwrite"
        )
    empty = table_pb2.Manifest()
    if stable_row_ids:
        empty.reader_feature_flags = flags.STABLE_ROW_IDS
    for key, value in (config or {}).items():
        empty.config[key] = value
    return build_manifest(empty, None, transaction, version=1, timestamp_ns=timestamp_ns, file_version=file_version)


# --- the draft -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Draft:
    """Manifest under construction."""

    message: table_pb2.Manifest
    index_section: bytes | None
    version: int
    restored: ManifestParts | None
    file_version: FileVersion | None
    mixed_versions: bool = False
    new_deletions: bool = False
    trusts_flags: bool = field(init=False)

    def __post_init__(self) -> None:
        self.trusts_flags = is_own_manifest(self.message)

    @property
    def stable_row_ids(self) -> bool:
        return bool(self.message.reader_feature_flags & flags.STABLE_ROW_IDS)

    def add(self, fragments: Iterable[Fragment]) -> None:
        """Append fragments of new rows. Fragments with id 0 get the next ids."""
        messages = self._numbered(fragments)
        if self.stable_row_ids:
            assign_row_ids(self.message, messages)
            stamp_new(messages, self.version)
        self._add(messages)

    def add_moved(self, fragments: Iterable[Fragment], sources: Sequence[table_pb2.DataFragment]) -> None:
        """Append fragments whose first rows may have been moved from other fragments.

        The fragments contain the row ids of moved rows. `sources` are the records of the other fragments before this
        commit.
        """
        messages = self._numbered(fragments)
        if self.stable_row_ids:
            num_moved = assign_row_ids(self.message, messages)
            stamp_moved(messages, num_moved, sources, self.version)
        self._add(messages)

    def add_rewritten(self, fragments: Iterable[Fragment]) -> None:
        """Append fragments with rows of other fragments. They must contain the row ids and versions of these rows."""
        messages = self._numbered(fragments)
        if self.stable_row_ids and any(message.WhichOneof("row_id_sequence") is None for message in messages):
            raise InvalidOperationError(
                "a rewritten fragment has no row ids; in a table with stable row ids, a Rewrite must keep them"
            )
        self._add(messages)

    def _numbered(self, fragments: Iterable[Fragment]) -> list[table_pb2.DataFragment]:
        messages = [fragment.to_proto() for fragment in fragments]
        number_fragments(self.message, messages)
        return messages

    def check_files(self, messages: Iterable[table_pb2.DataFragment]) -> None:
        """Raise InvalidOperationError for fragments that other readers reject.

        These are fragments with a data file without fields, from format 2.1 on with a column for a struct or list as a
        whole, and in format 0.1 with a missing column.
        """
        parents = {field.parent_id for field in self.message.fields}
        wanted = self.field_ids() if Manifest(self.message).file_version.is_legacy else set()
        for message in messages:
            for file in message.files:
                if not file.fields:
                    raise InvalidOperationError(
                        f"{file.path}: the data file has no fields; leave it out of the fragment"
                    )
                if not parents.isdisjoint(file.fields):
                    self._check_parents(file)
            if wanted:
                missing = wanted.difference(*(file.fields for file in message.files))
                if missing:
                    raise InvalidOperationError(
                        f"fragment {message.id} lacks the fields {sorted(missing)}; format 0.1 requires all columns in"
                        " every fragment"
                    )

    def _check_parents(self, file: table_pb2.DataFile) -> None:
        """Raise InvalidOperationError if a column is mapped to a field that has no column of its own."""
        if (file.file_major_version, file.file_minor_version) < (2, 1):
            return
        by_id = Manifest(self.message).schema.by_id
        for field_id, column in column_of(file.fields, file.column_indices).items():
            field = by_id.get(field_id)
            if field is not None and not is_single_column(field):
                raise InvalidOperationError(
                    f"{file.path}: column {column} is mapped to field {field_id} ({field.name!r}), but only its child"
                    " fields have columns. The file may have been written for another schema; write it with the schema"
                    " of the table"
                )

    def _add(self, messages: list[table_pb2.DataFragment]) -> None:
        self.append(messages)
        self.mixed_versions |= any(self._is_other_version(message) for message in messages)

    def append(self, messages: Sequence[table_pb2.DataFragment]) -> None:
        """Append fragments without files of dropped columns."""
        self.check_files(messages)
        live = self.field_ids() if messages else set()
        for message in messages:
            _drop_dead_files(message, live)
        self.message.fragments.extend(messages)
        self.record_deletions(messages)

    def record_deletions(self, messages: Iterable[table_pb2.DataFragment]) -> None:
        """Record deletion files of new or changed fragments, which determine a feature flag."""
        self.new_deletions = self.new_deletions or any(message.HasField("deletion_file") for message in messages)

    @property
    def has_deletions(self) -> bool:
        """True if a fragment has deleted rows.

        If this library wrote the previous version, its feature flag is trusted, and only new fragments are checked.
        """
        if self.new_deletions:
            return True
        if self.trusts_flags and not self.message.reader_feature_flags & flags.DELETIONS:
            return False
        return any(message.HasField("deletion_file") for message in self.message.fragments)

    def _is_other_version(self, fragment: table_pb2.DataFragment) -> bool:
        """Return True if a new fragment has files of another format version than the table.

        Raises RetryableCommitConflictError if only one of the two versions is 0.1.
        """
        if not self.message.data_format.version:
            return False
        table_version = Manifest(self.message).file_version
        versions = {
            FileVersion.from_manifest_pair(file.file_major_version, file.file_minor_version, file.path)
            for file in fragment.files
        }
        if any(version.is_legacy != table_version.is_legacy for version in versions):
            raise RetryableCommitConflictError(
                f"the table has data format {table_version}, and files of format 0.1 and newer formats cannot be mixed;"
                " run the operation again on the newest version, or migrate the table"
            )
        return any(version is not table_version for version in versions)

    def records(self, fragment_ids: Iterable[int]) -> list[table_pb2.DataFragment]:
        """Return copies of the current records of these fragments. Missing fragments are skipped."""
        wanted = set(fragment_ids)
        records = [message for message in self.message.fragments if message.id in wanted]
        return list(table_pb2.Manifest(fragments=records).fragments)

    def replace(self, fragments: Iterable[Fragment]) -> None:
        """Replace the records with the same ids. Raises RetryableCommitConflictError if an id does not exist."""
        wanted = {fragment.id: fragment for fragment in fragments}
        if not wanted:
            return
        live = self.field_ids()
        present = self.message.fragments
        positions = {fragment_id: index for index, fragment_id in enumerate(fragment_ids(self.message).tolist())}
        self.check_none_missing(wanted.keys() - positions.keys())
        for fragment_id, fragment in wanted.items():
            message = present[positions[fragment_id]]
            message.CopyFrom(fragment.to_proto())
            self.check_files((message,))
            _drop_dead_files(message, live)
            self.record_deletions((message,))

    def remove(self, fragment_ids: Iterable[int]) -> None:
        """Remove fragments. Raises RetryableCommitConflictError if an id does not exist."""
        wanted = set(fragment_ids)
        if not wanted:
            return
        kept = [message for message in self.message.fragments if message.id not in wanted]
        if len(self.message.fragments) - len(kept) != len(wanted):
            self.check_none_missing(wanted - {message.id for message in self.message.fragments})
        self._set_fragments(kept)

    def _set_fragments(self, messages: list[table_pb2.DataFragment]) -> None:
        # `messages` are views into the list that is being replaced.
        replacement = table_pb2.Manifest(fragments=messages)
        del self.message.fragments[:]
        self.message.fragments.MergeFrom(replacement.fragments)

    def sort(self) -> None:
        """Sort fragments by id. Raises InvalidOperationError if two fragments have the same id."""
        ids = fragment_ids(self.message)
        if (ids[1:] > ids[:-1]).all():
            return
        if len(np.unique(ids)) != len(ids):
            raise InvalidOperationError(
                "two fragments of the new version have the same id; new fragments must have id 0"
            )
        self._set_fragments(sorted(self.message.fragments, key=lambda message: message.id))

    def check_none_missing(self, missing: Iterable[int]) -> None:
        gone = tuple(sorted(missing))
        if gone:
            raise RetryableCommitConflictError(
                f"fragments {list(gone[:10])} do not exist in the newest version; run the operation again on it",
                fragments=gone,
            )

    def field_ids(self) -> set[int]:
        return {field.id for field in self.message.fields}

    def set_schema(self, schema: Schema) -> None:
        """Replace the fields. Data files and indices without a remaining field are removed."""
        before = self.field_ids()
        self.replace_fields(schema)
        live = self.field_ids()
        if before - live:
            for message in self.message.fragments:
                _drop_dead_files(message, live)
            self.edit_indices(lambda index: index if set(index.fields) <= live else None)

    def replace_fields(self, schema: Schema) -> None:
        fields = schema.to_protos()
        del self.message.fields[:]
        self.message.fields.extend(fields)

    def set_file_version(self, file_version: FileVersion) -> None:
        self.message.data_format.file_format = "lance"
        self.message.data_format.version = file_version.number

    def raise_max_fragment_id(self, highest: int) -> None:
        """Set the counter of fragment ids so that it includes `highest` and the ids of all fragments."""
        highest = max(highest, used_fragment_ids(self.message))
        if highest >= 0:
            self.message.max_fragment_id = highest

    def set_schema_metadata(self, metadata: Mapping[str, bytes]) -> None:
        self.message.schema_metadata.clear()
        for key, value in metadata.items():
            self.message.schema_metadata[key] = value

    def indices(self) -> list[table_pb2.IndexMetadata]:
        return index_messages(self.index_section)

    def set_indices(self, indices: list[table_pb2.IndexMetadata]) -> None:
        self.index_section = table_pb2.IndexSection(indices=indices).SerializeToString() if indices else None

    def edit_indices(self, edit: Callable[[table_pb2.IndexMetadata], table_pb2.IndexMetadata | None]) -> None:
        """Replace each index by `edit(index)`, or remove it if that is None. An unchanged section keeps its bytes."""
        before = self.indices()
        if not before:
            return
        originals = [index.SerializeToString() for index in before]
        after = [edited for index in before if (edited := edit(index)) is not None]
        if originals != [index.SerializeToString() for index in after]:
            self.set_indices(after)

    def uncover(self, fragment_ids: Iterable[int], field_ids: Iterable[int]) -> None:
        """Remove fragments from the coverage of the indices on `field_ids`."""
        gone, fields = pyroaring.BitMap(fragment_ids), set(field_ids)

        def edit(index: table_pb2.IndexMetadata) -> table_pb2.IndexMetadata:
            if fields & set(index.fields):
                covered = covered_fragments(index.fragment_bitmap, index.name)
                if covered is not None and covered & gone:
                    index.fragment_bitmap = (covered - gone).serialize()
            return index

        self.edit_indices(edit)

    # --- row versions

    def stamp_rows(self, offset_bitmaps: Mapping[int, bytes]) -> None:
        """Set the last-updated version of rows that an Update rewrote in place.

        `offset_bitmaps` maps fragment ids to roaring bitmaps of row offsets.
        """
        for message in self.message.fragments:
            bitmap = offset_bitmaps.get(message.id)
            if bitmap is not None:
                num_rows = message.physical_rows
                offsets = parse_roaring(memoryview(bitmap), "updated rows", max_count=num_rows)
                if len(offsets) and int(offsets[-1]) >= num_rows:
                    raise InvalidOperationError(
                        f"the Update changes row offset {offsets[-1]} of fragment {message.id}, which has only"
                        f" {num_rows} rows"
                    )
                stamp_rows(message, offsets, self.version)

    def stamp_changed_files(self, fragments: Iterable[table_pb2.DataFragment]) -> None:
        """Set the last-updated version of fragments whose data files changed. New fragments get row ids."""
        before = {message.id: message for message in self.message.fragments}
        for message in fragments:
            old = before.get(message.id)
            if message.WhichOneof("row_id_sequence") is None:
                assign_row_ids(self.message, (message,))
                stamp_new((message,), self.version)
            elif old is None or list(old.files) != list(message.files):
                stamp_updated((message,), self.version)


def covered_fragments(bitmap: bytes | None, name: str) -> pyroaring.BitMap | None:
    """Return the ids of the fragments that an index covers, None if the index does not record them."""
    if not bitmap:
        return None
    return pyroaring.BitMap(parse_roaring(memoryview(bitmap), f"index {name}", max_count=_MAX_COVERED))


def _drop_dead_files(message: table_pb2.DataFragment, live: set[int]) -> None:
    """Remove data files without a live field. Negative ids other than the tombstone are hidden columns."""
    for position in range(len(message.files) - 1, -1, -1):
        fields = message.files[position].fields
        if not any(field in live or field < TOMBSTONE for field in fields):
            del message.files[position]


# --- one applier per operation ---------------------------------------------------------------------------------------


@singledispatch
def apply(operation: Operation, draft: _Draft) -> None:
    """Apply an operation to the draft. Raises UnsupportedFeatureError for an operation without implementation."""
    raise UnsupportedFeatureError(
        f"committing {type(operation).__name__} is not supported", feature=type(operation).__name__
    )


@apply.register
def _(operation: tx.Append, draft: _Draft) -> None:
    draft.add(operation.fragments)


@apply.register
def _(operation: tx.Delete, draft: _Draft) -> None:
    draft.replace(operation.updated_fragments)
    draft.remove(operation.deleted_fragment_ids)


@apply.register
def _(operation: tx.Overwrite, draft: _Draft) -> None:
    message = draft.message
    if operation.initial_bases and draft.version != 1:
        raise InvalidOperationError(
            "an Overwrite of an existing table cannot add base paths; add them with an UpdateBases operation"
        )
    # The counter must include the ids of the fragments that are removed.
    draft.raise_max_fragment_id(used_fragment_ids(message))
    del message.fragments[:]
    draft.index_section = None
    draft.replace_fields(operation.schema)
    draft.set_schema_metadata(operation.schema.metadata)
    for key, value in operation.config_upsert.items():
        message.config[key] = value
    _add_bases(draft, operation.initial_bases)
    files = (file for fragment in operation.fragments for file in fragment.files)
    file_version = draft.file_version or next((file.file_version for file in files), None)
    if file_version is not None:
        draft.set_file_version(file_version)
    draft.add(operation.fragments)


@apply.register
def _(operation: tx.Restore, draft: _Draft) -> None:
    if draft.restored is None:
        raise InvalidOperationError(f"version {operation.version} to restore does not exist; choose another version")
    message, newest = draft.message, table_pb2.Manifest()
    newest.CopyFrom(message)
    message.CopyFrom(draft.restored.message)
    draft.trusts_flags = is_own_manifest(message)
    draft.index_section = draft.restored.index_section
    draft.raise_max_fragment_id(used_fragment_ids(newest))
    message.next_row_id = max(message.next_row_id, newest.next_row_id)


@apply.register
def _(operation: tx.Update, draft: _Draft) -> None:
    if operation.compacted_sstables:
        raise UnsupportedFeatureError("an Update with MemWAL tables", feature="MemWAL tables")
    touched = {*operation.removed_fragment_ids, *(fragment.id for fragment in operation.updated_fragments)}
    moved = draft.stable_row_ids and any(fragment.row_ids is not None for fragment in operation.new_fragments)
    sources = draft.records(touched) if moved else []
    draft.replace(operation.updated_fragments)
    if draft.stable_row_ids and operation.mode is tx.UpdateMode.REWRITE_COLUMNS:
        draft.stamp_rows(operation.updated_offset_bitmaps)
    draft.remove(operation.removed_fragment_ids)
    # No index covers the new fragments, even if its values are unchanged: readers would miss the moved rows.
    draft.add_moved(operation.new_fragments, sources)
    if operation.mode is tx.UpdateMode.REWRITE_COLUMNS and operation.fields_modified:
        draft.uncover((fragment.id for fragment in operation.updated_fragments), operation.fields_modified)


@apply.register
def _(operation: tx.Merge, draft: _Draft) -> None:
    draft.set_schema(operation.schema)
    draft.set_schema_metadata(operation.schema.metadata)
    highest = used_fragment_ids(draft.message)
    messages = [fragment.to_proto() for fragment in operation.fragments]
    number_fragments(draft.message, _unnumbered_in_merge(draft.message, messages))
    if draft.file_version is not None:
        draft.set_file_version(draft.file_version)
    elif draft.stable_row_ids:  # a format change updates no row
        draft.stamp_changed_files(messages)
    del draft.message.fragments[:]
    draft.append(messages)
    draft.raise_max_fragment_id(highest)


def _unnumbered_in_merge(
    manifest: table_pb2.Manifest, messages: Sequence[table_pb2.DataFragment]
) -> list[table_pb2.DataFragment]:
    """Return the new fragments of a Merge that need an id.

    These are the fragments with id 0, except the existing fragment 0. Other new ids were reserved before. Raises
    InvalidOperationError unless every fragment of the manifest is listed once, with the same number of rows.
    """
    before = {fragment.id: fragment.physical_rows for fragment in manifest.fragments}
    unnumbered: list[table_pb2.DataFragment] = []
    seen: set[int] = set()
    for message in messages:
        if message.id in seen and message.id:
            raise InvalidOperationError(f"the Merge lists fragment {message.id} twice; new fragments must have id 0")
        if not message.id and (message.id in seen or message.id not in before):
            unnumbered.append(message)
        elif before.get(message.id, 0) not in (0, message.physical_rows):  # 0: old releases did not record the number
            raise InvalidOperationError(
                f"the Merge changes fragment {message.id} from {before[message.id]} to {message.physical_rows} rows; a"
                " Merge may only change columns"
            )
        seen.add(message.id)
    missing = sorted(before.keys() - seen)
    if missing:
        raise InvalidOperationError(
            f"the Merge lacks fragments {missing[:10]}; it must list all fragments of the table"
        )
    return unnumbered


@apply.register
def _(operation: tx.Project, draft: _Draft) -> None:
    draft.set_schema(operation.schema)


@apply.register
def _(operation: tx.UpdateConfig, draft: _Draft) -> None:
    message = draft.message
    _update_map(message.config, operation.config)
    _update_map(message.table_metadata, operation.table_metadata)
    _update_map(message.schema_metadata, operation.schema_metadata, str.encode)
    if operation.field_metadata:
        positions = {field.id: position for position, field in enumerate(message.fields)}
        for field_id, update in operation.field_metadata.items():
            if field_id not in positions:
                raise InvalidOperationError(
                    f"field {field_id} does not exist, so its metadata cannot be changed; check the field id"
                )
            _update_map(message.fields[positions[field_id]].metadata, update, str.encode)
            _derive_from_metadata(message.fields[positions[field_id]])


def _derive_from_metadata(field: file_pb2.Field) -> None:
    """Set the properties of a field that are derived from its metadata: extension name and key columns."""
    alone = pa.schema([pa.field("x", pa.bool_(), metadata=dict(field.metadata))])
    derived = Schema.from_arrow(alone, check=False).fields[0].to_proto()
    field.extension_name = derived.extension_name
    field.unenforced_primary_key = derived.unenforced_primary_key
    field.unenforced_primary_key_position = derived.unenforced_primary_key_position
    field.unenforced_clustering_key = derived.unenforced_clustering_key
    field.unenforced_clustering_key_position = derived.unenforced_clustering_key_position


def _update_map(target: MutableMapping[str, Any], update: UpdateMap | None, encode: Callable[[str], Any] = str) -> None:
    if update is None:
        return
    if update.replace:
        target.clear()
    for key, value in update.entries.items():
        if value is not None:
            target[key] = encode(value)
        elif key in target:
            del target[key]


@apply.register
def _(operation: tx.ReserveFragments, draft: _Draft) -> None:
    reserve_fragment_ids(draft.message, operation.num_fragments)


_ROW_ID_INDICES = frozenset(f"lance.table.{kind}IndexDetails" for kind in ("Bitmap", "LabelList", "Inverted", "NGram"))


def _points_at_row_ids(index: table_pb2.IndexMetadata) -> bool:
    """Return True if an index stores stable row ids in tables that have them.

    Other indices store row addresses or zones of fragments.
    """
    return index.index_details.type_url.rpartition("/")[2] in _ROW_ID_INDICES


@apply.register
def _(operation: tx.Rewrite, draft: _Draft) -> None:
    old = [fragment.id for group in operation.groups for fragment in group.old_fragments]
    new = [fragment for group in operation.groups for fragment in group.new_fragments]
    repeated = sorted(fragment_id for fragment_id, count in Counter(old).items() if count > 1)
    if repeated:
        raise InvalidOperationError(
            f"the Rewrite replaces fragments {repeated} more than once, which would duplicate their rows; commit only"
            " one result for each fragment"
        )
    draft.remove(old)
    draft.add_rewritten(new)
    rewritten = {index.old_id: index for index in operation.rewritten_indices}
    gone = pyroaring.BitMap(old)
    groups = [
        (
            pyroaring.BitMap([fragment.id for fragment in group.old_fragments]),
            pyroaring.BitMap([fragment.id for fragment in group.new_fragments]),
        )
        for group in operation.groups
    ]

    def edit(index: table_pb2.IndexMetadata) -> table_pb2.IndexMetadata:
        covered = covered_fragments(index.fragment_bitmap, index.name)
        replacement = rewritten.get(uuid_module.UUID(bytes=index.uuid.uuid))
        if replacement is not None:
            index.uuid.uuid = replacement.new_id.bytes
            if replacement.details is not None:
                index.index_details.ParseFromString(replacement.details)
            index.index_version = replacement.index_version
            del index.files[:]
            index.files.extend(
                table_pb2.IndexFile(path=file.path, size_bytes=file.size_bytes) for file in replacement.files
            )
        if covered is not None and index.fields and covered & gone:
            remaining = covered - gone
            # Rows keep their stable ids, so an index of row ids stays valid.
            if replacement is not None or (draft.stable_row_ids and _points_at_row_ids(index)):
                for group_old, group_new in groups:
                    if group_old <= covered:
                        remaining |= group_new
            index.fragment_bitmap = remaining.serialize()
        return index

    draft.edit_indices(edit)


@apply.register
def _(operation: tx.DataReplacement, draft: _Draft) -> None:
    wanted = {replacement.fragment_id: replacement.new_file for replacement in operation.replacements}
    if len({file.fields for file in wanted.values()}) > 1:
        raise InvalidOperationError("the new files of a DataReplacement have different fields; they must have the same")
    left = set(wanted)
    for message in draft.message.fragments:
        file = wanted.get(message.id)
        if file is not None:
            _replace_file(message, file)
            if draft.stable_row_ids:
                stamp_updated((message,), draft.version)
            left.discard(message.id)
    draft.check_none_missing(left)
    draft.uncover(wanted, {field for file in wanted.values() for field in file.fields})


def _replace_file(message: table_pb2.DataFragment, new: DataFile) -> None:
    """Replace the data file that has the same fields and format version, or add the file if its fields are new."""
    key = (new.fields, new.major, new.minor)
    for old in message.files:
        if (tuple(old.fields), old.file_major_version, old.file_minor_version) == key:
            old.CopyFrom(new.to_proto())
            return
    if not set(new.fields).isdisjoint(field_id for old in message.files for field_id in old.fields):
        raise InvalidOperationError(
            f"fragment {message.id} has no data file with exactly the fields {list(new.fields)} and format"
            f" {new.major}.{new.minor}; replace whole files"
        )
    message.files.append(new.to_proto())


@apply.register
def _(operation: tx.UpdateBases, draft: _Draft) -> None:
    _add_bases(draft, operation.new_bases)


def _add_bases(draft: _Draft, bases: Iterable[BasePath]) -> None:
    present = draft.message.base_paths
    for base in bases:
        for other in present:
            if (base.name and base.name == other.name) or base.path == other.path or (base.id and base.id == other.id):
                raise InvalidOperationError(
                    f"base path {base.name or base.path!r} already exists; choose another name, path and id"
                )
        message = base.to_proto()
        if not message.id:
            message.id = max((other.id for other in present), default=0) + 1
        present.append(message)


@apply.register
def _(operation: tx.CreateIndex, draft: _Draft) -> None:
    removed = {index.uuid.bytes for index in operation.removed_indices}
    kept = [index for index in draft.indices() if index.uuid.uuid not in removed]
    draft.set_indices([*kept, *(index.to_proto() for index in operation.new_indices)])


# --- what every commit does ------------------------------------------------------------------------------------------


def _finish(draft: _Draft, newest: table_pb2.Manifest, transaction: Transaction, timestamp_ns: int) -> None:
    message = draft.message
    draft.sort()
    message.version = draft.version
    message.timestamp.seconds, message.timestamp.nanos = divmod(timestamp_ns, 1_000_000_000)
    message.transaction_file = transaction_name(transaction.read_version, transaction.uuid)
    message.tag = transaction.tag
    idempotency.record_change(message, transaction)
    message.writer_version.CopyFrom(writer_version())
    # Offsets are set when the sections are serialized again.
    message.ClearField("index_section")
    message.ClearField("transaction_section")
    message.ClearField("transaction_section_deprecated")
    covering = message.reader_feature_flags & flags.COVERING_INDICES and draft.index_section is not None
    mixed = flags.MIXED_FILE_VERSIONS if draft.mixed_versions else 0
    message.reader_feature_flags, message.writer_feature_flags = flags.compute(
        message,
        has_deletions=draft.has_deletions,
        stable_row_ids=draft.stable_row_ids,
        indices=draft.indices() if covering else (),
        previous=(newest.reader_feature_flags | mixed, newest.writer_feature_flags | mixed),
    )


_LIBRARY = "lancetable"


def is_own_manifest(manifest: table_pb2.Manifest) -> bool:
    """Return True if this library wrote the manifest."""
    return manifest.writer_version.library == _LIBRARY


@cache
def writer_version() -> table_pb2.Manifest.WriterVersion:
    """Return the name and version of this library as a protobuf message."""
    try:
        version = metadata.version(_LIBRARY)
    except metadata.PackageNotFoundError:
        version = "0.0.0"
    return table_pb2.Manifest.WriterVersion(library=_LIBRARY, version=version)
