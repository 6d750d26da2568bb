"""Constant layout: every value of a page is null or, from version 2.2 on, the same.

    buffers      inline value   meaning
    none         no             all null
    rep, def     no             all null, in structs and lists; levels uncompressed or, in 2.2, compressed
    none         yes            all equal
    rep, def     yes            all equal or null; levels uncompressed
    value        no             all equal; the value is too long for the message
    value, rep, def             all equal or null; likewise

    value buffer: u32 number of buffers, u32 size of each, the Arrow buffers of one value

Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from lancetable.errors import CorruptFileError
from lancetable.file.column_interfaces import BufferPieces
from lancetable.file.encodings_v2_1.base import Compressive, DecodedRows, PageLayout, ReadContext, decode_levels, whole
from lancetable.file.encodings_v2_1.block import Block, FixedWidth, VariableWidth, offset_bytes, type_bits
from lancetable.file.encodings_v2_1.chunks import EncodedLayout
from lancetable.file.encodings_v2_1.composite_blocks import Nulls, Repeated
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.levels import encode_levels
from lancetable.file.encodings_v2_1.repdef import LISTS, Layers, check_levels, layers_of, select_rows
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import ReadPlan, Rows
from lancetable.file.kernels.interleave import interleave
from lancetable.file.kernels.levels import LEVEL, Levels
from lancetable.format.version import FileVersion
from lancetable.proto import encodings_v2_1_pb2 as pb

_MAX_INLINE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class ConstantPage(PageLayout):
    """Parameters of a page of nulls or of a single value."""

    oneof_case: ClassVar[str] = "constant_layout"

    layers: tuple[int, ...]
    inline_value: bytes | None = None
    rep_compression: Compressive | None = None
    def_compression: Compressive | None = None
    num_rep_values: int = 0
    num_def_values: int = 0

    def has_value(self, page: Page) -> bool:
        """Return True if the page stores a value; otherwise all values are null."""
        return self.inline_value is not None or len(page.buffers) in (1, 3)

    def check(self) -> None:
        if self.inline_value is not None and len(self.inline_value) > _MAX_INLINE_BYTES:
            expected, found = f"at most {_MAX_INLINE_BYTES} bytes", len(self.inline_value)
            raise CorruptFileError("inline value is too long", expected, found)

    def read(self, page: Page, context: ReadContext, rows: Rows, max_gap: int) -> ReadPlan[DecodedRows]:
        layers = layers_of(self.layers)
        count = len(page.buffers)
        if count not in ((0, 2) if self.inline_value is not None else (0, 1, 2, 3)):
            raise CorruptFileError("wrong number of buffers", "0 to 3", count)
        has_value = self.has_value(page)
        if has_value and context.version is FileVersion.V2_1:
            raise CorruptFileError("file of version 2.1 stores a constant value, which requires version 2.2")
        buffers = list((yield page.buffers) if count else ())
        value: Block | None = None
        if self.inline_value is not None:
            value = _fixed_value(self.inline_value, context.data_type)
        elif has_value:
            value = _stored_value(buffers.pop(0), context.data_type)
        repetition = definition = None
        num_values = len(rows)
        if buffers:
            repetition, definition = self._levels(buffers, layers, has_value, page)
            if definition is not None:
                num_values = int(np.count_nonzero(definition <= layers.max_visible))
            else:
                num_values = page.length if repetition is None else len(repetition)
            check_levels(repetition, definition, layers, num_values, page.length)
        elif layers.num_lists:
            raise CorruptFileError("page of lists has no levels")
        values: Block = Nulls(num_values) if value is None else Repeated(value, num_values)
        if not buffers or (isinstance(rows, range) and len(rows) == page.length):
            return DecodedRows(values, repetition, definition, self.layers, len(rows))
        return select_rows(values, repetition, definition, layers, rows)

    def _levels(
        self, buffers: list[memoryview], layers: Layers, has_value: bool, page: Page
    ) -> tuple[Levels | None, Levels | None]:
        limit = page.limits.page_bytes
        parsed: list[Levels | None] = []
        encodings, counts = (self.rep_compression, self.def_compression), (self.num_rep_values, self.num_def_values)
        for data, encoding, count in zip(buffers, encodings, counts):
            if encoding is None or has_value:
                encoding, count = Flat(8 * LEVEL.itemsize), -(-len(data) // LEVEL.itemsize)
            elif count * 2 > limit:
                raise CorruptFileError("number of levels out of range", found=count, limit="page_bytes")
            parsed.append(decode_levels(encoding, whole(data), np.array([count], np.int64), limit) if count else None)
        repetition, definition = parsed
        if repetition is not None and not layers.num_lists:
            raise CorruptFileError("page without lists has repetition levels")
        return repetition, definition


def _fixed_value(data: bytes | memoryview, data_type: pa.DataType) -> FixedWidth:
    bits = type_bits(data_type)
    if bits is None or (bits + 7) // 8 != len(data):
        raise CorruptFileError(f"value has the wrong width for {data_type}", bits, 8 * len(data))
    return FixedWidth(bits, data, 1)


def _stored_value(data: memoryview, data_type: pa.DataType) -> Block:
    count = int.from_bytes(data[:4], "little")
    width = offset_bytes(data_type)
    wanted = 2 if width else 1
    start = 4 + 4 * wanted
    if count != wanted or len(data) < start:
        raise CorruptFileError(f"value has the wrong number of buffers for {data_type}", wanted, count)
    sizes = np.frombuffer(data[4:start], "<u4").tolist()
    if start + sum(sizes) != len(data):
        raise CorruptFileError("wrong size of the value buffer", len(data), start + sum(sizes))
    if not width:
        return _fixed_value(data[start:], data_type)
    if sizes[0] != 2 * width:
        raise CorruptFileError("offsets of the value have the wrong size", 2 * width, sizes[0])
    offsets = np.frombuffer(data[start : start + 2 * width], np.int32 if width == 4 else np.int64)
    if offsets[0] != 0 or int(offsets[1]) != sizes[1]:
        raise CorruptFileError("offsets of the value do not match its size", sizes[1], offsets.tolist())
    return VariableWidth(offsets, data[start + 2 * width :])


# ------------------------------------------------------------------------------------------------------------- encode


def encode_all_null(shredded: Shredded, large: bool) -> EncodedLayout:
    """Encode a page without values: every entry is null or hidden. Levels are compressed in version 2.2 (`large`)."""
    if shredded.layers == (pb.REPDEF_NULLABLE_ITEM,):
        return EncodedLayout(ConstantPage(shredded.layers), [])
    shredded = _null_throughout(shredded)
    buffers: list[BufferPieces] = []
    encodings: list[Compressive | None] = []
    for levels in (shredded.repetition, shredded.definition):
        encoding, data = None, [] if levels is None else [levels]
        if large and levels is not None:
            compressed, streams = encode_levels(levels, np.array([0, len(levels)], np.int64), True)
            if not isinstance(compressed, Flat):
                encoding, data = compressed, [interleave(streams)]
        encodings.append(encoding)
        buffers.append(data)
    repetition, definition = encodings
    num_repetition, num_definition = [0 if encoding is None else shredded.num_entries for encoding in encodings]
    layout = ConstantPage(shredded.layers, None, repetition, definition, num_repetition, num_definition)
    return EncodedLayout(layout, buffers)


def _null_throughout(shredded: Shredded) -> Shredded:
    """Declare all layers inside a null struct nullable, because pylance does not detect hidden values in it."""
    layers, definition = shredded.layers, shredded.definition
    inner = next((number for number, kind in enumerate(layers) if kind in LISTS), len(layers))
    while inner and layers[inner - 1] != pb.REPDEF_NULLABLE_ITEM:
        inner -= 1
    levels = [number + 1 for number, kind in enumerate(layers[:inner]) if kind == pb.REPDEF_NULLABLE_ITEM]
    if definition is None or len(levels) == inner:
        return shredded
    more = layers_of(layers).num_levels - len(levels)
    table = np.array([0, *levels, *range(inner + 1, inner + 1 + more)], LEVEL)
    return shredded._replace(layers=(pb.REPDEF_NULLABLE_ITEM,) * inner + layers[inner:], definition=table[definition])


def encode_constant(shredded: Shredded, value: list[bytes]) -> EncodedLayout:
    """Encode a page with one value for all entries that are neither null nor hidden.

    `value` has the buffers of an Arrow array of that value, or the bytes of a fixed-width value. Levels are not
    compressed, because readers do not support compressed levels together with a value.
    """
    shredded = _null_throughout(shredded)
    inline = value[0] if len(value) == 1 and len(value[0]) <= _MAX_INLINE_BYTES else None
    buffers: list[BufferPieces] = []
    if inline is None:
        sizes = np.array([len(value), *map(len, value)], "<u4")
        buffers.append([sizes.tobytes(), *value])
    levels = (shredded.repetition, shredded.definition)
    if any(array is not None for array in levels):
        buffers += [[] if array is None else [array] for array in levels]
    return EncodedLayout(ConstantPage(shredded.layers, inline), buffers)
