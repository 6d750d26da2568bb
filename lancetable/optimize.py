"""Maintenance of fragments: compaction in one call or in distributed steps, migration and automatic cleanup."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from lancetable.argument_validation import check_count, check_flag, check_integer, check_names
from lancetable.errors import InvalidInputError
from lancetable.format.version import FileVersion
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.ops.index.optimize import optimize_indices
from lancetable.ops.maintain import compact, migrate
from lancetable.ops.maintain.compact import CompactionSettings, Rewritten, Task
from lancetable.progress import ProgressLike, tracked

if TYPE_CHECKING:
    from lancetable.dataset import LanceDataset
    from lancetable.types import AutoCleanupConfig

__all__ = [
    "Compaction",
    "CompactionMetrics",
    "CompactionOptions",
    "CompactionPlan",
    "CompactionTask",
    "DatasetOptimizer",
    "RewriteResult",
]


class CompactionOptions(TypedDict, total=False):
    """Options of a compaction; see `DatasetOptimizer.compact_files`."""

    target_rows_per_fragment: int | None
    max_rows_per_group: int | None
    max_bytes_per_file: int | None
    materialize_deletions: bool | None
    materialize_deletions_threshold: float | None
    num_threads: int | None
    batch_size: int | None
    io_buffer_size: int | None
    compaction_mode: str | None
    binary_copy_read_batch_bytes: int | None
    defer_index_remap: bool | None
    max_source_fragments: int | None
    max_source_rows: int | None
    max_source_bytes: int | None
    excluded_fragment_ids: list[int] | None
    data_storage_version: str | None


@dataclass
class CompactionMetrics:
    """Counts of fragments and files of a compaction; files include deletion files."""

    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0


class JsonValue(ABC):
    """Base of values that are compared by their JSON form."""

    @abstractmethod
    def json(self) -> str:
        """Return the value as JSON."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.json() == other.json()

    def __hash__(self) -> int:
        return hash(self.json())


class CompactionTask(JsonValue):
    """Adjacent fragments that are rewritten into one or more new ones. Can be pickled and converted to JSON."""

    def __init__(self, task: Task, options: Mapping[str, Any]) -> None:
        self._task, self._options = task, dict(options)

    @property
    def fragments(self) -> list[FragmentMetadata]:
        """The fragments as of the planned version."""
        return [FragmentMetadata.from_format(fragment) for fragment in self._task.fragments]

    @property
    def read_version(self) -> int:
        """The version that the compaction was planned on."""
        return self._task.read_version

    def execute(self, dataset: LanceDataset, *, progress: ProgressLike = None) -> RewriteResult:
        """Write the new files without committing them; `dataset` may be at any version of the table.

        `progress` is a progress callback, or True for a progress bar; see `lancetable.progress`. Not in pylance.

        Raises
        ------
        VersionNotFoundError
            If the planned version was removed.
        InvalidOperationError
            If the dataset is another table.
        """
        settings = settings_for(dataset, self._options)
        with tracked(progress, "compact") as tracker:
            tracker.begin(total_rows=compact.num_rows_of(dataset.table_version, [self._task]))
            return RewriteResult(compact.execute(dataset.table_version, self._task, settings, tracker))

    def json(self) -> str:
        """Return the task as JSON; see `from_json`."""
        fragments = [fragment.to_json() for fragment in self.fragments]
        value = {"task": {"fragments": fragments}, "read_version": self.read_version, "options": self._options}
        return json.dumps(value)

    @staticmethod
    def from_json(text: str) -> CompactionTask:
        """Parse the output of `json`. Raises InvalidInputError."""
        value = parse_json(text, "task", "read_version", "options")
        task = Task(parse_fragments(value["task"]), value["read_version"])
        return CompactionTask(task, parse_options(value["options"]))

    def __repr__(self) -> str:
        return f"CompactionTask(read_version={self.read_version}, fragments={self.fragments})"


