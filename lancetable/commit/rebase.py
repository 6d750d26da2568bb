"""Rebase of a transaction onto a version that deleted other rows of the same fragments.

    version 7                 fragment 3: deleted {1}
    version 8, committed      fragment 3: deleted {1, 5}
    pending, read version 7   fragment 3: deletes {2}, so its deletion vector is {1, 2}
    version 9, rebased        fragment 3: deleted {1, 2, 5} in a new file, otherwise the record of version 8

A rebase is possible only if both transactions delete different rows. Otherwise the operation must run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyroaring

from lancetable.commit.conflicts import updated_fragments
from lancetable.errors import RetryableCommitConflictError
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.index import covered_fragments
from lancetable.format.transaction import Transaction
from lancetable.table import deletion_vectors
from lancetable.table.deletion_vectors import DeletionVector

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion


def rebase_deletions(
    transaction: Transaction,
    onto: TableVersion,
    fragment_ids: Iterable[int],
    affected_rows: Mapping[int, DeletionVector],
    new_paths: list[str],
) -> Transaction:
    """Merge the deletions of a transaction with those of a newer version.

    Parameters
    ----------
    transaction
        A Delete or an Update.
    onto
        The newer version.
    fragment_ids
        Fragments with deletions in both.
    affected_rows
        The rows that the transaction newly deletes, by fragment id.
    new_paths
        Paths of deletion files written by rebases. New files are added, superseded files are removed.

    Returns
    -------
    Transaction
        The transaction with `onto` as its read version. Fragments without remaining rows become removed fragments.

    Raises
    ------
    RetryableCommitConflictError
        If both delete the same row, or a fragment was removed. Then no file is written.
    CorruptFileError
        If a deletion file is damaged.
    StoreError
        If the store fails.
    """
    operation = transaction.operation
    assert isinstance(operation, tx.Delete | tx.Update)
    updated = updated_fragments(operation)
    current = {fragment_id: _current(onto, fragment_id, affected_rows[fragment_id]) for fragment_id in fragment_ids}
    emptied: list[int] = []
    for fragment_id, fragment in sorted(current.items()):
        superseded = _own_path(onto, fragment_id, updated.pop(fragment_id), new_paths)
        if superseded is not None:
            # An earlier rebase wrote this file for a version that was not committed, so nothing refers to it.
            onto.store.delete([superseded])
            new_paths.remove(superseded)
        rows = affected_rows[fragment_id]
        merged = deletion_vectors.delete_rows(onto, fragment, rows, fragment.physical_rows, force_bitmap=True)
        if merged is None:
            emptied.append(fragment_id)
            continue
        if merged is not fragment and merged.deletion_file is not None:
            new_paths.append(onto.deletion_file_path(fragment_id, merged.deletion_file))
        updated[fragment_id] = merged
    return replace(transaction, read_version=onto.version, operation=_with_fragments(operation, updated, emptied))


def _own_path(onto: TableVersion, fragment_id: int, fragment: Fragment, new_paths: list[str]) -> str | None:
    """Return the path of the fragment's deletion file if an earlier rebase wrote it, else None."""
    if fragment.deletion_file is None:
        return None
    path = onto.deletion_file_path(fragment_id, fragment.deletion_file)
    return path if path in new_paths else None


def _current(onto: TableVersion, fragment_id: int, rows: DeletionVector) -> Fragment:
    """Return the fragment in `onto`. Raises RetryableCommitConflictError if `onto` has deleted one of `rows`."""
    current = onto.manifest.fragments.by_id(fragment_id)
    if current is None:
        raise _retry_error(onto, fragment_id, "was removed")
    deleted = deletion_vectors.read(onto, current) or deletion_vectors.EMPTY
    if deleted.intersects(rows):
        raise _retry_error(onto, fragment_id, "has rows that both transactions change")
    return current


def rebase_index(transaction: Transaction, modified_fragments: Iterable[int]) -> Transaction:
    """Remove fragments with changed values from the coverage of the indices that a CreateIndex adds."""
    operation = transaction.operation
    assert isinstance(operation, tx.CreateIndex)
    modified = pyroaring.BitMap(modified_fragments)
    indices = []
    for index in operation.new_indices:
        covered = covered_fragments(index.fragment_bitmap, index.name)
        indices.append(index if covered is None else replace(index, fragment_bitmap=(covered - modified).serialize()))
    return replace(transaction, operation=replace(operation, new_indices=tuple(indices)))


def _with_fragments(
    operation: tx.Delete | tx.Update, updated: Mapping[int, Fragment], emptied: list[int]
) -> tx.Delete | tx.Update:
    fragments = tuple(updated[fragment_id] for fragment_id in sorted(updated))
    if isinstance(operation, tx.Delete):
        deleted = (*operation.deleted_fragment_ids, *emptied)
        return replace(operation, updated_fragments=fragments, deleted_fragment_ids=deleted)
    removed = (*operation.removed_fragment_ids, *emptied)
    return replace(operation, updated_fragments=fragments, removed_fragment_ids=removed)


def _retry_error(onto: TableVersion, fragment_id: int, what: str) -> RetryableCommitConflictError:
    return RetryableCommitConflictError(
        f"Retryable commit conflict: fragment {fragment_id} {what}, as of version {onto.version}; run the operation"
        " again on that version",
        fragments=(fragment_id,),
        version=onto.version,
    )
