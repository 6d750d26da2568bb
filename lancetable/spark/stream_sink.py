"""Exactly-once streaming writes: a batch and its number are committed together.

Spark repeats a batch if it did not receive the acknowledgement. The commit of batch n also records in the config of the
table that n is the last batch of this stream (`commit/idempotency.py`). A repeated batch is therefore always
recognized, and its new files are removed. The batches of a stream have consecutive numbers. If a batch neither repeats
nor follows the last recorded one, or if the table was overwritten since (`ops/change/batch_history.py`), checkpoint and
table are out of sync. Such a batch is rejected, unless `continueFromCheckpoint` accepts the table as it is.

The name of a stream is `txnAppId`, or else the id that Spark stores in its checkpoint, so that a new checkpoint is a
new stream. If the checkpoint is not on the local disk, its address is the name. A new checkpoint at the same address
then starts at batch 0, below the recorded number, and is rejected.

Spark creates one writer for the tasks of a batch, and another one for its commit or abort. Commit and abort derive the
uuid of the transaction from the paths of the files, so an abort after a successful commit keeps the files. The messages
of the tasks contain the version that the tasks wrote for.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from typing import TYPE_CHECKING

from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from lancetable import telemetry
from lancetable.commit.idempotency import config_key, properties_of
from lancetable.dataset import write_dataset
from lancetable.errors import (
    AlreadyExistsError,
    DatasetNotFoundError,
    InvalidInputError,
    InvalidOperationError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lancetable.ops.change.batch_history import follows, last_properties
from lancetable.ops.schema.settings import update_config
from lancetable.spark.options import SourceOptions
from lancetable.spark.pinned_version import PinnedVersion, pin_of
from lancetable.spark.writer import FragmentWriter, WrittenFragments, paths_of
from lancetable.table.version import TableVersion, checkout

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as ArrowWriter
else:
    # PySpark 4.0 has no Arrow writer for streams. Reads work; the constructor below rejects writes.
    ArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)

logger = logging.getLogger(__name__)

_STREAM_PROPERTY = "lancetable.txn.stream"  # the id of the checkpoint, in addition to the name of the application
_REMEDY = "option('continueFromCheckpoint', 'true') for one run"
_NAMESPACE = uuid.UUID("5c1f1b3e-6f0a-4e0b-9a3c-2d5f6f3f7a10")


class LanceStreamWriter(FragmentWriter, ArrowWriter):
    """The writer of the batches of a stream."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        if not hasattr(datasource, "DataSourceStreamArrowWriter"):
            raise UnsupportedFeatureError(
                "streaming writes require PySpark 4.1 or newer; with 4.0, use foreachBatch and write_table",
                feature="streaming writes with PySpark 4.0",
            )
        options.for_stream_write()
        self._app = app_of(options)
        self._stream = stream_of(options.checkpoint) if options.checkpoint is not None else None
        super().__init__(options, schema, overwrite)
        self._write_to(self._existing_or_new())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit a batch with its number, or remove its files if the number is already recorded.

        Raises
        ------
        InvalidOperationError
            If checkpoint and table are out of sync.
        VersionNotFoundError
            If the table was removed and created again, or the version of the tasks was cleaned up.
        AlreadyExistsError
            If another writer of the same stream committed a batch before this one.
        CommitConflictError, CommitStateUnknownError
            If the commit failed, or its outcome is unknown.
        """
        properties = properties_of(self._app, batchId)
        if self._stream is not None:
            properties[_STREAM_PROPERTY] = self._stream
        try:
            newest = self._accepted(batchId)
            base = None if newest is None else self._base(newest, messages)
        except Exception:
            self.abort(messages, batchId)
            raise
        try:
            if base is not None:
                self._commit(base, messages, _transaction(messages), properties)
                return
        except AlreadyExistsError:
            # Another writer of the same stream committed first: this batch, or one that it does not follow.
            self.abort(messages, batchId)
            if self._is_next(pin_of(self._options).open(), batchId):
                raise
        else:
            self.abort(messages, batchId)
        logger.warning(
            "%s: batch %d of %s is recorded already, so this repeat of it adds no rows",
            self._options.uri,
            batchId,
            self._app,
            extra=telemetry.fields("stream.batch_repeated", self._options.uri, batch=batchId, app=self._app),
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Remove the files of a batch, unless they may be committed."""
        self._discard(messages, _transaction(messages))

    def _accepted(self, batch: int) -> PinnedVersion | None:
        """Return the newest version if the batch must be added to it, None if the batch is a repeat.

        With `continueFromCheckpoint`, no error is raised: a separate commit sets the recorded number to that of the
        previous batch.

        Raises
        ------
        InvalidOperationError
            If checkpoint and table are out of sync.
        """
        newest = pin_of(self._options)
        version = newest.open()
        try:
            return newest if self._is_next(version, batch) else None
        except InvalidOperationError as error:
            if not self._options.continue_from_checkpoint:
                raise
            logger.warning(
                "%s: continueFromCheckpoint accepts: %s",
                version.uri,
                error,
                extra=telemetry.fields("stream.checkpoint_accepted", version.uri, version=version.version),
            )
        number = str(batch - 1) if batch else None
        return PinnedVersion.of(update_config(version, {config_key(self._app): number}))

    def _is_next(self, version: TableVersion, batch: int) -> bool:
        """Compare the batch with the last recorded one, like `follows`. A repeat must be from the same checkpoint.

        Raises
        ------
        InvalidOperationError
            If the batch neither follows nor repeats the last recorded one.
        """
        if follows(version, self._app, batch, remedy=_REMEDY):
            return True
        recorded = None if self._stream is None else last_properties(version, self._app).get(_STREAM_PROPERTY)
        if recorded in (None, self._stream):
            return False
        raise InvalidOperationError(
            f"batch {batch} is not the next batch: {version.uri} already records batch {batch} of {self._app!r}, from"
            f" the checkpoint with the id {recorded}, and this one has the id {self._stream}. Use the checkpoint that"
            f" the table was written with, give the new stream another txnAppId, or pass {_REMEDY} to continue from"
            " this checkpoint; rows that it reads again are then added again"
        )

    def _base(self, newest: PinnedVersion, messages: list[WriterCommitMessage | None]) -> PinnedVersion:
        """Return the version that the commit of the batch is based on.

        This is the newest version if it has the schema that the tasks wrote for, so that versions in between need no
        conflict check. Otherwise, it is the version that the tasks wrote for.

        Raises
        ------
        VersionNotFoundError
            If the tasks wrote for another table, or for a version that was cleaned up.
        """
        version = newest.open()
        for written in {message.pin for message in messages if isinstance(message, WrittenFragments)}:
            if written is None or written == newest:
                continue
            # Not `written.open()`, which may return a cached version of a table that was removed.
            ref = written.version if version.branch is None else (version.branch, written.version)
            base = PinnedVersion.of(checkout(version, ref))
            if base.commit_id != written.commit_id:
                raise VersionNotFoundError(
                    f"version {written.version} of {version.uri} is not the one that the batch was written for, because"
                    " the table was removed and created again; start the query again",
                    version=written.version,
                )
            if base.open().schema != version.schema:
                return base
        return newest

    def _existing_or_new(self) -> PinnedVersion:
        """Return the newest version of the table. An empty table is created if it does not exist.

        Raises
        ------
        DatasetNotFoundError
            If it does not exist and the option `create` is false.
        """
        options = self._options
        try:
            return pin_of(options)
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
            logger.debug(
                "%s: another writer created the table",
                options.uri,
                extra=telemetry.fields("stream.table_exists", options.uri),
            )
        return pin_of(options)


