"""Layouts on their way out: levels, mini-block, full-zip, constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lancetable.file.column import Pieces
from lancetable.file.encodings_v2_1.base import Compressive, compressive_to_message
from lancetable.file.encodings_v2_1.block import FixedWidth, VariableWidth
from lancetable.file.encodings_v2_1.chunks import Chunked, ChunkTooLarge, Limits
from lancetable.file.encodings_v2_1.compressive.bitpacking import encode_out_of_line, out_of_line_bytes
from lancetable.file.encodings_v2_1.compressive.flat import Flat
from lancetable.file.encodings_v2_1.compressive.rle import encode_run_blocks, run_starts
from lancetable.file.encodings_v2_1.shred import Shredded, num_levels
from lancetable.file.kernels.interleave import Runs, interleave, padding, runs_of, total_sizes
from lancetable.proto import encodings_v2_1_pb2 as pb

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Levels = npt.NDArray[np.uint16]

_FILLER: Final = 0xFE
_LEVEL_BITS: Final = 16
_MAX_LEVELS: Final = 65535  # in one chunk: their number is stored in 16 bits
_SMALL_CHUNK_BYTES: Final = 32 << 10
_LARGE_CHUNK_BYTES: Final = 1 << 30
_LEVEL_SHARE_BYTES: Final = 12 << 10  # of a chunk of 32 KiB
_HEADER_BYTES: Final = 64  # at least the header of any chunk


class EncodedLayout(NamedTuple):
    """A page without its place: its buffers and the message that describes them."""

    layout: pb.PageLayout
    buffers: Sequence[Pieces]


class LevelsTooDense(Exception):
    """More levels between two values than a chunk can count."""


# ------------------------------------------------------------------------------------------------------------- levels


class EncodedLevels(NamedTuple):
    encoding: Compressive
    streams: Sequence[Runs]  # run i of each makes up the levels of chunk i


def level_width(levels: Levels) -> int:
    """Bits that the largest level needs."""
    return int(levels.max()).bit_length() if len(levels) else 0


def encode_levels(levels: Levels, bounds: Ints, runs_allowed: bool) -> EncodedLevels:
    """Levels cut at (chunks + 1,) `bounds`, in the smallest of the forms that a page can give them."""
    width = level_width(levels)
    packed_bytes = out_of_line_bytes(np.diff(bounds), width, _LEVEL_BITS)
    plain_bytes = 2 * len(levels)
    if runs_allowed and width:
        starts = run_starts(levels, bounds)
        run_bytes = 8 * (len(bounds) - 1) + 3 * (len(starts) + len(levels) // 255)
        if run_bytes < min(packed_bytes, plain_bytes):
            return EncodedLevels(*encode_run_blocks(levels, starts, bounds))
    if plain_bytes <= packed_bytes:
        return EncodedLevels(Flat(_LEVEL_BITS), [Runs(levels, bounds * 2)])
    return EncodedLevels(*encode_out_of_line(levels, bounds, width))


# --------------------------------------------------------------------------------------------------------- mini-block


def chunk_limits(shredded: Shredded, large: bool, target_bytes: int, max_values: int) -> Limits:
    """What chunks of this page may hold beside their levels.

    Raises LevelsTooDense if even two values may come with more levels than a chunk can count.
    """
    max_bytes = (_LARGE_CHUNK_BYTES if large else _SMALL_CHUNK_BYTES) - _HEADER_BYTES
    if shredded.definition is None and shredded.repetition is None:
        return Limits(max_values, max_bytes, target_bytes)
    widths = sum(
        level_width(levels) for levels in (shredded.repetition, shredded.definition) if levels is not None
    )
    level_bytes = 48 << 10 if large else _LEVEL_SHARE_BYTES
    most = min(_MAX_LEVELS, level_bytes * 8 // max(widths, 1))
    if shredded.visible is not None:
        while max_values > 1:
            at = shredded.visible[max_values - 1 :: max_values] + 1
            gaps = np.diff(at, prepend=0, append=shredded.num_entries)
            if int(gaps.max()) <= most:
                break
            max_values //= 2
        if max_values == 1 and shredded.num_entries > most:
            raise LevelsTooDense
    elif max_values > most:
        max_values = 1 << (most.bit_length() - 1)
    return Limits(max_values, max_bytes - (0 if large else 2 * _LEVEL_SHARE_BYTES * 2 // 3), target_bytes)


def encode_miniblock(
    shredded: Shredded,
    chunked: Chunked,
    large: bool,
    dictionary: tuple[Compressive, int, Any] | None = None,
) -> EncodedLayout:
    """Chunks of levels and values, a word about each, the dictionary, the index of rows.

    `large`: chunks as version 2.2 has them. `dictionary`: encoding, number of items and bytes.
    Raises ChunkTooLarge.
    """
    bounds = _level_bounds(shredded, chunked.counts)
    num_levels_of_chunk = np.diff(bounds)
    message = pb.MiniBlockLayout(
        value_compression=compressive_to_message(chunked.encoding),
        layers=[int(layer) for layer in shredded.layers],
        num_buffers=len(chunked.buffers),
        num_items=int(chunked.counts.sum()),
        has_large_chunk=large,
    )
    level_buffers: list[Sequence[Runs]] = []
    has_levels = shredded.repetition is not None or shredded.definition is not None
    for levels, target in ((shredded.repetition, message.rep_compression), (shredded.definition, message.def_compression)):
        if levels is not None:
            encoded = encode_levels(levels, bounds, large)
            target.CopyFrom(compressive_to_message(encoded.encoding))
            level_buffers.append(encoded.streams)
    if has_levels and len(num_levels_of_chunk) and int(num_levels_of_chunk.max()) > _MAX_LEVELS:
        raise ChunkTooLarge
    data, chunk_bytes = _assemble(
        num_levels_of_chunk if has_levels else num_levels_of_chunk * 0, level_buffers, chunked.buffers, large
    )
    buffers: list[Pieces] = [[_chunk_words(chunk_bytes, chunked.counts, large)], [data]]
    if dictionary is not None:
        encoding, num_items, content = dictionary
        message.dictionary.CopyFrom(compressive_to_message(encoding))
        message.num_dictionary_items = num_items
        buffers.append([content])
    if shredded.repetition is not None:
        message.repetition_index_depth = 1
        buffers.append([_repetition_index(shredded.repetition, bounds, shredded.num_lists)])
    return EncodedLayout(pb.PageLayout(mini_block_layout=message), buffers)


def _level_bounds(shredded: Shredded, counts: Ints) -> Ints:
    """(chunks + 1,) A chunk takes entries up to its last value; what is hidden behind it goes to the next chunk."""
    ends = np.cumsum(counts)
    bounds = np.zeros(len(counts) + 1, np.int64)
    if shredded.visible is None:
        bounds[1:] = ends
    else:
        bounds[1:] = shredded.visible[ends - 1] + 1
    bounds[-1] = shredded.num_entries
    return bounds


def _assemble(
    num_levels: Ints, level_buffers: Sequence[Sequence[Runs]], value_buffers: Sequence[Sequence[Runs]], large: bool
) -> tuple[Any, Ints]:
    """The bytes of all chunks and the size of each."""
    size_fields = [(num_levels, "<u2")]
    size_fields += [(total_sizes(streams), "<u2") for streams in level_buffers]
    size_fields += [(total_sizes(streams), "<u4" if large else "<u2") for streams in value_buffers]
    limit = _LARGE_CHUNK_BYTES if large else _SMALL_CHUNK_BYTES
    header = np.full((len(num_levels), -(-sum(int(kind[2]) for _, kind in size_fields) // 8) * 8), _FILLER, np.uint8)
    at = 0
    for sizes, kind in size_fields:
        width = int(kind[2])
        if len(sizes) and int(sizes.max()) >= 1 << (8 * width):
            raise ChunkTooLarge
        header[:, at : at + width] = sizes.astype(kind).view(np.uint8).reshape(-1, width)
        at += width
    parts = [runs_of(header, header.shape[1], len(header))]
    for (sizes, _), streams in zip(size_fields[1:], (*level_buffers, *value_buffers)):
        parts += streams
        if (sizes % 8).any():
            parts.append(padding(sizes, 8, _FILLER))
    chunk_bytes = total_sizes(parts)
    if len(chunk_bytes) and int(chunk_bytes.max()) > limit:
        raise ChunkTooLarge
    return interleave(parts), chunk_bytes


def _chunk_words(chunk_bytes: Ints, counts: Ints, large: bool) -> npt.NDArray[Any]:
    logs = np.zeros(len(counts), np.int64)
    logs[:-1] = np.log2(counts[:-1]).astype(np.int64)
    words: npt.NDArray[Any] = (((chunk_bytes // 8 - 1) << 4) | logs).astype("<u4" if large else "<u2")
    return words


def _repetition_index(repetition: Levels, bounds: Ints, row_level: int) -> npt.NDArray[np.uint64]:
    """(chunks, 2) rows that end in a chunk, entries of a row that goes on in the next."""
    rows = np.flatnonzero(repetition == row_level)
    first, end = bounds[:-1], bounds[1:]
    before = np.searchsorted(rows, first, "right")
    until = np.searchsorted(rows, end, "left")
    last = rows[np.maximum(until - 1, 0)]
    index = np.empty((len(first), 2), np.uint64)
    index[:, 0] = until - before
    index[:, 1] = end - np.maximum(last, first)
    index[-1, 0] += 1
    index[-1, 1] = 0
    # A row that ends where the next chunk starts a row has nothing left over.
    ended = np.flatnonzero((repetition[first[1:]] == row_level) & (index[:-1, 1] != 0))
    index[ended, 0] += np.uint64(1)
    index[ended, 1] = 0
    return index


# ----------------------------------------------------------------------------------------------------------- full-zip


def encode_fullzip_fixed(shredded: Shredded, values: FixedWidth, encoding: Compressive) -> EncodedLayout:
    """Entries of a control word and a value in whole bytes."""
    control, bits_rep, bits_def = _control_words(shredded)
    row_bytes = values.bits // 8
    layout = _fullzip_message(shredded, bits_rep, bits_def, encoding)
    layout.full_zip_layout.bits_per_value = values.bits
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
    return EncodedLayout(layout, buffers)


def encode_fullzip_variable(shredded: Shredded, values: VariableWidth, encoding: Compressive) -> EncodedLayout:
    """Entries of a control word, a length and a value; null and hidden ones end with the control word."""
    control, bits_rep, bits_def = _control_words(shredded)
    length_bytes = values.offsets.dtype.itemsize
    layout = _fullzip_message(shredded, bits_rep, bits_def, encoding)
    layout.full_zip_layout.bits_per_offset = 8 * length_bytes
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
    return EncodedLayout(layout, [[interleave(streams)], [_row_index(shredded, total_sizes(streams))]])


def _spread(sizes: npt.NDArray[Any], shredded: Shredded) -> Ints:
    """Sizes of visible entries -> of all entries."""
    every = np.zeros(shredded.num_entries, np.int64)
    every[shredded.visible] = sizes
    return every


def _fullzip_message(
    shredded: Shredded, bits_rep: int, bits_def: int, values: Compressive
) -> pb.PageLayout:
    visible = shredded.num_entries if shredded.visible is None else len(shredded.visible)
    message = pb.FullZipLayout(
        bits_rep=bits_rep,
        bits_def=bits_def,
        num_items=shredded.num_entries,
        num_visible_items=visible,
        value_compression=compressive_to_message(values),
        layers=[int(layer) for layer in shredded.layers],
    )
    return pb.PageLayout(full_zip_layout=message)


def _control_words(shredded: Shredded) -> tuple[Bytes, int, int]:
    """(entries, width) control words, and the bits of their two halves."""
    levels = sum(map(num_levels, shredded.layers))
    bits_rep = shredded.num_lists.bit_length()
    bits_def = levels.bit_length()
    bits = bits_rep + bits_def
    width = 0 if bits == 0 else 1 if bits <= 8 else 2 if bits <= 16 else 4
    words = np.zeros(shredded.num_entries, np.dtype(f"<u{max(width, 1)}"))
    if shredded.repetition is not None:
        words |= np.left_shift(shredded.repetition, bits_def, dtype=np.uint32).astype(words.dtype)
    if shredded.definition is not None:
        words |= shredded.definition.astype(words.dtype)
    return words.view(np.uint8).reshape(-1, max(width, 1))[:, :width], bits_rep, bits_def


def _row_index(shredded: Shredded, sizes: Ints) -> npt.NDArray[Any]:
    """(rows + 1,) where each row begins, in the narrowest type."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    starts = ends - sizes
    if shredded.repetition is not None:
        starts = starts[shredded.repetition == shredded.num_lists]
    width = next(width for width in (1, 2, 4, 8) if total < 1 << (8 * width))
    return np.append(starts, total).astype(f"<u{width}")


