"""Transactions: the change that one commit makes to a table, with one class per operation.

A transaction is written before its version, so that concurrent commits can check for conflicts with it. Its new
fragments have id 0 until a commit assigns ids; only `Rewrite` has ids that were reserved before. An operation that
this library does not support is read as `UnknownOperation`, which conflicts with every other operation.

Source: protos/transaction.proto.
"""

from __future__ import annotations

import uuid as uuid_module
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias

from google.protobuf.message import DecodeError

from lancetable.errors import CorruptFileError
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.index import IndexFile, IndexMetadata, parse_uuid
from lancetable.format.manifest import BasePath
from lancetable.format.schema import Schema
from lancetable.proto import table_pb2, transaction_pb2

__all__ = [
    "COMMIT_MESSAGE_KEY",
    "OPERATIONS",
    "Append",
    "Clone",
    "CreateIndex",
    "DataOverlay",
    "DataReplacement",
    "DataReplacementGroup",
    "Delete",
    "Merge",
    "Operation",
    "OverlayGroup",
    "Overwrite",
    "Project",
    "ReserveFragments",
    "Restore",
    "Rewrite",
    "RewriteGroup",
    "RewrittenIndex",
    "Transaction",
    "UnknownOperation",
    "Update",
    "UpdateBases",
    "UpdateConfig",
    "UpdateMap",
    "UpdateMemWalState",
    "UpdateMode",
]

COMMIT_MESSAGE_KEY: Final = "__lance_commit_message"

_Proto: TypeAlias = transaction_pb2.Transaction
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


def _fragments(messages: Iterable[table_pb2.DataFragment]) -> tuple[Fragment, ...]:
    return tuple([Fragment.from_proto(message) for message in messages])


def _fragment_protos(fragments: Iterable[Fragment]) -> list[table_pb2.DataFragment]:
    return [fragment.to_proto() for fragment in fragments]


# ------------------------------------------------------------------------------------------------------- operations


@dataclass(frozen=True, slots=True)
class Append:
    """New fragments."""

    oneof_case: ClassVar[str] = "append"
    fragments: tuple[Fragment, ...] = ()

    @classmethod
    def from_proto(cls, message: _Proto.Append) -> Append:
        """Convert from protobuf."""
        return cls(_fragments(message.fragments))

    def to_proto(self) -> _Proto.Append:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.Append(fragments=_fragment_protos(self.fragments))


