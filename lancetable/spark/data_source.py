"""The data source `lance`, which Spark calls to plan a read or a write.

Spark runs `schema()`, `reader()` and the tasks in three different Python processes. State that must be the same in all
of them, above all the version, is therefore determined by the first process and pickled for the others. Each process
imports only the modules that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lancetable.spark.options import SourceOptions

if TYPE_CHECKING:
    from lancetable.spark.pinned_version import PinnedVersion
    from lancetable.spark.reader import LanceReader
    from lancetable.spark.stream_sink import LanceStreamWriter
    from lancetable.spark.stream_source import LanceStreamReader
    from lancetable.spark.writer import LanceWriter


class LanceDataSource(DataSource):
    """`spark.read.format("lance")`, `df.write.format("lance").mode("append" | "overwrite")`, and both as streams.

    Options of reads: `columns` ("id,price"), `filter` (SQL, evaluated by the library, not by Spark, and answered by
    scalar indexes of the table), `version`, `tag` or `timestampAsOf`, `branch`, `batch_size` (rows),
    `target_rows_per_task`, `target_bytes_per_task`, `storage.<key>`.

    Additional options of streaming reads: `startingVersion` (a number or "latest"), `startingTimestamp`,
    `maxVersionsPerTrigger`, `skipChangeCommits`, `failOnDataLoss`.

    Options of writes: `max_rows_per_file`, `data_storage_version`, `vector.<column>` (dimension), `create`,
    `mergeSchema`, `txnAppId` with `txnVersion`, `storage.<key>`.

    Additional option of streaming writes: `continueFromCheckpoint`, which accepts a table that does not record the
    previous batch. Set it for one run only.
    """

    _pin: PinnedVersion | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format, for `spark.read.format`."""
        return "lance"

    def schema(self) -> StructType:
        """Return the schema of the version that the options select, and pin this version for the read.

        Raises
        ------
        DatasetNotFoundError, VersionNotFoundError, RefNotFoundError
            If the table, the version, the branch or the tag does not exist.
        ColumnNotFoundError
            If the version lacks a column of the option `columns`.
        InvalidInputError
            If an option is unknown or invalid.
        """
        from lancetable.spark.pinned_version import pin_of
        from lancetable.spark.reader import projected_schema
        from lancetable.spark.types import spark_schema

        options = SourceOptions.parse(self.options)
        self._pin = pin_of(options)
        return spark_schema(projected_schema(self._pin, options.columns))

    def reader(self, schema: StructType) -> LanceReader:
        """Return the reader of a batch.

        Raises
        ------
        ColumnNotFoundError
            If the version lacks a column of `schema`.
        InvalidInputError
            If an option is unknown, invalid or not allowed for batch reads.
        """
        from lancetable.spark.reader import LanceReader

        return LanceReader(SourceOptions.parse(self.options).for_batch_read(), schema, self._pin)

    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:
        """Return the writer of a batch.

        Raises
        ------
        AlreadyExistsError, DatasetNotFoundError
            If the option `create` does not fit the table.
        SchemaMismatchError, InvalidSchemaError, UnsupportedFeatureError
            If the columns do not fit the table, or the data format of the table cannot store them.
        InvalidInputError
            If an option is unknown, invalid or not allowed for batch writes.
        """
        from lancetable.spark.writer import LanceWriter

        return LanceWriter(SourceOptions.parse(self.options), schema, overwrite)

    def streamReader(self, schema: StructType) -> LanceStreamReader:  # noqa: N802  # Spark's name
        """Return the reader of a stream.

        Raises
        ------
        ColumnNotFoundError
            If the newest version lacks a column of `schema`.
        InvalidInputError
            If an option is unknown, invalid or not allowed for streaming reads.
        """
        from lancetable.spark.stream_source import LanceStreamReader

        return LanceStreamReader(SourceOptions.parse(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LanceStreamWriter:  # noqa: N802  # Spark's name
        """Return the writer of the batches of a stream.

        Raises
        ------
        SchemaMismatchError, InvalidSchemaError, UnsupportedFeatureError
            If the columns do not fit the table, or the data format of the table cannot store them.
        InvalidInputError
            If an option is unknown, invalid or not allowed for streaming writes.
        """
        from lancetable.spark.stream_sink import LanceStreamWriter

        return LanceStreamWriter(SourceOptions.parse(self.options), schema, overwrite)
