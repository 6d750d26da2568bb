"""Azurite, Microsoft's emulator of Azure blobs. Installed by scripts/ensure_servers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from integration.servers.process import ROOT, free_port, running, wait_for_port

__all__ = ["Azurite", "azurite", "is_installed"]

ACCOUNT = "devstoreaccount1"
# The published key of every emulator.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_SCRIPT = ROOT / ".venv-servers" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


@dataclass(frozen=True, slots=True)
class Azurite:
    """A running server."""

    port: int

    @property
    def options(self) -> dict[str, str]:
        """Storage options by pylance's names."""
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
            "allow_http": "true",
        }

    def make_container(self, name: str) -> None:
        from azure.storage.blob import BlobServiceClient

        endpoint = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        with BlobServiceClient(endpoint, credential={"account_name": ACCOUNT, "account_key": KEY}) as client:
            client.create_container(name)


def is_installed() -> bool:
    """Return True if Azurite can be started on this machine."""
    return _SCRIPT.exists() and shutil.which("node") is not None


@contextlib.contextmanager
def azurite(directory: Path) -> Iterator[Azurite]:
    """Run Azurite for the duration of the block, with data in memory and without telemetry."""
    port = free_port()
    log = directory / f"azurite-{port}.log"
    command = ["node", str(_SCRIPT), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    with running([*command, "--skipApiVersionCheck", "--silent", "--disableTelemetry"], log) as process:
        wait_for_port(port, process, log)
        yield Azurite(port)
