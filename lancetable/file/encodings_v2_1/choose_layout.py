"""Choice between mini-block and full-zip layout, and of the chunk size, which is reduced until all chunks fit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.encodings_v2_1.base import Compressive
from lancetable.file.encodings_v2_1.chunks import Chunked, ChunkLimits, ChunkTooLarge, EncodedLayout, LevelsTooDense
from lancetable.file.encodings_v2_1.compressive.bitpacking import OutOfLineBitpacking
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.general_compression import compress_chunks
from lancetable.file.encodings_v2_1.encoding_options import NO_OPTIONS, EncodingOptions
from lancetable.file.encodings_v2_1.layouts.miniblock import EncodedItems, MiniBlock, chunk_limits, encode_miniblock
from lancetable.file.encodings_v2_1.repdef import LISTS
from lancetable.file.encodings_v2_1.shred import Leaf, Shredded
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2 as pb

FULL_ZIP_BYTES: Final = 256  # values of at least this size use the full-zip layout
MIN_COMPRESSED_BYTES: Final = 4096
_FEW_LEVELS: Final = 64
# Target size and maximum number of values of a chunk: the largest that other readers handle well.
_CHUNK: Final = 16 << 10
_LARGE_CHUNK: Final = 32 << 10


class LeafSpec(NamedTuple):
    """Leaf with the encoding options in its metadata and the version of the file."""

    leaf: Leaf
    options: EncodingOptions
    version: FileVersion

    @property
    def large_chunks(self) -> bool:
        """True if chunks have 32-bit sizes, as from version 2.2 on."""
        return self.version is not FileVersion.V2_1


class LeafRows(NamedTuple):
    """Rows of a leaf to encode as a page."""

    spec: LeafSpec
    shredded: Shredded

    @property
    def has_levels(self) -> bool:
        """True if the page has repetition or definition levels."""
        return self.shredded.definition is not None or self.shredded.repetition is not None

    @property
    def is_plain(self) -> bool:
        """True if the page has neither lists nor options, so that a compiled kernel may encode its chunks."""
        return self.shredded.repetition is None and self.spec.options is NO_OPTIONS

    @property
    def can_be_constant(self) -> bool:
        """True if the version has constant pages and the levels, which these store uncompressed, are few."""
        return self.spec.large_chunks and (not self.has_levels or self.shredded.num_entries <= _FEW_LEVELS)

    @property
    def valid_positions(self) -> npt.NDArray[np.int64] | None:
        """The positions of the values that are not null; None if none is null."""
        definition = self.shredded.visible_definition
        return None if definition is None or not definition.any() else np.flatnonzero(definition == 0)

    @property
    def has_null_struct_above_list(self) -> bool:
        """True if a nullable struct is above a list. Old readers of 2.1 cannot read full-zip pages below both."""
        return pb.REPDEF_NULLABLE_ITEM in itertools.dropwhile(lambda layer: layer not in LISTS, self.shredded.layers)

    @property
    def limits(self) -> ChunkLimits:
        """The limits of chunks. Raises LevelsTooDense if a chunk cannot store the levels of two values."""
        large = self.spec.large_chunks
        target = max_values = _LARGE_CHUNK if large else _CHUNK
        if self.spec.options.chunk_bytes is not None:
            target = min(max(self.spec.options.chunk_bytes, 64), 1 << 20 if large else 28 << 10)
        return chunk_limits(self.shredded, large, target, max_values)

    def prefers_full_zip(self, value_bytes: int) -> bool:
        """Return True if the full-zip layout is preferred. `value_bytes` is the size of the largest value."""
        if self.spec.options.structure:
            return self.spec.options.structure == "fullzip"
        return value_bytes >= FULL_ZIP_BYTES and (self.spec.large_chunks or not self.has_null_struct_above_list)

    def encode_chunks(
        self, chunk: Callable[[ChunkLimits], Chunked], dictionary: EncodedItems | None = None
    ) -> EncodedLayout:
        """Encode a mini-block page; `chunk` encodes the values within limits, which are halved until every chunk fits.

        Raises LevelsTooDense, or ChunkTooLarge if two values do not fit into a chunk.
        """
        limits = self.limits
        while limits.max_values > 2:
            with suppress(ChunkTooLarge):
                return encode_miniblock(self.shredded, chunk(limits), self.spec.large_chunks, dictionary)
            limits = limits._replace(max_values=limits.max_values // 2, target_bytes=max(limits.target_bytes // 2, 1))
        return encode_miniblock(self.shredded, chunk(limits), self.spec.large_chunks, dictionary)

    def chunk_or_full_zip(
        self, value_bytes: int, chunk: Callable[[ChunkLimits], Chunked], full_zip: Callable[[], EncodedLayout] | None
    ) -> EncodedLayout:
        """Encode a page in the preferred layout, or in the other one if it cannot store the values.

        Parameters
        ----------
        value_bytes
            The size of the largest value.
        chunk
            Function that encodes the values within limits, for a mini-block page.
        full_zip
            Function that encodes a full-zip page; None if that layout does not support the values.

        Raises
        ------
        LevelsTooDense
            If neither layout can store this many rows.
        """
        if full_zip is not None and self.prefers_full_zip(value_bytes):
            return full_zip()
        try:
            return self.encode_chunks(chunk)
        except (ChunkTooLarge, LevelsTooDense) as error:
            if isinstance(error, LevelsTooDense) and self.shredded.num_rows > 1:
                raise
            if full_zip is None:
                raise LevelsTooDense from error
            return full_zip()


def page_of_chunks(
    rows: LeafRows, values: Compressive, num_items: int, encoded: Sequence[Any], items: EncodedItems | None = None
) -> EncodedLayout:
    """Return a page from the results of a compiled kernel: the width of the levels, the chunk words and the chunks."""
    width, words, chunks = encoded
    dictionary, num_dictionary_items = (None, 0) if items is None else (items.encoding, items.num_items)
    large, layers = rows.spec.large_chunks, rows.shredded.layers
    layout = chunk_layout(values, width, layers, num_items, large, dictionary, num_dictionary_items)
    return EncodedLayout(layout, ((words,), (chunks,), *([] if items is None else [(items.data,)])))


@lru_cache(maxsize=256)
def chunk_layout(
    values: Compressive,
    width: int,
    layers: tuple[int, ...],
    num_items: int,
    large: bool,
    dictionary: Compressive | None,
    num_dictionary_items: int,
) -> MiniBlock:
    """Return the layout of a page without lists. Cached, because columns often share a layout."""
    definition: Compressive | None = None
    if width >= 0:
        definition = OutOfLineBitpacking(16, Flat(width)) if width < 16 else Flat(16)
    return MiniBlock(
        def_compression=definition,
        value_compression=values,
        dictionary=dictionary,
        num_dictionary_items=num_dictionary_items,
        layers=layers,
        num_buffers=values.num_buffers,
        num_items=num_items,
        has_large_chunk=large,
    )


def if_smaller(chunked: Chunked, general: tuple[str, int | None] | None) -> Chunked:
    """Compress chunks with a scheme and level, if any, unless they are small or would not become smaller."""
    if general is None or chunked._replace(buffers=chunked.buffers[:1]).size_bytes < MIN_COMPRESSED_BYTES:
        return chunked
    packed = compress_chunks(chunked, *general)
    return packed if packed.size_bytes < chunked.size_bytes else chunked
