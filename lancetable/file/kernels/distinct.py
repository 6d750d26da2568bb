"""Dictionary encoding: distinct values, and the index of each row's value.

strings  aa b null aa        items aa b        indices 0 1 0 0        a null has the index 0
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa


class Indexed(NamedTuple):
    """(n,) indices into `items`, which are distinct, not null, and in the order of their first row."""

    indices: npt.NDArray[np.int32]
    items: pa.Array


def index_values(array: pa.Array, most: int) -> Indexed | None:
    """Dictionary-encode strings, bytes or fixed-width values; None for more than `most` distinct ones."""
    encoded = array.dictionary_encode()
    if len(encoded.dictionary) > most:
        return None
    indices = encoded.indices.fill_null(0) if encoded.indices.null_count else encoded.indices
    return Indexed(np.asarray(indices), encoded.dictionary)
