"""Parser for durations such as `14days` and `1h 30m`."""

from __future__ import annotations

import re
from datetime import timedelta

from lancetable.errors import InvalidInputError

_SECONDS = {
    **dict.fromkeys(("nsec", "ns"), 1e-9),
    **dict.fromkeys(("usec", "us"), 1e-6),
    **dict.fromkeys(("msec", "ms", "millis"), 1e-3),
    **dict.fromkeys(("seconds", "second", "secs", "sec", "s"), 1.0),
    **dict.fromkeys(("minutes", "minute", "mins", "min", "m"), 60.0),
    **dict.fromkeys(("hours", "hour", "hrs", "hr", "h"), 3600.0),
    **dict.fromkeys(("days", "day", "d"), 86400.0),
    **dict.fromkeys(("weeks", "week", "w"), 7 * 86400.0),
    **dict.fromkeys(("months", "month", "M"), 2_630_016.0),
    **dict.fromkeys(("years", "year", "y"), 31_557_600.0),
}
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as "14days", "1h 30m" or "3600s". Raises InvalidInputError for other strings."""
    position, seconds = 0, 0.0
    stripped = text.strip()
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None or part[2] not in _SECONDS:
            break
        seconds += float(part[1]) * _SECONDS[part[2]]
        position = part.end()
    if not stripped or position < len(stripped):
        raise InvalidInputError(f"invalid duration {text!r}; write it like 14days, 1h 30m or 3600s")
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        return timedelta.max
