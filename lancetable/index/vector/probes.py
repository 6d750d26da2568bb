"""Number of partitions that a search probes: those nearest to the query, and more only if these have too few rows.

With `nprobes`, both numbers are given. Otherwise, the first number depends on the distances to the centroids, because a
partition whose centroid is much farther than the nearest one rarely contains one of the k nearest vectors:

    distance / least distance    1.00  1.08  1.15  1.21 | 1.29  1.34       k = 10, L2: up to 1.265
                                  probed first            probed if fewer than k rows are found

The limits were measured with pylance 14.0.2, so that default searches of both libraries probe the same partitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.index.distances import Metric


class _Profile(NamedTuple):
    """First number of probes for k up to `k`: partitions up to `ratio` times the least distance, within two limits."""

    k: float
    least: int
    most: int
    ratio: float


_L2 = (
    _Profile(1, 5, 19, 1.22),
    _Profile(10, 6, 24, 1.265),
    _Profile(100, 11, 38, 1.33),
    _Profile(200, 15, 56, 1.3765),
    _Profile(500, 22, 81, 1.3735),
    _Profile(1000, 29, 93, 1.418),
    _Profile(math.inf, 98, 170, 1.553),
)
_COSINE = (
    _Profile(1, 3, 50, 1.235),
    _Profile(10, 8, 77, 1.2875),
    _Profile(100, 7, 106, 1.38),
    _Profile(200, 18, 156, 1.4145),
    _Profile(500, 25, 192, 1.44),
    _Profile(1000, 32, 220, 1.47),
    _Profile(math.inf, 100, 300, 1.6),
)
# Products have no natural zero: the number does not depend on the distances.
_DOT = tuple(
    _Profile(k, number, number, 1.0)
    for k, number in ((1, 56), (10, 144), (100, 200), (200, 211), (500, 244), (1000, 260), (math.inf, 400))
)
_HAMMING = tuple(_Profile(k, 1, 1 << 62, ratio) for k, ratio in ((1, 0.6), (10, 7.0), (math.inf, 81.0)))
_PROFILES = {Metric.L2: _L2, Metric.COSINE: _COSINE, Metric.DOT: _DOT, Metric.HAMMING: _HAMMING}


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

    def first(self, metric: Metric, distances: npt.NDArray[Any], k: int) -> int:
        """Return how many of the partitions are probed first, given their ascending distances to a query."""
        most = self.most(len(distances))
        if not most or self.is_fixed:
            return min(self.minimum, most)
        automatic = max(self.minimum, _automatic(metric, distances, k))
        number = _between(self.minimum, automatic, len(distances), self.effort)
        return min(max(number, self.minimum, 1), most)

    def most(self, num_partitions: int) -> int:
        """Return the number of partitions that may be probed."""
        return num_partitions if self.maximum is None else min(self.maximum, num_partitions)


def _automatic(metric: Metric, distances: npt.NDArray[Any], k: int) -> int:
    """Return the first number of probes for the default effort."""
    profile = next(profile for profile in _PROFILES[metric] if k <= profile.k)
    near = int(np.searchsorted(distances, distances[0] * profile.ratio, side="right"))
    return int(min(max(near, profile.least), profile.most, len(distances)))


def _between(least: int, automatic: int, total: int, effort: float) -> int:
    """Interpolate geometrically between the numbers for the efforts 0, 0.5 and 1."""
    if effort <= 0.5:
        number: float = least * (automatic / least) ** (2 * effort)
    else:
        number = automatic * (max(total, automatic) / automatic) ** (2 * effort - 1)
    return math.ceil(number - 1e-9)
