"""Tables of vectors. The functions of pylance's `lance.vector` that use accelerators are out of scope."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from lancetable import scope
from lancetable.errors import InvalidInputError

MetricType = Literal["l2", "euclidean", "dot", "cosine"]
__getattr__ = scope.stubs_of_module(__name__, scope.VECTOR)


def vec_to_table(
    data: dict[Any, Any] | list[Any] | np.ndarray[Any, Any],
    names: str | Sequence[str] | None = None,
    ndim: int | None = None,
    check_ndim: bool = True,
) -> pa.Table:
    """Return vectors as a table with a column of fixed-size lists of float32.

    Parameters
    ----------
    data
        A list or a NumPy array has a vector in each row. The keys of a dict become another column.
    names
        Name of the column, by default `vector`. For a dict, the names of the columns of keys and vectors, by default
        `id` and `vector`.
    ndim
        Length of the vectors, by default that of the first.
    check_ndim
        Check that each vector has this length. If False, the values of all vectors are divided into vectors of this
        length.

    Raises
    ------
    InvalidInputError
        If `data` is empty, if a vector has another length, or if the number of names is wrong.
    UnsupportedFeatureError
        If `data` has another type.

    Examples
    --------
    >>> from lancetable.vector import vec_to_table
    >>> vec_to_table({"a": [1, 2], "b": [3, 4]}).to_pylist()
    [{'id': 'a', 'vector': [1.0, 2.0]}, {'id': 'b', 'vector': [3.0, 4.0]}]
    """
    if not isinstance(data, (dict, list, np.ndarray)):
        scope.raise_unsupported(f"vectors in a {type(data).__name__}; pass a dict, a list or a NumPy array")
    columns = [pa.array(list(data))] if isinstance(data, dict) else []
    vectors = list(data.values()) if isinstance(data, dict) else data
    if not len(vectors):
        raise InvalidInputError("data has no vectors")
    ndim = len(vectors[0]) if ndim is None else ndim
    wrong = next((vector for vector in vectors if len(vector) != ndim), None) if check_ndim else None
    if wrong is not None:
        raise InvalidInputError(f"Expected {ndim} dimensions but got {len(wrong)} for {wrong}")
    values = np.asarray(vectors, np.float32).ravel()
    columns.append(pa.FixedSizeListArray.from_arrays(pa.array(values), ndim))
    if names is None:
        names = ["id", "vector"][-len(columns) :]
    return pa.table(columns, [names] if isinstance(names, str) else list(names))