class RewriteResult(JsonValue):
    """New uncommitted fragments, and the fragments that they replace. Can be pickled and converted to JSON."""

    def __init__(self, rewritten: Rewritten) -> None:
        self._rewritten = rewritten

    @property
    def original_fragments(self) -> list[FragmentMetadata]:
        """The fragments that were read."""
        return [FragmentMetadata.from_format(fragment) for fragment in self._rewritten.old_fragments]

    @property
    def new_fragments(self) -> list[FragmentMetadata]:
        """The fragments that were written; the commit assigns their ids."""
        return [FragmentMetadata.from_format(fragment) for fragment in self._rewritten.new_fragments]

    @property
    def read_version(self) -> int:
        """The version that the compaction was planned on."""
        return self._rewritten.read_version

    @property
    def metrics(self) -> CompactionMetrics:
        """Counts of removed and added fragments and files."""
        return CompactionMetrics(*self._rewritten.counts)

    def json(self) -> str:
        """Return the result as JSON; see `from_json`."""
        addresses = self._rewritten.row_addresses
        return json.dumps(
            {
                "metrics": asdict(self.metrics),
                "new_fragments": [fragment.to_json() for fragment in self.new_fragments],
                "read_version": self.read_version,
                "original_fragments": [fragment.to_json() for fragment in self.original_fragments],
                "row_addrs": None if addresses is None else list(addresses),
            }
        )

    @staticmethod
    def from_json(text: str) -> RewriteResult:
        """Parse the output of `json`. Raises InvalidInputError."""
        value = parse_json(text, "new_fragments", "original_fragments", "read_version")
        old, new = (parse_fragments({"fragments": value[key]}) for key in ("original_fragments", "new_fragments"))
        return RewriteResult(Rewritten(old, new, value["read_version"], parse_bytes(value.get("row_addrs"))))

    def __repr__(self) -> str:
        return (
            f"RewriteResult(read_version={self.read_version}, new_fragments={self.new_fragments}, "
            f"old_fragments={self.original_fragments})"
        )


class CompactionPlan(JsonValue):
    """The tasks that compact one version of a table. Tasks can run anywhere, and any subset can be committed."""

    def __init__(self, tasks: Iterable[Task], read_version: int, options: Mapping[str, Any]) -> None:
        self._tasks, self._read_version, self._options = list(tasks), read_version, dict(options)

    @property
    def tasks(self) -> list[CompactionTask]:
        """The tasks, in table order."""
        return [CompactionTask(task, self._options) for task in self._tasks]

    @property
    def read_version(self) -> int:
        """The version that the compaction was planned on."""
        return self._read_version

    def num_tasks(self) -> int:
        """Return the number of tasks."""
        return len(self._tasks)

    def json(self) -> str:
        """Return the plan as JSON; see `from_json`."""
        tasks = [{"fragments": [fragment.to_json() for fragment in task.fragments]} for task in self.tasks]
        return json.dumps({"tasks": tasks, "read_version": self._read_version, "options": self._options})

    @staticmethod
    def from_json(text: str) -> CompactionPlan:
        """Parse the output of `json`. Raises InvalidInputError."""
        value = parse_json(text, "tasks", "read_version", "options")
        read_version = value["read_version"]
        tasks = [Task(parse_fragments(task), read_version) for task in value["tasks"]]
        return CompactionPlan(tasks, read_version, parse_options(value["options"]))

    def __iter__(self) -> Iterator[CompactionTask]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"CompactionPlan(read_version={self._read_version}, tasks=<{len(self._tasks)} compaction tasks>)"


class Compaction:
    """Compaction in steps, for external schedulers: plan, execute each task anywhere, commit the results.

    Examples
    --------
    >>> from lancetable.optimize import Compaction
    >>> plan = Compaction.plan(ds)
    >>> results = [task.execute(ds) for task in plan]
    >>> Compaction.commit(ds, results).fragments_added
    1
    """

    @staticmethod
    def plan(dataset: LanceDataset, options: CompactionOptions | dict[str, Any] | None = None) -> CompactionPlan:
        """Return the tasks that compact the dataset at its version.

        Raises
        ------
        InvalidInputError, TypeError
            If an option is invalid.
        """
        given = check_options(options or {})
        version = dataset.table_version
        return CompactionPlan(compact.plan(version, settings_for(dataset, given)), version.version, given)

    @staticmethod
    def commit(
        dataset: LanceDataset, rewrites: list[RewriteResult], options: CompactionOptions | dict[str, Any] | None = None
    ) -> CompactionMetrics:
        """Commit results, and move the dataset to the new version.

        Fragments of tasks without a result are unchanged. Of the `options`, which may be those of the plan, only
        `defer_index_remap` has an effect here.

        Raises
        ------
        RetryableCommitConflictError
            If moved rows have changed since the plan.
        InvalidOperationError
            If two results have the same fragments.
        """
        settings = settings_for(dataset, check_options(options or {}))
        results = [rewrite._rewritten for rewrite in rewrites]
        dataset._table = compact.commit(dataset.table_version, results, defer_index_remap=settings.defer_index_remap)
        return metrics_of(results)

    @staticmethod
    def execute(
        dataset: LanceDataset,
        options: CompactionOptions | dict[str, Any] | None = None,
        *,
        progress: ProgressLike = None,
    ) -> CompactionMetrics:
        """Plan, execute and commit, and move the dataset to the new version.

        `progress` is a progress callback, or True for a progress bar; see `lancetable.progress`. Not in pylance. Raises
        the errors of `plan` and `commit`.
        """
        settings = settings_for(dataset, check_options(options or {}))
        with tracked(progress, "compact") as tracker:
            dataset._table, results = compact.compact(dataset.table_version, settings, tracker)
        return metrics_of(results)


