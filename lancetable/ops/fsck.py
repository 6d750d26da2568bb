"""Check a whole table: every version, every file they name, what refers to versions, and what nobody names.

    problem            found by                                              repaired by
    manifest           it does not open                                      -
    data file          missing, other size, no footer, other row count       restoring the newest whole version
    deletion file      missing, unreadable, rows past the end, other count   the same
    ids                a fragment id or a live stable row id occurs twice    the same
    tag, branch        the version it names is not there                     -
    orphan             no version names it, and it is a week old             removing it
    hint               it names a version that is not there                  writing it anew

Repair never removes a version or a file that one names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from lancetable.commit.cleanup import Policy, plan_cleanup, run_cleanup
from lancetable.errors import CorruptFileError, DatasetNotFoundError, LanceError, UnsupportedFeatureError
from lancetable.format.fragment import Fragment
from lancetable.format.paths import hint_path
from lancetable.handlers.base import write_hint
from lancetable.handlers.choose import choose_handler
from lancetable.ops.refs import restore
from lancetable.ops.validate import validate_data_file, validate_deletions
from lancetable.store.base import ObjectStore
from lancetable.store.open import open_store
from lancetable.table import refs
from lancetable.table.cache import TableCache
from lancetable.table.row_id_lookup import row_id_sequence
from lancetable.table.version import Reference, TableVersion, checkout, open_location, open_version
from lancetable.table.version_rows import deleted_offsets

__all__ = ["Problem", "Report", "check", "fsck", "repair"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong: `kind` as in the table above, the version concerned, where, and what."""

    kind: str
    path: str
    detail: str
    version: int | None = None


@dataclass(slots=True)
class Report:
    """What a check found."""

    uri: str
    versions: int = 0
    files: int = 0
    problems: list[Problem] = field(default_factory=list)
    newest: int | None = None
    newest_whole: int | None = None
    repaired: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


def check(uri: str, *, storage_options: Mapping[str, str] | None = None) -> Report:
    """Look at every version of a table and every file; nothing is changed.

    Reads manifests, footers and deletion files, no pages of rows: bit rot in values is not found, as the format keeps
    no checksums. Raises DatasetNotFoundError, and CorruptFileError for a table with names of both schemes.
    """
    return _Check(uri, storage_options).run()


def fsck(uri: str, *, repair: bool = False, storage_options: Mapping[str, str] | None = None) -> Report:
    """Check a whole table, and with `repair` mend what can be mended without losing a version.

    Returns a `Report`: its `problems`, and what was `repaired`. Raises as `check`.

    Examples
    --------
    >>> lancetable.fsck("/data/flights.lance").is_clean  # doctest: +SKIP
    True
    """
    report = check(uri, storage_options=storage_options)
    return _repair(report, storage_options=storage_options) if repair else report


