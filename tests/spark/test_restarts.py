"""A stream whose Spark process is repeatedly killed between a commit and its acknowledgement."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import lance
import pyarrow as pa
import pytest

import lancetable

pytestmark = pytest.mark.spark
BATCH = 50


@pytest.mark.slow
def test_every_batch_is_committed_once(
    start_script: Callable[..., Popen[str]], run_script: Callable[..., str], tmp_path: Path, scale: int
) -> None:
    restarts = min(20, 3 * scale)  # 20 in scripts/nightly
    pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits of streams came with PySpark 4.2")
    if not Path("/proc/self/stat").exists():
        pytest.skip("Spark's process is found through /proc")
    source, copy = str(tmp_path / "source.lance"), str(tmp_path / "copy.lance")
    batches = restarts + 1
    lancetable.write_dataset(pa.schema([("id", pa.int64())]).empty_table(), source)
    for batch in range(batches):
        ids = pa.table({"id": pa.array(range(batch * BATCH, (batch + 1) * BATCH), pa.int64())})
        lancetable.write_dataset(ids, source, mode="append")
    for batch in range(restarts):
        with start_script("restarts.py", tmp_path, batch) as life:
            output, _ = life.communicate(timeout=3000)
        assert "all done" not in output, "Spark should have died"
        assert lancetable.dataset(copy).count_rows() == (batch + 1) * BATCH, "the batch was not committed, or twice"
    run_script("restarts.py", tmp_path, -1)
    assert sorted(lance.dataset(copy).to_table()["id"].to_pylist()) == list(range(batches * BATCH))
    ours = lancetable.dataset(copy)
    assert ours.version == 1 + batches, "the table was made, and then each batch committed once"
    used = {file.path for each in ours.get_fragments() for file in each.data_files()}
    assert set(os.listdir(f"{copy}/data")) == used, "what a repeated batch wrote again is there still"
