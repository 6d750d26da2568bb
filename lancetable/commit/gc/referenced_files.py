"""Files that versions refer to: data, deletion and transaction files, external row ids, and indices.

Paths are relative to the table's root. For an index, the path is its directory.
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
from lancetable.proto import table_pb2
from lancetable.table.version import TableVersion, open_location

__all__ = ["NamedFiles", "detached_versions", "files_of", "named_beside", "named_by", "tracked_files"]


class NamedFiles:
    """Set of files that several versions refer to.

    By default, only files below the table's own root are collected. With `everywhere`, every base path counts as the
    root, because a base path may lead to it under another name, for example through a symbolic link. Consecutive
    versions share most fragments, so fragments of the last version added are skipped. Callers may add to `paths`.
    """

    __slots__ = ("_everywhere", "_fragments", "_own", "paths")

    def __init__(self, *, everywhere: bool = False) -> None:
        self.paths: set[str] = set()
        self._everywhere = everywhere
        self._fragments: set[bytes] = set()
        self._own: set[int | None] = set()

    def add(self, version: TableVersion) -> None:
        """Add the files of a version."""
        bases = version.manifest.base_paths
        own = {None} | {base_id for base_id in bases if version.is_base_at(base_id, version.base)}
        fragments = set(map(_BYTES_OF, version.manifest.message.fragments))
        unseen = fragments - self._fragments if own == self._own else fragments
        self._fragments, self._own = fragments, own
        for message in unseen:
            self._add_paths(_named_by_fragment(table_pb2.DataFragment.FromString(message)))
        self._add_paths(_named_by_manifest(version))

    def _add_paths(self, named: Iterator[tuple[int | None, str]]) -> None:
        self.paths.update(path for base_id, path in named if self._everywhere or base_id in self._own)


_BYTES_OF = table_pb2.DataFragment.SerializeToString


def files_of(version: TableVersion) -> set[str]:
    """Return the files below the table's own root that one version refers to. See NamedFiles."""
    named = NamedFiles()
    named.add(version)
    return named.paths


def named_by(version: TableVersion) -> Iterator[tuple[int | None, str]]:
    """Yield (base id, relative path) of all files of a version. The id is None for the table's own root."""
    for fragment in version.manifest.message.fragments:
        yield from _named_by_fragment(fragment)
    yield from _named_by_manifest(version)


def _named_by_fragment(fragment: table_pb2.DataFragment) -> Iterator[tuple[int | None, str]]:
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
        oneof_case = fragment.WhichOneof(oneof)
        if oneof_case is not None and oneof_case.startswith("external"):
            yield None, getattr(fragment, oneof_case).path


def _named_by_manifest(version: TableVersion) -> Iterator[tuple[int | None, str]]:
    """Yield (base id, relative path) of the transaction file and the indices."""
    message = version.manifest.message
    if message.transaction_file:
        yield None, f"{TRANSACTIONS_DIR}/{message.transaction_file}"
    for index in index_messages(version.file.index_section(version.store), version.location.path):
        yield (index.base_id if index.HasField("base_id") else None), f"{INDICES_DIR}/{uuid_text(index.uuid.uuid)}"


def tracked_files(version: TableVersion, *, min_version: int = 0) -> Iterator[tuple[int, str, str]]:
    """Yield (version, relative path, kind) of every file of the versions from `min_version` on, newest first."""
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
    """Return the files of all detached versions. Every base path counts as the root."""
    named = NamedFiles(everywhere=True)
    for detached in detached_versions(version):
        named.add(detached)
    return named.paths


def detached_versions(version: TableVersion) -> Iterator[TableVersion]:
    """Yield all detached versions of the branch."""
    for meta in version.store.list_names(join(version.base, VERSIONS_DIR)):
        parsed = parse_manifest_name(meta.name)
        if parsed is not None and is_detached(parsed[0]):
            location = version.handler.locate(version.store, version.base, parsed[0])
            if location is not None:
                yield open_location(version, location)
