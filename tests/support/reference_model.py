"""Model of a table with its versions and branches in plain Python, for tests with random changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One row with an identity that updates do not change. `values` contains a unique `id`."""

    uid: int
    created: int
    updated: int
    values: Values


@dataclass(frozen=True)
class State:
    """Contents of one version. Rows are unordered and identified by `id`."""

    fields: tuple[pa.Field, ...]
    rows: tuple[Row, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [field.name for field in self.fields]

    @property
    def ids(self) -> set[int]:
        """Values of `id` of all rows."""
        return {row.values["id"] for row in self.rows}

    def field(self, name: str) -> pa.Field:
        """Return the field of a name."""
        return next(field for field in self.fields if field.name == name)

    def with_rows(self, rows: Iterable[Row]) -> State:
        """Return a copy with other rows."""
        return replace(self, rows=tuple(rows))

    def inserted(self, rows: Iterable[Values], version: int, uids: Iterable[int]) -> State:
        """Return a copy with additional rows, in which missing columns are null."""
        added = [
            Row(uid, version, version, {name: values.get(name) for name in self.names})
            for uid, values in zip(uids, rows, strict=False)
        ]
        return self.with_rows([*self.rows, *added])

    def changed(self, version: int, change: Callable[[Values], Values | None]) -> State:
        """Return a copy with updated rows. `change` returns the new values of a row, or None to keep it."""
        rows = []
        for row in self.rows:
            values = change(row.values)
            rows.append(row if values is None else Row(row.uid, row.created, version, values))
        return self.with_rows(rows)

    def touched(self, version: int) -> State:
        """Return a copy in which every row counts as updated, as after writing columns of all fragments."""
        return self.changed(version, lambda values: values)

    def with_column(self, new: pa.Field, value: Callable[[Values], Any]) -> State:
        """Return a copy with one more column."""
        rows = [replace(row, values={**row.values, new.name: value(row.values)}) for row in self.rows]
        return replace(self, fields=(*self.fields, new), rows=tuple(rows))

    def without(self, names: Iterable[str]) -> State:
        """Return a copy without some columns."""
        dropped = set(names)
        rows = [replace(row, values={k: v for k, v in row.values.items() if k not in dropped}) for row in self.rows]
        return replace(
            self, fields=tuple(field for field in self.fields if field.name not in dropped), rows=tuple(rows)
        )

    def renamed(self, old: str, new: str) -> State:
        """Return a copy with a renamed column."""
        rows = [
            replace(row, values={new if name == old else name: value for name, value in row.values.items()})
            for row in self.rows
        ]
        fields = tuple(field.with_name(new) if field.name == old else field for field in self.fields)
        return replace(self, fields=fields, rows=tuple(rows))

    def with_field(self, changed: pa.Field) -> State:
        """Return a copy in which a field is replaced by another one of the same name."""
        fields = tuple(changed if field.name == changed.name else field for field in self.fields)
        return replace(self, fields=fields)


@dataclass
class BranchModel:
    """Versions of one branch.

    The state of a version is None if it is an intermediate commit of a change with several commits.
    """

    parent: tuple[str | None, int] | None = None
    versions: dict[int, State | None] = field(default_factory=dict)
    # With stable row ids: the greatest id when a version was the newest. Rows that are added later get greater ids.
    greatest_id: dict[int, int] = field(default_factory=dict)

    @property
    def latest(self) -> int:
        """The newest version; 0 if there is none."""
        return max(self.versions, default=0)

    @property
    def current(self) -> State:
        """Contents of the newest version."""
        state = self.versions[self.latest]
        assert state is not None
        return state

    def known(self) -> list[int]:
        """Return the versions whose contents are known."""
        return sorted(version for version, state in self.versions.items() if state is not None)
