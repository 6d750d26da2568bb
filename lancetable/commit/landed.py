"""Whether a version that was just published follows the one that was newest: a cleanup may have made its number free.

    looked     ours is made on 7, the newest         between the look and the publication others make 8 and 9, and a
    published  ours as 8                             cleanup removes 8: then ours takes a number of the past, and no
                                                     later version has what it says

Nothing in a conditional create prevents that; what does is time. A publication soon after its look is believed, since
a cleanup of this library waits before it removes versions as young as that (commit/cleanup.py: CleanupPlan). After a
longer time the versions are looked at once more. A cleanup never removes the newest one, nor leaves an older one out
that has no tag, so that ours is in line where it is the newest, or stands between its two neighbours.
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

__all__ = ["BELIEVED_SECONDS", "Place", "is_believed", "place_of"]

BELIEVED_SECONDS = 0.5
_BELIEVED_SECONDS_LOCAL = 0.02  # where a look costs next to nothing


class Place(Enum):
    """Where a published version stands."""

    IN_LINE = "in line"
    IN_THE_PAST = "in the past"  # newer ones were there before it
    UNKNOWN = "unknown"


def is_believed(store: ObjectStore, seconds: float) -> bool:
    """Whether a publication needs no second look that came so long after the first."""
    return seconds <= (_BELIEVED_SECONDS_LOCAL if store.capabilities.local else BELIEVED_SECONDS)


def place_of(landed: TableVersion) -> Place:
    """Look where a version stands that was published a moment ago. One request where it is the newest.

    What an external manifest store decided is in line: its rows outlive what a cleanup removes.
    """
    if isinstance(landed.handler, ExternalHandler):
        return Place.IN_LINE
    store, base, ours = landed.store, landed.base, landed.location
    newer = landed.handler.newer(store, base, ours)
    if not newer:
        return Place.IN_LINE
    follows = newer[0].version == ours.version + 1
    if follows and landed.handler.locate(store, base, ours.version - 1, ours.naming) is not None:
        return Place.IN_LINE
    earlier = _was_there_before(store, base, newer[0], ours)
    if earlier is None:
        return Place.UNKNOWN
    if earlier:
        return Place.IN_THE_PAST
    # A gap behind ours: what came after it is gone as well, and that may have been there before.
    return Place.IN_LINE if follows else Place.UNKNOWN


def _was_there_before(store: ObjectStore, base: str, one: ManifestLocation, other: ManifestLocation) -> bool | None:
    """Which of two manifests is older, by the clock of the store; None where it does not tell."""
    times = {}
    directory = join(base, VERSIONS_DIR)
    for meta in store.list_names(directory, detail=True):
        times[f"{directory}/{meta.name}"] = meta.last_modified
    first, second = times.get(one.path), times.get(other.path)
    return None if first is None or second is None or first == second else first < second
