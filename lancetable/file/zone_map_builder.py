"""Incremental computation of the zone maps of one field.

    batch   ->   ZoneLeaf.pick   ->   summary.add(array, ranges)   ...   summary.finish  ->  ZoneStats
    ranges   |------|----------|---|                     a range is within one zone; a zone can consist of several
    zones    |---------|-----------|

There is a summary class for each kind of type: numbers, booleans, decimals, and strings and binaries. For all other
types only nulls are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.file.kernels import native_write, varbin, zone_bounds
from lancetable.format.schema import BLOB_KEY, Field

MAX_BOUND_BYTES: Final = 64  # longer bounds are truncated

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ZoneStats:
    """Statistics of one field, with one entry per zone.

    `min` and `max` are None if the type is not ordered; a null entry is an unknown bound. `nan_count` is None except
    for floating point types of 2.x files. `null_count` is None if it is unknown, which occurs only in 0.1.
    """

    null_count: Int64 | None
    min: pa.Array | None
    max: pa.Array | None
    nan_count: Int64 | None


@dataclass(frozen=True, slots=True, eq=False)
class RowRanges:
    """Consecutive row ranges of a batch, each within one zone. Iteration yields (start, number of rows)."""

    starts: Int64
    ends: Int64

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts.tolist(), (self.ends - self.starts).tolist(), strict=True)


class Summary:
    """Accumulator of the statistics of one leaf. This base class counts nulls."""

    def __init__(self) -> None:
        self._nulls: list[Int64] = []

    def add(self, array: pa.Array, ranges: RowRanges) -> None:
        """Add the values of a batch."""
        self._nulls.append(_null_counts(array, ranges))

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        """Return the statistics. `firsts` has the number of the first range of each zone."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class ZoneLeaf:
    """Field with an entry in the zone maps, its path in a batch, and its summary."""

    field: Field
    column: int
    path: tuple[int, ...]  # child positions below the column
    summary: Summary

    def pick(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the values of the leaf in the columns of a batch.

        They have the type of the field, unless only nulls are counted.
        """
        array = columns[self.column]
        for child in self.path:
            array = _storage(array)
            # flatten(), unlike field(), applies the nulls of a struct to its children.
            array = array.flatten()[child] if array.null_count else array.field(child)
        array = _storage(array)
        if isinstance(self.summary, _NullSummary) or array.type.equals(self.field.data_type):
            return array
        return array.cast(self.field.data_type)

    def reduce(self, array: pa.Array) -> pa.Array:
        """Reduce an array to the part that the summary needs, to queue as few bytes as possible."""
        return _nulls_only(array) if isinstance(self.summary, _NullSummary) else array


def leaves_of(field: Field, column: int, path: tuple[int, ...] = ()) -> Iterator[ZoneLeaf]:
    """Iterate over the leaves of a top-level field, which is number `column` of its batches.

    A top-level struct itself is also returned, with null counts only.
    """
    # The children of a blob description have no field ids and are not used in predicates.
    if field.is_struct and field.children and BLOB_KEY not in field.metadata:
        if not path:
            yield ZoneLeaf(field, column, path, _NullSummary())
        for position, child in enumerate(field.children):
            yield from leaves_of(child, column, (*path, position))
    else:
        yield ZoneLeaf(field, column, path, summary_of(ordered_type(field)))


def summary_of(kind: pa.DataType | None, *, truncates: bool = True) -> Summary:
    """Return a summary of values of an ordered type, or of nulls if `kind` is None.

    Without `truncates`, bounds of strings and binaries are values of any length.
    """
    if kind is None:
        return _NullSummary()
    if pa.types.is_boolean(kind):
        return _BoolSummary()
    if number_dtype(kind) is not None:
        return _NumberSummary(kind)
    if pa.types.is_decimal(kind):
        return _DecimalSummary(kind)
    return BytesSummary(kind, truncates=truncates)


def bytes_read_per_row(leaf: ZoneLeaf) -> int:
    """Estimate the bytes per row that the summary of a leaf reads."""
    if isinstance(leaf.summary, _NullSummary | _BoolSummary):
        return 0
    try:
        return int(leaf.field.data_type.bit_width) // 8
    except ValueError:
        return 32  # a string takes about as long as several numbers


def ordered_type(field: Field) -> pa.DataType | None:
    """Return the type of the bounds of a field, or None if the field has no bounds."""
    if field.is_blob or field.is_json or field.extension_name is not None:
        return None
    kind = field.data_type
    ordered = pa.types.is_floating(kind) or pa.types.is_boolean(kind) or _is_integral(kind)
    # Arrow cannot compare decimals of negative scale.
    ordered = ordered or (pa.types.is_decimal(kind) and kind.scale >= 0)
    return kind if ordered or is_text(kind) or is_bytes(kind) else None


def _is_integral(kind: pa.DataType) -> bool:
    """Return True for integers and for temporal types, which are stored as integers."""
    return bool(pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)))


def number_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """Return the NumPy type of a type whose values are stored as numbers, or None for other types."""
    if pa.types.is_floating(kind):
        return np.dtype(f"<f{kind.bit_width // 8}")
    if _is_integral(kind):
        return np.dtype(f"<{'u' if pa.types.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
    return None


def is_text(kind: pa.DataType) -> bool:
    """Return True if bounds of the type are strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return True if bounds of the type are binaries."""
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _nulls_only(array: pa.Array) -> pa.BooleanArray:
    """Return a boolean array that is null where `array` is null."""
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        valid = pc.fill_null(array.dictionary.is_valid().take(array.indices), False)
    elif array.null_count:
        valid = array.is_valid()
    else:
        return pa.repeat(True, len(array))
    return pc.if_else(valid, True, None)


def _null_counts(array: pa.Array, ranges: RowRanges) -> Int64:
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        array = _nulls_only(array)
    if array.null_count == 0:
        return np.zeros(len(ranges.starts), np.int64)
    return np.array([array.slice(start, count).null_count for start, count in ranges], np.int64)


def values_of(array: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the values of an array as numbers; values at nulls are undefined."""
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


class _NullSummary(Summary):
    """Null counts of arrays of any type."""

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        return ZoneStats(_sums(self._nulls, firsts), None, None, None)


class _NumberSummary(Summary):
    """Bounds of integers, temporal types and floating point numbers. NaN is counted but does not affect bounds."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__()
        self._kind = kind
        self._dtype = np.dtype(number_dtype(kind))
        self._pieces: list[zone_bounds.Bounds] = []

    def add(self, array: pa.Array, ranges: RowRanges) -> None:
        validity = array.buffers()[0] if array.null_count else None
        values = values_of(array, self._dtype)
        self._pieces.append(zone_bounds.number_zones(values, validity, array.offset, ranges.starts, ranges.ends))

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        nulls = _sums([piece.nulls for piece in self._pieces], firsts)
        lows, highs = [piece.low for piece in self._pieces], [piece.high for piece in self._pieces]
        if self._dtype.kind != "f":
            low = _reduce(np.minimum, lows, firsts, self._dtype)
            high = _reduce(np.maximum, highs, firsts, self._dtype)
            unknown = nulls == zone_rows
            if unknown.any():
                low[unknown], high[unknown] = np.iinfo(self._dtype).min, np.iinfo(self._dtype).max
            return ZoneStats(nulls, array_of(self._kind, low), array_of(self._kind, high), None)
        nans = _sums([piece.nans for piece in self._pieces], firsts)
        low = _reduce(np.fmin, lows, firsts, self._dtype)
        high = _reduce(np.fmax, highs, firsts, self._dtype)
        unknown = nulls + nans == zone_rows
        low[unknown], high[unknown] = -np.inf, np.inf
        low[low == 0], high[high == 0] = -0.0, 0.0
        return ZoneStats(nulls, array_of(self._kind, low), array_of(self._kind, high), nans)


class _BoolSummary(Summary):
    """Bounds of booleans, where false is less than true."""

    def __init__(self) -> None:
        super().__init__()
        self._trues: list[Int64] = []

    def add(self, array: pa.Array, ranges: RowRanges) -> None:
        super().add(array, ranges)
        self._trues.append(np.array([array.slice(start, count).true_count for start, count in ranges], np.int64))

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        nulls, trues = _sums(self._nulls, firsts), _sums(self._trues, firsts)
        unknown = nulls == zone_rows
        low, high = (trues + nulls == zone_rows) & ~unknown, (trues > 0) | unknown
        return ZoneStats(nulls, pa.array(low), pa.array(high), None)


class _ScalarSummary(Summary):
    """Base for types whose bounds are values of the array, compared in Python if a zone has several ranges."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__()
        self._kind = kind
        self._low: list[pa.Array] = []  # one bound per range, null if all values are null
        self._high: list[pa.Array] = []

    def add(self, array: pa.Array, ranges: RowRanges) -> None:
        super().add(array, ranges)
        rows = self._extremes(array, ranges) if len(array) else None
        if rows is not None:
            low, high = (array.take(pa.array(indices, mask=indices < 0)) for indices in rows)
        else:
            extremes = [pc.min_max(array.slice(start, count)) for start, count in ranges]
            low, high = (pa.array([pair[name] for pair in extremes], array.type) for name in ("min", "max"))
        self._low.append(self._shorten(low))
        self._high.append(self._shorten(high))

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        low = self._widen(self._reduce(min, self._low, firsts), upper=False)
        high = self._widen(self._reduce(max, self._high, firsts), upper=True)
        return ZoneStats(_sums(self._nulls, firsts), low, high, None)

    def _reduce(self, choose: Callable[[list[Any]], Any], pieces: list[pa.Array], firsts: Int64) -> pa.Array:
        """Reduce the bounds of the ranges to those of the zones; null if all values are null."""
        if not pieces:
            return pa.nulls(0, self._kind)
        whole = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        if len(whole) == len(firsts):
            return whole  # each range is a zone
        values = whole.to_pylist()
        borders = [*firsts.tolist(), len(values)]
        valid_values = ([value for value in values[a:b] if value is not None] for a, b in pairwise(borders))
        return pa.array([choose(valid) if valid else None for valid in valid_values], whole.type)

    def _extremes(self, array: pa.Array, ranges: RowRanges) -> tuple[Int64, Int64] | None:
        """Return the row numbers of the minimum and the maximum of each range, -1 if all values are null.

        Returns None if the type has no compiled kernel.
        """
        return None

    def _shorten(self, bounds: pa.Array) -> pa.Array:
        """Shorten the bounds of ranges to save memory."""
        return bounds

    def _widen(self, bounds: pa.Array, *, upper: bool) -> pa.Array:
        """Return the bounds to store, which may be wider than the values."""
        raise NotImplementedError


class _DecimalSummary(_ScalarSummary):
    """Bounds of decimals. An unknown bound is the widest value of the precision."""

    def _widen(self, bounds: pa.Array, *, upper: bool) -> pa.Array:
        widest = Decimal((0 if upper else 1, (9,) * self._kind.precision, -self._kind.scale))
        return bounds.fill_null(pa.scalar(widest, self._kind)) if bounds.null_count else bounds


class BytesSummary(_ScalarSummary):
    """Bounds of strings and binaries, compared as bytes; for UTF-8 this is also the order of code points."""

    def __init__(self, kind: pa.DataType, *, truncates: bool = True) -> None:
        super().__init__(kind)
        self._truncates = truncates

    def add(self, array: pa.Array, ranges: RowRanges) -> None:
        if is_text(self._kind):
            array = array.view(pa.binary() if pa.types.is_string(self._kind) else pa.large_binary())
        super().add(array, ranges)

    def _extremes(self, array: pa.Array, ranges: RowRanges) -> tuple[Int64, Int64] | None:
        if native_write is None:
            return None
        if pa.types.is_fixed_size_binary(self._kind):
            array = array.cast(pa.large_binary())
        bitmap, _, content = array.buffers()
        data = b"" if content is None else content
        valid = bitmap if array.null_count else None
        extremes: tuple[Int64, Int64] = native_write.extremes(
            varbin.offsets_of(array), data, valid, array.offset, ranges.starts, ranges.ends
        )
        return extremes

    def _shorten(self, bounds: pa.Array) -> pa.Array:
        # Keep enough bytes to truncate the bounds exactly later.
        return bounds if self._are_short(bounds) else pc.binary_slice(bounds, 0, 2 * MAX_BOUND_BYTES)

    def _widen(self, bounds: pa.Array, *, upper: bool) -> pa.Array:
        if not self._are_short(bounds):
            truncated = [None if value is None else self._truncate(value, upper) for value in bounds.to_pylist()]
            bounds = pa.array(truncated, bounds.type)
        return bounds.view(self._kind) if is_text(self._kind) else bounds

    def _are_short(self, bounds: pa.Array) -> bool:
        if not self._truncates:
            return True
        if varbin.offset_dtype(self._kind) is None:
            return bool(self._kind.byte_width <= MAX_BOUND_BYTES or bounds.null_count == len(bounds))
        longest = pc.max(pc.binary_length(bounds)).as_py()
        return bool(longest is None or longest <= MAX_BOUND_BYTES)

    def _truncate(self, value: bytes, upper: bool) -> bytes | None:
        """Return a bound of at most 64 bytes, or None if no such bound exists."""
        if len(value) <= MAX_BOUND_BYTES:
            return value
        if pa.types.is_fixed_size_binary(self._kind):
            return None
        if is_text(self._kind):
            prefix = truncate_string(value)
            return _string_above(prefix) if upper else prefix
        prefix = value[:MAX_BOUND_BYTES]
        return _bytes_above(prefix) if upper else prefix


def truncate_string(value: bytes) -> bytes:
    """Truncate UTF-8 to at most 64 bytes at a character boundary."""
    if len(value) <= MAX_BOUND_BYTES:
        return value
    end = MAX_BOUND_BYTES
    while end > 0 and value[end] & 0xC0 == 0x80:
        end -= 1
    return value[:end]


def _bytes_above(prefix: bytes) -> bytes | None:
    """Return the smallest byte string greater than all that start with `prefix`, or None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def _string_above(prefix: bytes) -> bytes | None:
    """Return a string of at most 64 bytes greater than all that start with `prefix`, or None if there is none."""
    try:
        string = prefix.decode("utf-8")
    except UnicodeDecodeError:
        return None
    while (bound := varbin.prefix_end(string)) is not None:
        encoded = bound.encode("utf-8")
        if len(encoded) <= MAX_BOUND_BYTES:
            return encoded
        string = bound[:-1]
    return None


def _sums(counts: list[Int64], firsts: Int64) -> Int64:
    return _reduce(np.add, counts, firsts, np.dtype(np.int64))


def _reduce(ufunc: np.ufunc, pieces: list[npt.NDArray[Any]], firsts: Int64, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if len(firsts) == 0:
        return np.empty(0, dtype)
    whole: npt.NDArray[Any] = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    if len(whole) == len(firsts):
        return whole  # each range is a zone
    reduced: npt.NDArray[Any] = ufunc.reduceat(whole, firsts)
    return reduced


def array_of(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    """Return an array of a type whose values are stored as the given numbers."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
