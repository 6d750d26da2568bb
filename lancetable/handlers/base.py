"""How a version is found, and what a commit handler promises.

    _versions/18446744073709551601.manifest     V2: 2^64-1 - version, the newest first in a listing
    _versions/14.manifest                       V1
    _versions/d13835058055282163713.manifest    detached, never the latest
    _versions/latest_version_hint.json          {"version":14}, a note that may be missing, stale or wrong
    anything else                               ignored

A table keeps to one naming scheme. Where look-ups are cheap, the newest version is found from the note: the version it
names must be there, its successors are asked for one by one, and if the directory changed after the note was written
(somebody commits without writing notes) the directory is listed after all. Elsewhere the names are listed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Protocol

from lancetable.errors import CorruptFileError, LanceError, NotFoundError, StoreError
from lancetable.format.paths import (
    DETACHED_BIT,
    MAX_VERSION,
    VERSIONS_DIR,
    ManifestNaming,
    hint_path,
    is_detached,
    join,
    manifest_path,
    parse_manifest_name,
)
from lancetable.store.base import Durability, ObjectMeta, ObjectStore, OnExisting, PutOutcome

__all__ = ["CommitHandler", "ManifestLocation", "VersionFinder", "outcome_by_content", "write_hint"]

_MAX_PROBES = 64  # further behind than this, a listing is cheaper than asking version by version
_FIRST_PAGE = 8
_SHORT_PAGE = 4  # who knows a version needs only what lies before it
_MAX_PAGE = 1000
_HINT = re.compile(rb'\s*\{\s*"version"\s*:\s*([0-9]{1,20})\s*\}\s*')
_HINT_MAX_BYTES = 128
# A note is written under another name and renamed: the directory changes a moment after the note's own time.
_HINT_SLACK_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class ManifestLocation:
    """Where one version's manifest lies."""

    version: int
    path: str
    size_bytes: int | None
    naming: ManifestNaming


class CommitHandler(Protocol):
    """Finds versions, and makes version N + 1 visible exactly once."""

    def latest(self, store: ObjectStore, base: str) -> ManifestLocation | None:
        """The newest version of a table, or None where there is no table.

        Raises CorruptFileError where both naming schemes are used.
        """

    def locate(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNaming | None = None
    ) -> ManifestLocation | None:
        """One version, detached ones included; None where it is not there. Asks for both schemes unless told one."""

    def candidates(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNaming | None = None
    ) -> list[ManifestLocation]:
        """Where a version may lie, the likeliest place first; reading tells whether it does.

        For callers that read the manifest at once: where a look-up costs a round trip, none is made here. `naming` is
        the scheme of another version of the table.
        """

    def history(self, store: ObjectStore, base: str, after: int = 0) -> list[ManifestLocation]:
        """All versions greater than `after`, ascending, without detached ones. Cleaned-up versions are gaps."""

    def newer(self, store: ObjectStore, base: str, than: ManifestLocation) -> list[ManifestLocation]:
        """The same as `history` after a version that the caller has seen; cheap where there is nothing new."""

    def commit(
        self,
        store: ObjectStore,
        base: str,
        version: int,
        naming: ManifestNaming,
        data: bytes,
        *,
        on_existing: OnExisting | None = None,
    ) -> PutOutcome:
        """Publish a manifest as a version. WON: it is there and durable, and so is every file written below `base`.

        LOST: another writer has that version. UNKNOWN: it may become visible. Raises where nothing was published.
        """

    def forget(self, store: ObjectStore, base: str) -> None:
        """Remove what is kept about a table outside the object store; its objects are about to be removed."""


