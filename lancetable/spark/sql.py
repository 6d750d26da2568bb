"""Quoting of column names in SQL."""

from __future__ import annotations


def quote_name(name: str) -> str:
    """Return the name of a column quoted for the SQL of Spark and of the library."""
    return "`" + name.replace("`", "``") + "`"
