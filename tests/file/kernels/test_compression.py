"""Compressed buffers: buffers of pyarrow, hand-made frames, and buffers that declare a wrong size."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.kernels import compression

TEXT = b"the quick brown fox " * 200


@given(st.binary(max_size=2000), st.sampled_from(compression.SCHEMES))
def test_compression_round_trips(data: bytes, scheme: str) -> None:
    assert compression.decompress(scheme, compression.compress(scheme, data), len(data)).to_pybytes() == data


def test_layout_of_zstd() -> None:
    packed = compression.compress("zstd", TEXT, level=9)
    assert packed[:12] == struct.pack("<Q", len(TEXT)) + b"\x28\xb5\x2f\xfd"
    assert pa.Codec("zstd").decompress(packed[8:], len(TEXT), asbytes=True) == TEXT


def test_layout_of_lz4() -> None:
    packed = compression.compress("lz4", TEXT)
    assert packed[:4] == struct.pack("<I", len(TEXT))
    assert pa.Codec("lz4_raw").decompress(packed[4:], len(TEXT), asbytes=True) == TEXT


def test_zstd_frame_without_size_prefix_is_accepted() -> None:
    frame = pa.Codec("zstd").compress(TEXT, asbytes=True)
    assert compression.decompress("zstd", frame, len(TEXT)).to_pybytes() == TEXT


def test_streamed_zstd_frame_without_size_is_accepted() -> None:
    frame = streamed_frame(TEXT)
    assert compression.decompress("zstd", frame, len(TEXT)).to_pybytes() == TEXT
    with pytest.raises(CorruptFileError):
        compression.decompress("zstd", frame, len(TEXT) - 1)


@pytest.mark.parametrize("scheme", compression.SCHEMES)
def test_declared_size_above_the_limit_is_rejected(scheme: str) -> None:
    with pytest.raises(CorruptFileError, match="declares"):
        compression.decompress(scheme, compression.compress(scheme, TEXT), len(TEXT) - 1)


BOMBS = [
    ("zstd", struct.pack("<Q", 1 << 62) + pa.Codec("zstd").compress(b"x", asbytes=True)),
    ("lz4", struct.pack("<I", 0xFFFFFFFF) + pa.Codec("lz4_raw").compress(b"x", asbytes=True)),
    # a hand-made frame header that declares 2**40 bytes
    ("zstd", b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x01\x00\x00"),
    # frames with more or less content than declared
    ("zstd", struct.pack("<Q", 900) + pa.Codec("zstd").compress(bytes(800), asbytes=True)),
    ("zstd", struct.pack("<Q", 700) + pa.Codec("zstd").compress(bytes(800), asbytes=True)),
    ("lz4", struct.pack("<I", 900) + pa.Codec("lz4_raw").compress(bytes(800), asbytes=True)),
    ("lz4", struct.pack("<I", 700) + pa.Codec("lz4_raw").compress(bytes(800), asbytes=True)),
    ("zstd", b""),
    ("lz4", b""),
    ("lz4", b"\x00\x00\x00\x00"),
    ("zstd", b"\x28\xb5\x2f\xfd"),
    ("zstd", b"\x28\xb5\x2f\xfd\x00"),
    ("zstd", bytes(100)),
]


@pytest.mark.parametrize(("scheme", "data"), BOMBS)
def test_decompression_bombs_and_damaged_buffers_are_rejected(scheme: str, data: bytes) -> None:
    with pytest.raises(CorruptFileError):
        compression.decompress(scheme, data, 1000)


def test_damaged_streamed_frames_leave_no_memory_behind() -> None:
    damaged = streamed_frame(TEXT)[:-3] + b"xyz"
    tracemalloc.start()
    try:
        for _ in range(10):
            with pytest.raises(CorruptFileError):
                compression.decompress("zstd", damaged, 1 << 20)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_streamed_frame_with_a_huge_window_is_rejected() -> None:
    frame = bytearray(streamed_frame(TEXT))
    frame[5] = 0xFF
    with pytest.raises(UnsupportedFeatureError):
        compression.decompress("zstd", frame, len(TEXT))


@pytest.mark.parametrize("scheme", compression.SCHEMES)
def test_impossible_declared_size_is_rejected_before_allocation(scheme: str) -> None:
    prefix = struct.pack("<Q" if scheme == "zstd" else "<I", 1 << 31)
    codec = pa.Codec("zstd" if scheme == "zstd" else "lz4_raw")
    with pytest.raises(CorruptFileError, match="declares"):
        compression.decompress(scheme, prefix + codec.compress(bytes(1000), asbytes=True), 1 << 40)


@pytest.mark.parametrize("scheme", compression.SCHEMES)
def test_highly_compressible_data_is_accepted(scheme: str) -> None:
    zeros = bytes(50_000_000)
    assert compression.decompress(scheme, compression.compress(scheme, zeros), len(zeros)).equals(pa.py_buffer(zeros))


def test_error_for_an_unknown_scheme_contains_its_name() -> None:
    with pytest.raises(UnsupportedFeatureError, match="snappy"):
        compression.decompress("snappy", b"", 0)
    with pytest.raises(UnsupportedFeatureError, match="snappy"):
        compression.compress("snappy", b"")


def streamed_frame(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    frame: bytes = sink.getvalue().to_pybytes()
    assert frame[4] & 0xE0 == 0, "the frame was meant not to tell its size"
    return frame


@given(
    st.lists(st.binary(max_size=300) | st.sampled_from([TEXT, bytes(70_000)]), min_size=1, max_size=20),
    st.sampled_from(compression.SCHEMES),
    st.integers(0, 2),
    st.one_of(st.none(), st.tuples(st.integers(0, 1 << 20), st.integers(1, 255))),
    st.booleans(),
)
def test_decompress_pieces_equals_decompress_of_each_piece(
    contents: list[bytes], scheme: str, gap: int, change: tuple[int, int] | None, compiled: bool
) -> None:
    """Frames at multiples of 8 or of 4 bytes, intact or damaged, in the compiled and the NumPy form."""
    packed = [compression.compress(scheme, content) for content in contents]
    room = 4 if gap == 2 else 8
    sizes = np.array([len(piece) for piece in packed], np.int64)
    rooms = sizes + -sizes % room + room * gap
    data = np.frombuffer(b"".join(piece.ljust(space, b"x") for piece, space in zip(packed, rooms.tolist())), np.uint8)
    starts = np.cumsum(rooms) - rooms
    if change is not None:
        data = data.copy()
        data[change[0] % len(data)] ^= change[1]
    limit = sum(map(len, contents))
    saved = compression.native
    compression.native = saved if compiled else None
    try:
        wanted = [
            compression.decompress(scheme, data[start : start + size], limit).to_pybytes()
            for start, size in zip(starts.tolist(), sizes.tolist())
        ]
        if sum(map(len, wanted)) > limit:
            raise CorruptFileError("together too large")
    except (CorruptFileError, UnsupportedFeatureError) as error:
        with pytest.raises(type(error)):
            compression.decompress_pieces(scheme, data, starts, sizes, limit)
    else:
        again = np.arange(len(starts)).repeat(2)
        for named in (np.arange(len(starts)), again):
            found, at, lengths = compression.decompress_pieces(scheme, data, starts[named], sizes[named], limit)
            assert found.tobytes() == b"".join(wanted)
            assert lengths.tolist() == [len(wanted[number]) for number in named]
            assert [found[a : a + n].tobytes() for a, n in zip(at, lengths)] == [wanted[number] for number in named]
    finally:
        compression.native = saved


@pytest.mark.parametrize("number", range(len(BOMBS)))
def test_decompression_bomb_among_many_pieces_is_rejected(number: int) -> None:
    scheme, bomb = BOMBS[number]
    pieces = [piece.ljust(len(piece) + -len(piece) % 8, b"x") for piece in [compression.compress(scheme, TEXT)] * 9]
    data = np.frombuffer(b"".join([*pieces, bomb]), np.uint8)
    sizes = np.array([*[len(compression.compress(scheme, TEXT))] * 9, len(bomb)], np.int64)
    starts = np.arange(10) * len(pieces[0])
    with pytest.raises(CorruptFileError):
        compression.decompress_pieces(scheme, data, starts, sizes, 1 << 30)
