"""Batch reads: the driver pins a version and plans slices of rows, and tasks scan them.

`pushFilters` is deliberately not overridden. In every PySpark release that has it (4.1 to 4.3), a pushed filter also
applies to later scans of the same frame, which then return wrong rows. Use the option `filter` instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lancetable.errors import ColumnNotFoundError, SchemaMismatchError
from lancetable.ops.read.scan import execute_scan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.splits import Split, plan_splits, scan_options_of
from lancetable.spark.options import SourceOptions
from lancetable.spark.pinned_version import PinnedVersion, pin_of
from lancetable.spark.task_runner import init_worker
from lancetable.spark.types import convert_batch, wire_schema
from lancetable.table.version import TableVersion

_BATCH_BYTES = 16 << 20


def projected_schema(pin: PinnedVersion, columns: Sequence[str] | None) -> pa.Schema:
    """Return the Arrow schema of a read of these columns, all by default.

    Raises
    ------
    ColumnNotFoundError
        If the version lacks a column.
    """
    names = None if columns is None else list(columns)
    return plan_scan(pin.open(), ScanOptions(columns=names)).output_schema


def scan_options(columns: Sequence[str], filter: str | None, batch_rows: int) -> ScanOptions:
    """Return the options of a scan in batches of limited rows and bytes."""
    return ScanOptions(columns=list(columns), filter=filter, batch_size=batch_rows, batch_size_bytes=_BATCH_BYTES)


def scan_slices(
    pin: PinnedVersion, options: ScanOptions, slices: Iterable[Split], wire: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of slices in the exact types that Spark requires. Runs in tasks."""
    init_worker()
    version = pin.open()
    for scan in scan_options_of(slices, options):
        for batch in execute_scan(version, plan_scan(version, scan)):
            converted = convert_batch(batch, wire)
            _check_no_nulls(converted, version.uri)
            yield converted


def _check_no_nulls(batch: pa.RecordBatch, uri: str) -> None:
    """Check that non-nullable columns have no nulls. Spark's own error would not contain the column name.

    Raises
    ------
    SchemaMismatchError
        If one of them has a null.
    """
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaMismatchError(
                f"column {field.name!r} of {uri} has nulls, but the schema of the read declares it NOT NULL: declare it"
                " nullable. If the table declares it NOT NULL, its files are damaged; if neither does, the files were"
                " replaced after the read was planned"
            )


class SliceReader:
    """Base class of the batch reader and the streaming reader.

    Raises
    ------
    ColumnNotFoundError
        If the table lacks a column of the schema.
    """

    def __init__(self, options: SourceOptions, schema: StructType, pin: PinnedVersion) -> None:
        known = projected_schema(pin, options.columns).names
        for name in schema.fieldNames():
            if name not in known:
                raise ColumnNotFoundError(f"no column {name!r} in {options.uri}; available columns: {', '.join(known)}")
        self._options, self._schema = options, schema
        self._columns = [name for name in (options.columns or known) if name in schema.fieldNames()]

    def _plan(self, version: TableVersion, fragments: frozenset[int] | None = None) -> list[tuple[Split, ...]]:
        """Return the tasks that read a version, or some of its fragments."""
        options = self._options
        return plan_splits(
            version,
            columns=self._columns,
            task_rows=options.task_rows,
            task_bytes=options.task_bytes,
            fragments=fragments,
            filter=options.filter,
        )

    def _scan(self, pin: PinnedVersion, slices: Iterable[Split]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        scan = scan_options(self._columns, self._options.filter, self._options.batch_rows)
        return scan_slices(pin, scan, slices, wire_schema(self._schema))


class LanceReader(SliceReader, DataSourceReader):
    """The reader of a batch read."""

    def __init__(self, options: SourceOptions, schema: StructType, pin: PinnedVersion | None) -> None:
        self._pin = pin_of(options) if pin is None else pin
        super().__init__(options, schema, self._pin)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        init_worker()  # in a task, this runs before the partition is unpickled

    def partitions(self) -> list[InputPartition]:
        """Return the slices of each task."""
        # An empty table gets one partition without rows, because Spark would replace an empty list by a null partition.
        return [InputPartition(task) for task in self._plan(self._pin.open()) or [()]]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        return self._scan(self._pin, partition.value)
