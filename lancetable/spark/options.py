"""The options of the data source, parsed and checked once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lancetable.errors import InvalidInputError

STORAGE_PREFIX = "storage."
VECTOR_PREFIX = "vector."
DEFAULT_BATCH_ROWS = 262_144  # or 16 MB; the overhead per batch, 2 to 3 ms for 20 columns, is then 10 %
_CATALOG_OPTION = "owner"  # Spark adds it to the options of a table of its catalog
DEFAULT_TASK_ROWS = 1_048_576
MOST_TASK_ROWS, LEAST_TASK_ROWS = 8 << 20, 128 << 10
DEFAULT_FILE_ROWS = 1 << 20
DEFAULT_TASK_BYTES = 256 << 20  # in memory; 128 MB of a Parquet file in Spark need about as much
LATEST = "latest"


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidInputError(f"the option {name} must be true or false, got {value!r}")
    return value.lower() == "true"


def _at_least(minimum: int) -> Callable[[str, str], int]:
    """Return a parser of integers that are at least `minimum`."""

    def parse(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise InvalidInputError(f"the option {name} must be an integer of at least {minimum}, got {value!r}")
        return number

    return parse


def _string(_name: str, value: str) -> str:
    return value


def _names(_name: str, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _path(_name: str, value: str) -> str:
    # Spark passes local paths from SQL as file:/dir, with one slash.
    return value.removeprefix("file:") if value.startswith("file:/") and not value.startswith("file://") else value


def _version_or_latest(name: str, value: str) -> int | str:
    return value if value == LATEST else _at_least(0)(name, value)


def _option(name: str, parse: Callable[[str, str], Any], meaning: str, default: Any = None) -> Any:
    """Return a dataclass field for an option. `parse` converts its name and string to the value."""
    return field(default=default, metadata={"name": name, "parse": parse, "meaning": meaning})


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read or a write."""

    uri: str = _option("path", _path, "address of the table", "")
    columns: tuple[str, ...] | None = _option("columns", _names, "read: names of columns, separated by commas")
    filter: str | None = _option("filter", _string, "read: SQL predicate, evaluated by the library")
    version: int | None = _option("version", _at_least(1), "batch read: number of the version")
    tag: str | None = _option("tag", _string, "batch read: tag of the version")
    timestamp_as_of: str | None = _option("timestampAsOf", _string, "batch read: the newest version at this time")
    branch: str | None = _option("branch", _string, "read: name of the branch")
    batch_rows: int = _option("batch_size", _at_least(1), "read: rows of an Arrow batch", DEFAULT_BATCH_ROWS)
    task_rows: int = _option("target_rows_per_task", _at_least(1), "read: rows of a task", DEFAULT_TASK_ROWS)
    task_bytes: int = _option("target_bytes_per_task", _at_least(1), "read: bytes of a task", DEFAULT_TASK_BYTES)
    starting_version: int | str | None = _option("startingVersion", _version_or_latest, "stream: number or latest")
    starting_timestamp: str | None = _option("startingTimestamp", _string, "stream: time of the first version")
    max_versions_per_trigger: int | None = _option("maxVersionsPerTrigger", _at_least(1), "stream: limit of a batch")
    skip_change_commits: bool = _option("skipChangeCommits", _flag, "stream: skip versions that change rows", False)
    fail_on_data_loss: bool = _option("failOnDataLoss", _flag, "stream: refuse removed versions", True)
    merge_schema: bool = _option("mergeSchema", _flag, "write: add columns to the table and widen types", False)
    create: bool | None = _option("create", _flag, "write: true requires a new table, false an existing one")
    max_rows_per_file: int = _option("max_rows_per_file", _at_least(1), "write: rows of a data file", DEFAULT_FILE_ROWS)
    data_storage_version: str | None = _option("data_storage_version", _string, "write: format of a new table")
    stable_row_ids: bool = _option("enable_stable_row_ids", _flag, "write: kind of row ids of a new table", False)
    txn_app: str | None = _option("txnAppId", _string, "write: name of the application or stream")
    txn_version: int | None = _option("txnVersion", _at_least(0), "batch write: number of the change")
    continue_from_checkpoint: bool = _option("continueFromCheckpoint", _flag, "stream: accept any table", False)
    checkpoint: str | None = _option("checkpointLocation", _string, "stream write: Spark's checkpoint")
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    vector_dimensions: dict[str, int] = field(default_factory=dict)

    @property
    def txn(self) -> tuple[str, int] | None:
        """The name of an application and the number of its change; None without a number."""
        return None if self.txn_app is None or self.txn_version is None else (self.txn_app, self.txn_version)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse the options that Spark passes. Names are case-insensitive, and empty values count as missing.

        Raises
        ------
        InvalidInputError
            If an option is unknown, invalid, missing, or excluded by another one.
        """
        options = dict[str, str]()
        for given_name, value in given.items():
            known_name = _OTHER_NAMES.get(given_name.lower(), given_name.lower())
            if options.setdefault(known_name, value) != value:
                raise InvalidInputError(f"the options {known_name} and {given_name} differ; pass one of them")
        if "paths" in options:
            raise InvalidInputError("lance reads one table at a time; pass one path to load(), and union the frames")
        if not options.get("path") or _CATALOG_OPTION in options:
            problem = "a table of the catalog" if _CATALOG_OPTION in options else "no path"
            raise InvalidInputError(
                f"{problem}: use load(path) or save(path). Spark does not pass the path of a table of its catalog"
                " (saveAsTable, CREATE TABLE) to a Python data source; use CREATE TEMPORARY VIEW v USING lance OPTIONS"
                " (path '...')"
            )
        parsed: dict[str, Any] = {"storage_options": {}, "vector_dimensions": {}}
        for name, value in options.items():
            if name.startswith(STORAGE_PREFIX):
                parsed["storage_options"][name.removeprefix(STORAGE_PREFIX)] = value
            elif name.startswith(VECTOR_PREFIX):
                parsed["vector_dimensions"][name.removeprefix(VECTOR_PREFIX)] = _at_least(1)(name, value)
            elif (option := OPTIONS.get(name)) is None:
                known = ", ".join(option.metadata["name"] for option in OPTIONS.values())
                raise InvalidInputError(
                    f"unknown option {name!r} of the lance data source; valid options: {known}, {STORAGE_PREFIX}<key>,"
                    f" {VECTOR_PREFIX}<column>"
                )
            elif value or name == "columns":
                parsed[option.name] = option.metadata["parse"](option.metadata["name"], value)
        for group in _EXCLUSIVE:
            if len(names := [_NAMES[field_name] for field_name in group if field_name in parsed]) > 1:
                raise InvalidInputError(f"the options {' and '.join(names)} exclude each other; pass one of them")
        if "txn_version" in parsed and "txn_app" not in parsed:
            raise InvalidInputError("txnVersion requires txnAppId, the name of the application")
        return cls(**parsed)

    def for_batch_read(self) -> SourceOptions:
        """Return the options after checking that they suit a batch read.

        Raises
        ------
        InvalidInputError
            If an option is only for streaming reads.
        """
        named = ("starting_version", "starting_timestamp", "max_versions_per_trigger", "skip_change_commits")
        remedy = "select rows of a batch read with version, timestampAsOf or filter"
        return self._without(named, f"applies only to readStream; {remedy}")

    def for_stream_read(self) -> SourceOptions:
        """Return the options after checking that they suit a streaming read.

        Raises
        ------
        InvalidInputError
            If an option selects a version.
        """
        named = ("version", "tag", "timestamp_as_of")
        remedy = "a stream follows the newest version; pass startingVersion or startingTimestamp"
        return self._without(named, f"applies only to batch reads; {remedy}")

    def for_batch_write(self) -> SourceOptions:
        """Return the options after checking that they suit a batch write.

        Raises
        ------
        InvalidInputError
            If an option is only for reads or streams, or if `txnAppId` is given without `txnVersion`.
        """
        if self.txn_app is not None and self.txn is None:
            raise InvalidInputError(
                f"txnAppId {self.txn_app!r} requires txnVersion: without a number a repeated write adds its rows again;"
                " pass both or neither"
            )
        self._without(("continue_from_checkpoint",), "applies only to writeStream; a batch write has no checkpoint")
        return self._for_write()

    def for_stream_write(self) -> SourceOptions:
        """Return the options after checking that they suit a streaming write.

        Raises
        ------
        InvalidInputError
            If an option is only for reads or batches.
        """
        self._without(("txn_version",), "applies only to batch writes; omit it, because Spark numbers the batches")
        return self._for_write()

    def _for_write(self) -> SourceOptions:
        named = ("version", "tag", "timestamp_as_of", "columns", "filter")
        self._without(named, "applies only to reads; a write always uses the newest version")
        return self._without(("branch",), "applies only to reads; to write to a branch, pass its path")

    def _without(self, fields: Iterable[str], reason: str) -> SourceOptions:
        """Return the options if none of these fields is given.

        Raises
        ------
        InvalidInputError
            If one of the fields is given. The message contains `reason`.
        """
        for name in fields:
            if getattr(self, name) != getattr(SourceOptions, name):
                raise InvalidInputError(f"the option {_NAMES[name]} {reason}")
        return self


_NAMES = {f.name: f.metadata["name"] for f in fields(SourceOptions) if "name" in f.metadata}
OPTIONS = {str(f.metadata["name"]).lower(): f for f in fields(SourceOptions) if "name" in f.metadata}
"""All options except `storage.<key>`, passed to the store, and `vector.<column>`, the dimension of a vector column."""

_OTHER_NAMES = {"versionasof": "version"}  # the name in Delta

_EXCLUSIVE = (("version", "tag", "timestamp_as_of"), ("starting_version", "starting_timestamp"))
