"""Commits in the form of the public API: `LanceOperation.*` and `Transaction`.

Each class mirrors one of `lancetable.format.transaction` and converts to and from it. A test checks that the set is
complete.
"""

from __future__ import annotations

import uuid as uuid_module
import warnings
from abc import ABC
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf.any_pb2 import Any as Any_

from lancetable import scope
from lancetable.errors import InvalidInputError
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.manifest import BasePath
from lancetable.format.schema import Schema
from lancetable.fragment_metadata import DataFile, FragmentMetadata
from lancetable.index_metadata import Index, parse_uuid
from lancetable.schema import LanceSchema
from lancetable.types import DatasetBasePath

__all__ = ["LanceOperation", "Transaction"]


class LanceOperation:
    """The operations of a `Transaction`; see the individual classes."""

    class BaseOperation(ABC):  # noqa: B024  # common base class for type checks, as in pylance
        """Base of all operations."""

        def to_format(self) -> tx.Operation:
            """Return the frozen form that is committed. Raises UnsupportedFeatureError if there is none."""
            raise scope.unsupported("this operation", planned=False, name=type(self).__name__)

    @dataclass
    class Append(BaseOperation):
        """Add fragments to the table. The commit assigns their ids."""

        fragments: Iterable[FragmentMetadata]

        def __post_init__(self) -> None:
            self.fragments = fragment_list("fragments", self.fragments)

        def to_format(self) -> tx.Append:
            return tx.Append(to_fragments(self.fragments))

    @dataclass
    class Overwrite(BaseOperation):
        """Replace all fragments and the schema, or create the table if it does not exist.

        An Arrow schema is numbered from 0, like the columns of files that `write_fragments` writes with mode
        "overwrite". A
        `LanceSchema` contains its field ids.
        """

        new_schema: LanceSchema | pa.Schema
        fragments: Iterable[FragmentMetadata]
        initial_bases: list[DatasetBasePath] | None = None

        def __post_init__(self) -> None:
            self.fragments = fragment_list("fragments", self.fragments)

        def to_format(self) -> tx.Overwrite:
            bases = to_bases(self.initial_bases or [])
            return tx.Overwrite(to_fragments(self.fragments), to_schema(self.new_schema), initial_bases=bases)

    @dataclass
    class Delete(BaseOperation):
        """Update the deletion files of fragments and remove others; `predicate` is informational."""

        updated_fragments: Iterable[FragmentMetadata]
        deleted_fragment_ids: Iterable[int]
        predicate: str

        def __post_init__(self) -> None:
            self.updated_fragments = fragment_list("updated_fragments", self.updated_fragments)
            self.deleted_fragment_ids = list(self.deleted_fragment_ids)

        def to_format(self) -> tx.Delete:
            if not isinstance(self.predicate, str):
                raise TypeError(f"predicate must be a string, got {type(self.predicate).__name__}")
            return tx.Delete(to_fragments(self.updated_fragments), tuple(self.deleted_fragment_ids), self.predicate)

    @dataclass
    class Update(BaseOperation):
        """Rewrite rows: remove, change and add fragments, with the ids of the changed fields.

        `update_mode` is "rewrite_rows" or "rewrite_columns"; `updated_fragment_offsets` maps fragment ids to roaring
        bitmaps of
        the row offsets whose columns were rewritten.
        """

        removed_fragment_ids: list[int] = field(default_factory=list)
        updated_fragments: list[FragmentMetadata] = field(default_factory=list)
        new_fragments: list[FragmentMetadata] = field(default_factory=list)
        fields_modified: list[int] = field(default_factory=list)
        fields_for_preserving_frag_bitmap: list[int] = field(default_factory=list)
        update_mode: str = ""
        updated_fragment_offsets: dict[int, bytes] | None = None

        def __post_init__(self) -> None:
            self.updated_fragments = fragment_list("updated_fragments", self.updated_fragments)
            self.new_fragments = fragment_list("new_fragments", self.new_fragments)

        def to_format(self) -> tx.Update:
            name = (self.update_mode or "rewrite_rows").upper()
            if name not in tx.UpdateMode.__members__:
                raise InvalidInputError(
                    f"update_mode must be rewrite_rows or rewrite_columns, not {self.update_mode!r}"
                )
            return tx.Update(
                tuple(self.removed_fragment_ids),
                to_fragments(self.updated_fragments),
                to_fragments(self.new_fragments),
                tuple(self.fields_modified),
                fields_for_preserving_frag_bitmap=tuple(self.fields_for_preserving_frag_bitmap),
                mode=tx.UpdateMode[name],
                updated_offset_bitmaps=dict(self.updated_fragment_offsets or {}),
            )

    @dataclass
    class Merge(BaseOperation):
        """Change the schema together with the complete list of fragments."""

        fragments: Iterable[FragmentMetadata]
        schema: LanceSchema | pa.Schema
        preserves_nullability: bool = False

        def __post_init__(self) -> None:
            self.fragments = fragment_list("fragments", self.fragments)
            if isinstance(self.schema, pa.Schema):
                warnings.warn(
                    "a pyarrow.Schema in a Merge is deprecated, because it has no field ids; pass a LanceSchema",
                    DeprecationWarning,
                    stacklevel=3,
                )

        def to_format(self) -> tx.Merge:
            return tx.Merge(to_fragments(self.fragments), to_schema(self.schema), self.preserves_nullability)

    @dataclass
    class Project(BaseOperation):
        """Change only the schema: drop, rename or reorder columns."""

        schema: LanceSchema
        preserves_nullability: bool = False

        def to_format(self) -> tx.Project:
            return tx.Project(to_schema(self.schema), self.preserves_nullability)

    @dataclass
    class Restore(BaseOperation):
        """Restore an old version as the newest one."""

        version: int

        def to_format(self) -> tx.Restore:
            if isinstance(self.version, bool) or not hasattr(self.version, "__index__"):
                raise TypeError(f"version must be an integer, got {type(self.version).__name__}")
            return tx.Restore(int(self.version))

    @dataclass
    class RewriteGroup:
        """Old fragments, and the new fragments that contain the same live rows in the same order."""

        old_fragments: Iterable[FragmentMetadata]
        new_fragments: Iterable[FragmentMetadata]

        def __post_init__(self) -> None:
            self.old_fragments = fragment_list("old_fragments", self.old_fragments)
            self.new_fragments = fragment_list("new_fragments", self.new_fragments)

    @dataclass
    class RewrittenIndex:
        """An index segment that was rewritten along with its rows."""

        old_id: str
        new_id: str
        new_details_type_url: str
        new_details_value: bytes
        new_index_version: int

        def to_format(self) -> tx.RewrittenIndex:
            """Return the frozen form. Raises InvalidInputError for an invalid uuid."""
            details = Any_(type_url=self.new_details_type_url, value=self.new_details_value)
            return tx.RewrittenIndex(
                parse_uuid(self.old_id), parse_uuid(self.new_id), details.SerializeToString(), self.new_index_version
            )

        @classmethod
        def from_format(cls, index: tx.RewrittenIndex) -> LanceOperation.RewrittenIndex:
            """Return the public form of a frozen rewritten index."""
            details = Any_.FromString(index.details or b"")
            return cls(str(index.old_id), str(index.new_id), details.type_url, details.value, index.index_version)

    @dataclass
    class Rewrite(BaseOperation):
        """Move rows to other fragments without changing them: compaction."""

        groups: Iterable[LanceOperation.RewriteGroup]
        rewritten_indices: Iterable[LanceOperation.RewrittenIndex]

        def __post_init__(self) -> None:
            self.groups = list(self.groups)
            self.rewritten_indices = list(self.rewritten_indices)

        def to_format(self) -> tx.Rewrite:
            return tx.Rewrite(
                tuple(
                    tx.RewriteGroup(to_fragments(group.old_fragments), to_fragments(group.new_fragments))
                    for group in self.groups
                ),
                tuple(index.to_format() for index in self.rewritten_indices),
            )

    @dataclass
    class DataReplacementGroup:
        """A file that replaces another file of a fragment."""

        fragment_id: int
        new_file: DataFile

    @dataclass
    class DataReplacement(BaseOperation):
        """Replace data files by others with the same fields."""

        replacements: list[LanceOperation.DataReplacementGroup]

        def to_format(self) -> tx.DataReplacement:
            return tx.DataReplacement(
                tuple(
                    tx.DataReplacementGroup(group.fragment_id, group.new_file.to_format())
                    for group in self.replacements
                )
            )

    @dataclass
    class DataOverlayFile:
        """Values that replace single cells of a fragment."""

        data_file: DataFile
        offsets: Any
        committed_version: int | None = None

        def asdict(self) -> dict[str, Any]:
            """Return a JSON-serializable dict."""
            return {
                "data_file": self.data_file.asdict(),
                "offsets": self.offsets,
                "committed_version": self.committed_version,
            }

    @dataclass
    class DataOverlayGroup:
        """The overlays of one fragment."""

        fragment_id: int
        overlays: list[LanceOperation.DataOverlayFile]

    @dataclass
    class DataOverlay(BaseOperation):
        """Add overlays of single values to fragments. Not supported by `commit`."""

        groups: list[LanceOperation.DataOverlayGroup]

        def to_format(self) -> tx.Operation:
            raise scope.unsupported("data overlays", planned=True, name="LanceOperation.DataOverlay")

    @dataclass
    class UpdateMap:
        """Changes to a string map: None deletes a key, `replace` clears the map first."""

        updates: dict[str, str | None]
        replace: bool = False

    @dataclass
    class UpdateConfig(BaseOperation):
        """Change the config, or the metadata of table, schema or fields (by field id); maps that are None stay
        unchanged.
        """

        config_updates: LanceOperation.UpdateMap | None = None
        table_metadata_updates: LanceOperation.UpdateMap | None = None
        schema_metadata_updates: LanceOperation.UpdateMap | None = None
        field_metadata_updates: dict[int, LanceOperation.UpdateMap] | None = None

        def to_format(self) -> tx.UpdateConfig:
            fields = self.field_metadata_updates or {}
            return tx.UpdateConfig(
                to_update_map(self.config_updates),
                to_update_map(self.table_metadata_updates),
                to_update_map(self.schema_metadata_updates),
                {key: tx.UpdateMap(dict(update.updates), update.replace) for key, update in fields.items()},
            )

    @dataclass
    class Clone(BaseOperation):
        """The first version of a clone or branch, created by those operations, not by `commit`."""

        is_shallow: bool
        ref_name: str | None
        ref_version: int
        ref_path: str
        branch_name: str | None

        def to_format(self) -> tx.Clone:
            return tx.Clone(self.is_shallow, self.ref_version, self.ref_path, self.ref_name, self.branch_name)

    @dataclass
    class CreateIndex(BaseOperation):
        """Add and remove index entries. Other libraries build the files of an index."""

        new_indices: list[Index]
        removed_indices: list[Index]

        def to_format(self) -> tx.CreateIndex:
            for index in (*self.new_indices, *self.removed_indices):
                if not isinstance(index, Index):
                    raise TypeError(f"indices must be of type Index, got {type(index).__name__}")
            return tx.CreateIndex(
                tuple(index.to_format() for index in self.new_indices),
                tuple(index.to_format() for index in self.removed_indices),
            )

    @dataclass
    class Other(BaseOperation):
        """An operation without its own class, such as a reservation of ids; `value` is its frozen form."""

        name: str
        value: tx.Operation

        def to_format(self) -> tx.Operation:
            return self.value


