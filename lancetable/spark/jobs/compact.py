"""Compaction: tasks rewrite small fragments, and one commit replaces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lancetable.dataset import LanceDataset
from lancetable.format import transaction as tx
from lancetable.optimize import Compaction, CompactionTask, RewriteResult
from lancetable.spark.jobs.base import TableJob
from lancetable.spark.jobs.plans import pin_to_json, planned_pin
from lancetable.spark.jobs.update import discard_update
from lancetable.spark.pin import Pin
from lancetable.spark.runner import Json

__all__ = ["CompactFragments", "CompactJob"]


@dataclass(frozen=True)
class CompactJob(TableJob):
    settings: Mapping[str, Any]

    def plan(self) -> Json:
        version = self.begin()
        assert version is not None, "a compaction has no number"
        found = Compaction.plan(LanceDataset.from_version(version), dict(self.settings))
        if not found.num_tasks():
            return {"result": {}}
        return {"pin": pin_to_json(version), "tasks": [{"task": task.json()} for task in found.tasks]}

    def work(self, plan: Json) -> CompactFragments:
        return CompactFragments(planned_pin(self.options, plan))

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        rewritten = [RewriteResult.from_json(each["result"]) for each in results]
        dataset = LanceDataset.from_version(self._base(plan))
        return asdict(Compaction.commit(dataset, rewritten, dict(self.settings)))

    def discard(self, plan: Json, results: list[Json]) -> Json:
        made = [each for result in results for each in RewriteResult.from_json(result["result"]).new_fragments]
        operation = tx.Update(new_fragments=tuple(each.to_format() for each in made))
        return discard_update(self._base(plan), operation)


@dataclass(frozen=True)
class CompactFragments:
    """{"task"} -> {"result"}: both as `lancetable.optimize` writes them."""

    pin: Pin

    def __call__(self, task: Json) -> Json:
        dataset = LanceDataset.from_version(self.pin.open())
        return {"result": CompactionTask.from_json(task["task"]).execute(dataset).json()}