class VersionFinder:
    """The reading half of a handler, for stores where the object at a manifest's path decides."""

    __slots__ = ()

    def latest(self, store: ObjectStore, base: str) -> ManifestLocation | None:
        """See CommitHandler."""
        if store.capabilities.local and _hints_are_used():
            found = _latest_by_hint(store, base)
            if found is not None:
                return found
        if store.capabilities.ordered_list:
            return _first_listed(store, base)
        return _greatest_listed(store, base)

    def locate(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNaming | None = None
    ) -> ManifestLocation | None:
        """See CommitHandler."""
        if not 1 <= version <= MAX_VERSION:
            return None
        if naming is None and is_detached(version):
            naming = ManifestNaming.V2
        for scheme in (ManifestNaming.V2, ManifestNaming.V1) if naming is None else (naming,):
            found = _look_up(store, base, version, scheme)
            if found is not None:
                return found
        return None

    def candidates(
        self, store: ObjectStore, base: str, version: int, naming: ManifestNaming | None = None
    ) -> list[ManifestLocation]:
        """See CommitHandler."""
        if store.capabilities.local:
            found = self.locate(store, base, version)
            return [] if found is None else [found]
        if not 1 <= version <= MAX_VERSION:
            return []
        namings = [ManifestNaming.V2] if is_detached(version) else [ManifestNaming.V2, ManifestNaming.V1]
        namings.sort(key=lambda each: each is not naming)
        return [ManifestLocation(version, manifest_path(base, version, each), None, each) for each in namings]

    def history(self, store: ObjectStore, base: str, after: int = 0) -> list[ManifestLocation]:
        """See CommitHandler."""
        if after > 0 and store.capabilities.ordered_list:
            return self._without_holes(store, base, _listed_after(store, base, after, None), after)
        found = _parse_names(base, store.list_names(join(base, VERSIONS_DIR)), after)
        return found if store.capabilities.ordered_list else self._without_holes(store, base, found, after)

    def newer(self, store: ObjectStore, base: str, than: ManifestLocation) -> list[ManifestLocation]:
        """See CommitHandler."""
        if store.capabilities.local and _hints_are_used() and not is_detached(than.version):
            hint = _read_hint(store, base)
            if hint is not None:
                found = _probe(store, base, than.version, than.naming)
                last = found[-1].version if found else than.version
                if len(found) < _MAX_PROBES and hint <= last and _is_settled(store, base, last, than.naming):
                    return found
        if store.capabilities.ordered_list:
            found = _listed_after(store, base, than.version, than.naming)
            return self._without_holes(store, base, found, than.version)
        return self.history(store, base, than.version)

    def forget(self, store: ObjectStore, base: str) -> None:
        """See CommitHandler."""

    def _without_holes(
        self, store: ObjectStore, base: str, found: list[ManifestLocation], after: int
    ) -> list[ManifestLocation]:
        """A directory that is read while files come into it may show a later one and not the one before, and so may two
        pages of a listing of which one is older.

        Only the newest versions can be that young, so the search ends at the first that is surely not there.
        """
        if not found or found[-1].version - after == len(found):
            return found
        for place in range(len(found) - 1, -1, -1):
            below = found[place - 1].version if place else after
            missing: list[ManifestLocation] = []
            for version in range(found[place].version - 1, below, -1):
                location = self._look_up(store, base, version, found[place].naming)
                if location is None:
                    return [*found[:place], *reversed(missing), *found[place:]]
                missing.append(location)
            found[place:place] = reversed(missing)
        return found

    def _look_up(self, store: ObjectStore, base: str, version: int, naming: ManifestNaming) -> ManifestLocation | None:
        return _look_up(store, base, version, naming)


def write_hint(store: ObjectStore, base: str, version: int) -> None:
    """Note the newest version. Nothing depends on it, so a failure is nobody's concern."""
    capabilities = store.capabilities
    if is_detached(version) or not _hints_are_used() or (capabilities.ordered_list and not capabilities.local):
        return
    with contextlib.suppress(LanceError):
        store.put(hint_path(base), b'{"version":%d}' % version, durability=Durability.NEVER)


def outcome_by_content(store: ObjectStore, base: str, path: str, data: bytes) -> PutOutcome:
    """What became of a manifest whose publication had no clear answer: its bytes are unlike any other's."""
    try:
        found = store.read_all(path)
        if found != data:
            return PutOutcome.LOST
        store.sync(base)
    except (NotFoundError, CorruptFileError, StoreError):
        return PutOutcome.UNKNOWN  # absent now does not mean that the request cannot land later
    return PutOutcome.WON


def _hints_are_used() -> bool:
    return os.environ.get("LANCE_USE_VERSION_HINT", "1").strip().lower() not in ("0", "false", "no", "off")


def _latest_by_hint(store: ObjectStore, base: str) -> ManifestLocation | None:
    """The newest version as far as the note surely leads to it, else None."""
    version = _read_hint(store, base)
    if version is None:
        return None
    for naming in (ManifestNaming.V2, ManifestNaming.V1):
        noted = _look_up(store, base, version, naming)
        if noted is not None:
            break
    else:
        return None
    newer = _probe(store, base, version, naming)
    last = newer[-1] if newer else noted
    if len(newer) >= _MAX_PROBES or not _is_settled(store, base, last.version, naming):
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


def _probe(store: ObjectStore, base: str, version: int, naming: ManifestNaming) -> list[ManifestLocation]:
    """The versions that follow one without a gap, `_MAX_PROBES` at most."""
    found: list[ManifestLocation] = []
    while len(found) < _MAX_PROBES:
        version += 1
        location = _look_up(store, base, version, naming)
        if location is None:
            break
        found.append(location)
    return found


