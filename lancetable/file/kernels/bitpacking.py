"""Bit packing, in the two orders that Lance files use. Widths are bits per value, 0 to the full width T.

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

__all__ = [
    "BLOCK_VALUES",
    "aligned",
    "block_bytes",
    "pack_blocks",
    "pack_inline",
    "pack_stream",
    "required_width",
    "sign_extend",
    "stream_bytes",
    "unpack_blocks",
    "unpack_stream",
]

BLOCK_VALUES: Final = 1024
_ROW_ORDER: Final = (0, 4, 2, 6, 1, 5, 3, 7)
# Blocks are unpacked in slabs that stay in the second-level cache.
_SLAB_BYTES: Final = 256 << 10
_SLAB_BLOCKS: Final = 128  # where one step goes across blocks
_FEW_LANES: Final = 32

UInt = npt.NDArray[Any]  # uint8, uint16, uint32 or uint64


def required_width(values: UInt) -> int:
    """Bits that the largest of (n,) unsigned values needs; 0 if all are zero or there are none."""
    return int(np.bitwise_or.reduce(values)).bit_length() if len(values) else 0


def stream_bytes(count: int, width: int) -> int:
    """Bytes of a stream of `count` values."""
    return (count * width + 7) // 8


def block_bytes(width: int) -> int:
    """Bytes of one block of 1,024 values."""
    return BLOCK_VALUES // 8 * width


def unpack_stream(data: npt.NDArray[np.uint8], count: int, width: int, dtype: np.dtype[Any], first: int = 0) -> UInt:
    """Values `first` to `first + count` of a stream.

    `data` holds the stream from its first byte; the result is (count,) of the unsigned `dtype`.
    Raises CorruptFileError if the width does not fit the type or the stream is too short.
    """
    _check_width(width, dtype)
    if len(data) < stream_bytes(first + count, width):
        raise CorruptFileError(
            "bit-packed stream is cut short", expected=stream_bytes(first + count, width), found=len(data)
        )
    if count == 0:
        return np.empty(0, dtype)
    # Eight values fill whole bytes, so value k of every group of eight starts at the same bit of its byte.
    group = first // 8
    skip = first - group * 8
    groups = (skip + count + 7) // 8
    padded = np.zeros(groups * width + 16, np.uint8)
    piece = data[group * width : (group + groups) * width]
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
    return flat[skip : skip + count]


def pack_stream(values: UInt, width: int) -> npt.NDArray[np.uint8]:
    """(n,) unsigned values -> the bytes of a stream; bits above `width` are dropped."""
    _check_width(width, values.dtype)
    contiguous = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    bits = np.unpackbits(
        contiguous.view(np.uint8).reshape(len(values), values.dtype.itemsize), axis=1, bitorder="little"
    )
    return np.packbits(bits[:, :width].reshape(-1), bitorder="little")


def sign_extend(values: UInt, width: int) -> npt.NDArray[Any]:
    """(n,) unsigned values of `width` bits, read as two's complement -> (n,) signed values of the same type width."""
    signed: npt.NDArray[Any] = values.view(values.dtype.str.replace("u", "i"))
    spare = values.dtype.itemsize * 8 - width
    if width == 0 or spare == 0:
        return signed
    extended: npt.NDArray[Any] = (signed << signed.dtype.type(spare)) >> signed.dtype.type(spare)
    return extended


