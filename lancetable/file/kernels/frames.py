"""Many zstd frames through one decompressor: making one for each would cost a small frame more than its content does.

    [u64 size][frame]  [u64 size][frame] ...   ->   [frame][frame] ...   ->   decompressed in one call

That call does not tell where the content of a frame ends, so each must say in its header how long it is; zstd makes
sure that it is. Source: RFC 8878, 3.1.1.1.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancetable.file.kernels import miniblock, native

__all__ = ["content_sizes", "decompress_frames"]

_ZSTD: Final = pa.Codec("zstd")
_MAGIC: Final = np.frombuffer(b"\x28\xb5\x2f\xfd", np.uint8)
_MAGIC_BYTES: Final = 4
_SIZE_BYTES: Final = (0, 2, 4, 8)
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_MOST: Final = np.uint64(1 << 62)
_ADDED_TO_TWO: Final = 256  # a size of two bytes counts from here

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def decompress_frames(data: Bytes, starts: Ints, sizes: Ints, declared: Ints) -> Bytes | None:
    """The contents of the frames at `starts`, side by side; `declared` bytes each.

    None if a frame does not say that its content has this size, or is not sound; each alone then tells what is wrong.
    """
    contents = content_sizes(data, starts, sizes)
    if contents is None or (contents != declared).any():
        return None
    total = int(declared.sum())
    packed = miniblock.join_pieces(data, starts, sizes)
    try:
        content = _ZSTD.decompress(pa.py_buffer(packed), decompressed_size=total)
    except (OSError, pa.ArrowInvalid):
        return None
    return np.frombuffer(content, np.uint8) if total else np.empty(0, np.uint8)


def content_sizes(data: Bytes, starts: Ints, sizes: Ints) -> Ints | None:
    """What the header of each frame says about its content, None if one says nothing or is none."""
    if native is not None:
        found: Ints | None = native.frame_contents(data, starts, sizes)
        return found
    if int(sizes.min()) <= _MAGIC_BYTES or (miniblock.gather_rows(data, starts, _MAGIC_BYTES) != _MAGIC).any():
        return None
    descriptors = data[starts + _MAGIC_BYTES]
    contents = np.empty(len(starts), np.int64)
    for descriptor in set(descriptors.tolist()):
        which = np.flatnonzero(descriptors == descriptor)
        is_single = bool(descriptor & 0x20)
        width = _SIZE_BYTES[descriptor >> 6] or int(is_single)
        begin = _MAGIC_BYTES + 1 + (not is_single) + _DICTIONARY_BYTES[descriptor & 3]
        if not width or int(sizes[which].min()) < begin + width:
            return None
        stored = np.ascontiguousarray(miniblock.gather_rows(data, starts[which] + begin, width))
        said = stored.view(f"<u{width}").reshape(-1).astype(np.uint64)
        contents[which] = np.minimum(said, _MOST).astype(np.int64) + _ADDED_TO_TWO * (width == 2)
    return contents
