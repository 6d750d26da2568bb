"""Contract of commit handlers, and look-up of versions.

    _versions/18446744073709551601.manifest     V2: 2^64-1 - version, so the newest is first in a listing
    _versions/14.manifest                       V1
    _versions/d13835058055282163713.manifest    detached, never the latest
    _versions/latest_version_hint.json          {"version":14}, a hint that may be missing, stale or wrong
    any other name                              ignored

A table uses one naming scheme. On local stores, the newest version is found from the hint: the version of the hint must
exist, and its successors are looked up one by one. If the directory changed after the hint was written, another writer
may commit without hints, and the directory is listed. On other stores, the names are always listed.
"""

from __future__ import annotations

import contextlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import itemgetter

from lancetable.errors import CorruptFileError, LanceError, NotFoundError, StoreError
from lancetable.format.paths import (
    DETACHED_BIT,
    MAX_VERSION,
    VERSIONS_DIR,
    ManifestNamingScheme,
    hint_path,
    is_detached,
    join,
    manifest_path,
    parse_manifest_name,
)
from lancetable.store.base import Durability, ObjectMeta, ObjectStore, OnExisting, PutOutcome

_NAMINGS = (ManifestNamingScheme.V2, ManifestNamingScheme.V1)  # most tables use the first one
_MAX_PROBES = 64  # beyond this many versions, a listing is cheaper than single look-ups
_FIRST_PAGE = 8
_SHORT_PAGE = 4  # for callers that know a version and need only newer ones
_MAX_PAGE = 1000
_HINT = re.compile(rb'\s*\{\s*"version"\s*:\s*([0-9]{1,20})\s*\}\s*')
_HINT_MAX_BYTES = 128
# A hint is written under another name and renamed, so the directory changes shortly after the hint's own time.
_HINT_SLACK_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class ManifestLocation:
    """Path, size and naming scheme of the manifest of one version."""

    version: int
    path: str
    size_bytes: int | None
    naming: ManifestNamingScheme


@dataclass(frozen=True, slots=True)
class Publication:
    """A manifest to publish. The attributes are the parameters of `CommitHandler.commit`."""

    store: ObjectStore
    base: str
    version: int
    naming: ManifestNamingScheme
    data: bytes
    on_existing: OnExisting | None = None

    @property
    def path(self) -> str:
        """Path of the manifest."""
        return manifest_path(self.base, self.version, self.naming)

    def finish(self, outcome: PutOutcome) -> PutOutcome:
        """Resolve an unknown outcome by reading the manifest back, and write the hint of a won version."""
        if outcome is PutOutcome.UNKNOWN:
            outcome = outcome_by_content(self.store, self.base, self.path, self.data)
        if outcome is PutOutcome.WON:
            write_hint(self.store, self.base, self.version)
        return outcome


