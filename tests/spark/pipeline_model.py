"""Plain-Python model of a pipeline: files, batches, merges by key, and the counts of each batch.

The model keeps a table as a list of rows. It reads no file: a landed file is given as the values that its fields parse
to, so that parsing itself is left to Spark.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

Value: TypeAlias = int | float | str | bool | dt.date | dt.datetime | None
Row: TypeAlias = dict[str, Value]


class Refused(Exception):
    """A batch that the pipeline must refuse. `words` must appear in its error."""

    def __init__(self, reason: str, *words: str) -> None:
        super().__init__(reason)
        self.reason, self.words = reason, words


@dataclass(frozen=True)
class Line:
    """One row of a file: the value of each column, and the columns whose string does not parse.

    `fields` is the number of fields of a CSV line if that is not the number of columns. A line that is `broken` has no
    values at all.
    """

    values: Mapping[str, Value]
    unparsed: frozenset[str] = frozenset()
    fields: int | None = None
    broken: bool = False

    def value(self, name: str, columns: Sequence[str]) -> Value:
        """Return what a column of a file with these columns holds."""
        return self.values.get(name) if self.has(name, columns) and name not in self.unparsed else None

    def is_blank(self, columns: Sequence[str]) -> bool:
        """Return whether a CSV line is empty: Spark skips it, as all CSV readers do."""
        is_single = (self.fields or len(columns)) == 1
        return is_single and self.values.get(columns[0]) is None and columns[0] not in self.unparsed

    def has(self, name: str, columns: Sequence[str]) -> bool:
        """Return whether the line has a string for a column."""
        return not self.broken and name in columns[: self.fields]


@dataclass(frozen=True)
class Landed:
    """A file: its path below the folder, the order in which Spark reads it, its columns and its rows."""

    name: str
    order: int
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Settings:
    """The settings of a pipeline that decide what a batch does. `schema` is None where it is taken from the files."""

    format: Literal["csv", "json", "parquet"]
    key: tuple[str, ...]
    schema: tuple[str, ...] | None = None
    newest_by: str | None = None
    null_keys: Literal["refuse", "drop", "keep"] = "refuse"
    files_per_batch: int | None = None
    max_unparsed: int | None = None
    skipped: tuple[str, Value] | None = None  # `clean` leaves out the rows with this value in this column


@dataclass
class Counts:
    """The counts of one batch, named as in `Step`."""

    rows_read: int = 0
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_unchanged: int = 0
    rows_dropped: int = 0
    rows_superseded: int = 0
    rows_older: int = 0
    rows_without_order: int = 0
    rows_unparsed: int = 0
    unparsed: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Table:
    """A table: its columns in order, and its rows in no order."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...] = ()

    def with_columns(self, *names: str) -> Table:
        """Add columns of nulls."""
        rows = tuple({**row, **dict.fromkeys(names)} for row in self.rows)
        return Table((*self.columns, *names), rows)


def plan_batches(files: Iterable[Landed], files_per_batch: int | None) -> list[list[Landed]]:
    """Divide unread files into batches, oldest first."""
    ordered = sorted(files, key=lambda file: file.order)
    size = files_per_batch or max(1, len(ordered))
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def frame_columns(settings: Settings, batch: Sequence[Landed], folder: Sequence[Landed]) -> tuple[str, ...]:
    """Return the columns of a batch in the order of the frame. `folder` is all files that are there."""
    if settings.format == "csv" and settings.schema is None:
        return tuple(dict.fromkeys(name for file in batch for name in file.columns))
    if settings.format == "csv":
        lacking = [name for name in settings.schema or () for file in batch if name not in file.columns]
        if lacking:
            raise Refused("a header lacks a column of the schema", lacking[0])
    if settings.schema is not None:
        return settings.schema
    union = dict.fromkeys(name for file in folder for name in file.columns)
    return tuple(sorted(union)) if settings.format == "json" else tuple(union)


def read_batch(settings: Settings, columns: Sequence[str], batch: Iterable[Landed]) -> tuple[list[Row], Counts]:
    """Return the rows of a batch as they enter the merge, and what did not parse."""
    rows: list[Row] = []
    rows_unparsed, unparsed = 0, Counter[str]()
    for file in batch:
        for line in file.lines:
            if settings.format == "csv" and line.is_blank(file.columns):
                continue
            bad = [name for name in columns if name in line.unparsed and line.has(name, file.columns)]
            unparsed.update(bad)
            rows_unparsed += bool(bad) or line.broken or line.fields not in (None, len(file.columns))
            row = {name: line.value(name, file.columns) for name in columns}
            if settings.skipped is None or row.get(settings.skipped[0]) != settings.skipped[1]:
                rows.append(row)
    return rows, Counts(rows_read=len(rows), rows_unparsed=rows_unparsed, unparsed=dict(unparsed))


