"""Environment of simulated processes: an unreliable store, skewed clocks and reproducible randomness.

Inside the tasks of a simulation, `memory://` addresses refer to the simulated store, and time, sleep and random numbers
are provided by the scheduler. Other threads of the process use the real ones.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar, cast
from unittest import mock

from lancetable.commit.backoff import Backoff, contention_of
from lancetable.errors import CorruptFileError, StoreError
from lancetable.file import thread_pool
from lancetable.handlers import choose_handler as choose_module
from lancetable.handlers import external_manifest
from lancetable.handlers.external_manifest import ManifestRow
from lancetable.handlers.sqlite import MemoryManifestStore
from lancetable.ops.maintain import compact
from lancetable.store import memory
from lancetable.store.base import Capabilities, ObjectMeta, OnExisting, PutOutcome
from lancetable.store.memory import MemoryStore
from lancetable.table import clock
from lancetable.testing.executor import InlineExecutor
from lancetable.testing.simulator.scheduler import Crash, Scheduler, Task
from lancetable.testing.stores import WrappingStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
_STALL_SECONDS = 5.0
_CREATES = ("put_if_absent", "put_new")
_READS = ("read", "read_many", "read_all", "read_tail")


@dataclass(frozen=True, slots=True)
class Faults:
    """Probability of each fault at each call of the store, from 0 to 1."""

    crash_before: float = 0.003  # the process dies and the call is not executed
    crash_after: float = 0.003  # the call is executed, then the process dies
    refused: float = 0.005  # the call fails without being executed: throttled, no connection
    lost_reply: float = 0.005  # the call is executed but fails
    repeated: float = 0.01  # a conditional create succeeds, is retried by the client and reported as lost
    stall: float = 0.01  # the call takes several seconds
    short_read: float = 0.002  # a read is truncated, which the store detects
    stale_list: float = 0.0  # a listing is several changes old

    @classmethod
    def none(cls) -> Faults:
        """Return faults of probability 0."""
        return cls(*[0.0] * 8)

    def draw(self, rng: random.Random, method: str) -> str:
        """Return the fault of one call, "" for none."""
        drawn = rng.random()
        for name in self.__slots__:
            if applies_to(method, name):
                drawn -= getattr(self, name)
                if drawn < 0:
                    return str(name)
        return ""


class FaultAt:
    """One fault at a certain call, counted from 1 over all tasks, or at every call from then on.

    A call to which the fault does not apply (such as a short read of a listing) succeeds. `calls` counts the calls.
    """

    stale_list = 0.0

    def __init__(self, call: int, kind: str, *, forever: bool = False) -> None:
        """Create a fault.

        Raises
        ------
        ValueError
            If `kind` is not a field of `Faults`.
        """
        if kind not in Faults.__slots__:
            raise ValueError(f"unknown fault {kind!r}; use one of {', '.join(Faults.__slots__)}")
        self.call, self.kind, self.forever = call, kind, forever
        self.calls = 0

    def draw(self, rng: random.Random, method: str) -> str:
        """Return the fault of one call, "" for none."""
        self.calls += 1
        due = self.calls >= self.call if self.forever else self.calls == self.call
        return self.kind if due and applies_to(method, self.kind) else ""


def applies_to(method: str, fault: str) -> bool:
    """Return True if a fault applies to a method of the store."""
    methods = {"repeated": _CREATES, "short_read": _READS, "stale_list": ("list_names",)}
    return fault not in methods or method in methods[fault]


class World:
    """Store, scheduler and random numbers of one run."""

    def __init__(self, seed: int, faults: Faults | FaultAt) -> None:
        self.rng = random.Random(seed)
        self.scheduler = Scheduler(self.rng)
        self.faults = faults
        self.store = SimulatedStore(self)
        self.rows: SimulatedRows | None = None  # external manifest store, if the run uses one
        self.quiet = True  # no task switches and no faults, during the setup and the checks
        self.trace: list[tuple[str, str, str, str]] = []  # task, method, path, fault
        # Called for every manifest as soon as it exists, regardless of the reply that its writer gets.
        self.on_publish: Callable[[str, Task | None], None] = lambda path, task: None
        # Called for every manifest that is removed.
        self.on_removal: Callable[[str, Task | None], None] = lambda path, task: None

    def call(self, method: str, path: str, act: Callable[[], T], stale: Callable[[], T | None] | None = None) -> T:
        """Execute one request after a possible task switch and with a possible fault.

        Parameters
        ----------
        method
            Name of the request, which determines the faults that apply.
        path
            Object of the request, for the trace.
        act
            Executes the request.
        stale
            Returns an outdated reply, or None if there is none.

        Returns
        -------
        object
            The result of `act`, or `stale`, or an outcome that the fault produces.

        Raises
        ------
        Crash
            If the process of the task dies.
        StoreError
            If the request was refused or its reply was lost.
        CorruptFileError
            If a read was truncated.
        """
        task = self.scheduler.current()
        if task is None or self.quiet:
            return act()
        if task.dead:
            raise Crash
        self.scheduler.switch()
        fault = self.faults.draw(self.rng, method)
        self.trace.append((task.name, method, path, fault))
        if not fault:
            return act()
        task.faults += 1
        if fault == "stall":
            self.scheduler.sleep(_STALL_SECONDS)
        elif fault == "crash_before":
            task.dead = True
            raise Crash
        elif fault == "refused":
            raise StoreError(f"{method} {path}: refused by the simulation", path=path)
        elif fault == "short_read":
            raise CorruptFileError(f"{method}: cut short by the simulation", path=path)
        elif fault == "stale_list" and stale is not None:
            old = stale()
            if old is not None:
                return old
        result = act()
        if fault == "crash_after":
            task.dead = True
            raise Crash
        if fault == "lost_reply":
            if method in _CREATES:
                return cast("T", PutOutcome.UNKNOWN)
            raise StoreError(f"{method} {path}: the reply was lost by the simulation", path=path)
        return cast("T", PutOutcome.LOST) if fault == "repeated" else result

    def format_trace(self, limit: int = 60) -> str:
        """Return the last calls, one per line."""
        return "\n".join(" ".join(entry) for entry in self.trace[-limit:])


class SimulatedStore(WrappingStore):
    """Object store in memory that switches tasks and fails as drawn by its world."""

    def __init__(self, world: World) -> None:
        super().__init__(MemoryStore.private())
        self.world = world
        self.ordered = self.exclusive = True
        self.reports_existing = False  # a create that loses reads the existing object, as on servers
        self._listings: dict[str, list[list[ObjectMeta]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a simulated store lives in one process")

    def __repr__(self) -> str:
        return "SimulatedStore()"

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of a bucket, where every operation is a request."""
        return Capabilities(
            conditional_create="native" if self.exclusive else "none",
            ordered_list=self.ordered,
            durable=True,
            local=False,
        )

    def _call(self, method: str, path: str, arguments: tuple[Any, ...], act: Callable[[], Any]) -> Any:
        task = self.world.scheduler.current()
        return self.world.call(method, path, lambda: self._execute(method, path, act, task))

    def _execute(self, method: str, path: str, act: Callable[[], Any], task: Task | None) -> Any:
        """Execute the call, set the virtual time of what it wrote, and report a published manifest."""
        result = act()
        if method in ("put", "writer.close") or result is PutOutcome.WON:
            objects = self.inner._space.objects
            if path in objects:
                moment = datetime.fromtimestamp(self.world.scheduler.now_ns / 1e9, timezone.utc)
                objects[path] = (objects[path][0], moment)
            if self.world.rows is None and "/_versions/" in path and path.endswith(".manifest"):
                self.world.on_publish(path, task)
        return result

    def put_if_absent(self, path: str, data: Buffer, *, on_existing: OnExisting | None = None) -> PutOutcome:
        """See ObjectStore. If `reports_existing` is set, a create that loses reads the existing object."""

        def create() -> PutOutcome:
            outcome: PutOutcome = self.inner.put_if_absent(path, data)
            if outcome is PutOutcome.LOST and self.reports_existing and on_existing is not None:
                on_existing(bytes(self.inner.read_all(path)))
            return outcome

        return cast("PutOutcome", self._call("put_if_absent", path, (data,), create))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects and report removed manifests. See ObjectStore."""
        listed = list(paths)
        super().delete(listed)
        for path in listed:
            if "/_versions/" in path and path.endswith(".manifest"):
                self.world.on_removal(path, self.world.scheduler.current())

    def list_names(
        self, prefix: str, start_after: str | None = None, limit: int | None = None, *, detail: bool = False
    ) -> list[ObjectMeta]:
        """Return the names, or with the fault `stale_list` those of one of the last listings. See ObjectStore."""

        def now() -> Any:
            if self.world.faults.stale_list:
                self._listings.setdefault(prefix, []).append(self.inner.list_names(prefix, detail=True))
                del self._listings[prefix][:-3]
            return self.inner.list_names(prefix, start_after, limit, detail=detail)

        def stale() -> list[ObjectMeta] | None:
            listings = self._listings.get(prefix)
            if not listings:
                return None
            listing = listings[self.world.rng.randrange(len(listings))]
            return [meta for meta in listing if meta.name > (start_after or "")][:limit]

        return self.world.call("list_names", prefix, now, stale)


class SimulatedRows:
    """External manifest store in memory with the same faults as the object store."""

    def __init__(self, world: World) -> None:
        self.world, self.inner = world, MemoryManifestStore()

    def key(self, store: Any, base: str) -> str:
        """Return the key of a table's rows."""
        return base

    def put_new(self, table: str, row: ManifestRow) -> PutOutcome:
        """Create the row that decides a version."""
        return self.world.call("put_new", f"{table} {row.path}", lambda: self._put_new(table, row))

    def _put_new(self, table: str, row: ManifestRow) -> PutOutcome:
        new = self.inner.get(table, row.version) is None
        outcome = self.inner.put_new(table, row)
        if new and outcome is PutOutcome.WON:
            self.world.on_publish(row.path.partition(".manifest")[0] + ".manifest", self.world.scheduler.current())
        return outcome

    def __getattr__(self, name: str) -> Any:
        """Return a function for any other request of the protocol."""
        method = getattr(self.inner, name)

        def request(table: str, *arguments: Any, **options: Any) -> Any:
            label = " ".join(map(str, (table, *arguments)))
            return self.world.call(name, label, lambda: method(table, *arguments, **options))

        return request


