"""Plans of predicates over indexes, compared with those of pylance, and the answers of these plans."""

from __future__ import annotations

import datetime
import decimal
import re
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable
from lancetable.expr import parse_predicate
from lancetable.expr.analyze.like_patterns import LikePattern
from lancetable.expr.evaluate.operators import like
from lancetable.index.planning import plan_indexes
from lancetable.ops.read.projection import evaluation_schema

ROWS = 300
INDEXES = {
    "BTREE": "id i8 f s ls ts d dec bin fsb nest.a tm",
    "BITMAP": "b bm",
    "LABEL_LIST": "tags",
    "NGRAM": "txt",
    "ZONEMAP": "z",
    "BLOOMFILTER": "bl",
}


def rows() -> pa.Table:
    moments = [datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=i) for i in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "i8": pa.array([None if i % 10 == 0 else i % 100 for i in range(ROWS)], pa.int8()),
            "f": pa.array([None if i % 9 == 4 else (i % 7 - 3) / 2 for i in range(ROWS)], pa.float64()),
            "s": pa.array([None if i % 7 == 0 else f"s{i % 100:03d}" for i in range(ROWS)]),
            "ls": pa.array([f"s{i % 100:03d}" for i in range(ROWS)], pa.large_string()),
            "ts": pa.array(moments, pa.timestamp("us")),
            "d": pa.array([moment.date() for moment in moments], pa.date32()),
            "dec": pa.array([decimal.Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(10, 2)),
            "bin": pa.array([str(i).encode() for i in range(ROWS)], pa.binary()),
            "fsb": pa.array([str(i).zfill(16).encode() for i in range(ROWS)], pa.binary(16)),
            "nest": pa.array([{"a": None if i % 5 == 2 else i} for i in range(ROWS)], pa.struct({"a": pa.int64()})),
            "tm": pa.array([i * 1000 for i in range(ROWS)], pa.time64("us")),
            "b": pa.array([None if i % 5 == 0 else i % 2 == 0 for i in range(ROWS)], pa.bool_()),
            "bm": pa.array([i % 4 for i in range(ROWS)], pa.int32()),
            "tags": pa.array([None if i % 11 == 0 else [f"t{i % 3}", f"t{i % 5}"] for i in range(ROWS)]),
            "txt": pa.array([f"hello world {i}" for i in range(ROWS)]),
            "z": pa.array([None if i % 50 == 7 else i for i in range(ROWS)], pa.int32()),
            "bl": pa.array([None if i % 50 == 7 else i for i in range(ROWS)], pa.int32()),
            "x": pa.array(range(ROWS), pa.int64()),
            "y": pa.array(range(ROWS), pa.int64()),
        }
    )


class Both(NamedTuple):
    ours: lancetable.LanceDataset
    theirs: lance.LanceDataset


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    uri = str(tmp_path_factory.mktemp("plans") / "t")
    theirs = lance.write_dataset(rows(), uri, max_rows_per_file=120)
    for kind, columns in INDEXES.items():
        for column in columns.split():
            theirs.create_scalar_index(column, kind)
    theirs.delete("id % 13 = 5")
    return Both(lancetable.dataset(uri), lance.dataset(uri))


def query_of(dataset: Any, filter: str, **options: Any) -> str | None:
    plan = dataset.scanner(columns=["y"], filter=filter, **options).explain_plan()
    found = re.search(r"ScalarIndexQuery: query=(.*)", plan)
    return None if found is None else found[1]


