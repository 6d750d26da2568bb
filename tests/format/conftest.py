"""Tables and messages written by pylance, as the reference."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancetable.format.manifest import Manifest


def read_manifest(path: Path) -> Manifest:
    """Return the manifest message of a file, located through the footer."""
    data = path.read_bytes()
    (start,) = struct.unpack("<q", data[-16:-8])
    return Manifest.from_bytes(data[start + 4 : -16], str(path))


def _latest(table: Path) -> Manifest:
    # V2 names sort newest first.
    return read_manifest(sorted((table / "_versions").glob("*.manifest"))[0])


@pytest.fixture
def latest_manifest() -> Callable[[Any], Manifest]:
    """Return a function that reads the newest manifest of a pylance dataset."""
    return lambda dataset: _latest(Path(dataset.uri))


@pytest.fixture
def write_with_pylance(tmp_path: Path) -> Callable[..., tuple[Any, Manifest]]:
    """Return a function that writes a table with pylance in 2.0 and returns its dataset and manifest."""
    lance = pytest.importorskip("lance")

    def write(data: pa.Table | pa.Schema, **options: Any) -> tuple[Any, Manifest]:
        path = tmp_path / "table.lance"
        source = pa.RecordBatchReader.from_batches(data, []) if isinstance(data, pa.Schema) else data
        settings = {"data_storage_version": "2.0", "mode": "overwrite", **options}
        dataset = lance.write_dataset(source, str(path), **settings)
        return dataset, _latest(path)

    return write
