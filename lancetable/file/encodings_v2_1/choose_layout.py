"""Mini-block or full-zip, and how large chunks become: they shrink until every one fits."""

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
from lancetable.file.encodings_v2_1.wishes import Wishes
from lancetable.format.version import FileVersion

__all__ = [
    "Column",
    "MAX_VALUES",
    "MIN_COMPRESSED_BYTES",
    "TARGET_BYTES",
    "chunk_layout",
    "chunk_or_zip",
    "chunked_page",
    "folds",
    "if_smaller",
    "null_struct_above_list",
    "plain_layout",
    "shown_places",
    "wants_zip",
]

_FULL_ZIP_BYTES: Final = 256  # values from this size on are zipped
MIN_COMPRESSED_BYTES: Final = 4096
_FEW_LEVELS: Final = 64
# What a chunk should hold, and how many values at most: as large as readers take well.
TARGET_BYTES: Final = {FileVersion.V2_1: 16 << 10, FileVersion.V2_2: 32 << 10}
MAX_VALUES: Final = {FileVersion.V2_1: 16 << 10, FileVersion.V2_2: 32 << 10}


class Column(NamedTuple):
    """A leaf, what its metadata asks for, and the version of the file."""

    leaf: Leaf
    wishes: Wishes
    version: FileVersion

    @property
    def large(self) -> bool:
        """Whether chunks are those of version 2.2."""
        return self.version is not FileVersion.V2_1


def wants_zip(column: Column, shredded: Shredded, value_bytes: int) -> bool:
    """Whether values of at most this size are zipped, as long as they can be."""
    if column.wishes.structure:
        return column.wishes.structure == "fullzip"
    if value_bytes < _FULL_ZIP_BYTES:
        return False
    return column.large or not null_struct_above_list(shredded)


def null_struct_above_list(shredded: Shredded) -> bool:
    """Whether a struct that may be null lies above a list: there old readers of 2.1 end at zipped values."""
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
    """A mini-block page; `chunk` encodes the values within limits, which shrink until every chunk fits.

    Raises LevelsTooDense or ChunkTooLarge.
    """
    target = TARGET_BYTES[column.version]
    if column.wishes.chunk_bytes is not None:
        target = min(max(column.wishes.chunk_bytes, 64), 1 << 20 if column.large else 28 << 10)
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
    """The layout that is wanted; the other one where it cannot hold the values. Raises LevelsTooDense."""
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
    """The layout of such a page and its message: much the same in all columns of a file."""
    layout = chunk_layout(values, layers, num_items, large)
    return layout, pack_page(layout)


def chunk_layout(values: Compressive, layers: tuple[int, ...], num_items: int, large: bool) -> MiniBlock:
    return MiniBlock(None, None, values, None, 0, layers, num_items, large, False)


def if_smaller(chunked: Chunked, scheme: str, level: int | None) -> Chunked:
    first = sum(int(runs.offsets[-1] - runs.offsets[0]) for runs in chunked.buffers[0])
    if first < MIN_COMPRESSED_BYTES:
        return chunked
    packed = compress_chunks(chunked, scheme, level)
    return packed if packed.size_bytes < chunked.size_bytes else chunked


def folds(shredded: Shredded) -> bool:
    """Whether one value and plain levels take less than chunks would."""
    return (shredded.definition is None and shredded.repetition is None) or shredded.num_entries <= _FEW_LEVELS


def shown_places(shredded: Shredded) -> npt.NDArray[np.int64] | None:
    """The values that are not null, None if none is."""
    definition = shredded.visible_definition
    return None if definition is None or not definition.any() else np.flatnonzero(definition == 0)
