"""Advisory directory locks: one holder at a time, released with its process, None if unsupported."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lancetable.store.retry_lock import Turn


def test_only_one_writer_holds_the_lock(tmp_path: Path) -> None:
    first, second = Turn(str(tmp_path)), Turn(str(tmp_path))
    assert [first.take(), first.take(), second.take()] == [True, True, False]
    assert (first.is_held, second.is_held) == (True, False)
    first.give_back()
    assert second.take() is True
    assert first.take() is False
    for turn in (first, second, second):
        turn.give_back()
    assert [turn._descriptor for turn in (first, second)] == [-1, -1]
    assert os.listdir(tmp_path) == []


def test_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    script = """
import os, sys
from lancetable.store.retry_lock import Turn

turn, other = Turn(sys.argv[1]), Turn(sys.argv[1])
assert turn.take()
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
turn.give_back()
print(other.take())
os.close(writing)
os.waitpid(child, 0)
"""
    assert run_in_new_process(script, tmp_path) == "True"


def test_lock_is_released_when_its_process_ends(tmp_path: Path) -> None:
    script = "import sys; from lancetable.store.retry_lock import Turn; turn = Turn(sys.argv[1]); print(turn.take())"
    assert run_in_new_process(script, tmp_path) == "True"
    turn = Turn(str(tmp_path))
    assert turn.take() is True
    turn.give_back()


def run_in_new_process(script: str, directory: Path) -> str:
    """Return the output of a new process, without threads or libraries that are not fork-safe."""
    command = [sys.executable, "-c", script, str(directory)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout.strip()


def test_take_returns_none_without_lock_support(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Turn(str(tmp_path / "absent")).take() is None

    def fail(*_: object) -> None:
        raise OSError(9, "no locks here")

    monkeypatch.setattr(fcntl, "flock", fail)
    turn = Turn(str(tmp_path))
    assert (turn.take(), turn.is_held, turn._descriptor) == (None, False, -1)
