"""Charts of a report: lanes of marks above one axis, such as the fragments of a table or the bytes of a file.

    Rows        ▃▃▇▇▇▇▁    at most 3,100,000       a lane: label, marks, note
    Deleted     ▁▁▂        at most 12
    Columns A   ▇▇▇▇▇▇▇    7 files
                0     6                            the axis, which all lanes share

All text is outside of the marks, so that a chart can be stretched to any width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeVar

from lancetable.report.text import count, moment, plural, share, shorten, size

if TYPE_CHECKING:
    from lancetable.report.model import (
        FilePages,
        FragmentBin,
        Fragments,
        History,
        IndexEntry,
        PageEntry,
        TableReport,
        VersionEntry,
    )

T = TypeVar("T")

_BAR_HEIGHT: Final = 40
_TICK_HEIGHT: Final = 14
_MAX_BINS: Final = 160
_GAP: Final = 0.15  # share of a bin
_MAX_SEPARATE_BARS: Final = 80
_FILE_WIDTH: Final = 1000
_MIN_PAGE_WIDTH: Final = 1.5
_LABEL_CHARS: Final = 60
_MAX_LANES: Final = 30  # of operations and of indexes


@dataclass(frozen=True, slots=True)
class Mark:
    """A rectangle with a tooltip. Coordinates are those of the lane."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of marks; `kind` selects their colour, which has no meaning of its own."""

    label: str
    note: str
    kind: str
    height: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lanes of the same width, and the labels at both ends of their axis."""

    label: str
    width: float
    lanes: tuple[Lane, ...]
    start: str
    end: str


# ------------------------------------------------------------------------------------------------------------ versions


def versions_chart(history: History) -> Chart | None:
    """Return rows, size and fragments by version, and one lane for each kind of operation."""
    entries = history.versions
    if not entries:
        return None
    num_bins = min(len(entries), _MAX_BINS)
    edges = [len(entries) * number // num_bins for number in range(num_bins + 1)]
    bins = [entries[start:end] for start, end in pairwise(edges)]
    titles = list(map(_versions_title, bins))
    operations: dict[str, int] = {}
    for entry in entries:
        operations[_operation(entry)] = operations.get(_operation(entry), 0) + 1
    lanes = [
        _bars("Rows", "rows", [each[-1].num_rows or 0 for each in bins], titles, count),
        _bars("Size", "size", [each[-1].data_bytes or 0 for each in bins], titles, size),
        _bars("Fragments", "count", [each[-1].num_fragments or 0 for each in bins], titles, count),
    ]
    for name, total in sorted(operations.items(), key=lambda item: -item[1])[:_MAX_LANES]:
        present = [any(_operation(entry) == name for entry in each) for each in bins]
        lanes.append(_ticks(shorten(name, _LABEL_CHARS), plural(total, "version"), "tick", present, titles))
    if any(entry.tags for entry in entries):
        tagged = [any(entry.tags for entry in each) for each in bins]
        number = sum(len(entry.tags) for entry in entries)
        lanes.append(_ticks("Tags", plural(number, "tag"), "tick", tagged, titles))
    return Chart(
        f"Versions from old to new{_per_bar(len(entries), num_bins)}",
        num_bins,
        tuple(lanes),
        _version_label(entries[0]),
        _version_label(entries[-1]),
    )


def _operation(entry: VersionEntry) -> str:
    return "Unreadable" if entry.problem else entry.operation or "Unknown operation"


def _versions_title(entries: Sequence[VersionEntry]) -> str:
    last = entries[-1]
    numbers = f"Version {last.version}" if len(entries) == 1 else f"Versions {entries[0].version} to {last.version}"
    if last.problem:
        return f"{numbers}: unreadable"
    names = ", ".join(dict.fromkeys(_operation(entry) for entry in entries))
    tags = [tag for entry in entries for tag in entry.tags]
    tagged = f"; tagged {shorten(', '.join(tags))}" if tags else ""
    return f"{numbers}, {moment(last.committed)}: {names}; {count(last.num_rows)} rows, {size(last.data_bytes)}{tagged}"


def _version_label(entry: VersionEntry) -> str:
    return f"version {entry.version}" + (f", {entry.committed:%Y-%m-%d}" if entry.committed else "")


# ----------------------------------------------------------------------------------------------------------- fragments


def fragments_chart(fragments: Fragments) -> Chart | None:
    """Return rows, deleted rows, size and data files by column set of all fragments."""
    bins = fragments.bins
    if not bins:
        return None
    titles = list(map(_bin_title, bins))
    lanes = [
        _bars("Rows", "rows", [each.num_rows for each in bins], titles, count),
        _bars("Deleted rows", "deleted", [each.num_deleted_rows for each in bins], titles, count),
        _bars("Size", "size", [each.size_bytes for each in bins], titles, size),
    ]
    for columns in fragments.column_sets:
        files = [each.files_by_column_set[columns.number] for each in bins]
        label = f"Columns {set_name(columns.number)}"
        lanes.append(_bars(label, "count", files, titles, lambda number: plural(number, "file"), _TICK_HEIGHT))
    label = f"Fragments in the order of the table{_per_bar(fragments.total, len(bins))}"
    return Chart(label, len(bins), tuple(lanes), *_bin_labels(bins))


def set_name(number: int) -> str:
    """Return the name of a column set: A to Z, then A1 to Z1, and so on."""
    turn, letter = divmod(number, 26)
    return chr(ord("A") + letter) + (str(turn) if turn else "")


def _bin_title(each: FragmentBin) -> str:
    ids = f"Fragment {each.first_id}" if each.first == each.last else f"Fragments {each.first_id} to {each.last_id}"
    number = "" if each.first == each.last else f"{plural(each.num_fragments, 'fragment')}, "
    deleted = f", {count(each.num_deleted_rows)} deleted" if each.num_deleted_rows else ""
    return f"{ids}: {number}{plural(each.num_rows, 'row')}{deleted}, {size(each.size_bytes)}"


def _per_bar(total: int, num_bins: int) -> str:
    return "" if total == num_bins else f", about {total / num_bins:,.0f} in each bar"


def _bin_labels(bins: Sequence[FragmentBin]) -> tuple[str, str]:
    return f"fragment {bins[0].first_id}", f"fragment {bins[-1].last_id}"


def indexes_chart(report: TableReport) -> Chart | None:
    """Return the share of fragments that each index covers, along the fragments of the table."""
    bins = report.fragments.bins
    if not bins or not report.indexes:
        return None
    shown = report.indexes[:_MAX_LANES]
    lanes = tuple(_coverage(index, bins) for index in shown)
    which = "each index" if len(shown) == len(report.indexes) else f"the first {len(shown)} indexes"
    label = f"Coverage of the fragments by {which}{_per_bar(report.fragments.total, len(bins))}"
    return Chart(label, len(bins), lanes, *_bin_labels(bins))


def _coverage(index: IndexEntry, bins: Sequence[FragmentBin]) -> Lane:
    shares = [covered / each.num_fragments for covered, each in zip(index.covered_by_bin, bins)]
    titles = [
        f"{_bin_title(each)}; {covered:,} of {each.num_fragments:,} covered"
        for covered, each in zip(index.covered_by_bin, bins)
    ]
    total = index.num_fragments + index.num_fragments_unindexed
    note = f"{share(index.num_fragments, total)} of the fragments"
    marks = tuple(_upright(shares, 1.0, 2 * _TICK_HEIGHT, titles))
    return Lane(shorten(index.name, _LABEL_CHARS), note, "rows", 2 * _TICK_HEIGHT, marks)


# --------------------------------------------------------------------------------------------------------------- pages


def pages_chart(file: FilePages) -> Chart | None:
    """Return the pages of each column along the bytes of a data file, and its metadata."""
    if not file.columns or not file.size_bytes:
        return None
    lanes = [
        Lane(
            shorten(column.path, _LABEL_CHARS),
            f"{size(column.size_bytes)} in {plural(column.num_pages, 'page')}",
            "page",
            _TICK_HEIGHT,
            tuple(_page_marks(column.pages, file.size_bytes)),
        )
        for column in file.columns
    ]
    end = file.size_bytes - file.metadata_start
    title = f"Bytes {file.metadata_start:,} to {file.size_bytes:,}: column metadata and footer, {size(end)}"
    mark = _file_mark(file.metadata_start, file.size_bytes, file.size_bytes, title)
    lanes.append(Lane("Metadata", size(end), "count", _TICK_HEIGHT, (mark,)))
    return Chart("Pages by position in the file", _FILE_WIDTH, tuple(lanes), "byte 0", f"byte {file.size_bytes:,}")


def _page_marks(pages: Iterable[PageEntry], size_bytes: int) -> Iterator[Mark]:
    for page in pages:
        if page.end > page.start:
            rows = f"rows {page.first_row:,} to {page.first_row + page.num_rows - 1:,}"
            title = f"Bytes {page.start:,} to {page.end:,}: {rows}, {size(page.size_bytes)}, {page.encoding}"
            yield _file_mark(page.start, page.end, size_bytes, title)


def _file_mark(start: int, end: int, size_bytes: int, title: str) -> Mark:
    width = max(_FILE_WIDTH * (end - start) / size_bytes - 0.5, _MIN_PAGE_WIDTH)
    x = min(_FILE_WIDTH * start / size_bytes, _FILE_WIDTH - width)
    return Mark(round(x, 2), 0, round(width, 2), _TICK_HEIGHT, title)


# --------------------------------------------------------------------------------------------------------------- marks


def _bars(
    label: str,
    kind: str,
    values: Sequence[int],
    titles: Sequence[str],
    text: Callable[[int], str],
    height: int = _BAR_HEIGHT,
) -> Lane:
    highest = max(values)
    note = "none" if not highest else text(highest) if min(values) == highest else f"at most {text(highest)}"
    return Lane(label, note, kind, height, tuple(_upright(values, highest, height, titles)))


def _ticks(label: str, note: str, kind: str, present: Sequence[bool], titles: Sequence[str]) -> Lane:
    return Lane(label, note, kind, _TICK_HEIGHT, tuple(_upright(present, 1, _TICK_HEIGHT, titles)))


def _upright(values: Sequence[float], highest: float, height: int, titles: Sequence[str]) -> Iterator[Mark]:
    """Yield a bar for each value above zero, of at least one unit of height."""
    gap = _GAP if len(values) <= _MAX_SEPARATE_BARS else 0.0
    for position, (value, title) in enumerate(zip(values, titles)):
        if value:
            bar = max(round(height * value / highest, 2), 1)
            yield Mark(round(position + gap / 2, 3), round(height - bar, 2), 1 - gap, bar, title)
