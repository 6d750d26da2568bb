"""The options of the data source, parsed and checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lancetable.errors import InvalidInputError

STORAGE_PREFIX = "storage."
VECTOR_PREFIX = "vector."
_KNOWN = (
    "path",
    "columns",
    "filter",
    "version",
    "tag",
    "timestampasof",
    "batch_size",
    "target_rows_per_task",
    "target_bytes_per_task",
    "branch",
    "create",
    "txnappid",
    "txnversion",
    "startingversion",
    "startingtimestamp",
    "maxversionspertrigger",
    "skipchangecommits",
    "failondataloss",
    "continuefromcheckpoint",
    "max_rows_per_file",
    "data_storage_version",
    "checkpointlocation",
)
DEFAULT_BATCH_ROWS = 262_144  # or 16 MB: what a batch costs in Python, 2 to 3 ms of 20 columns, is then a tenth of it
_CATALOG_OPTION = "owner"  # Spark adds it to the options of a table of its catalog
DEFAULT_TASK_ROWS = 1_048_576
MOST_TASK_ROWS, LEAST_TASK_ROWS = 8 << 20, 128 << 10
DEFAULT_TASK_BYTES = 256 << 20  # in memory, about what Spark makes of 128 MB of a Parquet file
LATEST = "latest"


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read or a write. `txn` is the name of an application and the number of its change.

    Names arrive in lower case: Spark's options are case-insensitive.
    """

    uri: str
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    version: int | str | None = None
    timestamp_as_of: str | None = None
    batch_rows: int = DEFAULT_BATCH_ROWS
    task_rows: int = DEFAULT_TASK_ROWS
    task_bytes: int = DEFAULT_TASK_BYTES
    branch: str | None = None
    create: bool | None = None
    txn: tuple[str, int] | None = None
    txn_app: str | None = None
    checkpoint: str | None = None
    starting_version: int | str | None = None
    starting_timestamp: str | None = None
    max_versions_per_trigger: int | None = None
    skip_change_commits: bool = False
    fail_on_data_loss: bool = True
    continue_from_checkpoint: bool = False
    max_rows_per_file: int | None = None
    data_storage_version: str | None = None
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    vector_dimensions: dict[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Raises InvalidInputError naming the option and the remedy."""
        options = {key.lower(): value for key, value in given.items()}
        if "paths" in options:
            raise InvalidInputError("lance reads one table at a time: give load() one path, and union the frames")
        if not options.get("path") or _CATALOG_OPTION in options:
            what = "a table of the catalog" if _CATALOG_OPTION in options else "no path"
            raise InvalidInputError(
                f"{what}: use load(path) or save(path). A table of Spark's catalog (saveAsTable, CREATE TABLE) cannot "
                "pass its path to a Python data source; use CREATE TEMPORARY VIEW v USING lance OPTIONS (path '...')"
            )
        storage = {k[len(STORAGE_PREFIX) :]: v for k, v in options.items() if k.startswith(STORAGE_PREFIX)}
        vectors = {
            k[len(VECTOR_PREFIX) :]: _integer(k, v, 1) for k, v in options.items() if k.startswith(VECTOR_PREFIX)
        }
        unknown = [k for k in options if k not in _KNOWN and not k.startswith((STORAGE_PREFIX, VECTOR_PREFIX))]
        if unknown:
            raise InvalidInputError(
                f"unknown option {unknown[0]!r} of the lance data source; there are {', '.join(_KNOWN)}, "
                f"{STORAGE_PREFIX}<key> and {VECTOR_PREFIX}<column>"
            )
        pins = [name for name in ("version", "tag", "timestampasof") if options.get(name)]
        if len(pins) > 1:
            raise InvalidInputError(f"the options {' and '.join(pins)} name a version each; give one of them")
        version: int | str | None = options.get("tag") or None
        if options.get("version"):
            version = _integer("version", options["version"], 1)
        columns = options.get("columns")
        starts = [name for name in ("startingversion", "startingtimestamp") if options.get(name)]
        if len(starts) > 1:
            raise InvalidInputError("startingVersion and startingTimestamp exclude each other; give one of them")
        starting = options.get("startingversion") or None
        if options.get("txnversion") and not options.get("txnappid"):
            raise InvalidInputError("txnVersion numbers the changes of an application: name it with txnAppId")
        return cls(
            uri=_normalise(options["path"]),
            columns=None if columns is None else tuple(name.strip() for name in columns.split(",") if name.strip()),
            filter=options.get("filter") or None,
            version=version,
            timestamp_as_of=options.get("timestampasof") or None,
            task_bytes=_integer(
                "target_bytes_per_task", options.get("target_bytes_per_task", str(DEFAULT_TASK_BYTES)), 1
            ),
            branch=options.get("branch") or None,
            create=_flag("create", options["create"]) if options.get("create") else None,
            txn=(
                (options["txnappid"], _integer("txnVersion", options["txnversion"], 0))
                if options.get("txnversion")
                else None
            ),
            txn_app=options.get("txnappid") or None,
            checkpoint=options.get("checkpointlocation") or None,
            starting_version=(
                starting if starting is None or starting == LATEST else _integer("startingVersion", starting, 0)
            ),
            starting_timestamp=options.get("startingtimestamp") or None,
            max_versions_per_trigger=(
                _integer("maxVersionsPerTrigger", options["maxversionspertrigger"], 1)
                if options.get("maxversionspertrigger")
                else None
            ),
            skip_change_commits=_flag("skipChangeCommits", options.get("skipchangecommits", "false")),
            fail_on_data_loss=_flag("failOnDataLoss", options.get("failondataloss", "true")),
            continue_from_checkpoint=_flag("continueFromCheckpoint", options.get("continuefromcheckpoint", "false")),
            batch_rows=_integer("batch_size", options.get("batch_size", str(DEFAULT_BATCH_ROWS)), 1),
            task_rows=_integer("target_rows_per_task", options.get("target_rows_per_task", str(DEFAULT_TASK_ROWS)), 1),
            max_rows_per_file=(
                _integer("max_rows_per_file", options["max_rows_per_file"], 1)
                if options.get("max_rows_per_file")
                else None
            ),
            data_storage_version=options.get("data_storage_version") or None,
            storage_options=storage,
            vector_dimensions=vectors,
        )

    def for_batch_read(self) -> SourceOptions:
        """Return the options of a batch read. Raises InvalidInputError for one that only a stream follows."""
        given = {
            "startingVersion": self.starting_version is not None,
            "startingTimestamp": self.starting_timestamp is not None,
            "maxVersionsPerTrigger": self.max_versions_per_trigger is not None,
            "skipChangeCommits": self.skip_change_commits,
        }
        for name, is_given in given.items():
            if is_given:
                raise InvalidInputError(
                    f"the option {name} is for readStream, and a batch read would ignore it; select rows with version,"
                    " timestampAsOf or filter"
                )
        return self

    def for_batch_write(self) -> SourceOptions:
        """Return the options of a batch write, as `for_write`. Raises InvalidInputError for one of a stream."""
        if self.txn_app is not None and self.txn is None:
            raise InvalidInputError(
                f"txnAppId {self.txn_app!r} without txnVersion: without a number a repeated write adds its rows again;"
                " pass both or neither"
            )
        if self.continue_from_checkpoint:
            raise InvalidInputError(
                "the option continueFromCheckpoint is for writeStream; a batch write has no checkpoint"
            )
        return self.for_write()

    def for_stream_write(self) -> SourceOptions:
        """Return the options of a streaming write, as `for_write`. Raises InvalidInputError for one of a batch."""
        if self.txn is not None:
            raise InvalidInputError(
                "the option txnVersion is for batch writes: Spark numbers the batches of a stream; pass only txnAppId"
            )
        return self.for_write()

    def for_write(self) -> SourceOptions:
        """The options of a write, which goes to the newest version. Raises InvalidInputError for one that names another
        version or a part of the table."""
        named = {"version": self.version, "timestampAsOf": self.timestamp_as_of, "columns": self.columns}
        named["filter"] = self.filter
        for name, value in named.items():
            if value is not None:
                raise InvalidInputError(f"the option {name} is for reading; a write goes to the newest version")
        if self.branch is not None:
            raise InvalidInputError("the option branch is for reading; give the path of the branch to write to it")
        return self


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidInputError(f"the option {name} takes true or false, not {text!r}")
    return text.lower() == "true"


def _integer(name: str, text: str, at_least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = at_least - 1
    if value < at_least:
        raise InvalidInputError(f"the option {name} takes a whole number of at least {at_least}, not {text!r}")
    return value


def _normalise(path: str) -> str:
    # Spark hands over local paths from SQL as file:/dir, with one slash.
    if path.startswith("file:/") and not path.startswith("file://"):
        return path[len("file:") :]
    return path
