"""Blob layout: large values stored outside their column, whose pages store their positions and sizes.

    [b'abc', b'', null]     inner page: packed struct of two u64   position  size
                                                                       p     3     file[p : p + 3]
                                                                       0     0     empty
                                                                   1 << 16   0     null: definition << 16 | repetition

Positions are absolute in the file. A reader returns the bytes, or the descriptors if struct<position, size> is the
requested type. Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.container import Page
from lancetable.file.encodings_v2_1.base import DecodedRows, PageLayout, ReadContext
from lancetable.file.encodings_v2_1.block import FixedWidth, VariableWidth
from lancetable.file.encodings_v2_1.chunks import ChunkLimits, EncodedLayout
from lancetable.file.encodings_v2_1.compound import Struct
from lancetable.file.encodings_v2_1.compressive.flat import Flat, encode_flat
from lancetable.file.encodings_v2_1.compressive.packed_struct import PackedStruct
from lancetable.file.encodings_v2_1.layouts.miniblock import encode_miniblock
from lancetable.file.encodings_v2_1.repdef import ALL_VALID_ITEM, check_levels, layers_of
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.fetch import ReadPlan, Rows, cluster, join
from lancetable.file.kernels import fullzip
from lancetable.file.kernels.levels import LEVEL
from lancetable.store.base import ByteRange

DESCRIPTOR: Final = pa.struct([("position", pa.uint64()), ("size", pa.uint64())])
"""The type of the descriptors that the pages of a blob column store."""

_EMPTY: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Blob(PageLayout):
    """Parameters of a page of blobs; `inner_layout` stores their descriptors."""

    oneof_case: ClassVar[str] = "blob_layout"

    inner_layout: PageLayout
    layers: tuple[int, ...]

    def read(self, page: Page, context: ReadContext, rows: Rows, gap: int) -> ReadPlan[DecodedRows]:
        layers = layers_of(self.layers)
        if layers.num_lists:
            raise page.unsupported("lists of blobs")
        inner = yield from self.inner_layout.read(page, context._replace(data_type=DESCRIPTOR), rows, gap)
        if not isinstance(inner.values, Struct) or len(inner.values.children) != 2 or inner.definition is not None:
            raise CorruptFileError("blob page without descriptors", expected="structs of two 64-bit numbers")
        positions, sizes = [_numbers(child) for child in inner.values.children]
        definition = None
        missing = (sizes == 0) & (positions != 0)
        if missing.any():
            definition = np.where(missing, positions >> np.uint64(16), 0).astype(LEVEL)
        check_levels(None, definition, layers, len(sizes), len(rows))
        if pa.types.is_struct(context.data_type):
            return DecodedRows(inner.values, None, definition, self.layers, len(rows))
        values = yield from _fetch(page, context.file_bytes, positions, sizes, gap)
        return DecodedRows(values, None, definition, self.layers, len(rows))

    def check(self) -> None:
        if isinstance(self.inner_layout, Blob):
            raise CorruptFileError("blob layout nested in a blob layout")


def _numbers(block: Any) -> npt.NDArray[np.uint64]:
    if not isinstance(block, FixedWidth) or block.bits != 64:
        raise CorruptFileError("blob page without descriptors", expected="structs of two 64-bit numbers")
    return np.frombuffer(block.data, "<u8", block.length)


def _fetch(
    page: Page, file_bytes: int, positions: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], gap: int
) -> ReadPlan[VariableWidth]:
    """Fetch the bytes of all values."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    filled = sizes > 0
    starts, lengths = positions[filled], sizes[filled]
    if len(starts) == 0:
        return VariableWidth(offsets, _EMPTY)
    # Compare each term alone first, because the sum may overflow.
    if int(lengths.max()) > file_bytes or int(starts.max()) > file_bytes or int((starts + lengths).max()) > file_bytes:
        raise CorruptFileError("blob extends past the end of the file", expected=f"at most {file_bytes}")
    page.check_memory(sum(lengths.tolist()))
    np.cumsum(sizes.astype(np.int64), out=offsets[1:])
    first, end = starts.astype(np.int64), (starts + lengths).astype(np.int64)
    if (first[1:] >= end[:-1]).all():
        ranges, shift = cluster(first, end, gap)
        buffers = yield ranges
        _, data = fullzip.join_values(np.frombuffer(join(buffers), np.uint8), first - shift, end - first)
        return VariableWidth(offsets, data)
    # The positions do not ascend: another writer, or rows that share a payload.
    buffers = yield [ByteRange(a, b) for a, b in zip(first.tolist(), end.tolist())]
    return VariableWidth(offsets, b"".join(buffers))


# ------------------------------------------------------------------------------------------------------------- encode


_LIMITS: Final = ChunkLimits(max_values=1024, max_bytes=32 << 10, target_bytes=16 << 10)


def encode_blobs(
    positions: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], layers: tuple[int, ...], large: bool
) -> EncodedLayout:
    """Encode (n,) descriptors as a page; `layers` are those of the column, whose nulls the descriptors encode."""
    count = len(positions)
    rows = FixedWidth(128, np.stack((positions, sizes), axis=1).reshape(-1).view(np.uint8), count)
    chunked = encode_flat(rows, _LIMITS)._replace(encoding=PackedStruct((64, 64), Flat(128)))
    plain = Shredded((ALL_VALID_ITEM,), None, None, positions, None, count, count)
    page = encode_miniblock(plain, chunked, large)
    return EncodedLayout(Blob(page.layout, layers), page.buffers)
