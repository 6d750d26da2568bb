"""Number of partitions that a search probes: those nearest to the query, and more only if these have too few rows.

With `nprobes`, both numbers are given. Otherwise, the first number depends on the distances to the centroids: a
partition whose centroid is much farther than the nearest one rarely contains one of the k nearest vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Limits of the number of partitions that are probed in each segment.

    `minimum` are probed in any case; `maximum` limits all probes, None for no limit. `effort` from 0 to 1 is the first
    number between `minimum` and all partitions; 0.5 selects it by the distances. With `is_fixed`, it is `minimum`.
    """

    minimum: int = 1
    maximum: int | None = None
    effort: float = 0.5
    is_fixed: bool = False

    @classmethod
    def of_arguments(
        cls, nprobes: int | None, minimum: int | None, maximum: int | None, effort: float | None
    ) -> ProbeOptions:
        """Return the options for the arguments of a search."""
        if effort is None and nprobes is not None:
            return cls(nprobes, nprobes, is_fixed=True)
        return cls(minimum or 1, maximum, 0.5 if effort is None else effort)

    def first(self, distances: npt.NDArray[Any], k: int) -> int:
        """Return how many of the partitions are probed first, given their ascending distances to a query."""
        most = self.most(len(distances))
        if not most or self.is_fixed:
            return min(self.minimum, most)
        automatic = max(self.minimum, _near(distances, k))
        number = _between(self.minimum, automatic, len(distances), self.effort)
        return min(max(number, self.minimum, 1), most)

    def most(self, num_partitions: int) -> int:
        """Return the number of partitions that may be probed."""
        return num_partitions if self.maximum is None else min(self.maximum, num_partitions)


def _near(distances: npt.NDArray[Any], k: int) -> int:
    """Return the number of centroids that are not much farther than the nearest one."""
    factor: float = 0.6 if k <= 1 else 7.0 if k <= 10 else 81.0
    return int(np.searchsorted(distances, distances[0] * factor, side="right"))


def _between(least: int, automatic: int, total: int, effort: float) -> int:
    """Interpolate geometrically between the numbers for the efforts 0, 0.5 and 1."""
    if effort <= 0.5:
        return round(float(least * (automatic / least) ** (2 * effort)))
    return round(float(automatic * (max(total, automatic) / automatic) ** (2 * effort - 1)))
