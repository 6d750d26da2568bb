# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twins of the kernels beside this file, under the same names.

Every function here is chosen by the Python function of the same name, whose NumPy form is the reference and whose
docstring is the contract. What is different: loops are C and run without the GIL. Sizes, offsets, counts and codes come
from files and are not believed: each is compared with the memory it leads to before that memory is touched. A loop that
meets a wrong one returns its code from the table below, and the caller raises CorruptFileError.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy, memset

import cython

import numpy as np

from lancetable.errors import CorruptFileError

cdef extern from *:
    """
    #include <string.h>
    #if defined(__GNUC__) || defined(__clang__)
    #define lt_likely(x) __builtin_expect(!!(x), 1)
    #define lt_popcount(x) ((int)__builtin_popcountll(x))
    #define lt_swap(x) __builtin_bswap64(x)
    #else
    #define lt_likely(x) (x)
    static inline int lt_popcount(uint64_t x) {
        x -= (x >> 1) & 0x5555555555555555ULL;
        x = (x & 0x3333333333333333ULL) + ((x >> 2) & 0x3333333333333333ULL);
        x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
        return (int)((x * 0x0101010101010101ULL) >> 56);
    }
    static inline uint64_t lt_swap(uint64_t x) {
        x = ((x & 0x00ff00ff00ff00ffULL) << 8) | ((x >> 8) & 0x00ff00ff00ff00ffULL);
        x = ((x & 0x0000ffff0000ffffULL) << 16) | ((x >> 16) & 0x0000ffff0000ffffULL);
        return (x << 32) | (x >> 32);
    }
    #endif
    /* Words at any address. */
    static inline uint16_t lt_load16(const uint8_t *at) { uint16_t x; memcpy(&x, at, 2); return x; }
    static inline uint32_t lt_load32(const uint8_t *at) { uint32_t x; memcpy(&x, at, 4); return x; }
    static inline uint64_t lt_load64(const uint8_t *at) { uint64_t x; memcpy(&x, at, 8); return x; }
    static inline void lt_store64(uint8_t *at, uint64_t x) { memcpy(at, &x, 8); }
    /* Copy n bytes where both sides have `room` bytes: short ones as two words, whatever their length. */
    static inline void lt_copy(uint8_t *to, const uint8_t *from, int64_t n, int64_t room) {
        if (lt_likely(n <= 16 && room >= 16)) {
            uint64_t a, b;
            memcpy(&a, from, 8); memcpy(&b, from + 8, 8);
            memcpy(to, &a, 8); memcpy(to + 8, &b, 8);
        } else if (n > 0) {
            memcpy(to, from, (size_t)n);
        }
    }
    """
    bint lt_likely(bint x) nogil
    int lt_popcount(uint64_t x) nogil
    uint64_t lt_swap(uint64_t x) nogil
    uint16_t lt_load16(const uint8_t* at) nogil
    uint32_t lt_load32(const uint8_t* at) nogil
    uint64_t lt_load64(const uint8_t* at) nogil
    void lt_store64(uint8_t* at, uint64_t x) nogil
    void lt_copy(uint8_t* to, const uint8_t* source, int64_t n, int64_t room) nogil

ctypedef fused word_t:
    uint8_t
    uint16_t
    uint32_t
    uint64_t

ctypedef fused offset_t:
    int32_t
    int64_t

cdef enum:
    OK = 0
    OUTSIDE = 1
    WIDTH = 2
    PAYLOAD = 3
    DECREASE = 4
    TOO_LONG = 5
    NO_SYMBOL = 6
    OPEN_ESCAPE = 7
    ZERO_RUN = 8
    SHORT_RUNS = 9
    LEVEL = 10
    CUT_SHORT = 11
    EXCESS = 12
    INDEX = 13
    NO_LIST = 14
    FIRST_OFFSET = 15

_MESSAGES = {
    OUTSIDE: "a value lies outside of its page",
    WIDTH: "packed values wider than their type",
    PAYLOAD: "bit-packed data of a wrong size",
    DECREASE: "a value ends before it starts",
    TOO_LONG: "values too long for their type",
    NO_SYMBOL: "FSST code without a symbol",
    OPEN_ESCAPE: "FSST value ends inside an escape",
    ZERO_RUN: "run of length zero",
    SHORT_RUNS: "runs end before the last value",
    LEVEL: "a level that no layer has",
    CUT_SHORT: "a page ends inside an entry",
    EXCESS: "bytes behind the last entry of a page",
    INDEX: "an index beyond the dictionary",
    NO_LIST: "levels that do not begin with a list",
    FIRST_OFFSET: "an offset points into the offsets",
}


