"""Batch writing: tasks write fragments, the driver commits them once.

A task's files are named apart per attempt and count only when the message that names them reaches the commit, so a
retried or speculative task never doubles rows. Files that a failed task leaves behind are not part of any version.

Spark also calls `abort` when `commit` raised, or its process died, after the version had appeared. The transaction is
therefore named when the write begins: as long as its file is there a commit was begun and not surely given up, and the
data files stay.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lancetable.errors import DatasetNotFoundError, SchemaMismatchError
from lancetable.spark.options import SourceOptions
from lancetable.spark.types import convert_batches, table_schema, wire_schema
from lancetable.table.version import open_version

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass
class WrittenFragments(WriterCommitMessage):
    """The fragments one task wrote, as JSON texts, and their rows."""

    fragments: list[str]
    num_rows: int


class LanceWriter(DataSourceArrowWriter):
    def __init__(self, options: SourceOptions, schema: StructType, overwrite: bool) -> None:
        import lancetable

        self._options = options
        self._overwrite = overwrite
        self._transaction_uuid = str(uuid.uuid4())
        wire_schema(schema)  # a type without an Arrow form is refused here, before any task starts
        incoming = table_schema(schema, options.vector_dimensions)
        try:
            dataset = lancetable.dataset(options.uri, storage_options=options.storage_options or None)
        except DatasetNotFoundError:
            self._read_version: int | None = None
            self._schema = incoming
            return
        self._read_version = dataset.version
        if overwrite:
            self._schema = incoming
            return
        self._schema = _append_schema(incoming, dataset.schema, options.uri)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenFragments:
        from lancetable.fragment import write_fragments

        rows = 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in convert_batches(iterator, self._schema):
                if batch.num_rows:
                    rows += batch.num_rows
                    yield batch

        batches = counted()
        first = next(batches, None)
        if first is None:
            return WrittenFragments([], 0)
        arguments: dict[str, Any] = {}
        if self._options.max_rows_per_file is not None:
            arguments["max_rows_per_file"] = self._options.max_rows_per_file

        def all_batches() -> Iterator[pa.RecordBatch]:
            yield first
            yield from batches

        fragments = write_fragments(
            pa.RecordBatchReader.from_batches(self._schema, all_batches()),
            self._options.uri,
            self._schema,
            mode="overwrite" if self._overwrite or self._read_version is None else "append",
            data_storage_version=self._options.data_storage_version,
            storage_options=self._options.storage_options or None,
            **arguments,
        )
        return WrittenFragments([json.dumps(fragment.to_json()) for fragment in fragments], rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        from lancetable.fragment import FragmentMetadata
        from lancetable.operation import LanceOperation, Transaction
        from lancetable.ops import commit as commits

        fragments = [
            FragmentMetadata.from_json(text)
            for message in messages
            if isinstance(message, WrittenFragments)
            for text in message.fragments
        ]
        operation: LanceOperation.BaseOperation
        if self._overwrite or self._read_version is None:
            operation = LanceOperation.Overwrite(self._schema, fragments)
        else:
            operation = LanceOperation.Append(fragments)
        transaction = Transaction(self._read_version or 0, operation, self._transaction_uuid).to_format()
        storage_options = self._options.storage_options or None
        if self._read_version is None:
            # Not an Overwrite of whatever is there by now: a table that another job made meanwhile keeps its rows.
            commits.commit(self._options.uri, transaction, storage_options=storage_options)
        else:
            target = open_version(self._options.uri, self._read_version, storage_options=storage_options)
            commits.commit(target, transaction)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        from lancetable.fragment import FragmentMetadata
        from lancetable.ops.write import discard_fragments

        fragments = [
            FragmentMetadata.from_json(text)
            for message in messages
            if isinstance(message, WrittenFragments)
            for text in message.fragments
        ]
        paths = [file.path for fragment in fragments for file in fragment.files]
        discard_fragments(
            self._options.uri,
            paths,
            storage_options=self._options.storage_options or None,
            transaction_uuid=self._transaction_uuid,
        )


def _append_schema(incoming: pa.Schema, table: pa.Schema, uri: str) -> pa.Schema:
    """The table's fields that the frame brings, in the table's own types; what does not fit is refused."""
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
    return pa.schema([field for field in table if field.name in incoming.names])
