"""Batch writes: tasks write fragments, and the driver commits them once.

Each attempt of a task writes files with unique names. They are committed only if the message that contains their names
reaches the commit, so a retried or speculative task never duplicates rows. A task that fails removes its files. The
files of a killed task remain unreferenced until a cleanup removes them.

Spark also calls `abort` if `commit` raised an error, or its process died, after the version was published. The uuid of
the transaction is therefore chosen when the write starts. If the transaction file exists, a commit was started and may
have succeeded, so the data files are kept.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from lancetable import telemetry
from lancetable.argument_validation import version_to_write
from lancetable.commit.idempotency import is_done, last_number, properties_of
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, InvalidInputError
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.operation import LanceOperation, Transaction
from lancetable.ops import commit as commits
from lancetable.ops.write.write import discard_fragments
from lancetable.spark.options import SourceOptions
from lancetable.spark.pinned_version import PinnedVersion, pin_of
from lancetable.spark.schema_evolution import Evolution, check_storable, fit_table
from lancetable.spark.task_runner import init_worker
from lancetable.spark.types import convert_batch, table_schema
from lancetable.table.version import TableVersion
from lancetable.writes import write_fragments

logger = logging.getLogger(__name__)

_NEWER = "pass data_storage_version='2.2'"


@dataclass
class WrittenFragments(WriterCommitMessage):
    """The fragments that one task wrote, and the version they were written for."""

    fragments: list[FragmentMetadata]
    pin: PinnedVersion | None = None


class FragmentWriter:
    """Base class of the batch writer and the streaming writer.

    `_pin` is the version to append to or to replace, None for a new table.
    """

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        self._options, self._overwrite = options, overwrite
        self._pin: PinnedVersion | None = None
        self._schema = table_schema(schema, options.vector_dimensions)
        call = 'pass option("mergeSchema", "true"), to write_table merge_schema=True'
        self._evolution = Evolution("evolve" if options.merge_schema else "fixed", call, call, arrow_casts=True)
        if overwrite and options.merge_schema:
            raise InvalidInputError("mergeSchema applies only to appends; an overwrite always replaces the schema")
        self._file_version = version_to_write(options.data_storage_version, None)
        check_storable(self._schema, self._file_version, _NEWER)

    def _write_to(self, pin: PinnedVersion) -> None:
        """Set the version to append to or to replace, and the schema of the rows.

        Raises SchemaMismatchError, InvalidSchemaError or UnsupportedFeatureError if it does not fit.
        """
        version = pin.open()
        if self._overwrite:
            check_storable(self._schema, self._file_version or version.manifest.file_version, _NEWER)
        else:
            version, self._schema, _ = fit_table(version, self._schema, self._evolution)
        self._pin = PinnedVersion.of(version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFragments:
        """Write the rows of one task as fragments. Runs in tasks."""
        init_worker()
        options, pin = self._options, self._pin
        call = self._evolution.widen_call
        batches = (convert_batch(batch, self._schema, call) for batch in iterator if batch.num_rows)
        first = next(batches, None)
        if first is None:
            return WrittenFragments([])
        fragments = write_fragments(
            pa.RecordBatchReader.from_batches(self._schema, chain([first], batches)),
            options.uri if pin is None else pin.open(),
            self._schema,
            mode="overwrite" if self._overwrite or pin is None else "append",
            data_storage_version=options.data_storage_version,
            storage_options=options.storage_options or None,
            max_rows_per_file=options.max_rows_per_file,
        )
        return WrittenFragments(fragments, pin)

    def _commit(
        self,
        pin: PinnedVersion | None,
        messages: Iterable[WriterCommitMessage | None],
        transaction_uuid: str,
        properties: Mapping[str, str],
    ) -> None:
        """Commit the fragments of messages on top of `pin`, or as a new table if it is None.

        Raises AlreadyExistsError if the change is already committed, or if another job has created the table;
        CommitConflictError for a conflict with a version after `pin`; CommitStateUnknownError if the outcome is
        unknown.
        """
        fragments = fragments_of(messages)
        operation: LanceOperation.BaseOperation = LanceOperation.Append(fragments)
        if self._overwrite or pin is None:
            operation = LanceOperation.Overwrite(self._schema, fragments)
        version = 0 if pin is None else pin.version
        transaction = Transaction(version, operation, transaction_uuid, dict(properties)).to_format()
        target = self._options.uri if pin is None else pin.open()
        commits.commit(
            target,
            transaction,
            storage_options=self._options.storage_options or None,
            file_version=self._file_version,
            stable_row_ids=self._options.stable_row_ids,
        )

    def _discard(self, messages: Iterable[WriterCommitMessage | None], transaction_uuid: str | None) -> None:
        """Remove the files of messages, unless the transaction may be committed."""
        discard_fragments(
            self._options.uri,
            paths_of(messages),
            storage_options=self._options.storage_options or None,
            transaction_uuid=transaction_uuid,
        )


def fragments_of(messages: Iterable[WriterCommitMessage | None]) -> list[FragmentMetadata]:
    """Return the fragments of all tasks that succeeded, in the order of the tasks."""
    written = (message for message in messages if isinstance(message, WrittenFragments))
    return [fragment for message in written for fragment in message.fragments]


def paths_of(messages: Iterable[WriterCommitMessage | None]) -> list[str]:
    """Return the paths of the data files of all tasks that succeeded."""
    return [file.path for fragment in fragments_of(messages) for file in fragment.files]


class LanceWriter(FragmentWriter, DataSourceArrowWriter):
    """The writer of a batch write."""

    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        super().__init__(options.for_batch_write(), schema, overwrite)
        self._transaction_uuid = str(uuid.uuid4())
        self._skip = False
        try:
            pin = pin_of(options)
        except DatasetNotFoundError:
            if options.create is False:
                raise
            return
        if options.create:
            message = f"table already exists at {options.uri}; create='true' requires a new table"
            raise AlreadyExistsError(message, path=options.uri)
        self._skip = self._was_committed()
        if not self._skip:
            self._write_to(pin)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFragments:
        """Write the rows of one task, or nothing if the change is already committed."""
        return WrittenFragments([]) if self._skip else super().write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the fragments of all tasks, with the number of the change.

        Raises
        ------
        AlreadyExistsError
            If another job created the table since the write started.
        CommitConflictError, CommitStateUnknownError
            If the commit failed, or its outcome is unknown.
        """
        txn = self._options.txn
        try:
            if not self._skip:
                self._commit(self._pin, messages, self._transaction_uuid, {} if txn is None else properties_of(*txn))
                return
        except AlreadyExistsError:
            if not self._was_committed():
                raise
            # Another run of the same job has committed the change.
            self._discard(messages, self._transaction_uuid)
        log_if_repeated(pin_of(self._options).open(), txn)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the files of the tasks unless they may be committed."""
        self._discard(messages, self._transaction_uuid)

    def _was_committed(self) -> bool:
        return is_done(pin_of(self._options).open().manifest.config, self._options.txn)


def log_if_repeated(version: TableVersion, txn: tuple[str, int] | None) -> bool:
    """Log and return True if a change, or a later change of the application, is already committed.

    A later change is logged as a warning, because it indicates a new checkpoint, or a second use of the name, whose
    numbers start again.
    """
    if txn is None or not is_done(version.manifest.config, txn):
        return False
    app, number = txn
    last = last_number(version.manifest.config, app)
    if last == number:
        logger.info(
            "%s: change %d of %r was committed before",
            version.uri,
            number,
            app,
            extra=telemetry.fields("change.repeated", version.uri, version=version.version, app=app, change=number),
        )
    else:
        logger.warning(
            "%s: change %d of %r is skipped, because its change %s was committed before. Numbers must increase: unless"
            " this repeats an old change, pass a higher number or another name",
            version.uri,
            number,
            app,
            last,
            extra=telemetry.fields("change.skipped", version.uri, version=version.version, app=app, change=number),
        )
    return True
