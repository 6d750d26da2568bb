"""Training of a vector index at one place, for builds whose tasks share the result as JSON.

train_model             sample of all rows            ─► model as JSON
options_with_model      options, model                ─► options of each part: the same partitions and codes
options_without_graphs  options                       ─► options of parts that are merged, which builds the graphs
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lancetable.index.vector.product_quantizer import ProductQuantizer
from lancetable.index.vector.scalar_quantizer import ScalarQuantizer
from lancetable.index.vector.vector_kind import train_on
from lancetable.ops.index.column_values import ColumnValues

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lancetable.ops.index.segment_builder import IndexTarget
    from lancetable.table.version import TableVersion


def train_model(version: TableVersion, target: IndexTarget, fragment_ids: Sequence[int]) -> dict[str, Any] | None:
    """Train a vector index on a sample of fragments. Return the model as JSON; None if there are too few vectors.

    Raises InvalidInputError if the options do not fit the column.
    """
    values = ColumnValues(version, target.field, fragment_ids, row_ids=False)
    trained = train_on(target.field, target.options, values)
    if trained is None:
        return None
    model: dict[str, Any] = {"centroids": _to_text(trained.centroids)}
    if isinstance(trained.quantizer, ProductQuantizer):
        model["codebook"] = _to_text(trained.quantizer.codebook)
    if isinstance(trained.quantizer, ScalarQuantizer):
        model["bounds"] = [trained.quantizer.start, trained.quantizer.end]
    return model


def options_with_model(options: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a build with the centroids and the quantizer of a model."""
    centroids = _of_text(model["centroids"])
    found = {**options, "centroids": centroids, "num_partitions": len(centroids)}
    if "codebook" in model:
        found["codebook"] = _of_text(model["codebook"])
    if "bounds" in model:
        found["quantizer"] = ScalarQuantizer(options["metric"], centroids.shape[1], *model["bounds"])
    return found


def model_of_centroids(centroids: npt.NDArray[Any]) -> dict[str, Any]:
    """Return a model of new partitions for existing codes as JSON."""
    return {"centroids": _to_text(centroids)}


def options_without_graphs(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of an index without graphs."""
    return {**options, "index_type": str(options["index_type"]).replace("HNSW_", "")}


def _to_text(values: npt.NDArray[Any]) -> str:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode()


def _of_text(text: str) -> npt.NDArray[Any]:
    values: npt.NDArray[Any] = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return values
