"""Two commit protocols as small state machines that are explored exhaustively, without randomness.

A state is a tuple: the contents of the stores and the stage of each writer. `explore` visits all states, breadth first,
and reports the first one that violates an invariant.

    Create     writers race for version N + 1 by creating its object. A reply may be lost, a process may crash.
    External   the row in the external store decides, and the object follows: stage, decide, copy, mark the row as
               final. Any writer or reader may complete the steps after the decision.

Invariants: a version is written once and never changed; an acknowledged commit is in the history exactly once, any
other at most once; versions have no gaps; the manifest of an external row can be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Exploration(Generic[S]):
    """Result of `explore`: the number of states, and the first violation with the states that lead to it."""

    num_states: int
    violation: str | None = None
    path: tuple[S, ...] = ()


def explore(
    start: S,
    steps: Callable[[S], Iterable[S]],
    broken: Callable[[S], str | None],
    limit: int = 50_000_000,
) -> Exploration[S]:
    """Visit all states that can be reached from `start`, up to the first violation.

    Parameters
    ----------
    start
        The initial state.
    steps
        Function that returns the possible next states.
    broken
        Function that returns the invariant that a state violates, or None.
    limit
        Maximum number of states.

    Returns
    -------
    Exploration
        The number of visited states and the violation.

    Raises
    ------
    RuntimeError
        If there are more than `limit` states.
    """
    came_from: dict[S, S | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        violation = broken(state)
        if violation is not None:
            path = [state]
            while (previous := came_from[path[-1]]) is not None:
                path.append(previous)
            return Exploration(len(came_from), violation, tuple(reversed(path)))
        for successor in steps(state):
            if successor not in came_from:
                came_from[successor] = state
                queue.append(successor)
        if len(came_from) > limit:
            raise RuntimeError(f"more than {limit} states; raise the limit or reduce the model")
    return Exploration(len(came_from))


# Stages of a writer. IDLE between two commits, PUT before the create of a version, VERIFY after a lost reply.
IDLE, PUT, VERIFY, DONE, DEAD = range(5)
# Results of commits as reported to the caller.
OPEN, ACKNOWLEDGED, UNKNOWN = range(3)


@dataclass(frozen=True, slots=True)
class Create:
    """The conditional put.

    `exclusive=False` models a store that overwrites. `reads_back=False` counts every "exists" reply as a lost race.
    """

    writers: int = 3
    commits: int = 2
    crashes: int = 1
    lost_replies: int = 2
    exclusive: bool = True
    reads_back: bool = True

    # (objects, writers, crashes left, replies left)
    #   objects  for each version the (writer, commit) in its manifest
    #   writer   (stage, target version, commit number, results, checked): the results of its commits so far, and True
    #            if a create without exclusivity has checked that the object does not exist
    def start(self) -> tuple[Any, ...]:
        """Return the initial state."""
        return (), ((IDLE, 0, 0, (), False),) * self.writers, self.crashes, self.lost_replies

    def steps(self, state: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Yield all possible next states."""
        objects, writers, crashes, replies = state
        for index, writer in enumerate(writers):
            stage, version, number, results, checked = writer
            if stage in (DONE, DEAD):
                continue

            def put(new: Any, *, objects: Any = objects, crashes: int = crashes, replies: int = replies) -> Any:
                changed = (*writers[:index], new, *writers[index + 1 :])  # noqa: B023  # called in the same iteration
                return objects, changed, crashes, replies

            if crashes:
                yield put((DEAD, 0, number, results, False), crashes=crashes - 1)
            if stage == IDLE:
                if number == self.commits:
                    yield put((DONE, 0, number, results, False))
                # The writer reads the history, which may contain an earlier attempt of the same commit.
                elif (index, number) in objects and self.reads_back:
                    yield put((IDLE, 0, number + 1, (*results, ACKNOWLEDGED), False))
                else:
                    yield put((PUT, len(objects), number, results, False))
            elif stage == PUT and not self.exclusive and not checked:
                free = version >= len(objects)
                yield put((PUT, version, number, results, True) if free else (IDLE, 0, number, results, False))
            elif stage == PUT:
                own = (index, number)
                if version == len(objects) or not self.exclusive:
                    stored = (*objects[:version], own, *objects[version + 1 :])
                    won = (IDLE, 0, number + 1, (*results, ACKNOWLEDGED), False)
                    yield put(won, objects=stored)
                    if replies:
                        yield put((VERIFY, version, number, results, False), objects=stored, replies=replies - 1)
                        # The client retries the request and gets the reply that the object exists.
                        yield put((IDLE, 0, number, results, False), objects=stored, replies=replies - 1)
                    if crashes:
                        yield put((DEAD, 0, number, results, False), objects=stored, crashes=crashes - 1)
                else:
                    yield put((IDLE, 0, number, results, False))
                    if replies:
                        yield put((VERIFY, version, number, results, False), replies=replies - 1)
                if replies:  # the request was lost
                    yield put((VERIFY, version, number, results, False), replies=replies - 1)
            elif stage == VERIFY:
                if version < len(objects):
                    if objects[version] == (index, number):
                        yield put((IDLE, 0, number + 1, (*results, ACKNOWLEDGED), False))
                    else:
                        yield put((IDLE, 0, number, results, False))
                else:
                    yield put((IDLE, 0, number + 1, (*results, UNKNOWN), False))

    def broken(self, state: tuple[Any, ...]) -> str | None:
        """Return the violated invariant, or None."""
        objects, writers, _, _ = state
        return _wrong_history(objects, writers, self.commits)


