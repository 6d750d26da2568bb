"""What the tail of a data file says: footer, schema and column metadata, from the cache or from the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import CorruptFileError
from lancetable.file.legacy_container import LegacyMetadata
from lancetable.file.reader import FileMetadata, open_data_file
from lancetable.table.dictionaries import dictionaries_of

if TYPE_CHECKING:
    from lancetable.format.fragment import DataFile
    from lancetable.table.version import TableVersion

__all__ = ["file_metadata"]


def file_metadata(version: TableVersion, data_file: DataFile) -> FileMetadata:
    """Footer, schema and column metadata of a data file, from the cache or from the file."""
    path = version.data_file_path(data_file)
    # Pages of a 0.1 file are found by what its record lists first, which a repair may change.
    first = data_file.fields[0] if data_file.is_legacy and data_file.fields else 0
    key = ("file", version.store.key(path), first)
    found = version.cache.get(key)
    if isinstance(found, FileMetadata):
        return found
    made = open_data_file(version.store, path, size=data_file.size_bytes or None)
    if made.version.is_legacy != data_file.is_legacy:
        raise CorruptFileError(
            f"{version.store.uri(path)}: a file of version {made.version}, {data_file.major}.{data_file.minor} in the"
            " manifest",
            path=path,
            expected=f"{data_file.major}.{data_file.minor}",
            found=str(made.version),
        )
    if isinstance(made, LegacyMetadata):
        made.first_field = first if first >= 0 else None
        made.dictionaries = dictionaries_of(version)
    version.cache.put(key, made, made.memory_bytes)
    return made
