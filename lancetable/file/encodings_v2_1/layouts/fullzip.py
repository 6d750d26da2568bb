"""Full-zip layout: large values, each stored after its levels, so that a value is read without its neighbours.

    buffer 0    entries: control word | length, if values have no fixed width | value
    buffer 1    row index: the start of each row, and the end; absent if all entries have the same size

Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.column import Pieces
from lancetable.file.container import Page
from lancetable.file.encodings_v2_1.base import (
    Bytes,
    Column,
    Compressive,
    Decoded,
    Ints,
    compressive_from_message,
    compressive_to_message,
)
from lancetable.file.encodings_v2_1.block import Block, FixedWidth, VariableWidth
from lancetable.file.encodings_v2_1.chunks import EncodedLayout
from lancetable.file.encodings_v2_1.repdef import Layers, check_levels, layers_of
from lancetable.file.encodings_v2_1.shred import Shredded
from lancetable.file.fetch import MAPPED, ReadPlan, Rows, cluster, fetch_slots, join
from lancetable.file.kernels import fullzip, miniblock
from lancetable.file.kernels.interleave import Runs, interleave, runs_of, total_sizes
from lancetable.file.kernels.levels import LEVEL, Levels
from lancetable.proto import encodings_v2_1_pb2 as pb
from lancetable.store.base import ByteRange

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FullZip", "encode_fullzip_fixed", "encode_fullzip_variable"]

_MAX_LEVEL_BITS: Final = 16
_INDEX_WORDS: Final[dict[int, np.dtype[Any]]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}


@dataclass(frozen=True, slots=True)
class FullZip:
    arm: ClassVar[str] = "full_zip_layout"

    bits_rep: int
    bits_def: int
    bits_per_value: int | None
    bits_per_offset: int | None
    num_items: int
    num_visible_items: int
    values: Compressive
    layers: tuple[int, ...]

    def read(self, page: Page, column: Column, rows: Rows, gap: int) -> ReadPlan[Decoded]:
        layers = layers_of(self.layers)
        by_index = self.bits_per_value is None or layers.num_lists > 0
        if len(page.buffers) != 1 + by_index:
            raise CorruptFileError("wrong number of buffers", expected=1 + by_index, found=len(page.buffers))
        if not layers.num_lists:
            if self.bits_rep:
                raise CorruptFileError("page without lists has repetition levels")
            if self.num_items != page.length:
                raise CorruptFileError("rows and entries differ in number", expected=page.length, found=self.num_items)
        if not by_index:
            return (yield from self._read_fixed(page, layers, rows, gap))
        starts, ends = yield from self._fetch_index(page, rows, gap)
        ranges, shift = cluster(starts + page.buffers[0].start, ends + page.buffers[0].start, gap)
        page.check_memory(sum(end - start for start, end in ranges) if gap != MAPPED else int((ends - starts).sum()))
        buffers = yield ranges
        data = np.frombuffer(join(buffers), np.uint8) if ranges[-1].end > ranges[0].start else np.empty(0, np.uint8)
        moved = page.buffers[0].start - shift
        if layers.num_lists:
            return self._decode_lists(data, starts + moved, ends + moved, layers, page)
        return self._decode_variable(data, starts + moved, ends + moved, layers, page)

    # --------------------------------------------------------------------------------------------------- fixed width

    def _read_fixed(self, page: Page, layers: Layers, rows: Rows, gap: int) -> ReadPlan[Decoded]:
        assert self.bits_per_value is not None
        control = fullzip.control_bytes(self.bits_def)
        width = self.bits_per_value // 8
        stride = control + width
        where = page.buffers[0]
        if where.end - where.start != page.length * stride:
            raise CorruptFileError(
                "entries do not fill their buffer", expected=page.length * stride, found=where.end - where.start
            )
        page.check_memory(len(rows) * stride if control or not isinstance(rows, range) else 0)
        data = (yield from fetch_slots(where.start, stride, rows, gap)) if stride else b""
        definition = None
        if control:
            entries = np.frombuffer(data, np.uint8).reshape(len(rows), stride)
            _, definition = self._levels(_words(entries[:, :control]))
            data = np.ascontiguousarray(entries[:, control:]).reshape(-1)
        values = self.values.decode_values(FixedWidth(self.bits_per_value, data, len(rows)), page.limits.page_bytes)
        check_levels(None, definition, layers, values.length, len(rows))
        return Decoded(values, None, definition, self.layers, len(rows))

    def _levels(self, words: npt.NDArray[Any]) -> tuple[Levels | None, Levels | None]:
        """Split control words into repetition and definition levels."""
        repetition = (words >> words.dtype.type(self.bits_def)).astype(LEVEL) if self.bits_rep else None
        definition = (words & words.dtype.type((1 << self.bits_def) - 1)).astype(LEVEL) if self.bits_def else None
        return repetition, definition

    # -------------------------------------------------------------------------------------------------- by row index

    def _fetch_index(self, page: Page, rows: Rows, gap: int) -> ReadPlan[tuple[Ints, Ints]]:
        """Fetch the positions in buffer 0 where rows begin and end."""
        where = page.buffers[1]
        width, rest = divmod(where.end - where.start, page.length + 1)
        word = _INDEX_WORDS.get(width)
        if rest or word is None:
            raise CorruptFileError(
                "row index has the wrong size",
                expected=f"1, 2, 4 or 8 times {page.length + 1}",
                found=where.end - where.start,
            )
        wanted: Rows
        if isinstance(rows, range):
            wanted = range(rows.start, rows.stop + 1)
            data = yield from fetch_slots(where.start, width, wanted, gap)
            found = np.frombuffer(data, word, len(wanted))
            before, behind = found[:-1], found[1:]
        else:
            if gap == MAPPED:
                (data,) = yield (ByteRange(where.start, where.end),)
                whole_index = np.frombuffer(data, word)
                before, behind = whole_index[rows], whole_index[rows + 1]
            else:
                wanted = np.union1d(rows, rows + 1)
                data = yield from fetch_slots(where.start, width, wanted, gap)
                found = np.frombuffer(data, word, len(wanted))
                at = np.searchsorted(wanted, rows)
                before, behind = found[at], found[at + 1]
        size = page.buffers[0].end - page.buffers[0].start
        if int(behind.max()) > size or (before > behind).any() or (behind[:-1] > before[1:]).any():
            raise CorruptFileError(
                "row index decreases or exceeds its page", expected=f"at most {size}", found=int(behind.max())
            )
        if isinstance(rows, range):
            if rows.start == 0 and int(before[0]) != 0:
                raise CorruptFileError("row index does not begin at 0", expected=0, found=int(before[0]))
            if rows.stop == page.length and int(behind[-1]) != size:
                raise CorruptFileError(
                    "row index does not end at the end of its page", expected=size, found=int(behind[-1])
                )
        return before.astype(np.int64), behind.astype(np.int64)

    def _decode_variable(self, data: Bytes, starts: Ints, ends: Ints, layers: Layers, page: Page) -> Decoded:
        """Decode rows of one entry of variable width each."""
        assert self.bits_per_offset is not None
        control = fullzip.control_bytes(self.bits_def)
        room = self.bits_per_offset // 8
        definition = None
        at = starts
        if (at + control > ends).any():
            raise CorruptFileError("entry exceeds the end of its row")
        filled: npt.NDArray[Any] | None = None
        if control:
            _, definition = self._levels(_words(miniblock.gather_rows(data, starts, control)))
            assert definition is not None
            at = at + control
            filled = definition == 0
            if filled.all():
                filled = None
        where = at if filled is None else at[filled]
        if (where + room > (ends if filled is None else ends[filled])).any():
            raise CorruptFileError("entry exceeds the end of its row")
        lengths = miniblock.gather_rows(data, where, room).view(f"<u{room}").reshape(-1).astype(np.int64)
        if filled is None:
            sizes, at = lengths, at + room
        else:
            sizes = np.zeros(len(at), np.int64)
            sizes[filled] = lengths
            at = at + np.where(filled, room, 0)
        if len(sizes) and (int(sizes.min()) < 0 or (sizes != ends - at).any()):
            raise CorruptFileError("entry does not fill its row")
        offsets, joined = fullzip.join_values(data, at, sizes)
        values = self.values.decode_values(VariableWidth(offsets, joined), page.limits.page_bytes)
        check_levels(None, definition, layers, values.length, len(starts))
        return Decoded(values, None, definition, self.layers, len(starts))

    def _decode_lists(self, data: Bytes, starts: Ints, ends: Ints, layers: Layers, page: Page) -> Decoded:
        """Decode rows of any number of entries each."""
        width = (self.bits_per_value or 0) // 8
        room = (self.bits_per_offset or 0) // 8
        control = fullzip.control_bytes(self.bits_rep + self.bits_def)
        top = layers.max_visible
        words, positions, sizes, first = fullzip.walk(data, starts, ends, control, self.bits_def, top, width, room)
        repetition, definition = self._levels(words)
        if repetition is None:
            raise CorruptFileError("page of lists has no repetition levels")
        if len(first) > 1 and (np.diff(first).min() < 1 or (repetition[first[:-1]] != layers.num_lists).any()):
            raise CorruptFileError("row index does not point at the start of a row")
        if definition is not None and len(definition) and int(definition.max()) > top:
            visible = definition <= top
            positions, sizes = positions[visible], sizes[visible]
        block: Block
        if room:
            offsets, joined = fullzip.join_values(data, positions, np.maximum(sizes, 0))
            block = VariableWidth(offsets, joined)
        else:
            rows = miniblock.gather_rows(data, positions, width) if width else np.empty(0, np.uint8)
            block = FixedWidth(8 * width, rows.reshape(-1), len(positions))
        values = self.values.decode_values(block, page.limits.page_bytes)
        check_levels(repetition, definition, layers, values.length, len(starts))
        return Decoded(values, repetition, definition, self.layers, len(starts))

    @classmethod
    def from_proto(cls, message: pb.FullZipLayout) -> Self:
        if message.bits_rep > _MAX_LEVEL_BITS or message.bits_def > _MAX_LEVEL_BITS:
            raise CorruptFileError(
                "levels have too many bits", expected=_MAX_LEVEL_BITS, found=max(message.bits_rep, message.bits_def)
            )
        details = message.WhichOneof("details")
        if details == "bits_per_value":
            if message.bits_per_value % 8:
                raise CorruptFileError(
                    "values are not whole bytes", expected="a multiple of 8 bits", found=message.bits_per_value
                )
        elif details == "bits_per_offset":
            if message.bits_per_offset not in (32, 64):
                raise CorruptFileError(
                    "lengths have an unsupported width", expected="32 or 64 bits", found=message.bits_per_offset
                )
        else:
            raise CorruptFileError("full-zip layout without the width of its values")
        if not message.HasField("value_compression"):
            raise CorruptFileError("full-zip layout without an encoding of its values")
        return cls(
            message.bits_rep,
            message.bits_def,
            message.bits_per_value if details == "bits_per_value" else None,
            message.bits_per_offset if details == "bits_per_offset" else None,
            message.num_items,
            message.num_visible_items,
            compressive_from_message(message.value_compression),
            tuple(int(layer) for layer in message.layers),
        )

    def to_proto(self) -> pb.FullZipLayout:
        return pb.FullZipLayout(
            bits_rep=self.bits_rep,
            bits_def=self.bits_def,
            bits_per_value=self.bits_per_value,
            bits_per_offset=self.bits_per_offset,
            num_items=self.num_items,
            num_visible_items=self.num_visible_items,
            value_compression=compressive_to_message(self.values),
            layers=self.layers,  # type: ignore[arg-type]  # numbers are as good as names
        )


def _words(octets: Bytes) -> npt.NDArray[Any]:
    """Convert (n, 1, 2 or 4) bytes to (n,) words."""
    width = octets.shape[1]
    return np.ascontiguousarray(octets).view(_INDEX_WORDS[width]).reshape(-1)


# ------------------------------------------------------------------------------------------------------------- encode


def encode_fullzip_fixed(shredded: Shredded, values: FixedWidth, encoding: Compressive) -> EncodedLayout:
    """Encode entries of a control word and a value of fixed width, in whole bytes."""
    control, bits = _control_words(shredded)
    row_bytes = values.bits // 8
    word = control.shape[1]
    if word == 0:
        data: Any = values.data
    elif shredded.visible is None:
        zipped = np.empty((shredded.num_entries, word + row_bytes), np.uint8)
        zipped[:, :word] = control
        zipped[:, word:] = np.frombuffer(values.data, np.uint8).reshape(-1, row_bytes)
        data = zipped
    else:
        sizes = np.zeros(shredded.num_entries, np.int64)
        sizes[shredded.visible] = row_bytes
        data = interleave([runs_of(control, word, shredded.num_entries), runs_of(values.data, sizes)])
    buffers: list[Pieces] = [[data]]
    if shredded.repetition is not None:
        sizes = np.full(shredded.num_entries, word, np.int64)
        sizes[slice(None) if shredded.visible is None else shredded.visible] += row_bytes
        buffers.append([_row_index(shredded, sizes)])
    return EncodedLayout(_layout(shredded, bits, encoding, values.bits, None), buffers)


def encode_fullzip_variable(shredded: Shredded, values: VariableWidth, encoding: Compressive) -> EncodedLayout:
    """Encode entries of a control word, a length and a value; null and hidden entries are a control word only."""
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
        bodies = Runs(values.data, int(values.offsets[0]) + runs_of(b"", _spread(lengths, shredded)).offsets)
    streams = [runs_of(np.ascontiguousarray(heads), head_sizes), bodies]
    if control.shape[1]:
        streams.insert(0, runs_of(control, control.shape[1], shredded.num_entries))
    layout = _layout(shredded, bits, encoding, None, 8 * length_bytes)
    return EncodedLayout(layout, [[interleave(streams)], [_row_index(shredded, total_sizes(streams))]])


def _spread(sizes: npt.NDArray[Any], shredded: Shredded) -> Ints:
    """Convert the sizes of visible entries to sizes of all entries, 0 for hidden ones."""
    all_sizes = np.zeros(shredded.num_entries, np.int64)
    all_sizes[shredded.visible] = sizes
    return all_sizes


def _layout(
    shredded: Shredded,
    bits: tuple[int, int],
    values: Compressive,
    bits_per_value: int | None,
    bits_per_offset: int | None,
) -> FullZip:
    return FullZip(
        bits_rep=bits[0],
        bits_def=bits[1],
        bits_per_value=bits_per_value,
        bits_per_offset=bits_per_offset,
        num_items=shredded.num_entries,
        num_visible_items=shredded.num_entries if shredded.visible is None else len(shredded.visible),
        values=values,
        layers=shredded.layers,
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
    """Return the (rows + 1,) positions where rows begin, in the narrowest type."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    starts = ends - sizes
    if shredded.repetition is not None:
        starts = starts[shredded.repetition == shredded.num_lists]
    width = next(width for width in (1, 2, 4, 8) if total < 1 << (8 * width))
    return np.append(starts, total).astype(f"<u{width}")
