"""Repairing a transaction so that it follows another one that deleted rows of the same fragments.

    version 7    fragment 3: deleted {1}
    theirs (8)   fragment 3: deleted {1, 5}        ours, read at 7: delete {2}, so deleted {1, 2}
    rebased (9)  fragment 3: deleted {1, 2, 5}, the record as it is in 8, in a new file

It works while both sides deleted different rows; a row that both touch needs the whole operation again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyroaring

from lancetable.commit.build import covered_fragments
from lancetable.commit.conflicts import updated_fragments
from lancetable.errors import RetryableCommitConflictError
from lancetable.format import transaction as tx
from lancetable.format.fragment import Fragment
from lancetable.format.transaction import Transaction
from lancetable.table import deletions
from lancetable.table.deletions import DeletionVector

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion

__all__ = ["rebase_deletions", "rebase_index"]


def rebase_deletions(
    ours: Transaction,
    onto: TableVersion,
    fragment_ids: Iterable[int],
    affected_rows: Mapping[int, DeletionVector],
    new_paths: list[str],
) -> Transaction:
    """Merge our deletions in `fragment_ids` with what `onto` has deleted there by now.

    `ours` is a Delete or an Update; `affected_rows` are the rows it newly deletes, by fragment. A fragment without
    any row left moves to the removed ones. The files written are added to `new_paths`. Raises
    RetryableCommitConflictError if a row is touched by both, before anything is written.
    """
    operation = ours.operation
    assert isinstance(operation, tx.Delete | tx.Update)
    updated = updated_fragments(operation)
    merged = {fragment_id: _merged(onto, fragment_id, affected_rows[fragment_id]) for fragment_id in fragment_ids}
    emptied: list[int] = []
    for fragment_id, (current, vector) in sorted(merged.items()):
        superseded = _own_path(onto, fragment_id, updated.pop(fragment_id), new_paths)
        if superseded is not None:
            # Written for a version in between that was not taken: nothing refers to it.
            onto.store.delete([superseded])
            new_paths.remove(superseded)
        if current.physical_rows is not None and len(vector) >= current.physical_rows:
            emptied.append(fragment_id)
            continue
        file = deletions.write(onto.store, onto.base, fragment_id, onto.version, vector, force_bitmap=True)
        new_paths.append(onto.deletion_file_path(fragment_id, file))
        updated[fragment_id] = replace(current, deletion_file=file)
    return replace(ours, read_version=onto.version, operation=_repointed(operation, updated, emptied))


def _own_path(onto: TableVersion, fragment_id: int, fragment: Fragment, new_paths: list[str]) -> str | None:
    """The deletion file of our record if it was written by an earlier rebase."""
    if fragment.deletion_file is None:
        return None
    path = onto.deletion_file_path(fragment_id, fragment.deletion_file)
    return path if path in new_paths else None


def _merged(onto: TableVersion, fragment_id: int, rows: DeletionVector) -> tuple[Fragment, DeletionVector]:
    """The fragment as it is in `onto`, and its deleted rows together with ours."""
    current = onto.manifest.fragments.by_id(fragment_id)
    if current is None:
        raise _again(onto, fragment_id, "was removed")
    deleted = deletions.read(onto, current) or deletions.EMPTY
    if deleted.intersects(rows):
        raise _again(onto, fragment_id, "has rows that both change")
    return current, deleted.union(rows)


def rebase_index(ours: Transaction, modified_fragments: Iterable[int]) -> Transaction:
    """Take fragments whose indexed values changed out of the coverage of the indices that `ours` creates."""
    operation = ours.operation
    assert isinstance(operation, tx.CreateIndex)
    gone = pyroaring.BitMap(modified_fragments)
    indices = []
    for index in operation.new_indices:
        covered = covered_fragments(index.fragment_bitmap, index.name)
        indices.append(index if covered is None else replace(index, fragment_bitmap=(covered - gone).serialize()))
    return replace(ours, operation=replace(operation, new_indices=tuple(indices)))


def _repointed(
    operation: tx.Delete | tx.Update, updated: Mapping[int, Fragment], emptied: list[int]
) -> tx.Delete | tx.Update:
    fragments = tuple(updated[fragment_id] for fragment_id in sorted(updated))
    if isinstance(operation, tx.Delete):
        deleted = (*operation.deleted_fragment_ids, *emptied)
        return replace(operation, updated_fragments=fragments, deleted_fragment_ids=deleted)
    removed = (*operation.removed_fragment_ids, *emptied)
    return replace(operation, updated_fragments=fragments, removed_fragment_ids=removed)


def _again(onto: TableVersion, fragment_id: int, what: str) -> RetryableCommitConflictError:
    return RetryableCommitConflictError(
        f"Retryable commit conflict: fragment {fragment_id} {what} up to version {onto.version}; run the operation"
        " again on that version",
        fragments=(fragment_id,),
        version=onto.version,
    )
