"""Quoting of column names in SQL, and checks of SQL arguments."""

from __future__ import annotations

from lancetable.errors import InvalidInputError


def quote_name(name: str) -> str:
    """Return the name of a column quoted for the SQL of Spark and of the library."""
    return "`" + name.replace("`", "``") + "`"


def check_sql_text(**arguments: object) -> None:
    """Check arguments by name, which are SQL or None.

    Raises
    ------
    InvalidInputError
        If an argument is anything else, such as a Column of Spark, which the library does not evaluate.
    """
    for name, value in arguments.items():
        if value is not None and not isinstance(value, str):
            raise InvalidInputError(f'{name} is {value!r}, a {type(value).__name__}: pass SQL text, as in "price > 10"')
