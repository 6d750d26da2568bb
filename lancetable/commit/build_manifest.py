"""Construction of the next manifest: the newest manifest with one operation applied.

One function per operation changes a draft, which is a copy of the newest manifest's protobuf message. Fields that every
commit sets (version, timestamp, feature flags, fragment order, writer version) are set once, at the end.
"""

from __future__ import annotations

import uuid as uuid_module
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import singledispatch
from typing import Any

import pyarrow as pa
import pyroaring

from lancetable.commit import idempotency
from lancetable.commit.assign_ids import (
    number_fragments,
    reserve_fragment_ids,
    stamp_updated,
    used_fragment_ids,
)
from lancetable.commit.index_coverage import changed_columns, stores_row_ids
from lancetable.commit.manifest_draft import (
    ManifestDraft,
    ManifestParts,
    is_own_manifest,
    writer_version,
)
from lancetable.errors import (
    InvalidOperationError,
    RetryableCommitConflictError,
    UnsupportedFeatureError,
)
from lancetable.format import feature_flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import DataFile
from lancetable.format.index import covered_fragments
from lancetable.format.manifest import BasePath, Manifest
from lancetable.format.paths import transaction_name
from lancetable.format.schema import Schema
from lancetable.format.transaction import Operation, Transaction, UpdateMap
from lancetable.format.version import FileVersion
from lancetable.proto import file_pb2, table_pb2


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
        The new manifest, which shares no state with `newest`, and its index section.

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
    draft = ManifestDraft(message, index_section, version, restored, file_version)
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
            f"expected an Overwrite to create a table, got {type(transaction.operation).__name__}"
        )
    empty = table_pb2.Manifest()
    if stable_row_ids:
        empty.reader_feature_flags = feature_flags.STABLE_ROW_IDS
    empty.config.update(config or {})
    return build_manifest(empty, None, transaction, version=1, timestamp_ns=timestamp_ns, file_version=file_version)


# --- one applier per operation ---------------------------------------------------------------------------------------


@singledispatch
def apply(operation: Operation, draft: ManifestDraft) -> None:
    """Apply an operation to the draft. Raises UnsupportedFeatureError for an operation without implementation."""
    raise UnsupportedFeatureError(
        f"committing {type(operation).__name__} is not supported", feature=type(operation).__name__
    )


@apply.register
def _(operation: tx.Append, draft: ManifestDraft) -> None:
    draft.add(operation.fragments)


@apply.register
def _(operation: tx.Delete, draft: ManifestDraft) -> None:
    draft.replace(operation.updated_fragments)
    draft.remove(operation.deleted_fragment_ids)


@apply.register
def _(operation: tx.Overwrite, draft: ManifestDraft) -> None:
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
    message.config.update(operation.config_upsert)
    _add_bases(draft, operation.initial_bases)
    files = (file for fragment in operation.fragments for file in fragment.files)
    file_version = draft.file_version
    if file_version is None and message.data_format.version in ("", FileVersion.LEGACY.number):
        file_version = next((file.file_version for file in files), None)
    if file_version is not None:
        draft.set_file_version(file_version)
    draft.add(operation.fragments)


@apply.register
def _(operation: tx.Restore, draft: ManifestDraft) -> None:
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
def _(operation: tx.Update, draft: ManifestDraft) -> None:
    if operation.compacted_sstables:
        raise UnsupportedFeatureError("an Update with MemWAL tables", feature="MemWAL tables")
    touched = {*operation.removed_fragment_ids, *(fragment.id for fragment in operation.updated_fragments)}
    moved = draft.stable_row_ids and any(fragment.row_ids is not None for fragment in operation.new_fragments)
    sources = draft.records(touched) if moved else []
    draft.replace(operation.updated_fragments)
    if draft.stable_row_ids and operation.mode is tx.UpdateMode.REWRITE_COLUMNS:
        draft.stamp_rows(operation.updated_offset_bitmaps)
    draft.remove(operation.removed_fragment_ids)
    only_moved = draft.add_moved(operation.new_fragments, sources)
    changed = operation.fields_for_preserving_frag_bitmap
    if operation.mode is tx.UpdateMode.REWRITE_ROWS and changed:  # without the list, any field may have changed
        draft.cover_moved_rows(only_moved, touched, changed)
    if operation.mode is tx.UpdateMode.REWRITE_COLUMNS and operation.fields_modified:
        draft.uncover((fragment.id for fragment in operation.updated_fragments), operation.fields_modified)


