"""Check a whole table: every version, every file that a version names, references to versions, and unnamed files.

    problem            found by                                              repaired by
    manifest           it does not open                                      moving it aside, if a version can be read
    schema, fragment   it opens, and these parts of it cannot be used        restoring the newest whole version
    data file          missing, other size, no footer, other row count;      the same
                       deep: a page that cannot be read
    deletion file      missing, unreadable, rows past the end, other count   the same
    ids                an id occurs twice, or is still to be given out       the same
    statistics, nulls  deep: values that a zone map or the schema excludes   -
    section, facts, flags, transaction, config, index                        -
                       parts of a manifest contradict each other
    naming             two naming schemes in one table                       -
    access             the store fails                                       -
    tag, branch        the version that it names is missing                  -
    orphan             no version names it, and it is a week old             removing it
    hint               it names a version that is missing                    writing it again

Branches are checked with the table that they belong to. Repair never removes a version that can be read, nor a file
that one names. `Report.not_checked` lists what a check cannot find, or did not look at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from lancetable.commit.gc.cleanup import plan_cleanup
from lancetable.errors import (
    CorruptFileError,
    DatasetNotFoundError,
    LanceError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lancetable.format.flags import check_readable
from lancetable.format.fragment import DataFile, Fragment
from lancetable.format.paths import (
    BRANCHES_DIR,
    QUARANTINE_DIR,
    TAGS_DIR,
    VERSIONS_DIR,
    branch_root,
    hint_path,
    is_detached,
    join,
    parse_manifest_name,
)
from lancetable.handlers.base import ManifestLocation
from lancetable.handlers.choose import choose_handler
from lancetable.ops.maintain.fsck.manifests import Finding, check_manifest, finding_of, has_schema
from lancetable.ops.maintain.fsck.pages import PageCheck
from lancetable.ops.maintain.fsck.quarantine import quarantined
from lancetable.ops.maintain.fsck.repair import ORPHANS_ONLY
from lancetable.ops.maintain.fsck.repair import repair as mend
from lancetable.ops.maintain.fsck.report import UNREADABLE, WRONG, NotChecked, Problem, Report
from lancetable.ops.maintain.validate import validate_data_file, validate_deletions
from lancetable.ops.tracker import Tracker
from lancetable.store.open import open_store
from lancetable.table import refs
from lancetable.table.cache import TableCache
from lancetable.table.manifests import met_manifest
from lancetable.table.row_count_index import deleted_offsets
from lancetable.table.row_id_lookup import row_id_sequence, row_versions_at
from lancetable.table.version import TableVersion, base_of_branch, checkout, uri_of_branch

__all__ = ["NotChecked", "Problem", "Report", "check", "fsck"]


def check(
    uri: str | os.PathLike[str],
    *,
    deep: bool = False,
    storage_options: Mapping[str, str] | None = None,
    tracker: Tracker | None = None,
) -> Report:
    """Check every version of a table and every file; nothing is changed.

    Reads manifests, footers, deletion files and row ids, and with `deep` every page of every data file, in batches.
    Raises DatasetNotFoundError, and StoreError if the versions cannot be listed.
    """

    def counted(rows: int, size_bytes: int) -> None:
        if tracker is not None:
            tracker.add(num_rows=rows, num_bytes=size_bytes)

    return _Check(uri, storage_options, PageCheck(counted) if deep else None, tracker).run()


def fsck(
    uri: str | os.PathLike[str],
    *,
    deep: bool = False,
    repair: bool = False,
    storage_options: Mapping[str, str] | None = None,
    tracker: Tracker | None = None,
) -> Report:
    """Check a whole table, with `repair` mend it and check it again. Raises as `check`."""
    report = check(uri, deep=deep, storage_options=storage_options, tracker=tracker)
    if not repair or report.is_clean:
        return report

    def is_whole(version: TableVersion) -> bool:
        return _Check(uri, storage_options, PageCheck() if deep else None, None).is_whole(version)

    mend(report, is_whole, storage_options=storage_options)
    again = check(uri, deep=deep, storage_options=storage_options, tracker=tracker)
    return replace(again, found=report.problems, repaired=report.repaired, failed=report.failed)


class _Check:
    def __init__(
        self,
        uri: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None,
        pages: PageCheck | None,
        tracker: Tracker | None,
    ) -> None:
        self.store, self.base = open_store(uri, storage_options)
        self.uri, self.options = os.fspath(uri), storage_options
        self.handler = choose_handler(self.store, self.uri, storage_options=storage_options)
        self.report = Report(self.uri, deep=pages is not None)
        self.cache = TableCache()
        self._pages = pages
        self._tracker = tracker
        self._branch: str | None = None  # the one that is being checked
        self._files: dict[tuple[object, ...], list[Finding]] = {}
        self._fragments: dict[tuple[bytes, ...], list[Finding]] = {}
        self._noted: set[NotChecked] = set()

    def run(self) -> Report:
        report = self.report
        if self._tracker is not None:
            self._tracker.begin()
        opened, report.newest, report.newest_whole = self._check_root(self.uri, self.base)
        if opened is None:
            self._note_unreadable()
            return report
        branches = self._check_refs(opened)
        self._check_leftovers(opened, report.newest)
        if opened.branch is None:
            for name in branches:
                self._check_branch(opened, name)
        self._note_limits()
        return report

    def is_whole(self, version: TableVersion) -> bool:
        """Return True if a version of this root can be read."""
        self._check_location(self.uri, self.base, version.location)
        return not any(problem.kind in WRONG for problem in self.report.problems)

    # --- one branch ---------------------------------------------------------------------------------------------------

    def _check_root(self, uri: str, base: str) -> tuple[TableVersion | None, int | None, int | None]:
        """Check all versions below a root; return the newest that opens, the newest number and the newest whole one."""
        try:
            locations = self.handler.history(self.store, base)
        except CorruptFileError as error:
            self._problem("naming", join(base, VERSIONS_DIR), error)
            return None, None, None
        if not locations:
            raise DatasetNotFoundError(f"Dataset at path {uri} was not found", path=uri)
        self._check_latest(base, locations[-1].version)
        opened: TableVersion | None = None
        newest_whole: int | None = None
        for location in reversed(locations):
            self.report.versions += 1
            before = len(self.report.problems)
            version = self._check_location(uri, base, location)
            if version is None:
                continue
            opened = opened or version
            if newest_whole is None and not any(each.kind in WRONG for each in self.report.problems[before:]):
                newest_whole = version.version
        self._check_detached(uri, base)
        return opened, locations[-1].version, newest_whole

    def _check_latest(self, base: str, newest: int) -> None:
        """Check that the version that readers take for the newest has a manifest; rows may outlive their objects."""
        latest = self.handler.latest(self.store, base)
        if latest is not None and latest.version > newest and self.store.find(latest.path) is None:
            detail = (
                f"the external manifest store has a row for version {latest.version}, and there is no such object: put "
                "the manifest back, or remove the row"
            )
            self._problem("manifest", latest.path, detail, latest.version)

    def _check_location(self, uri: str, base: str, location: ManifestLocation) -> TableVersion | None:
        """Check one version and return it; None if it cannot be opened."""
        number = location.version
        try:
            data = bytes(self.store.read_all(location.path))
            file = met_manifest(self.store, location, data)
            check_readable(file.manifest.reader_flags, location.path, writer_flags=file.manifest.writer_flags)
        except NotFoundError as error:
            if self.handler.locate(self.store, base, number, location.naming) is not None:
                self._problem("manifest", location.path, error, number)
            return None  # cleaned up after it was listed
        except LanceError as error:
            self._add(finding_of("manifest", location.path, error, f"version {number}"), number)
            return None
        version = TableVersion(self.store, base, uri, self.handler, self.cache, self.options, file)
        for finding in check_manifest(version, data):
            self._add(finding, number)
        self._check_files(version)
        return version

    def _check_detached(self, uri: str, base: str) -> None:
        for meta in self.store.list_names(join(base, VERSIONS_DIR)):
            parsed = parse_manifest_name(meta.name)
            if parsed is not None and is_detached(parsed[0]):
                path = join(base, f"{VERSIONS_DIR}/{meta.name}")
                self._check_location(uri, base, ManifestLocation(parsed[0], path, meta.size_bytes, parsed[1]))

    def _check_branch(self, opened: TableVersion, name: str) -> None:
        self._branch = name
        try:
            root = branch_root(opened.main_base, name)
            of_branch, newest, _ = self._check_root(uri_of_branch(opened, name), root)
            if of_branch is None:
                self._problem("branch", name, "no version of the branch can be read")
            else:
                self._check_leftovers(of_branch, newest)
        except LanceError as error:
            self._problem("branch", name, error)
        finally:
            self._branch = None

    # --- one version --------------------------------------------------------------------------------------------------

    def _check_files(self, version: TableVersion) -> None:
        before = len(self.report.problems)
        manifest = version.manifest
        schema = b"".join(each.SerializeToString() for each in manifest.message.fields)
        bases = b"".join(each.SerializeToString() for each in manifest.message.base_paths)
        for place, message in enumerate(manifest.fragments.messages()):
            key = (message.SerializeToString(), schema, bases, version.base.encode())
            found = self._fragments.get(key)
            if found is None:
                found = self._fragments[key] = list(self._fragment_findings(version, place))
            for finding in found:
                self._add(finding, version.version)
        if manifest.has_stable_row_ids and not any(each.kind in UNREADABLE for each in self.report.problems[before:]):
            self._check_row_ids(version)

    def _fragment_findings(self, version: TableVersion, place: int) -> Iterator[Finding]:
        try:
            fragment = version.manifest.fragments[place]
        except LanceError:
            return  # reported by the check of the manifest
        found: list[Finding] = []
        for number in range(len(fragment.files)):
            found += self._data_file_findings(version, fragment, number)
        if fragment.deletion_file is not None:
            found += self._deletion_findings(version, fragment)
        found += _row_version_findings(version, fragment)
        yield from found
        if self._pages is not None and has_schema(version):
            # A file that cannot be opened is reported above, once and not for each of its columns.
            known = {finding.detail for finding in found}
            for finding in self._pages.check(version, fragment):
                if not any(detail in finding.detail for detail in known):
                    yield finding

    def _data_file_findings(self, version: TableVersion, fragment: Fragment, number: int) -> list[Finding]:
        file, rows = fragment.files[number], fragment.physical_rows
        try:
            path = version.data_file_path(file)
        except LanceError as error:
            return [finding_of("data file", file.path, error)]
        first = file.fields[:1] if file.is_legacy else ()
        key = ("data", self.store.key(path), file.size_bytes, file.column_indices, file.major, file.minor, first, rows)
        if key in self._files:
            return self._files[key]
        self.report.files += 1
        found: list[Finding] = []
        try:
            num_rows = validate_data_file(version, file)
            if rows is not None and num_rows != rows:
                found.append(Finding("data file", path, f"{num_rows} rows, the manifest has {rows}"))
        except UnsupportedFeatureError as error:
            found.append(_unsupported_file(file, path, error))
        except Exception as error:
            found.append(finding_of("data file", path, error))
        if self._tracker is not None:
            self._tracker.add(num_files=1)
        self._files[key] = found
        return found

    def _deletion_findings(self, version: TableVersion, fragment: Fragment) -> list[Finding]:
        file = fragment.deletion_file
        assert file is not None
        try:
            path = version.deletion_file_path(fragment.id, file)
        except LanceError as error:
            return [finding_of("deletion file", file.name(fragment.id), error)]
        key = ("deletions", self.store.key(path), file.num_deleted_rows, fragment.physical_rows)
        if key in self._files:
            return self._files[key]
        self.report.files += 1
        found = self._files[key] = []
        try:
            validate_deletions(version, fragment, fragment.physical_rows or 0)
        except Exception as error:
            found.append(finding_of("deletion file", path, error))
        return found

    def _check_row_ids(self, version: TableVersion) -> None:
        """Check that stable row ids are unique among live rows and below the next one to be given out."""
        path, parts = version.location.path, []
        highest = -1
        try:
            for fragment in version.manifest.fragments:
                ids, deleted = row_id_sequence(version, fragment), deleted_offsets(version, fragment)
                values = ids.values()
                highest = max(highest, int(values.max()) if len(values) else -1)
                parts.append(values if deleted is None else ids.mask(deleted).values())
        except Exception as error:
            self._add(finding_of("ids", path, error), version.version)
            return
        live = np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.uint64)
        twice = np.flatnonzero(live[1:] == live[:-1])
        if len(twice):
            detail = f"{len(twice)} row ids occur twice among live rows, such as {live[twice[0]]}"
            self._problem("ids", path, detail, version.version)
        if highest >= version.manifest.next_row_id:
            detail = f"row id {highest} is in use, and the next one to be given out is {version.manifest.next_row_id}"
            self._problem("ids", path, detail, version.version)

    # --- what surrounds the versions ----------------------------------------------------------------------------------

    def _check_refs(self, version: TableVersion) -> list[str]:
        """Check tags and branches; return the names of the branches."""
        store, main = version.store, version.main_base
        for name in self._ref_names(join(main, TAGS_DIR)):
            try:
                tag = refs.TAGS.find(store, main, name)
                if tag is not None:
                    base = base_of_branch(version, tag.branch)
                    if self.handler.locate(store, base, tag.version) is None:
                        self._problem("tag", name, f"version {tag.version} is missing", tag.version)
            except LanceError as error:  # noqa: PERF203 - each tag by itself
                self._add(finding_of("tag", name, error), None)
        branches = []
        for name in self._ref_names(join(main, BRANCHES_DIR)):
            name = name.replace("%2F", "/")
            try:
                branch = refs.BRANCHES.find(store, main, name)
            except LanceError as error:
                self._add(finding_of("branch", name, error), None)
                continue
            if branch is not None:
                branches.append(name)
        if version.branch is not None:
            for name in branches:
                try:
                    checkout(version, (name, None))
                except LanceError as error:  # noqa: PERF203 - each branch by itself
                    self._add(finding_of("branch", name, error), None)
        return branches

    def _ref_names(self, prefix: str) -> list[str]:
        names = (meta.name for meta in self.store.list_names(prefix))
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))

    def _check_leftovers(self, version: TableVersion, newest: int | None) -> None:
        """Check the hint of a branch, and files that no version names."""
        self._check_hint(version.base, newest or 0)
        kept = quarantined(version.store, version.base)
        if kept:
            detail = f"damaged manifests that a repair moved aside: {len(kept)}; files that only they name are kept"
            self._note("quarantine", join(version.base, QUARANTINE_DIR), detail)
        try:
            plan = plan_cleanup(version, ORPHANS_ONLY)
        except LanceError as error:
            # A version that does not open is a problem of its own, and may need files that no other version names.
            self._note("orphan", version.base, f"files that no version names: {error}")
            return
        for each in plan.files:
            self._problem("orphan", each.path, f"{each.size_bytes} bytes that no version names, a week old or older")

    def _check_hint(self, base: str, newest: int) -> None:
        path = hint_path(base)
        try:
            if self.store.find(path) is None:
                return
            hinted = json.loads(bytes(self.store.read_all(path)))["version"]
            if self.handler.locate(self.store, base, hinted) is None or hinted > newest:
                self._problem("hint", path, f"version {hinted} is missing")
        except (LanceError, ValueError, KeyError, TypeError) as error:
            self._problem("hint", path, f"unreadable: {error}")

    # --- the report ---------------------------------------------------------------------------------------------------

    def _problem(self, kind: str, path: str, detail: object, version: int | None = None) -> None:
        self.report.problems.append(Problem(kind, path, str(detail), version, self._branch))

    def _note(self, kind: str, path: str, detail: str) -> None:
        each = NotChecked(kind, path, detail)
        if each not in self._noted:
            self._noted.add(each)
            self.report.not_checked.append(each)

    def _add(self, finding: Finding, version: int | None) -> None:
        if finding.is_damage:
            self._problem(finding.kind, finding.path, finding.detail, version)
        else:
            self._note(finding.kind, finding.path, finding.detail)

    def _note_unreadable(self) -> None:
        detail = (
            "no version can be read, so nothing is repaired: a repair only moves a damaged manifest aside if an older "
            "version remains. Copy a whole manifest into _versions, from a backup or from _quarantine"
        )
        self._note("versions", join(self.base, VERSIONS_DIR), detail)

    def _note_limits(self) -> None:
        pages = self._pages
        if pages is None:
            self._note("pages", self.base, "the pages of data files; check them with deep=True (--deep)")
            return
        for path, columns in sorted(pages.unused.items()):
            if columns:
                self._note("columns", path, f"columns {sorted(columns)}, which no version uses")
        bounded = sorted(pages.columns & pages.with_zones)
        others = sorted(pages.columns - pages.with_zones)
        detail = "the format has no checksums, so changed bytes that decode to other valid values cannot be found"
        if others:
            self._note("values", self.base, f"{detail}: columns {', '.join(others)}")
        if bounded:
            self._note("values", self.base, f"{detail} within the bounds of zone maps: columns {', '.join(bounded)}")


def _unsupported_file(file: DataFile, path: str, error: UnsupportedFeatureError) -> Finding:
    """Return the finding for a file of a newer version: damage only if the manifest has a version that can be read."""
    try:
        stated = file.file_version
    except LanceError:
        return finding_of("data file", path, error)
    return Finding("data file", path, f"{error}; the manifest has version {stated.number} for it")


def _row_version_findings(version: TableVersion, fragment: Fragment) -> list[Finding]:
    found = []
    first = np.zeros(min(1, fragment.physical_rows or 0), np.int64)
    for sequence, created in ((fragment.created_at, True), (fragment.last_updated_at, False)):
        if sequence is None:
            continue
        try:
            row_versions_at(version, fragment, first, created=created)
        except Exception as error:
            what = "creation versions" if created else "update versions"
            found.append(finding_of("ids", version.location.path, error, f"fragment {fragment.id}, {what}"))
    return found