@dataclass
class Transaction:
    """One commit: an operation, the version it is based on, a unique id, and properties such as a message."""

    read_version: int
    operation: LanceOperation.BaseOperation
    uuid: str = field(default_factory=lambda: str(uuid_module.uuid4()))
    transaction_properties: dict[str, str] | None = field(default_factory=dict)

    def to_format(self, properties: Mapping[str, str] | None = None) -> tx.Transaction:
        """Return the frozen form; `properties` replace those of this transaction.

        Raises TypeError, InvalidInputError, UnsupportedFeatureError.
        """
        if not isinstance(self.operation, LanceOperation.BaseOperation):
            raise TypeError(f"operation must be a LanceOperation, got {type(self.operation).__name__}")
        if isinstance(self.read_version, bool) or not isinstance(self.read_version, int):
            raise TypeError(f"read_version must be an integer, got {type(self.read_version).__name__}")
        own = self.transaction_properties or {}
        return tx.Transaction(
            self.read_version,
            self.uuid,
            self.operation.to_format(),
            properties=dict(own if properties is None else properties),
        )

    @classmethod
    def from_format(cls, transaction: tx.Transaction) -> Transaction:
        """Return the public form of a frozen transaction."""
        return cls(
            transaction.read_version,
            operation_of(transaction.operation),
            transaction.uuid,
            dict(transaction.properties),
        )


