"""Clock for the age of a listing, which decides whether a commit must list versions again."""

from __future__ import annotations

import time


def seconds() -> float:
    """Return seconds since an arbitrary point, including the time that the machine was suspended.

    `time.monotonic` does not advance while a Linux machine is suspended, so an old listing would appear to be recent.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
