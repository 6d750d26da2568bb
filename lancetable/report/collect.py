"""Collection of the content of a report."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import lancetable
from lancetable.errors import InvalidRefError
from lancetable.format.manifest_naming import is_detached
from lancetable.format.refs import BranchContents, TagContents
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.report.advice import advise
from lancetable.report.compaction import planned_compaction
from lancetable.report.files import choose_files, read_sample
from lancetable.report.findings import Findings
from lancetable.report.fragments import FragmentCounts, count_fragments, describe_fragments
from lancetable.report.history import newest_locations, read_history
from lancetable.report.indexes import coverage_of, index_entries, read_indexes
from lancetable.report.model import SCHEMA_VERSION, BranchEntry, Limits, Overview, TableReport, TagEntry
from lancetable.schema import string_metadata
from lancetable.table import refs

if TYPE_CHECKING:
    from lancetable.table.version import TableVersion

Contents = TypeVar("Contents", TagContents, BranchContents)

_MAX_REFS = 1000


def collect(
    version: TableVersion,
    *,
    limits: Limits | None = None,
    file: str | None = None,
    tracker: Tracker = NO_PROGRESS,
) -> TableReport:
    """Collect the report on a version.

    Parameters
    ----------
    version
        The version to describe.
    limits
        Limits of the work.
    file
        Path of a data file whose pages are listed first, relative to the data directory.
    tracker
        Progress: versions and data files that were read.

    Raises
    ------
    InvalidInputError
        If the version has no data file `file`.
    CorruptFileError
        If the manifest of the version is damaged.
    StoreError
        If the versions cannot be listed.
    """
    limits, findings = limits or Limits(), Findings()
    counts = count_fragments(version, limits)
    chosen = choose_files(version, counts, limits, file)
    locations = version.handler.history(version.store, version.base)
    shown = newest_locations(locations, version.location.size_bytes or 0, limits, findings)
    tracker.begin(total_files=len(shown) + len(chosen))
    tags, branches = _tags(version, findings), _branches(version, findings)
    history = read_history(version, shown, len(locations), tags, findings, tracker)
    segments = read_indexes(version, limits, findings)
    coverage = coverage_of(segments, counts)
    indexes = tuple(index_entries(version, segments, coverage, counts, limits, findings))
    fragments = describe_fragments(version, counts, coverage, limits, findings)
    sample = read_sample(version, counts, chosen, limits, findings, tracker)
    compaction = planned_compaction(version, counts, limits, findings)
    numbers = [location.version for location in locations[-1:]]
    newest = max(numbers if numbers and is_detached(version.version) else [version.version, *numbers])
    report = TableReport(
        SCHEMA_VERSION,
        datetime.now(timezone.utc),
        f"lancetable {lancetable.__version__}",
        limits,
        _overview(version, counts, newest, findings),
        tags,
        branches,
        history,
        fragments,
        sample.sample,
        sample.columns,
        sample.files,
        indexes,
        compaction,
        tuple(findings.problems),
        findings.all_notes(),
    )
    return advise(report)


def _overview(version: TableVersion, counts: FragmentCounts, newest: int, findings: Findings) -> Overview:
    manifest, path = version.manifest, version.location.path
    writer = manifest.writer_version
    data_format = findings.attempt("manifest", path, lambda: manifest.data_format or manifest.file_version.number)
    messages = manifest.fragments.messages()
    return Overview(
        str(version.uri),
        tuple(sorted(name for name in version.storage_options or {} if name != "untrusted")),
        version.version,
        newest,
        version.branch,
        findings.attempt("manifest", path, lambda: manifest.timestamp),
        None if writer is None else f"{writer.library} {writer.version}",
        data_format or "unknown",
        manifest.has_stable_row_ids,
        version.location.naming.name,
        counts.num_rows,
        counts.num_deleted_rows,
        len(counts.ids),
        len(counts.file_sets),
        sum(message.HasField("deletion_file") for message in messages),
        int(counts.sizes.sum()),
        len(version.schema.fields),
        dict(manifest.config),
        dict(manifest.table_metadata),
        string_metadata(manifest.schema_metadata),
    )


def _tags(version: TableVersion, findings: Findings) -> tuple[TagEntry, ...]:
    return tuple(TagEntry(name, tag.version, tag.branch) for name, tag in _refs(version, refs.TAGS, findings))


def _branches(version: TableVersion, findings: Findings) -> tuple[BranchEntry, ...]:
    return tuple(
        BranchEntry(name, branch.parent_branch, branch.parent_version, _time_of(branch.create_at_seconds))
        for name, branch in _refs(version, refs.BRANCHES, findings)
    )


def _refs(version: TableVersion, kind: refs.RefFiles[Contents], findings: Findings) -> Iterator[tuple[str, Contents]]:
    """Yield the first refs of a kind with their names."""
    base = findings.attempt(kind.kind, version.uri, lambda: version.main_base)
    if base is None:
        return
    names = findings.attempt(kind.kind, version.uri, lambda: kind.names(version.store, base)) or ()
    if len(names) > _MAX_REFS:
        what = {"tag": "tags", "branch": "branches"}[kind.kind]
        findings.notes.append(f"The first {_MAX_REFS:,} of {len(names):,} {what} are listed.")
    for name in names[:_MAX_REFS]:
        try:
            path = kind.path(base, name)
        except InvalidRefError:
            continue  # a file of this name is no ref
        contents = findings.attempt(kind.kind, path, partial(kind.find, version.store, base, name))
        if contents is not None:
            yield name, contents


def _time_of(seconds: int) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None
