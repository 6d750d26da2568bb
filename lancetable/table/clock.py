"""Clock for the age of a listing, which decides whether a commit must list versions again."""

from __future__ import annotations

import time


def seconds() -> float:
    """Return seconds since an arbitrary point, including the time that the machine was suspended.

    `time.monotonic` stands still while a Linux machine is suspended, so that a listing from before would count as new.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