@contextlib.contextmanager
def virtual(world: World) -> Iterator[None]:
    """Replace time, sleep, random numbers and `memory://` for the tasks of a world while the context is open."""
    scheduler, rng = world.scheduler, world.rng

    owner = threading.get_ident()

    def inside() -> bool:
        return scheduler.current() is not None or threading.get_ident() == owner

    def choose(real: Callable[..., Any], simulated: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: simulated(*args, **kwargs) if inside() else real(*args, **kwargs)

    def wall_ns() -> int:
        current = scheduler.current()
        return scheduler.now_ns + (current.skew_ns if current is not None else 0)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(int=rng.getrandbits(128), version=4)

    def open_memory(real: Callable[[], Any]) -> Any:
        return world.store if inside() else real()

    monotonic = choose(time.monotonic, lambda: scheduler.now_ns / 1e9)
    sleep = choose(time.sleep, scheduler.sleep)
    draw = choose(random.random, rng.random)
    replaced: list[tuple[Any, str, Any]] = [
        (time, "time_ns", choose(time.time_ns, wall_ns)),
        (time, "time", choose(time.time, lambda: wall_ns() / 1e9)),
        (time, "monotonic", monotonic),
        (clock, "seconds", choose(clock.seconds, lambda: scheduler.now_ns / 1e9)),
        (time, "sleep", sleep),
        (random, "random", draw),
        (uuid, "uuid4", choose(uuid.uuid4, uuid4)),
        (secrets, "randbits", choose(secrets.randbits, rng.getrandbits)),
        (os, "urandom", choose(os.urandom, rng.randbytes)),
        (memory, "MemoryStore", _StoreFactory(memory.MemoryStore, open_memory)),
        (external_manifest, "uuid4", choose(uuid.uuid4, uuid4)),
        (compact, "ThreadPoolExecutor", choose(ThreadPoolExecutor, InlineExecutor)),
        (choose_module, "_external_store", choose(choose_module._external_store, lambda *_: world.rows)),
    ]
    contention_of.cache_clear()  # process-wide state of other runs
    with contextlib.ExitStack() as stack:
        for module, name, value in replaced:
            stack.enter_context(mock.patch.object(module, name, value))
        defaults = {**(Backoff.__init__.__kwdefaults__ or {}), "clock": monotonic, "sleep": sleep, "draw": draw}
        stack.enter_context(mock.patch.object(Backoff.__init__, "__kwdefaults__", defaults))
        stack.enter_context(mock.patch.object(external_manifest.ExternalHandler.__init__, "__defaults__", (sleep,)))
        stack.enter_context(mock.patch.object(thread_pool._here, "worker_of", os.getpid(), create=True))
        yield


class _StoreFactory:
    """Replacement of the class MemoryStore whose calls return the simulated store."""

    def __init__(self, real: type[MemoryStore], make: Callable[[Callable[[], Any]], Any]) -> None:
        self._real, self._make = real, make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(lambda: self._real(*arguments))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
