"""Dotted paths of fields: `point.x`; backticks quote a name that contains dots: "`a.b`.c"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from lancetable.errors import InvalidInputError

_QUOTED_NAME: Final = re.compile(r"`((?:[^`]|``)*)`(?!`)")


def parse_path(path: str) -> list[str]:
    """Split a dotted path into names.

    A name in backticks may contain dots; two backticks inside it are one literal backtick.

    Raises
    ------
    InvalidInputError
        If a backtick is not closed, a quoted name is not followed by a dot, or a name is empty.
    """
    if "`" not in path:
        names = path.split(".")
    else:
        names = _parse_quoted_path(path)
    if "" in names:
        raise InvalidInputError(f"column path {path!r} contains an empty name")
    return names


def _parse_quoted_path(path: str) -> list[str]:
    names: list[str] = []
    position = 0
    while position <= len(path):
        if path.startswith("`", position):
            match = _QUOTED_NAME.match(path, position)
            if match is None:
                raise InvalidInputError(f"column path {path!r} contains an unclosed backtick")
            names.append(match[1].replace("``", "`"))
            position = match.end()
            if position < len(path) and path[position] != ".":
                raise InvalidInputError(f"column path {path!r}: a dot must follow a name in backticks")
        else:
            name = path[position:].partition(".")[0]
            names.append(name)
            position += len(name)
        position += 1
    return names


def format_path(names: Iterable[str]) -> str:
    """Join names into a dotted path, quoting where needed. Inverse of `parse_path`."""
    return ".".join(
        "`" + name.replace("`", "``") + "`" if not name or "." in name or "`" in name else name for name in names
    )
