"""Results of cleanups in the form of the public API."""

from __future__ import annotations

from dataclasses import dataclass, field

from lancetable.commit.cleanup.branch_references import CleanupReferencedBranch
from lancetable.commit.cleanup.cleanup_plan import CleanupCandidateFile, CleanupPlan
from lancetable.commit.cleanup.cleanup_run import CleanupStats, count_file

__all__ = ["CleanupCandidateFile", "CleanupExplanation", "CleanupReferencedBranch", "CleanupStats"]


@dataclass
class CleanupExplanation:
    """The versions and files that a cleanup would remove, and the branches that keep versions."""

    read_version: int
    stats: CleanupStats
    candidate_files: list[CleanupCandidateFile] = field(default_factory=list)
    candidate_files_truncated: bool = False
    candidate_file_limit: int = 1000
    referenced_branches: list[CleanupReferencedBranch] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def explanation_of(plan: CleanupPlan, *, include_files: bool, max_files: int) -> CleanupExplanation:
    """Return a cleanup plan in public form."""
    stats = CleanupStats()
    for file in plan.files:
        count_file(stats, file)
    files = list(plan.files[:max_files]) if include_files else []
    is_truncated = include_files and len(files) < len(plan.files)
    branches, warnings = list(plan.branches), list(plan.warnings)
    return CleanupExplanation(plan.read_version, stats, files, is_truncated, max_files, branches, warnings)
