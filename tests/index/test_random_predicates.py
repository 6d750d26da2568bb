"""Random predicates, with literals of other types, select the rows of a scan with real indexes of every kind."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import LanceError
from lancetable.indices import IndexConfig
from tests.index import indexed_tables as tables

lance = pytest.importorskip("lance")

ROWS = 90
TYPES = [
    *tables.ORDERED_TYPES,
    pa.timestamp("us", "America/New_York"),
    pa.decimal128(5, 0),
    pa.dictionary(pa.int32(), pa.string()),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "BTREE": {"zone_size": 8},
    "BITMAP": {},
    "ZONEMAP": {"rows_per_zone": 7},
    "BLOOMFILTER": {"number_of_items": 7},
}
NUMBERS = [
    "0",
    "-0.0",
    "2.5",
    "1e30",
    "-9e99",
    "CAST(0.1 AS DOUBLE)",
    "CAST('NaN' AS DOUBLE)",
    "CAST(7 AS DECIMAL(20, 4))",
]
INSTANTS = [
    *("'1970-01-05'", "date '1969-12-31'", "timestamp '1970-01-01 00:00:00.5'", "'1970-01-01 00:00:01+02:00'"),
    *(
        "arrow_cast(1000001, 'Timestamp(Nanosecond, None)')",
        "arrow_cast(1000, 'Timestamp(Millisecond, Some(\"UTC\"))')",
    ),
]
STRINGS = ["''", "'a'", "'same_prefix_'", "'\U0010ffff'", "CAST('ä' AS STRING)"]
BINARIES = ["x''", "x'00'", "x'ffff'", "x'00000000'"]


def literals_of(data_type: pa.DataType) -> list[str]:
    types = pa.types
    if types.is_boolean(data_type):
        return ["true", "false"]
    if types.is_integer(data_type) or types.is_floating(data_type) or types.is_decimal(data_type):
        return NUMBERS
    if types.is_date(data_type) or types.is_timestamp(data_type):
        return INSTANTS
    if types.is_time(data_type):
        return ["'00:00:05'", "'01:00:00.5'"]
    if types.is_string(data_type) or types.is_large_string(data_type):
        return STRINGS
    return [] if types.is_duration(data_type) else BINARIES


def predicate(rng: random.Random, column: str, literals: list[str], depth: int = 0) -> str:
    """Return a random predicate on a column."""

    def literal() -> str:
        return rng.choice(literals)

    def inner() -> str:
        return predicate(rng, column, literals, depth + 1)

    match rng.randrange(12 if depth < 2 else 8):
        case 0:
            return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
        case 1:
            return (
                f"{column} {rng.choice(['', 'NOT '])}IN ({', '.join(literal() for _ in range(rng.choice([1, 3, 20])))})"
            )
        case 2:
            return f"{column} {rng.choice(['', 'NOT '])}BETWEEN {literal()} AND {literal()}"
        case 3:
            return f"{column} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {literal()}"
        case 8:
            return f"NOT ({inner()})"
        case 9:
            return f"({inner()}) IS {rng.choice(['', 'NOT '])}{rng.choice(['TRUE', 'FALSE'])}"
        case 10 | 11:
            return f"({inner()} {rng.choice(['AND', 'OR'])} {inner()})"
    return f"{column} {rng.choice(['=', '!=', '<', '<=', '>', '>='])} {literal()}"


def write_table(path: Path, values: pa.Array, rng: random.Random, *, by_pylance: bool) -> lancetable.LanceDataset:
    """Write a table with the values in a column and in a struct, of which some are null."""
    is_null = pa.array([rng.random() < 0.2 for _ in range(len(values))])
    nested = pa.StructArray.from_arrays([values], ["v"], mask=is_null)
    table = pa.table({"id": range(len(values)), "v": values, "s": nested})
    writer = lance if by_pylance else lancetable
    stable = rng.random() < 0.5
    size = 1000 if by_pylance else 40  # pylance cannot divide structs of booleans
    writer.write_dataset(table, str(path), max_rows_per_file=size, enable_stable_row_ids=stable)
    return lancetable.dataset(str(path))


@pytest.mark.parametrize("data_type", TYPES, ids=str)
def test_random_predicates_select_the_rows_of_a_scan(tmp_path: Path, data_type: pa.DataType, scale: int) -> None:
    rng = random.Random(str(data_type))
    plain = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
    values = tables.values_of_type(plain, ROWS)
    literals = [*literals_of(plain), *map(tables.sql_literal, values.drop_null()[:6])]
    values = values if plain == data_type else values.dictionary_encode()
    num_searches = 0
    for kind, options in OPTIONS.items():
        by_pylance = rng.random() < 0.5
        dataset = write_table(tmp_path / kind, values, rng, by_pylance=by_pylance)
        for column in ("v", "s.v"):
            creator = lance.dataset(dataset.uri) if by_pylance else dataset
            config = lance.indices.IndexConfig if by_pylance else IndexConfig
            try:
                creator.create_scalar_index(column, config(kind, parameters=options), name=f"{column} {kind}")
            except (LanceError, ValueError):
                assert kind == "BLOOMFILTER" or plain != data_type, column  # other types are supported
        dataset = lancetable.dataset(dataset.uri)
        dataset.delete(f"id % 7 = {rng.randrange(7)}")
        dataset.insert(dataset.to_table().slice(0, 20))
        for _ in range(12 * scale):
            text = predicate(rng, rng.choice(["v", "s.v"]), literals)
            try:
                num_searches += "ScalarIndexQuery" in dataset.scanner(filter=text).explain_plan()
            except LanceError:
                continue  # not a valid predicate for this type
            scanned = dataset.to_table(columns=["id"], filter=text, use_scalar_index=False)
            assert dataset.to_table(columns=["id"], filter=text) == scanned, text
            assert dataset.count_rows(text) == len(scanned), text
    assert num_searches > 5 or plain != data_type
