"""Batch writing: tasks write fragments, the driver commits them once.

A task's files are named apart per attempt and count only when the message that names them reaches the commit, so a
retried or speculative task never doubles rows. A task that fails removes its files; those of a killed one are part of
no version and wait for a cleanup.

Spark also calls `abort` when `commit` raised, or its process died, after the version had appeared. The transaction is
therefore named when the write begins: as long as its file is there a commit was begun and not surely given up, and the
data files stay.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lancetable.commit.idempotency import is_done, last_number, properties_of
from lancetable.errors import AlreadyExistsError, DatasetNotFoundError, SchemaMismatchError
from lancetable.ops import commit as commits
from lancetable.ops.write.write import discard_fragments
from lancetable.spark.options import SourceOptions
from lancetable.spark.pin import Pin, pinned
from lancetable.spark.runner import init_worker
from lancetable.spark.types import check_stored_as, convert_batches, table_schema, wire_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lancetable.fragment_metadata import FragmentMetadata
    from lancetable.operation import LanceOperation

logger = logging.getLogger(__name__)


@dataclass
class WrittenFragments(WriterCommitMessage):
    """The fragments that one task wrote, each as JSON, their rows, and the version they were written for."""

    fragments: list[str]
    num_rows: int
    pin: Pin | None = None


def write_task(
    iterator: Iterator[pa.RecordBatch], schema: pa.Schema, pin: Pin | None, options: SourceOptions, mode: str
) -> WrittenFragments:
    """Write the rows of one task as fragments, cast to `schema`; runs in tasks.

    `pin` is the version to append to or to replace, None where there is no table yet.
    """
    from lancetable.dataset import LanceDataset
    from lancetable.fragment import write_fragments

    init_worker()
    rows = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in convert_batches(iterator, schema):
            if batch.num_rows:
                rows += batch.num_rows
                yield batch

    batches = counted()
    first = next(batches, None)
    if first is None:
        return WrittenFragments([], 0)

    def all_batches() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    arguments: dict[str, Any] = {}
    if options.max_rows_per_file is not None:
        arguments["max_rows_per_file"] = options.max_rows_per_file
    fragments = write_fragments(
        pa.RecordBatchReader.from_batches(schema, all_batches()),
        options.uri if pin is None else LanceDataset.from_version(pin.open()),
        schema,
        mode=mode,
        data_storage_version=options.data_storage_version,
        storage_options=options.storage_options or None,
        **arguments,
    )
    texts = [json.dumps(fragment.to_json()) for fragment in fragments]
    return WrittenFragments(texts, rows, pin)


def fragments_of(messages: Iterable[WriterCommitMessage | None]) -> list[FragmentMetadata]:
    """The fragments of all tasks that came to an end, in the order of the tasks."""
    from lancetable.fragment_metadata import FragmentMetadata

    return [
        FragmentMetadata.from_json(text)
        for message in messages
        if isinstance(message, WrittenFragments)
        for text in message.fragments
    ]


def discard_written(
    options: SourceOptions, messages: Iterable[WriterCommitMessage | None], transaction_uuid: str | None
) -> None:
    """Remove the files of messages, unless the transaction may be committed."""
    paths = [file.path for fragment in fragments_of(messages) for file in fragment.files]
    discard_fragments(
        options.uri, paths, storage_options=options.storage_options or None, transaction_uuid=transaction_uuid
    )


class LanceWriter(DataSourceArrowWriter):
    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        self._options = options.for_batch_write()
        self._transaction_uuid = str(uuid.uuid4())
        self._skip = False
        wire_schema(schema)  # a type without an Arrow form is refused here, before any task starts
        self._schema = table_schema(schema, options.vector_dimensions)
        self._mode = "overwrite"
        self._pin: Pin | None = None
        try:
            self._pin = pinned(self._options)
        except DatasetNotFoundError:
            if options.create is False:
                raise
            return
        if options.create:
            raise AlreadyExistsError(f"create='true', and there is a table at {options.uri}", path=options.uri)
        self._skip = self._was_committed()
        if not overwrite:
            self._mode = "append"
            table = self._pin.open().schema.to_arrow()
            self._schema = appended_schema(self._schema, table, options.uri)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFragments:
        if self._skip:
            return WrittenFragments([], 0)
        return write_task(iterator, self._schema, self._pin, self._options, self._mode)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        txn, fragments = self._options.txn, fragments_of(messages)
        if self._skip and txn is not None:
            log_skipped(pinned(self._options).open().manifest.config, txn, self._options.uri)
            return
        properties = {} if txn is None else properties_of(*txn)
        try:
            commit_written(self._options, self._pin, self._operation(fragments), self._transaction_uuid, properties)
        except AlreadyExistsError:
            if txn is None or not self._was_committed():
                raise
            # Another run of the same job was faster: this one has nothing to add.
            log_skipped(pinned(self._options).open().manifest.config, txn, self._options.uri)
            discard_written(self._options, messages, self._transaction_uuid)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard_written(self._options, messages, self._transaction_uuid)

    def _operation(self, fragments: list[FragmentMetadata]) -> LanceOperation.BaseOperation:
        from lancetable.operation import LanceOperation

        if self._mode == "append":
            return LanceOperation.Append(fragments)
        return LanceOperation.Overwrite(self._schema, fragments)

    def _was_committed(self) -> bool:
        txn = self._options.txn
        return txn is not None and is_done(pinned(self._options).open().manifest.config, txn)


def log_skipped(config: Mapping[str, str], txn: tuple[str, int], uri: str) -> None:
    """Log that a change is not made because it, or a later one of the application, was committed before.

    A later one is a warning: a new checkpoint, or a name that is used twice, begins with lower numbers.
    """
    app, number = txn
    last = last_number(config, app)
    if last == number:
        logger.info("%s: change %d of %s was committed before", uri, number, app)
    else:
        logger.warning(
            "%s: no rows are written for change %d of %s, because its change %s was committed before. Unless this is a"
            " repeat of an old change, pass a higher number or another name",
            uri,
            number,
            app,
            last,
        )


def commit_written(
    options: SourceOptions,
    pin: Pin | None,
    operation: LanceOperation.BaseOperation,
    transaction_uuid: str,
    properties: dict[str, str],
) -> None:
    """Commit what tasks wrote, judged against everything since `pin`; without one, as a new table.

    Raises AlreadyExistsError for a change that was committed before, and for a table that another job created since,
    whose rows stay; CommitConflictError, CommitStateUnknownError.
    """
    from lancetable.operation import Transaction

    transaction = Transaction(0 if pin is None else pin.version, operation, transaction_uuid, properties).to_format()
    if pin is None:
        commits.commit(options.uri, transaction, storage_options=options.storage_options or None)
    else:
        commits.commit(pin.open(), transaction)


def appended_schema(incoming: pa.Schema, table: pa.Schema, uri: str) -> pa.Schema:
    """Return the table's fields that the frame has, in the types of the table.

    Nullable columns that the frame lacks become null. Raises SchemaMismatchError for other differences that would
    change or drop values.
    """
    unknown = [name for name in incoming.names if name not in table.names]
    if unknown:
        raise SchemaMismatchError(
            f"Append with different schema: {uri} has no column {unknown[0]!r}; it has {', '.join(table.names)}"
        )
    missing = [field.name for field in table if field.name not in incoming.names and not field.nullable]
    if missing:
        raise SchemaMismatchError(
            f"Append with different schema: the frame lacks the required column {missing[0]!r} of {uri}"
        )
    for field in incoming:
        check_stored_as(field.type, table.field(field.name).type, field.name)
    return pa.schema([field for field in table if field.name in incoming.names])
