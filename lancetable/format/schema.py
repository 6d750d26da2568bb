"""Fields and schemas: a tree of named, numbered fields, stored as a flat list in which a parent precedes its children.

    id  parent  name   logical type                     top level: parent -1
     0    -1    id     int64
     1    -1    point  struct
     2     1    x      double
     3    -1    tags   list
     4     3    item   string

A field keeps its id through renames; data files are joined to the schema by id alone. Fixed-size lists (except of
structs) and dictionaries have no child fields, so their inner types have no ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, cast

import pyarrow as pa

from lancetable.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    InvalidSchemaError,
    UnsupportedFeatureError,
)
from lancetable.format import logical_types
from lancetable.format.arrow_extensions import SchemaCapsule, extension_metadata, restore_extensions
from lancetable.format.field_paths import format_path, parse_path
from lancetable.format.logical_types import EXTENSION_METADATA_KEY, EXTENSION_NAME_KEY
from lancetable.proto import file_pb2

__all__ = ["RESERVED_NAMES", "Field", "Schema"]

RESERVED_NAMES: Final = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"}
)
MAX_DEPTH: Final = 64

PRIMARY_KEY: Final = "lance-schema:unenforced-primary-key"
PRIMARY_KEY_POSITION: Final = "lance-schema:unenforced-primary-key:position"
CLUSTERING_KEY_POSITION: Final = "lance-schema:unenforced-clustering-key:position"
BLOB_KEY: Final = "lance-encoding:blob"
BLOB_V2_NAME: Final = b"lance.blob.v2"
PACKED_KEY: Final = "lance-encoding:packed"

_NO_METADATA: Final[Mapping[str, bytes]] = {}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a schema, with the tree below it. Source: protos/file.proto, Field.

    `metadata` is the Arrow field metadata, the name of an extension type included. `encoding` and `dictionary` serve
    the 0.1 format only: `dictionary` is (offset, length) of the dictionary's values in the manifest file.
    """

    name: str
    id: int
    parent_id: int
    logical_type: str
    nullable: bool = True
    children: tuple[Field, ...] = ()
    metadata: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    encoding: int = 0
    dictionary: tuple[int, int] | None = None
    is_primary_key: bool = False
    primary_key_position: int = 0  # counts from 1; 0: none
    is_clustering_key: bool = False
    clustering_key_position: int = 0
    _data_type: pa.DataType | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def data_type(self) -> pa.DataType:
        """The Arrow type as it is stored: extension types at any depth appear as what they are stored in.

        JSON is stored as large binary (JSONB). A blob is large binary.
        """
        cached = self._data_type
        if cached is not None:
            return cached
        data_type = logical_types.leaf_type(self.logical_type)
        if data_type is None:
            children = [_arrow_field(child.name, child.data_type, child.nullable) for child in self.children]
            data_type = logical_types.to_arrow(self.logical_type, children=children)
        object.__setattr__(self, "_data_type", data_type)
        return data_type

    def to_arrow(self) -> pa.Field:
        """The Arrow field as users see it: with metadata, and extension types that pyarrow knows restored."""
        arrow = self._to_plain_arrow()
        return restore_extensions(arrow) if self._has_extension() else arrow

    @property
    def extension_name(self) -> str | None:
        """Name of the Arrow extension type of this field, if it has one."""
        name = self.metadata.get(EXTENSION_NAME_KEY)
        return None if name is None else name.decode("utf-8", "replace")

    @property
    def is_leaf(self) -> bool:
        """Whether this field has no child fields; true for an empty struct."""
        return not self.children

    @property
    def is_struct(self) -> bool:
        return self.logical_type == "struct"

    @property
    def is_list(self) -> bool:
        """Whether this is a list or large list, of structs or anything else."""
        return self.logical_type in ("list", "list.struct", "large_list", "large_list.struct")

    @property
    def is_packed(self) -> bool:
        """Whether this struct is stored row by row in one column."""
        if self.logical_type != "struct" or not self.metadata:
            return False
        return _is_true(self.metadata.get("packed")) or _is_true(self.metadata.get(PACKED_KEY))

    @property
    def is_blob(self) -> bool:
        """Whether values lie apart from their column, which holds positions and sizes."""
        return bool(self.metadata) and self.logical_type == "large_binary" and BLOB_KEY in self.metadata

    @property
    def is_blob_v2(self) -> bool:
        """Whether this struct is the second form of blobs (data format 2.2 on)."""
        return self.logical_type == "struct" and self.metadata.get(EXTENSION_NAME_KEY) == BLOB_V2_NAME

    @property
    def is_json(self) -> bool:
        return self.logical_type == "json"

    def walk(self) -> Iterator[Field]:
        """This field and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def child(self, name: str) -> Field | None:
        """The direct child of this name."""
        for child in self.children:
            if child.name == name:
                return child
        return None

    def to_proto(self) -> file_pb2.Field:
        """This field alone; its children are entries of their own in the flat list."""
        message = file_pb2.Field(
            name=self.name,
            id=self.id,
            parent_id=self.parent_id,
            logical_type=self.logical_type,
            nullable=self.nullable,
            encoding=cast("file_pb2.Encoding", self.encoding),  # any number: only 0.1 reads it
        )
        if self.metadata:  # what few fields have is not mentioned for the others: schemas can be wide
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

    def _to_plain_arrow(self) -> pa.Field:
        """With metadata at every level; extension names stay metadata."""
        data_type = logical_types.leaf_type(self.logical_type)
        metadata: Mapping[str, bytes] = self.metadata
        if data_type is None:
            children = [child._to_plain_arrow() for child in self.children]
            data_type = logical_types.to_arrow(self.logical_type, children=children)
        elif self.logical_type == "json":
            data_type = pa.utf8()
            metadata = {**metadata, EXTENSION_NAME_KEY: b"arrow.json"}
            metadata.setdefault(EXTENSION_METADATA_KEY, b"")
        return _arrow_field(self.name, data_type, self.nullable, metadata)

    def _has_extension(self) -> bool:
        if self.logical_type == "json" or EXTENSION_NAME_KEY in self.metadata or _HAS_BFLOAT16 in self.logical_type:
            return True
        return any(child._has_extension() for child in self.children)


_HAS_BFLOAT16: Final = f":{logical_types.BFLOAT16_NAME}:"


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a table or of a data file, in order, and the schema's metadata."""

    fields: tuple[Field, ...]
    metadata: Mapping[str, bytes] = field(default_factory=dict, hash=False)
    _by_id: dict[int, Field] | None = field(default=None, init=False, repr=False, compare=False)
    _by_name: dict[str, Field] | None = field(default=None, init=False, repr=False, compare=False)
    _arrow: pa.Schema | None = field(default=None, init=False, repr=False, compare=False)

    # ------------------------------------------------------------------------------------------------- conversions

    @classmethod
    def from_protos(
        cls, fields: Iterable[file_pb2.Field], metadata: Mapping[str, bytes] = _NO_METADATA, path: str | None = None
    ) -> Schema:
        """Build the tree from the flat list of a manifest or data file; `path` names that file in errors.

        Raises CorruptFileError if a child comes before its parent, an id occurs twice, a field has the wrong number
        of children or the tree is deeper than 64; UnsupportedFeatureError for a logical type that is not known.
        """
        return cls(_build_tree(fields, path), dict(metadata) if metadata else {})

    def to_protos(self) -> list[file_pb2.Field]:
        """The flat list, parents first."""
        return [each.to_proto() for each in self.walk()]

    @classmethod
    def from_arrow(cls, schema: pa.Schema, *, first_id: int = 0, check: bool = True) -> Schema:
        """Number the fields of an Arrow schema, depth first from `first_id`.

        Raises UnsupportedFeatureError for types that cannot be stored and, if `check` is set, InvalidSchemaError for
        names no table may have (duplicate, with a dot, reserved) and for nullable key columns.
        """
        if check:
            _check_names(schema.names)
        numbering = _Numbering(first_id)
        fields = tuple([_from_arrow(each, -1, numbering, each.name, 1) for each in schema])
        result = cls(fields, _decode_metadata(schema.metadata))
        if check:
            _check_keys(fields)
        return result

    def to_arrow(self) -> pa.Schema:
        """The Arrow schema as users see it; see `Field.to_arrow`. Cached."""
        cached = self._arrow
        if cached is not None:
            return cached
        schema = pa.schema([each._to_plain_arrow() for each in self.fields], metadata=self.metadata or None)
        if any(each._has_extension() for each in self.fields):
            schema = _restore_schema_extensions(schema, self.fields)
        object.__setattr__(self, "_arrow", schema)
        return schema

    def to_storage_arrow(self) -> pa.Schema:
        """The Arrow schema as it is stored: field metadata at the top level only, extension types as their storage."""
        return pa.schema(
            [_arrow_field(each.name, each.data_type, each.nullable, each.metadata) for each in self.fields],
            metadata=self.metadata or None,
        )

    # ------------------------------------------------------------------------------------------------------ look-up

    @property
    def names(self) -> list[str]:
        """Names of the top-level fields."""
        return [each.name for each in self.fields]

    def walk(self) -> Iterator[Field]:
        """All fields, parents first."""
        for each in self.fields:
            yield from each.walk()

    @property
    def by_id(self) -> Mapping[int, Field]:
        """Every field by its id; the parts of a blob's description in a data file have none. Cached."""
        cached = self._by_id
        if cached is None:
            cached = {each.id: each for each in self.walk() if each.id >= 0}
            object.__setattr__(self, "_by_id", cached)
        return cached

    def ids(self) -> set[int]:
        """Ids of all fields."""
        return set(self.by_id)

    @property
    def max_id(self) -> int:
        """Highest field id; -1 without fields."""
        return max(self.by_id, default=-1)

    def field(self, path: str) -> Field | None:
        """The field at a dotted path such as `point.x`; backticks quote names with dots. None if there is none.

        A whole top-level name always wins, dots or not.
        """
        by_name = self._by_name
        if by_name is None:
            by_name = {}
            for each in self.fields:
                by_name.setdefault(each.name, each)
            object.__setattr__(self, "_by_name", by_name)
        found = by_name.get(path)
        if found is not None or ("." not in path and "`" not in path):
            return found
        first, *rest = parse_path(path)
        found = by_name.get(first)
        for name in rest:
            if found is None:
                return None
            found = found.child(name)
        return found

    def field_case_insensitive(self, path: str) -> Field | None:
        """As `field`, but falls back to names that differ only in case."""
        exact = self.field(path)
        if exact is not None:
            return exact
        level: Sequence[Field] = self.fields
        found: Field | None = None
        for name in parse_path(path):
            found = _find_ignoring_case(level, name)
            if found is None:
                return None
            level = found.children
        return found

    def path_of(self, field_id: int) -> str:
        """Dotted path of a field, quoted where needed."""
        names: list[str] = []
        by_id = self.by_id
        current: Field | None = by_id[field_id]
        while current is not None:
            names.append(current.name)
            current = by_id.get(current.parent_id)
        return format_path(reversed(names))

    def primary_key(self) -> list[Field]:
        """Fields of the unenforced primary key: by position, then those without one in schema order."""
        keys = [each for each in self.walk() if each.is_primary_key]
        return sorted(keys, key=lambda each: each.primary_key_position or 2**32)

    def clustering_key(self) -> list[Field]:
        """Fields of the unenforced clustering key, by position."""
        keys = [each for each in self.walk() if each.is_clustering_key or each.clustering_key_position]
        return sorted(keys, key=lambda each: each.clustering_key_position or 2**32)

    # ------------------------------------------------------------------------------------------------ new schemas

    def project(self, paths: Sequence[str]) -> Schema:
        """Only these columns, in this order; a nested path keeps its ancestors, pruned to what was asked for.

        Ids stay. Raises ColumnNotFoundError for a path that is not there.
        """
        wanted: dict[int, set[int] | None] = {}
        for path in paths:
            found = self.field(path)
            if found is None:
                raise ColumnNotFoundError(f"column {path!r} is not in the schema; it has {', '.join(self.names)}")
            self._want(found, wanted)
        by_id = self.by_id
        fields = [_prune(by_id[field_id], kept) for field_id, kept in wanted.items()]
        return Schema(tuple(fields), self.metadata)

    def project_ids(self, ids: Iterable[int]) -> Schema:
        """Only the fields with these ids and their ancestors, in schema order; a field asked for keeps all below it."""
        wanted: dict[int, set[int] | None] = {}
        for field_id in ids:
            self._want(self.by_id[field_id], wanted)
        return Schema(tuple(_prune(each, wanted[each.id]) for each in self.fields if each.id in wanted), self.metadata)

    def without(self, ids: set[int]) -> Schema:
        """Without the fields of these ids and all below them; a struct that loses all its children goes too."""
        kept = [_remove(each, ids) for each in self.fields]
        return Schema(tuple(each for each in kept if each is not None), self.metadata)

    def difference(self, other: Schema) -> Schema:
        """The fields whose ids the other schema does not have."""
        return self.without({each.id for each in other.walk() if not each.children})

    def merge(self, other: pa.Schema, *, first_id: int | None = None) -> Schema:
        """With the fields of an Arrow schema added, numbered from `first_id` (default: after the highest id).

        Structs that both have are merged field by field. Raises InvalidSchemaError if a name exists with another type.
        """
        numbering = _Numbering(self.max_id + 1 if first_id is None else first_id)
        fields = _merge_fields(self.fields, other, numbering, -1, "")
        _check_names([each.name for each in fields])
        _check_keys(fields)
        return Schema(fields, {**self.metadata, **_decode_metadata(other.metadata)})

    def with_metadata(self, metadata: Mapping[str, bytes]) -> Schema:
        """The same fields with other schema metadata."""
        return Schema(self.fields, dict(metadata))

    def replace_field(self, new: Field) -> Schema:
        """With the field of the same id replaced, wherever it stands."""
        return Schema(tuple(_replace(each, new) for each in self.fields), self.metadata)

    def _want(self, found: Field, wanted: dict[int, set[int] | None]) -> None:
        """Note a field under its top-level ancestor: None means all of it, else the ids to keep whole."""
        top = found
        while top.parent_id >= 0:
            top = self.by_id[top.parent_id]
        if top is found:
            wanted[top.id] = None
            return
        kept = wanted.setdefault(top.id, set())
        if kept is not None:
            kept.add(found.id)


