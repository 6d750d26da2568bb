"""A server in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

__all__ = ["ServerError", "free_port", "running", "wait_for_http", "wait_for_port"]

ROOT = Path(__file__).resolve().parents[2]


class ServerError(RuntimeError):
    """A server that did not start; its output is the message."""


def free_port() -> int:
    """Return a free port of the loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the block ends; its output is written to a file. The whole process group is ended."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)


def wait_for_port(port: int, process: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    """Return as soon as a process listens on the port. Raises ServerError if it ends, or after the time limit."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise ServerError(f"no process listens on port {port}: {log.read_text(errors='replace')[-2000:]}")


def wait_for_http(port: int, process: subprocess.Popen[bytes], log: Path, seconds: float = 60) -> None:
    """Return as soon as the server sends any HTTP response. Raises ServerError if it ends, or after the time limit."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2).close()
            return
        except urllib.error.HTTPError:  # noqa: PERF203  # each try may fail
            return
        except (OSError, ValueError):
            time.sleep(0.1)
    raise ServerError(f"no answer on port {port}: {log.read_text(errors='replace')[-2000:]}")
