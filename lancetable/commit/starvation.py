"""Detection of writers that lose every race against this process.

On an object store, a writer that has just committed can publish its next version before the writers that lost have read
the last one. It may win many times in a row and never detect the other writers. Before some commits of such a series it
therefore lists `_transactions`, where every writer stores a transaction file before it publishes a version.

    commits before the listing    3   9   21   45   93   157   221   ...
"""

from __future__ import annotations

from dataclasses import dataclass

from lancetable.errors import LanceError
from lancetable.format.paths import TRANSACTIONS_DIR, join, parse_transaction_name
from lancetable.store.base import ObjectStore

_FIRST_INTERVAL = 3
_MAX_INTERVAL = 64
_MAX_PAUSE_SECONDS = 2.0  # a longer pause between commits lets other writers win


@dataclass(slots=True)
class CommitSeries:
    """Consecutive commits of this process to one table, each based on the previous one and without a lost race.

    Attributes
    ----------
    checked_version
        Version up to which the transactions of other writers were looked for.
    last_version
        Version of the last commit.
    committed_at
        Time of the last commit.
    interval
        Number of commits until the next listing.
    """

    checked_version: int = 0
    last_version: int = 0
    committed_at: float = 0.0
    interval: int = _FIRST_INTERVAL

    def add(self, read_version: int, version: int, now: float) -> None:
        """Add a commit. It starts a new series unless it directly follows the last one."""
        if read_version != self.last_version or now - self.committed_at > _MAX_PAUSE_SECONDS:
            self.checked_version, self.interval = read_version, _FIRST_INTERVAL
        self.last_version, self.committed_at = version, now

    def has_competitors(self, store: ObjectStore, base: str, read_version: int, now: float) -> bool:
        """Return True if transactions of other writers were stored since the last listing.

        Lists only if it is due before a commit on `read_version`. A transaction file may belong to a writer that died.
        """
        num_commits = self.last_version - self.checked_version
        if (
            num_commits < self.interval
            or read_version != self.last_version
            or now - self.committed_at > _MAX_PAUSE_SECONDS
            or not store.capabilities.ordered_list
        ):
            return False
        first, self.checked_version = self.checked_version, self.last_version
        self.interval = min(2 * self.interval, _MAX_INTERVAL)
        try:
            # One name more than this series stored is enough.
            names = store.list_names(join(base, TRANSACTIONS_DIR), start_after=f"{first}-", limit=num_commits + 1)
        except LanceError:
            return False  # the listing only improves fairness; the commit reports a failure of the store
        parsed = [parse_transaction_name(meta.name) for meta in names]
        stored = sum(name is not None and first <= name[0] <= read_version for name in parsed)
        if stored > num_commits:
            self.interval = _FIRST_INTERVAL
        return stored > num_commits
