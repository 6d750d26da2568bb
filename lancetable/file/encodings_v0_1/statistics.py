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

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v0_1.pages import Pages, Spans
from lancetable.file.encodings_v0_1.plain import PlainNode, item_bits
from lancetable.file.encodings_v0_1.var_binary import VarBinaryNode
from lancetable.file.io_scheduler import ReadPlan, gather
from lancetable.file.kernels import varbin
from lancetable.file.legacy_footer import LegacyMetadata, PageRow
from lancetable.file.zone_map_builder import (
    MAX_BOUND_BYTES,
    BytesSummary,
    RowRanges,
    Summary,
    ZoneStats,
    is_text,
    leaves_of,
    summary_of,
    truncate_string,
)
from lancetable.file.zone_maps import FileStatistics
from lancetable.format.schema import Field, Schema
from lancetable.proto import file_pb2
from lancetable.store.base import ByteRange

Int64 = npt.NDArray[np.int64]

_ENTRY_BYTES: Final = 16


def _is_collected(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_floating(kind):
        return int(kind.bit_width) >= 32
    fixed = types.is_boolean(kind) or types.is_integer(kind) or types.is_date(kind) or types.is_decimal128(kind)
    return bool(fixed) or varbin.offset_dtype(kind) is not None


# -------------------------------------------------------------------------------------------------------------- writing


class BatchStatistics:
    """Builder of the statistics of a file from whole batches, each of which is a zone."""

    def __init__(self, schema: Schema) -> None:
        leaves = (leaf for position, top in enumerate(schema.fields) for leaf in leaves_of(top, position))
        collected = (leaf for leaf in leaves if _is_collected(leaf.field.data_type))
        self._leaves = [
            replace(leaf, summary=_summary_of(leaf.field.data_type))
            for leaf in sorted(collected, key=lambda leaf: leaf.field.id)
        ]
        self.fields = [leaf.field for leaf in self._leaves]
        self._batch_rows: list[Int64] = []

    def add(self, arrays: list[pa.Array], starts: Int64) -> None:
        """Add the top-level arrays of consecutive batches, which start at `starts`.

        Fixed-width values must not be null.
        """
        ranges = RowRanges(starts, np.append(starts[1:], len(arrays[0])))
        self._batch_rows.append(ranges.ends - ranges.starts)
        for leaf in self._leaves:
            leaf.summary.add(leaf.pick(arrays), ranges)

    def columns(self) -> list[tuple[Field, pa.Array, pa.Array, pa.Array]]:
        """Return each field with its null counts, minima and maxima, one entry per batch."""
        batch_rows = np.concatenate(self._batch_rows)
        columns = []
        for leaf in self._leaves:
            stats = leaf.summary.finish(np.arange(len(batch_rows)), batch_rows)
            columns.append((leaf.field, pa.array(stats.null_count), stats.min, stats.max))
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


def _summary_of(kind: pa.DataType) -> Summary:
    return summary_of(kind) if varbin.offset_dtype(kind) is None else _BytesSummary(kind)


class _BytesSummary(BytesSummary):
    """Bounds as other writers store them: if a batch has a value of more than 64 bytes, its maximum is incremented."""

    def __init__(self, kind: pa.DataType) -> None:
        super().__init__(kind)
        self._has_long_value: list[npt.NDArray[np.bool_]] = []

    def add(self, array: pa.Array, ranges: RowRanges) -> None:
        lengths = np.asarray(pc.binary_length(array).fill_null(0))
        self._has_long_value.append(np.maximum.reduceat(lengths, ranges.starts) > MAX_BOUND_BYTES)
        super().add(array, ranges)

    def _widen(self, bounds: pa.Array, *, upper: bool) -> pa.Array:
        text = is_text(self._kind)
        values = [
            None if value is None else truncate_string(value) if text else value[:MAX_BOUND_BYTES]
            for value in bounds.to_pylist()
        ]
        if upper:
            raise_bound = _string_above if text else _bytes_above
            has_long_value = np.concatenate(self._has_long_value).tolist()
            values = [
                raise_bound(value) if value is not None and is_long else value
                for value, is_long in zip(values, has_long_value, strict=True)
            ]
        bounds = pa.array(values, bounds.type)
        return bounds.view(self._kind) if text else bounds


def _bytes_above(value: bytes) -> bytes | None:
    """Return the next byte string of the same length, or None if all bytes are 255."""
    stripped = value.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) + bytes(len(value) - len(stripped)) if stripped else None


def _string_above(value: bytes) -> bytes | None:
    """Increment the last byte for which the result is valid UTF-8; return None if no byte can be incremented."""
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
    spans = Spans(np.zeros(1, np.int64), np.zeros(1, np.int64), expected, count)
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
