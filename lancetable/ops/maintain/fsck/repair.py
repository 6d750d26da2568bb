"""Repair of a table without the loss of a readable version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress

from lancetable.commit.cleanup.cleanup_plan import CleanupPolicy, plan_cleanup
from lancetable.commit.cleanup.cleanup_run import run_cleanup
from lancetable.errors import CorruptFileError, LanceError
from lancetable.format.manifest_naming import hint_path
from lancetable.handlers.latest_version import write_hint
from lancetable.ops.maintain.fsck.quarantine import location_of, open_manifest, quarantine
from lancetable.ops.maintain.fsck.report import UNREADABLE, Problem, Report
from lancetable.ops.refs.restore import restore
from lancetable.table.version import Table, TableVersion, checkout, open_version

ORPHANS_ONLY = CleanupPolicy(versions=frozenset(), error_if_tagged=False)


def repair(
    report: Report, is_intact: Callable[[TableVersion], bool], *, storage_options: Mapping[str, str] | None = None
) -> Report:
    """Repair the problems that can be repaired without losing a version; list each step in `report.repaired`.

    Damaged manifests are moved to `_quarantine` if an older or newer version can be read. If the newest version has
    damaged files, the newest intact version is restored as a new version; the damaged version remains in the history.
    An error ends only its step and is listed in `report.failed`. The problems of the report are not updated; check the
    table again.

    Parameters
    ----------
    report
        Result of a check.
    is_intact
        Returns True if a version has no defects. The newest version is checked again before an older one is restored,
        because a read may fail temporarily.
    storage_options
        Options of the store.
    """
    run = _Repair(report, is_intact, storage_options)
    for name, step in (
        ("damaged manifests", run.move_manifests),
        ("hints", run.rewrite_hints),
        ("restore", run.restore_newest),
        ("orphans", run.remove_orphans),
    ):
        try:
            step()
        except LanceError as error:  # noqa: PERF203 - an error ends only its step
            report.failed.append(f"{name}: {error}")
    return report


class _Repair:
    def __init__(
        self, report: Report, is_intact: Callable[[TableVersion], bool], storage_options: Mapping[str, str] | None
    ) -> None:
        self.report, self.options, self.is_intact = report, storage_options, is_intact
        table = Table.of_uri(report.uri, storage_options)
        self.store, self.handler = table.store, table.handler
        self._moved: set[str] = set()  # roots below which a manifest was moved

    def move_manifests(self) -> None:
        """Move damaged manifests to the quarantine, newest first, for each root with a version that can be read."""
        paths = dict.fromkeys(problem.path for problem in self._problems("manifest"))
        can_be_read: dict[str, bool] = {}
        for base, location in filter(None, map(location_of, paths)):
            if base not in can_be_read:
                can_be_read[base] = self._has_readable(base)
            if not can_be_read[base]:
                continue
            try:
                copy = quarantine(self.store, base, self.handler, location)
            except LanceError as error:
                self.report.failed.append(f"version {location.version}: {error}")
                continue
            if copy is not None:
                self._moved.add(base)
                self.report.repaired.append(f"damaged manifest of version {location.version} moved to {copy}")

    def _has_readable(self, base: str) -> bool:
        """Return True if a version below a root can be opened."""
        for location in reversed(self.handler.history(self.store, base)):
            with suppress(LanceError):
                open_manifest(self.store, location, bytes(self.store.read_all(location.path)))
                return True
        return False

    def rewrite_hints(self) -> None:
        """Replace hints that are damaged or refer to a missing version."""
        bases = {problem.path.removesuffix(hint_path("")).rstrip("/") for problem in self._problems("hint")}
        for base in sorted(bases | self._moved):
            locations = self.handler.history(self.store, base)
            if locations and self._is_stale(hint_path(base), locations[-1].version):
                self.store.delete([hint_path(base)])
                write_hint(self.store, base, locations[-1].version)
                self.report.repaired.append(f"hint written again: version {locations[-1].version}")

    def _is_stale(self, path: str, newest: int) -> bool:
        """Return True if a hint exists and does not refer to the newest version."""
        if self.store.find(path) is None:
            return False
        try:
            return bool(json.loads(bytes(self.store.read_all(path)))["version"] != newest)
        except (LanceError, ValueError, KeyError, TypeError):
            return True

    def restore_newest(self) -> None:
        """Restore the newest intact version if the newest version that can be opened is damaged."""
        intact = self.report.newest_whole
        if intact is None:
            return
        try:
            newest = open_version(self.report.uri, storage_options=self.options)
        except CorruptFileError:
            return  # its manifest was not moved and remains a problem
        damaged = {problem.version for problem in self._problems(*UNREADABLE) if problem.branch is None}
        if newest.version in damaged and newest.version > intact and not self.is_intact(newest):
            restored = restore(checkout(newest, intact))
            self.report.repaired.append(f"version {restored.version} restores version {intact}")

    def _problems(self, *kinds: str) -> list[Problem]:
        return [problem for problem in self.report.problems if problem.kind in kinds]

    def remove_orphans(self) -> None:
        """Remove old files that no version references."""
        branches = dict.fromkeys(problem.branch for problem in self._problems("orphan"))
        if not branches:
            return
        newest = open_version(self.report.uri, storage_options=self.options)
        for branch in branches:
            version = newest if branch is None else checkout(newest, (branch, None))
            plan = plan_cleanup(version, ORPHANS_ONLY)
            run_cleanup(version, plan)
            self.report.repaired.append(f"{len(plan.files)} orphans removed")
