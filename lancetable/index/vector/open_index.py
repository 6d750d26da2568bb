"""Opened segments of vector indexes. Centroids are in memory; partitions are read when they are searched, and cached.

index.idx        lance:index {"type": "IVF_HNSW_PQ", "distance_type": "l2"}; centroids; graphs
auxiliary.idx    _rowid, and the codes in a column of the quantizer
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.kernels.vector_distances import products
from lancetable.index.distances import Metric, Vectors
from lancetable.index.kind import OpenIndex
from lancetable.index.vector.hnsw_graph import Graph, parse_texts, read_graph
from lancetable.index.vector.ivf_model import IvfModel
from lancetable.index.vector.quantizer import Codes, aligned, normalized, read_settings, widened
from lancetable.index.vector.quantizers import QUANTIZERS, read_quantizer

if TYPE_CHECKING:
    from lancetable.format.row_address import U64Array
    from lancetable.index.queries import IndexQuery
    from lancetable.index.results import IndexResult
    from lancetable.index.segments import SegmentFiles

INDEX_FILE, AUXILIARY_FILE = "index.idx", "auxiliary.idx"
INDEX_KEY, IVF_KEY, METRIC_KEY = "lance:index", "lance:ivf", "distance_type"
ROW_ID = "_rowid"


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Rows of one partition: addresses or stable row ids (n,), codes in the form of the quantizer, and the graph."""

    row_ids: U64Array
    codes: Codes
    graph: Graph | None
    is_mapped: bool = False

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory, without codes that are a part of a memory map."""
        graph = 0 if self.graph is None else self.graph.memory_bytes
        return 512 + self.row_ids.nbytes + (0 if self.is_mapped else self.codes.nbytes) + graph


class OpenVectorIndex(OpenIndex):
    """Open segment of a vector index.

    Attributes
    ----------
    type
        Type with all parts, such as "IVF_HNSW_PQ".
    metric
        Metric of the distances.
    ivf
        Partitions with their centroids, and the rows of the graphs.
    vectors
        Rows of the codes of each partition.
    quantizer
        Quantizer of the codes.

    Raises CorruptFileError if a file is damaged, and UnsupportedFeatureError for types that cannot be searched.
    """

    def __init__(self, files: SegmentFiles) -> None:
        self._index, self._auxiliary = files.open(INDEX_FILE), files.open(AUXILIARY_FILE)
        self._uuid = str(files.metadata.uuid)
        self.directory = files.directory
        self.type, self.metric = self._parse_type()
        graph, _, quantizer = self.type.removeprefix("IVF_").rpartition("_")
        if not self.type.startswith("IVF_") or graph not in ("", "HNSW") or quantizer not in QUANTIZERS:
            raise UnsupportedFeatureError(
                f"index {files.metadata.name!r}: {self.type} is not supported", feature=self.type
            )
        # Without graphs, segments that pylance has merged count the rows of the codes here.
        self.ivf = self._model(self._index, has_rows=bool(graph))
        self.vectors = self._model(self._auxiliary)
        if self._auxiliary.text(METRIC_KEY) not in (None, self.metric.value):
            found = self._auxiliary.text(METRIC_KEY)
            raise CorruptFileError("two metrics of a vector index", self.metric.value, found, path=self.directory)
        self.quantizer = read_quantizer(quantizer, self.metric, self._auxiliary)
        self.centroids = self._checked_centroids()
        self._wide_centroids = aligned(widened(self.centroids))
        with np.errstate(all="ignore"):
            self._squares = np.einsum("ij,ij->i", self._wide_centroids, self._wide_centroids)
        self._texts = parse_texts(self._index, self.num_partitions) if graph else None

    def _parse_type(self) -> tuple[str, Metric]:
        path = self._index.path
        try:
            entry = json.loads(self._index.text(INDEX_KEY) or "")
            name, metric = entry["type"], entry["distance_type"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptFileError(f"malformed entry {INDEX_KEY!r} of a vector index", path=path) from error
        known = {each.value: each for each in Metric}
        if not isinstance(name, str) or metric not in known:
            raise CorruptFileError("unknown type or metric of a vector index", found=(name, metric), path=path)
        return name, known[metric]

    @staticmethod
    def _model(file: Any, *, has_rows: bool = True) -> IvfModel:
        return IvfModel.parse(file.buffer(file.number(IVF_KEY, 0)), file.num_rows if has_rows else None, file.path)

    def _checked_centroids(self) -> npt.NDArray[Any]:
        centroids, path = self.ivf.centroids, self._index.path
        if centroids is None:
            raise CorruptFileError("a vector index without centroids", path=path)
        if centroids.shape[1] != self.quantizer.dim and len(centroids):
            raise CorruptFileError("wrong dimension of centroids", self.quantizer.dim, centroids.shape[1], path=path)
        if not self.metric.supports(centroids.dtype):
            raise CorruptFileError("wrong type of centroids", self.metric.value, centroids.dtype, path=path)
        if self.vectors.num_partitions != len(centroids):
            found = self.vectors.num_partitions
            raise CorruptFileError("wrong number of partitions of codes", len(centroids), found, path=path)
        return centroids

    @property
    def num_partitions(self) -> int:
        """Number of partitions."""
        return self.ivf.num_partitions

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return self.quantizer.dim

    @property
    def has_graphs(self) -> bool:
        """True for HNSW."""
        return self._texts is not None

    # --- search

    def as_searched(self, queries: Vectors) -> Vectors:
        """Return queries (n, dim) in the form of the centroids: normalized for cosine."""
        return normalized(queries) if self.metric is Metric.COSINE else queries

    def partition_distances(self, queries: Vectors) -> npt.NDArray[Any]:
        """Return the distances (n, partitions) of queries, as they are searched, to the centroids; NaN becomes inf."""
        if self.metric is Metric.HAMMING:
            from_each = [np.bitwise_xor(self.centroids, query) for query in queries]
            found = np.array([np.unpackbits(each, axis=1).sum(axis=1) for each in from_each], np.float32)
            return found.reshape(len(queries), self.num_partitions)
        centroids, values = self._wide_centroids, widened(queries)
        with np.errstate(all="ignore"):
            distances = products(values.astype(centroids.dtype, copy=False), centroids)
            if self.metric is Metric.DOT:
                np.subtract(1, distances, out=distances)
            else:
                squares = np.einsum("ij,ij->i", values, values, dtype=centroids.dtype)
                distances *= -2
                distances += self._squares
                distances += squares[:, None]
        np.copyto(distances, np.inf, where=np.isnan(distances))
        return np.asarray(distances)

    def residuals(self, queries: Vectors, partition: int) -> Vectors:
        """Return queries (n, dim) in the form of the codes of a partition."""
        return queries - self.centroids[partition] if self.quantizer.uses_residuals else queries

    def partition(self, number: int) -> Partition:
        """Return a partition, read on first use and cached. Raises CorruptFileError if it is damaged."""
        return self._auxiliary.cached(
            ("partition", number), lambda: self.read_partition(number), lambda read: read.memory_bytes
        )

    def read_partition(self, number: int) -> Partition:
        """Read a partition without caching it. Raises CorruptFileError if it is damaged."""
        rows, path, quantizer = self.vectors.rows(number), self._auxiliary.path, self.quantizer
        if not rows:
            stored = np.empty((0, quantizer.code_type.list_size), quantizer.code_type.value_type.to_pandas_dtype())
            return Partition(np.empty(0, np.uint64), quantizer.of_stored(stored), None)
        row_ids, codes = self._auxiliary.read_arrays([ROW_ID, quantizer.column], rows)
        if row_ids.type != pa.uint64() or row_ids.null_count or codes.null_count:
            raise CorruptFileError("invalid rows of a vector index", found=row_ids.type, path=path)
        width = codes.type.list_size
        values = codes.values.slice(codes.offset * width, len(codes) * width)
        if len(row_ids) != len(rows) or len(codes) != len(rows) or values.null_count:
            raise CorruptFileError("wrong number of rows of a partition", len(rows), len(row_ids), path=path)
        stored = values.to_numpy().reshape(len(rows), width)
        graph = None
        if self._texts is not None:
            graph = read_graph(self._index, self.ivf.rows(number), self._texts[number], len(rows))
        codes = quantizer.of_stored(stored)
        return Partition(row_ids.to_numpy(), codes, graph, self._auxiliary.is_mapped(codes))

    def search(self, query: IndexQuery) -> IndexResult:
        """Vector indexes answer no filters. See OpenIndex."""
        raise AssertionError("a vector index has no answer to a filter")

    # --- description

    def statistics(self) -> dict[str, Any]:
        """Return statistics of the segment. See OpenIndex."""
        sizes = [{"size": size} for size in self.vectors.lengths.tolist()]
        return {
            "centroids": self.centroids.astype(np.float64).tolist(),
            "index_file_version": "V3",
            "index_type": self.type,
            "loss": self.ivf.loss,
            "metric_type": self.metric.value,
            "num_partitions": self.num_partitions,
            "partitions": sizes,
            "sub_index": self._sub_index(),
            "uri": f"{self.directory}/{INDEX_FILE}",
            "uuid": self._uuid,
        }

    def _sub_index(self) -> dict[str, Any]:
        graph: dict[str, Any] = next((json.loads(text) for text in self._texts or () if text), {})
        hidden = ("codebook_position", "codebook", "codebook_tensor")
        settings = {name: value for name, value in read_settings(self._auxiliary).items() if name not in hidden}
        is_pq_cosine = self.quantizer.kind == "PQ" and self.metric is Metric.COSINE
        metric = Metric.L2 if is_pq_cosine else self.metric
        kind = self.quantizer.kind if self._texts is None else "HNSW"
        return {**graph, **settings, "index_type": kind, "metric_type": metric.value}

    def prewarm(self) -> None:
        """Read all partitions into the cache. See OpenIndex."""
        for number in range(self.num_partitions):
            self.partition(number)

    @property
    def memory_bytes(self) -> int:
        """Approximate size in memory. See OpenIndex."""
        texts = sum(map(len, self._texts or ()))
        return 1024 + 2 * self.centroids.nbytes + 48 * self.num_partitions + texts + self.quantizer.memory_bytes
