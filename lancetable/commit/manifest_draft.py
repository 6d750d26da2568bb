"""The manifest under construction, which the operation of a commit changes.

Fragments that the operation does not change are copied as messages and never parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata

import numpy as np
import pyroaring

from lancetable.commit import index_coverage
from lancetable.commit.assign_ids import (
    assign_row_ids,
    fragment_ids,
    number_fragments,
    stamp_moved,
    stamp_new,
    stamp_rows,
    stamp_updated,
    used_fragment_ids,
)
from lancetable.errors import InvalidOperationError, RetryableCommitConflictError
from lancetable.file.column_mapping import column_of, is_single_column
from lancetable.format import feature_flags
from lancetable.format.fragment import TOMBSTONE, Fragment
from lancetable.format.index import index_messages
from lancetable.format.manifest import Manifest
from lancetable.format.roaring import parse_roaring
from lancetable.format.schema import Schema
from lancetable.format.transaction import ReuseIndex
from lancetable.format.version import FileVersion
from lancetable.proto import table_pb2

_LIBRARY = "lancetable"


@dataclass(frozen=True, slots=True)
class ManifestParts:
    """Parts of a manifest file: the message, the serialized index section, and the dictionary values of format 0.1."""

    message: table_pb2.Manifest
    index_section: bytes | None
    dictionary_prefix: bytes = b""


@dataclass(slots=True)
class ManifestDraft:
    """Manifest under construction."""

    message: table_pb2.Manifest
    index_section: bytes | None
    version: int
    restored: ManifestParts | None
    file_version: FileVersion | None
    mixed_versions: bool = False
    new_deletions: bool = False
    coverage_changed: bool = False
    trusts_flags: bool = field(init=False)

    def __post_init__(self) -> None:
        self.trusts_flags = is_own_manifest(self.message)

    @property
    def stable_row_ids(self) -> bool:
        return bool(self.message.reader_feature_flags & feature_flags.STABLE_ROW_IDS)

    def add(self, fragments: Iterable[Fragment]) -> None:
        """Append fragments of new rows. Fragments with id 0 get the next ids."""
        messages = self._numbered(fragments)
        if self.stable_row_ids:
            assign_row_ids(self.message, messages)
            stamp_new(messages, self.version)
        self._add(messages)

    def add_moved(self, fragments: Iterable[Fragment], sources: Sequence[table_pb2.DataFragment]) -> list[int]:
        """Append fragments whose first rows may have been moved from other fragments.

        The fragments contain the row ids of moved rows. `sources` are the records of the other fragments before this
        commit. Returns the ids of the new fragments that contain only moved rows with stable row ids.
        """
        messages = self._numbered(fragments)
        num_moved = [0] * len(messages)
        if self.stable_row_ids:
            num_moved = assign_row_ids(self.message, messages)
            stamp_moved(messages, num_moved, sources, self.version)
        self._add(messages)
        return [message.id for message, count in zip(messages, num_moved) if count == message.physical_rows]

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
        required = self.field_ids() if Manifest(self.message).file_version.is_legacy else set()
        for message in messages:
            for file in message.files:
                if not file.fields:
                    raise InvalidOperationError(
                        f"{file.path}: the data file has no fields; leave it out of the fragment"
                    )
                if not parents.isdisjoint(file.fields):
                    self._check_parents(file)
            if required:
                missing = required.difference(*(file.fields for file in message.files))
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
        if self.trusts_flags and not self.message.reader_feature_flags & feature_flags.DELETIONS:
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
        ids = set(fragment_ids)
        records = [message for message in self.message.fragments if message.id in ids]
        return list(table_pb2.Manifest(fragments=records).fragments)

    def replace(self, fragments: Iterable[Fragment]) -> None:
        """Replace the records with the same ids. Raises RetryableCommitConflictError if an id does not exist."""
        replacements = {fragment.id: fragment for fragment in fragments}
        if not replacements:
            return
        live = self.field_ids()
        present = self.message.fragments
        positions = {fragment_id: index for index, fragment_id in enumerate(fragment_ids(self.message).tolist())}
        self.check_none_missing(replacements.keys() - positions.keys())
        for fragment_id, fragment in replacements.items():
            message = present[positions[fragment_id]]
            message.CopyFrom(fragment.to_proto())
            self.check_files((message,))
            _drop_dead_files(message, live)
            self.record_deletions((message,))

    def remove(self, fragment_ids: Iterable[int]) -> None:
        """Remove fragments. Raises RetryableCommitConflictError if an id does not exist."""
        ids = set(fragment_ids)
        if not ids:
            return
        self.coverage_changed = True
        kept = [message for message in self.message.fragments if message.id not in ids]
        if len(self.message.fragments) - len(kept) != len(ids):
            self.check_none_missing(ids - {message.id for message in self.message.fragments})
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
        self.message.schema_metadata.update(metadata)

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
            self.coverage_changed = True
            self.set_indices(after)

    def uncover(self, fragment_ids: Iterable[int], field_ids: Iterable[int]) -> None:
        """Remove fragments from the coverage of the indexes on `field_ids`."""
        if self.index_section is not None:
            self.edit_indices(index_coverage.uncover(fragment_ids, field_ids, Manifest(self.message).schema))

    def cover_moved_rows(self, fragment_ids: Sequence[int], sources: Collection[int], field_ids: Iterable[int]) -> None:
        """Add fragments to the coverage of the indexes that contain their rows; see `index_coverage`."""
        if self.index_section is not None and fragment_ids:
            schema = Manifest(self.message).schema
            self.edit_indices(index_coverage.cover_moved_rows(fragment_ids, sources, field_ids, schema))

    def set_reuse_index(self, new: ReuseIndex) -> None:
        """Replace the fragment reuse index. The coverage of other indexes is not changed.

        Raises RetryableCommitConflictError if another commit has changed the fragment reuse index.
        """
        indices = self.indices()
        present = next((index for index in indices if index.name == new.entry.name), None)
        if (None if present is None else present.uuid.uuid) != (None if new.replaces is None else new.replaces.bytes):
            raise RetryableCommitConflictError(
                "the fragment reuse index was changed by another commit; run the operation again on the newest version"
            )
        self.set_indices([*(index for index in indices if index is not present), new.entry.to_proto()])
        self.coverage_changed = False  # segments cover the old fragments until the next commit

    def remove_unusable_indices(self) -> None:
        """Remove indexes on fields that do not exist, and segments without live fragments if coverage has changed.

        Another library can commit an index on a column that was dropped at the same time, and fails to read it.
        """
        if self.index_section is None:
            return
        before, fields = self.indices(), self.field_ids()
        after = [index for index in before if fields.issuperset(index.fields)]
        if self.coverage_changed:
            live = pyroaring.BitMap(fragment_ids(self.message).tolist())
            after = index_coverage.without_empty_segments(after, live)
        if len(after) < len(before):
            self.set_indices(after)

    # --- row versions

    def stamp_rows(self, offset_bitmaps: Mapping[int, bytes]) -> None:
        """Set the last-updated version of rows that an Update rewrote in place.

        `offset_bitmaps` maps fragment ids to roaring bitmaps of row offsets.
        """
        for message in self.message.fragments:
            bitmap = offset_bitmaps.get(message.id)
            if bitmap is not None:
                num_rows = message.physical_rows
                offsets = parse_roaring(bitmap, "updated rows", max_count=num_rows)
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


def _drop_dead_files(message: table_pb2.DataFragment, live: set[int]) -> None:
    """Remove data files without a live field. Field ids below the tombstone are hidden columns, which are kept."""
    for position in range(len(message.files) - 1, -1, -1):
        fields = message.files[position].fields
        if not any(field in live or field < TOMBSTONE for field in fields):
            del message.files[position]


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