SAME = """
id = 5
5 = id
id != 5
id > 5
5 < id
id <= 5
id > 5 AND id < 10
id > 5 AND id > 10
id < 5 AND id > 10
id >= 5 AND id < 5
id BETWEEN 5 AND 10
id NOT BETWEEN 5 AND 10
id > 5 AND i8 > 3 AND id < 10
id > 5 AND x = 3 AND id < 10
id > 5 AND id <= 10 AND id <= 7
id IN (1)
id IN (1,2,3,4,5)
id NOT IN (1,2,3,4,5)
id = 1 OR id = 2
id IS NULL
id IS NOT NULL
NOT (id = 5)
NOT (id > 5)
NOT (NOT (id = 5))
id = NULL
id > 5 AND x = 3
x = 4 AND id > 5
id > 5 AND i8 = 3
id > 5 AND i8 = 3 AND x = 4
id > 5 OR x = 3
id > 5 OR i8 = 3
(id > 5 AND x = 3) AND i8 = 3
NOT (id > 5 AND x = 3)
NOT (id > 5 AND i8 = 3)
NOT (id > 5 OR i8 = 3)
id > 5 AND (x = 3 OR i8 = 2)
id > 5 AND (i8 = 3 OR i8 = 2)
id > 5 AND NOT (i8 = 3)
id > 5 AND NOT (x = 3)
id = 2 + 3
id = x
id + 1 = 5
id = 5 AND true
id = 5 AND false
id = 5 OR false
(id = 5) IS NULL
(id > 5) IS NOT TRUE
id IS DISTINCT FROM 5
_rowid > 5 AND id > 3
i8 = CAST(3 AS bigint)
i8 > 5 AND i8 < 10
f = 0.5
f = 0.0
f = -0.0
f > 0.5
f < 1
f = CAST('nan' AS double)
f = CAST(0.5 AS double)
s = 's005'
s LIKE 's00%'
s LIKE 's00'
s LIKE '%00%'
s LIKE 's0_0%'
s LIKE 's%0%'
s LIKE '%'
s LIKE ''
s ILIKE 's00%'
starts_with(s, 's00')
ends_with(s, '00')
s > 's00' AND s < 's01'
ls = 's005'
ls LIKE 's00%'
b
NOT b
b = true
b != true
b IS TRUE
b IS FALSE
b IS NOT TRUE
b IS NULL
b IS NOT NULL
b AND id > 5
b OR id > 5
NOT b AND NOT (bm = 1)
bm = 1
bm != 1
bm > 1
bm BETWEEN 1 AND 2
bm = 1 AND bm = 2
array_has(tags, 't1')
array_contains(tags, 't1')
array_has_any(tags, ['t1','t2'])
array_has_all(tags, ['t1','t2'])
array_has_any(tags, [])
array_has(tags, NULL)
NOT array_has(tags, 't1')
tags IS NULL
tags = ['t1']
contains(txt, 'world')
contains(txt, 'wo')
contains(txt, '')
NOT contains(txt, 'world')
txt LIKE '%world%'
txt LIKE '%wo%'
txt LIKE '%wor%ld%'
txt LIKE '%wor_ld%'
txt LIKE 'hello%'
txt LIKE '%hello'
txt ILIKE '%world%'
txt NOT LIKE '%world%'
txt = 'hello world 5'
txt IS NULL
regexp_like(txt, 'w')
contains(txt, 'world') AND id > 5
contains(txt, 'world') OR id > 5
contains(txt, 'world') AND x > 5
z = 5
z > 5
z IS NULL
z IS NOT NULL
z != 5
NOT (z > 5)
z > 5 AND id > 3
z > 5 OR id > 3
z > 5 AND x > 3
NOT (z = 5 AND id = 3)
NOT (z = 5 OR id = 3)
bl = 5
bl > 5
bl IS NULL
bl IS NOT NULL
bl != 5
bl = 5 AND id > 3
bl > 5 AND id > 3
ts = timestamp '2020-01-02 00:00:00'
ts > date '2020-01-02'
d = date '2020-01-02'
dec > 1
dec = CAST(1.5 AS decimal(10,2))
bin > x'31'
fsb = x'30303030303030303030303030303035'
tm > arrow_cast(5000, 'Time64(Microsecond)')
nest.a = 5
nest['a'] > 5
nest.a IS NULL
""".strip().splitlines()

