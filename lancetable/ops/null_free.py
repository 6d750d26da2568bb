"""Columns that have no nulls in a version, as far as the tails of its files tell: encodings without a place for one."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from lancetable.errors import LanceError
from lancetable.file.reader import has_no_nulls
from lancetable.format.schema import Field
from lancetable.table.file_layouts import FragmentFiles, files_of
from lancetable.table.open_files import file_metadata
from lancetable.table.version import TableVersion

__all__ = ["null_free_columns"]


def null_free_columns(version: TableVersion, names: Iterable[str], most_files: int) -> list[str]:
    """Those of some top-level columns of plain values that have no nulls, though they might.

    None of them if it would take a request for each file, or more than `most_files` files. What files say is not held
    against their values: whoever relies on it checks these.
    """
    fragments = version.manifest.fragments
    if not version.store.capabilities.local or len(fragments) > most_files:
        return []
    wanted = set(names)
    fields = [field for field in version.schema.fields if field.name in wanted and _may_be_told(field)]
    try:
        held = [files_of(version, fragment) for fragment in fragments]
        fields = [field for field in fields if all(field.id in files.owner for files in held)]
        if sum(len({files.owner[field.id] for field in fields}) for files in held) > most_files:
            return []
        return [field.name for field in fields if all(_is_null_free(version, files, field) for files in held)]
    except LanceError:
        return []  # a scan says what is wrong, and not all scans need what is


def _may_be_told(field: Field) -> bool:
    """Whether nulls of a column are nulls of its encoding: not of a dictionary, an item or a blob."""
    kind = field.data_type
    if not field.nullable or field.children or field.is_blob:
        return False
    return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_null(kind))


def _is_null_free(version: TableVersion, files: FragmentFiles, field: Field) -> bool:
    number = files.owner[field.id]
    return has_no_nulls(file_metadata(version, files.files[number]), field, files.columns[number])
