"""The commit loop: check new versions for conflicts, rebase, build, publish, and retry after a lost race.

One attempt:
    1. list the versions committed since the last listing, and load the transaction of each (table.transactions)
    2. if one of them is this transaction, an earlier attempt succeeded and only the reply was lost: return it
    3. check this transaction for conflicts with each of them (conflicts); merge deletions where rows differ (rebase)
    4. write the transaction file
    5. apply the transaction to the newest manifest (build) and serialize it (table.manifests)
    6. publish the manifest as the next version: won, lost or unknown (handlers)

A lost race leads to another attempt after a backoff (contention). If the outcome is unknown, the manifest is read once.
If it stays unknown, the loop raises CommitStateUnknownError and removes no files, because the commit may still appear.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lancetable import telemetry
from lancetable.commit import idempotency
from lancetable.commit.backoff import Backoff, Contention, RetryLock, contention_of
from lancetable.commit.cleanup.auto_cleanup import clean_up_after_commit, keeps_young_versions
from lancetable.commit.commit_log import log_commit, record_outcome
from lancetable.commit.conflicts import Context, Severity, Verdict, check, describe
from lancetable.commit.detached import commit_detached
from lancetable.commit.index_coverage import changed_columns
from lancetable.commit.lost_update import is_in_grace_period, is_lost_update
from lancetable.commit.manifest_draft import is_own_manifest
from lancetable.commit.publish import SerializedManifest, build_next, source_version, unknown_state_error
from lancetable.commit.rebase import rebase_deletions, rebase_index
from lancetable.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    CorruptFileError,
    InvalidOperationError,
    LanceError,
    RetryableCommitConflictError,
    VersionNotFoundError,
)
from lancetable.format import transaction as tx
from lancetable.format.manifest_naming import ManifestLocation, is_detached
from lancetable.format.paths import VERSIONS_DIR, join, transaction_path
from lancetable.format.transaction import Transaction
from lancetable.handlers.base import outcome_by_content
from lancetable.store.base import PutOutcome, discard
from lancetable.table import clock, transactions
from lancetable.table.manifest_files import ManifestFile, read_manifest
from lancetable.table.version import TableVersion, open_location

if TYPE_CHECKING:
    from lancetable.format.version import FileVersion
    from lancetable.table.deletion_vectors import DeletionVector

logger = logging.getLogger(__name__)

_STRICT = Verdict(
    Severity.INCOMPATIBLE,
    "without retries (max_retries=0), an overwrite must directly follow its read version",
)
_FRESH_SECONDS = 2.0  # on remote stores, a younger listing is not repeated before the first attempt
_MAX_UNLISTED = 1  # on remote stores, maximum number of versions read between the last listing and the publication
_MAX_PARALLEL_READS = 16
_MAX_KNOWN_CONFLICTS = 6  # lost attempts in a row before versions are listed again
_SMALL_BYTES = 256 * 1024  # before a retry with a larger manifest, list the versions, because its number may be taken
DEFAULT_MAX_RETRIES = 20
DEFAULT_TIMEOUT_SECONDS = 30 * 60.0


def commit_transaction(
    base: TableVersion,
    transaction: Transaction,
    *,
    max_retries: int = DEFAULT_MAX_RETRIES,
    timeout_s: float = DEFAULT_TIMEOUT_SECONDS,
    affected_rows: Mapping[int, DeletionVector] | None = None,
    inserts_keys: bool = False,
    detached: bool = False,
    file_version: FileVersion | None = None,
    damaged_version: int | None = None,
) -> TableVersion:
    """Commit a transaction on top of the newest version.

    Parameters
    ----------
    base
        Any version of the branch, preferably the one that the transaction was built on.
    transaction
        The change to commit.
    max_retries
        Limit of attempts. With 0, an Overwrite is strict: it becomes the version directly after its read version or
        fails, and is not checked for conflicts.
    timeout_s
        Time after which no new attempt starts.
    affected_rows
        The rows that a Delete or Update newly deletes, by fragment id. With them, deletes of different rows of the same
        fragment are merged; without them, they conflict.
    inserts_keys
        True if an Update inserts rows whose keys no concurrent transaction may insert.
    detached
        Create a detached version on top of `base`, outside the history.
    file_version
        New data format of the table, for an Overwrite or a Merge.
    damaged_version
        Only for a Restore while the newest manifest is damaged: the number of the damaged version, which is also the
        read version. `base` is then the newest readable version.

    Returns
    -------
    TableVersion
        The version that the transaction became.

    Raises
    ------
    RetryableCommitConflictError
        If the operation must run again on the newest version, or too many races were lost.
    CommitConflictError
        If a concurrent transaction makes this one obsolete; inspect it before deciding.
    CommitStateUnknownError
        If the outcome is unknown; look for the transaction before committing again.
    AlreadyExistsError
        If the transaction is a numbered change that was committed before.
    InvalidOperationError
        If the transaction does not fit the table, or `base` is detached.
    VersionNotFoundError
        If the read version, or the version to restore, does not exist.
    UnsupportedFeatureError
        If the table or the operation uses a feature that this library does not write.
    CorruptFileError
        If a manifest or transaction file is damaged.
    StoreError
        If the store fails.
    """
    base.check_writable()
    if detached:
        return commit_detached(base, transaction, Backoff(max_retries, timeout_s))
    if is_detached(base.version):
        raise InvalidOperationError(
            f"{base.uri}: cannot commit on top of the detached version {base.version}; check out a version of a branch"
        )
    with telemetry.start("commit", base.store, base.base) as span:
        run = _CommitRun(base, transaction, affected_rows or {}, inserts_keys, file_version, damaged_version, span)
        published = run.commit(max_retries, timeout_s)
        span.set(version=published.version)
    log_commit(published.uri, published.version, run.transaction.operation, affected_rows)
    clean_up_after_commit(published)
    return published


class _CommitRun:
    """State of one call of `commit_transaction` across its attempts.

    `transaction` is the rebased transaction, `original` the one that was passed, `newest` the newest version checked.
    """

    def __init__(
        self,
        base: TableVersion,
        transaction: Transaction,
        affected_rows: Mapping[int, DeletionVector],
        inserts_keys: bool,
        file_version: FileVersion | None,
        damaged_version: int | None,
        span: telemetry.NoSpan = telemetry.NO_SPAN,
    ) -> None:
        self._span = span
        self.base, self.newest, self.transaction = base, base, transaction
        self._damaged_version = damaged_version or 0  # number of the newest version if its manifest is damaged
        self.original = transaction
        self._affected_rows, self._file_version = affected_rows, file_version
        self._context = Context(
            frozenset(affected_rows),
            inserts_keys,
            lambda ids: self.newest.schema.related_ids(ids),
            lambda fragments: changed_columns(base.manifest.message.fragments, [each.to_proto() for each in fragments]),
        )
        self._seen = transaction.read_version
        self._written_transaction: tuple[int, bytes] | None = None
        self._own_paths: list[str] = []
        self._lost_attempt: SerializedManifest | None = (
            None  # the last one, until the version of the other writer was read
        )
        self._existing: bytes | memoryview | None = None  # the other writer's manifest, if the store had to read it
        self._listed_at = base.newest_at if base.newest_at is not None else -math.inf
        self._conflict_known = False  # `_existing` was checked, so the next attempt need not list versions

        # Also records when a version of another library was seen. The base does not count, because it may be old.
        self._contention: Contention | None = None

    def commit(self, max_retries: int, timeout_s: float) -> TableVersion:
        """Attempt the commit until it succeeds or fails. See `commit_transaction`."""
        base = self.base
        strict = max_retries == 0 and isinstance(self.transaction.operation, tx.Overwrite)
        remote = not base.store.capabilities.local
        self._contention = contention_of(base.store.key(base.base)) if remote else None
        lock = RetryLock(join(base.base, VERSIONS_DIR)) if base.store.scheme == "file" else None
        if self._contention is not None:
            self._expect_competitors(self._contention)
        backoff = Backoff(max_retries, timeout_s, contention=self._contention, lock=lock)
        refresh = strict or not remote or max_retries < 2 or backoff.is_contended or not self.is_fresh()
        operation, outcome = describe(self.transaction.operation), "error"
        try:
            while True:
                published = self.catch_up(strict=strict) if refresh else None
                if published is None:
                    published = self.publish() or (None if strict else self.check_existing())
                if published is not None:
                    backoff.won()
                    outcome = "committed"
                    if self._contention is not None and backoff.attempts == 1:
                        self._contention.series.add(base.version, published.version, clock.seconds())
                    return self.check_not_lost(published)
                if strict or not backoff.next_attempt(conflict_known=self._conflict_known):
                    raise _exhausted_error(self, backoff, timeout_s)
                # A run that is many versions behind would otherwise lose against each of them in turn.
                refresh = not self._conflict_known or backoff.has_waited or backoff.attempts % _MAX_KNOWN_CONFLICTS == 0
        except CommitStateUnknownError:
            outcome = "unknown"
            raise
        except LanceError as error:
            # Other exceptions, such as KeyboardInterrupt, may interrupt the publication; then the files are kept.
            published = self.find_published(error)
            if published is not None:
                outcome = "committed"
                return self.check_not_lost(published)
            discard(base.store, self._own_paths, "files")
            if isinstance(error, CommitConflictError):
                outcome = "conflict"
                extra = telemetry.fields(
                    "commit.conflict", base.uri, version=error.version, operation=operation, attempt=backoff.attempts
                )
                logger.info("%s: conflict: %s", base.uri, error, extra=extra)
            raise
        finally:
            record_outcome(
                self._span,
                self.original.operation,
                outcome,
                attempts=backoff.attempts,
                read_version=self.original.read_version,
            )
            if lock is not None:
                lock.release()

    def _expect_competitors(self, contention: Contention) -> None:
        """Treat the table as contended if other writers try to commit, although this process has not lost a race."""
        base, now = self.base, clock.seconds()
        if not contention.window and contention.series.has_competitors(base.store, base.base, base.version, now):
            contention.start(time.monotonic())

    def is_fresh(self) -> bool:
        """Return True if the read version was the newest version at most 2 seconds ago.

        Then the first attempt publishes without listing versions. If another writer was faster, its manifest makes the
        attempt lose, and the next attempt lists. The manifest would be missing only if yet another commit and a
        cleanup of young versions happened in those 2 seconds, so tables with such cleanups are never fresh.
        """
        base = self.base
        if base.newest_at is None or clock.seconds() - base.newest_at > _FRESH_SECONDS:
            return False
        return self.original.read_version == base.version and keeps_young_versions(base)

    def catch_up(self, *, strict: bool = False) -> TableVersion | None:
        """Check the transaction for conflicts with all unseen versions, and rebase it onto the newest.

        Returns the version that contains this transaction, if an earlier attempt succeeded. `strict` raises
        CommitConflictError for any unseen version.
        """
        base, behind = self.base, math.inf
        while True:
            unseen = self._list_unseen()
            published = self._apply_versions(unseen, strict)
            if published is not None:
                return published
            if base.store.capabilities.local or not _MAX_UNLISTED < len(unseen) < behind:
                break
            # Reading many versions from a remote store takes so long that other writers commit in the meantime, so the
            # versions are listed again. The loop ends if the number of unseen versions does not decrease, because it
            # might not terminate otherwise.
            behind = len(unseen)
        self.newest.check_writable()
        return None

    def _apply_versions(self, unseen: list[ManifestLocation], strict: bool) -> TableVersion | None:
        """Check the transaction against these versions in order. See `catch_up`."""
        base = self.base
        at_once = _MAX_PARALLEL_READS if base.store.capabilities.parallel else 1
        for first in range(0, len(unseen), at_once):
            batch = unseen[first : first + at_once]
            self._check_no_gap(batch[0])
            try:
                read = transactions.read_since(base.store, base.base, batch)
            except CorruptFileError as error:
                raise base.with_advice(unseen[-1], error) from error
            for file, committed in read:
                self._check_no_gap(file.location)
                published = self._apply_version(file, committed, strict)
                if published is not None:
                    return published
        return None

    def _apply_version(self, file: ManifestFile, committed: Transaction | None, strict: bool) -> TableVersion | None:
        """Check the transaction against one version and rebase it onto that version. See `catch_up`."""
        number, version = file.location.version, replace(self.base, file=file)
        if committed is not None and committed.uuid == self.transaction.uuid:
            return open_location(self.base, file.location)
        if strict:
            raise _conflict_error(self, committed, number, _STRICT)
        self._resolve_conflict(committed, version)
        if self._contention is not None and not is_own_manifest(file.manifest.message):
            self._contention.foreign_seen_at = time.monotonic()
        if isinstance(self.transaction.operation, tx.Delete | tx.Update):
            # The fragment records now refer to this version, so it becomes the read version, as in other writers.
            self.transaction = replace(self.transaction, read_version=number)
        self.newest, self._seen = version, number
        if self._lost_attempt is not None and self._lost_attempt.location.version == number:
            self._lost_attempt = None  # another writer has published this version
        return None

    def check_existing(self) -> TableVersion | None:
        """Check the transaction against the version that won, if the store has already read its manifest.

        Then the next attempt need not list versions, if it starts at once. Returns the version if it contains this
        transaction.
        """
        self._conflict_known = False
        if self._existing is None or self._lost_attempt is None or len(self._existing) > _SMALL_BYTES:
            return None
        store, base = self.base.store, self.base.base
        location, data = self._lost_attempt.location, self._existing
        self._existing = None
        try:
            file, committed = transactions.read_existing(store, base, location, data)
        except CorruptFileError as error:
            raise self.base.with_advice(location, error) from error
        published = self._apply_version(file, committed, False)
        replace(self.base, file=file).check_writable()
        self._conflict_known = True
        return published

    def _check_no_gap(self, location: ManifestLocation) -> None:
        if location.version != self._seen + 1:
            raise self._gap_error(self._seen + 1)

    def _gap_error(self, version: int) -> RetryableCommitConflictError:
        return RetryableCommitConflictError(
            f"Retryable commit conflict: {describe(self.transaction.operation)} was prepared on version"
            f" {self.original.read_version} of {self.base.uri}, and version {version} has been cleaned up, so its"
            " changes cannot be checked for conflicts. Run the operation again on the newest version",
            version=version,
        )

    def _list_unseen(self) -> list[ManifestLocation]:
        """List the versions after the last one checked, in ascending order.

        Raises RetryableCommitConflictError if one was cleaned up, VersionNotFoundError if the read version is newer
        than the newest version.
        """
        newest, store = self.newest, self.base.store
        self._listed_at = clock.seconds()
        if newest.version < self._damaged_version:
            return newest.handler.history(store, newest.base, self._damaged_version)
        if self._seen == newest.version:
            return newest.handler.newer(store, newest.base, newest.location)
        if self._seen > newest.version:
            # The transaction was built on a version that is newer than `base`.
            locations = newest.handler.newer(store, newest.base, newest.location)
            read_version = next((location for location in locations if location.version == self._seen), None)
            if read_version is None:
                raise VersionNotFoundError(
                    f"{newest.uri} has no version {self._seen}, the read version of the transaction; check that"
                    " the transaction belongs to this table and branch",
                    version=self._seen,
                )
            self.newest = replace(newest, file=read_manifest(store, read_version))
            return [location for location in locations if location.version > self._seen]
        locations = newest.handler.history(store, newest.base, self._seen)
        for version in range(locations[-1].version + 1 if locations else self._seen + 1, newest.version + 1):
            # The version was cleaned up since `base` was opened, or the listing is stale.
            location = newest.handler.locate(store, newest.base, version, newest.location.naming)
            if location is None:
                raise self._gap_error(version)
            locations.append(location)
        return locations

    def _resolve_conflict(self, committed: Transaction | None, version: TableVersion) -> None:
        """Rebase the transaction onto `version` if a conflict allows it. Raises CommitConflictError if not."""
        operation = None if committed is None else committed.operation
        verdict = check(self.transaction.operation, operation, self._context)
        if verdict.severity is Severity.COMPATIBLE:
            return
        if self._span.is_recording:
            severity, other = verdict.severity.name.lower(), describe(operation)
            self._span.event("conflict", version=version.version, severity=severity, other_operation=other)
        if verdict.severity is not Severity.REBASABLE:
            raise _conflict_error(self, committed, version.version, verdict)
        if isinstance(self.transaction.operation, tx.CreateIndex):
            self.transaction = rebase_index(self.transaction, verdict.fragments)
            return
        try:
            self.transaction = rebase_deletions(
                self.transaction, version, verdict.fragments, self._affected_rows, self._own_paths
            )
        except RetryableCommitConflictError as error:
            error.other_operation = describe(operation)
            raise

    def publish(self) -> TableVersion | None:
        """Write the transaction file and publish the next manifest. Return None if another writer won.

        Raises CommitStateUnknownError if the outcome is unknown.
        """
        newest, version = self.newest, max(self.newest.version, self._damaged_version) + 1
        idempotency.check_not_committed(newest.manifest.config, self.transaction)
        data = self.transaction.to_bytes()
        if isinstance(self.transaction.operation, tx.Restore):
            # A cleanup that has removed the old manifest keeps its files if it finds this transaction file.
            self._write_transaction(data)
        # Other operations write the transaction file after building, so that an invalid operation leaves no file.
        source = source_version(newest, self.transaction)
        parts = build_next(newest, self.transaction, version, source, self._file_version)
        self._write_transaction(data)
        serialized = SerializedManifest.of(newest, self.transaction, data, parts, newest.location.naming)
        publishing_at = clock.seconds()
        existing: list[bytes | memoryview] = []
        if serialized.publish(is_last_attempt=False, on_existing=existing.append):
            return replace(newest, file=serialized.file, newest_at=publishing_at)
        self._span.event("race_lost", version=version)
        extra = telemetry.fields("commit.race_lost", newest.uri, version=version)
        logger.debug("%s: another writer committed version %d", newest.uri, version, extra=extra)
        self._lost_attempt, self._existing = serialized, existing[-1] if existing else None
        return None

    def check_not_lost(self, published: TableVersion) -> TableVersion:
        """Return `published` after checking that newer versions contain its changes.

        Raises RetryableCommitConflictError if a cleanup had freed its number. Then the version is removed, because no
        later version contains its changes. Raises CommitStateUnknownError if the check fails.
        """
        store, version = self.base.store, published.version
        is_own_attempt = published.newest_at is not None  # otherwise it was found after its reply was lost
        if is_own_attempt and is_in_grace_period(store, clock.seconds() - self._listed_at):
            return published
        try:
            lost = is_lost_update(published, self.newest)
            if lost:
                store.delete([published.location.path])
        except (LanceError, OSError) as error:
            logger.debug(
                "%s: cannot check version %d against newer ones: %s",
                published.uri,
                version,
                error,
                extra=telemetry.fields("commit.unchecked", published.uri, version=version),
            )
            lost = None
        if lost is None:
            raise CommitStateUnknownError(
                f"{published.uri}: unknown whether the versions after {version} contain its changes, because a cleanup"
                f" removed a version next to it. Look for the changes of transaction {self.transaction.uuid} in the"
                " newest version before committing again, and delete no files",
                version=version,
                transaction_uuid=self.transaction.uuid,
            )
        if lost:
            raise self._gap_error(version)
        return published

    def find_published(self, error: LanceError) -> TableVersion | None:
        """Return the version of the last attempt if it was published although it counted as lost.

        A client that repeats a request internally finds its own object and reports that the name is taken. The next
        attempt would detect this. If `error` prevents a next attempt, the manifest must be read before the files of
        the operation are removed. Raises CommitStateUnknownError if that fails.
        """
        if self._lost_attempt is None:
            return None
        location = self._lost_attempt.location
        outcome = outcome_by_content(self.base.store, self.base.base, location.path, self._lost_attempt.packed)
        if outcome is PutOutcome.LOST:
            return None
        try:
            if outcome is PutOutcome.WON:
                return open_location(self.base, location)
        except LanceError:
            logger.debug(
                "%s: version %d cannot be opened",
                self.base.uri,
                location.version,
                extra=telemetry.fields("commit.unopened", self.base.uri, version=location.version),
            )
        raise unknown_state_error(self.base.uri, self.transaction, location.version) from error

    def _write_transaction(self, data: bytes) -> None:
        """Write the transaction file unless the same content was already written."""
        if self._written_transaction != (self.transaction.read_version, data):
            name = transactions.write(self.base.store, self.base.base, self.transaction, data)
            self._written_transaction = (self.transaction.read_version, data)
            self._own_paths.append(transaction_path(self.base.base, name))


# --- errors ----------------------------------------------------------------------------------------------------------


def _conflict_error(
    run: _CommitRun, committed: Transaction | None, version: int, verdict: Verdict
) -> CommitConflictError:
    pending = describe(run.transaction.operation)
    other = describe(None if committed is None else committed.operation)
    fragments = f" (fragments {_shorten(verdict.fragments)})" if verdict.fragments else ""
    attributes: dict[str, Any] = {
        "version": version,
        "read_version": run.original.read_version,
        "fragments": verdict.fragments,
        "operation": pending,
        "other_operation": other,
    }
    if verdict.severity is Severity.RETRYABLE:
        return RetryableCommitConflictError(
            f"Retryable commit conflict for version {version}: {pending} with read version"
            f" {run.original.read_version} was preempted by {other}: {verdict.reason}{fragments}. Run the operation"
            " again on the newest version",
            **attributes,
        )
    kind = f"Commit conflict for version {version}" if verdict is _STRICT else "Incompatible transaction"
    return CommitConflictError(
        f"{kind}: {pending} with read version {run.original.read_version} cannot follow"
        f" {other} in version {version}: {verdict.reason}{fragments}. Inspect version {version}, then decide whether"
        " to run the operation again",
        **attributes,
    )


def _exhausted_error(run: _CommitRun, backoff: Backoff, timeout_s: float) -> RetryableCommitConflictError:
    return RetryableCommitConflictError(
        f"Too many concurrent writers: {describe(run.transaction.operation)} on {run.base.uri} lost"
        f" {backoff.attempts} races in {backoff.elapsed_seconds:.1f} s (limit {timeout_s:g} s), last for version"
        f" {run.newest.version + 1}. Run it again, or raise max_retries",
        version=run.newest.version + 1,
        attempts=backoff.attempts,
    )


def _shorten(fragments: Iterable[int]) -> str:
    ids = list(fragments)
    return ", ".join(map(str, ids[:10])) + (", ..." if len(ids) > 10 else "")
