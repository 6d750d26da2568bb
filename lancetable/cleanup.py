"""Results of cleanups in the form of the public API."""

from __future__ import annotations

from dataclasses import dataclass, field

from lancetable.commit.gc.cleanup import CandidateFile, CleanupCounts, CleanupPlan

__all__ = ["CleanupCandidateFile", "CleanupExplanation", "CleanupReferencedBranch", "CleanupStats"]


@dataclass
class CleanupStats:
    """Counts of removed versions and files; `bytes_removed` includes manifests."""

    bytes_removed: int = 0
    old_versions: int = 0
    data_files_removed: int = 0
    transaction_files_removed: int = 0
    index_files_removed: int = 0
    deletion_files_removed: int = 0
    failed_deletes: int = 0


@dataclass
class CleanupCandidateFile:
    """A file that a cleanup would remove.

    `path` is relative to the table's root. No version references an unverified file, so it may belong to a commit in
    progress.
    """

    path: str
    kind: str
    unverified: bool
    size_bytes: int


@dataclass
class CleanupReferencedBranch:
    """A branch that starts, directly or through other branches, from one of the versions and keeps its files."""

    name: str
    referenced_version: int
    cleanup_candidate: bool


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


def stats_of(counts: CleanupCounts) -> CleanupStats:
    """Return the counts of a cleanup in public form."""
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
    """Return a cleanup plan in public form."""
    counts = CleanupCounts()
    for file in plan.files:
        counts.count(file)
    shown = plan.files[:max_files] if include_files else ()
    return CleanupExplanation(
        plan.read_version,
        stats_of(counts),
        [_public_file(file) for file in shown],
        include_files and len(shown) < len(plan.files),
        max_files,
        [
            CleanupReferencedBranch(branch.name, branch.referenced_version, branch.cleanup_candidate)
            for branch in plan.branches
        ],
        list(plan.warnings),
    )


def _public_file(file: CandidateFile) -> CleanupCandidateFile:
    return CleanupCandidateFile(file.path, file.kind, file.unverified, file.size_bytes)
