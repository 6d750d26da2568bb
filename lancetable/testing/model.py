"""A table in plain Python: a list of rows per version. What the real thing is compared with after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ModelTable", "ModelVersion", "Row"]

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ModelVersion:
    """The column names and the rows of one version, in scan order."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass
class ModelTable:
    """All versions and tags of a table. Every change makes the version after the newest one."""

    versions: dict[int, ModelVersion] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    # The newest version that replaced the contents as a whole: nothing prepared before it fits any more.
    replaced_at: int = 0

    @property
    def latest(self) -> int:
        """The newest version; 0 before the first one."""
        return max(self.versions, default=0)

    @property
    def current(self) -> ModelVersion:
        return self.versions[self.latest]

    def overwrite(self, columns: Iterable[str], rows: Iterable[Row]) -> None:
        """Create, or replace everything."""
        self._add(ModelVersion(tuple(columns), tuple(rows)))
        self.replaced_at = self.latest

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows at the end; columns they lack are None."""
        columns = self.current.columns
        added = tuple({name: row.get(name) for name in columns} for row in rows)
        self._add(ModelVersion(columns, self.current.rows + added))

    def delete(self, condition: Callable[[Row], bool]) -> int:
        """Remove the rows for which the condition holds; returns how many. No match still makes a version."""
        kept = tuple(row for row in self.current.rows if not condition(row))
        number = len(self.current.rows) - len(kept)
        self._add(ModelVersion(self.current.columns, kept))
        return number

    def restore(self, version: int) -> None:
        """Make an old version the newest."""
        self._add(self.versions[version])
        self.replaced_at = self.latest

    def _add(self, version: ModelVersion) -> None:
        self.versions[self.latest + 1] = version
