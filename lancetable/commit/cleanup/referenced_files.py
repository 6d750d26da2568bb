"""Files that versions refer to: data, deletion and transaction files, external row ids, and indices.

Paths are relative to the table's root. For an index, the path is its directory.
"""

from __future__ import annotations

from collections.abc import Iterator

from lancetable.format.index import index_messages, uuid_text
from lancetable.format.paths import DATA_DIR, DELETIONS_DIR, INDICES_DIR, TRANSACTIONS_DIR, VERSIONS_DIR
from lancetable.handlers.latest_version import detached_locations
from lancetable.proto import table_pb2
from lancetable.table.version import TableVersion, open_location


class ReferencedFiles:
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
            self._add_paths(_paths_of_fragment(table_pb2.DataFragment.FromString(message)))
        self._add_paths(_paths_of_manifest(version))

    def _add_paths(self, named: Iterator[tuple[int | None, str]]) -> None:
        self.paths.update(path for base_id, path in named if self._everywhere or base_id in self._own)


_BYTES_OF = table_pb2.DataFragment.SerializeToString


def referenced_paths(version: TableVersion) -> Iterator[tuple[int | None, str]]:
    """Yield (base id, relative path) of all files of a version. The id is None for the table's own root."""
    for fragment in version.manifest.message.fragments:
        yield from _paths_of_fragment(fragment)
    yield from _paths_of_manifest(version)


def _paths_of_fragment(fragment: table_pb2.DataFragment) -> Iterator[tuple[int | None, str]]:
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


def _paths_of_manifest(version: TableVersion) -> Iterator[tuple[int | None, str]]:
    """Yield (base id, relative path) of the transaction file and the indices."""
    message = version.manifest.message
    if message.transaction_file:
        yield None, f"{TRANSACTIONS_DIR}/{message.transaction_file}"
    for index in index_messages(version.file.index_section(version.store), version.location.path):
        yield (index.base_id if index.HasField("base_id") else None), f"{INDICES_DIR}/{uuid_text(index.uuid.uuid)}"


def files_of_versions(version: TableVersion, *, min_version: int = 0) -> Iterator[list[tuple[int, str, str]]]:
    """Yield the files of each version from `min_version` on, newest first, as (version, relative path, type)."""
    for location in reversed(version.handler.history(version.store, version.base, after=max(min_version - 1, 0))):
        number, manifest = location.version, location.path[len(version.base) :].lstrip("/")
        referenced = ReferencedFiles()
        referenced.add(open_location(version, location))
        paths = sorted(referenced.paths)
        yield [(number, manifest, "manifest"), *((number, path, _type_of(path)) for path in paths)]


_TYPE_OF_FOLDER = {
    VERSIONS_DIR: "manifest",
    DATA_DIR: "data file",
    DELETIONS_DIR: "deletion file",
    TRANSACTIONS_DIR: "transaction file",
    INDICES_DIR: "index file",
}
FILE_TYPES = tuple(_TYPE_OF_FOLDER.values())


def _type_of(path: str) -> str:
    return _TYPE_OF_FOLDER.get(path.partition("/")[0], "data file")


def files_of_detached_versions(version: TableVersion) -> set[str]:
    """Return the files of all detached versions. Every base path counts as the root."""
    named = ReferencedFiles(everywhere=True)
    for detached in detached_versions(version):
        named.add(detached)
    return named.paths


def detached_versions(version: TableVersion) -> Iterator[TableVersion]:
    """Yield all detached versions of the branch."""
    for location in detached_locations(version.store, version.base):
        yield open_location(version, location)