@dataclass(frozen=True)
class MigrationMetrics:
    """Counts of a migration. `files_reused` were written by an earlier run that did not commit."""

    fragments_changed: int
    files_written: int
    files_reused: int
    bytes_written: int


class DatasetOptimizer:
    """Maintenance operations of a table, available as `LanceDataset.optimize`."""

    def __init__(self, dataset: LanceDataset) -> None:
        self._dataset = dataset

    def compact_files(
        self,
        *,
        target_rows_per_fragment: int | None = None,
        max_rows_per_group: int | None = None,
        max_bytes_per_file: int | None = None,
        materialize_deletions: bool | None = None,
        materialize_deletions_threshold: float | None = None,
        defer_index_remap: bool | None = None,
        num_threads: int | None = None,
        batch_size: int | None = None,
        compaction_mode: str | None = None,
        binary_copy_read_batch_bytes: int | None = None,
        max_source_fragments: int | None = None,
        max_source_rows: int | None = None,
        max_source_bytes: int | None = None,
        excluded_fragment_ids: list[int] | None = None,
        data_storage_version: str | None = None,
        progress: ProgressLike = None,
    ) -> CompactionMetrics:
        """Rewrite small adjacent fragments and those with many deleted rows, and move the dataset to the new version.

        Rows keep their order. Defaults of the options are taken from the table's config (`lance.compaction.<option>`).

        Parameters
        ----------
        target_rows_per_fragment
            Fragments with fewer rows are merged up to this number of rows; 1,048,576 by default.
        max_rows_per_group
            Rows per batch in files of version 0.1; 1,024 by default.
        max_bytes_per_file
            Maximum size of a new data file.
        materialize_deletions
            Rewrite a fragment, even alone, if too many of its rows are deleted; True by default.
        materialize_deletions_threshold
            The share of deleted rows above which a fragment is rewritten; 0.1 by default.
        defer_index_remap
            Do not rewrite indexes that store row addresses. Readers map the addresses until `optimize_indices` rewrites
            the indexes. Not for tables with stable row ids.
        binary_copy_read_batch_bytes
            Accepted for compatibility, without effect.
        num_threads
            Number of concurrent tasks; all cores by default.
        batch_size
            Number of rows to read at a time.
        compaction_mode
            "reencode" or "try_binary_copy"; both decode and encode rows.
        max_source_fragments, max_source_rows, max_source_bytes
            Limits of this run: tasks are taken in order until one would exceed a limit. If that is the first task,
            nothing is compacted and a warning is logged.
        excluded_fragment_ids
            Fragments to leave unchanged.
        data_storage_version
            Format of the new files; the format of the table by default.
        progress
            Progress callback, or True for a progress bar; see `lancetable.progress`. Not in pylance.

        Returns
        -------
        CompactionMetrics
            Counts of removed and added fragments and files.

        Raises
        ------
        RetryableCommitConflictError
            If moved rows were changed concurrently. The table is unchanged; try again.
        InvalidInputError, TypeError
            If an option is invalid.
        UnsupportedFeatureError
            If `defer_index_remap` is set and the table has stable row ids.

        Examples
        --------
        >>> ds.optimize.compact_files()
        CompactionMetrics(fragments_removed=2, fragments_added=1, files_removed=2, files_added=1)
        """
        given = {name: value for name, value in locals().items() if name in OPTIONS and value is not None}
        return Compaction.execute(self._dataset, given, progress=progress)

    def optimize_indices(
        self,
        *,
        num_indices_to_merge: int | None = None,
        index_names: list[str] | None = None,
        retrain: bool = False,
        progress: ProgressLike = None,
        **kwargs: Any,
    ) -> None:
        """Add rows that indexes do not cover, and move the dataset to the new version.

        All indexes are changed in one commit. Without work to do, no version is created. Indexes of kinds that this
        library does not know, such as vector indexes, are left unchanged, with a warning in the log.

        Parameters
        ----------
        num_indices_to_merge
            Number of segments, newest first, that are merged with the new rows into one segment. 0 writes the new rows
            to a segment of their own. By default, the newest segment is extended.
        index_names
            Names of the indexes; all by default. Names of indexes that do not exist are ignored.
        retrain
            Build one segment from the data, for all rows. The data also determine the type of a JSON index again.
        progress
            Progress callback, or True for a progress bar; see `lancetable.progress`. Not in pylance.
        **kwargs
            Not accepted.

        Raises
        ------
        UnsupportedFeatureError
            If `index_names` contains an index of an unknown kind.
        TypeError
            If an argument has a wrong type, or does not exist.
        InvalidInputError
            If an argument is invalid.
        CorruptFileError
            If a file of an index is damaged.
        RetryableCommitConflictError
            If every attempt conflicted with a concurrent commit.
        CommitStateUnknownError
            If the outcome of the commit is unknown.

        Examples
        --------
        >>> ds.create_scalar_index("carrier", "BITMAP")
        >>> ds.insert({"id": [6], "carrier": ["LH"], "dep_delay": [3]})
        >>> ds.optimize.optimize_indices()
        >>> ds.stats.index_stats("carrier_idx")["num_unindexed_rows"]
        0
        """
        if kwargs:
            raise TypeError(f"optimize_indices() got an unexpected argument {next(iter(kwargs))!r}")
        names = None if index_names is None else check_names("index_names", index_names)
        count = None if num_indices_to_merge is None else check_count("num_indices_to_merge", num_indices_to_merge)
        check_flag("retrain", retrain)
        with tracked(progress, "optimize_indices") as tracker:
            version = optimize_indices(
                self._dataset.table_version, names, num_to_merge=count, retrain=retrain, tracker=tracker
            )
        self._dataset.move_to(version)

    def migrate(self, data_storage_version: str = "stable") -> MigrationMetrics:
        """Migrate the table to a newer data format, 2.2 by default, and move the dataset to the new version.

        Every fragment in another format gets one new file with the same rows. Ids of rows and fragments, deletions and
        indexes stay valid. One commit changes all fragments. An interrupted run can be resumed; concurrent changes are
        included. Older versions stay readable until they are cleaned up.

        Raises
        ------
        InvalidInputError
            If the format is older than that of the table.
        UnsupportedFeatureError
            If a column cannot be converted.
        CommitConflictError
            If the table keeps changing.

        Examples
        --------
        >>> old = lancetable.write_dataset({"id": [1, 2]}, "old.lance", data_storage_version="2.0")
        >>> old.optimize.migrate().fragments_changed
        1
        >>> old.data_storage_version
        '2.2'
        """
        done = migrate.migrate(self._dataset.table_version, FileVersion.parse(data_storage_version))
        self._dataset.move_to(done.version)
        return MigrationMetrics(done.fragments, done.files_written, done.files_reused, done.bytes_written)

    def enable_auto_cleanup(self, auto_cleanup_config: AutoCleanupConfig, **kwargs: Any) -> None:
        """Configure writers to remove versions older than `older_than_seconds` every `interval` commits.

        A failed cleanup is logged, and the commit still succeeds. `update_config` sets
        `lance.auto_cleanup.retain_versions` and `lance.auto_cleanup.delete_rate_limit`.

        Raises
        ------
        InvalidInputError
            If a key is unknown or missing, or a number is out of range.
        TypeError
            If an argument is unknown or a value is not an integer.

        Examples
        --------
        >>> ds.optimize.enable_auto_cleanup({"interval": 20, "older_than_seconds": 86400})
        >>> ds.config()["lance.auto_cleanup.older_than"]
        '86400s'
        """
        if kwargs:
            raise TypeError(f"enable_auto_cleanup() got an unexpected argument {next(iter(kwargs))!r}")
        self._dataset.update_config({**config_of(auto_cleanup_config)})

    def disable_auto_cleanup(self, **kwargs: Any) -> None:
        """Disable automatic cleanup.

        Raises
        ------
        TypeError
            If an argument is given.
        """
        if kwargs:
            raise TypeError(f"disable_auto_cleanup() got an unexpected argument {next(iter(kwargs))!r}")
        self._dataset.delete_config_keys(["lance.auto_cleanup.interval", "lance.auto_cleanup.older_than"])


