"""About how many bytes rows take, in files and in memory: what windows, tasks and pieces of work are sized by."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lancetable.format.fragment import Fragment
from lancetable.format.schema import Field
from lancetable.table.file_layouts import files_of
from lancetable.table.open_files import file_metadata
from lancetable.table.row_count_index import physical_rows
from lancetable.table.version import TableVersion

__all__ = ["bytes_per_row", "has_fixed_size", "least_bytes", "memory_per_row"]


def bytes_per_row(version: TableVersion, fragment: Fragment, columns: Sequence[Field]) -> float:
    """About how many bytes a row of these columns takes in the fragment's files; 0.0 for an empty fragment."""
    num_rows = physical_rows(version, fragment)
    if not num_rows:
        return 0.0
    files = files_of(version, fragment)
    size_bytes = 0
    for column in columns:
        for field in column.walk():
            file_number = files.owner.get(field.id)
            if file_number is not None:
                index = files.columns[file_number][field.id]
                size_bytes += file_metadata(version, files.files[file_number]).column_size_bytes(index)
    return size_bytes / num_rows


def memory_per_row(version: TableVersion, fragment: Fragment, columns: Sequence[Field]) -> float:
    """About how many bytes a row of these columns takes in memory, as far as types and files tell."""
    total = 0.0
    for column in columns:
        stored = bytes_per_row(version, fragment, [column])
        if any(field.is_blob for field in column.walk()) and (num_rows := physical_rows(version, fragment)):
            # The bytes of blobs lie beside their column.
            stored = sum(file.size_bytes or 0 for file in fragment.files) / num_rows
        total += max(stored, least_bytes(column.data_type))
    return total


def has_fixed_size(kind: pa.DataType) -> bool:
    """Whether every value of a type takes the same number of bytes in memory."""
    if pa.types.is_fixed_size_list(kind):
        return has_fixed_size(kind.value_type)
    if pa.types.is_struct(kind):
        return all(has_fixed_size(kind.field(number).type) for number in range(kind.num_fields))
    try:
        return int(kind.bit_width) >= 0
    except ValueError:
        return False


def least_bytes(kind: pa.DataType) -> float:
    """Bytes that a value of a type takes in memory, those of variable length at least about so many."""
    if pa.types.is_fixed_size_list(kind):
        return float(kind.list_size * least_bytes(kind.value_type))
    if pa.types.is_struct(kind):
        return sum(least_bytes(kind.field(number).type) for number in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return 4 + least_bytes(kind.field(0).type)
    try:
        return float(kind.bit_width / 8)
    except ValueError:
        return 12.0
