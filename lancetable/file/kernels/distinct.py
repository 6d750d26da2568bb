"""Dictionary encoding: distinct values, and the index of each row's value.

strings  aa b null aa        items aa b        indices 0 1 0 0        a null has the index 0
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.kernels import native_write as native
from lancetable.file.kernels.varbin import offset_dtype, offsets_of


class Indexed(NamedTuple):
    """(n,) indices into `items`, which are distinct, not null, and in the order of their first occurrence."""

    indices: npt.NDArray[np.int32]
    items: pa.Array


def index_values(array: pa.Array, max_values: int) -> Indexed | None:
    """Dictionary-encode strings, binaries or fixed-width values.

    Returns None if there are more than `max_values` or 2^31 - 1 distinct values.
    """
    if native is None or offset_dtype(array.type) is None or len(array) == 0:
        encoded = array.dictionary_encode()
        if len(encoded.dictionary) > max_values:
            return None
        indices = encoded.indices.fill_null(0) if encoded.indices.null_count else encoded.indices
        return Indexed(np.asarray(indices), encoded.dictionary)
    bitmap, _, content = array.buffers()
    data, validity = b"" if content is None else content, bitmap if array.null_count else None
    encoding = native.index_strings(offsets_of(array), data, validity, array.offset, min(max_values, (1 << 31) - 1))
    if encoding is None:
        return None
    indices, first_rows = encoding
    return Indexed(indices, array.take(pa.array(first_rows)))