# --- options and JSON -------------------------------------------------------------------------------------------------

OPTIONS = frozenset(CompactionOptions.__annotations__)
SETTINGS = frozenset(field.name for field in fields(CompactionSettings))
# The types of the options that are not integers.
OPTION_TYPES: dict[str, Any] = {
    "materialize_deletions": bool,
    "defer_index_remap": bool,
    "compaction_mode": str,
    "data_storage_version": str,
    "materialize_deletions_threshold": (int, float),
    "excluded_fragment_ids": (list, tuple, set, frozenset),
}


def config_of(options: AutoCleanupConfig) -> dict[str, str]:
    """Return the config entries for automatic cleanup.

    Raises
    ------
    InvalidInputError
        If a key is unknown or missing, or a number is out of range.
    TypeError
        If a value is not an integer.
    """
    known = ("interval", "older_than_seconds")
    if set(options) != set(known):
        raise InvalidInputError(
            f"expected the keys {' and '.join(known)} for automatic cleanup, got {sorted(options)};"
            " set other keys, such as lance.auto_cleanup.retain_versions, with update_config"
        )
    interval, seconds = (check_integer(name, options[name]) for name in known)  # type: ignore[literal-required]
    if interval < 1 or seconds < 0:
        raise InvalidInputError("interval must be at least 1, and older_than_seconds not negative")
    return {"lance.auto_cleanup.interval": str(interval), "lance.auto_cleanup.older_than": f"{seconds}s"}


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options.

    Raises
    ------
    InvalidInputError
        If an option is unknown or negative.
    TypeError
        If a value has a wrong type.
    """
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise InvalidInputError(f"Invalid compaction option: {unknown[0]}")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        expected = OPTION_TYPES.get(name, int)
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
            raise TypeError(f"{name} must be {expected}, got {type(value).__name__}")
        if expected is int and value < 0:
            raise InvalidInputError(f"{name} must be non-negative, got {value}")
    if "excluded_fragment_ids" in given:
        given["excluded_fragment_ids"] = sorted(given["excluded_fragment_ids"])
    return given


def settings_for(dataset: LanceDataset, options: Mapping[str, Any]) -> CompactionSettings:
    """Return the settings of a compaction of this dataset. Raises InvalidInputError, UnsupportedFeatureError."""
    given = {name: value for name, value in options.items() if name in SETTINGS}
    if "excluded_fragment_ids" in given:
        given["excluded_fragment_ids"] = frozenset(given["excluded_fragment_ids"])
    if "data_storage_version" in given:
        given["data_storage_version"] = FileVersion.parse(given["data_storage_version"])
    return compact.settings_of(dataset.table_version, given)


def metrics_of(results: Iterable[Rewritten]) -> CompactionMetrics:
    """Return the sum of the metrics of all tasks."""
    return CompactionMetrics(*map(sum, zip(*(result.counts for result in results), strict=True)))


def parse_json(text: str, *keys: str) -> dict[str, Any]:
    """Parse a JSON object with these keys.

    Raises
    ------
    InvalidInputError
        If it is not such an object, or its `read_version` is not an integer.
    """
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"invalid JSON of a compaction: {error}") from error
    if not isinstance(value, dict) or any(key not in value for key in keys):
        raise InvalidInputError(f"invalid JSON of a compaction: expected an object with {', '.join(keys)}")
    if not isinstance(value["read_version"], int) or isinstance(value["read_version"], bool):
        raise InvalidInputError("invalid JSON of a compaction: read_version must be an integer")
    return value


def parse_fragments(value: Any) -> tuple[Any, ...]:
    """Return the fragments in a JSON value.

    Raises
    ------
    InvalidInputError
        If they are missing or invalid.
    """
    if not isinstance(value, dict) or not isinstance(value.get("fragments"), list):
        raise InvalidInputError("invalid JSON of a compaction: fragments are missing")
    return tuple(FragmentMetadata.from_json(json.dumps(fragment)).to_format() for fragment in value["fragments"])


def parse_bytes(value: Any) -> bytes | None:
    """Return the bytes of a list of numbers in a JSON value, or None.

    Raises
    ------
    InvalidInputError
        If it is another value.
    """
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(octet, int) and 0 <= octet < 256 for octet in value):
        raise InvalidInputError("invalid JSON of a compaction: row_addrs must be a list of bytes")
    return bytes(value)


def parse_options(value: Any) -> dict[str, Any]:
    """Return the known options in a JSON value, which another writer may have produced.

    Raises
    ------
    InvalidInputError
        If the value is not an object or an option is negative.
    """
    if not isinstance(value, dict):
        raise InvalidInputError("invalid JSON of a compaction: options are missing")
    return check_options({name: option for name, option in value.items() if name in OPTIONS})
