"""Nearest-neighbour search in Spark.

    queries ─► task: some queries in the vector index                       ─┐
               task: all queries in some fragments that it does not cover    ├─ Spark: k nearest ─► tasks: columns
               task: ...                                                    ─┘

The tasks of the first step return addresses and distances only. Columns are read for the rows of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the conventional alias
from pyspark.sql.types import FloatType, IntegerType, LongType, StructField, StructType
from pyspark.sql.window import Window

from lancetable.dataset import LanceDataset
from lancetable.errors import InvalidInputError
from lancetable.ops.read.nearest.indexed_search import find_indexed_rows
from lancetable.ops.read.nearest.plan import DISTANCE, QUERY_INDEX, NearestPlan, plan_nearest
from lancetable.ops.read.nearest.query import nearest_query, query_numbers, vector_column
from lancetable.ops.read.nearest.search import FoundRows, search
from lancetable.ops.read.scan_execution import ScanRun
from lancetable.ops.read.scan_plan import ScanOptions
from lancetable.ops.read.splits import plan_splits, scan_options_of
from lancetable.ops.read.take import fetch_addresses
from lancetable.spark.jobs.base import pin_to_json, rows_per_task, schema_to_string, slices_of_task, tasks_of_slices
from lancetable.spark.options import DEFAULT_TASK_BYTES
from lancetable.spark.pinned_version import PinnedVersion
from lancetable.spark.task_runner import Json, init_worker
from lancetable.spark.types import convert_batch
from lancetable.table.row_sizes import memory_per_row
from lancetable.table.version import TableVersion

QUERY_ID, QUERY_VECTOR = "query_id", "vector"
"""Columns of a frame of queries."""

VectorQueries: TypeAlias = "DataFrame | Sequence[Any] | npt.NDArray[Any] | pa.Array"

_MOST_QUERIES, _MOST_QUERY_BYTES = 1 << 16, 64 << 20  # of a search, which are sent to every task
# Each task that searches an index opens it, and evaluates the filter.
_LEAST_QUERIES_OF_TASK, _DEFAULT_TASKS = 64, 8
_BATCH_BYTES = 16 << 20
_MOST_ROWS = 2**31 - 1  # of a limit in Spark
_ROW_ID, _ADDRESS = "_rowid", "_rowaddr"
FOUND = StructType(
    [
        StructField(QUERY_INDEX, IntegerType(), nullable=False),
        StructField(DISTANCE, FloatType(), nullable=False),
        StructField(_ROW_ID, LongType(), nullable=False),
        StructField(_ADDRESS, LongType(), nullable=False),
    ]
)
"""Schema of the rows that tasks find."""


@dataclass(frozen=True)
class VectorSearch:
    """Picklable search of one version.

    `vectors` is one query (dim,), or some (queries, dim). `ids` are the ids of the queries of a frame; None otherwise.
    `tuning` are the arguments of `nearest_query` for vector indexes.
    """

    vectors: npt.NDArray[Any]
    ids: pa.Array | None
    column: str
    k: int
    columns: tuple[str, ...] | None
    filter: str | None
    metric: str | None
    distance_range: tuple[float | None, float | None] | None
    tuning: Mapping[str, Any] = field(default_factory=dict)
    fast_search: bool = False

    def scan_options(self, version: TableVersion) -> ScanOptions:
        """Return the options of a local search. The errors are those of `nearest_query`."""
        vectors = self.vectors
        if not len(vectors):  # the schema of the result does not depend on the queries
            vectors = np.zeros((1, vector_column(version.schema, self.column).dim))
        query = nearest_query(
            version.schema,
            self.column,
            vectors,
            k=self.k,
            metric=self.metric,
            distance_range=self.distance_range,
            **self.tuning,
        )
        return ScanOptions(
            columns=self.columns, filter=self.filter, prefilter=True, nearest=query, fast_search=self.fast_search
        )

    def find(self, pin: PinnedVersion, task: Json, wire: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the nearest rows of a task of `plan_search`, in the schema `FOUND`. Runs in tasks."""
        version = pin.open()
        parts = self._in_index(version, *task["queries"]) if "queries" in task else self._in_slices(version, task)
        for found in parts:
            numbers = found.row_ids.view(np.int64), found.addresses.view(np.int64)
            yield pa.RecordBatch.from_arrays(
                [pa.array(values) for values in (found.queries, found.distances, *numbers)], schema=wire
            )

    def _in_index(self, version: TableVersion, start: int, stop: int) -> Iterator[FoundRows]:
        """Yield the nearest rows that the index contains, for some queries."""
        vectors = self.vectors if self.vectors.ndim == 1 else self.vectors[start:stop]
        plan = plan_nearest(version, replace(self, vectors=vectors).scan_options(version))
        if plan.indexed is not None:
            with ScanRun(version, plan.search) as run:
                found = find_indexed_rows(run, plan, plan.indexed)
            yield found._replace(queries=found.queries + np.int32(start))

    def _in_slices(self, version: TableVersion, task: Json) -> Iterator[FoundRows]:
        """Yield the nearest rows of some slices, for all queries."""
        options = replace(self, tuning={"use_index": False}, fast_search=False).scan_options(version)
        for scan in scan_options_of(slices_of_task(task), options):
            plan = plan_nearest(version, scan)
            with ScanRun(version, plan.search) as run:
                yield search(run, plan)

    def read(self, pin: PinnedVersion, batches: Iterable[pa.RecordBatch], wire: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the result for rows that were found. Runs in tasks."""
        init_worker()
        version = pin.open()
        projection = plan_nearest(version, self.scan_options(version)).result.projection
        for batch in batches:
            if not batch.num_rows:
                continue
            row_bytes = max(1.0, memory_per_row(version, version.manifest.fragments[0], projection.columns))
            step = max(1, int(_BATCH_BYTES / row_bytes))
            for start in range(0, batch.num_rows, step):
                queries, distances, _, addresses = batch.slice(start, step).columns
                computed = {QUERY_INDEX: queries, DISTANCE: distances}
                rows = addresses.to_numpy().view(np.uint64)
                table = fetch_addresses(version, projection, rows, None, computed)
                if self.ids is not None:
                    table = table.set_column(0, QUERY_ID, self.ids.take(queries))
                (result,) = table.combine_chunks().to_batches()
                yield convert_batch(result, wire)


def collect_queries(queries: VectorQueries) -> tuple[npt.NDArray[Any], pa.Array | None]:
    """Return the vectors of the queries, and the ids of those of a frame.

    Raises
    ------
    InvalidInputError
        If a frame lacks a column, or if there are too many queries.
    InvalidInputError, TypeError
        If the queries are not vectors of numbers.
    """
    ids = None
    if isinstance(queries, DataFrame):
        missing = {QUERY_ID, QUERY_VECTOR}.difference(queries.columns)
        if missing:
            raise InvalidInputError(
                f"a frame of queries has the columns {QUERY_ID!r} and {QUERY_VECTOR!r}, but {min(missing)!r} is"
                " missing; rename a column with selectExpr"
            )
        rows = queries.select(QUERY_ID, QUERY_VECTOR).limit(_MOST_QUERIES + 1).toArrow().combine_chunks()
        ids, given = (_array(rows.column(name)) for name in (QUERY_ID, QUERY_VECTOR))
        vectors = query_numbers(given) if len(given) else np.empty((0, 0))
    else:
        vectors = query_numbers(queries)
    if (vectors.ndim == 2 and len(vectors) > _MOST_QUERIES) or vectors.nbytes > _MOST_QUERY_BYTES:
        raise InvalidInputError(
            f"a search has at most {_MOST_QUERIES:,} queries of {_MOST_QUERY_BYTES >> 20} MB, which are sent to every"
            f" task, got {len(vectors):,} of {vectors.nbytes / (1 << 20):.0f} MB; search for them in parts"
        )
    return vectors, ids


def plan_search(dataset: LanceDataset, search: VectorSearch, task_rows: int | None, cores: int | None) -> Json:
    """Return the version, schema and tasks of a search. Runs on the client or on the cluster.

    Tasks are {"queries": [first, end]}, which search the index, and {"slices"} of fragments that it does not cover. The
    metric of the table is the same for all tasks, although an index may cover the fragments of some of them only.

    Raises
    ------
    InvalidInputError
        If a frame of queries searches a column of multivectors, or the result would have two columns of its ids.
    """
    version = dataset.table_version
    plan = plan_nearest(version, search.scan_options(version))
    schema = plan.output_schema
    if search.ids is not None:
        schema = _with_ids(plan, search.ids)
    others = [] if plan.is_empty else version.manifest.fragments.ids()[list(plan.search.fragments)].tolist()
    slices = plan_splits(
        version,
        columns=[search.column],
        task_rows=task_rows or rows_per_task(version, cores),
        task_bytes=DEFAULT_TASK_BYTES,
        fragments=frozenset(others),
        filter=search.filter,
    )
    tasks = [*_tasks_in_index(plan, cores or _DEFAULT_TASKS), *tasks_of_slices(slices)]
    return {
        "pin": pin_to_json(version),
        "schema": schema_to_string(schema),
        "metric": plan.metric.value,
        "is_batch": plan.query.is_batch,
        "tasks": tasks if len(search.vectors) else [],
    }


def _tasks_in_index(plan: NearestPlan, num_tasks: int) -> Iterator[Json]:
    """Yield the tasks that search the index, at most `num_tasks`; one for the vectors of a multivector."""
    if plan.indexed is None:
        return
    count = len(plan.query.vectors)
    step = max(_LEAST_QUERIES_OF_TASK, -(-count // num_tasks)) if plan.query.is_batch else count
    for start in range(0, count, step):
        yield {"slices": [], "queries": [start, min(start + step, count)]}


def _with_ids(plan: NearestPlan, ids: pa.Array) -> pa.Schema:
    if not plan.query.is_batch:
        raise InvalidInputError(
            f"column {plan.column.path!r} has several vectors in each row, and a query for it is a list of vectors;"
            " search for one query at a time"
        )
    if QUERY_ID in plan.output_schema.names:
        raise InvalidInputError(f"the result has a column {QUERY_ID!r} already; pass the other columns of the table")
    return plan.output_schema.set(0, pa.field(QUERY_ID, ids.type))


def nearest_of(found: DataFrame, k: int, *, is_batch: bool) -> DataFrame:
    """Return the k nearest of the rows that tasks have found for each query, in order."""
    order = [DISTANCE, _ROW_ID]
    if not is_batch:
        return found.orderBy(*order).limit(min(k, _MOST_ROWS))
    rank = F.row_number().over(Window.partitionBy(QUERY_INDEX).orderBy(*order))
    ranked = found.withColumn("rank", rank)
    return ranked.where(F.col("rank") <= k).drop("rank").orderBy(QUERY_INDEX, *order)


def _array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else combined.chunk(0)
