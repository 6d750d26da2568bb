"""Detection of a published version whose changes are missing from the newer versions.

A cleanup can free a version number between the listing of new versions and the publication:

    listing      the transaction is built on version 7, the newest
    others       commit versions 8 and 9; a cleanup removes version 8
    publication  the transaction becomes a new version 8, which precedes 9, and no later version contains its changes

A conditional create cannot prevent this, but a time limit can. Cleanups of this library wait before they remove very
young versions (`CleanupPlan`), so a publication within the grace period of its listing needs no check. After a longer
time the versions are listed again. A cleanup never removes the newest version, so a published version that is the
newest is valid. Otherwise the next version is compared with it:

    a file that the publication added is in the next version        valid
    the next version is an Overwrite or a Restore                   valid: it discards earlier changes of files anyway
    a file that the publication dropped is in the next version      lost
    no added file is there, but the next version keeps such files   lost
    undecided, for example if only the configuration was changed    adjacent versions and modification times decide
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.commit.cleanup.referenced_files import referenced_paths
from lancetable.commit.conflicts import touched_fragments
from lancetable.format import transaction as tx
from lancetable.format.paths import TRANSACTIONS_DIR, VERSIONS_DIR, join
from lancetable.handlers.external_manifest import ExternalHandler
from lancetable.table import transactions
from lancetable.table.version import open_location

if TYPE_CHECKING:
    from lancetable.format.manifest_naming import ManifestLocation
    from lancetable.store.base import ObjectStore
    from lancetable.table.version import TableVersion

_GRACE_PERIOD_SECONDS = 0.5
_LOCAL_GRACE_PERIOD_SECONDS = 0.02  # listing a local directory takes microseconds

# Operations that keep all files of the fragments and indices that they do not name.
_KEEPS_OTHER_FILES = (tx.Append, tx.Delete, tx.Update, tx.Rewrite, tx.UpdateConfig, tx.ReserveFragments, tx.UpdateBases)


def grace_period_seconds(store: ObjectStore) -> float:
    """Return the time after a listing of new versions within which a publication needs no check."""
    return _LOCAL_GRACE_PERIOD_SECONDS if store.capabilities.local else _GRACE_PERIOD_SECONDS


def is_in_grace_period(store: ObjectStore, seconds: float) -> bool:
    """Return True if a publication `seconds` after its listing of new versions needs no check."""
    return seconds <= grace_period_seconds(store)


def is_lost_update(published: TableVersion, predecessor: TableVersion) -> bool | None:
    """Return True if newer versions do not contain the changes of a published version, None if that is unknown.

    `predecessor` is the version that `published` was built on. Sends one request if `published` is the newest version.
    A version decided by an external manifest store is never lost, because its rows outlive a cleanup.
    """
    if isinstance(published.handler, ExternalHandler):
        return False
    store, base, location = published.store, published.base, published.location
    newer = published.handler.history(store, base, after=location.version)  # `newer` relies on the version hint
    if not newer:
        return False
    next_exists = newer[0].version == location.version + 1
    lost = _is_missing_from(open_location(published, newer[0]), published, predecessor, is_next=next_exists)
    if lost is not None:
        return lost
    has_neighbours = (
        next_exists and published.handler.locate(store, base, location.version - 1, location.naming) is not None
    )
    next_is_older = _is_older(store, base, newer[0], location)
    if has_neighbours:
        return None if next_is_older else False
    if next_is_older is False and not next_exists:
        return None  # the missing next version may have existed before the published one
    return next_is_older


def _is_missing_from(
    newer: TableVersion, published: TableVersion, predecessor: TableVersion, *, is_next: bool
) -> bool | None:
    """Return whether `newer` lacks the changes of `published`, judged by its files. None if they do not decide it."""
    files_before, files, files_newer = map(_files, (predecessor, published, newer))
    added, dropped = files - files_before, files_before - files
    if not added.isdisjoint(files_newer):
        return False
    committed = transactions.read(newer.store, newer.base, newer.file) if is_next else None
    if committed is None or not (added or dropped):
        return None
    operation = committed.operation
    if isinstance(operation, tx.Overwrite | tx.Restore):
        return False
    if not dropped.isdisjoint(files_newer):
        return True
    if not added:
        return False
    if not isinstance(operation, _KEEPS_OTHER_FILES):
        return None
    before = {fragment.id: fragment for fragment in predecessor.manifest.message.fragments}
    changed = [fragment.id for fragment in published.manifest.message.fragments if before.get(fragment.id) != fragment]
    touched = touched_fragments(operation)
    # Without changed fragments, the added files are indices, which every change of fragments may affect.
    is_kept = touched.isdisjoint(changed) if changed else not touched
    return True if is_kept else None


def _files(version: TableVersion) -> set[tuple[int | None, str]]:
    return {named for named in referenced_paths(version) if not named[1].startswith(f"{TRANSACTIONS_DIR}/")}


def _is_older(store: ObjectStore, base: str, left: ManifestLocation, right: ManifestLocation) -> bool | None:
    """Return True if manifest `left` is older than `right` by the store's clock, None if the times do not decide it."""
    times = {}
    directory = join(base, VERSIONS_DIR)
    for meta in store.list_names(directory, detail=True):
        times[f"{directory}/{meta.name}"] = meta.last_modified
    first, second = times.get(left.path), times.get(right.path)
    return None if first is None or second is None or first == second else first < second
