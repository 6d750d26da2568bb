"""Columns and conjuncts of expressions, and pruning of zones without loss of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.expr import ZoneValues, columns_of, conjuncts, parse_predicate, prune_mask
from lancetable.expr.analyze.like_patterns import LikePattern
from lancetable.expr.evaluate.evaluator import evaluate
from lancetable.file.kernels.varbin import prefix_end

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("dict", pa.dictionary(pa.int8(), pa.string())),
        ("st", pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())])), ("a.b", pa.int64())])),
        ("l", pa.list_(pa.int64())),
    ]
)


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("i = 1 AND f > 2 OR i IS NULL", ["i", "f"]),
        ("st.x = 1 AND st.y.z = 'a'", ["st.x", "st.y.z"]),
        ("st.`a.b` = 1", ["st.`a.b`"]),
        ("st.x = 1 AND st IS NOT NULL", ["st"]),
        ("_rowid > 3 AND _rowaddr IS NOT NULL AND _ROWOFFSET = 1", ["_rowid", "_rowaddr", "_rowoffset"]),
        ("l[i] = 1", ["l", "i"]),
        ("true", []),
    ],
)
def test_columns_are_listed_in_order_of_first_use(text: str, columns: list[str]) -> None:
    assert columns_of(parse_predicate(text, SCHEMA)) == columns


def test_conjuncts_of_nested_ands_are_flat() -> None:
    parts = conjuncts(parse_predicate("i = 1 AND (f > 2 AND (s = 'a' OR b))", SCHEMA))
    assert [str(part) for part in parts] == ["i = 1", "f > 2.0", "s = 'a' OR b"]
    assert [str(part) for part in conjuncts(parse_predicate("b", SCHEMA))] == ["b"]


def test_like_prefix_and_its_exclusive_end() -> None:
    assert LikePattern.parse("ab%c").prefix == "ab"
    assert LikePattern.parse("a\\%b_").prefix == "a%b"
    assert LikePattern.parse("abc").prefix == "abc"
    assert LikePattern.parse("ab\\").prefix == "ab\\"
    assert prefix_end("ab") == "ac"
    assert prefix_end("a\U0010ffff") == "b"
    assert prefix_end("\U0010ffff") is None
    assert prefix_end("\ud7ff") == "\ue000"


# Pruning


def _zone(values: pa.Array[Any]) -> tuple[Any, Any, int, int]:
    """Return (min, max, null count, NaN count) as in the statistics of the format."""
    nulls = values.null_count
    present = values.drop_null()
    nans = 0
    if pa.types.is_floating(values.type):
        is_nan = pc.is_nan(present)
        nans = pc.sum(is_nan, min_count=0).as_py()
        present = present.filter(pc.invert(is_nan))
    if pa.types.is_string(values.type):
        words = sorted(present.to_pylist(), key=str.encode)
        return (words[0], words[-1], nulls, nans) if words else (None, None, nulls, nans)
    limits = pc.min_max(present) if len(present) else {"min": pa.scalar(None), "max": pa.scalar(None)}
    return limits["min"].as_py(), limits["max"].as_py(), nulls, nans


def _statistics(zones: list[pa.Table], column: str, known: bool) -> ZoneValues:
    parts = [_zone(zone[column].combine_chunks()) for zone in zones]
    data_type = zones[0][column].type
    low, high, nulls, nans = zip(*parts)
    return ZoneValues(
        num_rows=np.array([zone.num_rows for zone in zones]),
        min=pa.array(low, data_type),
        max=pa.array(high, data_type),
        null_count=pa.array(nulls, pa.int64()) if known else None,
        nan_count=pa.array(nans, pa.int64()) if known else None,
    )


_INTS = st.one_of(st.none(), st.integers(-3, 3))
_FLOATS = st.one_of(st.none(), st.sampled_from([-1.5, -0.0, 0.0, 1.0, 2.5, float("inf"), float("nan")]))
_TEXTS = st.one_of(st.none(), st.sampled_from(["", "a", "ab", "abc", "b", "é", "\U0010ffff"]))
_ROWS = st.lists(st.tuples(_INTS, _FLOATS, _TEXTS, st.one_of(st.none(), st.booleans())), min_size=1, max_size=5)

_OPERATORS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])
_SMALL = st.integers(-4, 4).map(str)
_FLOAT_TEXTS = st.sampled_from(["-1.5", "0", "-0.0", "1", "2.5", "cast('nan' as double)", "cast('inf' as double)"])
_WORDS = st.sampled_from(["''", "'a'", "'ab'", "'abc'", "'c'", "'é'"])
_LEAVES = st.one_of(
    st.tuples(st.just("i"), _OPERATORS, _SMALL).map(" ".join),
    st.tuples(st.just("f"), _OPERATORS, _FLOAT_TEXTS).map(" ".join),
    st.tuples(st.just("s"), _OPERATORS, _WORDS).map(" ".join),
    st.tuples(st.just("i"), st.sampled_from(["IN", "NOT IN"]), st.lists(_SMALL, min_size=1, max_size=4)).map(
        lambda x: f"{x[0]} {x[1]} ({', '.join(x[2])})"
    ),
    st.lists(_FLOAT_TEXTS, min_size=1, max_size=3).map(lambda x: f"f IN ({', '.join(x)})"),
    st.lists(_WORDS, min_size=1, max_size=3).map(lambda x: f"s IN ({', '.join(x)})"),
    st.lists(_SMALL, min_size=1, max_size=3).map(lambda x: f"i IN ({', '.join(x)}, NULL)"),
    st.sampled_from(["s LIKE 'a%'", "s NOT LIKE 'ab%'", "starts_with(s, 'ab')", "s LIKE 'é%'", "isnan(f)", "i < 9e99"]),
    st.tuples(st.sampled_from("ifsb"), st.sampled_from([" IS NULL", " IS NOT NULL"])).map("".join),
    st.tuples(st.just("i IS DISTINCT FROM "), _SMALL).map("".join),
    st.sampled_from(["b", "b IS TRUE", "b IS NOT FALSE", "b = true", "true", "false", "i + 1 = 2", "i = f", "i > 1.5"]),
)  # fmt: skip
_PREDICATES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", " OR "]), inner).map(lambda x: f"({x[0]}){x[1]}({x[2]})"),
        inner.map(lambda x: f"NOT ({x})"),
        inner.map(lambda x: f"({x}) IS TRUE"),
        inner.map(lambda x: f"({x}) IS FALSE"),
        inner.map(lambda x: f"({x}) IS NULL"),
    ),
    max_leaves=5,
)
_SMALL_SCHEMA = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.bool_())])


def _tables(zones: list[list[tuple[Any, ...]]]) -> list[pa.Table]:
    return [
        pa.table([pa.array(column, field.type) for column, field in zip(zip(*rows), _SMALL_SCHEMA)], _SMALL_SCHEMA)
        for rows in zones
    ]


@given(
    zones=st.lists(_ROWS, min_size=1, max_size=6),
    text=_PREDICATES,
    known=st.booleans(),
    columns=st.sets(st.sampled_from("ifsb")),
)
def test_pruned_zones_contain_no_match(
    zones: list[list[tuple[Any, ...]]], text: str, known: bool, columns: set[str]
) -> None:
    tables = _tables(zones)
    predicate = parse_predicate(text, _SMALL_SCHEMA)
    mask = prune_mask(
        predicate, lambda name: _statistics(tables, name, known) if name in columns else None, len(tables)
    )
    assert mask.dtype == np.bool_ and mask.shape == (len(tables),)
    for kept, table in zip(mask, tables):
        matches = table.filter(evaluate(predicate, table)).num_rows
        assert kept or not matches


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("i = 15", [False, True, False, False]),
        ("i < 10", [True, False, False, False]),
        ("i >= 19", [False, True, True, False]),
        ("NOT i < 20", [False, False, True, False]),
        ("i IN (5, 25)", [True, False, True, False]),
        ("i NOT IN (5)", [True, True, True, False]),
        ("i BETWEEN 9 AND 10", [True, True, False, False]),
        ("i = 5 OR i = 15", [True, True, False, False]),
        ("i = 5 AND i = 15", [False, False, False, False]),
        ("i IS NULL", [False, False, False, True]),
        ("i IS NOT NULL", [True, True, True, False]),
        ("i IS DISTINCT FROM 3", [True, True, True, True]),
        ("f > 100", [False, False, True, False]),
        ("f < 0", [False, False, False, False]),
        ("isnan(f)", [False, False, True, False]),
        ("NOT isnan(f)", [True, True, True, False]),
        ("f = cast('nan' as double)", [False, False, True, False]),
        ("s LIKE 'b%'", [False, True, False, False]),
        ("starts_with(s, 'c')", [False, False, True, False]),
        ("s = 'aa' OR i = 25", [True, False, True, False]),
        ("b", [True, False, True, False]),
        ("NOT b", [False, True, True, False]),
        ("b IS NOT TRUE", [False, True, True, True]),
        ("i < 1e99", [True, True, True, False]),
        ("i % 2 = 0", [True, True, True, True]),
        ("i > 9 AND i <= 15", [False, True, False, False]),
        ("15 > i", [True, True, False, False]),
        ("i != 3", [True, True, True, False]),
        ("i IN (5, 15, NULL)", [True, True, False, False]),
        ("i = 5 OR f = 1.5", [True, True, False, False]),
        ("i = 5 OR i > 20", [True, False, True, False]),
        ("s LIKE 'b%a'", [False, True, False, False]),
        ("s LIKE '%a'", [True, True, True, True]),
        ("s ILIKE 'b%'", [True, True, True, True]),
        ("(i = 15) IS TRUE", [False, True, False, False]),
        ("i + 1 = 2", [True, True, True, True]),
        ("i > 19.5", [False, False, True, False]),
    ],
)
def test_pruning_keeps_only_zones_with_possible_matches(text: str, kept: list[bool]) -> None:
    nan = float("nan")
    tables = _tables(
        [
            [(k, k / 10, f"a{'a' * (k % 3)}", True) for k in range(10)],
            [(k, k / 10, "ba", False) for k in range(10, 20)],
            [(k, nan if k == 21 else k / 10, "cc", k % 2 == 0) for k in range(20, 30)],
            [(None, None, None, None)],
        ]
    )
    predicate = parse_predicate(text, _SMALL_SCHEMA)
    assert prune_mask(predicate, lambda name: _statistics(tables, name, True), 4).tolist() == kept


def test_dictionary_columns_and_struct_fields_are_pruned() -> None:
    zones = {
        "dict": ZoneValues(num_rows=np.array([1, 1]), min=pa.array(["a", "b"]), max=pa.array(["a", "c"])),
        "st.x": ZoneValues(num_rows=np.array([1, 1]), min=pa.array([1, 5]), max=pa.array([4, 9])),
    }
    for text, kept in {"dict = 'a'": [True, False], "st.x = 5": [False, True], "l IS NULL": [True, True]}.items():
        assert prune_mask(parse_predicate(text, SCHEMA), zones.get, 2).tolist() == kept


def test_statistics_of_wrong_length_are_rejected() -> None:
    wrong = ZoneValues(num_rows=np.array([1, 2]), null_count=np.array([0, 0]))
    with pytest.raises(ValueError, match="expected statistics of 3 zones, got 2"):
        prune_mask(parse_predicate("i = 1", _SMALL_SCHEMA), lambda name: wrong, 3)


def test_truncated_string_bounds_are_valid() -> None:
    """A truncated and incremented maximum is an upper bound; equal bounds determine the value."""
    zones = ZoneValues(
        num_rows=np.array([2, 2]), min=pa.array(["aa", "b"]), max=pa.array(["ab", None]), null_count=np.array([0, 0])
    )
    for text, kept in [("s = 'aaz'", [True, False]), ("s = 'zz'", [False, True]), ("s != 'aa'", [True, True])]:
        assert prune_mask(parse_predicate(text, _SMALL_SCHEMA), lambda name: zones, 2).tolist() == kept


def test_float16_statistics_are_used_for_pruning() -> None:
    schema = pa.schema([("h", pa.float16())])
    zones = ZoneValues(
        num_rows=np.array([1, 1]),
        min=pa.array(np.array([0.5, 2.0], np.float16)),
        max=pa.array(np.array([0.5, 2.0], np.float16)),
        null_count=np.array([0, 0]),
        nan_count=np.array([0, 0]),
    )
    for text, kept in [("h > 1", [False, True]), ("h IN (0.5, 3)", [True, False])]:
        assert prune_mask(parse_predicate(text, schema), lambda name: zones, 2).tolist() == kept
