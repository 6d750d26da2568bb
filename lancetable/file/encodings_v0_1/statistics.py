"""Page statistics of 0.1: null count and bounds for each batch and field, stored as a table with the same page format.

    field "3" struct   null_count int64   min_value   max_value        one row for each batch of the data

Statistics exist for booleans, integers, floats of 32 and 64 bits, dates, decimals of 128 bits, strings and binaries, at
the top level and inside structs. Bounds ignore nulls and NaN; strings are truncated to 64 bytes. An empty bound is
unknown because a null is stored as an empty string.

A null of a fixed-width type is read as a value that the bounds do not cover, and an empty string is read as null.
`read_zones` widens the statistics accordingly, so that a scan returns the same rows with and without them.
Source: protos/file.proto, Metadata.StatisticsMetadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v0_1.pages import Pages, Spans, zeros
from lancetable.file.encodings_v0_1.plain import PlainNode, item_bits
from lancetable.file.encodings_v0_1.var_binary import VarBinaryNode
from lancetable.file.fetch import ReadPlan, gather
from lancetable.file.kernels import varbin
from lancetable.file.legacy_container import LegacyMetadata, PageRow
from lancetable.file.statistics import FileStatistics
from lancetable.file.zone_summaries import ZoneStats
from lancetable.format.schema import Field, Schema
from lancetable.proto import file_pb2
from lancetable.store.base import ByteRange

__all__ = ["BatchStatistics", "collected_fields", "read_zones"]

Int64 = npt.NDArray[np.int64]

MAX_BOUND_BYTES: Final = 64
_ENTRY_BYTES: Final = 16


def collected_fields(schema: Schema) -> list[Field]:
    """Return the fields that have statistics, by ascending id."""
    fields = [field for top in schema.fields for field in _walk_structs(top) if _is_collected(field.data_type)]
    return sorted(fields, key=lambda field: field.id)


def _walk_structs(field: Field) -> Iterator[Field]:
    yield field
    if field.is_struct:
        for child in field.children:
            yield from _walk_structs(child)


def _is_collected(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_floating(kind):
        return int(kind.bit_width) >= 32
    fixed = types.is_boolean(kind) or types.is_integer(kind) or types.is_date(kind) or types.is_decimal128(kind)
    return bool(fixed) or varbin.offset_dtype(kind) is not None


# -------------------------------------------------------------------------------------------------------------- writing


class BatchStatistics:
    """Builder of the statistics of a file from whole batches."""

    def __init__(self, schema: Schema) -> None:
        self.fields = collected_fields(schema)
        self._paths = {field.id: _path_of(schema, field) for field in self.fields}
        self._rows: dict[int, list[tuple[Int64, pa.Array, pa.Array]]] = {field.id: [] for field in self.fields}

    def add(self, arrays: list[pa.Array], starts: Int64) -> None:
        """Add the top-level arrays of consecutive batches, which start at `starts`.

        Fixed-width values must not be null.
        """
        for field in self.fields:
            top, *path = self._paths[field.id]
            array = arrays[top]
            for child in path:
                array = array.field(child)
            nulls, low, high = _bounds(array, starts)
            self._rows[field.id].append((nulls, low, high))

    def columns(self) -> list[tuple[Field, pa.Array, pa.Array, pa.Array]]:
        """Return each field with its null counts, minima and maxima, one entry per batch."""
        columns = []
        for field in self.fields:
            rows = self._rows[field.id]
            nulls = pa.array(np.concatenate([row[0] for row in rows]) if rows else zeros(0))
            low, high = (
                pa.concat_arrays([row[side] for row in rows]) if rows else pa.nulls(0, field.data_type)
                for side in (1, 2)
            )
            columns.append((field, nulls, low, high))
        return columns

    def schema_protos(self) -> list[file_pb2.Field]:
        """Return the fields of the statistics table: four for each field of the data."""
        messages: list[file_pb2.Field] = []
        for field in self.fields:
            base = len(messages)
            messages.append(file_pb2.Field(name=str(field.id), id=base, parent_id=-1, logical_type="struct"))
            children = (
                ("null_count", "int64", file_pb2.PLAIN, False),
                ("min_value", field.logical_type, field.encoding, field.nullable),
                ("max_value", field.logical_type, field.encoding, field.nullable),
            )
            for number, (name, logical_type, encoding, nullable) in enumerate(children, base + 1):
                messages.append(
                    file_pb2.Field(
                        name=name,
                        id=number,
                        parent_id=base,
                        logical_type=logical_type,
                        nullable=nullable,
                        encoding=encoding,  # type: ignore[arg-type]  # any number
                    )
                )
        return messages


def _path_of(schema: Schema, field: Field) -> list[int]:
    """Return the child positions that lead from the schema to a field inside structs."""
    if field.parent_id == -1:
        return [[top.id for top in schema.fields].index(field.id)]
    parent = schema.by_id[field.parent_id]
    return [*_path_of(schema, parent), [child.id for child in parent.children].index(field.id)]


def _bounds(array: pa.Array, starts: Int64) -> tuple[Int64, pa.Array, pa.Array]:
    kind = array.type
    if varbin.offset_dtype(kind) is not None:
        return _binary_bounds(array, starts)
    nulls = zeros(len(starts))
    if pa.types.is_decimal(kind):
        both = [pc.min_max(array.slice(first, count)) for first, count in _runs(starts, len(array))]
        return nulls, *(pa.array([bounds[side].as_py() for bounds in both], kind) for side in ("min", "max"))
    if pa.types.is_boolean(kind):
        values = array.to_numpy(zero_copy_only=False)
        return (
            nulls,
            pa.array(np.logical_and.reduceat(values, starts)),
            pa.array(np.logical_or.reduceat(values, starts)),
        )
    dtype = np.dtype(f"<{_letter(kind)}{kind.bit_width // 8}")
    values = np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
    if dtype.kind == "f":
        low, high = np.fmin.reduceat(values, starts), np.fmax.reduceat(values, starts)
        low[np.isnan(low)], high[np.isnan(high)] = -np.inf, np.inf
        low[low == 0], high[high == 0] = -0.0, 0.0
    else:
        low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    return nulls, _fixed(kind, low), _fixed(kind, high)


def _letter(kind: pa.DataType) -> str:
    if pa.types.is_floating(kind):
        return "f"
    return "u" if pa.types.is_unsigned_integer(kind) else "i"


def _fixed(kind: pa.DataType, values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))], 0)


def _runs(starts: Int64, length: int) -> Iterator[tuple[int, int]]:
    ends = [*starts[1:].tolist(), length]
    return ((first, end - first) for first, end in zip(starts.tolist(), ends, strict=True))


def _binary_bounds(array: pa.Array, starts: Int64) -> tuple[Int64, pa.Array, pa.Array]:
    kind = array.type
    is_string = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    dtype = varbin.offset_dtype(kind)
    assert dtype is not None
    lengths = np.diff(np.frombuffer(array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize))
    nulls = zeros(len(starts))
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        nulls = np.add.reduceat((~valid).astype(np.int64), starts)
        lengths = np.where(valid, lengths, 0)
    truncated = np.maximum.reduceat(lengths, starts) > MAX_BOUND_BYTES
    ends = np.append(starts[1:], len(array))
    low: list[bytes | None] = []
    high: list[bytes | None] = []
    shorten = _truncate_string if is_string else _truncate_bytes
    raise_bound: Callable[[bytes], bytes | None] = _string_above if is_string else _bytes_above
    for first, last, was_truncated in zip(*_extremes(array, starts, ends), truncated.tolist(), strict=True):
        low.append(None if first is None else shorten(first))
        bound = None if last is None else shorten(last)
        high.append(raise_bound(bound) if bound is not None and was_truncated else bound)
    return nulls, _binary(kind, low), _binary(kind, high)


def _extremes(array: pa.Array, starts: Int64, ends: Int64) -> tuple[list[bytes | None], list[bytes | None]]:
    """Return the minimum and the maximum of each run as bytes, or None if all values are null."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    plain = array.view(pa.large_binary() if large else pa.binary())
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    both = [pc.min_max(plain.slice(first, end - first)) for first, end in spans]
    return [bounds["min"].as_py() for bounds in both], [bounds["max"].as_py() for bounds in both]


