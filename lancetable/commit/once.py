"""Changes that an application numbers, so that each of them is made once, however often it is tried.

    transaction properties    lancetable.txn.app = "etl", lancetable.txn.version = "7"     what was asked
    config of the manifest    lancetable.txn.etl = "7"                                     what was done last

The commit that carries the properties also sets the config key. Every writer carries config over to later versions, so
one look at the newest manifest tells whether number 7 was there, however long ago. Numbers must rise: whoever comes
with the same or a lower one is refused, also when both committed at the same time, since the later one sees the other's
key before it publishes. Restoring an older version takes back the key together with the rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from lancetable.errors import AlreadyExistsError, InvalidInputError
from lancetable.format.transaction import Transaction
from lancetable.proto import table_pb2

__all__ = ["APP_PROPERTY", "NUMBER_PROPERTY", "is_done", "last_number", "note", "properties_of", "refuse_repeat"]

APP_PROPERTY = "lancetable.txn.app"
NUMBER_PROPERTY = "lancetable.txn.version"
_PREFIX = "lancetable.txn."


def properties_of(app: str, number: int) -> dict[str, str]:
    """The transaction properties of change `number` of an application. Raises InvalidInputError."""
    if not app:
        raise InvalidInputError("an application that numbers its changes needs a name")
    if number < 0:
        raise InvalidInputError(f"changes are numbered from 0, not {number}")
    return {APP_PROPERTY: app, NUMBER_PROPERTY: str(number)}


def last_number(config: Mapping[str, str], app: str) -> int | None:
    """The number of the application's last change, None if there was none or somebody else set the key."""
    text = config.get(_PREFIX + app, "")
    return int(text) if text.isascii() and text.isdigit() else None


def is_done(config: Mapping[str, str], txn: tuple[str, int] | None) -> bool:
    """Whether the change, an application and its number, or a later one of it, was made."""
    last = None if txn is None else last_number(config, txn[0])
    return txn is not None and last is not None and last >= txn[1]


def refuse_repeat(config: Mapping[str, str], transaction: Transaction) -> None:
    """Raises AlreadyExistsError if the config says that this change, or a later one, was made."""
    asked = _asked(transaction)
    if asked is None:
        return
    if is_done(config, asked):
        app, number = asked
        last = last_number(config, app)
        raise AlreadyExistsError(f"change {number} of application {app!r} was committed before; its last one is {last}")


def note(message: table_pb2.Manifest, transaction: Transaction) -> None:
    """Set the config key in the manifest that the transaction becomes."""
    asked = _asked(transaction)
    if asked is not None:
        message.config[_PREFIX + asked[0]] = str(asked[1])


def _asked(transaction: Transaction) -> tuple[str, int] | None:
    app, text = transaction.properties.get(APP_PROPERTY), transaction.properties.get(NUMBER_PROPERTY)
    return None if not app or text is None or not (text.isascii() and text.isdigit()) else (app, int(text))
