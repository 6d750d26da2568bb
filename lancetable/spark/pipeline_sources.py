"""Sources of a pipeline: files, streams and queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

FILE = "_lancetable_file"
"""The column of the file of each row, for a pipeline with rejects."""

_FILE_SCHEMA = "path string, modificationTime timestamp, length bigint, content binary"


@dataclass(frozen=True)
class Files:
    """Files below a folder, each of them read once. A file that changes after it was read is not read again.

    Parameters
    ----------
    path
        The folder. Names that begin with `_` or `.` are ignored, as everywhere in Spark.
    format, options
        As in `spark.read`. With `mode=DROPMALFORMED` records that do not parse are dropped and counted.
    schema
        Spark's schema or DDL. By default a batch of CSV files has the columns of their headers; files of other formats
        have the columns of all files in the folder. A column that the table does not have is refused when it is
        merged, so that no column is lost, unless the pipeline has `schema="add"` or "evolve".
    files_per_batch
        The greatest number of files in a batch. By default a run reads all new files as one batch.
    recursive
        Whether files in subfolders are read. Without, only those in the folder itself and in partition folders
        (`day=2024-01-01`). Partition folders become columns in both cases.
    max_unparsed
        The greatest number of records of a batch with values that do not parse. By default any number: the values
        become null and are counted by column, see `Step.unparsed`; with `rejects` of the pipeline, the records are
        rejected. Only CSV, JSON and XML have such values.

    Notes
    -----
    The columns of CSV files with a header are found by name: each file may have its own order, and columns that a
    `schema` leaves out. A column of the schema that a header does not have is refused. Fields of JSON records are found
    by name too, with regard to case.

    Without a schema, a file that does not have a column of the others gets null for it, and Spark reads all files of
    the folder, or their footers, in each run to infer the types. For a large folder, and for types that must not
    depend on the files that are there, pass a schema.

    A batch is planned before it is read. A file that is removed between the two is not read, also if the batch is
    repeated because the first attempt failed.
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
        """Return an option, whatever the case of its name; an empty string without it."""
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
        """The user's options, and the one that reads subfolders."""
        given = {name: str(value) for name, value in self.options.items()}
        return given if self.option("recursiveFileLookup") else {**given, "recursiveFileLookup": str(self.recursive)}


@dataclass(frozen=True)
class Stream:
    """A stream, of which a run reads the rows that are available when it begins.

    Parameters
    ----------
    read
        Function from the session to the streaming frame, for instance of Kafka or of another table.

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
        Function from the session and the greatest value of `cursor` in the table, None for an empty table, to the
        frame of rows from that value on, the value itself included.
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
