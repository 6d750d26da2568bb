"""Deep check: read every page of the data files of fragments and compare the values with the metadata.

    column of a data file  -> batches of limited size -> structure   UTF-8, offsets of lists, indices of dictionaries
                                                         zone maps   nulls, NaN and bounds of each zone
                                                         schema      nulls in live rows of non-nullable fields
                                                         blobs       their bytes, range by range

A column of a data file is read once, even if many versions share the file. The format has no checksums: changed bytes
that decode to other valid values are found only if a zone map contradicts them.
"""

from __future__ import annotations

import warnings
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, LanceError
from lancetable.file.blobs.descriptions import described, replace_blobs, with_bytes
from lancetable.file.blobs.reader import BlobLocations, locate_blobs
from lancetable.file.encodings_v0_1.statistics import read_zones
from lancetable.file.extension_types import user_array
from lancetable.file.footer import STATISTICS_KEY, FileMetadata
from lancetable.file.io_scheduler import run
from lancetable.file.legacy_footer import LegacyMetadata
from lancetable.file.reader import read_columns
from lancetable.file.zone_maps import FileStatistics, parse_statistics
from lancetable.format.fragment import Fragment
from lancetable.format.schema import BLOB_KEY, Field
from lancetable.ops.maintain.fsck.report import Finding, finding_of, findings_of
from lancetable.ops.maintain.fsck.zones import ZoneCheck
from lancetable.ops.progress_tracker import NO_PROGRESS, Tracker
from lancetable.ops.write.schema_enforcement import null_violations
from lancetable.store.base import ByteRange
from lancetable.table.data_file_metadata import file_metadata
from lancetable.table.field_locations import Part, field_index, file_layouts
from lancetable.table.fragment_reader import blob_data_file
from lancetable.table.row_counts import deleted_offsets, physical_rows
from lancetable.table.version import TableVersion

BATCH_BYTES = 16 << 20  # approximate size of decoded values
_FIRST_ROWS = 4096
_MAX_ROWS = 1 << 20
_MAX_FINDINGS = 8  # of one column of one file

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Column:
    """Result of reading one column of a data file."""

    findings: list[Finding]
    nulls: npt.NDArray[np.uint8] | None = None  # packed bits: rows with a null that the schema forbids


