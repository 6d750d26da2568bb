"""Deletion of rows, with retries on a newer version after a commit conflict.

    scan (matching offsets per fragment) ─► union with previous deletions ─► deletion files ─► Delete ─► commit
         ▲                                                                                              │
         └────── RetryableCommitConflictError: a concurrent commit changed the same rows or fragments ◄─┘

A fragment whose rows are all deleted is removed and gets no deletion file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
from pyarrow import compute as pc

from lancetable.commit.commit_loop import commit_transaction
from lancetable.commit.publish import discarding_on_failure
from lancetable.errors import OutOfRangeError
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.transaction import Transaction
from lancetable.ops.change.retry import on_newest
from lancetable.ops.change.write_deletions import WrittenDeletions, discard_deletions, write_deletions
from lancetable.ops.read.matching_rows import matching_offsets, matching_rows
from lancetable.table import deletion_vectors
from lancetable.table.deletion_vectors import DeletionVector
from lancetable.table.row_counts import physical_rows
from lancetable.table.version import TableVersion


def delete(
    version: TableVersion,
    predicate: str | pc.Expression,
    *,
    conflict_retries: int = 10,
    retry_timeout_s: float = 30.0,
) -> tuple[TableVersion, int]:
    """Delete the rows for which `predicate` is true; return the new version and the number of deleted rows.

    A predicate without matches still creates a version. If a concurrent commit changes the same rows, the delete runs
    again on the newer version, at most `conflict_retries` times within `retry_timeout_s` seconds.

    Raises InvalidSqlError, ColumnNotFoundError; CommitConflictError if a retry cannot succeed,
    RetryableCommitConflictError if every attempt conflicted; CommitStateUnknownError.
    """

    def attempt(base: TableVersion) -> tuple[TableVersion, int]:
        rows = _matching_vectors(base, predicate)
        written = write_deletions(base, rows)
        with discarding_on_failure(lambda: discard_deletions(base, written.updated)):
            operation = tx.Delete(written.updated, written.removed, str(predicate))
            transaction = Transaction.create(base.version, operation)
            return commit_transaction(base, transaction, affected_rows=rows), sum(map(len, rows.values()))

    return on_newest(version, attempt, conflict_retries=conflict_retries, retry_timeout_s=retry_timeout_s)


def prepare(
    version: TableVersion, predicate: str | pc.Expression, fragments: Sequence[int] | None = None
) -> tuple[WrittenDeletions, int]:
    """Write deletion files without committing them; return the fragments and the number of rows that they delete.

    `fragments` restricts the delete to the fragments with these ids. Raises InvalidSqlError, ColumnNotFoundError.
    """
    rows = _matching_vectors(version, predicate, fragments)
    return write_deletions(version, rows), sum(map(len, rows.values()))


def _matching_vectors(
    version: TableVersion, predicate: str | pc.Expression, fragments: Sequence[int] | None = None
) -> dict[int, DeletionVector]:
    """Return the matching live rows, by fragment id."""
    matches = matching_rows(version, predicate, fragments)
    return {fragment.id: DeletionVector.of_ascending(offsets) for fragment, offsets in matches}


def delete_from_fragment(version: TableVersion, fragment: Fragment, predicate: str | pc.Expression) -> Fragment | None:
    """Return the fragment without the rows for which `predicate` is true; None if no row is left.

    The deletion file is durable; nothing is committed. Raises InvalidSqlError and ColumnNotFoundError for the
    predicate, UnsupportedFeatureError for a table that cannot be written.
    """
    return _without(version, fragment, DeletionVector.of_ascending(matching_offsets(version, fragment, predicate)))


def delete_offsets(version: TableVersion, fragment: Fragment, offsets: npt.NDArray[Any]) -> Fragment | None:
    """Return the fragment without the rows at these physical offsets, in any order; None if no row is left.

    Raises OutOfRangeError for an offset past the end; see `delete_from_fragment`.
    """
    total = physical_rows(version, fragment)
    if len(offsets) and int(offsets.max()) >= total:
        raise OutOfRangeError(
            f"row offset {int(offsets.max())} is out of range for fragment {fragment.id} with {total} rows",
            expected=total,
            found=int(offsets.max()),
        )
    return _without(version, fragment, DeletionVector(offsets))


def _without(version: TableVersion, fragment: Fragment, rows: DeletionVector) -> Fragment | None:
    version.check_writable()
    remaining = deletion_vectors.delete_rows(version, fragment, rows, physical_rows(version, fragment))
    if remaining is not None and remaining is not fragment:
        version.store.sync(version.base)
    return remaining