class CommitHandler(ABC):
    """Look-up of versions, and exactly-once publication of new versions.

    The look-up methods are for handlers whose versions exist as soon as the object of the manifest exists.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def publish(self, publication: Publication) -> PutOutcome:
        """Publish a manifest after all files below the table's path were synced. See `commit`."""

    def commit(
        self,
        store: ObjectStore,
        base: str,
        version: int,
        naming: ManifestNamingScheme,
        data: bytes,
        *,
        on_existing: OnExisting | None = None,
    ) -> PutOutcome:
        """Publish a manifest as a version.

        Parameters
        ----------
        store, base
            Object store and path of the table.
        version, naming
            Number and naming scheme of the manifest.
        data
            Bytes of the manifest file.
        on_existing
            Called with the bytes of the existing manifest if the outcome is LOST and the handler had to read it.

        Returns
        -------
        PutOutcome
            WON if the manifest and all files written below `base` are durable, LOST if another writer published this
            version, UNKNOWN if the manifest may still become visible.

        Raises
        ------
        LanceError
            If nothing was published.
        """
        store.sync(base)  # a manifest must never be durable before the files it refers to
        return self.publish(Publication(store, base, version, naming, data, on_existing))

    def latest(self, store: ObjectStore, base: str) -> ManifestLocation | None:
        """Look up the newest version of a table.

        Parameters
        ----------
        store, base
            Object store and path of the table.

        Returns
        -------
        ManifestLocation or None
            None if the table does not exist.

        Raises
        ------
        CorruptFileError
            If both naming schemes are used.
        StoreError
            If the store fails.
        """
        if store.capabilities.local and _hints_enabled():
            location = _latest_by_hint(store, base)
            if location is not None:
                return location
        if store.capabilities.ordered_list:
            return _latest_by_first_page(store, base)
        return _latest_by_full_listing(store, base)

    def locate(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme | None = None
    ) -> ManifestLocation | None:
        """Look up one version, which may be detached.

        Parameters
        ----------
        store, base
            Object store and path of the table.
        version
            Number of the version.
        naming
            Naming scheme of the table. Both schemes are tried by default.

        Returns
        -------
        ManifestLocation or None
            None if the version does not exist.
        """
        if not 1 <= version <= MAX_VERSION:
            return None
        if naming is None and is_detached(version):
            naming = ManifestNamingScheme.V2
        return _first_found(store, base, version, _NAMINGS if naming is None else (naming,))

    def candidates(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme | None = None
    ) -> list[ManifestLocation]:
        """Return the possible locations of a version, the most likely first, without checking that they exist.

        Callers that read the manifest immediately save the round trip of a look-up on remote stores.

        Parameters
        ----------
        store, base
            Object store and path of the table.
        version
            Number of the version.
        naming
            Naming scheme of another version of the table, which is tried first.
        """
        if store.capabilities.local:
            location = self.locate(store, base, version)
            return [] if location is None else [location]
        if not 1 <= version <= MAX_VERSION:
            return []
        namings = _NAMINGS[:1] if is_detached(version) else sorted(_NAMINGS, key=lambda scheme: scheme is not naming)
        return [ManifestLocation(version, manifest_path(base, version, scheme), None, scheme) for scheme in namings]

    def history(self, store: ObjectStore, base: str, after: int = 0) -> list[ManifestLocation]:
        """Return all versions greater than `after` in ascending order, without detached and cleaned-up versions.

        Raises
        ------
        CorruptFileError
            If both naming schemes are used.
        StoreError
            If the store fails.
        """
        if after > 0 and store.capabilities.ordered_list:
            return self._fill_gaps(store, base, _list_after(store, base, after, None), after)
        locations = _parse_names(base, store.list_names(join(base, VERSIONS_DIR)), after)
        return locations if store.capabilities.ordered_list else self._fill_gaps(store, base, locations, after)

    def newer(self, store: ObjectStore, base: str, than: ManifestLocation) -> list[ManifestLocation]:
        """Return the versions after `than`, like `history`. Needs few requests if there are none."""
        if store.capabilities.local and _hints_enabled() and not is_detached(than.version):
            hint = _read_hint(store, base)
            if hint is not None:
                locations = _probe_successors(store, base, than.version, than.naming)
                last = locations[-1].version if locations else than.version
                if len(locations) < _MAX_PROBES and hint <= last and _is_newest(store, base, last, than.naming):
                    return locations
        if store.capabilities.ordered_list:
            locations = _list_after(store, base, than.version, than.naming)
            return self._fill_gaps(store, base, locations, than.version)
        return self.history(store, base, than.version)

    def forget(self, store: ObjectStore, base: str) -> None:
        """Do nothing: there are no records outside the object store."""
        return

    def _fill_gaps(
        self, store: ObjectStore, base: str, locations: list[ManifestLocation], after: int
    ) -> list[ManifestLocation]:
        """Look up versions that a listing lacks.

        A directory listing during concurrent writes, or a listing with a stale page, may contain a new file but not the
        one before it. Only the newest versions can be affected, so the search ends at the first version that does not
        exist.
        """
        if not locations or locations[-1].version - after == len(locations):
            return locations
        for position in range(len(locations) - 1, -1, -1):
            below = locations[position - 1].version if position else after
            missing: list[ManifestLocation] = []
            for version in range(locations[position].version - 1, below, -1):
                location = self._look_up(store, base, version, locations[position].naming)
                if location is None:
                    return [*locations[:position], *reversed(missing), *locations[position:]]
                missing.append(location)
            locations[position:position] = reversed(missing)
        return locations

    def _look_up(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme
    ) -> ManifestLocation | None:
        return _look_up(store, base, version, naming)


