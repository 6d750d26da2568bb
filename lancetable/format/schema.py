"""Fields and schemas: a tree of named fields with ids, stored as a flat list in which a parent precedes its children.

    id  parent  name   logical type                     top level: parent -1
     0    -1    id     int64
     1    -1    point  struct
     2     1    x      double
     3    -1    tags   list
     4     3    item   string

A field keeps its id when it is renamed; data files refer to fields only by id. Fixed-size lists (except of structs)
and dictionaries have no child fields, so their element types have no ids.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from functools import lru_cache
from itertools import count
from typing import Any, Final, TypeVar, cast

import pyarrow as pa

from lancetable.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    InvalidSchemaError,
    UnsupportedFeatureError,
)
from lancetable.format import logical_types
from lancetable.format.arrow_extensions import extension_metadata, restore_extension
from lancetable.format.field_paths import format_path, parse_path
from lancetable.format.logical_types import EXTENSION_METADATA_KEY, EXTENSION_NAME_KEY
from lancetable.lazy import lazy_property
from lancetable.proto import file_pb2

RESERVED_NAMES: Final = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
MAX_DEPTH: Final = 64
_MAX_CACHED: Final = 8  # schemas parsed from protobuf
_MAX_DERIVED: Final = 64  # values cached with a schema

T = TypeVar("T")

PRIMARY_KEY: Final = "lance-schema:unenforced-primary-key"
PRIMARY_KEY_POSITION: Final = "lance-schema:unenforced-primary-key:position"
CLUSTERING_KEY_POSITION: Final = "lance-schema:unenforced-clustering-key:position"
BLOB_KEY: Final = "lance-encoding:blob"
BLOB_V2_NAME: Final = b"lance.blob.v2"
PACKED_KEY: Final = "lance-encoding:packed"

_NO_METADATA: Final[Mapping[str, bytes]] = {}


@dataclass(slots=True, unsafe_hash=True)
class Field:
    """One field of a schema and its descendants; must not be modified. Source: protos/file.proto, Field.

    `metadata` is the Arrow field metadata, including the name of an extension type. `encoding` and `dictionary` are
    used only by the 0.1 format: `dictionary` is (offset, length) of the dictionary's values in the manifest file.

    The class is not frozen, because that would make opening a table with many columns slower.
    """

    name: str
    id: int
    parent_id: int
    logical_type: str
    nullable: bool = True
    children: tuple[Field, ...] = ()
    metadata: Mapping[str, bytes] = dataclass_field(default_factory=dict, hash=False)
    encoding: int = 0
    dictionary: tuple[int, int] | None = None
    is_primary_key: bool = False
    primary_key_position: int = 0  # counts from 1; 0: none
    is_clustering_key: bool = False
    clustering_key_position: int = 0
    _data_type: pa.DataType | None = dataclass_field(default=None, init=False, repr=False, compare=False)

    @property
    def data_type(self) -> pa.DataType:
        """The Arrow storage type: extension types at any depth are replaced by their storage types.

        JSON is stored as large binary (JSONB). A blob is large binary.
        """
        data_type = self._data_type
        if data_type is None:
            data_type = logical_types.leaf_type(self.logical_type)
            if data_type is None:
                children = [_arrow_field(child.name, child.data_type, child.nullable) for child in self.children]
                data_type = logical_types.to_arrow(self.logical_type, children=children)
            self._data_type = data_type
        return data_type

    def to_arrow(self) -> pa.Field:
        """Return the Arrow field for users: with metadata, and with the extension types known in this process."""
        data_type = logical_types.leaf_type(self.logical_type)
        metadata: Mapping[str, bytes] = self.metadata
        if data_type is None:
            children = [child.to_arrow() for child in self.children]
            data_type = logical_types.to_arrow(self.logical_type, children=children)
        elif self.logical_type == "json":
            data_type = pa.utf8()
            metadata = {**metadata, EXTENSION_NAME_KEY: b"arrow.json"}
            metadata.setdefault(EXTENSION_METADATA_KEY, b"")
        arrow = _arrow_field(self.name, data_type, self.nullable, metadata)
        has_extension = EXTENSION_NAME_KEY in metadata or _HAS_BFLOAT16 in self.logical_type
        return restore_extension(arrow) if has_extension else arrow

    @property
    def extension_name(self) -> str | None:
        """Name of the Arrow extension type of this field, if it has one."""
        name = self.metadata.get(EXTENSION_NAME_KEY)
        return None if name is None else name.decode("utf-8", "replace")

    @property
    def is_struct(self) -> bool:
        """True if this is a struct."""
        return self.logical_type == "struct"

    @property
    def is_list(self) -> bool:
        """True if this is a list or large list, of structs or of other types."""
        return self.logical_type in ("list", "list.struct", "large_list", "large_list.struct")

    @property
    def is_packed(self) -> bool:
        """True if this struct is stored row by row in one column."""
        if self.logical_type != "struct" or not self.metadata:
            return False
        return _is_true(self.metadata.get("packed")) or _is_true(self.metadata.get(PACKED_KEY))

    @property
    def is_blob(self) -> bool:
        """True if this is a version 1 blob: the column stores positions and sizes, the values are stored separately."""
        return bool(self.metadata) and self.logical_type == "large_binary" and BLOB_KEY in self.metadata

    @property
    def is_blob_v2(self) -> bool:
        """True if this struct is a version 2 blob (data format 2.2 and later)."""
        return self.logical_type == "struct" and self.metadata.get(EXTENSION_NAME_KEY) == BLOB_V2_NAME

    @property
    def is_json(self) -> bool:
        """True if this is a JSON column."""
        return self.logical_type == "json"

    def walk(self) -> Iterator[Field]:
        """Iterate over this field and its descendants, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def child(self, name: str) -> Field | None:
        """Return the direct child with this name, or None if it does not exist."""
        return next((child for child in self.children if child.name == name), None)

    def to_proto(self) -> file_pb2.Field:
        """Convert this field to protobuf, without its children, which are separate entries of the flat list."""
        message = file_pb2.Field(
            name=self.name,
            id=self.id,
            parent_id=self.parent_id,
            logical_type=self.logical_type,
            nullable=self.nullable,
            encoding=cast("file_pb2.Encoding", self.encoding),  # any number: only 0.1 reads it
        )
        if self.metadata:  # rare properties are set only if present, because schemas can be wide
            message.metadata.update(self.metadata)
            message.extension_name = self.extension_name or ""
        if self.is_primary_key or self.is_clustering_key or self.primary_key_position or self.clustering_key_position:
            message.unenforced_primary_key = self.is_primary_key
            message.unenforced_primary_key_position = self.primary_key_position
            message.unenforced_clustering_key = self.is_clustering_key
            message.unenforced_clustering_key_position = self.clustering_key_position
        if self.dictionary is not None:
            offset, length = self.dictionary
            message.dictionary.SetInParent()
            message.dictionary.offset = offset
            message.dictionary.length = length
        return message


