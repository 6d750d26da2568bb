"""Many zstd frames through one decompressor: making one for each would cost a small frame more than its content does.

    [u64 size][frame]  [u64 size][frame] ...   ->   [frame][frame] ...   ->   decompressed in one call

That call does not tell where the content of a frame ends, so each must say in its header how long it is; zstd makes
sure that it is. Source: RFC 8878, 3.1.1.1.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.kernels import miniblock, native

__all__ = ["MAX_RATIO", "MIN_RATIO_BYTES", "PREFIX_BYTES", "Packed", "decompress_frames", "pack_frames"]

PREFIX_BYTES: Final = 8
MAX_RATIO: Final = 1 << 15  # what a byte can grow to: a block of 128 KiB takes 4 bytes at least
MIN_RATIO_BYTES: Final = 64 << 10  # below, a false claim costs nothing

_ZSTD: Final = pa.Codec("zstd")
_MAGIC: Final = np.frombuffer(b"\x28\xb5\x2f\xfd", np.uint8)
_MAGIC_WORD: Final = np.uint64(int.from_bytes(_MAGIC.tobytes(), "little"))
_LOW_WORD: Final = np.uint64(0xFFFFFFFF)
_MAGIC_BYTES: Final = 4
_SIZE_BYTES: Final = (0, 2, 4, 8)
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_ADDED_TO_TWO: Final = 256  # a size of two bytes counts from here

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


class Packed(NamedTuple):
    """Frames side by side, and (n,) where the content of each named one will lie in the `total` bytes of all of them.

    A frame that is named several times in a row is there once.
    """

    frames: Bytes
    total: int
    starts: Ints
    sizes: Ints


def decompress_frames(data: Bytes, starts: Ints, sizes: Ints, max_bytes: int) -> tuple[Bytes, Ints, Ints] | None:
    """The contents of buffers of a size and a frame, side by side: their bytes, and where that of each lies.

    None for what `pack_frames` does not take, or is not sound; each buffer alone then tells what is wrong.
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
    """The frames of buffers of a size and a frame, ready to be decompressed in one call.

    None unless every buffer has its size in front and its frame says the same, and all contents have no more than
    `max_bytes` together and none more than its frame can grow to.
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
    said = _said(data, frame_starts, frame_sizes)
    if said is None or (said != heads).any() or int(ends[-1]) > max_bytes or int(ends.min()) < 0:
        return None
    frames = miniblock.join_pieces(data, frame_starts, frame_sizes)
    return Packed(frames, int(ends[-1]), (ends - contents)[piece], contents[piece])


def _said(data: Bytes, starts: Ints, sizes: Ints) -> npt.NDArray[np.uint64] | None:
    """What the header of each frame says about its content, None if one says nothing or is none."""
    if int(sizes.min()) <= _MAGIC_BYTES or (miniblock.gather_rows(data, starts, _MAGIC_BYTES) != _MAGIC).any():
        return None
    descriptors = data[starts + _MAGIC_BYTES]
    contents = np.empty(len(starts), np.uint64)
    for descriptor in set(descriptors.tolist()):
        which = np.flatnonzero(descriptors == descriptor)
        is_single = bool(descriptor & 0x20)
        width = _SIZE_BYTES[descriptor >> 6] or int(is_single)
        begin = _MAGIC_BYTES + 1 + (not is_single) + _DICTIONARY_BYTES[descriptor & 3]
        if not width or int(sizes[which].min()) < begin + width:
            return None
        stored = np.ascontiguousarray(miniblock.gather_rows(data, starts[which] + begin, width))
        said = stored.view(f"<u{width}").reshape(-1).astype(np.uint64)
        contents[which] = said + np.uint64(_ADDED_TO_TWO) if width == 2 else said
    return contents
