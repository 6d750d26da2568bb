"""Decompression of many zstd frames in one call: a decompressor for each small frame would cost more than its content.

    [u64 size][frame]  [u64 size][frame] ...   ->   [frame][frame] ...   ->   decompressed in one call

That call does not return where the content of a frame ends, so the header of each frame must contain the size of its
content, which zstd enforces. Source: RFC 8878, 3.1.1.1.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.kernels import miniblock, native

__all__ = ["MAX_RATIO", "MIN_RATIO_BYTES", "PREFIX_BYTES", "Packed", "decompress_frames", "pack_frames"]

PREFIX_BYTES: Final = 8
MAX_RATIO: Final = 1 << 15  # the maximum expansion of a byte: a block of 128 KiB takes at least 4 bytes
MIN_RATIO_BYTES: Final = 64 << 10  # sizes up to this are allocated without a check

_ZSTD: Final = pa.Codec("zstd")
_MAGIC: Final = np.frombuffer(b"\x28\xb5\x2f\xfd", np.uint8)
_MAGIC_WORD: Final = np.uint64(int.from_bytes(_MAGIC.tobytes(), "little"))
_LOW_WORD: Final = np.uint64(0xFFFFFFFF)
_MAGIC_BYTES: Final = 4
_SIZE_BYTES: Final = (0, 2, 4, 8)
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_TWO_BYTE_BASE: Final = 256  # added to sizes that are stored in two bytes

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


class Packed(NamedTuple):
    """Contiguous frames, and for (n,) requested buffers the starts and sizes of their content in all `total` bytes.

    A frame that is requested several times in a row is included once.
    """

    frames: Bytes
    total: int
    starts: Ints
    sizes: Ints


def decompress_frames(data: Bytes, starts: Ints, sizes: Ints, max_bytes: int) -> tuple[Bytes, Ints, Ints] | None:
    """Decompress buffers of a size and a frame: their contents, and the start and size of each.

    Returns None for buffers that `pack_frames` rejects or that are corrupt; decompressing each buffer alone then raises
    the specific error.
    """
    packed = pack_frames(data, starts, sizes, max_bytes)
    if packed is None:
        return None
    frames, total, at, lengths = packed
    try:
        content = _ZSTD.decompress(pa.py_buffer(frames), decompressed_size=total)
    except (OSError, pa.ArrowInvalid):
        return None
    return np.frombuffer(content, np.uint8) if total else np.empty(0, np.uint8), at, lengths


def pack_frames(data: Bytes, starts: Ints, sizes: Ints, max_bytes: int) -> Packed | None:
    """Collect the frames of buffers of a size and a frame, for decompression in one call.

    Returns None unless every buffer starts with the size of its content, the header of its frame has the same size, no
    size exceeds the maximum expansion of its frame, and the sum is at most `max_bytes`.
    """
    if native is not None:
        found = native.pack_frames(data, starts, sizes, max_bytes)
        return None if found is None else Packed(*found)
    if len(starts) == 0 or int(sizes.min()) <= PREFIX_BYTES:
        return None
    new = np.ones(len(starts), np.bool_)
    new[1:] = (starts[1:] != starts[:-1]) | (sizes[1:] != sizes[:-1])
    which, piece = np.flatnonzero(new), np.cumsum(new) - 1
    first, length = starts[which], sizes[which]
    heads = np.ascontiguousarray(miniblock.gather_rows(data, first, PREFIX_BYTES)).view("<u8").reshape(-1)
    if ((heads & _LOW_WORD) == _MAGIC_WORD).any() or int(heads.max()) > max_bytes:
        return None
    contents = heads.astype(np.int64)
    frame_starts, frame_sizes = first + PREFIX_BYTES, length - PREFIX_BYTES
    if (contents > np.maximum(MIN_RATIO_BYTES, frame_sizes * MAX_RATIO)).any():
        return None
    ends = np.cumsum(contents)
    declared = _content_sizes(data, frame_starts, frame_sizes)
    if declared is None or (declared != heads).any() or int(ends[-1]) > max_bytes or int(ends.min()) < 0:
        return None
    frames = miniblock.join_pieces(data, frame_starts, frame_sizes)
    return Packed(frames, int(ends[-1]), (ends - contents)[piece], contents[piece])


def _content_sizes(data: Bytes, starts: Ints, sizes: Ints) -> npt.NDArray[np.uint64] | None:
    """Return the content sizes in the headers of frames; None if one has none or is not a frame."""
    contents = []
    for start, size in zip(starts.tolist(), sizes.tolist()):
        if size <= _MAGIC_BYTES or (data[start : start + _MAGIC_BYTES] != _MAGIC).any():
            return None
        descriptor = int(data[start + _MAGIC_BYTES])
        is_single = bool(descriptor & 0x20)
        width = _SIZE_BYTES[descriptor >> 6] or int(is_single)
        begin = _MAGIC_BYTES + 1 + (not is_single) + _DICTIONARY_BYTES[descriptor & 3]
        if not width or size < begin + width:
            return None
        stored = int.from_bytes(data[start + begin : start + begin + width], "little")
        contents.append(stored + _TWO_BYTE_BASE if width == 2 else stored)
    return np.array(contents, np.uint64)