def app_of(options: SourceOptions) -> str:
    """Return the name under which a stream numbers its batches: `txnAppId`, or the id or address of the checkpoint.

    Raises
    ------
    InvalidInputError
        If the options have neither a name nor a checkpoint.
    """
    if options.txn_app is not None:
        return options.txn_app
    if options.checkpoint is None:
        raise InvalidInputError(
            "a streaming write requires a name that identifies its batches: pass option('checkpointLocation', ...), or"
            " option('txnAppId', ...) if the session sets the checkpoint"
        )
    return stream_of(options.checkpoint) or f"checkpoint:{_path_of(options.checkpoint).rstrip('/')}"


def stream_of(checkpoint: str) -> str | None:
    """Return the name of a stream from the id in its checkpoint, None if the checkpoint is not on the local disk."""
    try:
        with open(os.path.join(_path_of(checkpoint), "metadata"), encoding="utf-8") as file:
            return f"stream:{json.loads(file.read())['id']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _path_of(checkpoint: str) -> str:
    path = checkpoint.removeprefix("file:")
    return path if "://" in path else os.path.abspath("/" + path.lstrip("/") if path.startswith("//") else path)


def _transaction(messages: list[WriterCommitMessage | None]) -> str:
    """Return the uuid of the transaction that commits the files of messages. It is the same in every process."""
    paths = paths_of(messages)
    return str(uuid.uuid5(_NAMESPACE, "\n".join(paths)) if paths else uuid.uuid4())