@dataclass(frozen=True, slots=True)
class Delete:
    """Fragments with new deletion files, and ids of fragments that are removed because no live row is left."""

    oneof_case: ClassVar[str] = "delete"
    updated_fragments: tuple[Fragment, ...] = ()
    deleted_fragment_ids: tuple[int, ...] = ()
    predicate: str = ""  # as the user passed it; informational

    @classmethod
    def from_proto(cls, message: _Proto.Delete) -> Delete:
        """Convert from protobuf."""
        return cls(_fragments(message.updated_fragments), tuple(message.deleted_fragment_ids), message.predicate)

    def to_proto(self) -> _Proto.Delete:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.Delete(
            updated_fragments=_fragment_protos(self.updated_fragments),
            deleted_fragment_ids=self.deleted_fragment_ids,
            predicate=self.predicate,
        )


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Replacement of schema and fragments; with read version 0, creation of the table."""

    oneof_case: ClassVar[str] = "overwrite"
    fragments: tuple[Fragment, ...]
    schema: Schema
    config_upsert: Mapping[str, str] = field(default_factory=dict, hash=False)
    initial_bases: tuple[BasePath, ...] = ()

    @classmethod
    def from_proto(cls, message: _Proto.Overwrite) -> Overwrite:
        """Convert from protobuf."""
        return cls(
            _fragments(message.fragments),
            Schema.from_protos(message.schema, message.schema_metadata),
            dict(message.config_upsert_values),
            tuple(BasePath.from_proto(base) for base in message.initial_bases),
        )

    def to_proto(self) -> _Proto.Overwrite:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.Overwrite(
            fragments=_fragment_protos(self.fragments),
            schema=self.schema.to_protos(),
            schema_metadata=self.schema.metadata,
            config_upsert_values=self.config_upsert,
            initial_bases=[base.to_proto() for base in self.initial_bases],
        )


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """Replacement of index entries; without new entries, removal of an index."""

    oneof_case: ClassVar[str] = "create_index"
    new_indices: tuple[IndexMetadata, ...] = ()
    removed_indices: tuple[IndexMetadata, ...] = ()

    @classmethod
    def from_proto(cls, message: _Proto.CreateIndex) -> CreateIndex:
        """Convert from protobuf."""
        return cls(
            tuple(IndexMetadata.from_proto(index) for index in message.new_indices),
            tuple(IndexMetadata.from_proto(index) for index in message.removed_indices),
        )

    def to_proto(self) -> _Proto.CreateIndex:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.CreateIndex(
            new_indices=[index.to_proto() for index in self.new_indices],
            removed_indices=[index.to_proto() for index in self.removed_indices],
        )


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Old fragments and the new fragments that contain their live rows in the same order."""

    old_fragments: tuple[Fragment, ...]
    new_fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class RewrittenIndex:
    """An index segment that was rewritten because its rows moved. `details` is a serialized Any message."""

    old_id: uuid_module.UUID
    new_id: uuid_module.UUID
    details: bytes | None = None
    index_version: int = 0
    files: tuple[IndexFile, ...] = ()

    @classmethod
    def from_proto(cls, message: _Proto.Rewrite.RewrittenIndex) -> RewrittenIndex:
        """Convert from protobuf. Raises CorruptFileError if a uuid does not have 16 bytes."""
        return cls(
            parse_uuid(message.old_id),
            parse_uuid(message.new_id),
            message.new_index_details.SerializeToString() if message.HasField("new_index_details") else None,
            message.new_index_version,
            tuple(IndexFile(file.path, file.size_bytes) for file in message.new_index_files),
        )

    def to_proto(self) -> _Proto.Rewrite.RewrittenIndex:
        """Convert to protobuf."""
        message = transaction_pb2.Transaction.Rewrite.RewrittenIndex(
            old_id=table_pb2.UUID(uuid=self.old_id.bytes),
            new_id=table_pb2.UUID(uuid=self.new_id.bytes),
            new_index_version=self.index_version,
            new_index_files=[table_pb2.IndexFile(path=file.path, size_bytes=file.size_bytes) for file in self.files],
        )
        if self.details is not None:
            message.new_index_details.SetInParent()
            message.new_index_details.ParseFromString(self.details)
        return message


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Compaction: the same rows in other fragments."""

    oneof_case: ClassVar[str] = "rewrite"
    groups: tuple[RewriteGroup, ...] = ()
    rewritten_indices: tuple[RewrittenIndex, ...] = ()

    @classmethod
    def from_proto(cls, message: _Proto.Rewrite) -> Rewrite:
        """Convert from protobuf."""
        groups = [
            RewriteGroup(_fragments(group.old_fragments), _fragments(group.new_fragments)) for group in message.groups
        ]
        if not groups and (message.old_fragments or message.new_fragments):
            # Early writers stored a single group directly in the operation.
            groups = [RewriteGroup(_fragments(message.old_fragments), _fragments(message.new_fragments))]
        return cls(tuple(groups), tuple(RewrittenIndex.from_proto(index) for index in message.rewritten_indices))

    def to_proto(self) -> _Proto.Rewrite:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.Rewrite(
            groups=[
                transaction_pb2.Transaction.Rewrite.RewriteGroup(
                    old_fragments=_fragment_protos(group.old_fragments),
                    new_fragments=_fragment_protos(group.new_fragments),
                )
                for group in self.groups
            ],
            rewritten_indices=[index.to_proto() for index in self.rewritten_indices],
        )


@dataclass(frozen=True, slots=True)
class Merge:
    """Change of the schema, with the complete list of resulting fragments."""

    oneof_case: ClassVar[str] = "merge"
    fragments: tuple[Fragment, ...]
    schema: Schema
    preserves_nullability: bool = False

    @classmethod
    def from_proto(cls, message: _Proto.Merge) -> Merge:
        """Convert from protobuf."""
        return cls(
            _fragments(message.fragments),
            Schema.from_protos(message.schema, message.schema_metadata),
            message.preserves_nullability,
        )

    def to_proto(self) -> _Proto.Merge:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.Merge(
            fragments=_fragment_protos(self.fragments),
            schema=self.schema.to_protos(),
            schema_metadata=self.schema.metadata,
            preserves_nullability=self.preserves_nullability,
        )


@dataclass(frozen=True, slots=True)
class Project:
    """Change of the schema without change of data: dropped or renamed columns. The schema has no metadata here."""

    oneof_case: ClassVar[str] = "project"
    schema: Schema
    preserves_nullability: bool = False

    @classmethod
    def from_proto(cls, message: _Proto.Project) -> Project:
        """Convert from protobuf."""
        return cls(Schema.from_protos(message.schema), message.preserves_nullability)

    def to_proto(self) -> _Proto.Project:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.Project(
            schema=self.schema.to_protos(), preserves_nullability=self.preserves_nullability
        )


@dataclass(frozen=True, slots=True)
class Restore:
    """A new version with the contents of an old one."""

    oneof_case: ClassVar[str] = "restore"
    version: int

    @classmethod
    def from_proto(cls, message: _Proto.Restore) -> Restore:
        """Convert from protobuf."""
        return cls(message.version)

    def to_proto(self) -> _Proto.Restore:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.Restore(version=self.version)


@dataclass(frozen=True, slots=True)
class ReserveFragments:
    """Reservation of fragment ids for a later `Rewrite`."""

    oneof_case: ClassVar[str] = "reserve_fragments"
    num_fragments: int

    @classmethod
    def from_proto(cls, message: _Proto.ReserveFragments) -> ReserveFragments:
        """Convert from protobuf."""
        return cls(message.num_fragments)

    def to_proto(self) -> _Proto.ReserveFragments:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.ReserveFragments(num_fragments=self.num_fragments)


class UpdateMode(Enum):
    """Write strategy of an update: move rows to new fragments, or write new columns for existing fragments."""

    REWRITE_ROWS = 0
    REWRITE_COLUMNS = 1


@dataclass(frozen=True, slots=True)
class Update:
    """Changed rows, written by update and merge-insert.

    `compacted_sstables` and `inserted_rows` are serialized messages, preserved as they are. `updated_offset_bitmaps`
    maps fragment ids to portable roaring bitmaps of the row offsets whose columns were rewritten; `updated_offsets` is
    its older form, with plain lists.
    """

    oneof_case: ClassVar[str] = "update"
    removed_fragment_ids: tuple[int, ...] = ()
    updated_fragments: tuple[Fragment, ...] = ()
    new_fragments: tuple[Fragment, ...] = ()
    fields_modified: tuple[int, ...] = ()
    compacted_sstables: tuple[bytes, ...] = ()
    fields_for_preserving_frag_bitmap: tuple[int, ...] = ()
    mode: UpdateMode = UpdateMode.REWRITE_ROWS
    inserted_rows: bytes | None = None
    updated_offsets: Mapping[int, tuple[int, ...]] = field(default_factory=dict, hash=False)
    updated_offset_bitmaps: Mapping[int, bytes] = field(default_factory=dict, hash=False)

    @classmethod
    def from_proto(cls, message: _Proto.Update) -> Update:
        """Convert from protobuf. Raises CorruptFileError if the update mode is unknown."""
        if message.update_mode not in (0, 1):
            raise CorruptFileError(f"unknown update mode {message.update_mode}", found=message.update_mode)
        return cls(
            tuple(message.removed_fragment_ids),
            _fragments(message.updated_fragments),
            _fragments(message.new_fragments),
            tuple(message.fields_modified),
            tuple(table.SerializeToString() for table in message.compacted_sstables),
            tuple(message.fields_for_preserving_frag_bitmap),
            UpdateMode(message.update_mode),
            message.inserted_rows.SerializeToString() if message.HasField("inserted_rows") else None,
            {key: tuple(offsets.values) for key, offsets in message.updated_fragment_offsets.items()},
            dict(message.updated_fragment_offset_bitmaps),
        )

    def to_proto(self) -> _Proto.Update:
        """Convert to protobuf."""
        kind = transaction_pb2.Transaction
        message = kind.Update(
            removed_fragment_ids=self.removed_fragment_ids,
            updated_fragments=_fragment_protos(self.updated_fragments),
            new_fragments=_fragment_protos(self.new_fragments),
            fields_modified=self.fields_modified,
            compacted_sstables=[kind.CompactedSsTable.FromString(table) for table in self.compacted_sstables],
            fields_for_preserving_frag_bitmap=self.fields_for_preserving_frag_bitmap,
            update_mode=kind.UpdateMode.Name(self.mode.value),
            updated_fragment_offset_bitmaps=self.updated_offset_bitmaps,
        )
        if self.inserted_rows is not None:
            message.inserted_rows.SetInParent()
            message.inserted_rows.ParseFromString(self.inserted_rows)
        for fragment_id, offsets in self.updated_offsets.items():
            message.updated_fragment_offsets[fragment_id].values.extend(offsets)
        return message


@dataclass(frozen=True, slots=True)
class UpdateMap:
    """Changes to a map of strings. The value None deletes a key; `replace` removes all existing entries first."""

    entries: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    replace: bool = False

    @classmethod
    def from_proto(cls, message: _Proto.UpdateMap) -> UpdateMap:
        """Convert from protobuf."""
        entries = {entry.key: entry.value if entry.HasField("value") else None for entry in message.update_entries}
        return cls(entries, message.replace)

    def to_proto(self) -> _Proto.UpdateMap:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.UpdateMap(
            update_entries=[
                transaction_pb2.Transaction.UpdateMapEntry(key=key, value=value) for key, value in self.entries.items()
            ],
            replace=self.replace,
        )

    def apply(self, old: Mapping[str, str]) -> dict[str, str]:
        """Return the changed map."""
        new = {} if self.replace else dict(old)
        for key, value in self.entries.items():
            if value is None:
                new.pop(key, None)
            else:
                new[key] = value
        return new


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Changes to the config and the metadata maps; None leaves a map unchanged.

    Keys of `field_metadata` are field ids.
    """

    oneof_case: ClassVar[str] = "update_config"
    config: UpdateMap | None = None
    table_metadata: UpdateMap | None = None
    schema_metadata: UpdateMap | None = None
    field_metadata: Mapping[int, UpdateMap] = field(default_factory=dict, hash=False)

    @classmethod
    def from_proto(cls, message: _Proto.UpdateConfig) -> UpdateConfig:
        """Convert from protobuf."""
        config = _update_map(message, "config_updates")
        schema_metadata = _update_map(message, "schema_metadata_updates")
        field_metadata = {key: UpdateMap.from_proto(value) for key, value in message.field_metadata_updates.items()}
        # The older form stores upserts and deletions for the config, and complete new maps for the others.
        if config is None and (message.upsert_values or message.delete_keys):
            config = UpdateMap({**message.upsert_values, **dict.fromkeys(message.delete_keys)})
        if schema_metadata is None and message.schema_metadata:
            schema_metadata = UpdateMap(dict(message.schema_metadata), replace=True)
        for key, update in message.field_metadata.items():
            field_metadata.setdefault(key, UpdateMap(dict(update.metadata), replace=True))
        return cls(config, _update_map(message, "table_metadata_updates"), schema_metadata, field_metadata)

    def to_proto(self) -> _Proto.UpdateConfig:
        """Convert to protobuf."""
        message = transaction_pb2.Transaction.UpdateConfig(
            config_updates=None if self.config is None else self.config.to_proto(),
            table_metadata_updates=None if self.table_metadata is None else self.table_metadata.to_proto(),
            schema_metadata_updates=None if self.schema_metadata is None else self.schema_metadata.to_proto(),
        )
        for key, update in self.field_metadata.items():
            message.field_metadata_updates[key].CopyFrom(update.to_proto())
        return message


