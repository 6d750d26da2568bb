"""Streaming writes, exactly once: a batch and its number are committed together.

Spark repeats a batch whose acknowledgement it has not seen. The commit of batch n also says, in the config of the
table, that n was the last one of this stream (`commit.once`), so a repeated batch is known however long ago it was, and
what it wrote again is removed. A stream is named by `txnAppId`, or else by the id that Spark keeps in its checkpoint,
so that a new checkpoint is a new stream. Where that cannot be read from here, the checkpoint's address is the name:
then one that is made anew at the same place needs another `txnAppId`, since its numbers begin again.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import datasource

from lancetable.commit.once import is_done, properties_of
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, InvalidInputError, UnsupportedFeatureError
from lancetable.spark.pin import Pin, pinned
from lancetable.spark.types import table_schema, wire_schema
from lancetable.spark.writer import (
    WrittenFragments,
    appended_schema,
    commit_written,
    discard_written,
    fragments_of,
    write_task,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as ArrowWriter
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from lancetable.operation import LanceOperation
    from lancetable.spark.options import SourceOptions
else:
    # PySpark 4.0 has no Arrow writer for streams; a write is then refused below, reading works.
    ArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)

logger = logging.getLogger(__name__)


class LanceStreamWriter(ArrowWriter):
    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise UnsupportedFeatureError(
                "streams are written with PySpark 4.1 or newer; with 4.0 use foreachBatch and write_table",
                feature="streaming writes with PySpark 4.0",
            )
        self._options = options.for_write()
        self._app = app_of(options)
        self._overwrite = overwrite
        self._uuid = str(uuid.uuid4())
        wire_schema(schema)
        self._schema = table_schema(schema, options.vector_dimensions)
        self._pin = self._made(options)
        if not overwrite:
            self._schema = appended_schema(self._schema, self._pin.open().schema.to_arrow(), options.uri)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFragments:
        mode = "overwrite" if self._overwrite else "append"
        return write_task(iterator, self._schema, self._pin, self._options, mode)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        newest = pinned(self._options)
        transaction = self._transaction(batchId)
        if is_done(newest.open().manifest.config, (self._app, batchId)):
            self._skip(messages, batchId)
            return
        # What was written fits the version the writer began with; nothing newer needs to be judged if that is the same.
        same = newest.open().schema == self._pin.open().schema
        try:
            commit_written(
                self._options,
                newest if same else self._pin,
                self._operation(messages),
                transaction,
                properties_of(self._app, batchId),
            )
        except AlreadyExistsError:
            self._skip(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        discard_written(self._options, messages, self._transaction(batchId))

    def _operation(self, messages: list[WriterCommitMessage | None]) -> LanceOperation.BaseOperation:
        from lancetable.operation import LanceOperation

        fragments = fragments_of(messages)
        return (
            LanceOperation.Overwrite(self._schema, fragments) if self._overwrite else LanceOperation.Append(fragments)
        )

    def _transaction(self, batch: int) -> str:
        """One for each batch of this writer; a restarted stream has others, since it wrote other files."""
        return str(uuid.uuid5(uuid.UUID(self._uuid), str(batch)))

    def _skip(self, messages: list[WriterCommitMessage | None], batch: int) -> None:
        logger.info("%s: batch %d of %s was committed before", self._options.uri, batch, self._app)
        discard_written(self._options, messages, None)

    def _made(self, options: SourceOptions) -> Pin:
        """The newest version of the table, which is made without rows if it is not there."""
        from lancetable.dataset import write_dataset

        try:
            return pinned(options)
        except DatasetNotFoundError:
            if options.create is False:
                raise
        try:
            write_dataset(
                self._schema.empty_table(),
                options.uri,
                data_storage_version=options.data_storage_version,
                storage_options=options.storage_options or None,
            )
        except AlreadyExistsError:
            logger.debug("%s: another writer made the table", options.uri)
        return pinned(options)


def app_of(options: SourceOptions) -> str:
    """The name under which a stream numbers its batches. Raises InvalidInputError."""
    if options.txn_app is not None:
        return options.txn_app
    if options.checkpoint is None:
        raise InvalidInputError(
            "a stream needs a name by which its batches are known again: give option('checkpointLocation', ...) on this"
            " query, or option('txnAppId', ...) where the session sets the checkpoint"
        )
    return name_of_stream(options.checkpoint)


def name_of_stream(checkpoint: str) -> str:
    """What the stream of a checkpoint is called."""
    path = checkpoint.removeprefix("file:")
    if "://" not in path:
        path = os.path.abspath("/" + path.lstrip("/") if path.startswith("//") else path)
    try:
        with open(os.path.join(path, "metadata"), encoding="utf-8") as file:
            return f"stream:{json.loads(file.read())['id']}"
    except (OSError, ValueError, KeyError, TypeError):
        return f"checkpoint:{path.rstrip('/')}"
