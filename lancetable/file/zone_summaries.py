"""What is gathered about the values of one field, zone by zone, while batches pass by.

    batch of a column   ->   Leaf.pick   ->   summary.add(array, pieces)   ...   summary.finish  ->  ZoneStats
    pieces   |------|----------|---|                     a piece lies in one zone; a zone may have several
    zones    |---------|-----------|

There is a summary for each kind of type: numbers, booleans, what Arrow can order, decimals, text and bytes; all others
count nulls only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.file.kernels import native, native_write, varbin, zones
from lancetable.format.schema import BLOB_KEY, Field

__all__ = [
    "MAX_BOUND_BYTES",
    "Leaf",
    "Pieces",
    "ZoneStats",
    "array_of",
    "is_bytes",
    "is_text",
    "leaves_of",
    "looked_at_bytes",
    "number_dtype",
    "ordered_type",
    "values_of",
]

MAX_BOUND_BYTES: Final = 64  # longer bounds are cut

Int64 = npt.NDArray[np.int64]


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
class Pieces:
    """Consecutive pieces of a batch, none of which crosses the border of a zone."""

    starts: Int64
    ends: Int64

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.starts.tolist(), (self.ends - self.starts).tolist(), strict=True)


class _Summary(Protocol):
    """What is kept of the pieces of one leaf."""

    def add(self, array: pa.Array, pieces: Pieces) -> None: ...

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        """`firsts` are the first pieces of the zones."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
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


def leaves_of(field: Field, column: int, path: tuple[int, ...] = ()) -> Iterator[Leaf]:
    """The entries of a top-level field, which is column `column` of its batches: of itself or of what is below it."""
    # The parts of a blob's description have no ids, and nobody asks for them.
    if field.is_struct and field.children and BLOB_KEY not in field.metadata:
        if not path:
            yield Leaf(field, column, path, _NullSummary())
        for position, child in enumerate(field.children):
            yield from leaves_of(child, column, (*path, position))
    else:
        yield Leaf(field, column, path, _summary_for(field))


def _summary_for(field: Field) -> _Summary:
    kind = ordered_type(field)
    if kind is None:
        return _NullSummary()
    if pa.types.is_boolean(kind):
        return _BoolSummary()
    if number_dtype(kind) is not None:
        return _NumberSummary(kind)
    if pa.types.is_decimal(kind):
        return _DecimalSummary(kind)
    return _BytesSummary(kind)


def looked_at_bytes(leaf: Leaf) -> int:
    """About how many bytes of each row are looked at."""
    if isinstance(leaf.summary, _NullSummary | _BoolSummary):
        return 0
    try:
        return int(leaf.field.data_type.bit_width) // 8
    except ValueError:
        return 32  # a string takes as long as some numbers


def ordered_type(field: Field) -> pa.DataType | None:
    """The type of the field's bounds, None if it has no bounds."""
    if field.is_blob or field.is_json or field.extension_name is not None:
        return None
    kind = field.data_type
    ordered = pa.types.is_floating(kind) or pa.types.is_boolean(kind) or _is_integral(kind)
    # Arrow compares no decimals of negative scale.
    ordered = ordered or (pa.types.is_decimal(kind) and kind.scale >= 0)
    return kind if ordered or is_text(kind) or is_bytes(kind) else None


def _is_integral(kind: pa.DataType) -> bool:
    """Integers, and what is stored as one."""
    return bool(pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)))


def number_dtype(kind: pa.DataType) -> np.dtype[Any] | None:
    """NumPy type of what is stored as a number of its own, None for other types."""
    if pa.types.is_floating(kind):
        return np.dtype(f"<f{kind.bit_width // 8}")
    if _is_integral(kind):
        return np.dtype(f"<{'u' if pa.types.is_unsigned_integer(kind) else 'i'}{kind.bit_width // 8}")
    return None


def is_text(kind: pa.DataType) -> bool:
    """Whether bounds are text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether bounds are bytes."""
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


def _null_counts(array: pa.Array, pieces: Pieces) -> Int64:
    if pa.types.is_dictionary(array.type) and array.dictionary.null_count:
        array = _nulls_only(array)
    if array.null_count == 0:
        return np.zeros(len(pieces.starts), np.int64)
    bitmap = array.buffers()[0]
    if native is not None and bitmap is not None:
        valid: Int64 = native.count_bits(bitmap, array.offset, pieces.starts, pieces.ends)
        return pieces.ends - pieces.starts - valid
    return np.array([array.slice(start, count).null_count for start, count in pieces], np.int64)


