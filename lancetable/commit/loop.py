"""The commit loop: read what is new, judge, repair, build, publish; on a lost race, again.

One attempt:
    1. find the versions after the one last looked at, and load each one's transaction (table.transactions)
    2. one of them is ours: an earlier attempt had landed and only the reply was lost. Done
    3. judge ours against each (conflicts); repair it where rows differ (rebase)
    4. write the transaction file
    5. apply ours to the newest manifest (build) and pack it (table.manifests)
    6. publish it as the next version: won, lost or unknown (handlers)

Lost means another attempt, after a random wait or in turn (backoff). Unknown is looked into once; if the answer stays
open, the caller gets CommitStateUnknownError and no file is removed, because the commit may still appear.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lancetable.commit import once
from lancetable.commit.backoff import Backoff, Crowd, crowd_at
from lancetable.commit.build import Built, Restored, build_first_manifest, build_manifest, is_ours
from lancetable.commit.cleanup import clean_up_after_commit, keeps_young_versions
from lancetable.commit.conflicts import Context, Severity, Verdict, check, describe
from lancetable.commit.dictionaries import dictionary_head
from lancetable.commit.landed import Place, is_believed, place_of
from lancetable.commit.rebase import rebase_deletions, rebase_index
from lancetable.commit.repair import repair
from lancetable.errors import (
    AlreadyExistsError,
    CommitConflictError,
    CommitStateUnknownError,
    CorruptFileError,
    InvalidOperationError,
    LanceError,
    RetryableCommitConflictError,
    VersionNotFoundError,
)
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.paths import (
    DETACHED_BIT,
    VERSIONS_DIR,
    ManifestNaming,
    is_detached,
    join,
    manifest_path,
    transaction_path,
)
from lancetable.format.transaction import Transaction
from lancetable.handlers.base import ManifestLocation, look_back
from lancetable.store.base import PutOutcome
from lancetable.store.conditional import note_met, take_met
from lancetable.store.turns import Turn
from lancetable.table import manifests, transactions
from lancetable.table.manifests import ManifestFile, read_manifest
from lancetable.table.version import TableVersion, explained, open_location

if TYPE_CHECKING:
    from lancetable.format.version import FileVersion
    from lancetable.handlers.base import CommitHandler
    from lancetable.proto import table_pb2
    from lancetable.store.base import ObjectStore
    from lancetable.table.cache import TableCache
    from lancetable.table.deletions import DeletionVector

__all__ = ["commit_transaction", "create_table", "publish_first"]

logger = logging.getLogger(__name__)

_STRICT = Verdict(
    Severity.INCOMPATIBLE,
    "without retries (max_retries=0) an overwrite only goes right behind the version it was made on",
)
_FRESH_SECONDS = 2.0  # so long after a look no other is taken, where it costs a round trip
_FEW = 1  # versions read from afar between looking for new ones and publishing
_READ_AT_ONCE = 16
_REMEMBERED = 64  # versions of others
_MET_IN_A_ROW = 6  # versions that were in the way, until the next look
_SMALL_BYTES = 256 * 1024  # of a manifest: a larger one is not sent without looking whether its number is still free
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
    beyond: int | None = None,
) -> TableVersion:
    """Commit `transaction` on top of the newest version and return the version it became.

    `base` is any version of the branch, best the one the transaction was prepared on. `affected_rows` are the rows
    that a Delete or Update newly deletes, by fragment: with them, deletes of different rows of one fragment go
    together. `inserts_keys` says that an Update inserts rows whose keys nobody else may insert meanwhile. `detached`
    makes a version beside the history, on top of `base`. `file_version` changes the data format in an Overwrite or a
    Merge. An Overwrite with `max_retries` 0 is strict: it becomes the version right after its read version or fails,
    and is not checked for conflicts. `beyond` is for a Restore while the newest manifest is damaged: the number of that
    version, which is the read version; `base` is the newest version that can be read.

    Raises RetryableCommitConflictError (run the operation again), CommitConflictError (look at the other change),
    CommitStateUnknownError (look for the transaction before trying again), UnsupportedFeatureError.
    """
    flags.check_writable(base.manifest.writer_flags, base.uri, reader_flags=base.manifest.reader_flags)
    if detached:
        return _commit_detached(base, transaction, max_retries, timeout_s)
    if is_detached(base.version):
        raise InvalidOperationError(f"{base.uri}: the detached version {base.version} can have no successor")
    context = Context(frozenset(affected_rows or ()), inserts_keys)
    landed = _land(base, transaction, max_retries, timeout_s, affected_rows or {}, context, file_version, beyond)
    clean_up_after_commit(landed)
    return landed


def _land(
    base: TableVersion,
    transaction: Transaction,
    max_retries: int,
    timeout_s: float,
    affected_rows: Mapping[int, DeletionVector],
    context: Context,
    file_version: FileVersion | None,
    beyond: int | None,
) -> TableVersion:
    run = _Run(base, transaction, affected_rows, context, file_version, beyond)
    strict = max_retries == 0 and isinstance(transaction.operation, tx.Overwrite)
    remote = not base.store.capabilities.local
    crowd = crowd_at(base.store.key(base.base)) if remote else None
    if crowd is not None:
        now = time.monotonic()
        if crowd.streak.meets_rivals(base.store, base.base, transaction.read_version, now):
            crowd.gather(now)
        run.crowd = crowd
    turn = Turn(join(base.base, VERSIONS_DIR)) if base.store.scheme == "file" else None
    backoff = Backoff(max_retries, timeout_s, crowd=crowd, turn=turn)
    looks = strict or not remote or max_retries < 2 or backoff.is_crowded or not run.is_fresh()
    try:
        while True:
            landed = run.catch_up(strict=strict) if looks else None
            if landed is None:
                landed = run.publish() or (None if strict else run.meet())
            if landed is not None:
                backoff.won(landed.version - run.ours.read_version, run.passed_of_others)
                if crowd is not None and backoff.attempts == 1 and not backoff.is_crowded:
                    crowd.streak.won(run.ours, landed.version, time.monotonic())
                return run.in_line(landed)
            if crowd is not None:
                crowd.streak.end()
            if strict or not backoff.next_attempt(met=run.has_met):
                raise _used_up(run, backoff, timeout_s)
            # Who is far behind would meet one version after the other.
            looks = not run.has_met or backoff.has_waited or backoff.attempts % _MET_IN_A_ROW == 0
    except CommitStateUnknownError:
        raise
    except LanceError as error:
        # An interrupt may come from within the publication, so then nobody looks and the files stay.
        landed = run.landed(error)
        if landed is not None:
            return landed
        run.remove_own_files()
        raise
    finally:
        if turn is not None:
            turn.give_back()


def create_table(
    store: ObjectStore,
    base: str,
    uri: str,
    handler: CommitHandler,
    transaction: Transaction,
    *,
    file_version: FileVersion,
    cache: TableCache,
    storage_options: Mapping[str, str] | None = None,
    naming: ManifestNaming = ManifestNaming.V2,
    config: Mapping[str, str] | None = None,
    stable_row_ids: bool = False,
) -> TableVersion:
    """Make version 1 from an Overwrite with read version 0.

    Raises AlreadyExistsError if there is a table, CommitStateUnknownError if the reply was lost for good.
    """
    built = build_first_manifest(
        transaction, file_version, timestamp_ns=time.time_ns(), config=config, stable_row_ids=stable_row_ids
    )
    head = dictionary_head(store, base, built.message, None)
    return publish_first(
        store,
        base,
        uri,
        handler,
        transaction,
        built.message,
        built.index_section,
        naming,
        head,
        cache,
        storage_options,
    )


def publish_first(
    store: ObjectStore,
    base: str,
    uri: str,
    handler: CommitHandler,
    transaction: Transaction,
    message: table_pb2.Manifest,
    index_section: bytes | None,
    naming: ManifestNaming,
    head: bytes,
    cache: TableCache,
    storage_options: Mapping[str, str] | None,
) -> TableVersion:
    """Make the version of `message` the first one below `base`, where no table may be.

    Raises AlreadyExistsError if there is a table, CommitStateUnknownError if the reply was lost for good.
    """
    version, data = message.version, transaction.to_bytes()
    location = ManifestLocation(version, manifest_path(base, version, naming), None, naming)
    packed = manifests.pack(message, data, index_section, head)
    name = transactions.write(store, base, transaction, data)
    try:
        outcome = handler.commit(store, base, version, naming, packed)
        if outcome is not PutOutcome.WON:
            outcome = _look_again(store, base, location, transaction, PutOutcome.UNKNOWN)
        if outcome is PutOutcome.UNKNOWN:
            raise _unknown(uri, transaction, version)
        if outcome is PutOutcome.LOST:
            raise AlreadyExistsError(f"Dataset already exists: {uri}", path=uri)
    except CommitStateUnknownError:
        raise
    except LanceError:
        _remove_quietly(store, [transaction_path(base, name)])
        raise
    file = manifests.packed_file(location, message, packed)
    return TableVersion(store, base, uri, file, handler, cache, storage_options)


class _Run:
    """One call of `commit_transaction`: what has been seen so far, and the transaction as it stands now."""

    def __init__(
        self,
        base: TableVersion,
        transaction: Transaction,
        affected_rows: Mapping[int, DeletionVector],
        context: Context,
        file_version: FileVersion | None,
        beyond: int | None = None,
    ) -> None:
        self.base, self.newest, self.ours = base, base, transaction
        self._beyond = 0 if beyond is None else beyond  # the newest version, where its manifest is damaged
        self.original = transaction
        self._affected_rows, self._file_version = affected_rows, file_version
        self._context = context
        self._seen = transaction.read_version
        self._written_transaction: tuple[int, bytes] | None = None
        self._own_paths: list[str] = []
        self._lost: tuple[ManifestLocation, bytes] | None = None  # the last attempt, if nobody looked who has it
        self._met: bytes | memoryview | None = None  # what lay in its way, where the store had to read it
        self._begun_at = 0.0  # the last publication
        self._looked_at = base.newest_at if base.newest_at is not None else -math.inf
        self.has_met = False  # whether that was judged, so that the next attempt needs no look
        # By how many versions the others were after those they were made on, of the last ones.
        self.passed_of_others: deque[int] = deque(maxlen=_REMEMBERED)
        self.crowd: Crowd | None = None  # told of versions of other libraries, except of the base, which may be old

    def is_fresh(self) -> bool:
        """Whether the transaction was made on a version that was the newest a moment ago.

        Then the first attempt publishes without looking: if another writer was faster, its manifest is in the way,
        and the next attempt looks. It would not be in the way if a cleanup had removed it meanwhile, after still
        another commit; hence a moment, which is what lies between a look and a publication anyway.
        """
        base = self.base
        if base.newest_at is None or time.monotonic() - base.newest_at > _FRESH_SECONDS:
            return False
        return self.original.read_version == base.version and keeps_young_versions(base)

    def catch_up(self, *, strict: bool = False) -> TableVersion | None:
        """Judge ours against every version not seen yet. Returns the version if one of them turns out to be ours."""
        base, behind = self.base, math.inf
        while True:
            unseen = self._unseen()
            landed = self._take_in(unseen, strict)
            if landed is not None:
                return landed
            if base.store.capabilities.local or not _FEW < len(unseen) < behind:
                break
            # Reading many versions from afar took long enough for others to commit: who does not look again loses. And
            # who is no nearer to them than after the last look would look for ever.
            behind = len(unseen)
        manifest = self.newest.manifest
        flags.check_writable(manifest.writer_flags, base.uri, reader_flags=manifest.reader_flags)
        return None

    def _take_in(self, unseen: list[ManifestLocation], strict: bool) -> TableVersion | None:
        """Judge ours against these versions, in their order."""
        base = self.base
        at_once = _READ_AT_ONCE if base.store.capabilities.parallel else 1
        for first in range(0, len(unseen), at_once):
            some = unseen[first : first + at_once]
            self._check_no_gap(some[0])
            try:
                read = transactions.read_since(base.store, base.base, some)
            except CorruptFileError as error:
                raise explained(base, unseen[-1], error) from error
            for file, theirs in read:
                self._check_no_gap(file.location)
                landed = self._take_in_one(file, theirs, strict)
                if landed is not None:
                    return landed
        return None

    def _take_in_one(self, file: ManifestFile, theirs: Transaction | None, strict: bool) -> TableVersion | None:
        number, version = file.location.version, replace(self.base, file=file)
        if theirs is not None and theirs.uuid == self.ours.uuid:
            return open_location(self.base, file.location)
        if strict:
            raise _conflict(self, theirs, number, _STRICT)
        self._judge(theirs, version)
        if self.crowd is not None and not is_ours(file.manifest.message):
            self.crowd.others_seen_at = time.monotonic()
        if theirs is not None:
            self.passed_of_others.append(number - theirs.read_version)
        if isinstance(self.ours.operation, tx.Delete | tx.Update):
            # Its fragments are now said of this version, and so is the transaction, as in every other writer.
            self.ours = replace(self.ours, read_version=number)
        self.newest, self._seen = version, number
        if self._lost is not None and self._lost[0].version == number:
            self._lost = None  # it surely was another writer's
        return None

    def meet(self) -> TableVersion | None:
        """Judge ours against the version that was in the way, where the store has read it already.

        Then the next attempt, if it follows at once, needs no look. Returns the version if it is ours after all.
        """
        self.has_met = False
        if self._met is None or self._lost is None or len(self._met) > _SMALL_BYTES:
            return None
        store, base = self.base.store, self.base.base
        location, met = self._lost[0], self._met
        self._met = None
        try:
            file, theirs = transactions.met(store, base, location, met)
        except CorruptFileError as error:
            raise explained(self.base, location, error) from error
        landed = self._take_in_one(file, theirs, False)
        flags.check_writable(file.manifest.writer_flags, self.base.uri, reader_flags=file.manifest.reader_flags)
        # Had a cleanup come by since the last look, this version would be gone.
        self.has_met, self._looked_at = True, self._begun_at
        return landed

    def _check_no_gap(self, location: ManifestLocation) -> None:
        if location.version != self._seen + 1:
            raise self._gap(self._seen + 1)

    def _gap(self, version: int) -> RetryableCommitConflictError:
        return RetryableCommitConflictError(
            f"Retryable commit conflict: {describe(self.ours.operation)} was prepared on version"
            f" {self.original.read_version} of {self.base.uri}, and version {version} has been cleaned up, so nobody"
            " can tell what it changed. Run the operation again on the newest version",
            version=version,
        )

    def _unseen(self) -> list[ManifestLocation]:
        newest, store = self.newest, self.base.store
        self._looked_at = time.monotonic()
        if newest.version < self._beyond:
            return newest.handler.history(store, newest.base, self._beyond)
        if self._seen == newest.version:
            return newest.handler.newer(store, newest.base, newest.location)
        if self._seen > newest.version:
            # Prepared on a version that this handle has not seen.
            locations = newest.handler.newer(store, newest.base, newest.location)
            at = next((each for each in locations if each.version == self._seen), None)
            if at is None:
                raise VersionNotFoundError(
                    f"{newest.uri} has no version {self._seen}, on which the transaction was prepared",
                    version=self._seen,
                )
            self.newest = replace(newest, file=read_manifest(store, at))
            return [each for each in locations if each.version > self._seen]
        locations = newest.handler.history(store, newest.base, self._seen)
        for version in range(locations[-1].version + 1 if locations else self._seen + 1, newest.version + 1):
            # Cleaned up since this handle was opened, or the listing is older than the handle.
            at = newest.handler.locate(store, newest.base, version, newest.location.naming)
            if at is None:
                raise self._gap(version)
            locations.append(at)
        return locations

    def _judge(self, theirs: Transaction | None, version: TableVersion) -> None:
        operation = None if theirs is None else theirs.operation
        verdict = check(self.ours.operation, operation, self._context)
        if verdict.severity is Severity.COMPATIBLE:
            return
        if verdict.severity is not Severity.REBASABLE:
            raise _conflict(self, theirs, version.version, verdict)
        if isinstance(self.ours.operation, tx.CreateIndex):
            self.ours = rebase_index(self.ours, verdict.fragments)
            return
        self.ours = rebase_deletions(self.ours, version, verdict.fragments, self._affected_rows, self._own_paths)

    def publish(self) -> TableVersion | None:
        """Write the transaction and the next manifest. None: another writer was first."""
        newest, store, base = self.newest, self.base.store, self.base.base
        version, naming = max(newest.version, self._beyond) + 1, newest.location.naming
        once.refuse_repeat(newest.manifest.config, self.ours)
        data = self.ours.to_bytes()
        if isinstance(self.ours.operation, tx.Restore):
            # First of all: a cleanup that has taken the old version away sees by it that its files are needed.
            self._write_transaction(data)
        # Anything else is built before it is written: an operation that does not fit the table leaves no trace.
        source = _source(newest, self.ours)
        built = self._build(version, source)
        head = dictionary_head(store, base, built.message, source)
        self._write_transaction(data)
        packed = manifests.pack(built.message, data, built.index_section, head)
        location = ManifestLocation(version, manifest_path(base, version, naming), None, naming)
        begun_at = self._begun_at = time.monotonic()
        note_met(None)
        outcome = newest.handler.commit(store, base, version, naming, packed)
        if outcome is PutOutcome.UNKNOWN:
            outcome = _look_again(store, base, location, self.ours, outcome)
            if outcome is PutOutcome.UNKNOWN:
                raise _unknown(newest.uri, self.ours, version)
        if outcome is PutOutcome.LOST:
            logger.debug("%s: version %d went to another writer", newest.uri, version)
            self._lost, self._met = (location, packed), take_met()
            return None
        return replace(newest, file=manifests.packed_file(location, built.message, packed), newest_at=begun_at)

    def in_line(self, landed: TableVersion) -> TableVersion:
        """`landed`, once it is sure that it follows the version that it was made on.

        Raises RetryableCommitConflictError where a cleanup had freed its number: then it is removed, since no later
        version knows of it. Raises CommitStateUnknownError where that cannot be told.
        """
        store, version = self.base.store, landed.version
        if landed.newest_at is None or is_believed(store, time.monotonic() - self._looked_at):
            return landed
        try:
            place = place_of(landed)
            if place is Place.IN_THE_PAST:
                store.delete([landed.location.path])
        except (LanceError, OSError) as error:
            logger.debug("%s: version %d cannot be looked at: %s", landed.uri, version, error)
            place = Place.UNKNOWN
        if place is Place.UNKNOWN:
            raise _unknown(landed.uri, self.ours, version)
        if place is Place.IN_THE_PAST:
            raise self._gap(version)
        return landed

    def landed(self, error: LanceError) -> TableVersion | None:
        """The version of the last attempt if it is ours after all, though it counted as lost.

        A client that repeats a request by itself finds its own object and reports the name as taken. The next attempt
        would notice; when `error` ends them, somebody must look before the files of the operation are removed. Raises
        CommitStateUnknownError where that fails as well.
        """
        if self._lost is None:
            return None
        location, packed = self._lost
        outcome = look_back(self.base.store, self.base.base, location.path, packed)
        if outcome is PutOutcome.LOST:
            return None
        try:
            if outcome is PutOutcome.WON:
                return open_location(self.base, location)
        except LanceError:
            logger.debug("%s: version %d cannot be read", self.base.uri, location.version)
        raise _unknown(self.base.uri, self.ours, location.version) from error

    def _write_transaction(self, data: bytes) -> None:
        """Write the transaction file unless it is there as it is now."""
        if self._written_transaction != (self.ours.read_version, data):
            name = transactions.write(self.base.store, self.base.base, self.ours, data)
            self._written_transaction = (self.ours.read_version, data)
            self._own_paths.append(transaction_path(self.base.base, name))

    def _build(self, version: int, source: TableVersion | None) -> Built:
        newest = self.newest
        built = build_manifest(
            newest.manifest.message,
            newest.file.index_section(newest.store),
            self.ours,
            version=version,
            timestamp_ns=time.time_ns(),
            restored=_restored(source, self.ours),
            file_version=self._file_version,
        )
        return repair(built, source or newest)

    def remove_own_files(self) -> None:
        """Remove what the loop itself wrote. The files that came with the transaction are the caller's."""
        _remove_quietly(self.base.store, self._own_paths)


