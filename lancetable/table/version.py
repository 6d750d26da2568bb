"""Tables at one version: opening, switching to other versions, and paths of files.

A `TableVersion` is immutable. Opening one reads the version hint and one manifest; the schema and the fragments are
converted on access. Other versions of the table share its store, handler and cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from lancetable import telemetry
from lancetable.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    InvalidInputError,
    LimitError,
    NotFoundError,
    OutOfRangeError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lancetable.format import feature_flags
from lancetable.format.manifest_naming import DETACHED_BIT, ManifestNamingScheme
from lancetable.format.paths import DATA_DIR, DELETIONS_DIR, TREE_DIR, branch_root, check_relative, join
from lancetable.handlers.choose_handler import choose_handler
from lancetable.store.confined import check_inside
from lancetable.store.open import FileSystemUri, open_store
from lancetable.table import clock, refs
from lancetable.table.base_paths import path_in_store
from lancetable.table.manifest_files import ManifestFile, read_manifest
from lancetable.table.metadata_cache import TableCache

if TYPE_CHECKING:
    from lancetable.format.fragment import DataFile, DeletionFile
    from lancetable.format.manifest import Manifest
    from lancetable.format.manifest_naming import ManifestLocation
    from lancetable.format.schema import Schema
    from lancetable.handlers.base import CommitHandler
    from lancetable.store.base import ObjectStore

_MAX_VERSIONS_SEARCHED = 32  # below a damaged manifest, for one that can be read

# A version number, a tag, or (branch or None for main, version or None for the newest).
Reference = int | str | tuple[str | None, int | None]


@dataclass(frozen=True, slots=True)
class Table:
    """Table or branch, with the state that all its versions share.

    `base` is the root directory inside `store`; `uri` is the address that the caller passed.
    """

    store: ObjectStore
    base: str
    uri: str
    handler: CommitHandler = field(repr=False)
    cache: TableCache = field(repr=False)
    storage_options: Mapping[str, str] | None = field(repr=False)

    @classmethod
    def of_uri(
        cls,
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        commit_lock: Any = None,
        cache: TableCache | None = None,
    ) -> Table:
        """Return the table at an address, which need not exist. By default, it has a new cache for metadata."""
        store, base = open_store(uri, storage_options)
        address = os.fspath(uri)
        handler = choose_handler(store, address, commit_lock, storage_options)
        return Table(store, base, address, handler, TableCache() if cache is None else cache, storage_options)

    def exists(self) -> bool:
        """Return True if the table has a version."""
        return self.handler.latest(self.store, self.base) is not None

    def version_of(self, file: ManifestFile) -> TableVersion:
        """Return the version that a manifest describes."""
        return TableVersion(self.store, self.base, self.uri, self.handler, self.cache, self.storage_options, file)

    def open(self, location: ManifestLocation) -> TableVersion:
        """Open the version at a location returned by the handler."""
        file = read_manifest(self.store, location)
        manifest = file.manifest
        feature_flags.check_readable(manifest.reader_flags, location.path, writer_flags=manifest.writer_flags)
        return self.version_of(file)

    def newest(self) -> TableVersion:
        """Open the newest version. Raises DatasetNotFoundError if the table does not exist."""
        looked_at = clock.seconds()
        location = self.handler.latest(self.store, self.base)
        if location is None:
            raise DatasetNotFoundError(f"Dataset at path {self.uri} was not found", path=self.uri)
        return replace(self.open_newest(location), newest_at=looked_at)

    def open_newest(self, location: ManifestLocation) -> TableVersion:
        """Open the newest version. If its manifest is damaged, the error states the newest readable version."""
        try:
            return self.open(location)
        except CorruptFileError as error:
            raise self.with_advice(location, error) from error

    def with_advice(self, location: ManifestLocation, error: CorruptFileError) -> CorruptFileError:
        """Return the error of a damaged newest manifest, extended by the newest readable version and the remedies."""
        if "newest_readable" in error.__dict__ or isinstance(error, LimitError):
            return error
        try:
            readable = self._readable_before(location)
        except Exception:  # report the damage rather than an error of this search
            return error
        uri = self.uri
        if readable is None:
            advice = f'Run "lancetable fsck {uri}" to list the versions that can be read'
        else:
            advice = (
                f'The newest version that can be read is {readable}: run "lancetable fsck --repair {uri}" to move the '
                f"damaged manifest aside, or restore it with dataset(uri, version={readable}).restore()"
            )
        advised = CorruptFileError(f"{error}. {advice}")
        advised.__dict__.update(error.__dict__, newest_readable=readable)
        return advised

    def _readable_before(self, location: ManifestLocation) -> int | None:
        """Return the newest readable version before a location, or None if none of the 32 before it is readable."""
        for number in range(location.version - 1, max(location.version - 1 - _MAX_VERSIONS_SEARCHED, 0), -1):
            for candidate in self.handler.candidates(self.store, self.base, number, location.naming):
                if candidate.naming is location.naming:
                    with contextlib.suppress(NotFoundError, CorruptFileError, UnsupportedFeatureError):
                        return self.open(candidate).version
        return None

    def at(self, version: int, naming: ManifestNamingScheme | None = None) -> TableVersion:
        """Open a version by number.

        Raises OutOfRangeError for an impossible number, and VersionNotFoundError or DatasetNotFoundError if the version
        or the table does not exist.
        """
        if not 0 < version < 1 << 64:
            raise OutOfRangeError(f"version numbers are between 1 and 2^64 - 1, got {version}")
        for location in self.handler.candidates(self.store, self.base, version, naming):
            with contextlib.suppress(NotFoundError):
                return self.open(location)
        if not self.exists():
            raise DatasetNotFoundError(f"Dataset at path {self.uri} was not found", path=self.uri)
        raise VersionNotFoundError(f"{self.uri} has no version {version}", path=self.uri, version=version)


@dataclass(frozen=True, slots=True)
class TableVersion(Table):
    """Table at one version. Immutable and thread-safe; pickling includes the manifest."""

    file: ManifestFile = field(repr=False)
    # Time by `clock.seconds` when this was the newest version, None if unknown. Not pickled.
    newest_at: float | None = field(default=None, repr=False, compare=False)

    @property
    def manifest(self) -> Manifest:
        return self.file.manifest

    @property
    def location(self) -> ManifestLocation:
        """Location of the manifest, with its size."""
        return self.file.location

    @property
    def version(self) -> int:
        return self.file.location.version

    @property
    def schema(self) -> Schema:
        return self.file.manifest.schema

    @property
    def branch(self) -> str | None:
        """Name of the branch; None for main."""
        return self.file.manifest.branch

    @property
    def main_base(self) -> str:
        """Root directory of the main branch, which contains the refs.

        Raises UntrustedPathError if it is outside of an untrusted table, for example if only a branch was opened.
        """
        if self.branch is None:
            return self.base
        main = self.base.removesuffix(f"/{TREE_DIR}/{self.branch}")
        check_inside(self.store.capabilities.roots, main, f"{self.location.path}: the parent of branch {self.branch!a}")
        return main

    def check_writable(self) -> None:
        """Raise UnsupportedFeatureError if the table uses a feature that this library cannot write."""
        feature_flags.check_writable(self.manifest.writer_flags, self.uri, reader_flags=self.manifest.reader_flags)

    def data_file_path(self, file: DataFile) -> str:
        """Return the path of a data file, with its base path resolved.

        Raises CorruptFileError for an unknown base, UnsupportedFeatureError for a base in another store, and
        UntrustedPathError for one outside of an untrusted table.
        """
        return self._file_path(file.base_id, DATA_DIR, check_relative(file.path, self.location.path))

    def data_file_root(self, file: DataFile) -> str:
        """Return the root of the table that wrote a data file, or its base path; errors as for `data_file_path`."""
        return self.base if file.base_id is None else self._resolve_base(file.base_id)[0]

    def deletion_file_path(self, fragment_id: int, file: DeletionFile) -> str:
        """Return the path of a deletion file; errors as for `data_file_path`."""
        return self._file_path(file.base_id, DELETIONS_DIR, file.name(fragment_id))

    def base_file_path(self, base_id: int, path: str, found_in: str | None = None) -> str:
        """Return the path of an object below a base path. Errors as for `data_file_path`.

        `found_in` is the file that contains `path`, for error messages; the manifest by default.
        """
        root, _ = self._resolve_base(base_id)
        return join(root, check_relative(path, found_in or self.location.path))

    def is_base_at(self, base_id: int, base: str) -> bool:
        """Return True if a base path is `base`, the root of a table or branch in the same store."""
        listed = self.manifest.base_paths[base_id]
        root = self.store.uri(base).rstrip("/")
        return listed.is_dataset_root and listed.path.rstrip("/") in (root, f"file://{root}")

    def _file_path(self, base_id: int | None, directory: str, name: str) -> str:
        root, is_dataset_root = (self.base, True) if base_id is None else self._resolve_base(base_id)
        return join(root, f"{directory}/{name}" if is_dataset_root else name)

    def _resolve_base(self, base_id: int) -> tuple[str, bool]:
        base_path = self.manifest.base_paths.get(base_id)
        if base_path is None:
            what = f"a file has base path {base_id}, which is not listed in the manifest"
            raise CorruptFileError(what, sorted(self.manifest.base_paths), base_id, path=self.location.path)
        place = f"{self.location.path}: base path {base_id}"
        return path_in_store(self.store, base_path.path, place), base_path.is_dataset_root

    def __reduce__(self) -> tuple[Any, ...]:
        file = ManifestFile(self.manifest, self.location, b"")
        return TableVersion, (self.store, self.base, self.uri, self.handler, self.cache, self.storage_options, file)


def open_version(
    uri: str | os.PathLike[str],
    ref: Reference | None = None,
    *,
    asof: datetime | None = None,
    storage_options: Mapping[str, str] | None = None,
    commit_lock: Any = None,
    cache: TableCache | None = None,
) -> TableVersion:
    """Open the newest version, the version `ref`, or the newest version committed at or before `asof`.

    `asof` without a time zone is local time. Raises DatasetNotFoundError, VersionNotFoundError, RefNotFoundError,
    CorruptFileError for a damaged manifest, and UnsupportedFeatureError for a table that requires a newer reader.
    """
    table = Table.of_uri(uri, storage_options, commit_lock, cache)
    with telemetry.start("open", table.store, table.base) as span:
        version = _open_reference(table, ref, asof)
        if span.is_recording:
            span.set(version=version.version, manifest_bytes=version.location.size_bytes or 0)
        return version


def _open_reference(table: Table, ref: Reference | None, asof: datetime | None) -> TableVersion:
    if type(ref) is int:
        return table.at(ref)
    version = table.newest()
    if ref is not None:
        return checkout(version, ref)
    return version if asof is None else _asof(version, asof)


def open_location(version: TableVersion, location: ManifestLocation) -> TableVersion:
    """Open another version of the same table, at a location returned by the handler."""
    return version.open(location)


def checkout(version: TableVersion, ref: Reference) -> TableVersion:
    """Open another version of the same table, by number on the same branch, by tag, or by (branch, version).

    Raises VersionNotFoundError or RefNotFoundError if it does not exist, and InvalidInputError for another type of
    `ref`.
    """
    if isinstance(ref, str):
        tag = refs.TAGS.read(version.store, version.main_base, ref)
        return on_branch(version, tag.branch).at(tag.version)
    if isinstance(ref, tuple):
        branch, number = ref
        if branch is not None and branch not in ("main", version.branch):
            refs.BRANCHES.check_exists(version.store, version.main_base, branch)
        table = on_branch(version, branch)
        return table.newest() if number is None else table.at(number)
    if isinstance(ref, bool) or not isinstance(ref, int):
        raise InvalidInputError(f"a version is a number, a tag or (branch, version), not {type(ref).__name__}")
    return version if ref == version.version else version.at(ref, version.location.naming)


def latest(version: TableVersion) -> TableVersion:
    """Return the newest version of the branch, which is the same object if nothing newer exists.

    Raises CorruptFileError if the newest manifest is damaged.
    """
    if version.version & DETACHED_BIT:
        return version.newest()
    newer = version.handler.newer(version.store, version.base, version.location)
    return version.open_newest(newer[-1]) if newer else version


def latest_readable(version: TableVersion) -> tuple[TableVersion, ManifestLocation | None]:
    """Return the newest version of the branch that can be read, and the newest location if its manifest is damaged.

    Raises UnsupportedFeatureError or StoreError if a manifest in between cannot be read for another reason.
    """
    locations = version.handler.history(version.store, version.base)
    newest = locations[-1] if locations else None
    for location in reversed(locations):
        if location.version == version.version:
            return version, None if location is newest else newest
        with contextlib.suppress(CorruptFileError):
            return open_location(version, location), None if location is newest else newest
    return version, newest


def on_branch(version: TableVersion, branch: str | None) -> Table:
    """Return a branch of the table, which need not exist; None and "main" select the main branch."""
    uri = version.uri if branch == version.branch else uri_of_branch(version, branch)
    base = base_of_branch(version, branch)
    return Table(version.store, base, uri, version.handler, version.cache, version.storage_options)


def base_of_branch(version: TableVersion, branch: str | None) -> str:
    """Return the root of a branch of the table; None and "main" select the main branch."""
    return version.main_base if branch is None or branch == "main" else branch_root(version.main_base, branch)


def uri_of_branch(version: TableVersion, branch: str | None) -> str:
    """Return the address of a branch, derived from the address of this version."""
    if isinstance(version.uri, FileSystemUri):
        path = _address_of_branch(version.uri.path, version.branch, branch)
        return FileSystemUri(version.uri.file_system, path)
    return _address_of_branch(version.uri, version.branch, branch)


def _address_of_branch(address: str, current: str | None, branch: str | None) -> str:
    suffix = "" if current is None else f"/{TREE_DIR}/{current}"
    main = address.rstrip("/")
    main = main[: -len(suffix)] if suffix and main.endswith(suffix) else address
    return main if branch is None or branch == "main" else f"{main.rstrip('/')}/{TREE_DIR}/{branch}"


def _asof(newest: TableVersion, asof: datetime) -> TableVersion:
    # Timestamps from pylance may be a microsecond early, because pylance computes them in floating point.
    moment = asof.astimezone(timezone.utc) + timedelta(microseconds=1)
    if newest.manifest.timestamp <= moment:
        return newest
    # Clocks of writers may differ, so timestamps need not increase and cannot be bisected.
    for location in reversed(newest.handler.history(newest.store, newest.base)):
        if location.version < newest.version:
            older = open_location(newest, location)
            if older.manifest.timestamp <= moment:
                return older
    raise VersionNotFoundError(
        f"{newest.uri}: no version was committed at or before {asof.isoformat()}", path=newest.uri
    )
