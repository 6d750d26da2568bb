"""Migration of data files to a newer format, and of manifests to the V2 naming scheme.

    fragment 7   files a (0.1), b (0.1)   deletions d   ->   fragment 7   file m (2.1)   deletions d

Every fragment gets one new file with all its rows, including deleted rows, and keeps its id. Row ids, addresses,
deletion files and secondary indexes therefore stay valid. One commit (a Merge) changes all fragments, because a version
must not mix files of 0.1 with newer ones. Older versions keep their files and remain readable until they are cleaned
up.

The name of a new file is a hash of its inputs. After an interruption or a commit conflict, the next run reuses the
existing files and writes only the files of new fragments.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lancetable import telemetry
from lancetable.commit.backoff import Backoff
from lancetable.commit.commit_loop import DEFAULT_TIMEOUT_SECONDS, commit_transaction
from lancetable.errors import (
    CommitConflictError,
    CorruptFileError,
    InvalidInputError,
    LanceError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lancetable.file.column_mapping import number_columns
from lancetable.file.reader import FAMILIES, open_data_file
from lancetable.file.writer import FileWriter
from lancetable.format import transaction as tx
from lancetable.format.fragment import TOMBSTONE, DataFile, Fragment
from lancetable.format.manifest_naming import ManifestNamingScheme, manifest_path, parse_manifest_name
from lancetable.format.paths import VERSIONS_DIR, data_path, join
from lancetable.format.schema import Field, Schema
from lancetable.format.transaction import Transaction
from lancetable.format.version import FileVersion
from lancetable.handlers.external_manifest import ExternalHandler
from lancetable.ops.schema.column_files import fragment_batches
from lancetable.store.base import PutOutcome
from lancetable.table.field_locations import field_index
from lancetable.table.row_counts import physical_rows
from lancetable.table.version import Table, TableVersion, latest

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = 20
_MAX_AGE_NS = 3 * 86_400 * 10**9  # cleanups keep unreferenced files for seven days


@dataclass(frozen=True, slots=True)
class Migrated:
    """Result of a migration; `files_reused` were written by an earlier run that did not commit."""

    version: TableVersion
    fragments: int
    files_written: int
    files_reused: int
    bytes_written: int


def migrate(version: TableVersion, target: FileVersion) -> Migrated:
    """Rewrite all fragments of the newest version that are not in `target`, and make it the format of the table.

    Commits nothing if the table and all fragments are already in `target`. Raises InvalidInputError for a target that
    is older than the table, UnsupportedFeatureError for columns that cannot be converted, and CommitConflictError if
    every attempt conflicts with another commit; the next run reuses the written files.
    """
    counts = {"files_written": 0, "files_reused": 0, "bytes_written": 0}
    backoff = Backoff(_MAX_ATTEMPTS, DEFAULT_TIMEOUT_SECONDS)
    while True:
        version = latest(version)
        _check(version, target)
        migrated = [_migrate_fragment(version, fragment, target, counts) for fragment in version.manifest.fragments]
        changed = sum(fragment is not None for fragment in migrated)
        if not changed and version.manifest.data_format == target.number:
            return Migrated(version, 0, **counts)
        fragments = tuple(new or old for new, old in zip(migrated, version.manifest.fragments, strict=True))
        schema = Schema(tuple(map(_without_position, version.schema.fields)), version.schema.metadata)
        operation = tx.Merge(fragments, schema)
        transaction = Transaction.create(version.version, operation)
        version.store.sync(version.base)
        try:
            done = commit_transaction(version, transaction, max_retries=0, file_version=target)
        except CommitConflictError:  # the next attempt reuses all written files
            if not backoff.next_attempt():
                raise
            continue
        return Migrated(done, changed, **counts)


def plan_migration(version: TableVersion, target: str) -> list[Fragment]:
    """Return the fragments that `migrate` would rewrite. Raises its errors that are detected without reading data."""
    checked = FileVersion.parse(target)
    _check(version, checked)
    return [fragment for fragment in version.manifest.fragments if _is_outdated(fragment, checked)]


def _is_outdated(fragment: Fragment, target: FileVersion) -> bool:
    return any(file.file_version is not target for file in fragment.files)


def _check(version: TableVersion, target: FileVersion) -> None:
    if target not in FAMILIES or target.is_legacy:
        raise InvalidInputError(f"cannot migrate to {target}: the target must be 2.0 or newer")
    version.check_writable()
    current = version.manifest.file_version
    if current.manifest_pair > target.manifest_pair and not current.is_legacy:
        raise InvalidInputError(f"{version.uri} is in {current}, which is newer than {target}")
    files = (file for fragment in version.manifest.fragments for file in fragment.files)
    if current is target and all(file.file_version is target for file in files):
        return
    for field in version.schema.walk():
        if field.is_blob_v2 or (field.is_blob and target is FileVersion.V2_2):
            raise UnsupportedFeatureError(
                f"column {field.name!r}: blobs cannot be migrated to {target}; choose an older format, or write a new"
                " table",
                feature="migrating blobs",
                column=field.name,
            )


# --- one fragment -----------------------------------------------------------------------------------------------------


def _migrate_fragment(
    version: TableVersion, fragment: Fragment, target: FileVersion, counts: dict[str, int]
) -> Fragment | None:
    """Return the fragment with one file in `target`, or None if it needs no new file. Adds the file to `counts`."""
    if not _is_outdated(fragment, target):
        return None
    if any(field < TOMBSTONE for file in fragment.files for field in file.fields):
        raise UnsupportedFeatureError(
            f"{version.uri}: fragment {fragment.id} stores row ids in hidden columns", feature="hidden columns"
        )
    owner = field_index(version, fragment).owner
    fields = [field for field in version.schema.fields if any(nested.id in owner for nested in field.walk())]
    if not fields:
        return None
    schema = Schema(tuple(map(_without_position, fields)), version.schema.metadata)
    name = content_file_name(fragment, schema, target)
    file = find_reusable_file(version, fragment, schema, name, target)
    if file is not None:
        counts["files_reused"] += 1
    else:
        file = _write(version, fragment, schema, fields, name, target)
        counts["files_written"] += 1
        counts["bytes_written"] += file.size_bytes or 0
    logger.info(
        "%s: fragment %d migrated to %s",
        version.uri,
        fragment.id,
        target,
        extra=telemetry.fields("migrate.fragment", version.uri, version=version.version, fragment=fragment.id),
    )
    return replace(fragment, files=(file,), physical_rows=physical_rows(version, fragment))


def content_file_name(fragment: Fragment, schema: Schema, target: FileVersion, *more: str) -> str:
    """Return a file name that is a hash of the file's inputs.

    Names of data files are opaque and must never be reused for different bytes.
    """
    parts = [target.number, *[file.path for file in fragment.files], *more]
    parts += [f"{field.id}:{field.logical_type}:{field.nullable}" for field in schema.walk()]
    digest = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(parts)).bytes
    return "".join(f"{byte:08b}" for byte in digest[:3]) + digest[3:].hex() + ".lance"


def find_reusable_file(
    version: TableVersion, fragment: Fragment, schema: Schema, name: str, target: FileVersion
) -> DataFile | None:
    """Return the file of an earlier run if it exists and is complete, else None."""
    path = data_path(version.base, name)
    try:
        size_bytes, made_ns = version.store.find(path), version.store.modified_ns(path)
        if size_bytes is None:
            return None
        if made_ns is not None and time.time_ns() - made_ns > _MAX_AGE_NS:
            raise CorruptFileError("the file is older than 3 days and may be removed by cleanup", path=path)
        metadata = open_data_file(version.store, path, size=size_bytes)
        if metadata.version is not target or metadata.num_rows != physical_rows(version, fragment):
            raise CorruptFileError(f"the file does not contain the rows of fragment {fragment.id}", path=path)
    except NotFoundError:
        return None
    except LanceError as error:
        logger.warning(
            "%s: rewriting a file of an earlier run: %s",
            version.uri,
            error,
            extra=telemetry.fields("migrate.file_rewritten", version.uri, version=version.version, path=path),
        )
        version.store.delete([path])
        return None
    ids, columns = number_columns(schema, target)
    return DataFile(name, tuple(ids), tuple(columns), *target.manifest_pair, size_bytes)


def _write(
    version: TableVersion, fragment: Fragment, schema: Schema, fields: list[Field], name: str, target: FileVersion
) -> DataFile:
    """Write the new data file of a fragment."""
    sink = version.store.open_writer(data_path(version.base, name))
    with FileWriter(sink, schema, target, keep_arrays=True) as writer:
        for batch in fragment_batches(version, fragment, fields, keep_deleted=True):
            writer.write(batch)
        written = writer.close()
    return written.data_file(name, target)


def _without_position(field: Field) -> Field:
    """Return the field without the position of its dictionary in a 0.1 file."""
    children = tuple(map(_without_position, field.children))
    return replace(field, children=children, dictionary=None if field.dictionary is None else (0, 0))


# --- manifest names ---------------------------------------------------------------------------------------------------


def rename_manifests(uri: str, storage_options: Mapping[str, str] | None = None, *, run: bool = True) -> int:
    """Rename all manifests of a table to the V2 naming scheme and return their number. See `rename_manifests_at`."""
    return rename_manifests_at(Table.of_uri(uri, storage_options), run=run)


def rename_manifests_at(table: Table, *, run: bool = True) -> int:
    """Rename all manifests of a table to the V2 naming scheme and return the number of renamed manifests.

    Without `run`, only their number is returned.

    The table must not be written during the call, and readers may reject it while both schemes are present. A call
    after an interruption continues the renaming. Raises CorruptFileError if a version has two different manifests, and
    UnsupportedFeatureError for an external manifest store, which would keep the old paths.
    """
    store, base = table.store, table.base
    if isinstance(table.handler, ExternalHandler):
        raise UnsupportedFeatureError(
            "manifests cannot be renamed because the external manifest store records their paths",
            feature="renaming manifests",
        )
    names = [parse_manifest_name(meta.name) for meta in store.list_names(join(base, VERSIONS_DIR))]
    versions = [parsed[0] for parsed in names if parsed is not None and parsed[1] is not ManifestNamingScheme.V2]
    for version in versions if run else ():
        old, new = (
            manifest_path(base, version, naming) for naming in (ManifestNamingScheme.V1, ManifestNamingScheme.V2)
        )
        data = bytes(store.read_all(old))
        if store.put_if_absent(new, data) is not PutOutcome.WON and bytes(store.read_all(new)) != data:
            raise CorruptFileError(f"version {version} has a different manifest at {old}", path=new)
        store.delete([old])
    return len(versions)
