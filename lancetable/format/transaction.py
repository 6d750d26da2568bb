"""Transactions: the change that one commit makes to a table, with one class per operation.

A transaction is written before its version, so that concurrent commits can check for conflicts with it. Its new
fragments have id 0 until a commit assigns ids; only `Rewrite` has ids that were reserved before. An operation that
this library does not support is read as `UnknownOperation`, which conflicts with every other operation.

Source: protos/transaction.proto.
"""

from __future__ import annotations

import uuid as uuid_module
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, get_args

from lancetable.errors import CorruptFileError
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.index import IndexFile, IndexMetadata
from lancetable.format.manifest import BasePath
from lancetable.format.protobuf_conversion import ProtoMessage, field_values, parse_message, register
from lancetable.format.schema import Schema
from lancetable.proto import transaction_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

_Proto: TypeAlias = transaction_pb2.Transaction
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


# ------------------------------------------------------------------------------------------------------- operations


class _SchemaOperation(ProtoMessage):
    """Base of the operations with a schema, which is stored as a list of fields and, except by `Project`, metadata."""

    __slots__ = ()
    renamed: ClassVar[Mapping[str, str]] = {"schema": "", "config_upsert": "config_upsert_values"}
    schema: Schema

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert from protobuf. Raises CorruptFileError if the schema or a fragment violates the format."""
        schema = Schema.from_protos(message.schema, getattr(message, "schema_metadata", {}))
        return cls(schema=schema, **field_values(cls, message))  # type: ignore[call-arg]  # subclasses are dataclasses

    def to_proto(self) -> Any:
        """Convert to protobuf."""
        message = super().to_proto()
        message.schema.extend(self.schema.to_protos())
        if hasattr(message, "schema_metadata"):
            message.schema_metadata.update(self.schema.metadata)
        return message


@dataclass(frozen=True, slots=True)
class Append(ProtoMessage):
    """New fragments."""

    message_class: ClassVar = _Proto.Append
    fragments: tuple[Fragment, ...] = ()


@dataclass(frozen=True, slots=True)
class Delete(ProtoMessage):
    """Fragments with new deletion files, and ids of fragments that are removed because no live row is left."""

    message_class: ClassVar = _Proto.Delete
    updated_fragments: tuple[Fragment, ...] = ()
    deleted_fragment_ids: tuple[int, ...] = ()
    predicate: str = ""  # as the user passed it; informational


@dataclass(frozen=True, slots=True)
class Overwrite(_SchemaOperation):
    """Replacement of schema and fragments; with read version 0, creation of the table."""

    message_class: ClassVar = _Proto.Overwrite
    fragments: tuple[Fragment, ...]
    schema: Schema
    config_upsert: Mapping[str, str] = field(default_factory=dict, hash=False)
    initial_bases: tuple[BasePath, ...] = ()


@dataclass(frozen=True, slots=True)
class CreateIndex(ProtoMessage):
    """Replacement of index entries; without new entries, removal of an index."""

    message_class: ClassVar = _Proto.CreateIndex
    new_indices: tuple[IndexMetadata, ...] = ()
    removed_indices: tuple[IndexMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class RewriteGroup(ProtoMessage):
    """Old fragments and the new fragments that contain their live rows in the same order."""

    message_class: ClassVar = _Proto.Rewrite.RewriteGroup
    old_fragments: tuple[Fragment, ...]
    new_fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class RewrittenIndex(ProtoMessage):
    """An index segment that was rewritten because its rows moved. `details` is a serialized Any message."""

    message_class: ClassVar = _Proto.Rewrite.RewrittenIndex
    renamed: ClassVar = {
        "details": "new_index_details",
        "index_version": "new_index_version",
        "files": "new_index_files",
    }
    old_id: uuid_module.UUID
    new_id: uuid_module.UUID
    details: bytes | None = None
    index_version: int = 0
    files: tuple[IndexFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ReuseIndex:
    """New entry of the fragment reuse index, and the uuid of the entry that it replaces, or None."""

    entry: IndexMetadata
    replaces: uuid_module.UUID | None = None


@dataclass(frozen=True, slots=True)
class Rewrite(ProtoMessage):
    """Compaction: the same rows in other fragments.

    With `reuse_index`, which is not stored in the transaction, indexes are not rewritten, and their entries name the
    old fragments.
    """

    message_class: ClassVar = _Proto.Rewrite
    groups: tuple[RewriteGroup, ...] = ()
    rewritten_indices: tuple[RewrittenIndex, ...] = ()
    reuse_index: ReuseIndex | None = None

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert from protobuf. Raises CorruptFileError if a fragment or uuid violates the format."""
        values = field_values(cls, message)
        if not message.groups and (message.old_fragments or message.new_fragments):
            # Early writers stored a single group directly in the operation, in fields of the same names.
            values["groups"] = (RewriteGroup.from_proto(message),)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Merge(_SchemaOperation):
    """Change of the schema, with the complete list of resulting fragments."""

    message_class: ClassVar = _Proto.Merge
    fragments: tuple[Fragment, ...]
    schema: Schema
    preserves_nullability: bool = False


