"""Pipelines whose table no longer matches their checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancetable
from lancetable.errors import InvalidOperationError

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'lancetable[spark-local]'")

from lancetable.spark.pipeline import Files, Pipeline

pytestmark = pytest.mark.spark


class Flow:
    """Pipeline that reads JSON files, each of which is a batch."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark, self.table, self.landing = spark, folder / "t.lance", folder / "landing"
        self.checkpoint, self.landing_count = folder / "checkpoint", 0
        self.landing.mkdir()

    def land(self, *ids: int) -> None:
        self.landing_count += 1
        text = "".join(f'{{"id": {number}, "v": "{self.landing_count}"}}\n' for number in ids)
        (self.landing / f"{self.landing_count}.json").write_text(text)

    def run(self, **arguments: Any) -> list[Any]:
        files = Files(str(self.landing), "json", "id bigint, v string", files_per_batch=1)
        pipeline = Pipeline("p", str(self.table), files, "id", str(self.checkpoint), compact=None, keep_days=None)
        return pipeline.run(self.spark, lambda step: None, **arguments)

    def ids(self) -> list[int]:
        return sorted(lance.dataset(str(self.table)).to_table()["id"].to_pylist())


@pytest.fixture
def flow(spark: Any, tmp_path: Path) -> Flow:
    """Return a pipeline that has merged the batches 0 and 1, with the ids 1 and 2."""
    made = Flow(spark, tmp_path)
    for number in (1, 2):
        made.land(number)
        made.run()
    return made


def removed(flow: Flow) -> None:
    shutil.rmtree(flow.table)


def moved(flow: Flow) -> None:
    flow.table.rename(flow.table.with_name("elsewhere.lance"))


def restored(flow: Flow) -> None:
    lancetable.dataset(flow.table, version=2).restore()


def replaced(flow: Flow) -> None:
    removed(flow)
    lancetable.write_dataset(pa.table({"id": [9], "v": ["other"]}), flow.table)


def overwritten(flow: Flow) -> None:
    lancetable.write_dataset(pa.table({"id": [9], "v": ["other"]}), flow.table, mode="overwrite")


def overwritten_by_pylance(flow: Flow) -> None:
    lance.write_dataset(pa.table({"id": [9], "v": ["other"]}), str(flow.table), mode="overwrite")


STATES: dict[str, tuple[Callable[[Flow], None], str, list[int]]] = {
    "removed": (removed, r"completed batch 1, and there is no table at .*batches 0 to 1 are then not read again", []),
    "moved": (moved, r"completed batch 1, and there is no table at", []),
    "restored": (restored, r"completed batch 1, and .* records batch 0 of .*rows of batch 1 are then not read", [1]),
    "replaced": (replaced, r"completed batch 1, and .* records no batch of", [9]),
    "overwritten": (overwritten, r"version 4 of .* replaced all rows after batch 1 of", [9]),
    "overwritten by pylance": (overwritten_by_pylance, r"version 4 of .* replaced all rows after batch 1 of", [9]),
}


@pytest.mark.parametrize(
    "state",
    [s if s in ("removed", "restored", "overwritten") else pytest.param(s, marks=pytest.mark.slow) for s in STATES],
)
def test_a_table_that_lost_batches_is_refused_until_it_is_accepted(flow: Flow, state: str) -> None:
    change, message, left = STATES[state]
    change(flow)
    for has_new_files in (False, True):
        if has_new_files:
            flow.land(3)
        with pytest.raises(InvalidOperationError, match=message) as refused:
            flow.run()
        assert "new checkpoint" in str(refused.value) and "continue_from_checkpoint=True" in str(refused.value)
        assert flow.table.exists() == bool(left) and (not left or flow.ids() == left)
    flow.run(continue_from_checkpoint=True)
    assert flow.ids() == sorted([*left, 3])
    flow.land(4)
    flow.run()
    assert flow.ids() == sorted([*left, 3, 4])


