"""Repair of manifests written by old releases, as part of the next commit.

    missing or wrong                                     written by              repair
    missing row counts of fragments and deletion files   before 0.8              counted
    wrong row counts, in manifests without a writer      before 0.8              counted again
    missing sizes of data files                          before 0.23             requested from the store
    one field id for two columns, after a drop           before 0.11             the other column gets a new id
    wrong coverage of indices                            before 0.8.15           removed, so that readers recompute it

Readers handle the same mistakes in memory (format/manifest.py: Manifest); a commit repairs them permanently. Manifests
of newer releases are not checked. A missing or wrong data format is corrected by every commit (build_manifest.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lancetable.commit.manifest_draft import ManifestParts
from lancetable.errors import InvalidOperationError
from lancetable.file.reader import open_data_file
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.manifest import Manifest, WriterVersion
from lancetable.proto import table_pb2
from lancetable.table import deletion_vectors
from lancetable.table.version import TableVersion

# The first releases of the reference implementation without these mistakes.
_COMPLETE_SINCE = (0, 23)
_COVERAGE_SINCE = (0, 8, 15)


def repair(built: ManifestParts, source: TableVersion) -> ManifestParts:
    """Return the next manifest with the mistakes of its source version repaired.

    Raises InvalidOperationError if fragments are added to a table with duplicate field ids.
    """
    message = built.message
    writer = source.manifest.writer_version
    if not _is_older(writer, _COMPLETE_SINCE):
        return built
    _renumber_duplicates(message, source)
    known = set(source.manifest.fragments.ids().tolist()) if writer is None else set()
    for fragment in message.fragments:
        _complete(fragment, source, distrust=fragment.id in known)
    if built.index_section is None or not _is_older(writer, _COVERAGE_SINCE):
        return built
    section = table_pb2.IndexSection.FromString(built.index_section)
    for index in section.indices:
        index.ClearField("fragment_bitmap")
    return ManifestParts(message, section.SerializeToString())


def _is_older(writer: WriterVersion | None, version: tuple[int, ...]) -> bool:
    if writer is None:
        return True
    parts = writer.version.split(".")
    if writer.library != "lance" or not all(part.isdecimal() and len(part) < 10 for part in parts):
        return False
    return tuple(map(int, parts)) < version


def _complete(message: table_pb2.DataFragment, source: TableVersion, *, distrust: bool) -> None:
    """Fill in missing sizes and counts of a fragment. With `distrust`, existing counts are replaced too."""
    for file in message.files:
        if not file.file_size_bytes:
            file.file_size_bytes = source.store.size(source.data_file_path(DataFile.from_proto(file)))
    if message.files and (distrust or not message.physical_rows):
        first = DataFile.from_proto(message.files[0])
        metadata = open_data_file(source.store, source.data_file_path(first), size=first.size_bytes)
        message.physical_rows = metadata.num_rows
    if message.HasField("deletion_file") and (distrust or not message.deletion_file.num_deleted_rows):
        message.deletion_file.num_deleted_rows = 0  # so that the reader does not compare the count with the file
        vector = deletion_vectors.read(source, Fragment.from_proto(message))
        message.deletion_file.num_deleted_rows = 0 if vector is None else len(vector)


def _renumber_duplicates(message: table_pb2.Manifest, source: TableVersion) -> None:
    """Assign new ids to fields that several data files of a fragment contain.

    The newest file contains the column of the schema, the others a column that was dropped. Raises
    InvalidOperationError if the commit adds fragments, because their files were written with the old ids.
    """
    duplicates = {field_id for fragment in message.fragments for field_id in _duplicates(fragment.files)}
    if not duplicates:
        return
    if {fragment.id for fragment in message.fragments} - set(source.manifest.fragments.ids().tolist()):
        raise InvalidOperationError(
            f"{source.uri}: an old release assigned the field ids {sorted(duplicates)} twice. A commit that adds no"
            " rows repairs this: run delete('false'), then run the operation again"
        )
    first = Manifest(message).max_field_id + 1
    new_ids = {field_id: number for number, field_id in enumerate(sorted(duplicates), first)}
    for fragment in message.fragments:
        open_ids = dict(new_ids)
        for file in reversed(fragment.files):
            for position, field_id in enumerate(file.fields):
                file.fields[position] = open_ids.pop(field_id, field_id)
    for field in message.fields:
        field.id = new_ids.get(field.id, field.id)
        field.parent_id = new_ids.get(field.parent_id, field.parent_id)
    live = {field.id for field in message.fields}
    for fragment in message.fragments:
        for position in range(len(fragment.files) - 1, -1, -1):
            if live.isdisjoint(fragment.files[position].fields):
                del fragment.files[position]


def _duplicates(files: Iterable[table_pb2.DataFile]) -> set[int]:
    """Return the ids of the fields that several files contain."""
    counts = Counter(field_id for file in files for field_id in set(file.fields) if field_id >= 0)
    return {field_id for field_id, count in counts.items() if count > 1}
