"""Full-zip layout: large values, each stored after its levels, so that a value can be read without its neighbours.

    buffer 0    entries: control word | length, if values have no fixed width | value
    buffer 1    row index: the start of each row, and the end; absent if all entries have the same size

Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.column_interfaces import BufferPieces
from lancetable.file.encodings_v2_1.base import Bytes, Compressive, DecodedRows, Ints, PageLayout, ReadContext
from lancetable.file.encodings_v2_1.block import Block, FixedWidth, VariableWidth
from lancetable.file.encodings_v2_1.chunks import EncodedLayout
from lancetable.file.encodings_v2_1.repdef import Layers, check_levels, layers_of
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.footer import Page
from lancetable.file.io_scheduler import MAPPED, ReadPlan, Rows, cluster, fetch_slots, join
from lancetable.file.kernels import fullzip, miniblock, varbin
from lancetable.file.kernels.bitpacking import WORDS
from lancetable.file.kernels.interleave import Runs, interleave, runs_of, total_sizes
from lancetable.file.kernels.levels import LEVEL, Levels
from lancetable.store.base import ByteRange

_MAX_LEVEL_BITS: Final = 16
_Entries: TypeAlias = tuple[Levels | None, Levels | None, Block]  # repetition and definition levels, stored values


@dataclass(frozen=True, slots=True, kw_only=True)
class FullZip(PageLayout):
    """Parameters of a full-zip page; either `bits_per_value` or `bits_per_offset` is set."""

    oneof_case: ClassVar[str] = "full_zip_layout"

    bits_rep: int
    bits_def: int
    bits_per_value: int | None = None
    bits_per_offset: int | None = None
    num_items: int
    num_visible_items: int
    value_compression: Compressive
    layers: tuple[int, ...]

    def check(self) -> None:
        level_bits = max(self.bits_rep, self.bits_def)
        if level_bits > _MAX_LEVEL_BITS:
            raise CorruptFileError("levels have too many bits", f"at most {_MAX_LEVEL_BITS}", level_bits)
        if self.bits_per_value is not None:
            if self.bits_per_value % 8:
                raise CorruptFileError("wrong width of values", "a multiple of 8 bits", self.bits_per_value)
        elif self.bits_per_offset not in (32, 64):
            raise CorruptFileError("lengths have an unsupported width", "32 or 64 bits", self.bits_per_offset)

    def read(self, page: Page, context: ReadContext, rows: Rows, max_gap: int) -> ReadPlan[DecodedRows]:
        layers = layers_of(self.layers)
        by_index = self.bits_per_value is None or layers.num_lists > 0
        if len(page.buffers) != 1 + by_index:
            raise CorruptFileError("wrong number of buffers", 1 + by_index, len(page.buffers))
        if not layers.num_lists:
            if self.bits_rep:
                raise CorruptFileError("page without lists has repetition levels")
            if self.num_items != page.length:
                raise CorruptFileError("rows and entries differ in number", page.length, self.num_items)
        read = self._read_by_index if by_index else self._read_fixed
        repetition, definition, block = yield from read(page, layers, rows, max_gap)
        values = self.value_compression.decode_values(block, page.limits.page_bytes)
        check_levels(repetition, definition, layers, values.length, len(rows))
        return DecodedRows(values, repetition, definition, self.layers, len(rows))

    def _read_fixed(self, page: Page, layers: Layers, rows: Rows, max_gap: int) -> ReadPlan[_Entries]:
        """Plan reading entries that all have the same size."""
        assert self.bits_per_value is not None
        control = fullzip.control_bytes(self.bits_def)
        stride = control + self.bits_per_value // 8
        start, end = page.buffers[0]
        if end - start != page.length * stride:
            raise CorruptFileError("wrong size of the entry buffer", page.length * stride, end - start)
        page.check_memory(len(rows) * stride if control or not isinstance(rows, range) else 0)
        data = (yield from fetch_slots(start, stride, rows, max_gap)) if stride else b""
        definition = None
        if control:
            entries = np.frombuffer(data, np.uint8).reshape(len(rows), stride)
            words = np.ascontiguousarray(entries[:, :control]).view(WORDS[control]).reshape(-1)
            _, definition = self._levels(words)
            data = np.ascontiguousarray(entries[:, control:]).reshape(-1)
        return None, definition, FixedWidth(self.bits_per_value, data, len(rows))

    def _levels(self, words: npt.NDArray[Any]) -> tuple[Levels | None, Levels | None]:
        """Split control words into repetition and definition levels."""
        repetition = (words >> words.dtype.type(self.bits_def)).astype(LEVEL) if self.bits_rep else None
        definition = (words & words.dtype.type((1 << self.bits_def) - 1)).astype(LEVEL) if self.bits_def else None
        return repetition, definition

    def _read_by_index(self, page: Page, layers: Layers, rows: Rows, max_gap: int) -> ReadPlan[_Entries]:
        """Plan reading rows at the positions in the row index."""
        starts, ends = yield from self._fetch_index(page, rows, max_gap)
        origin = page.buffers[0].start
        ranges, shift = cluster(starts + origin, ends + origin, max_gap)
        page.check_memory(int((ends - starts).sum()) if max_gap == MAPPED else sum(end - at for at, end in ranges))
        buffers = yield ranges
        data = np.frombuffer(join(buffers), np.uint8)
        return self._parse_rows(data, starts + (origin - shift), ends + (origin - shift), layers)

    def _fetch_index(self, page: Page, rows: Rows, max_gap: int) -> ReadPlan[tuple[Ints, Ints]]:
        """Plan reading the positions in buffer 0 at which rows begin and end."""
        start, end = page.buffers[1]
        width, rest = divmod(end - start, page.length + 1)
        word = WORDS.get(width)
        if rest or word is None:
            raise CorruptFileError("row index has the wrong size", f"1, 2, 4 or 8 times {page.length + 1}", end - start)
        if isinstance(rows, range):
            data = yield from fetch_slots(start, width, range(rows.start, rows.stop + 1), max_gap)
            bounds = np.frombuffer(data, word, len(rows) + 1)
            starts, ends = bounds[:-1], bounds[1:]
        elif max_gap == MAPPED:
            (data,) = yield (ByteRange(start, end),)
            bounds = np.frombuffer(data, word)
            starts, ends = bounds[rows], bounds[rows + 1]
        else:
            wanted = np.union1d(rows, rows + 1)
            data = yield from fetch_slots(start, width, wanted, max_gap)
            bounds = np.frombuffer(data, word, len(wanted))
            positions = np.searchsorted(wanted, rows)
            starts, ends = bounds[positions], bounds[positions + 1]
        size = page.buffers[0].end - page.buffers[0].start
        if int(ends.max()) > size or (starts > ends).any() or (ends[:-1] > starts[1:]).any():
            expected, found = f"at most {size}", int(ends.max())
            raise CorruptFileError("row index decreases or exceeds its page", expected, found)
        if int(rows[0]) == 0 and int(starts[0]) != 0:
            raise CorruptFileError("row index does not begin at 0", 0, int(starts[0]))
        if int(rows[-1]) == page.length - 1 and int(ends[-1]) != size:
            raise CorruptFileError("row index does not end at the end of the page", size, int(ends[-1]))
        return starts.astype(np.int64), ends.astype(np.int64)

    def _parse_rows(self, data: Bytes, starts: Ints, ends: Ints, layers: Layers) -> _Entries:
        """Parse rows. A row has any number of entries in a page of lists, otherwise one entry."""
        width = (self.bits_per_value or 0) // 8
        length_bytes = (self.bits_per_offset or 0) // 8
        control = fullzip.control_bytes(self.bits_rep + self.bits_def)
        top = layers.max_visible
        words, positions, sizes, first = fullzip.walk(
            data, starts, ends, control, self.bits_def, top, width, length_bytes
        )
        repetition, definition = self._levels(words)
        if not layers.num_lists:
            if (np.diff(first) != 1).any():
                raise CorruptFileError("row has more than one entry")
        elif repetition is None:
            raise CorruptFileError("page of lists has no repetition levels")
        elif len(first) > 1 and (np.diff(first).min() < 1 or (repetition[first[:-1]] != layers.num_lists).any()):
            raise CorruptFileError("row index does not point at the start of a row")
        if definition is not None and len(definition) and int(definition.max()) > top:
            visible = definition <= top
            positions, sizes = positions[visible], sizes[visible]
        block: Block
        if length_bytes:
            block = VariableWidth(*varbin.gather(positions, positions + np.maximum(sizes, 0), data))
        else:
            values = miniblock.gather_rows(data, positions, width) if width else np.empty(0, np.uint8)
            block = FixedWidth(8 * width, values.reshape(-1), len(positions))
        return repetition, definition, block


# ------------------------------------------------------------------------------------------------------------- encode


def encode_fullzip_fixed(shredded: Shredded, values: FixedWidth, encoding: Compressive) -> EncodedLayout:
    """Encode entries of a control word and a value of fixed width, in whole bytes."""
    control, bits = _control_words(shredded)
    word = control.shape[1]
    sizes = _spread(values.bits // 8, shredded)
    data = values.data
    if word:
        data = interleave([runs_of(control, word, shredded.num_entries), runs_of(data, sizes)])
    buffers: list[BufferPieces] = [[data]]
    if shredded.repetition is not None:
        buffers.append([_row_index(shredded, word + sizes)])
    return EncodedLayout(_layout(shredded, bits, encoding, bits_per_value=values.bits), buffers)


def encode_fullzip_variable(shredded: Shredded, values: VariableWidth, encoding: Compressive) -> EncodedLayout:
    """Encode entries of a control word, a length and a value. Null and hidden entries have only a control word."""
    control, bits = _control_words(shredded)
    length_bytes = values.offsets.dtype.itemsize
    lengths = np.diff(values.offsets)
    heads = lengths
    head_sizes = np.full(len(lengths), length_bytes, np.int64)
    definition = shredded.visible_definition
    if definition is not None and definition.any():
        valid = definition == 0
        heads = lengths[valid]
        head_sizes[~valid] = 0
    bodies = Runs(values.data, values.offsets.astype(np.int64))
    if shredded.visible is not None:
        head_sizes = _spread(head_sizes, shredded)
        bodies = Runs(values.data, int(values.offsets[0]) + varbin.offsets_of_sizes(_spread(lengths, shredded)))
    streams = [runs_of(np.ascontiguousarray(heads), head_sizes), bodies]
    if control.shape[1]:
        streams.insert(0, runs_of(control, control.shape[1], shredded.num_entries))
    layout = _layout(shredded, bits, encoding, bits_per_offset=8 * length_bytes)
    return EncodedLayout(layout, [[interleave(streams)], [_row_index(shredded, total_sizes(streams))]])


def _spread(sizes: npt.NDArray[Any] | int, shredded: Shredded) -> Ints:
    """Convert the sizes of visible entries to sizes of all entries, 0 for hidden ones."""
    all_sizes = np.zeros(shredded.num_entries, np.int64)
    all_sizes[slice(None) if shredded.visible is None else shredded.visible] = sizes
    return all_sizes


def _layout(shredded: Shredded, bits: tuple[int, int], values: Compressive, **width: int) -> FullZip:
    return FullZip(
        bits_rep=bits[0],
        bits_def=bits[1],
        num_items=shredded.num_entries,
        num_visible_items=shredded.num_entries if shredded.visible is None else len(shredded.visible),
        value_compression=values,
        layers=shredded.layers,
        **width,
    )


def _control_words(shredded: Shredded) -> tuple[Bytes, tuple[int, int]]:
    """Return (entries, width) control words, and the bits of repetition and definition levels in them."""
    layers = layers_of(shredded.layers)
    bits_rep, bits_def = layers.num_lists.bit_length(), layers.num_levels.bit_length()
    width = fullzip.control_bytes(bits_rep + bits_def)
    words = np.zeros(shredded.num_entries, np.dtype(f"<u{max(width, 1)}"))
    if shredded.repetition is not None:
        words |= np.left_shift(shredded.repetition, bits_def, dtype=np.uint32).astype(words.dtype)
    if shredded.definition is not None:
        words |= shredded.definition.astype(words.dtype)
    return words.view(np.uint8).reshape(-1, max(width, 1))[:, :width], (bits_rep, bits_def)


def _row_index(shredded: Shredded, sizes: Ints) -> npt.NDArray[Any]:
    """Return the (rows + 1,) positions at which rows begin, in the narrowest type."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    starts = ends - sizes
    if shredded.repetition is not None:
        starts = starts[shredded.repetition == shredded.num_lists]
    width = next(width for width in (1, 2, 4, 8) if total < 1 << (8 * width))
    return np.append(starts, total).astype(f"<u{width}")
