"""Dictionary values of 0.1 tables: one array for each dictionary column, at the start of the manifest file.

    "aab"  i64 0 2 3    u32 size, transaction ...        Field.dictionary = (offset 3, length 2)

All data files of the table contain indices into the arrays. A dictionary never changes while the table has rows; each
version repeats it in its manifest file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from lancetable.file.io_scheduler import run
from lancetable.format.schema import Field

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion


def dictionary_fields(version: TableVersion) -> list[Field]:
    """Return the dictionary fields of a version whose values are in its manifest file."""
    return [
        field
        for field in version.schema.walk()
        if field.dictionary not in (None, (0, 0)) and field.logical_type.startswith("dict:")
    ]


def dictionaries_of(version: TableVersion) -> Mapping[int, pa.Array]:
    """Return the values of all dictionary fields by field id; empty if the manifest file has none.

    Raises CorruptFileError for a position outside of the manifest file and for invalid values.
    """
    fields = dictionary_fields(version)
    if not fields:
        return {}

    from lancetable.file.encodings_v0_1.field_readers import (
        read_dictionaries,  # imported here, because few tables need it
    )

    def read() -> Mapping[int, pa.Array]:
        location = version.location
        size = version.store.size(location.path) if location.size_bytes is None else location.size_bytes
        return run(read_dictionaries(fields, size), version.store, location.path)

    return version.cache.get_or_derive(
        "dictionaries", version.manifest, read, lambda values: 1024 + sum(array.nbytes for array in values.values())
    )
