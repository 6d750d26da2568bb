"""Zone maps of a data file: bounds of the values in each zone of rows, which scans use to prune zones.

    num_rows   "3": null_count  min_value  max_value      "7": null_count  min_value  max_value  nan_count
        8192              0        "adam"    "berta"                  12       -0.5        99.0          0
        1808              4        "carl"    null                      0       -inf         inf       1808

Zone maps are stored as an Arrow IPC file in a global buffer of the data file. It has one row per zone of 8,192 rows and
one struct column per field, named by the field id. Minimum and maximum are bounds, not values: long strings are
truncated, and a zone of nulls has the widest bounds of its type. The number of NaN values is stored because NaN sorts
above all other values in a predicate.

Top-level fields and the leaves of structs have entries. For lists, structs, blobs, dictionaries and extension types an
entry has only a null count. Source: the rules of page statistics in the 0.1 format.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.file.zone_map_builder import (
    RowRanges,
    ZoneLeaf,
    ZoneStats,
    array_of,
    bytes_read_per_row,
    is_bytes,
    is_text,
    leaves_of,
    number_dtype,
    ordered_type,
    values_of,
)
from lancetable.format.arrow_ipc import batch_message, decode_batch, file_of
from lancetable.format.schema import Field, Schema
from lancetable.lazy import lazy_property

if TYPE_CHECKING:
    from typing_extensions import Buffer

MIN_FILE_BYTES: Final = 64 << 10  # smaller files get no zone maps
MIN_COLUMN_BYTES: Final = 16 << 10  # mean size of the columns of a file of a few rows; smaller ones get no zone maps
DEFAULT_ZONE_ROWS: Final = 8192
_ZONE_ROWS_STEP: Final = 1024
_FIRST_ROWS: Final = 2048
_FIRST_BYTES: Final = 8 << 20

_VERSION: Final = b"1"
# Limit of the decompressed size: the larger of 16 MiB and 1,024 times the stored size. Valid zone maps are far smaller.
_MIN_LIMIT_BYTES: Final = 16 << 20
_LIMIT_RATIO: Final = 1024
# Fewer zones are not compressed: compressing a few kilobytes takes longer than writing them.
_COMPRESSED_ZONES: Final = 1024
_PARSE_ERRORS: Final = (
    pa.ArrowException,
    ArithmeticError,
    LookupError,
    MemoryError,
    OSError,
    TypeError,
    ValueError,
    struct.error,
)

Int64 = npt.NDArray[np.int64]


class StatisticsWarning(UserWarning):
    """Warning that malformed statistics of a data file are ignored."""


@dataclass(frozen=True, slots=True, eq=False)
class FileStatistics:
    """Zone maps of one data file.

    Zones are consecutive. `zone_rows` has the rows of each zone; its sum is the number of rows of the file, including
    deleted ones.
    """

    zone_rows: Int64
    columns: Mapping[int, ZoneStats]  # by field id

    @property
    def num_zones(self) -> int:
        """Number of zones."""
        return len(self.zone_rows)

    def fold(self) -> FileStatistics:
        """Merge all zones into one for the whole file. The result of a file without zones has none."""
        if self.num_zones <= 1:
            return self
        return FileStatistics(
            np.array([self.zone_rows.sum()], np.int64),
            {field_id: _fold(stats, self.zone_rows) for field_id, stats in self.columns.items()},
        )


class StatisticsBuilder:
    """Builder of zone maps from batches of any size. Zones are independent of batch boundaries.

    Parameters
    ----------
    schema
        Schema of the batches, whose columns have the order of the top-level fields.
    zone_rows
        Rows per zone, a multiple of 1,024.

    Raises
    ------
    ValueError
        If `zone_rows` is not a positive multiple of 1,024.
    """

    def __init__(self, schema: Schema, zone_rows: int = DEFAULT_ZONE_ROWS) -> None:
        if zone_rows <= 0 or zone_rows % _ZONE_ROWS_STEP:
            raise ValueError(f"zone_rows must be a positive multiple of {_ZONE_ROWS_STEP}, got {zone_rows}")
        self._schema, self._zone_rows = schema, zone_rows
        self._num_rows = 0
        # Small files often get no statistics, so the first rows are not summarized before more follow.
        self._max_first_bytes = max(_FIRST_BYTES, MIN_COLUMN_BYTES * len(schema.fields))
        self._first: list[pa.RecordBatch] = []
        self._first_rows = self._first_bytes = 0
        self._range_zones: list[Int64] = []
        self._queue: list[list[pa.Array]] = []  # queued small batches, as one list of arrays per batch
        self._queue_rows = 0

    @lazy_property
    def _leaves(self) -> list[ZoneLeaf]:
        fields = enumerate(self._schema.fields)
        return [leaf for position, field in fields for leaf in leaves_of(field, position)]

    @lazy_property
    def row_bytes(self) -> int:
        """Number of bytes that the summaries read for each row."""
        return sum([bytes_read_per_row(leaf) for leaf in self._leaves])

    @property
    def num_rows(self) -> int:
        """Number of added rows."""
        return self._num_rows + self._queue_rows + self._first_rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. Small batches are queued until they fill a zone."""
        if self._num_rows + self._queue_rows == 0:
            self._first.append(batch)
            self._first_rows += batch.num_rows
            # The size of all buffers is an upper bound of `nbytes`, which takes much longer.
            size = batch.get_total_buffer_size()
            self._first_bytes += size if size < self._max_first_bytes else batch.nbytes
            if self._first_rows >= _FIRST_ROWS or self._first_bytes >= self._max_first_bytes:
                self._add_first()
        else:
            self._add(batch)

    def _add_first(self) -> None:
        first, self._first, self._first_rows = self._first, [], 0
        for batch in first:
            self._add(batch)

    def _add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        columns = batch.columns
        arrays = [leaf.pick(columns) for leaf in self._leaves]
        if batch.num_rows >= self._zone_rows // 4 and not self._queue:
            self._summarize(arrays, batch.num_rows)
            return
        self._queue.append([leaf.reduce(array) for leaf, array in zip(self._leaves, arrays, strict=True)])
        self._queue_rows += batch.num_rows
        if self._queue_rows >= self._zone_rows:
            self._flush()

    def statistics(self) -> FileStatistics:
        """Return the zone maps of all added rows."""
        self._add_first()
        self._flush()
        zones = np.concatenate(self._range_zones) if self._range_zones else np.empty(0, np.int64)
        firsts = np.flatnonzero(np.diff(zones, prepend=-1))
        zone_rows = np.full(len(firsts), self._zone_rows, np.int64)
        if len(zone_rows):
            zone_rows[-1] = self._num_rows - self._zone_rows * (len(zone_rows) - 1)
        columns = {leaf.field.id: leaf.summary.finish(firsts, zone_rows) for leaf in self._leaves}
        return FileStatistics(zone_rows, columns)

    def finish(self) -> bytes:
        """Return the zone maps of all added rows as the content of a global buffer."""
        return _to_ipc(self.statistics())

    def _flush(self) -> None:
        if self._queue:
            columns = zip(*self._queue, strict=True)
            arrays = [pa.concat_arrays(column) if len(column) > 1 else column[0] for column in columns]
            rows = self._queue_rows
            self._queue, self._queue_rows = [], 0
            self._summarize(arrays, rows)

    def _summarize(self, arrays: list[pa.Array], rows: int) -> None:
        first = self._num_rows
        borders = np.arange(-(first % self._zone_rows), rows, self._zone_rows)
        borders[0] = 0
        ranges = RowRanges(borders, np.append(borders[1:], rows))
        for leaf, array in zip(self._leaves, arrays, strict=True):
            leaf.summary.add(array, ranges)
        zone = first // self._zone_rows
        self._range_zones.append(np.arange(zone, zone + len(borders)))
        self._num_rows += rows


