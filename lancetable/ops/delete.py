"""Deleting rows: find them, mark them in new deletion files, commit; again on the newer version if need be.

    scan (matching offsets per fragment) ─► union with what is deleted already ─► deletion files ─► Delete ─► commit
         ▲                                                                                              │
         └────────── RetryableCommitConflictError: somebody touched the same rows or fragments ◄────────┘

Fragments without a row left are dropped instead of getting a full deletion file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lancetable.commit.loop import commit_transaction
from lancetable.errors import CommitStateUnknownError, LanceError
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction
from lancetable.ops.marks import Marked, mark_deleted, remove_marks
from lancetable.ops.retry import on_newest
from lancetable.ops.scan import matching_rows
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
    """Delete the rows for which `predicate` is true; returns the new version and how many rows that were.

    A predicate that matches nothing still makes a version. When another commit touches the same rows, everything runs
    again on the newer version, at most `conflict_retries` times and until `retry_timeout_s` is over.

    Raises InvalidSqlError, ColumnNotFoundError; CommitConflictError when another attempt is hopeless,
    RetryableCommitConflictError when every attempt lost; CommitStateUnknownError.
    """
    text = str(predicate)

    def attempt(base: TableVersion) -> tuple[TableVersion, int]:
        found = _find(base, predicate)
        return _commit(base, found, text), found.num_rows

    return on_newest(version, attempt, conflict_retries=conflict_retries, retry_timeout_s=retry_timeout_s)


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows to delete by fragment, without those deleted before."""

    rows: dict[int, DeletionVector]
    num_rows: int


def prepare(
    version: TableVersion, predicate: str | pc.Expression, fragments: Sequence[int] | None = None
) -> tuple[Marked, int]:
    """Write the deletion files of all fragments, or of those with these ids, without committing them; also returns how
    many rows they delete. Raises InvalidSqlError, ColumnNotFoundError.
    """
    found = _find(version, predicate, fragments)
    return mark_deleted(version, found.rows), found.num_rows


def _find(version: TableVersion, predicate: str | pc.Expression, fragments: Sequence[int] | None = None) -> _Found:
    rows: dict[int, DeletionVector] = {}
    num_rows = 0
    for fragment, offsets in matching_rows(version, predicate, fragments):
        num_rows += len(offsets)
        rows[fragment.id] = DeletionVector.of_ascending(offsets)
    return _Found(rows, num_rows)


def _commit(version: TableVersion, found: _Found, predicate: str) -> TableVersion:
    marked = mark_deleted(version, found.rows)
    try:
        operation = tx.Delete(marked.updated, marked.removed, predicate)
        transaction = Transaction.create(version.version, operation)
        return commit_transaction(version, transaction, affected_rows=found.rows)
    except CommitStateUnknownError:
        raise
    except LanceError:
        remove_marks(version, marked.updated)
        raise
