"""Rows that one version added to its predecessor, for readers that follow a table."""

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
    """Return the ids of the fragments that a version added, or a description of its change if it is not a pure append.

    The ids are empty if the version changed no row.
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
    """Return the `count` newest fragments. Ids only increase, and a commit assigns them to its new fragments last."""
    ids = sorted(fragment.id for fragment in version.manifest.fragments)
    return frozenset(ids[len(ids) - count :]) if count else frozenset()
