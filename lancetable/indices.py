"""Requests for secondary indexes: kinds with their parameters, and segments of distributed builds.

Of pylance's `lance.indices`, the builders of vector indexes are out of scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from lancetable import scope
from lancetable.errors import CorruptFileError, InvalidInputError
from lancetable.index_metadata import Index

if TYPE_CHECKING:
    from lancetable.index.kind import IndexKind

__all__ = [
    "IndexConfig",
    "IndexFileVersion",
    "IndexSegment",
    "IndexSegmentDescription",
    "IvfModel",
    "SupportedDistributedIndices",
]

IndexSegment: TypeAlias = Index
IndexSegmentDescription: TypeAlias = Index

_MISSING = scope.missing_names(scope.INDICES)
_OUT_OF_SCOPE = {
    "INVERTED": "full text search",
    "FTS": "full text search",
    "RTREE": "indexes of geometries",
    "MINHASHLSH": "indexes of similar documents",
    "VECTOR": "vector indexes",
}


def __getattr__(name: str) -> Any:
    """Return a raising stub for the names that only pylance supports.

    Raises
    ------
    AttributeError
        If pylance does not have the name either.
    """
    if name in _MISSING:
        return scope.stub(f"lancetable.indices.{name}", _MISSING[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(eq=False)
class IvfModel:
    """Partitions of a vector index.

    Parameters
    ----------
    centroids
        Array of fixed-size lists: the centroid of each partition, in the type of the vectors.
    distance_type
        Metric of the index: "l2", "cosine", "dot" or "hamming". Centroids of an index with the metric cosine are those
        of normalized vectors.
    """

    centroids: pa.FixedSizeListArray
    distance_type: str

    @property
    def num_partitions(self) -> int:
        """The number of partitions."""
        return len(self.centroids)

    def save(self, uri: str, *, storage_options: dict[str, str] | None = None) -> None:
        """Write the model to a file that `load` and pylance can read. Raises the errors of `LanceFileWriter`."""
        from lancetable.file import LanceFileWriter

        metadata = {"distance_type": self.distance_type}
        schema = pa.schema([pa.field("centroids", self.centroids.type)], metadata)
        with LanceFileWriter(uri, schema, storage_options=storage_options) as writer:
            writer.write_batch(pa.table([self.centroids], schema=schema))

    @classmethod
    def load(cls, uri: str, *, storage_options: dict[str, str] | None = None) -> IvfModel:
        """Read a model from a file.

        Raises
        ------
        CorruptFileError
            If the file does not contain a model.
        """
        from lancetable.file import LanceFileReader

        table = LanceFileReader(uri, storage_options=storage_options).read_all().to_table()
        metadata = table.schema.metadata or {}
        if "centroids" not in table.schema.names or b"distance_type" not in metadata:
            raise CorruptFileError("the file does not contain the partitions of a vector index", path=uri)
        return cls(table.column("centroids").combine_chunks(), metadata[b"distance_type"].decode())


@dataclass
class IndexConfig:
    """A kind of index with its parameters.

    Parameters
    ----------
    index_type
        Name of the kind, in any case: "btree", "bitmap", "label_list", "ngram", "zonemap", "bloomfilter" or "json".
    parameters
        Parameters of the kind:

        - btree: `zone_size`, the number of rows in a page.
        - zonemap: `rows_per_zone`.
        - bloomfilter: `number_of_items` of a zone and `probability` of a false positive.
        - json: the `path` in the document, such as "user.id", `target_index_type` and `target_index_parameters`.

    Examples
    --------
    >>> from lancetable.indices import IndexConfig
    >>> ds.create_scalar_index("id", IndexConfig("zonemap", {"rows_per_zone": 1024}))
    """

    index_type: str
    parameters: dict[str, Any] = field(default_factory=dict)


class IndexFileVersion(str, Enum):
    """Version of the files of a vector index."""

    LEGACY = "Legacy"
    V3 = "V3"


class SupportedDistributedIndices(str, Enum):
    """Kinds of indexes that `LanceDataset.merge_index_metadata` names. Distributed builds merge segments instead."""

    BTREE = "BTREE"
    INVERTED = "INVERTED"
    IVF_FLAT = "IVF_FLAT"
    IVF_PQ = "IVF_PQ"
    IVF_SQ = "IVF_SQ"
    VECTOR = "VECTOR"


def parse_request(index_type: Any, options: Mapping[str, Any]) -> tuple[IndexKind, dict[str, Any]]:
    """Return the kind of an index, and its parameters: those of an `IndexConfig`, then `options`.

    Raises
    ------
    UnsupportedFeatureError
        If the kind is unknown or out of scope.
    InvalidInputError
        If a parameter is given twice.
    TypeError
        If `index_type` has another type.
    """
    from lancetable.index.kind import kind_named

    config = IndexConfig(index_type) if isinstance(index_type, str) else index_type
    if not isinstance(config, IndexConfig):
        raise TypeError(f"index_type must be str or IndexConfig, got {type(index_type).__name__}")
    name = config.index_type.upper()
    if name in _OUT_OF_SCOPE or name.startswith("IVF_"):
        scope.raise_unsupported(
            _OUT_OF_SCOPE.get(name, "vector indexes here; use create_index"), name=f"index_type {config.index_type!r}"
        )
    repeated = config.parameters.keys() & options.keys()
    if repeated:
        raise InvalidInputError(f"parameter {min(repeated)!r} is given twice, by the IndexConfig and as an argument")
    return kind_named(config.index_type), {**config.parameters, **options}
