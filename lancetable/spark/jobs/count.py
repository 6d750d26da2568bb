"""Counting the rows of a table."""

from __future__ import annotations

from dataclasses import dataclass

from lancetable.dataset import LanceDataset
from lancetable.ops.read.filtered_rows import count_plan
from lancetable.ops.read.scan_plan import ScanOptions, plan_scan
from lancetable.ops.read.splits import scan_options_of
from lancetable.spark.jobs.base import pin_to_json, plan_row_tasks, planned_pin, slices_of_task
from lancetable.spark.options import SourceOptions
from lancetable.spark.pin import Pin, pinned
from lancetable.spark.runner import Json

__all__ = ["PlanCount", "CountRows"]


@dataclass(frozen=True)
class PlanCount:
    """The tasks of a count, or the count itself if the manifest contains it."""

    options: SourceOptions
    filter: str | None

    def __call__(self) -> Json:
        version = pinned(self.options).open()
        if self.filter is None:
            return {"rows": LanceDataset.from_version(version).count_rows()}
        return {"pin": pin_to_json(version), "tasks": plan_row_tasks(version, whole=False)}

    def work(self, plan: Json) -> CountRows:
        return CountRows(planned_pin(self.options, plan), str(self.filter))


@dataclass(frozen=True)
class CountRows:
    """{"slices"} -> {"rows"}: rows for which a predicate is true."""

    pin: Pin
    predicate: str

    def __call__(self, task: Json) -> Json:
        version = self.pin.open()
        scans = scan_options_of(slices_of_task(task), ScanOptions(columns=[], filter=self.predicate))
        return {"rows": sum(count_plan(version, plan_scan(version, scan)) for scan in scans)}
