"""Quarantine for damaged manifests, so that a table can be used at its newest readable version.

    _versions/18446744073709551612.manifest   ->   _quarantine/18446744073709551612.manifest-20240102T030405.678901Z

A manifest is moved only if two reads from the store return the same bytes and these break the format under either
naming scheme. An error of the store, a newer container or an unknown feature flag does not prove damage. The copy is
written and read back before the original is removed, and the original is removed only if it still has the same bytes.
The row of the version is removed from an external manifest store, so that its number can be committed again. If the
staged copy of the version is intact, the row remains and the next reader restores the manifest from that copy.

No library reads `_quarantine`. While it contains an object, a cleanup keeps files of any age that no version
references, unless `delete_unverified` is set, because a damaged manifest may be the only one that references them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from lancetable.errors import CorruptFileError, LanceError, NotFoundError, StoreError, UnsupportedFeatureError
from lancetable.format.feature_flags import check_readable
from lancetable.format.manifest_naming import (
    MAX_VERSION,
    ManifestLocation,
    ManifestNamingScheme,
    is_detached,
    parse_manifest_name,
)
from lancetable.format.paths import QUARANTINE_DIR, VERSIONS_DIR, join
from lancetable.handlers.base import CommitHandler
from lancetable.handlers.external_manifest import ExternalHandler, ManifestRow
from lancetable.store.base import ObjectStore
from lancetable.table.manifest_files import ManifestFile, parse_manifest


def location_of(path: str) -> tuple[str, ManifestLocation] | None:
    """Return the root of the table and the location for a manifest path; None for any other path."""
    directory, _, name = path.rpartition("/")
    base, _, folder = directory.rpartition("/")
    parsed = parse_manifest_name(name)
    if parsed is None or folder != VERSIONS_DIR:
        return None
    return base, ManifestLocation(parsed[0], path, None, parsed[1])


def open_manifest(store: ObjectStore, location: ManifestLocation, data: bytes) -> ManifestFile:
    """Parse a manifest and check its feature flags. Raises CorruptFileError and UnsupportedFeatureError."""
    file = parse_manifest(store, location, data)
    check_readable(file.manifest.reader_flags, location.path, writer_flags=file.manifest.writer_flags)
    return file


def damage_of(store: ObjectStore, location: ManifestLocation, data: bytes) -> str | None:
    """Return a description of the damage in a manifest; None if its bytes are valid under either naming scheme.

    A manifest of a newer release is not damaged.
    """
    damage = None
    for candidate in (location, _other_version(location)):
        try:
            if candidate is not None:
                open_manifest(store, candidate, data)
                return None
        except UnsupportedFeatureError:  # noqa: PERF203 - two candidates at most
            return None
        except CorruptFileError as error:
            damage = damage or str(error)
    return damage


def _other_version(location: ManifestLocation) -> ManifestLocation | None:
    """Return the location that the path has in the other naming scheme."""
    digits = location.path.rpartition("/")[2].partition(".")[0]
    if not digits.isdecimal():
        return None
    number = int(digits)
    if location.naming is ManifestNamingScheme.V2:
        return replace(location, version=number, naming=ManifestNamingScheme.V1)
    return replace(location, version=MAX_VERSION - number, naming=ManifestNamingScheme.V2)


def quarantine(store: ObjectStore, base: str, handler: CommitHandler, location: ManifestLocation) -> str | None:
    """Move a damaged manifest to the quarantine and return its new path; None if the damage is not proven.

    Raises StoreError, with the manifest still in place, if the store fails or the copy differs from the original.
    """
    data = _read_twice(store, location)
    if data is None or damage_of(store, location, data) is None:
        return None
    name = location.path.rpartition("/")[2]
    copy = _copy(store, base, name, data)
    # Detached versions have no row in the external store.
    external = handler if isinstance(handler, ExternalHandler) and not is_detached(location.version) else None
    if external is not None:
        row = external.row(store, base, location.version)
        if row is not None:
            _release(store, base, external, row, location)
    if bytes(store.read_all(location.path)) != data:
        return None  # replaced since it was read; the copy remains in the quarantine
    store.delete([location.path])
    if external is not None:
        # A concurrent writer may have added a row that references the removed object.
        row = external.row(store, base, location.version)
        if row is not None and row.path == location.path and store.find(location.path) is None:
            external.delete_row(store, base, row)
    store.sync(base)
    return copy


def _read_twice(store: ObjectStore, location: ManifestLocation) -> bytes | None:
    """Return the bytes of a manifest; None if two separate reads differ or it does not exist."""
    try:
        size = store.size(location.path)
        first = bytes(store.read_all(location.path))
        second = bytes(store.read_all(location.path))
    except NotFoundError:
        return None
    except CorruptFileError as error:
        raise StoreError(
            f"{location.path}: the object cannot be read as a whole: {error}", path=location.path
        ) from error
    return first if first == second and len(first) == size else None


def _copy(store: ObjectStore, base: str, name: str, data: bytes) -> str:
    now = datetime.now(timezone.utc)
    path = join(base, f"{QUARANTINE_DIR}/{name}-{now:%Y%m%dT%H%M%S}.{now.microsecond:06d}Z")
    store.put(path, data)
    if bytes(store.read_all(path)) != data:
        raise StoreError(f"{path}: the copy differs from the original, which was left in place", path=path)
    return path


def _release(
    store: ObjectStore, base: str, handler: ExternalHandler, row: ManifestRow, location: ManifestLocation
) -> None:
    """Remove the row of a damaged version, unless its staged manifest is intact."""
    if row.path != location.path:
        try:
            staged = bytes(store.read_all(row.path))
        except NotFoundError:
            staged = b""
        if damage_of(store, location, staged) is None:
            return
        if staged:
            _copy(store, base, row.path.rpartition("/")[2], staged)
    handler.delete_row(store, base, row)
    if row.path != location.path:
        store.delete([row.path])


def quarantined(store: ObjectStore, base: str) -> list[str]:
    """Return the names of the objects in the quarantine of a table or branch; empty if it cannot be listed."""
    try:
        return [meta.name for meta in store.list_names(join(base, QUARANTINE_DIR))]
    except LanceError:
        return []