def parse_statistics(data: Buffer, schema: Schema, num_rows: int) -> FileStatistics | None:
    """Parse zone maps. The bytes are untrusted and fully validated.

    Parameters
    ----------
    data
        Content of the global buffer.
    schema
        Schema of the data file; columns of other fields are skipped.
    num_rows
        Number of rows of the data file.

    Returns
    -------
    FileStatistics or None
        None if the content has a newer version. Also None if it is malformed (wrong row sums, types, counts or sizes,
        or a minimum above its maximum); then a StatisticsWarning is issued.
    """
    try:
        batch = _read_ipc(memoryview(data).cast("B"))
        return None if batch is None else _from_batch(batch, schema, num_rows)
    except _PARSE_ERRORS as error:
        warnings.warn(f"malformed statistics of a data file are ignored: {error}", StatisticsWarning, stacklevel=2)
        return None


# -------------------------------------------------------------------------------------------------------------- folding


def _fold(stats: ZoneStats, zone_rows: Int64) -> ZoneStats:
    if stats.null_count is None:
        return ZoneStats(None, None, None, None)
    nulls = stats.null_count.sum(keepdims=True)
    nans = None if stats.nan_count is None else stats.nan_count.sum(keepdims=True)
    if stats.min is None or stats.max is None:
        return ZoneStats(nulls, None, None, nans)
    without_values = stats.null_count + (0 if stats.nan_count is None else stats.nan_count) == zone_rows
    # Zones without values have the widest bounds; use them only if no zone has values.
    known = None if without_values.all() else pa.array(~without_values)
    low = stats.min if known is None else stats.min.filter(known)
    high = stats.max if known is None else stats.max.filter(known)
    return ZoneStats(nulls, _fold_bound(low, "min"), _fold_bound(high, "max"), nans)


def _fold_bound(bounds: pa.Array, which: str) -> pa.Array:
    """Reduce the bounds of all zones to one; an unknown bound makes the result unknown."""
    kind = bounds.type
    if bounds.null_count:
        return pa.nulls(1, kind)
    dtype = number_dtype(kind)
    if dtype is not None:
        values = values_of(bounds, dtype)
        reduced = values.min(keepdims=True) if which == "min" else values.max(keepdims=True)
        return array_of(kind, reduced)
    return pa.array([pc.min_max(bounds)[which]], kind)