cdef int check(int code) except -1:
    if code:
        raise CorruptFileError(_MESSAGES[code])
    return 0


@cython.final
@cython.freelist(32)
cdef class Bytes:
    """The memory of an object that has a contiguous buffer, held as long as this lives."""

    cdef Py_buffer view
    cdef uint8_t* at
    cdef int64_t size

    def __cinit__(self, owner, bint writable=False):
        PyObject_GetBuffer(owner, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.at = <uint8_t*>self.view.buf
        self.size = self.view.len

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef Bytes column(owner, int64_t count, int64_t width):
    """The memory of `count` values of `width` bytes: one number for each chunk or row."""
    cdef Bytes held = Bytes(owner)
    if held.size != count * width:
        raise ValueError(f"{count} values of {width} bytes were expected, not {held.size} bytes")
    return held


cdef inline bint inside(int64_t start, int64_t length, int64_t size) noexcept nogil:
    return start >= 0 and length >= 0 and start <= size and length <= size - start


# ------------------------------------------------------------------------------------------------ twins of bitpacking.py

cdef const int* ROW_ORDER = [0, 4, 2, 6, 1, 5, 3, 7]


cdef void unpack_block(const word_t* packed, int width, word_t* out) noexcept nogil:
    """1,024 values; `packed` is aligned."""
    cdef int bits = 8 * sizeof(word_t)
    cdef int lanes = 1024 // bits
    cdef int row, lane, shift, back
    cdef word_t mask
    cdef const word_t* source
    cdef word_t* target
    if width == 0:
        memset(out, 0, 1024 * sizeof(word_t))
        return
    mask = (<word_t>~<word_t>0) >> (bits - width)
    for row in range(bits):
        source = packed + row * width // bits * lanes
        target = out + ROW_ORDER[row // 8] * 16 + row % 8 * 128
        shift = row * width % bits
        if shift + width <= bits:
            for lane in range(lanes):
                target[lane] = (source[lane] >> shift) & mask
        else:
            back = bits - shift
            for lane in range(lanes):
                target[lane] = ((source[lane] >> shift) | <word_t>(source[lane + lanes] << back)) & mask


cdef void unpack_block_at(const uint8_t* packed, int width, word_t* out, int64_t count) noexcept nogil:
    """The first `count` values of a block at any address."""
    cdef word_t[1024] aligned
    cdef word_t[1024] whole
    cdef const word_t* source = <const word_t*>packed
    if <uint64_t>packed % sizeof(word_t):
        memcpy(aligned, packed, 128 * width)
        source = aligned
    if count >= 1024:
        unpack_block(source, width, out)
    else:
        unpack_block(source, width, &whole[0])
        memcpy(out, whole, count * sizeof(word_t))


cdef void pack_block(const word_t* values, int width, word_t* out) noexcept nogil:
    """1,024 values; `out` is aligned and has 128 * width bytes."""
    cdef int bits = 8 * sizeof(word_t)
    cdef int lanes = 1024 // bits
    cdef int row, lane, shift, back
    cdef word_t mask
    cdef const word_t* source
    cdef word_t* target
    if width == 0:
        return
    mask = (<word_t>~<word_t>0) >> (bits - width)
    for row in range(bits):
        source = values + ROW_ORDER[row // 8] * 16 + row % 8 * 128
        target = out + row * width // bits * lanes
        shift = row * width % bits
        if shift == 0:
            for lane in range(lanes):
                target[lane] = source[lane] & mask
        else:
            for lane in range(lanes):
                target[lane] |= <word_t>((source[lane] & mask) << shift)
        if shift + width > bits:
            back = bits - shift
            for lane in range(lanes):
                target[lane + lanes] = (source[lane] & mask) >> back


cdef void unpack_blocks_of(const uint8_t* packed, int width, int64_t blocks, word_t* out) noexcept nogil:
    cdef int64_t i
    for i in range(blocks):
        unpack_block_at(packed + i * 128 * width, width, out + i * 1024, 1024)


def unpack_blocks(packed, int width, out, int bits):
    cdef Bytes source = Bytes(packed), target = Bytes(out, True)
    cdef int64_t blocks = target.size // (128 * bits)
    if not 0 <= width <= bits or source.size < blocks * 128 * width:
        raise ValueError("the blocks do not fit")
    with nogil:
        if bits == 8:
            unpack_blocks_of(source.at, width, blocks, <uint8_t*>target.at)
        elif bits == 16:
            unpack_blocks_of(source.at, width, blocks, <uint16_t*>target.at)
        elif bits == 32:
            unpack_blocks_of(source.at, width, blocks, <uint32_t*>target.at)
        elif bits == 64:
            unpack_blocks_of(source.at, width, blocks, <uint64_t*>target.at)


cdef void pack_block_at(const word_t* values, int64_t count, int width, word_t* out) noexcept nogil:
    """A block of `count` values, filled up with zeros."""
    cdef word_t[1024] whole
    if count >= 1024:
        pack_block(values, width, out)
    else:
        memcpy(whole, values, count * sizeof(word_t))
        memset(&whole[count], 0, (1024 - count) * sizeof(word_t))
        pack_block(&whole[0], width, out)


cdef void pack_blocks_of(const word_t* values, int64_t count, int width, word_t* out) noexcept nogil:
    cdef int64_t first
    for first in range(0, count, 1024):
        pack_block_at(values + first, count - first, width, out)
        out += 16 * width // sizeof(word_t) * 8


def pack_blocks(values, int width, int bits):
    cdef Bytes source = Bytes(values)
    cdef int64_t count = source.size // (bits // 8)
    packed = np.empty((count + 1023) // 1024 * 128 * width, np.uint8)
    cdef Bytes target = Bytes(packed, True)
    if not 0 <= width <= bits or <uint64_t>source.at % <uint64_t>(bits // 8):
        raise ValueError("values of a wrong width or address")
    with nogil:
        if bits == 8:
            pack_blocks_of(<uint8_t*>source.at, count, width, <uint8_t*>target.at)
        elif bits == 16:
            pack_blocks_of(<uint16_t*>source.at, count, width, <uint16_t*>target.at)
        elif bits == 32:
            pack_blocks_of(<uint32_t*>source.at, count, width, <uint32_t*>target.at)
        elif bits == 64:
            pack_blocks_of(<uint64_t*>source.at, count, width, <uint64_t*>target.at)
    return packed


cdef int unpack_inline_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, int64_t chunks,
    word_t* out, int64_t room,
) noexcept nogil:
    cdef int64_t i, at, count
    cdef word_t width
    for i in range(chunks):
        at, count = starts[i], counts[i]
        if not inside(at, sizes[i], data.size) or count < 0 or count > 1024 or count > room:
            return OUTSIDE
        if sizes[i] < <int64_t>sizeof(word_t):
            return PAYLOAD
        memcpy(&width, data.at + at, sizeof(word_t))
        if width > 8 * sizeof(word_t):
            return WIDTH
        if sizes[i] != <int64_t>(sizeof(word_t) + 128 * width):
            return PAYLOAD
        unpack_block_at(data.at + at + sizeof(word_t), <int>width, out, count)
        out += count
        room -= count
    return OK


def unpack_inline(data, starts, sizes, counts, out, int bits):
    cdef Bytes source = Bytes(data), target = Bytes(out, True), first = Bytes(starts)
    cdef int64_t chunks = first.size // 8
    cdef Bytes length = column(sizes, chunks, 8), number = column(counts, chunks, 8)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>length.at
    cdef const int64_t* c = <int64_t*>number.at
    cdef int code = OK
    with nogil:
        if bits == 8:
            code = unpack_inline_of(source, a, b, c, chunks, <uint8_t*>target.at, target.size)
        elif bits == 16:
            code = unpack_inline_of(source, a, b, c, chunks, <uint16_t*>target.at, target.size // 2)
        elif bits == 32:
            code = unpack_inline_of(source, a, b, c, chunks, <uint32_t*>target.at, target.size // 4)
        elif bits == 64:
            code = unpack_inline_of(source, a, b, c, chunks, <uint64_t*>target.at, target.size // 8)
    check(code)


cdef int width_of(const word_t* values, int64_t count) noexcept nogil:
    """Bits that the largest value needs."""
    cdef word_t union = 0
    cdef int64_t i
    cdef int width = 0
    for i in range(count):
        union |= values[i]
    while union:
        union >>= 1
        width += 1
    return width


cdef int64_t block_sizes_of(const word_t* values, int64_t count, int64_t* sizes) noexcept nogil:
    """Bytes of each block with its width word, and of all of them."""
    cdef int64_t block, left, total = 0
    for block in range((count + 1023) // 1024):
        left = count - block * 1024
        sizes[block] = <int64_t>sizeof(word_t) + 128 * width_of(values + block * 1024, left if left < 1024 else 1024)
        total += sizes[block]
    return total


cdef void pack_inline_of(const word_t* values, int64_t count, const int64_t* sizes, word_t* out) noexcept nogil:
    cdef int64_t block
    for block in range((count + 1023) // 1024):
        out[0] = <word_t>((sizes[block] - <int64_t>sizeof(word_t)) // 128)
        pack_block_at(values + block * 1024, count - block * 1024, out[0], out + 1)
        out += sizes[block] // <int64_t>sizeof(word_t)


def pack_inline(values, int bits):
    cdef Bytes source = Bytes(values)
    cdef int64_t count = source.size // (bits // 8), total = 0
    if <uint64_t>source.at % <uint64_t>(bits // 8):
        raise ValueError("values at an odd address")
    sizes = np.empty((count + 1023) // 1024, np.int64)
    cdef Bytes size = Bytes(sizes, True)
    with nogil:
        if bits == 8:
            total = block_sizes_of(<uint8_t*>source.at, count, <int64_t*>size.at)
        elif bits == 16:
            total = block_sizes_of(<uint16_t*>source.at, count, <int64_t*>size.at)
        elif bits == 32:
            total = block_sizes_of(<uint32_t*>source.at, count, <int64_t*>size.at)
        elif bits == 64:
            total = block_sizes_of(<uint64_t*>source.at, count, <int64_t*>size.at)
    packed = np.empty(total, np.uint8)
    cdef Bytes target = Bytes(packed, True)
    with nogil:
        if bits == 8:
            pack_inline_of(<uint8_t*>source.at, count, <int64_t*>size.at, <uint8_t*>target.at)
        elif bits == 16:
            pack_inline_of(<uint16_t*>source.at, count, <int64_t*>size.at, <uint16_t*>target.at)
        elif bits == 32:
            pack_inline_of(<uint32_t*>source.at, count, <int64_t*>size.at, <uint32_t*>target.at)
        elif bits == 64:
            pack_inline_of(<uint64_t*>source.at, count, <int64_t*>size.at, <uint64_t*>target.at)
    return packed, sizes


cdef int unpack_out_of_line_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, int64_t chunks, int width,
    word_t* out, int64_t room,
) noexcept nogil:
    cdef int64_t i, at, count, full, tail, rest
    for i in range(chunks):
        at, count = starts[i], counts[i]
        if not inside(at, sizes[i], data.size) or count < 0 or count > room:
            return OUTSIDE
        full, tail = count // 1024, count % 1024
        rest = sizes[i] - full * 128 * width
        if rest < 0 or (tail == 0 and rest != 0):
            return PAYLOAD
        unpack_blocks_of(data.at + at, width, full, out)
        at += full * 128 * width
        if tail:
            if rest == tail * <int64_t>sizeof(word_t):
                memcpy(out + full * 1024, data.at + at, rest)
            elif rest == 128 * width:
                unpack_block_at(data.at + at, width, out + full * 1024, tail)
            else:
                return PAYLOAD
        out += count
        room -= count
    return OK


def unpack_out_of_line(data, starts, sizes, counts, int width, out, int bits):
    cdef Bytes source = Bytes(data), target = Bytes(out, True), first = Bytes(starts)
    cdef int64_t chunks = first.size // 8
    cdef Bytes length = column(sizes, chunks, 8), number = column(counts, chunks, 8)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>length.at
    cdef const int64_t* c = <int64_t*>number.at
    cdef int code = OK
    if not 0 <= width <= bits:
        check(WIDTH)
    with nogil:
        if bits == 8:
            code = unpack_out_of_line_of(source, a, b, c, chunks, width, <uint8_t*>target.at, target.size)
        elif bits == 16:
            code = unpack_out_of_line_of(source, a, b, c, chunks, width, <uint16_t*>target.at, target.size // 2)
        elif bits == 32:
            code = unpack_out_of_line_of(source, a, b, c, chunks, width, <uint32_t*>target.at, target.size // 4)
        elif bits == 64:
            code = unpack_out_of_line_of(source, a, b, c, chunks, width, <uint64_t*>target.at, target.size // 8)
    check(code)


# ------------------------------------------------------------------------------------------------------ twins of fsst.py

cdef enum:
    ESCAPE = 255
    HASH_BITS = 12
    HASH_SLOTS = 4096
    TOKENS = 512  # a code, or 256 + a literal byte
    MAX_SYMBOLS = 255
    ROUNDS = 5
    CANDIDATE_SLOTS = 32768
    MAX_CANDIDATES = 24576
    LITERAL = 1 << 12
    SINGLE_WORTH = 4

cdef struct Symbol:
    uint64_t word  # first byte lowest, zeros above
    int length

cdef struct Slot:
    uint64_t word
    uint64_t mask
    int32_t length
    int32_t code

cdef struct Matcher:
    Slot[4096] long_symbols  # 3 bytes or more, by a hash of their first three
    uint16_t[65536] short_symbols  # code, length << 8, and LITERAL, by the next two bytes
    uint16_t[256] single_symbols


cdef int check_offsets(const offset_t* offsets, int64_t values, int64_t size) noexcept nogil:
    """Whether (values + 1,) offsets ascend and lie within `size` bytes."""
    cdef int64_t i
    cdef bint bad = offsets[0] < 0 or offsets[values] > size
    for i in range(values):
        bad |= offsets[i + 1] < offsets[i]
    return OUTSIDE if bad else OK


cdef int decoded_limit(
    Bytes codes, const offset_t* offsets, int64_t values, const uint8_t* lengths, int64_t* limit
) noexcept nogil:
    """What codes expand to at most: exact but for escaped bytes."""
    cdef uint8_t[256] most
    cdef const uint8_t* at
    cdef int64_t i, count, a = 0, b = 0
    if check_offsets(offsets, values, codes.size):
        return OUTSIDE
    for i in range(256):
        most[i] = lengths[i] if lengths[i] else 1
    at = codes.at + offsets[0]
    count = offsets[values] - offsets[0]
    for i in range(0, count - 3, 4):
        a += most[at[i]] + most[at[i + 1]]
        b += most[at[i + 2]] + most[at[i + 3]]
    for i in range(count // 4 * 4, count):
        a += most[at[i]]
    limit[0] = a + b
    if sizeof(offset_t) == 4 and limit[0] > 0x7FFFFFFF:
        return exact_limit(at, count, most, limit)
    return OK


cdef int exact_limit(const uint8_t* codes, int64_t count, const uint8_t* most, int64_t* limit) noexcept nogil:
    """For 32-bit offsets, when escapes decide."""
    cdef int64_t at = 0, total = 0
    while at < count:
        if codes[at] == ESCAPE:
            at += 1
            total += 1
        else:
            total += most[codes[at]]
        at += 1
    limit[0] = total
    return TOO_LONG if total > 0x7FFFFFFF else OK


cdef int decode_of(
    const uint8_t* codes, const offset_t* offsets, int64_t values, const uint64_t* words, const uint8_t* lengths,
    uint8_t* out, offset_t* new_offsets,
) noexcept nogil:
    """`out` has decoded_limit() + 8 bytes; `lengths` is 0 where there is no symbol."""
    cdef int64_t i, at, end
    cdef uint8_t* cursor = out
    cdef uint32_t four
    cdef uint8_t code, bad = 0
    new_offsets[0] = 0
    at = offsets[0]
    for i in range(values):
        end = offsets[i + 1]
        while at < end:
            if at + 4 <= end:
                four = lt_load32(codes + at)
                # No byte of the word is 255.
                if lt_likely(((four & 0x7F7F7F7F) + 0x01010101) & four & <uint32_t>0x80808080 == 0):
                    code = four & 0xFF
                    lt_store64(cursor, words[code])
                    cursor += lengths[code]
                    bad |= <uint8_t>(lengths[code] - 1)
                    code = (four >> 8) & 0xFF
                    lt_store64(cursor, words[code])
                    cursor += lengths[code]
                    bad |= <uint8_t>(lengths[code] - 1)
                    code = (four >> 16) & 0xFF
                    lt_store64(cursor, words[code])
                    cursor += lengths[code]
                    bad |= <uint8_t>(lengths[code] - 1)
                    code = four >> 24
                    lt_store64(cursor, words[code])
                    cursor += lengths[code]
                    bad |= <uint8_t>(lengths[code] - 1)
                    at += 4
                    continue
            code = codes[at]
            at += 1
            if code != ESCAPE:
                lt_store64(cursor, words[code])
                cursor += lengths[code]
                bad |= <uint8_t>(lengths[code] - 1)
            else:
                if at == end:
                    return OPEN_ESCAPE
                cursor[0] = codes[at]
                cursor += 1
                at += 1
        new_offsets[i + 1] = <offset_t>(cursor - out)
    return NO_SYMBOL if bad & 0x80 else OK


def decompress(codes, offsets, int offset_bytes, words, lengths):
    cdef Bytes source = Bytes(codes), bound = Bytes(offsets), word = Bytes(words), length = Bytes(lengths)
    cdef int64_t values = bound.size // offset_bytes - 1, symbols = length.size, limit = 0, total = 0
    cdef uint64_t[256] word_of
    cdef uint8_t[256] length_of
    cdef int code = OK
    if values < 0 or symbols > MAX_SYMBOLS or word.size != 8 * symbols:
        raise ValueError("offsets or table of a wrong size")
    memset(word_of, 0, sizeof(word_of))
    memset(length_of, 0, sizeof(length_of))
    memcpy(word_of, word.at, word.size)
    memcpy(length_of, length.at, symbols)
    for i in range(symbols):
        if length_of[i] > 8:
            raise ValueError("a symbol has 1 to 8 bytes")
    with nogil:
        if offset_bytes == 4:
            code = decoded_limit(source, <int32_t*>bound.at, values, length_of, &limit)
        else:
            code = decoded_limit(source, <int64_t*>bound.at, values, length_of, &limit)
    check(code)
    out = np.empty(limit + 8, np.uint8)
    new_offsets = np.empty(values + 1, np.int32 if offset_bytes == 4 else np.int64)
    cdef Bytes target = Bytes(out, True), new_bound = Bytes(new_offsets, True)
    with nogil:
        if offset_bytes == 4:
            code = decode_of(
                source.at, <int32_t*>bound.at, values, word_of, length_of, target.at, <int32_t*>new_bound.at
            )
        else:
            code = decode_of(
                source.at, <int64_t*>bound.at, values, word_of, length_of, target.at, <int64_t*>new_bound.at
            )
    check(code)
    return out, new_offsets, limit


cdef inline uint64_t hash_slot(uint64_t word) noexcept nogil:
    return ((word & 0xFFFFFF) * <uint64_t>0x9E3779B97F4A7C15) >> (64 - HASH_BITS)


cdef inline uint64_t low_mask(int length) noexcept nogil:
    return (<uint64_t>0xFFFFFFFFFFFFFFFF) >> (64 - 8 * length)


cdef void build_matcher(Matcher* matcher, const Symbol* symbols, int count) noexcept nogil:
    cdef int i, j
    cdef uint64_t slot
    memset(matcher.long_symbols, 0, sizeof(matcher.long_symbols))
    for i in range(HASH_SLOTS):
        matcher.long_symbols[i].length = 99  # more than any value has left: never matches
    for i in range(256):
        matcher.single_symbols[i] = ESCAPE | 1 << 8 | LITERAL
    for i in range(count):
        if symbols[i].length == 1:
            matcher.single_symbols[symbols[i].word] = <uint16_t>(i | 1 << 8)
    for i in range(256):
        for j in range(256):
            matcher.short_symbols[i << 8 | j] = matcher.single_symbols[j]
    for i in range(count):
        if symbols[i].length == 2:
            matcher.short_symbols[symbols[i].word] = <uint16_t>(i | 2 << 8)
        elif symbols[i].length >= 3:
            slot = hash_slot(symbols[i].word)
            matcher.long_symbols[slot].word = symbols[i].word
            matcher.long_symbols[slot].mask = low_mask(symbols[i].length)
            matcher.long_symbols[slot].length = symbols[i].length
            matcher.long_symbols[slot].code = i


cdef inline int match(const Matcher* matcher, const uint8_t* at, int64_t left, int64_t room) noexcept nogil:
    """The code of the longest symbol at `at`, its length << 8, and LITERAL; `room` bytes can be read, `left` matched."""
    cdef uint64_t word = 0
    cdef const Slot* slot
    cdef int short
    if lt_likely(room >= 8):
        word = lt_load64(at)
    else:
        memcpy(&word, at, room)
    slot = &matcher.long_symbols[hash_slot(word)]
    if ((word ^ slot.word) & slot.mask) == 0 and slot.length <= left:
        return slot.code | slot.length << 8
    short = matcher.short_symbols[word & 0xFFFF]
    if left < 2:
        short = matcher.single_symbols[word & 0xFF]
    return short


cdef int64_t encode_of(
    const Matcher* matcher, const uint8_t* data, int64_t size, const int64_t* offsets, int64_t values,
    uint8_t* out, int64_t* new_offsets,
) noexcept nogil:
    """`out` has two bytes for each byte of the values, and one more."""
    cdef int64_t i, at = offsets[0], end
    cdef uint8_t* cursor = out
    cdef int found
    new_offsets[0] = 0
    for i in range(values):
        end = offsets[i + 1]
        while at < end:
            found = match(matcher, data + at, end - at, size - at)
            cursor[0] = <uint8_t>found
            cursor[1] = data[at]
            cursor += 1 + (found >> 12)
            at += (found >> 8) & 0xF
        new_offsets[i + 1] = cursor - out
    return cursor - out


def compress(data, offsets, words, lengths):
    """-> codes with slack behind them, offsets. `offsets` are int64."""
    cdef Bytes source = Bytes(data), bound = Bytes(offsets), word = Bytes(words), length = Bytes(lengths)
    cdef int64_t values = bound.size // 8 - 1, i
    cdef Symbol[256] symbols
    cdef Matcher* matcher
    cdef const int64_t* at = <int64_t*>bound.at
    if values < 0 or length.size > MAX_SYMBOLS or word.size != 8 * length.size:
        raise ValueError("offsets or table of a wrong size")
    check(check_offsets(at, values, source.size))
    for i in range(length.size):
        if not 1 <= length.at[i] <= 8:
            raise ValueError("a symbol has 1 to 8 bytes")
        symbols[i].length = length.at[i]
        symbols[i].word = lt_load64(word.at + 8 * i) & low_mask(length.at[i])
    codes = np.empty(2 * (at[values] - at[0]) + 2, np.uint8)
    new_offsets = np.empty(values + 1, np.int64)
    cdef Bytes target = Bytes(codes, True), new_bound = Bytes(new_offsets, True)
    matcher = <Matcher*>malloc(sizeof(Matcher))
    if matcher == NULL:
        raise MemoryError
    with nogil:
        build_matcher(matcher, symbols, <int>length.size)
        encode_of(matcher, source.at, source.size, at, values, target.at, <int64_t*>new_bound.at)
        free(matcher)
    return codes, new_offsets


cdef struct Candidate:
    uint64_t word
    int64_t gain
    int length


cdef struct Training:
    Matcher matcher
    Symbol[256] symbols
    int num_symbols
    uint32_t[512] counts
    uint16_t[262144] pairs  # token before << 9 | token
    Candidate[32768] candidates  # open addressing, length 0 is free
    int num_candidates


cdef inline Symbol spelled(const Training* training, int token) noexcept nogil:
    cdef Symbol symbol
    if token >= 256:
        symbol.word = token - 256
        symbol.length = 1
    else:
        symbol = training.symbols[token]
    return symbol


cdef void add_candidate(Training* training, uint64_t word, int length, int64_t gain) noexcept nogil:
    cdef uint64_t slot = ((word ^ <uint64_t>length) * <uint64_t>0x9E3779B97F4A7C15) >> 49
    cdef Candidate* candidate
    while True:
        candidate = &training.candidates[slot]
        if candidate.length == 0:
            if training.num_candidates < MAX_CANDIDATES:
                training.num_candidates += 1
                candidate.word, candidate.length, candidate.gain = word, length, gain
            return
        if candidate.word == word and candidate.length == length:
            candidate.gain += gain
            return
        slot = (slot + 1) % CANDIDATE_SLOTS


cdef int by_gain(const void* a, const void* b) noexcept nogil:
    """The larger gain first; then by spelling, so that files are reproducible."""
    cdef const Candidate* x = <const Candidate*>a
    cdef const Candidate* y = <const Candidate*>b
    if x.gain != y.gain:
        return -1 if x.gain > y.gain else 1
    if x.word != y.word:
        return -1 if x.word < y.word else 1
    return x.length - y.length


cdef void count_tokens(Training* training, const uint8_t* data, int64_t size, const int64_t* starts,
                       const int64_t* ends, int64_t pieces) noexcept nogil:
    cdef int64_t i, at
    cdef int found, token, before
    memset(training.counts, 0, sizeof(training.counts))
    memset(training.pairs, 0, sizeof(training.pairs))
    for i in range(pieces):
        at = starts[i]
        before = -1
        while at < ends[i]:
            found = match(&training.matcher, data + at, ends[i] - at, size - at)
            token = 256 + data[at] if found & LITERAL else found & 0xFF
            training.counts[token] += 1
            if before >= 0:
                if training.pairs[before << 9 | token] < 65535:
                    training.pairs[before << 9 | token] += 1
                # One byte more, should two whole symbols be too much.
                if (found >> 8 & 0xF) > 1 and training.pairs[before << 9 | 256 | data[at]] < 65535:
                    training.pairs[before << 9 | 256 | data[at]] += 1
            before = token
            at += found >> 8 & 0xF


cdef void gather_candidates(Training* training, int least) noexcept nogil:
    cdef int token, after
    cdef int64_t count
    cdef Symbol first, second
    cdef const uint16_t* row
    memset(training.candidates, 0, sizeof(training.candidates))
    training.num_candidates = 0
    for token in range(TOKENS):
        if training.counts[token] == 0:
            continue
        count = training.counts[token]
        first = spelled(training, token)
        # A byte without a symbol costs two, so that a single byte is worth more than its length says.
        add_candidate(training, first.word, first.length, count * (SINGLE_WORTH if first.length == 1 else first.length))
        if first.length == 8:
            continue
        row = &training.pairs[token << 9]
        for after in range(TOKENS):
            if row[after] >= least:
                second = spelled(training, after)
                second.length = min(first.length + second.length, 8)
                second.word = (first.word | second.word << 8 * first.length) & low_mask(second.length)
                add_candidate(training, second.word, second.length, <int64_t>row[after] * second.length)


cdef void choose_symbols(Training* training) noexcept nogil:
    """The most gainful candidates, of those that share a slot the first."""
    cdef uint8_t[4096] taken
    cdef int i, kept = 0
    cdef uint64_t slot
    cdef Candidate* candidate
    memset(taken, 0, sizeof(taken))
    for i in range(CANDIDATE_SLOTS):
        if training.candidates[i].length:
            training.candidates[kept] = training.candidates[i]
            kept += 1
    qsort(training.candidates, kept, sizeof(Candidate), by_gain)
    training.num_symbols = 0
    for i in range(kept):
        candidate = &training.candidates[i]
        if candidate.length >= 3:
            slot = hash_slot(candidate.word)
            if taken[slot]:
                continue
            taken[slot] = 1
        training.symbols[training.num_symbols].word = candidate.word
        training.symbols[training.num_symbols].length = candidate.length
        training.num_symbols += 1
        if training.num_symbols == MAX_SYMBOLS:
            return


def train(data, starts, ends):
    """A table for pieces of `data` -> (words, lengths). `starts` and `ends` are int64."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t pieces = first.size // 8, i
    cdef Bytes last = column(ends, pieces, 8)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>last.at
    for i in range(pieces):
        if not inside(a[i], b[i] - a[i], source.size):
            check(OUTSIDE)
    cdef Training* training = <Training*>calloc(1, sizeof(Training))
    if training == NULL:
        raise MemoryError
    with nogil:
        for i in range(ROUNDS):
            build_matcher(&training.matcher, training.symbols, training.num_symbols)
            count_tokens(training, source.at, source.size, a, b, pieces)
            gather_candidates(training, 2)
            choose_symbols(training)
    try:
        words = np.array([training.symbols[i].word for i in range(training.num_symbols)], np.uint64)
        lengths = np.array([training.symbols[i].length for i in range(training.num_symbols)], np.uint8)
    finally:
        free(training)
    return words, lengths
