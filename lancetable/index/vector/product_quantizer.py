"""PQ: a vector as the numbers of the nearest vectors of a codebook, one for each of its m sub-vectors.

    codebook   (m, 2^bits, dim / m), in a global buffer as a tensor of shape [2^bits, dim]
    code       8 bits: byte i is the number for sub-vector i
               4 bits: byte i has the numbers for sub-vectors 2 i (low bits) and 2 i + 1 (high bits)
    file       rows of a partition transposed: all first bytes, then all second bytes ... (setting "transposed")

Distances are sums of m entries of a table (m, 2^bits) of the distances between the query and the codebook. Codes are of
differences to the centroid for L2 and cosine. Distances of cosine are squared distances of normalized vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.kernels.vector_distances import Scan, distance_tables
from lancetable.format.protobuf_conversion import parse_message
from lancetable.index.distances import Metric, Vectors
from lancetable.index.vector.nearest_centroids import Centroids
from lancetable.index.vector.quantizer import (
    Codes,
    Prepared,
    Quantizer,
    aligned,
    dimension,
    integer,
    widened,
)
from lancetable.index.vector.tensors import array_of_tensor, tensor_of_array
from lancetable.lazy import lazy_property
from lancetable.proto import index_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

    from lancetable.index.index_files import IndexFileReader

_ENCODED_ROWS = 4096


class ProductQuantizer(Quantizer):
    """Numbers of the vectors of a codebook.

    Parameters
    ----------
    metric
        See Quantizer.
    codebook
        (m, 2^bits, dim / m), in the type of the vectors; 4 or 8 bits.
    is_transposed
        True if the codes of a partition are stored transposed in the file, as pylance writes them.
    """

    kind = "PQ"
    column = "__pq_code"

    def __init__(self, metric: Metric, codebook: npt.NDArray[Any], *, is_transposed: bool = True) -> None:
        self.num_sub_vectors, num_codes, width = codebook.shape
        super().__init__(metric, self.num_sub_vectors * width)
        self.num_bits = num_codes.bit_length() - 1
        self.codebook, self.is_transposed = codebook, is_transposed
        self._wide = aligned(widened(codebook))
        self._by_position = np.ascontiguousarray(self._wide.transpose(0, 2, 1))

    @lazy_property
    def _centroids(self) -> list[Centroids]:
        return [Centroids(part.astype(np.float32, copy=False)) for part in self._wide]

    @classmethod
    def parse(cls, settings: Mapping[str, Any], metric: Metric, file: IndexFileReader) -> Self:
        """Return the quantizer of a file with these settings. Raises CorruptFileError if they are damaged."""
        path = file.path
        dim = dimension(settings, "dimension", path)
        count, num_bits = integer(settings, "num_sub_vectors", 1, dim, path), integer(settings, "nbits", 4, 8, path)
        is_transposed = settings.get("transposed", False)
        if dim % count or num_bits not in (4, 8) or count * num_bits % 8 or type(is_transposed) is not bool:
            raise CorruptFileError("invalid settings of a PQ index", found=dict(settings), path=path)
        if metric is Metric.HAMMING:
            raise CorruptFileError("a PQ index has the metric hamming", path=path)
        data = settings.get("codebook_tensor")
        if data and (not isinstance(data, list) or not all(type(byte) is int and 0 <= byte < 256 for byte in data)):
            raise CorruptFileError("setting 'codebook_tensor' of a vector index", path=path)
        content = bytes(data) if data else file.buffer(integer(settings, "codebook_position", 0, 1 << 31, path))
        codebook = array_of_tensor(parse_message(index_pb2.Tensor, content, path), path)
        if codebook.size != dim << num_bits or codebook.dtype.kind != "f":
            what = "wrong size of the codebook of a PQ index"
            raise CorruptFileError(what, dim << num_bits, (codebook.shape, codebook.dtype), path=path)
        return cls(metric, codebook.reshape(count, 1 << num_bits, dim // count), is_transposed=is_transposed)

    @property
    def uses_residuals(self) -> bool:
        """True for L2 and cosine. See Quantizer."""
        return self.metric is not Metric.DOT

    @property
    def code_type(self) -> pa.DataType:
        """Type of the column of codes. See Quantizer."""
        return pa.list_(pa.uint8(), self.num_sub_vectors * self.num_bits // 8)

    def settings(self, buffer: int | None = None) -> Mapping[str, Any]:
        """Return the settings. See Quantizer."""
        return {
            "codebook_position": buffer,
            "nbits": self.num_bits,
            "num_sub_vectors": self.num_sub_vectors,
            "dimension": self.dim,
            "codebook_tensor": [],
            "transposed": self.is_transposed,
        }

    def buffer(self) -> bytes:
        """Return the codebook as a tensor. See Quantizer."""
        data: bytes = tensor_of_array(self.codebook.reshape(1 << self.num_bits, self.dim)).SerializeToString()
        return data

    def encode(self, vectors: Vectors) -> Codes:
        """Return the codes (n, code_bytes). See Quantizer."""
        numbers = np.empty((len(vectors), self.num_sub_vectors), np.uint8)
        count, _, width = self._wide.shape
        for start in range(0, len(vectors), _ENCODED_ROWS):
            part = widened(vectors[start : start + _ENCODED_ROWS]).astype(np.float32, copy=False)
            for number in range(count):
                sub_vectors = part[:, number * width : (number + 1) * width]
                numbers[start : start + len(part), number] = self._centroids[number].nearest(sub_vectors)[0]
        return numbers if self.num_bits == 8 else numbers[:, 0::2] | numbers[:, 1::2] << 4

    def decode(self, codes: Codes) -> Vectors:
        """Return the vectors of the codebook. See Quantizer."""
        numbers = codes
        if self.num_bits == 4:
            numbers = np.empty((len(codes), self.num_sub_vectors), np.uint8)
            numbers[:, 0::2], numbers[:, 1::2] = codes & 15, codes >> 4
        return self._wide[np.arange(self.num_sub_vectors), numbers].reshape(len(codes), self.dim)

    def of_prepared(self, codes: Codes) -> Codes:
        """Return codes (n, code_bytes) from codes (code_bytes, n). See Quantizer."""
        return np.ascontiguousarray(codes.T)

    def to_stored(self, codes: Codes) -> Codes:
        """Return the rows (n, code_bytes) of one partition in the layout of the file. See Quantizer."""
        return np.ascontiguousarray(codes.T).reshape(codes.shape) if self.is_transposed else codes

    def of_stored(self, stored: Codes) -> Codes:
        """Return the codes (code_bytes, n), one row for each byte. See Quantizer."""
        if self.is_transposed:
            return aligned(stored).reshape(self.code_bytes, len(stored))
        return np.ascontiguousarray(stored.T)

    def prepare(self, queries: Vectors) -> Prepared:
        """Return the tables (n, m, 2^bits) of the distances of sub-vectors, float32. See Quantizer."""
        return distance_tables(self._by_position, aligned(widened(queries)), dot=self.metric is Metric.DOT)

    def scan(self, prepared: Prepared, codes: Codes) -> Scan:
        """Return the distances. See Quantizer."""
        return Scan(f"pq{self.num_bits}", codes, prepared, codes.shape[1], self.code_bytes)

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory. See Quantizer."""
        return 256 + self.codebook.nbytes + 2 * self._wide.nbytes
