"""Requests for secondary indexes: kinds with their parameters, segments of distributed builds, builds in steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from lancetable import scope
from lancetable.errors import InvalidInputError
from lancetable.index_metadata import Index
from lancetable.lazy import lazy_names

if TYPE_CHECKING:
    from lancetable.index.kind import IndexKind
    from lancetable.indices_builder import IndicesBuilder
    from lancetable.vector_models import IvfModel, PqModel

__all__ = [
    "IndexConfig",
    "IndexFileVersion",
    "IndexSegment",
    "IndexSegmentDescription",
    "IndicesBuilder",
    "IvfModel",
    "PqModel",
    "SupportedDistributedIndices",
]

IndexSegment: TypeAlias = Index
IndexSegmentDescription: TypeAlias = Index

# Imported on first use.
__getattr__ = lazy_names(
    __name__, {"lancetable.indices_builder": "IndicesBuilder", "lancetable.vector_models": "IvfModel PqModel"}
)
_OUT_OF_SCOPE = {
    "INVERTED": "full text search",
    "FTS": "full text search",
    "RTREE": "indexes of geometries",
    "MINHASHLSH": "indexes of similar documents",
    "VECTOR": "vector indexes",
}


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