def write_hint(store: ObjectStore, base: str, version: int) -> None:
    """Write the hint of the newest version. Failures are ignored, because the hint is optional.

    A hint of a newer version that exists is kept: a late publication may have a number that a cleanup had freed.
    """
    capabilities = store.capabilities
    if is_detached(version) or not _hints_enabled() or (capabilities.ordered_list and not capabilities.local):
        return
    with contextlib.suppress(LanceError):
        hint = _read_hint(store, base)
        if hint is not None and hint > version and _look_up(store, base, hint, ManifestNamingScheme.V2) is not None:
            return
        store.put(hint_path(base), b'{"version":%d}' % version, durability=Durability.NEVER)


def outcome_by_content(store: ObjectStore, base: str, path: str, data: bytes) -> PutOutcome:
    """Read a manifest back to determine the outcome of its publication. The bytes of manifests are unique.

    Returns WON if the object has these bytes and is durable, LOST if it has others, UNKNOWN if it cannot be read.
    """
    try:
        existing = store.read_all(path)
        if existing != data:
            return PutOutcome.LOST
        store.sync(base)
    except (NotFoundError, CorruptFileError, StoreError):
        return PutOutcome.UNKNOWN  # a missing object may still appear when a delayed request is applied
    return PutOutcome.WON


def _hints_enabled() -> bool:
    return os.environ.get("LANCE_USE_VERSION_HINT", "1").strip().lower() not in ("0", "false", "no", "off")


def _latest_by_hint(store: ObjectStore, base: str) -> ManifestLocation | None:
    """Return the newest version if it can be determined with certainty from the hint, else None."""
    version = _read_hint(store, base)
    hinted = None if version is None else _first_found(store, base, version, _NAMINGS)
    if hinted is None:
        return None
    newer = _probe_successors(store, base, hinted.version, hinted.naming)
    last = newer[-1] if newer else hinted
    if len(newer) >= _MAX_PROBES or not _is_newest(store, base, last.version, last.naming):
        return None
    return last


def _read_hint(store: ObjectStore, base: str) -> int | None:
    try:
        data, size = store.read_tail(hint_path(base), None, _HINT_MAX_BYTES)
    except (NotFoundError, CorruptFileError):
        return None
    match = _HINT.fullmatch(data) if size <= _HINT_MAX_BYTES else None
    version = int(match[1]) if match else 0
    return version if 1 <= version <= MAX_VERSION and not is_detached(version) else None


def _probe_successors(
    store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme
) -> list[ManifestLocation]:
    """Return at most `_MAX_PROBES` successors of a version, up to the first gap."""
    locations: list[ManifestLocation] = []
    for successor in range(version + 1, version + 1 + _MAX_PROBES):
        location = _look_up(store, base, successor, naming)
        if location is None:
            break
        locations.append(location)
    return locations


def _is_newest(store: ObjectStore, base: str, last: int, naming: ManifestNamingScheme) -> bool:
    """Return True if a version without a successor is certainly the newest.

    This requires that the directory did not change after the hint was written. Otherwise, a writer without hints and a
    cleanup of its first versions may have left a gap after `last`.
    """
    other = ManifestNamingScheme.V1 if naming is ManifestNamingScheme.V2 else ManifestNamingScheme.V2
    if _look_up(store, base, last + 1, other) is not None:
        return False  # both schemes are used, so listing the directory raises an error
    hint_ns = store.modified_ns(hint_path(base))
    directory_ns = store.modified_ns(join(base, VERSIONS_DIR))
    return hint_ns is not None and directory_ns is not None and directory_ns <= hint_ns + _HINT_SLACK_NS


