"""Result of a check of a whole table: problems, what was not checked, and what a repair did."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["UNREADABLE", "WRONG", "NotChecked", "Problem", "Report"]

UNREADABLE = frozenset(("data file", "deletion file", "fragment", "ids", "schema"))
"""Kinds of problems that make rows of a version unreadable, or possibly unreadable."""

WRONG = UNREADABLE | {"access", "manifest", "nulls", "statistics"}
"""Kinds of problems that make a version defective: reads raise an error or may return wrong rows."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: its `kind` as listed in `ops.fsck`, its path, a description, and the version concerned."""

    kind: str
    path: str
    detail: str
    version: int | None = None
    branch: str | None = None  # None: main


@dataclass(frozen=True, slots=True)
class NotChecked:
    """Something that the check did not or cannot examine: `kind`, path, and the subject or reason."""

    kind: str
    path: str
    detail: str


@dataclass(slots=True)
class Report:
    """The result of a check, and of a repair.

    `problems` are those that remain. After a repair, `found` are those before the repair, `repaired` lists its steps,
    and
    `failed` the steps that failed. Counts of versions and files include those of branches. `newest` and `newest_whole`
    belong to the address that was checked.
    """

    uri: str
    versions: int = 0
    files: int = 0
    problems: list[Problem] = field(default_factory=list)
    newest: int | None = None
    newest_whole: int | None = None
    repaired: list[str] = field(default_factory=list)
    deep: bool = False
    not_checked: list[NotChecked] = field(default_factory=list)
    found: list[Problem] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """True if no problem remains."""
        return not self.problems
