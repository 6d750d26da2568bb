"""Which columns of a file hold which field, and what a list of paths means.

    a: int32, p: struct<x, l: list<int8>>, v: fixed_size_list

    0.1       no columns: pages are found by field id, of structs and lists too
    2.0       a 0   p 1   p.x 2   p.l 3   p.l.item 4   v 5       structs and lists have a column of their own
    from 2.1  a 0         p.x 1           p.l.item 2   v 3       leaves only

Columns are numbered by a depth-first walk. A packed struct, a blob and an empty struct are one column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lancetable.format.schema import Field, Schema
from lancetable.format.version import FileVersion

__all__ = ["column_map", "column_of", "is_single_column", "number_columns"]


def number_columns(schema: Schema, version: FileVersion) -> tuple[list[int], list[int]]:
    """Ids of the fields that have a column in a file of exactly this schema, and the numbers of their columns.

    In 0.1 the numbers are the ids.
    """
    if version.is_legacy:
        ids = sorted(field.id for field in schema.walk())
        return ids, ids
    fields = [field for top in schema.fields for field in stored_fields(top, version)]
    return [field.id for field in fields], list(range(len(fields)))


def column_map(schema: Schema, version: FileVersion) -> dict[int, int]:
    """Field id -> column, for a file of exactly this schema."""
    ids, columns = number_columns(schema, version)
    return dict(zip(ids, columns))


def column_of(field_ids: Sequence[int], column_indices: Sequence[int]) -> Mapping[int, int]:
    """Field id -> column from the two lists of a manifest; fields without a column are left out."""
    return {field_id: column for field_id, column in zip(field_ids, column_indices) if column >= 0}


def stored_fields(field: Field, version: FileVersion) -> list[Field]:
    """The fields at and below `field` that have a column, in the order of their columns."""
    if is_single_column(field):
        return [field]
    below = [stored for child in field.children for stored in stored_fields(child, version)]
    return [field, *below] if version is FileVersion.V2_0 else below


def is_single_column(field: Field) -> bool:
    """Whether everything below the field lies in its one column."""
    return not field.children or field.is_packed or field.is_blob_v2
