"""Page statistics of 0.1: for each batch and field the number of nulls and bounds of the values, in a table that is
stored with the same pages.

    field "3" struct   null_count int64   min_value   max_value        one row for each batch of the data

Collected for booleans, integers, floats of 32 and 64 bits, dates, decimals of 128 bits, strings and bytes, at the top
level and inside structs. Bounds count no nulls; strings are cut after 64 bytes, NaN is passed over. An empty string is
how a null is stored, so an empty bound says nothing.

What was written as null reads as something else: a number under a null has no bounds, and an empty string is null.
`zones` widens the statistics by that, so that a scan finds the same rows with and without them.
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
    """The fields that have statistics, by ascending id."""
    found = [each for top in schema.fields for each in _below(top) if _is_collected(each.data_type)]
    return sorted(found, key=lambda each: each.id)


def _below(field: Field) -> Iterator[Field]:
    yield field
    if field.is_struct:
        for child in field.children:
            yield from _below(child)


def _is_collected(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_floating(kind):
        return int(kind.bit_width) >= 32
    fixed = types.is_boolean(kind) or types.is_integer(kind) or types.is_date(kind) or types.is_decimal128(kind)
    return bool(fixed) or varbin.offset_dtype(kind) is not None


# ------------------------------------------------------------------------------------------------------------ gathering


class BatchStatistics:
    """Gathers statistics of whole batches while they pass by."""

    def __init__(self, schema: Schema) -> None:
        self.fields = collected_fields(schema)
        self._paths = {each.id: _path_of(schema, each) for each in self.fields}
        self._rows: dict[int, list[tuple[Int64, pa.Array, pa.Array]]] = {each.id: [] for each in self.fields}

    def add(self, arrays: list[pa.Array], starts: Int64) -> None:
        """Top-level arrays of the next rows, which are batches that begin at `starts`; no fixed-width value is null."""
        for each in self.fields:
            top, *below = self._paths[each.id]
            array = arrays[top]
            for child in below:
                array = array.field(child)
            nulls, low, high = _bounds(array, starts)
            self._rows[each.id].append((nulls, low, high))

    def columns(self) -> list[tuple[Field, pa.Array, pa.Array, pa.Array]]:
        """For each field the numbers of nulls, minima and maxima, one entry for each batch."""
        found = []
        for each in self.fields:
            rows = self._rows[each.id]
            nulls = pa.array(np.concatenate([row[0] for row in rows]) if rows else zeros(0))
            low, high = (
                pa.concat_arrays([row[side] for row in rows]) if rows else pa.nulls(0, each.data_type)
                for side in (1, 2)
            )
            found.append((each, nulls, low, high))
        return found

    def schema_protos(self) -> list[file_pb2.Field]:
        """The fields of the statistics' own table: four for each field of the data."""
        found: list[file_pb2.Field] = []
        for each in self.fields:
            base = len(found)
            found.append(file_pb2.Field(name=str(each.id), id=base, parent_id=-1, logical_type="struct"))
            children = (
                ("null_count", "int64", file_pb2.PLAIN, False),
                ("min_value", each.logical_type, each.encoding, each.nullable),
                ("max_value", each.logical_type, each.encoding, each.nullable),
            )
            for number, (name, logical_type, encoding, nullable) in enumerate(children, base + 1):
                found.append(
                    file_pb2.Field(
                        name=name,
                        id=number,
                        parent_id=base,
                        logical_type=logical_type,
                        nullable=nullable,
                        encoding=encoding,  # type: ignore[arg-type]  # any number
                    )
                )
        return found


def _path_of(schema: Schema, field: Field) -> list[int]:
    """Positions from the top of the schema down to a field inside structs."""
    if field.parent_id == -1:
        return [[each.id for each in schema.fields].index(field.id)]
    parent = schema.by_id[field.parent_id]
    return [*_path_of(schema, parent), [each.id for each in parent.children].index(field.id)]


