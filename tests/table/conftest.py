"""Tables written by pylance, and conversion of its fragments for transactions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancetable.table.version import TableVersion, open_version


@pytest.fixture
def table_dir(tmp_path: Path) -> Path:
    return tmp_path / "t.lance"


@pytest.fixture
def three_fragments(table_dir: Path) -> TableVersion:
    """Write version 1 of a table with the rows id = 0..11 in fragments 0, 1 and 2."""
    table = pa.table({"id": pa.array(range(12), pa.int64()), "s": [f"s{i}" for i in range(12)]})
    lance.write_dataset(table, str(table_dir), data_storage_version="2.0", max_rows_per_file=4)
    return open_version(str(table_dir))


@pytest.fixture
def damage() -> Callable[[bytes, Any, str], bytes]:
    """Return a function damage(data, rng, kind) that flips a bit, cuts off the end, or overwrites 8 bytes."""

    def apply(data: bytes, rng: Any, kind: str) -> bytes:
        changed = bytearray(data)
        at = rng.randrange(len(changed))
        if kind == "flip":
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == "truncate":
            del changed[at:]
        else:
            changed[at : at + 8] = rng.randbytes(min(8, len(changed) - at))
        return bytes(changed)

    return apply
