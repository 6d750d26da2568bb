"""Commits that change the string maps of a table: config and metadata."""

from __future__ import annotations

from collections.abc import Mapping

from lancetable.commit.commit_loop import commit_transaction
from lancetable.errors import ColumnNotFoundError, RetryableCommitConflictError
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction, UpdateMap
from lancetable.table.version import TableVersion, latest

Changes = Mapping[str, "str | None"]


def update_config(version: TableVersion, changes: Changes, *, replace: bool = False) -> TableVersion:
    """Change the config of the table. A value of None deletes the key; `replace` clears the map first."""
    return _commit(version, tx.UpdateConfig(config=UpdateMap(changes, replace)))


def update_table_metadata(version: TableVersion, changes: Changes, *, replace: bool = False) -> TableVersion:
    """Change the metadata of the table. A value of None deletes the key; `replace` clears the map first."""
    return _commit(version, tx.UpdateConfig(table_metadata=UpdateMap(changes, replace)))


def update_schema_metadata(version: TableVersion, changes: Changes, *, replace: bool = False) -> TableVersion:
    """Change the metadata of the schema. A value of None deletes the key; `replace` clears the map first."""
    return _commit(version, tx.UpdateConfig(schema_metadata=UpdateMap(changes, replace)))


def update_field_metadata(
    version: TableVersion, changes: Mapping[str, Changes], *, replace: bool = False
) -> TableVersion:
    """Change the metadata of fields, given by their paths; see `update_config`. Raises ColumnNotFoundError."""
    by_id: dict[int, UpdateMap] = {}
    for path, field_changes in changes.items():
        field = version.schema.field(path)
        if field is None:
            available = [version.schema.path_of(nested.id) for nested in version.schema.walk()]
            raise ColumnNotFoundError(f"Field '{path}' not found.\nAvailable fields: {available}", column=path)
        by_id[field.id] = UpdateMap(field_changes, replace)
    return _commit_once(version, tx.UpdateConfig(field_metadata=by_id))


def _commit(version: TableVersion, operation: tx.UpdateConfig) -> TableVersion:
    """Commit a change that can be applied to any version; retry once on the newest version."""
    try:
        return _commit_once(version, operation)
    except RetryableCommitConflictError as error:
        if getattr(error, "operation", None) is not None:
            raise  # a concurrent change conflicts with this one
    # Versions in between were cleaned up; their changes are part of the newest version.
    return _commit_once(latest(version), operation)


def _commit_once(version: TableVersion, operation: tx.UpdateConfig) -> TableVersion:
    version.check_writable()
    return commit_transaction(version, Transaction.create(version.version, operation))
