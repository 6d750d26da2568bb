"""Rate limiter of deletions."""

from __future__ import annotations

import time


class RateLimiter:
    """Limit of the number of files removed per second.

    Files are removed in batches of at most `batch_size`, so that a low rate is not exceeded by one large batch.
    """

    def __init__(self, per_second: int | None, max_batch_size: int = 1000) -> None:
        self._per_second = per_second
        self._free_at = time.monotonic()
        self.batch_size = min(max_batch_size, per_second or max_batch_size)

    def wait(self, count: int) -> None:
        """Wait until the rate allows `count` more deletions."""
        if self._per_second is None:
            return
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(now, self._free_at) + count / self._per_second