# ----------------------------------------------------------------------------------------------------------- constant


def encode_all_null(shredded: Shredded, large: bool) -> EncodedLayout:
    """No values at all: every entry is null or hidden."""
    message = pb.ConstantLayout(layers=[int(layer) for layer in shredded.layers])
    layout = pb.PageLayout(constant_layout=message)
    if list(message.layers) == [pb.REPDEF_NULLABLE_ITEM]:
        return EncodedLayout(layout, [])
    buffers: list[Pieces] = []
    for levels, compression, field in (
        (shredded.repetition, message.rep_compression, "num_rep_values"),
        (shredded.definition, message.def_compression, "num_def_values"),
    ):
        if levels is None:
            buffers.append([])
        elif not large:
            buffers.append([levels])
        else:
            encoded = encode_levels(levels, np.array([0, len(levels)], np.int64), True)
            if isinstance(encoded.encoding, Flat):
                buffers.append([levels])
                continue
            compression.CopyFrom(compressive_to_message(encoded.encoding))
            setattr(message, field, len(levels))
            buffers.append([interleave(list(encoded.streams))])
    return EncodedLayout(layout, buffers)


def encode_constant(shredded: Shredded, value: bytes | None, content: Any = None) -> EncodedLayout:
    """One value for all entries that are neither null nor hidden: in the message, or apart if it is long."""
    message = pb.ConstantLayout(layers=[int(layer) for layer in shredded.layers])
    if value is not None:
        message.inline_value = value
    buffers: list[Pieces] = [] if value is not None else [[content]]
    if shredded.repetition is not None or shredded.definition is not None:
        for levels in (shredded.repetition, shredded.definition):
            buffers.append([] if levels is None else [levels])
    return EncodedLayout(pb.PageLayout(constant_layout=message), buffers)
