"""Removal of old versions and of the files that only they use.

    versions  removable  = old enough by the policy, older than the handle's version, not tagged, and no branch created
                           from them uses a file of this root
    files     kept       = used by any remaining version, including detached ones
              verified   = used by removable versions only            -> removed at any age
              unverified = used by no version, so they may belong     -> removed when 7 days old
                           to a commit in progress

Only files whose names match the format's patterns are removed, and only below the table's own root. Manifests are
removed first, so that no version can be opened whose files are missing. If a cleanup is interrupted, the next one
removes the rest.

A commit on a remote store may skip listing versions (commit/lineage.py). Versions that are less than a minute older
than the newest one are therefore removed at least one second after they were listed: by then, a commit on their
predecessor has lost against them. Files of a version that appeared since the plan was made are kept.

Files of a version that is being restored are kept as well:

    a Restore     writes its transaction file    reads the manifest of the old version    publishes
    a cleanup     removes that manifest          lists transactions, then versions         removes files

Either the Restore finds the manifest missing and fails, or the cleanup finds the transaction and leaves the files to
the next cleanup. A detached version checks that its base still exists after it was published.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from lancetable.commit.gc.branch_references import ReferencedBranch, branches_from, needs_of
from lancetable.commit.gc.referenced_files import NamedFiles, named_beside
from lancetable.commit.lineage import GRACE_PERIOD_SECONDS
from lancetable.errors import (
    CleanupError,
    CorruptFileError,
    InvalidInputError,
    InvalidOperationError,
    LanceError,
    NotFoundError,
    StoreError,
    UnsupportedFeatureError,
)
from lancetable.format.paths import (
    DATA_DIR,
    DELETIONS_DIR,
    INDICES_DIR,
    QUARANTINE_DIR,
    TRANSACTIONS_DIR,
    VERSIONS_DIR,
    is_detached,
    join,
    parse_deletion_name,
    parse_manifest_name,
    parse_transaction_name,
)
from lancetable.format.transaction import Restore, Transaction, UnknownOperation
from lancetable.handlers.external import ExternalHandler
from lancetable.table import refs
from lancetable.table.version import TableVersion, open_location

__all__ = [
    "CandidateFile",
    "CleanupCounts",
    "CleanupPlan",
    "Policy",
    "ReferencedBranch",
    "clean_up_after_commit",
    "keeps_young_versions",
    "plan_cleanup",
    "run_cleanup",
]

logger = logging.getLogger(__name__)

DEFAULT_AGE = timedelta(days=14)
UNVERIFIED_AGE = timedelta(days=7)
_CHUNK = 1000
_YOUNG = timedelta(minutes=1)
_SETTLED_SECONDS = 2 * GRACE_PERIOD_SECONDS
_CONFIG = "lance.auto_cleanup."


@dataclass(frozen=True, slots=True)
class Policy:
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
        Remove files that no version uses at any age. Safe only if no process writes to the table.
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


class CandidateFile(NamedTuple):
    """A file to remove. `path` is relative to the table's root, `kind` is one of `KINDS`."""

    path: str
    kind: str
    size_bytes: int
    unverified: bool = False


KINDS = ("manifest", "transaction", "data", "deletion", "index", "temporary")


@dataclass(frozen=True, slots=True)
class CleanupPlan:
    """Versions and files to remove, manifests first."""

    read_version: int
    versions: tuple[int, ...]
    files: tuple[CandidateFile, ...]
    branches: tuple[ReferencedBranch, ...] = ()
    warnings: tuple[str, ...] = ()
    transactions: frozenset[str] = frozenset()  # paths of transactions that versions used when the plan was made
    # By time.monotonic(). Until then, a commit in progress may reuse the number of a removed version.
    not_before: float = 0.0


@dataclass(slots=True)
class CleanupCounts:
    """Statistics of a cleanup."""

    bytes_removed: int = 0
    old_versions: int = 0
    files: dict[str, int] = field(default_factory=dict)  # by kind
    failed_deletes: int = 0

    def count(self, candidate: CandidateFile) -> None:
        """Count a removed file."""
        self.bytes_removed += candidate.size_bytes
        if candidate.kind == "manifest":
            self.old_versions += 1
        else:
            self.files[candidate.kind] = self.files.get(candidate.kind, 0) + 1


