"""Interleaving of runs of bytes from several streams, one run of each in turn.

    heads  [a a][b b]     sizes 2 2
    bodies [x][y y y]     sizes 1 3        ->   a a x | b b y y y

Chunks, full-zip entries and length-prefixed strings are built this way: each stream is built as a whole, and then the
runs are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.kernels import native
from lancetable.file.kernels.varbin import offsets_of_sizes


class Runs(NamedTuple):
    """Bytes and the (n + 1,) offsets of their n runs."""

    data: Any  # bytes-like
    offsets: npt.NDArray[np.int64]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """The (n,) sizes of the runs in bytes."""
        return np.diff(self.offsets)


def runs_of(data: Any, sizes: npt.NDArray[np.int64] | int, count: int | None = None) -> Runs:
    """Return contiguous runs of the given sizes, or `count` runs of one size."""
    if isinstance(sizes, int):
        assert count is not None
        return Runs(data, np.arange(count + 1, dtype=np.int64) * sizes)
    return Runs(data, offsets_of_sizes(sizes))


def total_sizes(streams: Sequence[Runs]) -> npt.NDArray[np.int64]:
    """Return the (n,) total sizes of the i-th runs of all streams."""
    return np.diff(np.add.reduce([stream.offsets for stream in streams]))


def padding(sizes: npt.NDArray[np.int64], alignment: int, filler: int) -> Runs:
    """Return runs that pad runs of the given sizes to a multiple of `alignment`."""
    missing = -sizes % alignment
    return runs_of(np.full(int(missing.sum()), filler, np.uint8), missing)


def interleave(streams: Sequence[Runs]) -> pa.Buffer:
    """Concatenate run 0 of every stream, then run 1 of every stream, and so on."""
    if native is not None:
        return pa.py_buffer(native.interleave(streams))
    stream_runs = [[memoryview(data).cast("B")[a:b] for a, b in pairwise(ends.tolist())] for data, ends in streams]
    return pa.py_buffer(b"".join(chain.from_iterable(zip(*stream_runs, strict=True))))