OTHERS: dict[str, tuple[str | None, str | None]] = {
    # A list of a few constants is one search, not one for each of them.
    "id IN (1,2)": (
        "OR([id = 1]@id_idx(BTree),[id = 2]@id_idx(BTree))",
        "[id IN [1,2]]@id_idx(BTree)",
    ),
    "id NOT IN (1,2)": (
        "AND(NOT([id = 1]@id_idx(BTree)),NOT([id = 2]@id_idx(BTree)))",
        "NOT([id IN [1,2]]@id_idx(BTree))",
    ),
    "id IN (1,NULL)": (None, "[id = 1]@id_idx(BTree)"),
    "b = false": ("NOT([b = true]@b_idx(Bitmap))", "[b = false]@b_idx(Bitmap)"),
    # The whole predicate is checked for the rows that are selected.
    "(id > 290 AND x = 293) OR i8 = 3": (None, "OR([id > 290]@id_idx(BTree),[i8 = 3]@i8_idx(BTree))"),
    # Null counts as false.
    "(id = 5) IS TRUE": (None, "[id = 5]@id_idx(BTree)"),
    "(id > 5) IS FALSE": (None, "[id <= 5]@id_idx(BTree)"),
    "id IS NOT DISTINCT FROM 5": (None, "[id = 5]@id_idx(BTree)"),
    # Exact prefixes can be negated; any regular expression has trigrams.
    "s NOT LIKE 's00%'": (None, "NOT([s LIKE 's00%']@s_idx(BTree))"),
    "regexp_like(txt, 'wor.*')": (None, '[regexp_like(txt, Utf8("wor.*"))]@txt_idx(NGram)'),
    # Any NaN is equal to NaN.
    "isnan(f)": (None, "[f = NaN]@f_idx(BTree)"),
    "NOT isnan(f)": (None, "NOT([f = NaN]@f_idx(BTree))"),
    "array_has_any(tags, ['t1',NULL])": ("[array_has_any(tags, List([t1, ]))]@tags_idx(LabelList)", None),
    "CAST(id AS string) = '5'": ("[id = 5]@id_idx(BTree)", None),
}


@pytest.mark.parametrize("filter", SAME)
def test_plans_are_those_of_pylance(both: Both, filter: str) -> None:
    assert query_of(both.ours, filter) == query_of(both.theirs, filter)
    assert_right(both, filter)


@pytest.mark.parametrize("filter", OTHERS)
def test_other_plans_have_the_same_answer(both: Both, filter: str) -> None:
    theirs, ours = OTHERS[filter]
    assert query_of(both.theirs, filter) == theirs
    assert query_of(both.ours, filter) == ours
    assert_right(both, filter)


def assert_right(both: Both, filter: str) -> None:
    scanned = both.ours.to_table(["y"], filter=filter, use_scalar_index=False)
    assert both.ours.to_table(["y"], filter=filter) == scanned
    assert both.ours.count_rows(filter) == scanned.num_rows
    assert both.theirs.to_table(["y"], filter=filter)["y"].to_pylist() == scanned["y"].to_pylist()


@pytest.mark.parametrize(
    ("filter", "query"),
    [
        ("i8 < 300", "NOT([i8 IS NULL]@i8_idx(BTree))"),
        ("i8 < 3.5", "[i8 <= 3]@i8_idx(BTree)"),
        ("i8 = 3.5", None),
        ("id = 5.0", "[id = 5]@id_idx(BTree)"),
        ("ts > '2020-01-02'", "[ts > 1577923200000000]@ts_idx(BTree)"),
        ("dec = 1.5", "[dec = Some(150),10,2]@dec_idx(BTree)"),
        ("fsb > x'31'", None),  # not a value of the type
    ],
)
def test_constants_have_the_type_of_the_column(both: Both, filter: str, query: str | None) -> None:
    """pylance refuses most of these filters."""
    assert query_of(both.ours, filter) == query
    scanned = both.ours.to_table(["y"], filter=filter, use_scalar_index=False)
    assert both.ours.to_table(["y"], filter=filter) == scanned


def test_bounds_of_zero_include_both_zeros(both: Both) -> None:
    version = both.ours.table_version

    def bounds(filter: str) -> list[str]:
        plan = plan_indexes(version, parse_predicate(filter, evaluation_schema(version.schema)))
        assert plan is not None
        query: Any = next(iter(plan.expression.searches)).query
        return [str(bound.as_py()) for bound in (query.lower, query.upper) if bound is not None]

    assert [bounds(f"f {op} 0.0") for op in (">", ">=", "<", "<=")] == [["0.0"], ["-0.0"], ["-0.0"], ["0.0"]]
    assert bounds("f >= 0 AND f <= 0") == ["-0.0", "0.0"]


TEXTS = st.text(st.sampled_from("ab%_\\.*\n"), max_size=6)


@given(pattern=TEXTS, text=TEXTS)
def test_like_patterns_match_their_prefix_and_regular_expression(pattern: str, text: str) -> None:
    parsed = LikePattern.parse(pattern)
    matches = like(pa.array([text]), pa.scalar(pattern), False)[0].as_py()
    regex = re.compile(parsed.regex(), re.DOTALL)
    assert matches == bool(regex.fullmatch(text))
    assert not matches or text.startswith(parsed.prefix)
    if parsed.is_constant:
        assert matches == (text == parsed.prefix)
    if parsed.is_prefix:
        assert matches == text.startswith(parsed.prefix)