# ------------------------------------------------------------------------------------------------------ from protos


def _build_tree(messages: Iterable[file_pb2.Field], path: str | None) -> tuple[Field, ...]:
    fields: dict[int, Field] = {}
    # Only of fields that may have children, in the order of the list; most fields may not.
    children: dict[int, list[Field]] = {-1: []}
    depths = {-1: 0}
    blob: int | None = None
    for message in messages:
        each = _parse_field(message, path)
        field_id = each.id
        if field_id == -1 and blob is not None and each.logical_type in logical_types.SIMPLE:
            # The description of a blob in the schema of a data file: it follows its field and has no ids.
            children[blob].append(each)
            continue
        blob = field_id if each.logical_type == "struct" and BLOB_KEY in each.metadata else None
        siblings = children.get(each.parent_id)
        if siblings is None or field_id in fields or field_id < 0:
            raise _corrupt_tree(each, fields, path)
        siblings.append(each)
        fields[field_id] = each
        depth = depths[each.parent_id] + 1
        if depth > MAX_DEPTH:
            raise CorruptFileError(f"the schema is nested deeper than {MAX_DEPTH}", path=path, expected=MAX_DEPTH)
        if each.logical_type not in logical_types.SIMPLE:
            children[field_id] = []
            depths[field_id] = depth
    top = tuple(children.pop(-1))
    # A parent comes before its children, so walking backwards meets every subtree complete.
    for field_id, below in reversed(children.items()):
        if below:
            object.__setattr__(fields[field_id], "children", tuple(below))
        _check_children(fields[field_id], path)
    return top


