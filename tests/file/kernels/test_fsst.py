"""FSST compared with a byte-by-byte decoder."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import fsst

SYMBOLS = [b"http", b"s://", b"www.", b"a", b"\xff", b"\xff\xff", b"12345678"]


def table_of(symbols: list[bytes]) -> fsst.SymbolTable:
    words = np.array([int.from_bytes(symbol, "little") for symbol in symbols], np.uint64)
    return fsst.SymbolTable(words, np.array([len(symbol) for symbol in symbols], np.uint8), True)


def walk(codes: bytes, symbols: list[bytes]) -> bytes:
    out, position = b"", 0
    while position < len(codes):
        if codes[position] == 255:
            position += 1
            out += codes[position : position + 1]
        else:
            out += symbols[codes[position]]
        position += 1
    return out


def arrays_of(values: list[bytes], dtype: type = np.int32) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0] + [len(value) for value in values]).astype(dtype)
    return np.frombuffer(b"".join(values), np.uint8), offsets


def values_of(data: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    return [data[a:b].tobytes() for a, b in itertools.pairwise(offsets)]


# a value consists of codes and literals, of which 0xff equals the escape code
coded_values = st.lists(
    st.lists(
        st.one_of(
            st.integers(0, len(SYMBOLS) - 1).map(lambda code: bytes([code])),
            st.integers(0, 255).map(lambda byte: bytes([255, byte])),
            st.just(b"\xff\xff"),
        ),
        max_size=12,
    ).map(b"".join),
    max_size=30,
)


@given(coded_values, st.sampled_from([np.int32, np.int64]))
def test_decompress_equals_a_byte_by_byte_decoder(values: list[bytes], dtype: type) -> None:
    codes, offsets = arrays_of(values, dtype)
    data, new_offsets = fsst.decompress(codes, offsets, table_of(SYMBOLS))
    assert new_offsets.dtype == dtype
    assert values_of(data, new_offsets) == [walk(value, SYMBOLS) for value in values]


def test_many_blocks_and_slices_are_decompressed() -> None:
    rng = np.random.default_rng(7)
    values = [bytes(rng.integers(0, len(SYMBOLS), rng.integers(0, 40))) for _ in range(5000)]
    codes, offsets = arrays_of(values)
    expected = [walk(value, SYMBOLS) for value in values]
    assert values_of(*fsst.decompress(codes, offsets, table_of(SYMBOLS))) == expected
    assert values_of(*fsst.decompress(codes, offsets[1000:2001], table_of(SYMBOLS))) == expected[1000:2000]


@pytest.mark.parametrize("escapes", [False, True])
def test_long_inputs_are_decompressed_with_pairs_of_codes(escapes: bool) -> None:
    rng = np.random.default_rng(8)
    symbols = [bytes(rng.integers(0, 256, size % 8 + 1, np.uint8)) for size in range(250)]
    values = [bytes(rng.integers(0, len(symbols), size, np.uint8)) for size in rng.integers(0, 60, 6000).tolist()]
    if escapes:
        values[777] += b"\xff\xff"
    codes, offsets = arrays_of(values, np.int64)
    every = [walk(value, symbols) for value in values]
    assert offsets[-1] > 150_000
    for part in (offsets, offsets[:-1], offsets[3:], offsets[: int(np.flatnonzero(offsets % 2)[-1]) + 1]):
        data, ends = fsst.decompress(codes, part, table_of(symbols))
        first = int(np.flatnonzero(offsets == part[0])[-1])
        expected = every[first : first + len(part) - 1]
        assert data.tobytes() == b"".join(expected) and np.diff(ends).tolist() == [len(value) for value in expected]


def test_unused_output_memory_is_released() -> None:
    # Memory is allocated for symbols of 8 bytes, but the codes are literals, which fill an eighth of it.
    codes, offsets = arrays_of([b"\xff\x06" * 1000] * 400)
    data, ends = fsst.decompress(codes, offsets, table_of(SYMBOLS))
    assert values_of(data, ends) == [b"\x06" * 1000] * 400
    assert data.base is None or len(data.base) < 2 * len(data)


def test_symbol_table_has_the_layout_of_the_format() -> None:
    data = table_of(SYMBOLS).to_bytes()
    assert len(data) == 2312
    assert data[:8] == bytes([len(SYMBOLS), 0, 0, 1]) + b"TSSF"
    assert data[8:16] == b"http\0\0\0\0"
    assert data[8 + 8 * len(SYMBOLS) :].startswith(bytes(map(len, SYMBOLS)))
    assert fsst.SymbolTable.parse(data).symbols() == SYMBOLS


def test_disabled_symbol_table_returns_the_input() -> None:
    raw = fsst.SymbolTable(np.empty(0, np.uint64), np.empty(0, np.uint8), False)
    codes, offsets = arrays_of([b"\xff", b"abc"])
    assert values_of(*fsst.decompress(codes, offsets, fsst.SymbolTable.parse(raw.to_bytes()))) == [b"\xff", b"abc"]


def random_texts(count: int, kind: str) -> list[bytes]:
    rng = np.random.default_rng(3)
    if kind == "bytes":
        return [rng.bytes(int(n)) for n in rng.integers(0, 60, count)]
    if kind == "long":
        words = [b"lorem ", b"ipsum ", b"dolor ", b"sit ", b"amet "]
        return [b"".join(words[i] for i in rng.integers(0, 5, 3000)) for _ in range(4)] + [b"", b"x"]
    if kind == "same":
        return [b"\xff\x00" * 20] * count
    return [b"https://www.example.org/user/%d?page=%d" % (i, i % 7) for i in rng.integers(0, 10**6, count)]


@pytest.mark.parametrize("kind", ["urls", "bytes", "long", "same"])
def test_compression_round_trip(kind: str) -> None:
    values = random_texts(3000, kind)
    data, offsets = arrays_of(values)
    codes, code_offsets, table = fsst.compress(data, offsets)
    table = fsst.SymbolTable.parse(table.to_bytes())
    assert table.encoded and len(table.words) <= 255
    assert values_of(*fsst.decompress(codes, code_offsets, table)) == values
    assert [walk(value, table.symbols()) for value in values_of(codes, code_offsets)[:200]] == values[:200]
    if kind in ("urls", "long"):
        assert len(codes) < 0.5 * len(data)


def test_slices_with_empty_values_round_trip() -> None:
    values = random_texts(4000, "urls")
    values[::3] = [b""] * len(values[::3])
    data, offsets = arrays_of(values)
    codes, code_offsets, table = fsst.compress(data, offsets[100:])
    assert values_of(*fsst.decompress(codes, code_offsets, table)) == values[100:]


def test_long_values_round_trip() -> None:
    """Values with long ranges that match no symbol."""
    rng = np.random.default_rng(5)
    words = [b"lorem", b"ipsum", b"dolor", b"consectetur", b"adipiscing", b"http://", b"www."]
    values = [b" ".join(words[i] for i in row) + rng.bytes(150) for row in rng.integers(0, len(words), (300, 60))]
    data, offsets = arrays_of(values)
    codes, ends, table = fsst.compress(data, offsets)
    assert table.encoded and len(codes) < len(data)
    assert values_of(*fsst.decompress(codes, ends, table)) == values


def test_small_inputs_are_stored_raw() -> None:
    values = random_texts(10, "urls")
    codes, offsets, table = fsst.compress(*arrays_of(values))
    assert not table.encoded and values_of(codes, offsets) == values


def broken(**changes: int) -> bytes:
    data = bytearray(table_of(SYMBOLS).to_bytes())
    for at, value in changes.items():
        data[int(at[2:])] = value
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [b"", bytes(2312), broken(at7=0), broken(at64=0), broken(at64=9), table_of(SYMBOLS).to_bytes()[:-1]],
)
def test_damaged_symbol_tables_are_rejected(data: bytes) -> None:
    with pytest.raises(CorruptFileError):
        fsst.SymbolTable.parse(data)


@pytest.mark.parametrize(
    "values",
    [
        [b"\x00\xff", b"\x01"],  # an escape at the end, which would consume a byte of the next value
        [b"\x00\xff"],
        [b"\xff\xff\xff", b"a"],
        [b"\x07"],  # no such symbol
        [b"\xfe"],
        [b"\xff\x07\x08"],
    ],
)
def test_damaged_codes_are_rejected(values: list[bytes]) -> None:
    with pytest.raises(CorruptFileError):
        fsst.decompress(*arrays_of(values), table_of(SYMBOLS))