def test_a_new_checkpoint_reads_all_files_again(flow: Flow) -> None:
    removed(flow)
    shutil.rmtree(flow.checkpoint)
    flow.land(3)
    flow.run()
    assert flow.ids() == [1, 2, 3]


def test_a_table_ahead_of_its_checkpoint_is_refused_until_it_is_accepted(flow: Flow, tmp_path: Path) -> None:
    shutil.copytree(flow.checkpoint, tmp_path / "saved")
    flow.land(3)
    flow.run()
    shutil.rmtree(flow.checkpoint)
    (tmp_path / "saved").rename(flow.checkpoint)
    flow.land(4)
    message = r"completed batch 1, and .* records batch 2 of .*older state.*files of batch 2 are then merged again"
    with pytest.raises(InvalidOperationError, match=message):
        flow.run()
    assert flow.ids() == [1, 2, 3]
    flow.run(continue_from_checkpoint=True)
    assert flow.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "change", [removed, overwritten, *(pytest.param(change, marks=pytest.mark.slow) for change in (replaced, restored))]
)
def test_a_table_that_changes_during_a_run_is_refused(flow: Flow, change: Callable[[Flow], None]) -> None:
    flow.land(3)
    flow.land(4)
    calls = []

    def change_then_clean(frame: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            change(flow)
        return frame

    files = Files(str(flow.landing), "json", "id bigint, v string", files_per_batch=1)
    pipeline = Pipeline(
        "p", str(flow.table), files, "id", str(flow.checkpoint), change_then_clean, compact=None, keep_days=None
    )
    with pytest.raises(Exception, match=r"is not the next batch|was not found"):
        pipeline.run(flow.spark)
    assert not flow.table.exists() or 4 not in flow.ids()


def test_a_table_that_is_removed_between_batches_is_not_created_again(flow: Flow) -> None:
    for number in (3, 4):
        flow.land(number)
    files = Files(str(flow.landing), "json", "id bigint, v string", files_per_batch=1)
    pipeline = Pipeline("p", str(flow.table), files, "id", str(flow.checkpoint), compact=None, keep_days=None)
    for accepts in (False, True):
        with pytest.raises(Exception, match=r"there is no table at|do not match"):
            pipeline.run(flow.spark, lambda step: removed(flow), continue_from_checkpoint=accepts)
        assert not flow.table.exists()
        flow.land(5)
        flow.land(6)


def test_accepting_a_matching_table_changes_nothing(flow: Flow) -> None:
    version = lancetable.dataset(flow.table).version
    (flow.checkpoint / "commits" / "1").unlink()
    (flow.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    (step,) = flow.run(continue_from_checkpoint=True)
    assert step.repeated and lancetable.dataset(flow.table).version == version


def test_accepted_table_is_logged(flow: Flow, caplog: pytest.LogCaptureFixture) -> None:
    restored(flow)
    flow.run(continue_from_checkpoint=True)
    assert "continue_from_checkpoint accepts: table and checkpoint do not match" in caplog.text


def test_maintenance_and_changes_by_others_are_no_reason_to_refuse(flow: Flow) -> None:
    dataset = lancetable.dataset(flow.table)
    dataset.insert(pa.table({"id": [50], "v": ["by hand"]}))
    dataset.delete("id = 1")
    dataset.optimize.compact_files()
    dataset.update_config({"note": "hello"})
    flow.land(3)
    flow.run()
    assert flow.ids() == [2, 3, 50]
    lancetable.dataset(flow.table).cleanup_old_versions(retain_versions=1)
    flow.land(4)
    flow.run()
    assert flow.ids() == [2, 3, 4, 50]


def test_empty_batches_are_recorded_too(flow: Flow) -> None:
    (flow.landing / "empty.json").write_text("")
    flow.run()
    flow.land(3)
    flow.run()
    assert flow.ids() == [1, 2, 3]
