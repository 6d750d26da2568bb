"""Errors in SQL strings. Their messages show the string with a caret under the position."""

from __future__ import annotations

import re

from lancetable.errors import InvalidSqlError


def offset_of(text: str, line: int, column: int) -> int:
    """Return the index in `text` of a 1-based line and column."""
    starts = [0, *(match.end() for match in re.finditer(r"\n", text))]
    return min(starts[min(line, len(starts)) - 1] + column - 1, max(len(text) - 1, 0))


def excerpt(text: str, at: int) -> tuple[str, int]:
    """Return the line that contains index `at`, cut to about 120 characters, and the column of `at` in it."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    line, column = text[start : end if end >= 0 else len(text)], at - start
    if len(line) <= 120:
        return line, column
    cut = max(0, column - 60)
    head, tail = ("..." if cut else ""), ("..." if cut + 120 < len(line) else "")
    return f"{head}{line[cut : cut + 120]}{tail}", column - cut + len(head)


def with_caret(text: str, at: int | None, reason: str) -> str:
    """Return the reason of an error, followed by the line of the SQL string with a caret under index `at`."""
    if at is None:
        return f"{reason}\n  {excerpt(text, 0)[0]}"
    line, column = excerpt(text, at)
    return f"{reason}\n  {line}\n  {' ' * column}^"


def sql_error(text: str, at: int | None, reason: str) -> InvalidSqlError:
    """Return the error for position `at` of a SQL string; None for an unknown position."""
    return InvalidSqlError(f"Invalid user input: {with_caret(text, at, reason)}", offset=at)
