"""PerProcess: one value per process, also for the threads of a forked child."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest

from lancetable.store.fork_safety import PerProcess

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # another test may have imported it
]


def _in_threads(call: Any) -> list[Any]:
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(call())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_threads_of_a_forked_child_share_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[object] = []

    def create() -> object:
        time.sleep(0.05)  # so that the other thread calls it during this time
        created.append(object())
        return created[-1]

    value = PerProcess(create)
    assert _in_threads(value.get) == created * 2 and len(created) == 1
    new_lock = threading.Lock
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that hangs
        # If each thread created its own lock, both would do so before one acquires it.
        monkeypatch.setattr(threading, "Lock", lambda: time.sleep(0.05) or new_lock())
        found = _in_threads(value.get)
        os._exit(int(not (len(created) == 2 and found == [created[1]] * 2)))
    assert os.waitpid(child, 0)[1] == 0
    assert value.get() is created[0]


def test_forked_child_is_not_blocked_by_a_thread_of_its_parent() -> None:
    started, finish = threading.Event(), threading.Event()
    parent = os.getpid()

    def create() -> int:
        if os.getpid() == parent:
            started.set()
            finish.wait(30)
        return os.getpid()

    value = PerProcess(create)
    thread = threading.Thread(target=value.get)
    thread.start()
    assert started.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that hangs
        os._exit(int(value.get() != os.getpid()))
    status = os.waitpid(child, 0)[1]
    finish.set()
    thread.join()
    assert status == 0 and value.get() == parent
