"""Choice between mini-block and full-zip layout, and of the size of chunks, which is reduced until all chunks fit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.encodings_v2_1.base import Compressive, pack_page
from lancetable.file.encodings_v2_1.chunks import Chunked, ChunkTooLarge, EncodedLayout, LevelsTooDense, Limits
from lancetable.file.encodings_v2_1.compressive.general import compress_chunks
from lancetable.file.encodings_v2_1.layouts.miniblock import EncodedItems, MiniBlock, chunk_limits, encode_miniblock
from lancetable.file.encodings_v2_1.repdef import LISTS, NULLABLE_ITEM
from lancetable.file.encodings_v2_1.shred import Leaf, Shredded
from lancetable.file.encodings_v2_1.wishes import EncodingOptions
from lancetable.format.version import FileVersion

__all__ = [
    "Column",
    "MAX_VALUES",
    "MIN_COMPRESSED_BYTES",
    "TARGET_BYTES",
    "chunk_layout",
    "chunk_or_zip",
    "chunked_page",
    "suits_constant",
    "if_smaller",
    "null_struct_above_list",
    "plain_layout",
    "valid_positions",
    "prefers_full_zip",
]

_FULL_ZIP_BYTES: Final = 256  # values of at least this size use the full-zip layout
MIN_COMPRESSED_BYTES: Final = 4096
_FEW_LEVELS: Final = 64
# Target size and maximum number of values of a chunk: as large as readers handle well.
TARGET_BYTES: Final = {FileVersion.V2_1: 16 << 10, FileVersion.V2_2: 32 << 10}
MAX_VALUES: Final = {FileVersion.V2_1: 16 << 10, FileVersion.V2_2: 32 << 10}


class Column(NamedTuple):
    """A leaf, the encoding options in its metadata, and the version of the file."""

    leaf: Leaf
    options: EncodingOptions
    version: FileVersion

    @property
    def large(self) -> bool:
        """Return whether chunks have 32-bit sizes, as from version 2.2 on."""
        return self.version is not FileVersion.V2_1


def prefers_full_zip(column: Column, shredded: Shredded, value_bytes: int) -> bool:
    """Return whether to use the full-zip layout, if it supports the values, whose largest size is `value_bytes`."""
    if column.options.structure:
        return column.options.structure == "fullzip"
    if value_bytes < _FULL_ZIP_BYTES:
        return False
    return column.large or not null_struct_above_list(shredded)


def null_struct_above_list(shredded: Shredded) -> bool:
    """Return whether a nullable struct is above a list; old readers of 2.1 cannot read zipped values below these."""
    seen_list = False
    for layer in shredded.layers:
        if layer is NULLABLE_ITEM and seen_list:
            return True
        seen_list |= layer in LISTS
    return False


def chunked_page(
    column: Column,
    shredded: Shredded,
    chunk: Callable[[Limits], Chunked],
    dictionary: EncodedItems | None = None,
) -> EncodedLayout:
    """Encode a mini-block page; `chunk` encodes the values within limits, which are halved until every chunk fits.

    Raises LevelsTooDense, or ChunkTooLarge if two values do not fit into a chunk.
    """
    target = TARGET_BYTES[column.version]
    if column.options.chunk_bytes is not None:
        target = min(max(column.options.chunk_bytes, 64), 1 << 20 if column.large else 28 << 10)
    limits = chunk_limits(shredded, column.large, target, MAX_VALUES[column.version])
    while limits.max_values > 2:
        with suppress(ChunkTooLarge):
            return encode_miniblock(shredded, chunk(limits), column.large, dictionary)
        limits = limits._replace(max_values=limits.max_values // 2, target_bytes=max(limits.target_bytes // 2, 1))
    return encode_miniblock(shredded, chunk(limits), column.large, dictionary)


def chunk_or_zip(
    column: Column,
    shredded: Shredded,
    zips: bool,
    chunk: Callable[[Limits], Chunked],
    zipped: Callable[[], EncodedLayout] | None,
) -> EncodedLayout:
    """Encode a page in the preferred layout, or in the other one if it cannot store the values.

    Raises LevelsTooDense if neither layout can store this many rows.

    Parameters
    ----------
    column
        The leaf and its options.
    shredded
        Levels and layers of the page.
    zips
        Whether full-zip is preferred.
    chunk
        Encodes the values within limits, for a mini-block page.
    zipped
        Encodes a full-zip page; None if that layout does not support the values.
    """
    if zips and zipped is not None:
        return zipped()
    try:
        return chunked_page(column, shredded, chunk)
    except (ChunkTooLarge, LevelsTooDense) as error:
        if isinstance(error, LevelsTooDense) and shredded.num_rows > 1:
            raise
        if zipped is None:
            raise LevelsTooDense from error
        return zipped()


@lru_cache(maxsize=256)
def plain_layout(values: Compressive, layers: tuple[int, ...], num_items: int, large: bool) -> tuple[MiniBlock, bytes]:
    """Return the layout of a page without levels, and its message; cached, because columns of a file often share it."""
    layout = chunk_layout(values, layers, num_items, large)
    return layout, pack_page(layout)


def chunk_layout(values: Compressive, layers: tuple[int, ...], num_items: int, large: bool) -> MiniBlock:
    """Return the layout of a page without levels."""
    return MiniBlock(None, None, values, None, 0, layers, num_items, large, False)


def if_smaller(chunked: Chunked, scheme: str, level: int | None) -> Chunked:
    """Compress chunks with zstd or LZ4; return them unchanged if they are small or would not become smaller."""
    first = sum(int(runs.offsets[-1] - runs.offsets[0]) for runs in chunked.buffers[0])
    if first < MIN_COMPRESSED_BYTES:
        return chunked
    packed = compress_chunks(chunked, scheme, level)
    return packed if packed.size_bytes < chunked.size_bytes else chunked


def suits_constant(shredded: Shredded) -> bool:
    """Return whether a constant with uncompressed levels is smaller than chunks would be."""
    return (shredded.definition is None and shredded.repetition is None) or shredded.num_entries <= _FEW_LEVELS


def valid_positions(shredded: Shredded) -> npt.NDArray[np.int64] | None:
    """Return the positions of the values that are not null; None if none is null."""
    definition = shredded.visible_definition
    return None if definition is None or not definition.any() else np.flatnonzero(definition == 0)