_HAS_BFLOAT16: Final = f":{logical_types.BFLOAT16_NAME}:"


@dataclass(unsafe_hash=True)
class Schema:
    """The fields of a table or of a data file, in order, and the schema's metadata; must not be modified."""

    fields: tuple[Field, ...]
    metadata: Mapping[str, bytes] = dataclass_field(default_factory=dict, hash=False)

    # ------------------------------------------------------------------------------------------------- conversions

    @classmethod
    def from_protos(
        cls, fields: Iterable[file_pb2.Field], metadata: Mapping[str, bytes] = _NO_METADATA, path: str | None = None
    ) -> Schema:
        """Build the tree from the flat list of a manifest or data file.

        Parameters
        ----------
        fields
            The field messages, parents first.
        metadata
            The schema metadata.
        path
            The path of the manifest or data file, for error messages.

        Raises
        ------
        CorruptFileError
            If a child precedes its parent, an id is not unique, a field has the wrong number of children, or the tree
            is deeper than 64.
        UnsupportedFeatureError
            If this library does not support a logical type.
        """
        return cls(_build_tree(fields, path), dict(metadata) if metadata else {})

    @classmethod
    @lru_cache(maxsize=_MAX_CACHED)
    def from_bytes(cls, data: bytes) -> Schema:
        """Parse a serialized Schema message. Cached, because tables are often opened again with the same schema.

        Errors are those of `from_protos`.
        """
        message = file_pb2.Schema.FromString(data)
        return cls.from_protos(message.fields, message.metadata)

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self.fields, self.metadata)  # without derived values

    def derive(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the value stored under `key` with the schema. If there is none, call `make` and store its result.

        Values must depend only on the key and the schema. The cache is cleared when it is full.
        """
        value: T | None = self._derived.get(key)
        if value is None:
            value = make()
            if len(self._derived) >= _MAX_DERIVED:
                self._derived.clear()
            self._derived[key] = value
        return value

    @lazy_property
    def _derived(self) -> dict[Hashable, Any]:
        return {}

    def to_protos(self) -> list[file_pb2.Field]:
        """Return the flat list of fields, parents first; the messages are cached and must not be modified."""
        return [*self._protos]

    @lazy_property
    def _protos(self) -> list[file_pb2.Field]:
        return [field.to_proto() for field in self.walk()]

    @classmethod
    def from_arrow(cls, schema: pa.Schema, *, first_id: int = 0, check: bool = True) -> Schema:
        """Build a schema from an Arrow schema.

        Parameters
        ----------
        schema
            The Arrow schema.
        first_id
            The first field id; ids are assigned depth first.
        check
            Validate names and key columns.

        Raises
        ------
        UnsupportedFeatureError
            If the format cannot store a type.
        InvalidSchemaError
            If a fixed-size list has size 0, a metadata key is not UTF-8 or the tree is too deep; with `check`, also if
            a name is duplicate, contains a dot or is reserved, or a primary key column is nullable.
        """
        if check:
            _check_names(schema.names)
        numbering = count(first_id)
        fields = tuple([_from_arrow(arrow, -1, numbering, arrow.name, 1) for arrow in schema])
        result = cls(fields, _decode_metadata(schema.metadata))
        if check:
            _check_keys(fields)
        return result

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema for users; see `Field.to_arrow`. Cached."""
        return self._arrow

    @lazy_property
    def _arrow(self) -> pa.Schema:
        return pa.schema([field.to_arrow() for field in self.fields], metadata=self.metadata or None)

    def to_storage_arrow(self) -> pa.Schema:
        """Return the Arrow schema of storage types, with field metadata at the top level only."""
        return pa.schema(
            [_arrow_field(field.name, field.data_type, field.nullable, field.metadata) for field in self.fields],
            metadata=self.metadata or None,
        )

    # ------------------------------------------------------------------------------------------------------ look-up

    @property
    def names(self) -> list[str]:
        """Names of the top-level fields."""
        return [field.name for field in self.fields]

    def walk(self) -> Iterator[Field]:
        """Iterate over all fields, parents first."""
        if not any(field.children for field in self.fields):
            yield from self.fields
            return
        for field in self.fields:
            yield from field.walk()

    @lazy_property
    def by_id(self) -> Mapping[int, Field]:
        """Fields by id. The parts of a blob description in a data file are left out, because they have no ids."""
        return {field.id: field for field in self.walk() if field.id >= 0}

    @lazy_property
    def _by_name(self) -> Mapping[str, Field]:
        """Top-level fields by name; the first field if a name is not unique."""
        return {field.name: field for field in reversed(self.fields)}

    def ids(self) -> set[int]:
        """Return the ids of all fields."""
        return set(self.by_id)

    def related_ids(self, ids: Iterable[int]) -> set[int]:
        """Return these ids, with those of all ancestors and descendants of the fields. Unknown ids are kept."""
        given = set(ids)
        below, related = set(given), set(given)
        for field in self.walk():  # parents first
            if field.parent_id in below:
                below.add(field.id)
        for field_id in given:
            ancestor = self.by_id.get(field_id)
            while ancestor is not None:
                related.add(ancestor.id)
                ancestor = self.by_id.get(ancestor.parent_id)
        return related | below

    @property
    def max_id(self) -> int:
        """Highest field id; -1 without fields."""
        return max(self.by_id, default=-1)

    def field(self, path: str) -> Field | None:
        """Return the field at a dotted path such as `point.x`, or None if it does not exist.

        Backticks quote names that contain dots. A top-level field whose whole name equals `path` takes precedence.
        Raises InvalidInputError if the path is malformed.
        """
        match = self._by_name.get(path)
        if match is not None or ("." not in path and "`" not in path):
            return match
        first, *rest = parse_path(path)
        match = self._by_name.get(first)
        for name in rest:
            match = None if match is None else match.child(name)
        return match

    def field_case_insensitive(self, path: str) -> Field | None:
        """Return the field at a dotted path; if it does not exist, compare names without regard to case.

        Returns None if the field does not exist or the case-insensitive match is ambiguous.
        Raises InvalidInputError if the path is malformed.
        """
        exact = self.field(path)
        if exact is not None:
            return exact
        level: Sequence[Field] = self.fields
        match: Field | None = None
        for name in parse_path(path):
            match = _find_ignoring_case(level, name)
            if match is None:
                return None
            level = match.children
        return match

    def path_of(self, field_id: int) -> str:
        """Return the dotted path of a field, quoted where needed."""
        names: list[str] = []
        by_id = self.by_id
        current: Field | None = by_id[field_id]
        while current is not None:
            names.append(current.name)
            current = by_id.get(current.parent_id)
        return format_path(reversed(names))

    def primary_key(self) -> list[Field]:
        """Return the fields of the unenforced primary key: first by position, then in schema order."""
        keys = [field for field in self.walk() if field.is_primary_key]
        return sorted(keys, key=lambda field: field.primary_key_position or 2**32)

    def clustering_key(self) -> list[Field]:
        """Return the fields of the unenforced clustering key, by position."""
        keys = [field for field in self.walk() if field.is_clustering_key or field.clustering_key_position]
        return sorted(keys, key=lambda field: field.clustering_key_position or 2**32)

    # ------------------------------------------------------------------------------------------------ new schemas

    def project(self, paths: Sequence[str]) -> Schema:
        """Return a schema with only these columns, in this order; a nested column keeps its ancestors, pruned.

        Field ids are unchanged. Raises ColumnNotFoundError if a path does not exist, and InvalidInputError if it is
        malformed.
        """
        selected_ids: set[int] = set()
        columns: dict[int, Field] = {}  # top-level fields in the order in which they are named first
        for path in paths:
            match = self.field(path)
            if match is None:
                raise ColumnNotFoundError(f"column {path!r} is not in the schema; it has {', '.join(self.names)}")
            selected_ids.add(match.id)
            while match.parent_id >= 0:
                match = self.by_id[match.parent_id]
            columns[match.id] = match
        return Schema(_prune(columns.values(), selected_ids), self.metadata)

    def project_ids(self, ids: Iterable[int]) -> Schema:
        """Return a schema with only the fields with these ids, their descendants and ancestors, in schema order.

        Raises KeyError if an id does not exist.
        """
        return Schema(_prune(self.fields, {self.by_id[field_id].id for field_id in ids}), self.metadata)

    def without(self, ids: set[int]) -> Schema:
        """Return a schema without the fields with these ids; a struct that loses all its children is removed too."""
        return Schema(_remove(self.fields, ids), self.metadata)

    def merge(self, other: pa.Schema, *, first_id: int | None = None) -> Schema:
        """Return a schema with the fields of an Arrow schema added; structs that exist in both are merged recursively.

        Parameters
        ----------
        other
            The Arrow schema.
        first_id
            Id of the first new field; by default the highest id plus 1.

        Raises
        ------
        InvalidSchemaError
            If a field exists with another type, or a new field is invalid; see `from_arrow`.
        UnsupportedFeatureError
            If the format cannot store a type.
        """
        numbering = count(self.max_id + 1 if first_id is None else first_id)
        fields = _merge_fields(self.fields, other, numbering, -1, "")
        _check_names([field.name for field in fields])
        _check_keys(fields)
        return Schema(fields, {**self.metadata, **_decode_metadata(other.metadata)})

    def with_metadata(self, metadata: Mapping[str, bytes]) -> Schema:
        """Return a schema with the same fields and other schema metadata."""
        return Schema(self.fields, dict(metadata))

    def replace_field(self, new: Field, field_id: int | None = None) -> Schema:
        """Return a schema in which `new` replaces the field with an id, by default its own id, at any depth."""
        replaced = new.id if field_id is None else field_id
        return Schema(tuple(_replace(field, replaced, new) for field in self.fields), self.metadata)


# ------------------------------------------------------------------------------------------------------ from protos


def _build_tree(messages: Iterable[file_pb2.Field], path: str | None) -> tuple[Field, ...]:
    messages_by_id: dict[int, file_pb2.Field] = {}
    # Only fields that can have children are keys of these two; most fields cannot. A field that can have children is
    # represented by its message until all of its children are known.
    children: dict[int, list[Field | file_pb2.Field]] = {-1: []}
    depths = {-1: 0}
    blob_id: int | None = None
    for message in messages:
        field_id, logical_type = message.id, message.logical_type
        is_simple = logical_type in logical_types.SIMPLE
        if field_id == -1 and blob_id is not None and is_simple:
            # The description of a blob in the schema of a data file follows the blob's field and has no ids.
            children[blob_id].append(_parse_field(message))
            continue
        blob_id = field_id if logical_type == "struct" and BLOB_KEY in message.metadata else None
        parent_id = message.parent_id
        siblings = children.get(parent_id)
        if siblings is None or field_id in messages_by_id or field_id < 0:
            raise _corrupt_tree(message, messages_by_id, path)
        messages_by_id[field_id] = message
        depth = depths[parent_id] + 1
        if depth > MAX_DEPTH:
            raise CorruptFileError(f"the schema is nested deeper than {MAX_DEPTH}", path=path)
        if is_simple:
            siblings.append(_parse_field(message))
        else:
            siblings.append(message)
            children[field_id] = []
            depths[field_id] = depth
    return _build_siblings(-1, children, path)


def _build_siblings(
    parent_id: int, children: Mapping[int, list[Field | file_pb2.Field]], path: str | None
) -> tuple[Field, ...]:
    """Return the fields below one parent, each with its descendants."""
    siblings = []
    for field in children[parent_id]:
        if not isinstance(field, Field):
            field = _parse_field(field, _build_siblings(field.id, children, path))
            _check_children(field, path)
        siblings.append(field)
    return tuple(siblings)


def _parse_field(message: file_pb2.Field, children: tuple[Field, ...] = ()) -> Field:
    metadata = dict(message.metadata) if message.metadata else {}
    if message.extension_name and EXTENSION_NAME_KEY not in metadata:
        metadata[EXTENSION_NAME_KEY] = message.extension_name.encode()
    return Field(
        message.name,
        message.id,
        message.parent_id,
        message.logical_type,
        message.nullable,
        children,
        metadata,
        message.encoding,
        (message.dictionary.offset, message.dictionary.length) if message.HasField("dictionary") else None,
        message.unenforced_primary_key,
        message.unenforced_primary_key_position,
        message.unenforced_clustering_key,
        message.unenforced_clustering_key_position,
    )


def _check_children(field: Field, path: str | None) -> None:
    try:
        expected = logical_types.num_children(field.logical_type)
    except UnsupportedFeatureError as error:
        raise UnsupportedFeatureError(
            f"column {field.name!r}: {error}", feature=error.feature, path=path, column=field.name
        ) from None
    except CorruptFileError as error:
        raise CorruptFileError(f"column {field.name!r}: {error}", path=path) from None
    if expected is not None and len(field.children) != expected:
        what = f"column {field.name!r} of type {field.logical_type} has a wrong number of child fields"
        raise CorruptFileError(what, expected, len(field.children), path=path)
    if expected != 1 or field.logical_type in ("list", "large_list"):
        return
    (child,) = field.children
    if child.logical_type != "struct" or (field.logical_type == "map" and len(child.children) != 2):
        what = f"column {field.name!r} of type {field.logical_type} cannot store {child.logical_type}"
        raise CorruptFileError(what, path=path)


def _corrupt_tree(
    message: file_pb2.Field, messages_by_id: Mapping[int, file_pb2.Field], path: str | None
) -> CorruptFileError:
    if message.id in messages_by_id:
        problem = f"has the id of column {messages_by_id[message.id].name!r}"
    elif message.id < 0:
        problem = "has a negative id"
    elif message.parent_id in messages_by_id:
        problem = f"is a child of column {messages_by_id[message.parent_id].name!r}, which cannot have children"
    else:
        problem = f"precedes its parent {message.parent_id}, or that field does not exist"
    return CorruptFileError(f"column {message.name!r} (id {message.id}) {problem}", path=path)


# ------------------------------------------------------------------------------------------------------- from Arrow


def _from_arrow(arrow: pa.Field, parent_id: int, numbering: Iterator[int], path: str, depth: int) -> Field:
    if depth > MAX_DEPTH:
        raise InvalidSchemaError(f"column {path!r} is nested deeper than {MAX_DEPTH}")
    try:
        logical_type = logical_types.from_arrow(arrow.type)
    except UnsupportedFeatureError as error:
        raise UnsupportedFeatureError(f"column {path!r}: {error}", feature=error.feature, column=path) from None
    except InvalidSchemaError as error:
        raise InvalidSchemaError(f"column {path!r}: {error}") from None
    metadata = _decode_metadata(arrow.metadata)
    if isinstance(arrow.type, pa.BaseExtensionType):
        metadata = {**metadata, **_decode_metadata(extension_metadata(arrow.type))}
    if metadata.get(EXTENSION_NAME_KEY) in (b"arrow.json", b"lance.json"):
        logical_type = "json"
        metadata[EXTENSION_NAME_KEY] = b"lance.json"
    field_id = next(numbering)
    child_fields = () if logical_type in logical_types.SIMPLE else _child_fields(arrow.type, logical_type)
    children = [_from_arrow(child, field_id, numbering, f"{path}.{child.name}", depth + 1) for child in child_fields]
    return Field(
        arrow.name,
        field_id,
        parent_id,
        logical_type,
        arrow.nullable,
        tuple(children),
        metadata,
        logical_types.encoding_of(logical_type),
        (0, 0) if logical_type.startswith("dict:") else None,
        *_keys(metadata),
    )


def _child_fields(data_type: pa.DataType, logical_type: str) -> list[pa.Field]:
    data_type = logical_types.storage_type(data_type)
    if logical_type == "struct":
        return [data_type.field(index) for index in range(data_type.num_fields)]
    if logical_type.startswith(("list", "large_list", "fixed_size_list:struct:")):
        return [data_type.value_field]
    if logical_type == "map":
        entries = pa.struct([data_type.key_field.with_nullable(False), data_type.item_field])
        return [pa.field("entries", entries, nullable=False)]
    return []


def _keys(metadata: Mapping[str, bytes]) -> tuple[bool, int, bool, int]:
    """Return (is primary key, its position, is clustering key, its position), from the field's metadata."""
    if not metadata:
        return False, 0, False, 0
    flag = metadata.get(PRIMARY_KEY)
    position = _position(metadata.get(PRIMARY_KEY_POSITION))
    is_primary = position > 0 or (flag is not None and flag.lower() in (b"true", b"1", b"yes"))
    return is_primary, position if is_primary else 0, False, _position(metadata.get(CLUSTERING_KEY_POSITION))


def _position(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() and len(value) < 10 else 0


def _is_true(value: bytes | None) -> bool:
    return value is not None and value.lower() == b"true"


def _decode_metadata(metadata: Mapping[bytes, bytes] | None) -> dict[str, bytes]:
    if not metadata:
        return {}
    try:
        return {key.decode(): value for key, value in metadata.items()}
    except UnicodeDecodeError as error:
        raise InvalidSchemaError(f"metadata key {error.object!r} is not UTF-8") from None


def _check_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidSchemaError(f"duplicate field name {name!r} in the schema", column=name)
        if "." in name:
            raise InvalidSchemaError(
                f"the name of top-level field {name!r} contains a dot; use a struct field or another name", column=name
            )
        if name in RESERVED_NAMES:
            raise InvalidSchemaError(f"column name {name!r} is reserved; use another name", column=name)
        seen.add(name)


def _check_keys(fields: Iterable[Field]) -> None:
    for field in fields:
        if field.nullable and not field.children and not field.is_primary_key:
            continue
        key = next((descendant.name for descendant in field.walk() if descendant.is_primary_key), None)
        if key is not None and field.nullable:
            raise InvalidSchemaError(
                f"primary key column {key!r} and all its ancestors must not be nullable", column=key
            )
        _check_keys(field.children)


# -------------------------------------------------------------------------------------------------- editing the tree


def _prune(fields: Iterable[Field], selected_ids: set[int]) -> tuple[Field, ...]:
    """Return the selected fields, and the ancestors of selected fields without their other children."""
    kept = []
    for field in fields:
        if field.id in selected_ids:
            kept.append(field)
        elif field.children and (children := _prune(field.children, selected_ids)):
            kept.append(replace(field, children=children))
    return tuple(kept)


def _remove(fields: Iterable[Field], ids: set[int]) -> tuple[Field, ...]:
    """Return the fields without those with these ids, and without structs that lose all their children."""
    kept = []
    for field in fields:
        children = _remove(field.children, ids)
        if field.id not in ids and (children or not field.children):
            kept.append(field if children == field.children else replace(field, children=children))
    return tuple(kept)


def _replace(field: Field, field_id: int, new: Field) -> Field:
    if field.id == field_id:
        return new
    if not field.children:
        return field
    return replace(field, children=tuple(_replace(child, field_id, new) for child in field.children))


def _merge_fields(
    fields: tuple[Field, ...], other: Iterable[pa.Field], numbering: Iterator[int], parent_id: int, prefix: str
) -> tuple[Field, ...]:
    merged = {field.name: field for field in fields}
    for arrow in other:
        path = prefix + arrow.name
        existing = merged.get(arrow.name)
        if existing is None:
            merged[arrow.name] = _from_arrow(arrow, parent_id, numbering, path, path.count(".") + 1)
            continue
        if logical_types.from_arrow(arrow.type) != existing.logical_type:
            raise InvalidSchemaError(
                f"column {path!r} is {existing.data_type} and cannot be merged with {arrow.type}", column=path
            )
        arrow_children = _child_fields(arrow.type, existing.logical_type)
        if arrow_children:
            children = _merge_fields(existing.children, arrow_children, numbering, existing.id, path + ".")
            merged[arrow.name] = replace(existing, children=children)
    return tuple(merged.values())


def _find_ignoring_case(fields: Sequence[Field], name: str) -> Field | None:
    folded = name.lower()
    matches = [field for field in fields if field.name.lower() == folded]
    exact = [field for field in matches if field.name == name]
    if exact:
        return exact[0]
    return matches[0] if len(matches) == 1 else None


# --------------------------------------------------------------------------------------------------------- to Arrow


def _arrow_field(
    name: str, data_type: pa.DataType, nullable: bool, metadata: Mapping[str, bytes] = _NO_METADATA
) -> pa.Field:
    if not nullable and pa.types.is_null(data_type):
        # Other writers create non-nullable null fields, which pyarrow's constructor rejects.
        return pa.field(name, data_type, True, metadata or None).with_nullable(False)
    return pa.field(name, data_type, nullable, metadata or None)