def _update_map(message: _Proto.UpdateConfig, name: Any) -> UpdateMap | None:
    return UpdateMap.from_proto(getattr(message, name)) if message.HasField(name) else None


@dataclass(frozen=True, slots=True)
class DataReplacementGroup:
    """The new data file of one fragment."""

    fragment_id: int
    new_file: DataFile


@dataclass(frozen=True, slots=True)
class DataReplacement:
    """Replacement of data files by files with the same columns."""

    oneof_case: ClassVar[str] = "data_replacement"
    replacements: tuple[DataReplacementGroup, ...] = ()

    @classmethod
    def from_proto(cls, message: _Proto.DataReplacement) -> DataReplacement:
        """Convert from protobuf."""
        return cls(
            tuple(
                DataReplacementGroup(group.fragment_id, DataFile.from_proto(group.new_file))
                for group in message.replacements
            )
        )

    def to_proto(self) -> _Proto.DataReplacement:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.DataReplacement(
            replacements=[
                transaction_pb2.Transaction.DataReplacementGroup(
                    fragment_id=group.fragment_id, new_file=group.new_file.to_proto()
                )
                for group in self.replacements
            ]
        )


@dataclass(frozen=True, slots=True)
class UpdateMemWalState:
    """State of a write-ahead log that is stored elsewhere, preserved as it is."""

    oneof_case: ClassVar[str] = "update_mem_wal_state"
    raw: bytes = b""

    @classmethod
    def from_proto(cls, message: _Proto.UpdateMemWalState) -> UpdateMemWalState:
        """Convert from protobuf."""
        return cls(message.SerializeToString())

    def to_proto(self) -> _Proto.UpdateMemWalState:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.UpdateMemWalState.FromString(self.raw)


