"""SQ: each number scaled from the range of all numbers to 8 bits.

    code = trunc((v - start) * 255 / (end - start)), limited to 0 ... 255      {"dim", "num_bits": 8, "bounds"}

Distances of L2 and cosine are squared distances between the codes of vector and query, in units of the scale; for
cosine, these are distances between normalized vectors. Those of dot are 1 - product of the query, not quantized, and
the decoded vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.kernels.vector_distances import Scan
from lancetable.index.distances import Metric, Vectors
from lancetable.index.vector.quantizer import (
    Codes,
    Prepared,
    Quantizer,
    aligned,
    dimension,
    integer,
    widened,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from lancetable.index.index_files import IndexFileReader

_LEVELS = 255


class ScalarQuantizer(Quantizer):
    """Numbers scaled to 8 bits.

    Parameters
    ----------
    metric, dim
        See Quantizer.
    start, end
        Bounds of the numbers of the training vectors.
    """

    kind = "SQ"
    column = "__sq_code"
    num_bits = 8

    def __init__(self, metric: Metric, dim: int, start: float, end: float) -> None:
        super().__init__(metric, dim)
        self.start, self.end = start, end

    @classmethod
    def parse(cls, settings: Mapping[str, Any], metric: Metric, file: IndexFileReader) -> Self:
        """Return the quantizer of a file with these settings. Raises CorruptFileError if they are damaged."""
        dim = dimension(settings, "dim", file.path)
        integer(settings, "num_bits", cls.num_bits, cls.num_bits, file.path)
        bounds = settings.get("bounds")
        limits: list[Any] = [bounds.get(name) for name in ("start", "end")] if isinstance(bounds, dict) else []
        if len(limits) != 2 or not all(type(limit) in (int, float) and math.isfinite(limit) for limit in limits):
            raise CorruptFileError("setting 'bounds' of a vector index", "two numbers", bounds, path=file.path)
        if limits[0] > limits[1] or metric is Metric.HAMMING:
            raise CorruptFileError("invalid settings of an SQ index", found=(bounds, metric.value), path=file.path)
        return cls(metric, dim, float(limits[0]), float(limits[1]))

    @property
    def code_type(self) -> pa.DataType:
        """Type of the column of codes. See Quantizer."""
        return pa.list_(pa.uint8(), self.dim)

    def settings(self, buffer: int | None = None) -> Mapping[str, Any]:
        """Return the settings. See Quantizer."""
        return {"dim": self.dim, "num_bits": self.num_bits, "bounds": {"start": self.start, "end": self.end}}

    @property
    def _step(self) -> float:
        return (self.end - self.start) / _LEVELS

    def encode(self, vectors: Vectors) -> Codes:
        """Return the codes (n, dim). See Quantizer."""
        with np.errstate(all="ignore"):
            scaled = (vectors.astype(np.float64) - self.start) * (_LEVELS / (self.end - self.start))
            return np.clip(np.nan_to_num(scaled, nan=0.0), 0, _LEVELS).astype(np.uint8)

    def decode(self, codes: Codes) -> Vectors:
        """Return the centres of the codes in float32. See Quantizer."""
        vectors: Vectors = codes.astype(np.float32) * np.float32(self._step) + np.float32(self.start)
        return vectors

    def of_stored(self, stored: Codes) -> Codes:
        """Return the codes (n, dim) as they are. See Quantizer."""
        return aligned(stored)

    def prepare(self, queries: Vectors) -> Prepared:
        """Return the codes of the queries, or for dot the queries in float32. See Quantizer."""
        if self.metric is Metric.DOT:
            return aligned(widened(queries).astype(np.float32))
        return self.encode(queries)

    def scan(self, prepared: Prepared, codes: Codes) -> Scan:
        """Return the distances. See Quantizer."""
        if self.metric is Metric.DOT:
            offsets = 1 - self.start * prepared.sum(axis=1, dtype=np.float64)
            return Scan("sq_dot", codes, prepared, len(codes), self.dim, -self._step, offsets)
        return Scan("sq_l2", codes, prepared, len(codes), self.dim, self._step**2)
