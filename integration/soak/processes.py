"""Processes of the soak: roles, starts, kills and samples."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from integration.servers.process import ROOT
from integration.soak.samples import JVM, Samples, descendants

__all__ = ["ROLES", "Process", "Role", "begin", "wait_for_ends"]

SECONDS_BETWEEN_KILLS = (5.0, 20.0)
SECONDS_TO_START = 300.0
SECONDS_TO_END = 180.0  # for the operations in progress when the time is over


@dataclass(frozen=True)
class Role:
    """A process of the soak. One that is killed is started again."""

    name: str
    library: str
    killed: bool = False
    spark: bool = False


ROLES = (
    Role("ours-1", "ours"),
    Role("ours-2", "ours"),
    Role("ours-killed", "ours", killed=True),
    Role("pylance", "pylance"),
    Role("pylance-killed", "pylance", killed=True),
    Role("spark", "ours", spark=True),
)


class Process:
    """The current process of a role; it is started again after each kill."""

    def __init__(self, role: Role, number: int, job: Mapping[str, Any], directory: Path, rng: random.Random) -> None:
        self.role = role
        self.kills = 0
        self._number = number
        self._job = {**job, "library": role.library, "spark": role.spark}
        self._directory = directory
        self._random = rng
        self._until: float | None = None  # None until `begin`
        self._start()

    def _start(self) -> None:
        name = f"{self.role.name}-{self.kills}"
        log = str(self._directory / f"{name}.log")
        job = {**self._job, "log": log, "first_lane": self._number * 1_000_000 + self.kills * 1000}
        self.errors = self._directory / f"{name}.err"
        with self.errors.open("wb") as errors:
            self.running = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "integration.soak.writers", json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, **_environment()},
            )
        assert self.running.stdout is not None
        self._output: IO[bytes] = self.running.stdout
        os.set_blocking(self._output.fileno(), False)
        self._kill_at: float | None = None  # None until the process has opened the table
        if self._until is not None:
            self.begin(self._until)

    def begin(self, until: float) -> None:
        """Let the process run operations until the given time."""
        self._until = until
        if self._kill_at is not None:
            self._kill_at = self._next_kill()
        assert self.running.stdin is not None
        with contextlib.suppress(OSError):  # `wait_for_ends` reports a process that has ended
            self.running.stdin.write(f"{until}\n".encode())
            self.running.stdin.close()

    def _next_kill(self) -> float:
        return time.monotonic() + self._random.uniform(*SECONDS_BETWEEN_KILLS)

    def is_ready(self) -> bool:
        """Return True once the process has opened the table."""
        if self._kill_at is None and self._output.read(1):
            self._kill_at = self._next_kill()
        return self._kill_at is not None

    def kill_if_due(self) -> None:
        """Kill the process and start the next one, if the role is killed and its time is over."""
        if not self.role.killed or not self.is_ready() or self.running.poll() is not None:
            return
        assert self._kill_at is not None
        if time.monotonic() >= self._kill_at:
            self.stop()
            self.kills += 1
            self._start()

    def stop(self) -> None:
        """Kill the process."""
        self.running.kill()
        self.running.wait()
        self._output.close()

    def sample(self, samples: Samples, seconds: float) -> None:
        """Sample the process and, for Spark, the JVM and the Python workers that it started."""
        if self.role.killed or not self.is_ready():
            return
        samples.take(self.role.name, self.running.pid, seconds)
        for pid in descendants(self.running.pid) if self.role.spark else ():
            with contextlib.suppress(OSError):
                is_java = Path(f"/proc/{pid}/comm").read_text().strip() == "java"
                samples.take(JVM if is_java else f"spark-{pid}", pid, seconds)


def _environment() -> dict[str, str]:
    path = os.environ.get("PYTHONPATH", "")
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), path])),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def begin(processes: Sequence[Process], seconds: float) -> None:
    """Let the processes run operations for the given time, once all of them have opened the table or have ended."""
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        if all(process.is_ready() or process.running.poll() is not None for process in processes):
            break
        time.sleep(0.2)
    until = time.time() + seconds
    for process in processes:
        process.begin(until)


def wait_for_ends(processes: Sequence[Process]) -> Iterator[str]:
    """Wait for the processes; yield a message for each that does not end, or ends with an error."""
    deadline = time.monotonic() + SECONDS_TO_END
    for process in processes:
        try:
            code = process.running.wait(max(deadline - time.monotonic(), 1))
        except subprocess.TimeoutExpired:
            yield f"{process.role.name}: an operation has not ended {SECONDS_TO_END:.0f} s after the end"
            continue
        if code != 0:
            yield f"{process.role.name}: exit code {code}: {process.errors.read_text(errors='replace')[-2000:]}"
