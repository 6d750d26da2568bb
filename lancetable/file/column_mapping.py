"""Mapping from schema fields to the columns of a file.

    a: int32, p: struct<x, l: list<int8>>, v: fixed_size_list

    0.1       pages are located by field id instead, including those of structs and lists
    2.0       a 0   p 1   p.x 2   p.l 3   p.l.item 4   v 5       structs and lists have a column of their own
    from 2.1  a 0         p.x 1           p.l.item 2   v 3       leaves only

Columns are numbered depth first. A packed struct, a blob and an empty struct have one column each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lancetable.format.schema import Field, Schema
from lancetable.format.version import FileVersion


def number_columns(schema: Schema, version: FileVersion) -> tuple[list[int], list[int]]:
    """Return the ids of the fields that have a column in a file with exactly this schema, and their column numbers.

    In 0.1 the column numbers are the field ids.
    """
    if version.is_legacy:
        ids = sorted(field.id for field in schema.walk())
        return ids, ids
    fields = [field for top in schema.fields for field in stored_fields(top, version)]
    return [field.id for field in fields], list(range(len(fields)))


def column_map(schema: Schema, version: FileVersion) -> dict[int, int]:
    """Return a map from field id to column for a file with exactly this schema."""
    ids, columns = number_columns(schema, version)
    return dict(zip(ids, columns))


def column_of(field_ids: Sequence[int], column_indices: Sequence[int]) -> Mapping[int, int]:
    """Return a map from field id to column for the two lists of a manifest; omit fields without a column."""
    return {field_id: column for field_id, column in zip(field_ids, column_indices) if column >= 0}


def stored_fields(field: Field, version: FileVersion) -> list[Field]:
    """Return `field` and its descendants, limited to those that have a column, in column order."""
    if is_single_column(field):
        return [field]
    descendants = [stored for child in field.children for stored in stored_fields(child, version)]
    return [field, *descendants] if version is FileVersion.V2_0 else descendants


def is_single_column(field: Field) -> bool:
    """Return True if one column stores the field with all its descendants."""
    return not field.children or field.is_packed or field.is_blob_v2
