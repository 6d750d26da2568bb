"""Columns that have no nulls in a version, as far as the tails of its files tell: encodings without a place for one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from lancetable.errors import LanceError
from lancetable.file.reader import pages_without_nulls
from lancetable.format.schema import Field
from lancetable.table.file_layouts import FragmentFiles, files_of
from lancetable.table.open_files import file_metadata
from lancetable.table.version import TableVersion

__all__ = ["null_free_columns"]


def null_free_columns(version: TableVersion, names: Iterable[str], *, most_files: int, most_pages: int) -> list[str]:
    """Those of some top-level columns of plain values that have no nulls, though they might.

    None of them if it would take a request for each file, or more than `most_files` files; the first ones if pages are
    more than `most_pages`. What files say is not held against their values: whoever relies on it checks these.
    """
    fragments = version.manifest.fragments
    if not version.store.capabilities.local or len(fragments) > most_files:
        return []
    wanted = set(names)
    fields = [field for field in version.schema.fields if field.name in wanted and _may_be_told(field)]
    found: list[str] = []
    try:
        held = [files_of(version, fragment) for fragment in fragments]
        fields = [field for field in fields if all(field.id in files.owner for files in held)]
        if sum(len({files.owner[field.id] for field in fields}) for files in held) > most_files:
            return []
        for field in fields:
            if most_pages < len(held):
                break
            pages = _pages_without_nulls(version, held, field, most_pages)
            if pages is not None:
                found.append(field.name)
            most_pages -= len(held) if pages is None else pages
    except LanceError:
        return []  # a scan says what is wrong, and not all scans need what is
    return found


def _may_be_told(field: Field) -> bool:
    """Whether nulls of a column are nulls of its encoding: not of a dictionary, an item or a blob."""
    kind = field.data_type
    if not field.nullable or field.children or field.is_blob:
        return False
    return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_null(kind))


def _pages_without_nulls(
    version: TableVersion, held: Sequence[FragmentFiles], field: Field, most_pages: int
) -> int | None:
    """How many pages a column has, if all of its files say that nothing in them is null."""
    total = 0
    for files in held:
        number = files.owner[field.id]
        meta = file_metadata(version, files.files[number])
        pages = pages_without_nulls(meta, field, files.columns[number], most_pages - total)
        if pages is None:
            return None
        total += pages
    return total
