"""Check of a whole table: every version, every referenced file, tags and branches, and unreferenced files.

    problem            condition                                             repair
    manifest           it cannot be opened                                   moved aside, if a version can be read
    schema, fragment   the manifest opens, but this part cannot be used      the newest intact version is restored
    data file          missing, wrong size, no footer, wrong row count;      the same
                       deep: a page that cannot be read
    deletion file      missing, unreadable, rows past the end, wrong count   the same
    ids                a row id is used twice, or is not below next_row_id   the same
    statistics, nulls  deep: values that a zone map or the schema excludes   -
    section, facts, flags, transaction, config, index                        -
                       parts of a manifest contradict each other;
                       deep: an index file that cannot be read
    naming             two naming schemes in one table                       -
    access             the store fails                                       -
    refused            untrusted: a path outside of the table, or content    -
                       that exceeds a read limit
    tag, branch        the version that it refers to is missing              -
    orphan             no version references it, and it is a week old        removed
    hint               it refers to a missing version                        rewritten

Branches are checked with their table. A repair never removes a version that can be read, nor a file that such a version
references. `Report.not_checked` lists parts that were not checked, and damage that a check cannot detect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from lancetable.commit.cleanup.cleanup_plan import plan_cleanup
from lancetable.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    LanceError,
    NotFoundError,
    UnsupportedFeatureError,
    UntrustedPathError,
)
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.manifest_naming import ManifestLocation, hint_path
from lancetable.format.paths import QUARANTINE_DIR, VERSIONS_DIR, join
from lancetable.handlers.latest_version import detached_locations
from lancetable.ops.maintain.fsck.indexes import IndexCheck
from lancetable.ops.maintain.fsck.manifests import check_manifest, has_schema
from lancetable.ops.maintain.fsck.pages import PageCheck
from lancetable.ops.maintain.fsck.quarantine import open_manifest, quarantined
from lancetable.ops.maintain.fsck.repair import ORPHANS_ONLY
from lancetable.ops.maintain.fsck.repair import repair as repair_table
from lancetable.ops.maintain.fsck.report import (
    DEFECTS,
    UNREADABLE,
    Finding,
    NotChecked,
    Problem,
    Report,
    finding_of,
    findings_of,
)
from lancetable.ops.maintain.validate import validate_data_file, validate_deletions
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.table import refs
from lancetable.table.row_counts import deleted_offsets
from lancetable.table.row_id_lookup import row_id_sequence, row_versions_at
from lancetable.table.version import Table, TableVersion, base_of_branch, checkout, on_branch


def check(
    uri: str | os.PathLike[str],
    *,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    tracker: Tracker = NO_PROGRESS,
) -> Report:
    """Check every version and every file of a table without changing anything.

    Reads manifests, footers, deletion files and row ids, and with `deep` every page of every data file, in batches.
    Raises DatasetNotFoundError, and StoreError if the versions cannot be listed.
    """
    return _Check(uri, storage_options, PageCheck(tracker) if deep else None, tracker).run()


def fsck(
    uri: str | os.PathLike[str],
    *,
    deep: bool = False,
    repair: bool = False,
    storage_options: Mapping[str, str] | None = None,
    tracker: Tracker = NO_PROGRESS,
) -> Report:
    """Check a whole table; with `repair`, repair it and check it again. Raises the errors of `check`."""
    report = check(uri, deep=deep, storage_options=storage_options, tracker=tracker)
    if not repair or report.is_clean:
        return report

    def is_intact(version: TableVersion) -> bool:
        return _Check(uri, storage_options, PageCheck() if deep else None, NO_PROGRESS).is_intact(version)

    repair_table(report, is_intact, storage_options=storage_options)
    again = check(uri, deep=deep, storage_options=storage_options, tracker=tracker)
    return replace(again, found=report.problems, repaired=report.repaired, failed=report.failed)


class _Check:
    """A check of one table. All findings are recorded by `_add`."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None,
        pages: PageCheck | None,
        tracker: Tracker,
    ) -> None:
        table = self.table = Table.of_uri(uri, storage_options)
        self.store, self.base, self.handler = table.store, table.base, table.handler
        self.report = Report(table.uri, deep=pages is not None)
        self._pages = pages
        self._indexes = IndexCheck(deep=pages is not None)
        self._tracker = tracker
        self._branch: str | None = None  # the branch that is being checked
        self._files: dict[tuple[object, ...], list[Finding]] = {}
        self._fragments: dict[tuple[bytes, ...], list[Finding]] = {}
        self._not_checked: set[NotChecked] = set()

    def run(self) -> Report:
        report = self.report
        self._tracker.begin()
        opened, report.newest, report.newest_whole = self._check_root(self.table)
        if opened is None:
            self._note(
                "versions",
                join(self.base, VERSIONS_DIR),
                "no version can be read, so nothing is repaired: a repair only moves a damaged manifest aside if an "
                "older version remains. Copy an intact manifest into _versions, from a backup or from _quarantine",
            )
            return report
        branches: list[str] = []
        try:
            self._check_refs(opened, branches)
        except UntrustedPathError as error:
            self._add(finding_of("branch", opened.base, error))
        self._check_unreferenced(opened, report.newest)
        for name in branches if opened.branch is None else ():
            self._branch = name
            self._add_all(findings_of("branch", name, partial(self._check_branch, opened, name)))
            self._branch = None
        self._note_limits()
        return report

    def is_intact(self, version: TableVersion) -> bool:
        """Return True if the check of a version below this root finds no defect."""
        self._check_location(self.table, version.location)
        return not self._has_problems(DEFECTS)

    # --- recording ----------------------------------------------------------------------------------------------------

    def _add(self, finding: Finding, version: int | None = None) -> None:
        kind, path, detail, is_damage = finding
        if is_damage:
            self.report.problems.append(Problem(kind, path, detail, version, self._branch))
            return
        part = NotChecked(kind, path, detail)
        if part not in self._not_checked:
            self._not_checked.add(part)
            self.report.not_checked.append(part)

    def _add_all(self, findings: Iterable[Finding], version: int | None = None) -> None:
        for finding in findings:
            self._add(finding, version)

    def _note(self, kind: str, path: str, detail: str) -> None:
        self._add(Finding(kind, path, detail, is_damage=False))

    def _has_problems(self, kinds: Container[str], start: int = 0) -> bool:
        return any(problem.kind in kinds for problem in self.report.problems[start:])

    # --- one branch ---------------------------------------------------------------------------------------------------

    def _check_root(self, table: Table) -> tuple[TableVersion | None, int | None, int | None]:
        """Check all versions below a root.

        Returns the newest version that can be opened, the newest number, and the number of the newest intact version.
        """
        base = table.base
        try:
            locations, latest = self.handler.history(self.store, base), self.handler.latest(self.store, base)
        except (CorruptFileError, UntrustedPathError) as error:
            self._add(finding_of("naming", join(base, VERSIONS_DIR), error))
            return None, None, None
        if not locations:
            raise DatasetNotFoundError(f"Dataset at path {table.uri} was not found", path=table.uri)
        newest = locations[-1].version
        if latest is not None and latest.version > newest and self.store.find(latest.path) is None:
            detail = (
                f"the external manifest store has a row for version {latest.version}, but its manifest is missing; put "
                "the manifest back, or remove the row"
            )
            self._add(Finding("manifest", latest.path, detail), latest.version)
        opened: TableVersion | None = None
        newest_intact: int | None = None
        for location in reversed(locations):
            self.report.versions += 1
            start = len(self.report.problems)
            version = self._check_location(table, location)
            opened = opened or version
            if version is not None and newest_intact is None and not self._has_problems(DEFECTS, start):
                newest_intact = version.version
        for location in detached_locations(self.store, base):
            self._check_location(table, location)
        return opened, newest, newest_intact

    def _check_location(self, table: Table, location: ManifestLocation) -> TableVersion | None:
        """Check one version and return it, or None if it cannot be opened."""
        number = location.version
        try:
            data = bytes(self.store.read_all(location.path))
            file = open_manifest(self.store, location, data)
        except LanceError as error:
            is_missing = isinstance(error, NotFoundError)
            # A version that no longer exists was cleaned up after the listing, which is not a problem.
            if not is_missing or self.handler.locate(self.store, table.base, number, location.naming) is not None:
                where = "" if is_missing else f"version {number}"
                self._add(finding_of("manifest", location.path, error, where), number)
            return None
        version = table.version_of(file)
        self._add_all(check_manifest(version, data), number)
        self._check_files(version)
        return version

    def _check_branch(self, opened: TableVersion, name: str) -> None:
        version, newest, _ = self._check_root(on_branch(opened, name))
        if version is None:
            self._add(Finding("branch", name, "no version of the branch can be read"))
        else:
            self._check_unreferenced(version, newest)

    # --- one version --------------------------------------------------------------------------------------------------

    def _check_files(self, version: TableVersion) -> None:
        start = len(self.report.problems)
        manifest = version.manifest
        schema = b"".join(field.SerializeToString() for field in manifest.message.fields)
        bases = b"".join(base_path.SerializeToString() for base_path in manifest.message.base_paths)
        for position, message in enumerate(manifest.fragments.messages()):
            key = (message.SerializeToString(), schema, bases, version.base.encode())
            if key not in self._fragments:
                self._fragments[key] = list(self._check_fragment(version, position))
            self._add_all(self._fragments[key], version.version)
        if has_schema(version):
            self._add_all(
                findings_of("index", version.location.path, partial(self._indexes.check, version)), version.version
            )
        if manifest.has_stable_row_ids and not self._has_problems(UNREADABLE, start):
            self._add_all(findings_of("ids", version.location.path, partial(_check_row_ids, version)), version.version)

    def _check_fragment(self, version: TableVersion, position: int) -> Iterator[Finding]:
        try:
            fragment = version.manifest.fragments[position]
        except LanceError:
            return  # reported by the check of the manifest
        findings: list[Finding] = []
        rows = fragment.physical_rows
        for file in fragment.files:
            first = file.fields[:1] if file.is_legacy else ()
            recorded = (file.size_bytes, file.column_indices, file.major, file.minor, first, rows)
            locate, check = partial(version.data_file_path, file), partial(_check_data_file, version, file, rows)
            findings += self._check_file("data file", file.path, locate, recorded, check)
        deletions = fragment.deletion_file
        if deletions is not None:
            locate = partial(version.deletion_file_path, fragment.id, deletions)
            findings += self._check_file(
                "deletion file",
                deletions.name(fragment.id),
                locate,
                (deletions.num_deleted_rows, rows),
                lambda path: validate_deletions(version, fragment, rows or 0),
            )
        findings += _check_row_versions(version, fragment)
        yield from findings
        if self._pages is not None and has_schema(version):
            # A file that cannot be opened was reported above; do not report it again for each of its columns.
            known = {finding.detail for finding in findings}
            for finding in self._pages.check(version, fragment):
                if not any(detail in finding.detail for detail in known):
                    yield finding

    def _check_file(
        self,
        kind: str,
        name: str,
        locate: Callable[[], str],
        recorded: tuple[object, ...],
        check: Callable[[str], object],
    ) -> list[Finding]:
        """Check a file once for all versions that record the same values `recorded`, such as size and row count."""
        try:
            path = locate()
        except LanceError as error:
            return [finding_of(kind, name, error)]
        key = (kind, self.store.key(path), *recorded)
        if key not in self._files:
            self.report.files += 1
            self._files[key] = list(findings_of(kind, path, partial(check, path)))
            if kind == "data file":
                self._tracker.add(num_files=1)
        return self._files[key]

    # --- tags, branches, unreferenced files ---------------------------------------------------------------------------

    def _check_refs(self, version: TableVersion, branches: list[str]) -> None:
        """Check tags and branches; add the names of the branches to `branches`."""
        for name in refs.TAGS.names(self.store, version.main_base):
            self._add_all(findings_of("tag", name, partial(_check_tag, version, name)))
        for name in refs.BRANCHES.names(self.store, version.main_base):
            self._add_all(findings_of("branch", name, partial(_check_branch_ref, version, name, branches)))

    def _check_unreferenced(self, version: TableVersion, newest: int | None) -> None:
        """Check the hint of a branch, and files that no version references."""
        self._check_hint(version.base, newest or 0)
        kept = quarantined(version.store, version.base)
        if kept:
            detail = f"{len(kept)} damaged manifests moved aside by a repair; files that only they reference are kept"
            self._note("quarantine", join(version.base, QUARANTINE_DIR), detail)
        try:
            plan = plan_cleanup(version, ORPHANS_ONLY)
        except LanceError as error:
            # A version that cannot be opened may be the only one that references some files. It is reported elsewhere.
            self._note("orphan", version.base, f"files that no version references: {error}")
            return
        for file in plan.files:
            detail = f"{file.size_bytes} bytes that no version references, at least a week old"
            self._add(Finding("orphan", file.path, detail))

    def _check_hint(self, base: str, newest: int) -> None:
        path = hint_path(base)
        try:
            if self.store.find(path) is None:
                return
            version = json.loads(bytes(self.store.read_all(path)))["version"]
            if self.handler.locate(self.store, base, version) is None or version > newest:
                self._add(Finding("hint", path, f"version {version} is missing"))
        except (LanceError, ValueError, KeyError, TypeError) as error:
            self._add(Finding("hint", path, f"unreadable: {error}"))

    def _note_limits(self) -> None:
        pages = self._pages
        if pages is None:
            self._note("pages", self.base, "the pages of data files; check them with deep=True (--deep)")
            return
        for path, columns in sorted(pages.unused.items()):
            if columns:
                self._note("columns", path, f"columns {sorted(columns)}, which no version uses")
        detail = "the format has no checksums, so changed bytes that decode to other valid values cannot be found"
        for columns_of_kind, limit in (
            (pages.columns - pages.with_zones, ""),
            (pages.columns & pages.with_zones, " within the bounds of zone maps"),
        ):
            if columns_of_kind:
                self._note("values", self.base, f"{detail}{limit}: columns {', '.join(sorted(columns_of_kind))}")