@dataclass(frozen=True, slots=True)
class Clone:
    """The first version of a clone or branch."""

    oneof_case: ClassVar[str] = "clone"
    is_shallow: bool
    ref_version: int
    ref_path: str
    ref_name: str | None = None
    branch_name: str | None = None

    @classmethod
    def from_proto(cls, message: _Proto.Clone) -> Clone:
        """Convert from protobuf."""
        return cls(
            message.is_shallow,
            message.ref_version,
            message.ref_path,
            message.ref_name if message.HasField("ref_name") else None,
            message.branch_name if message.HasField("branch_name") else None,
        )

    def to_proto(self) -> _Proto.Clone:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.Clone(
            is_shallow=self.is_shallow,
            ref_version=self.ref_version,
            ref_path=self.ref_path,
            ref_name=self.ref_name,
            branch_name=self.branch_name,
        )


@dataclass(frozen=True, slots=True)
class UpdateBases:
    """New base paths; id 0 means that the commit assigns an id."""

    oneof_case: ClassVar[str] = "update_bases"
    new_bases: tuple[BasePath, ...] = ()

    @classmethod
    def from_proto(cls, message: _Proto.UpdateBases) -> UpdateBases:
        """Convert from protobuf."""
        return cls(tuple(BasePath.from_proto(base) for base in message.new_bases))

    def to_proto(self) -> _Proto.UpdateBases:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.UpdateBases(new_bases=[base.to_proto() for base in self.new_bases])


