"""Dotted paths of fields: `point.x`, and names in backticks where they hold dots: "`a.b`.c"."""

from __future__ import annotations

from collections.abc import Iterable

from lancetable.errors import InvalidInputError

__all__ = ["format_path", "parse_path"]


def parse_path(path: str) -> list[str]:
    """Names along a dotted path; a name in backticks may hold dots, and a doubled backtick stands for one.

    Raises InvalidInputError for an open quote or an empty name.
    """
    if "`" not in path:
        names = path.split(".")
    else:
        names = _parse_quoted_path(path)
    if "" in names:
        raise InvalidInputError(f"column path {path!r} has an empty name")
    return names


def _parse_quoted_path(path: str) -> list[str]:
    names: list[str] = []
    position = 0
    while position <= len(path):
        if path[position : position + 1] == "`":
            end = position + 1
            while True:
                end = path.find("`", end)
                if end < 0:
                    raise InvalidInputError(f"column path {path!r} has an open backtick")
                if path[end : end + 2] != "``":
                    break
                end += 2
            names.append(path[position + 1 : end].replace("``", "`"))
            position = end + 1
            if position < len(path) and path[position] != ".":
                raise InvalidInputError(f"column path {path!r}: a dot must follow a name in backticks")
        else:
            end = path.find(".", position)
            end = len(path) if end < 0 else end
            names.append(path[position:end])
            position = end
        position += 1
    return names


def format_path(names: Iterable[str]) -> str:
    """Inverse of `parse_path`."""
    return ".".join(
        "`" + name.replace("`", "``") + "`" if not name or "." in name or "`" in name else name for name in names
    )
