"""Removal of the files of a cleanup plan. The order of the steps is explained in cleanup/cleanup_plan.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lancetable import telemetry
from lancetable.commit.cleanup.branch_references import branches_from, versions_needed_by
from lancetable.commit.cleanup.cleanup_plan import CleanupCandidateFile, CleanupPlan, referenced_path
from lancetable.commit.cleanup.referenced_files import ReferencedFiles, files_of_detached_versions
from lancetable.errors import CorruptFileError, LanceError, NotFoundError, UnsupportedFeatureError
from lancetable.format.manifest_naming import parse_manifest_name
from lancetable.format.paths import TRANSACTIONS_DIR, join, parse_transaction_name
from lancetable.format.transaction import Restore, Transaction, UnknownOperation
from lancetable.table import clock, refs
from lancetable.table.manifest_files import retry_listing
from lancetable.table.version import TableVersion, open_location

logger = logging.getLogger(__name__)


@dataclass
class CleanupStats:
    """Counts of removed versions and files; `bytes_removed` includes manifests and temporary files."""

    bytes_removed: int = 0
    old_versions: int = 0
    data_files_removed: int = 0
    transaction_files_removed: int = 0
    index_files_removed: int = 0
    deletion_files_removed: int = 0
    failed_deletes: int = 0


def count_file(stats: CleanupStats, file: CleanupCandidateFile) -> None:
    """Count a removed file."""
    stats.bytes_removed += file.size_bytes
    name = "old_versions" if file.kind == "manifest" else f"{file.kind}_files_removed"
    if file.kind != "temporary":
        setattr(stats, name, getattr(stats, name) + 1)


def run_cleanup(
    version: TableVersion,
    plan: CleanupPlan,
    *,
    deletes_per_second: int | None = None,
    removed: Callable[[Sequence[CleanupCandidateFile]], None] = lambda files: None,
) -> CleanupStats:
    """Remove the files of a plan.

    If a manifest cannot be removed, a removed version is being restored, or a branch cannot be read, only manifests are
    removed and a warning is logged.

    Parameters
    ----------
    version, plan
        The opened version, and the plan made for it.
    deletes_per_second
        Rate limit of deletions.
    removed
        Called with each group of removed files. An exception that it raises ends the cleanup.

    Returns
    -------
    CleanupStats
        Files that cannot be removed are counted, and left to the next cleanup, if others were removed.

    Raises
    ------
    CorruptFileError
        If a manifest is damaged.
    StoreError
        If the store fails, or none of the files could be removed.
    """
    stats = CleanupStats()
    limiter = _RateLimiter(deletes_per_second)
    for warning in plan.warnings:
        logger.warning(
            "cleanup of %s: %s",
            version.uri,
            warning,
            extra=telemetry.fields("cleanup.warning", version.uri, version=version.version),
        )
    referenced = _referenced_since(version, plan)
    manifests = [file for file in plan.files if file.kind == "manifest" and _version_of(file) not in referenced]
    if manifests and plan.not_before > clock.seconds():
        time.sleep(plan.not_before - clock.seconds())
    _remove(version, manifests, stats, limiter, removed)
    if stats.failed_deletes:
        logger.warning(
            "cleanup of %s: %d of %d manifests could not be removed, so no other files were removed; run it again",
            version.uri,
            stats.failed_deletes,
            len(manifests),
            extra=telemetry.fields(
                "cleanup.incomplete", version.uri, version=version.version, failed=stats.failed_deletes
            ),
        )
        return stats
    kept = ReferencedFiles(everywhere=True)
    for number in referenced:
        location = version.handler.locate(version.store, version.base, number)
        if location is not None:
            kept.add(open_location(version, location))
    restores = _restores_of(version, plan) if manifests else set()
    retry_listing(lambda: _add_newer(kept, version, plan.read_version))
    if restores - kept.paths:
        logger.warning(
            "cleanup of %s: a removed version is being restored, so no files were removed; run it again",
            version.uri,
            extra=telemetry.fields("cleanup.stopped", version.uri, version=version.version),
        )
        return stats
    if manifests:
        kept.paths |= files_of_detached_versions(version)
        # Files used by branches that were created while manifests were removed.
        warnings = list[str]()
        needs, is_known = versions_needed_by(version, branches_from(version), (), plan.versions, warnings)
        kept.paths.update(*needs.values())
        if not is_known:
            logger.warning(
                "cleanup of %s: %s",
                version.uri,
                "; ".join(warnings),
                extra=telemetry.fields("cleanup.warning", version.uri, version=version.version),
            )
            return stats
    files = [file for file in plan.files if file.kind != "manifest"]
    unreferenced = [file for file in files if referenced_path(*file.path.split("/", 1))[0] not in kept.paths]
    _remove(version, unreferenced, stats, limiter, removed)
    return stats


class _RateLimiter:
    """Limit of the number of files removed per second.

    Files are removed in batches of at most `batch_size`, so that a low rate is not exceeded by one large batch.
    """

    def __init__(self, per_second: int | None, max_batch_size: int = 1000) -> None:
        self._per_second = per_second
        self._free_at = clock.seconds()
        self.batch_size = min(max_batch_size, per_second or max_batch_size)

    def wait(self, count: int) -> None:
        """Wait until the rate allows `count` more deletions."""
        if self._per_second is None:
            return
        now = clock.seconds()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(now, self._free_at) + count / self._per_second


def _version_of(manifest: CleanupCandidateFile) -> int:
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
    needs, _ = versions_needed_by(version, branches_from(version), versions, (), [])
    return (numbers & versions) | set(needs)


def _add_newer(kept: ReferencedFiles, version: TableVersion, than: int) -> None:
    """Add the files of the versions newer than `than`."""
    for location in version.handler.history(version.store, version.base, after=than):
        kept.add(open_location(version, location))


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
    files: list[CleanupCandidateFile],
    stats: CleanupStats,
    limiter: _RateLimiter,
    removed: Callable[[Sequence[CleanupCandidateFile]], None],
) -> None:
    """Remove files in batches, count them in `stats`, and log the counts so far.

    Raises the first error if no file could be removed.
    """
    failure: LanceError | None = None
    for start in range(0, len(files), limiter.batch_size):
        batch = files[start : start + limiter.batch_size]
        limiter.wait(len(batch))
        removed_files, error = _remove_batch(version, batch)
        failure = failure or error
        for file in removed_files:
            count_file(stats, file)
        stats.failed_deletes += len(batch) - len(removed_files)
        if removed_files:
            removed(removed_files)
    logger.info(
        "cleanup of %s at version %d: %s",
        version.uri,
        version.version,
        stats,
        extra=telemetry.fields(
            "cleanup.done",
            version.uri,
            version=version.version,
            bytes_removed=stats.bytes_removed,
            old_versions=stats.old_versions,
        ),
    )
    if failure is not None and stats.failed_deletes == len(files) and not stats.old_versions:
        raise failure


def _remove_batch(
    version: TableVersion, files: list[CleanupCandidateFile]
) -> tuple[list[CleanupCandidateFile], LanceError | None]:
    """Remove files and return those that were removed, and the first error.

    A store stops at the first file that it cannot remove. A batch that fails is therefore split in half until the files
    that cannot be removed are isolated; otherwise one of them would block the rest of its batch in every cleanup.
    """
    removed: list[CleanupCandidateFile] = []
    failure: LanceError | None = None
    pending = [files]
    while pending:
        part = pending.pop()
        try:
            version.store.delete([join(version.base, file.path) for file in part])
        except LanceError as error:
            half = len(part) // 2
            if half:
                pending += [part[half:], part[:half]]
            failure = failure or error
        else:
            removed += part
    if failure is not None:
        logger.warning(
            "cleanup of %s: %d of %d files could not be removed: %s",
            version.uri,
            len(files) - len(removed),
            len(files),
            failure,
            extra=telemetry.fields(
                "cleanup.incomplete", version.uri, version=version.version, failed=len(files) - len(removed)
            ),
        )
    return removed, failure
