"""Quoting of column names in SQL, and checks of SQL arguments."""

from __future__ import annotations

from lancetable.errors import InvalidInputError


def quote_name(name: str) -> str:
    """Return the name of a column quoted for the SQL of Spark and of the library."""
    return "`" + name.replace("`", "``") + "`"


def check_sql_text(**arguments: object) -> None:
    """Check that arguments, passed by name, are SQL strings or None.

    Raises
    ------
    InvalidInputError
        If an argument has another type, for example a Column of Spark, which the library cannot evaluate.
    """
    for name, value in arguments.items():
        if value is not None and not isinstance(value, str):
            raise InvalidInputError(f'{name} must be SQL text ("price > 10"), got {type(value).__name__} {value!r}')
