"""Estimated sizes of rows in files and in memory, for choosing the sizes of tasks and row ranges."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.field_locations import field_index
from lancetable.table.row_counts import physical_rows
from lancetable.table.version import TableVersion


def bytes_per_row(version: TableVersion, fragment: Fragment, columns: Sequence[Field]) -> float:
    """Return the average size of a row of some columns in the fragment's files; 0.0 for an empty fragment."""
    num_rows = physical_rows(version, fragment)
    if not num_rows:
        return 0.0
    index = field_index(version, fragment)
    owners = [(index.owner.get(field.id), field.id) for column in columns for field in column.walk()]
    return (
        sum(
            file_metadata(version, fragment.files[number]).column_size_bytes(index.columns[number][field_id])
            for number, field_id in owners
            if number is not None
        )
        / num_rows
    )


def memory_per_row(version: TableVersion, fragment: Fragment, columns: Sequence[Field]) -> float:
    """Return the estimated size of a row of some columns in memory, from types and file metadata."""
    total = 0.0
    for column in columns:
        stored = bytes_per_row(version, fragment, [column])
        if any(field.is_blob for field in column.walk()) and (num_rows := physical_rows(version, fragment)):
            # The bytes of blobs are in the file, but not in its column.
            stored = sum(file.size_bytes or 0 for file in fragment.files) / num_rows
        total += max(stored, min_bytes(column.data_type))
    return total


def has_fixed_size(kind: pa.DataType) -> bool:
    """Return True if all values of a type have the same size in memory."""
    if pa.types.is_fixed_size_list(kind):
        return has_fixed_size(kind.value_type)
    if pa.types.is_struct(kind):
        return all(has_fixed_size(kind.field(number).type) for number in range(kind.num_fields))
    return _bit_width(kind) is not None


def min_bytes(kind: pa.DataType) -> float:
    """Return the size of a value of a type in memory, or a low estimate for types of variable size."""
    if pa.types.is_fixed_size_list(kind):
        return float(kind.list_size * min_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return sum(min_bytes(kind.field(number).type) for number in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return 4 + min_bytes(kind.field(0).type)
    width = _bit_width(kind)
    return 12.0 if width is None else width / 8


def _bit_width(kind: pa.DataType) -> int | None:
    try:
        return int(kind.bit_width)
    except ValueError:
        return None
