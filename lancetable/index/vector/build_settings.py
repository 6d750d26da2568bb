"""Parameters of builds of vector indexes, from arguments of `create_index` and from the details of existing indexes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import InvalidInputError, UnsupportedFeatureError
from lancetable.index.distances import Metric
from lancetable.index.vector.graph_builder import GraphSettings
from lancetable.index.vector.kmeans import MAX_ITERATIONS, SAMPLES_PER_CLUSTER
from lancetable.index.vector.product_quantizer import ProductQuantizer
from lancetable.index.vector.quantizer import Quantizer
from lancetable.index.vector.scalar_quantizer import ScalarQuantizer
from lancetable.index.vector_segments import type_of_details
from lancetable.proto import index_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

TYPES: Final = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")

_METRIC_NUMBERS: Final = {
    Metric.L2: index_pb2.L2,
    Metric.COSINE: index_pb2.COSINE,
    Metric.DOT: index_pb2.DOT,
    Metric.HAMMING: index_pb2.HAMMING,
}
_MAX_PARTITIONS: Final = 4096
_MAX_LEVELS: Final = 32
# Parameters of pylance that are recorded, but have no effect on the builds of this library.
_PYLANCE_HINTS: Final = {
    "lance.ivf.shuffle_partition_batches": "10240",
    "lance.ivf.shuffle_partition_concurrency": "2",
    "lance.skip_transpose": "false",
}


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """Parameters of a build.

    Attributes
    ----------
    index_type
        One of `TYPES`.
    metric
        Metric of the distances.
    num_partitions, target_partition_size
        Number of partitions, or number of rows of a partition, from which the former is computed.
    num_sub_vectors, num_bits
        Number of sub-vectors of PQ, and bits of the code of each.
    graph
        Parameters of graphs.
    sample_rate, max_iterations
        Number of training vectors for each centroid, and of iterations of the training.
    seed
        Seed of all random choices; by default, a build cannot be repeated.
    centroids, quantizer
        Existing centroids (partitions, dim) and quantizer, which are not trained.
    """

    index_type: str
    metric: Metric = Metric.L2
    num_partitions: int | None = None
    target_partition_size: int | None = None
    num_sub_vectors: int | None = None
    num_bits: int = 8
    graph: GraphSettings = field(default_factory=GraphSettings)
    sample_rate: int = SAMPLES_PER_CLUSTER
    max_iterations: int = MAX_ITERATIONS
    seed: int | None = None
    centroids: npt.NDArray[Any] | None = None
    codebook: npt.NDArray[Any] | None = None
    quantizer: Quantizer | None = None

    @property
    def quantizer_kind(self) -> str:
        """Name of the quantizer, such as "PQ"."""
        return self.index_type.rpartition("_")[2]

    @property
    def has_graph(self) -> bool:
        """True for HNSW."""
        return "HNSW" in self.index_type

    @property
    def target_size(self) -> int:
        """Number of rows that a partition should have."""
        if self.target_partition_size is not None:
            return self.target_partition_size
        if self.has_graph:
            return 1 << 20
        return 4096 if self.quantizer_kind == "FLAT" else 8192

    def partitions_for(self, num_rows: int) -> int:
        """Return the number of partitions for a number of rows."""
        if self.num_partitions is not None:
            return self.num_partitions
        return max(1, min(num_rows // self.target_size, _MAX_PARTITIONS))

    @classmethod
    def of_options(cls, options: Mapping[str, Any]) -> Self:
        """Return the settings of some options. Raises InvalidInputError if one is unknown or invalid."""
        values = dict(options)
        graph = {each.name: values.pop(each.name) for each in fields(GraphSettings) if each.name in values}
        known = {each.name for each in fields(cls)} - {"graph"}
        for name in values.keys() - known:
            raise InvalidInputError(f"vector indexes have no option {name!r}; their options are: {sorted(known)}")
        settings = cls(**values, graph=GraphSettings(**graph))
        settings._check()
        return settings

    def _check(self) -> None:
        if self.index_type not in TYPES:
            raise UnsupportedFeatureError(
                f"Only {list(TYPES)} index types supported. Got {self.index_type}", feature=f"{self.index_type} indexes"
            )
        limits: list[tuple[str, Any, int, int]] = [
            ("num_partitions", self.num_partitions, 1, 1 << 24),
            ("target_partition_size", self.target_partition_size, 1, 1 << 40),
            ("num_sub_vectors", self.num_sub_vectors, 1, 1 << 20),
            ("sample_rate", self.sample_rate, 1, 1 << 20),
            ("max_iters", self.max_iterations, 1, 1 << 20),
            ("max_level", self.graph.max_level, 1, _MAX_LEVELS),
            ("m", self.graph.m, 1, 1 << 12),
            ("ef_construction", self.graph.ef_construction, 1, 1 << 20),
        ]
        for name, value, least, most in limits:
            if value is not None and (not isinstance(value, (int, np.integer)) or not least <= value <= most):
                raise InvalidInputError(f"{name} must be a number from {least} to {most}, got {value!r}")
        kind = self.quantizer_kind
        if self.num_bits not in ((4, 8) if kind == "PQ" else (8,)):
            raise InvalidInputError(f"num_bits {self.num_bits} is not supported for {self.index_type}; use 8")
        if kind == "PQ":
            if self.num_sub_vectors is None:
                raise InvalidInputError(f"num_sub_vectors is required for {self.index_type}")
            if self.num_bits == 4 and self.num_sub_vectors % 2:
                raise InvalidInputError(
                    f"num_sub_vectors must be divisible by 2 for num_bits=4, but got {self.num_sub_vectors}"
                )
        if self.metric is Metric.HAMMING and kind != "FLAT":
            raise InvalidInputError(f"{self.index_type} does not support the metric hamming; use IVF_FLAT")

    def check_dim(self, dim: int) -> None:
        """Raise InvalidInputError if vectors of this dimension cannot be indexed with these settings."""
        if self.num_sub_vectors is not None and dim % self.num_sub_vectors:
            raise InvalidInputError(f"dimension ({dim}) must be divisible by num_sub_vectors ({self.num_sub_vectors})")
        if self.centroids is not None and (self.centroids.ndim != 2 or self.centroids.shape[1] != dim):
            raise InvalidInputError(f"ivf_centroids must have shape (clusters, {dim}), got {self.centroids.shape}")
        if self.codebook is not None:
            count = self.num_sub_vectors or 1
            expected = (count, 1 << self.num_bits, dim // count)
            if self.codebook.shape != expected:
                raise InvalidInputError(f"pq_codebook must have shape {expected}, got {self.codebook.shape}")

    def as_options(self) -> dict[str, Any]:
        """Return the options of these settings."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "graph"}
        return {**values, **{each.name: getattr(self.graph, each.name) for each in fields(GraphSettings)}}

    def untrained(self) -> Self:
        """Return the settings without existing centroids and codes; the number of partitions follows from the rows."""
        return replace(self, num_partitions=None, centroids=None, codebook=None, quantizer=None)

    # --- details of the manifest

    def to_details(self) -> index_pb2.VectorIndexDetails:
        """Return the details of an index for the manifest."""
        details = index_pb2.VectorIndexDetails(metric_type=_METRIC_NUMBERS[self.metric])
        if self.target_partition_size is not None:
            details.target_partition_size = self.target_partition_size
        hints = {
            **_PYLANCE_HINTS,
            "lance.ivf.max_iters": str(self.max_iterations),
            "lance.ivf.sample_rate": str(self.sample_rate),
        }
        if self.has_graph:
            details.hnsw.max_connections = self.graph.m
            details.hnsw.construction_ef = self.graph.ef_construction
            details.hnsw.max_level = self.graph.max_level
            hints["lance.hnsw.prefetch_distance"] = "2"
        if self.quantizer_kind == "PQ":
            details.pq.num_bits, details.pq.num_sub_vectors = self.num_bits, self.num_sub_vectors or 1
            hints["lance.pq.max_iters"], hints["lance.pq.kmeans_redos"] = str(self.max_iterations), "1"
            hints["lance.pq.sample_rate"] = str(self.sample_rate)
        elif self.quantizer_kind == "SQ":
            details.sq.num_bits = self.num_bits
            hints["lance.sq.sample_rate"] = str(self.sample_rate)
        else:
            details.flat.SetInParent()
        for name in sorted(hints):
            details.runtime_hints[name] = hints[name]
        return details

    @classmethod
    def of_details(cls, details: index_pb2.VectorIndexDetails) -> Self:
        """Return the settings of the details of an index. Raises InvalidInputError if they are invalid."""
        metric = next((each for each, number in _METRIC_NUMBERS.items() if number == details.metric_type), Metric.L2)
        options: dict[str, Any] = {"index_type": type_of_details(details), "metric": metric}
        if details.target_partition_size:
            options["target_partition_size"] = details.target_partition_size
        if details.HasField("hnsw"):
            graph = details.hnsw
            options |= {"m": graph.max_connections, "ef_construction": graph.construction_ef}
            options["max_level"] = graph.max_level
        if details.HasField("pq"):
            options |= {"num_sub_vectors": details.pq.num_sub_vectors, "num_bits": details.pq.num_bits}
        for name, hint in (("max_iterations", "lance.ivf.max_iters"), ("sample_rate", "lance.ivf.sample_rate")):
            value = details.runtime_hints.get(hint, "")
            if value.isdecimal() and len(value) < 10:
                options[name] = int(value)
        return cls.of_options(options)

    def with_graphs_of(self, other: BuildSettings) -> Self:
        """Return the settings with the graphs of others, or without graphs."""
        graph = "HNSW_" if other.has_graph else ""
        return replace(self, index_type=f"IVF_{graph}{self.quantizer_kind}", graph=other.graph)

    def with_quantizer(self, quantizer: Quantizer) -> Self:
        """Return the settings with the parameters of an existing quantizer."""
        if isinstance(quantizer, ProductQuantizer):
            count, bits = quantizer.num_sub_vectors, quantizer.num_bits
            return replace(self, quantizer=quantizer, num_sub_vectors=count, num_bits=bits)
        return replace(self, quantizer=quantizer if isinstance(quantizer, ScalarQuantizer) else None)
