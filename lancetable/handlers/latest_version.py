"""Look-up of the versions of a table: by the hint of the newest version, or by listing `_versions`.

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
from collections.abc import Iterable, Iterator
from operator import attrgetter

from lancetable.errors import CorruptFileError, LanceError, NotFoundError
from lancetable.format.manifest_naming import (
    DETACHED_BIT,
    MAX_VERSION,
    ManifestLocation,
    ManifestNamingScheme,
    hint_path,
    is_detached,
    manifest_path,
    parse_manifest_name,
)
from lancetable.format.paths import VERSIONS_DIR, join
from lancetable.store.base import Durability, ObjectMeta, ObjectStore

NAMINGS = (ManifestNamingScheme.V2, ManifestNamingScheme.V1)  # most tables use the first one
MAX_PROBES = 64  # beyond this many versions, a listing is cheaper than single look-ups
_FIRST_PAGE = 8
_SHORT_PAGE = 4  # for callers that know a version and need only newer ones
_MAX_PAGE = 1000
_HINT = re.compile(rb'\s*\{\s*"version"\s*:\s*([0-9]{1,20})\s*\}\s*')
_HINT_MAX_BYTES = 128
# A hint is written under another name and renamed, so the directory changes shortly after the hint's own time.
_HINT_SLACK_NS = 100_000_000


def write_hint(store: ObjectStore, base: str, version: int) -> None:
    """Write the hint of the newest version. Failures are ignored, because the hint is optional.

    A hint of a newer version that exists is kept: a late publication may have a number that a cleanup had freed.
    """
    capabilities = store.capabilities
    if is_detached(version) or not hints_enabled() or (capabilities.ordered_list and not capabilities.local):
        return
    with contextlib.suppress(LanceError):
        hint = read_hint(store, base)
        if hint is not None and hint > version and look_up(store, base, hint, ManifestNamingScheme.V2) is not None:
            return
        store.put(hint_path(base), b'{"version":%d}' % version, durability=Durability.NEVER)


def hints_enabled() -> bool:
    return os.environ.get("LANCE_USE_VERSION_HINT", "1").strip().lower() not in ("0", "false", "no", "off")


def latest_by_hint(store: ObjectStore, base: str) -> ManifestLocation | None:
    """Return the newest version if it can be determined with certainty from the hint, else None."""
    version = read_hint(store, base)
    hinted = None if version is None else first_found(store, base, version, NAMINGS)
    if hinted is None:
        return None
    newer = probe_successors(store, base, hinted.version, hinted.naming)
    last = newer[-1] if newer else hinted
    if len(newer) >= MAX_PROBES or not is_newest(store, base, last.version, last.naming):
        return None
    return last


def read_hint(store: ObjectStore, base: str) -> int | None:
    try:
        data, size = store.read_tail(hint_path(base), None, _HINT_MAX_BYTES)
    except (NotFoundError, CorruptFileError):
        return None
    match = _HINT.fullmatch(data) if size <= _HINT_MAX_BYTES else None
    version = int(match[1]) if match else 0
    return version if 1 <= version <= MAX_VERSION and not is_detached(version) else None


def probe_successors(
    store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme
) -> list[ManifestLocation]:
    """Return at most `MAX_PROBES` successors of a version, up to the first gap."""
    locations: list[ManifestLocation] = []
    for successor in range(version + 1, version + 1 + MAX_PROBES):
        location = look_up(store, base, successor, naming)
        if location is None:
            break
        locations.append(location)
    return locations


def is_newest(store: ObjectStore, base: str, last: int, naming: ManifestNamingScheme) -> bool:
    """Return True if a version without a successor is certainly the newest.

    This requires that the directory did not change after the hint was written. Otherwise, a writer without hints and a
    cleanup of its first versions may have left a gap after `last`.
    """
    other = ManifestNamingScheme.V1 if naming is ManifestNamingScheme.V2 else ManifestNamingScheme.V2
    if look_up(store, base, last + 1, other) is not None:
        return False  # both schemes are used, so listing the directory raises an error
    hint_ns = store.modified_ns(hint_path(base))
    directory_ns = store.modified_ns(join(base, VERSIONS_DIR))
    return hint_ns is not None and directory_ns is not None and directory_ns <= hint_ns + _HINT_SLACK_NS


def first_found(
    store: ObjectStore, base: str, version: int, namings: Iterable[ManifestNamingScheme]
) -> ManifestLocation | None:
    locations = (look_up(store, base, version, naming) for naming in namings)
    return next((location for location in locations if location is not None), None)


def look_up(store: ObjectStore, base: str, version: int, naming: ManifestNamingScheme) -> ManifestLocation | None:
    path = manifest_path(base, version, naming)
    size = store.find(path)
    return None if size is None else ManifestLocation(version, path, size, naming)


def latest_by_first_page(store: ObjectStore, base: str) -> ManifestLocation | None:
    """Return the newest version from the first page of an ordered listing. In V2, it is the first manifest."""
    for page, is_last in _digit_pages(store, base):
        locations = parse_names(base, page)
        if locations and locations[-1].naming is ManifestNamingScheme.V2:
            return locations[-1]
        if locations:  # V1 names are ordered as strings, not as numbers
            return locations[-1] if is_last else latest_by_full_listing(store, base)
    return None


def latest_by_full_listing(store: ObjectStore, base: str) -> ManifestLocation | None:
    """Return the newest version of a complete listing."""
    locations = parse_names(base, store.list_names(join(base, VERSIONS_DIR)))
    return locations[-1] if locations else None


def list_after(
    store: ObjectStore, base: str, after: int, naming: ManifestNamingScheme | None
) -> list[ManifestLocation]:
    """Return the versions after `after` from as few pages of an ordered listing as possible. V1 needs all."""
    names: list[ObjectMeta] = []
    if naming is not ManifestNamingScheme.V1:
        for page, is_last in _digit_pages(store, base, _SHORT_PAGE):
            names += page
            first = next(iter(parse_names(base, names)), None)
            if is_last or (first and first.naming is ManifestNamingScheme.V2 and first.version <= after):
                return parse_names(base, names, after)
            if first and first.naming is ManifestNamingScheme.V1:
                break
    return parse_names(base, store.list_names(join(base, VERSIONS_DIR)), after)


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


def parse_names(base: str, names: list[ObjectMeta], after: int = 0) -> list[ManifestLocation]:
    """Return the versions after `after` among file names, in ascending order, without detached ones.

    Raises
    ------
    CorruptFileError
        If both naming schemes are used.
    """
    locations = [location for location in _manifests_among(base, names) if 0 < location.version < DETACHED_BIT]
    if len({location.naming for location in locations}) > 1:
        what = "multiple manifest naming schemes, so the newest version is unknown; migrate the table to one scheme"
        raise CorruptFileError(what, "names of one scheme", "V1 and V2 names", path=join(base, VERSIONS_DIR))
    locations.sort(key=attrgetter("version"))
    return [location for location in locations if location.version > after]


def detached_locations(store: ObjectStore, base: str) -> list[ManifestLocation]:
    """Return the locations of the detached versions."""
    names = store.list_names(join(base, VERSIONS_DIR))
    return [location for location in _manifests_among(base, names) if is_detached(location.version)]


def _manifests_among(base: str, names: list[ObjectMeta]) -> Iterator[ManifestLocation]:
    directory = join(base, VERSIONS_DIR)
    for meta in names:
        parsed = parse_manifest_name(meta.name)
        if parsed is not None:
            yield ManifestLocation(parsed[0], f"{directory}/{meta.name}", meta.size_bytes, parsed[1])