def fragment_list(name: str, fragments: Any) -> list[FragmentMetadata]:
    """Return a list of fragments. Raises TypeError for other objects."""
    if not isinstance(fragments, Iterable) or isinstance(fragments, (str, bytes)):
        raise TypeError(f"{name} must be list[FragmentMetadata], got {type(fragments)}")
    result = list(fragments)
    for fragment in result:
        if not isinstance(fragment, FragmentMetadata):
            raise TypeError(f"{name} must be list[FragmentMetadata], got {type(fragment)}")
    return result


def to_fragments(fragments: Iterable[FragmentMetadata]) -> tuple[Fragment, ...]:
    """Return the frozen form of fragments."""
    return tuple(fragment.to_format() for fragment in fragments)


def from_fragments(fragments: Iterable[Fragment]) -> list[FragmentMetadata]:
    """Return the public form of fragments."""
    return [FragmentMetadata.from_format(fragment) for fragment in fragments]


def to_bases(bases: Iterable[DatasetBasePath]) -> tuple[BasePath, ...]:
    """Return the frozen form of base paths; the commit assigns missing ids. Raises TypeError for other objects."""
    result = []
    for base in bases:
        if not isinstance(base, DatasetBasePath):
            raise TypeError(f"base paths must be of type DatasetBasePath, got {type(base).__name__}")
        result.append(BasePath(base.id or 0, base.path, base.is_dataset_root, base.name))
    return tuple(result)


