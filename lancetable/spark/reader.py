"""Batch reading: the driver pins a version and deals out rows, tasks scan theirs.

`pushFilters` is not overridden on purpose. In every released PySpark that has it (4.1 to 4.3) a pushed filter leaks
into later scans of the same frame and returns wrong rows; the option `filter` does the work instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lancetable.errors import ColumnNotFoundError, SchemaMismatchError
from lancetable.ops.read.scan import execute_scan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.splits import Split, plan_splits, scan_options_of
from lancetable.spark.pin import Pin, pinned
from lancetable.spark.runner import init_worker
from lancetable.spark.types import convert_batch, wire_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lancetable.spark.options import SourceOptions

BATCH_BYTES = 16 << 20


@dataclass
class SlicePartition(InputPartition):
    """The rows of one task."""

    slices: tuple[Split, ...]

    def __init__(self, slices: Sequence[Split]) -> None:
        super().__init__(tuple(slices))
        self.slices = tuple(slices)


def projected_schema(pin: Pin, columns: Sequence[str] | None) -> pa.Schema:
    """The Arrow schema of a read of these columns, all by default. Raises ColumnNotFoundError."""
    names = None if columns is None else list(columns)
    return plan_scan(pin.open(), ScanOptions(columns=names)).output_schema


def scan_slices(pin: Pin, slices: Iterable[Split], options: ScanOptions, wire: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of slices in the exact form that Spark wants; runs in tasks."""
    init_worker()
    version = pin.open()
    for scan in scan_options_of(slices, options):
        for batch in execute_scan(version, plan_scan(version, scan)):
            converted = convert_batch(batch, wire)
            _check_no_nulls(converted, version.uri)
            yield converted


def _check_no_nulls(batch: pa.RecordBatch, uri: str) -> None:
    """Raise SchemaMismatchError for a null in a column that is not nullable: Spark would fail without its name."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaMismatchError(
                f"column {field.name!r} of {uri} has nulls, and the schema of the read declares it NOT NULL: declare it"
                " nullable. If the table declares it NOT NULL, its files are damaged; if neither does, the files were"
                " replaced after the read was planned"
            )


class LanceReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType, pin: Pin | None) -> None:
        self._pin = pinned(options) if pin is None else pin
        known = projected_schema(self._pin, options.columns).names
        for name in schema.fieldNames():
            if name not in known:
                raise ColumnNotFoundError(f"no column {name!r} in {options.uri}; there are {', '.join(known)}")
        self._options = options
        self._schema = schema
        self._columns = [name for name in (options.columns or known) if name in schema.fieldNames()]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        init_worker()  # its task reads which partition it has before it calls `read`

    def partitions(self) -> list[InputPartition]:
        options = self._options
        tasks = plan_splits(
            self._pin.open(), columns=self._columns, task_rows=options.task_rows, task_bytes=options.task_bytes
        )
        # A table without rows gets one partition without rows: Spark would replace an empty list by a null one.
        return [SlicePartition(task) for task in tasks or [()]]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        options = ScanOptions(
            columns=self._columns,
            filter=self._options.filter,
            batch_size=self._options.batch_rows,
            batch_size_bytes=BATCH_BYTES,
        )
        yield from scan_slices(self._pin, partition.slices, options, wire_schema(self._schema))