@dataclass(frozen=True, slots=True)
class Project(_SchemaOperation):
    """Change of the schema without change of data: dropped or renamed columns. The schema has no metadata here."""

    message_class: ClassVar = _Proto.Project
    schema: Schema
    preserves_nullability: bool = False


@dataclass(frozen=True, slots=True)
class Restore(ProtoMessage):
    """A new version with the contents of an old one."""

    message_class: ClassVar = _Proto.Restore
    version: int


@dataclass(frozen=True, slots=True)
class ReserveFragments(ProtoMessage):
    """Reservation of fragment ids for a later `Rewrite`."""

    message_class: ClassVar = _Proto.ReserveFragments
    num_fragments: int


class UpdateMode(Enum):
    """Write strategy of an update: move rows to new fragments, or write new columns for existing fragments."""

    REWRITE_ROWS = 0
    REWRITE_COLUMNS = 1


def _parse_update_mode(number: int) -> UpdateMode:
    if number not in (0, 1):
        raise CorruptFileError(f"unknown update mode {number}")
    return UpdateMode(number)


register(_Proto.UpdateMode.DESCRIPTOR, _parse_update_mode, lambda mode: mode.value)
register(
    _Proto.U32Values.DESCRIPTOR, lambda message: tuple(message.values), lambda values: _Proto.U32Values(values=values)
)


@dataclass(frozen=True, slots=True)
class Update(ProtoMessage):
    """Changed rows, written by update and merge-insert.

    `compacted_sstables` and `inserted_rows` are serialized messages, preserved as they are. `updated_offset_bitmaps`
    maps fragment ids to portable roaring bitmaps of the row offsets whose columns were rewritten; `updated_offsets` is
    its older form, with plain lists.
    """

    message_class: ClassVar = _Proto.Update
    renamed: ClassVar = {
        "mode": "update_mode",
        "updated_offsets": "updated_fragment_offsets",
        "updated_offset_bitmaps": "updated_fragment_offset_bitmaps",
    }
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


@dataclass(frozen=True, slots=True)
class UpdateMap(ProtoMessage):
    """Changes to a map of strings. The value None deletes a key; `replace` removes all existing entries first."""

    message_class: ClassVar = _Proto.UpdateMap
    entries: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    replace: bool = False

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert from protobuf."""
        entries = {entry.key: entry.value if entry.HasField("value") else None for entry in message.update_entries}
        return cls(entries, message.replace)

    def to_proto(self) -> Any:
        """Convert to protobuf."""
        entries = [_Proto.UpdateMapEntry(key=key, value=value) for key, value in self.entries.items()]
        return _Proto.UpdateMap(update_entries=entries, replace=self.replace)


@dataclass(frozen=True, slots=True)
class UpdateConfig(ProtoMessage):
    """Changes to the config and the metadata maps; None leaves a map unchanged.

    Keys of `field_metadata` are field ids.
    """

    message_class: ClassVar = _Proto.UpdateConfig
    renamed: ClassVar = {
        name: f"{name}_updates" for name in ("config", "table_metadata", "schema_metadata", "field_metadata")
    }
    config: UpdateMap | None = None
    table_metadata: UpdateMap | None = None
    schema_metadata: UpdateMap | None = None
    field_metadata: Mapping[int, UpdateMap] = field(default_factory=dict, hash=False)

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert from protobuf."""
        values = field_values(cls, message)
        # The older form stores upserts and deletions for the config, and complete new maps for the others.
        if values["config"] is None and (message.upsert_values or message.delete_keys):
            values["config"] = UpdateMap({**message.upsert_values, **dict.fromkeys(message.delete_keys)})
        if values["schema_metadata"] is None and message.schema_metadata:
            values["schema_metadata"] = UpdateMap(dict(message.schema_metadata), replace=True)
        for key, update in message.field_metadata.items():
            values["field_metadata"].setdefault(key, UpdateMap(dict(update.metadata), replace=True))
        return cls(**values)


