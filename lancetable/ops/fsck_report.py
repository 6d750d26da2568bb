"""The result of a check of a whole table: problems, what was not checked, and what a repair did."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["UNREADABLE", "WRONG", "NotChecked", "Problem", "Report"]

UNREADABLE = frozenset(("data file", "deletion file", "fragment", "ids", "schema"))
"""Kinds of problems by which rows of a version cannot be read, or not for sure."""

WRONG = UNREADABLE | {"access", "manifest", "nulls", "statistics"}
"""Kinds of problems by which a version is not whole: reading raises, or may return other rows."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong: `kind` as in the table above, where, what, and the version concerned."""

    kind: str
    path: str
    detail: str
    version: int | None = None
    branch: str | None = None  # None: main


@dataclass(frozen=True, slots=True)
class NotChecked:
    """Something that the check did not or cannot look at: `kind`, where, and what or why."""

    kind: str
    path: str
    detail: str


@dataclass(slots=True)
class Report:
    """The result of a check, and of a repair.

    `problems` are those that remain. After a repair `found` are those that it began with, `repaired` what it did, and
    `failed` what it could not do. Versions and files count those of branches too; `newest` and `newest_whole` are those
    of the address that was checked.
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
