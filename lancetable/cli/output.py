"""Output of the commands, readable or as JSON."""

from __future__ import annotations

import base64
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from lancetable.report.column_statistics import value_text
from lancetable.report.text import visible_lines

_WORD_WIDTH = 16


class Output:
    """Printer of properties, tables and trees. With `as_json` it prints one JSON value instead."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # Never truncate lines that another program reads from a pipe.
        self._console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=True)

    def properties(self, properties: Mapping[str, Any]) -> None:
        """Print names with their values, one per line."""
        if self.as_json:
            self._json(properties)
            return
        width = max(map(len, properties), default=0)
        for name, value in properties.items():
            self._console.print(f"[bold]{shown(name.replace('_', ' ')):<{width}}[/bold]  {shown(format_value(value))}")

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> None:
        """Print rows as a table with numbers aligned to the right."""
        if self.as_json:
            self._json(list(rows))
            return
        names = list(columns)
        table = Table(box=box.SIMPLE, pad_edge=False)
        for name in names:
            values, title = [row.get(name) for row in rows], name.replace("_", " ")
            numeric = all(isinstance(value, (int, float, type(None))) for value in values)
            table.add_column(
                shown(title),
                justify="right" if numeric else "left",
                overflow="fold",
                min_width=max(map(len, [*title.split(), *map(_unbroken, values)])),
            )
        for row in rows:
            table.add_row(*(shown(format_value(row.get(name))) for name in names))
        # Rich narrows columns unevenly and needs up to one character more for each.
        width = self._console.width - len(names)
        if _least_width(table) > width:
            table.padding = (0, 1, 0, 0)
            # The terminal wraps lines that are still too long, which are easier to read than broken words.
            table.width = max(width, _least_width(table))
        self._console.print(table)

    def tree(self, label: str, value: Any) -> None:
        """Print nested mappings and lists as a tree."""
        if self.as_json:
            self._json(value)
            return
        root = Tree(f"[bold]{shown(label)}[/bold]")
        add_branches(root, value)
        self._console.print(root)

    def _json(self, value: Any) -> None:
        print(json.dumps(to_json_value(value), indent=2, ensure_ascii=False))


def _least_width(table: Table) -> int:
    """Return the width of a table whose columns have their least widths."""
    _, right, _, left = table.padding
    return sum((column.min_width or 0) + left + right + 1 for column in table.columns) + 1


def _unbroken(value: Any) -> str:
    """Return the part of a cell that must be on one line: numbers, times and short words; paths may be broken."""
    string = format_value(value)
    return max(string.split(), key=len, default="")[:_WORD_WIDTH] if isinstance(value, str) else string


def add_branches(tree: Tree, value: Any) -> None:
    """Add the items of a value below a branch. A leaf value is on the same line as its name."""
    items = value.items() if isinstance(value, Mapping) else ((f"[{i}]", inner) for i, inner in enumerate(value))
    for name, inner in items:
        if is_leaf(inner):
            tree.add(f"[bold]{shown(str(name))}[/bold] {shown(format_value(inner))}")
        else:
            add_branches(tree.add(f"[bold]{shown(str(name))}[/bold]"), inner)


def shown(text: str) -> str:
    """Return text that contains no markup and cannot control a terminal."""
    return escape(visible_lines(text))


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows as dicts."""
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
    except (OverflowError, ValueError):
        columns = [[python_value(value) for value in column] for column in table.columns]
        rows = [dict(zip(table.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows


def python_value(value: pa.Scalar) -> Any:
    """Return a value as an object of Python, or as text if it has none: times far from now, or of nanoseconds."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        if isinstance(value, pa.StructScalar):
            return {name: python_value(child) for name, child in value.items()}
        if isinstance(value, pa.ListScalar):
            return list(map(python_value, value.values))
        return value_text(value)


def is_leaf(value: Any) -> bool:
    """Return True if a value fits on the line of its name: scalars, empty mappings and short lists of scalars."""
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, (list, tuple)):
        return all(isinstance(inner, (int, float, str)) for inner in value) and len(str(value)) < 100
    return True


def format_value(value: Any) -> str:
    """Return a value as a readable string."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={format_value(inner)}" for key, inner in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(inner) for inner in value) or "-"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    string = str(value)
    return string if len(string) <= 300 else string[:297] + "..."


def to_json_value(value: Any) -> Any:
    """Return a value as JSON types: times in ISO format, bytes in base64, NaN, infinity and decimals as strings."""
    if isinstance(value, Mapping):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if value is None or isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
