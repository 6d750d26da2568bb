"""Check that a published version succeeds the version it was built on.

A cleanup can free a version number between the look for new versions and the publication:

    look         the transaction is built on version 7, the newest
    others       commit versions 8 and 9; a cleanup removes version 8
    publication  the transaction becomes a new version 8, which precedes 9, and no later version contains its changes

A conditional create cannot prevent this. Time can: cleanups of this library wait before they remove very young versions
(commit/gc/plan.py: CleanupPlan), so a publication within `GRACE_PERIOD_SECONDS` of its look needs no check. After a
longer time the versions are listed again. A cleanup never removes the newest version, and never leaves out an old
version without a tag. A published version is therefore valid if it is the newest, or if both of its neighbours exist.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from lancetable.format.paths import VERSIONS_DIR, join
from lancetable.handlers.external import ExternalHandler

if TYPE_CHECKING:
    from lancetable.handlers.base import ManifestLocation
    from lancetable.store.base import ObjectStore
    from lancetable.table.version import TableVersion

__all__ = ["GRACE_PERIOD_SECONDS", "Lineage", "is_in_grace_period", "verify_lineage"]

GRACE_PERIOD_SECONDS = 0.5
_LOCAL_GRACE_PERIOD_SECONDS = 0.02  # a look at a local disk costs microseconds


class Lineage(Enum):
    """Position of a published version in the history."""

    SUCCESSOR = "successor"  # it follows the version that it was built on
    STALE = "stale"  # newer versions existed before it
    UNKNOWN = "unknown"


def is_in_grace_period(store: ObjectStore, seconds: float) -> bool:
    """Return True if a publication `seconds` after its look for new versions needs no lineage check."""
    return seconds <= (_LOCAL_GRACE_PERIOD_SECONDS if store.capabilities.local else GRACE_PERIOD_SECONDS)


def verify_lineage(published: TableVersion) -> Lineage:
    """Look up the position of a version that was just published. One request if it is the newest.

    Versions decided by an external manifest store are always successors, because its rows outlive a cleanup.
    """
    if isinstance(published.handler, ExternalHandler):
        return Lineage.SUCCESSOR
    store, base, location = published.store, published.base, published.location
    newer = published.handler.newer(store, base, location)
    if not newer:
        return Lineage.SUCCESSOR
    next_exists = newer[0].version == location.version + 1
    if next_exists and published.handler.locate(store, base, location.version - 1, location.naming) is not None:
        return Lineage.SUCCESSOR
    next_is_older = _is_older(store, base, newer[0], location)
    if next_is_older is None:
        return Lineage.UNKNOWN
    if next_is_older:
        return Lineage.STALE
    # If the next number is missing, that version was removed too and may have existed before the published one.
    return Lineage.SUCCESSOR if next_exists else Lineage.UNKNOWN


def _is_older(store: ObjectStore, base: str, one: ManifestLocation, other: ManifestLocation) -> bool | None:
    """Return True if manifest `one` is older than `other` by the store's clock, None if the times do not decide it."""
    times = {}
    directory = join(base, VERSIONS_DIR)
    for meta in store.list_names(directory, detail=True):
        times[f"{directory}/{meta.name}"] = meta.last_modified
    first, second = times.get(one.path), times.get(other.path)
    return None if first is None or second is None or first == second else first < second