def _check_data_file(version: TableVersion, file: DataFile, rows: int | None, path: str) -> Iterator[Finding]:
    try:
        num_rows = validate_data_file(version, file)
    except UnsupportedFeatureError as error:
        with suppress(LanceError):  # if the manifest also records an unsupported version, the file is not damaged
            stated = file.file_version.number
            yield Finding("data file", path, f"{error}; the manifest records version {stated}")
            return
        raise
    if rows is not None and num_rows != rows:
        yield Finding("data file", path, f"the file has {num_rows} rows, but the manifest records {rows}")


def _check_row_versions(version: TableVersion, fragment: Fragment) -> Iterator[Finding]:
    first_row = np.zeros(min(1, fragment.physical_rows or 0), np.int64)
    for sequence, created, name in (
        (fragment.created_at, True, "creation versions"),
        (fragment.last_updated_at, False, "update versions"),
    ):
        if sequence is not None:
            read = partial(row_versions_at, version, fragment, first_row, created=created)
            yield from findings_of("ids", version.location.path, read, f"fragment {fragment.id}, {name}")


def _check_row_ids(version: TableVersion) -> Iterator[Finding]:
    """Check that stable row ids are unique among live rows and below the next one to be assigned."""
    path, next_row_id = version.location.path, version.manifest.next_row_id
    live_ids, highest = [np.zeros(0, np.uint64)], -1
    for fragment in version.manifest.fragments:
        ids, deleted = row_id_sequence(version, fragment), deleted_offsets(version, fragment)
        values = ids.values()
        highest = max(highest, int(values.max(initial=0)) if len(values) else -1)
        live_ids.append(values if deleted is None else ids.mask(deleted).values())
    live = np.sort(np.concatenate(live_ids))
    repeated = np.flatnonzero(live[1:] == live[:-1])
    if len(repeated):
        yield Finding("ids", path, f"{len(repeated)} row ids occur twice among live rows, such as {live[repeated[0]]}")
    if highest >= next_row_id:
        yield Finding("ids", path, f"row id {highest} is in use, but the next one to be assigned is {next_row_id}")


def _check_tag(version: TableVersion, name: str) -> Iterator[Finding]:
    tag = refs.TAGS.find(version.store, version.main_base, name)
    if tag is not None:
        base = base_of_branch(version, tag.branch)
        if version.handler.locate(version.store, base, tag.version) is None:
            yield Finding("tag", name, f"version {tag.version} is missing")


def _check_branch_ref(version: TableVersion, name: str, branches: list[str]) -> None:
    """Check the ref of a branch and add its name to `branches`; if `version` is on a branch, also open that branch."""
    if refs.BRANCHES.find(version.store, version.main_base, name) is not None:
        branches.append(name)
        if version.branch is not None:
            checkout(version, (name, None))
