"""Processes with threads create the same keys concurrently: each key has one winner, whose bytes are stored.

Keys are created with the `put_if_absent` of a store, or with a commit handler, whose keys are versions of a table.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from integration.servers.moto_locked import Moto
from lancetable.format.manifest_naming import ManifestNamingScheme, manifest_path
from lancetable.handlers.choose_handler import choose_handler
from lancetable.store.base import PutOutcome
from lancetable.store.clouds.fsspec_client import make_file_system
from lancetable.store.clouds.options import CloudOptions
from lancetable.store.open import open_store

PROCESSES, THREADS = 4, 8
FULL = 300  # keys: 9,600 attempts
FEW = 12

Create = Callable[[int, bytes], PutOutcome]

# pylance, which other tests import, warns of every fork.
pytestmark = [
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def creator(uri: str, options: dict[str, str], by_version: bool) -> tuple[Create, Callable[[int], bytes]]:
    """Return functions of one process that create a key and read its value."""
    client, options = options.get("client"), {name: value for name, value in options.items() if name != "client"}
    if client == "fsspec":
        store, base = open_store((make_file_system(CloudOptions.parse("s3", options)), uri[len("s3://") :]))
    else:
        store, base = open_store(uri, options)
    if not by_version:
        return (lambda key, data: store.put_if_absent(f"{base}/{key}", data)), (
            lambda key: bytes(store.read_all(f"{base}/{key}"))
        )
    handler, naming = choose_handler(store, uri, None, options), ManifestNamingScheme.V2

    def commit(key: int, data: bytes) -> PutOutcome:
        return handler.commit(store, base, key + 1, naming, data)

    return commit, lambda key: bytes(store.read_all(manifest_path(base, key + 1, naming)))


def take_part(where: tuple[str, dict[str, str], bool], process: int, keys: int, start: Any, results: Any) -> None:
    """Run one process of the race. All of its threads try all keys in the same order."""
    create, _ = creator(*where)
    barrier = threading.Barrier(THREADS)

    def run(thread: int) -> list[tuple[int, bytes, str]]:
        told = []
        barrier.wait()
        start.wait()
        for key in range(keys):
            who = b"process %d thread %d key %d" % (process, thread, key)
            told.append((key, who, create(key, who).name))
        return told

    try:
        with ThreadPoolExecutor(THREADS) as pool:
            results.put([each for told in pool.map(run, range(THREADS)) for each in told])
    except Exception as error:
        results.put(repr(error))


def hammer(uri: str, options: dict[str, str], keys: int, *, by_version: bool = False) -> None:
    where = uri, options, by_version
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.SimpleQueue()
    workers = [context.Process(target=take_part, args=(where, p, keys, start, results)) for p in range(PROCESSES)]
    for worker in workers:
        worker.start()
    start.set()
    told: list[tuple[int, bytes, str]] = []
    for _ in workers:
        answer = results.get()
        assert not isinstance(answer, str), answer
        told += answer
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert len(told) == PROCESSES * THREADS * keys
    won = {key: who for key, who, outcome in told if outcome == "WON"}
    assert sum(outcome == "WON" for _, _, outcome in told) == keys == len(won), "doubled, or nobody won"
    assert all(outcome in ("WON", "LOST") for _, _, outcome in told)
    _, read = creator(*where)
    for key, who in won.items():
        assert read(key) == who


@pytest.mark.parametrize("by_version", [False, True], ids=["keys", "versions"])
def test_keys_have_one_winner_on_local_files(tmp_path: Path, scale: int, by_version: bool) -> None:
    hammer(str(tmp_path / "t"), {"fsync": "false"}, FULL * min(scale, 10), by_version=by_version)


def test_versions_have_one_winner_over_sqlite(tmp_path: Path) -> None:
    """The manifests are local files; rows in SQLite decide."""
    options = {"fsync": "false", "manifest_store": f"sqlite:///{tmp_path}/rows.db"}
    hammer(str(tmp_path / "t"), options, FULL, by_version=True)


@pytest.mark.parametrize("client", ["obstore", pytest.param("fsspec", marks=pytest.mark.slow)])
def test_keys_have_one_winner_on_s3(s3: Moto, client: str, scale: int) -> None:
    options = {**s3.options, "client": client}
    hammer(f"s3://lab/{uuid4()}", options, FEW if scale == 1 else FULL)


@pytest.mark.slow
def test_versions_have_one_winner_over_dynamodb(s3: Moto) -> None:
    options = {**s3.options, "dynamodb_endpoint": s3.endpoint}
    hammer(f"s3+ddb://lab/{uuid4()}?ddbTableName=lab", options, FEW, by_version=True)
