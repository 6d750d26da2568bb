"""Plan of a cleanup: the old versions to remove, and the files that only they reference.

    versions  removable  = old enough by the policy, older than the opened version, not tagged, and no branch created
                           from them uses a file of this root
    files     kept       = used by any remaining version, including detached ones
              verified   = used by removable versions only            -> removed at any age
              unverified = used by no version, so they may belong     -> removed when 7 days old
                           to a commit in progress

Only files whose names match the format's patterns are removed, and only below the table's own root. Manifests are
removed first, so that no version with missing files can be opened. If a cleanup is interrupted, the next one removes
the rest.

A commit on a remote store may skip listing versions (commit/lost_update.py). Versions that are less than a minute older
than the newest one are therefore removed at least one second after they were listed: by then, a commit that is based on
their predecessor has tried to publish the same number and lost. Files of a version that appeared since the plan was
made are kept.

Files of a version that is being restored are kept as well:

    a Restore     writes its transaction file    reads the manifest of the old version    publishes
    a cleanup     removes that manifest          lists transactions, then versions         removes files

Either the Restore finds the manifest missing and fails, or the cleanup finds the transaction and leaves the files to
the next cleanup. A commit of a detached version checks after the publication that the base version still exists.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from lancetable.commit.cleanup.branch_references import CleanupReferencedBranch, branches_from, versions_needed_by
from lancetable.commit.cleanup.referenced_files import ReferencedFiles, files_of_detached_versions
from lancetable.commit.lost_update import grace_period_seconds
from lancetable.errors import CleanupError, InvalidOperationError, StoreError
from lancetable.format.manifest_naming import is_detached
from lancetable.format.paths import (
    DATA_DIR,
    DELETIONS_DIR,
    INDICES_DIR,
    QUARANTINE_DIR,
    TRANSACTIONS_DIR,
    VERSIONS_DIR,
    join,
    parse_deletion_name,
    parse_transaction_name,
)
from lancetable.handlers.external_manifest import ExternalHandler
from lancetable.table import clock, refs
from lancetable.table.manifest_files import retry_listing
from lancetable.table.version import TableVersion, open_location

DEFAULT_AGE = timedelta(days=14)
UNVERIFIED_AGE = timedelta(days=7)
_YOUNG = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class CleanupPolicy:
    """Conditions for removable versions. A version must meet all conditions that are not None.

    Attributes
    ----------
    older_than
        Minimum age of the version.
    keep_newest
        Number of newest versions that are kept.
    versions
        The only versions that may be removed.
    delete_unverified
        Remove files that no version uses, regardless of their age. Safe only if no process writes to the table.
    error_if_tagged
        Raise CleanupError if a version to remove is tagged. Otherwise, tagged versions are kept.

    Raises
    ------
    InvalidOperationError
        If `keep_newest` is less than 1.
    """

    older_than: timedelta | None = None
    keep_newest: int | None = None
    versions: frozenset[int] | None = None
    delete_unverified: bool = False
    error_if_tagged: bool = True

    def __post_init__(self) -> None:
        if self.keep_newest is not None and self.keep_newest < 1:
            raise InvalidOperationError(f"retain_versions must be greater than 0, got {self.keep_newest}")


@dataclass
class CleanupCandidateFile:
    """A file that a cleanup would remove.

    `path` is relative to the table's root. `kind` is "manifest", "transaction", "data", "deletion", "index" or
    "temporary". No version references an unverified file, so it may belong to a commit in progress.
    """

    path: str
    kind: str
    unverified: bool
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """Versions and files to remove, manifests first."""

    read_version: int
    versions: tuple[int, ...]
    files: tuple[CleanupCandidateFile, ...]
    branches: tuple[CleanupReferencedBranch, ...] = ()
    warnings: tuple[str, ...] = ()
    transactions: frozenset[str] = frozenset()  # paths of transactions that versions used when the plan was made
    # Earliest time of the removal, by clock.seconds(). Before it, a commit may reuse the number of a removed version.
    not_before: float = 0.0


def plan_cleanup(version: TableVersion, policy: CleanupPolicy, *, before_version: int | None = None) -> CleanupPlan:
    """Plan a cleanup without changing anything.

    Parameters
    ----------
    version
        The opened version. Only older versions are removed.
    policy
        Conditions for removable versions.
    before_version
        Only versions below this number are removed, in addition to the limit of `version`.

    Raises
    ------
    CleanupError
        If a version to remove is tagged and `policy.error_if_tagged` is set.
    CorruptFileError
        If a manifest is damaged.
    StoreError
        If the listing of versions is stale, or the store fails.
    """
    return retry_listing(lambda: _plan(version, policy, before_version))


def _plan(version: TableVersion, policy: CleanupPolicy, before_version: int | None) -> CleanupPlan:
    store, base = version.store, version.base
    locations = version.handler.history(store, base)
    listed_at = clock.seconds()
    numbers = [location.version for location in locations]
    _check_fresh(version, numbers)
    # The newest version is never removed, even if the opened version is detached or not in the history.
    first_kept = min([version.version, *numbers[-1:]])
    candidates = _candidates(numbers, policy, first_kept if before_version is None else min(before_version, first_kept))
    branches, warnings = branches_from(version), list[str]()
    removed_parents = {branch.referenced_version for branch in branches}.difference(numbers)
    needs, is_known = versions_needed_by(version, branches, candidates, removed_parents, warnings)
    tags = {
        name: tag.version
        for name, tag in refs.TAGS.list(store, version.main_base).items()
        if tag.branch == version.branch
    }
    before = None if policy.older_than is None else _time_before(policy.older_than)
    kept, removed = ReferencedFiles(everywhere=True), ReferencedFiles()
    kept.paths.update(path for number in removed_parents & needs.keys() for path in needs[number])
    manifests: dict[str, int] = {}  # versions to remove, by the path of the manifest
    tagged: dict[str, int] = {}
    for location in locations:
        number = location.version
        opened = version if number == version.version else open_location(version, location)
        is_old = number in candidates and (before is None or opened.manifest.timestamp < before)
        old_tags = {name: number for name in tags if tags[name] == number and is_old and number not in needs}
        tagged.update(old_tags)
        if is_old and number not in needs and not old_tags:
            manifests[location.path[len(base) :].lstrip("/")] = number
            removed.add(opened)
        else:
            kept.add(opened)
    if tagged and policy.error_if_tagged:
        raise CleanupError(
            f"Cleanup error: {len(tagged)} tagged version(s) have been marked for cleanup. Either set "
            f"`error_if_tagged_old_versions=false` or delete the following tag(s) to enable cleanup: {tagged}"
        )
    kept.paths |= files_of_detached_versions(version)
    times: dict[str, datetime] = {}
    files = list(_files(version, kept.paths, removed.paths - kept.paths, set(manifests), policy, times))
    if not is_known:
        files = [file for file in files if file.kind in ("manifest", "temporary")]
    files.sort(key=lambda file: file.kind != "manifest")
    settles_at = listed_at + 2 * grace_period_seconds(store) if _any_young(manifests, times) else 0.0
    return CleanupPlan(
        first_kept,
        tuple(manifests.values()),
        tuple(files),
        tuple(branches),
        tuple(warnings),
        frozenset(path for path in kept.paths | removed.paths if path.startswith(f"{TRANSACTIONS_DIR}/")),
        settles_at,
    )


def _any_young(manifests: Iterable[str], times: Mapping[str, datetime]) -> bool:
    """Return True if a manifest to remove is less than a minute older than the newest, by the store's clock."""
    newest = max(times.values(), default=None)
    return any(newest is None or path not in times or newest - times[path] < _YOUNG for path in manifests)


