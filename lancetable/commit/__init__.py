"""Commits: conflict checks, rebasing, construction of the next manifest, the commit loop, and cleanup."""

from __future__ import annotations

from lancetable.errors import CommitConflictError
from lancetable.handlers.commit_lock import CommitLock

__all__ = ["CommitConflictError", "CommitLock"]
