"""The compaction that a table needs, from the manifest and few other files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lancetable.errors import UnsupportedFeatureError
from lancetable.ops.maintain import compact
from lancetable.report.findings import Findings
from lancetable.report.model import CompactionPlan, Limits
from lancetable.table.row_counts import MAX_UNVERIFIED_ROWS, num_live_rows, physical_rows

if TYPE_CHECKING:
    from lancetable.report.fragments import FragmentCounts
    from lancetable.table.version import TableVersion


def planned_compaction(
    version: TableVersion, counts: FragmentCounts, limits: Limits, findings: Findings
) -> CompactionPlan | None:
    """Return the totals of the plan.

    None, with a note, if the plan would read too many files to verify row counts, or if this release cannot write to
    the table; None, with a problem, if it fails.
    """
    num_read = int((~counts.is_known | (counts.physical > MAX_UNVERIFIED_ROWS)).sum())
    if num_read > limits.data_files:
        findings.notes.append(
            f"No compaction was planned, because the row counts of {num_read:,} fragments have to be read from files."
        )
        return None
    try:
        return _plan(version)
    except UnsupportedFeatureError as error:
        findings.notes.append(f"No compaction was planned: {error}")
    except Exception as error:
        findings.add("compaction", version.location.path, error)
    return None


def _plan(version: TableVersion) -> CompactionPlan:
    tasks = compact.plan(version, compact.settings_of(version, {}))
    fragments = [fragment for task in tasks for fragment in task.fragments]
    live = sum(num_live_rows(version, fragment) for fragment in fragments)
    physical = sum(physical_rows(version, fragment) for fragment in fragments)
    return CompactionPlan(len(tasks), len(fragments), live, physical - live)
