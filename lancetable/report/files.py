"""Sample of the data files: pages with their encodings, statistics, and compression of their columns.

    sample      footers and zone maps      at most `Limits.data_files`, spread over the fragments of each column set
    its start   pages, one by one          at most `Limits.page_maps` files
    its start   first rows of values       at most `Limits.value_files` files

A file that cannot be read is a problem of the report.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from lancetable.errors import InvalidInputError
from lancetable.file.arrow_sizes import add_sizes
from lancetable.file.blobs.descriptions import described
from lancetable.file.column_mapping import number_columns
from lancetable.file.encoding_labels import format_encoding
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.file.reader import read_columns
from lancetable.file.zone_maps import FileStatistics, StatisticsBuilder
from lancetable.format.schema import Schema
from lancetable.ops.read.zone_pruning import file_statistics
from lancetable.report.column_statistics import FileBounds, merge_statistics
from lancetable.report.findings import Findings
from lancetable.report.fragments import FragmentCounts, column_name
from lancetable.report.model import ColumnEntry, ColumnPagesEntry, FilePages, Limits, PageEntry, Sample
from lancetable.table.data_file_metadata import file_metadata

if TYPE_CHECKING:
    from lancetable.file.footer import ColumnPages, FileMetadata
    from lancetable.format.fragment import DataFile, Fragment
    from lancetable.ops.progress_tracker import Tracker
    from lancetable.table.version import TableVersion

_MAX_MAPPED_COLUMNS = 100


@dataclass(slots=True)
class _ColumnTotals:
    """Totals of one field over the files of the sample."""

    num_files: int = 0
    num_pages: int = 0
    file_bytes: int = 0
    arrow_bytes: float = 0.0  # of the files of which values were read, extrapolated to all their rows
    measured_bytes: int = 0  # stored size in these files
    encodings: Counter[str] = field(default_factory=Counter)
    bounds: list[FileBounds] = field(default_factory=list)


@dataclass(slots=True)
class FileSample:
    """Results of reading the sample."""

    sample: Sample
    columns: tuple[ColumnEntry, ...]
    files: tuple[FilePages, ...]


@dataclass(frozen=True, slots=True)
class _Values:
    """First rows of a data file: their number, their size as Arrow arrays by field id, and their statistics."""

    num_rows: int
    arrow_bytes: Mapping[int, int]
    statistics: FileStatistics


def choose_files(
    version: TableVersion, counts: FragmentCounts, limits: Limits, path: str | None
) -> list[tuple[int, int]]:
    """Return positions of fragments and of data files in them, starting with the file at `path` if it is given.

    Then follow the first file of each column set, the last file of each, and further files between them. Wide files
    count more, see `Limits.columns`. Raises InvalidInputError if the version has no data file `path`.
    """
    messages = version.manifest.fragments.messages()
    by_set: dict[int, list[tuple[int, int]]] = defaultdict(list)
    chosen: list[tuple[int, int]] = []
    numbers = iter(counts.file_sets[:, 1].tolist())
    for position, message in enumerate(messages):
        for number, file in enumerate(message.files):
            by_set[next(numbers)].append((position, number))
            if path is not None and file.path == path:
                chosen.append((position, number))
    if path is not None and not chosen:
        what = f"version {version.version} has no data file {path!r}"
        raise InvalidInputError(f"{what}; pass a path relative to data/, as the report lists it")
    share = max(1, limits.data_files // max(len(by_set), 1))
    spread = [_spread(files, share) for files in by_set.values()]
    for rank in range(share):
        chosen += [files[rank] for files in spread if rank < len(files)]
    files = list(dict.fromkeys(chosen))[: limits.data_files]
    num_columns = accumulate(len(messages[position].files[number].fields) for position, number in files)
    return files[: max(1, sum(columns <= limits.columns for columns in num_columns))]


def _spread(files: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Return at most `count` files: the first, the last, and others at equal distances."""
    positions = dict.fromkeys(np.linspace(0, len(files) - 1, count).astype(int).tolist())
    first, *others = positions
    return [files[position] for position in (first, *reversed(others))]


