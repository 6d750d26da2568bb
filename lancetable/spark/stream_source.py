"""Streaming reads. Offsets are versions, and a step returns the rows that the versions up to the next offset appended.

    {"version": 0}                           nothing was read: the first step is the whole table as of the end offset
    {"version": n, "transaction": "..."}     everything up to version n was read

The transaction identifies the version, because a table that was removed and created again at the same address has
versions with the same numbers. Such a table is rejected. Offsets of earlier releases have no transaction and are
accepted too.

Versions that change no row (compaction, new columns, settings, indices) are skipped. A stream cannot represent rows
that were deleted, updated or overwritten: it fails, or with `skipChangeCommits` skips such versions. It also fails if a
cleanup removed a version before it was read, unless `failOnDataLoss` is false. Skipped versions whose rows are lost are
logged as warnings.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from lancetable import telemetry
from lancetable.argument_validation import parse_asof
from lancetable.dataset import dataset
from lancetable.errors import (
    InvalidInputError,
    InvalidOperationError,
    UnsupportedFeatureError,
    VersionNotFoundError,
)
from lancetable.ops.read.appended_rows import appended_by
from lancetable.spark.options import LATEST, SourceOptions
from lancetable.spark.pinned_version import PinnedVersion, commit_id_of, pin_of
from lancetable.spark.reader import SliceReader
from lancetable.table.version import TableVersion, checkout, latest, uri_of_branch

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
except ImportError:  # before PySpark 4.2 a stream with trigger(availableNow=True) reads everything as one batch
    SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

logger = logging.getLogger(__name__)

Offset: TypeAlias = dict[str, Any]

_HAS_LIMITS = SupportsTriggerAvailableNow is not object


class LanceStreamReader(SliceReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream of appended rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.for_stream_read()
        if options.max_versions_per_trigger is not None and not _HAS_LIMITS:
            raise UnsupportedFeatureError(
                "maxVersionsPerTrigger requires PySpark 4.2 or newer; without it, a batch contains all new versions",
                feature="limits of streams before PySpark 4.2",
            )
        super().__init__(options, schema, pin_of(options))
        self._stop_at: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the offset at which a new stream starts.

        Raises
        ------
        InvalidInputError
            If the starting version or the starting time is in the future.
        VersionNotFoundError
            If versions since that time were cleaned up.
        """
        options = self._options
        if options.starting_version == LATEST:
            return _offset_of(self._newest())
        if isinstance(options.starting_version, int):
            newest = self._newest()
            if options.starting_version > newest.version + 1:
                raise InvalidInputError(
                    f"startingVersion {options.starting_version} is beyond version {newest.version}, the newest one of"
                    f" {options.uri}; pass a version from 0 to {newest.version + 1}, or 'latest'"
                )
            return self._offset(newest, max(0, options.starting_version - 1))
        if options.starting_timestamp is not None:
            return self._before(options.starting_timestamp)
        return {"version": 0}

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:  # noqa: N802  # Spark's name
        """Return the offset at which the next step ends: the newest version, or one within the limit of a step.

        Raises
        ------
        InvalidOperationError
            If the checkpoint belongs to another table.
        """
        newest = self._newest()
        stop = _offset_of(newest) if self._stop_at is None else self._stop_at
        # Before PySpark 4.2, Spark passes neither argument, and a step reads all new versions.
        most = getattr(limit, "max_files", None)
        if start is None:
            return stop
        begin = int(start["version"])
        if begin >= newest.version:
            self._check_same_table(newest, start)
        if begin and most is not None and begin + int(most) < stop["version"]:
            stop = self._offset(newest, begin + int(most))
        return stop if stop["version"] > begin else start

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # Spark's name
        """Return the limit of a step: a number of versions, or all new versions."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

        most = self._options.max_versions_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def reportLatestOffset(self) -> Offset:  # noqa: N802  # Spark's name
        """Return the offset of the newest version, for the metrics of Spark."""
        return _offset_of(self._newest())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """End the stream at the version that is the newest one now."""
        self._stop_at = _offset_of(self._newest())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the tasks of a step: the rows that the versions after `start` up to `end` appended.

        Raises
        ------
        InvalidOperationError
            If a version deleted, updated or replaced rows, or the checkpoint belongs to another table.
        VersionNotFoundError
            If a version was cleaned up before it was read.
        """
        begin, stop = int(start["version"]), int(end["version"])
        newest = self._newest()
        self._check_same_table(newest, start)
        self._check_same_table(newest, end)
        tasks: list[InputPartition] = []
        if begin == 0 and stop > 0:
            tasks.extend(self._tasks(self._at(newest, stop), None))
        else:
            removed: list[int] = []
            for number in range(begin + 1, stop + 1):
                tasks.extend(self._step(newest, number, removed))
            if removed:
                logger.warning(
                    "%s: versions %s were cleaned up before this stream read them; the rows that they appended are"
                    " left out, because failOnDataLoss is false",
                    self._options.uri,
                    ", ".join(map(str, removed)),
                    extra=telemetry.fields("stream.versions_lost", self._options.uri, versions=len(removed)),
                )
        return tasks or [InputPartition(None)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if partition.value is not None:
            yield from self._scan(*partition.value)

    def commit(self, end: Offset) -> None:
        """Do nothing: Spark keeps the offsets."""

    def _step(self, newest: TableVersion, number: int, removed: list[int]) -> list[InputPartition]:
        """Return the tasks for one version. A version that was cleaned up is added to `removed` or raises an error.

        Raises
        ------
        VersionNotFoundError
            If the version was cleaned up, unless `failOnDataLoss` is false.
        InvalidOperationError
            If the version deleted, updated or replaced rows, unless `skipChangeCommits` is true.
        """
        try:
            version = self._at(newest, number, ". To continue without its rows, pass option('failOnDataLoss', 'false')")
        except VersionNotFoundError:
            if self._options.fail_on_data_loss:
                raise
            removed.append(number)
            return []
        change = appended_by(version)
        if not isinstance(change, str):
            return self._tasks(version, change) if change else []
        if self._options.skip_change_commits:
            logger.warning(
                "%s: version %d %s; all of it is left out, rows that it added included, because skipChangeCommits is"
                " true",
                self._options.uri,
                number,
                change,
                extra=telemetry.fields("stream.version_skipped", self._options.uri, version=number),
            )
            return []
        raise InvalidOperationError(
            f"version {number} of {self._options.uri} {change}, and a stream of appended rows cannot represent that."
            " Leave such versions out with option('skipChangeCommits', 'true'), or start again after it, with a new"
            " checkpoint and startingVersion"
        )

    def _tasks(self, version: TableVersion, fragment_ids: frozenset[int] | None) -> list[InputPartition]:
        return [InputPartition((PinnedVersion.of(version), task)) for task in self._plan(version, fragment_ids)]

    def _newest(self) -> TableVersion:
        return latest(pin_of(self._options).open())

    def _at(self, newest: TableVersion, number: int, remedy: str = "") -> TableVersion:
        try:
            return _version(newest, number)
        except VersionNotFoundError as error:
            raise VersionNotFoundError(
                f"version {number} of {self._options.uri} was cleaned up before this stream read it, so rows are"
                " missing. Start again with a new checkpoint, and keep versions longer than the stream may"
                f" pause{remedy}",
                version=number,
            ) from error

    def _check_same_table(self, newest: TableVersion, offset: Offset) -> None:
        """Check that an offset belongs to this table, and not to an earlier table at the same address.

        Raises
        ------
        InvalidOperationError
            If it belongs to another table.
        """
        number, expected, uri = int(offset["version"]), offset.get("transaction"), self._options.uri
        if number > newest.version:
            raise InvalidOperationError(
                f"the checkpoint of this stream is at version {number} of {uri}, and the newest version is"
                f" {newest.version}: {_OTHER_TABLE}"
            )
        if number == 0 or expected is None:
            return
        try:
            actual = commit_id_of(_version(newest, number))
        except VersionNotFoundError:
            logger.warning(
                "%s: version %d, up to which this stream has read, was cleaned up, so it cannot be verified that the"
                " table is the same; keep versions longer than the stream may pause",
                uri,
                number,
                extra=telemetry.fields("stream.position_lost", uri, version=number),
            )
            return
        if actual != expected:
            raise InvalidOperationError(
                f"version {number} of {uri} was committed by transaction {actual}, and the checkpoint of this stream"
                f" names {expected}: {_OTHER_TABLE}"
            )

    def _offset(self, newest: TableVersion, number: int) -> Offset:
        if number:
            try:
                return _offset_of(_version(newest, number))
            except VersionNotFoundError:
                logger.debug(
                    "%s: version %d was cleaned up",
                    self._options.uri,
                    number,
                    extra=telemetry.fields("stream.version_lost", self._options.uri, version=number),
                )
        return {"version": number}

    def _before(self, moment: str) -> Offset:
        """Return the offset of the last version that is older than a moment.

        Raises
        ------
        InvalidInputError
            If the moment is in the future.
        VersionNotFoundError
            If versions since the moment were cleaned up, unless `failOnDataLoss` is false.
        """
        options, newest = self._options, self._newest()
        if parse_asof(moment).astimezone(timezone.utc) > datetime.now(timezone.utc):
            raise InvalidInputError(
                f"startingTimestamp {moment} is in the future; pass a past one, or startingVersion 'latest'"
            )
        uri = uri_of_branch(newest, newest.branch)
        try:
            before = dataset(uri, asof=moment, storage_options=options.storage_options or None)
        except VersionNotFoundError as error:
            oldest = dataset(uri, storage_options=options.storage_options or None).version_refs()[0]["version"]
            if oldest > 1 and options.fail_on_data_loss:
                raise VersionNotFoundError(
                    f"versions of {options.uri} since {moment} were cleaned up, and the oldest one left is {oldest}."
                    f" Pass startingVersion {oldest} to begin with its rows, startingVersion 0 for the whole table, or"
                    " option('failOnDataLoss', 'false')",
                    version=oldest,
                ) from error
            if oldest > 1:
                logger.warning(
                    "%s: versions before %d were cleaned up; those since %s are left out, because failOnDataLoss is"
                    " false",
                    options.uri,
                    oldest,
                    moment,
                    extra=telemetry.fields("stream.start_lost", options.uri, version=oldest),
                )
            return self._offset(newest, oldest - 1)
        return _offset_of(before.table_version)


_OTHER_TABLE = (
    "the table was removed and created again, or its newest versions were removed. Start again with a new checkpoint;"
    " startingVersion leaves out rows that were read already"
)


def _offset_of(version: TableVersion) -> Offset:
    return {"version": version.version, "transaction": commit_id_of(version)}


def _version(newest: TableVersion, number: int) -> TableVersion:
    if number == newest.version:
        return newest
    return checkout(newest, number if newest.branch is None else (newest.branch, number))