def _first_found(
    store: ObjectStore, base: str, version: int, namings: Iterable[ManifestNamingScheme]
) -> ManifestLocation | None:
    locations = (_look_up(store, base, version, naming) for naming in namings)
    return next((location for location in locations if location is not None), None)


def _look_up(store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme) -> ManifestLocation | None:
    path = manifest_path(base, version, naming)
    size = store.find(path)
    return None if size is None else ManifestLocation(version, path, size, naming)


def _latest_by_first_page(store: ObjectStore, base: str) -> ManifestLocation | None:
    """Return the newest version from the first page of an ordered listing. In V2, it is the first manifest."""
    for page, is_last in _digit_pages(store, base):
        locations = _parse_names(base, page, 0)
        if locations and locations[-1].naming is ManifestNamingScheme.V2:
            return locations[-1]
        if locations:  # V1 names are ordered as strings, not as numbers
            return locations[-1] if is_last else _latest_by_full_listing(store, base)
    return None


def _latest_by_full_listing(store: ObjectStore, base: str) -> ManifestLocation | None:
    """Return the newest version of a complete listing."""
    directory = join(base, VERSIONS_DIR)
    manifests = _parse_manifests(directory, store.list_names(directory))
    if not manifests:
        return None
    version, meta, naming = manifests[-1]
    return ManifestLocation(version, f"{directory}/{meta.name}", meta.size_bytes, naming)


def _list_after(
    store: ObjectStore, base: str, after: int, naming: ManifestNamingScheme | None
) -> list[ManifestLocation]:
    """Return the versions after `after` from as few pages of an ordered listing as possible. V1 needs all."""
    names: list[ObjectMeta] = []
    if naming is not ManifestNamingScheme.V1:
        for page, is_last in _digit_pages(store, base, _SHORT_PAGE):
            names += page
            first = next(iter(_parse_names(base, names, 0)), None)
            if is_last or (first and first.naming is ManifestNamingScheme.V2 and first.version <= after):
                return _parse_names(base, names, after)
            if first and first.naming is ManifestNamingScheme.V1:
                break
    return _parse_names(base, store.list_names(join(base, VERSIONS_DIR)), after)


def _digit_pages(store: ObjectStore, base: str, first: int = _FIRST_PAGE) -> Iterator[tuple[list[ObjectMeta], bool]]:
    """Yield pages of names that start with a digit, in order and of growing size, and True for the last page."""
    start, limit = "0", first
    while True:
        names = store.list_names(join(base, VERSIONS_DIR), start_after=start, limit=limit)
        is_last = len(names) < limit or not names[-1].name[:1].isdigit()
        yield [meta for meta in names if meta.name[:1].isdigit()], is_last
        if is_last:
            return
        start, limit = names[-1].name, min(limit * 8, _MAX_PAGE)


def _parse_names(base: str, names: list[ObjectMeta], after: int) -> list[ManifestLocation]:
    """Return the versions after `after` among file names, in ascending order."""
    directory = join(base, VERSIONS_DIR)
    manifests = _parse_manifests(directory, names)
    return [
        ManifestLocation(version, f"{directory}/{meta.name}", meta.size_bytes, naming)
        for version, meta, naming in manifests
        if version > after
    ]


def _parse_manifests(directory: str, names: list[ObjectMeta]) -> list[tuple[int, ObjectMeta, ManifestNamingScheme]]:
    """Return version, object and scheme of the manifests among file names, ascending, without detached ones.

    Raises
    ------
    CorruptFileError
        If both naming schemes are used.
    """
    parsed = []
    counts = {ManifestNamingScheme.V1: 0, ManifestNamingScheme.V2: 0}
    for meta in names:
        version = parse_manifest_name(meta.name)
        if version is not None and 0 < version[0] < DETACHED_BIT:
            parsed.append((version[0], meta, version[1]))
            counts[version[1]] += 1
    if all(counts.values()):
        what = "multiple manifest naming schemes, so the newest version is unknown; migrate the table to one scheme"
        raise CorruptFileError(what, "names of one scheme", "V1 and V2 names", path=directory)
    parsed.sort(key=_VERSION_OF)
    return parsed


_VERSION_OF = itemgetter(0)