class PageCheck:
    """Deep check of a table. Results are kept, so that each column of a file is read once."""

    def __init__(self, tracker: Tracker = NO_PROGRESS) -> None:
        self._tracker = tracker
        self._columns: dict[tuple[object, ...], _Column] = {}
        self._statistics: dict[str, tuple[FileStatistics | None, list[Finding]]] = {}
        self._described: dict[int, tuple[Field, Field]] = {}
        self.unused: dict[str, set[int]] = {}  # columns of data files that no version uses, by path
        self.with_zones: set[str] = set()  # columns with bounds in the zone maps of a data file
        self.columns: set[str] = set()

    def check(self, version: TableVersion, fragment: Fragment) -> Iterator[Finding]:
        """Read the data of a fragment in this version."""
        path = version.location.path
        try:
            layouts = file_layouts(version)
            rows = physical_rows(version, fragment)
            self._note_unused(version, fragment)
        except Exception as error:
            yield finding_of("data file", path, error, f"fragment {fragment.id}")
            return
        for field in version.schema.fields:
            self.columns.add(field.name)
            try:
                layout = layouts.layout(version, fragment, (self._read_as(field),))
            except Exception as error:
                yield finding_of("data file", path, error, f"fragment {fragment.id}, column {field.name!r}")
                continue
            if not layout.parts and not field.nullable and rows:
                detail = f"fragment {fragment.id}: no data file contains column {field.name!r}, which is not nullable"
                yield Finding("nulls", path, detail)
            for part in layout.parts:
                for read in part.fields:
                    yield from self._check_part(version, fragment, part, read)

    def _read_as(self, field: Field) -> Field:
        """Return the field for reading a column, as the same object each time, because layouts are cached by field."""
        original, result = self._described.get(id(field), (None, None))
        if result is None or original is not field:
            result = described(field)
            self._described[id(field)] = (field, result)
        return result

    def _note_unused(self, version: TableVersion, fragment: Fragment) -> None:
        live = {field.id for field in version.schema.walk()}
        for file, columns in zip(fragment.files, field_index(version, fragment).columns):
            metadata = file_metadata(version, file)
            if isinstance(metadata, LegacyMetadata):
                continue
            used = {index for field_id, index in columns.items() if field_id in live}
            self.unused.setdefault(metadata.path, set(range(metadata.num_columns))).difference_update(used)

    def _check_part(self, version: TableVersion, fragment: Fragment, part: Part, field: Field) -> Iterator[Finding]:
        nested = list(field.walk())
        columns = tuple(sorted((child.id, part.columns.get(child.id)) for child in nested if child.id >= 0))
        shape = tuple((child.id, child.name, child.logical_type, child.nullable) for child in nested)
        key = (version.store.key(part.path), columns, shape)
        result = self._columns.get(key)
        if result is None:
            result = self._columns[key] = _Column([])
            read = partial(self._read, version, fragment, part, field, result)
            result.findings += findings_of("data file", part.path, read, f"column {field.name!r}")
        yield from result.findings
        if result.nulls is not None:
            yield from _check_live_nulls(version, fragment, part, field, result.nulls)

    def _read(self, version: TableVersion, fragment: Fragment, part: Part, field: Field, result: _Column) -> None:
        """Read a column of a file batch by batch; add findings and nulls to `result`."""
        meta = part.metadata
        zones = self._zones(version, part, field, result)
        batches = _BatchRanges(meta, part, field)
        is_nullable = all(child.nullable for child in field.walk())
        nulls = None if is_nullable else np.zeros(meta.num_rows, np.bool_)
        has_blobs = _has_blobs(field)
        bytes_field = version.schema.by_id.get(field.id, field)
        for rows in batches:
            where = f"column {field.name!r}, rows {rows.start} to {rows.stop}"
            try:
                array = _read_rows(version, part, field, rows)
                self._tracker.add(num_rows=len(rows), num_bytes=array.nbytes)
                batches.adapt(array.nbytes)
                problem = _structure_problem(array)
                if problem is None and len(array) != len(rows):
                    problem = f"{len(array)} values were decoded for {len(rows)} rows"
                if problem is not None:
                    raise CorruptFileError(problem, path=part.path)
                if nulls is not None:
                    checked = replace(field, children=()) if has_blobs else field
                    for _, mask in null_violations(array, checked, field.name):
                        nulls[rows.start : rows.stop] |= mask
                if has_blobs:
                    _read_blobs(version, fragment, bytes_field, array)
                else:
                    user_array(array, field.to_arrow().type)
                if zones is not None:
                    zones.add(array, rows.start)
            except Exception as error:
                zones = None
                result.findings.append(finding_of("data file", part.path, error, where))
                if len(result.findings) >= _MAX_FINDINGS:
                    break
        if zones is not None:
            result.findings += [Finding("statistics", part.path, detail) for detail in zones.contradictions()]
        if nulls is not None and nulls.any():
            result.nulls = np.packbits(nulls)

    def _zones(self, version: TableVersion, part: Part, field: Field, result: _Column) -> ZoneCheck | None:
        if _has_blobs(field):
            return None
        path = part.path
        if path not in self._statistics:
            self._statistics[path] = _statistics_of(version, part.metadata)
            result.findings += self._statistics[path][1]
        statistics = self._statistics[path][0]
        if statistics is None or not statistics.num_zones:
            return None
        check = ZoneCheck(statistics, field)
        if check.has_bounds:
            self.with_zones.add(field.name)
        return check if check.num_leaves else None


def _has_blobs(field: Field) -> bool:
    return any(child.is_blob or child.is_blob_v2 or BLOB_KEY in child.metadata for child in field.walk())


def _read_rows(version: TableVersion, part: Part, field: Field, rows: range) -> pa.Array:
    (column,) = read_columns(version.store, part.path, part.metadata, (field,), part.columns, rows)
    if isinstance(column, pa.ChunkedArray):
        if pa.types.is_dictionary(column.type):
            column = column.unify_dictionaries()
        return column.combine_chunks()
    return column


