"""Tables with indexes of either library, queries with their answers, and conversion of queries to SQL."""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lancetable
from lancetable.format.paths import INDICES_DIR, join
from lancetable.index.index_files import SegmentWriter
from lancetable.index.kind import ROW, VALUE, kind_named
from lancetable.index.queries import IndexQuery, IsIn, IsNull, Range, StartsWith
from lancetable.index.segments import IndexSegment, index_segments
from lancetable.index_metadata import Index, IndexFile
from lancetable.operation import LanceOperation

NUMBERS = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
]
TIMES = [
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC")),
]
DURATIONS = [pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns")]
DECIMALS = [pa.decimal128(10, 2), pa.decimal128(38, 5), pa.decimal256(50, 2)]
STRINGS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
HASHED_TYPES = [kind for kind in [*NUMBERS, *TIMES, *STRINGS] if kind != pa.float16()]
ORDERED_TYPES = [pa.bool_(), *NUMBERS, *TIMES, *DURATIONS, *DECIMALS, *STRINGS, pa.binary(4)]


def values_of_type(data_type: pa.DataType, n: int, seed: int = 0, null_fraction: float = 0.15) -> pa.Array:
    """Return random values with repeats: about three rows of each value, and extremes of the type."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(0, max(n // 3, 1), n)
    nulls = rng.random(n) < null_fraction
    return pa.array([None if null else value_number(data_type, int(k)) for k, null in zip(numbers, nulls)], data_type)


def value_number(data_type: pa.DataType, k: int) -> Any:
    """Return a value of a type. The order of values is not that of the numbers."""
    types = pa.types
    k = k * 7919 % 10007
    if types.is_boolean(data_type):
        return bool(k % 2)
    if types.is_floating(data_type):
        special = [math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf]
        return special[k % 60 // 10] if k % 10 == 0 else (k % 400 - 200) / 4
    if types.is_integer(data_type):
        bits, signed = data_type.bit_width, not types.is_unsigned_integer(data_type)
        low = -(1 << (bits - 1)) if signed else 0
        extremes = [low, low + (1 << bits) - 1]
        return extremes[k % 2] if k % 50 == 0 else k % 100 + (-50 if signed else 0)
    if types.is_decimal(data_type):
        return Decimal(k - 5000).scaleb(-data_type.scale)
    if types.is_fixed_size_binary(data_type):
        return struct.pack(">I", k * 400_000)[: data_type.byte_width]
    if types.is_string(data_type) or types.is_large_string(data_type):
        return ["", "a", "ä", "aa\x00", "\U0010ffff", "same_prefix_" * 2][k % 6] + ("" if k % 5 == 0 else str(k % 300))
    if types.is_binary(data_type) or types.is_large_binary(data_type):
        return [b"", b"\x00", b"\xff\xff", b"same_prefix_" * 2][k % 4] + (b"" if k % 5 == 0 else str(k % 300).encode())
    if types.is_date64(data_type):
        return pa.scalar((k - 5000) * 86_400_000, pa.int64()).cast(data_type).as_py()
    number = k if types.is_time(data_type) else k - 5000
    return pa.scalar(number, pa.int32() if data_type.bit_width == 32 else pa.int64()).cast(data_type).as_py()


def queries_of(values: pa.Array, *, ranges: bool = True) -> list[IndexQuery]:
    """Return queries on a column "v" with these values."""
    data_type = values.type
    probes = values.drop_null()
    if len(probes) == 0:
        probes = pa.array([value_number(data_type, 1)], data_type)
    chosen = [probes[int(len(probes) * part)] for part in (0, 0.3, 0.6, 0.9)]
    low, high, first, other = chosen
    found: list[IndexQuery] = [IsNull("v"), IsIn("v", probes[:0])]
    found += [IsIn("v", pa.array([value.as_py()], data_type)) for value in chosen]
    found += [IsIn("v", probes[: len(probes) // 4]), IsIn("v", pa.array([value_number(data_type, 99)], data_type))]
    if pa.types.is_floating(data_type):
        found += [IsIn("v", pa.array([value], data_type)) for value in (math.nan, -math.nan, 0.0, -0.0)]
    if not ranges:
        return found
    if pa.types.is_floating(data_type):
        chosen += [pa.scalar(v, data_type) for v in (math.nan, 0.0, -0.0, math.inf, -math.inf)]
    found += [Range("v"), Range("v", low, high), Range("v", high, low), Range("v", first, first)]
    for value in chosen:
        for inclusive in (True, False):
            found.append(Range("v", lower=value, includes_lower=inclusive))
            found.append(Range("v", upper=value, includes_upper=inclusive))
    found.append(Range("v", min(low, other, key=_order), max(low, other, key=_order), False, False))
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        found += [StartsWith("v", prefix) for prefix in ("", "a", "same_prefix_same", "\U0010ffff", "zz")]
    return found


def _order(value: Any) -> Any:
    """Return the key by which values are compared in queries."""
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def selects(query: IndexQuery, value: Any) -> bool | None:
    """Return whether a query selects a value, None for null."""
    if isinstance(query, IsNull):
        return value is None
    if value is None:
        return None
    key = _order(value)
    if isinstance(query, IsIn):
        return any(key == _order(item) for item in query.values)
    if isinstance(query, StartsWith):
        return bool(value.startswith(query.prefix))
    assert isinstance(query, Range)
    above = query.lower is None or key > _order(query.lower) or (query.includes_lower and key == _order(query.lower))
    below = query.upper is None or key < _order(query.upper) or (query.includes_upper and key == _order(query.upper))
    return above and below


def answer(query: IndexQuery, rows: Iterable[int], values: Iterable[Any]) -> tuple[set[int], set[int]]:
    """Return the rows that a query selects, and those for which it is null."""
    results = [(row, selects(query, value)) for row, value in zip(rows, values)]
    return {row for row, result in results if result}, {row for row, result in results if result is None}


# ------------------------------------------------------------------------------------------------------------------ SQL


_INTEGERS = {pa.int64().id: "Int64", pa.uint64().id: "UInt64"}
_SQL_TYPES = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def sql_literal(value: pa.Scalar) -> str:
    """Return a value as a literal that pylance parses to the same type."""
    kind, shown = value.type, value.as_py()
    if isinstance(shown, float):
        special = math.isnan(shown) or math.isinf(shown)
        literal = f"cast('{shown}' as double)" if special else repr(shown)
        return f"arrow_cast({literal}, '{ {16: 'Float16', 32: 'Float32', 64: 'Float64'}[kind.bit_width] }')"
    if isinstance(shown, str):
        return "'" + shown.replace("'", "''") + "'"
    if isinstance(shown, bytes):
        return f"x'{shown.hex()}'"
    if isinstance(shown, bool | int):
        # The parser reads the smallest 64-bit integer as a floating point number.
        return str(shown).lower() if abs(shown) < 1 << 62 else f"arrow_cast('{shown}', '{_INTEGERS[kind.id]}')"
    if pa.types.is_decimal(kind):
        return f"arrow_cast('{shown}', 'Decimal{kind.bit_width}({kind.precision}, {kind.scale})')"
    number = value.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).as_py()
    if pa.types.is_date(kind):
        name = "Date32" if kind.bit_width == 32 else "Date64"
    elif pa.types.is_timestamp(kind):
        zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
        name = f"Timestamp({_SQL_TYPES[kind.unit]}, {zone})"
    else:
        group = "Duration" if pa.types.is_duration(kind) else f"Time{kind.bit_width}"
        name = f"{group}({_SQL_TYPES[kind.unit]})"
    return f"arrow_cast({'cast(' * (kind.bit_width == 32)}{number}{' as int)' * (kind.bit_width == 32)}, '{name}')"


def sql_of(query: IndexQuery) -> str | None:
    """Return a query as SQL, None if SQL has no such predicate."""
    if isinstance(query, IsNull):
        return "v is null"
    if isinstance(query, StartsWith):
        return f"starts_with(v, '{query.prefix}')" if query.prefix else None
    if isinstance(query, IsIn):
        return f"v in ({', '.join(map(sql_literal, query.values))})" if len(query.values) else None
    assert isinstance(query, Range)
    lower = query.lower and f"v {'>=' if query.includes_lower else '>'} {sql_literal(query.lower)}"
    upper = query.upper and f"v {'<=' if query.includes_upper else '<'} {sql_literal(query.upper)}"
    return " and ".join(part for part in (lower, upper) if part) or None


# -------------------------------------------------------------------------------------------------------------- indexes


def write_table(
    path: Path, values: pa.Array, *, version: str = "2.1", stable: bool = False, fragments: int = 2
) -> lancetable.LanceDataset:
    """Write a table with the columns "id" and "v" by pylance."""
    import lance

    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": values})
    size = max(1, -(-len(values) // fragments))
    lance.write_dataset(
        table, str(path), data_storage_version=version, enable_stable_row_ids=stable, max_rows_per_file=size
    )
    return lancetable.dataset(str(path))


def create_by_pylance(path: Path, kind: str, **options: Any) -> None:
    """Create the index "v_idx" of the column "v" by pylance."""
    import lance
    from lance.indices import IndexConfig

    lance.dataset(str(path)).create_scalar_index("v", IndexConfig(kind, parameters=options), name="v_idx")


def batches_of(
    dataset: lancetable.LanceDataset, row_column: str, fragment_ids: Iterable[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the values of "v" and the rows, in batches of one fragment."""
    for fragment in dataset.get_fragments():
        if fragment_ids is not None and fragment.fragment_id not in fragment_ids:
            continue
        options = {"with_row_id": True} if row_column == "_rowid" else {"with_row_address": True}
        table = fragment.to_table(columns=["v"], **options)
        for batch in table.to_batches(max_chunksize=7):
            yield pa.record_batch({VALUE: batch.column("v"), ROW: batch.column(row_column)})


def row_column_of(dataset: lancetable.LanceDataset, segment_stores_ids: bool) -> str:
    return "_rowid" if segment_stores_ids and dataset.has_stable_row_ids else "_rowaddr"


def build(
    dataset: lancetable.LanceDataset,
    kind_name: str,
    fragment_ids: Iterable[int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Index:
    """Build a segment of an index of "v" by this library, and return its entry, which is not committed."""
    kind, version = kind_named(kind_name), dataset.table_version
    index_version = kind.version_for(stable_row_ids=dataset.has_stable_row_ids)
    row_column = row_column_of(dataset, kind.stores_row_ids(index_version))
    name = str(uuid.uuid4())
    writer = SegmentWriter(version.store, join(version.base, f"{INDICES_DIR}/{name}"), version.manifest.file_version)
    field = version.schema.field("v")
    assert field is not None
    covered = [f.fragment_id for f in dataset.get_fragments()] if fragment_ids is None else list(fragment_ids)
    details = kind.build(writer, field, batches_of(dataset, row_column, covered), options or {})
    return entry_of(dataset, name, index_version, covered, writer, (kind.type_url, details.SerializeToString()))


def entry_of(
    dataset: lancetable.LanceDataset,
    name: str,
    index_version: int,
    covered: Iterable[int],
    writer: SegmentWriter,
    details: tuple[str, bytes],
) -> Index:
    field = dataset.table_version.schema.field("v")
    assert field is not None
    files = [IndexFile(file.path, file.size_bytes) for file in writer.files]
    return Index(name, "v_idx", [field.id], dataset.version, covered, index_version, files=files, index_details=details)


def commit(dataset: lancetable.LanceDataset, *entries: Index) -> lancetable.LanceDataset:
    """Commit segments of the index "v_idx" that replace those of the newest version."""
    dataset = lancetable.dataset(dataset.uri)
    existing = [Index.from_format(segment.files.metadata) for segment in segments(dataset) if segment.name == "v_idx"]
    operation = LanceOperation.CreateIndex(list(entries), existing)
    return lancetable.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def segments(dataset: lancetable.LanceDataset) -> tuple[IndexSegment, ...]:
    """Return the segments of all indexes."""
    return index_segments(dataset.table_version)


def assert_answers(dataset: lancetable.LanceDataset, queries: Iterable[IndexQuery], *, exact: bool = True) -> None:
    """Check the answers of all segments against those of a model over the live rows."""
    table = dataset.to_table(columns=["v"], with_row_address=True)
    rows, values = table["_rowaddr"].to_pylist(), table["v"].to_pylist()
    for query in queries:
        for segment in segments(dataset):
            true, null = answer(query, rows, values)
            covered = {row for row in rows if row >> 32 in segment.fragments}
            result = segment.search(query)
            found, found_null = set(result.true) & covered, set(result.null) & covered
            if exact:
                assert (found, found_null) == (true & covered, null & covered), query
            else:
                assert found >= true & covered, query
                assert not found & found_null, query


def assert_pylance_answers(dataset: lancetable.LanceDataset, queries: Iterable[IndexQuery]) -> None:
    """Check that pylance uses the index for queries, and answers them and their negations as a scan does."""
    import lance

    theirs = lance.dataset(dataset.uri)
    for query in queries:
        sql = sql_of(query)
        for predicate in () if sql is None else (sql, f"not ({sql})"):
            found = theirs.to_table(columns=["id"], filter=predicate)["id"].to_pylist()
            scanned = theirs.scanner(columns=["id"], filter=predicate, use_scalar_index=False).to_table()
            assert sorted(found) == sorted(scanned["id"].to_pylist()), predicate
        if sql is not None and sql != "v in (false)":  # which pylance rewrites to a negation
            assert "ScalarIndexQuery" in theirs.scanner(filter=sql).explain_plan(), sql
