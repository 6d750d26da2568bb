"""Exactly-once object creation over a network that loses replies.

A client sends a conditional request and classifies the reply. This module turns replies into a `PutOutcome`, with the
same rules for all clients:

    CREATED    2xx                                       WON
    TAKEN      the object exists (409, 412)              read the object
    AMBIGUOUS  timeout, broken connection, 5xx           read the object
    error      4xx: nothing was stored                   raised by the client, but UNKNOWN after an AMBIGUOUS reply

    object read back
      our bytes       WON      a reply was lost, and a repeat of the request (by the client or a proxy) found our object
      other bytes     LOST
      no object       the request is sent again: after TAKEN, a competing request was in flight (409)
      read failed     UNKNOWN

The bytes identify the writer: a manifest names its transaction, and transaction UUIDs are unique.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from lancetable.errors import LanceError
from lancetable.store.base import PutOutcome

if TYPE_CHECKING:
    from lancetable.store.base import OnExisting

# HTTP statuses after which the object is certainly not stored: the request was invalid or not permitted.
REFUSALS = frozenset((400, 401, 403, 404, 405, 411, 413, 416, 501))

_ATTEMPTS = 6
_READS = 3
_FIRST_DELAY_SECONDS = 0.02
_MAX_DELAY_SECONDS = 1.0


class Reply(Enum):
    """A server's reply to a conditional request, as classified by the client."""

    CREATED = "created"
    TAKEN = "taken"
    AMBIGUOUS = "ambiguous"


def create_exclusively(
    send: Callable[[], Reply],
    read_back: Callable[[], bytes | memoryview | None],
    data: bytes | memoryview,
    *,
    on_existing: OnExisting | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> PutOutcome:
    """Send a conditional create until its outcome is known.

    Parameters
    ----------
    send
        Sends the request once. Raises LanceError if nothing was stored and a retry cannot succeed.
    read_back
        Returns the existing object, or None if the object does not exist. Raises LanceError if the read fails.
    data
        The bytes that `send` writes.
    on_existing
        Called with the existing object if other bytes than `data` were read back.
    sleep
        Waits the given number of seconds between attempts.

    Returns
    -------
    PutOutcome
        UNKNOWN if the object cannot be read back, or does not exist after the last attempt.

    Raises
    ------
    LanceError
        If `send` raises it before any reply was ambiguous.
    """
    ambiguous = False
    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(_delay_seconds(attempt))
        try:
            reply = send()
        except LanceError:
            if ambiguous:
                return PutOutcome.UNKNOWN
            raise
        if reply is Reply.CREATED:
            return PutOutcome.WON
        ambiguous = ambiguous or reply is Reply.AMBIGUOUS
        if not data and not ambiguous:
            return PutOutcome.LOST  # empty objects of different writers are equal, so reading back proves nothing
        readable, existing = _read_with_retries(read_back, sleep)
        if not readable:
            return PutOutcome.UNKNOWN
        if existing is None:
            continue
        if existing == data:
            return PutOutcome.WON
        if on_existing is not None:
            on_existing(existing)
        return PutOutcome.LOST
    # The object does not exist, but an earlier request may still be applied.
    return PutOutcome.UNKNOWN


def _read_with_retries(
    read_back: Callable[[], bytes | memoryview | None], sleep: Callable[[float], None]
) -> tuple[bool, bytes | memoryview | None]:
    """Return whether a read succeeded, and its result."""
    for attempt in range(_READS):
        if attempt:
            sleep(_delay_seconds(attempt))
        try:
            return True, read_back()
        except LanceError:
            continue
    return False, None


def _delay_seconds(attempt: int) -> float:
    """Return a random delay that grows by a factor of 4 per attempt."""
    longest: float = min(_FIRST_DELAY_SECONDS * 4.0**attempt, _MAX_DELAY_SECONDS)
    return random.uniform(longest / 4, longest)
