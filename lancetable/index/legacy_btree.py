"""Files of BTREE indexes in the format 0.1, which pylance wrote before version 0.21.

    page_data.lance     values   0  0  1  2 | 3  3  7  9 | 9       the first two values are null
                        row_ids  7  2  0  4 | 1  6  5  3 | 8

Format 0.1 does not store nulls of fixed-width types, and stores empty strings as nulls. Both are restored from the null
counts of the lookup file, because nulls come first in an index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.file.kernels.varbin import offset_dtype

if TYPE_CHECKING:
    from lancetable.file.io_scheduler import Rows
    from lancetable.index.sort_keys import Int64


def restore_bounds(bounds: pa.Array, null_counts: Int64, page_rows: int, num_rows: int) -> pa.Array:
    """Return the minima or maxima of pages, with nulls for pages that contain only nulls."""
    sizes = np.minimum(num_rows - np.arange(len(bounds)) * page_rows, page_rows)
    return _with_nulls(bounds, null_counts >= sizes)


def restore_nulls(values: pa.Array, rows: Rows, num_nulls: int) -> pa.Array:
    """Return the values in some rows of the file of pages, of which the first `num_nulls` are null."""
    return _with_nulls(values, np.asarray(rows) < num_nulls)


def _with_nulls(array: pa.Array, is_null: np.ndarray) -> pa.Array:
    if array.null_count and offset_dtype(array.type) is not None:
        array = array.fill_null(pa.scalar(b"").cast(array.type))
    return pc.if_else(pa.array(is_null), pa.scalar(None, array.type), array) if is_null.any() else array