def read_sample(
    version: TableVersion,
    counts: FragmentCounts,
    chosen: Sequence[tuple[int, int]],
    limits: Limits,
    findings: Findings,
    tracker: Tracker,
) -> FileSample:
    """Read the chosen files. A file that cannot be read is a problem of the report."""
    totals: dict[int, _ColumnTotals] = defaultdict(_ColumnTotals)
    labels: dict[bytes, str] = {}
    maps: list[FilePages] = []
    num_files = num_zone_maps = num_values = num_value_rows = 0
    for position, number in chosen:
        tracker.add(num_files=1)
        place = version.location.path
        fragment = findings.attempt("fragment", place, partial(version.manifest.fragments.__getitem__, position))
        if fragment is None:
            continue
        file = fragment.files[number]
        path = findings.attempt("data file", file.path, partial(version.data_file_path, file))
        if path is None:
            continue
        metadata = findings.attempt("data file", path, partial(_summarized, version, file, totals, labels))
        if metadata is None:
            continue
        num_files += 1
        if len(maps) < limits.page_maps:
            pages = findings.attempt(
                "data file", path, partial(_page_map, version, fragment, file, metadata, limits, labels)
            )
            maps += [] if pages is None else [pages]
        values = None
        if num_values < limits.value_files and metadata.num_rows:
            values = findings.attempt("values", path, partial(_read_values, version, metadata, limits))
        if values is not None:
            num_values += 1
            num_value_rows += values.num_rows
            _add_arrow_bytes(file, metadata, values, totals)
        zones = findings.attempt("statistics", path, partial(file_statistics, version, file))
        if zones is not None and zones.num_zones:
            num_zone_maps += 1
            _add_bounds(totals, zones.fold(), "zone maps")
        elif values is not None:
            _add_bounds(totals, values.statistics.fold(), "sampled rows")
    sample = Sample(len(counts.file_sets), num_files, num_zone_maps, num_values, num_value_rows)
    if num_files < sample.total_files:
        findings.notes.append(
            f"Encodings, sizes and statistics of columns are from {num_files:,} of {sample.total_files:,} data files."
        )
    return FileSample(sample, tuple(_column_entries(version.schema, totals)), tuple(maps))


# ------------------------------------------------------------------------------------------------------------- columns


def _columns_of(file: DataFile) -> Iterator[tuple[int, int]]:
    """Yield field ids with the columns that store them."""
    return ((field_id, column) for field_id, column in zip(file.fields, file.column_indices) if column >= 0)


def _summarized(
    version: TableVersion, file: DataFile, totals: dict[int, _ColumnTotals], labels: dict[bytes, str]
) -> FileMetadata:
    """Add sizes and encodings of a file to the totals, and return its metadata."""
    metadata = file_metadata(version, file)
    if isinstance(metadata, LegacyMetadata):
        for field_id in file.fields:
            totals[field_id].num_files += 1
        return metadata
    # Nothing is added before all columns are read, because any of them can be damaged.
    columns = [(field_id, metadata.column(column)) for field_id, column in _columns_of(file)]
    encodings = [_encodings(column, metadata.path, labels) for _, column in columns]
    for (field_id, column), counter in zip(columns, encodings):
        total = totals[field_id]
        total.num_files += 1
        total.num_pages += len(column)
        total.file_bytes += column.size_bytes
        total.encodings += counter
    return metadata


def _encodings(column: ColumnPages, path: str, labels: dict[bytes, str]) -> Counter[str]:
    return Counter(_label(column.page(number).encoding, path, labels) for number in range(len(column)))


def _label(encoding: bytes, path: str, labels: dict[bytes, str]) -> str:
    label = labels.get(encoding)
    if label is None:
        label = labels[encoding] = format_encoding(encoding, path)
    return label


def _add_arrow_bytes(file: DataFile, metadata: FileMetadata, values: _Values, totals: dict[int, _ColumnTotals]) -> None:
    if isinstance(metadata, LegacyMetadata):
        return
    for field_id, column in _columns_of(file):
        if field_id in values.arrow_bytes:
            total = totals[field_id]
            total.arrow_bytes += values.arrow_bytes[field_id] * metadata.num_rows / values.num_rows
            total.measured_bytes += metadata.column_size_bytes(column)