# --- plan -------------------------------------------------------------------------------------------------------------


def plan_cleanup(version: TableVersion, policy: Policy, *, before_version: int | None = None) -> CleanupPlan:
    """Plan a cleanup without changing anything.

    Parameters
    ----------
    version
        The handle's version. Only older versions are removed.
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
    store, base = version.store, version.base
    locations = version.handler.history(store, base)
    seen_at = time.monotonic()
    numbers = [location.version for location in locations]
    _check_fresh(version, numbers)
    # The newest version is never removed, even if the handle's version is detached or not in the history.
    first_kept = min([version.version, *numbers[-1:]])
    candidates = _candidates(numbers, policy, first_kept if before_version is None else min(before_version, first_kept))
    branches, warnings = branches_from(version), list[str]()
    removed_parents = {branch.referenced_version for branch in branches}.difference(numbers)
    needs, is_known = needs_of(version, branches, candidates, removed_parents, warnings)
    tags = {
        name: tag.version
        for name, tag in refs.TAGS.list(store, version.main_base).items()
        if tag.branch == version.branch
    }
    before = None if policy.older_than is None else _moment_before(policy.older_than)
    keeping, removing = NamedFiles(everywhere=True), NamedFiles()
    keeping.paths.update(path for number, paths in needs.items() if number in removed_parents for path in paths)
    removable: dict[int, str] = {}
    tagged: dict[str, int] = {}
    for location in locations:
        opened = open_location(version, location) if location.version != version.version else version
        old = location.version in candidates and (before is None or opened.manifest.timestamp < before)
        names = [name for name, number in tags.items() if number == location.version]
        if old and names and location.version not in needs:
            tagged.update((name, location.version) for name in names)
        if old and not names and location.version not in needs:
            removable[location.version] = location.path[len(base) :].lstrip("/")
            removing.add(opened)
        else:
            keeping.add(opened)
    if tagged and policy.error_if_tagged:
        raise CleanupError(
            f"Cleanup error: {len(tagged)} tagged version(s) have been marked for cleanup. Either set "
            f"`error_if_tagged_old_versions=false` or delete the following tag(s) to enable cleanup: {tagged}"
        )
    kept, verified = keeping.paths | named_beside(version), removing.paths
    times: dict[str, datetime] = {}
    files = list(_files(version, kept, verified - kept, removable, policy, times))
    if not is_known:
        files = [file for file in files if file.kind in ("manifest", "temporary")]
    files.sort(key=lambda file: file.kind != "manifest")
    named = frozenset(path for path in kept | verified if path.startswith(f"{TRANSACTIONS_DIR}/"))
    not_before = 0.0 if store.capabilities.local or not _any_young(removable, times) else seen_at + _SETTLED_SECONDS
    return CleanupPlan(
        first_kept,
        tuple(removable),
        tuple(files),
        tuple(branches),
        tuple(warnings),
        transactions=named,
        not_before=not_before,
    )


def _any_young(removable: Mapping[int, str], times: Mapping[str, datetime]) -> bool:
    """Return True if a removable manifest is less than a minute older than the newest, by the store's clock."""
    newest = max(times.values(), default=None)
    removed = [times.get(path) for path in removable.values()]
    return any(newest is None or time is None or newest - time < _YOUNG for time in removed)


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


