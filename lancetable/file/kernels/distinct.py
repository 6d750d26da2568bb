"""Dictionary encoding: distinct values, and the index of each row's value.

strings  aa b null aa        items aa b        indices 0 1 0 0        a null has the index 0
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.kernels import native_write as native
from lancetable.file.kernels.varbin import offset_dtype, offsets_of, take_items


class Indexed(NamedTuple):
    """(n,) indices into `items`, which are distinct, not null, and in the order of their first occurrence."""

    indices: npt.NDArray[np.int32]
    items: pa.Array


def index_values(array: pa.Array, max_values: int) -> Indexed | None:
    """Dictionary-encode strings, binaries or fixed-width values.

    Fixed-width values have 8 or 16 bytes and no nulls. Returns None if there are more than `max_values` or 2^31 - 1
    distinct values.
    """
    if native is None or len(array) == 0:
        encoded = array.dictionary_encode()
        if len(encoded.dictionary) > max_values:
            return None
        indices = encoded.indices.fill_null(0) if encoded.indices.null_count else encoded.indices
        return Indexed(np.asarray(indices), encoded.dictionary)
    encoding = _index(array, max_values)
    if encoding is None:
        return None
    indices, first_rows = encoding
    if offset_dtype(array.type) is None or len(first_rows) == 0:
        return Indexed(indices, array.take(pa.array(first_rows)))
    items = [None, *take_items(array, first_rows, None)]
    return Indexed(indices, pa.Array.from_buffers(array.type, len(first_rows), items, 0))


def count_values(array: pa.Array, max_values: int) -> int | None:
    """Return the number of distinct values, without nulls; None if there are more than `max_values`.

    The values are strings, binaries, or of 8 or 16 bytes.
    """
    if native is None or len(array) == 0:
        found = len(array.unique()) - bool(array.null_count)
        return found if found <= max_values else None
    encoding = _index(array, max_values)
    return None if encoding is None else len(encoding[1])


def _index(array: pa.Array, max_values: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None:
    """Return the indices of the values and their first rows; None for too many distinct values."""
    if offset_dtype(array.type) is None:
        width = array.type.bit_width // 8
        offsets = np.arange(array.offset * width, (array.offset + len(array)) * width + 1, width)
    else:
        offsets = offsets_of(array)
    validity, *_, content = array.buffers()
    data, bitmap = b"" if content is None else content, validity if array.null_count else None
    found: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None = native.index_strings(
        offsets, data, bitmap, array.offset, min(max_values, (1 << 31) - 1)
    )
    return found
