"""dynalite, an honest DynamoDB, and s3rver, an S3 that overwrites. Installed by scripts/ensure_servers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from integration.servers.moto_locked import Moto
from integration.servers.process import ROOT, free_port, running, wait_for_port

__all__ = ["dynalite", "is_installed", "s3rver"]

_MODULES = ROOT / ".venv-servers" / "node_modules"


def is_installed(name: str) -> bool:
    """Return True if a package can be started on this machine."""
    return (_MODULES / name).exists() and shutil.which("node") is not None


@contextlib.contextmanager
def dynalite(directory: Path) -> Iterator[Moto]:
    """Run dynalite for the duration of the block."""
    port = free_port()
    log = directory / f"dynalite-{port}.log"
    script = _MODULES / "dynalite" / "cli.js"
    command = ["node", str(script), "--host", "127.0.0.1", "--port", str(port), "--createTableMs", "1"]
    with running(command, log) as process:
        wait_for_port(port, process, log)
        yield Moto(port)


@contextlib.contextmanager
def s3rver(directory: Path) -> Iterator[dict[str, str]]:
    """Start it with the bucket `lab`; yields storage options."""
    port = free_port()
    log = directory / f"s3rver-{port}.log"
    script = _MODULES / "s3rver" / "bin" / "s3rver.js"
    (directory / "s3rver").mkdir(parents=True, exist_ok=True)
    command = ["node", str(script), "-d", str(directory / "s3rver"), "-a", "127.0.0.1", "-p", str(port)]
    with running([*command, "--no-vhost-buckets", "--configure-bucket", "lab"], log) as process:
        wait_for_port(port, process, log)
        yield {
            "aws_endpoint": f"http://127.0.0.1:{port}",
            "aws_access_key_id": "S3RVER",
            "aws_secret_access_key": "S3RVER",
            "aws_region": "us-east-1",
            "allow_http": "true",
        }
