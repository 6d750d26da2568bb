"""FSST: short strings, compressed one by one with a table of up to 255 symbols of 1 to 8 bytes.

    symbols  0 "http"  1 "s://"  2 "www."        "https://www.x"  ->  00 01 02 ff 'x'

A code below the number of symbols denotes its symbol; code 255 is an escape, and the next byte is a literal. Codes
never span values, so each value can be decompressed alone. The table is always stored in 2,312 bytes:

    u64                0x46535354 << 32 | encoded << 24 | suffix limit << 16 | terminator << 8 | number of symbols
    8 · s              symbols, zero padded
    s                  their lengths
    zeros

If `encoded` is 0, the values are not compressed, as for small inputs. A decoder ignores suffix limit and terminator.
 Source: protos/encodings_v2_0.proto; Boncz, Neumann, Leis, "FSST: Fast Random Access String Compression",
VLDB 2020.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import native
from lancetable.file.kernels.varbin import check_total_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

TABLE_BYTES: Final = 2312
MIN_INPUT_BYTES: Final = 32 << 10  # smaller inputs are stored raw

_MAGIC: Final = 0x46535354
_ESCAPE: Final = b"\xff"
_CODES: Final = re.compile(b"\xff?.", re.DOTALL).findall  # codes, and escapes with their literals
_MAX_SYMBOLS: Final = 255
_ENCODED: Final = 1 << 24

_SAMPLE_BYTES: Final = 64 << 10
_ROUNDS: Final = 5
# Long values are compressed in pieces; no symbol spans two of them.
_PIECE_BYTES: Final = 128

Codes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[Any]  # int32 or int64


@dataclass(frozen=True, slots=True, eq=False)
class SymbolTable:
    """A parsed table. `words` are the symbols as little-endian integers."""

    words: npt.NDArray[np.uint64]  # (s,)
    lengths: npt.NDArray[np.uint8]  # (s,)
    encoded: bool  # False: values are not compressed

    @classmethod
    def parse(cls, data: Buffer) -> SymbolTable:
        """Parse 2,312 bytes. Raises CorruptFileError for another size, magic, or a symbol length outside 1 to 8."""
        view = memoryview(data).cast("B")
        if len(view) != TABLE_BYTES:
            raise CorruptFileError("FSST symbol table has the wrong size", TABLE_BYTES, len(view))
        header = int.from_bytes(view[:8], "little")
        if header >> 32 != _MAGIC:
            raise CorruptFileError("FSST symbol table has the wrong magic", hex(_MAGIC), hex(header >> 32))
        if not header & _ENCODED:
            return cls(np.empty(0, np.uint64), np.empty(0, np.uint8), False)
        count = header & 0xFF
        words = np.frombuffer(view, "<u8", count, 8)
        lengths = np.frombuffer(view, np.uint8, count, 8 + 8 * count)
        if count and (int(lengths.min()) == 0 or int(lengths.max()) > 8):
            raise CorruptFileError("FSST symbol has an invalid length", "1 to 8", lengths.tolist())
        return cls(words, lengths, True)

    def to_bytes(self) -> bytes:
        """Return the 2,312 bytes of the table."""
        count = len(self.words)
        header = _MAGIC << 32 | (_ENCODED if self.encoded else 0) | count
        parts = header.to_bytes(8, "little") + self.words.astype("<u8").tobytes() + self.lengths.tobytes()
        return parts.ljust(TABLE_BYTES, b"\0")

    def symbols(self) -> list[bytes]:
        """Return the symbols in the order of their codes."""
        return [
            word.to_bytes(8, "little")[:length]
            for word, length in zip(self.words.tolist(), self.lengths.tolist(), strict=True)
        ]


def decompress(codes: Codes, offsets: Offsets, table: SymbolTable) -> tuple[npt.NDArray[np.uint8], Offsets]:
    """Decompress values whose codes are at the (n + 1,) checked `offsets` into `codes`.

    Returns the bytes, at most 8 for each code byte, and (n + 1,) offsets of the same type, from 0 on.
    Raises CorruptFileError for a code without a symbol, an escape at the end of a value, or offsets that overflow.
    """
    start, end = int(offsets[0]), int(offsets[-1])
    codes = codes[start:end]
    relative: Offsets = offsets - offsets.dtype.type(start)
    if not table.encoded:
        return codes, relative
    if native is not None:
        data, ends = native.decompress(codes, relative.astype(np.int64, copy=False), table.words, table.lengths)
        check_total_bytes(int(ends[-1]), offsets.dtype)
        return _trimmed(data, int(ends[-1])), ends.astype(offsets.dtype, copy=False)
    content_of = {bytes([code]): symbol for code, symbol in enumerate(table.symbols())}
    content_of |= {_ESCAPE + bytes([byte]): bytes([byte]) for byte in range(256)}
    values = []
    for begin, stop in itertools.pairwise(relative.tolist()):
        tokens = _CODES(codes[begin:stop].tobytes())
        if not content_of.keys() >= set(tokens):
            message = "FSST value ends inside an escape" if tokens[-1] == _ESCAPE else "FSST code without a symbol"
            raise CorruptFileError(message, f"codes below {len(table.words)}")
        values.append(b"".join([content_of[token] for token in tokens]))
    ends = np.cumsum([0, *map(len, values)])
    check_total_bytes(int(ends[-1]), offsets.dtype)
    return np.frombuffer(b"".join(values), np.uint8), ends.astype(offsets.dtype)


def compress(
    data: npt.NDArray[np.uint8], offsets: Offsets, table: SymbolTable | None = None
) -> tuple[Codes, npt.NDArray[np.int64], SymbolTable]:
    """Compress values at (n + 1,) `offsets` into `data` with `table`; if it is None, train a table first.

    Returns the codes, their (n + 1,) offsets from 0 on, and the table. If `table` is None, inputs below 32 KiB are not
    compressed.
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
    code_of = {symbol: bytes([code]) for code, symbol in enumerate(table.symbols())}
    tokenize = _tokenizer(code_of)
    values = [
        b"".join([code_of.get(token, _ESCAPE + token) for token in tokenize(data[begin:stop].tobytes())])
        for begin, stop in itertools.pairwise(offsets.tolist())
    ]
    ends = np.cumsum([0, *map(len, values)], dtype=np.int64)
    return np.frombuffer(b"".join(values), np.uint8), ends, table