@apply.register
def _(operation: tx.Merge, draft: ManifestDraft) -> None:
    draft.set_schema(operation.schema)
    draft.set_schema_metadata(operation.schema.metadata)
    highest = used_fragment_ids(draft.message)
    messages = [fragment.to_proto() for fragment in operation.fragments]
    number_fragments(draft.message, _unnumbered_in_merge(draft.message, messages))
    if draft.file_version is not None:
        draft.set_file_version(draft.file_version)
    else:  # a format change updates no value
        if draft.stable_row_ids:
            draft.stamp_changed_files(messages)
        before = draft.message.fragments if draft.index_section else ()
        for field_ids, fragment_ids in changed_columns(before, messages).items():
            draft.uncover(fragment_ids, field_ids)
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
def _(operation: tx.Project, draft: ManifestDraft) -> None:
    draft.set_schema(operation.schema)


@apply.register
def _(operation: tx.UpdateConfig, draft: ManifestDraft) -> None:
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
def _(operation: tx.ReserveFragments, draft: ManifestDraft) -> None:
    reserve_fragment_ids(draft.message, operation.num_fragments)


@apply.register
def _(operation: tx.Rewrite, draft: ManifestDraft) -> None:
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
    if operation.reuse_index is not None:
        draft.set_reuse_index(operation.reuse_index)
        return
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
            index.ClearField("base_id")  # the new files are below the table's own root
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
            if replacement is not None or (draft.stable_row_ids and stores_row_ids(index)):
                for group_old, group_new in groups:
                    if group_old <= covered:
                        remaining |= group_new
            index.fragment_bitmap = remaining.serialize()
        return index

    draft.edit_indices(edit)


@apply.register
def _(operation: tx.DataReplacement, draft: ManifestDraft) -> None:
    new_files = {replacement.fragment_id: replacement.new_file for replacement in operation.replacements}
    if len({file.fields for file in new_files.values()}) > 1:
        raise InvalidOperationError("the new files of a DataReplacement must all have the same fields")
    missing = set(new_files)
    for message in draft.message.fragments:
        file = new_files.get(message.id)
        if file is not None:
            _replace_file(message, file)
            if draft.stable_row_ids:
                stamp_updated((message,), draft.version)
            missing.discard(message.id)
    draft.check_none_missing(missing)
    draft.uncover(new_files, {field for file in new_files.values() for field in file.fields})


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
def _(operation: tx.UpdateBases, draft: ManifestDraft) -> None:
    _add_bases(draft, operation.new_bases)


def _add_bases(draft: ManifestDraft, bases: Iterable[BasePath]) -> None:
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
def _(operation: tx.CreateIndex, draft: ManifestDraft) -> None:
    removed = {index.uuid.bytes: index.name for index in operation.removed_indices}
    before, live = draft.indices(), draft.field_ids()
    missing = removed.keys() - {index.uuid.uuid for index in before}
    replaced = {removed[uuid] for uuid in missing} & {index.name for index in before}
    if replaced:
        raise RetryableCommitConflictError(
            f"segments of the index {min(replaced)!r} that this operation removes were replaced by another commit; run"
            " the operation again on the newest version"
        )
    for index in operation.new_indices:
        if not live.issuperset(index.fields):
            raise RetryableCommitConflictError(
                f"fields {sorted(set(index.fields) - live)} of the index {index.name!r} do not exist in the newest"
                " version; run the operation again on it"
            )
    kept = [index for index in before if index.uuid.uuid not in removed]
    draft.set_indices([*kept, *(index.to_proto() for index in operation.new_indices)])


# --- common to all operations ----------------------------------------------------------------------------------------


def _record_format(message: table_pb2.Manifest) -> None:
    """Record the format of the data files. Old releases of Lance recorded no format, or always 0.1.

    Raises InvalidOperationError if files of format 0.1 and newer files are mixed.
    """
    if message.data_format.version not in ("", FileVersion.LEGACY.number):
        return
    file_version = Manifest(message).file_version
    legacy = {
        file.file_major_version == 0 and file.file_minor_version < 3
        for fragment in message.fragments
        for file in fragment.files
    }
    if len(legacy) > 1:
        raise InvalidOperationError(
            "The dataset contains a mixture of file versions, 0.1 and newer, which no reader supports; restore an older"
            " version without newer files"
        )
    message.data_format.file_format = "lance"
    message.data_format.version = file_version.number


def _finish(draft: ManifestDraft, newest: table_pb2.Manifest, transaction: Transaction, timestamp_ns: int) -> None:
    message = draft.message
    _record_format(message)
    draft.sort()
    draft.remove_unusable_indices()
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
    covering = message.reader_feature_flags & feature_flags.COVERING_INDICES and draft.index_section is not None
    mixed = feature_flags.MIXED_FILE_VERSIONS if draft.mixed_versions else 0
    message.reader_feature_flags, message.writer_feature_flags = feature_flags.compute(
        message,
        has_deletions=draft.has_deletions,
        stable_row_ids=draft.stable_row_ids,
        indices=draft.indices() if covering else (),
        previous=(newest.reader_feature_flags | mixed, newest.writer_feature_flags | mixed),
    )
