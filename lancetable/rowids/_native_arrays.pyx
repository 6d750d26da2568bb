# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled parser for row id sequences that consist only of short arrays, as other writers store them.

Any other sequence, including a malformed one, is parsed by protobuf, which also reports the errors.

    0a len                   a segment
       22 len | 2a len       sorted_array | array
          0a len | 12 len    u16_array | u32_array
             08 base         absent for 0
             12 len offsets
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy as np

cdef enum:
    SEGMENT = 0x0A
    SORTED_ARRAY = 0x22
    ARRAY = 0x2A
    NARROW = 0x0A
    WIDE = 0x12
    BASE = 0x08
    OFFSETS = 0x12

ctypedef fused offset_t:
    uint16_t
    uint32_t

cdef struct Piece:
    bint ordered
    int64_t width
    uint64_t base
    const uint8_t* offsets
    int64_t size


cdef inline const uint8_t* number(const uint8_t* at, const uint8_t* end, uint64_t* value) noexcept nogil:
    """Parse a varint; return the position after it, or NULL if it is malformed."""
    cdef int shift = 0
    cdef uint8_t octet
    value[0] = 0
    while at < end and shift < 63:
        octet = at[0]
        value[0] |= <uint64_t>(octet & 0x7F) << shift
        at += 1
        if octet < 0x80:
            return at
        shift += 7
    # The tenth byte of a 64-bit varint has only one valid bit.
    if at < end and shift == 63 and at[0] <= 1:
        value[0] |= <uint64_t>at[0] << 63
        return at + 1
    return NULL


cdef inline const uint8_t* body(const uint8_t* at, const uint8_t* end, const uint8_t** stop) noexcept nogil:
    """Return the start of the field body whose length is at `at`, and set `stop` to its end; NULL if past `end`."""
    cdef uint64_t length
    at = number(at, end, &length)
    if at == NULL or length > <uint64_t>(end - at):
        return NULL
    stop[0] = at + length
    return at


cdef const uint8_t* next_piece(const uint8_t* at, const uint8_t* end, Piece* piece) noexcept nogil:
    """Parse the segment at `at`; return the position after it, NULL unless it is an array of 16- or 32-bit offsets."""
    cdef const uint8_t* last
    cdef const uint8_t* inner
    cdef uint8_t tag
    cdef bint based = False, filled = False
    if at[0] != SEGMENT:
        return NULL
    at = body(at + 1, end, &last)
    if at == NULL or at == last or (at[0] != SORTED_ARRAY and at[0] != ARRAY):
        return NULL
    piece.ordered = at[0] == SORTED_ARRAY
    at = body(at + 1, last, &inner)
    if at == NULL or inner != last or at == last or (at[0] != NARROW and at[0] != WIDE):
        return NULL
    piece.width = 2 if at[0] == NARROW else 4
    at = body(at + 1, last, &inner)
    if at == NULL or inner != last:
        return NULL
    piece.base, piece.offsets, piece.size = 0, last, 0
    while at < last:
        tag = at[0]
        if tag == BASE and not based:
            based = True
            at = number(at + 1, last, &piece.base)
        elif tag == OFFSETS and not filled:
            filled = True
            at = body(at + 1, last, &inner)
            if at != NULL:
                piece.offsets, piece.size = at, inner - at
                at = inner
        else:
            return NULL
        if at == NULL:
            return NULL
    return last if piece.size % piece.width == 0 else NULL


cdef bint look(const offset_t* values, int64_t count, uint64_t* greatest) noexcept nogil:
    """Return True if the values are strictly ascending, and set `greatest` to the largest one."""
    cdef int64_t i
    cdef bint rising = True
    cdef offset_t most = values[0]
    for i in range(1, count):
        rising &= values[i] > values[i - 1]
        most = values[i] if values[i] > most else most
    greatest[0] = most
    return rising


def short_arrays(bytes data, int64_t least):
    """Parse a serialized RowIdSequence that consists only of arrays of one width.

    Returns (n,) offsets and four arrays with one entry for each non-empty array: the base, the number of values,
    whether the values are ascending, and whether the array is stored as a sorted array. Returns None for any other
    sequence, and for fewer than `least` segments.
    """
    cdef const uint8_t* start = <const uint8_t*>data
    cdef const uint8_t* end = start + len(data)
    cdef const uint8_t* at = start
    cdef Piece piece
    cdef int64_t segments = 0, arrays = 0, size = 0, width = 0, place = 0, here = 0
    cdef uint64_t greatest = 0
    with nogil:
        while at != NULL and at < end:
            at = next_piece(at, end, &piece)
            if at == NULL or (width and piece.width != width):
                at = NULL
                break
            width = piece.width
            segments += 1
            arrays += piece.size > 0
            size += piece.size
    if at == NULL or segments < least or not arrays:
        return None
    offsets = np.empty(size // width, np.dtype(f"<u{width}"))
    bases, counts = np.empty(arrays, np.uint64), np.empty(arrays, np.int64)
    rises, ordered = np.empty(arrays, np.bool_), np.empty(arrays, np.bool_)
    cdef uint8_t[::1] target = offsets.view(np.uint8)
    cdef uint64_t[::1] base_of = bases
    cdef int64_t[::1] count_of = counts
    cdef uint8_t[::1] rising = rises.view(np.uint8), says = ordered.view(np.uint8)
    with nogil:
        at = start
        while at < end:
            at = next_piece(at, end, &piece)
            if not piece.size:
                continue
            memcpy(&target[place], piece.offsets, piece.size)
            if width == 2:
                rising[here] = look[uint16_t](<const uint16_t*>&target[place], piece.size // 2, &greatest)
            else:
                rising[here] = look[uint32_t](<const uint32_t*>&target[place], piece.size // 4, &greatest)
            if piece.base > <uint64_t>0xFFFFFFFFFFFFFFFF - greatest:
                break
            base_of[here], count_of[here], says[here] = piece.base, piece.size // width, piece.ordered
            place += piece.size
            here += 1
    return (offsets, bases, counts, rises, ordered) if here == arrays else None