def to_schema(schema: Any) -> Schema:
    """Return a schema with field ids; an Arrow schema is numbered from 0. Raises TypeError for other objects."""
    if isinstance(schema, LanceSchema):
        return schema.to_format()
    if isinstance(schema, pa.Schema):
        return Schema.from_arrow(schema)
    raise TypeError(f"schema must be a LanceSchema or a pyarrow.Schema, got {type(schema).__name__}")


def to_update_map(update: LanceOperation.UpdateMap | None) -> tx.UpdateMap | None:
    """Return the frozen form of changes to one map."""
    return None if update is None else tx.UpdateMap(dict(update.updates), update.replace)


def update_map_of(update: tx.UpdateMap | None) -> LanceOperation.UpdateMap | None:
    """Return the public form of changes to one map."""
    return None if update is None else LanceOperation.UpdateMap(dict(update.entries), update.replace)


def operation_of(operation: tx.Operation) -> LanceOperation.BaseOperation:
    """Return the public form of an operation."""
    make = FROM_FORMAT.get(type(operation))
    if make is None:
        return LanceOperation.Other(type(operation).__name__, operation)
    converted: LanceOperation.BaseOperation = make(operation)
    return converted


def update_of(operation: tx.Update) -> LanceOperation.Update:
    """Return the public form of an Update."""
    return LanceOperation.Update(
        list(operation.removed_fragment_ids),
        from_fragments(operation.updated_fragments),
        from_fragments(operation.new_fragments),
        list(operation.fields_modified),
        list(operation.fields_for_preserving_frag_bitmap),
        operation.mode.name.lower(),
        dict(operation.updated_offset_bitmaps) or None,
    )


def update_config_of(operation: tx.UpdateConfig) -> LanceOperation.UpdateConfig:
    """Return the public form of an UpdateConfig."""
    fields = {
        key: LanceOperation.UpdateMap(dict(update.entries), update.replace)
        for key, update in operation.field_metadata.items()
    }
    return LanceOperation.UpdateConfig(
        update_map_of(operation.config),
        update_map_of(operation.table_metadata),
        update_map_of(operation.schema_metadata),
        fields or None,
    )


def rewrite_of(operation: tx.Rewrite) -> LanceOperation.Rewrite:
    """Return the public form of a Rewrite."""
    return LanceOperation.Rewrite(
        [
            LanceOperation.RewriteGroup(from_fragments(group.old_fragments), from_fragments(group.new_fragments))
            for group in operation.groups
        ],
        [LanceOperation.RewrittenIndex.from_format(index) for index in operation.rewritten_indices],
    )


FROM_FORMAT: dict[type, Callable[[Any], LanceOperation.BaseOperation]] = {
    tx.Append: lambda op: LanceOperation.Append(from_fragments(op.fragments)),
    tx.Overwrite: lambda op: LanceOperation.Overwrite(
        LanceSchema(op.schema),
        from_fragments(op.fragments),
        [DatasetBasePath(base.path, base.name, base.is_dataset_root, base.id) for base in op.initial_bases] or None,
    ),
    tx.Delete: lambda op: LanceOperation.Delete(
        from_fragments(op.updated_fragments), list(op.deleted_fragment_ids), op.predicate
    ),
    tx.Update: update_of,
    tx.Merge: lambda op: LanceOperation.Merge(
        from_fragments(op.fragments), LanceSchema(op.schema), op.preserves_nullability
    ),
    tx.Project: lambda op: LanceOperation.Project(LanceSchema(op.schema), op.preserves_nullability),
    tx.Restore: lambda op: LanceOperation.Restore(op.version),
    tx.Rewrite: rewrite_of,
    tx.DataReplacement: lambda op: LanceOperation.DataReplacement(
        [
            LanceOperation.DataReplacementGroup(group.fragment_id, DataFile.from_format(group.new_file))
            for group in op.replacements
        ]
    ),
    tx.UpdateConfig: update_config_of,
    tx.Clone: lambda op: LanceOperation.Clone(op.is_shallow, op.ref_name, op.ref_version, op.ref_path, op.branch_name),
    tx.CreateIndex: lambda op: LanceOperation.CreateIndex(
        [Index.from_format(index) for index in op.new_indices],
        [Index.from_format(index) for index in op.removed_indices],
    ),
}
