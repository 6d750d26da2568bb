"""Zone maps of a data file: what values a stretch of rows can hold, so that a scan can pass over it.

    num_rows   "3": null_count  min_value  max_value      "7": null_count  min_value  max_value  nan_count
        8192              0        "adam"    "berta"                  12       -0.5        99.0          0
        1808              4        "carl"    null                      0       -inf         inf       1808

One row per zone of 8,192 rows, one struct column per field, named by the field's id; an Arrow IPC file in a global
buffer of the data file. Minimum and maximum are bounds, not values: long strings are cut, and a zone of nulls has the
widest bounds of its type. A zone with NaN says so, because NaN sorts above everything in a predicate.

Fields at the top level and the leaves of structs have entries. Lists, structs, blobs, dictionaries and extension types
have a null count only. Source: the rules of page statistics in the 0.1 format.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.file.kernels import native, native_write, varbin, zones
from lancetable.format.schema import BLOB_KEY, Field, Schema

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = [
    "DEFAULT_ZONE_ROWS",
    "METADATA_KEY",
    "MIN_FILE_BYTES",
    "FileStatistics",
    "StatisticsBuilder",
    "StatisticsWarning",
    "ZoneStats",
    "parse_statistics",
]

METADATA_KEY: Final = "lancetable:statistics"  # in the file's schema metadata: decimal index of the global buffer
MIN_FILE_BYTES: Final = 64 << 10  # smaller files get none
DEFAULT_ZONE_ROWS: Final = 8192
_ZONE_ROWS_STEP: Final = 1024

_VERSION: Final = b"1"
_MAX_BOUND_BYTES: Final = 64
_IPC_MAGIC: Final = b"ARROW1\0\0"
# What a buffer may decompress to: honest zone maps stay far below both.
_MIN_LIMIT_BYTES: Final = 16 << 20
_LIMIT_RATIO: Final = 1024
# Fewer zones are a few kilobytes, and to compress each buffer of theirs takes longer than to write them.
_COMPRESSED_ZONES: Final = 1024
_PARSE_ERRORS: Final = (
    pa.ArrowException,
    ArithmeticError,
    LookupError,
    MemoryError,
    OSError,
    StopIteration,
    TypeError,
    ValueError,
    struct.error,
)

Int64 = npt.NDArray[np.int64]


class StatisticsWarning(UserWarning):
    """Statistics of a data file are malformed and have been ignored."""


@dataclass(frozen=True, slots=True, eq=False)
class ZoneStats:
    """Bounds of one field, one entry per zone.

    `min` and `max` are None where the type has no order; a null entry is a bound that is not known. `nan_count` is
    there for floating point only, and not in 0.1; a `null_count` of None, in 0.1 only, is not known.
    """

    null_count: Int64 | None
    min: pa.Array | None
    max: pa.Array | None
    nan_count: Int64 | None


@dataclass(frozen=True, slots=True, eq=False)
class FileStatistics:
    """Zone maps of one data file. Zones are consecutive; `zone_rows` sums to the rows of the file, deleted ones too."""

    zone_rows: Int64
    columns: Mapping[int, ZoneStats]  # by field id

    @property
    def num_zones(self) -> int:
        return len(self.zone_rows)

    @property
    def zone_starts(self) -> Int64:
        """First row of each zone."""
        return np.cumsum(self.zone_rows) - self.zone_rows

    def fold(self) -> FileStatistics:
        """Bounds of the whole file, as one zone. Without zones there is nothing to fold and the result has none."""
        if self.num_zones <= 1:
            return self
        return FileStatistics(
            np.array([self.zone_rows.sum()], np.int64),
            {field_id: _fold(stats, self.zone_rows) for field_id, stats in self.columns.items()},
        )


class StatisticsBuilder:
    """Gathers zone maps while batches pass by. Batches may have any size; zones are cut across their borders."""

    def __init__(self, schema: Schema, zone_rows: int = DEFAULT_ZONE_ROWS) -> None:
        """`zone_rows` is a multiple of 1,024. Batches hold the schema's top-level fields in its order."""
        if zone_rows <= 0 or zone_rows % _ZONE_ROWS_STEP:
            raise ValueError(f"zone_rows must be a multiple of {_ZONE_ROWS_STEP}, not {zone_rows}")
        self._zone_rows = zone_rows
        self._num_rows = 0
        self._leaves = [leaf for position, field in enumerate(schema.fields) for leaf in _leaves_of(field, position)]
        self.row_bytes: Final = sum(map(_looked_at_bytes, self._leaves))  # about what is looked at of each row
        self._piece_zones: list[Int64] = []
        self._waiting: list[list[pa.Array]] = []  # arrays of small batches, one list per batch
        self._waiting_rows = 0

    @property
    def num_rows(self) -> int:
        """Rows added so far."""
        return self._num_rows + self._waiting_rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Take the next rows. Small batches are kept until they fill a zone."""
        if batch.num_rows == 0:
            return
        arrays = [leaf.pick(batch) for leaf in self._leaves]
        if batch.num_rows >= self._zone_rows // 4 and not self._waiting:
            self._take(arrays, batch.num_rows)
            return
        self._waiting.append([leaf.kept(array) for leaf, array in zip(self._leaves, arrays, strict=True)])
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= self._zone_rows:
            self._flush()

    def statistics(self) -> FileStatistics:
        """The zone maps of all rows added."""
        self._flush()
        zones = np.concatenate(self._piece_zones) if self._piece_zones else np.empty(0, np.int64)
        firsts = np.flatnonzero(np.diff(zones, prepend=-1))
        zone_rows = np.full(len(firsts), self._zone_rows, np.int64)
        if len(zone_rows):
            zone_rows[-1] = self._num_rows - self._zone_rows * (len(zone_rows) - 1)
        columns = {leaf.field.id: leaf.summary.finish(firsts, zone_rows) for leaf in self._leaves}
        return FileStatistics(zone_rows, columns)

    def finish(self) -> bytes:
        """The zone maps of all rows added, as the content of a global buffer."""
        return _to_ipc(self.statistics())

    def _flush(self) -> None:
        if self._waiting:
            columns = zip(*self._waiting, strict=True)
            arrays = [pa.concat_arrays(column) if len(column) > 1 else column[0] for column in columns]
            rows = self._waiting_rows
            self._waiting, self._waiting_rows = [], 0
            self._take(arrays, rows)

    def _take(self, arrays: list[pa.Array], rows: int) -> None:
        first = self._num_rows
        borders = np.arange(-(first % self._zone_rows), rows, self._zone_rows)
        borders[0] = 0
        pieces = _Pieces(borders, np.append(borders[1:], rows))
        for leaf, array in zip(self._leaves, arrays, strict=True):
            leaf.summary.add(array, pieces)
        zone = first // self._zone_rows
        self._piece_zones.append(np.arange(zone, zone + len(borders)))
        self._num_rows += rows


def parse_statistics(
    data: Buffer, schema: Schema, num_rows: int, field_ids: Collection[int] | None = None
) -> FileStatistics | None:
    """Read zone maps that anyone may have written; `schema` and `num_rows` are those of the data file.

    With `field_ids`, only these fields are looked at. Fields that the schema does not have are passed over. Malformed
    statistics (row sums, types, counts, crossed bounds, sizes) are ignored as a whole: the answer is None and a
    StatisticsWarning says why. A newer version of the content gives None without a warning.
    """
    try:
        batch = _read_ipc(memoryview(data).cast("B"))
        if batch is None:
            return None
        return _from_batch(batch, schema, num_rows, field_ids)
    except _PARSE_ERRORS as error:
        warnings.warn(f"statistics of a data file are ignored: {error}", StatisticsWarning, stacklevel=2)
        return None


# ------------------------------------------------------------------------------------------------------------ gathering


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """Consecutive pieces of a batch, none of which crosses the border of a zone."""

    starts: Int64
    ends: Int64

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts.tolist(), (self.ends - self.starts).tolist(), strict=True)


class _Summary(Protocol):
    """What is kept of the pieces of one leaf."""

    def add(self, array: pa.Array, pieces: _Pieces) -> None: ...

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        """`firsts` are the first pieces of the zones."""


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """A field with an entry, how to find its values in a batch, and their summary."""

    field: Field
    column: int
    path: tuple[int, ...]  # child positions below the column
    summary: _Summary

    def pick(self, batch: pa.RecordBatch) -> pa.Array:
        array = batch.column(self.column)
        for child in self.path:
            array = _plain(array)
            # Only flatten() hands the nulls of a struct down to its children.
            array = array.flatten()[child] if array.null_count else array.field(child)
        array = _plain(array)
        if isinstance(self.summary, _NullSummary) or array.type.equals(self.field.data_type):
            return array
        return array.cast(self.field.data_type)

    def kept(self, array: pa.Array) -> pa.Array:
        """What has to wait of an array."""
        return _nulls_only(array) if isinstance(self.summary, _NullSummary) else array


def _leaves_of(field: Field, column: int, path: tuple[int, ...] = ()) -> Iterator[_Leaf]:
    # The parts of a blob's description have no ids, and nobody asks for them.
    if field.is_struct and field.children and BLOB_KEY not in field.metadata:
        if not path:
            yield _Leaf(field, column, path, _NullSummary())
        for position, child in enumerate(field.children):
            yield from _leaves_of(child, column, (*path, position))
    else:
        yield _Leaf(field, column, path, _summary_for(field))


def _summary_for(field: Field) -> _Summary:
    kind = _ordered_type(field)
    if kind is None:
        return _NullSummary()
    if pa.types.is_boolean(kind):
        return _BoolSummary()
    if _number_dtype(kind) is not None:
        return _NumberSummary(kind)
    if pa.types.is_decimal(kind):
        return _DecimalSummary(kind)
    return _BytesSummary(kind)


def _looked_at_bytes(leaf: _Leaf) -> int:
    if isinstance(leaf.summary, _NullSummary | _BoolSummary):
        return 0
    try:
        return int(leaf.field.data_type.bit_width) // 8
    except ValueError:
        return 32  # a string takes as long as some numbers


def _ordered_type(field: Field) -> pa.DataType | None:
    """The type of the field's bounds, None if it has no bounds."""
    if field.is_blob or field.is_json or field.extension_name is not None:
        return None
    kind = field.data_type
    ordered = pa.types.is_floating(kind) or pa.types.is_boolean(kind) or _is_integral(kind)
    # Arrow compares no decimals of negative scale.
    ordered = ordered or (pa.types.is_decimal(kind) and kind.scale >= 0)
    return kind if ordered or _is_text(kind) or _is_bytes(kind) else None


