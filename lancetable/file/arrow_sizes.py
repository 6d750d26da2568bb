"""Sizes of the columns of a data file as Arrow arrays, attributed to the fields that have a column.

Payloads of blobs are stored outside their column and are not counted. From 2.1 on, structs and lists have no column:
their offsets and validity are counted with the first leaf below them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from lancetable.file.column_mapping import is_single_column
from lancetable.format.schema import Field


def add_sizes(field: Field, array: pa.Array, column_of_field: Mapping[int, int], sizes: Counter[int]) -> None:
    """Add the bytes of an array to the fields that have a column."""
    if is_single_column(field) or not has_columns(field.children, column_of_field):
        sizes[field.id] += array.nbytes
        return
    children = list(children_of(field, array))
    own = max(array.nbytes - sum(child.nbytes for _, child in children), 0)
    holder = field
    while holder.id not in column_of_field:
        holder = holder.children[0]
    sizes[holder.id] += own
    for child, values in children:
        add_sizes(child, values, column_of_field, sizes)


def has_columns(fields: Sequence[Field], column_of_field: Mapping[int, int]) -> bool:
    """Return True if any of these fields or their descendants has a column."""
    return any(descendant.id in column_of_field for field in fields for descendant in field.walk())


def children_of(field: Field, array: pa.Array) -> Iterator[tuple[Field, pa.Array]]:
    """Yield the child fields of a struct, list or map with their values."""
    if field.is_struct:
        for number, child in enumerate(field.children):
            yield child, array.field(number)
    elif field.logical_type == "map":
        entries = field.children[0]
        names = [child.name for child in entries.children]
        yield entries, pa.StructArray.from_arrays([array.keys, array.items], names)
    else:
        yield field.children[0], array.flatten()
