"""Names of columns in SQL."""

from __future__ import annotations

__all__ = ["quote_name"]


def quote_name(name: str) -> str:
    """A column's name as SQL has it, Spark's and the library's."""
    return "`" + name.replace("`", "``") + "`"
