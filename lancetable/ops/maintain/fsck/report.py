"""Findings of checks, and the report on a table: problems, parts that were not checked, and repairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lancetable.errors import LanceError, LimitError, StoreError, UnsupportedFeatureError, UntrustedPathError

UNREADABLE = frozenset(("data file", "deletion file", "fragment", "ids", "schema"))
"""Kinds of problems that make rows of a version unreadable, or possibly unreadable."""

DEFECTS = UNREADABLE | {"access", "manifest", "nulls", "refused", "statistics"}
"""Kinds of problems that make a version defective: reads raise an error or may return wrong rows."""


class Finding(NamedTuple):
    """Result of one check: damage, or a part that cannot be checked."""

    kind: str
    path: str
    detail: str
    is_damage: bool = True


def finding_of(kind: str, path: str, error: Exception, where: str = "") -> Finding:
    """Return the finding for an exception of a reader.

    An unsupported feature is not damage. A store error has the kind "access". A path or size that is not allowed for an
    untrusted table has the kind "refused", which a repair does not change.
    """
    text = str(error) if isinstance(error, LanceError) else f"{type(error).__name__}: {error}"
    detail = f"{where}: {text}" if where else text
    if isinstance(error, UnsupportedFeatureError):
        return Finding("unsupported", path, detail, is_damage=False)
    if isinstance(error, (LimitError, UntrustedPathError)):
        return Finding("refused", path, detail)
    if isinstance(error, StoreError):
        return Finding("access", path, detail)
    return Finding(kind, path, detail)


def findings_of(kind: str, path: str, check: Callable[[], object], where: str = "") -> Iterator[Finding]:
    """Yield the findings that `check` returns, if any, and a finding for the exception that it raises."""
    try:
        findings = check()
        if isinstance(findings, Iterator):
            yield from findings
    except Exception as error:
        yield finding_of(kind, path, error, where)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: its `kind` as listed in fsck/check.py, its path, a description, and the version concerned."""

    kind: str
    path: str
    detail: str
    version: int | None = None
    branch: str | None = None  # None: main


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A part of the table that was not or cannot be checked: `kind`, path, and the subject or reason."""

    kind: str
    path: str
    detail: str


@dataclass(slots=True)
class Report:
    """The result of a check, and of a repair.

    `problems` contains the problems that remain. After a repair, `found` contains the problems before the repair,
    `repaired` its successful steps, and `failed` its failed steps. `versions` and `files` are counts that include
    branches. `newest` and `newest_whole` are the newest version and the newest intact version at `uri`.
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