def _remove_quietly(store: ObjectStore, paths: list[str]) -> None:
    if paths:
        try:
            store.delete(paths)
        except (LanceError, OSError) as error:
            logger.warning("could not remove %d files of a failed commit: %s", len(paths), error)


def _source(newest: TableVersion, ours: Transaction) -> TableVersion | None:
    """The version whose rows the next one goes on with: the newest, or the one restored. None where all are new.

    Raises VersionNotFoundError for one to restore that is not there.
    """
    operation = ours.operation
    if isinstance(operation, tx.Overwrite):
        return None
    if not isinstance(operation, tx.Restore):
        return newest
    location = newest.handler.locate(newest.store, newest.base, operation.version)
    if location is None:
        raise VersionNotFoundError(
            f"{newest.uri} has no version {operation.version} to restore", version=operation.version
        )
    source = open_location(newest, location)
    flags.check_writable(source.manifest.writer_flags, location.path, reader_flags=source.manifest.reader_flags)
    return source


def _restored(source: TableVersion | None, ours: Transaction) -> Restored | None:
    if source is None or not isinstance(ours.operation, tx.Restore):
        return None
    return Restored(source.manifest.message, source.file.index_section(source.store))


def _commit_detached(base: TableVersion, transaction: Transaction, max_retries: int, timeout_s: float) -> TableVersion:
    if transaction.read_version != base.version:
        raise InvalidOperationError(
            f"a detached version is built on the version it was prepared on: open version {transaction.read_version}"
        )
    source = _source(base, transaction)
    written: list[str] = []
    try:
        return _publish_detached(base, transaction, source, Backoff(max_retries, timeout_s), written)
    except CommitStateUnknownError:
        raise
    except LanceError:
        _remove_quietly(base.store, written)
        raise