def _is_integral(kind: pa.DataType) -> bool:
    """Integers, and what is stored as one."""
    return bool(pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)))


def _number_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """NumPy type of what is stored as a number of its own, None for other types."""
    if pa.types.is_floating(kind):
        return np.dtype(f"<f{kind.bit_width // 8}")
    if _is_integral(kind):
        return np.dtype(f"<{'u' if pa.types.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _plain(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _nulls_only(array: pa.Array) -> pa.BooleanArray:
    """Some array of the same nulls."""
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        valid = pc.fill_null(array.dictionary.is_valid().take(array.indices), False)
    elif array.null_count:
        valid = array.is_valid()
    else:
        return pa.repeat(True, len(array))
    return pc.if_else(valid, True, None)


def _null_counts(array: pa.Array, pieces: _Pieces) -> Int64:
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        array = _nulls_only(array)
    if array.null_count == 0:
        return np.zeros(len(pieces.starts), np.int64)
    bitmap = array.buffers()[0]
    if native is not None and bitmap is not None:
        valid: Int64 = native.count_bits(bitmap, array.offset, pieces.starts, pieces.ends)
        return pieces.ends - pieces.starts - valid
    return np.array([array.slice(start, count).null_count for start, count in pieces], np.int64)


def _true_counts(array: pa.BooleanArray, pieces: _Pieces) -> Int64:
    if native is not None and len(array):
        bits = np.frombuffer(array.buffers()[1], np.uint8)
        if array.null_count:
            bitmap = np.frombuffer(array.buffers()[0], np.uint8)
            bits = bits[: len(bitmap)] & bitmap[: len(bits)]
        counts: Int64 = native.count_bits(bits, array.offset, pieces.starts, pieces.ends)
        return counts
    return np.array([array.slice(start, count).true_count for start, count in pieces], np.int64)


def _values(array: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


class _NullSummary:
    """Null counts alone, of arrays of any type."""

    def __init__(self) -> None:
        self._nulls: list[Int64] = []

    def add(self, array: pa.Array, pieces: _Pieces) -> None:
        self._nulls.append(_null_counts(array, pieces))

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        return ZoneStats(_sums(self._nulls, firsts), None, None, None)


class _NumberSummary:
    """Integers and temporal types, through their integers, and floating point, where NaN is counted and ignored."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._dtype = np.dtype(_number_dtype(kind))
        self._pieces: list[zones.Bounds] = []

    def add(self, array: pa.Array, pieces: _Pieces) -> None:
        validity = array.buffers()[0] if array.null_count else None
        values = _values(array, self._dtype)
        self._pieces.append(zones.number_zones(values, validity, array.offset, pieces.starts, pieces.ends))

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        nulls = _sums([each.nulls for each in self._pieces], firsts)
        lows, highs = [each.low for each in self._pieces], [each.high for each in self._pieces]
        if self._dtype.kind != "f":
            low = _reduce(np.minimum, lows, firsts, self._dtype)
            high = _reduce(np.maximum, highs, firsts, self._dtype)
            unknown = nulls == zone_rows
            if unknown.any():
                low[unknown], high[unknown] = np.iinfo(self._dtype).min, np.iinfo(self._dtype).max
            return ZoneStats(nulls, _from_values(self._kind, low), _from_values(self._kind, high), None)
        nans = _sums([each.nans for each in self._pieces], firsts)
        low = _reduce(np.fmin, lows, firsts, self._dtype)
        high = _reduce(np.fmax, highs, firsts, self._dtype)
        unknown = nulls + nans == zone_rows
        low[unknown], high[unknown] = -np.inf, np.inf
        low[low == 0], high[high == 0] = -0.0, 0.0
        return ZoneStats(nulls, _from_values(self._kind, low), _from_values(self._kind, high), nans)


class _BoolSummary:
    """Booleans, false below true."""

    def __init__(self) -> None:
        self._nulls: list[Int64] = []
        self._trues: list[Int64] = []

    def add(self, array: pa.Array, pieces: _Pieces) -> None:
        self._nulls.append(_null_counts(array, pieces))
        self._trues.append(_true_counts(array, pieces))

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        nulls, trues = _sums(self._nulls, firsts), _sums(self._trues, firsts)
        unknown = nulls == zone_rows
        low, high = (trues + nulls == zone_rows) & ~unknown, (trues > 0) | unknown
        return ZoneStats(nulls, _from_flags(low), _from_flags(high), None)


class _ScalarSummary:
    """Types whose bounds are rows of the array, and compared by Python where a zone has several pieces."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._nulls: list[Int64] = []
        self._low: list[pa.Array] = []  # a bound for each piece, null where all is null
        self._high: list[pa.Array] = []

    def add(self, array: pa.Array, pieces: _Pieces) -> None:
        self._nulls.append(_null_counts(array, pieces))
        rows = self._extremes(array, pieces) if len(array) else None
        if rows is not None:
            low, high = (array.take(pa.array(each, mask=each < 0)) for each in rows)
        else:
            found = [pc.min_max(array.slice(start, count)) for start, count in pieces]
            low, high = (pa.array([each[which] for each in found], array.type) for which in ("min", "max"))
        self._low.append(self._kept(low))
        self._high.append(self._kept(high))

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        low = self._bounds(min, self._low, firsts)
        high = self._bounds(max, self._high, firsts)
        return ZoneStats(_sums(self._nulls, firsts), self._minimum(low), self._maximum(high), None)

    def _bounds(self, choose: Callable[[list[Any]], Any], pieces: list[pa.Array], firsts: Int64) -> pa.Array:
        if not pieces:
            return pa.nulls(0, self._kind)
        whole = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        if len(whole) == len(firsts):
            return whole  # each piece is a zone
        values = whole.to_pylist()
        borders = [*firsts.tolist(), len(values)]
        known = ([v for v in values[a:b] if v is not None] for a, b in pairwise(borders))
        return pa.array([choose(each) if each else None for each in known], whole.type)

    def _extremes(self, array: pa.Array, pieces: _Pieces) -> tuple[Int64, Int64] | None:
        """The rows of the least and the greatest value of each piece, -1 where all is null; None without kernels."""
        width = self._kind.byte_width
        if native_write is None or width == 0:
            return None
        number = pa.types.is_decimal(self._kind)
        if number and width % 8:
            return None
        values = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
        validity = array.buffers()[0] if array.null_count else None
        found: tuple[Int64, Int64] = native_write.wide_extremes(
            values, width, number, validity, array.offset, pieces.starts, pieces.ends
        )
        return found

    def _kept(self, bounds: pa.Array) -> pa.Array:
        return bounds

    def _minimum(self, bounds: pa.Array) -> pa.Array:
        raise NotImplementedError

    def _maximum(self, bounds: pa.Array) -> pa.Array:
        raise NotImplementedError


class _DecimalSummary(_ScalarSummary):
    """Decimals; a bound that is not known is the widest value of the precision."""

    def _minimum(self, bounds: pa.Array) -> pa.Array:
        return self._filled(bounds, 1)

    def _maximum(self, bounds: pa.Array) -> pa.Array:
        return self._filled(bounds, 0)

    def _filled(self, bounds: pa.Array, sign: int) -> pa.Array:
        widest = Decimal((sign, (9,) * self._kind.precision, -self._kind.scale))
        return bounds.fill_null(pa.scalar(widest, self._kind)) if bounds.null_count else bounds


class _BytesSummary(_ScalarSummary):
    """Strings and binary, compared as bytes, which is also the order of code points."""

    def add(self, array: pa.Array, pieces: _Pieces) -> None:
        if pa.types.is_string(self._kind):
            array = array.view(pa.binary())
        elif pa.types.is_large_string(self._kind):
            array = array.view(pa.large_binary())
        super().add(array, pieces)

    def _extremes(self, array: pa.Array, pieces: _Pieces) -> tuple[Int64, Int64] | None:
        dtype = varbin.offset_dtype(self._kind)
        if dtype is None:
            return super()._extremes(array, pieces)
        if native_write is None:
            return None
        bitmap, ends, content = array.buffers()
        offsets = np.frombuffer(ends, dtype, len(array) + 1, array.offset * dtype.itemsize)
        data = b"" if content is None else content
        valid = bitmap if array.null_count else None
        found: tuple[Int64, Int64] = native_write.extremes(
            offsets, data, valid, array.offset, pieces.starts, pieces.ends, dtype.itemsize
        )
        return found

    def _kept(self, bounds: pa.Array) -> pa.Array:
        """Not more than it takes to cut a bound."""
        return bounds if self._are_short(bounds) else pc.binary_slice(bounds, 0, 2 * _MAX_BOUND_BYTES)

    def _minimum(self, bounds: pa.Array) -> pa.Array:
        return self._cut(bounds, self._floor)

    def _maximum(self, bounds: pa.Array) -> pa.Array:
        return self._cut(bounds, self._ceiling)

    def _cut(self, bounds: pa.Array, cut: Callable[[bytes], bytes | None]) -> pa.Array:
        if not self._are_short(bounds):
            bounds = pa.array([None if each is None else cut(each) for each in bounds.to_pylist()], bounds.type)
        return bounds.view(self._kind) if _is_text(self._kind) else bounds

    def _are_short(self, bounds: pa.Array) -> bool:
        if varbin.offset_dtype(self._kind) is None:
            return bool(self._kind.byte_width <= _MAX_BOUND_BYTES or bounds.null_count == len(bounds))
        longest = pc.max(pc.binary_length(bounds)).as_py()
        return bool(longest is None or longest <= _MAX_BOUND_BYTES)

    def _floor(self, value: bytes) -> bytes | None:
        if len(value) <= _MAX_BOUND_BYTES:
            return value
        if pa.types.is_fixed_size_binary(self._kind):
            return None
        return _cut_text(value) if _is_text(self._kind) else value[:_MAX_BOUND_BYTES]

    def _ceiling(self, value: bytes) -> bytes | None:
        if len(value) <= _MAX_BOUND_BYTES:
            return value
        if pa.types.is_fixed_size_binary(self._kind):
            return None
        return _raise_text(_cut_text(value)) if _is_text(self._kind) else _raise_bytes(value[:_MAX_BOUND_BYTES])


def _cut_text(value: bytes) -> bytes:
    """At most 64 bytes of UTF-8, cut between characters."""
    end = _MAX_BOUND_BYTES
    while end > 0 and value[end] & 0xC0 == 0x80:
        end -= 1
    return value[:end]


def _raise_bytes(prefix: bytes) -> bytes | None:
    """The least byte string above all that start with `prefix`, None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _raise_text(prefix: bytes) -> bytes | None:
    """A string of at most 64 bytes above all that start with `prefix`, None if there is none."""
    try:
        text = prefix.decode("utf-8")
    except UnicodeDecodeError:
        return None
    for end in range(len(text), 0, -1):
        code = ord(text[end - 1]) + 1
        if 0xD800 <= code <= 0xDFFF:
            code = 0xE000
        if code <= 0x10FFFF:
            raised = (text[: end - 1] + chr(code)).encode("utf-8")
            if len(raised) <= _MAX_BOUND_BYTES:
                return raised
    return None


def _sums(counts: list[Int64], firsts: Int64) -> Int64:
    return _reduce(np.add, counts, firsts, np.dtype(np.int64))


def _reduce(ufunc: np.ufunc, pieces: list[npt.NDArray[Any]], firsts: Int64, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if len(firsts) == 0:
        return np.empty(0, dtype)
    whole: npt.NDArray[Any] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    if len(whole) == len(firsts):
        return whole  # each piece is a zone
    reduced: npt.NDArray[Any] = ufunc.reduceat(whole, firsts)
    return reduced


def _from_flags(values: npt.NDArray[np.bool_]) -> pa.Array:
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def _from_values(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


# -------------------------------------------------------------------------------------------------------------- folding


def _fold(stats: ZoneStats, zone_rows: Int64) -> ZoneStats:
    if stats.null_count is None:
        return ZoneStats(None, None, None, None)
    nulls = stats.null_count.sum(keepdims=True)
    nans = None if stats.nan_count is None else stats.nan_count.sum(keepdims=True)
    if stats.min is None or stats.max is None:
        return ZoneStats(nulls, None, None, nans)
    without_values = stats.null_count + (0 if stats.nan_count is None else stats.nan_count) == zone_rows
    # Zones without values have the widest bounds; they count only where no other zone is there to tell.
    known = None if without_values.all() else pa.array(~without_values)
    low = stats.min if known is None else stats.min.filter(known)
    high = stats.max if known is None else stats.max.filter(known)
    return ZoneStats(nulls, _fold_bound(low, "min"), _fold_bound(high, "max"), nans)


def _fold_bound(bounds: pa.Array, which: str) -> pa.Array:
    """One bound out of many; one that is not known makes the result unknown."""
    kind = bounds.type
    if bounds.null_count:
        return pa.nulls(1, kind)
    dtype = _number_dtype(kind)
    if dtype is not None:
        values = _values(bounds, dtype)
        reduced = values.min(keepdims=True) if which == "min" else values.max(keepdims=True)
        return _from_values(kind, reduced)
    return pa.array([pc.min_max(bounds)[which]], kind)


# ------------------------------------------------------------------------------------------------------- Arrow IPC file


def _to_ipc(statistics: FileStatistics) -> bytes:
    names, arrays = ["num_rows"], [_from_values(pa.int64(), statistics.zone_rows)]
    for field_id, stats in statistics.columns.items():
        nulls = None if stats.null_count is None else _from_values(pa.int64(), stats.null_count)
        children = {"null_count": nulls, "min_value": stats.min, "max_value": stats.max}
        if stats.nan_count is not None:
            children["nan_count"] = _from_values(pa.int64(), stats.nan_count)
        present = {name: array for name, array in children.items() if array is not None}
        names.append(str(field_id))
        arrays.append(pa.StructArray.from_arrays(list(present.values()), list(present)))
    schema = pa.schema(list(zip(names, [each.type for each in arrays])), metadata={"version": _VERSION})
    sink = pa.BufferOutputStream()
    # Threads would have to wait for each other longer than it takes.
    compression = "zstd" if statistics.num_zones >= _COMPRESSED_ZONES else None
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _read_ipc(view: memoryview) -> pa.RecordBatch | None:
    """The single batch of an IPC file, None if its version is another one."""
    if bytes(view[: len(_IPC_MAGIC)]) != _IPC_MAGIC:
        raise ValueError("not an Arrow IPC file")
    # Behind its magic an IPC file is a stream; read as one, no footer can point elsewhere.
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(view[len(_IPC_MAGIC) :]))
    schema = pa.ipc.read_schema(reader.read_next_message())
    if (schema.metadata or {}).get(b"version") != _VERSION:
        return None
    message = reader.read_next_message()
    if message.type != "record batch":
        raise ValueError(f"a record batch was expected, not a {message.type}")
    _check_declared_bytes(message, max(_MIN_LIMIT_BYTES, _LIMIT_RATIO * len(view)))
    batch = pa.ipc.read_record_batch(message, schema)
    # Sizes of buffers only: the widest bounds of some temporal types do not pass a full validation.
    batch.validate()
    return batch


def _check_declared_bytes(message: pa.Message, limit: int) -> None:
    """Refuse a compressed body before it grows; pyarrow has verified the message's flatbuffer by now."""
    metadata, body = memoryview(message.metadata), memoryview(message.body)
    batch = _flatbuffer_reference(metadata, _flatbuffer_root(metadata), 2)
    if batch is None or _flatbuffer_slot(metadata, batch, 3) is None:
        return
    buffers = _flatbuffer_reference(metadata, batch, 2)
    if buffers is None:
        return
    (count,) = struct.unpack_from("<I", metadata, buffers)
    declared = 0
    for offset, length in struct.iter_unpack("<qq", metadata[buffers + 4 : buffers + 4 + 16 * count]):
        if length >= 8:
            declared += max(0, struct.unpack_from("<q", body, offset)[0])
    if declared > limit:
        raise ValueError(f"{declared} bytes are declared where at most {limit} can be")


def _flatbuffer_root(data: memoryview) -> int:
    return int(struct.unpack_from("<I", data, 0)[0])


def _flatbuffer_slot(data: memoryview, table: int, slot: int) -> int | None:
    """Where a field of a table lies, None if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    if 4 + 2 * slot >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * slot)
    return table + offset if offset else None


def _flatbuffer_reference(data: memoryview, table: int, slot: int) -> int | None:
    """Where the table or vector lies that a field refers to."""
    at = _flatbuffer_slot(data, table, slot)
    return None if at is None else at + int(struct.unpack_from("<I", data, at)[0])


# ------------------------------------------------------------------------------------------------------------- checking


def _from_batch(
    batch: pa.RecordBatch, schema: Schema, num_rows: int, field_ids: Collection[int] | None
) -> FileStatistics:
    if batch.num_columns == 0 or batch.schema.names[0] != "num_rows" or batch.column(0).type != pa.int64():
        raise ValueError("the first column is not num_rows")
    zone_rows = _counts(batch.column(0), "num_rows")
    # Summed in Python, where nothing wraps.
    if (zone_rows <= 0).any() or sum(zone_rows.tolist()) != num_rows:
        raise ValueError(f"zones do not sum to the {num_rows} rows of the file")
    columns: dict[int, ZoneStats] = {}
    for position in range(1, batch.num_columns):
        name = batch.schema.names[position]
        if not name.isdecimal():
            continue
        field_id = int(name)
        field = schema.by_id.get(field_id)
        if field is None or (field_ids is not None and field_id not in field_ids):
            continue
        if field_id in columns:
            raise ValueError(f"field {field_id} is there twice")
        columns[field_id] = _check_column(batch.column(position), field, zone_rows)
    return FileStatistics(zone_rows, columns)


def _check_column(array: pa.Array, field: Field, zone_rows: Int64) -> ZoneStats:
    if not pa.types.is_struct(array.type) or array.null_count:
        raise ValueError(f"field {field.id} is not a struct column without nulls")
    children = {array.type.field(i).name: array.field(i) for i in range(array.type.num_fields)}
    if "null_count" not in children:
        raise ValueError(f"field {field.id} has no null_count")
    nulls = _counts(children["null_count"], f"null_count of field {field.id}")
    if (nulls < 0).any() or (nulls > zone_rows).any():
        raise ValueError(f"null_count of field {field.id} is not within its zones")
    kind = _ordered_type(field)
    low, high = children.get("min_value"), children.get("max_value")
    if kind is None or low is None or high is None:
        return ZoneStats(nulls, None, None, None)
    if low.type != kind or high.type != kind:
        raise ValueError(f"bounds of field {field.id} are {low.type} and {high.type}, not {kind}")
    nans: Int64 | None = None
    if pa.types.is_floating(kind):
        if "nan_count" not in children:
            # Without it nothing can be said of values above the maximum, where NaN sorts.
            return ZoneStats(nulls, None, None, None)
        nans = _counts(children["nan_count"], f"nan_count of field {field.id}")
        if (nans < 0).any() or (nans > zone_rows - nulls).any():
            raise ValueError(f"nan_count of field {field.id} is not within its zones")
    if _is_text(kind) or _is_bytes(kind):
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
    return _values(array, np.dtype("<i8"))


def _crossed(low: pa.Array, high: pa.Array) -> bool:
    """Whether a minimum is above its maximum, or a bound is NaN."""
    dtype = _number_dtype(low.type)
    if dtype is not None:
        return not bool((_values(low, dtype) <= _values(high, dtype)).all())
    return bool(pc.any(pc.greater(low, high)).as_py())
