"""What versions of old releases lack or have wrong, put right in the next manifest.

    missing or wrong                                     written by              put right
    row counts of fragments and deletion files           before 0.8              counted
    the same, but wrong: no writer version says so       before 0.8              counted again
    sizes of data files                                  before 0.23             asked for
    data format                                          before 0.16             that of the files
    data format 0.1 where the files are newer            0.16                    that of the files
    one field id for two columns, after a drop           before 0.11             the newer column gets a new id
    coverage of indices, wrong                           before 0.8.15           taken away: whoever reads it asks anew

Readers do the same for themselves (format/manifest.py: Manifest); a commit does it for good. Versions of writers that
leave nothing out are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable

from lancetable.commit.build import Built
from lancetable.errors import InvalidOperationError
from lancetable.file.reader import open_data_file
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.manifest import Manifest, WriterVersion
from lancetable.format.version import FileVersion
from lancetable.proto import table_pb2
from lancetable.table import deletions
from lancetable.table.version import TableVersion

__all__ = ["repair"]

# The newest releases of the reference that still made these mistakes.
_COMPLETE_SINCE = (0, 23)
_COVERAGE_SINCE = (0, 8, 15)


def repair(built: Built, source: TableVersion) -> Built:
    """The manifest of the next version without the faults of `source`, the version that it was built from.

    Raises InvalidOperationError for a table whose data files are of several versions and do not say so: only an older
    version can be restored.
    """
    message = built.message
    writer = source.manifest.writer_version
    _repair_format(message)
    if not _is_older(writer, _COMPLETE_SINCE):
        return built
    _renumber_doubles(message, source)
    known = set(source.manifest.fragments.ids().tolist()) if writer is None else set()
    for fragment in message.fragments:
        _complete(fragment, source, distrust=fragment.id in known)
    if built.index_section is None or not _is_older(writer, _COVERAGE_SINCE):
        return built
    section = table_pb2.IndexSection.FromString(built.index_section)
    for index in section.indices:
        index.ClearField("fragment_bitmap")
    return Built(message, section.SerializeToString())


def _is_older(writer: WriterVersion | None, version: tuple[int, ...]) -> bool:
    if writer is None:
        return True
    parts = writer.version.split(".")
    if writer.library != "lance" or not all(part.isdecimal() and len(part) < 10 for part in parts):
        return False
    return tuple(map(int, parts)) < version


def _repair_format(message: table_pb2.Manifest) -> None:
    stated = message.data_format.version
    if stated not in ("", FileVersion.LEGACY.number):
        return
    found = Manifest(message).file_version
    legacy = {
        file.file_major_version == 0 and file.file_minor_version < 3
        for fragment in message.fragments
        for file in fragment.files
    }
    if len(legacy) > 1:
        raise InvalidOperationError(
            "the table has data files of 0.1 and of newer versions, which no reader expects. Restore a version before"
            " that happened"
        )
    message.data_format.file_format = "lance"
    message.data_format.version = found.number


def _complete(message: table_pb2.DataFragment, source: TableVersion, *, distrust: bool) -> None:
    """Fill in what the record of a fragment leaves out; with `distrust` count everything anew."""
    for file in message.files:
        if not file.file_size_bytes:
            file.file_size_bytes = source.store.size(source.data_file_path(DataFile.from_proto(file)))
    if message.files and (distrust or not message.physical_rows):
        first = DataFile.from_proto(message.files[0])
        metadata = open_data_file(source.store, source.data_file_path(first), size=first.size_bytes)
        message.physical_rows = metadata.num_rows
    if message.HasField("deletion_file") and (distrust or not message.deletion_file.num_deleted_rows):
        message.deletion_file.num_deleted_rows = 0  # not to be held against the file
        vector = deletions.read(source, Fragment.from_proto(message))
        message.deletion_file.num_deleted_rows = 0 if vector is None else len(vector)


def _renumber_doubles(message: table_pb2.Manifest, source: TableVersion) -> None:
    """Give a new id to every field that several data files of a fragment claim: the newest file means the column that
    the schema has, the others one that was dropped before.

    Raises InvalidOperationError for a commit that adds fragments: their files were written with the old ids.
    """
    doubles = {each for fragment in message.fragments for each in _doubles(fragment.files)}
    if not doubles:
        return
    if {fragment.id for fragment in message.fragments} - set(source.manifest.fragments.ids().tolist()):
        raise InvalidOperationError(
            f"{source.uri}: an old release gave the ids of fields {sorted(doubles)} twice. A commit that adds no rows"
            " repairs that: run delete('false'), then run this again"
        )
    first = Manifest(message).max_field_id + 1
    new_ids = {field_id: number for number, field_id in enumerate(sorted(doubles), first)}
    for fragment in message.fragments:
        open_ids = dict(new_ids)
        for file in reversed(fragment.files):
            for place, field_id in enumerate(file.fields):
                file.fields[place] = open_ids.pop(field_id, field_id)
    for field in message.fields:
        field.id = new_ids.get(field.id, field.id)
        field.parent_id = new_ids.get(field.parent_id, field.parent_id)
    live = {field.id for field in message.fields}
    for fragment in message.fragments:
        for place in range(len(fragment.files) - 1, -1, -1):
            if live.isdisjoint(fragment.files[place].fields):
                del fragment.files[place]


def _doubles(files: Iterable[table_pb2.DataFile]) -> set[int]:
    seen: set[int] = set()
    twice: set[int] = set()
    for file in files:
        found = {field_id for field_id in file.fields if field_id >= 0}
        twice |= seen & found
        seen |= found
    return twice
