"""Rows that a version appended, for readers that process a table version by version."""

from __future__ import annotations

from lancetable.format import transaction as tx
from lancetable.table import transactions
from lancetable.table.version import TableVersion

_NO_ROWS = (
    tx.Rewrite,
    tx.ReserveFragments,
    tx.Merge,
    tx.Project,
    tx.UpdateConfig,
    tx.CreateIndex,
    tx.UpdateBases,
    tx.UpdateMemWalState,
)


def appended_by(version: TableVersion) -> frozenset[int] | str:
    """Return the ids of the fragments that a version appended, or a description of any other change.

    The set is empty if the version changed no row.
    """
    transaction = transactions.read(version.store, version.base, version.file)
    if transaction is None:
        return "has no transaction file that records its change"
    operation = transaction.operation
    if isinstance(operation, _NO_ROWS):
        return frozenset()
    if isinstance(operation, tx.Append):
        return _last_fragments(version, len(operation.fragments))
    if isinstance(operation, tx.Overwrite):
        if version.version == 1:
            return frozenset(fragment.id for fragment in version.manifest.fragments)
        return "overwrote the table"
    if isinstance(operation, tx.Update):
        if operation.updated_fragments or operation.removed_fragment_ids:
            return "updated rows"
        return _last_fragments(version, len(operation.new_fragments))
    if isinstance(operation, tx.Delete):
        if operation.updated_fragments or operation.deleted_fragment_ids:
            return "deleted rows"
        return frozenset()
    return f"is a {type(operation).__name__}"


def _last_fragments(version: TableVersion, count: int) -> frozenset[int]:
    """Return the ids of the `count` newest fragments, which are the largest, because ids only increase."""
    ids = sorted(fragment.id for fragment in version.manifest.fragments)
    return frozenset(ids[len(ids) - count :]) if count else frozenset()
