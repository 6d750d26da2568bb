"""From a transaction to the next version of a table: conflicts, rebase, building the manifest, the commit loop."""

from __future__ import annotations

from lancetable.errors import CommitConflictError
from lancetable.handlers.locked import CommitLock

__all__ = ["CommitConflictError", "CommitLock"]
