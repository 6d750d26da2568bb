"""One table in forked and spawned processes, below a fork server, in many threads, from pickles and in an event loop.

All of them read the same rows, can commit, and continue afterwards; none waits for a lock or a thread of another
process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

import lancetable
from lancetable.store.clouds.fsspec_client import make_file_system
from lancetable.store.clouds.options import CloudOptions

ROWS = 3000
HANGS_SECONDS = 120  # far beyond what a busy machine needs

# pylance, which other tests import, warns of every fork.
pytestmark = [
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": pa.array(ids, pa.int64()), "s": [f"text {number % 7}" for number in ids]})


# Local files, S3 by both clients, S3 with rows in DynamoDB.
STORES = ["local", "obstore", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fsspec", "dynamodb"))]
LOCAL_FIRST = ["local", *(pytest.param(name, marks=pytest.mark.slow) for name in ("obstore", "fsspec", "dynamodb"))]


@pytest.fixture(params=STORES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> lancetable.LanceDataset:
    """Write a table of three fragments and read it in this process."""
    options = None
    uri: Any = str(tmp_path / "t.lance")
    if request.param == "dynamodb":
        server = request.getfixturevalue("s3")
        options = {**server.options, "dynamodb_endpoint": server.endpoint}
        uri = f"s3+ddb://lab/{uuid4()}?ddbTableName=lab"
    elif request.param != "local":
        options = request.getfixturevalue("s3").options
        uri = f"s3://lab/{uuid4()}"
        if request.param == "fsspec":
            file_system = make_file_system(CloudOptions.parse("s3", options))
            uri, options = (file_system, uri[len("s3://") :]), None
    made = lancetable.write_dataset(rows(0, ROWS), uri, max_rows_per_file=1000, storage_options=options)
    check(made)
    return made


def check(dataset: Any) -> None:
    """Check a scan on many threads, a filter and a take; other processes may append rows at the same time."""
    ids = dataset.to_table(columns=["id"])["id"].to_pylist()
    assert sorted(ids)[:ROWS] == list(range(ROWS))
    assert dataset.count_rows(f"s = 'text 3' AND id < {ROWS}") == len(range(3, ROWS, 7))
    assert dataset.take([ROWS - 1, 0])["id"].to_pylist() == [ROWS - 1, 0]


def use(pickled: bytes | None, handle: Any, number: int) -> str:
    """Use a table in a process and append three rows; return the error, or "" if there is none."""
    try:
        dataset = handle if pickled is None else pickle.loads(pickled)
        check(dataset)
        opened = lancetable.dataset(dataset.uri, storage_options=dataset.table_version.storage_options)
        check(opened)
        lancetable.write_dataset(rows(100_000 + 3 * number, 3), opened, mode="append")
    except BaseException:
        return traceback.format_exc()
    return ""


def in_process(queue: Any, *arguments: Any) -> None:
    queue.put(use(*arguments))


def run_in(context: Any, arguments: list[tuple[Any, ...]]) -> None:
    """Run processes with these arguments concurrently."""
    queue = context.Queue()
    processes = [context.Process(target=in_process, args=(queue, *each)) for each in arguments]
    for process in processes:
        process.start()
    told = [queue.get(timeout=HANGS_SECONDS) for _ in processes]
    for process in processes:
        process.join(HANGS_SECONDS)
        assert process.exitcode == 0
    assert not any(told), "\n".join(told)


def check_after(table: Any, num_writers: int) -> None:
    """Check that this process can continue, and that it reads the rows of the others."""
    check(table)
    table.checkout_latest()
    ids = sorted(table.to_table(columns=["id"])["id"].to_pylist())
    assert ids == [*range(ROWS), *range(100_000, 100_000 + 3 * num_writers)]
    table.insert(rows(-1, 1))
    assert table.count_rows() == ROWS + 3 * num_writers + 1


def test_forked_child_uses_the_open_dataset(table: Any) -> None:
    """The child uses the object itself, with its caches and clients."""
    run_in(multiprocessing.get_context("fork"), [(None, table, 0)])
    check_after(table, 1)


@pytest.mark.parametrize("table", LOCAL_FIRST, indirect=True)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_new_interpreters_use_a_pickled_dataset(table: Any, method: str) -> None:
    run_in(multiprocessing.get_context(method), [(pickle.dumps(table), None, 0)])
    check_after(table, 1)


@pytest.mark.parametrize("table", LOCAL_FIRST, indirect=True)
def test_eight_workers_use_a_pickled_dataset(table: Any) -> None:
    pickled = pickle.dumps(table)
    assert len(pickled) < 20_000
    run_in(multiprocessing.get_context("fork"), [(pickled, None, number) for number in range(8)])
    check_after(table, 8)


def test_workers_of_a_forked_daemon_use_the_dataset(table: Any) -> None:
    """As in Spark, a process that has used the table becomes a daemon, which forks a worker for each task."""
    reading, writing = os.pipe()
    daemon = os.fork()
    if daemon == 0:
        code = 1
        try:
            check(table)
            for number in range(3):
                worker = os.fork()
                if worker == 0:
                    told = use(None, table, number)
                    os.write(writing, told.encode()[-4000:])
                    os._exit(1 if told else 0)
                if os.waitpid(worker, 0)[1]:
                    break
            else:
                code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(daemon, 0)[1]) == 0, told
    check_after(table, 3)


def test_32_threads_share_a_dataset(table: Any) -> None:
    """All threads read, and every fourth of them also appends."""

    def work(number: int) -> str:
        if number % 4 == 0:
            return use(None, lancetable.LanceDataset.from_version(table.table_version), number // 4)
        check(table)
        return ""

    with ThreadPoolExecutor(32) as pool:
        told = list(pool.map(work, range(32), timeout=HANGS_SECONDS))
    assert not any(told), "\n".join(told)
    check_after(table, 8)


def test_event_loop_and_its_threads_use_the_dataset(table: Any) -> None:
    """Calls run in the thread of the loop, and on threads that the loop awaits."""

    async def work() -> list[str]:
        first = use(None, table, 0)
        others = [asyncio.to_thread(use, None, table, number) for number in (1, 2)]
        return [first, *await asyncio.wait_for(asyncio.gather(*others), HANGS_SECONDS)]

    told = asyncio.run(work())
    assert not any(told), "\n".join(told)
    check_after(table, 3)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_commit_over_sqlite(tmp_path: Path, method: str) -> None:
    options = {"manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    table = lancetable.write_dataset(
        rows(0, ROWS), str(tmp_path / "t"), max_rows_per_file=1000, storage_options=options
    )
    given: Callable[[int], tuple[Any, ...]] = lambda number: (pickle.dumps(table), None, number)  # noqa: E731
    run_in(multiprocessing.get_context(method), [given(number) for number in range(2)])
    check_after(table, 2)