def take_batch(
    table: Table | None, settings: Settings, batch: Sequence[Landed], folder: Sequence[Landed]
) -> tuple[Table, Counts]:
    """Return the table after a batch, which creates it if necessary, and the counts. Raises Refused."""
    if not batch:  # all of its files were removed
        return table or Table(settings.schema or ()), Counts()
    columns = frame_columns(settings, batch, folder)
    rows, counts = read_batch(settings, columns, batch)
    if settings.max_unparsed is not None and counts.rows_unparsed > settings.max_unparsed:
        raise Refused("too many records do not parse", f"max_unparsed={settings.max_unparsed}")
    for name in (*settings.key, *([settings.newest_by] if settings.newest_by else [])):
        if name not in columns:
            raise Refused("the batch lacks a column that the pipeline needs", name)
    merged, counts = merge(table or Table(columns), columns, rows, settings, counts)
    unknown = [name for name in columns if name not in merged.columns]
    if unknown:
        raise Refused("the table lacks a column of the batch", unknown[0])
    return merged, counts


def merge(
    table: Table, columns: Sequence[str], rows: Sequence[Row], settings: Settings, counts: Counts | None = None
) -> tuple[Table, Counts]:
    """Merge rows by key into a table; `counts` holds what reading found. Raises Refused."""
    counts = replace(counts) if counts is not None else Counts()
    counts.rows_read = len(rows)
    keyless = [row for row in rows if any(row[name] is None for name in settings.key)]
    if keyless and settings.null_keys == "refuse":
        raise Refused("rows have a null key", str(len(keyless)))
    stored = {key: row for row in table.rows if (key := _key(row, settings)) is not None}
    inserted: list[Row] = []
    if settings.null_keys == "keep":
        inserted += keyless
    else:
        counts.rows_dropped = len(keyless)
    replaced: dict[tuple[Value, ...], Row] = {}
    for key, rivals in _by_key(rows, settings).items():
        winner = _winner(rivals, columns, settings)
        counts.rows_superseded += len(rivals) - 1
        old = stored.get(key)
        if old is None:
            inserted.append(winner)
        elif (loss := _loss(winner, old, settings)) is not None:
            setattr(counts, loss, getattr(counts, loss) + 1)
        elif all(winner[name] == old.get(name) for name in columns):
            counts.rows_unchanged += 1
        else:
            counts.rows_updated += 1
            replaced[key] = {**old, **winner}
    counts.rows_inserted = len(inserted)
    kept = [replaced.get(key, row) if (key := _key(row, settings)) is not None else row for row in table.rows]
    complete = [{name: row.get(name) for name in table.columns} for row in inserted]
    return Table(table.columns, (*kept, *complete)), counts


def _key(row: Row, settings: Settings) -> tuple[Value, ...] | None:
    key = tuple(row[name] for name in settings.key)
    return None if None in key else key


def _by_key(rows: Iterable[Row], settings: Settings) -> dict[tuple[Value, ...], list[Row]]:
    found: dict[tuple[Value, ...], list[Row]] = {}
    for row in rows:
        key = _key(row, settings)
        if key is not None:
            found.setdefault(key, []).append(row)
    return found


def _winner(rivals: Sequence[Row], columns: Sequence[str], settings: Settings) -> Row:
    if settings.newest_by is None:
        if len(rivals) > 1:
            raise Refused("two rows have one key", "newest_by")
        return rivals[0]
    order = (settings.newest_by, *columns)
    return max(rivals, key=lambda row: tuple(_comparable(row[name]) for name in order))


def _loss(winner: Row, old: Row, settings: Settings) -> str | None:
    """Return the count of a row that the stored row outlasts, None for a row that replaces it."""
    if settings.newest_by is None:
        return None
    new, stored = winner[settings.newest_by], old[settings.newest_by]
    if stored is None:
        return None
    if new is None:
        return "rows_without_order"
    return None if _comparable(new) >= _comparable(stored) else "rows_older"


def _comparable(value: Value) -> tuple[bool, object]:
    """Return a value that sorts nulls below all others, and strings by their bytes, as Spark does."""
    if value is None:
        return (False, b"")
    return (True, value.encode() if isinstance(value, str) else value)


def read_batches(checkpoint: Path) -> tuple[list[list[str]], int]:
    """Return the file names of each batch that a checkpoint records, and the number of the last complete one or -1."""
    log: dict[int, list[str]] = {}
    for entry in sorted((checkpoint / "sources" / "0").glob("[0-9]*")):
        if re.fullmatch(r"\d+(\.compact)?", entry.name):
            for line in entry.read_text().splitlines()[1:]:
                found = json.loads(line)
                names = log.setdefault(found["batchId"], [])
                name = found["path"].rpartition("/landing/")[2]
                names += [name] if name not in names else []
    batches, last = [], -1
    for number in range(len(_numbers(checkpoint / "offsets"))):
        offset = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[-1])["logOffset"]
        batches.append([name for each in range(last + 1, offset + 1) for name in log.get(each, [])])
        last = offset
    return batches, max(_numbers(checkpoint / "commits"), default=-1)


def _numbers(folder: Path) -> list[int]:
    return [int(entry.name) for entry in folder.glob("*") if entry.name.isdecimal()]
