"""Methods of `SparkTable` for secondary indexes and nearest-neighbour search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from lancetable.argument_validation import check_count, check_flag, check_names, check_positive
from lancetable.dataset import LanceDataset
from lancetable.index.vector.vector_kind import KIND
from lancetable.indices import IndexConfig, parse_request
from lancetable.spark.jobs.base import pin_of_plan, schema_from_string
from lancetable.spark.jobs.build_index import CreateIndexJob, OptimizeIndicesJob
from lancetable.spark.nearest import FOUND, VectorQueries, VectorSearch, collect_queries, nearest_of, plan_search
from lancetable.spark.sql import check_sql_text
from lancetable.spark.types import spark_schema, wire_schema
from lancetable.vector_index_arguments import is_vector_type, vector_options

if TYPE_CHECKING:
    from lancetable.dataset_indexes import IndexType
    from lancetable.index.kind import IndexKind
    from lancetable.spark.jobs.base import TableJob
    from lancetable.spark.options import SourceOptions
    from lancetable.spark.task_runner import Json


class TableIndexes:
    """Base of `SparkTable` with the methods for secondary indexes and nearest-neighbour search."""

    options: SourceOptions
    cores: Callable[[], int | None]
    _spark: SparkSession
    _call: Callable[..., Any]
    _change: Callable[[TableJob], Json]
    _retried: Callable[..., Any]
    _options_at: Callable[[int | None, str | None, datetime | str | None], SourceOptions]
    scan: Callable[..., DataFrame]

    def create_index(
        self,
        column: str,
        kind: IndexType | IndexConfig | str,
        name: str | None = None,
        *,
        replace: bool = True,
        train: bool = True,
        num_segments: int = 1,
        target_rows_per_task: int | None = None,
        **parameters: Any,
    ) -> None:
        """Build an index on a column in tasks, and commit it once.

        Tasks build parts of the index for groups of fragments, and further tasks merge them. Each task sorts values
        within `LANCETABLE_INDEX_MEMORY_BYTES`, 512 MiB by default, and spills to local files. The index is not visible
        before the commit. If a compaction or a new type of the column rewrites indexed fragments during the build, the
        index is built again on the newest version. Rows that are appended or updated during the build are scanned
        until `optimize_indices` adds them to the index.

        Parameters
        ----------
        column
            Path of the column, dotted for nested fields.
        kind
            The kind of index, as for `LanceDataset.create_scalar_index`: "BTREE", "BITMAP", "LABEL_LIST", "NGRAM",
            "ZONEMAP", "BLOOMFILTER", or an `IndexConfig` with parameters. Or a vector index as for
            `LanceDataset.create_index`: "IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ".
            It is trained on a sample before the tasks, which assign and encode the vectors.
        name
            Name of the index; `{column}_idx` by default, with a number if that name belongs to another index.
        replace
            Replace an index with the same name.
        train
            Index all rows. Otherwise the index is empty, and `optimize_indices` fills it.
        num_segments
            Number of segments of the index. One segment is the fastest to search, but a single task merges it and
            builds its graphs; several are merged in parallel.
        target_rows_per_task
            Number of rows of a part, in whole fragments. By default, a classic session has about one task per core.
        **parameters
            Parameters of the kind; see `IndexConfig` and, for vector indexes, `LanceDataset.create_index`.

        Raises
        ------
        ColumnNotFoundError
            If the column does not exist.
        UnsupportedTypeError, UnsupportedFeatureError
            If the kind of index does not support the type of the column, or is not supported.
        IndexExistsError
            If an index with this name is on another column, or exists although `replace` is False.
        InvalidInputError, TypeError
            If an argument is invalid.
        RetryableCommitConflictError
            If every attempt lost against another commit.

        Examples
        --------
        >>> table.create_index("id", "BTREE")  # doctest: +SKIP
        >>> table.create_index("tags", "LABEL_LIST", name="by_tag")  # doctest: +SKIP
        >>> table.create_index("embedding", "IVF_PQ", num_partitions=256, num_sub_vectors=16)  # doctest: +SKIP
        """
        index_kind: IndexKind
        if isinstance(kind, str) and is_vector_type(kind):
            index_kind, options = KIND, vector_options(kind, parameters)
        else:
            index_kind, options = parse_request(kind, parameters)
        check_flag("replace", replace)
        check_flag("train", train)
        self._change(
            CreateIndexJob(
                self.options,
                None,
                *self._task_size(target_rows_per_task),
                column,
                index_kind.name,
                options,
                name,
                replace,
                train,
                check_positive("num_segments", num_segments),
            )
        )

    def optimize_indices(
        self,
        *,
        index_names: Sequence[str] | None = None,
        num_indices_to_merge: int | None = None,
        retrain: bool = False,
        target_rows_per_task: int | None = None,
    ) -> None:
        """Add rows that indexes do not cover, in tasks, and commit all indexes at once.

        Without work to do, no version is created. Indexes of kinds that this library does not know are left unchanged,
        with a warning in the log. The new rows of a vector index get a segment of their own; if a partition becomes too
        large, the index is built from the data with divided partitions.

        Parameters
        ----------
        index_names
            Names of the indexes; all by default. Names of indexes that do not exist are ignored.
        num_indices_to_merge
            Number of segments, newest first, that are merged with the new rows into one segment. 0 writes the new rows
            to a segment of their own. By default, the newest segment is extended, except for vector indexes.
        retrain
            Build one segment from the data, for all rows. Vector indexes get new partitions.
        target_rows_per_task
            As for `create_index`.

        Raises
        ------
        UnsupportedFeatureError
            If `index_names` contains an index of an unknown kind.
        InvalidInputError, TypeError
            If an argument is invalid.
        RetryableCommitConflictError
            If every attempt lost against another commit.

        Examples
        --------
        >>> table.insert(frame)  # doctest: +SKIP
        >>> table.optimize_indices()  # doctest: +SKIP
        """
        names = None if index_names is None else check_names("index_names", index_names)
        count = None if num_indices_to_merge is None else check_count("num_indices_to_merge", num_indices_to_merge)
        check_flag("retrain", retrain)
        size = self._task_size(target_rows_per_task)
        self._change(OptimizeIndicesJob(self.options, None, *size, names, count, retrain))

    def nearest(
        self,
        queries: VectorQueries,
        column: str,
        k: int = 10,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        metric: str | None = None,
        distance_range: tuple[float | None, float | None] | None = None,
        nprobes: int | None = None,
        minimum_nprobes: int | None = None,
        maximum_nprobes: int | None = None,
        refine_factor: int | None = None,
        ef: int | None = None,
        use_index: bool = True,
        fast_search: bool = False,
        version: int | None = None,
        tag: str | None = None,
        as_of: datetime | str | None = None,
        target_rows_per_task: int | None = None,
    ) -> DataFrame:
        """Return the rows whose vectors are nearest to each query, in tasks.

        Tasks search the vector index of the column, if there is one, for some of the queries each. Further tasks search
        the rows that it does not cover exactly. Without an index, the search is exact.

        Parameters
        ----------
        queries
            One vector, a list or an array of vectors, or a frame with the columns `query_id`, of any type, and
            `vector`. At most 65,536 queries or 64 MB; they are collected by this call.
        column
            The column of vectors.
        k
            Number of rows for each query. A query has fewer rows if fewer rows have a distance.
        columns
            Columns of the result; all by default.
        filter
            Predicate in the library's SQL, for the rows to search. To filter the nearest rows, use `where` of the
            result.
        metric
            "l2", "cosine" or "dot"; "hamming" for columns of uint8. By default, the metric of the vector index of the
            column, or else "l2" ("hamming").
        distance_range
            Least distance, and the distance below which rows are found; None for no limit.
        nprobes, minimum_nprobes, maximum_nprobes, refine_factor, ef
            Options of the search in a vector index, as in `nearest` of `LanceDataset.scanner`.
        use_index
            Use the vector index. False makes the search exact.
        fast_search
            Search only the rows that the index covers.
        version, tag, as_of
            The version to read, as for `to_df`.
        target_rows_per_task
            Number of rows of a task that searches without an index. By default, a classic session has about one task
            per core.

        Returns
        -------
        DataFrame
            The columns, and `_distance`. The first column is `query_index`, from 0, for a list of vectors, and
            `query_id` for a frame. Rows are ordered by query, in the order of the queries, and by distance.

        Raises
        ------
        InvalidInputError, OutOfRangeError, TypeError
            If an argument is invalid, or the queries are not vectors with the dimension of the column.
        ColumnNotFoundError, InvalidSqlError, VersionNotFoundError
            If a column or the version does not exist, or the filter is invalid.
        UnsupportedFeatureError
            If Spark cannot represent the type of a column.

        Examples
        --------
        >>> table.nearest([0.1, 0.7, 0.2], "embedding", 5, columns=["id"]).show()  # doctest: +SKIP
        >>> queries = users.selectExpr("user AS query_id", "embedding AS vector")  # doctest: +SKIP
        >>> table.nearest(queries, "embedding", filter="lang = 'de'", metric="cosine")  # doctest: +SKIP
        >>> table.nearest(queries, "embedding", nprobes=20, refine_factor=10)  # doctest: +SKIP
        """
        check_sql_text(filter=filter)
        check_flag("fast_search", fast_search)
        options = self._options_at(version, tag, as_of)
        vectors, ids = collect_queries(queries)
        names = None if columns is None else tuple(columns)
        tuning = {
            "nprobes": nprobes,
            "minimum_nprobes": minimum_nprobes,
            "maximum_nprobes": maximum_nprobes,
            "refine_factor": refine_factor,
            "ef": ef,
            "use_index": use_index,
        }
        search = VectorSearch(vectors, ids, column, k, names, filter, metric, distance_range, tuning, fast_search)
        rows, cores = self._task_size(target_rows_per_task)
        plan = self._call(plan_search, options, search=search, task_rows=rows, cores=cores)
        search = dataclasses.replace(search, metric=plan["metric"])
        pin, schema = pin_of_plan(self.options, plan), spark_schema(schema_from_string(plan["schema"]))
        found = self.scan(plan["tasks"], partial(search.find, pin), FOUND)
        nearest, wire = nearest_of(found, k, is_batch=plan["is_batch"]), wire_schema(schema)
        return nearest.mapInArrow(lambda batches: search.read(pin, batches, wire), schema)

    def drop_index(self, name: str) -> None:
        """Remove an index. A cleanup removes its files.

        Parameters
        ----------
        name
            Name of the index.

        Raises
        ------
        IndexNotFoundError
            If the index does not exist.
        RetryableCommitConflictError
            If every attempt lost against another commit.
        """
        self._retried(LanceDataset.drop_index, name=name)

    def indices(self) -> DataFrame:
        """Return the indexes of the newest version.

        Returns
        -------
        DataFrame
            One row per index: name, kind, columns, number of segments, number of indexed rows and of all rows, and size
            in bytes, which is null if a release did not record it.
        """
        rows = [tuple(row) for row in self._call(_indices)]
        columns = (
            "name string, kind string, columns array<string>, num_segments bigint, num_indexed_rows bigint,"
            " num_rows bigint, size_bytes bigint"
        )
        return self._spark.createDataFrame(rows, columns)

    def _task_size(self, target_rows: int | None) -> tuple[int | None, int | None]:
        """Return the number of rows per task, or the number of cores from which it is computed."""
        return (
            (None, self.cores()) if target_rows is None else (check_positive("target_rows_per_task", target_rows), None)
        )


def _indices(dataset: LanceDataset) -> list[list[Any]]:
    """Return the rows of `TableIndexes.indices`. Runs on the client or on the cluster."""
    num_rows = dataset.count_rows()
    return [
        [
            index.name,
            index.index_type,
            index.field_names,
            len(index.segments),
            index.num_rows_indexed,
            num_rows,
            index.total_size_bytes,
        ]
        for index in dataset.describe_indices()
    ]
