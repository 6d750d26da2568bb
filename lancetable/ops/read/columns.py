"""Concatenation of columns that were read in parts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from lancetable.ops.read.projection import ColumnLike

_MAX_COPIED_BYTES = 1 << 30  # below the 2 GiB of an array with 32-bit offsets


def concat_columns(parts: Sequence[ColumnLike], max_copied_bytes: int = _MAX_COPIED_BYTES) -> ColumnLike:
    """Return one column from several: an array of at most `max_copied_bytes` if possible, otherwise a chunked array.

    Dictionary arrays stay chunks, because their dictionaries would have to be unified.
    """
    if len(parts) == 1 and isinstance(parts[0], pa.Array):
        return parts[0]
    chunks: list[pa.Array] = []
    for part in parts:
        chunks.extend(part.chunks if isinstance(part, pa.ChunkedArray) else (part,))
    if len(chunks) == 1:
        return chunks[0]
    if not chunks or contains_dictionary(parts[0].type) or _exceeds(chunks, max_copied_bytes):
        return pa.chunked_array(chunks, type=parts[0].type)
    return pa.concat_arrays(chunks)


def contains_dictionary(kind: pa.DataType) -> bool:
    """Return True if a type is or contains a dictionary type."""
    if pa.types.is_dictionary(kind):
        return True
    return any(contains_dictionary(kind.field(number).type) for number in range(kind.num_fields))


def _exceeds(chunks: Sequence[pa.Array], max_bytes: int) -> bool:
    # The sizes of whole buffers are faster to compute than the sizes of the parts that are used.
    if sum([chunk.get_total_buffer_size() for chunk in chunks]) <= max_bytes:
        return False
    used: int = sum([chunk.nbytes for chunk in chunks])
    return used > max_bytes
