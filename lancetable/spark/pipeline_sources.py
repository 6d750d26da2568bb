"""Sources of a pipeline: files, streams and queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

FILE = "_lancetable_file"
"""Name of the column with the file of each row, in a pipeline with rejects."""

_FILE_SCHEMA = "path string, modificationTime timestamp, length bigint, content binary"


@dataclass(frozen=True)
class Files:
    """Files below a folder. Each file is read once, even if it changes later.

    Parameters
    ----------
    path
        The folder. Names that begin with `_` or `.` are ignored, as usual in Spark.
    format, options
        As in `spark.read`. With `mode=DROPMALFORMED`, unparsable records are dropped and counted.
    schema
        A Spark schema or a DDL string. By default, a batch of CSV files has the columns of its headers, and a batch of
        files in another format has the columns of all files in the folder. The merge rejects a column that the table
        lacks, so that no column is lost, unless the pipeline has `schema="add"` or `schema="evolve"`.
    files_per_batch
        Maximum number of files per batch. By default, a run reads all new files as one batch.
    recursive
        Whether files in all subfolders are read. If False, only files in the folder itself and in partition folders
        (`day=2024-01-01`) are read. Partition folders become columns in both cases.
    max_unparsed
        Maximum number of records with unparsable values per batch; unlimited by default. The values become null and are
        counted by column; see `Step.unparsed`. If the pipeline has `rejects`, the records are rejected instead. Only
        CSV, JSON and XML files have such values.

    Notes
    -----
    Columns of CSV files with a header are matched by name. Each file may have its own order of columns, and columns
    that are not in `schema`. A column of the schema that is missing in a header raises an error. Fields of JSON records
    are also matched by name, and are case-sensitive.

    Without a schema, columns that a file lacks are null, and Spark reads all files of the folder, or their footers, in
    each run to infer the types. Pass a schema if the folder is large, or if the types must not depend on the files in
    it.

    A batch is planned before it is read. A file that is removed in between is not read, even if the batch is repeated
    after a failed attempt.
    """

    path: str
    format: str = "parquet"
    schema: StructType | str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    files_per_batch: int | None = None
    recursive: bool = True
    max_unparsed: int | None = None

    def stream(self, spark: SparkSession) -> DataFrame:
        """Return the stream of the names and lengths of new files.

        Parameters
        ----------
        spark
            A classic or Connect session.

        Returns
        -------
        DataFrame
            A streaming frame of `path` and `length`.
        """
        reader = spark.readStream.format("binaryFile").schema(_FILE_SCHEMA)
        # Without this, Spark ignores files that are a week older than the newest one it has seen.
        reader = reader.option("maxFileAge", "36500d").options(**self.folder_options)
        if self.files_per_batch is not None:
            reader = reader.option("maxFilesPerTrigger", self.files_per_batch)
        return reader.load(self.path).select("path", "length")

    def option(self, name: str) -> str:
        """Return the value of an option, whose name is case-insensitive; an empty string if it is not given."""
        return next((str(value) for key, value in self.options.items() if key.lower() == name.lower()), "")

    @property
    def kind(self) -> str:
        """The short name of the format."""
        return self.format.lower().rpartition(".")[2]

    @property
    def has_header(self) -> bool:
        """True if the files begin with the names of their columns."""
        return self.kind == "csv" and self.option("header").lower() == "true"

    @property
    def folder_options(self) -> dict[str, str]:
        """The user's options, with `recursiveFileLookup` added."""
        given = {name: str(value) for name, value in self.options.items()}
        return given if self.option("recursiveFileLookup") else {**given, "recursiveFileLookup": str(self.recursive)}


@dataclass(frozen=True)
class Stream:
    """A stream. A run reads the rows that are available when it starts.

    Parameters
    ----------
    read
        Function that takes the session and returns a streaming frame, for example of Kafka or of another table.

    Examples
    --------
    >>> Stream(lambda spark: spark.readStream.format("lance").load(uri))  # doctest: +SKIP
    """

    read: Callable[[SparkSession], DataFrame]


@dataclass(frozen=True)
class Query:
    """A source that is queried for new rows, such as a table behind JDBC.

    Parameters
    ----------
    read
        Function that takes the session and the greatest value of `cursor` in the table (None for an empty table), and
        returns a frame of the rows with this or a greater value.
    cursor
        A column of the table that never decreases in the source.

    Examples
    --------
    >>> def orders(spark, since):  # doctest: +SKIP
    ...     where = "true" if since is None else f"updated_at >= TIMESTAMP '{since}'"
    ...     return spark.read.jdbc(url, f"(SELECT * FROM orders WHERE {where}) AS newer", properties=login)
    """

    read: Callable[[SparkSession, Any], DataFrame]
    cursor: str


Source: TypeAlias = Files | Stream | Query
