"""Bringing a table forward: its data files into a newer format, its manifests under the names of the V2 scheme.

    fragment 7   files a (0.1), b (0.1)   deletions d   ->   fragment 7   file m (2.1)   deletions d

Every fragment gets one new file with the same rows, deleted ones too, and keeps its id: row ids, addresses, deletion
files and secondary indexes stay as they are. One commit (a Merge) changes all fragments, because no version may hold
files of 0.1 beside newer ones. Older versions keep their files and stay readable until they are cleaned up.

The name of a new file follows from what it is made of. A run that was interrupted, or whose commit met a change, takes
up the files that are there, and writes those of fragments that are new.
"""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from lancetable.commit.backoff import Backoff
from lancetable.commit.loop import DEFAULT_TIMEOUT_SECONDS, commit_transaction
from lancetable.errors import (
    CommitConflictError,
    CorruptFileError,
    InvalidInputError,
    LanceError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lancetable.file.columns import number_columns
from lancetable.file.reader import FAMILIES, open_data_file
from lancetable.file.writer import FileWriter
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import TOMBSTONE, DataFile, Fragment
from lancetable.format.paths import VERSIONS_DIR, ManifestNaming, data_path, join, manifest_path, parse_manifest_name
from lancetable.format.schema import Field, Schema
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.handlers.base import CommitHandler
from lancetable.handlers.choose import choose_handler
from lancetable.handlers.external import ExternalHandler
from lancetable.store.base import ObjectStore, PutOutcome
from lancetable.store.open import open_store
from lancetable.table.file_layouts import files_of
from lancetable.table.fragments import read_columns_of, select
from lancetable.table.row_sizes import bytes_per_row
from lancetable.table.version import TableVersion, latest
from lancetable.table.version_rows import physical_rows

__all__ = ["Migrated", "data_file", "migrate", "name_of", "rename_manifests", "rename_manifests_at", "written_before"]

logger = logging.getLogger(__name__)

_WINDOW_BYTES = 32 << 20
_WINDOW_ROWS = 1 << 17
_MAX_ATTEMPTS = 20
_MAX_AGE_NS = 3 * 86_400 * 10**9  # cleanups leave files alone that nobody knows, for seven days


@dataclass(frozen=True, slots=True)
class Migrated:
    """What a migration came to: `files_reused` were written by an earlier run that did not get to its commit."""

    version: TableVersion
    fragments: int
    files_written: int
    files_reused: int
    bytes_written: int


def migrate(version: TableVersion, target: FileVersion) -> Migrated:
    """Rewrite all fragments of the newest version that are not in `target`, and make it the format of the table.

    Nothing is committed if all of it is in `target` already. Raises InvalidInputError for a target that is older than
    the table, UnsupportedFeatureError for columns that cannot be carried over; CommitConflictError if the
    table keeps changing: what was written is taken up when it is run again.
    """
    if target not in FAMILIES or target.is_legacy:
        raise InvalidInputError(f"tables can be brought forward to 2.0 and newer, not to {target}")
    counts = [0, 0, 0]
    backoff = Backoff(_MAX_ATTEMPTS, DEFAULT_TIMEOUT_SECONDS)
    while True:
        version = latest(version)
        _check(version, target)
        moved = [_moved(version, fragment, target, counts) for fragment in version.manifest.fragments]
        changed = sum(one is not None for one in moved)
        if not changed and version.manifest.data_format == target.number:
            return Migrated(version, 0, *counts)
        fragments = tuple(new or old for new, old in zip(moved, version.manifest.fragments, strict=True))
        operation = tx.Merge(fragments, _without_positions(version.schema))
        transaction = Transaction.create(version.version, operation)
        version.store.sync(version.base)
        try:
            done = commit_transaction(version, transaction, max_retries=0, file_version=target)
        except CommitConflictError:  # all that was written is found again
            if not backoff.next_attempt():
                raise
            continue
        return Migrated(done, changed, *counts)


def _check(version: TableVersion, target: FileVersion) -> None:
    manifest = version.manifest
    flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
    if manifest.file_version.manifest_pair > target.manifest_pair and not manifest.file_version.is_legacy:
        raise InvalidInputError(f"{version.uri} is in {manifest.file_version}, which is newer than {target}")
    for field in version.schema.walk():
        if field.is_blob_v2 or (field.is_blob and target is FileVersion.V2_2):
            raise UnsupportedFeatureError(
                f"column {field.name!r}: blobs have another form in {target}; write the table anew",
                feature="migrating blobs",
                column=field.name,
            )


# --- one fragment -----------------------------------------------------------------------------------------------------


def _moved(version: TableVersion, fragment: Fragment, target: FileVersion, counts: list[int]) -> Fragment | None:
    """The fragment with one file in `target`, None if it needs none. `counts`: files written, reused, bytes written."""
    if not fragment.files or all(file.file_version is target for file in fragment.files):
        return None
    if any(field < TOMBSTONE for file in fragment.files for field in file.fields):
        raise UnsupportedFeatureError(
            f"{version.uri}: fragment {fragment.id} keeps row ids in hidden columns", feature="hidden columns"
        )
    owner = files_of(version, fragment).owner
    fields = [each for each in version.schema.fields if any(below.id in owner for below in each.walk())]
    if not fields:
        return None
    schema = Schema(tuple(map(_without_position, fields)), version.schema.metadata)
    name = name_of(fragment, schema, target)
    file = written_before(version, fragment, schema, name, target)
    if file is not None:
        counts[1] += 1
    else:
        file = _write(version, fragment, schema, fields, name, target)
        counts[0] += 1
        counts[2] += file.size_bytes or 0
    logger.info("%s: fragment %d is in %s", version.uri, fragment.id, target)
    return replace(fragment, files=(file,), physical_rows=physical_rows(version, fragment))


def name_of(fragment: Fragment, schema: Schema, target: FileVersion, *more: str) -> str:
    """The same for the same content: names of data files are opaque, and never used twice for different bytes."""
    parts = [target.number, *[file.path for file in fragment.files], *more]
    parts += [f"{each.id}:{each.logical_type}:{each.nullable}" for each in schema.walk()]
    digest = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(parts)).bytes
    return "".join(f"{byte:08b}" for byte in digest[:3]) + digest[3:].hex() + ".lance"