def _add_bounds(totals: dict[int, _ColumnTotals], statistics: FileStatistics, source: str) -> None:
    num_rows = int(statistics.zone_rows.sum())
    for field_id, stats in statistics.columns.items():
        totals[field_id].bounds.append(FileBounds(source, num_rows, stats))


def _column_entries(schema: Schema, totals: Mapping[int, _ColumnTotals]) -> Iterator[ColumnEntry]:
    """Yield an entry for each field that has a column in the sample, and for each field without children."""
    for each in schema.walk():
        total = totals.get(each.id) or _ColumnTotals()
        if each.children and not total.num_files:
            continue
        yield ColumnEntry(
            each.id,
            schema.path_of(each.id),
            each.logical_type,
            each.nullable,
            total.num_files,
            total.num_pages,
            total.file_bytes,
            round(total.measured_bytes / total.arrow_bytes, 4) if total.arrow_bytes else None,
            dict(total.encodings.most_common()),
            merge_statistics(total.bounds),
        )


# -------------------------------------------------------------------------------------------------------------- values


def _read_values(version: TableVersion, metadata: FileMetadata, limits: Limits) -> _Values:
    """Read the first rows of a file. Payloads of blobs are not read."""
    columns = dict(zip(*number_columns(metadata.schema, metadata.version)))
    fields = tuple(map(described, metadata.schema.fields))
    row_bytes = max(sum(map(metadata.column_size_bytes, columns.values())) / metadata.num_rows, 1)
    num_rows = max(1, min(metadata.num_rows, limits.value_rows, int(limits.value_bytes / row_bytes)))
    arrays = read_columns(version.store, metadata.path, metadata, fields, columns, range(num_rows))
    sizes: Counter[int] = Counter()
    for each, array in zip(fields, arrays):
        for chunk in array.chunks:
            add_sizes(each, chunk, columns, sizes)
    builder = StatisticsBuilder(Schema(fields, {}))
    for batch in pa.Table.from_arrays(arrays, list(map(str, range(len(arrays))))).to_batches():
        builder.add(batch)
    return _Values(num_rows, sizes, builder.statistics())


# --------------------------------------------------------------------------------------------------------------- pages


def _page_map(
    version: TableVersion,
    fragment: Fragment,
    file: DataFile,
    metadata: FileMetadata,
    limits: Limits,
    labels: dict[bytes, str],
) -> FilePages:
    facts = (file.path, fragment.id, str(metadata.version), metadata.num_rows, metadata.size_bytes)
    if isinstance(metadata, LegacyMetadata):
        return FilePages(*facts, metadata.page_table_position, len(file.fields), metadata.num_batches, ())
    stored = list(_columns_of(file))
    shown = stored[:_MAX_MAPPED_COLUMNS]
    limit = max(1, limits.pages // max(len(shown), 1))
    columns = tuple(
        _pages_of(column_name(version.schema, field_id), metadata.column(column), limit, metadata.path, labels)
        for field_id, column in shown
    )
    return FilePages(*facts, metadata.footer.column_metadata_position, len(stored), None, columns)


def _pages_of(
    name: str | None, column: ColumnPages, limit: int, path: str, labels: dict[bytes, str]
) -> ColumnPagesEntry:
    pages = []
    for number in range(min(len(column), limit)):
        page = column.page(number)
        ranges = [buffer for buffer in page.buffers if buffer.end > buffer.start]
        pages.append(
            PageEntry(
                column.start_list[number],
                page.length,
                min((buffer.start for buffer in ranges), default=0),
                max((buffer.end for buffer in ranges), default=0),
                sum(buffer.end - buffer.start for buffer in ranges),
                len(page.buffers),
                _label(page.encoding, path, labels),
            )
        )
    return ColumnPagesEntry(name or "(unused)", len(column), column.size_bytes, tuple(pages))