def _binary(kind: pa.DataType, bounds: list[bytes | None]) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array(bounds, pa.binary()).view(pa.string())
    if pa.types.is_large_string(kind):
        return pa.array(bounds, pa.large_binary()).view(pa.large_string())
    return pa.array(bounds, kind)


def _truncate_bytes(value: bytes) -> bytes:
    return value[:MAX_BOUND_BYTES]


def _truncate_string(value: bytes) -> bytes:
    """Truncate UTF-8 to at most 64 bytes at a character boundary."""
    end = MAX_BOUND_BYTES
    if len(value) <= end:
        return value
    while end > 0 and value[end] & 0xC0 == 0x80:
        end -= 1
    return value[:end]


def _bytes_above(value: bytes) -> bytes | None:
    """Return the next byte string of the same length, or None if all bytes are 255."""
    stripped = value.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) + bytes(len(value) - len(stripped)) if stripped else None


def _string_above(value: bytes) -> bytes | None:
    """Increment the last byte for which the result is valid UTF-8; return None if there is none."""
    for position in range(len(value) - 1, -1, -1):
        for byte in range(value[position] + 1, 256):
            raised = value[:position] + bytes([byte]) + value[position + 1 :]
            try:
                raised.decode("utf-8")
            except UnicodeDecodeError:
                continue
            return raised
    return None