def _tokenizer(symbols: Iterable[bytes]) -> Callable[[bytes], list[bytes]]:
    """Return a function that splits a value into symbols, preferring the longest match, and bytes without a symbol."""
    longest_first = sorted(symbols, key=len, reverse=True)
    return re.compile(b"|".join([*map(re.escape, longest_first), b"."]), re.DOTALL).findall


def train(data: npt.NDArray[np.uint8], offsets: Offsets, sample_bytes: int = _SAMPLE_BYTES) -> SymbolTable:
    """Train a table on a sample of about `sample_bytes` of the values.

    Each of several rounds compresses the sample and concatenates symbols that are often adjacent.
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
    pieces = [data[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist())]
    symbols: list[bytes] = []
    for _ in range(_ROUNDS):
        symbols = _improve(pieces, symbols)
    words = np.array([int.from_bytes(symbol, "little") for symbol in symbols], np.uint64)
    return SymbolTable(words, np.array([len(symbol) for symbol in symbols], np.uint8), True)


def _trimmed(data: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """Return the first `size` bytes, copied if much of the memory would stay unused."""
    return np.array(data[:size]) if len(data) - size > size // 8 else data[:size]


def _spread_over(count: int, wanted: int) -> npt.NDArray[np.int64]:
    """Return evenly spaced indices. They are deterministic, so that files are reproducible."""
    return np.linspace(0, count - 1, min(wanted, count)).astype(np.int64)


def _pieces(begins: Offsets, stops: Offsets) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Split values into pieces of at most `_PIECE_BYTES`, without empty ones."""
    begins, stops = begins.astype(np.int64), stops.astype(np.int64)
    counts = -(-(stops - begins) // _PIECE_BYTES)
    first = np.cumsum(counts) - counts
    nth = np.arange(int(counts.sum())) - np.repeat(first, counts)
    starts = np.repeat(begins, counts) + nth * _PIECE_BYTES
    return starts, np.minimum(starts + _PIECE_BYTES, np.repeat(stops, counts))


def _improve(pieces: list[bytes], symbols: list[bytes]) -> list[bytes]:
    """Return the next symbols: the used symbols, single bytes and joined adjacent pairs that save the most bytes."""
    tokenize = _tokenizer(symbols)
    gains: Counter[bytes] = Counter()
    pairs: Counter[tuple[bytes, bytes]] = Counter()
    for tokens in map(tokenize, pieces):
        for token in tokens:
            gains[token] += max(len(token), 2)  # a byte without a symbol costs two bytes
        pairs.update(itertools.pairwise(tokens))
    for (first, second), count in pairs.items():
        if count > 1:
            joined = (first + second)[:8]
            gains[joined] += count * len(joined)
    return sorted(gains, key=lambda symbol: (-gains[symbol], symbol))[:_MAX_SYMBOLS]