def _bounds(array: pa.Array, starts: Int64) -> tuple[Int64, pa.Array, pa.Array]:
    kind = array.type
    if varbin.offset_dtype(kind) is not None:
        return _binary_bounds(array, starts)
    nulls = zeros(len(starts))
    if pa.types.is_decimal(kind):
        both = [pc.min_max(array.slice(first, count)) for first, count in _runs(starts, len(array))]
        return nulls, *(pa.array([each[side].as_py() for each in both], kind) for side in ("min", "max"))
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
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    dtype = varbin.offset_dtype(kind)
    assert dtype is not None
    lengths = np.diff(np.frombuffer(array.buffers()[1], dtype, len(array) + 1, array.offset * dtype.itemsize))
    nulls = zeros(len(starts))
    if array.null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        nulls = np.add.reduceat((~valid).astype(np.int64), starts)
        lengths = np.where(valid, lengths, 0)
    cut = np.maximum.reduceat(lengths, starts) > MAX_BOUND_BYTES
    ends = np.append(starts[1:], len(array))
    low: list[bytes | None] = []
    high: list[bytes | None] = []
    shorten = _cut_text if text else _cut_bytes
    raised: Callable[[bytes], bytes | None] = _raise_text if text else _raise_bytes
    for first, last, was_cut in zip(*_extremes(array, starts, ends), cut.tolist(), strict=True):
        low.append(None if first is None else shorten(first))
        bound = None if last is None else shorten(last)
        high.append(raised(bound) if bound is not None and was_cut else bound)
    return nulls, _binary(kind, low), _binary(kind, high)