def _true_counts(array: pa.BooleanArray, pieces: Pieces) -> Int64:
    if native is not None and len(array):
        bits = np.frombuffer(array.buffers()[1], np.uint8)
        if array.null_count:
            bitmap = np.frombuffer(array.buffers()[0], np.uint8)
            bits = bits[: len(bitmap)] & bitmap[: len(bits)]
        counts: Int64 = native.count_bits(bits, array.offset, pieces.starts, pieces.ends)
        return counts
    return np.array([array.slice(start, count).true_count for start, count in pieces], np.int64)


def values_of(array: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The values of an array as numbers, whatever stands at nulls."""
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


class _NullSummary:
    """Null counts alone, of arrays of any type."""

    def __init__(self) -> None:
        self._nulls: list[Int64] = []

    def add(self, array: pa.Array, pieces: Pieces) -> None:
        self._nulls.append(_null_counts(array, pieces))

    def finish(self, firsts: Int64, zone_rows: Int64) -> ZoneStats:
        return ZoneStats(_sums(self._nulls, firsts), None, None, None)


class _NumberSummary:
    """Integers and temporal types, through their integers, and floating point, where NaN is counted and ignored."""

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._dtype = np.dtype(number_dtype(kind))
        self._pieces: list[zones.Bounds] = []

    def add(self, array: pa.Array, pieces: Pieces) -> None:
        validity = array.buffers()[0] if array.null_count else None
        values = values_of(array, self._dtype)
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
            return ZoneStats(nulls, array_of(self._kind, low), array_of(self._kind, high), None)
        nans = _sums([each.nans for each in self._pieces], firsts)
        low = _reduce(np.fmin, lows, firsts, self._dtype)
        high = _reduce(np.fmax, highs, firsts, self._dtype)
        unknown = nulls + nans == zone_rows
        low[unknown], high[unknown] = -np.inf, np.inf
        low[low == 0], high[high == 0] = -0.0, 0.0
        return ZoneStats(nulls, array_of(self._kind, low), array_of(self._kind, high), nans)


class _BoolSummary:
    """Booleans, false below true."""

    def __init__(self) -> None:
        self._nulls: list[Int64] = []
        self._trues: list[Int64] = []

    def add(self, array: pa.Array, pieces: Pieces) -> None:
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

    def add(self, array: pa.Array, pieces: Pieces) -> None:
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

    def _extremes(self, array: pa.Array, pieces: Pieces) -> tuple[Int64, Int64] | None:
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

    def add(self, array: pa.Array, pieces: Pieces) -> None:
        if pa.types.is_string(self._kind):
            array = array.view(pa.binary())
        elif pa.types.is_large_string(self._kind):
            array = array.view(pa.large_binary())
        super().add(array, pieces)

    def _extremes(self, array: pa.Array, pieces: Pieces) -> tuple[Int64, Int64] | None:
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
        return bounds if self._are_short(bounds) else pc.binary_slice(bounds, 0, 2 * MAX_BOUND_BYTES)

    def _minimum(self, bounds: pa.Array) -> pa.Array:
        return self._cut(bounds, self._floor)

    def _maximum(self, bounds: pa.Array) -> pa.Array:
        return self._cut(bounds, self._ceiling)

    def _cut(self, bounds: pa.Array, cut: Callable[[bytes], bytes | None]) -> pa.Array:
        if not self._are_short(bounds):
            bounds = pa.array([None if each is None else cut(each) for each in bounds.to_pylist()], bounds.type)
        return bounds.view(self._kind) if is_text(self._kind) else bounds

    def _are_short(self, bounds: pa.Array) -> bool:
        if varbin.offset_dtype(self._kind) is None:
            return bool(self._kind.byte_width <= MAX_BOUND_BYTES or bounds.null_count == len(bounds))
        longest = pc.max(pc.binary_length(bounds)).as_py()
        return bool(longest is None or longest <= MAX_BOUND_BYTES)

    def _floor(self, value: bytes) -> bytes | None:
        if len(value) <= MAX_BOUND_BYTES:
            return value
        if pa.types.is_fixed_size_binary(self._kind):
            return None
        return _cut_text(value) if is_text(self._kind) else value[:MAX_BOUND_BYTES]

    def _ceiling(self, value: bytes) -> bytes | None:
        if len(value) <= MAX_BOUND_BYTES:
            return value
        if pa.types.is_fixed_size_binary(self._kind):
            return None
        return _raise_text(_cut_text(value)) if is_text(self._kind) else _raise_bytes(value[:MAX_BOUND_BYTES])


def _cut_text(value: bytes) -> bytes:
    """At most 64 bytes of UTF-8, cut between characters."""
    end = MAX_BOUND_BYTES
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
            if len(raised) <= MAX_BOUND_BYTES:
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


def array_of(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    """Numbers as an array of a type whose values they are."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
