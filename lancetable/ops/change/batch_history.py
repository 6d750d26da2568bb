"""Transaction history of a table since the last numbered batch of an application.

`commit/idempotency.py` records the number of the last batch in the config of the table. An overwrite keeps the config,
so the number does not show whether the rows of earlier batches were replaced; the later transactions do. After a
restore, the history continues with the restored version, because the table contains the rows of that version.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from lancetable import telemetry
from lancetable.commit.idempotency import APP_PROPERTY, NUMBER_PROPERTY, config_key, is_next_batch
from lancetable.errors import InvalidOperationError
from lancetable.format import transaction as tx
from lancetable.format.transaction import Transaction
from lancetable.table import transactions
from lancetable.table.version import TableVersion

logger = logging.getLogger(__name__)

_MAX_PARALLEL_READS = 16


def follows(version: TableVersion, app: str, batch: int, *, remedy: str) -> bool:
    """Return True if a batch is the next one after the last recorded batch, False if it is the last recorded batch.

    Raises InvalidOperationError for any other batch, and if all rows were replaced since the last recorded batch.
    `remedy` names, in the message, the setting with which the caller accepts the table as it is.
    """
    if not is_next_batch(version.manifest.config, app, batch, uri=version.uri, remedy=remedy):
        return False
    replaced = replaced_since(version, app)
    if replaced is None:
        return True
    raise InvalidOperationError(
        f"batch {batch} is not the next batch: version {replaced} of {version.uri} replaced all rows after batch"
        f" {batch - 1} of {app!r}. Start again with a new checkpoint, or pass {remedy} to accept the table as it is;"
        " the rows of earlier batches are then not read again"
    )


def replaced_since(version: TableVersion, app: str) -> int | None:
    """Return the version that replaced all rows after the application's last change.

    Returns the newest such version, or None if there is none or the config records no change of the application. If a
    version in between was cleaned up or cannot be read, logs a warning and returns None.
    """
    recorded = version.manifest.config.get(config_key(app))
    if recorded is None:
        return None
    for number, transaction in _history(version):
        if transaction is None or isinstance(transaction.operation, tx.UnknownOperation):
            logger.warning(
                "%s: version %d was cleaned up or cannot be read, so whether the table was overwritten after batch %s"
                " of %s is not known; keep versions longer than the pause between two batches",
                version.uri,
                number,
                recorded,
                app,
                extra=telemetry.fields("stream.history_unknown", version.uri, version=number, app=app),
            )
            return None
        # A clone or a branch inherits the rows together with the config.
        if _records(transaction, app, recorded) or isinstance(transaction.operation, tx.Clone):
            return None
        if isinstance(transaction.operation, tx.Overwrite):
            return number
    return None


def last_properties(version: TableVersion, app: str) -> Mapping[str, str]:
    """Return the transaction properties of the commit that recorded the application's last change.

    Empty if that commit is not found.
    """
    recorded = version.manifest.config.get(config_key(app))
    if recorded is not None:
        for _, transaction in _history(version):
            if transaction is None:
                break
            if _records(transaction, app, recorded):
                return transaction.properties
    return {}


def _records(transaction: Transaction, app: str, recorded: str) -> bool:
    """Return True if a transaction recorded the number of the application, with its rows or as a change of config."""
    properties, operation = transaction.properties, transaction.operation
    if properties.get(APP_PROPERTY) == app and properties.get(NUMBER_PROPERTY) == recorded:
        return True
    if isinstance(operation, tx.UpdateConfig):
        return operation.config is not None and operation.config.entries.get(config_key(app)) == recorded
    return isinstance(operation, tx.Overwrite) and operation.config_upsert.get(config_key(app)) == recorded


def _history(version: TableVersion) -> Iterator[tuple[int, Transaction | None]]:
    """Yield the number and the transaction of each version that led to this one, newest first.

    The iteration ends after version 1, or after the first version that is missing or has no transaction; the
    transaction of that version is None.
    """
    store, base = version.store, version.base
    number, transaction = version.version, transactions.read(store, base, version.file)
    known: dict[int, Transaction | None] = {}
    while True:
        yield number, transaction
        if transaction is None:
            return
        operation = transaction.operation
        number = operation.version if isinstance(operation, tx.Restore) else number - 1
        if number < 1:
            return
        if number not in known:
            first = max(0, number - _MAX_PARALLEL_READS)
            locations = [
                location for location in version.handler.history(store, base, first) if location.version <= number
            ]
            known = {file.location.version: read for file, read in transactions.read_since(store, base, locations)}
        transaction = known.get(number)
