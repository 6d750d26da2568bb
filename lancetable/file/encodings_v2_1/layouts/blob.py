"""Blob layout: large values stored outside of their column, whose pages store positions and sizes.

    [b'abc', b'', null]     inner page: packed struct of two u64   position  size
                                                                       p     3     file[p : p + 3]
                                                                       0     0     empty
                                                                   1 << 16   0     null: definition << 16 | repetition

Positions are absolute in the file. A reader returns the bytes, or the descriptions if struct<position, size> is the
requested type. Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.encodings_v2_0.blob import DESCRIPTION_V1, fetch_payloads
from lancetable.file.encodings_v2_1.base import DecodedRows, PageLayout, ReadContext
from lancetable.file.encodings_v2_1.block import FixedWidth, VariableWidth
from lancetable.file.encodings_v2_1.chunks import ChunkLimits, EncodedLayout
from lancetable.file.encodings_v2_1.composite_blocks import Struct
from lancetable.file.encodings_v2_1.compressive.flat import Flat, encode_flat
from lancetable.file.encodings_v2_1.compressive.packed_struct import PackedStruct
from lancetable.file.encodings_v2_1.layouts.miniblock import encode_miniblock
from lancetable.file.encodings_v2_1.repdef import check_levels, layers_of
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import ReadPlan, Rows
from lancetable.file.kernels.levels import LEVEL
from lancetable.proto import encodings_v2_1_pb2 as pb


@dataclass(frozen=True, slots=True)
class Blob(PageLayout):
    """Parameters of a page of blobs; `inner_layout` stores their descriptions."""

    oneof_case: ClassVar[str] = "blob_layout"

    inner_layout: PageLayout
    layers: tuple[int, ...]

    def read(self, page: Page, context: ReadContext, rows: Rows, max_gap: int) -> ReadPlan[DecodedRows]:
        layers = layers_of(self.layers)
        if layers.num_lists:
            raise page.unsupported("lists of blobs")
        inner = yield from self.inner_layout.read(page, context._replace(data_type=DESCRIPTION_V1), rows, max_gap)
        if not isinstance(inner.values, Struct) or len(inner.values.children) != 2 or inner.definition is not None:
            raise CorruptFileError("blob page without descriptions", "structs of two 64-bit numbers")
        positions, sizes = [_numbers(child) for child in inner.values.children]
        definition = None
        missing = (sizes == 0) & (positions != 0)
        if missing.any():
            definition = np.where(missing, positions >> np.uint64(16), 0).astype(LEVEL)
        check_levels(None, definition, layers, len(sizes), len(rows))
        if pa.types.is_struct(context.data_type):
            return DecodedRows(inner.values, None, definition, self.layers, len(rows))
        offsets, data = yield from fetch_payloads(page, context.file_bytes, positions, sizes, max_gap)
        return DecodedRows(VariableWidth(offsets, data), None, definition, self.layers, len(rows))

    def check(self) -> None:
        if isinstance(self.inner_layout, Blob):
            raise CorruptFileError("blob layout nested in a blob layout")


def _numbers(block: Any) -> npt.NDArray[np.uint64]:
    if not isinstance(block, FixedWidth) or block.bits != 64:
        raise CorruptFileError("blob page without descriptions", "structs of two 64-bit numbers")
    return np.frombuffer(block.data, "<u8", block.length)


# ------------------------------------------------------------------------------------------------------------- encode


_LIMITS: Final = ChunkLimits(max_values=1024, max_bytes=32 << 10, target_bytes=16 << 10)


def encode_blobs(
    positions: npt.NDArray[np.uint64], sizes: npt.NDArray[np.uint64], layers: tuple[int, ...], large: bool
) -> EncodedLayout:
    """Encode (n,) descriptions as a page. `layers` are those of the column; the descriptions encode its nulls."""
    count = len(positions)
    rows = FixedWidth(128, np.stack((positions, sizes), axis=1).reshape(-1).view(np.uint8), count)
    chunked = encode_flat(rows, _LIMITS)._replace(encoding=PackedStruct((64, 64), Flat(128)))
    plain = Shredded((pb.REPDEF_ALL_VALID_ITEM,), None, None, positions, None, count, count)
    page = encode_miniblock(plain, chunked, large)
    return EncodedLayout(Blob(page.layout, layers), page.buffers)