@dataclass(frozen=True, slots=True)
class OverlayGroup:
    """Overlays of one fragment, as serialized DataOverlayFile messages."""

    fragment_id: int
    overlays: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DataOverlay:
    """Overlay files with single values for fragments. They are preserved, but not applied."""

    oneof_case: ClassVar[str] = "data_overlay"
    groups: tuple[OverlayGroup, ...] = ()

    @classmethod
    def from_proto(cls, message: _Proto.DataOverlay) -> DataOverlay:
        """Convert from protobuf."""
        return cls(
            tuple(
                OverlayGroup(group.fragment_id, tuple(overlay.SerializeToString() for overlay in group.overlays))
                for group in message.groups
            )
        )

    def to_proto(self) -> _Proto.DataOverlay:
        """Convert to protobuf."""
        return transaction_pb2.Transaction.DataOverlay(
            groups=[
                transaction_pb2.Transaction.DataOverlayGroup(
                    fragment_id=group.fragment_id,
                    overlays=[table_pb2.DataOverlayFile.FromString(overlay) for overlay in group.overlays],
                )
                for group in self.groups
            ]
        )


@dataclass(frozen=True, slots=True)
class UnknownOperation:
    """An operation that this library does not support. `raw` is the serialized transaction."""

    oneof_case: ClassVar[str] = ""
    raw: bytes = field(default=b"", repr=False)


