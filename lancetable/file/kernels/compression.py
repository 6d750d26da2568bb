"""General compression of whole buffers: zstd frames and raw LZ4 blocks, preceded by the size of their content.

    zstd   [u64 decompressed size][one zstd frame]     a bare frame without the size is accepted too
    lz4    [u32 decompressed size][one LZ4 block]

The caller passes the maximum size of the content; a buffer that declares more is rejected before memory is allocated.
Source: protos/encodings_v2_0.proto.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.errors import CorruptFileError, UnsupportedFeatureError
from lancetable.file.kernels import native

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEMES: Final = ("zstd", "lz4")

Ints = npt.NDArray[np.int64]

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_PREFIX: Final = struct.Struct("<Q")
_LZ4_PREFIX: Final = struct.Struct("<I")
# Maximum expansion of a byte: a zstd block of 128 KiB takes at least 4 bytes; a byte of an LZ4 length adds 255 bytes.
_MAX_RATIO: Final = {"zstd": 1 << 15, "lz4": 255}
_MIN_RATIO_BYTES: Final = 64 << 10  # sizes up to this are allocated without a check
_STREAM_BLOCK_BYTES: Final = 1 << 20
# A streaming decoder allocates the window of the frame. The reference encoder uses smaller windows at all usual levels.
_MAX_STREAM_WINDOW_BYTES: Final = 8 << 20


def decompress(scheme: str, data: Buffer, max_bytes: int) -> pa.Buffer:
    """Decompress one buffer; the result has exactly the size that the buffer declares.

    Raises CorruptFileError if the declared size exceeds `max_bytes` or differs from the size of the content, and
    UnsupportedFeatureError for an unknown scheme.
    """
    view = memoryview(data).cast("B")
    if scheme == "zstd":
        return _decompress_zstd(view, max_bytes)
    if scheme == "lz4":
        return _decompress_lz4(view, max_bytes)
    raise _unknown_scheme(scheme)


def decompress_pieces(
    scheme: str, data: npt.NDArray[np.uint8], starts: Ints, sizes: Ints, max_bytes: int
) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """Decompress many buffers; see `decompress`.

    Returns the concatenated contents, and the start and size of the content of each buffer. A buffer that is repeated
    consecutively is decompressed once. `max_bytes` limits the total size of the contents.
    """
    if native is not None and scheme in SCHEMES:
        decompress_batch = _decompress_frames if scheme == "zstd" else native.unpack_lz4
        if (batch := decompress_batch(data, starts, sizes, max_bytes)) is not None:
            return batch
    contents: list[pa.Buffer] = []
    numbers, previous, available = [], None, max_bytes
    for span in zip(starts.tolist(), sizes.tolist()):
        if span != previous:
            # The limit applies to all buffers together.
            contents.append(decompress(scheme, data.data[span[0] : sum(span)], available))
            available -= len(contents[-1])
            previous = span
        numbers.append(len(contents) - 1)
    lengths = np.array([len(content) for content in contents], np.int64)
    ends = np.cumsum(lengths)
    return np.frombuffer(b"".join(contents), np.uint8), (ends - lengths)[numbers], lengths[numbers]


def _decompress_frames(
    data: npt.NDArray[np.uint8], starts: Ints, sizes: Ints, max_bytes: int
) -> tuple[npt.NDArray[np.uint8], Ints, Ints] | None:
    """Decompress many zstd frames in one call, because a decompressor for each small frame costs more than its content.

        [u64 size][frame]  [u64 size][frame] ...   ->   [frame][frame] ...   ->   decompressed in one call

    The call does not return where the content of a frame ends, so the header of each frame must contain the size of its
    content, which zstd enforces (RFC 8878, 3.1.1.1). Returns None if a header lacks that size or a buffer is corrupt.
    The caller then decompresses each buffer separately, which raises the specific error.
    """
    packed = native.pack_frames(data, starts, sizes, max_bytes)
    if packed is None:
        return None
    frames, total, content_starts, content_sizes = packed
    try:
        content = _codec("zstd").decompress(pa.py_buffer(frames), decompressed_size=total)
    except (OSError, pa.ArrowInvalid):
        return None
    return np.frombuffer(content if total else b"", np.uint8), content_starts, content_sizes


def compress(scheme: str, data: Buffer, level: int | None = None) -> bytes:
    """Compress one buffer and put its size in front, as `decompress` expects. `level` applies to zstd only.

    Raises UnsupportedFeatureError for an unknown scheme, and for 2 GiB or more with lz4.
    """
    view = memoryview(data).cast("B")
    if scheme == "zstd":
        return _ZSTD_PREFIX.pack(len(view)) + bytes(_codec("zstd", level).compress(view, asbytes=True))
    if scheme == "lz4":
        if len(view) >= 1 << 31:
            raise UnsupportedFeatureError(
                f"an LZ4 block is limited to 2 GiB, got {len(view)} bytes; use zstd", feature="lz4 block size"
            )
        return _LZ4_PREFIX.pack(len(view)) + bytes(_codec("lz4_raw").compress(view, asbytes=True))
    raise _unknown_scheme(scheme)


def _unknown_scheme(scheme: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(f"unknown compression scheme {scheme!r}", feature=f"compression {scheme}")


@lru_cache(maxsize=64)
def _codec(name: str, level: int | None = None) -> pa.Codec:
    return pa.Codec(name) if level is None else pa.Codec(name, compression_level=level)


def _check_size(scheme: str, size: int, max_bytes: int, compressed_bytes: int | None = None) -> None:
    """Raise CorruptFileError, before memory is allocated, if a size exceeds a limit or the maximum expansion."""
    if size > max_bytes:
        raise CorruptFileError(f"{scheme} buffer declares too many bytes", found=size, limit="page_bytes")
    if compressed_bytes is not None and size > (limit := max(_MIN_RATIO_BYTES, compressed_bytes * _MAX_RATIO[scheme])):
        what = f"{scheme} buffer of {compressed_bytes} bytes declares too many bytes"
        raise CorruptFileError(what, f"at most {limit}", size)


def _decompress_zstd(view: memoryview, max_bytes: int) -> pa.Buffer:
    bare = len(view) < _ZSTD_PREFIX.size or (bytes(view[:4]) == _ZSTD_MAGIC and not view[4] & 0x10)
    if bare:
        frame = view
        content_bytes = _zstd_content_size(frame)
        if content_bytes is None:
            return _stream_zstd(frame, max_bytes)
    else:
        frame = view[_ZSTD_PREFIX.size :]
        (content_bytes,) = _ZSTD_PREFIX.unpack_from(view)
    _check_size("zstd", content_bytes, max_bytes, len(frame))
    try:
        return _codec("zstd").decompress(frame, decompressed_size=content_bytes)
    except OSError as error:
        raise CorruptFileError(f"zstd buffer does not decompress to {content_bytes} bytes") from error


def _zstd_content_size(frame: memoryview) -> int | None:
    """Return the content size in a frame header (RFC 8878, 3.1.1.1); None if the header has none."""
    if len(frame) < 6 or bytes(frame[:4]) != _ZSTD_MAGIC:
        raise CorruptFileError("zstd buffer does not start with a frame", _ZSTD_MAGIC, bytes(frame[:4]))
    descriptor = frame[4]
    single_segment = bool(descriptor & 0x20)
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if len(frame) < start + width:
        raise CorruptFileError("zstd frame header is truncated", f"at least {start + width}", len(frame))
    if width == 0:
        exponent, mantissa = frame[5] >> 3, frame[5] & 7
        window = (1 << (10 + exponent)) * (8 + mantissa) // 8
        if window > _MAX_STREAM_WINDOW_BYTES:
            raise UnsupportedFeatureError(
                f"zstd frame of unknown size with a window of {window} bytes", feature="zstd window"
            )
        return None
    size = int.from_bytes(frame[start : start + width], "little")
    return size + 256 if width == 2 else size


def _stream_zstd(frame: memoryview, max_bytes: int) -> pa.Buffer:
    parts: list[pa.Buffer] = []
    total = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(frame), "zstd") as stream:
            # Not `read`: pyarrow leaks its block if the read fails.
            while block := stream.read_buffer(_STREAM_BLOCK_BYTES):
                total += len(block)
                _check_size("zstd", total, max_bytes)
                parts.append(block)
    except OSError as error:
        if isinstance(error, CorruptFileError):
            raise
        raise CorruptFileError("zstd frame does not decompress") from error
    return pa.py_buffer(b"".join(parts))


def _decompress_lz4(view: memoryview, max_bytes: int) -> pa.Buffer:
    if len(view) <= _LZ4_PREFIX.size:
        raise CorruptFileError("lz4 buffer is truncated", f"at least {_LZ4_PREFIX.size + 1}", len(view))
    (size,) = _LZ4_PREFIX.unpack_from(view)
    block = view[_LZ4_PREFIX.size :]
    _check_size("lz4", size, max_bytes, len(block))
    if size == 0 and len(block) == 1 and block[0] < 16:
        return pa.py_buffer(b"")  # no literals; the low half of the last token is unused, but pyarrow requires zeros
    codec = _codec("lz4_raw")
    try:
        content = codec.decompress(block, decompressed_size=size)
    except OSError as error:
        raise CorruptFileError(f"lz4 block does not decompress to {size} bytes") from error
    # pyarrow does not return the actual size of the content. If decompression into one byte less succeeds, the
    # content is smaller than declared.
    if size > 0:
        try:
            codec.decompress(block, decompressed_size=size - 1)
        except OSError:
            return content
        raise CorruptFileError(f"lz4 block contains less than the {size} bytes it declares")
    return content