def _candidates(numbers: list[int], policy: Policy, before_version: int) -> set[int]:
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
    removable: Mapping[int, str],
    policy: Policy,
    times: dict[str, datetime],
) -> Iterator[CandidateFile]:
    """Yield the files to remove. Adds the modification time of each manifest to `times`, by path."""
    manifests = set(removable.values())
    removed = {path.removesuffix(".manifest") for path in manifests}
    external = version.handler if isinstance(version.handler, ExternalHandler) else None
    # A quarantined manifest may be the only one that uses a file.
    guarded = bool(version.store.list_names(join(version.base, QUARANTINE_DIR), limit=1))
    now = _now()
    for folder in (VERSIONS_DIR, DATA_DIR, DELETIONS_DIR, TRANSACTIONS_DIR, INDICES_DIR):
        for meta in version.store.list_recursive(join(version.base, folder)):
            path = f"{folder}/{meta.name}"
            if folder == VERSIONS_DIR and meta.last_modified is not None and path.endswith(".manifest"):
                times[path] = _utc(meta.last_modified)
            if path in manifests:
                yield CandidateFile(path, "manifest", meta.size_bytes or 0)
                continue
            owner, kind = _owner(folder, meta.name)
            if owner is None and external and folder == VERSIONS_DIR and _STAGED.match(meta.name):
                owner, kind = path, "temporary"
            if owner is None or owner in kept:
                continue
            unverified = owner not in verified and path.partition(".manifest-")[0] not in removed
            young = meta.last_modified is None or now - _utc(meta.last_modified) < UNVERIFIED_AGE
            keeps = young or (guarded and kind != "temporary")
            if unverified and keeps and not policy.delete_unverified:
                continue
            # The staged manifest of a decided version is kept, unless the version is to be removed.
            stays = kind == "temporary" and path.partition(".manifest-")[0] not in removed
            if external and stays and external.is_decided(version.store, version.base, join(version.base, path)):
                continue
            yield CandidateFile(path, kind, meta.size_bytes or 0, unverified)


_TEMPORARY = re.compile(r"\.tmp_.{1,50}_[0-9a-f]{24}\Z", re.DOTALL)  # left by the local store if its writer was killed
_STAGED = re.compile(r"[0-9]{1,20}\.manifest-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_HEX_FOLDER = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")


def _owner(folder: str, name: str) -> tuple[str | None, str]:
    """Return the path that a version uses if it needs this file, and the kind of the file.

    The path is None if the name matches no pattern of the format.
    """
    first, slash, _ = name.partition("/")
    if _TEMPORARY.match(name.rpartition("/")[2]) or (folder == VERSIONS_DIR and name.startswith(".tmp")):
        return f"{folder}/{name}", "temporary"
    if folder == VERSIONS_DIR:
        return None, ""
    if folder == DATA_DIR:
        # Blob files are stored in a directory with the name of their data file.
        if slash:
            return (f"{folder}/{first}.lance" if name.endswith(".blob") else None), "data"
        return (f"{folder}/{name}" if name.endswith(".lance") else None), "data"
    if folder == DELETIONS_DIR:
        return (f"{folder}/{name}" if parse_deletion_name(name) is not None else None), "deletion"
    if folder == TRANSACTIONS_DIR:
        return (f"{folder}/{name}" if parse_transaction_name(name) is not None else None), "transaction"
    return (f"{folder}/{first}" if slash and _HEX_FOLDER.match(first) else None), "index"


def _now() -> datetime:
    """Return the current time from `time.time`, which simulations replace."""
    return datetime.fromtimestamp(time.time(), timezone.utc)


def _moment_before(age: timedelta) -> datetime:
    try:
        return _now() - age
    except OverflowError:  # before year 1
        return datetime.min.replace(tzinfo=timezone.utc)


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment


# --- removal ----------------------------------------------------------------------------------------------------------


