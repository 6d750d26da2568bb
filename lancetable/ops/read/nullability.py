"""Columns whose pages cannot store a null, detected from data file footers."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from lancetable.errors import LanceError
from lancetable.file.reader import pages_without_nulls
from lancetable.format.schema import Field
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.field_locations import field_index
from lancetable.table.version import TableVersion


def null_free_columns(version: TableVersion, names: Iterable[str], *, most_files: int, most_pages: int) -> list[str]:
    """Return the top-level columns of primitive values that are nullable in the schema and stored without nulls.

    Returns an empty list if the store is not local, because each file would cost a request, if there are more than
    `most_files` files, or if a footer cannot be read. Stops after `most_pages` pages. The result is derived from the
    page encodings in the footers; the values are not read. A caller that depends on the absence of nulls must check the
    values.
    """
    fragments = version.manifest.fragments
    if not version.store.capabilities.local or len(fragments) > most_files:
        return []
    requested = set(names)
    fields = [field for field in version.schema.fields if field.name in requested and _encoding_shows_nulls(field)]
    null_free: list[str] = []
    try:
        owners = [field_index(version, fragment).owner for fragment in fragments]
        fields = [field for field in fields if all(field.id in owner for owner in owners)]
        if sum(len({owner[field.id] for field in fields}) for owner in owners) > most_files:
            return []
        for field in fields:
            if most_pages < len(fragments):
                break
            pages = _pages_without_nulls(version, field, most_pages)
            if pages is not None:
                null_free.append(field.name)
            most_pages -= len(fragments) if pages is None else pages
    except LanceError:
        return []  # the scan reports the error if it reads the damaged file
    return null_free


def _encoding_shows_nulls(field: Field) -> bool:
    """Return whether the page encoding shows the nulls of a column, unlike for dictionaries, lists and blobs."""
    data_type = field.data_type
    if not field.nullable or field.children or field.is_blob:
        return False
    return not (pa.types.is_nested(data_type) or pa.types.is_dictionary(data_type) or pa.types.is_null(data_type))


def _pages_without_nulls(version: TableVersion, field: Field, most_pages: int) -> int | None:
    """Return the number of pages of a column if no page encoding in its files allows nulls, else None."""
    total = 0
    for fragment in version.manifest.fragments:
        index = field_index(version, fragment)
        number = index.owner[field.id]
        meta = file_metadata(version, fragment.files[number])
        pages = pages_without_nulls(meta, field, index.columns[number], most_pages - total)
        if pages is None:
            return None
        total += pages
    return total
