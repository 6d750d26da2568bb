"""Batch reading: the driver pins a version and deals out fragments, tasks scan theirs.

`pushFilters` is not overridden on purpose. In every released PySpark that has it (4.1 to 4.3) a pushed filter leaks
into later scans of the same frame and returns wrong rows; the option `filter` does the work instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lancetable.errors import ColumnNotFoundError
from lancetable.fragment import LanceFragment
from lancetable.spark.options import SourceOptions
from lancetable.spark.types import convert_batch, wire_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lancetable.dataset import LanceDataset


@dataclass
class FragmentPartition(InputPartition):
    """The fragments of one task."""

    fragment_ids: tuple[int, ...]

    def __init__(self, fragment_ids: Sequence[int]) -> None:
        super().__init__(tuple(fragment_ids))
        self.fragment_ids = tuple(fragment_ids)


class Pin(NamedTuple):
    """The version that all processes of one read look at: a tag may move, and may name a version of a branch."""

    branch: str | None
    version: int

    @classmethod
    def of(cls, dataset: LanceDataset) -> Pin:
        return cls(dataset.table_version.branch, dataset.version)


def open_pinned(options: SourceOptions, pin: Pin | None = None) -> LanceDataset:
    """The table at the pinned version, or at the one the options name."""
    import lancetable

    storage_options = options.storage_options or None
    if pin is None:
        version, asof = options.version, options.timestamp_as_of
        return lancetable.dataset(options.uri, version, asof, storage_options=storage_options)
    if pin.branch is None:
        return lancetable.dataset(options.uri, pin.version, storage_options=storage_options)
    return lancetable.dataset(options.uri, storage_options=storage_options).checkout_version((pin.branch, pin.version))


def projected_schema(dataset: LanceDataset, columns: Sequence[str] | None) -> pa.Schema:
    return dataset.scanner(columns=None if columns is None else list(columns)).projected_schema


def pack_fragments(rows: Sequence[tuple[int, int]], task_rows: int) -> list[tuple[int, ...]]:
    """Neighbouring fragments, given as (id, rows), in groups of up to `task_rows` rows; a larger one stands alone."""
    groups: list[tuple[int, ...]] = []
    group: list[int] = []
    filled = 0
    for fragment_id, num_rows in rows:
        if group and filled + num_rows > task_rows:
            groups.append(tuple(group))
            group, filled = [], 0
        group.append(fragment_id)
        filled += num_rows
    if group:
        groups.append(tuple(group))
    return groups


class LanceReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType, pin: Pin | None) -> None:
        dataset = open_pinned(options, pin)
        known = projected_schema(dataset, options.columns).names
        for name in schema.fieldNames():
            if name not in known:
                raise ColumnNotFoundError(f"no column {name!r} in {options.uri}; there are {', '.join(known)}")
        self._options = options
        self._schema = schema
        self._pin = Pin.of(dataset)

    def partitions(self) -> list[InputPartition]:
        dataset = open_pinned(self._options, self._pin)
        rows = [(fragment.fragment_id, fragment.count_rows()) for fragment in dataset.get_fragments()]
        # A table without rows gets one partition without fragments: Spark would replace an empty list by a null one.
        groups = pack_fragments(rows, self._options.task_rows) or [()]
        return [FragmentPartition(group) for group in groups]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        wire = wire_schema(self._schema)
        if not partition.fragment_ids:
            return
        dataset = open_pinned(self._options, self._pin)
        columns = self._options.columns
        scanner = dataset.scanner(
            columns=[name for name in (columns or wire.names) if name in wire.names],
            filter=self._options.filter,
            fragments=[LanceFragment(dataset, fragment_id) for fragment_id in partition.fragment_ids],
            batch_size=self._options.batch_rows,
        )
        for batch in scanner.to_batches():
            yield convert_batch(batch, wire)