class _Check:
    def __init__(self, uri: str, storage_options: Mapping[str, str] | None) -> None:
        self.store, self.base = open_store(uri, storage_options)
        self.uri, self.options = uri, storage_options
        self.handler = choose_handler(self.store, uri, storage_options=storage_options)
        self.report = Report(uri)
        self.cache = TableCache()
        self._known: dict[tuple[object, ...], str | None] = {}

    def run(self) -> Report:
        locations = self.handler.history(self.store, self.base)
        if not locations:
            raise DatasetNotFoundError(f"Dataset at path {self.uri} was not found", path=self.uri)
        report = self.report
        report.newest = locations[-1].version
        opened: TableVersion | None = None
        for location in reversed(locations):
            report.versions += 1
            try:
                if opened is None:
                    version = open_version(self.uri, location.version, storage_options=self.options, cache=self.cache)
                else:
                    version = open_location(opened, location)
            except LanceError as error:
                self._note("manifest", location.path, error, location.version)
                continue
            opened = opened or version
            if self._check_version(version) and report.newest_whole is None:
                report.newest_whole = version.version
        if opened is not None:
            self._check_refs(opened)
            self._check_hint()
            self._check_orphans(opened)
        return report

    def _note(self, kind: str, path: str, detail: object, version: int | None = None) -> None:
        self.report.problems.append(Problem(kind, path, str(detail), version))

    def _check_version(self, version: TableVersion) -> bool:
        before = len(self.report.problems)
        try:
            version.manifest.fragments.ids()
        except CorruptFileError as error:
            self._note("ids", version.location.path, error, version.version)
        for fragment in version.manifest.fragments:
            self._check_fragment(version, fragment)
        if version.manifest.has_stable_row_ids and len(self.report.problems) == before:
            self._check_row_ids(version)
        return len(self.report.problems) == before

    def _check_fragment(self, version: TableVersion, fragment: Fragment) -> None:
        rows = fragment.physical_rows
        for file in fragment.files:
            key: tuple[object, ...] = (file.path, file.base_id, file.size_bytes, file.column_indices, rows)
            if key not in self._known:
                self.report.files += 1
                try:
                    found = validate_data_file(version, file)
                    wrong = rows is not None and found != rows
                    self._known[key] = f"{found} rows, the manifest says {rows}" if wrong else None
                except UnsupportedFeatureError:
                    self._known[key] = None  # newer than this library, which is no damage
                except LanceError as error:
                    self._known[key] = str(error)
            if self._known[key] is not None:
                self._note("data file", file.path, self._known[key], version.version)
        if fragment.deletion_file is None:
            return
        key = ("deletions", fragment.id, fragment.deletion_file, rows)
        if key not in self._known:
            self.report.files += 1
            try:
                validate_deletions(version, fragment, rows or 0)
                self._known[key] = None
            except LanceError as error:
                self._known[key] = str(error)
        if self._known[key] is not None:
            self._note("deletion file", fragment.deletion_file.name(fragment.id), self._known[key], version.version)

    def _check_row_ids(self, version: TableVersion) -> None:
        parts = []
        try:
            for fragment in version.manifest.fragments:
                ids, deleted = row_id_sequence(version, fragment), deleted_offsets(version, fragment)
                parts.append((ids if deleted is None else ids.mask(deleted)).values())
        except UnsupportedFeatureError:
            return
        except LanceError as error:
            self._note("ids", version.location.path, error, version.version)
            return
        values = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)
        twice = np.flatnonzero(values[1:] == values[:-1])
        if len(twice):
            detail = f"{len(twice)} row ids occur twice among live rows, such as {values[twice[0]]}"
            self._note("ids", version.location.path, detail, version.version)

    def _check_refs(self, version: TableVersion) -> None:
        store, main = version.store, version.main_base
        for name, tag in refs.list_tags(store, main).items():
            self._check_ref("tag", name, version, name, tag.version)
        for name, branch in refs.list_branches(store, main).items():
            self._check_ref("branch", name, version, (name, None), branch.parent_version)

    def _check_ref(self, kind: str, name: str, version: TableVersion, reference: Reference, number: int) -> None:
        try:
            checkout(version, reference)
        except LanceError as error:
            self._note(kind, name, error, number)

    def _check_hint(self) -> None:
        path = hint_path(self.base)
        if self.store.find(path) is None:
            return
        try:
            hinted = json.loads(bytes(self.store.read_all(path)))["version"]
            if self.handler.locate(self.store, self.base, hinted) is None or hinted > (self.report.newest or 0):
                self._note("hint", path, f"it names version {hinted}, which is not there")
        except (LanceError, ValueError, KeyError, TypeError) as error:
            self._note("hint", path, f"unreadable: {error}")

    def _check_orphans(self, version: TableVersion) -> None:
        try:
            plan = plan_cleanup(version, _ORPHANS_ONLY)
        except LanceError:
            return  # a version that does not open is noted already, and may need these files
        for each in plan.files:
            self._note("orphan", each.path, f"{each.size_bytes} bytes that no version names, a week old or older")


_ORPHANS_ONLY = Policy(versions=frozenset(), error_if_tagged=False)


def repair(report: Report, *, storage_options: Mapping[str, str] | None = None) -> Report:
    """Mend what can be mended without losing a version; `report.repaired` says what was done.

    A newest version with damaged files is followed by a new one that restores the newest whole version; its rows stay
    in the history as far as their files are there. Raises whatever the commit raises.
    """
    store, base = open_store(report.uri, storage_options)
    kinds = {problem.kind for problem in report.problems}
    if "hint" in kinds and report.newest is not None:
        _rewrite_hint(store, base, report.newest)
        report.repaired.append(f"hint written anew: version {report.newest}")
    broken = {problem.version for problem in report.problems if problem.kind in ("data file", "deletion file", "ids")}
    if report.newest in broken and report.newest_whole is not None:
        newest = open_version(report.uri, storage_options=storage_options)
        mended = restore(checkout(newest, report.newest_whole))
        report.repaired.append(f"version {mended.version} restores version {report.newest_whole}")
    if "orphan" in kinds and "manifest" not in kinds:
        newest = open_version(report.uri, storage_options=storage_options)
        plan = plan_cleanup(newest, _ORPHANS_ONLY)
        run_cleanup(newest, plan)
        report.repaired.append(f"{len(plan.files)} orphans removed")
    return report


_repair = repair


def _rewrite_hint(store: ObjectStore, base: str, version: int) -> None:
    store.delete([hint_path(base)])
    write_hint(store, base, version)