def _publish_detached(
    base: TableVersion, transaction: Transaction, source: TableVersion | None, backoff: Backoff, written: list[str]
) -> TableVersion:
    """Publish under a number that nobody has. The paths of files written on the way are added to `written`."""
    data = transaction.to_bytes()
    naming = base.location.naming
    while True:
        version = secrets.randbits(63) | DETACHED_BIT
        built = build_manifest(
            base.manifest.message,
            base.file.index_section(base.store),
            transaction,
            version=version,
            timestamp_ns=time.time_ns(),
            restored=_restored(source, transaction),
        )
        built = repair(built, source or base)
        if not written:
            name = transactions.write(base.store, base.base, transaction, data)
            written.append(transaction_path(base.base, name))
        head = dictionary_head(base.store, base.base, built.message, source)
        packed = manifests.pack(built.message, data, built.index_section, head)
        location = ManifestLocation(version, manifest_path(base.base, version, naming), None, naming)
        outcome = base.handler.commit(base.store, base.base, version, naming, packed)
        if outcome is not PutOutcome.WON:
            outcome = _look_again(base.store, base.base, location, transaction, PutOutcome.UNKNOWN)
            if outcome is PutOutcome.UNKNOWN:
                raise _unknown(base.uri, transaction, version)
        if outcome is PutOutcome.WON:
            written.append(location.path)
            _check_still_there(base)
            return replace(base, file=manifests.packed_file(location, built.message, packed), newest_at=None)
        if not backoff.next_attempt():
            raise RetryableCommitConflictError(f"{base.uri}: no free number for a detached version was found")


