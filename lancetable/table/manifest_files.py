"""Manifest files: sections, a length-prefixed message, and a footer with the position of the message.

    [legacy dictionary values]  only in 0.1 tables
    u32 length, IndexSection    only if there are indices; copied unchanged to each new version
    u32 length, Transaction     the same bytes as the .txn file
    u32 length, Manifest        must end exactly where the footer begins
    i64 position of the manifest's length, u16 major = 0, u16 minor = 2, "LANC"

Source: protos/table.proto, Manifest; footer as in "Manifest file" of the format's documents.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from lancetable.errors import CorruptFileError, NotFoundError, UnsupportedFeatureError
from lancetable.file.limits import limits_of
from lancetable.format.manifest import Manifest

if TYPE_CHECKING:
    from lancetable.format.manifest_naming import ManifestLocation
    from lancetable.proto import table_pb2
    from lancetable.store.base import ObjectStore
    from lancetable.table.version import TableVersion

T = TypeVar("T")

FOOTER_BYTES = 16
_TAIL_BYTES = 64 * 1024
_FOOTER = struct.Struct("<qHH4s")
_U32 = struct.Struct("<I")
_MAJOR, _MINOR, _MAGIC = 0, 2, b"LANC"
_MAX_SUMMARY_BYTES = 500
_MAX_PARALLEL_READS = 16
_MAX_LIST_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """Manifest with its location and the end of its file, which often contains the other sections."""

    manifest: Manifest
    location: ManifestLocation  # with its size
    tail: bytes | memoryview  # the last bytes of the file

    def index_section(self, store: ObjectStore) -> bytes | None:
        """Return the serialized IndexSection, or None without indices. Reads the file unless the tail contains it."""
        return self._section(store, self.manifest.index_section)

    def transaction_section(self, store: ObjectStore) -> bytes | None:
        """Return the serialized inline Transaction, or None if the file does not contain it."""
        return self._section(store, self.manifest.transaction_section)

    def _section(self, store: ObjectStore, offset: int | None) -> bytes | None:
        if offset is None:
            return None
        path, size = self.location.path, self.location.size_bytes
        assert size is not None, "a manifest that was read has a size"
        end = size - FOOTER_BYTES
        if offset > end - 4:
            raise _damaged(path, f"section starts at byte {offset} of a file of {size} bytes", offset)
        tail_start = size - len(self.tail)
        source = self.tail if offset >= tail_start else store.read(path, offset, size)
        start = offset - tail_start if source is self.tail else 0
        length = _U32.unpack_from(source, start)[0]
        if offset + 4 + length > end:
            raise _damaged(path, f"section of {length} bytes at byte {offset} exceeds the file ({size} bytes)", offset)
        return bytes(source[start + 4 : start + 4 + length])


def read_manifest(store: ObjectStore, location: ManifestLocation) -> ManifestFile:
    """Read and parse a manifest. A message that is larger than the first read takes a second request.

    Feature flags are not checked. Raises CorruptFileError for invalid lengths, offsets and messages and for a version
    that differs from the file name, LimitError for a message that is too large, and UnsupportedFeatureError for a newer
    container.
    """
    return _parsed(store, location, *store.read_tail(location.path, location.size_bytes, _TAIL_BYTES))


def parse_manifest(store: ObjectStore, location: ManifestLocation, data: bytes | memoryview) -> ManifestFile:
    """Parse the complete manifest file `data`. Errors as for `read_manifest`."""
    return _parsed(store, location, memoryview(data), len(data))


def _parsed(store: ObjectStore, location: ManifestLocation, tail: memoryview, size: int) -> ManifestFile:
    path = location.path
    if size < FOOTER_BYTES + 4:
        raise _damaged(path, "file too short", 0, f"at least {FOOTER_BYTES + 4} bytes", size)
    limits = limits_of(store)
    position, major, _, magic = _FOOTER.unpack_from(tail, len(tail) - FOOTER_BYTES)
    if magic != _MAGIC:
        raise _damaged(path, "wrong magic at the end", size - 4, _MAGIC, bytes(magic))
    if major != _MAJOR:
        raise UnsupportedFeatureError(
            f"{path}: manifest files of version {major} are not supported",
            feature=f"manifest version {major}",
            path=path,
        )
    length = size - FOOTER_BYTES - 4 - position
    if position < 0 or length < 0:
        raise _damaged(path, f"the footer points to byte {position} of a file of {size} bytes", size - FOOTER_BYTES)
    # Other sections can be as large as the message, so the limit of an untrusted table applies to the whole file.
    limits.check("metadata_bytes", size if store.capabilities.roots else length, path, "bytes")
    tail_start = size - len(tail)
    if position < tail_start:
        head = store.read(path, position, tail_start)
        tail = memoryview(b"".join((head, tail)))
        tail_start = position
    stated = _U32.unpack_from(tail, position - tail_start)[0]
    if stated != length:
        raise _damaged(path, "wrong length of the message in bytes", position, length, stated)
    body = bytes(tail[position - tail_start + 4 : len(tail) - FOOTER_BYTES])
    try:
        manifest = Manifest.from_bytes(body, path)
    except CorruptFileError as error:
        raise _damaged(path, "the message cannot be parsed", position + 4) from error
    limits.check("metadata_entries", len(manifest.message.fragments), path, "fragments")
    limits.check("metadata_entries", len(manifest.message.fields), path, "fields")
    if manifest.version != location.version:
        what = "version differs from the file name"
        raise _damaged(path, what, position + 4, location.version, manifest.version)
    if location.size_bytes != size:
        location = replace(location, size_bytes=size)
    return ManifestFile(manifest, location, tail)


def pack(message: table_pb2.Manifest, transaction: bytes, index_section: bytes | None, head: bytes = b"") -> bytes:
    """Return a manifest file. Sets the section offsets in `message`, and clears the deprecated transaction offset.

    `transaction` and `index_section` are serialized messages. `head`, which precedes all sections, has the dictionary
    values of a 0.1 table.
    """
    parts: list[bytes] = [head]
    position = len(head)
    message.ClearField("transaction_section_deprecated")
    if index_section is None:
        message.ClearField("index_section")
    else:
        message.index_section = position
        parts += (_U32.pack(len(index_section)), index_section)
        position += 4 + len(index_section)
    message.transaction_section = position
    parts += (_U32.pack(len(transaction)), transaction)
    position += 4 + len(transaction)
    body = message.SerializeToString()
    parts += (_U32.pack(len(body)), body, _FOOTER.pack(position, _MAJOR, _MINOR, _MAGIC))
    return b"".join(parts)


def packed_file(location: ManifestLocation, message: table_pb2.Manifest, data: bytes) -> ManifestFile:
    """Return the ManifestFile of `data`, which `pack` built from `message`. Do not modify the message afterwards."""
    return ManifestFile(Manifest(message, location.path), replace(location, size_bytes=len(data)), data)


@dataclass(frozen=True, slots=True)
class VersionSummary:
    """Summary of one version in the history. Row counts are sums of the counts in the manifest."""

    version: int
    timestamp: datetime  # UTC
    total_rows: int
    total_fragments: int
    total_data_files: int
    total_data_file_rows: int
    total_deletion_files: int
    total_deletion_file_rows: int
    total_files_size: int


def summarize(manifest: Manifest) -> VersionSummary:
    """Sum up the fragments of a manifest without converting them."""
    fragments = manifest.message.fragments
    physical_rows = deleted_rows = deletion_files = data_files = size_bytes = 0
    for fragment in fragments:
        physical_rows += fragment.physical_rows
        data_files += len(fragment.files)
        for file in fragment.files:
            size_bytes += file.file_size_bytes
        if fragment.HasField("deletion_file"):
            deletion_files += 1
            deleted_rows += fragment.deletion_file.num_deleted_rows
    return VersionSummary(
        manifest.version,
        manifest.timestamp,
        physical_rows - deleted_rows,
        len(fragments),
        data_files,
        physical_rows,
        deletion_files,
        deleted_rows,
        size_bytes,
    )


def history(version: TableVersion) -> list[VersionSummary]:
    """Return a summary of each version of the branch, in ascending order. Summaries are cached."""

    def summary_of(location: ManifestLocation) -> VersionSummary:
        if location.version == version.version:
            return summarize(version.manifest)
        key = ("version_summary", version.store.key(location.path), identity_of(version.store, location))
        return version.cache.get_or_compute(
            key, lambda: summarize(read_manifest(version.store, location).manifest), lambda _: _MAX_SUMMARY_BYTES
        )

    return retry_listing(
        lambda: map_versions(version.store, summary_of, version.handler.history(version.store, version.base))
    )


def retry_listing(read: Callable[[], T]) -> T:
    """Call a function that lists and reads versions; repeat the call if a cleanup removes a listed version.

    Cleanups remove the oldest versions first, and `read` reads these first, so a few calls are enough.
    """
    for _ in range(_MAX_LIST_ATTEMPTS - 1):
        with contextlib.suppress(NotFoundError):
            return read()
    return read()


def map_versions(
    store: ObjectStore, function: Callable[[ManifestLocation], T], locations: Sequence[ManifestLocation]
) -> list[T]:
    """Apply a function that reads a version to each location, in threads if the store serves parallel requests."""
    if len(locations) > 1 and store.capabilities.parallel:
        with ThreadPoolExecutor(min(len(locations), _MAX_PARALLEL_READS), "lancetable-versions") as pool:
            return list(pool.map(function, locations))
    return list(map(function, locations))


def identity_of(store: ObjectStore, location: ManifestLocation) -> int | None:
    """Return the modification time of a local manifest, or the size of a remote one.

    The number distinguishes manifests of the same name, because a table can be deleted and written again.
    """
    if not store.capabilities.local:
        return location.size_bytes
    changed = store.modified_ns(location.path)
    return store.size(location.path) if changed is None else changed


def _damaged(path: str, what: str, offset: int, expected: object = None, found: object = None) -> CorruptFileError:
    return CorruptFileError(f"damaged manifest: {what}", expected, found, path=path, offset=offset)
