"""Numbers, sizes, times and untrusted text in readable form."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
# Control and format characters, which include those that reverse the direction of text; surrogates; line separators.
_HIDDEN: Final = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def is_shown(text: str) -> bool:
    """Return True if no character of a string is invisible or changes the direction of text."""
    return (text.isascii() and text.isprintable()) or not any(unicodedata.category(each) in _HIDDEN for each in text)


def visible(text: str) -> str:
    r"""Return a string with hidden characters replaced by their numbers: `\u202e`."""
    if is_shown(text):
        return text
    return "".join(f"\\u{ord(each):04x}" if unicodedata.category(each) in _HIDDEN else each for each in text)


def visible_lines(text: str) -> str:
    """Return a string with hidden characters other than line breaks replaced by their numbers."""
    return "\n".join(map(visible, text.split("\n")))


def shorten(text: str, max_chars: int = 200) -> str:
    """Return a string without its middle if it is longer than the limit."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2 - 1
    return f"{text[:half]} … {text[-half:]} ({len(text):,} characters)"


def count(number: int | None) -> str:
    """Return an integer with separators; a dash if it is unknown."""
    return "–" if number is None else f"{number:,}"


def plural(number: int, noun: str) -> str:
    """Return a number with a noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(num_bytes: int | None) -> str:
    """Return a size with three digits and a unit; a dash if it is unknown."""
    if num_bytes is None:
        return "–"
    if num_bytes < 1024:
        return f"{num_bytes} B"
    value, unit = num_bytes / 1024, 0
    while value >= 1023.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{digits}f} {_UNITS[unit]}"


def share(part: float, whole: float) -> str:
    """Return a percentage; a dash if the whole is zero."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    return f"{percent:.1f} %" if 0 < percent < 10 else f"{percent:.0f} %"


def moment(time: datetime | None) -> str:
    """Return a time in UTC without fractions of seconds; a dash if it is unknown."""
    return "–" if time is None else f"{time:%Y-%m-%d %H:%M:%S}"
