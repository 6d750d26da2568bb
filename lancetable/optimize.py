"""Maintenance of a table's fragments: compaction in one call, or planned here and executed anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from lancetable.errors import InvalidInputError
from lancetable.format.version import FileVersion
from lancetable.fragment_metadata import FragmentMetadata
from lancetable.ops import compact, migrate
from lancetable.ops.compact import CompactionSettings, Rewritten, Task
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
    """What to compact, and into what; see `DatasetOptimizer.compact_files`."""

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
    """What a compaction did; files count those of deletions too."""

    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0


class CompactionTask:
    """Neighbouring fragments that become one or more new ones. Pickles, and goes as JSON to where it is executed."""

    def __init__(self, task: Task, options: Mapping[str, Any]) -> None:
        self._task, self._options = task, dict(options)

    @property
    def fragments(self) -> list[FragmentMetadata]:
        """The fragments as they were when the compaction was planned."""
        return [FragmentMetadata.from_format(each) for each in self._task.fragments]

    @property
    def read_version(self) -> int:
        """The version that was planned on."""
        return self._task.read_version

    def execute(self, dataset: LanceDataset, *, progress: ProgressLike = None) -> RewriteResult:
        """Write the new files, without committing anything; `dataset` may be at any version of the table.

        `progress` is told how far it is, see `lancetable.progress`; pylance has no such argument. Raises
        VersionNotFoundError when the version planned on is gone, InvalidOperationError for another table.
        """
        settings = settings_for(dataset, self._options)
        with tracked(progress, "compact") as tracker:
            if tracker is not None:
                tracker.begin(total_rows=sum(each.num_rows for each in self.fragments))
            return RewriteResult(compact.execute(dataset.table_version, self._task, settings, tracker))

    def json(self) -> str:
        """The task as JSON; see `from_json`."""
        fragments = [each.to_json() for each in self.fragments]
        value = {"task": {"fragments": fragments}, "read_version": self.read_version, "options": self._options}
        return json.dumps(value)

    @staticmethod
    def from_json(text: str) -> CompactionTask:
        """The task that `json` wrote. Raises InvalidInputError for anything else."""
        value = parsed(text, "task", "read_version", "options")
        task = Task(parsed_fragments(value["task"]), value["read_version"])
        return CompactionTask(task, parsed_options(value["options"]))

    def __repr__(self) -> str:
        return f"CompactionTask(read_version={self.read_version}, fragments={self.fragments})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompactionTask) and self.json() == other.json()

    def __hash__(self) -> int:
        return hash(self.json())


class RewriteResult:
    """New fragments, not committed yet, and those whose rows they hold. Pickles, and travels as JSON."""

    def __init__(self, rewritten: Rewritten) -> None:
        self._rewritten = rewritten

    @property
    def original_fragments(self) -> list[FragmentMetadata]:
        """The fragments that were read."""
        return [FragmentMetadata.from_format(each) for each in self._rewritten.old_fragments]

    @property
    def new_fragments(self) -> list[FragmentMetadata]:
        """The fragments that were written; the commit gives them their ids."""
        return [FragmentMetadata.from_format(each) for each in self._rewritten.new_fragments]

    @property
    def read_version(self) -> int:
        """The version that was planned on."""
        return self._rewritten.read_version

    @property
    def metrics(self) -> CompactionMetrics:
        """How many fragments and files go and come."""
        return CompactionMetrics(*self._rewritten.counts)

    def json(self) -> str:
        """The result as JSON; see `from_json`."""
        return json.dumps(
            {
                "metrics": asdict(self.metrics),
                "new_fragments": [each.to_json() for each in self.new_fragments],
                "read_version": self.read_version,
                "original_fragments": [each.to_json() for each in self.original_fragments],
                "row_addrs": None,
            }
        )

    @staticmethod
    def from_json(text: str) -> RewriteResult:
        """The result that `json` wrote. Raises InvalidInputError for anything else."""
        value = parsed(text, "new_fragments", "original_fragments", "read_version")
        old, new = (parsed_fragments({"fragments": value[key]}) for key in ("original_fragments", "new_fragments"))
        return RewriteResult(Rewritten(old, new, value["read_version"]))

    def __repr__(self) -> str:
        return (
            f"RewriteResult(read_version={self.read_version}, new_fragments={self.new_fragments}, "
            f"old_fragments={self.original_fragments})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RewriteResult) and self._rewritten == other._rewritten

    def __hash__(self) -> int:
        return hash(self.json())


class CompactionPlan:
    """The tasks that compact one version of a table: run each anywhere, commit any of the results."""

    def __init__(self, tasks: Iterable[Task], read_version: int, options: Mapping[str, Any]) -> None:
        self._tasks, self._read_version, self._options = list(tasks), read_version, dict(options)

    @property
    def tasks(self) -> list[CompactionTask]:
        """The tasks, in table order."""
        return [CompactionTask(each, self._options) for each in self._tasks]

    @property
    def read_version(self) -> int:
        """The version that was planned on."""
        return self._read_version

    def num_tasks(self) -> int:
        """How many tasks there are."""
        return len(self._tasks)

    def json(self) -> str:
        """The plan as JSON; see `from_json`."""
        tasks = [{"fragments": [each.to_json() for each in task.fragments]} for task in self.tasks]
        return json.dumps({"tasks": tasks, "read_version": self._read_version, "options": self._options})

    @staticmethod
    def from_json(text: str) -> CompactionPlan:
        """The plan that `json` wrote. Raises InvalidInputError for anything else."""
        value = parsed(text, "tasks", "read_version", "options")
        read_version = value["read_version"]
        tasks = [Task(parsed_fragments(each), read_version) for each in value["tasks"]]
        return CompactionPlan(tasks, read_version, parsed_options(value["options"]))

    def __iter__(self) -> Iterator[CompactionTask]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"CompactionPlan(read_version={self._read_version}, tasks=<{len(self._tasks)} compaction tasks>)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CompactionPlan) and self.json() == other.json()

    def __hash__(self) -> int:
        return hash(self.json())


class Compaction:
    """Compaction in steps, for schedulers of one's own: plan, execute each task somewhere, commit the results."""

    @staticmethod
    def plan(dataset: LanceDataset, options: CompactionOptions | dict[str, Any] | None = None) -> CompactionPlan:
        """The tasks that would compact the dataset at its version. Raises InvalidInputError for a wrong option."""
        given = checked_options(options or {})
        version = dataset.table_version
        return CompactionPlan(compact.plan(version, settings_for(dataset, given)), version.version, given)

    @staticmethod
    def commit(
        dataset: LanceDataset, rewrites: list[RewriteResult], options: CompactionOptions | dict[str, Any] | None = None
    ) -> CompactionMetrics:
        """Make results the newest version, and move the dataset there. `options` may be those of the plan.

        Fragments of tasks without a result stay as they are. Raises RetryableCommitConflictError when moved rows have
        changed since the plan, InvalidOperationError for two results of the same fragments.
        """
        checked_options(options or {})
        results = [each._rewritten for each in rewrites]
        dataset._table = compact.commit(dataset.table_version, results)
        return metrics_of(results)

    @staticmethod
    def execute(
        dataset: LanceDataset,
        options: CompactionOptions | dict[str, Any] | None = None,
        *,
        progress: ProgressLike = None,
    ) -> CompactionMetrics:
        """Plan, execute and commit here, and move the dataset to the new version.

        `progress` is told how far it is, see `lancetable.progress`; pylance has no such argument.
        """
        settings = settings_for(dataset, checked_options(options or {}))
        with tracked(progress, "compact") as tracker:
            dataset._table, results = compact.compact(dataset.table_version, settings, tracker)
        return metrics_of(results)