def run_cleanup(
    version: TableVersion,
    plan: CleanupPlan,
    *,
    deletes_per_second: int | None = None,
    removed: Callable[[Sequence[CandidateFile]], None] = lambda files: None,
) -> CleanupCounts:
    """Remove the files of a plan.

    If a manifest cannot be removed, a removed version is being restored, or a branch cannot be read, only manifests are
    removed and a warning is logged.

    Parameters
    ----------
    version, plan
        The handle's version and the plan made for it.
    deletes_per_second
        Rate limit of deletions.
    removed
        Called with each group of removed files. An exception that it raises ends the cleanup.

    Returns
    -------
    CleanupCounts
        Files that cannot be removed are counted, and left to the next cleanup.

    Raises
    ------
    CorruptFileError
        If a manifest is damaged.
    StoreError
        If the store fails.
    """
    counts = CleanupCounts()
    limiter = _RateLimiter(deletes_per_second)
    for warning in plan.warnings:
        logger.warning("cleanup of %s: %s", version.uri, warning)
    spared = _referenced_since(version, plan)
    manifests = [file for file in plan.files if file.kind == "manifest" and _number_of(file) not in spared]
    if manifests and plan.not_before > time.monotonic():
        time.sleep(plan.not_before - time.monotonic())
    failed = _remove(version, manifests, counts, limiter, removed)
    if failed:
        logger.warning(
            "cleanup of %s: %d of %d manifests could not be removed, so no other files were removed; run it again",
            version.uri,
            failed,
            len(manifests),
        )
        return counts
    naming = NamedFiles(everywhere=True)
    for number in spared:
        location = version.handler.locate(version.store, version.base, number)
        if location is not None:
            naming.add(open_location(version, location))
    restores = _restores_of(version, plan) if manifests else set()
    for location in version.handler.history(version.store, version.base, after=plan.read_version):
        naming.add(open_location(version, location))
    named = naming.paths
    if restores - named:
        logger.warning(
            "cleanup of %s: a removed version is being restored, so no files were removed; run it again", version.uri
        )
        return counts
    if manifests:
        named |= named_beside(version)
        # Files used by branches that were created while manifests were removed.
        warnings = list[str]()
        needs, is_known = needs_of(version, branches_from(version), (), plan.versions, warnings)
        named = named.union(*needs.values())
        if not is_known:
            logger.warning("cleanup of %s: %s", version.uri, "; ".join(warnings))
            return counts
    files = [file for file in plan.files if file.kind != "manifest"]
    unnamed = [file for file in files if _owner(*file.path.split("/", 1))[0] not in named]
    _remove(version, unnamed, counts, limiter, removed)
    return counts


def _number_of(manifest: CandidateFile) -> int:
    parsed = parse_manifest_name(manifest.path.rpartition("/")[2])
    assert parsed is not None, manifest.path
    return parsed[0]


def _referenced_since(version: TableVersion, plan: CleanupPlan) -> set[int]:
    """Return the versions of the plan that a tag or a branch has referenced since the plan was made."""
    if not plan.versions:
        return set()
    tags = refs.TAGS.list(version.store, version.main_base).values()
    numbers = {tag.version for tag in tags if tag.branch == version.branch}
    versions = set(plan.versions)
    needs, _ = needs_of(version, branches_from(version), versions, (), [])
    return (numbers & versions) | set(needs)


def _restores_of(version: TableVersion, plan: CleanupPlan) -> set[str]:
    """Return the paths of uncommitted transactions that restore a version of the plan.

    Transactions that cannot be parsed are included, because they may be such a Restore.
    """
    store, base = version.store, version.base
    known = plan.transactions | {file.path for file in plan.files}
    restores = set()
    for meta in store.list_names(join(base, TRANSACTIONS_DIR)):
        path = f"{TRANSACTIONS_DIR}/{meta.name}"
        if path in known or parse_transaction_name(meta.name) is None:
            continue
        try:
            operation = Transaction.from_bytes(store.read_all(join(base, path)), path).operation
        except NotFoundError:
            continue
        except (CorruptFileError, UnsupportedFeatureError):
            restores.add(path)
            continue
        if isinstance(operation, UnknownOperation) or (
            isinstance(operation, Restore) and operation.version in plan.versions
        ):
            restores.add(path)
    return restores


def _remove(
    version: TableVersion,
    files: list[CandidateFile],
    counts: CleanupCounts,
    limiter: _RateLimiter,
    removed: Callable[[Sequence[CandidateFile]], None],
) -> int:
    """Remove files, and return the number of those that could not be removed."""
    failed = 0
    for chunk in _chunks(files, limiter.chunk):
        limiter.wait(len(chunk))
        done = _remove_chunk(version, chunk)
        for file in done:
            counts.count(file)
        failed += len(chunk) - len(done)
        if done:
            removed(done)
    counts.failed_deletes += failed
    return failed


