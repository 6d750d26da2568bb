"""Facts as text for people or as JSON for programs."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

__all__ = ["Output"]


class Output:
    """Prints facts, tables and trees; with `as_json` one JSON value instead."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        # A pipe has no width: never cut what another program reads.
        self._console = Console(width=None if sys.stdout.isatty() else 200, highlight=False, soft_wrap=True)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Name and value, one a line."""
        if self.as_json:
            self._json(facts)
            return
        width = max(map(len, facts), default=0)
        for name, value in facts.items():
            self._console.print(f"[bold]{escape(name.replace('_', ' ')):<{width}}[/bold]  {escape(text_of(value))}")

    def table(self, rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> None:
        """One line a row; numbers to the right."""
        if self.as_json:
            self._json(list(rows))
            return
        names = list(columns)
        table = Table(box=box.SIMPLE, pad_edge=False)
        for name in names:
            numeric = all(isinstance(row.get(name), (int, float, type(None))) for row in rows)
            table.add_column(escape(name.replace("_", " ")), justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(escape(text_of(row.get(name))) for name in names))
        self._console.print(table)

    def tree(self, label: str, value: Any) -> None:
        """Nested mappings and lists, one branch each."""
        if self.as_json:
            self._json(value)
            return
        root = Tree(f"[bold]{escape(label)}[/bold]")
        grow(root, value)
        self._console.print(root)

    def _json(self, value: Any) -> None:
        print(json.dumps(plain(value), indent=2, ensure_ascii=False))


def grow(tree: Tree, value: Any) -> None:
    """Add a value below a branch; a leaf stands beside its name."""
    items = value.items() if isinstance(value, Mapping) else ((f"[{i}]", inner) for i, inner in enumerate(value))
    for name, inner in items:
        if is_leaf(inner):
            tree.add(f"[bold]{escape(str(name))}[/bold] {escape(text_of(inner))}")
        else:
            grow(tree.add(f"[bold]{escape(str(name))}[/bold]"), inner)


def is_leaf(value: Any) -> bool:
    """Whether a value fits beside its name: everything but mappings and lists of anything but numbers and words."""
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, (list, tuple)):
        return all(isinstance(inner, (int, float, str)) for inner in value) and len(str(value)) < 100
    return True


def text_of(value: Any) -> str:
    """A value for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text_of(inner)}" for key, inner in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(str(inner) for inner in value) or "-"
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    text = str(value)
    return text if len(text) <= 300 else text[:297] + "..."


def plain(value: Any) -> Any:
    """A value as JSON has it: times in ISO form, bytes in base64, numbers that JSON lacks as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, Decimal):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
