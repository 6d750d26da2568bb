"""Files of version 2.1 with random nested columns, read by pylance 0.39.0 in an environment of its own.

scripts/ensure_peers makes that environment. LANCETABLE_TEST_SCALE multiplies the number of files.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lancetable.file import LanceFileReader, LanceFileWriter
from lancetable.format.version import FileVersion
from lancetable.testing.nested import column_fields, comparable, random_array, stands_alone

# Which of the files that 0.39 cannot take are of a kind it cannot take from anyone is not all known yet.
pytestmark = pytest.mark.slow

READER = Path(__file__).with_name("old_reader.py")
PYTHON = Path(__file__).parents[2] / ".venv-pylance039" / "bin" / "python"
FILES = 60
BATCH = 100


def is_known_defect(path: str) -> bool:
    """Whether a page holds lists of lists and not a single value: old releases miscount the outer lists there."""
    pages = [page for column in LanceFileReader(path).metadata().columns for page in column.pages]
    return any("constant_layout" in page.encoding and page.encoding.count("_LIST") > 1 for page in pages)


def write_files(directory: Path, count: int) -> dict[str, pa.Table]:
    """Random tables by the path of their file."""
    found: dict[str, pa.Table] = {}

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(
        fields=st.lists(column_fields("c", FileVersion.V2_1, "0.39"), min_size=1, max_size=2),
        n=st.sampled_from([1, 2, 10, 100, 1000, 1025, 5000]),
        seed=st.integers(0, 2**32),
        pages=st.booleans(),
    )
    def run(fields: list[pa.Field], n: int, seed: int, pages: bool) -> None:
        rng = np.random.default_rng(seed)
        fields = [field for field in fields if not stands_alone(field)]
        if not fields:
            return
        schema = pa.schema([field.with_name(f"c{k}") for k, field in enumerate(fields)])
        table = pa.Table.from_arrays([random_array(rng, field, n) for field in fields], schema=schema)
        path = str(directory / f"{len(found)}.lance")
        settings = {"data_cache_bytes": 4000} if pages else {}
        with LanceFileWriter(path, schema, version="2.1", **settings) as writer:
            cut = n // 3
            for part in (table.slice(0, cut), table.slice(cut)):
                writer.write_batch(part)
        if is_known_defect(path):
            os.remove(path)
        else:
            found[path] = table

    run()
    return found


def read_by_old(paths: list[str]) -> dict[str, str | None]:
    """What went wrong with each file; None for those that were read."""
    results: dict[str, str | None] = {}
    while len(results) < len(paths):
        wanted = [path for path in paths if path not in results][:BATCH]
        done = subprocess.run(
            [str(PYTHON), str(READER)],
            input="\n".join(wanted),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        for line in done.stdout.splitlines():
            path, error = json.loads(line)
            results[path] = error
        if done.returncode:
            dead = next(path for path in wanted if path not in results)
            lines = done.stderr.splitlines()
            why = [" ".join(lines[k : k + 2]) for k, line in enumerate(lines) if "panicked at" in line]
            results[dead] = f"ended the process: {why[:1]}"
    return results


def test_old_pylance_reads_what_we_write(tmp_path: Path, scale: int) -> None:
    if not PYTHON.exists():
        pytest.skip(f"no pylance 0.39.0 in {PYTHON.parents[1].name}: run scripts/ensure_peers")
    tables = write_files(tmp_path, FILES * scale)
    wrong = []
    for path, error in read_by_old(list(tables)).items():
        table = tables[path]
        if error is None:
            with pa.memory_map(path + ".arrow") as source:
                found = pa.ipc.open_file(source).read_all()
            for number, column in enumerate(table.columns):
                if not comparable(found.column(number)).equals(comparable(column)):
                    error = f"column {number} differs"
        if error is not None:
            wrong.append(f"{path}, {table.num_rows} rows: {error}\n{table.schema.to_string(show_field_metadata=True)}")
    print(f"{len(tables)} files, {len(wrong)} wrong")
    assert not wrong, "\n\n".join(wrong[:8])
