"""Advice on the maintenance of a table, from the content of a report alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from lancetable.commit.cleanup.cleanup_plan import DEFAULT_AGE
from lancetable.format.version import FileVersion
from lancetable.report.model import Advice
from lancetable.report.text import is_shown, plural, shorten, size

if TYPE_CHECKING:
    from lancetable.report.model import IndexEntry, TableReport, VersionEntry

_MANY_VERSIONS: Final = 100
_KEPT_VERSIONS: Final = 100
_MANY_SEGMENTS: Final = 8
_RECENT: Final = timedelta(days=1)


def advise(report: TableReport) -> TableReport:
    """Return the report with advice. Of another version, the only advice is to look at the newest one."""
    overview = report.overview
    if overview.version != overview.newest_version:
        title = f"Version {overview.version} is not the newest version"
        detail = f"Maintenance changes the newest version, {overview.newest_version}: make a report of that version."
        return replace(report, advice=(*_check(report), Advice("report", title, detail, _command(report, "report"))))
    advice = (*_check(report), *_compact(report), *_cleanup(report), *_indexes(report), *_migrate(report))
    return replace(report, advice=advice)


def _check(report: TableReport) -> Iterator[Advice]:
    if report.problems:
        title = f"{plural(len(report.problems), 'part')} of the table could not be read"
        detail = "The section Problems lists them. A check reads all files of all versions and names the remedies."
        yield Advice("fsck", title, detail, _command(report, "fsck"))


def _compact(report: TableReport) -> Iterator[Advice]:
    plan = report.compaction
    if plan is None or not plan.num_tasks:
        return
    title = f"{plural(plan.num_fragments, 'fragment')} can be compacted"
    rows = plural(round(plan.num_rows / plan.num_fragments), "row")
    detail = (
        f"They have {rows} on average. Fewer and larger fragments make scans, commits and the planning of "
        f"queries faster."
    )
    if plan.num_deleted_rows:
        detail += f" The {plural(plan.num_deleted_rows, 'deleted row')} in them are removed."
    yield Advice("compact", title, detail, _command(report, "compact", "--run"))


def _cleanup(report: TableReport) -> Iterator[Advice]:
    unused = list(_unused_versions(report))
    old = _older(unused, report.generated - DEFAULT_AGE)
    newest = {entry.version for entry in report.history.versions[-_KEPT_VERSIONS:]}
    recent = [entry for entry in _older(unused, report.generated - _RECENT) if entry.version not in newest]
    at_least = "At least " if len(report.history.versions) < report.history.total else ""
    if old:
        title = f"{at_least}{plural(len(old), 'version')} older than {DEFAULT_AGE.days} days can be removed"
        detail = "A cleanup removes them and the files that only they reference. Without --run, it lists these files."
        yield Advice("cleanup", title, detail, _command(report, "cleanup", "--run"))
    elif len(recent) >= _MANY_VERSIONS:
        title = f"{at_least}{len(recent):,} versions older than a day can be removed"
        detail = (
            f"Each version keeps its manifest and the files that it references. This cleanup keeps the newest "
            f"{_KEPT_VERSIONS} versions, and all versions of the last 24 hours. The others cannot be read afterwards."
        )
        options = ("--retain", str(_KEPT_VERSIONS), "--older-than", "24h", "--run")
        yield Advice("cleanup", title, detail, _command(report, "cleanup", *options))


def _older(entries: Iterable[VersionEntry], time: datetime) -> list[VersionEntry]:
    return [entry for entry in entries if entry.committed is not None and entry.committed < time]


def _unused_versions(report: TableReport) -> Iterator[VersionEntry]:
    """Yield the versions before the described one that no tag and no branch refers to."""
    overview = report.overview
    parents = {branch.parent_version for branch in report.branches if branch.parent_branch == overview.branch}
    for entry in report.history.versions:
        if entry.version < overview.version and not entry.tags and entry.version not in parents:
            yield entry


def _indexes(report: TableReport) -> Iterator[Advice]:
    used = [index for index in report.indexes if index.columns]
    uncovered = [index for index in used if index.num_fragments_unindexed]
    if uncovered:
        title = f"{_names(uncovered)} {'does' if len(uncovered) == 1 else 'do'} not cover all rows"
        rows = max(index.num_rows_unindexed or 0 for index in uncovered)
        which = f"up to {plural(rows, 'row')}" if rows else "the rows"
        detail = f"Queries that use an index also scan {which} that it does not cover."
        yield Advice("index", title, detail, _command(report, "index optimize", "--run"))
    divided = [index for index in used if index.num_segments >= _MANY_SEGMENTS]
    if divided:
        title = f"{_names(divided)} {'has' if len(divided) == 1 else 'have'} many segments"
        most = max(index.num_segments for index in divided)
        detail = f"A query searches each segment, of which there are up to {most:,}. Merged, they are searched once."
        yield Advice("index", title, detail, _command(report, "index optimize", "--merge", str(most), "--run"))
    for index in report.indexes:
        if not index.columns:
            title = f"{_names([index])} is on a column that does not exist any more"
            detail = "Queries do not use it. The next commit of this library removes it."
            yield Advice("index", title, detail, _command(report, "index drop", "--run", arguments=(index.name,)))


def _names(indexes: Sequence[IndexEntry]) -> str:
    """Return the noun and the names of indexes; of many indexes, their number and the first names."""
    names = ", ".join(f'"{shorten(index.name, 60)}"' for index in indexes[:3])
    more = len(indexes) - 3
    return f"{'Index' if len(indexes) == 1 else 'Indexes'} {names}{f' and {more} more' if more > 0 else ''}"


def _migrate(report: TableReport) -> Iterator[Advice]:
    overview = report.overview
    if overview.data_format == FileVersion.LEGACY.number and overview.num_data_files:
        title = "The data files have format 0.1"
        detail = (
            f"Newer formats support nulls of all types, more compression, and faster access to single rows. "
            f"A migration rewrites {size(overview.data_bytes)}."
        )
        yield Advice("migrate", title, detail, _command(report, "migrate", "--run"))


def _command(report: TableReport, name: str, *options: str, arguments: tuple[str, ...] = ()) -> str:
    """Return a command of the command line for the table."""
    words = [report.overview.uri, *arguments]
    end_of_options = ["--"] if any(word.startswith("-") for word in words) else []
    return " ".join(["lancetable", name, *options, *end_of_options, *map(shell_quote, words)])


def shell_quote(text: str) -> str:
    """Return a string as a word of a shell. Control characters are escaped, which needs Bash or a shell like it."""
    if is_shown(text):
        return shlex.quote(text)
    escaped = "".join(_escape(character) for character in text)
    return f"$'{escaped}'"


def _escape(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if is_shown(character):
        return character
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a path that is not UTF-8; see os.fsdecode
        return f"\\x{code - 0xDC00:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