def _parse_field(message: file_pb2.Field, path: str | None) -> Field:
    metadata = dict(message.metadata) if message.metadata else {}
    if message.extension_name and EXTENSION_NAME_KEY not in metadata:
        metadata[EXTENSION_NAME_KEY] = message.extension_name.encode()
    return Field(
        message.name,
        message.id,
        message.parent_id,
        message.logical_type,
        message.nullable,
        (),
        metadata,
        message.encoding,
        (message.dictionary.offset, message.dictionary.length) if message.HasField("dictionary") else None,
        message.unenforced_primary_key,
        message.unenforced_primary_key_position,
        message.unenforced_clustering_key,
        message.unenforced_clustering_key_position,
    )


def _check_children(each: Field, path: str | None) -> None:
    try:
        expected = logical_types.num_children(each.logical_type)
    except UnsupportedFeatureError as error:
        raise UnsupportedFeatureError(
            f"column {each.name!r}: {error}", feature=error.feature, path=path, column=each.name
        ) from None
    except CorruptFileError as error:
        raise CorruptFileError(f"column {each.name!r}: {error}", path=path, found=error.found) from None
    if expected is not None and len(each.children) != expected:
        raise CorruptFileError(
            f"column {each.name!r} of type {each.logical_type} has {len(each.children)} child fields, not {expected}",
            path=path,
            expected=expected,
            found=len(each.children),
        )
    if expected == 1:
        _check_only_child(each, each.children[0], path)