def _check_fresh(version: TableVersion, listed: Sequence[int]) -> None:
    """Raise StoreError if the listing is older than `version`. Files of newer versions would look unused."""
    if version.version in listed or is_detached(version.version):
        return
    if version.handler.locate(version.store, version.base, version.version) is not None:
        raise StoreError(
            f"{version.uri}: the listing of versions lacks version {version.version}, which exists. Nothing was "
            "removed; try again when the store's listings are up to date",
            path=version.uri,
        )


def _candidates(numbers: list[int], policy: CleanupPolicy, before_version: int) -> set[int]:
    candidates = {number for number in numbers if number < before_version}
    if policy.versions is not None:
        candidates &= policy.versions
    if policy.keep_newest is not None:
        candidates -= set(numbers[-policy.keep_newest :])
    return candidates


def _files(
    version: TableVersion,
    kept: set[str],
    verified: set[str],
    manifests: set[str],
    policy: CleanupPolicy,
    times: dict[str, datetime],
) -> Iterator[CleanupCandidateFile]:
    """Yield the files to remove. Adds the modification time of each manifest to `times`, by path."""
    external = version.handler if isinstance(version.handler, ExternalHandler) else None
    # A quarantined manifest may be the only one that references a file.
    has_quarantine = bool(version.store.list_names(join(version.base, QUARANTINE_DIR), limit=1))
    now = _now()
    for folder in (VERSIONS_DIR, DATA_DIR, DELETIONS_DIR, TRANSACTIONS_DIR, INDICES_DIR):
        for meta in version.store.list_recursive(join(version.base, folder)):
            path = f"{folder}/{meta.name}"
            modified = meta.last_modified
            if folder == VERSIONS_DIR and modified is not None and path.endswith(".manifest"):
                times[path] = modified
            if path in manifests:
                yield CleanupCandidateFile(path, "manifest", False, meta.size_bytes or 0)
                continue
            owner, kind = referenced_path(folder, meta.name)
            if external and folder == VERSIONS_DIR and _STAGED.match(meta.name):
                owner, kind = path, "temporary"
            if owner is None or owner in kept:
                continue
            is_removed = f"{path.partition('.manifest-')[0]}.manifest" in manifests
            unverified = owner not in verified and not is_removed
            is_young = modified is None or now - modified < UNVERIFIED_AGE
            if unverified and not policy.delete_unverified and (is_young or (has_quarantine and kind != "temporary")):
                continue
            # The staged manifest of a decided version is kept, unless the version is to be removed.
            is_staged = kind == "temporary" and not is_removed
            if external and is_staged and external.is_decided(version.store, version.base, join(version.base, path)):
                continue
            yield CleanupCandidateFile(path, kind, unverified, meta.size_bytes or 0)


