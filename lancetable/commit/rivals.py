"""Whether others try to commit, too, though none of them has won lately.

Over a network whoever has just won has the next version ready before those who lost have read the last one, and may win
dozens of times in a row without a loss that would tell of the others. So some of these wins are followed by a look at
`_transactions`: whoever tries to commit has put a transaction there before, named after the version it was made on.

    wins in a row   1 2 3 . . . . . 9 . . . 21 . . . 45 . . . 93 . . . 157 . . .  then each 64th
    looks               ^           ^       ^        ^        ^        ^          one request, for a name more than
                                                                                  there were wins since the last look

What is found may be of a writer that has died: then the next commits wait a little for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import LanceError
from lancetable.format.paths import TRANSACTIONS_DIR, join, parse_transaction_name, transaction_name

if TYPE_CHECKING:
    from lancetable.format.transaction import Transaction
    from lancetable.store.base import ObjectStore

__all__ = ["Streak"]

_FIRST_LOOK = 3
_AT_MOST = 64  # wins between two looks
_SOON_SECONDS = 2.0  # between two commits; whoever waits for longer is in nobody's way


class Streak:
    """The wins of one process at one table, one right behind the other. Threads may lose an update to each other."""

    __slots__ = ("_ended_at", "_look_after", "_names", "_since", "_version")

    def __init__(self) -> None:
        self._look_after = _FIRST_LOOK
        self._begin(0)
        self._ended_at = 0.0

    def _begin(self, version: int) -> None:
        self._since = self._version = version
        self._names: set[str] = set()

    def end(self) -> None:
        """Somebody else was in the way."""
        self._look_after = _FIRST_LOOK
        self._begin(0)

    def won(self, transaction: Transaction, version: int, now: float) -> None:
        """`transaction` became `version` at its first attempt."""
        if transaction.read_version != self._version or now - self._ended_at > _SOON_SECONDS:
            self.end()
            self._begin(transaction.read_version)
        self._names.add(transaction_name(transaction.read_version, transaction.uuid))
        self._version, self._ended_at = version, now

    def meets_rivals(self, store: ObjectStore, base: str, read_version: int, now: float) -> bool:
        """Look for transactions of others, if it is time to, at the beginning of a commit.

        It was made on `read_version`. Where that is not the last one won, the commit will meet others anyway.
        """
        if len(self._names) < self._look_after or read_version != self._version:
            return False
        names, since = self._names, self._since
        self._begin(self._version)
        if now - self._ended_at > _SOON_SECONDS or not store.capabilities.ordered_list:
            return False
        self._look_after = min(self._look_after * 2, _AT_MOST)
        try:
            listed = store.list_names(join(base, TRANSACTIONS_DIR), start_after=f"{since}-", limit=len(names) + 1)
        except LanceError:
            return False  # a courtesy; the commit itself will say what is wrong
        for meta in listed:
            parsed = parse_transaction_name(meta.name)
            # Whoever waits has seen nothing newer than what was won; a name beyond that is somebody's mischief.
            if parsed is not None and since <= parsed[0] <= read_version and meta.name not in names:
                self.end()
                return True
        return False