def _check_only_child(parent: Field, child: Field, path: str | None) -> None:
    kind = parent.logical_type
    if kind == "map":
        suits = child.logical_type == "struct" and len(child.children) == 2
    elif kind.endswith(".struct") or kind.startswith("fixed_size_list:"):
        suits = child.logical_type == "struct"
    else:
        return
    if not suits:
        raise CorruptFileError(
            f"column {parent.name!r} of type {kind} cannot hold {child.logical_type}",
            path=path,
            expected="struct",
            found=child.logical_type,
        )


def _corrupt_tree(each: Field, fields: Mapping[int, Field], path: str | None) -> CorruptFileError:
    if each.id in fields:
        complaint = f"has the id of column {fields[each.id].name!r}"
    elif each.id < 0:
        complaint = "has a negative id"
    elif each.parent_id in fields:
        complaint = f"is a child of column {fields[each.parent_id].name!r}, which can have none"
    else:
        complaint = f"comes before its parent {each.parent_id}, or there is none"
    return CorruptFileError(f"column {each.name!r} (id {each.id}) {complaint}", path=path, found=each.id)


# ------------------------------------------------------------------------------------------------------- from Arrow


class _Numbering:
    """Gives out field ids in order."""

    __slots__ = ("next_id",)

    def __init__(self, first_id: int) -> None:
        self.next_id = first_id

    def take(self) -> int:
        self.next_id += 1
        return self.next_id - 1


