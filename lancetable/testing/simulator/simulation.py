"""Simulation of processes that use one table, in random order and with random faults, followed by checks of the result.

    def load(job):                                       # one process; it may crash at any call of the store
        for day in range(3):
            job.attempt(lambda day=day: lance.write_dataset(rows(day), job.uri, mode="append"), f"day {day}")

    def check_run(run):                                      # checks of the caller, in addition to the standard checks
        assert run.rows("day").count(0) <= 1

    simulate({"a": load, "b": load}, range(200), setup=make_table, check_run=check_run)

Standard checks after every run:

    an acknowledged attempt is in the history exactly once, a rejected one not at all, any other one at most once; no
    manifest was written twice; versions have no gaps except after a cleanup; every file of a remaining version exists
    and can be read; fragment ids are never reused; no version conflicts with a version that it follows; without a
    fault, the only failures are conflicts; each read of a version saw exactly its contents.

A failure reports its seed; `simulate(jobs, [seed])` repeats that run exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from lancetable.commit.conflicts import Context, Severity, check
from lancetable.dataset import LanceDataset, dataset
from lancetable.errors import CommitConflictError, CommitStateUnknownError, CorruptFileError, LanceError, NotFoundError
from lancetable.file.thread_pool import mark_worker
from lancetable.format import transaction as tx
from lancetable.format.manifest_naming import parse_manifest_name
from lancetable.table import transactions
from lancetable.table.version import TableVersion, checkout, latest, open_version
from lancetable.testing.simulator.scheduler import Crash, Task
from lancetable.testing.simulator.world import FaultAt, Faults, SimulatedRows, World, virtual

T = TypeVar("T")
URI = "memory://simulated/t.lance"
VERSIONS = "simulated/t.lance/_versions"
_DAY_NS = 24 * 3600 * 10**9
_SETUP_AGE_NS = 30 * _DAY_NS  # age of the files of the setup
_MAX_RESTARTS = 20


class SimulationError(AssertionError):
    """A run violated an invariant. The message has the seed and the last calls."""


@dataclass
class Attempt:
    """One change that a job tried. `outcome` is acknowledged, conflict, failed, unknown, crashed or running."""

    job: str
    name: str
    effect: Callable[..., Any] | None = None
    outcome: str = "running"
    error: BaseException | None = None
    versions: list[int] = field(default_factory=list)  # versions that it actually published
    on_published: Callable[[str], Any] | None = None  # called with the path of the manifest before it can be read
    commits: int | None = 1  # number of versions of one success; None for any number


class Job:
    """Interface of one job to the simulation."""

    def __init__(self, run: Run, task: Task, rng: random.Random) -> None:
        self.run, self.task, self.rng = run, task, rng
        self.uri = URI
        self.current: Attempt | None = None

    @property
    def name(self) -> str:
        """Name of the job."""
        return self.task.name

    def attempt(
        self,
        act: Callable[[], T],
        name: str = "",
        *,
        effect: Callable[..., Any] | None = None,
        commits: int | None = 1,
        on_published: Callable[[str], Any] | None = None,
    ) -> T | None:
        """Make one change and record its outcome.

        Parameters
        ----------
        act
            Function that makes the change.
        name
            Name for messages.
        effect
            Effect of the change on the table's contents, for use by the caller's `check_run`.
        commits
            Number of versions that one success publishes, or None for any number.
        on_published
            Called with the path of each manifest that the attempt publishes, before it can be read.

        Returns
        -------
        object or None
            The result of `act`, or None if it failed.

        Raises
        ------
        Crash
            If the process dies. Jobs let it pass; the simulation restarts the process.
        """
        attempt = Attempt(self.name, name, effect, commits=commits, on_published=on_published)
        self.run.attempts.append(attempt)
        self.current = attempt
        faults = self.task.faults
        try:
            result = act()
        except Crash as error:
            attempt.outcome, attempt.error = "crashed", error
            raise
        except CommitStateUnknownError as error:
            attempt.outcome, attempt.error = "unknown", error
        except CommitConflictError as error:
            attempt.outcome, attempt.error = "conflict", error
            return None
        except LanceError as error:
            attempt.outcome, attempt.error = "failed", error
        else:
            attempt.outcome = "acknowledged"
            return result
        finally:
            self.current = None
        if self.task.faults == faults and not self._was_cleaned(attempt.error):
            self.run.report(f"{self.name}: {attempt.name} failed without a fault: {attempt.error!r}")
        return None

    def read_newest(self, read: Callable[[LanceDataset], Any] | None = None) -> tuple[int, Any] | None:
        """Read the newest version and return its number and contents, or None if the read failed.

        After the run, the contents are compared with those of that version.
        """
        faults, known = self.task.faults, self.run.newest_acknowledged()
        try:
            newest = dataset(self.uri)
            version = newest.version
            content = (read or self.run.read)(newest)
        except LanceError as error:
            if self.task.faults == faults and not self._was_cleaned(error):
                self.run.report(f"{self.name}: a read failed without a fault: {error!r}")
            return None
        self.run.observed.append((self.name, version, content))
        if version < known and not self.run.world.faults.stale_list:
            self.run.report(f"{self.name}: read version {version} after version {known} was acknowledged")
        return version, content

    def sleep(self, seconds: float) -> None:
        """Suspend the job for some virtual time."""
        self.run.world.scheduler.sleep(seconds)

    def _was_cleaned(self, error: BaseException | None) -> bool:
        """Return True if a cleanup of young versions explains the error, which makes some outcomes unknown."""
        return self.run.cleaned and isinstance(error, NotFoundError | CommitStateUnknownError)


Work = Callable[[Job], None]


class Run:
    """One run: attempts, observations, published versions and violations."""

    def __init__(self, seed: int, faults: Faults | FaultAt, read: Callable[[LanceDataset], Any] | None = None) -> None:
        self.seed = seed
        self.uri = URI
        self.world = World(seed, faults)
        self.read = read or (lambda seen: seen.to_table().to_pylist())
        self.attempts: list[Attempt] = []
        self.observed: list[tuple[str, int, Any]] = []
        self.violations: list[str] = []
        self.notes: dict[Any, Any] = {}  # data that jobs pass to `check_run`
        self.first = 0  # newest version of the setup
        self.cleaned = False  # True if old versions may have been removed
        self._jobs: dict[Task, Job] = {}
        self._contents: dict[int, Any] = {}
        self._owner: dict[tuple[str, int], list[Attempt | None]] = {}  # by directory and version

    def report(self, violation: str) -> None:
        """Record a violation."""
        self.violations.append(violation)

    def newest_acknowledged(self) -> int:
        """Return the newest version that was acknowledged to a caller, 0 if there is none."""
        acknowledged = (attempt for attempt in self.attempts if attempt.outcome == "acknowledged")
        return max((version for attempt in acknowledged for version in attempt.versions), default=0)

    def dataset(self, version: int | None = None) -> LanceDataset:
        """Open the table for checks."""
        return dataset(self.uri, version)

    def content(self, version: int) -> Any:
        """Return the result of `read` for a version, or None if the version was cleaned up.

        Raises
        ------
        NotFoundError
            If the version does not exist although no job cleaned up.
        """
        if version not in self._contents:
            try:
                self._contents[version] = self.read(self.dataset(version))
            except NotFoundError:
                if not self.cleaned:
                    raise
                self._contents[version] = None
        return self._contents[version]

    def rows(self, column: str) -> list[Any]:
        """Return the values of one column in the newest version."""
        values: list[Any] = self.dataset().to_table(columns=[column])[column].to_pylist()
        return values

    def owner(self, version: int) -> Attempt | None:
        """Return the attempt that published a version; None for the setup."""
        attempts = self._owner.get((VERSIONS, version))
        return attempts[-1] if attempts else None

    def execute(
        self, jobs: Mapping[str, Work], setup: Callable[[str], Any] | None, external: bool | None = None
    ) -> None:
        """Create the table, then run all jobs to their end.

        `external` selects commits through an external manifest store; None draws it from the seed.
        """
        world = self.world
        drawn = world.rng.random() < 0.25
        if drawn if external is None else external:  # commit through an external manifest store
            world.rows = SimulatedRows(world)
            world.store.exclusive = world.rng.random() < 0.5
        if setup is not None:
            world.scheduler.now_ns -= _SETUP_AGE_NS
            setup(self.uri)
            world.scheduler.now_ns += _SETUP_AGE_NS
            self.first = latest(open_version(self.uri)).version
        world.store.ordered = world.rng.random() < 0.5
        world.store.reports_existing = world.rng.random() < 0.5
        for name, work in jobs.items():
            skew = world.rng.choice([0, 0, -_DAY_NS, _DAY_NS])
            task = world.scheduler.add(name, partial(self._run_process, work=work), skew)
            self._jobs[task] = Job(self, task, random.Random(world.rng.getrandbits(64)))
        world.quiet = False
        world.scheduler.run()
        world.quiet = True

    def _run_process(self, task: Task, work: Work) -> None:
        """Run one process, and restart it after each crash.

        Raises
        ------
        AssertionError
            If the job raises it.
        """
        mark_worker()  # a task must use only one thread
        for _ in range(_MAX_RESTARTS):
            try:
                work(self._jobs[task])
                return
            except Crash:  # noqa: PERF203  # the process is restarted
                self.world.scheduler.sleep(self.world.rng.random())
                task.dead = False
            except AssertionError:
                raise
            except Exception as error:
                self.report(f"{task.name}: failed with {error!r}")
                return


# --- checks ----------------------------------------------------------------------------------------------------------


def check_history(run: Run) -> None:
    """Check the invariants of every table, independent of the jobs."""
    newest = latest(open_version(run.uri))
    kept = [location.version for location in newest.handler.history(newest.store, newest.base)]
    for (_, number), owners in run._owner.items():
        if len(owners) > 1:
            run.report(f"version {number} was written {len(owners)} times")
    if not run.cleaned and kept != list(range(1, newest.version + 1)):
        run.report(f"versions are missing; found {kept}")
    for attempt in run.attempts:
        check_attempt(run, attempt)
    files: dict[int, str] = {}
    highest, previous = -1, 0
    for number in kept:
        version = checkout(newest, number)
        check_files(run, version)
        message = version.manifest.message
        for fragment in message.fragments:
            if fragment.id > highest and previous == number - 1 and fragment.id in files:
                run.report(f"version {number}: fragment id {fragment.id} was reused")
            first = fragment.files[0].path if fragment.files else ""
            if previous and files.setdefault(fragment.id, first) != first and not may_replace_files(version):
                run.report(f"version {number}: fragment id {fragment.id} was assigned twice")
        counter = message.max_fragment_id if message.HasField("max_fragment_id") else -1
        if counter < highest:
            run.report(f"version {number}: the counter of fragment ids decreased from {highest} to {counter}")
        highest, previous = counter, number
        if not run.cleaned:
            check_order(run, newest, version)


def check_attempt(run: Run, attempt: Attempt) -> None:
    """Check that the number of published versions of an attempt agrees with its outcome."""
    times, label = len(attempt.versions), f"{attempt.job}: {attempt.name} ({attempt.outcome})"
    if attempt.commits is None or (attempt.commits == 0 and not times):
        return
    if attempt.outcome == "acknowledged" and times != attempt.commits:
        run.report(f"{label} was published {times} times instead of {attempt.commits}: {attempt.versions}")
    if attempt.outcome in ("failed", "conflict") and times >= attempt.commits:
        run.report(f"{label} was published as {attempt.versions}: {attempt.error!r}")
    if times > attempt.commits:
        run.report(f"{label} was published as {attempt.versions}")


def may_replace_files(version: TableVersion) -> bool:
    """Return True if a version may replace the files of a fragment without changing its id."""
    transaction = transaction_of(version)
    if transaction is None:
        return True
    return isinstance(transaction.operation, tx.DataReplacement | tx.Update | tx.Merge | tx.Overwrite)


def transaction_of(version: TableVersion) -> tx.Transaction | None:
    """Return the transaction of a version, or None if it cannot be read."""
    try:
        return transactions.read(version.store, version.base, version.file)
    except CorruptFileError:
        return None


def check_files(run: Run, version: TableVersion) -> None:
    """Check that every file of a version exists."""
    for fragment in version.manifest.fragments:
        paths = [version.data_file_path(file) for file in fragment.files]
        if fragment.deletion_file is not None:
            paths.append(version.deletion_file_path(fragment.id, fragment.deletion_file))
        for path in paths:
            if version.store.find(path) is None:
                run.report(f"version {version.version} refers to {path}, which does not exist")


def check_order(run: Run, newest: TableVersion, version: TableVersion) -> None:
    """Check that a version does not conflict with any version between its read version and itself."""
    transaction = transaction_of(version)
    if transaction is None or version.version <= run.first:
        return
    known = frozenset(fragment.id for fragment in getattr(transaction.operation, "updated_fragments", ()))
    for number in range(max(transaction.read_version, 1) + 1, version.version):
        other = transaction_of(checkout(newest, number))
        verdict = check(transaction.operation, None if other is None else other.operation, Context(known))
        if verdict.severity > Severity.REBASABLE:
            run.report(f"version {version.version} conflicts with version {number}: {verdict.reason}")


def check_observed(run: Run) -> None:
    """Check that every recorded read saw the contents of its version."""
    for reader, version, content in run.observed:
        if run.content(version) not in (None, content):
            run.report(f"{reader} read contents of version {version} that differ from that version: {content}")


def simulate(
    jobs: Mapping[str, Work] | Callable[[Run], Mapping[str, Work]],
    seeds: Iterable[int],
    *,
    setup: Callable[[str], Any] | None = None,
    check_run: Callable[[Run], Any] | None = None,
    read: Callable[[LanceDataset], Any] | None = None,
    faults: Faults | FaultAt | None = None,
    external: bool | None = None,
) -> list[Run]:
    """Run the jobs once for each seed.

    Jobs open the table at `job.uri`. `time`, `random` and `uuid4` follow the seed inside jobs, which must not start
    threads.

    Parameters
    ----------
    jobs
        The processes by name, or a function that creates them for a run.
    seeds
        One run for each seed.
    setup
        Creates the table at the given address, before any fault is injected.
    check_run
        Checks the finished run. Raises AssertionError for a violation.
    read
        Reads a dataset for comparisons of observations; all rows by default.
    faults
        Probabilities of the faults, or one fault at a certain call.
    external
        Commit through an external manifest store; drawn from the seed by default.

    Returns
    -------
    list of Run
        One finished run for each seed.

    Raises
    ------
    SimulationError
        At the first run that violates an invariant.
    """
    runs = []
    for seed in seeds:
        run = Run(seed, faults or Faults(), read)
        with virtual(run.world):
            jobs_of_run = jobs(run) if callable(jobs) else jobs
            run.world.on_publish = partial(_published, run)
            run.world.on_removal = partial(_removed, run)
            run.execute(jobs_of_run, setup, external)
            try:
                check_history(run)
                if not run.violations:
                    check_observed(run)
                    if check_run is not None:
                        check_run(run)
            except AssertionError as error:
                run.report(str(error))
            except LanceError as error:
                run.report(f"the checks of the finished table failed: {error!r}")
        if run.violations:
            raise SimulationError(_failure_message(run))
        runs.append(run)
    return runs


def _published(run: Run, path: str, task: Task | None) -> None:
    directory, _, name = path.rpartition("/")
    parsed = parse_manifest_name(name)
    if parsed is None:
        return
    attempt = None if task is None else run._jobs[task].current
    run._owner.setdefault((directory, parsed[0]), []).append(attempt)
    if attempt is not None:
        attempt.versions.append(parsed[0])
        if attempt.on_published is not None:
            attempt.on_published(path)


def _removed(run: Run, path: str, task: Task | None) -> None:
    """Record the removal of a version by the attempt that published it, which is allowed before acknowledgement."""
    directory, _, name = path.rpartition("/")
    parsed = parse_manifest_name(name)
    attempt = None if task is None else run._jobs[task].current
    owners = run._owner.get((directory, parsed[0])) if parsed is not None else None
    if parsed is not None and attempt is not None and owners and owners[-1] is attempt:
        owners.pop()
        attempt.versions.remove(parsed[0])


def _failure_message(run: Run) -> str:
    attempts = "\n".join(f"  {tried.job}: {tried.name}: {tried.outcome} {tried.versions}" for tried in run.attempts)
    violations = "\n".join(f"  {violation}" for violation in run.violations)
    return (
        f"seed {run.seed}: {len(run.violations)} violations; simulate(jobs, [{run.seed}]) repeats the run\n"
        f"{violations}\nattempts:\n{attempts}\nlast calls:\n{run.world.format_trace()}"
    )
