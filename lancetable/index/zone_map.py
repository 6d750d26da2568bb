"""ZONEMAP: the bounds of the values in each zone, and the rows with nulls.

    zonemap.lance    min  max  null_count  nan_count  fragment_id  zone_start  zone_length      a row for each zone

The maximum of a zone with NaN is NaN, as is the minimum if there are no other values. With a negative NaN the minimum
is -inf, because pylance orders it below all numbers. The bounds of a zone of nulls are null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import CorruptFileError, InvalidInputError
from lancetable.file.kernels.varbin import offset_dtype
from lancetable.file.zone_map_builder import summary_of
from lancetable.format.protobuf_conversion import parse_message
from lancetable.index.key_ranges import key_ranges
from lancetable.index.kind import (
    ROW,
    VALUE,
    Batches,
    IndexKind,
    Sources,
    check_ordered,
    check_same_type,
    checked_options,
)
from lancetable.index.queries import IndexQuery, IsIn, IsNull, Range, StartsWith
from lancetable.index.sort_keys import any_less, float_keys, is_ordered, keys_of
from lancetable.index.zones import (
    NULL_BITMAP_KEY,
    ZONE_FIELDS,
    Bools,
    NullRows,
    ZoneCutter,
    ZonedIndex,
    Zones,
    merged_nulls,
)
from lancetable.proto import index_details_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lancetable.format.row_address import U64Array
    from lancetable.format.schema import Field
    from lancetable.index.index_files import SegmentWriter
    from lancetable.index.segments import SegmentFiles

_FILE: Final = "zonemap.lance"
_ZONE_ROWS_KEY: Final = "rows_per_zone"
_DEFAULT_ZONE_ROWS: Final = 8192
_COUNT_FIELDS: Final = [pa.field(name, pa.uint32(), nullable=False) for name in ("null_count", "nan_count")]


class ZoneMapIndex(ZonedIndex):
    """Open segment of a ZONEMAP index. All zones are in memory."""

    def __init__(self, files: SegmentFiles) -> None:
        file = files.open(_FILE)
        self.rows_per_zone = file.number(_ZONE_ROWS_KEY, _DEFAULT_ZONE_ROWS)
        names = ["min", "max", *(field.name for field in [*_COUNT_FIELDS, *ZONE_FIELDS])]
        self.columns = file.read(names).combine_chunks()
        zones = Zones.parse(self.columns, file.path)
        minimum, maximum, *counts = (self.columns.column(name).combine_chunks() for name in names[:4])
        self.data_type = minimum.type
        if maximum.type != self.data_type or any(c.type != pa.uint32() or c.null_count for c in counts):
            raise CorruptFileError("invalid columns of a ZONEMAP index", path=file.path)
        nulls, self._nans = (count.to_numpy().astype(np.int64) for count in counts)
        if (nulls + self._nans > zones.lengths).any():
            raise CorruptFileError("a zone of a ZONEMAP index has more nulls than rows", path=file.path)
        super().__init__(file, zones, nulls > 0)
        # pylance stores no bounds of some types. Deleted rows count as values here.
        self._unknown = minimum.is_null().to_numpy(zero_copy_only=False) & (nulls + self._nans < zones.lengths)
        if is_ordered(self.data_type):
            self._read_bounds(minimum, maximum)

    def _read_bounds(self, minimum: pa.Array, maximum: pa.Array) -> None:
        has_bounds = minimum.is_valid().to_numpy(zero_copy_only=False)
        has_maximum = maximum.is_valid().to_numpy(zero_copy_only=False)
        if (has_bounds & ~has_maximum).any() or (has_maximum & ~has_bounds & (self._nans == 0)).any():
            raise CorruptFileError("a zone of a ZONEMAP index has one bound only", path=self.file.path)
        self._bounded = np.flatnonzero(has_bounds)
        known = pa.array(self._bounded)
        self._lows, self._highs = keys_of(minimum.take(known)), keys_of(maximum.take(known))
        if isinstance(self._highs, np.ndarray):
            self._highs = np.where(self._nans[self._bounded] > 0, np.iinfo(self._highs.dtype).max, self._highs)
        if any_less(self._highs, self._lows):
            raise CorruptFileError("a zone of a ZONEMAP index has a minimum above its maximum", path=self.file.path)

    def select(self, query: IndexQuery) -> Bools:
        """Return, for each zone, whether it may contain a value that a query selects. See ZonedIndex."""
        if not is_ordered(self.data_type):
            return np.ones(len(self.zones), np.bool_)
        ranges = key_ranges(query, self.data_type)
        selected: Bools = self._unknown.copy()
        selected[self._bounded] = ranges.overlap(self._lows, self._highs)
        if ranges.selects_nan:
            selected |= self._nans > 0
        return selected

    @property
    def value_type(self) -> pa.DataType:
        """The type of the indexed values. See OpenIndex."""
        return self.data_type

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The options with which the segment was built. See OpenIndex."""
        return {"rows_per_zone": self.rows_per_zone}

    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment. See OpenIndex."""
        return {"num_zones": len(self.zones), "rows_per_zone": self.rows_per_zone}

    def prewarm(self) -> None:
        """Read the rows with nulls; everything else is in memory. See OpenIndex."""
        self.null_rows()

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory. See OpenIndex."""
        return 3 * int(self.columns.nbytes)