_TEMPORARY = re.compile(r"\.tmp_.{1,50}_[0-9a-f]{24}\Z", re.DOTALL)  # left by the local store if its writer was killed
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_STAGED = re.compile(rf"[0-9]{{1,20}}\.manifest-{_UUID}\Z")
_INDEX_FILE = re.compile(rf"{_UUID}/")


def referenced_path(folder: str, name: str) -> tuple[str | None, str]:
    """Return the path by which a version references a file, and the kind of the file.

    The path is None if the name matches no pattern of the format. Blob files belong to the data file after which their
    directory is named, index files to their directory.
    """
    path, first = f"{folder}/{name}", f"{folder}/{name.partition('/')[0]}"
    if _TEMPORARY.match(name.rpartition("/")[2]) or (folder == VERSIONS_DIR and name.startswith(".tmp")):
        return path, "temporary"
    if folder == DATA_DIR:
        if "/" in name:
            return (f"{first}.lance" if name.endswith(".blob") else None), "data"
        return (path if name.endswith(".lance") else None), "data"
    if folder == DELETIONS_DIR:
        return (path if parse_deletion_name(name) is not None else None), "deletion"
    if folder == TRANSACTIONS_DIR:
        return (path if parse_transaction_name(name) is not None else None), "transaction"
    return (first if folder == INDICES_DIR and _INDEX_FILE.match(name) else None), "index"


def _now() -> datetime:
    """Return the current time from `time.time`, which simulations replace."""
    return datetime.fromtimestamp(time.time(), timezone.utc)


def _time_before(age: timedelta) -> datetime:
    try:
        return _now() - age
    except OverflowError:  # before year 1
        return datetime.min.replace(tzinfo=timezone.utc)
