"""Commits in the form of the public API: `LanceOperation.*` and `Transaction`.

Each class mirrors a frozen class of `lancetable.format.transaction`. `Mirror` converts in both directions: it matches
fields by name, `renamed` lists the fields with another name in the frozen class, and `FIELD_TO_FORMAT` the fields whose
values are checked or built during the conversion. A test checks that every operation has a public class.
"""

from __future__ import annotations

import uuid as uuid_module
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
from google.protobuf.any_pb2 import Any as Any_

from lancetable import scope
from lancetable.argument_validation import check_integer
from lancetable.errors import InvalidInputError
from lancetable.format import transaction as tx
from lancetable.format.fragment import DataFile as FrozenDataFile
from lancetable.format.fragment import Fragment
from lancetable.format.index import IndexMetadata
from lancetable.format.manifest import BasePath
from lancetable.format.schema import Schema
from lancetable.fragment_metadata import DataFile, FragmentMetadata
from lancetable.index_metadata import Index, parse_uuid
from lancetable.schema import LanceSchema
from lancetable.types import DatasetBasePath

__all__ = ["LanceOperation", "Transaction"]

T = TypeVar("T")


class Mirror:
    """Base of dataclasses that mirror a frozen class. None and an empty collection are equivalent."""

    frozen_class: ClassVar[type | None] = None
    renamed: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        for name, check in FIELD_CHECKS.items():
            if name in vars(self):
                setattr(self, name, check(name, getattr(self, name)))

    def to_format(self) -> Any:
        """Return the frozen form that is committed.

        Raises
        ------
        UnsupportedFeatureError
            If there is none.
        """
        if self.frozen_class is None:
            scope.raise_unsupported("this operation", name=type(self).__name__)
        values = {
            self.renamed.get(name, name): FIELD_TO_FORMAT.get(name, to_format)(value)
            for name in (field_.name for field_ in fields(self))  # type: ignore[arg-type]  # as below
            if (value := getattr(self, name)) is not None
        }
        return self.frozen_class(**values)

    @classmethod
    def from_format(cls, frozen: Any) -> Any:
        """Return the public form of a frozen value."""
        values = {}
        for field_ in fields(cls):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = from_format(getattr(frozen, cls.renamed.get(field_.name, field_.name)))
            values[field_.name] = None if field_.default is None and value in ([], {}) else value
        return cls(**values)