class _ZoneBuilder:
    """Builder of the zones of batches."""

    def __init__(self, data_type: pa.DataType, rows_per_zone: int) -> None:
        self._data_type = data_type
        self._summary = summary_of(data_type, truncates=False)
        self._cutter, self.nulls = ZoneCutter(rows_per_zone), NullRows()
        # For each range of rows in a batch and a zone:
        self._firsts, self._lasts = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        self._counts, self._starts_zone = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
        self._negative_nan = [np.empty(0, np.bool_)]

    def add(self, values: pa.Array, rows: U64Array) -> None:
        """Add the rows of a batch."""
        ranges, is_new = self._cutter.cut(rows)
        self._summary.add(values, ranges)
        self.nulls.add(values, rows)
        self._firsts.append(rows[ranges.starts])
        self._lasts.append(rows[ranges.ends - 1])
        self._counts.append(ranges.ends - ranges.starts)
        self._starts_zone.append(is_new)
        if pa.types.is_floating(self._data_type):
            keys = keys_of(values)  # undefined for nulls, which therefore may lower a minimum
            is_negative_nan = keys < float_keys(np.array([-np.inf], self._data_type.to_pandas_dtype()))
            self._negative_nan.append(np.logical_or.reduceat(is_negative_nan, ranges.starts))

    def finish(self) -> pa.Table:
        """Return the zones as columns of a file."""
        at = np.flatnonzero(np.concatenate(self._starts_zone))
        firsts, lasts = np.concatenate(self._firsts), np.concatenate(self._lasts)
        counts = np.add.reduceat(np.concatenate(self._counts), at) if len(at) else np.empty(0, np.int64)
        stats = self._summary.finish(at, counts)
        assert stats.min is not None and stats.max is not None and stats.null_count is not None
        minimum, maximum = (_with_nulls(bounds, stats.null_count == counts) for bounds in (stats.min, stats.max))
        nan_count = np.zeros_like(counts)
        if stats.nan_count is not None:
            nan_count = stats.nan_count
            only_nan = (nan_count > 0) & (nan_count + stats.null_count == counts)
            minimum = _replaced(minimum, only_nan, np.nan)
            if len(at):
                below_all = np.logical_or.reduceat(np.concatenate(self._negative_nan), at)
                minimum = _replaced(minimum, below_all, -np.inf)
            maximum = _replaced(maximum, nan_count > 0, np.nan)
        columns = {
            "min": minimum,
            "max": maximum,
            "null_count": pa.array(stats.null_count, pa.uint32()),
            "nan_count": pa.array(nan_count, pa.uint32()),
            **Zones.of(firsts[at], lasts[np.append(at[1:], len(lasts)) - 1] if len(at) else lasts).columns(),
        }
        fields = [("min", self._data_type), ("max", self._data_type), *_COUNT_FIELDS, *ZONE_FIELDS]
        return pa.table(columns, schema=pa.schema(fields))


def _with_nulls(bounds: pa.Array, is_null: Bools) -> pa.Array:
    return pc.if_else(pa.array(is_null), pa.scalar(None, bounds.type), bounds) if is_null.any() else bounds


def _replaced(bounds: pa.Array, at: Bools, number: float) -> pa.Array:
    """Return bounds in which some elements are a floating point number."""
    return pc.if_else(pa.array(at), pa.scalar(number, bounds.type), bounds) if at.any() else bounds


class ZoneMap(IndexKind):
    """Kind of ZONEMAP indexes. See IndexKind."""

    name = "ZONEMAP"
    plan_name = "ZoneMap"
    type_url = "/lance.table.ZoneMapIndexDetails"
    max_version = 0

    def stores_row_ids(self, index_version: int) -> bool:
        """Return whether segments store stable row ids. See IndexKind."""
        return False

    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedTypeError if a column cannot be indexed. See IndexKind."""
        check_ordered(field, path, self.name)

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether an index can answer a query. See IndexKind."""
        return isinstance(query, IsIn | Range | IsNull | StartsWith)

    def is_exact(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether the answer is exact: nulls, if the segment contains the set of their rows. See IndexKind."""
        message = parse_message(index_details_pb2.ZoneMapIndexDetails, details)
        return isinstance(query, IsNull) and bool(message.has_null_bitmap)

    def open(self, files: SegmentFiles) -> ZoneMapIndex:
        """Open a segment. See IndexKind."""
        return ZoneMapIndex(files)

    def merge(
        self, writer: SegmentWriter, field: Field, sources: Sources, batches: Batches, options: Mapping[str, Any]
    ) -> Message:
        """Write a segment with the zones of others and of new rows. See IndexKind."""
        defaults: dict[str, Any] = {
            "rows_per_zone": _DEFAULT_ZONE_ROWS,
            "use_seeds": offset_dtype(field.data_type) is not None or pa.types.is_decimal(field.data_type),
        }
        parts = []
        for source, keep in sources:
            assert isinstance(source, ZoneMapIndex)
            check_same_type(self.name, source.data_type, field)
            parts.append(source.columns.filter(pa.array(source.zones.kept(keep))))
            defaults["rows_per_zone"] = source.rows_per_zone
        chosen = checked_options(self.name, options, defaults)
        zone_rows = chosen["rows_per_zone"]
        if zone_rows < 1:
            raise InvalidInputError(f"option 'rows_per_zone' must be positive, got {zone_rows}")
        zones = _ZoneBuilder(field.data_type, zone_rows)
        for batch in batches:
            if batch.num_rows:
                zones.add(batch.column(VALUE), batch.column(ROW).to_numpy())
        new = zones.finish()
        table = pa.concat_tables([*(part.cast(new.schema) for part in parts), new])
        all_nulls = merged_nulls(sources, zones.nulls.rows())
        buffers = {} if all_nulls is None else {NULL_BITMAP_KEY: all_nulls.to_row_addr_tree_map()}
        writer.write_file(_FILE, table, {_ZONE_ROWS_KEY: str(zone_rows)}, buffers)
        return index_details_pb2.ZoneMapIndexDetails(
            rows_per_zone=zone_rows, use_seeds=chosen["use_seeds"], has_null_bitmap=all_nulls is not None
        )


KIND: Final = ZoneMap()
