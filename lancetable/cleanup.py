"""What a cleanup did or would do, as users hold it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lancetable.commit.cleanup import CandidateFile, CleanupCounts, CleanupPlan

__all__ = ["CleanupCandidateFile", "CleanupExplanation", "CleanupReferencedBranch", "CleanupStats"]


@dataclass
class CleanupStats:
    """What a cleanup removed; `bytes_removed` counts manifests too."""

    bytes_removed: int = 0
    old_versions: int = 0
    data_files_removed: int = 0
    transaction_files_removed: int = 0
    index_files_removed: int = 0
    deletion_files_removed: int = 0
    failed_deletes: int = 0


@dataclass
class CleanupCandidateFile:
    """A file that a cleanup would remove. `path` is relative to the table's root; an unverified one is named by no
    version, so that it may belong to a commit that is under way."""

    path: str
    kind: str
    unverified: bool
    size_bytes: int


@dataclass
class CleanupReferencedBranch:
    """A branch that springs, perhaps through others, from one of the versions; it keeps that whose files it names."""

    name: str
    referenced_version: int
    cleanup_candidate: bool


@dataclass
class CleanupExplanation:
    """What a cleanup would remove, and why some versions stay."""

    read_version: int
    stats: CleanupStats
    candidate_files: list[CleanupCandidateFile] = field(default_factory=list)
    candidate_files_truncated: bool = False
    candidate_file_limit: int = 1000
    referenced_branches: list[CleanupReferencedBranch] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def stats_of(counts: CleanupCounts) -> CleanupStats:
    """Counts as users see them."""
    of = counts.files.get
    return CleanupStats(
        counts.bytes_removed,
        counts.old_versions,
        of("data", 0),
        of("transaction", 0),
        of("index", 0),
        of("deletion", 0),
        counts.failed_deletes,
    )


def explanation_of(plan: CleanupPlan, *, include_files: bool, max_files: int) -> CleanupExplanation:
    """A plan as users see it."""
    counts = CleanupCounts()
    for each in plan.files:
        counts.count(each)
    shown = plan.files[:max_files] if include_files else ()
    return CleanupExplanation(
        plan.read_version,
        stats_of(counts),
        [_shown(each) for each in shown],
        include_files and len(shown) < len(plan.files),
        max_files,
        [CleanupReferencedBranch(each.name, each.referenced_version, each.cleanup_candidate) for each in plan.branches],
        list(plan.warnings),
    )


def _shown(file: CandidateFile) -> CleanupCandidateFile:
    return CleanupCandidateFile(file.path, file.kind, file.unverified, file.size_bytes)
