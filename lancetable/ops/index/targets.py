"""Names, columns and kinds of indexes that are built."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lancetable.errors import IndexExistsError, IndexNotFoundError, InvalidInputError, UnsupportedFeatureError
from lancetable.format.index import kind_name
from lancetable.index.segments import IndexSegment, index_entries, index_segments
from lancetable.index.vector_segments import is_vector_segment, vector_type_name
from lancetable.ops.index.segment_builder import IndexTarget
from lancetable.ops.read.projection import column_not_found
from lancetable.table.fragment_reuse_entry import INDEX_NAME

if TYPE_CHECKING:
    from lancetable.format.index import IndexMetadata
    from lancetable.format.schema import Field, Schema
    from lancetable.index.kind import IndexKind
    from lancetable.table.version import TableVersion


def target_of(
    version: TableVersion, column: str, kind: IndexKind, name: str | None, options: Mapping[str, Any], *, replace: bool
) -> IndexTarget:
    """Return the index to build on a column.

    Raises
    ------
    ColumnNotFoundError
        If the column does not exist.
    UnsupportedTypeError
        If the kind does not support its type.
    IndexExistsError
        If an index with this name is on another column, or exists although `replace` is False.
    InvalidInputError
        If the name is reserved.
    """
    kind = kind.for_options(options)
    field = find_column(version.schema, column)
    path = version.schema.path_of(field.id)
    _check_not_repeated(version.schema, field, path)
    kind.check_field(field, path)
    name = _default_name(version, field, path, kind) if name is None else name
    existing = segments_for_name(version, name, field)
    if existing and not replace:
        raise IndexExistsError(
            f"Index name {name!r} already exists, please specify a different name or use replace=True", index=name
        )
    return IndexTarget(name, field, kind, options)


def existing_target(version: TableVersion, segments: Sequence[IndexSegment]) -> IndexTarget:
    """Return the index of some segments, in order to write more of them.

    Raises
    ------
    UnsupportedFeatureError
        If this library does not know the kind of a segment or its version.
    UnsupportedTypeError
        If the kind does not support the type of the column: pylance builds zone maps of more types.
    """
    kind, first = kind_of(segments), segments[0]
    field = version.schema.by_id[first.files.metadata.fields[0]]
    kind.check_field(field, version.schema.path_of(field.id))
    return IndexTarget(first.name, field, kind, {})


def segments_for_name(version: TableVersion, name: str, field: Field) -> list[IndexSegment]:
    """Return the existing segments of an index on a column that is to be written under a name.

    Raises
    ------
    IndexExistsError
        If the name belongs to an index on another column.
    InvalidInputError
        If the name is reserved.
    """
    if name == INDEX_NAME:
        raise InvalidInputError(f"index name {name!r} is reserved for the fragment reuse index; choose another name")
    existing = segments_named(version, name)
    if any(segment.files.metadata.fields != (field.id,) for segment in existing):
        raise IndexExistsError(
            f"Index name {name!r} already exists with different fields, please specify a different name", index=name
        )
    return existing


def find_column(schema: Schema, column: str) -> Field:
    """Return a field by its dotted path. A path that differs only in case is found if it is the only one.

    Raises
    ------
    ColumnNotFoundError
        If the column does not exist.
    """
    field = schema.field(column)
    if field is not None:
        return field
    folded = column.casefold()
    similar = [field for field in schema.walk() if schema.path_of(field.id).casefold() == folded]
    if len(similar) != 1:
        raise column_not_found(schema, column)
    return similar[0]


def _check_not_repeated(schema: Schema, field: Field, path: str) -> None:
    """Raise UnsupportedFeatureError if a field has several values in a row, because it is inside of a list."""
    parent = schema.by_id.get(field.parent_id)
    while parent is not None:
        if not parent.is_struct:
            raise UnsupportedFeatureError(
                f"column {path!r} is inside of a list, so it has several values in each row; index the list with a"
                " LABEL_LIST index",
                feature="indexes of the elements of lists",
            )
        parent = schema.by_id.get(parent.parent_id)


def _default_name(version: TableVersion, field: Field, path: str, kind: IndexKind) -> str:
    """Return the name of an index on a column: the first one that is free or belongs to the same kind of index."""
    taken = {segment.name: segment for segment in index_segments(version)}
    for number in itertools.count(1):
        name = f"{path}_idx" if number == 1 else f"{path}_idx_{number}"
        other = taken.get(name)
        if other is None or (
            other.files.metadata.fields == (field.id,) and other.kind_name == kind_name(kind.type_url)
        ):
            return name
    raise AssertionError("unreachable")


def segments_named(version: TableVersion, name: str) -> list[IndexSegment]:
    """Return the segments of an index; an empty list if it does not exist."""
    return [segment for segment in index_segments(version) if segment.name == name]


def existing_segments(version: TableVersion, name: str) -> list[IndexSegment]:
    """Return the segments of an index.

    Raises
    ------
    IndexNotFoundError
        If it does not exist.
    """
    existing_entries(version, name)
    return segments_named(version, name)


def existing_entries(version: TableVersion, name: str) -> list[IndexMetadata]:
    """Return the entries of the segments of an index, which are available even if its settings are malformed.

    Raises
    ------
    IndexNotFoundError
        If it does not exist.
    """
    entries = index_entries(version)
    found = [entry for entry in entries if entry.name == name]
    if not found:
        names = sorted({entry.name for entry in entries})
        known = f"; the table has {', '.join(names)}" if names else "; the table has no index"
        raise IndexNotFoundError(
            f'Index "{name}" not found in version {version.version} of {version.uri}{known}', index=name
        )
    return found


def kind_of(segments: Sequence[IndexSegment]) -> IndexKind:
    """Return the kind of an index.

    Raises
    ------
    UnsupportedFeatureError
        If this library does not know the kind of a segment or its version.
    """
    for segment in segments:
        if segment.name == INDEX_NAME:
            raise UnsupportedFeatureError(
                f"{INDEX_NAME!r} records deferred compactions and contains no values; optimize.optimize_indices()"
                " applies and removes it",
                feature="searches of the fragment reuse index",
            )
        if segment.kind is None:
            entry = segment.files.metadata
            name = (vector_type_name(segment) if is_vector_segment(segment) else segment.kind_name) or "unknown type"
            raise UnsupportedFeatureError(
                f"index {segment.name!r} is of the type {name}, version {entry.index_version or 0}, which is not"
                " supported; use the library that has created it, or drop it",
                feature=f"{name} of version {entry.index_version or 0}",
            )
    kind = segments[0].kind
    assert kind is not None
    return kind
