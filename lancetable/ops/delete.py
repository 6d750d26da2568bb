"""Deleting rows: find them, mark them in new deletion files, commit; again on the newer version if need be.

    scan (matching offsets per fragment) ─► union with what is deleted already ─► deletion files ─► Delete ─► commit
         ▲                                                                                              │
         └────────── RetryableCommitConflictError: somebody touched the same rows or fragments ◄────────┘

Fragments without a row left are dropped instead of getting a full deletion file.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lancetable.commit.backoff import Backoff
from lancetable.commit.loop import commit_transaction
from lancetable.errors import CommitStateUnknownError, LanceError, RetryableCommitConflictError
from lancetable.format import flags
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.transaction import Transaction
from lancetable.ops.scan import matching_offsets
from lancetable.ops.scan_plan import resolve_filter
from lancetable.table import deletions
from lancetable.table.deletions import DeletionVector
from lancetable.table.fragments import physical_rows
from lancetable.table.version import TableVersion, latest

if TYPE_CHECKING:
    from pyarrow import compute as pc

__all__ = ["delete"]

logger = logging.getLogger(__name__)


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
    emptied: tuple[int, ...]
    num_rows: int


def _find(version: TableVersion, predicate: str | pc.Expression) -> _Found:
    expression = resolve_filter(version.schema, predicate)
    rows: dict[int, DeletionVector] = {}
    emptied: list[int] = []
    num_rows = 0
    for fragment in version.manifest.fragments:
        vector = DeletionVector(matching_offsets(version, fragment, expression))
        if not vector:
            continue
        num_rows += len(vector)
        rows[fragment.id] = vector
        if len(vector) == physical_rows(version, fragment) - len(_deleted(version, fragment)):
            emptied.append(fragment.id)
    return _Found(rows, tuple(emptied), num_rows)


def _deleted(version: TableVersion, fragment: Fragment) -> DeletionVector:
    return deletions.read(version, fragment) or deletions.EMPTY


def _commit(version: TableVersion, found: _Found, predicate: str) -> TableVersion:
    updated: list[Fragment] = []
    paths: list[str] = []
    try:
        for fragment_id, vector in found.rows.items():
            if fragment_id in found.emptied:
                continue
            fragment = version.manifest.fragments.by_id(fragment_id)
            assert fragment is not None, "the rows were found in this version"
            merged = _deleted(version, fragment).union(vector)
            file = deletions.write(version.store, version.base, fragment_id, version.version, merged)
            paths.append(version.deletion_file_path(fragment_id, file))
            updated.append(replace(fragment, deletion_file=file))
        operation = tx.Delete(tuple(updated), found.emptied, predicate)
        transaction = Transaction.create(version.version, operation)
        return commit_transaction(version, transaction, affected_rows=found.rows)
    except CommitStateUnknownError:
        raise
    except LanceError:
        _remove_quietly(version, paths)
        raise


def _remove_quietly(version: TableVersion, paths: list[str]) -> None:
    try:
        version.store.delete(paths)
    except (LanceError, OSError) as error:
        logger.warning("could not remove %d deletion files that were never committed: %s", len(paths), error)
