"""Many zstd frames in one call of Arrow: the buffers of an Arrow record batch can be such frames, each behind its size.

    [u64 size][frame] [u64 size][frame] ...     what a page holds, and just as well the body of an IPC message
    one column of views with as many buffers    the message that says where they lie

Arrow decompresses all buffers of a message on its own threads, without coming back to Python after each. The message is
put together by hand: it needs no more than numbers at known places. Sources: the Arrow columnar format (Message.fbs,
Schema.fbs) and the binary format of FlatBuffers.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["decompress_frames"]

_SCHEMA: Final = pa.schema([("", pa.binary_view())])
_FIRST_BUFFER: Final = 2  # behind validity and views
_CONTINUATION: Final = 0xFFFFFFFF
_VERSION_5: Final = 4
_RECORD_BATCH: Final = 3
_ZSTD: Final = 1


def decompress_frames(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> list[pa.Buffer]:
    """The contents of frames at `starts`, multiples of 8, each behind the u64 size of its content.

    Positions, sizes and declared sizes must have been checked. Raises OSError or ArrowInvalid for a frame that does not
    hold what it declares.
    """
    message = _message(starts, sizes, len(data))
    whole = b"".join((struct.pack("<Ii", _CONTINUATION, len(message)), message, data.data))
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(whole)), _SCHEMA)
    buffers: list[pa.Buffer] = batch.column(0).buffers()[_FIRST_BUFFER:]
    return buffers


def _message(starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], body_bytes: int) -> bytes:
    """The metadata of a record batch without rows, whose one column has a buffer for each frame.

    A table begins with the distance to its vtable, which has its own size, the size of the table, and where each field
    lies in it; a reference is the distance from where it stands to what it means.
    """
    places = np.zeros((len(starts) + _FIRST_BUFFER, 2), "<i8")
    places[_FIRST_BUFFER:, 0] = starts
    places[_FIRST_BUFFER:, 1] = sizes
    out = bytearray(4)

    def table(vtable: tuple[int, ...], content: bytes) -> int:
        """A vtable and its table, whose content begins behind the distance; where the table lies."""
        _align(out)
        head = len(out)
        out.extend(struct.pack(f"<{len(vtable)}H", *vtable))
        _align(out)
        at = len(out)
        out.extend(struct.pack("<i", at - head) + content)
        return at

    def refer(field: int, at: int) -> None:
        struct.pack_into("<I", out, field, at - field)

    def vector(field: int, count: int, content: bytes) -> None:
        """Structs or numbers of 8 bytes."""
        out.extend(bytes(-(len(out) + 4) % 8))
        refer(field, len(out))
        out.extend(struct.pack("<I", count) + content)

    # Message: version at 20, kind of header at 22, header at 16, body length at 8.
    message = table((12, 24, 20, 22, 16, 8), struct.pack("<4x q I h 2B", body_bytes, 0, _VERSION_5, _RECORD_BATCH, 0))
    refer(0, message)
    # RecordBatch: rows at 8, nodes at 16, buffers at 20, compression at 24, buffers of views at 28.
    batch = table((14, 32, 8, 16, 20, 24, 28), struct.pack("<4x q 16x", 0))
    refer(message + 16, batch)
    vector(batch + 16, 1, struct.pack("<qq", 0, 0))
    vector(batch + 20, len(places), places.tobytes())
    # BodyCompression: codec at 4, method at 5.
    refer(batch + 24, table((8, 8, 4, 5), struct.pack("<2B 2x", _ZSTD, 0)))
    vector(batch + 28, 1, struct.pack("<q", len(starts)))
    _align(out)
    return bytes(out)


def _align(out: bytearray) -> None:
    out.extend(bytes(-len(out) % 8))
