"""Appends that many versions have overtaken, beside writers of other libraries: who comes later lets them pass.

Other writers give up when they have not won within a time, 30 seconds as a rule, and wait for longer after each loss.
Ours hold out for longer and win more often, so beside them an append of another library may fail though nothing
conflicts with it. Whoever is about to commit can see it: its transaction has been in `_transactions` under the version
that it was made on, and none of the versions since is its own.

    begin a commit ──> has another library committed here lately? ──> one request: names in `_transactions`
                  made on a version before the last 16 (three times as many as is common), not committed, an append?
                                                 └──> wait, look who has committed; after 30 s it counts as given up

Only before its first attempt does anybody wait, when no transaction of its own is there to be seen: so nobody waits
for somebody who waits. What counts is what this process itself has seen: of a transaction older than that it cannot
tell whether it was committed. Other operations are not waited for, since one that failed of a conflict may lie there
for good, and has no reason to be committed; an append that nobody will commit costs each writer that time once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import median_high
from typing import TYPE_CHECKING

from lancetable.errors import LanceError
from lancetable.format.paths import TRANSACTIONS_DIR, join, parse_transaction_name, transaction_path
from lancetable.format.transaction import Append, Transaction

if TYPE_CHECKING:
    from lancetable.store.base import ObjectStore

__all__ = ["Overtaken"]

_LEAST_VERSIONS = 16  # that overtook it; fewer are common
_TIMES_THE_COMMON = 3
_REMEMBERED = 256  # versions
_COMMON_OF = 64  # of them
_LATELY_SECONDS = 10.0
_GIVEN_UP_SECONDS = 30.0
_POLL_SECONDS = 0.5  # on average
_LARGEST_BYTES = 64 * 1024  # of a transaction that is read
_READ_AT_MOST = 8  # of them in one look
_LISTED_AT_MOST = 1000  # names, what one request gives


class Overtaken:
    """What one process has seen of one table. Threads may lose an update to each other."""

    __slots__ = ("_first_seen", "_last", "_other_seen_at", "_passed", "_since")

    def __init__(self) -> None:
        self._other_seen_at: float | None = None
        # When each waiting append was seen first, by uuid; None for what is not waited for.
        self._first_seen: dict[str, float | None] = {}
        self._begin(0)

    def _begin(self, version: int) -> None:
        """All transactions after `version` are known from now on."""
        self._since = self._last = version
        self._passed: dict[str, int] = {}  # uuid -> by how many versions it came after the one it was made on

    def opened(self, version: int, *, by_other: bool, now: float) -> None:
        """A handle stands at `version`, whose predecessors it may not have read."""
        if version > self._last:
            self._begin(version)
        if by_other:
            self._other_seen_at = now

    def committed(self, version: int, transaction: Transaction | None, *, by_other: bool, now: float) -> None:
        """`version` was made by `transaction`; None if that cannot be read."""
        if by_other:
            self._other_seen_at = now
        if version <= self._last:
            return
        if version != self._last + 1 or transaction is None:
            self._begin(version)
            return
        self._last = version
        self._passed[transaction.uuid] = version - transaction.read_version
        if version - self._since > _REMEMBERED:
            self._since += 1
            self._passed.pop(next(iter(self._passed), ""), None)

    def let_pass(
        self,
        store: ObjectStore,
        base: str,
        catch_up: Callable[[], object],
        longest_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        draw: Callable[[], float] = random.random,
    ) -> float:
        """Wait for appends that were overtaken, if there are any; for at most `longest_s`. Returns for how long.

        `catch_up` reads the versions that are new and tells of them; what it raises passes through.
        """
        begun_at = clock()
        until, waited = begun_at + min(longest_s, _GIVEN_UP_SECONDS), 0.0
        while (now := clock()) < until and (waiting := self._waiting(store, base, now)):
            while waiting and now < until:
                sleep((0.5 + draw()) * _POLL_SECONDS)
                catch_up()
                now = clock()
                waited = now - begun_at
                waiting = {uuid for uuid in waiting if uuid not in self._passed and self._is_waited_for(uuid, now)}
        return waited

    def _waiting(self, store: ObjectStore, base: str, now: float) -> set[str]:
        """The uuids of the appends that were overtaken; none where it is not worth a look."""
        passed, last = dict(self._passed), self._last
        if self._other_seen_at is None or now - self._other_seen_at > _LATELY_SECONDS or not passed:
            return set()
        newest = last - max(_LEAST_VERSIONS, _TIMES_THE_COMMON * median_high(list(passed.values())[-_COMMON_OF:]))
        if newest < self._since or not store.capabilities.ordered_list:
            return set()
        try:
            listed = store.list_names(
                join(base, TRANSACTIONS_DIR), start_after=f"{self._since}-", limit=_LISTED_AT_MOST, detail=True
            )
        except LanceError:
            return set()  # a courtesy; the commit itself will say what is wrong
        known, found, unread = self._first_seen, {}, _READ_AT_MOST
        for meta in listed:
            read_version, uuid = parse_transaction_name(meta.name) or (-1, "")
            if not self._since <= read_version <= newest or uuid in passed:
                continue
            if uuid not in known:
                if unread == 0:
                    continue
                unread -= 1
                small = (meta.size_bytes or 0) <= _LARGEST_BYTES
                found[uuid] = now if small and _is_append(store, transaction_path(base, meta.name)) else None
            else:
                found[uuid] = known[uuid]
        self._first_seen = found
        return {uuid for uuid in found if self._is_waited_for(uuid, now)}

    def _is_waited_for(self, uuid: str, now: float) -> bool:
        first_seen = self._first_seen.get(uuid)
        return first_seen is not None and now - first_seen < _GIVEN_UP_SECONDS


def _is_append(store: ObjectStore, path: str) -> bool:
    try:
        return isinstance(Transaction.from_bytes(store.read_all(path), path).operation, Append)
    except LanceError:
        return False
