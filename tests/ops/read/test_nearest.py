"""Exact nearest-neighbour search against pylance and against a plain model; arguments, plans, memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lancetable
from lancetable.errors import (
    ColumnNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    OutOfRangeError,
)
from lancetable.index.distances import Metric
from lancetable.ops.read.nearest import search
from lancetable.scanner import ScannerBuilder

DIM = 8
NUMBERS = {"f16": pa.float16(), "f32": pa.float32(), "f64": pa.float64(), "u8": pa.uint8()}
COLUMNS = ["f16", "f32", "f64", "u8", "nested.f32", "multi", "multi_u8", "tensor"]
VERSIONS = ["legacy", "2.0", "2.1", "2.2"]
FLOAT_METRICS = ["L2", "cosine", "dot"]


def vectors_of(values: Any, kind: pa.DataType, missing: Any = None) -> pa.FixedSizeListArray:
    flat = pa.array(np.ascontiguousarray(values).ravel().astype(kind.to_pandas_dtype()), kind)
    mask = None if missing is None else pa.array(missing)
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1], mask=mask)


def lists_of(rows: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(rows, pa.list_(pa.list_(kind, DIM)))


def rows_of_vectors(count: int, seed: int, *, integers: bool, nulls: bool) -> pa.Table:
    """Return a table of vectors of all kinds, with equal vectors. Distances of small integers are exact in float32."""
    rng = np.random.default_rng(seed)
    floats = rng.integers(-4, 5, (count, DIM)).astype(float) if integers else rng.normal(size=(count, DIM))
    floats[rng.random(count) < 0.2] = floats[0]
    bits = rng.integers(0, 4 if integers else 256, (count, DIM))
    missing = rng.random(count) < 0.2 if nulls else np.zeros(count, np.bool_)
    columns: dict[str, pa.Array] = {
        "id": pa.array(np.arange(count) + 1000 * seed),
        "s": pa.array(rng.choice(["a", "b"], count)),
    }
    for name, kind in NUMBERS.items():
        columns[name] = vectors_of(bits if name == "u8" else floats, kind, missing if nulls else None)
    columns["nested"] = pa.StructArray.from_arrays([columns["f32"]], ["f32"])
    lengths = rng.integers(0 if nulls else 1, 4, count)
    for name, values, kind in (("multi", floats, pa.float32()), ("multi_u8", bits, pa.uint8())):
        rows = [values[(row + np.arange(length)) % count].tolist() for row, length in enumerate(lengths)]
        columns[name] = lists_of([None if gone else row for gone, row in zip(missing, rows)], kind)
    tensors = pa.fixed_shape_tensor(pa.float32(), [2, DIM // 2])
    columns["tensor"] = pa.ExtensionArray.from_storage(tensors, columns["f32"])
    return pa.table(columns)


def write_vectors(path: Path, *, integers: bool, version: str = "2.2", stable: bool = False) -> str:
    """Write a table of several fragments with deletions and, with stable row ids, updated rows."""
    uri = str(path)
    options: dict[str, Any] = {"data_storage_version": version, "max_rows_per_file": 70}
    nulls = version != "legacy"
    left_out = ["multi", "multi_u8", "nested", "tensor"] if version == "legacy" else []
    first, second = (
        rows_of_vectors(count, seed, integers=integers, nulls=nulls).drop_columns(left_out)
        for count, seed in ((150, 1), (60, 2))
    )
    dataset = lance.write_dataset(first, uri, enable_stable_row_ids=stable, **options)
    if stable:
        dataset.update({"id": "id + 5000"}, where="id % 9 = 4")
    dataset.delete("id % 11 = 3")
    lance.write_dataset(second, uri, mode="append", **options).delete("id >= 2000 and id < 2010")
    return uri


@pytest.fixture(scope="module", params=[*[(version, False) for version in VERSIONS], ("2.1", True)], ids=str)
def exact(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    version, stable = request.param
    return write_vectors(tmp_path_factory.mktemp("exact") / "t", integers=True, version=version, stable=stable)


@pytest.fixture(scope="module")
def inexact(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_vectors(tmp_path_factory.mktemp("inexact") / "t", integers=False)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> lancetable.LanceDataset:
    return lancetable.dataset(write_vectors(tmp_path_factory.mktemp("ds") / "t", integers=True))


def query_for(column: str, seed: int = 0, count: int | None = None) -> Any:
    rng = np.random.default_rng(seed)
    shape = DIM if count is None else (count, DIM)
    return rng.integers(0, 4, shape) if column.endswith("u8") else rng.integers(-4, 5, shape).astype(np.float32)


def both(uri: str, **options: Any) -> tuple[pa.Table, pa.Table]:
    """Return the result of pylance and ours. `fragments` are ids."""
    found = []
    for library in (lance, lancetable):
        dataset = library.dataset(uri)
        chosen = dict(options)
        if "fragments" in options:
            chosen["fragments"] = [dataset.get_fragment(each) for each in options["fragments"]]
        found.append(dataset.scanner(**chosen).to_table())
    return found[0], found[1]


def assert_equal(found: pa.Table, expected: pa.Table) -> None:
    assert found.schema.equals(expected.schema, check_metadata=False)
    assert found.to_pydict() == expected.to_pydict()


def assert_close(found: pa.Table, expected: pa.Table) -> None:
    """Check that tables are equal up to the rounding of distances in pylance."""
    assert found.schema.equals(expected.schema, check_metadata=False)
    ours, theirs = (table.column("_distance").to_numpy() for table in (found, expected))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-6)
    for row, (left, right) in enumerate(zip(*(table.column("id").to_pylist() for table in (found, expected)))):
        others = np.delete(theirs, row)
        # Equal vectors have equal distances in both libraries. Other rows may be swapped if they are very close.
        assert left == right or np.isclose(others, theirs[row], rtol=1e-5, atol=2e-6).any()


def available(uri: str) -> list[str]:
    schema = lance.dataset(uri).schema
    return [column for column in COLUMNS if column.partition(".")[0] in schema.names]


# --- against pylance --------------------------------------------------------------------------------------------------

OPTIONS: list[dict[str, Any]] = [
    {},
    {"filter": "s = 'a'"},
    {"filter": "s = 'a'", "prefilter": True},
    {"filter": "id < 0", "prefilter": True},
    {"filter": "_distance < 60 and id % 2 = 0"},
    {"filter": "false"},
    {"filter": "f32 is not null", "prefilter": True},
    {"fragments": [1, 2], "prefilter": True},
    {"fragments": [2], "prefilter": True, "filter": "_rowid % 3 = 0"},
    {"limit": 4, "offset": 3, "filter": "s = 'b'"},
    {"with_row_id": True, "with_row_address": True},
    {"columns": ["_rowid", "_distance", "id"]},
    {"columns": {"twice": "_distance * 2", "d": "_distance", "id": "id"}},
    {"columns": [], "disable_scoring_autoprojection": True, "with_row_id": True},
    {"order_by": ["id"], "limit": 5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_exact_distances_give_the_rows_of_pylance_in_its_order(exact: str, options: dict[str, Any]) -> None:
    for column in available(exact):
        for metric in ["hamming"] if column.endswith("u8") else ["L2", "dot"]:
            for k in (3, 500):
                nearest = {"column": column, "q": query_for(column), "k": k, "metric": metric}
                expected, found = both(exact, **{"columns": ["id"], **options}, nearest=nearest)
                assert_equal(found, expected)


@pytest.mark.parametrize("metric", FLOAT_METRICS)
def test_rounded_distances_are_close_to_those_of_pylance(inexact: str, metric: str) -> None:
    for column in available(inexact):
        if column.endswith("u8"):
            continue
        for options in ({}, {"filter": "s = 'a'", "prefilter": True}, {"filter": "s = 'a'"}):
            query = np.random.default_rng(5).normal(size=DIM)
            nearest = {"column": column, "q": query, "k": 25, "metric": metric}
            expected, found = both(inexact, columns=["id"], nearest=nearest, **options)
            assert_close(found, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"filter": "s = 'a'", "prefilter": True},
        {"filter": "query_index = 1 and _distance < 90"},
        {"limit": 9, "offset": 4},
        {"with_row_id": True, "disable_scoring_autoprojection": True},
        {"columns": ["id", "query_index"]},
        {"columns": []},
        {"order_by": ["id"], "columns": ["id", "f32"]},
        {"fragments": [0], "prefilter": True},
    ],
    ids=str,
)
def test_a_batch_gives_the_rows_of_pylance(exact: str, options: dict[str, Any]) -> None:
    for column in ("f32", "f64", "u8"):
        for count in (1, 3):
            nearest = {"column": column, "q": query_for(column, 3, count), "k": 7}
            expected, found = both(exact, **{"columns": ["id"], **options}, nearest=nearest)
            if "order_by" in options:  # the order of equal keys is not defined
                keys = [("id", "ascending"), ("query_index", "ascending")]
                expected, found = expected.sort_by(keys), found.sort_by(keys)
            assert_equal(found, expected)


@pytest.mark.parametrize("column", ["multi", "multi_u8"])
def test_several_vectors_are_one_query_for_multivectors(exact: str, column: str) -> None:
    if column not in available(exact):
        pytest.skip("0.1 has no multivectors")
    for metric in ["hamming"] if column == "multi_u8" else ["L2", "dot"]:
        nearest = {"column": column, "q": query_for(column, 4, 3), "k": 20, "metric": metric}
        expected, found = both(exact, columns=["id"], nearest=nearest)
        assert found.column_names == ["id", "_distance"]
        assert_equal(found, expected)


@pytest.mark.parametrize(
    "limits", [(None, None), (0.0, 60.0), (40, None), (None, 75.0), (61.0, 61.0), (80.0, 20.0), (float("nan"), 1.0)]
)
def test_a_distance_range_is_that_of_pylance(exact: str, limits: tuple[float | None, float | None]) -> None:
    for k in (3, 200):
        for query in (query_for("f32"), query_for("f32", 1, 3)):
            if query.ndim == 2 and limits[0] != limits[0]:
                continue  # pylance ignores NaN for batches only
            nearest = {"column": "f32", "q": query, "k": k, "distance_range": limits}
            expected, found = both(exact, columns=["id"], nearest=nearest)
            assert_equal(found, expected)


def test_special_values_are_treated_as_by_pylance(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    rows = [[1, 2], None, [nan, 0], [nan, nan], [inf, 0], [-inf, 0], [0, 0], [-0.0, 0], [1, None], [1e18, 1e18], [1, 2]]
    columns = {name: pa.array(rows, pa.list_(NUMBERS[name], 2)) for name in ("f32", "f64")}
    uri = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": range(len(rows)), **columns}), uri)
    for column in columns:
        for metric in FLOAT_METRICS:
            for query in ([1.0, 2.0], [inf, 1.0], [nan, 1.0], [0.0, 0.0]):
                nearest = {"column": column, "q": query, "k": 20, "metric": metric}
                expected, found = both(uri, columns=["id"], nearest=nearest)
                assert found.column("id").to_pylist() == expected.column("id").to_pylist()
                np.testing.assert_allclose(found["_distance"], expected["_distance"], rtol=1e-6, atol=1e-6)


def test_a_table_without_rows_has_no_nearest_rows(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    dataset = lance.write_dataset(rows_of_vectors(5, 1, integers=True, nulls=False), uri)
    dataset.delete("true")
    for query in (query_for("f32"), query_for("f32", 1, 2)):
        expected, found = both(uri, nearest={"column": "f32", "q": query})
        assert_equal(found, expected)
        assert not found.num_rows


def test_the_number_of_rows_is_by_default_the_limit_or_ten(exact: str) -> None:
    for options, count in (({}, 10), ({"limit": 12}, 12), ({"limit": 12, "offset": 3}, 9), ({"offset": 4}, 6)):
        expected, found = both(exact, columns=["id"], nearest={"column": "f32", "q": query_for("f32")}, **options)
        assert_equal(found, expected)
        assert found.num_rows == count


def test_columns_with_the_names_of_a_search_are_replaced(tmp_path: Path) -> None:
    uri = str(tmp_path / "t")
    rows = rows_of_vectors(9, 1, integers=True, nulls=False).select(["id", "f32"])
    own = rows.append_column("_distance", pa.array(range(9), pa.float32()))
    own = own.append_column("query_index", pa.array(range(9), pa.int32()))
    lance.write_dataset(own, uri)
    for options in ({}, {"columns": ["query_index"]}, {"filter": "_distance > 20", "columns": ["id"]}):
        expected, found = both(uri, nearest={"column": "f32", "q": query_for("f32")}, **options)
        assert_equal(found, expected)
    for library in (lance, lancetable):
        with pytest.raises(ValueError, match="cannot be used on datasets with column 'query_index'"):
            library.dataset(uri).to_table(nearest={"column": "f32", "q": query_for("f32", 1, 2)})


# --- against a model --------------------------------------------------------------------------------------------------


def model_distance(metric: str, vector: np.ndarray[Any, Any], query: np.ndarray[Any, Any]) -> Any:
    with np.errstate(all="ignore"):
        if metric == "L2":
            return np.float32(((vector - query) ** 2).sum())
        if metric == "dot":
            return np.float32(1 - (vector * query).sum())
        lengths = np.sqrt((vector**2).sum()) * np.sqrt((query**2).sum())
        return np.float32(1 - (vector * query).sum() / lengths) if lengths else np.float32(np.nan)


def model(rows: list[Any], queries: list[Any], metric: str, k: int, limits: Any, wanted: Any) -> list[Any]:
    """Return (query, row, distance) by definition; a row is a list of vectors, or None."""
    lower, upper = limits
    found = []
    for number, vectors in enumerate(queries):
        scored = []
        for row, stored in enumerate(rows):
            if stored is None or not wanted(row):
                continue
            pairs = [[model_distance(metric, vector, query) for vector in stored] for query in vectors]
            best = [min((each for each in column if each == each), default=np.nan) for column in pairs]
            distance = np.float32(sum(best))
            if distance == distance and (lower is None or distance >= lower) and (upper is None or distance < upper):
                scored.append((distance, row))
        found += [(number, row, float(distance)) for distance, row in sorted(scored)[:k]]
    return found


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    number = st.integers(-3, 3).map(float) | st.sampled_from([0.5, float("nan"), float("inf")])
    vector = st.lists(number, min_size=2, max_size=2)
    multi = draw(st.booleans())
    row = st.lists(vector, max_size=3) if multi else vector
    bound = st.none() | st.integers(-5, 9).map(float)
    return {
        "rows": draw(st.lists(st.none() | row, max_size=25)),
        "multi": multi,
        "queries": draw(st.lists(vector, min_size=1, max_size=3)),
        "metric": draw(st.sampled_from(["L2", "dot"])),
        "kind": draw(st.sampled_from(["f16", "f32", "f64"])),
        "k": draw(st.integers(1, 9)),
        "limits": (draw(bound), draw(bound)),
        "rows_per_file": draw(st.integers(1, 12)),
        "modulus": draw(st.integers(1, 3)),
        "prefilter": draw(st.booleans()),
        "limit": draw(st.none() | st.integers(0, 6)),
        "offset": draw(st.integers(0, 3)),
        "deleted": draw(st.integers(0, 4)),
    }


@given(case=searches())
def test_any_search_equals_the_model(tmp_path_factory: pytest.TempPathFactory, case: dict[str, Any]) -> None:
    kind = pa.list_(NUMBERS[case["kind"]], 2)
    values = pa.array(case["rows"], pa.list_(kind) if case["multi"] else kind)
    uri = str(tmp_path_factory.mktemp("model") / "t")
    count = len(case["rows"])
    ours = lancetable.write_dataset(
        pa.table({"id": pa.array(range(count), pa.int64()), "v": values}), uri, max_rows_per_file=case["rows_per_file"]
    )
    if count:
        ours.delete(f"id % 5 = {case['deleted']}")
    stored = [None if row is None else np.array(row if case["multi"] else [row]).reshape(-1, 2) for row in case["rows"]]
    queries = [np.array(query) for query in case["queries"]]
    modulus = case["modulus"]

    def live(row: int) -> bool:
        return row % 5 != case["deleted"]

    def matches(row: int) -> bool:
        return row % modulus == 0

    def wanted(row: int) -> bool:
        return live(row) and (not case["prefilter"] or matches(row))

    groups = [queries] if case["multi"] else [[query] for query in queries]
    expected = model(stored, groups, case["metric"], case["k"], case["limits"], wanted)
    expected = [row for row in expected if matches(row[1])][case["offset"] :]
    expected = expected[: case["limit"]] if case["limit"] is not None else expected
    nearest = {"column": "v", "q": case["queries"], "k": case["k"], "metric": case["metric"]}
    options = {name: case[name] for name in ("prefilter", "limit", "offset")}
    scanner = ours.scanner(
        columns=["id"], filter=f"id % {modulus} = 0", nearest={**nearest, "distance_range": case["limits"]}, **options
    )
    found = scanner.to_table().to_pydict()
    numbers = [0] * len(found["id"]) if case["multi"] else found["query_index"]
    assert list(zip(numbers, found["id"], found["_distance"])) == expected
    assert scanner.count_rows() == len(expected)


def test_close_vectors_far_from_the_origin_keep_their_order(tmp_path: Path) -> None:
    # The differences are below the resolution of products in float32.
    rng = np.random.default_rng(3)
    vectors = (1000 + rng.normal(size=(3000, 64)) * 1e-3).astype(np.float32)
    query = vectors[17]
    ours = lancetable.write_dataset(
        pa.table({"id": range(3000), "v": vectors_of(vectors, pa.float32())}), tmp_path / "t"
    )
    found = ours.to_table(columns=["id"], nearest={"column": "v", "q": query, "k": 50})
    distances = ((vectors.astype(float) - query.astype(float)) ** 2).sum(axis=1).astype(np.float32)
    assert found["id"].to_pylist() == np.lexsort((np.arange(3000), distances))[:50].tolist()
    assert found["_distance"][0].as_py() == 0.0


@pytest.mark.parametrize("order", [1, -1])
def test_many_groups_and_threads_find_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    monkeypatch.setattr(search, "_PARALLEL_BYTES", 0)
    monkeypatch.setattr(search, "_MAX_BOUNDS", 700)
    rng = np.random.default_rng(4)
    vectors = rng.normal(size=(40_000, 16)).astype(np.float32)
    queries = rng.normal(size=(3, 16)).astype(np.float32)
    # Far rows first, so that every group has nearer rows than the groups before.
    vectors = vectors[np.argsort(((vectors - queries[0]) ** 2).sum(axis=1))[::order]]
    table = pa.table({"id": range(40_000), "v": vectors_of(vectors, pa.float32())})
    ours = lancetable.write_dataset(table, tmp_path / "t", max_rows_per_file=3001)
    found = ours.to_table(columns=["id"], nearest={"column": "v", "q": queries, "k": 300})
    for number, query in enumerate(queries):
        distances = ((vectors.astype(float) - query.astype(float)) ** 2).sum(axis=1).astype(np.float32)
        rows = found.filter(pc.equal(found["query_index"], number))
        assert rows["id"].to_pylist() == np.lexsort((np.arange(40_000), distances))[:300].tolist()
        assert rows["_distance"].to_pylist() == np.sort(distances)[:300].tolist()


# --- query vectors ----------------------------------------------------------------------------------------------------


def test_query_vectors_have_many_forms(ds: lancetable.LanceDataset) -> None:
    vector = query_for("f32")
    expected = ds.to_table(columns=["id"], nearest={"column": "f32", "q": vector.tolist()})
    scalar = pa.array([vector.tolist()], pa.list_(pa.float32(), DIM))[0]
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.float32(), [DIM]), pa.array([vector.tolist()], pa.list_(pa.float32(), DIM))
    )
    forms = (
        *(vector, vector.astype(np.float64), vector.astype(np.int32), tuple(vector), iter(vector.tolist())),
        *(pa.array(vector), pa.array(vector, pa.float64()), pa.array(vector.astype(np.int8)), scalar, tensors[0]),
        pa.chunked_array([pa.array(vector[:3]), pa.array(vector[3:])]),
    )
    for form in forms:
        assert ds.to_table(columns=["id"], nearest={"column": "f32", "q": form}) == expected
    batch = ds.to_table(columns=["id"], nearest={"column": "f32", "q": [vector, vector]})
    assert ds.to_table(columns=["id"], nearest={"column": "f32", "q": pa.array([vector, vector])}) == batch
    assert batch["id"].to_pylist() == 2 * expected["id"].to_pylist()


@pytest.mark.parametrize(
    ("q", "error", "message"),
    [
        ([1.0] * 3, InvalidInputError, "does not match index column size 8"),
        ([1.0] * 16, InvalidInputError, "does not match index column size 8"),
        ([[1.0] * 8, [1.0] * 7], InvalidInputError, "All query vectors must have the same length"),
        ([[[1.0] * 8]], InvalidInputError, "3 dimensions"),
        ([], InvalidInputError, "non-zero length"),
        (pa.array([], pa.list_(pa.float32(), 8)), InvalidInputError, "non-zero length"),
        (pa.array([1.0] * 7 + [None]), InvalidInputError, "must not contain nulls"),
        (["a"] * 8, TypeError, "numbers"),
        ([object()] * 8, InvalidInputError, "not a number"),
        ([1j] * 8, TypeError, "numbers"),
        (None, TypeError, "numbers"),
        (3.0, TypeError, "numbers"),
        ("text", TypeError, "numbers"),
        ({"a": 1}, TypeError, "numbers"),
    ],
)
def test_unusable_query_vectors_are_refused(ds: lancetable.LanceDataset, q: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        ds.scanner(nearest={"column": "f32", "q": q})


@pytest.mark.parametrize("q", [[256] * 8, [-1] * 8, [0.5] * 8, [float("nan")] * 8])
def test_queries_of_bits_must_be_bytes(ds: lancetable.LanceDataset, q: Any) -> None:
    with pytest.raises(InvalidInputError, match="integers from 0 to 255"):
        ds.scanner(nearest={"column": "u8", "q": q})


# --- arguments --------------------------------------------------------------------------------------------------------

TUNING = {
    "nprobes": 3,
    "minimum_nprobes": 1,
    "maximum_nprobes": 9,
    "refine_factor": 2,
    "ef": 40,
    "query_parallelism": -1,
    "approx_mode": "fast",
    "search_effort": 0.25,
    "use_index": False,
}


def test_options_of_vector_indexes_have_no_effect(exact: str) -> None:
    nearest = {"column": "f32", "q": query_for("f32"), "k": 5}
    expected, found = both(exact, columns=["id"], nearest={**nearest, **TUNING})
    assert_equal(found, expected)
    assert_equal(found, both(exact, columns=["id"], nearest=nearest)[0])


@pytest.mark.parametrize(
    "wrong",
    [
        *({"k": 0}, {"k": -3}, {"k": 2.5}, {"k": "3"}, {"k": 2**70}),
        *({"metric": "l1"}, {"metric": ""}, {"metric": "hamming"}),
        *({"nprobes": 0}, {"nprobes": 1.5}, {"minimum_nprobes": -1}, {"maximum_nprobes": -1}, {"maximum_nprobes": 0}),
        *({"minimum_nprobes": 3, "maximum_nprobes": 2}, {"refine_factor": 0}, {"ef": 0}, {"query_parallelism": -2}),
        *({"query_parallelism": 1.5}, {"approx_mode": "slow"}, {"search_effort": 1.5}, {"search_effort": float("nan")}),
        *({"use_index": None}, {"use_index": "no"}, {"distance_range": (1.0,)}, {"distance_range": "ab"}),
        *({"distance_range": ("a", "b")}, {"column": "missing"}, {"column": "id"}, {"column": "nested"}, {"other": 1}),
        *({"column": "F32"}, {"column": "words"}, {"column": "ints"}),
    ],
    ids=str,
)
def test_invalid_arguments_raise_the_errors_of_pylance(tmp_path: Path, wrong: dict[str, Any]) -> None:
    rows = rows_of_vectors(4, 1, integers=True, nulls=False)
    rows = rows.append_column("words", pa.array([["a"]] * 4)).append_column(
        "ints", vectors_of(np.ones((4, 8)), pa.int8())
    )
    lance.write_dataset(rows, str(tmp_path / "t"))
    raised = []
    for library in (lance, lancetable):
        dataset = library.dataset(str(tmp_path / "t"))
        with pytest.raises((ValueError, TypeError, OverflowError)) as caught:
            dataset.scanner(nearest={"column": "f32", "q": query_for("f32"), **wrong}).to_table()
        raised.append(caught.value)
    bases = [base for base in (TypeError, ValueError, OverflowError) if isinstance(raised[0], base)]
    assert all(isinstance(raised[1], base) for base in bases)


def test_other_arguments_are_checked(ds: lancetable.LanceDataset) -> None:
    nearest = {"column": "f32", "q": query_for("f32")}
    fragment = ds.get_fragment(0)
    with pytest.raises(InvalidInputError, match="This operation is not supported for fragment scan"):
        ds.scanner(nearest=nearest, fragments=[fragment]).to_table()
    with pytest.raises(InvalidInputError, match="Cannot include deleted rows"):
        ds.scanner(nearest=nearest, include_deleted_rows=True, with_row_id=True).to_table()
    with pytest.raises(ColumnNotFoundError, match="_distance"):
        ds.scanner(nearest=nearest, filter="_distance < 3", prefilter=True).to_table()
    with pytest.raises(ColumnNotFoundError, match="query_index"):
        ds.scanner(nearest=nearest, columns=["query_index"]).to_table()
    with pytest.raises(InvalidInputError, match="Duplicate"):
        ds.scanner(nearest=nearest, columns=["_distance", "_distance"]).to_table()
    with pytest.raises(TypeError, match="nearest must be a dict"):
        ds.scanner(nearest="f32")  # type: ignore[arg-type]
    with pytest.raises(InvalidOperationError, match="scan_batches"):
        next(ds.scanner(nearest=nearest).scan_batches())
    with pytest.raises(OutOfRangeError):
        ds.scanner(nearest={**nearest, "k": 2**63})


# --- reading the result -----------------------------------------------------------------------------------------------


def test_all_methods_read_the_same_rows(ds: lancetable.LanceDataset) -> None:
    nearest = {"column": "f32", "q": query_for("f32"), "k": 20}
    table = ds.to_table(nearest=nearest)
    scanner = ds.scanner(nearest=nearest)
    assert scanner.projected_schema == table.schema
    assert scanner.to_reader().read_all() == table
    assert scanner.count_rows() == ds.count_rows(nearest=nearest) == 20
    assert scanner.head(3) == table.slice(0, 3)
    assert ds.to_pandas(columns=["id"], nearest=nearest).equals(table.select(["id", "_distance"]).to_pandas())
    assert pa.Table.from_batches(ds.to_batches(nearest=nearest)) == table
    built = ScannerBuilder(ds).nearest("f32", query_for("f32"), 20).prefilter(False).to_scanner()
    assert built.to_table() == table
    default = lancetable.dataset(ds.uri, default_scan_options={"nearest": nearest})
    assert default.to_table() == table
    reports: list[Any] = []
    assert ds.scanner(nearest=nearest, progress=reports.append).to_table() == table
    assert reports


@pytest.mark.parametrize("filter", [None, "id % 2 = 0"])
def test_batches_have_the_requested_size(ds: lancetable.LanceDataset, filter: str | None) -> None:
    options: dict[str, Any] = {"columns": ["id"], "nearest": {"column": "f32", "q": query_for("f32"), "k": 60}}
    table = ds.to_table(filter=filter, **options)
    for strict in (False, True):
        batches = list(ds.to_batches(filter=filter, batch_size=7, strict_batch_size=strict, **options))
        assert all(batch.num_rows == 7 for batch in batches[:-1])
        assert pa.Table.from_batches(batches) == table


def test_head_does_not_change_the_number_of_rows_to_find(ds: lancetable.LanceDataset) -> None:
    scanner = ds.scanner(columns=["id"], nearest={"column": "f32", "q": query_for("f32")}, filter="id % 2 = 0")
    assert scanner.head(3) == scanner.to_table().slice(0, 3)


def test_a_view_is_searched_whether_or_not_the_filter_is_applied_before(ds: lancetable.LanceDataset) -> None:
    view = ds.filter(pc.field("id") % 2 == 0) if hasattr(pc.Expression, "__mod__") else ds.filter(pc.field("id") < 60)
    nearest = {"column": "f32", "q": query_for("f32"), "k": 15}
    within = ds.to_table(columns=["id"], nearest=nearest, filter="id < 60", prefilter=True)
    assert view.to_table(columns=["id"], nearest=nearest) == within
    found = view.to_table(columns=["id"], nearest=nearest, filter="s = 'a'")
    names = ds.to_table(columns=["id", "s"]).to_pydict()
    matching = {number for number, name in zip(names["id"], names["s"]) if name == "a"}
    assert found["id"].to_pylist() == [number for number in within["id"].to_pylist() if number in matching]
    expected = ds.to_table(columns=["id"], nearest=nearest, filter="s = 'a' and id < 60", prefilter=True)
    assert view.to_table(columns=["id"], nearest=nearest, filter="s = 'a'", prefilter=True) == expected


def test_a_search_reads_only_vectors_and_the_rows_that_it_finds(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns = {"v": vectors_of(rng.normal(size=(4000, 32)), pa.float32()), "wide": pa.array(["x" * 500] * 4000)}
    ours = lancetable.write_dataset(pa.table(columns), tmp_path / "t")
    collected: list[Any] = []
    nearest = {"column": "v", "q": rng.normal(size=32), "k": 3}
    ours.scanner(nearest=nearest, scan_stats_callback=collected.append).to_table()
    assert collected[0].all_counts["rows_scanned"] == 4000
    assert 4000 * 32 * 4 < collected[0].bytes_read < 1_000_000


def test_memory_does_not_depend_on_the_size_of_the_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    kinds = {"v": pa.float32(), "half": pa.float16()}

    def batches() -> Any:
        for start in range(0, 40_000, 2000):
            vectors = rng.normal(size=(2000, 512))
            columns = {name: vectors_of(vectors, kind) for name, kind in kinds.items()}
            yield pa.record_batch({"id": pa.array(range(start, start + 2000)), **columns})

    first = next(batches())
    ours = lancetable.write_dataset(pa.RecordBatchReader.from_batches(first.schema, batches()), tmp_path / "t")
    queries = rng.normal(size=(40, 512))
    cases: list[tuple[Any, int, dict[str, Any]]] = [
        (queries[0], 10, {}),
        (queries, 10, {}),
        (queries[:10], 4000, {}),
        (queries[0], 10, {"filter": "id % 2 = 0", "prefilter": True}),
    ]
    for column in kinds:
        for query, k, options in cases:
            pool, previous = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
            pa.set_memory_pool(pool)
            tracemalloc.start()
            try:
                ours.to_table(columns=["id"], nearest={"column": column, "q": query, "k": k}, **options)
                peak = tracemalloc.get_traced_memory()[1] + pool.max_memory()
            finally:
                tracemalloc.stop()
                pa.set_memory_pool(previous)
            assert peak < 50 * 1024 * 1024  # of 80 and 40 MB of vectors


# --- plans and vector indexes -----------------------------------------------------------------------------------------


def test_the_plan_has_the_nodes_of_pylance(ds: lancetable.LanceDataset) -> None:
    nearest = {"column": "f32", "q": query_for("f32"), "k": 5, "distance_range": (0.5, 9)}
    plan = ds.scanner(columns=["id"], nearest=nearest, filter="id > 3", prefilter=True, limit=2).explain_plan()
    nodes = [
        "Project: id, _distance",
        "Take: columns=[id]",
        "Limit: skip=0, fetch=2",
        "FilterExec: _distance IS NOT NULL",
        "SortExec: TopK(fetch=5), expr=[_distance ASC NULLS LAST, _rowid ASC NULLS LAST]",
        "FilterExec: _distance >= 0.5 AND _distance < 9",
        "KNNVectorDistance: metric=l2",
        "LateRead: columns=[f32]",
        "LanceRead: ",
    ]
    lines = plan.splitlines()
    assert "full_filter=id > 3" in lines[len(nodes) - 1]
    for depth, node in enumerate(nodes):
        assert lines[depth].startswith("  " * depth + node)
    postfilter = ds.scanner(columns=["id"], nearest=nearest, filter="_distance > 3", order_by=["id"]).explain_plan()
    steps = [line.strip().partition(":")[0] for line in postfilter.splitlines()]
    assert steps == [
        *("Project", "Take", "Sort", "Filter", "FilterExec", "SortExec", "FilterExec"),
        *("KNNVectorDistance", "LanceRead"),
    ]
    batch = ds.scanner(nearest={"column": "f32", "q": query_for("f32", 1, 2), "metric": "dot"}).explain_plan()
    assert "KNNVectorDistance: queries=2, k=10, metric=dot\n" in batch
    measured = ds.scanner(nearest=nearest).analyze_plan()
    assert measured.startswith("Analyze: elapsed=")
    assert "rows_scanned=" in measured


INDEXED_ROWS = 300


@pytest.fixture(scope="module", params=["l2", "cosine", "dot"])
def indexed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a table with a vector index that covers the first of two fragments."""
    uri = str(tmp_path_factory.mktemp("indexed") / "t")
    rng = np.random.default_rng(3)

    def rows(start: int) -> pa.Table:
        vectors = vectors_of(rng.normal(size=(INDEXED_ROWS, DIM)), pa.float32())
        return pa.table({"id": range(start, start + INDEXED_ROWS), "v": vectors})

    lance.write_dataset(rows(0), uri).create_index("v", "IVF_FLAT", num_partitions=1, metric=request.param)
    lance.write_dataset(rows(INDEXED_ROWS), uri, mode="append")
    return uri