def written_before(
    version: TableVersion, fragment: Fragment, schema: Schema, name: str, target: FileVersion
) -> DataFile | None:
    """The file of an earlier run, if it is there and whole."""
    path = data_path(version.base, name)
    try:
        size_bytes, made_ns = version.store.find(path), version.store.modified_ns(path)
        if size_bytes is None:
            return None
        if made_ns is not None and time.time_ns() - made_ns > _MAX_AGE_NS:
            raise CorruptFileError(f"{path}: so old that a cleanup may be about to remove it", path=path)
        metadata = open_data_file(version.store, path, size=size_bytes)
        if metadata.version is not target or metadata.num_rows != physical_rows(version, fragment):
            raise CorruptFileError(f"{path}: not the rows of fragment {fragment.id}", path=path)
    except NotFoundError:
        return None
    except LanceError as error:
        logger.warning("%s: a file of an earlier run is written again: %s", version.uri, error)
        version.store.delete([path])
        return None
    ids, columns = number_columns(schema, target)
    return data_file(name, tuple(ids), tuple(columns), target, size_bytes)


def _write(
    version: TableVersion, fragment: Fragment, schema: Schema, fields: list[Field], name: str, target: FileVersion
) -> DataFile:
    sink = version.store.open_writer(data_path(version.base, name))
    with FileWriter(sink, schema, target, keep_arrays=True) as writer:
        for batch in _batches(version, fragment, fields):
            writer.write(batch)
        written = writer.close()
    return data_file(name, written.fields, written.column_indices, target, written.size_bytes)


def data_file(
    name: str, ids: tuple[int, ...], columns: tuple[int, ...], target: FileVersion, size_bytes: int
) -> DataFile:
    major, minor = target.manifest_pair
    return DataFile(name, ids, columns, major, minor, size_bytes)


def _batches(version: TableVersion, fragment: Fragment, fields: list[Field]) -> Iterator[pa.RecordBatch]:
    """All rows of a fragment, deleted ones too, some MiB at a time."""
    num_rows = physical_rows(version, fragment)
    per_row = max(bytes_per_row(version, fragment, fields), 1.0)
    step = max(1, min(_WINDOW_ROWS, int(_WINDOW_BYTES / per_row)))
    names = [each.name for each in fields]
    for start in range(0, num_rows, step):
        rows = range(start, min(start + step, num_rows))
        found = read_columns_of(version, fragment, fields, select(version, fragment, rows, keep_deleted=True))
        yield from pa.Table.from_arrays(list(found), names=names).combine_chunks().to_batches()


def _without_positions(schema: Schema) -> Schema:
    return Schema(tuple(map(_without_position, schema.fields)), schema.metadata)


def _without_position(field: Field) -> Field:
    """The field without the place that its dictionary had in a 0.1 table."""
    children = tuple(map(_without_position, field.children))
    return replace(field, children=children, dictionary=None if field.dictionary is None else (0, 0))


# --- names of manifests -----------------------------------------------------------------------------------------------


def rename_manifests(uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> int:
    """Give all manifests of a table the names of the V2 scheme; how many got one. See `rename_manifests_at`."""
    store, base = open_store(uri, storage_options)
    return rename_manifests_at(store, base, choose_handler(store, os.fspath(uri), None, storage_options))


def rename_manifests_at(store: ObjectStore, base: str, handler: CommitHandler) -> int:
    """Give all manifests of a table the names of the V2 scheme; how many got one.

    Nobody may write to the table meanwhile, and readers may refuse it while it has names of both schemes. Run again, it
    goes on where it was interrupted. Raises CorruptFileError if a version has two manifests that differ,
    UnsupportedFeatureError where versions are decided outside of the store, which would go on naming the old paths.
    """
    if isinstance(handler, ExternalHandler):
        raise UnsupportedFeatureError(
            "manifests cannot be renamed where a manifest store keeps their paths", feature="renaming manifests"
        )
    renamed = 0
    for each in store.list_names(join(base, VERSIONS_DIR)):
        parsed = parse_manifest_name(each.name)
        if parsed is None or parsed[1] is ManifestNaming.V2:
            continue
        version = parsed[0]
        old, new = (manifest_path(base, version, naming) for naming in (ManifestNaming.V1, ManifestNaming.V2))
        data = bytes(store.read_all(old))
        if store.put_if_absent(new, data) is not PutOutcome.WON and bytes(store.read_all(new)) != data:
            raise CorruptFileError(f"{new}: version {version} has another manifest at {old}", path=new)
        store.delete([old])
        renamed += 1
    return renamed
