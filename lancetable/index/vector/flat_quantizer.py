"""FLAT: the vectors themselves, normalized for the metric cosine.    flat = [x0, x1, ...]    {"dim": 16}"""

from __future__ import annotations

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
    widened,
)

if TYPE_CHECKING:
    from typing_extensions import Self

    from lancetable.index.index_files import IndexFileReader


class FlatQuantizer(Quantizer):
    """Vectors without quantization.

    Parameters
    ----------
    metric, dim
        See Quantizer.
    dtype
        Type of the numbers of the vectors.
    """

    kind = "FLAT"
    column = "flat"

    def __init__(self, metric: Metric, dim: int, dtype: np.dtype[Any]) -> None:
        super().__init__(metric, dim)
        self.dtype = dtype

    @classmethod
    def parse(cls, settings: Mapping[str, Any], metric: Metric, file: IndexFileReader) -> Self:
        """Return the quantizer of a file with these settings. Raises CorruptFileError if they are damaged."""
        dim, stored = dimension(settings, "dim", file.path), file.column_type(cls.column)
        if not pa.types.is_fixed_size_list(stored) or stored.list_size != dim:
            raise CorruptFileError("wrong type of the vectors of an index", f"{dim} numbers", stored, path=file.path)
        numbers = stored.value_type
        if not (pa.types.is_floating(numbers) or pa.types.is_uint8(numbers)):
            raise CorruptFileError("wrong type of the vectors of an index", "numbers", stored, path=file.path)
        dtype = np.dtype(numbers.to_pandas_dtype())
        if not metric.supports(dtype):
            raise CorruptFileError(f"an index of {dtype} vectors has the metric {metric.value}", path=file.path)
        return cls(metric, dim, dtype)

    @property
    def code_type(self) -> pa.DataType:
        """Type of the column of codes. See Quantizer."""
        return pa.list_(pa.from_numpy_dtype(self.dtype), self.dim)

    @property
    def code_field(self) -> pa.Field:
        """The column of codes: not nullable for floats. See Quantizer."""
        return pa.field(self.column, self.code_type, nullable=self.dtype.kind == "u")

    def settings(self, buffer: int | None = None) -> Mapping[str, Any]:
        """Return the settings. See Quantizer."""
        return {"dim": self.dim}

    def encode(self, vectors: Vectors) -> Codes:
        """Return the vectors in the type of the index. See Quantizer."""
        return vectors.astype(self.dtype, copy=False)

    def decode(self, codes: Codes) -> Vectors:
        """Return the vectors. See Quantizer."""
        return codes

    def of_prepared(self, codes: Codes) -> Codes:
        """Return the vectors in the type of the index. See Quantizer."""
        return codes.astype(self.dtype, copy=False)

    def of_stored(self, stored: Codes) -> Codes:
        """Return the vectors (n, dim), with float16 as float32. See Quantizer."""
        return aligned(widened(stored))

    def prepare(self, queries: Vectors) -> Prepared:
        """Return the queries, with float16 as float32. See Quantizer."""
        return aligned(widened(queries))

    def scan(self, prepared: Prepared, codes: Codes) -> Scan:
        """Return the distances. See Quantizer."""
        kind = self.metric.value + ("_double" if codes.dtype == np.float64 else "")
        norms = None
        if self.metric is Metric.COSINE:
            norms = np.sqrt(np.einsum("ij,ij->i", prepared, prepared, dtype=np.float64))
        return Scan(kind, codes, prepared, len(codes), self.dim, norms=norms)
