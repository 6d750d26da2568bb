"""rclone as an S3 server: real software that takes the condition of a conditional PUT and overwrites."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from integration.servers.process import ROOT, free_port, running, wait_for_port

__all__ = ["is_installed", "rclone"]

_PROGRAM = ROOT / ".venv-servers" / "rclone" / "bin" / "rclone"


def is_installed() -> bool:
    """Return True if rclone can be started on this machine."""
    return _PROGRAM.exists()


@contextlib.contextmanager
def rclone(directory: Path) -> Iterator[dict[str, str]]:
    """Run rclone with the bucket `lab` for the duration of the block and yield its storage options."""
    port = free_port()
    log = directory / f"rclone-{port}.log"
    root = directory / "rclone"
    (root / "lab").mkdir(parents=True, exist_ok=True)
    command = [str(_PROGRAM), "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "lab,labsecret"]
    with running([*command, "--vfs-cache-mode", "off", str(root)], log) as process:
        wait_for_port(port, process, log)
        yield {
            "aws_endpoint": f"http://127.0.0.1:{port}",
            "aws_access_key_id": "lab",
            "aws_secret_access_key": "labsecret",
            "aws_region": "us-east-1",
            "allow_http": "true",
        }
