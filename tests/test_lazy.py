"""lazy_property: one evaluation, one value for all threads, and no lock that a fork could copy."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from dataclasses import dataclass

import pytest

from lancetable.lazy import lazy_property


@dataclass(frozen=True)
class Word:
    text: str

    @lazy_property
    def letters(self) -> list[str]:
        """The letters."""
        return list(self.text)


def test_value_is_computed_once() -> None:
    word = Word("ab")
    assert word.letters == ["a", "b"]
    assert word.letters is word.letters
    assert word == Word("ab")
    assert pickle.loads(pickle.dumps(word)).letters == ["a", "b"]
    assert Word.letters.__doc__ == "The letters."


def test_exception_is_passed_on_and_the_next_access_tries_again() -> None:
    class Once:
        failed = False

        @lazy_property
        def value(self) -> int:
            if not self.failed:
                self.failed = True
                raise ValueError("first")
            return 2

    once = Once()
    with pytest.raises(ValueError, match="first"):
        _ = once.value
    assert once.value == 2


def test_threads_get_the_same_value() -> None:
    both = threading.Barrier(2, timeout=10)

    class Shared:
        @lazy_property
        def value(self) -> object:
            both.wait()  # neither thread waits for the other
            return object()

    shared = Shared()
    values: list[object] = []
    threads = [threading.Thread(target=lambda: values.append(shared.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values[0] is values[1] is shared.value


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")  # another test may have imported it
def test_forked_child_is_not_blocked_by_a_thread_of_its_parent() -> None:
    started, finish = threading.Event(), threading.Event()

    class Slow:
        waits = True

        @lazy_property
        def value(self) -> int:
            if self.waits:
                started.set()
                finish.wait(30)
            return 1

    thread = threading.Thread(target=lambda: Slow().value)
    thread.start()
    assert started.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends a child that hangs
        Slow.waits = False
        os._exit(int(Slow().value != 1))
    status = os.waitpid(child, 0)[1]
    finish.set()
    thread.join()
    assert status == 0