def _extremes(array: pa.Array, starts: Int64, ends: Int64) -> tuple[list[bytes | None], list[bytes | None]]:
    """The least and the greatest value of each run, as bytes; None where all are null."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    plain = array.view(pa.large_binary() if large else pa.binary())
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    both = [pc.min_max(plain.slice(first, end - first)) for first, end in spans]
    return [each["min"].as_py() for each in both], [each["max"].as_py() for each in both]


def _binary(kind: pa.DataType, bounds: list[bytes | None]) -> pa.Array:
    if pa.types.is_string(kind):
        return pa.array(bounds, pa.binary()).view(pa.string())
    if pa.types.is_large_string(kind):
        return pa.array(bounds, pa.large_binary()).view(pa.large_string())
    return pa.array(bounds, kind)


def _cut_bytes(value: bytes) -> bytes:
    return value[:MAX_BOUND_BYTES]


def _cut_text(value: bytes) -> bytes:
    """At most 64 bytes, cut between characters."""
    end = MAX_BOUND_BYTES
    if len(value) <= end:
        return value
    while end > 0 and value[end] & 0xC0 == 0x80:
        end -= 1
    return value[:end]


def _raise_bytes(value: bytes) -> bytes | None:
    """The next number of the same length, the bytes read as a big-endian one; None after the last."""
    kept = value.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) + bytes(len(value) - len(kept)) if kept else None


def _raise_text(value: bytes) -> bytes | None:
    """The text with one byte raised, the last that gives a text again; None if there is none."""
    for at in range(len(value) - 1, -1, -1):
        for byte in range(value[at] + 1, 256):
            raised = value[:at] + bytes([byte]) + value[at + 1 :]
            try:
                raised.decode("utf-8")
            except UnicodeDecodeError:
                continue
            return raised
    return None


# -------------------------------------------------------------------------------------------------------------- reading


def read_zones(file: LegacyMetadata, schema: Schema) -> ReadPlan[FileStatistics | None]:
    """The statistics of a file as zones, one for each batch with rows; None if it has none.

    `schema` is that of the table; fields that it has not, or has in another type, are passed over. Raises
    CorruptFileError if the pages break the format.
    """
    message = file.statistics
    if message is None or not file.num_rows:
        return None
    described = _described(message.schema)
    wanted = [
        (schema.by_id[field_id], parts)
        for field_id, parts in described.items()
        if field_id in schema.by_id and _fits(schema.by_id[field_id], parts)
    ]
    if not wanted:
        return None
    table_bytes = _ENTRY_BYTES * (1 + max(part.id for _, parts in wanted for part in parts.values()))
    where = ByteRange(message.page_table_position, message.page_table_position + table_bytes)
    if where.end > file.size_bytes:
        raise file.corrupt("the page table of the statistics lies outside of the file", file.size_bytes, where.end)
    data = file.kept(where)
    if data is None:
        (data,) = yield (where,)
    entries = np.frombuffer(data, "<i8").reshape(-1, 2)
    plans = [
        _read_column(file, entries[part.id], kind, field.name)
        for field, parts in wanted
        for part, kind in (
            (parts["null_count"], pa.int64()),
            (parts["min_value"], field.data_type),
            (parts["max_value"], field.data_type),
        )
    ]
    found = yield from gather(plans)
    filled = np.diff(file.batch_offsets) > 0
    columns = {
        field.id: _zone_stats(field, *(array.filter(pa.array(filled)) for array in found[3 * at : 3 * at + 3]))
        for at, (field, _) in enumerate(wanted)
    }
    return FileStatistics(np.diff(file.batch_offsets)[filled], columns)


def _described(fields: Any) -> Mapping[int, dict[str, file_pb2.Field]]:
    """Field id of the data -> the three columns of its statistics."""
    tops = {each.id: each.name for each in fields if each.parent_id == -1 and each.name.isdecimal()}
    found: dict[int, dict[str, file_pb2.Field]] = {}
    for each in fields:
        if each.parent_id in tops and 0 <= each.id < len(fields):
            found.setdefault(int(tops[each.parent_id]), {})[each.name] = each
    return found


def _fits(field: Field, parts: Mapping[str, file_pb2.Field]) -> bool:
    if not parts.keys() >= {"null_count", "min_value", "max_value"} or not _is_collected(field.data_type):
        return False
    kinds = {parts["min_value"].logical_type, parts["max_value"].logical_type}
    # Decimals of negative scale have no order in Arrow.
    ordered = not pa.types.is_decimal(field.data_type) or field.data_type.scale >= 0
    return kinds == {field.logical_type} and parts["null_count"].logical_type == "int64" and ordered


def _read_column(file: LegacyMetadata, entry: Int64, kind: pa.DataType, name: str) -> ReadPlan[pa.Array]:
    count = file.num_batches
    row = PageRow(entry[:1].copy(), entry[1:].copy())
    expected = np.array([count], np.int64)
    spans = Spans(zeros(1), zeros(1), expected, count)
    if varbin.offset_dtype(kind) is not None:
        # An empty bound is one that is not known, whatever the field says.
        return (yield from VarBinaryNode(Pages(file, row, 64, expected, name), kind, True).read(spans, 0))
    return (yield from PlainNode(Pages(file, row, item_bits(kind, name), expected, name), kind).read(spans, 0))


def _zone_stats(field: Field, nulls: pa.Array, low: pa.Array, high: pa.Array) -> ZoneStats:
    stored = nulls.to_numpy()
    if len(stored) and int(stored.min()) < 0:
        raise CorruptFileError(f"field {field.name!r}: a batch with {int(stored.min())} nulls in the statistics")
    if varbin.offset_dtype(field.data_type) is not None:
        # Empty values read as null where there may be nulls, and as empty where there may be none.
        return ZoneStats(None if field.nullable else np.zeros(len(stored), np.int64), low, high, None)
    if pa.types.is_floating(field.data_type):
        nan = pc.or_(pc.is_nan(low), pc.is_nan(high))
        low, high = pc.if_else(nan, None, low), pc.if_else(nan, None, high)
    hidden = stored > 0
    if hidden.any():
        # Values under nulls are not in the bounds, and are read all the same.
        low, high = (pc.if_else(pa.array(hidden), None, bound) for bound in (low, high))
    return ZoneStats(np.zeros(len(stored), np.int64), low, high, None)
