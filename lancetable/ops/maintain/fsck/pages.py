"""Read every page of the data files of fragments and compare the values with what else the table states.

    column of a data file  -> batches of bounded size -> structure   UTF-8, offsets of lists, indices of dictionaries
                                                         zone maps   nulls, NaN and bounds of each zone
                                                         schema      nulls in live rows of fields that have none
                                                         blobs       their bytes, range by range

A column of a data file is read once, however many versions share the file. The format has no checksums: changed bytes
that decode to other plausible values are found only where a zone map contradicts them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, LanceError
from lancetable.file.blobs.descriptor import described, replace_blobs, with_bytes
from lancetable.file.blobs.storage import BlobLocations, locate_blobs
from lancetable.file.column import holds_null
from lancetable.file.encodings_v0_1.statistics import read_zones
from lancetable.file.extension import user_array
from lancetable.file.fetch import run
from lancetable.file.legacy_container import LegacyMetadata
from lancetable.file.reader import FileMetadata, read_columns
from lancetable.file.statistics import METADATA_KEY, FileStatistics, parse_statistics
from lancetable.format.fragment import Fragment
from lancetable.format.schema import BLOB_KEY, Field
from lancetable.ops.maintain.fsck.report import Finding, finding_of
from lancetable.ops.maintain.fsck.zones import ZoneCheck
from lancetable.store.base import ByteRange
from lancetable.table.file_layouts import Part, file_layouts, files_of
from lancetable.table.fragments import blob_data_file
from lancetable.table.open_files import file_metadata
from lancetable.table.row_count_index import deleted_offsets, physical_rows
from lancetable.table.version import TableVersion

__all__ = ["PageCheck"]

BATCH_BYTES = 16 << 20  # approximate size of decoded values
_FIRST_ROWS = 4096
_MAX_ROWS = 1 << 20
_MAX_FINDINGS = 8  # of one column of one file
_STATISTICS_KEY = METADATA_KEY

Mask: TypeAlias = npt.NDArray[np.bool_]
Counted: TypeAlias = Callable[[int, int], object]


@dataclass(slots=True)
class _Column:
    """Result of reading one column of a data file."""

    findings: list[Finding]
    nulls: npt.NDArray[np.uint8] | None = None  # packed bits: rows with a null where the schema has none


class PageCheck:
    """The deep check of a table; remembers what was read.

    `counted(rows, bytes)` is called for each batch.
    """

    def __init__(self, counted: Counted = lambda rows, size: None) -> None:
        self._counted = counted
        self._columns: dict[tuple[object, ...], _Column] = {}
        self._statistics: dict[str, tuple[FileStatistics | None, list[Finding]]] = {}
        self._described: dict[int, tuple[Field, Field]] = {}
        self.unused: dict[str, set[int]] = {}  # columns of data files that no version has, by path
        self.with_zones: set[str] = set()  # columns for which some data file has bounds
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
                detail = f"fragment {fragment.id}: no data file has column {field.name!r}, which cannot be null"
                yield Finding("nulls", path, detail)
            for part in layout.parts:
                for read in part.fields:
                    yield from self._check_part(version, fragment, part, read)

    def _read_as(self, field: Field) -> Field:
        """Return the field with descriptions in place of blobs; the same object for the same field."""
        found = self._described.get(id(field))
        if found is None or found[0] is not field:
            found = self._described[id(field)] = (field, described(field))
        return found[1]

    def _note_unused(self, version: TableVersion, fragment: Fragment) -> None:
        live = {field.id for field in version.schema.walk()}
        for file, columns in zip(fragment.files, files_of(version, fragment).columns):
            metadata = file_metadata(version, file)
            if isinstance(metadata, LegacyMetadata):
                continue
            used = {index for field_id, index in columns.items() if field_id in live}
            self.unused.setdefault(metadata.path, set(range(metadata.num_columns))).difference_update(used)

    def _check_part(self, version: TableVersion, fragment: Fragment, part: Part, field: Field) -> Iterator[Finding]:
        columns = tuple(sorted((each.id, part.columns.get(each.id)) for each in field.walk() if each.id >= 0))
        shape = tuple((each.id, each.name, each.logical_type, each.nullable) for each in field.walk())
        key = (version.store.key(part.path), columns, shape)
        found = self._columns.get(key)
        if found is None:
            found = self._columns[key] = _Column([])
            try:
                self._read(version, fragment, part, field, found)
            except Exception as error:
                found.findings.append(finding_of("data file", part.path, error, f"column {field.name!r}"))
        yield from found.findings
        if found.nulls is not None:
            yield from _live_nulls(version, fragment, part, field, found.nulls)

    def _read(self, version: TableVersion, fragment: Fragment, part: Part, field: Field, found: _Column) -> None:
        """Read a column of a file batch by batch; add findings and nulls to `found`."""
        meta = part.metadata
        zones = self._zones(version, part, field, found)
        pace = _Pace(meta, part, field)
        strict = any(not each.nullable for each in field.walk())
        nulls = np.zeros(meta.num_rows, np.bool_) if strict else None
        blobs = _has_blobs(field)
        wanted = version.schema.by_id.get(field.id, field) if blobs else field
        for rows in pace:
            where = f"column {field.name!r}, rows {rows.start} to {rows.stop}"
            try:
                array = _read_rows(version, part, field, rows)
                self._counted(len(rows), array.nbytes)
                pace.read(array.nbytes)
                problem = _structure_problem(array) or _wrong_length(array, rows)
                if problem is not None:
                    raise CorruptFileError(problem, path=part.path)
                if nulls is not None:
                    mask = _forbidden_nulls(field, array)
                    if mask is not None:
                        nulls[rows.start : rows.stop] = mask
                if blobs:
                    _read_blobs(version, fragment, wanted, array)
                else:
                    user_array(array, field.to_arrow().type)
                if zones is not None:
                    zones.add(array, rows.start)
            except Exception as error:
                zones = None
                found.findings.append(finding_of("data file", part.path, error, where))
                if len(found.findings) >= _MAX_FINDINGS:
                    break
        if zones is not None:
            found.findings += [Finding("statistics", part.path, detail) for detail in zones.contradictions()]
        if nulls is not None and nulls.any():
            found.nulls = np.packbits(nulls)

    def _zones(self, version: TableVersion, part: Part, field: Field, found: _Column) -> ZoneCheck | None:
        if _has_blobs(field):
            return None
        path = part.path
        if path not in self._statistics:
            self._statistics[path] = _statistics_of(version, part.metadata)
            found.findings += self._statistics[path][1]
        statistics = self._statistics[path][0]
        if statistics is None or not statistics.num_zones:
            return None
        check = ZoneCheck(statistics, field)
        if check.has_bounds:
            self.with_zones.add(field.name)
        return check if check.num_leaves else None


def _has_blobs(field: Field) -> bool:
    return any(each.is_blob or each.is_blob_v2 or BLOB_KEY in each.metadata for each in field.walk())


def _wrong_length(array: pa.Array, rows: range) -> str | None:
    return None if len(array) == len(rows) else f"{len(array)} values were decoded for {len(rows)} rows"


def _read_rows(version: TableVersion, part: Part, field: Field, rows: range) -> pa.Array:
    (column,) = read_columns(version.store, part.path, part.metadata, (field,), part.columns, rows)
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(_unified(column).chunks) if column.num_chunks else pa.nulls(0, column.type)


def _unified(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.unify_dictionaries() if pa.types.is_dictionary(column.type) else column


class _Pace:
    """Yield row ranges of a column, each about `BATCH_BYTES` of decoded values, within one page if pages are known."""

    def __init__(self, meta: FileMetadata, part: Part, field: Field) -> None:
        self._num_rows = meta.num_rows
        self._starts = _page_starts(meta, part, field)
        stored = sum(_column_bytes(meta, part.columns.get(each.id)) for each in field.walk())
        per_row = max(stored // max(meta.num_rows, 1), 1)
        self._rows = max(min(BATCH_BYTES // per_row, _FIRST_ROWS), 1)
        self._last = 0

    def __iter__(self) -> Iterator[range]:
        start = 0
        while start < self._num_rows:
            stop = min(start + self._rows, self._num_rows)
            place = int(np.searchsorted(self._starts, start, side="right"))
            if place < len(self._starts) and self._starts[place] < stop:
                stop = int(self._starts[place])
            self._last = stop - start
            yield range(start, stop)
            start = stop

    def read(self, size_bytes: int) -> None:
        """Choose the number of rows of the next batch by the size of the last one."""
        per_row = max(size_bytes / max(self._last, 1), 1.0 / 8)
        self._rows = max(1, min(int(BATCH_BYTES / per_row), 4 * self._rows, _MAX_ROWS))


def _page_starts(meta: FileMetadata, part: Part, field: Field) -> npt.NDArray[np.int64]:
    if isinstance(meta, LegacyMetadata):
        return np.empty(0, np.int64)
    for each in field.walk():
        index = part.columns.get(each.id)
        if index is not None and index >= 0 and not each.children:
            try:
                pages = meta.column(index)
            except LanceError:
                continue
            if pages.num_rows == meta.num_rows:
                return np.array(pages.start_list, np.int64)
    return np.empty(0, np.int64)


def _column_bytes(meta: FileMetadata, index: int | None) -> int:
    try:
        return 0 if index is None or index < 0 else meta.column_size_bytes(index)
    except LanceError:
        return 0


# --- structure --------------------------------------------------------------------------------------------------------


def _structure_problem(array: pa.Array) -> str | None:
    """Return what breaks the rules of Arrow in an array, at any depth; None if nothing does.

    Values of dates and times are not restricted, as other writers store any number there.
    """
    types, kind = pa.types, array.type
    try:
        array.validate()
        if types.is_dictionary(kind) or (
            types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
        ):
            array.validate(full=True)
        elif types.is_struct(kind):
            return _first(_structure_problem(array.field(place)) for place in range(kind.num_fields))
        elif types.is_fixed_size_list(kind):
            return _structure_problem(array.values)
        elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
            offsets = np.asarray(array.offsets)
            values = (
                pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"])
                if types.is_map(kind)
                else array.values
            )
            if len(offsets) and (offsets[0] < 0 or (np.diff(offsets) < 0).any() or offsets[-1] > len(values)):
                return "the offsets of a list do not ascend within its values"
            return _structure_problem(values)
    except pa.ArrowInvalid as error:
        return f"invalid values: {error}"
    return None


def _first(found: Iterator[str | None]) -> str | None:
    return next((each for each in found if each is not None), None)


# --- nulls ------------------------------------------------------------------------------------------------------------


def _forbidden_nulls(field: Field, array: pa.Array) -> Mask | None:
    """Return the rows with a null in a field, or a part of it, that has none; None if there are none."""
    if all(each.nullable for each in field.walk()):
        return None
    found: Mask | None = None
    if not field.nullable and holds_null(array):
        nulls = array.dictionary_decode().is_null() if pa.types.is_dictionary(array.type) else array.is_null()
        found = np.asarray(nulls)
    if not field.children or _has_blobs(field):
        return found
    for part in _nulls_of_children(field, array):
        found = part if found is None else found | part
    return found


def _nulls_of_children(field: Field, array: pa.Array) -> Iterator[Mask]:
    valid = np.asarray(array.is_valid())
    if pa.types.is_struct(array.type):
        for child, place in zip(field.children, range(array.type.num_fields)):
            nulls = _forbidden_nulls(child, array.field(place))
            if nulls is not None:
                yield nulls & valid
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        nulls = _forbidden_nulls(field.children[0], array.flatten())
        if nulls is not None:
            parents = np.repeat(np.arange(len(array)), np.asarray(array.value_lengths().fill_null(0)))
            rows = np.zeros(len(array), np.bool_)
            rows[parents[nulls]] = True
            yield rows


def _live_nulls(
    version: TableVersion, fragment: Fragment, part: Part, field: Field, packed: npt.NDArray[np.uint8]
) -> Iterator[Finding]:
    """Yield a finding for nulls in rows that are live in this version."""
    nulls = np.unpackbits(packed, count=part.metadata.num_rows).astype(np.bool_)
    try:
        deleted = deleted_offsets(version, fragment)
    except LanceError:
        return  # reported as damage of the deletion file
    if deleted is not None:
        nulls[deleted[deleted < len(nulls)]] = False
    count = int(np.count_nonzero(nulls))
    if count:
        detail = (
            f"column {field.name!r}: {count} live rows are null, such as row {int(nulls.argmax())}, and the schema has"
            " no nulls there; make the column nullable to read them"
        )
        yield Finding("nulls", part.path, detail)


# --- zone maps and blobs ----------------------------------------------------------------------------------------------


def _statistics_of(version: TableVersion, meta: FileMetadata) -> tuple[FileStatistics | None, list[Finding]]:
    """Return the zone maps of a file, and the problems that reading them met."""
    try:
        if isinstance(meta, LegacyMetadata):
            return run(read_zones(meta, version.schema), version.store, meta.path), []
        if _STATISTICS_KEY not in meta.schema_metadata:
            return None, []
        index = meta.statistics_index
        if index is None:
            value = meta.schema_metadata[_STATISTICS_KEY]
            return None, [Finding("statistics", meta.path, f"no global buffer {value!r}, which has the zone maps")]
        start, end = meta.global_buffers[index]
        data = version.store.read(meta.path, start, end)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = parse_statistics(data, meta.schema, meta.num_rows)
        if caught:
            return None, [Finding("statistics", meta.path, str(caught[0].message))]
        if found is None:
            return None, [Finding("unsupported", meta.path, "zone maps of a newer version", is_damage=False)]
    except Exception as error:
        return None, [finding_of("statistics", meta.path, error, "zone maps")]
    return found, []


def _read_blobs(version: TableVersion, fragment: Fragment, field: Field, array: pa.Array) -> None:
    """Read the bytes of all blobs that an array describes, a bounded amount at a time."""

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
        bytes(part[0][::4096])  # a mapped file is read by touching its pages