def _remove_chunk(version: TableVersion, files: list[CandidateFile]) -> list[CandidateFile]:
    """Remove files and return those that were removed.

    A store stops at the first file that it cannot remove. A group that fails is therefore split in half until the files
    that cannot be removed are isolated; otherwise one of them would block the rest of its group in every cleanup.
    """
    done: list[CandidateFile] = []
    failure: LanceError | None = None
    waiting = [files]
    while waiting:
        part = waiting.pop()
        try:
            version.store.delete([join(version.base, file.path) for file in part])
        except LanceError as error:
            half = len(part) // 2
            if half:
                waiting += [part[half:], part[:half]]
            failure = failure or error
        else:
            done += part
    if failure is not None:
        logger.warning(
            "cleanup of %s: %d of %d files could not be removed: %s",
            version.uri,
            len(files) - len(done),
            len(files),
            failure,
        )
    return done


def _chunks(files: list[CandidateFile], size: int) -> Iterable[list[CandidateFile]]:
    return (files[start : start + size] for start in range(0, len(files), size))


class _RateLimiter:
    """Rate limiter for deletions. `chunk` is the number of files to delete at a time."""

    def __init__(self, per_second: int | None) -> None:
        self._per_second = per_second
        self._free_at = time.monotonic()
        self.chunk = _CHUNK if per_second is None else max(1, min(_CHUNK, per_second))

    def wait(self, count: int) -> None:
        """Wait until the rate allows `count` more deletions."""
        if self._per_second is None:
            return
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(now, self._free_at) + count / self._per_second


# --- after commits ----------------------------------------------------------------------------------------------------


def clean_up_after_commit(published: TableVersion) -> None:
    """Clean up if the table's config requests it for this version number.

    The version before `published` is kept too. A failure is only logged, because the commit has succeeded.
    """
    config = published.manifest.message.config
    interval = config.get(_CONFIG + "interval") if config else None
    if interval is None:
        return
    try:
        every = int(interval)
        if every < 1 or published.version % every:
            return
        older_than = config.get(_CONFIG + "older_than")
        keep = config.get(_CONFIG + "retain_versions")
        rate = config.get(_CONFIG + "delete_rate_limit")
        if rate is not None and int(rate) < 1:
            raise InvalidInputError(f"{_CONFIG}delete_rate_limit must be at least 1, got {rate!r}")
        policy = Policy(
            None if older_than is None else parse_duration(older_than),
            None if keep is None else int(keep),
            error_if_tagged=False,
        )
        plan = plan_cleanup(published, policy, before_version=published.version - 1)
        run_cleanup(published, plan, deletes_per_second=None if rate is None else int(rate))
    except Exception as error:  # an exception would make callers repeat the commit
        logger.warning("automatic cleanup of %s failed: %s: %s", published.uri, type(error).__name__, error)


def keeps_young_versions(version: TableVersion) -> bool:
    """Return True if the automatic cleanups of this table keep all versions of the last minute."""
    config = version.manifest.message.config
    if not config or _CONFIG + "interval" not in config:
        return True
    try:
        older_than = config.get(_CONFIG + "older_than")
        return older_than is not None and parse_duration(older_than) >= timedelta(minutes=1)
    except LanceError:
        return False


_SECONDS = {
    **dict.fromkeys(("nsec", "ns"), 1e-9),
    **dict.fromkeys(("usec", "us"), 1e-6),
    **dict.fromkeys(("msec", "ms", "millis"), 1e-3),
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), 1.0),
    **dict.fromkeys(("minutes", "minute", "mins", "min", "m"), 60.0),
    **dict.fromkeys(("hours", "hour", "hrs", "hr", "h"), 3600.0),
    **dict.fromkeys(("days", "day", "d"), 86400.0),
    **dict.fromkeys(("weeks", "week", "w"), 7 * 86400.0),
    **dict.fromkeys(("months", "month", "M"), 2_630_016.0),
    **dict.fromkeys(("years", "year", "y"), 31_557_600.0),
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as "14days", "1h 30m" or "3600s". Raises InvalidInputError for other strings."""
    position, seconds = 0, 0.0
    stripped = text.strip()
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None or part[2] not in _SECONDS:
            break
        seconds += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if not stripped or position < len(stripped):
        raise InvalidInputError(f"invalid duration {text!r}; write it like 14days, 1h 30m or 3600s")
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        return timedelta.max
