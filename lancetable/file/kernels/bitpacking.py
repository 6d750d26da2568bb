"""Bit packing, in the two orders of Lance files. Widths are bits per value, 0 to the full width T.

Stream (`Bitpacked`): value i occupies bits [i·w, i·w + w) of one little-endian bit stream.

    w = 3:   byte 0  c1 c0 b2 b1 b0 a2 a1 a0     byte 1  f0 e2 e1 e0 d2 d1 d0 c2   ...

Blocks (`BitpackedForNonNeg`, and bit packing of file version 2.1): 1,024 values of T bits, as L = 1024 / T lanes. A
lane is a bit stream of T values; word k of every lane is stored next to word k of its neighbours, so that one
instruction unpacks many lanes. A block has 128·w bytes. Row r of lane l is value

    O[r div 8]·16 + (r mod 8)·128 + l          O = 0 4 2 6 1 5 3 7

Source: protos/encodings_v2_1.proto.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lancetable.errors import CorruptFileError
from lancetable.file.kernels import native

BLOCK_VALUES: Final = 1024
_ROW_ORDER: Final = (0, 4, 2, 6, 1, 5, 3, 7)

UInt = npt.NDArray[Any]  # uint8, uint16, uint32 or uint64

WORDS: Final[dict[int, np.dtype[Any]]] = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
"""Unsigned integer types by size in bytes."""
BIT_WORDS: Final = {8 * size: word for size, word in WORDS.items()}
"""Unsigned integer types by size in bits."""


def take_bits(octets: npt.NDArray[np.uint8], indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return a bitmap of the selected bits of a bitmap; the lowest bit of a byte is the first."""
    return np.packbits(octets[indices >> 3] >> (indices & 7).astype(np.uint8) & 1, bitorder="little")


def required_width(values: UInt) -> int:
    """Return the number of bits of the largest of (n,) unsigned values; 0 if all are zero or there are none."""
    return int(np.bitwise_or.reduce(values)).bit_length() if len(values) else 0


def stream_bytes(count: int, width: int) -> int:
    """Return the size of a stream of `count` values."""
    return (count * width + 7) // 8


def block_bytes(width: int) -> int:
    """Return the size of one block of 1,024 values."""
    return BLOCK_VALUES // 8 * width


def unpack_stream(data: npt.NDArray[np.uint8], count: int, width: int, dtype: np.dtype[Any]) -> UInt:
    """Unpack the first (count,) values of a stream as the unsigned `dtype`.

    Raises CorruptFileError if the width exceeds the type or the stream is
    too short.
    """
    check_width(width, dtype)
    if len(data) < stream_bytes(count, width):
        raise CorruptFileError("bit-packed stream is truncated", stream_bytes(count, width), len(data))
    if count == 0:
        return np.empty(0, dtype)
    # Eight values occupy whole bytes, so value k of every group of eight starts at the same bit of its byte.
    groups = (count + 7) // 8
    padded = np.zeros(groups * width + 16, np.uint8)
    piece = data[: groups * width]
    padded[: len(piece)] = piece
    out = np.empty((groups, 8), dtype)
    mask = np.uint64((1 << width) - 1)
    for k in range(8):
        byte, shift = divmod(k * width, 8)
        words: UInt = np.ndarray((groups,), "<u8", padded, byte, (width,))
        if shift + width <= 64:
            out[:, k] = (words >> np.uint64(shift)) & mask
        else:
            ninth = np.ndarray((groups,), np.uint8, padded, byte + 8, (width,)).astype(np.uint64)
            out[:, k] = ((words >> np.uint64(shift)) | (ninth << np.uint64(64 - shift))) & mask
    flat: UInt = out.reshape(-1)
    return flat[:count]


def pack_stream(values: UInt, width: int) -> npt.NDArray[np.uint8]:
    """Pack (n,) unsigned values as a stream; bits above `width` are dropped."""
    check_width(width, values.dtype)
    octets = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.dtype.itemsize)
    bits = np.unpackbits(octets, axis=1, bitorder="little")
    return np.packbits(bits[:, :width], bitorder="little")


