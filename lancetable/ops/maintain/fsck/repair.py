"""Repair of a table: fixes that do not lose a readable version."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress

from lancetable.commit.gc.cleanup import Policy, plan_cleanup, run_cleanup
from lancetable.errors import CorruptFileError, LanceError
from lancetable.format.flags import check_readable
from lancetable.format.paths import hint_path
from lancetable.handlers.base import write_hint
from lancetable.handlers.choose import choose_handler
from lancetable.ops.maintain.fsck.quarantine import location_of, quarantine
from lancetable.ops.maintain.fsck.report import UNREADABLE, Problem, Report
from lancetable.ops.refs.tags import restore
from lancetable.store.base import ObjectStore
from lancetable.store.open import open_store
from lancetable.table.manifests import met_manifest
from lancetable.table.version import TableVersion, checkout, open_version

__all__ = ["ORPHANS_ONLY", "repair"]

ORPHANS_ONLY = Policy(versions=frozenset(), error_if_tagged=False)


def repair(
    report: Report, is_whole: Callable[[TableVersion], bool], *, storage_options: Mapping[str, str] | None = None
) -> Report:
    """Mend what can be mended without losing a version, and list each step in `report.repaired`.

    Damaged manifests are moved to `_quarantine` where an older or newer version can be read. A newest version with
    damaged files is followed by a new one that restores the newest whole version; its rows stay in the history as far
    as their files are there. `is_whole` checks the newest version once more, since a read may fail once. An error
    ends one step, is listed in `report.failed`, and the next step follows. The report is not updated otherwise: check
    the table again.
    """
    store, _ = open_store(report.uri, storage_options)
    run = _Repair(report, store, storage_options, is_whole)
    for name, step in (
        ("damaged manifests", run.move_manifests),
        ("hints", run.rewrite_hints),
        ("restore", run.restore_newest),
        ("orphans", run.remove_orphans),
    ):
        try:
            step()
        except LanceError as error:  # noqa: PERF203 - each step by itself
            report.failed.append(f"{name}: {error}")
    return report


class _Repair:
    def __init__(
        self,
        report: Report,
        store: ObjectStore,
        storage_options: Mapping[str, str] | None,
        is_whole: Callable[[TableVersion], bool],
    ) -> None:
        self.report, self.store, self.options, self.is_whole = report, store, storage_options, is_whole
        self.handler = choose_handler(store, report.uri, storage_options=storage_options)
        self._moved: set[str] = set()  # roots below which a manifest was moved

    def move_manifests(self) -> None:
        """Move damaged manifests aside, the newest first, below each root that has a version that can be read."""
        paths = dict.fromkeys(problem.path for problem in self._problems("manifest"))
        readable: dict[str, bool] = {}
        for path in paths:
            found = location_of(path)
            if found is None:
                continue
            base, location = found
            if base not in readable:
                readable[base] = self._has_readable(base)
            if not readable[base]:
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
        """Return True if some version below a root can be opened."""
        for location in reversed(self.handler.history(self.store, base)):
            with suppress(LanceError):
                file = met_manifest(self.store, location, bytes(self.store.read_all(location.path)))
                check_readable(file.manifest.reader_flags, location.path, writer_flags=file.manifest.writer_flags)
                return True
        return False

    def rewrite_hints(self) -> None:
        """Write hints that are damaged or name a missing version again."""
        bases = {problem.path.removesuffix(hint_path("")).rstrip("/") for problem in self._problems("hint")}
        for base in sorted(bases | self._moved):
            locations = self.handler.history(self.store, base)
            if locations and self._names_another(hint_path(base), locations[-1].version):
                self.store.delete([hint_path(base)])
                write_hint(self.store, base, locations[-1].version)
                self.report.repaired.append(f"hint written again: version {locations[-1].version}")

    def _names_another(self, path: str, newest: int) -> bool:
        """Return True if there is a hint that names another version."""
        size = self.store.find(path)
        if size is None:
            return False
        try:
            return bool(json.loads(bytes(self.store.read_all(path)))["version"] != newest)
        except (LanceError, ValueError, KeyError, TypeError):
            return True

    def restore_newest(self) -> None:
        """Restore the newest whole version where the newest one that opens is not whole."""
        whole = self.report.newest_whole
        if whole is None:
            return
        try:
            newest = open_version(self.report.uri, storage_options=self.options)
        except CorruptFileError:
            return  # its manifest was not moved, and remains a problem
        broken = {problem.version for problem in self._problems(*UNREADABLE) if problem.branch is None}
        if newest.version in broken and newest.version > whole and not self.is_whole(newest):
            mended = restore(checkout(newest, whole))
            self.report.repaired.append(f"version {mended.version} restores version {whole}")

    def _problems(self, *kinds: str) -> list[Problem]:
        return [problem for problem in self.report.problems if problem.kind in kinds]

    def remove_orphans(self) -> None:
        """Remove old files that no version names."""
        branches = dict.fromkeys(problem.branch for problem in self._problems("orphan"))
        if not branches:
            return
        newest = open_version(self.report.uri, storage_options=self.options)
        for branch in branches:
            version = newest if branch is None else checkout(newest, (branch, None))
            plan = plan_cleanup(version, ORPHANS_ONLY)
            run_cleanup(version, plan)
            self.report.repaired.append(f"{len(plan.files)} orphans removed")
