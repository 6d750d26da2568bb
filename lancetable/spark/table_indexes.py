"""Methods of `SparkTable` for secondary indexes and nearest-neighbour search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from lancetable.argument_validation import check_count, check_flag, check_names, check_positive
from lancetable.dataset import LanceDataset
from lancetable.indices import IndexConfig, parse_request
from lancetable.spark.jobs.build_index import CreateIndexJob, OptimizeIndicesJob
from lancetable.spark.sql import check_sql_text

if TYPE_CHECKING:
    from lancetable.dataset_indexes import IndexType
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

    def create_index(
        self,
        column: str,
        kind: IndexType | IndexConfig,
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
        before the commit. If a compaction or an update changes indexed rows meanwhile, the index is built again on the
        newest version; rows that are appended meanwhile are not covered.

        Parameters
        ----------
        column
            Path of the column, dotted for nested fields.
        kind
            The kind of index, as for `LanceDataset.create_scalar_index`: "BTREE", "BITMAP", "LABEL_LIST", "NGRAM",
            "ZONEMAP", "BLOOMFILTER", or an `IndexConfig` with parameters.
        name
            Name of the index; `{column}_idx` by default, with a number if that name belongs to another index.
        replace
            Replace an index with the same name.
        train
            Index all rows. Otherwise the index is empty, and `optimize_indices` fills it.
        num_segments
            Number of segments of the index. One segment is the fastest to search, but a single task merges it; several
            are merged in parallel.
        target_rows_per_task
            Number of rows of a part, in whole fragments. By default, a classic session has about one task per core.
        **parameters
            Parameters of the kind; see `IndexConfig`.

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
        """
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

        Without work to do, no version is created. Indexes of kinds that this library does not know, such as vector
        indexes, are left unchanged, with a warning in the log.

        Parameters
        ----------
        index_names
            Names of the indexes; all by default. Names of indexes that do not exist are ignored.
        num_indices_to_merge
            Number of segments, newest first, that are merged with the new rows into one segment. 0 writes the new rows
            to a segment of their own. By default, the newest segment is extended.
        retrain
            Build one segment from the data, for all rows.
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
        return (None, self.cores()) if target_rows is None else (check_positive("target_rows_per_task", target_rows), None)


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
