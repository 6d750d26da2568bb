"""Dictionary values of format 0.1 tables in manifest files.

    newest manifest file  [aa b]            data file of an Append  [aa b c]       ->   next manifest file  [aa b c]

Every manifest file repeats the values before its own sections, because readers look for them only there. Data files
contain them too, so a commit collects them from the files that it adds, regardless of their writer. All files of a
table must agree: of any two lists of values, one must be a prefix of the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lancetable.errors import RetryableCommitConflictError
from lancetable.file.encodings_v0_1.field_readers import read_dictionaries
from lancetable.file.encodings_v0_1.var_binary import page_parts
from lancetable.file.io_scheduler import run
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.file.reader import open_data_file
from lancetable.format.fragment import DataFile
from lancetable.format.manifest import Manifest
from lancetable.format.paths import data_path
from lancetable.proto import table_pb2
from lancetable.store.base import ObjectStore
from lancetable.table.legacy_dictionaries import dictionaries_of
from lancetable.table.version import TableVersion


def dictionary_prefix(store: ObjectStore, base: str, message: table_pb2.Manifest, source: TableVersion | None) -> bytes:
    """Serialize the dictionary values that precede the sections of a manifest file.

    Sets the positions of the dictionaries in `message`.

    Parameters
    ----------
    store, base
        Object store and path of the table.
    message
        The next manifest.
    source
        The version whose values stay valid: the newest or restored version, or None if all rows are new.

    Returns
    -------
    bytes
        Empty unless the table has format 0.1 and dictionary columns.

    Raises
    ------
    RetryableCommitConflictError
        If the dictionaries of two files disagree.
    CorruptFileError
        If a file is damaged.
    StoreError
        If the store fails.
    """
    fields = {field.id: field for field in message.fields if field.logical_type.startswith("dict:")}
    if not fields or not Manifest(message).file_version.is_legacy:
        return b""
    known = {} if source is None else dict(dictionaries_of(source))
    before = () if source is None else source.manifest.message.fragments
    seen = {file.path for fragment in before for file in fragment.files}
    for fragment in message.fragments:
        for file in fragment.files:
            if file.path not in seen and not fields.keys().isdisjoint(file.fields):
                _merge_values(known, _values_of(store, base, source, DataFile.from_proto(file)), file.path)
    parts: list[bytes] = []
    position = 0
    for field_id in sorted(known.keys() & fields.keys()):
        data, positions, offset = page_parts(known[field_id], position)
        fields[field_id].dictionary.offset = offset
        fields[field_id].dictionary.length = len(known[field_id])
        parts += (bytes(data), positions)
        position = sum(map(len, parts))
    return b"".join(parts)


def _values_of(store: ObjectStore, base: str, source: TableVersion | None, file: DataFile) -> dict[int, pa.Array]:
    """Return the dictionary values that a data file contains, by field id."""
    path = data_path(base, file.path) if source is None else source.data_file_path(file)
    metadata = open_data_file(store, path, size=file.size_bytes or None)
    if not isinstance(metadata, LegacyMetadata):
        return {}
    return run(read_dictionaries(list(metadata.schema.walk()), metadata.size_bytes), store, path)


def _merge_values(known: dict[int, pa.Array], values: Mapping[int, pa.Array], path: str) -> None:
    """Extend `known` by the values of one file. Raises RetryableCommitConflictError if neither is a prefix."""
    for field_id, items in values.items():
        before = known.setdefault(field_id, items)
        shorter, longer = sorted((before, items), key=len)
        if not longer.slice(0, len(shorter)).equals(shorter):
            raise RetryableCommitConflictError(
                f"{path}: the dictionary of field {field_id} does not extend that of the table. In format 0.1, all"
                " files of a table share one dictionary per column; write the rows again on the newest version"
            )
        known[field_id] = longer