@pytest.mark.parametrize("metric", [None, "L2", "cosine", "dot"])
@pytest.mark.parametrize("use_index", [True, False])
@pytest.mark.parametrize("fast_search", [True, False])
@pytest.mark.parametrize("fragments", [None, [0], [1]])
def test_an_index_determines_metric_and_fragments_as_in_pylance(
    indexed: str, metric: str | None, use_index: bool, fast_search: bool, fragments: list[int] | None
) -> None:
    options: dict[str, Any] = {} if fragments is None else {"fragments": fragments, "prefilter": True}
    for query in (np.linspace(-1, 1, DIM), np.eye(2, DIM)):
        nearest = {"column": "v", "q": query, "k": 7, "metric": metric, "use_index": use_index}
        expected, found = both(indexed, columns=["id"], nearest=nearest, fast_search=fast_search, **options)
        assert_close(found, expected)


@pytest.mark.parametrize("fast_search", [True, False])
@pytest.mark.parametrize("prefilter", [True, False])
def test_a_fast_search_leaves_out_rows_without_an_entry_in_the_indexes_of_its_filter(
    tmp_path: Path, fast_search: bool, prefilter: bool
) -> None:
    uri, rng = str(tmp_path / "t"), np.random.default_rng(5)

    def rows(start: int) -> pa.Table:
        vectors = vectors_of(rng.normal(size=(INDEXED_ROWS, DIM)), pa.float32())
        ids = np.arange(start, start + INDEXED_ROWS)
        return pa.table({"id": ids, "key": ids % 5, "v": vectors})

    dataset = lance.write_dataset(rows(0), uri)
    dataset.create_scalar_index("key", "BTREE")
    dataset = lance.write_dataset(rows(INDEXED_ROWS), uri, mode="append")
    dataset.create_index("v", "IVF_FLAT", num_partitions=2)
    lance.write_dataset(rows(2 * INDEXED_ROWS), uri, mode="append")
    nearest = {"column": "v", "q": np.ones(DIM), "k": 3 * INDEXED_ROWS, "nprobes": 2}
    options = {"filter": "key = 2", "prefilter": prefilter, "fast_search": fast_search}
    expected, found = both(uri, columns=["id"], nearest=nearest, **options)
    assert_close(found, expected)
    assert len(found) == INDEXED_ROWS // 5 * (3 - fast_search * (1 + prefilter))


