"""Deletion of rows: find them, write new deletion files, commit, and retry on a newer version after a conflict.

    scan (matching offsets per fragment) ─► union with previous deletions ─► deletion files ─► Delete ─► commit
         ▲                                                                                              │
         └────── RetryableCommitConflictError: a concurrent commit changed the same rows or fragments ◄─┘

A fragment whose rows are all deleted is removed instead of getting a full deletion file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lancetable.commit.loop import commit_transaction
from lancetable.errors import CommitStateUnknownError, LanceError
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction
from lancetable.ops.change.deletion_vectors import Marked, mark_deleted, remove_marks
from lancetable.ops.change.retry import on_newest
from lancetable.ops.read.filtered_rows import matching_rows
from lancetable.table.deletions import DeletionVector
from lancetable.table.version import TableVersion

if TYPE_CHECKING:
    from pyarrow import compute as pc

__all__ = ["delete", "prepare"]


def delete(
    version: TableVersion,
    predicate: str | pc.Expression,
    *,
    conflict_retries: int = 10,
    retry_timeout_s: float = 30.0,
) -> tuple[TableVersion, int]:
    """Delete the rows for which `predicate` is true; return the new version and the number of deleted rows.

    A predicate without matches still creates a version. If a concurrent commit changes the same rows, the delete runs
    again
    on the newer version, at most `conflict_retries` times within `retry_timeout_s` seconds.

    Raises InvalidSqlError, ColumnNotFoundError; CommitConflictError if a retry cannot succeed,
    RetryableCommitConflictError if every attempt lost; CommitStateUnknownError.
    """
    predicate_sql = str(predicate)

    def attempt(base: TableVersion) -> tuple[TableVersion, int]:
        matches = _find_matches(base, predicate)
        return _commit(base, matches, predicate_sql), matches.num_rows

    return on_newest(version, attempt, conflict_retries=conflict_retries, retry_timeout_s=retry_timeout_s)


@dataclass(frozen=True, slots=True)
class _Matches:
    """The rows to delete by fragment, excluding rows that were deleted before."""

    rows: dict[int, DeletionVector]
    num_rows: int


def prepare(
    version: TableVersion, predicate: str | pc.Expression, fragments: Sequence[int] | None = None
) -> tuple[Marked, int]:
    """Write deletion files without committing them; also return the number of rows that they delete.

    `fragments` restricts the delete to the fragments with these ids. Raises InvalidSqlError, ColumnNotFoundError.
    """
    matches = _find_matches(version, predicate, fragments)
    return mark_deleted(version, matches.rows), matches.num_rows


def _find_matches(
    version: TableVersion, predicate: str | pc.Expression, fragments: Sequence[int] | None = None
) -> _Matches:
    rows: dict[int, DeletionVector] = {}
    num_rows = 0
    for fragment, offsets in matching_rows(version, predicate, fragments):
        num_rows += len(offsets)
        rows[fragment.id] = DeletionVector.of_ascending(offsets)
    return _Matches(rows, num_rows)


def _commit(version: TableVersion, matches: _Matches, predicate: str) -> TableVersion:
    marked = mark_deleted(version, matches.rows)
    try:
        operation = tx.Delete(marked.updated, marked.removed, predicate)
        transaction = Transaction.create(version.version, operation)
        return commit_transaction(version, transaction, affected_rows=matches.rows)
    except CommitStateUnknownError:
        raise
    except LanceError:
        remove_marks(version, marked.updated)
        raise