# ------------------------------------------------------------------------------------------------------- Arrow IPC file


def _to_ipc(statistics: FileStatistics) -> bytes:
    names, arrays = ["num_rows"], [array_of(pa.int64(), statistics.zone_rows)]
    for field_id, stats in statistics.columns.items():
        nulls = None if stats.null_count is None else array_of(pa.int64(), stats.null_count)
        children = {"null_count": nulls, "min_value": stats.min, "max_value": stats.max}
        if stats.nan_count is not None:
            children["nan_count"] = array_of(pa.int64(), stats.nan_count)
        present = {name: array for name, array in children.items() if array is not None}
        names.append(str(field_id))
        arrays.append(pa.StructArray.from_arrays(list(present.values()), list(present)))
    schema = pa.schema(list(zip(names, [array.type for array in arrays])), metadata={"version": _VERSION})
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return file_of(batch, compressed=statistics.num_zones >= _COMPRESSED_ZONES)


def _read_ipc(view: memoryview) -> pa.RecordBatch | None:
    """Read the single batch of an IPC file. Returns None if the content has another version."""
    schema, message = batch_message(view)
    if (schema.metadata or {}).get(b"version") != _VERSION:
        return None
    return decode_batch(message, schema, max(_MIN_LIMIT_BYTES, _LIMIT_RATIO * len(view)))


# ------------------------------------------------------------------------------------------------------------- checking


def _from_batch(batch: pa.RecordBatch, schema: Schema, num_rows: int) -> FileStatistics:
    if batch.num_columns == 0 or batch.schema.names[0] != "num_rows" or batch.column(0).type != pa.int64():
        raise ValueError("the first column is not num_rows")
    zone_rows = _counts(batch.column(0), "num_rows")
    # Sum in Python, where integers do not overflow.
    if (zone_rows <= 0).any() or sum(zone_rows.tolist()) != num_rows:
        raise ValueError(f"the rows of the zones do not add up to the {num_rows} rows of the file")
    columns: dict[int, ZoneStats] = {}
    for name, array in zip(batch.schema.names[1:], batch.columns[1:]):
        field = schema.by_id.get(int(name)) if name.isdecimal() else None
        if field is None:
            continue
        if field.id in columns:
            raise ValueError(f"duplicate column for field {field.id}")
        columns[field.id] = _check_column(array, field, zone_rows)
    return FileStatistics(zone_rows, columns)


def _check_column(array: pa.Array, field: Field, zone_rows: Int64) -> ZoneStats:
    if not pa.types.is_struct(array.type) or array.null_count:
        raise ValueError(f"field {field.id} is not a struct column without nulls")
    children = {array.type.field(i).name: array.field(i) for i in range(array.type.num_fields)}
    if "null_count" not in children:
        raise ValueError(f"field {field.id} has no null_count")
    nulls = _counts(children["null_count"], f"null_count of field {field.id}")
    if (nulls < 0).any() or (nulls > zone_rows).any():
        raise ValueError(f"null_count of field {field.id} is negative or exceeds the rows of its zone")
    kind = ordered_type(field)
    low, high = children.get("min_value"), children.get("max_value")
    if kind is None or low is None or high is None:
        return ZoneStats(nulls, None, None, None)
    if low.type != kind or high.type != kind:
        raise ValueError(f"bounds of field {field.id} are {low.type} and {high.type}, not {kind}")
    nans: Int64 | None = None
    if pa.types.is_floating(kind):
        if "nan_count" not in children:
            # Without the count, the zone may contain NaN, which sorts above the maximum.
            return ZoneStats(nulls, None, None, None)
        nans = _counts(children["nan_count"], f"nan_count of field {field.id}")
        if (nans < 0).any() or (nans > zone_rows - nulls).any():
            raise ValueError(f"nan_count of field {field.id} is negative or exceeds the non-null rows of its zone")
    if is_text(kind) or is_bytes(kind):
        low.validate(full=True)
        high.validate(full=True)
    elif low.null_count or high.null_count:
        raise ValueError(f"bounds of field {field.id} have nulls")
    if _crossed(low, high):
        raise ValueError(f"a minimum of field {field.id} is above its maximum")
    return ZoneStats(nulls, low, high, nans)


def _counts(array: pa.Array, what: str) -> Int64:
    if array.type != pa.int64() or array.null_count:
        raise ValueError(f"{what} is not int64 without nulls")
    return values_of(array, np.dtype("<i8"))


def _crossed(low: pa.Array, high: pa.Array) -> bool:
    """Return True if a minimum exceeds its maximum or a bound is NaN."""
    dtype = number_dtype(low.type)
    if dtype is not None:
        return not bool((values_of(low, dtype) <= values_of(high, dtype)).all())
    return bool(pc.any(pc.greater(low, high)).as_py())
