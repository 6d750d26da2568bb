"""Compaction: tasks rewrite small fragments, and one commit replaces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lancetable.dataset import LanceDataset
from lancetable.format import transaction as tx
from lancetable.optimize import Compaction, CompactionTask, RewriteResult
from lancetable.spark.jobs.base import TableJob, planned_pin
from lancetable.spark.jobs.update import discard_update
from lancetable.spark.pin import Pin
from lancetable.spark.runner import Json
from lancetable.table.version import TableVersion

__all__ = ["CompactFragments", "CompactJob"]


@dataclass(frozen=True)
class CompactJob(TableJob):
    settings: Mapping[str, Any]

    def plan_tasks(self, version: TableVersion) -> Json:
        tasks = Compaction.plan(LanceDataset.from_version(version), dict(self.settings)).tasks
        return {"tasks": [{"task": task.json()} for task in tasks]} if tasks else {"result": {}}

    def work(self, plan: Json) -> CompactFragments:
        return CompactFragments(planned_pin(self.options, plan))

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        rewritten = [RewriteResult.from_json(result["result"]) for result in results]
        dataset = LanceDataset.from_version(self._base(plan))
        return asdict(Compaction.commit(dataset, rewritten, dict(self.settings)))

    def discard(self, plan: Json, results: list[Json]) -> Json:
        rewritten = (RewriteResult.from_json(result["result"]) for result in results)
        written = tuple(fragment.to_format() for result in rewritten for fragment in result.new_fragments)
        return discard_update(self._base(plan), tx.Update(new_fragments=written))


@dataclass(frozen=True)
class CompactFragments:
    """{"task"} -> {"result"}: both as `lancetable.optimize` writes them."""

    pin: Pin

    def __call__(self, task: Json) -> Json:
        dataset = LanceDataset.from_version(self.pin.open())
        return {"result": CompactionTask.from_json(task["task"]).execute(dataset).json()}