def _from_arrow(arrow: pa.Field, parent_id: int, numbering: _Numbering, path: str, depth: int) -> Field:
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
    field_id = numbering.take()
    children = tuple(
        [
            _from_arrow(child, field_id, numbering, f"{path}.{child.name}", depth + 1)
            for child in _child_fields(arrow.type, logical_type)
        ]
    )
    return Field(
        arrow.name,
        field_id,
        parent_id,
        logical_type,
        arrow.nullable,
        children,
        metadata,
        logical_types.encoding_of(logical_type),
        (0, 0) if logical_type.startswith("dict:") else None,
        *_keys(metadata),
    )


def _child_fields(data_type: pa.DataType, logical_type: str) -> list[pa.Field]:
    data_type = logical_types.storage_type(data_type)
    if logical_type == "struct":
        return [data_type.field(index) for index in range(data_type.num_fields)]
    if logical_type in ("list", "list.struct", "large_list", "large_list.struct"):
        return [data_type.value_field]
    if logical_type.startswith("fixed_size_list:struct:"):
        return [data_type.value_field]
    if logical_type == "map":
        entries = pa.struct([data_type.key_field.with_nullable(False), data_type.item_field])
        return [pa.field("entries", entries, nullable=False)]
    return []


def _keys(metadata: Mapping[str, bytes]) -> tuple[bool, int, bool, int]:
    """(is primary key, its position, is clustering key, its position), from the field's metadata."""
    if not metadata:
        return False, 0, False, 0
    flag = metadata.get(PRIMARY_KEY)
    position = _position(metadata.get(PRIMARY_KEY_POSITION))
    is_primary = position > 0 or (flag is not None and flag.lower() in (b"true", b"1", b"yes"))
    return is_primary, position if is_primary else 0, False, _position(metadata.get(CLUSTERING_KEY_POSITION))