def _wrong_history(history: Sequence[Any], writers: Iterable[Any], commits: int) -> str | None:
    """Return the first commit that was repeated, or lost after its acknowledgement."""
    for index, (_, _, _, results, _) in enumerate(writers):
        for number in range(commits):
            times = history.count((index, number))
            if times > 1:
                return f"commit {number} of writer {index} is in the history {times} times"
            if number < len(results) and results[number] == ACKNOWLEDGED and times == 0:
                return f"commit {number} of writer {index} was acknowledged but is not in the history"
    return None


STAGE, DECIDE, COPY, MARK, CLEAN = range(10, 15)


@dataclass(frozen=True, slots=True)
class External:
    """The external manifest store.

    `decides_first=False` copies the manifest before the row decides. `finishes=False` reads staged manifests of rows
    that are not marked as final, without completing their commits.
    """

    writers: int = 2
    commits: int = 1
    readers: int = 1
    crashes: int = 1
    lost_replies: int = 1
    exclusive: bool = False  # the object store has exclusive creates
    decides_first: bool = True
    finishes: bool = True

    # (rows, finals, staged, writers, readers, crashes left, replies left)
    #   rows     for each version ((writer, commit), marked as final)
    #   finals   for each version the commit in its object, None if it has no object
    #   staged   the commits that have a staged object
    #   writer   (stage, version, commit number, results, commit that it copies)
    #   reader   (stage, version, commit that it copies, version that it read last)
    def start(self) -> tuple[Any, ...]:
        """Return the initial state."""
        writers = ((IDLE, 0, 0, (), None),) * self.writers
        readers = ((IDLE, 0, None, 0),) * self.readers
        return (), (), frozenset(), writers, readers, self.crashes, self.lost_replies

    def steps(self, state: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """Yield all possible next states."""
        yield from self._writer_steps(state)
        yield from self._reader_steps(state)

    def _writer_steps(self, state: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        rows, finals, staged, writers, readers, crashes, replies = state
        for index, (stage, version, number, results, source) in enumerate(writers):
            if stage in (DONE, DEAD):
                continue
            own = (index, number)

            def put(
                new: Any,
                *,
                rows: Any = rows,
                finals: Any = finals,
                staged: Any = staged,
                crashes: int = crashes,
                replies: int = replies,
            ) -> Any:
                changed = (*writers[:index], new, *writers[index + 1 :])  # noqa: B023  # called in the same iteration
                return rows, finals, staged, changed, readers, crashes, replies

            if crashes:
                yield put((DEAD, 0, number, results, None), crashes=crashes - 1)
            if stage == IDLE and number == self.commits:
                yield put((DONE, 0, number, results, None))
            elif stage == IDLE:
                last = rows[-1] if rows else None
                if last is not None and not last[1] and self.finishes:
                    yield put((COPY, len(rows) - 1, number, results, last[0]))  # complete the pending commit first
                elif any(row[0] == own for row in rows):
                    yield put((IDLE, 0, number + 1, (*results, ACKNOWLEDGED), None))
                else:
                    yield put((STAGE, len(rows), number, results, own))
            elif stage == STAGE:
                successor = DECIDE if self.decides_first else COPY
                yield put((successor, version, number, results, own), staged=staged | {own})
            elif stage == DECIDE:
                after = COPY if self.decides_first else MARK
                if version == len(rows):
                    decided = (*rows, (own, False))
                    yield put((after, version, number, results, own), rows=decided)
                    if replies:
                        yield put((VERIFY, version, number, results, own), rows=decided, replies=replies - 1)
                else:
                    yield put((IDLE, 0, number, results, None), staged=staged - {own})
                if replies:
                    yield put((VERIFY, version, number, results, own), replies=replies - 1)
            elif stage == VERIFY:
                if version < len(rows) and rows[version][0] == own:
                    yield put((COPY, version, number, results, own))
                elif version < len(rows):
                    yield put((IDLE, 0, number, results, None), staged=staged - {own})
                else:
                    yield put((DECIDE, version, number, results, own))
            elif stage == COPY:
                if source != own and source not in staged:
                    yield put((IDLE, 0, number, results, None))  # another process completed it
                    continue
                successor = MARK if self.decides_first or source != own else DECIDE
                yield put((successor, version, number, results, source), finals=self._copy(finals, version, source))
            elif stage == MARK:
                marked = self._mark_final(rows, version)
                yield put((CLEAN, version, number, results, source), rows=marked)
                if source == own:  # marking is optional: the next process repeats it
                    yield put((IDLE, 0, number + 1, (*results, ACKNOWLEDGED), None))
            elif stage == CLEAN:
                answer = (*results, ACKNOWLEDGED) if source == own else results
                yield put((IDLE, 0, len(answer), answer, None), staged=staged - {source})

    def _reader_steps(self, state: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        rows, finals, staged, writers, readers, crashes, replies = state
        for index, (stage, version, source, seen) in enumerate(readers):

            def put(new: Any, *, rows: Any = rows, finals: Any = finals, staged: Any = staged) -> Any:
                changed = (*readers[:index], new, *readers[index + 1 :])  # noqa: B023
                return rows, finals, staged, writers, changed, crashes, replies

            if stage == IDLE and len(rows) > seen:
                owner, marked = rows[-1]
                if marked or not self.finishes:
                    yield put((DONE, len(rows), owner, len(rows)))
                else:
                    yield put((COPY, len(rows) - 1, owner, seen))
            elif stage == DONE:
                yield put((IDLE, 0, None, seen))
            elif stage == COPY:
                if source in staged:
                    yield put((MARK, version, source, seen), finals=self._copy(finals, version, source))
                else:
                    yield put((IDLE, 0, None, seen))
            elif stage == MARK:
                yield put((CLEAN, version, source, seen), rows=self._mark_final(rows, version))
            elif stage == CLEAN:
                yield put((IDLE, 0, None, seen), staged=staged - {source})

    def _copy(self, finals: Any, version: int, source: Any) -> Any:
        padded = finals + (None,) * (version + 1 - len(finals))
        if self.exclusive and padded[version] is not None:
            return padded
        return (*padded[:version], source, *padded[version + 1 :])

    def _mark_final(self, rows: Any, version: int) -> Any:
        if version >= len(rows):
            return rows
        return (*rows[:version], (rows[version][0], True), *rows[version + 1 :])

    def broken(self, state: tuple[Any, ...]) -> str | None:
        """Return the violated invariant, or None."""
        rows, finals, staged, writers, readers, _, _ = state
        owners = [row[0] for row in rows]
        for version, final in enumerate(finals):
            if final is not None and (version >= len(rows) or owners[version] != final):
                return f"the manifest of version {version} differs from the decided one"
        for version, (owner, marked) in enumerate(rows):
            has_manifest = version < len(finals) and finals[version] == owner
            if marked and not has_manifest:
                return f"version {version} is marked as final but has no manifest"
            if not marked and not has_manifest and owner not in staged:
                return f"version {version} was decided but has neither a manifest nor a staged object"
        wrong_history = _wrong_history(owners, writers, self.commits)
        if wrong_history is not None:
            return wrong_history
        for stage, version, owner, _ in readers:
            if stage == DONE and (len(finals) < version or finals[version - 1] != owner) and not self.finishes:
                return f"a reader used the row of version {version - 1} and a staged object that will be deleted"
        return None