def sign_extend(values: UInt, width: int) -> npt.NDArray[Any]:
    """Convert (n,) unsigned values of `width` bits in two's complement to signed values of the same type size."""
    signed: npt.NDArray[Any] = values.view(values.dtype.str.replace("u", "i"))
    spare = values.dtype.itemsize * 8 - width
    if width == 0 or spare == 0:
        return signed
    return (signed << signed.dtype.type(spare)) >> signed.dtype.type(spare)


def unpack_blocks(packed: npt.NDArray[np.uint8], width: int, dtype: np.dtype[Any]) -> UInt:
    """Unpack whole blocks of one width into (blocks · 1024,) values of the unsigned `dtype`.

    With width 0 the result is empty, because a block has no bytes and the number of blocks is unknown.
    Raises CorruptFileError if the width exceeds the type, or if the data is not a whole number of blocks.
    """
    check_width(width, dtype)
    if width == 0:
        return np.empty(0, dtype)
    if len(packed) % block_bytes(width):
        raise CorruptFileError(
            "bit-packed data is not a whole number of blocks", f"a multiple of {block_bytes(width)}", len(packed)
        )
    bits = dtype.itemsize * 8
    blocks = len(packed) // block_bytes(width)
    if native is not None:
        unpacked = np.empty(blocks * BLOCK_VALUES, dtype)
        native.unpack_blocks(packed, width, unpacked)
        return unpacked
    words: UInt = np.ascontiguousarray(packed).view(dtype).reshape(blocks, width, BLOCK_VALUES // bits)
    streams = words.transpose(0, 2, 1).reshape(-1).view(np.uint8)  # of all lanes, one after the other
    out = np.empty((blocks, BLOCK_VALUES), dtype)
    out[:, _lane_order(bits)] = unpack_stream(streams, blocks * BLOCK_VALUES, width, dtype).reshape(out.shape)
    return out.reshape(-1)


def _lane_order(bits: int) -> npt.NDArray[np.int64]:
    """Return the index in a block of each row of lane 0, then those of lane 1, and so on."""
    row = np.arange(bits)
    first_lane = np.array(_ROW_ORDER)[row // 8] * 16 + row % 8 * 128
    return np.add.outer(np.arange(BLOCK_VALUES // bits), first_lane).reshape(-1)


def pack_blocks(values: UInt, width: int) -> npt.NDArray[np.uint8]:
    """Pack (n,) unsigned values into whole blocks, the last one padded with zeros; bits above `width` are dropped."""
    dtype = values.dtype
    check_width(width, dtype)
    bits = dtype.itemsize * 8
    if width == 0:
        return np.empty(0, np.uint8)
    if native is not None:
        return native.pack_blocks(aligned(values), width)
    blocks = -(-len(values) // BLOCK_VALUES)
    padded = np.zeros((blocks, BLOCK_VALUES), dtype)
    padded.reshape(-1)[: len(values)] = values
    streams = pack_stream(padded[:, _lane_order(bits)].reshape(-1), width)
    words = streams.view(dtype).reshape(blocks, BLOCK_VALUES // bits, width)
    return words.transpose(0, 2, 1).reshape(-1).view(np.uint8)


def pack_inline(values: UInt) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Pack (n,) unsigned values in blocks of 1,024, each preceded by a word with the width of its largest value.

    Returns the bytes, and the size of each block including its word. The last block is padded with zeros.
    """
    if native is not None:
        packed, sizes = native.pack_inline(aligned(values))
        return packed, sizes
    pieces = []
    for start in range(0, len(values), BLOCK_VALUES):
        block = values[start : start + BLOCK_VALUES]
        width = required_width(block)
        pieces.append(np.array([width], values.dtype).tobytes() + pack_blocks(block, width).tobytes())
    return np.frombuffer(b"".join(pieces), np.uint8), np.array([len(piece) for piece in pieces], np.int64)


def aligned(values: UInt) -> UInt:
    """Return the values contiguous and aligned to their size, copied if necessary."""
    return values if values.flags.c_contiguous and values.flags.aligned else np.array(values)


def check_width(width: int, dtype: np.dtype[Any]) -> None:
    """Raise CorruptFileError for a width that exceeds the type of the values."""
    if not 0 <= width <= dtype.itemsize * 8:
        raise CorruptFileError("packed values are wider than their type", f"at most {dtype.itemsize * 8} bits", width)
