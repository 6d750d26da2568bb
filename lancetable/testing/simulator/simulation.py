"""Run jobs of several processes against one table, in every order and with every mishap, and judge what came of it.

    def load(job):                                       # one process; it may die at any call to the store
        for day in range(3):
            job.attempt(lambda day=day: lance.write_dataset(rows(day), job.uri, mode="append"), f"day {day}")

    def judge(run):                                      # your own promise, beside those that are always checked
        assert run.rows("day").count(0) <= 1

    simulate({"a": load, "b": load}, range(200), setup=make_table, judge=judge)

Always checked, after every run:

    an attempt that was acknowledged is in the history exactly once, one that was refused not at all, any other one at
    most once; no manifest was written twice; versions follow each other without a gap, except those cleaned up; every
    file that a remaining version names is there, and can be read; fragment ids are never given out twice; no version
    follows another one that it conflicts with; a failure without a fault is a conflict and nothing else; whoever read
    a version saw all of it and nothing else.

A failure names its seed; `simulate(jobs, [seed])` repeats that run exactly.
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
from lancetable.format import transaction as tx
from lancetable.format.paths import parse_manifest_name
from lancetable.table import transactions
from lancetable.table.version import TableVersion, checkout, latest, open_version
from lancetable.testing.simulator.scheduler import Crash, Task
from lancetable.testing.simulator.world import FaultAt, Faults, SimulatedRows, World, as_worker, virtual

__all__ = ["Attempt", "Job", "Run", "SimulationError", "simulate"]

T = TypeVar("T")
URI = "memory://simulated/t.lance"
VERSIONS = "simulated/t.lance/_versions"
_DAY_NS = 24 * 3600 * 10**9
_SETUP_AGE_NS = 30 * _DAY_NS  # what the setup makes is old
_MAX_RESTARTS = 20


class SimulationError(AssertionError):
    """A run broke a promise; the text names the seed and the last calls."""


@dataclass
class Attempt:
    """One change that a job tried. `outcome` is acknowledged, conflict, failed, unknown, crashed or running."""

    job: str
    name: str
    effect: Callable[..., Any] | None = None
    outcome: str = "running"
    error: BaseException | None = None
    versions: list[int] = field(default_factory=list)  # in which it really was published
    on_published: Callable[[str], Any] | None = None  # told of the manifest at once, before anybody can read it
    commits: int | None = 1  # how many versions one success makes; None for any number


class Job:
    """What a piece of work holds of the simulation."""

    def __init__(self, run: Run, task: Task, rng: random.Random) -> None:
        self.run, self.task, self.rng = run, task, rng
        self.uri = URI
        self.current: Attempt | None = None

    @property
    def name(self) -> str:
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
        """Make one change and note what the caller was told. Returns what `act` returns, None where it failed.

        `effect` is for a judge of your own, which finds it with the attempt: what the change does to the contents.
        """
        mine = Attempt(self.name, name, effect, commits=commits, on_published=on_published)
        self.run.attempts.append(mine)
        self.current = mine
        faults = self.task.faults
        try:
            result = act()
        except Crash as error:
            mine.outcome, mine.error = "crashed", error
            raise
        except CommitStateUnknownError as error:
            mine.outcome, mine.error = "unknown", error
        except CommitConflictError as error:
            mine.outcome, mine.error = "conflict", error
            return None
        except LanceError as error:
            mine.outcome, mine.error = "failed", error
        else:
            mine.outcome = "acknowledged"
            return result
        finally:
            self.current = None
        if self.task.faults == faults and not self._was_cleaned(mine.error):
            self.run.complain(f"{self.name}: {mine.name} failed though nothing went wrong: {mine.error!r}")
        return None

    def look(self, read: Callable[[LanceDataset], Any] | None = None) -> tuple[int, Any] | None:
        """Open the newest version and read it; the judge compares this with that version. None where it failed."""
        faults, known = self.task.faults, self.run.newest_acknowledged()
        try:
            seen = dataset(self.uri)
            version = seen.version
            content = (read or self.run.read)(seen)
        except LanceError as error:
            if self.task.faults == faults and not self._was_cleaned(error):
                self.run.complain(f"{self.name}: could not read though nothing went wrong: {error!r}")
            return None
        self.run.observed.append((self.name, version, content))
        if version < known and not self.run.world.faults.stale_list:
            self.run.complain(f"{self.name}: saw version {version} after version {known} was acknowledged")
        return version, content

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.run.world.scheduler.sleep(seconds)

    def _was_cleaned(self, error: BaseException | None) -> bool:
        return self.run.cleaned and isinstance(error, NotFoundError)


Work = Callable[[Job], None]


class Run:
    """One run: what was tried, seen and published, and what was wrong with it."""

    def __init__(self, seed: int, faults: Faults | FaultAt, read: Callable[[LanceDataset], Any] | None = None) -> None:
        self.seed = seed
        self.uri = URI
        self.world = World(seed, faults)
        self.read = read or (lambda seen: seen.to_table().to_pylist())
        self.attempts: list[Attempt] = []
        self.observed: list[tuple[str, int, Any]] = []
        self.violations: list[str] = []
        self.notes: dict[Any, Any] = {}  # what jobs leave for the judge
        self.first = 0  # the version that the setup left
        self.cleaned = False  # whether old versions may be gone
        self._jobs: dict[Task, Job] = {}
        self._contents: dict[int, Any] = {}
        self._owner: dict[tuple[str, int], list[Attempt | None]] = {}  # by directory and version

    def complain(self, what: str) -> None:
        """Note a broken promise."""
        self.violations.append(what)

    def newest_acknowledged(self) -> int:
        """The newest version of which somebody was told that it is there."""
        done = [max(each.versions) for each in self.attempts if each.outcome == "acknowledged" and each.versions]
        return max(done, default=0)

    def dataset(self, version: int | None = None) -> LanceDataset:
        """The table, for judging."""
        return dataset(self.uri, version)

    def content(self, version: int) -> Any:
        """What `read` gives for a version, None where it was cleaned up."""
        if version not in self._contents:
            try:
                self._contents[version] = self.read(self.dataset(version))
            except NotFoundError:
                if not self.cleaned:
                    raise
                self._contents[version] = None
        return self._contents[version]

    def rows(self, column: str) -> list[Any]:
        """One column of the newest version."""
        values: list[Any] = self.dataset().to_table(columns=[column])[column].to_pylist()
        return values

    def owner(self, version: int) -> Attempt | None:
        """The attempt that published a version; None for the setup."""
        found = self._owner.get((VERSIONS, version))
        return found[-1] if found else None

    def execute(
        self, jobs: Mapping[str, Work], setup: Callable[[str], Any] | None, external: bool | None = None
    ) -> None:
        """Set up, then run all jobs to their end."""
        world = self.world
        drawn = world.rng.random() < 0.25
        if drawn if external is None else external:  # commits are decided by an external manifest store
            world.rows = SimulatedRows(world)
            world.store.exclusive = world.rng.random() < 0.5
        if setup is not None:
            world.scheduler.now_ns -= _SETUP_AGE_NS
            setup(self.uri)
            world.scheduler.now_ns += _SETUP_AGE_NS
            self.first = latest(open_version(self.uri)).version
        world.store.ordered = world.rng.random() < 0.5
        world.store.shows_rival = world.rng.random() < 0.5
        for name, work in jobs.items():
            skew = world.rng.choice([0, 0, -_DAY_NS, _DAY_NS])
            task = world.scheduler.add(name, partial(self._live, work=work), skew)
            self._jobs[task] = Job(self, task, random.Random(world.rng.getrandbits(64)))
        world.quiet = False
        world.scheduler.run()
        world.quiet = True

    def _live(self, task: Task, work: Work) -> None:
        """One process and those that are started after it died."""
        as_worker()
        for _ in range(_MAX_RESTARTS):
            try:
                work(self._jobs[task])
                return
            except Crash:  # noqa: PERF203  # a process that is started again
                self.world.scheduler.sleep(self.world.rng.random())
                task.dead = False
            except AssertionError:
                raise
            except Exception as error:
                self.complain(f"{task.name}: died of {error!r}")
                return


# --- judging ---------------------------------------------------------------------------------------------------------


def judge_history(run: Run) -> None:
    """What every table promises, whatever the jobs did."""
    newest = latest(open_version(run.uri))
    kept = [location.version for location in newest.handler.history(newest.store, newest.base)]
    for (_, number), owners in run._owner.items():
        if len(owners) > 1:
            run.complain(f"version {number} was written {len(owners)} times")
    if not run.cleaned and kept != list(range(1, newest.version + 1)):
        run.complain(f"versions are missing: {kept}")
    for attempt in run.attempts:
        judge_attempt(run, attempt)
    files: dict[int, str] = {}
    highest, previous = -1, 0
    for number in kept:
        version = checkout(newest, number)
        judge_files(run, version)
        message = version.manifest.message
        for fragment in message.fragments:
            if fragment.id > highest and previous == number - 1 and fragment.id in files:
                run.complain(f"version {number}: fragment id {fragment.id} was given out again")
            first = fragment.files[0].path if fragment.files else ""
            if previous and files.setdefault(fragment.id, first) != first and not replaced(version):
                run.complain(f"version {number}: fragment id {fragment.id} was given out twice")
        counter = message.max_fragment_id if message.HasField("max_fragment_id") else -1
        if counter < highest:
            run.complain(f"version {number}: the counter of fragment ids went back from {highest} to {counter}")
        highest, previous = counter, number
        if not run.cleaned:
            judge_order(run, newest, version)


def judge_attempt(run: Run, attempt: Attempt) -> None:
    """Whether an attempt is in the history as often as its caller was told."""
    times, told = len(attempt.versions), f"{attempt.job}: {attempt.name} ({attempt.outcome})"
    if attempt.commits is None or (attempt.commits == 0 and not times):
        return
    if attempt.outcome == "acknowledged" and times != attempt.commits:
        run.complain(f"{told} was published {times} times instead of {attempt.commits}: {attempt.versions}")
    if attempt.outcome in ("failed", "conflict") and times >= attempt.commits:
        run.complain(f"{told} was published as {attempt.versions}: {attempt.error!r}")
    if times > attempt.commits:
        run.complain(f"{told} was published as {attempt.versions}")


def replaced(version: TableVersion) -> bool:
    """Whether a version may exchange the files of a fragment under the same id."""
    made = transaction_of(version)
    return made is None or isinstance(made.operation, tx.DataReplacement | tx.Update | tx.Merge | tx.Overwrite)


def transaction_of(version: TableVersion) -> tx.Transaction | None:
    """What made a version, None where that cannot be read."""
    try:
        return transactions.read(version.store, version.base, version.file)
    except CorruptFileError:
        return None


def judge_files(run: Run, version: TableVersion) -> None:
    """Whether every file is there that a version names."""
    for fragment in version.manifest.fragments:
        paths = [version.data_file_path(file) for file in fragment.files]
        if fragment.deletion_file is not None:
            paths.append(version.deletion_file_path(fragment.id, fragment.deletion_file))
        for path in paths:
            if version.store.find(path) is None:
                run.complain(f"version {version.version} names {path}, which is not there")


def judge_order(run: Run, newest: TableVersion, version: TableVersion) -> None:
    """Whether a version conflicts with one between it and its read version."""
    ours = transaction_of(version)
    if ours is None or version.version <= run.first:
        return
    known = frozenset(fragment.id for fragment in getattr(ours.operation, "updated_fragments", ()))
    for number in range(max(ours.read_version, 1) + 1, version.version):
        between = checkout(newest, number)
        theirs = transaction_of(between)
        verdict = check(ours.operation, None if theirs is None else theirs.operation, Context(known))
        if verdict.severity > Severity.REBASABLE:
            run.complain(f"version {version.version} conflicts with version {number}: {verdict.reason}")


def judge_observed(run: Run) -> None:
    """Whether everybody who read a version saw what it holds now."""
    for reader, version, content in run.observed:
        if run.content(version) not in (None, content):
            run.complain(f"{reader} saw something else in version {version} than it holds: {content}")


def simulate(
    jobs: Mapping[str, Work] | Callable[[Run], Mapping[str, Work]],
    seeds: Iterable[int],
    *,
    setup: Callable[[str], Any] | None = None,
    judge: Callable[[Run], Any] | None = None,
    read: Callable[[LanceDataset], Any] | None = None,
    faults: Faults | FaultAt | None = None,
    external: bool | None = None,
) -> list[Run]:
    """Run the jobs once for each seed. Raises SimulationError at the first run that breaks a promise.

    `jobs` are the processes by name, or a function that makes them for a run. `setup` gets the address of the table,
    before anything fails; `judge` looks at the finished run and raises AssertionError for what it does not like;
    `read` is how a dataset is read where observations are compared, all rows by default; `external` whether commits go
    through an external manifest store, drawn from the seed by default. Jobs address the table by
    `job.uri`; inside of them `time`, `random` and `uuid4` follow the seed, and threads of their own are not allowed.
    """
    runs = []
    for seed in seeds:
        run = Run(seed, faults or Faults(), read)
        with virtual(run.world):
            made = jobs(run) if callable(jobs) else jobs
            run.world.on_publish = partial(_published, run)
            run.world.on_removal = partial(_removed, run)
            run.execute(made, setup, external)
            try:
                judge_history(run)
                if not run.violations:
                    judge_observed(run)
                    if judge is not None:
                        judge(run)
            except AssertionError as error:
                run.complain(str(error))
            except LanceError as error:
                run.complain(f"the finished table cannot be judged: {error!r}")
        if run.violations:
            raise SimulationError(_told(run))
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
    """An attempt may take back what it published itself, as long as nobody was told of it."""
    directory, _, name = path.rpartition("/")
    parsed = parse_manifest_name(name)
    attempt = None if task is None else run._jobs[task].current
    owners = run._owner.get((directory, parsed[0])) if parsed is not None else None
    if parsed is not None and attempt is not None and owners and owners[-1] is attempt:
        owners.pop()
        attempt.versions.remove(parsed[0])


def _told(run: Run) -> str:
    attempts = "\n".join(f"  {each.job}: {each.name}: {each.outcome} {each.versions}" for each in run.attempts)
    wrong = "\n".join(f"  {each}" for each in run.violations)
    return (
        f"seed {run.seed} broke {len(run.violations)} promises; simulate(jobs, [{run.seed}]) repeats it\n{wrong}\n"
        f"what was tried:\n{attempts}\nthe last calls:\n{run.world.write_trace()}"
    )
