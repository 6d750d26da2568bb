"""Creating an object exactly once over a network that loses answers.

A client sends the condition and says what came back; what that means is decided here, once for all clients.

    created                                     WON
    taken      the object was there             read it: our bytes -> WON (an answer was lost, and the request repeated
                                                by the client or by a proxy met our own object), others -> LOST,
                                                none -> send again: a rival's request was under way (409)
    doubtful   timeout, broken connection, 5xx  read it: our bytes -> WON, others -> LOST, none -> send again,
                                                no answer -> UNKNOWN
    refused    4xx: nothing was stored          the client raises, but after a doubtful answer it is UNKNOWN

Bytes tell writers apart: a manifest names its transaction, whose uuid is unlike any other.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from enum import Enum

from lancetable.errors import LanceError
from lancetable.store.base import PutOutcome

__all__ = ["Reply", "create_exclusively", "note_met", "take_met"]

_ATTEMPTS = 6
_READS = 3
_FIRST_WAIT_SECONDS = 0.02
_LONGEST_WAIT_SECONDS = 1.0


class _Met(threading.local):
    data: bytes | memoryview | None = None


_met = _Met()


def note_met(data: bytes | memoryview | None) -> None:
    """Keep the bytes that made this thread's last create lose, for `take_met`; None where nobody read them."""
    _met.data = data


def take_met() -> bytes | memoryview | None:
    """The object that this thread's last create met, once. It had to be read to know that it is not ours, and who
    lost goes on from it without asking for it again. None where the create did not lose, or the store knew without
    reading.
    """
    found, _met.data = _met.data, None
    return found


class Reply(Enum):
    """What a server said to a conditional request, as far as it could be heard."""

    CREATED = "created"
    TAKEN = "taken"
    DOUBTFUL = "doubtful"


def create_exclusively(
    send: Callable[[], Reply],
    read_back: Callable[[], bytes | memoryview | None],
    data: bytes | memoryview,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> PutOutcome:
    """Send a conditional create until its outcome is known, or give up with UNKNOWN.

    `send` raises LanceError where nothing was stored and another try is useless. `read_back` gives the object that is
    there now, None where there is none, and raises LanceError where nobody can tell.
    """
    doubtful = False
    note_met(None)
    for attempt in range(_ATTEMPTS):
        if attempt:
            sleep(_wait(attempt))
        try:
            reply = send()
        except LanceError:
            if doubtful:
                return PutOutcome.UNKNOWN
            raise
        if reply is Reply.CREATED:
            return PutOutcome.WON
        doubtful = doubtful or reply is Reply.DOUBTFUL
        if not data and not doubtful:
            return PutOutcome.LOST  # no bytes tell writers apart where there are none
        readable, found = _read(read_back, sleep)
        if not readable:
            return PutOutcome.UNKNOWN
        if found is not None and found != data:
            note_met(found)
            return PutOutcome.LOST
        if found is not None:
            return PutOutcome.WON
    # Nothing there after all: an earlier request may still arrive.
    return PutOutcome.UNKNOWN


def _read(
    read_back: Callable[[], bytes | memoryview | None], sleep: Callable[[float], None]
) -> tuple[bool, bytes | memoryview | None]:
    for attempt in range(_READS):
        if attempt:
            sleep(_wait(attempt))
        try:
            return True, read_back()
        except LanceError:
            continue
    return False, None


def _wait(attempt: int) -> float:
    longest: float = min(_FIRST_WAIT_SECONDS * 4.0**attempt, _LONGEST_WAIT_SECONDS)
    return random.uniform(longest / 4, longest)
