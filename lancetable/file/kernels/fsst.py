"""FSST: short strings, compressed one by one through a table of up to 255 symbols of 1 to 8 bytes.

    symbols  0 "http"  1 "s://"  2 "www."        "https://www.x"  ->  00 01 02 ff 'x'

A code below the number of symbols stands for its symbol, code 255 for the byte that follows it. Codes never reach
across values, so that each value can be expanded alone. The table is always stored in 2,312 bytes:

    u64                0x46535354 << 32 | encoded << 24 | suffix limit << 16 | terminator << 8 | number of symbols
    8 · s              symbols, zero padded
    s                  their lengths
    zeros

With `encoded` = 0 the values are stored as they are; that is what small inputs get. Suffix limit and terminator mean
nothing to a decoder. Source: protos/encodings_v2_0.proto; the idea: Boncz, Neumann, Leis, "FSST: Fast
Random Access String Compression", VLDB 2020.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import native

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["MIN_INPUT_BYTES", "TABLE_BYTES", "SymbolTable", "compress", "decompress", "train"]

TABLE_BYTES: Final = 2312
MIN_INPUT_BYTES: Final = 32 << 10  # smaller inputs are stored raw

_MAGIC: Final = 0x46535354
_ESCAPE: Final = 255
_MAX_SYMBOLS: Final = 255
_ENCODED: Final = 1 << 24
# Blocks of codes that are expanded together; what Arrow needs beside the result stays small.
_BLOCK_CODES: Final = 1 << 18
_MIN_PAIRED_CODES: Final = 1 << 17  # that are worth a table of all pairs of codes

_SAMPLE_BYTES: Final = 64 << 10
_ROUNDS: Final = 5
# Long values are encoded in pieces side by side; a symbol lost at a border costs less than a long chain of steps.
_PIECE_BYTES: Final = 128
_GROUP_PIECES: Final = 2048  # so that a group's bytes stay in the cache from step to step
_HASH_BITS: Final = 12
_NO_SYMBOL: Final = 2 * _PIECE_BYTES  # a length no piece has left: the slot never matches

Codes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[Any]  # int32 or int64


@dataclass(frozen=True, slots=True, eq=False)
class SymbolTable:
    """A parsed table. `words` are the symbols as little-endian integers, first byte lowest."""

    words: npt.NDArray[np.uint64]  # (s,)
    lengths: npt.NDArray[np.uint8]  # (s,)
    encoded: bool  # False: values are stored as they are

    @classmethod
    def parse(cls, data: Buffer) -> SymbolTable:
        """Read 2,312 bytes. Raises CorruptFileError for another size, magic, or a symbol length outside 1 to 8."""
        view = memoryview(data).cast("B")
        if len(view) != TABLE_BYTES:
            raise CorruptFileError("FSST symbol table of a wrong size", expected=TABLE_BYTES, found=len(view))
        header = int.from_bytes(view[:8], "little")
        if header >> 32 != _MAGIC:
            raise CorruptFileError("FSST symbol table without its magic", expected=hex(_MAGIC), found=hex(header >> 32))
        if not header & _ENCODED:
            return cls(np.empty(0, np.uint64), np.empty(0, np.uint8), False)
        count = header & 0xFF
        words = np.frombuffer(view, "<u8", count, 8)
        lengths = np.frombuffer(view, np.uint8, count, 8 + 8 * count)
        if count and (int(lengths.min()) == 0 or int(lengths.max()) > 8):
            raise CorruptFileError("FSST symbol of a wrong length", expected="1 to 8", found=lengths.tolist())
        return cls(words, lengths, True)

    def to_bytes(self) -> bytes:
        """The 2,312 bytes of the table."""
        count = len(self.words)
        header = _MAGIC << 32 | (_ENCODED if self.encoded else 0) | count
        parts = header.to_bytes(8, "little") + self.words.astype("<u8").tobytes() + self.lengths.tobytes()
        return parts.ljust(TABLE_BYTES, b"\0")

    def symbols(self) -> list[bytes]:
        """The symbols in the order of their codes."""
        return [
            word.to_bytes(8, "little")[:length]
            for word, length in zip(self.words.tolist(), self.lengths.tolist(), strict=True)
        ]


def decompress(codes: Codes, offsets: Offsets, table: SymbolTable) -> tuple[npt.NDArray[np.uint8], Offsets]:
    """Expand values. `offsets` are (n + 1,) checked offsets into `codes`; the result starts at offset zero.

    -> the bytes, and (n + 1,) offsets of the same type. At most 8 bytes come out of one code byte.
    Raises CorruptFileError for a code without a symbol, an escape at the end of a value, or offsets that overflow.
    """
    start, end = int(offsets[0]), int(offsets[-1])
    codes = codes[start:end]
    relative: Offsets = offsets - offsets.dtype.type(start)
    if not table.encoded:
        return codes, relative
    if native is not None:
        found, ends = native.decompress(codes, relative, relative.itemsize, table.words, table.lengths)
        return _trimmed(found, int(ends[-1])), ends

    tokens = _tokens(codes, relative)
    count = len(table.words)
    if count < _ESCAPE and ((tokens >= count) & (tokens < _ESCAPE)).any():
        raise CorruptFileError("FSST code without a symbol", expected=f"codes below {count}")
    return _expand(tokens, relative, table)


def _tokens(codes: Codes, relative: Offsets) -> npt.NDArray[Any]:
    """Codes with their escapes resolved: 0-254 are symbols, 256-511 literal bytes; as they are where none is escaped.

    An escape is a token of length zero, so that the token after it lands on the same place.
    """
    escapes = np.flatnonzero(codes == _ESCAPE)
    if not len(escapes):
        return codes
    # In a run of 255s every second one is itself a literal.
    new_run = np.empty(len(escapes), np.bool_)
    new_run[0] = True
    np.not_equal(np.diff(escapes), 1, out=new_run[1:])
    ranks = np.arange(len(escapes))
    escapes = escapes[(ranks - ranks[new_run][np.cumsum(new_run) - 1]) % 2 == 0]
    last_of_value = relative[1:][np.diff(relative) > 0] - 1
    if np.isin(last_of_value, escapes, kind="sort").any():
        raise CorruptFileError("FSST value ends inside an escape")
    tokens = codes.astype(np.uint16)
    tokens[escapes + 1] += 256
    return tokens


def _expand(tokens: npt.NDArray[Any], offsets: Offsets, table: SymbolTable) -> tuple[npt.NDArray[np.uint8], Offsets]:
    """What tokens stand for, a block of them at a time; `offsets` start at zero."""
    # Arrow puts the symbols of many tokens side by side, as it would the items of a dictionary.
    unused = [b""] * (256 - len(table.words))
    symbols = pa.array([*table.symbols(), *unused, *(bytes((byte,)) for byte in range(256))], pa.binary())
    paired = len(tokens) >= _MIN_PAIRED_CODES and tokens.dtype.itemsize == 1
    every = _pairs_of(symbols) if paired else symbols
    parts: list[pa.Buffer] = []
    new_offsets = np.zeros(len(offsets), offsets.dtype)
    row = base = 0
    for first in range(0, len(tokens), _BLOCK_CODES):
        block = tokens[first : first + _BLOCK_CODES]
        whole = block
        if paired:
            block = np.ascontiguousarray(whole[: len(whole) & -2]).view("<u2")
        taken = every.take(pa.array(block))
        _, ends, content = taken.buffers()
        positions = np.frombuffer(ends, np.int32, len(block) + 1)
        size = int(positions[-1])
        until = int(np.searchsorted(offsets, first + len(whole)))
        at = offsets[row:until] - first
        if not paired:
            found = positions.take(at)
        else:
            # A value that begins at the second code of a pair lies behind the symbol of the first one.
            odd = at & 1
            found = positions.take(at >> 1)
            found += odd.astype(np.uint8) * table.lengths.take(np.maximum(whole.take(at - odd), 0), mode="clip")
        parts.append(content.slice(0, size) if size else pa.py_buffer(b""))
        if len(whole) > 2 * len(block) and paired:
            last = table.symbols()[whole[-1]]
            parts.append(pa.py_buffer(last))
            size += len(last)
        if base + size > np.iinfo(offsets.dtype).max:
            raise CorruptFileError(
                "values too long for their type", expected=np.iinfo(offsets.dtype).max, found=base + size
            )
        new_offsets[row:until] = found + base
        row = until
        base += size
    new_offsets[row:] = base
    return np.frombuffer(b"".join(parts), np.uint8) if base else np.empty(0, np.uint8), new_offsets


def _pairs_of(symbols: pa.Array) -> pa.Array:
    """What two codes stand for, by the 16-bit number that they are side by side."""
    pairs = np.arange(1 << 16)
    first, second = symbols.take(pa.array(pairs & 0xFF)), symbols.take(pa.array(pairs >> 8))
    return pc.binary_join_element_wise(first, second, b"")


def compress(
    data: npt.NDArray[np.uint8], offsets: Offsets, table: SymbolTable | None = None
) -> tuple[Codes, npt.NDArray[np.int64], SymbolTable]:
    """Compress values. `offsets` are (n + 1,) offsets into `data`, `table` is one that was trained before.

    -> the codes, their (n + 1,) offsets from zero on, and the table. Without one, inputs below 32 KiB are stored raw.
    """
    offsets = offsets.astype(np.int64)
    start, end = int(offsets[0]), int(offsets[-1])
    if table is None:
        if end - start < MIN_INPUT_BYTES:
            return data[start:end], offsets - start, SymbolTable(np.empty(0, np.uint64), np.empty(0, np.uint8), False)
        table = train(data, offsets)
    if native is not None:
        codes, ends = native.compress(data, offsets, table.words, table.lengths)
        return _trimmed(codes, int(ends[-1])), ends, table
    starts, ends = _pieces(offsets[:-1], offsets[1:])
    matcher = _Matcher.of(table)
    padded = np.concatenate((data[start:end], np.zeros(8, np.uint8)))
    scratch = np.empty(2 * (end - start), np.uint8)
    base = 2 * (starts - start)
    cursor = base.copy()
    for step in _steps(padded, starts - start, ends - start, matcher):
        at = cursor[step.pieces]
        literal = step.codes == _ESCAPE
        scratch[at] = step.codes
        scratch[at[literal] + 1] = padded[step.positions[literal]]
        cursor[step.pieces] = at + 1 + literal
    sizes = cursor - base
    new_offsets = np.zeros(len(offsets), np.int64)
    ends_of_pieces = np.concatenate(([0], np.cumsum(sizes)))
    new_offsets[:] = ends_of_pieces[np.searchsorted(starts, offsets)]
    return _close_gaps(scratch, base, sizes), new_offsets, table


def train(data: npt.NDArray[np.uint8], offsets: Offsets, sample_bytes: int = _SAMPLE_BYTES) -> SymbolTable:
    """A table for values: rounds over a sample of about `sample_bytes`, each joining symbols that often follow each
    other.
    """
    total = int(offsets[-1]) - int(offsets[0])
    begins, stops = offsets[:-1], offsets[1:]
    if total > 2 * sample_bytes:
        rows = _spread_over(len(begins), max(64, len(begins) * sample_bytes // total))
        begins, stops = begins[rows], stops[rows]
    starts, ends = _pieces(begins, stops)
    if total > sample_bytes and len(starts) > 2 * sample_bytes // _PIECE_BYTES:
        chosen = _spread_over(len(starts), max(1, int(len(starts) * sample_bytes // (ends - starts).sum())))
        starts, ends = starts[chosen], ends[chosen]
    if native is not None:
        words, lengths = native.train(data, starts, ends)
        return SymbolTable(words, lengths, True)
    codes, sample_offsets = _copy_pieces(data, starts, ends)
    padded = np.concatenate((codes, np.zeros(8, np.uint8)))
    table = SymbolTable(np.empty(0, np.uint64), np.empty(0, np.uint8), True)
    for _ in range(_ROUNDS):
        table = _improve(padded, sample_offsets, table)
    return table


def _trimmed(data: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """The first `size` bytes; in memory of their own if much would stay unused."""
    if len(data) - size > size // 8:
        if not data.flags.owndata:  # of Arrow's allocator
            return np.array(data[:size])
        data.resize(size, refcheck=False)
    return data[:size]


class _Step(NamedTuple):
    """One code for each piece that has bytes left."""

    pieces: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]  # where the code's bytes start
    codes: Codes


@dataclass(frozen=True, slots=True, eq=False)
class _Matcher:
    """A table as look-ups: symbols of 3 bytes or more by a hash of their first three, shorter ones directly."""

    long_words: npt.NDArray[np.uint64]  # (2**_HASH_BITS,)
    long_masks: npt.NDArray[np.uint64]
    long_lengths: npt.NDArray[np.int64]
    long_codes: Codes
    pair_codes: Codes  # (65536,)
    pair_lengths: npt.NDArray[np.int64]
    single_codes: Codes  # (256,)

    @classmethod
    def of(cls, table: SymbolTable) -> _Matcher:
        codes = np.arange(len(table.words), dtype=np.uint8)
        words, lengths = table.words, table.lengths.astype(np.int64)
        slots = 1 << _HASH_BITS
        long_words, long_masks = np.zeros(slots, np.uint64), np.zeros(slots, np.uint64)
        long_lengths, long_codes = np.full(slots, _NO_SYMBOL, np.int64), np.zeros(slots, np.uint8)
        is_long = lengths >= 3
        at = _hash(words[is_long])
        long_words[at], long_codes[at], long_lengths[at] = words[is_long], codes[is_long], lengths[is_long]
        long_masks[at] = np.uint64(0xFFFFFFFFFFFFFFFF) >> (64 - 8 * lengths[is_long]).astype(np.uint64)
        single_codes = np.full(256, _ESCAPE, np.uint8)
        single_codes[words[lengths == 1].astype(np.int64)] = codes[lengths == 1]
        pair_codes, pair_lengths = np.tile(single_codes, 256), np.ones(65536, np.int64)
        pairs = words[lengths == 2].astype(np.int64)
        pair_codes[pairs], pair_lengths[pairs] = codes[lengths == 2], 2
        return cls(long_words, long_masks, long_lengths, long_codes, pair_codes, pair_lengths, single_codes)


def _hash(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    mixed = (words & np.uint64(0xFFFFFF)) * np.uint64(0x9E3779B97F4A7C15)
    slots: npt.NDArray[np.int64] = (mixed >> np.uint64(64 - _HASH_BITS)).astype(np.int64)
    return slots


def _spread_over(count: int, wanted: int) -> npt.NDArray[np.int64]:
    """Places evenly spread, the same at every call, so that files are reproducible."""
    return np.linspace(0, count - 1, min(wanted, count)).astype(np.int64)


def _pieces(begins: Offsets, stops: Offsets) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Values cut into pieces of at most `_PIECE_BYTES`; empty values have none."""
    begins, stops = begins.astype(np.int64), stops.astype(np.int64)
    lengths = stops - begins
    if len(lengths) and int(lengths.max()) <= _PIECE_BYTES:
        filled = lengths > 0
        return (begins, stops) if filled.all() else (begins[filled], stops[filled])
    counts = -(-lengths // _PIECE_BYTES)
    first = np.cumsum(counts) - counts
    nth = np.arange(int(counts.sum())) - np.repeat(first, counts)
    starts = np.repeat(begins, counts) + nth * _PIECE_BYTES
    return starts, np.minimum(starts + _PIECE_BYTES, np.repeat(stops, counts))


def _steps(
    padded: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    matcher: _Matcher,
) -> Iterator[_Step]:
    """Encode all pieces in step, the longest match first. `padded` has 8 bytes behind the last piece."""
    words_at: npt.NDArray[np.uint64] = np.ndarray((len(padded) - 7,), "<u8", padded, 0, (1,))
    for first in range(0, len(starts), _GROUP_PIECES):
        group = np.arange(first, min(first + _GROUP_PIECES, len(starts)))
        yield from _steps_of_group(words_at, group, starts[group], ends[group], matcher)


def _steps_of_group(
    words_at: npt.NDArray[np.uint64],
    pieces: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    matcher: _Matcher,
) -> Iterator[_Step]:
    while len(pieces):
        words = words_at[positions]
        left = ends - positions
        slots = _hash(words)
        lengths = matcher.long_lengths[slots]
        is_long = ((words ^ matcher.long_words[slots]) & matcher.long_masks[slots]) == 0
        is_long &= lengths <= left
        pairs = (words & np.uint64(0xFFFF)).astype(np.int64)
        short_lengths = matcher.pair_lengths[pairs]
        short_codes = matcher.pair_codes[pairs]
        too_long = short_lengths > left
        if too_long.any():
            short_codes[too_long] = matcher.single_codes[pairs[too_long] & 0xFF]
            short_lengths[too_long] = 1
        yield _Step(pieces, positions, np.where(is_long, matcher.long_codes[slots], short_codes))
        positions = positions + np.where(is_long, lengths, short_lengths)
        more = positions < ends
        if not more.all():
            pieces, positions, ends = pieces[more], positions[more], ends[more]


def _improve(padded: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], table: SymbolTable) -> SymbolTable:
    """The best table that can be made of the symbols in use, single bytes, and pairs of neighbours."""
    previous = np.full(len(offsets) - 1, -1, np.int64)
    singles, pairs = [], []
    for step in _steps(padded, offsets[:-1], offsets[1:], _Matcher.of(table)):
        tokens = step.codes.astype(np.int64)
        literal = tokens == _ESCAPE
        tokens[literal] = padded[step.positions[literal]].astype(np.int64) + 256
        singles.append(tokens)
        before = previous[step.pieces]
        pairs.append((before * 512 + tokens)[before >= 0])
        previous[step.pieces] = tokens
    known = table.symbols()
    spelled = known + [b""] * (256 - len(known)) + [bytes([byte]) for byte in range(256)]

    gains: Counter[bytes] = Counter()
    counts = np.bincount(np.concatenate(singles), minlength=512)
    for token in np.flatnonzero(counts).tolist():
        # A byte without a symbol costs two, so a single byte is worth more than its length says.
        symbol = spelled[token]
        gains[symbol] += int(counts[token]) * (len(symbol) if len(symbol) > 1 else 2)
    pair_ids, pair_counts = np.unique(np.concatenate(pairs), return_counts=True)
    often = pair_counts > 1
    for pair, count in zip(pair_ids[often].tolist(), pair_counts[often].tolist(), strict=True):
        joined = (spelled[pair >> 9] + spelled[pair & 511])[:8]
        gains[joined] += count * len(joined)

    ranked = sorted(gains, key=lambda symbol: (-gains[symbol], symbol))
    slots = _hash(np.array([int.from_bytes(symbol, "little") for symbol in ranked], np.uint64)).tolist()
    chosen: list[bytes] = []
    taken: set[int] = set()
    for symbol, slot in zip(ranked, slots, strict=True):
        if len(symbol) >= 3:
            if slot in taken:
                continue
            taken.add(slot)
        chosen.append(symbol)
        if len(chosen) == _MAX_SYMBOLS:
            break
    words = np.array([int.from_bytes(symbol, "little") for symbol in chosen], np.uint64)
    return SymbolTable(words, np.array([len(symbol) for symbol in chosen], np.uint8), True)


def _copy_pieces(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    sizes = ends - starts
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return _close_gaps(data, starts, sizes), offsets


def _close_gaps(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Ascending pieces of `data`, one after the other."""
    # Pieces and the gaps between them as one binary array: taking every second value copies piece by piece in C.
    offsets = np.empty(2 * len(starts) + 1, np.int64)
    offsets[0:-1:2] = starts
    offsets[1::2] = starts + sizes
    offsets[-1] = offsets[-2]
    array = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    taken = array.take(pa.array(np.arange(0, 2 * len(starts), 2)))
    return np.frombuffer(taken.buffers()[2], np.uint8)[: int(sizes.sum())]
