"""Dictionary values of 0.1 tables: one array for each dictionary column, before everything else in the manifest file.

    "aab"  i64 0 2 3    u32 size, transaction ...        Field.dictionary = (offset 3, length 2)

All data files of the table hold indices into them, so a column's dictionary never changes while its rows stay; every
version repeats the values in its own manifest file.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lancetable.file.encodings_v0_1.fields import read_dictionaries
from lancetable.file.fetch import run
from lancetable.format.schema import Field
from lancetable.table.version import TableVersion

__all__ = ["dictionaries_of", "dictionary_fields"]


def dictionary_fields(version: TableVersion) -> list[Field]:
    """The dictionary fields of a version whose values lie in its manifest file."""
    return [
        each
        for each in version.schema.walk()
        if each.dictionary is not None and each.dictionary != (0, 0) and each.logical_type.startswith("dict:")
    ]


def dictionaries_of(version: TableVersion) -> Mapping[int, pa.Array]:
    """The values of all dictionary fields, by field id; empty where the manifest file has none.

    Raises CorruptFileError for positions outside of the manifest file or values that break the format.
    """
    fields = dictionary_fields(version)
    if not fields:
        return {}
    manifest = version.manifest
    key = ("dictionaries", id(manifest))
    found = version.cache.get(key)
    # Kept together with the manifest, which keeps its id from being used again.
    if found is not None and found[0] is manifest:
        kept: Mapping[int, pa.Array] = found[1]
        return kept
    location = version.location
    size = version.store.size(location.path) if location.size_bytes is None else location.size_bytes
    made = run(read_dictionaries(fields, size), version.store, location.path)
    version.cache.put(key, (manifest, made), 1024 + sum(items.nbytes for items in made.values()))
    return made
