"""The files that versions name: data, deletion and transaction files, row ids beside the manifest, indices.

A path is relative to the table's root; of an index it is the directory.
"""

from __future__ import annotations

from collections.abc import Iterator

from lancetable.format.index import index_messages, uuid_text
from lancetable.format.paths import (
    DATA_DIR,
    DELETIONS_DIR,
    INDICES_DIR,
    TRANSACTIONS_DIR,
    VERSIONS_DIR,
    is_detached,
    join,
    parse_manifest_name,
)
from lancetable.table.version import TableVersion, open_location

__all__ = ["detached_versions", "files_of", "named_beside", "named_by", "tracked_files"]


def files_of(version: TableVersion) -> set[str]:
    """The files below the table's own root that a version names, relative to it; of indices, their directories."""
    own = {None} | {base_id for base_id in version.manifest.base_paths if version.is_own_base(base_id)}
    return {path for base_id, path in named_by(version) if base_id in own}


def named_by(version: TableVersion) -> Iterator[tuple[int | None, str]]:
    """(base path, None for the table's own root; path below it) of all that a version names."""
    manifest = version.manifest
    for fragment in manifest.message.fragments:
        for file in fragment.files:
            yield (file.base_id if file.HasField("base_id") else None), f"{DATA_DIR}/{file.path}"
        if fragment.HasField("deletion_file"):
            deletion = fragment.deletion_file
            suffix = "bin" if deletion.file_type else "arrow"
            yield (
                deletion.base_id if deletion.HasField("base_id") else None,
                f"{DELETIONS_DIR}/{fragment.id}-{deletion.read_version}-{deletion.id}.{suffix}",
            )
        for oneof in ("row_id_sequence", "last_updated_at_version_sequence", "created_at_version_sequence"):
            which = fragment.WhichOneof(oneof)
            if which is not None and which.startswith("external"):
                yield None, getattr(fragment, which).path
    if manifest.message.transaction_file:
        yield None, f"{TRANSACTIONS_DIR}/{manifest.message.transaction_file}"
    for index in index_messages(version.file.index_section(version.store), version.location.path):
        yield (index.base_id if index.HasField("base_id") else None), f"{INDICES_DIR}/{uuid_text(index.uuid.uuid)}"


def tracked_files(version: TableVersion, *, min_version: int = 0) -> Iterator[tuple[int, str, str]]:
    """(version, path below the root, kind) of every file that a version from `min_version` on names, newest first."""
    for location in reversed(version.handler.history(version.store, version.base)):
        if location.version < min_version:
            return
        yield location.version, location.path[len(version.base) :].lstrip("/"), "manifest"
        for path in sorted(files_of(open_location(version, location))):
            yield location.version, path, _KIND_OF_FOLDER.get(path.partition("/")[0], "data")


_KIND_OF_FOLDER = {
    DATA_DIR: "data",
    DELETIONS_DIR: "deletion",
    TRANSACTIONS_DIR: "transaction",
    INDICES_DIR: "index",
    VERSIONS_DIR: "manifest",
}


def named_beside(version: TableVersion) -> set[str]:
    """What versions beside the history name."""
    return {path for each in detached_versions(version) for path in files_of(each)}


def detached_versions(version: TableVersion) -> Iterator[TableVersion]:
    for meta in version.store.list_names(join(version.base, VERSIONS_DIR)):
        parsed = parse_manifest_name(meta.name)
        if parsed is not None and is_detached(parsed[0]):
            location = version.handler.locate(version.store, version.base, parsed[0])
            if location is not None:
                yield open_location(version, location)