def _check_still_there(base: TableVersion) -> None:
    """A cleanup that removed `base` before the detached version was there to be seen takes the files of both."""
    if base.handler.locate(base.store, base.base, base.version, base.location.naming) is None:
        raise VersionNotFoundError(
            f"{base.uri}: version {base.version} was cleaned up while a detached version was made from it",
            version=base.version,
        )


def _look_again(
    store: ObjectStore, base: str, location: ManifestLocation, ours: Transaction, outcome: PutOutcome
) -> PutOutcome:
    """Whose manifest lies at `location`: ours (WON), another's (LOST), or the outcome as it was if that stays open."""
    try:
        file: ManifestFile = read_manifest(store, location)
        theirs = transactions.read(store, base, file)
        if theirs is None or theirs.uuid != ours.uuid:
            return PutOutcome.LOST
        # It may be visible and not yet durable: that is one way in which an outcome is unknown.
        store.sync(base)
    except (LanceError, OSError):
        return outcome
    return PutOutcome.WON


# --- errors ----------------------------------------------------------------------------------------------------------


def _conflict(run: _Run, theirs: Transaction | None, version: int, verdict: Verdict) -> CommitConflictError:
    ours = describe(run.ours.operation)
    other = describe(None if theirs is None else theirs.operation)
    fragments = f" (fragments {_shorten(verdict.fragments)})" if verdict.fragments else ""
    facts: dict[str, Any] = {
        "version": version,
        "read_version": run.original.read_version,
        "fragments": verdict.fragments,
        "operation": ours,
        "other_operation": other,
    }
    if verdict.severity is Severity.RETRYABLE:
        return RetryableCommitConflictError(
            f"Retryable commit conflict for version {version}: our {ours}, prepared on version"
            f" {run.original.read_version}, was preempted by {other}: {verdict.reason}{fragments}. Run the operation"
            " again on the newest version",
            **facts,
        )
    kind = f"Commit conflict for version {version}" if verdict is _STRICT else "Incompatible transaction"
    return CommitConflictError(
        f"{kind}: our {ours}, prepared on version {run.original.read_version}, cannot follow"
        f" {other} in version {version}: {verdict.reason}{fragments}. Look at version {version}, then decide whether"
        " the operation still makes sense",
        **facts,
    )


def _used_up(run: _Run, backoff: Backoff, timeout_s: float) -> RetryableCommitConflictError:
    return RetryableCommitConflictError(
        f"Too many concurrent writers: {describe(run.ours.operation)} on {run.base.uri} lost {backoff.attempts} races"
        f" in {backoff.elapsed_seconds:.1f} s (limit {timeout_s:g} s), last for version {run.newest.version + 1}."
        " Run it again, or raise max_retries",
        version=run.newest.version + 1,
        attempts=backoff.attempts,
    )


def _unknown(uri: str, transaction: Transaction, version: int) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"{uri}: it is not known whether version {version} was committed; the store did not say. Look for transaction"
        f" {transaction.uuid} in the newest versions before committing again, and delete no files",
        version=version,
        transaction_uuid=transaction.uuid,
    )


def _shorten(fragments: Iterable[int]) -> str:
    ids = list(fragments)
    return ", ".join(map(str, ids[:10])) + (", ..." if len(ids) > 10 else "")
