"""Clones: a new table that references the files of a version (shallow) or owns copies of them (deep)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lancetable.commit.clone_manifest import commit_clone
from lancetable.commit.publish import discarding_on_failure
from lancetable.errors import AlreadyExistsError, UnsupportedFeatureError
from lancetable.file.blobs.descriptions import blob_directory
from lancetable.format import feature_flags
from lancetable.format import transaction as tx
from lancetable.format.index import index_messages, uuid_text
from lancetable.format.paths import INDICES_DIR, MANAGED_BLOBS_DIR, data_path, deletion_path, join
from lancetable.store.base import ObjectStore, discard
from lancetable.table.version import Table, TableVersion

_CHUNK_BYTES = 8 << 20


def shallow_clone(source: TableVersion, uri: str, *, storage_options: Mapping[str, str] | None = None) -> TableVersion:
    """Create a table at `uri` with the contents of `source` by referencing its files; only a manifest is written.

    The clone becomes unreadable if these files are removed, so tag the version before cleaning up the source. Raises
    AlreadyExistsError, UnsupportedFeatureError for a clone in another store.
    """
    table = _table_at(uri, source, storage_options)
    if table.store.key("") != source.store.key(""):
        raise UnsupportedFeatureError(
            f"a shallow clone of {source.uri} must be in the same store, not at {uri}; make a deep clone instead",
            feature="shallow clones in another store",
        )
    operation = tx.Clone(True, source.version, root_uri_of(source), ref_name=source.branch)
    return commit_clone(source, operation, table)


def deep_clone(source: TableVersion, uri: str, *, storage_options: Mapping[str, str] | None = None) -> TableVersion:
    """Create a table at `uri` with copies of all files of `source`, in any store.

    Raises AlreadyExistsError and the errors of copying; after a failure the copies are removed.
    """
    table = _table_at(uri, source, storage_options)
    if table.exists():
        raise AlreadyExistsError(f"Dataset already exists: {uri}", path=uri)
    copied: list[str] = []
    with discarding_on_failure(lambda: discard(table.store, copied, "copied files")):
        for old, new in _files(source, table.base):
            copied.append(new)
            _copy(source.store, old, table.store, new)
        operation = tx.Clone(False, source.version, root_uri_of(source), ref_name=source.branch)
        return commit_clone(source, operation, table)


def _table_at(uri: str, source: TableVersion, storage_options: Mapping[str, str] | None) -> Table:
    """Return the table at `uri`; by default, with the storage options of `source`."""
    options = source.storage_options if storage_options is None else storage_options
    return Table.of_uri(uri, options, cache=source.cache)


def root_uri_of(source: TableVersion) -> str:
    """Return the root of a table or branch in the form that manifests record."""
    return source.store.uri(source.base)


def _files(source: TableVersion, base: str) -> Iterator[tuple[str, str]]:
    """Yield every file of a version with the path of its copy."""
    for fragment in source.manifest.fragments:
        for file in fragment.files:
            old, new = source.data_file_path(file), data_path(base, file.path)
            yield old, new
            yield from _files_below(source.store, blob_directory(old), blob_directory(new))
        deletions = fragment.deletion_file
        if deletions is not None:
            new = deletion_path(base, fragment.id, deletions.read_version, deletions.id, deletions.kind.suffix)
            yield source.deletion_file_path(fragment.id, deletions), new
    for index in index_messages(source.file.index_section(source.store), source.location.path):
        folder = f"{INDICES_DIR}/{uuid_text(index.uuid.uuid)}"
        root = source.base_file_path(index.base_id, folder) if index.HasField("base_id") else join(source.base, folder)
        yield from _files_below(source.store, root, join(base, folder))
    if source.manifest.reader_flags & feature_flags.MANAGED_BLOBS:
        files = [file for fragment in source.manifest.fragments for file in fragment.files]
        for root in sorted({source.data_file_root(file) for file in files}):
            yield from _files_below(source.store, join(root, MANAGED_BLOBS_DIR), join(base, MANAGED_BLOBS_DIR))


def _files_below(store: ObjectStore, old: str, new: str) -> Iterator[tuple[str, str]]:
    """Yield every file below `old` with the path of its copy below `new`."""
    for meta in store.list_recursive(old):
        yield join(old, meta.name), join(new, meta.name)


def _copy(source: ObjectStore, old: str, target: ObjectStore, new: str) -> None:
    size = source.size(old)
    with target.open_writer(new) as sink:
        for start in range(0, size, _CHUNK_BYTES):
            sink.write(source.read(old, start, min(start + _CHUNK_BYTES, size)))
        sink.close()