Operation: TypeAlias = (
    Append
    | Clone
    | CreateIndex
    | DataOverlay
    | DataReplacement
    | Delete
    | Merge
    | Overwrite
    | Project
    | ReserveFragments
    | Restore
    | Rewrite
    | UnknownOperation
    | Update
    | UpdateBases
    | UpdateConfig
    | UpdateMemWalState
)

# Case of the oneof `operation` -> class.
OPERATIONS: Final[Mapping[str, Any]] = {
    kind.oneof_case: kind
    for kind in (
        Append,
        Clone,
        CreateIndex,
        DataOverlay,
        DataReplacement,
        Delete,
        Merge,
        Overwrite,
        Project,
        ReserveFragments,
        Restore,
        Rewrite,
        Update,
        UpdateBases,
        UpdateConfig,
        UpdateMemWalState,
    )
}


# ------------------------------------------------------------------------------------------------------ transaction


@dataclass(frozen=True, slots=True)
class Transaction:
    """One commit. `read_version` is the version that it was prepared from, 0 for a new table; `uuid` has hyphens."""

    read_version: int
    uuid: str
    operation: Operation
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def create(
        cls, read_version: int, operation: Operation, *, tag: str = "", properties: Mapping[str, str] = _NOTHING
    ) -> Transaction:
        """Return a transaction with a new uuid."""
        return cls(read_version, str(uuid_module.uuid4()), operation, tag, dict(properties))

    @property
    def commit_message(self) -> str | None:
        """The commit message in the properties; None if there is none."""
        return self.properties.get(COMMIT_MESSAGE_KEY)

    @classmethod
    def from_proto(cls, message: _Proto) -> Transaction:
        """Convert from protobuf.

        Raises CorruptFileError for contents that violate the format, and UnsupportedFeatureError for contents of a
        newer format.
        """
        oneof_case = message.WhichOneof("operation")
        operation: Operation
        if oneof_case is None:
            operation = UnknownOperation(message.SerializeToString())
        else:
            operation = OPERATIONS[oneof_case].from_proto(getattr(message, oneof_case))
        properties = dict(message.transaction_properties) if message.transaction_properties else {}
        return cls(message.read_version, message.uuid, operation, message.tag, properties)

    @classmethod
    def from_bytes(cls, data: bytes | memoryview, path: str | None = None) -> Transaction:
        """Parse a transaction.

        Raises CorruptFileError, with `path`, if the bytes are malformed; else as `from_proto`.
        """
        try:
            message = transaction_pb2.Transaction.FromString(bytes(data))
        except DecodeError as error:
            raise CorruptFileError(f"malformed transaction: {path or 'unknown path'}", path=path) from error
        return cls.from_proto(message)

    def to_proto(self) -> _Proto:
        """Convert to protobuf."""
        operation = self.operation
        if isinstance(operation, UnknownOperation):
            message = transaction_pb2.Transaction.FromString(operation.raw)
            message.ClearField("transaction_properties")
        else:
            message = transaction_pb2.Transaction(**{operation.oneof_case: operation.to_proto()})  # type: ignore[arg-type]
            getattr(message, operation.oneof_case).SetInParent()
        message.read_version = self.read_version
        message.uuid = self.uuid
        message.tag = self.tag
        message.transaction_properties.update(self.properties)
        return message

    def to_bytes(self) -> bytes:
        """Serialize the transaction."""
        return self.to_proto().SerializeToString()
