"""Deleting rows: find them, mark them in new deletion files, commit; again on the newer version if need be.

    scan (matching offsets per fragment) ─► union with what is deleted already ─► deletion files ─► Delete ─► commit
         ▲                                                                                              │
         └────────── RetryableCommitConflictError: somebody touched the same rows or fragments ◄────────┘

Fragments without a row left are dropped instead of getting a full deletion file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

from lancetable.commit.backoff import Backoff
from lancetable.commit.loop import commit_transaction
from lancetable.errors import CommitStateUnknownError, LanceError, RetryableCommitConflictError
from lancetable.file import pool
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.transaction import Transaction
from lancetable.ops.scan import matching_rows
from lancetable.table import deletions
from lancetable.table.deletions import DeletionVector
from lancetable.table.fragments import physical_rows
from lancetable.table.version import TableVersion, latest

if TYPE_CHECKING:
    from pyarrow import compute as pc

__all__ = ["delete"]

logger = logging.getLogger(__name__)

_FILES_PER_TASK = 16


def delete(
    version: TableVersion,
    predicate: str | pc.Expression,
    *,
    conflict_retries: int = 10,
    retry_timeout_s: float = 30.0,
) -> tuple[TableVersion, int]:
    """Delete the rows for which `predicate` is true; returns the new version and how many rows that were.

    A predicate that matches nothing still makes a version. When another commit touches the same rows, everything runs
    again on the newer version, at most `conflict_retries` times and until `retry_timeout_s` is over.

    Raises InvalidSqlError, ColumnNotFoundError; CommitConflictError when another attempt is hopeless,
    RetryableCommitConflictError when every attempt lost; CommitStateUnknownError.
    """
    text = str(predicate)
    backoff = Backoff(conflict_retries + 1, retry_timeout_s)
    while True:
        manifest = version.manifest
        flags.check_writable(manifest.writer_flags, version.uri, reader_flags=manifest.reader_flags)
        found = _find(version, predicate)
        try:
            return _commit(version, found, text), found.num_rows
        except RetryableCommitConflictError as error:
            if not backoff.next_attempt():
                raise RetryableCommitConflictError(
                    f"Too many concurrent writers. Attempted {backoff.attempts - 1} retries in"
                    f" {backoff.elapsed_seconds:.1f} s: {error}",
                    attempts=backoff.attempts,
                ) from error
        version = latest(version)


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows to delete by fragment, without those deleted before, and the fragments that lose their last row."""

    rows: dict[int, DeletionVector]
    emptied: frozenset[int]
    num_rows: int


def _find(version: TableVersion, predicate: str | pc.Expression) -> _Found:
    rows: dict[int, DeletionVector] = {}
    emptied: list[int] = []
    num_rows = 0
    for fragment, offsets in matching_rows(version, predicate):
        num_rows += len(offsets)
        rows[fragment.id] = DeletionVector.of_ascending(offsets)
        if len(offsets) == physical_rows(version, fragment) - len(_deleted(version, fragment)):
            emptied.append(fragment.id)
    return _Found(rows, frozenset(emptied), num_rows)


def _deleted(version: TableVersion, fragment: Fragment) -> DeletionVector:
    return deletions.read(version, fragment) or deletions.EMPTY


def _commit(version: TableVersion, found: _Found, predicate: str) -> TableVersion:
    updated: list[Fragment] = []
    try:
        kept = [fragment_id for fragment_id in found.rows if fragment_id not in found.emptied]

        def mark(fragment_id: int) -> None:
            fragment = version.manifest.fragments.by_id(fragment_id)
            assert fragment is not None, "the rows were found in this version"
            merged = _deleted(version, fragment).union(found.rows[fragment_id])
            file = deletions.write(version.store, version.base, fragment_id, version.version, merged)
            updated.append(replace(fragment, deletion_file=file))

        if version.store.capabilities.local:
            # Threads only wait for each other where all files go to one directory.
            for fragment_id in kept:
                mark(fragment_id)
        else:
            _for_each(mark, kept)
        updated.sort(key=attrgetter("id"))
        operation = tx.Delete(tuple(updated), tuple(sorted(found.emptied)), predicate)
        transaction = Transaction.create(version.version, operation)
        return commit_transaction(version, transaction, affected_rows=found.rows)
    except CommitStateUnknownError:
        raise
    except LanceError:
        _remove_quietly(version, updated)
        raise


def _for_each(function: Callable[[int], None], items: Sequence[int]) -> None:
    """Call `function` with each item, several at a time: what takes long is waiting for the store.

    All calls are over when this returns or raises.
    """
    if len(items) <= _FILES_PER_TASK or pool.size() == 1 or pool.in_worker():
        for item in items:
            function(item)
        return

    def run(start: int) -> None:
        for item in items[start : start + _FILES_PER_TASK]:
            function(item)

    futures = [pool.pool().submit(run, start) for start in range(0, len(items), _FILES_PER_TASK)]
    wait(futures)
    for future in futures:
        future.result()


def _remove_quietly(version: TableVersion, fragments: Iterable[Fragment]) -> None:
    paths = [
        version.deletion_file_path(fragment.id, fragment.deletion_file)
        for fragment in fragments
        if fragment.deletion_file is not None
    ]
    try:
        version.store.delete(paths)
    except (LanceError, OSError) as error:
        logger.warning("could not remove %d deletion files that were never committed: %s", len(paths), error)