def test_the_plan_names_the_index(indexed: str) -> None:
    ours = lancetable.dataset(indexed)
    nearest = {"column": "v", "q": [1] * DIM}
    plan = ours.scanner(nearest=nearest).explain_plan()
    assert "ANNSubIndex: name=v_idx, k=10, deltas=1" in plan
    assert "num_fragments=1," in plan
    fast = ours.scanner(nearest=nearest, fast_search=True).explain_plan()
    assert "ANNSubIndex" in fast
    assert "num_fragments" not in fast
    alone = {**nearest, "use_index": False}
    assert "v_idx" not in ours.scanner(nearest=alone).explain_plan()
    assert "EmptyExec" in ours.scanner(nearest=alone, fast_search=True).explain_plan()


@pytest.fixture(scope="module")
def indexed_ids(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a table whose index of ids covers all fragments except the last one, with deleted rows."""
    uri = str(tmp_path_factory.mktemp("indexed_ids") / "t")
    rows = rows_of_vectors(400, 1, integers=True, nulls=True)
    dataset = lance.write_dataset(rows.slice(0, 330), uri, max_rows_per_file=110)
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id % 11 = 3")
    lance.write_dataset(rows.slice(330), uri, mode="append")
    return uri


@pytest.mark.parametrize("column", ["f32", "multi", "u8"])
@pytest.mark.parametrize("filter", ["id < 1050", "id > 1300", "id IN (1001, 1002, 1399)", "id < 1200 AND s = 'a'"])
def test_a_prefilter_uses_scalar_indexes(indexed_ids: str, column: str, filter: str) -> None:
    for count in (None, 2):
        nearest = {"column": column, "q": query_for(column, 3, count), "k": 9}
        options: dict[str, Any] = {"columns": ["id"], "nearest": nearest, "filter": filter, "prefilter": True}
        expected, found = both(indexed_ids, **options)
        assert_equal(found, expected)
        ours = lancetable.dataset(indexed_ids)
        assert_equal(ours.to_table(**options, use_scalar_index=False), expected)
        statistics: list[Any] = []
        assert ours.count_rows(**options, scan_stats_callback=statistics.append) == len(expected)
        assert statistics[0].indices_loaded == 1
        assert statistics[0].all_counts["rows_scanned"] < 400


def test_the_plan_of_a_prefilter_contains_the_index_query(indexed_ids: str) -> None:
    ours = lancetable.dataset(indexed_ids)
    options: dict[str, Any] = {"nearest": {"column": "f32", "q": query_for("f32")}, "filter": "id < 1050"}
    lines = ours.scanner(**options, prefilter=True).explain_plan().splitlines()
    nodes = [line.strip().partition(":")[0] for line in lines]
    assert nodes[-4:] == ["LanceRead", "ScalarIndexQuery", "UnindexedFragments", "Statistics"]
    depths = [len(line) - len(line.lstrip()) for line in lines]
    assert len({*depths[-3:]}) == 1
    assert depths[-3] == depths[-4] + 2
    assert "ScalarIndexQuery" not in ours.scanner(**options, prefilter=True, use_scalar_index=False).explain_plan()
    assert "ScalarIndexQuery" not in ours.scanner(**options).explain_plan()
    measured = ours.scanner(**options, prefilter=True).analyze_plan()
    assert "output_rows=10" in measured
    assert "indices_loaded=1" in measured


def test_the_default_metric_of_bits_is_hamming(ds: lancetable.LanceDataset) -> None:
    scanner = ds.scanner(nearest={"column": "u8", "q": query_for("u8")})
    assert f"metric={Metric.HAMMING.value}" in scanner.explain_plan()
