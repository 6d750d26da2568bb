"""Detection of waiting writers that this process has not lost to yet.

On an object store, the winner of a race can have its next version ready before the losers have read the last one. It
may win dozens of times in a row without a loss that would reveal the other writers. Some wins are therefore followed
by a listing of `_transactions`: a writer stores its transaction file there before it publishes, under a name that
starts with the version it was built on.

    wins in a row   1 2 3 . . . . . 9 . . . 21 . . . 45 . . . 93 . . . 157 . . .  then every 64th
    listings            ^           ^       ^        ^        ^        ^          one request each, for one name more
                                                                                  than there were wins since the last

A listed transaction may belong to a writer that has died. Then the next commits wait a little without need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import LanceError
from lancetable.format.paths import TRANSACTIONS_DIR, join, parse_transaction_name, transaction_name

if TYPE_CHECKING:
    from lancetable.format.transaction import Transaction
    from lancetable.store.base import ObjectStore

__all__ = ["WinStreak"]

_FIRST_LISTING = 3
_MAX_WINS_BETWEEN_LISTINGS = 64
_MAX_PAUSE_SECONDS = 2.0  # a process that pauses longer between two commits does not block other writers


class WinStreak:
    """Consecutive wins of one process on one table. Concurrent updates by threads may overwrite each other."""

    __slots__ = ("_last_win_at", "_list_after", "_names", "_since", "_version")

    def __init__(self) -> None:
        self._list_after = _FIRST_LISTING
        self._begin(0)
        self._last_win_at = 0.0

    def _begin(self, version: int) -> None:
        self._since = self._version = version
        self._names: set[str] = set()

    def reset(self) -> None:
        """End the streak after a commit of another writer."""
        self._list_after = _FIRST_LISTING
        self._begin(0)

    def won(self, transaction: Transaction, version: int, now: float) -> None:
        """Record that `transaction` became `version` at its first attempt."""
        if transaction.read_version != self._version or now - self._last_win_at > _MAX_PAUSE_SECONDS:
            self.reset()
            self._begin(transaction.read_version)
        self._names.add(transaction_name(transaction.read_version, transaction.uuid))
        self._version, self._last_win_at = version, now

    def finds_rivals(self, store: ObjectStore, base: str, read_version: int, now: float) -> bool:
        """Return True if a listing is due at the start of a commit and shows transactions of other writers.

        `read_version` is the read version of the commit. If it is not the last version won, no listing is needed,
        because the commit meets the other writers anyway.
        """
        if len(self._names) < self._list_after or read_version != self._version:
            return False
        names, since = self._names, self._since
        self._begin(self._version)
        if now - self._last_win_at > _MAX_PAUSE_SECONDS or not store.capabilities.ordered_list:
            return False
        self._list_after = min(self._list_after * 2, _MAX_WINS_BETWEEN_LISTINGS)
        try:
            listed = store.list_names(join(base, TRANSACTIONS_DIR), start_after=f"{since}-", limit=len(names) + 1)
        except LanceError:
            return False  # the listing is optional; if the store fails, the commit raises the error
        for meta in listed:
            parsed = parse_transaction_name(meta.name)
            # A waiting writer has not seen a version newer than the last one won; names beyond it are ignored.
            if parsed is not None and since <= parsed[0] <= read_version and meta.name not in names:
                self.reset()
                return True
        return False
