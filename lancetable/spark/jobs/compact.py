"""Compaction: tasks rewrite small fragments, and one commit replaces them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lancetable.dataset import LanceDataset
from lancetable.format import transaction as tx
from lancetable.optimize import Compaction, CompactionTask, RewriteResult
from lancetable.spark.jobs.base import TableJob, discard_update
from lancetable.spark.task_runner import Json
from lancetable.table.version import TableVersion


@dataclass(frozen=True)
class CompactJob(TableJob):
    """Job that compacts a table. A task maps {"task"} to {"result"}, both in the JSON form of `lancetable.optimize`."""

    settings: Mapping[str, Any]
    verb = "compact"

    def plan_tasks(self, version: TableVersion) -> Json:
        """Return the tasks of the compaction, or an empty result if there are none."""
        tasks = Compaction.plan(LanceDataset.from_version(version), dict(self.settings)).tasks
        return {"tasks": [{"task": task.json()} for task in tasks]} if tasks else {"result": {}}

    def execute(self, plan: Json, task: Json) -> Json:
        """Rewrite the fragments of one task."""
        dataset = LanceDataset.from_version(self.open_planned_version(plan))
        return {"result": CompactionTask.from_json(task["task"]).execute(dataset).json()}

    def finish(self, plan: Json, results: list[Json], uuid: str, keep_files: bool) -> Json:
        """Commit the rewritten fragments, and return the metrics."""
        dataset = LanceDataset.from_version(self.open_planned_version(plan))
        metrics = Compaction.commit(dataset, _rewritten(results), dict(self.settings))
        return {**asdict(metrics), "version": dataset.version}

    def discard(self, plan: Json, results: list[Json]) -> Json:
        """Remove the data files of rewritten fragments."""
        written = tuple(fragment.to_format() for result in _rewritten(results) for fragment in result.new_fragments)
        discard_update(self.open_planned_version(plan), tx.Update(new_fragments=written))
        return {}


def _rewritten(results: list[Json]) -> list[RewriteResult]:
    return [RewriteResult.from_json(result["result"]) for result in results]