@dataclass(frozen=True, slots=True)
class DataReplacementGroup(ProtoMessage):
    """The new data file of one fragment."""

    message_class: ClassVar = _Proto.DataReplacementGroup
    fragment_id: int
    new_file: DataFile


@dataclass(frozen=True, slots=True)
class DataReplacement(ProtoMessage):
    """Replacement of data files by files with the same columns."""

    message_class: ClassVar = _Proto.DataReplacement
    replacements: tuple[DataReplacementGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class UpdateMemWalState(ProtoMessage):
    """State of a write-ahead log that is stored elsewhere, preserved as it is."""

    message_class: ClassVar = _Proto.UpdateMemWalState
    raw: bytes = b""

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """Convert from protobuf."""
        return cls(message.SerializeToString())

    def to_proto(self) -> Any:
        """Convert to protobuf."""
        return _Proto.UpdateMemWalState.FromString(self.raw)


@dataclass(frozen=True, slots=True)
class Clone(ProtoMessage):
    """The first version of a clone or branch."""

    message_class: ClassVar = _Proto.Clone
    is_shallow: bool
    ref_version: int
    ref_path: str
    ref_name: str | None = None
    branch_name: str | None = None


@dataclass(frozen=True, slots=True)
class UpdateBases(ProtoMessage):
    """New base paths; id 0 means that the commit assigns an id."""

    message_class: ClassVar = _Proto.UpdateBases
    new_bases: tuple[BasePath, ...] = ()


@dataclass(frozen=True, slots=True)
class OverlayGroup(ProtoMessage):
    """Overlays of one fragment, as serialized DataOverlayFile messages."""

    message_class: ClassVar = _Proto.DataOverlayGroup
    fragment_id: int
    overlays: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DataOverlay(ProtoMessage):
    """Overlay files with single values for fragments. This library preserves them, but cannot apply them."""

    message_class: ClassVar = _Proto.DataOverlay
    groups: tuple[OverlayGroup, ...] = ()


@dataclass(frozen=True, slots=True)
class UnknownOperation:
    """An operation that this library does not support. `raw` is the serialized transaction."""

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

# Case of the oneof `operation` -> class, and the reverse.
OPERATIONS: Final[Mapping[str, Any]] = {
    arm.name: operation
    for arm in _Proto.DESCRIPTOR.oneofs_by_name["operation"].fields
    for operation in get_args(Operation)
    if operation is not UnknownOperation and operation.message_class.DESCRIPTOR is arm.message_type
}
_ONEOF_CASES: Final[Mapping[Any, str]] = {operation: oneof_case for oneof_case, operation in OPERATIONS.items()}


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
        return cls.from_proto(parse_message(transaction_pb2.Transaction, data, path))

    def to_proto(self) -> _Proto:
        """Convert to protobuf."""
        operation = self.operation
        if isinstance(operation, UnknownOperation):
            message = transaction_pb2.Transaction.FromString(operation.raw)
            message.ClearField("transaction_properties")
        else:
            message = transaction_pb2.Transaction(**{_ONEOF_CASES[type(operation)]: operation.to_proto()})
        message.read_version = self.read_version
        message.uuid = self.uuid
        message.tag = self.tag
        message.transaction_properties.update(self.properties)
        return message

    def to_bytes(self) -> bytes:
        """Serialize the transaction."""
        return self.to_proto().SerializeToString()
