"""Releases of pylance as child processes, so that a crash is a result of a test and does not end the run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

CHILD = Path(__file__).with_name("peer.py")
PYTHON_039 = Path(__file__).parents[2] / ".venv-pylance039" / "bin" / "python"
TIMEOUT_S = 120


class PeerError(Exception):
    """Error that the peer reported, or its unexpected exit."""


class Peer:
    """Process in which a release of pylance writes and reads files; started on demand, and again after a crash."""

    def __init__(self, release: str, python: str) -> None:
        self.release = release
        self._command = [python, str(CHILD)]
        self._child: subprocess.Popen[str] | None = None
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by close()

    def write(self, path: Path, batches: Sequence[pa.RecordBatch], **settings: Any) -> None:
        """Let the peer write a file. Raises PeerError."""
        source = path.with_suffix(".arrow")
        with pa.OSFile(str(source), "wb") as out, pa.ipc.new_stream(out, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        self._ask(do="write", path=str(path), source=str(source), settings=settings)

    def read(self, path: Path, queries: Sequence[Any]) -> list[pa.Table]:
        """Return the rows of each query; peer.py defines queries. Raises PeerError."""
        out = path.with_suffix(".read")
        self._ask(do="read", path=str(path), out=str(out), queries=list(queries))
        with pa.memory_map(str(out)) as source:
            return [pa.ipc.open_stream(source).read_all() for _ in queries]

    def close(self) -> None:
        self._stop()
        self._log.close()

    def _ask(self, **request: Any) -> None:
        if self._child is None:
            self._log.truncate(0)
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        timer = threading.Timer(TIMEOUT_S, child.kill)
        timer.start()
        try:
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if not answer:
            code = child.wait()
            self._log.seek(0)
            why = [line for line in self._log.read().splitlines() if "panicked" in line]
            self._stop()
            raise PeerError(f"the process ended with code {code}: {why[-1:]}")
        error = json.loads(answer)
        if error is not None:
            raise PeerError(error)

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.close()
            child.stdout.close()
            child.wait(timeout=TIMEOUT_S)


@pytest.fixture(scope="session")
def pylance_14() -> Iterator[Peer]:
    peer = Peer("14", sys.executable)
    yield peer
    peer.close()


@pytest.fixture(scope="session")
def pylance_039() -> Iterator[Peer]:
    if not PYTHON_039.exists():
        pytest.skip(f"no pylance 0.39.0 in {PYTHON_039.parents[1].name}: run scripts/ensure_peers")
    peer = Peer("0.39", str(PYTHON_039))
    yield peer
    peer.close()