def unpack_blocks(packed: npt.NDArray[np.uint8], width: int, dtype: np.dtype[Any]) -> UInt:
    """Whole blocks of one width -> (blocks · 1024,) values of the unsigned `dtype`.

    Raises CorruptFileError if the width does not fit the type, or if the bytes are not whole blocks.
    With width 0 a block has no bytes and their number cannot be told; the result is empty.
    """
    _check_width(width, dtype)
    if width == 0:
        return np.empty(0, dtype)
    if len(packed) % block_bytes(width):
        raise CorruptFileError(
            "bit-packed data is not whole blocks", expected=f"a multiple of {block_bytes(width)}", found=len(packed)
        )
    bits = dtype.itemsize * 8
    lanes = BLOCK_VALUES // bits
    blocks = len(packed) // block_bytes(width)
    if native is not None:
        whole = np.empty(blocks * BLOCK_VALUES, dtype)
        native.unpack_blocks(np.ascontiguousarray(packed), width, whole, bits)
        return whole
    if lanes <= _FEW_LANES:
        return _unpack_across(np.ascontiguousarray(packed).view(dtype).reshape(blocks, width * lanes), width)
    words: UInt = np.ascontiguousarray(packed).view(dtype).reshape(blocks, width, lanes)
    out = np.empty((blocks, 8, 128 // lanes, lanes), dtype)
    slab = max(1, _SLAB_BYTES // (BLOCK_VALUES * dtype.itemsize))
    mask = dtype.type((1 << width) - 1)
    for start in range(0, blocks, slab):
        piece, target = words[start : start + slab], out[start : start + slab]
        for row in range(bits):
            word, shift = divmod(row * width, bits)
            value = piece[:, word] >> dtype.type(shift)
            if shift + width > bits:
                value |= piece[:, word + 1] << dtype.type(bits - shift)
            np.bitwise_and(value, mask, out=target[:, row % 8, _ROW_ORDER[row // 8] * 16 // lanes])
    return out.reshape(-1)


def _unpack_across(packed: UInt, width: int) -> UInt:
    """(blocks, words) as `unpack_blocks`, many blocks at a time: few lanes would make for very short steps."""
    dtype = packed.dtype
    bits = dtype.itemsize * 8
    lanes = BLOCK_VALUES // bits
    mask = dtype.type((1 << width) - 1)
    out = np.empty((len(packed), BLOCK_VALUES), dtype)
    count = min(len(packed), _SLAB_BLOCKS)
    words = np.empty((packed.shape[1], count), dtype)
    values = np.empty((BLOCK_VALUES, count), dtype)
    carried = np.empty((lanes, count), dtype)
    for start in range(0, len(packed), _SLAB_BLOCKS):
        piece = packed[start : start + _SLAB_BLOCKS]
        source, found, high = words[:, : len(piece)], values[:, : len(piece)], carried[:, : len(piece)]
        source[:] = piece.T
        for row in range(bits):
            word, shift = divmod(row * width, bits)
            at = _ROW_ORDER[row // 8] * 16 + row % 8 * 128
            target = found[at : at + lanes]
            np.right_shift(source[word * lanes : (word + 1) * lanes], dtype.type(shift), out=target)
            if shift + width > bits:
                following = source[(word + 1) * lanes : (word + 2) * lanes]
                np.left_shift(following, dtype.type(bits - shift), out=high)
                np.bitwise_or(target, high, out=target)
            np.bitwise_and(target, mask, out=target)
        out[start : start + len(piece)] = found.T
    return out.reshape(-1)


def pack_blocks(values: UInt, width: int) -> npt.NDArray[np.uint8]:
    """(n,) unsigned values -> whole blocks; the last one is filled up with zeros. Bits above `width` are dropped."""
    dtype = values.dtype
    _check_width(width, dtype)
    bits = dtype.itemsize * 8
    lanes = BLOCK_VALUES // bits
    blocks = -(-len(values) // BLOCK_VALUES)
    if width == 0:
        return np.empty(0, np.uint8)
    if native is not None:
        packed: npt.NDArray[np.uint8] = native.pack_blocks(aligned(values), width, bits)
        return packed
    padded = np.zeros(blocks * BLOCK_VALUES, dtype)
    padded[: len(values)] = values
    source = padded.reshape(blocks, 8, 128 // lanes, lanes)
    words = np.zeros((blocks, width, lanes), dtype)
    slab = max(1, _SLAB_BYTES // (BLOCK_VALUES * dtype.itemsize))
    mask = dtype.type((1 << width) - 1)
    for start in range(0, blocks, slab):
        piece, target = source[start : start + slab], words[start : start + slab]
        for row in range(bits):
            word, shift = divmod(row * width, bits)
            value = piece[:, row % 8, _ROW_ORDER[row // 8] * 16 // lanes] & mask
            target[:, word] |= value << dtype.type(shift)
            if shift + width > bits:
                target[:, word + 1] |= value >> dtype.type(bits - shift)
    return words.reshape(-1).view(np.uint8)


def pack_inline(values: UInt) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """(n,) unsigned values -> for each 1,024 of them a word with the width of the largest and a block of that width.

    -> the bytes, and how many of them each block has with its word. The last block is filled up with zeros.
    """
    if native is not None:
        packed, sizes = native.pack_inline(aligned(values), values.dtype.itemsize * 8)
        return packed, sizes
    word = values.dtype.itemsize
    blocks = -(-len(values) // BLOCK_VALUES)
    padded = np.zeros((blocks, BLOCK_VALUES), values.dtype)
    padded.reshape(-1)[: len(values)] = values
    largest = np.bitwise_or.reduce(padded, axis=1)
    widths = np.array([value.bit_length() for value in largest.tolist()], np.int64)
    sizes = word + widths * (BLOCK_VALUES // 8)
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), np.uint8)
    out[starts[:, None] + np.arange(word)] = widths.astype(values.dtype).view(np.uint8).reshape(blocks, word)
    for width in np.unique(widths[widths > 0]).tolist():
        which = np.flatnonzero(widths == width)
        content = pack_blocks(padded[which].reshape(-1), width).reshape(len(which), block_bytes(width))
        out[starts[which][:, None] + word + np.arange(block_bytes(width))] = content
    return out, sizes


def aligned(values: UInt) -> UInt:
    """The same values where a processor may read them: side by side, at a multiple of their size."""
    return values if values.flags.c_contiguous and values.flags.aligned else np.array(values)


def _check_width(width: int, dtype: np.dtype[Any]) -> None:
    if not 0 <= width <= dtype.itemsize * 8:
        raise CorruptFileError(
            "packed values wider than their type", expected=f"at most {dtype.itemsize * 8} bits", found=width
        )
