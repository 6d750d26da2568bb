"""Tables of a report, as text with values to sort by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from lancetable.report.charts import set_name
from lancetable.report.text import count, moment, plural, share, shorten, size, visible

if TYPE_CHECKING:
    from lancetable.report.model import ColumnEntry, FilePages, Fragments, IndexEntry, TableReport, VersionEntry

PAGE_ROWS: Final = 50
"""Rows on a page of a table. Without JavaScript, only the first page is visible."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell: its text, without hidden characters except line breaks, and a number to sort by, if it has one."""

    text: str
    key: float | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """A column heading. `kind` is "text", "number", "code" or "line", which determines alignment and font."""

    label: str
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its caption. `id` is unique in the document."""

    id: str
    caption: str
    headers: tuple[Header, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def first_rows(self) -> tuple[tuple[Cell, ...], ...]:
        """The rows that are part of the document."""
        return self.rows[:PAGE_ROWS]

    def data(self) -> list[list[Any]]:
        """Return all rows for the script: strings, or pairs of text and key."""
        return [[cell.text if cell.key is None else [cell.text, cell.key] for cell in row] for row in self.rows]


def versions_table(report: TableReport) -> Table:
    """Return the versions, newest first."""
    entries = report.history.versions
    previous: dict[int, VersionEntry] = {after.version: before for before, after in pairwise(entries)}
    rows = tuple(_version_row(entry, previous.get(entry.version)) for entry in reversed(entries))
    headers = _headers(
        "#Version|@Committed (UTC)|Operation|#Rows|#Change|#Deleted|#Fragments|#Files|#Size|Tags|Message"
    )
    return Table("versions-table", "Versions, newest first", headers, rows)


def _version_row(entry: VersionEntry, before: VersionEntry | None) -> tuple[Cell, ...]:
    change = None
    if before is not None and before.num_rows is not None and entry.num_rows is not None:
        change = entry.num_rows - before.num_rows
    return (
        Cell(str(entry.version), entry.version),
        _text(moment(entry.committed)),
        _text("unreadable" if entry.problem else entry.operation or "unknown"),
        _count(entry.num_rows),
        Cell("–" if change is None else f"{change:+,}" if change else "0", change),
        _count(entry.num_deleted_rows),
        _count(entry.num_fragments),
        _count(entry.num_data_files),
        _size(entry.data_bytes),
        _text(", ".join(entry.tags)),
        _text(entry.message or ""),
    )


def fragments_table(report: TableReport) -> Table:
    """Return the listed fragments in the order of the table."""
    by_index = "Not covered by index|" if report.indexes else ""
    headers = _headers(f"#Fragment|#Rows|#Deleted|#Share|#Size|{by_index}Column sets|`Data files")
    rows = []
    for entry in report.fragments.entries:
        deleted, live = entry.num_deleted_rows, entry.num_rows
        known = deleted is not None and live is not None and deleted + live > 0
        ratio = (deleted or 0) / ((deleted or 0) + (live or 0)) if known else None
        rows.append(
            (
                Cell(str(entry.id), entry.id),
                _count(live),
                _count(deleted),
                Cell("–" if ratio is None else share(ratio, 1), ratio),
                _size(entry.size_bytes),
                *([_text(", ".join(entry.not_indexed_by))] if by_index else []),
                _text(" ".join(set_name(file.column_set) for file in entry.files)),
                _lines([file.path for file in entry.files]),
            )
        )
    return Table("fragments-table", "Fragments in the order of the table", headers, tuple(rows))


def column_sets_table(fragments: Fragments) -> Table:
    """Return the sets of columns that data files store together."""
    rows = []
    for each in fragments.column_sets:
        unused = f"{', ' if each.columns else ''}{each.num_unused} unused" if each.num_unused else ""
        columns = _text(f"{', '.join(each.columns)}{unused}")
        name = Cell(set_name(each.number), each.number)
        rows.append((name, columns, _count(each.num_files), _size(each.size_bytes)))
    caption = "Columns that data files store together"
    return Table("column-sets-table", caption, _headers("Column set|Columns|#Data files|#Size"), tuple(rows))


def columns_table(columns: Sequence[ColumnEntry]) -> Table:
    """Return the columns in the order of the schema."""
    headers = _headers(
        "Column|Type|#Stored|#Share|#Stored / Arrow|`Encodings|Lower bound|Upper bound|#Nulls|#NaN|#Pages|"
        "@Statistics from"
    )
    total = sum(column.file_bytes for column in columns)
    rows = tuple(_column_row(column, total) for column in columns)
    return Table("columns-table", "Columns in the order of the schema", headers, rows)


def _column_row(column: ColumnEntry, total: int) -> tuple[Cell, ...]:
    statistics = column.statistics
    encodings = [f"{name} × {pages:,}" if pages > 1 else name for name, pages in column.encodings.items()]
    stored = column.file_bytes if column.num_pages else None
    return (
        _text(column.path),
        _text(column.type if column.nullable else f"{column.type}, not null"),
        _size(stored),
        Cell("–" if stored is None else share(stored, total), stored),
        Cell("–" if column.ratio is None else f"{column.ratio:.3f}", column.ratio),
        _lines(encodings),
        _text(_bound(column.type, None if statistics is None else statistics.lower)),
        _text(_bound(column.type, None if statistics is None else statistics.upper)),
        _count(None if statistics is None else statistics.num_nulls),
        _count(None if statistics is None else statistics.num_nans),
        _count(column.num_pages if column.num_files else None),
        _text("" if statistics is None else f"{statistics.source}, {plural(statistics.num_rows, 'row')}"),
    )


def _bound(logical_type: str, bound: str | None) -> str:
    """Return a bound; of a floating-point type, with six digits."""
    if bound is None:
        return ""
    return f"{float(bound):.6g}" if logical_type in ("float", "double", "halffloat") else bound


def pages_table(file: FilePages, number: int) -> Table:
    """Return the listed pages of a data file, column by column."""
    headers = _headers("Column|#Page|#First row|#Rows|#Start|#End|#Size|#Buffers|`Encoding")
    rows = tuple(
        (
            _text(column.path),
            Cell(str(position), position),
            _count(page.first_row),
            _count(page.num_rows),
            _count(page.start),
            _count(page.end),
            _size(page.size_bytes),
            _count(page.num_buffers),
            _text(page.encoding, 400),
        )
        for column in file.columns
        for position, page in enumerate(column.pages)
    )
    return Table(f"pages-table-{number}", f"Pages of {visible(shorten(file.path))}", headers, rows)


def indexes_table(indexes: Sequence[IndexEntry]) -> Table:
    """Return the indexes by name."""
    headers = _headers(
        "Index|Type|Columns|#Segments|#Rows covered|#Rows not covered|#Fragments not covered|Their ids|#Size|"
        "@Created (UTC)|`Settings"
    )
    rows = tuple(
        (
            _text(index.name),
            _text(index.type),
            _text(", ".join(index.columns) or "a dropped column"),
            _count(index.num_segments),
            _count(index.num_rows),
            _count(index.num_rows_unindexed),
            _count(index.num_fragments_unindexed),
            _text(", ".join(f"{first}" if first == last else f"{first}–{last}" for first, last in index.uncovered)),
            _size(index.size_bytes),
            _text(moment(index.created)),
            _text(_settings(index.settings), 400),
        )
        for index in indexes
    )
    return Table("indexes-table", "Indexes by name", headers, rows)


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value, default=str)}" for name, value in settings.items())


def properties_tables(report: TableReport) -> Iterator[Table]:
    """Yield the tables of tags, branches and settings that are not empty."""
    overview = report.overview
    tags = [(tag.name, str(tag.version), tag.branch or "main") for tag in report.tags]
    branches = [
        (each.name, f"{each.parent_branch or 'main'} {each.parent_version}", moment(each.created))
        for each in report.branches
    ]
    yield from _strings("tags-table", "Tags", "Tag|Version|Branch", tags)
    yield from _strings("branches-table", "Branches", "Branch|Starts from|@Created (UTC)", branches)
    for name, caption, values in (
        ("config-table", "Config of the table", overview.config),
        ("metadata-table", "Metadata of the table", overview.metadata),
        ("schema-metadata-table", "Metadata of the schema", overview.schema_metadata),
    ):
        yield from _strings(name, caption, "Key|Value", values.items())


def problems_table(report: TableReport) -> Iterator[Table]:
    """Yield the table of problems, if there are any."""
    rows = [(problem.kind, problem.path, problem.detail) for problem in report.problems]
    yield from _strings("problems-table", "Parts that could not be read", "Kind|`Path|Problem", rows)


def _strings(id: str, caption: str, labels: str, rows: Iterable[Sequence[str]]) -> Iterator[Table]:
    cells = tuple(tuple(_text(text, 400) for text in row) for row in rows)
    if cells:
        yield Table(id, caption, _headers(labels), cells)


def _headers(labels: str) -> tuple[Header, ...]:
    """Return the headers for labels separated by "|"; "#" marks numbers, "`" code, "@" text on one line."""
    kinds = {"#": "number", "`": "code", "@": "line"}
    return tuple(Header(label.lstrip("#`@"), kinds.get(label[0], "text")) for label in labels.split("|"))


def _text(text: str, max_chars: int = 200) -> Cell:
    return Cell(visible(shorten(text, max_chars)))


def _lines(texts: Sequence[str]) -> Cell:
    return Cell("\n".join(visible(shorten(text, 400)) for text in texts))


def _count(number: int | None) -> Cell:
    return Cell(count(number), number)


def _size(num_bytes: int | None) -> Cell:
    return Cell(size(num_bytes), num_bytes)