def _position(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 10 else 0


def _is_true(text: bytes | None) -> bool:
    return text is not None and text.lower() == b"true"


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
            raise InvalidSchemaError(f"duplicate field name {name!r} in the schema")
        if "." in name:
            raise InvalidSchemaError(
                f"top-level field {name!r} cannot contain a dot; maybe a struct field was meant", column=name
            )
        if name in RESERVED_NAMES:
            raise InvalidSchemaError(f"the column {name} is a reserved name and cannot be used in a table", column=name)
        seen.add(name)


def _check_keys(fields: Iterable[Field]) -> None:
    for each in fields:
        if each.is_primary_key and each.nullable:
            raise InvalidSchemaError(
                f"primary key column {each.name!r} and all its ancestors must not be nullable", column=each.name
            )
        if each.children:
            keys = [below for below in each.walk() if below.is_primary_key]
            if keys and each.nullable:
                raise InvalidSchemaError(
                    f"primary key column {keys[0].name!r} and all its ancestors must not be nullable",
                    column=keys[0].name,
                )
            _check_keys(each.children)


# -------------------------------------------------------------------------------------------------- editing the tree


def _prune(each: Field, kept: set[int] | None) -> Field:
    if kept is None or each.id in kept:
        return each
    children = tuple(_prune(child, kept) for child in each.children if any(below.id in kept for below in child.walk()))
    return replace(each, children=children)


def _remove(each: Field, ids: set[int]) -> Field | None:
    if each.id in ids:
        return None
    if not each.children:
        return each
    children = tuple(child for child in (_remove(child, ids) for child in each.children) if child is not None)
    if not children:
        return None
    return each if children == each.children else replace(each, children=children)


def _replace(each: Field, new: Field) -> Field:
    if each.id == new.id:
        return new
    if not each.children:
        return each
    return replace(each, children=tuple(_replace(child, new) for child in each.children))


def _merge_fields(
    mine: tuple[Field, ...], other: Iterable[pa.Field], numbering: _Numbering, parent_id: int, prefix: str
) -> tuple[Field, ...]:
    merged = {each.name: each for each in mine}
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
        below = _child_fields(arrow.type, existing.logical_type)
        if below:
            children = _merge_fields(existing.children, below, numbering, existing.id, path + ".")
            merged[arrow.name] = replace(existing, children=children)
    return tuple(merged.values())


def _find_ignoring_case(fields: Sequence[Field], name: str) -> Field | None:
    folded = name.lower()
    matches = [each for each in fields if each.name.lower() == folded]
    exact = [each for each in matches if each.name == name]
    if exact:
        return exact[0]
    return matches[0] if len(matches) == 1 else None


# --------------------------------------------------------------------------------------------------------- to Arrow


def _arrow_field(
    name: str, data_type: pa.DataType, nullable: bool, metadata: Mapping[str, bytes] = _NO_METADATA
) -> pa.Field:
    if not nullable and pa.types.is_null(data_type):
        # Nonsense, but others write it, and only pyarrow's constructor minds.
        return pa.field(name, data_type, True, metadata or None).with_nullable(False)
    return pa.field(name, data_type, nullable, metadata or None)


def _restore_schema_extensions(arrow: pa.Schema, fields: Sequence[Field]) -> pa.Schema:
    try:
        return pa.schema(SchemaCapsule(arrow))
    except (pa.ArrowException, ValueError, TypeError, KeyError):
        restored = [
            restore_extensions(plain) if each._has_extension() else plain
            for plain, each in zip(arrow, fields, strict=True)
        ]
        return pa.schema(restored, metadata=arrow.metadata)
