"""Dictionary values of 0.1 tables on their way into the next manifest file.

    newest manifest file  [aa b]            data file of an Append  [aa b c]       ->   next manifest file  [aa b c]

Every version repeats the values before its own sections, because readers look for them there and nowhere else. Data
files hold them too, so a commit can collect what it needs from the files it adds, whoever wrote them. All files of a
table must agree: of any two lists of values one has to begin with the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from lancetable.errors import RetryableCommitConflictError
from lancetable.file.encodings_v0_1.dictionary import dictionary_parts
from lancetable.file.encodings_v0_1.fields import read_dictionaries
from lancetable.file.fetch import run
from lancetable.file.legacy_container import LegacyMetadata
from lancetable.file.reader import open_data_file
from lancetable.format.fragment import DataFile
from lancetable.format.manifest import Manifest
from lancetable.format.paths import data_path
from lancetable.proto import table_pb2
from lancetable.store.base import ObjectStore
from lancetable.table.dictionaries import dictionaries_of
from lancetable.table.version import TableVersion

__all__ = ["dictionary_head"]


def dictionary_head(store: ObjectStore, base: str, message: table_pb2.Manifest, source: TableVersion | None) -> bytes:
    """What goes before the sections of a manifest file; the dictionary positions in `message` are set on the way.

    `source` is the version whose values stay valid: the newest one, the one that is restored, or None where all rows
    are new. Empty for all but 0.1 tables with dictionary columns. Raises RetryableCommitConflictError if files that
    were written apart from each other disagree, CorruptFileError if one of them breaks the format.
    """
    fields = {field.id: field for field in message.fields if field.logical_type.startswith("dict:")}
    if not fields or not Manifest(message).file_version.is_legacy:
        return b""
    known = {} if source is None else dict(dictionaries_of(source))
    seen = set() if source is None else set(_paths(source.manifest.message))
    for fragment in message.fragments:
        for file in fragment.files:
            if file.path not in seen and not fields.keys().isdisjoint(file.fields):
                _take_up(known, _values_of(store, base, source, DataFile.from_proto(file)), file.path)
    parts: list[bytes] = []
    position = 0
    for field_id in sorted(known.keys() & fields.keys()):
        data, positions, offset = dictionary_parts(known[field_id], position)
        fields[field_id].dictionary.offset = offset
        fields[field_id].dictionary.length = len(known[field_id])
        parts += (bytes(data), positions)
        position = sum(map(len, parts))
    return b"".join(parts)


def _paths(message: table_pb2.Manifest) -> Iterable[str]:
    return (file.path for fragment in message.fragments for file in fragment.files)


def _values_of(store: ObjectStore, base: str, source: TableVersion | None, file: DataFile) -> dict[int, pa.Array]:
    """The values that a data file has for itself."""
    path = data_path(base, file.path) if source is None else source.data_file_path(file)
    metadata = open_data_file(store, path, size=file.size_bytes or None)
    if not isinstance(metadata, LegacyMetadata):
        return {}
    return run(read_dictionaries(list(metadata.schema.walk()), metadata.size_bytes), store, path)


def _take_up(known: dict[int, pa.Array], values: Mapping[int, pa.Array], path: str) -> None:
    for field_id, items in values.items():
        before = known.setdefault(field_id, items)
        shorter, longer = sorted((before, items), key=len)
        if not longer.slice(0, len(shorter)).equals(shorter):
            raise RetryableCommitConflictError(
                f"{path}: its dictionary for field {field_id} does not go on where that of the table ends. In 0.1 all"
                " files of a table share one dictionary for each column: write the rows again on the newest version"
            )
        known[field_id] = longer
