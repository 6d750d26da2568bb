"""The manifest of the next version: the newest one with an operation applied.

One applier per operation works on a copy of the newest manifest's message. Fragments that the operation does not
touch are carried as messages, never made into objects. What every commit does besides (version, time, feature words,
order of fragments, writer) happens once, at the end.
"""

from __future__ import annotations

import uuid as uuid_module
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache, singledispatch
from importlib import metadata

import numpy as np
import pyarrow as pa
import pyroaring

from lancetable.commit import once
from lancetable.commit.assign import (
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
from lancetable.file.columns import column_of, is_single_column
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
from lancetable.table._offset_files import parse_roaring

__all__ = [
    "Built",
    "Restored",
    "build_first_manifest",
    "build_manifest",
    "covered_fragments",
    "is_ours",
    "writer_version",
]

_MAX_COVERED = 1 << 24  # fragments of one index; a manifest with as many would not fit its own limit


@dataclass(frozen=True, slots=True)
class Restored:
    """The version that a Restore makes current again."""

    manifest: table_pb2.Manifest
    index_section: bytes | None


@dataclass(frozen=True, slots=True)
class Built:
    """What `table.manifests.pack` needs: a message that nobody else holds, and the serialized index section."""

    message: table_pb2.Manifest
    index_section: bytes | None


def build_manifest(
    newest: table_pb2.Manifest,
    index_section: bytes | None,
    transaction: Transaction,
    *,
    version: int,
    timestamp_ns: int,
    restored: Restored | None = None,
    file_version: FileVersion | None = None,
) -> Built:
    """The manifest of `version`: `newest`, which is not changed, with `transaction` applied.

    `restored` is needed for Restore only; `file_version` changes the data format in an Overwrite or a Merge.
    Raises UnsupportedFeatureError for operations and tables that cannot be written yet, InvalidOperationError for a
    transaction that does not fit the table, RetryableCommitConflictError for fragments that are gone.
    """
    message = table_pb2.Manifest()
    message.CopyFrom(newest)
    draft = _Draft(message, index_section, version, restored, file_version)
    apply(transaction.operation, draft)
    _finish(draft, newest, transaction, timestamp_ns)
    return Built(message, draft.index_section)


def build_first_manifest(
    transaction: Transaction,
    file_version: FileVersion,
    *,
    timestamp_ns: int,
    config: Mapping[str, str] | None = None,
    stable_row_ids: bool = False,
) -> Built:
    """The manifest of version 1, from an Overwrite. A table has stable row ids from its first version on, or never."""
    if not isinstance(transaction.operation, tx.Overwrite):
        raise InvalidOperationError("a table begins with an Overwrite")
    empty = table_pb2.Manifest()
    empty.data_format.file_format = "lance"
    empty.data_format.version = file_version.number
    if stable_row_ids:
        empty.reader_feature_flags = flags.STABLE_ROW_IDS
    for key, value in (config or {}).items():
        empty.config[key] = value
    return build_manifest(empty, None, transaction, version=1, timestamp_ns=timestamp_ns, file_version=file_version)


# --- the draft -------------------------------------------------------------------------------------------------------


class _Draft:
    """The manifest under construction."""

    def __init__(
        self,
        message: table_pb2.Manifest,
        index_section: bytes | None,
        version: int,
        restored: Restored | None,
        file_version: FileVersion | None,
    ) -> None:
        self.message, self.index_section, self.version = message, index_section, version
        self.restored, self.file_version = restored, file_version
        self.mixed_versions = False
        self.new_deletions = False
        self.trusts_flags = is_ours(message)

    @property
    def stable_row_ids(self) -> bool:
        return bool(self.message.reader_feature_flags & flags.STABLE_ROW_IDS)

    def add(self, fragments: Iterable[Fragment]) -> None:
        """Append fragments of new rows, numbering those with id 0."""
        messages = self._numbered(fragments)
        if self.stable_row_ids:
            assign_row_ids(self.message, messages)
            stamp_new(messages, self.version)
        self._add(messages)

    def add_moved(self, fragments: Iterable[Fragment], sources: Sequence[table_pb2.DataFragment]) -> None:
        """Append fragments whose first rows may have been moved there from `sources`, the records before this commit.

        The new fragments say the row ids of those rows.
        """
        messages = self._numbered(fragments)
        if self.stable_row_ids:
            num_moved = assign_row_ids(self.message, messages)
            stamp_moved(messages, num_moved, sources, self.version)
        self._add(messages)

    def add_rewritten(self, fragments: Iterable[Fragment]) -> None:
        """Append fragments that hold rows of others, which bring their row ids and versions along."""
        messages = self._numbered(fragments)
        if self.stable_row_ids and any(message.WhichOneof("row_id_sequence") is None for message in messages):
            raise InvalidOperationError("rewritten fragments of a table with stable row ids must bring their row ids")
        self._add(messages)

    def _numbered(self, fragments: Iterable[Fragment]) -> list[table_pb2.DataFragment]:
        messages = [fragment.to_proto() for fragment in fragments]
        number_fragments(self.message, messages)
        return messages

    def check_files(self, messages: Iterable[table_pb2.DataFragment]) -> None:
        """Raises InvalidOperationError for fragments that other readers refuse: with a file that holds no field, or a
        column for a struct or list as a whole from 2.1 on, and in 0.1 those that lack a column."""
        parents = {field.parent_id for field in self.message.fields}
        wanted = self.field_ids() if Manifest(self.message).file_version.is_legacy else set()
        for message in messages:
            for file in message.files:
                if not file.fields:
                    raise InvalidOperationError(f"{file.path}: a data file holds at least one field")
                if not parents.isdisjoint(file.fields):
                    self._check_parents(file)
            if wanted:
                missing = wanted.difference(*(file.fields for file in message.files))
                if missing:
                    raise InvalidOperationError(
                        f"fragment {message.id} lacks the fields {sorted(missing)}: in 0.1 no column can be left out"
                    )

    def _check_parents(self, file: table_pb2.DataFile) -> None:
        """As where the file was written for another schema, whose fields had the same ids."""
        if (file.file_major_version, file.file_minor_version) < (2, 1):
            return
        by_id = Manifest(self.message).schema.by_id
        for field_id in column_of(file.fields, file.column_indices):
            field = by_id.get(field_id)
            if field is not None and not is_single_column(field):
                raise InvalidOperationError(
                    f"{file.path}: column {column_of(file.fields, file.column_indices)[field_id]} is said to hold field"
                    f" {field_id}, {field.name!r}, whose columns are those of the fields below it. Was the file written"
                    " for another schema?"
                )

    def _add(self, messages: list[table_pb2.DataFragment]) -> None:
        self.check_files(messages)
        if messages:
            # A column may have been dropped since the files were written.
            live = self.field_ids()
            for message in messages:
                _drop_dead_files(message, live)
        self.message.fragments.extend(messages)
        self.note(messages)
        self.mixed_versions |= any(self._is_other_version(message) for message in messages)

    def note(self, messages: Iterable[table_pb2.DataFragment]) -> None:
        """Remember what the feature words must say of fragments that are new or changed."""
        self.new_deletions = self.new_deletions or any(message.HasField("deletion_file") for message in messages)

    @property
    def has_deletions(self) -> bool:
        """Whether some fragment has deleted rows. Where this library wrote that the version before had none, only
        new fragments are looked at."""
        if self.new_deletions:
            return True
        if self.trusts_flags and not self.message.reader_feature_flags & flags.DELETIONS:
            return False
        return any(message.HasField("deletion_file") for message in self.message.fragments)

    def _is_other_version(self, fragment: table_pb2.DataFragment) -> bool:
        """Whether a new fragment has files of another version than the table, which readers must be told."""
        if not self.message.data_format.version:
            return False
        stated = Manifest(self.message).file_version
        versions = {
            FileVersion.from_manifest_pair(file.file_major_version, file.file_minor_version, file.path)
            for file in fragment.files
        }
        if any(version.is_legacy != stated.is_legacy for version in versions):
            raise RetryableCommitConflictError(
                f"files of 0.1 and of newer versions cannot be mixed, and the table is in {stated}: run the operation"
                " again on the newest version, or migrate the table"
            )
        return any(version is not stated for version in versions)

    def records(self, fragment_ids: Iterable[int]) -> list[table_pb2.DataFragment]:
        """Copies of the records of these fragments as they are now; of those that are there."""
        wanted = set(fragment_ids)
        found = [message for message in self.message.fragments if message.id in wanted]
        return list(table_pb2.Manifest(fragments=found).fragments)

    def replace(self, fragments: Iterable[Fragment]) -> None:
        """Put new records in the places of those with the same ids."""
        wanted = {fragment.id: fragment for fragment in fragments}
        if not wanted:
            return
        live = self.field_ids()
        present = self.message.fragments
        places = {fragment_id: place for place, fragment_id in enumerate(fragment_ids(self.message).tolist())}
        self._want_none_left(wanted.keys() - places.keys())
        for fragment_id, fragment in wanted.items():
            message = present[places[fragment_id]]
            message.CopyFrom(fragment.to_proto())
            self.check_files((message,))
            _drop_dead_files(message, live)
            self.note((message,))

    def remove(self, fragment_ids: Iterable[int]) -> None:
        wanted = set(fragment_ids)
        if not wanted:
            return
        kept = [message for message in self.message.fragments if message.id not in wanted]
        if len(self.message.fragments) - len(kept) != len(wanted):
            self._want_none_left(wanted - {message.id for message in self.message.fragments})
        self._set_fragments(kept)

    def _set_fragments(self, messages: list[table_pb2.DataFragment]) -> None:
        # The kept messages are views into the list that is being replaced.
        replacement = table_pb2.Manifest(fragments=messages)
        del self.message.fragments[:]
        self.message.fragments.MergeFrom(replacement.fragments)

    def sort(self) -> None:
        ids = fragment_ids(self.message)
        if (ids[1:] > ids[:-1]).all():
            return
        if len(np.unique(ids)) != len(ids):
            raise InvalidOperationError("the commit would give two fragments the same id")
        self._set_fragments(sorted(self.message.fragments, key=lambda message: message.id))

    def _want_none_left(self, missing: Iterable[int]) -> None:
        gone = tuple(sorted(missing))
        if gone:
            raise RetryableCommitConflictError(
                f"fragments {list(gone[:10])} are not part of the newest version; run the operation again on it",
                fragments=gone,
            )

    def field_ids(self) -> set[int]:
        return {field.id for field in self.message.fields}

    def set_schema(self, schema: Schema) -> None:
        """Replace the fields. Data files and indices of fields that are gone go with them."""
        before = self.field_ids()
        fields = schema.to_protos()
        del self.message.fields[:]
        self.message.fields.extend(fields)
        live = self.field_ids()
        if before - live:
            for message in self.message.fragments:
                _drop_dead_files(message, live)
            self.edit_indices(lambda index: index if set(index.fields) <= live else None)

    def set_schema_metadata(self, metadata: Mapping[str, bytes]) -> None:
        self.message.schema_metadata.clear()
        for key, value in metadata.items():
            self.message.schema_metadata[key] = value

    def indices(self) -> list[table_pb2.IndexMetadata]:
        return index_messages(self.index_section)

    def set_indices(self, indices: list[table_pb2.IndexMetadata]) -> None:
        self.index_section = table_pb2.IndexSection(indices=indices).SerializeToString() if indices else None

    def edit_indices(self, edit: Callable[[table_pb2.IndexMetadata], table_pb2.IndexMetadata | None]) -> None:
        """Change or drop (None) each index. The section keeps its bytes if nothing changes."""
        before = self.indices()
        if not before:
            return
        originals = [index.SerializeToString() for index in before]
        after = [edited for index in before if (edited := edit(index)) is not None]
        if originals != [index.SerializeToString() for index in after]:
            self.set_indices(after)

    def uncover(self, fragment_ids: Iterable[int], field_ids: Iterable[int] | None = None) -> None:
        """Take fragments out of the coverage of indices on `field_ids`, of all indices if that is None."""
        gone = pyroaring.BitMap(fragment_ids)
        fields = None if field_ids is None else set(field_ids)

        def edit(index: table_pb2.IndexMetadata) -> table_pb2.IndexMetadata:
            if index.fields and (fields is None or fields & set(index.fields)):
                covered = covered_fragments(index.fragment_bitmap, index.name)
                if covered is not None and covered & gone:
                    index.fragment_bitmap = (covered - gone).serialize()
            return index

        self.edit_indices(edit)

    # --- row versions

    def stamp_rows(self, offset_bitmaps: Mapping[int, bytes]) -> None:
        """Note this version for the rows whose columns an Update rewrote in place: by fragment, a roaring bitmap."""
        for message in self.message.fragments:
            bitmap = offset_bitmaps.get(message.id)
            if bitmap is not None:
                num_rows = message.physical_rows
                offsets = parse_roaring(memoryview(bitmap), "updated rows", max_count=num_rows)
                if len(offsets) and int(offsets[-1]) >= num_rows:
                    raise InvalidOperationError(
                        f"row {offsets[-1]} of fragment {message.id} was updated, which has {num_rows} rows"
                    )
                stamp_rows(message, offsets, self.version)

    def stamp_changed_files(self, fragments: Iterable[table_pb2.DataFragment]) -> None:
        """Note this version for all rows of fragments whose data files are others than before; new ones get row ids."""
        before = {message.id: message for message in self.message.fragments}
        for message in fragments:
            old = before.get(message.id)
            if message.WhichOneof("row_id_sequence") is None:
                assign_row_ids(self.message, (message,))
                stamp_new((message,), self.version)
            elif old is None or list(old.files) != list(message.files):
                stamp_updated((message,), self.version)


def covered_fragments(bitmap: bytes | None, name: str) -> pyroaring.BitMap | None:
    """The fragment ids an index covers; None if it does not say."""
    if not bitmap:
        return None
    return pyroaring.BitMap(parse_roaring(memoryview(bitmap), f"index {name}", max_count=_MAX_COVERED))


def _drop_dead_files(message: table_pb2.DataFragment, live: set[int]) -> None:
    """Remove data files that hold no live field. Negative ids other than the tombstone are hidden columns."""
    for position in range(len(message.files) - 1, -1, -1):
        fields = message.files[position].fields
        if not any(field in live or field < TOMBSTONE for field in fields):
            del message.files[position]


# --- one applier per operation ---------------------------------------------------------------------------------------


@singledispatch
def apply(operation: Operation, draft: _Draft) -> None:
    """Change the draft as the operation says. An operation without an applier is refused."""
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
        raise InvalidOperationError("base paths can be given when a table is created, not when it is overwritten")
    # The counter must know the ids of the fragments that are about to go.
    highest = used_fragment_ids(message)
    if highest >= 0:
        message.max_fragment_id = highest
    del message.fragments[:]
    draft.index_section = None
    del message.fields[:]
    message.fields.extend(operation.schema.to_protos())
    draft.set_schema_metadata(operation.schema.metadata)
    for key, value in operation.config_upsert.items():
        message.config[key] = value
    _add_bases(draft, operation.initial_bases)
    version = draft.file_version or _file_version_of(operation.fragments)
    if version is not None:
        message.data_format.file_format = "lance"
        message.data_format.version = version.number
    draft.add(operation.fragments)


def _file_version_of(fragments: Iterable[Fragment]) -> FileVersion | None:
    for fragment in fragments:
        for file in fragment.files:
            return file.file_version
    return None


@apply.register
def _(operation: tx.Restore, draft: _Draft) -> None:
    if draft.restored is None:
        raise InvalidOperationError(f"version {operation.version} is not there to be restored")
    message, newest = draft.message, table_pb2.Manifest()
    newest.CopyFrom(message)
    message.CopyFrom(draft.restored.manifest)
    draft.trusts_flags = is_ours(message)
    draft.index_section = draft.restored.index_section
    highest = max(used_fragment_ids(newest), used_fragment_ids(message))
    if highest >= 0:
        message.max_fragment_id = highest
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
    # No index covers the new fragments, not even one whose values are as they were: readers would miss the moved rows.
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
        draft.message.data_format.file_format = "lance"
        draft.message.data_format.version = draft.file_version.number
    elif draft.stable_row_ids:  # another format changes no row
        draft.stamp_changed_files(messages)
    draft.check_files(messages)
    del draft.message.fragments[:]
    live = draft.field_ids()
    for message in messages:
        _drop_dead_files(message, live)
    draft.message.fragments.extend(messages)
    draft.note(messages)
    highest = max(highest, used_fragment_ids(draft.message))
    if highest >= 0:
        draft.message.max_fragment_id = highest


def _unnumbered_in_merge(
    manifest: table_pb2.Manifest, messages: Sequence[table_pb2.DataFragment]
) -> list[table_pb2.DataFragment]:
    """The new fragments of a Merge that need an id: those with 0, behind the one that has it already. Others were
    reserved.

    Raises InvalidOperationError unless every fragment of the manifest is there once, with as many rows as before.
    """
    before = {fragment.id: fragment.physical_rows for fragment in manifest.fragments}
    unnumbered: list[table_pb2.DataFragment] = []
    seen: set[int] = set()
    for message in messages:
        if message.id in seen and message.id:
            raise InvalidOperationError(f"a Merge lists two fragments with the same id {message.id}; new ones have 0")
        if not message.id and (message.id in seen or message.id not in before):
            unnumbered.append(message)
        elif before.get(message.id, 0) not in (0, message.physical_rows):  # old releases left the number out
            raise InvalidOperationError(
                f"a Merge changes columns, and fragment {message.id} would have {message.physical_rows} rows instead of"
                f" {before[message.id]}"
            )
        seen.add(message.id)
    missing = sorted(before.keys() - seen)
    if missing:
        raise InvalidOperationError(f"a Merge lists every fragment of the table, and {missing[:10]} are missing")
    return unnumbered


@apply.register
def _(operation: tx.Project, draft: _Draft) -> None:
    draft.set_schema(operation.schema)


@apply.register
def _(operation: tx.UpdateConfig, draft: _Draft) -> None:
    message = draft.message
    _update_texts(message.config, operation.config)
    _update_texts(message.table_metadata, operation.table_metadata)
    _update_bytes(message.schema_metadata, operation.schema_metadata)
    if operation.field_metadata:
        positions = {field.id: position for position, field in enumerate(message.fields)}
        for field_id, update in operation.field_metadata.items():
            if field_id not in positions:
                raise InvalidOperationError(f"there is no field {field_id} whose metadata could change")
            _update_bytes(message.fields[positions[field_id]].metadata, update)
            _derive_from_metadata(message.fields[positions[field_id]])


def _derive_from_metadata(field: file_pb2.Field) -> None:
    """Set what a field repeats of its metadata: the extension's name, key columns."""
    alone = pa.schema([pa.field("x", pa.bool_(), metadata=dict(field.metadata))])
    derived = Schema.from_arrow(alone, check=False).fields[0].to_proto()
    field.extension_name = derived.extension_name
    field.unenforced_primary_key = derived.unenforced_primary_key
    field.unenforced_primary_key_position = derived.unenforced_primary_key_position
    field.unenforced_clustering_key = derived.unenforced_clustering_key
    field.unenforced_clustering_key_position = derived.unenforced_clustering_key_position


def _update_texts(target: MutableMapping[str, str], update: UpdateMap | None) -> None:
    if update is not None:
        after = update.apply(target)
        target.clear()
        target.update(after)


def _update_bytes(target: MutableMapping[str, bytes], update: UpdateMap | None) -> None:
    if update is not None:
        kept = {} if update.replace else {key: value for key, value in target.items() if key not in update.entries}
        target.clear()
        target.update(kept)
        target.update({key: value.encode() for key, value in update.entries.items() if value is not None})


@apply.register
def _(operation: tx.ReserveFragments, draft: _Draft) -> None:
    reserve_fragment_ids(draft.message, operation.num_fragments)


_ROW_ID_INDICES = frozenset(f"lance.table.{kind}IndexDetails" for kind in ("Bitmap", "LabelList", "Inverted", "NGram"))


def _points_at_row_ids(index: table_pb2.IndexMetadata) -> bool:
    """Whether an index of a table with stable row ids points at them; others hold addresses or zones of fragments."""
    return index.index_details.type_url.rpartition("/")[2] in _ROW_ID_INDICES


@apply.register
def _(operation: tx.Rewrite, draft: _Draft) -> None:
    old = [fragment.id for group in operation.groups for fragment in group.old_fragments]
    new = [fragment for group in operation.groups for fragment in group.new_fragments]
    repeated = sorted({each for each in old if old.count(each) > 1}) if len(set(old)) < len(old) else []
    if repeated:
        raise InvalidOperationError(
            f"a Rewrite replaces fragments {repeated} more than once, which would duplicate their rows; commit one"
            " result for each fragment"
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
            # Rows keep their stable ids, so an index that points at ids still finds them.
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
        raise InvalidOperationError("all new files of a DataReplacement must hold the same fields")
    left = set(wanted)
    for message in draft.message.fragments:
        file = wanted.get(message.id)
        if file is not None:
            _replace_file(message, file)
            if draft.stable_row_ids:
                stamp_updated((message,), draft.version)
            left.discard(message.id)
    draft._want_none_left(left)
    draft.uncover(wanted, {field for file in wanted.values() for field in file.fields})


def _replace_file(message: table_pb2.DataFragment, new: DataFile) -> None:
    held: set[int] = set()
    for old in message.files:
        if tuple(old.fields) == new.fields and (old.file_major_version, old.file_minor_version) == (
            new.major,
            new.minor,
        ):
            old.CopyFrom(new.to_proto())
            return
        held.update(old.fields)
    if held & set(new.fields):
        raise InvalidOperationError(
            f"fragment {message.id} has no data file with exactly the fields {list(new.fields)} to replace"
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
                raise InvalidOperationError(f"there is a base path like {base.name or base.path!r} already")
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
    once.note(message, transaction)
    message.writer_version.CopyFrom(writer_version())
    # Clustering and the like are dropped by every writer; only sections that are packed anew get offsets.
    message.ClearField("index_section")
    message.ClearField("transaction_section")
    message.ClearField("transaction_section_deprecated")
    covering = message.reader_feature_flags & flags.COVERING_INDICES and draft.index_section is not None
    mixed = flags.MIXED_FILE_VERSIONS if draft.mixed_versions else 0
    message.reader_feature_flags, message.writer_feature_flags = flags.compute_for(
        message,
        has_deletions=draft.has_deletions,
        stable_row_ids=draft.stable_row_ids,
        indices=draft.indices() if covering else (),
        previous=(newest.reader_feature_flags | mixed, newest.writer_feature_flags | mixed),
    )


_LIBRARY = "lancetable"


def is_ours(manifest: table_pb2.Manifest) -> bool:
    """Whether this library made the version."""
    return manifest.writer_version.library == _LIBRARY


@cache
def writer_version() -> table_pb2.Manifest.WriterVersion:
    """Who writes: this library, by name and version."""
    try:
        version = metadata.version(_LIBRARY)
    except metadata.PackageNotFoundError:
        version = "0.0.0"
    return table_pb2.Manifest.WriterVersion(library=_LIBRARY, version=version)
