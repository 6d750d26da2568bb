"""BLOOMFILTER: a Bloom filter of the values in each zone, and the rows with nulls.

    bloomfilter.lance    fragment_id  zone_start  zone_length  has_null  bloom_filter_data      a row for each zone

The bytes of a value are hashed: little-endian numbers, UTF-8, or binaries. Zeros of either sign therefore differ, as do
values of NaN.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, InvalidInputError, UnsupportedTypeError
from lancetable.file.kernels.varbin import offset_dtype, offsets_of
from lancetable.file.kernels.xxh64 import Hashes, hash_numbers, hash_strings
from lancetable.file.zone_map_builder import number_dtype, values_of
from lancetable.format.row_address import U64Array
from lancetable.index.kind import ROW, VALUE, Batches, IndexKind, OpenIndex, RowFilter, Sources, checked_options
from lancetable.index.queries import IndexQuery, IsIn, IsNull
from lancetable.index.split_block_filter import BLOCK_BYTES, FilterBuilder, filter_bytes, may_contain
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
from lancetable.proto import index_pb2

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from lancetable.format.schema import Field
    from lancetable.index.index_files import IndexFileWriter, SegmentWriter
    from lancetable.index.segments import SegmentFiles

_FILE: Final = "bloomfilter.lance"
_ITEMS_KEY: Final = "bloomfilter_item"
_PROBABILITY_KEY: Final = "bloomfilter_probability"
_DEFAULTS: Final[dict[str, Any]] = {"number_of_items": 8192, "probability": 0.00057}
_SCHEMA: Final = pa.schema(
    [
        *ZONE_FIELDS,
        pa.field("has_null", pa.bool_(), nullable=False),
        pa.field("bloom_filter_data", pa.binary(), nullable=False),
    ]
)
_ZONES_PER_READ: Final = 64
_VALUES_PER_PROBE: Final = 256


class BloomFilterIndex(ZonedIndex):
    """Open segment of a BLOOMFILTER index. Zones are in memory; filters are read on demand and cached."""

    def __init__(self, files: SegmentFiles) -> None:
        file = files.open(_FILE)
        columns = file.read([field.name for field in _SCHEMA][:4])
        has_null = columns.column("has_null").combine_chunks()
        if has_null.type != pa.bool_() or has_null.null_count:
            raise CorruptFileError("invalid column 'has_null' of a BLOOMFILTER index", path=file.path)
        super().__init__(file, Zones.parse(columns, file.path), has_null.to_numpy(zero_copy_only=False))
        probability = file.text(_PROBABILITY_KEY) or str(_DEFAULTS["probability"])
        try:
            self.probability = float(probability)
        except ValueError:
            what = "invalid probability of a BLOOMFILTER index"
            raise CorruptFileError(what, "a number", probability, path=file.path) from None
        self.number_of_items = file.number(_ITEMS_KEY, _DEFAULTS["number_of_items"])

    def select(self, query: IndexQuery) -> Bools:
        """Return, for each zone, whether it may contain a value that a query selects. See ZonedIndex."""
        assert isinstance(query, IsIn)
        values = _probes(query.values)
        selected = np.zeros(len(self.zones), np.bool_)
        if values is None:
            selected[:] = True
        elif len(values):
            hashes = hashes_of(values)
            for start in range(0, len(selected), _ZONES_PER_READ):
                zones = range(start, min(start + _ZONES_PER_READ, len(selected)))
                selected[start : zones.stop] = self._contain(zones, hashes)
        return selected

    def _contain(self, zones: range, hashes: Hashes) -> Bools:
        """Return, for each of some zones, whether its filter may contain one of the values."""
        filters = self.filters(zones)
        offsets = offsets_of(filters)
        sizes, words = np.diff(offsets), _content(filters)
        found = np.zeros(len(zones), np.bool_)
        for size in np.unique(sizes).tolist():
            at = np.flatnonzero(sizes == size)
            if size == 0 or size % BLOCK_BYTES:
                raise CorruptFileError("invalid size of a Bloom filter", path=self.file.path)
            rows = words[offsets[at][:, None] + np.arange(size)] if len(at) < len(zones) else words[offsets[0] :]
            blocks = rows[: len(at) * size].view("<u4").reshape(len(at), -1, 8)
            for part in range(0, len(hashes), _VALUES_PER_PROBE):
                found[at] |= may_contain(blocks, hashes[part : part + _VALUES_PER_PROBE]).any(axis=1)
        return found

    def filters(self, zones: range) -> pa.Array:
        """Return the filters of some zones, cached."""

        def read() -> pa.Array:
            (filters,) = self.file.read_arrays(["bloom_filter_data"], zones)
            if filters.type != pa.binary() or filters.null_count:
                raise CorruptFileError("invalid filters of a BLOOMFILTER index", path=self.file.path)
            return filters

        return self.file.cached(("bloom filters", zones.start), read, lambda filters: int(filters.nbytes))

    def prewarm(self) -> None:
        """Read all filters into the cache. See OpenIndex."""
        self.null_rows()
        for start in range(0, len(self.zones), _ZONES_PER_READ):
            self.filters(range(start, min(start + _ZONES_PER_READ, len(self.zones))))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The options with which the segment was built. See OpenIndex."""
        return {"number_of_items": self.number_of_items, "probability": self.probability}

    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment. See OpenIndex."""
        return {
            "type": "BloomFilter",
            "num_blocks": len(self.zones),
            "number_of_items": self.number_of_items,
            "probability": self.probability,
        }

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory. See OpenIndex."""
        return 32 * len(self.zones)