class LanceOperation:
    """The operations of a `Transaction`; see the individual classes."""

    class BaseOperation(Mirror):
        """Base of all operations."""

    @dataclass
    class Append(BaseOperation):
        """Add fragments to the table. The commit assigns their ids."""

        frozen_class = tx.Append
        fragments: Iterable[FragmentMetadata]

    @dataclass
    class Overwrite(BaseOperation):
        """Replace all fragments and the schema, or create the table if it does not exist.

        An Arrow schema is numbered from 0, like the columns of files that `write_fragments` writes with mode
        "overwrite". A `LanceSchema` contains its field ids.
        """

        frozen_class = tx.Overwrite
        renamed: ClassVar = {"new_schema": "schema"}
        new_schema: LanceSchema | pa.Schema
        fragments: Iterable[FragmentMetadata]
        initial_bases: list[DatasetBasePath] | None = None

    @dataclass
    class Delete(BaseOperation):
        """Update the deletion files of fragments and remove others; `predicate` is informational."""

        frozen_class = tx.Delete
        updated_fragments: Iterable[FragmentMetadata]
        deleted_fragment_ids: Iterable[int]
        predicate: str

    @dataclass
    class Update(BaseOperation):
        """Rewrite rows: remove, change and add fragments, with the ids of the changed fields.

        `update_mode` is "rewrite_rows" or "rewrite_columns"; `updated_fragment_offsets` maps fragment ids to roaring
        bitmaps of the row offsets whose columns were rewritten.
        """

        frozen_class = tx.Update
        renamed: ClassVar = {"update_mode": "mode", "updated_fragment_offsets": "updated_offset_bitmaps"}
        removed_fragment_ids: list[int] = field(default_factory=list)
        updated_fragments: list[FragmentMetadata] = field(default_factory=list)
        new_fragments: list[FragmentMetadata] = field(default_factory=list)
        fields_modified: list[int] = field(default_factory=list)
        fields_for_preserving_frag_bitmap: list[int] = field(default_factory=list)
        update_mode: str = ""
        updated_fragment_offsets: dict[int, bytes] | None = None

    @dataclass
    class Merge(BaseOperation):
        """Change the schema together with the complete list of fragments."""

        frozen_class = tx.Merge
        fragments: Iterable[FragmentMetadata]
        schema: LanceSchema | pa.Schema
        preserves_nullability: bool = False

        def __post_init__(self) -> None:
            super().__post_init__()
            if isinstance(self.schema, pa.Schema):
                warnings.warn(
                    "a pyarrow.Schema in a Merge is deprecated, because it has no field ids; pass a LanceSchema",
                    DeprecationWarning,
                    stacklevel=3,
                )

    @dataclass
    class Project(BaseOperation):
        """Change only the schema: drop, rename or reorder columns."""

        frozen_class = tx.Project
        schema: LanceSchema
        preserves_nullability: bool = False

    @dataclass
    class Restore(BaseOperation):
        """Restore an old version as the newest one."""

        frozen_class = tx.Restore
        version: int

    @dataclass
    class RewriteGroup(Mirror):
        """Old fragments, and the new fragments that contain the same live rows in the same order."""

        frozen_class = tx.RewriteGroup
        old_fragments: Iterable[FragmentMetadata]
        new_fragments: Iterable[FragmentMetadata]

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

        frozen_class = tx.Rewrite
        groups: Iterable[LanceOperation.RewriteGroup]
        rewritten_indices: Iterable[LanceOperation.RewrittenIndex]

    @dataclass
    class DataReplacementGroup(Mirror):
        """A file that replaces another file of a fragment."""

        frozen_class = tx.DataReplacementGroup
        fragment_id: int
        new_file: DataFile

    @dataclass
    class DataReplacement(BaseOperation):
        """Replace data files by others with the same fields."""

        frozen_class = tx.DataReplacement
        replacements: list[LanceOperation.DataReplacementGroup]

    @dataclass
    class DataOverlayFile:
        """Values that replace single cells of a fragment."""

        data_file: DataFile
        offsets: Any
        committed_version: int | None = None

        def asdict(self) -> dict[str, Any]:
            """Return a JSON-serializable dict."""
            return {**vars(self), "data_file": self.data_file.asdict()}

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
            """Not supported.

            Raises
            ------
            UnsupportedFeatureError
                Always.
            """
            scope.raise_unsupported("data overlays", planned=True, name="LanceOperation.DataOverlay")

    @dataclass
    class UpdateMap(Mirror):
        """Changes to a string map: None deletes a key, `replace` clears the map first."""

        frozen_class = tx.UpdateMap
        renamed: ClassVar = {"updates": "entries"}
        updates: dict[str, str | None]
        replace: bool = False

    @dataclass
    class UpdateConfig(BaseOperation):
        """Change the config, or the metadata of table, schema or fields (by field id); None leaves a map unchanged."""

        frozen_class = tx.UpdateConfig
        renamed: ClassVar = {
            f"{name}_updates": name for name in ("config", "table_metadata", "schema_metadata", "field_metadata")
        }
        config_updates: LanceOperation.UpdateMap | None = None
        table_metadata_updates: LanceOperation.UpdateMap | None = None
        schema_metadata_updates: LanceOperation.UpdateMap | None = None
        field_metadata_updates: dict[int, LanceOperation.UpdateMap] | None = None

    @dataclass
    class Clone(BaseOperation):
        """The first version of a clone or branch, created by those operations, not by `commit`."""

        frozen_class = tx.Clone
        is_shallow: bool
        ref_name: str | None
        ref_version: int
        ref_path: str
        branch_name: str | None

    @dataclass
    class CreateIndex(BaseOperation):
        """Add and remove index entries. Other libraries build the files of an index."""

        frozen_class = tx.CreateIndex
        new_indices: list[Index]
        removed_indices: list[Index]

    @dataclass
    class Other(BaseOperation):
        """An operation without its own class, such as a reservation of ids; `value` is its frozen form."""

        name: str
        value: tx.Operation

        def to_format(self) -> tx.Operation:
            """Return the frozen form."""
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

        Raises TypeError or InvalidInputError for invalid values, UnsupportedFeatureError if the operation is not
        supported.
        """
        check_type("operation", self.operation, LanceOperation.BaseOperation)
        own = self.transaction_properties or {}
        return tx.Transaction(
            check_integer("read_version", self.read_version),
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


# -------------------------------------------------------------------------------------------------------- conversion


def fragment_list(name: str, fragments: Any) -> list[FragmentMetadata]:
    """Return a list of fragments.

    Raises
    ------
    TypeError
        If `fragments` or an element has another type.
    """
    is_iterable = isinstance(fragments, Iterable) and not isinstance(fragments, (str, bytes))
    checked = list(fragments) if is_iterable else [fragments]
    for fragment in checked:
        if not isinstance(fragment, FragmentMetadata):
            raise TypeError(f"{name} must be list[FragmentMetadata], got {type(fragment)}")
    return checked


def to_bases(bases: Iterable[DatasetBasePath]) -> tuple[BasePath, ...]:
    """Return the frozen form of base paths; the commit assigns missing ids. Raises TypeError for other objects."""
    checked = [check_type("base paths", base, DatasetBasePath) for base in bases]
    return tuple(BasePath(base.id or 0, base.path, base.is_dataset_root, base.name) for base in checked)


def to_schema(schema: Any) -> Schema:
    """Return a schema with field ids; an Arrow schema is numbered from 0. Raises TypeError for other objects."""
    if isinstance(schema, pa.Schema):
        return Schema.from_arrow(schema)
    return check_type("schema", schema, LanceSchema).to_format()


def to_indices(indices: Iterable[Index]) -> tuple[IndexMetadata, ...]:
    """Return the frozen form of index entries. Raises TypeError for other objects."""
    return tuple(check_type("indices", index, Index).to_format() for index in indices)


def to_update_mode(mode: str) -> tx.UpdateMode:
    """Return the mode of an Update, "rewrite_rows" by default.

    Raises
    ------
    InvalidInputError
        If the mode is unknown.
    """
    name = (mode or "rewrite_rows").upper()
    if name not in tx.UpdateMode.__members__:
        raise InvalidInputError(f"update_mode must be rewrite_rows or rewrite_columns, got {mode!r}")
    return tx.UpdateMode[name]


def check_type(name: str, value: Any, expected: type[T]) -> T:
    """Return a value of the expected type.

    Raises
    ------
    TypeError
        If it has another type.
    """
    if not isinstance(value, expected):
        raise TypeError(f"{name} must be of type {expected.__name__}, got {type(value).__name__}")
    return value


def to_format(value: Any) -> Any:
    """Return the frozen form of the value of a field; other objects are returned unchanged."""
    if hasattr(value, "to_format"):
        return value.to_format()
    if isinstance(value, Mapping):
        return {key: to_format(inner) for key, inner in value.items()}
    return tuple(to_format(inner) for inner in value) if isinstance(value, (list, tuple)) else value


def from_format(value: Any) -> Any:
    """Return the public form of the value of a frozen field; other objects are returned unchanged."""
    make = FROM_FORMAT.get(type(value))
    if make is not None:
        return make(value)
    if isinstance(value, Mapping):
        return {key: from_format(inner) for key, inner in value.items()}
    return [from_format(inner) for inner in value] if isinstance(value, tuple) else value


def operation_of(operation: tx.Operation) -> LanceOperation.BaseOperation:
    """Return the public form of an operation."""
    cls = PUBLIC_CLASSES.get(type(operation))
    if cls is None:
        return LanceOperation.Other(type(operation).__name__, operation)
    converted: LanceOperation.BaseOperation = cls.from_format(operation)
    return converted


# Fields that are checked and converted to lists when a public object is created, by name.
FIELD_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("fragments", "updated_fragments", "new_fragments", "old_fragments"), fragment_list),
    **dict.fromkeys(("deleted_fragment_ids", "groups", "rewritten_indices"), lambda name, values: list(values)),
}
# Fields that are checked or built when a public object is converted to its frozen form, by name.
FIELD_TO_FORMAT: dict[str, Callable[[Any], Any]] = {
    "schema": to_schema,
    "new_schema": to_schema,
    "initial_bases": to_bases,
    "new_indices": to_indices,
    "removed_indices": to_indices,
    "predicate": partial(check_type, "predicate", expected=str),
    "version": partial(check_integer, "version"),
    "update_mode": to_update_mode,
}
# The public class of each frozen class.
PUBLIC_CLASSES: dict[type, Any] = {
    cls.frozen_class: cls
    for cls in vars(LanceOperation).values()
    if isinstance(cls, type) and issubclass(cls, Mirror) and cls.frozen_class is not None
}
FROM_FORMAT: dict[type, Callable[[Any], Any]] = {
    **{frozen_class: cls.from_format for frozen_class, cls in PUBLIC_CLASSES.items()},
    tx.RewrittenIndex: LanceOperation.RewrittenIndex.from_format,
    tx.UpdateMode: lambda mode: mode.name.lower(),
    Fragment: FragmentMetadata.from_format,
    FrozenDataFile: DataFile.from_format,
    IndexMetadata: Index.from_format,
    Schema: LanceSchema,
    BasePath: lambda base: DatasetBasePath(base.path, base.name, base.is_dataset_root, base.id),
}