# -------------------------------------------------------------------------------------------------------------- reading


def read_zones(file: LegacyMetadata, schema: Schema) -> ReadPlan[FileStatistics | None]:
    """Plan reading the statistics of a file as zone maps, with one zone for each nonempty batch.

    `schema` is that of the table; fields that it lacks or has with another type are skipped. Returns None if the file
    has no statistics for the schema. Raises CorruptFileError if the pages are invalid.
    """
    message = file.statistics
    if message is None or not file.num_rows:
        return None
    selected = [
        (schema.by_id[field_id], parts)
        for field_id, parts in _parts_by_field(message.schema).items()
        if field_id in schema.by_id and _matches(schema.by_id[field_id], parts)
    ]
    if not selected:
        return None
    table_bytes = _ENTRY_BYTES * (1 + max(part.id for _, parts in selected for part in parts.values()))
    location = ByteRange(message.page_table_position, message.page_table_position + table_bytes)
    if location.end > file.size_bytes:
        raise file.corrupt("the page table of the statistics exceeds the file", file.size_bytes, location.end)
    data = file.cached_bytes(location)
    if data is None:
        (data,) = yield (location,)
    entries = np.frombuffer(data, "<i8").reshape(-1, 2)
    plans = [
        _read_column(file, entries[part.id], kind, field.name)
        for field, parts in selected
        for part, kind in (
            (parts["null_count"], pa.int64()),
            (parts["min_value"], field.data_type),
            (parts["max_value"], field.data_type),
        )
    ]
    arrays = yield from gather(plans)
    nonempty = np.diff(file.batch_offsets) > 0
    columns = {
        field.id: _zone_stats(field, *(array.filter(pa.array(nonempty)) for array in arrays[3 * i : 3 * i + 3]))
        for i, (field, _) in enumerate(selected)
    }
    return FileStatistics(np.diff(file.batch_offsets)[nonempty], columns)


def _parts_by_field(fields: Any) -> Mapping[int, dict[str, file_pb2.Field]]:
    """Return the three columns of the statistics, by name, for each field id of the data."""
    tops = {field.id: field.name for field in fields if field.parent_id == -1 and field.name.isdecimal()}
    parts: dict[int, dict[str, file_pb2.Field]] = {}
    for field in fields:
        if field.parent_id in tops and 0 <= field.id < len(fields):
            parts.setdefault(int(tops[field.parent_id]), {})[field.name] = field
    return parts


def _matches(field: Field, parts: Mapping[str, file_pb2.Field]) -> bool:
    if not parts.keys() >= {"null_count", "min_value", "max_value"} or not _is_collected(field.data_type):
        return False
    kinds = {parts["min_value"].logical_type, parts["max_value"].logical_type}
    # Arrow cannot compare decimals of negative scale.
    ordered = not pa.types.is_decimal(field.data_type) or field.data_type.scale >= 0
    return kinds == {field.logical_type} and parts["null_count"].logical_type == "int64" and ordered


def _read_column(file: LegacyMetadata, entry: Int64, kind: pa.DataType, name: str) -> ReadPlan[pa.Array]:
    count = file.num_batches
    row = PageRow(entry[:1].copy(), entry[1:].copy())
    expected = np.array([count], np.int64)
    spans = Spans(zeros(1), zeros(1), expected, count)
    if varbin.offset_dtype(kind) is not None:
        # Read as nullable, because an empty bound is unknown even if the field is not nullable.
        return (yield from VarBinaryNode(Pages(file, row, 64, expected, name), kind, True).read(spans, 0))
    return (yield from PlainNode(Pages(file, row, item_bits(kind, name), expected, name), kind).read(spans, 0))


def _zone_stats(field: Field, nulls: pa.Array, low: pa.Array, high: pa.Array) -> ZoneStats:
    stored = nulls.to_numpy()
    if len(stored) and int(stored.min()) < 0:
        raise CorruptFileError(f"field {field.name!r}: null count {int(stored.min())} in the statistics is negative")
    if varbin.offset_dtype(field.data_type) is not None:
        # Empty values are read as null if the field is nullable, so the null count is unknown.
        return ZoneStats(None if field.nullable else np.zeros(len(stored), np.int64), low, high, None)
    if pa.types.is_floating(field.data_type):
        nan = pc.or_(pc.is_nan(low), pc.is_nan(high))
        low, high = pc.if_else(nan, None, low), pc.if_else(nan, None, high)
    has_nulls = stored > 0
    if has_nulls.any():
        # Nulls are read as values, which the bounds do not cover.
        low, high = (pc.if_else(pa.array(has_nulls), None, bound) for bound in (low, high))
    return ZoneStats(np.zeros(len(stored), np.int64), low, high, None)
