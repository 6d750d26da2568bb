"""Contract of commit handlers: look-up of versions, and exactly-once publication of the next version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from lancetable.errors import CorruptFileError, NotFoundError, StoreError
from lancetable.format.manifest_naming import (
    MAX_VERSION,
    ManifestLocation,
    ManifestNamingScheme,
    is_detached,
    manifest_path,
)
from lancetable.format.paths import VERSIONS_DIR, join
from lancetable.handlers.latest_version import (
    MAX_PROBES,
    NAMINGS,
    first_found,
    hints_enabled,
    is_newest,
    latest_by_first_page,
    latest_by_full_listing,
    latest_by_hint,
    list_after,
    look_up,
    parse_names,
    probe_successors,
    read_hint,
    write_hint,
)
from lancetable.store.base import ObjectStore, OnExisting, PutOutcome


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
        if store.capabilities.local and hints_enabled():
            location = latest_by_hint(store, base)
            if location is not None:
                return location
        if store.capabilities.ordered_list:
            return latest_by_first_page(store, base)
        return latest_by_full_listing(store, base)

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
        return first_found(store, base, version, NAMINGS if naming is None else (naming,))

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
        namings = NAMINGS[:1] if is_detached(version) else sorted(NAMINGS, key=lambda scheme: scheme is not naming)
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
            return self._fill_gaps(store, base, list_after(store, base, after, None), after)
        locations = parse_names(base, store.list_names(join(base, VERSIONS_DIR)), after)
        return locations if store.capabilities.ordered_list else self._fill_gaps(store, base, locations, after)

    def newer(self, store: ObjectStore, base: str, than: ManifestLocation) -> list[ManifestLocation]:
        """Return the versions after `than`, like `history`. Needs few requests if there are none."""
        if store.capabilities.local and hints_enabled() and not is_detached(than.version):
            hint = read_hint(store, base)
            if hint is not None:
                locations = probe_successors(store, base, than.version, than.naming)
                last = locations[-1].version if locations else than.version
                if len(locations) < MAX_PROBES and hint <= last and is_newest(store, base, last, than.naming):
                    return locations
        if store.capabilities.ordered_list:
            locations = list_after(store, base, than.version, than.naming)
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
        return look_up(store, base, version, naming)


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
