"""Idempotent commits: an application numbers its changes, and each change is committed at most once.

    transaction properties    lancetable.txn.app = "etl", lancetable.txn.version = "7"     the change to commit
    config of the manifest    lancetable.txn.etl = "7"                                     the last committed change

The commit that carries the properties also sets the config key. Every writer carries config over to later versions, so
the newest manifest shows whether change 7 was committed, however long ago. Numbers must increase. The same or a lower
number is rejected, even if both changes are committed concurrently, because each attempt checks the key of the newest
version before it publishes. A restore of an older version resets the key together with the rows.

The batches of a stream are numbered without gaps. A batch that does not follow the recorded one therefore shows that
table and checkpoint are out of sync.
"""

from __future__ import annotations

from collections.abc import Mapping

from lancetable.errors import AlreadyExistsError, InvalidInputError, InvalidOperationError
from lancetable.format.transaction import Transaction
from lancetable.proto import table_pb2

APP_PROPERTY = "lancetable.txn.app"
NUMBER_PROPERTY = "lancetable.txn.version"
_PREFIX = "lancetable.txn."


def properties_of(app: str, number: int) -> dict[str, str]:
    """Return the transaction properties of a change. Raises InvalidInputError for an empty name or negative number."""
    if not app:
        raise InvalidInputError("the application name is empty; pass a name that identifies the application")
    if number < 0:
        raise InvalidInputError(f"invalid change number {number}; numbers start at 0")
    return {APP_PROPERTY: app, NUMBER_PROPERTY: str(number)}


def config_key(app: str) -> str:
    """Return the config key that stores the number of the application's last change."""
    return _PREFIX + app


def last_number(config: Mapping[str, str], app: str) -> int | None:
    """Return the number of the application's last change, None if there is none or the key is not a number."""
    text = config.get(config_key(app), "")
    return int(text) if text.isascii() and text.isdigit() else None


def is_done(config: Mapping[str, str], txn: tuple[str, int] | None) -> bool:
    """Return True if the change, an application and its number, or a later one of the application was made."""
    last = None if txn is None else last_number(config, txn[0])
    return txn is not None and last is not None and last >= txn[1]


def is_next_batch(config: Mapping[str, str], app: str, number: int, *, uri: str, remedy: str) -> bool:
    """Compare a batch with the last one that a table records, for an application that numbers without gaps.

    Parameters
    ----------
    config
        Config of the newest version of the table.
    app, number
        The application and the number of its batch. The first batch is 0.
    uri, remedy
        For the message: the address of the table, and the setting that accepts the table as it is.

    Returns
    -------
    bool
        True for the batch after the last recorded one, False for a repeat of the last recorded one.

    Raises
    ------
    InvalidOperationError
        If the batch is neither: then batches are missing from the table, or the batch would be added twice.
    """
    last = last_number(config, app)
    expected = 0 if last is None else last + 1
    if number in (last, expected):
        return number == expected
    if number > expected:
        recorded = "no batch" if last is None else f"batch {last} as the last one"
        left_out = f"batch {expected}" if number == expected + 1 else f"batches {expected} to {number - 1}"
        raise InvalidOperationError(
            f"batch {number} is not the next batch: {uri} records {recorded} of {app!r}. The table was removed,"
            " replaced or restored since, or the checkpoint belongs to another table or another name. Start again with"
            f" a new checkpoint, or pass {remedy} to accept the table as it is; the rows of {left_out} are then not"
            " read again"
        )
    raise InvalidOperationError(
        f"batch {number} is not the next batch: {uri} already records batch {last} of {app!r}. The checkpoint is new,"
        " was restored, or belongs to another stream of the same name. Use the checkpoint that the table was written"
        f" with, give a new stream another name, or pass {remedy} to continue from this checkpoint; rows of batches"
        f" {number} to {last} that are read again are then added again"
    )


def check_not_committed(config: Mapping[str, str], transaction: Transaction) -> None:
    """Raise AlreadyExistsError if the config records this change, or a later one of the application."""
    requested = _requested(transaction)
    if requested is not None and is_done(config, requested):
        app, number = requested
        last = last_number(config, app)
        raise AlreadyExistsError(
            f"change {number} of application {app!r} is already committed, the last one is {last};"
            " skip it, or use a higher number"
        )


def record_change(message: table_pb2.Manifest, transaction: Transaction) -> None:
    """Record the number of the change in the config of the new manifest."""
    requested = _requested(transaction)
    if requested is not None:
        message.config[config_key(requested[0])] = str(requested[1])


def _requested(transaction: Transaction) -> tuple[str, int] | None:
    app, text = transaction.properties.get(APP_PROPERTY), transaction.properties.get(NUMBER_PROPERTY)
    return None if not app or text is None or not (text.isascii() and text.isdigit()) else (app, int(text))