def _is_settled(store: ObjectStore, base: str, last: int, naming: ManifestNaming) -> bool:
    """Whether a version without a successor is surely the newest: nothing came into the directory after the note.

    A writer that leaves no notes, followed by a cleanup of what it wrote first, would leave a gap after `last`.
    """
    other = ManifestNaming.V1 if naming is ManifestNaming.V2 else ManifestNaming.V2
    if _look_up(store, base, last + 1, other) is not None:
        return False  # two schemes; the listing will say so
    noted = store.modified_ns(hint_path(base))
    changed = store.modified_ns(join(base, VERSIONS_DIR))
    return noted is not None and changed is not None and changed <= noted + _HINT_SLACK_NS


def _look_up(store: ObjectStore, base: str, version: int, naming: ManifestNaming) -> ManifestLocation | None:
    path = manifest_path(base, version, naming)
    size = store.find(path)
    return None if size is None else ManifestLocation(version, path, size, naming)


def _first_listed(store: ObjectStore, base: str) -> ManifestLocation | None:
    """The newest version from the first names of an ordered listing: under V2 it is the first manifest."""
    for page, is_last in _digit_pages(store, base):
        found = _parse_names(base, page, 0)
        if found and found[-1].naming is ManifestNaming.V2:
            return found[-1]
        if found:  # V1 names are ordered like words, not like numbers
            return found[-1] if is_last else _greatest_listed(store, base)
    return None


def _greatest_listed(store: ObjectStore, base: str) -> ManifestLocation | None:
    """The newest version of a whole listing."""
    directory = join(base, VERSIONS_DIR)
    found = _numbered(directory, store.list_names(directory))
    if not found:
        return None
    version, meta, naming = found[-1]
    return ManifestLocation(version, f"{directory}/{meta.name}", meta.size_bytes, naming)


def _listed_after(store: ObjectStore, base: str, after: int, naming: ManifestNaming | None) -> list[ManifestLocation]:
    """The versions after one from as few names of an ordered listing as it takes: all of them under V1."""
    names: list[ObjectMeta] = []
    if naming is not ManifestNaming.V1:
        for page, is_last in _digit_pages(store, base, _SHORT_PAGE):
            names += page
            found = _parse_names(base, names, 0)
            if is_last or (found and found[0].naming is ManifestNaming.V2 and found[0].version <= after):
                return _parse_names(base, names, after)
            if found and found[0].naming is ManifestNaming.V1:
                break
    return _parse_names(base, store.list_names(join(base, VERSIONS_DIR)), after)


def _digit_pages(store: ObjectStore, base: str, first: int = _FIRST_PAGE) -> Iterator[tuple[list[ObjectMeta], bool]]:
    """Names that start with a digit, in order, in pages that grow; with each, whether it is the last."""
    start, limit = "0", first
    while True:
        names = store.list_names(join(base, VERSIONS_DIR), start_after=start, limit=limit)
        is_last = len(names) < limit or not names[-1].name[:1].isdigit()
        yield [meta for meta in names if meta.name[:1].isdigit()], is_last
        if is_last:
            return
        start, limit = names[-1].name, min(limit * 8, _MAX_PAGE)


def _parse_names(base: str, names: list[ObjectMeta], after: int) -> list[ManifestLocation]:
    """The versions among file names, ascending."""
    directory = join(base, VERSIONS_DIR)
    found = _numbered(directory, names)
    return [
        ManifestLocation(version, f"{directory}/{meta.name}", meta.size_bytes, naming)
        for version, meta, naming in found
        if version > after
    ]


def _numbered(directory: str, names: list[ObjectMeta]) -> list[tuple[int, ObjectMeta, ManifestNaming]]:
    """Version, name and scheme of the manifests among file names, ascending, without detached ones.

    Raises CorruptFileError where both naming schemes occur.
    """
    parsed = []
    counts = {ManifestNaming.V1: 0, ManifestNaming.V2: 0}
    for meta in names:
        found = parse_manifest_name(meta.name)
        if found is not None and 0 < found[0] < DETACHED_BIT:
            parsed.append((found[0], meta, found[1]))
            counts[found[1]] += 1
    if all(counts.values()):
        raise CorruptFileError(
            f"{directory}: multiple manifest naming schemes in one table; its newest version cannot be told",
            path=directory,
            expected="names of one scheme",
            found="V1 and V2 names",
        )
    parsed.sort(key=_VERSION_OF)
    return parsed


_VERSION_OF = itemgetter(0)