@dataclass(frozen=True)
class MigrationMetrics:
    """What a migration did. `files_reused` were written by an earlier run that did not get to its commit."""

    fragments_changed: int
    files_written: int
    files_reused: int
    bytes_written: int


class DatasetOptimizer:
    """`LanceDataset.optimize`: maintenance of a table."""

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
        """Write small neighbouring fragments, and those with many deleted rows, anew; move the dataset there.

        Rows keep their order. Options not given are taken from the table's config (`lance.compaction.<option>`).

        Parameters
        ----------
        target_rows_per_fragment : int, default 1,048,576
            Fragments with fewer rows are put together until they have so many.
        max_rows_per_group : int, default 1,024
            Rows per batch in files of version 0.1.
        max_bytes_per_file : int, optional
            New data files end here.
        materialize_deletions : bool, default True
            Rewrite a fragment by itself if more than a share of its rows is deleted.
        materialize_deletions_threshold : float, default 0.1
            That share.
        num_threads : int, optional
            Tasks that run at once; all cores by default.
        batch_size : int, optional
            Rows read at a time.
        compaction_mode : str, optional
            "reencode" or "try_binary_copy"; both read and write rows.
        max_source_fragments, max_source_rows, max_source_bytes : int, optional
            Do no more than that in this run: tasks are taken in order until one would exceed a limit. If that is the
            first one, nothing is compacted and a warning is logged.
        excluded_fragment_ids : list of int, optional
            Leave these alone.
        data_storage_version : str, optional
            Version of the new files; that of the table by default.
        progress : callable or True, optional
            Told how far it is, or shown as a bar: see `lancetable.progress`. pylance has no such argument.

        Raises RetryableCommitConflictError if rows that were moved changed meanwhile; nothing was lost, try again.

        Examples
        --------
        >>> ds.optimize.compact_files(target_rows_per_fragment=1_000_000)  # doctest: +SKIP
        CompactionMetrics(fragments_removed=12, fragments_added=1, files_removed=12, files_added=1)
        """
        given = {name: value for name, value in locals().items() if name in OPTIONS and value is not None}
        return Compaction.execute(self._dataset, given, progress=progress)

    def migrate(self, data_storage_version: str = "2.1") -> MigrationMetrics:
        """Bring the table forward to a newer data format, and the dataset to the new version.

        Every fragment that is in another format gets one new file with the same rows; ids of rows and fragments,
        deletions and indexes stay. One commit changes all of it. A run that was interrupted goes on where it stopped;
        changes by others meanwhile are taken in. Older versions stay readable until they are cleaned up.

        Raises InvalidInputError for a format older than the table's, UnsupportedFeatureError for columns that cannot be
        carried over, CommitConflictError if the table changes faster than it can be followed.
        """
        done = migrate.migrate(self._dataset.table_version, FileVersion.parse(data_storage_version))
        self._dataset.move_to(done.version)
        return MigrationMetrics(done.fragments, done.files_written, done.files_reused, done.bytes_written)

    def enable_auto_cleanup(self, auto_cleanup_config: AutoCleanupConfig, **kwargs: Any) -> None:
        """Have writers clean up old versions every `interval` commits: those older than `older_than_seconds`.

        A cleanup that fails is logged, and the commit succeeds. `lance.auto_cleanup.retain_versions` and
        `lance.auto_cleanup.delete_rate_limit` are set by `update_config`. Raises InvalidInputError for other keys or
        numbers out of range, TypeError for an unknown argument.
        """
        if kwargs:
            raise TypeError(f"enable_auto_cleanup() got an unexpected argument {next(iter(kwargs))!r}")
        self._dataset.update_config({**config_of(auto_cleanup_config)})

    def disable_auto_cleanup(self, **kwargs: Any) -> None:
        """Undo `enable_auto_cleanup`. Raises TypeError for an unknown argument."""
        if kwargs:
            raise TypeError(f"disable_auto_cleanup() got an unexpected argument {next(iter(kwargs))!r}")
        self._dataset.delete_config_keys(["lance.auto_cleanup.interval", "lance.auto_cleanup.older_than"])