def _probes(values: pa.Array) -> pa.Array | None:
    """Return the values to look up. None if all zones may contain one, because filters distinguish values of NaN."""
    if not pa.types.is_floating(values.type):
        return values
    numbers = values.to_numpy(zero_copy_only=False)
    if np.isnan(numbers).any():
        return None
    zeros = numbers[numbers == 0]
    return pa.array(np.concatenate((numbers[numbers != 0], zeros, -zeros)), values.type)


def hashes_of(values: pa.Array) -> Hashes:
    """Return the hashes of values without nulls."""
    dtype = number_dtype(values.type)
    if dtype is not None:
        return hash_numbers(values_of(values, dtype)) if len(values) else np.empty(0, np.uint64)
    offsets = offsets_of(values)
    return hash_strings(offsets - offsets[0], _content(values)[offsets[0] : offsets[-1]])


def _content(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return the bytes that the offsets of an array refer to."""
    content = array.buffers()[2]
    return np.frombuffer(b"" if content is None else content, np.uint8)


class _FilterWriter:
    """Writer of the zones of batches."""

    def __init__(self, file: IndexFileWriter, number_of_items: int, probability: float) -> None:
        self._file = file
        self._cutter = ZoneCutter(number_of_items)
        self._filter = FilterBuilder(filter_bytes(number_of_items, probability))
        self._first: np.uint64 | None = None
        self._last = np.uint64(0)
        self._has_null = False

    def add(self, values: pa.Array, rows: U64Array) -> None:
        """Add the rows of a batch."""
        ranges, is_new = self._cutter.cut(rows)
        for (start, count), new in zip(ranges, is_new.tolist()):
            if new:
                self.close_zone()
                self._first = rows[start]
            self._last = rows[start + count - 1]
            part = values.slice(start, count)
            if part.null_count:
                self._has_null, part = True, part.drop_null()
            self._filter.add(hashes_of(part))

    def close_zone(self) -> None:
        """Write the zone of the last rows."""
        if self._first is None:
            return
        zones = Zones.of(np.array([self._first]), np.array([self._last]))
        columns = {
            **zones.columns(),
            "has_null": pa.array([self._has_null]),
            "bloom_filter_data": pa.array([self._filter.finish()]),
        }
        self._file.write(pa.record_batch(columns, schema=_SCHEMA))
        self._first, self._has_null = None, False


class BloomFilter(IndexKind):
    """Kind of BLOOMFILTER indexes. See IndexKind."""

    name = "BLOOMFILTER"
    plan_name = "BloomFilter"
    type_url = "/lance.index.pb.BloomFilterIndexDetails"
    max_version = 0

    def stores_row_ids(self, index_version: int) -> bool:
        """Return whether segments store stable row ids. See IndexKind."""
        return False

    def check_field(self, field: Field, path: str) -> None:
        """Raise UnsupportedTypeError if a column cannot be indexed. See IndexKind."""
        kind = field.data_type
        hashed = offset_dtype(kind) is not None or (
            number_dtype(kind) is not None and not pa.types.is_duration(kind) and not pa.types.is_float16(kind)
        )
        if not hashed or field.is_json or field.is_blob:
            raise UnsupportedTypeError(
                f"column {path!r} of type {field.logical_type} cannot have a BLOOMFILTER index; choose a column of"
                " integers, float32, float64, strings, binaries, dates, times or timestamps",
                feature=f"BLOOMFILTER indexes of {field.logical_type} columns",
            )

    def answers(self, query: IndexQuery, details: bytes) -> bool:
        """Return whether an index can answer a query. See IndexKind."""
        return isinstance(query, IsIn | IsNull)

    def is_exact(self, query: IndexQuery, details: bytes) -> bool:
        """Return False, because the details do not record the set of rows with nulls. See IndexKind."""
        return False

    def open(self, files: SegmentFiles) -> BloomFilterIndex:
        """Open a segment. See IndexKind."""
        return BloomFilterIndex(files)

    def merge(
        self, writer: SegmentWriter, field: Field, sources: Sources, batches: Batches, options: Mapping[str, Any]
    ) -> Message:
        """Write a segment with the zones of others and of new rows. See IndexKind."""
        defaults = dict(_DEFAULTS)
        for source, _ in sources:
            assert isinstance(source, BloomFilterIndex)
            defaults = {"number_of_items": source.number_of_items, "probability": source.probability}
        chosen = checked_options(self.name, options, defaults)
        items, probability = chosen["number_of_items"], chosen["probability"]
        if items < 1 or not 0 < probability < 1:
            raise InvalidInputError(
                "option 'number_of_items' must be positive, and 'probability' between 0 and 1;"
                f" got {items} and {probability}"
            )
        with writer.open_file(_FILE, _SCHEMA) as file:
            for source, keep in sources:
                for batch in _kept_zones(source, keep):
                    file.write(batch)
            zones, nulls = _FilterWriter(file, items, probability), NullRows()
            for batch in batches:
                if batch.num_rows:
                    values, rows = batch.column(VALUE), batch.column(ROW).to_numpy()
                    zones.add(values, rows)
                    nulls.add(values, rows)
            zones.close_zone()
            file.metadata.update({_ITEMS_KEY: str(items), _PROBABILITY_KEY: str(probability)})
            all_nulls = merged_nulls(sources, nulls.rows())
            if all_nulls is not None:
                file.metadata[NULL_BITMAP_KEY] = str(file.add_buffer(all_nulls.to_row_addr_tree_map()))
        return index_pb2.BloomFilterIndexDetails()


def _kept_zones(source: OpenIndex, keep: RowFilter) -> Iterator[pa.RecordBatch]:
    """Yield the zones with rows that an index may still name."""
    assert isinstance(source, BloomFilterIndex)
    kept = source.zones.kept(keep)
    for start in range(0, len(kept), _ZONES_PER_READ):
        zones = range(start, min(start + _ZONES_PER_READ, len(kept)))
        names = [field.name for field in _SCHEMA]
        columns = source.file.read_arrays(names, zones)
        yield pa.record_batch(columns, schema=_SCHEMA).filter(pa.array(kept[start : zones.stop]))


KIND: Final = BloomFilter()
