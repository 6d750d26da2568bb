"""A table with all its versions and branches in plain Python: what random walks through the whole API are judged by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

__all__ = ["Line", "Row", "State", "Values"]

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A row that keeps its identity while it is changed; `values` has a unique `id`."""

    uid: int
    created: int
    updated: int
    values: Values


@dataclass(frozen=True)
class State:
    """What one version shows. Rows are in no order: `id` tells them apart."""

    fields: tuple[pa.Field, ...]
    rows: tuple[Row, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [each.name for each in self.fields]

    @property
    def ids(self) -> set[int]:
        return {row.values["id"] for row in self.rows}

    def field(self, name: str) -> pa.Field:
        return next(each for each in self.fields if each.name == name)

    def with_rows(self, rows: Iterable[Row]) -> State:
        return replace(self, rows=tuple(rows))

    def inserted(self, rows: Iterable[Values], version: int, uids: Iterable[int]) -> State:
        """More rows; columns that they lack are null."""
        made = [
            Row(uid, version, version, {name: values.get(name) for name in self.names})
            for uid, values in zip(uids, rows, strict=False)
        ]
        return self.with_rows([*self.rows, *made])

    def changed(self, version: int, change: Callable[[Values], Values | None]) -> State:
        """`change` gives the new values of a row, None for a row that stays as it is."""
        rows = []
        for row in self.rows:
            values = change(row.values)
            rows.append(row if values is None else Row(row.uid, row.created, version, values))
        return self.with_rows(rows)

    def touched(self, version: int) -> State:
        """Every row counts as changed, as where columns of all fragments were written."""
        return self.changed(version, lambda values: values)

    def with_column(self, new: pa.Field, value: Callable[[Values], Any]) -> State:
        rows = [replace(row, values={**row.values, new.name: value(row.values)}) for row in self.rows]
        return replace(self, fields=(*self.fields, new), rows=tuple(rows))

    def without(self, names: Iterable[str]) -> State:
        gone = set(names)
        rows = [replace(row, values={k: v for k, v in row.values.items() if k not in gone}) for row in self.rows]
        return replace(self, fields=tuple(each for each in self.fields if each.name not in gone), rows=tuple(rows))

    def renamed(self, old: str, new: str) -> State:
        rows = [
            replace(row, values={new if name == old else name: value for name, value in row.values.items()})
            for row in self.rows
        ]
        fields = tuple(each.with_name(new) if each.name == old else each for each in self.fields)
        return replace(self, fields=fields, rows=tuple(rows))

    def with_field(self, changed: pa.Field) -> State:
        fields = tuple(changed if each.name == changed.name else each for each in self.fields)
        return replace(self, fields=fields)


@dataclass
class Line:
    """The versions of one branch. A version without a state is one that a change in several commits passed through."""

    parent: tuple[str | None, int] | None = None
    versions: dict[int, State | None] = field(default_factory=dict)
    # With stable ids: which ids were seen when a version was the newest; later rows get greater ones.
    greatest_id: dict[int, int] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        return max(self.versions)

    @property
    def current(self) -> State:
        state = self.versions[self.latest]
        assert state is not None
        return state

    def known(self) -> list[int]:
        """Versions whose state is known."""
        return sorted(version for version, state in self.versions.items() if state is not None)
