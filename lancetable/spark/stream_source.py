"""Streaming reads: offsets are versions, and what a version appended is one step.

    {"version": 0}            nothing was read: the first step is the whole table as it stands then
    {"version": n}            everything up to version n was read

Versions that change no row (compaction, new columns, settings, indices) are passed over. Rows that were deleted,
updated or overwritten cannot be told to a stream: it stops, or with `skipChangeCommits` leaves such versions out. A
version that a cleanup removed before it was read stops the stream as well, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lancetable.errors import (
    InvalidInputError,
    InvalidOperationError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lancetable.ops.appended import Appended, appended_by
from lancetable.ops.scan_plan import ScanOptions
from lancetable.ops.slices import Slice, plan_slices
from lancetable.spark.options import LATEST
from lancetable.spark.pin import Pin, pinned
from lancetable.spark.reader import BATCH_BYTES, SlicePartition, scan_slices
from lancetable.spark.types import wire_schema
from lancetable.table.version import checkout, latest

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from lancetable.spark.options import SourceOptions
    from lancetable.table.version import TableVersion

    class _AvailableNow:
        pass

else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _AvailableNow
    except ImportError:  # before PySpark 4.2 a stream with trigger(availableNow=True) takes everything as one batch

        class _AvailableNow:
            pass


_HAS_LIMITS = find_spec("pyspark.sql.streaming.datasource") is not None


class VersionPartition(SlicePartition):
    """Rows of one task, as they are in one version."""

    def __init__(self, pin: Pin | None, slices: tuple[Slice, ...]) -> None:
        super().__init__(slices)
        self.pin = pin


class LanceStreamReader(DataSourceStreamReader, _AvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        if options.version is not None or options.timestamp_as_of is not None:
            raise InvalidInputError("a stream follows the newest version: say where to begin with startingVersion")
        if options.max_versions_per_trigger is not None and not _HAS_LIMITS:
            raise UnsupportedFeatureError(
                "maxVersionsPerTrigger needs PySpark 4.2 or newer; without it a batch is everything that is new",
                feature="limits of streams before PySpark 4.2",
            )
        self._options, self._schema = options, schema
        self._stop_at: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        options = self._options
        if options.starting_version == LATEST:
            return {"version": self._newest().version}
        if isinstance(options.starting_version, int):
            return {"version": max(0, options.starting_version - 1)}
        if options.starting_timestamp is not None:
            return {"version": self._before(options.starting_timestamp)}
        return {"version": 0}

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802  # Spark's name
        newest = self._newest().version if self._stop_at is None else self._stop_at
        # Before PySpark 4.2 neither argument comes: then a step is everything there is.
        most = getattr(limit, "max_files", None)
        if start is None:
            return {"version": newest}
        begin = int(start["version"])
        if begin and most is not None:
            newest = min(newest, begin + int(most))
        return {"version": max(begin, newest)}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # Spark's name
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

        most = self._options.max_versions_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        return {"version": self._newest().version}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._stop_at = self._newest().version

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        begin, stop = int(start["version"]), int(end["version"])
        newest = self._newest()
        tasks: list[InputPartition] = []
        if begin == 0 and stop > 0:
            tasks.extend(self._tasks(self._at(newest, stop), None))
        else:
            for number in range(begin + 1, stop + 1):
                tasks.extend(self._step(newest, number))
        return tasks or [VersionPartition(None, ())]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.pin is None:
            return
        options = self._options
        scan = ScanOptions(
            columns=self._schema.fieldNames(),
            filter=options.filter,
            batch_size=options.batch_rows,
            batch_size_bytes=BATCH_BYTES,
        )
        yield from scan_slices(partition.pin, partition.slices, scan, wire_schema(self._schema))

    def commit(self, end: dict[str, int]) -> None:
        """Nothing to do: offsets are Spark's."""

    def _step(self, newest: TableVersion, number: int) -> list[InputPartition]:
        try:
            version = self._at(newest, number)
        except VersionNotFoundError:
            if not self._options.fail_on_data_loss:
                return []
            raise
        change = appended_by(version)
        if isinstance(change, Appended):
            return self._tasks(version, change.fragment_ids) if change.fragment_ids else []
        if self._options.skip_change_commits:
            return []
        raise InvalidOperationError(
            f"version {number} of {self._options.uri} {change}, which a stream of appended rows cannot tell. Leave"
            " such versions out with option('skipChangeCommits', 'true'), or begin again after it with startingVersion"
        )

    def _tasks(self, version: TableVersion, fragment_ids: frozenset[int] | None) -> list[InputPartition]:
        tasks = plan_slices(
            version,
            columns=self._schema.fieldNames(),
            task_rows=self._options.task_rows,
            task_bytes=self._options.task_bytes,
            fragments=fragment_ids,
        )
        return [VersionPartition(Pin.of(version), task) for task in tasks]

    def _newest(self) -> TableVersion:
        return latest(pinned(self._options).open())

    def _at(self, newest: TableVersion, number: int) -> TableVersion:
        if number == newest.version:
            return newest
        try:
            return checkout(newest, number if newest.branch is None else (newest.branch, number))
        except VersionNotFoundError as error:
            raise VersionNotFoundError(
                f"{self._options.uri}: version {number} was cleaned up before this stream had read it, so rows are"
                " missing. Begin anew with another checkpoint, or go on without them with"
                " option('failOnDataLoss', 'false'); keep versions longer than the stream may pause",
                version=number,
            ) from error

    def _before(self, moment: str) -> int:
        """The last version that is older than a moment, 0 if there is none."""
        from lancetable.dataset import dataset

        options = self._options
        try:
            return int(dataset(options.uri, asof=moment, storage_options=options.storage_options or None).version)
        except VersionNotFoundError:
            return 0