class _BatchRanges:
    """Row ranges of a column with about `BATCH_BYTES` of decoded values, each within one page if pages are known."""

    def __init__(self, meta: FileMetadata, part: Part, field: Field) -> None:
        self._num_rows = meta.num_rows
        self._page_starts: list[int] = []
        stored = 0
        for child in field.walk():
            index = part.columns.get(child.id)
            if index is None or index < 0:
                continue
            with suppress(LanceError):  # reported when the column is read
                stored += meta.column_size_bytes(index)
                if not isinstance(meta, LegacyMetadata) and not child.children and not self._page_starts:
                    pages = meta.column(index)
                    self._page_starts = list(pages.start_list) if pages.num_rows == meta.num_rows else []
        self._rows = max(min(BATCH_BYTES // max(stored // max(meta.num_rows, 1), 1), _FIRST_ROWS), 1)
        self._last = 0

    def __iter__(self) -> Iterator[range]:
        start = 0
        while start < self._num_rows:
            stop = min(start + self._rows, self._num_rows)
            page = bisect_right(self._page_starts, start)
            if page < len(self._page_starts):
                stop = min(stop, self._page_starts[page])
            self._last = stop - start
            yield range(start, stop)
            start = stop

    def adapt(self, size_bytes: int) -> None:
        """Choose the number of rows of the next batch by the size of the last one."""
        bytes_per_row = max(size_bytes / max(self._last, 1), 1.0 / 8)
        self._rows = max(1, min(int(BATCH_BYTES / bytes_per_row), 4 * self._rows, _MAX_ROWS))


# --- structure --------------------------------------------------------------------------------------------------------


def _structure_problem(array: pa.Array) -> str | None:
    """Return a description of how an array, at any depth, violates the Arrow format; None if it is valid.

    Values of dates and times are not restricted, because other writers store arbitrary numbers in them.
    """
    types, kind = pa.types, array.type
    try:
        array.validate()
        if types.is_struct(kind):
            problems = (_structure_problem(array.field(index)) for index in range(kind.num_fields))
            return next((problem for problem in problems if problem is not None), None)
        if types.is_fixed_size_list(kind):
            return _structure_problem(array.values)
        if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
            offsets = np.asarray(array.offsets)
            is_map = types.is_map(kind)
            values = pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"]) if is_map else array.values
            if len(offsets) and (offsets[0] < 0 or (np.diff(offsets) < 0).any() or offsets[-1] > len(values)):
                return "the offsets of a list do not ascend within its values"
            return _structure_problem(values)
        if types.is_dictionary(kind) or any(check(kind) for check in _BINARY_CHECKS):
            array.validate(full=True)
    except pa.ArrowInvalid as error:
        return f"invalid values: {error}"
    return None


_BINARY_CHECKS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


# --- nulls ------------------------------------------------------------------------------------------------------------


def _check_live_nulls(
    version: TableVersion, fragment: Fragment, part: Part, field: Field, packed: npt.NDArray[np.uint8]
) -> Iterator[Finding]:
    """Yield a finding for nulls in rows that are live in this version."""
    nulls = np.unpackbits(packed, count=part.metadata.num_rows).astype(np.bool_)
    try:
        deleted = deleted_offsets(version, fragment)
    except LanceError:
        return  # reported by the check of the deletion file
    if deleted is not None:
        nulls[deleted[deleted < len(nulls)]] = False
    count = int(np.count_nonzero(nulls))
    if count:
        detail = (
            f"column {field.name!r}: {count} live rows are null, such as row {int(nulls.argmax())}, but the field is"
            " not nullable; make the column nullable to read them"
        )
        yield Finding("nulls", part.path, detail)


# --- zone maps and blobs ----------------------------------------------------------------------------------------------


def _statistics_of(version: TableVersion, meta: FileMetadata) -> tuple[FileStatistics | None, list[Finding]]:
    """Return the zone maps of a file, if any, and the problems found while reading them."""
    try:
        if isinstance(meta, LegacyMetadata):
            return run(read_zones(meta, version.schema), version.store, meta.path), []
        if STATISTICS_KEY not in meta.schema_metadata:
            return None, []
        index = meta.statistics_index
        if index is None:
            value = meta.schema_metadata[STATISTICS_KEY]
            return None, [Finding("statistics", meta.path, f"the global buffer {value!r} of the zone maps is missing")]
        start, end = meta.global_buffers[index]
        data = version.store.read(meta.path, start, end)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            statistics = parse_statistics(data, meta.schema, meta.num_rows)
        if caught:
            return None, [Finding("statistics", meta.path, str(caught[0].message))]
        if statistics is None:
            return None, [Finding("unsupported", meta.path, "zone maps of a newer version", is_damage=False)]
    except Exception as error:
        return None, [finding_of("statistics", meta.path, error, "zone maps")]
    return statistics, []


def _read_blobs(version: TableVersion, fragment: Fragment, field: Field, array: pa.Array) -> None:
    """Read the bytes of all blobs that an array describes, in ranges of limited size."""

    def read(blob: Field, descriptions: pa.Array) -> pa.Array:
        locations = locate_blobs(version, blob_data_file(version, fragment, blob.id), descriptions)
        for row in np.flatnonzero(locations.valid & (locations.sizes > 0)).tolist():
            _read_blob(version, locations, row)
        return pa.nulls(len(descriptions), pa.large_binary())

    replace_blobs(array, field, with_bytes(field).data_type, read)


def _read_blob(version: TableVersion, locations: BlobLocations, row: int) -> None:
    path = locations.paths[int(locations.files[row])]
    start = int(locations.positions[row])
    end = start + int(locations.sizes[row])
    for first in range(start, end, BATCH_BYTES):
        part: Any = version.store.read_many(path, [ByteRange(first, min(first + BATCH_BYTES, end))])
        bytes(part[0][::4096])  # read one byte of every 4 KiB, because a memory-mapped file is read only on access
