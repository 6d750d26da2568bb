"""The two commit protocols as small state machines, visited state by state: nothing is drawn, every order happens.

A state is a tuple: what the stores hold, and where each writer stands. `explore` goes through all of them, breadth
first, and complains about the first state in which a promise is broken.

    Create     writers race for version N + 1 by creating its object. An answer may be lost, a process may die.
    External   the row in the external store decides, the object follows: stage, decide, copy, note; anybody finishes.

Promises: a version is written once and never changed; an acknowledged commit is in the history exactly once, any other
at most once; the versions have no gap; what an external row names can be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["Create", "External", "Found", "explore"]

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Found(Generic[S]):
    """What `explore` saw: how many states, and the first violation with the steps that lead to it."""

    num_states: int
    violation: str | None = None
    path: tuple[S, ...] = ()


def explore(
    start: S,
    steps: Callable[[S], Iterable[S]],
    broken: Callable[[S], str | None],
    limit: int = 50_000_000,
) -> Found[S]:
    """All states that can be reached from `start`; stops at the first broken one."""
    came_from: dict[S, S | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        what = broken(state)
        if what is not None:
            path = [state]
            while (before := came_from[path[-1]]) is not None:
                path.append(before)
            return Found(len(came_from), what, tuple(reversed(path)))
        for following in steps(state):
            if following not in came_from:
                came_from[following] = state
                waiting.append(following)
        if len(came_from) > limit:
            raise RuntimeError(f"more than {limit} states")
    return Found(len(came_from))


# What a writer is doing. IDLE between two commits, LOOK with a version in mind, ASK in doubt about its own one.
IDLE, PUT, ASK, DONE, DEAD = range(5)
# What its caller was told of each commit.
OPEN, ACKNOWLEDGED, UNKNOWN = range(3)


@dataclass(frozen=True, slots=True)
class Create:
    """The conditional put. `exclusive` off is a store that overwrites; `asks` off believes every "taken"."""

    writers: int = 3
    commits: int = 2
    crashes: int = 1
    lost_replies: int = 2
    exclusive: bool = True
    asks: bool = True

    # (objects, writers, crashes left, replies left)
    #   objects  per version the (writer, commit) that its manifest says
    #   writer   (stage, version wanted, commit number, told, looked): the answers to its commits so far, and for a
    #            create that checks first, whether it has
    def start(self) -> tuple[Any, ...]:
        return (), ((IDLE, 0, 0, (), False),) * self.writers, self.crashes, self.lost_replies

    def steps(self, state: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        objects, writers, crashes, replies = state
        for place, writer in enumerate(writers):
            stage, version, number, told, looked = writer
            if stage in (DONE, DEAD):
                continue

            def put(new: Any, *, objects: Any = objects, crashes: int = crashes, replies: int = replies) -> Any:
                changed = (*writers[:place], new, *writers[place + 1 :])  # noqa: B023  # called in this round
                return objects, changed, crashes, replies

            if crashes:
                yield put((DEAD, 0, number, told, False), crashes=crashes - 1)
            if stage == IDLE:
                if number == self.commits:
                    yield put((DONE, 0, number, told, False))
                # Reads the history; an earlier attempt of this very commit may turn up.
                elif (place, number) in objects and self.asks:
                    yield put((IDLE, 0, number + 1, (*told, ACKNOWLEDGED), False))
                else:
                    yield put((PUT, len(objects), number, told, False))
            elif stage == PUT and not self.exclusive and not looked:
                free = version >= len(objects)
                yield put((PUT, version, number, told, True) if free else (IDLE, 0, number, told, False))
            elif stage == PUT:
                mine = (place, number)
                if version == len(objects) or not self.exclusive:
                    stored = (*objects[:version], mine, *objects[version + 1 :])
                    won = (IDLE, 0, number + 1, (*told, ACKNOWLEDGED), False)
                    yield put(won, objects=stored)
                    if replies:
                        yield put((ASK, version, number, told, False), objects=stored, replies=replies - 1)
                        # The client sends it again by itself and is told that the name is taken.
                        yield put((IDLE, 0, number, told, False), objects=stored, replies=replies - 1)
                    if crashes:
                        yield put((DEAD, 0, number, told, False), objects=stored, crashes=crashes - 1)
                else:
                    yield put((IDLE, 0, number, told, False))
                    if replies:
                        yield put((ASK, version, number, told, False), replies=replies - 1)
                if replies:  # never arrived
                    yield put((ASK, version, number, told, False), replies=replies - 1)
            elif stage == ASK:
                if version < len(objects):
                    if objects[version] == (place, number):
                        yield put((IDLE, 0, number + 1, (*told, ACKNOWLEDGED), False))
                    else:
                        yield put((IDLE, 0, number, told, False))
                else:
                    yield put((IDLE, 0, number + 1, (*told, UNKNOWN), False))

    def broken(self, state: tuple[Any, ...]) -> str | None:
        objects, writers, _, _ = state
        for place, (_, _, _, told, _) in enumerate(writers):
            for number in range(self.commits):
                times = objects.count((place, number))
                if times > 1:
                    return f"commit {number} of writer {place} is there {times} times"
                if number < len(told) and told[number] == ACKNOWLEDGED and times == 0:
                    return f"commit {number} of writer {place} was acknowledged and is not there"
        return None


STAGE, DECIDE, COPY, NOTE, CLEAN = range(10, 15)


@dataclass(frozen=True, slots=True)
class External:
    """The external store. `decides_first` off copies before the row decides; `finishes` off believes staged rows."""

    writers: int = 2
    commits: int = 1
    readers: int = 1
    crashes: int = 1
    lost_replies: int = 1
    exclusive: bool = False  # the object store creates exclusively
    decides_first: bool = True
    finishes: bool = True

    # (rows, finals, staged, writers, readers, crashes left, replies left)
    #   rows     per version ((writer, commit), noted as final)
    #   finals   per version what its object says, None where there is none
    #   staged   the commits whose staged objects are there
    #   writer   (stage, version, commit number, told, whose bytes it copies)
    #   reader   (stage, version, whose bytes it copies, the version it read last)
    def start(self) -> tuple[Any, ...]:
        writers = ((IDLE, 0, 0, (), None),) * self.writers
        readers = ((IDLE, 0, None, 0),) * self.readers
        return (), (), frozenset(), writers, readers, self.crashes, self.lost_replies

    def steps(self, state: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        yield from self._writer_steps(state)
        yield from self._reader_steps(state)

    def _writer_steps(self, state: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        rows, finals, staged, writers, readers, crashes, replies = state
        for place, (stage, version, number, told, whose) in enumerate(writers):
            if stage in (DONE, DEAD):
                continue
            mine = (place, number)

            def put(
                new: Any,
                *,
                rows: Any = rows,
                finals: Any = finals,
                staged: Any = staged,
                crashes: int = crashes,
                replies: int = replies,
            ) -> Any:
                changed = (*writers[:place], new, *writers[place + 1 :])  # noqa: B023  # called in this round
                return rows, finals, staged, changed, readers, crashes, replies

            if crashes:
                yield put((DEAD, 0, number, told, None), crashes=crashes - 1)
            if stage == IDLE and number == self.commits:
                yield put((DONE, 0, number, told, None))
            elif stage == IDLE:
                last = rows[-1] if rows else None
                if last is not None and not last[1] and self.finishes:
                    yield put((COPY, len(rows) - 1, number, told, last[0]))  # somebody's, to be finished first
                elif any(row[0] == mine for row in rows):
                    yield put((IDLE, 0, number + 1, (*told, ACKNOWLEDGED), None))
                else:
                    yield put((STAGE, len(rows), number, told, mine))
            elif stage == STAGE:
                following = DECIDE if self.decides_first else COPY
                yield put((following, version, number, told, mine), staged=staged | {mine})
            elif stage == DECIDE:
                after = COPY if self.decides_first else NOTE
                if version == len(rows):
                    decided = (*rows, (mine, False))
                    yield put((after, version, number, told, mine), rows=decided)
                    if replies:
                        yield put((ASK, version, number, told, mine), rows=decided, replies=replies - 1)
                else:
                    yield put((IDLE, 0, number, told, None), staged=staged - {mine})
                if replies:
                    yield put((ASK, version, number, told, mine), replies=replies - 1)
            elif stage == ASK:
                if version < len(rows) and rows[version][0] == mine:
                    yield put((COPY, version, number, told, mine))
                elif version < len(rows):
                    yield put((IDLE, 0, number, told, None), staged=staged - {mine})
                else:
                    yield put((DECIDE, version, number, told, mine))
            elif stage == COPY:
                if whose != mine and whose not in staged:
                    yield put((IDLE, 0, number, told, None))  # finished by another one
                    continue
                following = NOTE if self.decides_first or whose != mine else DECIDE
                yield put((following, version, number, told, whose), finals=self._copied(finals, version, whose))
            elif stage == NOTE:
                noted = self._noted(rows, version)
                yield put((CLEAN, version, number, told, whose), rows=noted)
                if whose == mine:  # may fail: whoever comes next repeats it
                    yield put((IDLE, 0, number + 1, (*told, ACKNOWLEDGED), None))
            elif stage == CLEAN:
                answer = (*told, ACKNOWLEDGED) if whose == mine else told
                yield put((IDLE, 0, len(answer), answer, None), staged=staged - {whose})

    def _reader_steps(self, state: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        rows, finals, staged, writers, readers, crashes, replies = state
        for place, (stage, version, whose, seen) in enumerate(readers):

            def put(new: Any, *, rows: Any = rows, finals: Any = finals, staged: Any = staged) -> Any:
                changed = (*readers[:place], new, *readers[place + 1 :])  # noqa: B023
                return rows, finals, staged, writers, changed, crashes, replies

            if stage == IDLE and len(rows) > seen:
                owner, noted = rows[-1]
                if noted or not self.finishes:
                    yield put((DONE, len(rows), owner, len(rows)))
                else:
                    yield put((COPY, len(rows) - 1, owner, seen))
            elif stage == DONE:
                yield put((IDLE, 0, None, seen))
            elif stage == COPY:
                if whose in staged:
                    yield put((NOTE, version, whose, seen), finals=self._copied(finals, version, whose))
                else:
                    yield put((IDLE, 0, None, seen))
            elif stage == NOTE:
                yield put((CLEAN, version, whose, seen), rows=self._noted(rows, version))
            elif stage == CLEAN:
                yield put((IDLE, 0, None, seen), staged=staged - {whose})

    def _copied(self, finals: Any, version: int, whose: Any) -> Any:
        padded = finals + (None,) * (version + 1 - len(finals))
        if self.exclusive and padded[version] is not None:
            return padded
        return (*padded[:version], whose, *padded[version + 1 :])

    def _noted(self, rows: Any, version: int) -> Any:
        if version >= len(rows):
            return rows
        return (*rows[:version], (rows[version][0], True), *rows[version + 1 :])

    def broken(self, state: tuple[Any, ...]) -> str | None:
        rows, finals, staged, writers, readers, _, _ = state
        owners = [row[0] for row in rows]
        for version, final in enumerate(finals):
            if final is not None and (version >= len(rows) or owners[version] != final):
                return f"the manifest of version {version} is not the one that was decided"
        for version, (owner, noted) in enumerate(rows):
            there = version < len(finals) and finals[version] == owner
            if noted and not there:
                return f"version {version} is noted as final and its manifest is not there"
            if not noted and not there and owner not in staged:
                return f"version {version} was decided and its bytes are gone"
        for place, (_, _, _, told, _) in enumerate(writers):
            for number in range(self.commits):
                times = owners.count((place, number))
                if times > 1:
                    return f"commit {number} of writer {place} is there {times} times"
                if number < len(told) and told[number] == ACKNOWLEDGED and times == 0:
                    return f"commit {number} of writer {place} was acknowledged and is not there"
        for stage, version, owner, _ in readers:
            if stage == DONE and (len(finals) < version or finals[version - 1] != owner) and not self.finishes:
                return f"a reader follows the row of version {version - 1} to an object that will go"
        return None
