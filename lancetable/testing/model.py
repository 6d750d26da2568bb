"""Model of a table in plain Python: a list of rows per version, to compare with the real table after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ModelTable", "ModelVersion", "Row"]

Row = Mapping[str, Any]


@dataclass(frozen=True)
class ModelVersion:
    """Column names and rows of one version, in scan order."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass
class ModelTable:
    """All versions and tags of a table. Every change creates the next version."""

    versions: dict[int, ModelVersion] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    # The newest version that replaced all contents. Operations that were prepared before it conflict with it.
    replaced_at: int = 0

    @property
    def latest(self) -> int:
        """The newest version; 0 if there is none."""
        return max(self.versions, default=0)

    @property
    def current(self) -> ModelVersion:
        """Contents of the newest version."""
        return self.versions[self.latest]

    def overwrite(self, columns: Iterable[str], rows: Iterable[Row]) -> None:
        """Create the table, or replace all its contents."""
        self._add(ModelVersion(tuple(columns), tuple(rows)))
        self.replaced_at = self.latest

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows. Missing columns are None."""
        columns = self.current.columns
        added = tuple({name: row.get(name) for name in columns} for row in rows)
        self._add(ModelVersion(columns, self.current.rows + added))

    def delete(self, condition: Callable[[Row], bool]) -> int:
        """Delete the rows that satisfy a condition and return their number. A version is created even if it is 0."""
        kept = tuple(row for row in self.current.rows if not condition(row))
        number = len(self.current.rows) - len(kept)
        self._add(ModelVersion(self.current.columns, kept))
        return number

    def restore(self, version: int) -> None:
        """Make a copy of an old version the newest one."""
        self._add(self.versions[version])
        self.replaced_at = self.latest

    def _add(self, version: ModelVersion) -> None:
        self.versions[self.latest + 1] = version
