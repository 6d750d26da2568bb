"""Cached metadata of data files: footer, schema and column metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import CorruptFileError
from lancetable.file.footer import FileMetadata
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.file.reader import open_data_file
from lancetable.table.legacy_dictionaries import dictionaries_of

if TYPE_CHECKING:
    from lancetable.format.fragment import DataFile
    from lancetable.table.version import TableVersion


def file_metadata(version: TableVersion, data_file: DataFile) -> FileMetadata:
    """Return the metadata of a data file from the cache or the file.

    Raises CorruptFileError if the file is damaged or has another version than the manifest records.
    """
    path = version.data_file_path(data_file)
    # The pages of a 0.1 file are located by the first field of its manifest entry, which a repair may change.
    first = data_file.fields[0] if data_file.is_legacy and data_file.fields else 0
    key = ("file", version.store.key(path), first)
    cached = version.cache.get(key)
    if isinstance(cached, FileMetadata):
        return cached
    metadata = open_data_file(version.store, path, size=data_file.size_bytes or None)
    if metadata.version.is_legacy != data_file.is_legacy:
        recorded = f"{data_file.major}.{data_file.minor}"
        raise CorruptFileError("format version differs from the manifest", recorded, str(metadata.version), path=path)
    if isinstance(metadata, LegacyMetadata):
        metadata.first_field = first if first >= 0 else None
        metadata.dictionaries = dictionaries_of(version)
    version.cache.put(key, metadata, metadata.memory_bytes)
    return metadata