# --- options and JSON -------------------------------------------------------------------------------------------------

OPTIONS = frozenset(CompactionOptions.__annotations__)
SETTINGS = frozenset(each.name for each in fields(CompactionSettings))


def config_of(options: AutoCleanupConfig) -> dict[str, str]:
    """The config of a table that is to be cleaned up automatically. Raises InvalidInputError, TypeError."""
    known = ("interval", "older_than_seconds")
    if set(options) != set(known):
        raise InvalidInputError(
            f"expected the keys {' and '.join(known)} for automatic cleanup, got {sorted(options)}; set others, such as"
            " lance.auto_cleanup.retain_versions, by update_config"
        )
    interval, seconds = options["interval"], options["older_than_seconds"]
    for name, value in (("interval", interval), ("older_than_seconds", seconds)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if interval < 1 or seconds < 0:
        raise InvalidInputError("interval must be at least 1, and older_than_seconds not negative")
    return {"lance.auto_cleanup.interval": str(interval), "lance.auto_cleanup.older_than": f"{seconds}s"}


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Raises InvalidInputError for an unknown option, TypeError for a value of a wrong type."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise InvalidInputError(f"Invalid compaction option: {name}")
        if value is None:
            continue
        if name in ("materialize_deletions", "defer_index_remap"):
            wanted: Any = bool
        elif name in ("compaction_mode", "data_storage_version"):
            wanted = str
        elif name == "materialize_deletions_threshold":
            wanted = (int, float)
        elif name == "excluded_fragment_ids":
            wanted = (list, tuple, set, frozenset)
        else:
            wanted = int
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise TypeError(f"{name} must be {wanted}, got {type(value).__name__}")
        if wanted is int and value < 0:
            raise InvalidInputError(f"{name} must be non-negative, got {value}")
    given = {name: value for name, value in options.items() if value is not None}
    if "excluded_fragment_ids" in given:
        given["excluded_fragment_ids"] = sorted(given["excluded_fragment_ids"])
    return given


def settings_for(dataset: LanceDataset, options: Mapping[str, Any]) -> CompactionSettings:
    """The settings of a compaction of this dataset."""
    given = {name: value for name, value in options.items() if name in SETTINGS}
    if "excluded_fragment_ids" in given:
        given["excluded_fragment_ids"] = frozenset(given["excluded_fragment_ids"])
    if "data_storage_version" in given:
        given["data_storage_version"] = FileVersion.parse(given["data_storage_version"])
    return compact.settings_of(dataset.table_version, given)


def metrics_of(results: Iterable[Rewritten]) -> CompactionMetrics:
    """The sum over tasks."""
    sums = [sum(each) for each in zip(*(result.counts for result in results), strict=True)]
    return CompactionMetrics(*sums)


def parsed(text: str, *keys: str) -> dict[str, Any]:
    """A JSON object with these keys. Raises InvalidInputError."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"not the JSON of a compaction: {error}") from error
    if not isinstance(value, dict) or any(key not in value for key in keys):
        raise InvalidInputError(f"not the JSON of a compaction: it must be an object with {', '.join(keys)}")
    if not isinstance(value["read_version"], int) or isinstance(value["read_version"], bool):
        raise InvalidInputError("not the JSON of a compaction: read_version is no number")
    return value


def parsed_fragments(value: Any) -> tuple[Any, ...]:
    """The fragments in a JSON value. Raises InvalidInputError."""
    if not isinstance(value, dict) or not isinstance(value.get("fragments"), list):
        raise InvalidInputError("not the JSON of a compaction: fragments are missing")
    return tuple(FragmentMetadata.from_json(json.dumps(each)).to_format() for each in value["fragments"])


def parsed_options(value: Any) -> dict[str, Any]:
    """The options that we know of among those in a JSON value, which may be of another writer."""
    if not isinstance(value, dict):
        raise InvalidInputError("not the JSON of a compaction: options are missing")
    return checked_options({name: each for name, each in value.items() if name in OPTIONS and each is not None})
