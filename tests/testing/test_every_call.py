"""Fault injection into every request of every changing operation: one failing call, and all calls from there on.

The simulator's standard checks must hold: the outcome is reported correctly, the table is either unchanged or has the
new contents, and other processes are not affected. Commits go through the store itself or an external manifest store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import lancetable
from lancetable import LanceOperation
from lancetable.errors import CommitStateUnknownError, LanceError
from lancetable.testing.simulator import FaultAt, Job, Run, simulate

ROWS = pa.table({"id": pa.array(range(6), pa.int64())})
MORE = pa.table({"id": pa.array([10, 11], pa.int64())})
OPTIONS: Any = {"max_rows_per_file": 3, "data_storage_version": "2.0"}
KINDS = ["refused", "lost_reply", "short_read", "repeated", "crash_before", "crash_after"]
START = [0, 1, 2, 3, 4, 5]


def commit(uri: str, operation: Any) -> None:
    lancetable.LanceDataset.commit(uri, operation, read_version=lancetable.dataset(uri).version)


def commit_fragments(uri: str) -> None:
    fragments = lancetable.fragment.write_fragments(MORE, uri, data_storage_version="2.0")
    commit(uri, LanceOperation.Append(fragments))


def commit_many(uri: str) -> None:
    fragments = lancetable.fragment.write_fragments(MORE, uri, data_storage_version="2.0")
    version = lancetable.dataset(uri).version
    parts = [lancetable.Transaction(version, LanceOperation.Append([fragment])) for fragment in fragments]
    lancetable.LanceDataset.commit_batch(uri, parts)


OPERATIONS: dict[str, tuple[Callable[[str], Any], list[int]]] = {
    "create": (lambda uri: lancetable.write_dataset(MORE, f"{uri}2", **OPTIONS), START),
    "append": (lambda uri: lancetable.write_dataset(MORE, uri, mode="append"), [*START, 10, 11]),
    "overwrite": (lambda uri: lancetable.write_dataset(MORE, uri, mode="overwrite"), [10, 11]),
    "delete": (lambda uri: lancetable.dataset(uri).delete("id IN (1, 4)"), [0, 2, 3, 5]),
    "delete fragment": (lambda uri: lancetable.dataset(uri).delete("id < 3"), [3, 4, 5]),
    "update": (lambda uri: lancetable.dataset(uri).update({"id": "id + 100"}, where="id = 1"), [0, 2, 3, 4, 5, 101]),
    "restore": (lambda uri: lancetable.dataset(uri, 1).restore(), [*START, 7]),
    "commit": (commit_fragments, [*START, 10, 11]),
    "batch": (commit_many, [*START, 10, 11]),
    "config": (lambda uri: commit(uri, LanceOperation.UpdateConfig(LanceOperation.UpdateMap({"k": "v"}))), START),
    "reserve": (lambda uri: lancetable.dataset(uri).add_bases([lancetable.DatasetBasePath("/some/where")]), START),
    "drop column": (lambda uri: commit(uri, LanceOperation.Project(lancetable.dataset(uri).lance_schema, True)), START),
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def setup(uri: str) -> None:
    """Create ids 0 to 5 in two fragments. The newest version does not contain id 7."""
    table = lancetable.write_dataset(
        pa.concat_tables([ROWS, pa.table({"id": pa.array([7], pa.int64())})]), uri, **OPTIONS
    )
    table.delete("id = 7")


def run_once(name: str, fault: FaultAt, external: bool) -> Run:
    act, after = OPERATIONS[name]

    def work(job: Job) -> None:
        if not job.run.attempts:  # do not restart after a crash
            job.attempt(lambda: act(job.uri), name)

    def check_run(run: Run) -> None:
        (attempt,) = run.attempts
        if name == "create":
            check_creation(attempt.outcome)
            return
        ids = sorted(run.rows("id"))
        wanted = {"acknowledged": [after], "failed": [START], "conflict": [START]}.get(attempt.outcome, [START, after])
        assert ids in wanted, f"{attempt.outcome}: {ids}"
        assert not isinstance(attempt.error, Exception) or isinstance(attempt.error, LanceError)

    (run,) = simulate({"only": work}, [1], setup=setup, check_run=check_run, faults=fault, external=external)
    return run


def check_creation(outcome: str) -> None:
    """Check that the new table exists completely or not at all."""
    try:
        rows = lancetable.dataset("memory://simulated/t.lance2").to_table()
    except LanceError:
        rows = None
    assert rows is None or rows.equals(MORE)
    if outcome == "acknowledged":
        assert rows is not None
    if outcome in ("failed", "conflict"):
        assert rows is None


def every_call(name: str, external: bool, kinds: list[tuple[str, bool]]) -> None:
    clean = FaultAt(0, "refused")
    assert run_once(name, clean, external).attempts[0].outcome == "acknowledged"
    outcomes = set()
    for kind, forever in kinds:
        for call in range(1, clean.calls + 1):
            outcomes.add(run_once(name, FaultAt(call, kind, forever=forever), external).attempts[0].outcome)
    assert outcomes >= {"acknowledged", "failed", "crashed"}


ONCE = [(kind, False) for kind in KINDS]
FOREVER = [(kind, True) for kind in KINDS]
EXISTING_TABLE = [name for name in OPERATIONS if name != "create"]


@pytest.mark.parametrize("name", EXISTING_TABLE)
def test_operation_is_atomic_if_any_call_fails(name: str) -> None:
    every_call(name, False, ONCE)


def test_append_through_an_external_store_is_atomic_if_any_call_fails() -> None:
    every_call("append", True, ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True], ids=["conditional put", "external store"])
@pytest.mark.parametrize("name", EXISTING_TABLE)
def test_operation_is_atomic_if_any_call_fails_once_or_forever(name: str, external: bool) -> None:
    every_call(name, external, ONCE + FOREVER)


def test_creation_is_atomic_if_any_call_fails() -> None:
    clean = FaultAt(0, "refused")
    run_once("create", clean, False)
    for kind in KINDS:
        for call in range(1, clean.calls + 1):
            run_once("create", FaultAt(call, kind), False)


def test_outcome_is_unknown_only_if_reading_back_fails_too() -> None:
    """After a lost reply the manifest is read back. Only if that fails as well, the outcome stays unknown."""
    clean = FaultAt(0, "refused")
    run_once("append", clean, False)
    unknown = []
    for forever in (False, True):
        for call in range(1, clean.calls + 1):
            run = run_once("append", FaultAt(call, "lost_reply", forever=forever), False)
            if isinstance(run.attempts[0].error, CommitStateUnknownError):
                unknown.append((run.world.trace[call - 1][1], forever))
    assert unknown == [("put_if_absent", True)]
