"""Two Spark sessions and two plain processes change one table at the same time; a check adds up their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import lance
import pyarrow as pa
import pytest

import lancetable

pytestmark = pytest.mark.spark
KINDS = ("spark", "plain", "spark", "plain")


@pytest.mark.slow
def test_no_row_is_lost_duplicated_or_resurrected(
    start_script: Callable[..., Popen[str]], tmp_path: Path, scale: int
) -> None:
    rounds = 7 * min(scale, 4)
    path = str(tmp_path / "t.lance")
    lancetable.write_dataset(pa.table({"id": pa.array([-1], pa.int64()), "v": pa.array([0], pa.int64())}), path)
    with ExitStack() as stack:
        workers = []
        for number, kind in enumerate(KINDS):
            # A plain process does more rounds in the same time.
            worker = start_script("together.py", kind, path, number, rounds if kind == "spark" else 4 * rounds)
            stack.callback(worker.kill)
            workers.append(worker)
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n", worker.communicate()[1][-3000:]
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        told = []
        for worker in workers:
            output, errors = worker.communicate(timeout=3000)
            assert output.endswith("all done\n"), output[-2000:] + errors[-4000:]
            told.append(json.loads(output.splitlines()[0]))

    for seen in (lancetable.dataset(path).to_table(), lance.dataset(path).to_table()):
        values = dict(zip(seen["id"].to_pylist(), seen["v"].to_pylist()))
        assert len(values) == seen.num_rows, "a row is there twice"
        assert values.pop(-1) == sum(each["counted"] for each in told), "a change of the common row was lost or doubled"
        assert set(values) == {i for each in told for i in each["kept"]}, "rows were lost or came back"
        assert {i for i, v in values.items() if v == 1} == {i for each in told for i in each["merged"]}
    assert sum(each["counted"] for each in told) >= rounds and sum(len(each["gone"]) for each in told) >= 5 * rounds
    lancetable.dataset(path).validate()
