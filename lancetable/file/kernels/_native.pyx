# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled twins of the kernels beside this file, under the same names.

Every function here is chosen by the Python function of the same name, whose NumPy form is the reference and whose
docstring is the contract. What is different: loops are C and run without the GIL. Sizes, offsets, counts and codes come
from files and are not believed: each is compared with the memory it leads to before that memory is touched. A loop that
meets a wrong one returns its code from the table below, and the caller raises CorruptFileError.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memset

import cython

import numpy as np

from lancetable.errors import CorruptFileError

cdef extern from *:
    """
    #include <string.h>
    #if defined(__SSE2__)
    #include <emmintrin.h>
    #endif
    #if defined(__GNUC__) || defined(__clang__)
    #define lt_likely(x) __builtin_expect(!!(x), 1)
    #define lt_popcount(x) ((int)__builtin_popcountll(x))
    #define lt_lowest(x) __builtin_ctzll(x)
    #else
    #define lt_likely(x) (x)
    static inline int lt_popcount(uint64_t x) {
        x -= (x >> 1) & 0x5555555555555555ULL;
        x = (x & 0x3333333333333333ULL) + ((x >> 2) & 0x3333333333333333ULL);
        x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
        return (int)((x * 0x0101010101010101ULL) >> 56);
    }
    static inline int lt_lowest(uint64_t x) { return lt_popcount((x & (0 - x)) - 1); }
    #endif
    /* Words at any address. */
    static inline uint16_t lt_load16(const uint8_t *at) { uint16_t x; memcpy(&x, at, 2); return x; }
    static inline uint32_t lt_load32(const uint8_t *at) { uint32_t x; memcpy(&x, at, 4); return x; }
    static inline uint64_t lt_load64(const uint8_t *at) { uint64_t x; memcpy(&x, at, 8); return x; }
    static inline void lt_store64(uint8_t *at, uint64_t x) { memcpy(at, &x, 8); }
    /* Bit k: whether the k-th of 16 levels is at most `low`. */
    static inline uint32_t lt_at_most(const uint8_t *at, uint16_t low) {
    #if defined(__SSE2__)
        __m128i walls = _mm_set1_epi16((short)low), zero = _mm_setzero_si128();
        __m128i a = _mm_loadu_si128((const __m128i *)at), b = _mm_loadu_si128((const __m128i *)(at + 16));
        a = _mm_cmpeq_epi16(_mm_subs_epu16(a, walls), zero);
        b = _mm_cmpeq_epi16(_mm_subs_epu16(b, walls), zero);
        return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(a, b));
    #else
        uint32_t bits = 0;
        for (int k = 0; k < 16; k++) bits |= (uint32_t)(lt_load16(at + 2 * k) <= low) << k;
        return bits;
    #endif
    }
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
    int lt_lowest(uint64_t x) nogil
    uint32_t lt_at_most(const uint8_t* at, uint16_t low) nogil
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
    ROWS = 16

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
    ROWS: "rows of a chunk differ from the repetition index",
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
        try:
            PyObject_GetBuffer(owner, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        except (BufferError, ValueError):
            if writable:
                raise
            PyObject_GetBuffer(np.ascontiguousarray(owner), &self.view, PyBUF_SIMPLE)
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


cdef int64_t fewest_runs(const word_t* values, int64_t count, int64_t enough) noexcept nogil:
    """Runs of equal values; only about, from slices spread over them, where they seem to be twice `enough`."""
    cdef int64_t i, piece, at, changes = 0
    if count > 4096:
        for piece in range(16):
            at = piece * (count - 256) // 15
            for i in range(at + 1, at + 256):
                changes += values[i] != values[i - 1]
        changes = changes * count // (16 * 255)
        if 1 + changes >= 2 * enough:
            return 1 + changes
        changes = 0
    for i in range(1, count):
        changes += values[i] != values[i - 1]
    return 1 + changes


cdef void number_chunks_of(const word_t* values, int64_t count, const int64_t* sizes, uint8_t* out) noexcept nogil:
    """Chunks of packed blocks, each behind its header of eight bytes."""
    cdef int64_t block
    cdef word_t* at
    for block in range((count + 1023) // 1024):
        at = <word_t*>(out + 8)
        at[0] = <word_t>((sizes[block] - <int64_t>sizeof(word_t)) // 128)
        pack_block_at(values + block * 1024, count - block * 1024, at[0], at + 1)
        out += 8 + (sizes[block] + 7) // 8 * 8


def number_page(values, int bits, int64_t count, int64_t max_values, int64_t target_bytes, bint large):
    """The chunks of a mini-block page of numbers without levels, bit-packed or plain, whatever is smaller.

    -> whether they are packed, the words about the chunks, the chunks; None if runs of equal values may be smaller, or
    for values at an odd address.
    """
    cdef Bytes source = Bytes(values)
    cdef int64_t plain = (count * bits + 7) // 8, packed = plain, runs = plain, blocks = (count + 1023) // 1024
    cdef int64_t chunks = blocks, per_chunk = 1024, chunk_bytes = 0, i, at, size, room, total = 0
    cdef bint numbers = bits in (8, 16, 32, 64)
    if bits <= 0 or count <= 0 or plain > source.size or (bits % 8 and bits != 1) or 16 * bits > 8 * target_bytes:
        raise ValueError("values of a wrong width or number")
    if numbers and <uint64_t>source.at % <uint64_t>(bits // 8):
        return None
    sizes = np.empty(blocks, np.int64)
    cdef Bytes held = Bytes(sizes, True)
    cdef int64_t* block_sizes = <int64_t*>held.at
    if numbers and max_values >= 1024:
        with nogil:
            if bits == 8:
                packed = block_sizes_of(<uint8_t*>source.at, count, block_sizes)
                runs = fewest_runs(<uint8_t*>source.at, count, 1 + min(packed, plain) // 2)
            elif bits == 16:
                packed = block_sizes_of(<uint16_t*>source.at, count, block_sizes)
                runs = fewest_runs(<uint16_t*>source.at, count, 1 + min(packed, plain) // 3)
            elif bits == 32:
                packed = block_sizes_of(<uint32_t*>source.at, count, block_sizes)
                runs = fewest_runs(<uint32_t*>source.at, count, 1 + min(packed, plain) // 5)
            else:
                packed = block_sizes_of(<uint64_t*>source.at, count, block_sizes)
                runs = fewest_runs(<uint64_t*>source.at, count, 1 + min(packed, plain) // 9)
        if runs * (bits // 8 + 1) < min(packed, plain):
            return None
    cdef bint is_packed = packed < plain
    if is_packed:
        for i in range(chunks):
            total += 8 + (block_sizes[i] + 7) // 8 * 8
    else:
        per_chunk = 8
        while 2 * per_chunk <= max_values and 2 * per_chunk * bits <= 8 * target_bytes:
            per_chunk *= 2
        chunks = (count + per_chunk - 1) // per_chunk
        chunk_bytes = per_chunk * bits // 8
        total = 8 * chunks + (chunks - 1) * ((chunk_bytes + 7) // 8 * 8)
        total += (plain - (chunks - 1) * chunk_bytes + 7) // 8 * 8
    words = np.empty(chunks, np.uint32 if large else np.uint16)
    data = np.empty(total, np.uint8)
    cdef Bytes word = Bytes(words, True), target = Bytes(data, True)
    cdef uint8_t* out = target.at
    cdef int64_t log = 0
    while 1 << (log + 1) <= per_chunk:
        log += 1
    with nogil:
        at = 0
        for i in range(chunks):
            if is_packed:
                size = block_sizes[i]
            elif i + 1 < chunks:
                size = chunk_bytes
            else:
                size = plain - at
            # No levels, one buffer of values, and what fills up to eight bytes.
            memset(out, 0xFE, 8)
            memset(out, 0, 2)
            memcpy(out + 2, &size, 4 if large else 2)
            room = 8 + (size + 7) // 8 * 8
            if size % 8:
                memset(out + room - 8, 0xFE, 8)
            if not is_packed:
                memcpy(out + 8, source.at + at, size)
                at += size
            if large:
                (<uint32_t*>word.at)[i] = <uint32_t>((room // 8 - 1) << 4 | (log if i + 1 < chunks else 0))
            else:
                (<uint16_t*>word.at)[i] = <uint16_t>((room // 8 - 1) << 4 | (log if i + 1 < chunks else 0))
            out += room
        if is_packed:
            if bits == 8:
                number_chunks_of(<uint8_t*>source.at, count, block_sizes, target.at)
            elif bits == 16:
                number_chunks_of(<uint16_t*>source.at, count, block_sizes, target.at)
            elif bits == 32:
                number_chunks_of(<uint32_t*>source.at, count, block_sizes, target.at)
            else:
                number_chunks_of(<uint64_t*>source.at, count, block_sizes, target.at)
    return is_packed, words, data


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
    SORTED_FIRST = 1024
    LITERAL = 1 << 12
    SINGLE_WORTH = 4

cdef int64_t NEVER = 0x7FFFFFFFFFFFFFFF

cdef struct Symbol:
    uint64_t word  # first byte lowest, zeros above
    int length

cdef struct Slot:
    uint64_t word
    uint64_t mask
    int64_t length
    int64_t code

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
    """-> bytes with slack behind them, offsets."""
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
    return out, new_offsets


cdef inline uint64_t hash_slot(uint64_t word) noexcept nogil:
    return ((word & 0xFFFFFF) * <uint64_t>0x9E3779B97F4A7C15) >> (64 - HASH_BITS)


cdef inline uint64_t low_mask(int length) noexcept nogil:
    return (<uint64_t>0xFFFFFFFFFFFFFFFF) >> (64 - 8 * length)


cdef void build_matcher(Matcher* matcher, const Symbol* symbols, int count) noexcept nogil:
    cdef int i, j
    cdef uint64_t slot
    memset(matcher.long_symbols, 0, sizeof(matcher.long_symbols))
    for i in range(HASH_SLOTS):
        matcher.long_symbols[i].length = NEVER  # more than any value has left: never matches
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
        return <int>(slot.code | slot.length << 8)
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
    cdef int best, gainful
    cdef int64_t least = 0
    memset(taken, 0, sizeof(taken))
    for i in range(CANDIDATE_SLOTS):
        if training.candidates[i].length:
            training.candidates[kept] = training.candidates[i]
            kept += 1
    # The best of them are sorted first, which nearly always is enough.
    best = kept
    if kept > SORTED_FIRST:
        least = 1
        for i in range(kept):
            while training.candidates[i].gain >= least:
                least <<= 1
        gainful = 0
        while gainful < SORTED_FIRST and least > 1:
            least >>= 1
            gainful = 0
            for i in range(kept):
                gainful += training.candidates[i].gain >= least
        best = 0
        for i in range(kept):
            if training.candidates[i].gain >= least:
                training.candidates[best], training.candidates[i] = training.candidates[i], training.candidates[best]
                best += 1
    qsort(training.candidates, best, sizeof(Candidate), by_gain)
    training.num_symbols = 0
    for i in range(kept):
        if i == best:
            qsort(training.candidates + best, kept - best, sizeof(Candidate), by_gain)
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


# ------------------------------------------------------------------------------------------------- twins of miniblock.py


def chunk_headers(data, starts, sizes, int num_level_buffers, int num_buffers, bint large):
    """-> numbers of levels, sizes and positions, or None if a chunk is not as its header says."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t chunks = first.size // 8, i, at, end, header
    cdef Bytes length = column(sizes, chunks, 8)
    cdef int64_t every = num_level_buffers + num_buffers, k, size
    cdef bint bad = False
    if num_level_buffers < 0 or num_buffers < 0:
        raise ValueError("a negative number of buffers")
    num_levels = np.empty(chunks, np.int64)
    found = np.empty((every, chunks), np.int64)
    positions = np.empty((every, chunks), np.int64)
    cdef Bytes level_bytes = Bytes(num_levels, True), size_bytes = Bytes(found, True), at_bytes = Bytes(positions, True)
    cdef int64_t* level_of = <int64_t*>level_bytes.at
    cdef int64_t* size_of = <int64_t*>size_bytes.at
    cdef int64_t* at_of = <int64_t*>at_bytes.at
    cdef const uint8_t* cursor
    header = (2 + 2 * num_level_buffers + (4 if large else 2) * num_buffers + 7) // 8 * 8
    with nogil:
        for i in range(chunks):
            at = (<int64_t*>first.at)[i]
            size = (<int64_t*>length.at)[i]
            if size < header or not inside(at, size, source.size):
                bad = True
                break
            end = at + size
            cursor = source.at + at
            level_of[i] = lt_load16(cursor)
            cursor += 2
            at += header
            for k in range(every):
                if large and k >= num_level_buffers:
                    size = lt_load32(cursor)
                    cursor += 4
                else:
                    size = lt_load16(cursor)
                    cursor += 2
                size_of[k * chunks + i] = size
                at_of[k * chunks + i] = at
                at += (size + 7) & ~<int64_t>7
            bad |= at != end
    return None if bad else (num_levels, found, positions)


cdef int64_t total_of(const int64_t* starts, const int64_t* sizes, int64_t count, int64_t size) noexcept nogil:
    """Bytes of all pieces; -1 if one of them lies outside."""
    cdef int64_t i, total = 0
    for i in range(count):
        if not inside(starts[i], sizes[i], size) or total > (<int64_t>1 << 62):
            return -1
        total += sizes[i]
    return total


cdef void join_of(
    const uint8_t* data, const int64_t* starts, const int64_t* sizes, int64_t count, int64_t size,
    uint8_t* out, int64_t total,
) noexcept nogil:
    """Pieces within `size` bytes, side by side in `total` bytes."""
    cdef int64_t i, left
    for i in range(count):
        left = min(total, size - starts[i])
        lt_copy(out, data + starts[i], sizes[i], left)
        out += sizes[i]
        total -= sizes[i]


def join_pieces(data, starts, sizes):
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t count = first.size // 8, total
    cdef Bytes length = column(sizes, count, 8)
    with nogil:
        total = total_of(<int64_t*>first.at, <int64_t*>length.at, count, source.size)
    if total < 0:
        check(OUTSIDE)
    out = np.empty(total, np.uint8)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        join_of(source.at, <int64_t*>first.at, <int64_t*>length.at, count, source.size, target.at, total)
    return out


cdef int variable_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, int64_t chunks,
    offset_t* offsets, int64_t* firsts, int64_t* lengths,
) noexcept nogil:
    cdef int64_t i, k, base = 0, head, before, end = 0
    cdef const uint8_t* stored
    offsets[0] = 0
    offsets += 1
    for i in range(chunks):
        head = (counts[i] + 1) * <int64_t>sizeof(offset_t)
        if not inside(starts[i], sizes[i], data.size):
            return OUTSIDE
        if sizes[i] < head:
            return FIRST_OFFSET
        stored = data.at + starts[i]
        before = lt_load32(stored) if sizeof(offset_t) == 4 else <int64_t>lt_load64(stored)
        if before < head:
            return FIRST_OFFSET
        firsts[i] = starts[i] + before
        base -= before
        for k in range(counts[i]):
            stored += sizeof(offset_t)
            end = lt_load32(stored) if sizeof(offset_t) == 4 else <int64_t>lt_load64(stored)
            if end < before:
                return DECREASE
            offsets[k] = <offset_t>(base + end)
            before = end
        if before > sizes[i]:
            return OUTSIDE
        base += before
        lengths[i] = before + starts[i] - firsts[i]
        offsets += counts[i]
        if sizeof(offset_t) == 4 and base > 0x7FFFFFFF:
            return TOO_LONG
    return OK


def variable(data, starts, sizes, counts, int offset_bytes):
    """-> offsets, and where the bytes of each chunk are: positions and sizes."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t chunks = first.size // 8, total = 0, i
    cdef Bytes length = column(sizes, chunks, 8), number = column(counts, chunks, 8)
    for i in range(chunks):
        # A value takes up an offset.
        if not 0 <= (<int64_t*>number.at)[i] <= source.size // offset_bytes:
            check(OUTSIDE)
        total += (<int64_t*>number.at)[i]
    if total > source.size // offset_bytes:
        check(OUTSIDE)
    offsets = np.empty(total + 1, np.int32 if offset_bytes == 4 else np.int64)
    firsts = np.empty(chunks, np.int64)
    lengths = np.empty(chunks, np.int64)
    cdef Bytes target = Bytes(offsets, True), begin = Bytes(firsts, True), size = Bytes(lengths, True)
    cdef int code
    with nogil:
        if offset_bytes == 4:
            code = variable_of(
                source, <int64_t*>first.at, <int64_t*>length.at, <int64_t*>number.at, chunks,
                <int32_t*>target.at, <int64_t*>begin.at, <int64_t*>size.at,
            )
        else:
            code = variable_of(
                source, <int64_t*>first.at, <int64_t*>length.at, <int64_t*>number.at, chunks,
                <int64_t*>target.at, <int64_t*>begin.at, <int64_t*>size.at,
            )
    check(code)
    return offsets, firsts, lengths


cdef int run_lengths_of(
    const word_t* values, const uint8_t* lengths, const int64_t* runs, int64_t num_runs, const int64_t* counts,
    int64_t chunks, word_t* out, int64_t room,
) noexcept nogil:
    cdef int64_t i, k, j, left, length
    cdef int64_t slack = 8 // <int64_t>sizeof(word_t)  # values in the word that is stored at once
    cdef word_t value
    cdef uint64_t word
    for i in range(chunks):
        left = counts[i]
        if runs[i] < 0 or runs[i] > num_runs or left < 0 or left > room:
            return OUTSIDE
        num_runs -= runs[i]
        for k in range(runs[i]):
            length = lengths[k]
            if length == 0:
                return ZERO_RUN
            length = min(length, left)
            value = values[k]
            if lt_likely(length + slack <= room):
                word = value
                if sizeof(word_t) == 1:
                    word |= word << 8
                if sizeof(word_t) <= 2:
                    word |= word << 16
                if sizeof(word_t) <= 4:
                    word |= word << 32
                j = 0
                while j < length:
                    lt_store64(<uint8_t*>(out + j), word)
                    j += slack
            else:
                for j in range(length):
                    out[j] = value
            out += length
            left -= length
            room -= length
        if left:
            return SHORT_RUNS
        values += runs[i]
        lengths += runs[i]
    return OK


def run_lengths(values, lengths, runs, counts, out, int width):
    cdef Bytes source = Bytes(values), length = Bytes(lengths), run = Bytes(runs), target = Bytes(out, True)
    cdef int64_t chunks = run.size // 8, num_runs = length.size
    cdef Bytes number = column(counts, chunks, 8)
    cdef const int64_t* r = <int64_t*>run.at
    cdef const int64_t* c = <int64_t*>number.at
    cdef int code = OK
    if source.size != num_runs * width or <uint64_t>source.at % <uint64_t>width:
        raise ValueError("one aligned value for each run length was expected")
    with nogil:
        if width == 1:
            code = run_lengths_of(source.at, length.at, r, num_runs, c, chunks, target.at, target.size)
        elif width == 2:
            code = run_lengths_of(
                <uint16_t*>source.at, length.at, r, num_runs, c, chunks, <uint16_t*>target.at, target.size // 2
            )
        elif width == 4:
            code = run_lengths_of(
                <uint32_t*>source.at, length.at, r, num_runs, c, chunks, <uint32_t*>target.at, target.size // 4
            )
        elif width == 8:
            code = run_lengths_of(
                <uint64_t*>source.at, length.at, r, num_runs, c, chunks, <uint64_t*>target.at, target.size // 8
            )
    check(code)


cdef void join_streams(const uint8_t* streams, int64_t count, word_t* out) noexcept nogil:
    """sizeof(word) streams of `count` bytes each."""
    cdef int64_t i
    cdef int byte
    for i in range(count):
        out[i] = streams[i]
    for byte in range(1, <int>sizeof(word_t)):
        for i in range(count):
            out[i] |= <word_t>(<word_t>streams[byte * count + i] << 8 * byte)


cdef int byte_streams_of(
    Bytes data, const int64_t* starts, const int64_t* counts, int64_t chunks, word_t* out, int64_t room
) noexcept nogil:
    cdef int64_t i, first, part
    for i in range(chunks):
        if counts[i] < 0 or counts[i] > room or not inside(starts[i], counts[i] * sizeof(word_t), data.size):
            return OUTSIDE
        join_streams(data.at + starts[i], counts[i], out)
        out += counts[i]
        room -= counts[i]
    return OK


def byte_streams(data, starts, counts, out, int width):
    cdef Bytes source = Bytes(data), first = Bytes(starts), target = Bytes(out, True)
    cdef int64_t chunks = first.size // 8
    cdef Bytes number = column(counts, chunks, 8)
    cdef int code = OK
    with nogil:
        if width == 4:
            code = byte_streams_of(
                source, <int64_t*>first.at, <int64_t*>number.at, chunks, <uint32_t*>target.at, target.size // 4
            )
        elif width == 8:
            code = byte_streams_of(
                source, <int64_t*>first.at, <int64_t*>number.at, chunks, <uint64_t*>target.at, target.size // 8
            )
    check(code)


# ---------------------------------------------------------------------------------------------------- twins of levels.py


cdef uint64_t mask_at_most(const uint8_t* levels, int64_t count, uint16_t low) noexcept nogil:
    """Bit k: whether level k of up to 64 is at most `low`; zeros behind the last."""
    cdef uint64_t mask = 0
    cdef int64_t k = 0
    if lt_likely(count >= 64):
        for k in range(0, 64, 16):
            mask |= <uint64_t>lt_at_most(levels + 2 * k, low) << k
    else:
        for k in range(count):
            mask |= <uint64_t>(lt_load16(levels + 2 * k) <= low) << k
    return mask


cdef int64_t validity_of(const uint8_t* levels, int64_t count, uint16_t low, uint8_t* bitmap) noexcept nogil:
    """The bitmap, and how many bits are set."""
    cdef int64_t i, valid = 0
    cdef uint64_t mask
    for i in range(0, count, 64):
        mask = mask_at_most(levels + 2 * i, count - i, low)
        valid += lt_popcount(mask)
        if count - i >= 64:
            lt_store64(bitmap + i // 8, mask)
        else:
            memcpy(bitmap + i // 8, &mask, (count - i + 7) // 8)
    return valid


def validity(definition, uint16_t low):
    """-> bitmap, number of zeros."""
    cdef Bytes source = Bytes(definition)
    cdef int64_t count = source.size // 2, valid
    bitmap = np.empty((count + 7) // 8, np.uint8)
    cdef Bytes target = Bytes(bitmap, True)
    with nogil:
        valid = validity_of(source.at, count, low, target.at)
    return bitmap, count - valid


cdef struct ListLayer:
    int64_t starts
    int64_t lists
    int64_t nulls


cdef void list_layer_of(
    const uint8_t* repetition, const uint8_t* definition, int64_t count, int low, int high, int slots, int null,
    int64_t* offsets, uint8_t* valid, uint16_t* outer, uint16_t* levels, ListLayer* found,
) noexcept nogil:
    cdef int64_t first, at, hidden = 0, starts = 0, lists = 0, nulls = 0
    cdef uint64_t mask
    cdef uint16_t level
    cdef bint missing
    for first in range(0, count, 64):
        # Lists start where the repetition level is not 0; everything between two of them is an item.
        mask = ~mask_at_most(repetition + 2 * first, count - first, 0)
        if count - first < 64:
            mask &= (<uint64_t>1 << (count - first)) - 1
        while mask:
            at = first + lt_lowest(mask)
            mask &= mask - 1
            level = lt_load16(definition + 2 * at)
            outer[starts] = lt_load16(repetition + 2 * at) - 1
            levels[starts] = level
            starts += 1
            # Written in any case; the next list takes the place if this is not one.
            missing = (level == null and null != 0) or level > high
            offsets[lists] = at - hidden
            valid[lists] = not missing
            nulls += missing and level <= slots
            lists += level <= slots
            hidden += level > low
    offsets[lists] = count - hidden
    found.starts, found.lists, found.nulls = starts, lists, nulls


def list_layer(repetition, definition, int low, int high, int slots, int null):
    """-> offsets, validity, levels of the next layer, number of null lists."""
    cdef Bytes again = Bytes(repetition)
    cdef int64_t count = again.size // 2, i, starts = 0
    cdef Bytes level = column(definition, count, 2)
    cdef ListLayer found
    if count and lt_load16(again.at) == 0:
        check(NO_LIST)
    with nogil:
        for i in range(0, count, 64):
            starts -= lt_popcount(mask_at_most(again.at + 2 * i, count - i, 0))
        starts += count
    offsets = np.empty(starts + 1, np.int64)
    valid = np.empty(starts + 1, np.bool_)
    outer = np.empty(starts, np.uint16)
    levels = np.empty(starts, np.uint16)
    cdef Bytes a = Bytes(offsets, True), b = Bytes(valid, True), c = Bytes(outer, True), d = Bytes(levels, True)
    with nogil:
        list_layer_of(
            again.at, level.at, count, low, high, slots, null,
            <int64_t*>a.at, b.at, <uint16_t*>c.at, <uint16_t*>d.at, &found,
        )
    return offsets[: found.lists + 1], valid[: found.lists], outer, levels, found.nulls


# --------------------------------------------------------------------------------------------------- twins of fullzip.py


cdef inline uint64_t load_word(const uint8_t* at, int width) noexcept nogil:
    if width == 1:
        return at[0]
    if width == 2:
        return lt_load16(at)
    if width == 4:
        return lt_load32(at)
    return lt_load64(at) if width == 8 else 0


cdef int walk_of(
    Bytes data, const int64_t* starts, const int64_t* ends, int64_t rows, int control, uint64_t mask, uint64_t top,
    int64_t value_bytes, int length_bytes, uint32_t* words, int64_t* positions, int64_t* sizes, int64_t* first,
    int64_t room,
) noexcept nogil:
    """Entries of all rows; only counted where there is no `room` for them."""
    cdef int64_t i, at, end, size, entries = 0
    cdef uint64_t word, length
    for i in range(rows):
        at, end = starts[i], ends[i]
        if not inside(at, end - at, data.size):
            return OUTSIDE
        first[i] = entries
        while at < end:
            if control > end - at:
                return CUT_SHORT
            word = load_word(data.at + at, control)
            at += control
            size = -1
            if length_bytes:
                if word & mask == 0:
                    if length_bytes > end - at:
                        return CUT_SHORT
                    length = load_word(data.at + at, length_bytes)
                    at += length_bytes
                    if length > <uint64_t>(end - at):
                        return CUT_SHORT
                    size = <int64_t>length
            elif word & mask <= top:
                size = value_bytes
                if size > end - at:
                    return CUT_SHORT
            if entries < room:
                words[entries] = <uint32_t>word
                positions[entries] = at
                sizes[entries] = size
            entries += 1
            if size > 0:
                at += size
    first[rows] = entries
    return OK


def walk(data, starts, ends, int control, int bits_def, int top, int64_t value_bytes, int length_bytes):
    cdef Bytes source = Bytes(data), begin = Bytes(starts)
    cdef int64_t rows = begin.size // 8, entries
    cdef Bytes end = column(ends, rows, 8)
    cdef uint64_t mask = (<uint64_t>1 << bits_def) - 1
    cdef int code
    if control not in (0, 1, 2, 4) or length_bytes not in (0, 4, 8) or not 0 <= bits_def <= 32:
        raise ValueError("words of an impossible width")
    if value_bytes < 0 or top < 0 or (control == 0 and length_bytes == 0):
        raise ValueError("entries that take no place")
    first = np.empty(rows + 1, np.int64)
    cdef Bytes target = Bytes(first, True)
    cdef int64_t* f = <int64_t*>target.at
    with nogil:
        code = walk_of(
            source, <int64_t*>begin.at, <int64_t*>end.at, rows, control, mask, top, value_bytes, length_bytes,
            NULL, NULL, NULL, f, 0,
        )
    check(code)
    entries = f[rows]
    words = np.empty(entries, np.uint32)
    positions = np.empty(entries, np.int64)
    sizes = np.empty(entries, np.int64)
    cdef Bytes a = Bytes(words, True), b = Bytes(positions, True), c = Bytes(sizes, True)
    with nogil:
        code = walk_of(
            source, <int64_t*>begin.at, <int64_t*>end.at, rows, control, mask, top, value_bytes, length_bytes,
            <uint32_t*>a.at, <int64_t*>b.at, <int64_t*>c.at, f, entries,
        )
    check(code)
    return words, positions, sizes, first


# ------------------------------------------------------------------------------------------------ twins of picks.py

# How the levels of a chunk are stored; the width of packed ones stands above.
cdef enum:
    FLAT = 1
    INLINE = 2
    OUT_OF_LINE = 3
    RUNS = 4
    WIDTH_SHIFT = 8


cdef int place_in(int64_t start, int64_t size, int64_t count, int64_t place, int64_t room) noexcept nogil:
    """Whether a piece lies within `room` bytes and a place within its values."""
    return OK if inside(start, size, room) and 0 <= place < count else OUTSIDE


def pick_fixed(data, starts, sizes, counts, places, int64_t width):
    """-> the bytes of one value of `width` bytes from each piece."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    if not 0 <= width <= <int64_t>1 << 32:
        raise ValueError("an impossible width")
    out = np.empty(rows * width, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(rows):
            at = (<int64_t*>first.at)[i]
            code = place_in(
                at, (<int64_t*>length.at)[i], (<int64_t*>number.at)[i], (<int64_t*>place.at)[i], source.size
            )
            if code:
                break
            if width and (<int64_t*>number.at)[i] > source.size // width:
                code = PAYLOAD
                break
            if (<int64_t*>length.at)[i] != (<int64_t*>number.at)[i] * width:
                code = PAYLOAD
                break
            at += (<int64_t*>place.at)[i] * width
            if width == 8:
                memcpy(target.at + i * 8, source.at + at, 8)
            elif width == 4:
                memcpy(target.at + i * 4, source.at + at, 4)
            else:
                memcpy(target.at + i * width, source.at + at, width)
    check(code)
    return out


def pick_bits(data, starts, sizes, counts, places):
    """-> a bitmap of one bit from each piece."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at, k
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    out = np.zeros((rows + 7) // 8, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(rows):
            at, k = (<int64_t*>first.at)[i], (<int64_t*>place.at)[i]
            code = place_in(at, (<int64_t*>length.at)[i], (<int64_t*>number.at)[i], k, source.size)
            if code:
                break
            if (<int64_t*>length.at)[i] != ((<int64_t*>number.at)[i] + 7) // 8:
                code = PAYLOAD
                break
            target.at[i >> 3] |= (source.at[at + (k >> 3)] >> (k & 7) & 1) << (i & 7)
    check(code)
    return out


cdef inline word_t value_of(const uint8_t* packed, int width, int64_t place, word_t kind) noexcept nogil:
    """One value of a block of 1,024; `kind` only tells the type."""
    cdef int bits = 8 * sizeof(word_t)
    cdef int lanes = 1024 // bits
    cdef int rest = <int>(place & 127), lane = rest % lanes
    cdef int row = ROW_ORDER[(rest - lane) // 16] * 8 + <int>(place >> 7)
    cdef int bit = row * width, shift = row * width % bits
    cdef word_t low, high = 0
    if width == 0:
        return 0
    packed += (bit // bits * lanes + lane) * <int>sizeof(word_t)
    memcpy(&low, packed, sizeof(word_t))
    low = low >> shift
    if shift + width > bits:
        memcpy(&high, packed + lanes * <int>sizeof(word_t), sizeof(word_t))
        low = low | <word_t>(high << (bits - shift))
    return low & ((<word_t>~<word_t>0) >> (bits - width))


cdef int pick_inline_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, const int64_t* places, int64_t rows,
    word_t* out,
) noexcept nogil:
    cdef int64_t i, at
    cdef word_t width
    for i in range(rows):
        at = starts[i]
        if place_in(at, sizes[i], counts[i], places[i], data.size) or counts[i] > 1024:
            return OUTSIDE
        if sizes[i] < <int64_t>sizeof(word_t):
            return PAYLOAD
        memcpy(&width, data.at + at, sizeof(word_t))
        if width > 8 * sizeof(word_t):
            return WIDTH
        if sizes[i] != <int64_t>(sizeof(word_t) + 128 * width):
            return PAYLOAD
        out[i] = value_of(data.at + at + sizeof(word_t), <int>width, places[i], <word_t>0)
    return OK


def pick_inline(data, starts, sizes, counts, places, int bits):
    """-> one value of each inline bit-packed piece."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    out = np.empty(rows * bits // 8, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>length.at
    cdef const int64_t* c = <int64_t*>number.at
    cdef const int64_t* d = <int64_t*>place.at
    cdef int code = OK
    with nogil:
        if bits == 8:
            code = pick_inline_of(source, a, b, c, d, rows, <uint8_t*>target.at)
        elif bits == 16:
            code = pick_inline_of(source, a, b, c, d, rows, <uint16_t*>target.at)
        elif bits == 32:
            code = pick_inline_of(source, a, b, c, d, rows, <uint32_t*>target.at)
        elif bits == 64:
            code = pick_inline_of(source, a, b, c, d, rows, <uint64_t*>target.at)
    check(code)
    return out


cdef int pick_out_of_line_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, const int64_t* places, int64_t rows,
    int width, word_t* out,
) noexcept nogil:
    cdef int64_t i, at, full, tail, rest, place
    for i in range(rows):
        at, place = starts[i], places[i]
        if place_in(at, sizes[i], counts[i], place, data.size):
            return OUTSIDE
        full, tail = counts[i] // 1024, counts[i] % 1024
        if full > data.size // 128 and width:
            return PAYLOAD
        rest = sizes[i] - full * 128 * width
        if rest < 0 or (tail == 0 and rest != 0):
            return PAYLOAD
        if tail and rest != tail * <int64_t>sizeof(word_t) and rest != 128 * width:
            return PAYLOAD
        at += place // 1024 * 128 * width
        if place // 1024 == full and rest == tail * <int64_t>sizeof(word_t):
            memcpy(&out[i], data.at + at + place % 1024 * <int64_t>sizeof(word_t), sizeof(word_t))
        else:
            out[i] = value_of(data.at + at, width, place % 1024, <word_t>0)
    return OK


def pick_out_of_line(data, starts, sizes, counts, places, int width, int bits):
    """-> one value of each out-of-line bit-packed piece."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    if not 0 <= width <= bits:
        check(WIDTH)
    out = np.empty(rows * bits // 8, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>length.at
    cdef const int64_t* c = <int64_t*>number.at
    cdef const int64_t* d = <int64_t*>place.at
    cdef int code = OK
    with nogil:
        if bits == 8:
            code = pick_out_of_line_of(source, a, b, c, d, rows, width, <uint8_t*>target.at)
        elif bits == 16:
            code = pick_out_of_line_of(source, a, b, c, d, rows, width, <uint16_t*>target.at)
        elif bits == 32:
            code = pick_out_of_line_of(source, a, b, c, d, rows, width, <uint32_t*>target.at)
        elif bits == 64:
            code = pick_out_of_line_of(source, a, b, c, d, rows, width, <uint64_t*>target.at)
    check(code)
    return out


def pick_variable(data, starts, sizes, counts, places, int offset_bytes):
    """-> where the bytes of one value of each piece begin and end."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at, size, head, before, end
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    begins = np.empty(rows, np.int64)
    ends = np.empty(rows, np.int64)
    cdef Bytes begin = Bytes(begins, True), stop = Bytes(ends, True)
    cdef const uint8_t* stored
    cdef int code = OK
    if offset_bytes not in (4, 8):
        raise ValueError("offsets of an impossible width")
    with nogil:
        for i in range(rows):
            at, size = (<int64_t*>first.at)[i], (<int64_t*>length.at)[i]
            code = place_in(at, size, (<int64_t*>number.at)[i], (<int64_t*>place.at)[i], source.size)
            if code:
                break
            if (<int64_t*>number.at)[i] >= size // offset_bytes:
                code = FIRST_OFFSET
                break
            head = ((<int64_t*>number.at)[i] + 1) * offset_bytes
            stored = source.at + at + (<int64_t*>place.at)[i] * offset_bytes
            if offset_bytes == 4:
                before, end = lt_load32(stored), lt_load32(stored + 4)
            else:
                before, end = <int64_t>lt_load64(stored), <int64_t>lt_load64(stored + 8)
            if before < head:
                code = FIRST_OFFSET
                break
            if end < before:
                code = DECREASE
                break
            if end > size:
                code = OUTSIDE
                break
            (<int64_t*>begin.at)[i] = at + before
            (<int64_t*>stop.at)[i] = at + end
    check(code)
    return begins, ends


def pick_runs(data, value_starts, value_sizes, starts, sizes, counts, places, int width):
    """-> one value of each piece of run values and run lengths. Neighbours from one piece go on where the last ended."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at, k = 0, reached = 0, where = -1, runs
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    cdef Bytes value_at = column(value_starts, rows, 8), value_size = column(value_sizes, rows, 8)
    out = np.empty(rows * width, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int64_t before = -1
    cdef int code = OK
    with nogil:
        for i in range(rows):
            at, runs = (<int64_t*>first.at)[i], (<int64_t*>length.at)[i]
            code = place_in(at, runs, (<int64_t*>number.at)[i], (<int64_t*>place.at)[i], source.size)
            if code:
                break
            if (
                not inside((<int64_t*>value_at.at)[i], (<int64_t*>value_size.at)[i], source.size)
                or (<int64_t*>value_size.at)[i] != runs * width
            ):
                code = OUTSIDE
                break
            if at != where or (<int64_t*>place.at)[i] < before:
                where, k, reached = at, 0, 0
            before = (<int64_t*>place.at)[i]
            # Run k covers the values before `reached`, once its length is added.
            while True:
                if k == runs:
                    code = SHORT_RUNS
                    break
                if source.at[at + k] == 0:
                    code = ZERO_RUN
                    break
                if before < reached + source.at[at + k]:
                    break
                reached += source.at[at + k]
                k += 1
            if code:
                break
            memcpy(target.at + i * width, source.at + (<int64_t*>value_at.at)[i] + k * width, width)
    check(code)
    return out


def pick_streams(data, starts, sizes, counts, places, int width):
    """-> one value of each piece of `width` byte streams."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at, count
    cdef int byte
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    out = np.empty(rows * width, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(rows):
            at, count = (<int64_t*>first.at)[i], (<int64_t*>number.at)[i]
            code = place_in(at, (<int64_t*>length.at)[i], count, (<int64_t*>place.at)[i], source.size)
            if code:
                break
            if count > source.size or (<int64_t*>length.at)[i] != count * width:
                code = PAYLOAD
                break
            at += (<int64_t*>place.at)[i]
            for byte in range(width):
                target.at[i * width + byte] = source.at[at + byte * count]
    check(code)
    return out


cdef int levels_of(
    Bytes data, int64_t start, int64_t size, int64_t form, int64_t count, uint16_t* out
) noexcept nogil:
    """The levels of one chunk."""
    cdef int64_t kind = form & ((1 << WIDTH_SHIFT) - 1), values
    cdef uint64_t head
    cdef int64_t done, k, left, room
    cdef uint16_t value
    if not inside(start, size, data.size):
        return OUTSIDE
    if kind == FLAT:
        if size != 2 * count:
            return PAYLOAD
        memcpy(out, data.at + start, size)
        return OK
    if kind == INLINE:
        return unpack_inline_of(data, &start, &size, &count, 1, out, count)
    if kind == OUT_OF_LINE:
        return unpack_out_of_line_of(data, &start, &size, &count, 1, <int>(form >> WIDTH_SHIFT), out, count)
    # Runs: u64 size of the values, values, lengths of one byte.
    if size < 8:
        return PAYLOAD
    head = lt_load64(data.at + start)
    if head > <uint64_t>(size - 8) or head % 2 or <int64_t>(head // 2) != size - 8 - <int64_t>head:
        return PAYLOAD
    values = <int64_t>(head // 2)
    done = 0
    for k in range(values):
        value = lt_load16(data.at + start + 8 + 2 * k)
        left = data.at[start + 8 + <int64_t>head + k]
        if left == 0:
            return ZERO_RUN
        if left > count - done:
            left = count - done
        for room in range(left):
            out[done + room] = value
        done += left
    return OK if done == count else SHORT_RUNS


cdef struct Span:
    # Values side by side in one chunk.
    int64_t owner
    int64_t place
    int64_t length


cdef struct Entries:
    # What has been found, in arrays that grow.
    int64_t count
    int64_t room
    int64_t spans
    int64_t span_room
    uint16_t* repetition
    uint16_t* definition
    Span* span


cdef int grow(Entries* found, int64_t entries, bint has_definition) noexcept nogil:
    """Room for so many more entries, and for one more span."""
    cdef int64_t room
    cdef void* moved
    if found.count + entries > found.room:
        room = max(2 * found.room, found.count + entries)
        moved = realloc(found.repetition, room * 2)
        if moved == NULL:
            return -1
        found.repetition = <uint16_t*>moved
        if has_definition:
            moved = realloc(found.definition, room * 2)
            if moved == NULL:
                return -1
            found.definition = <uint16_t*>moved
        found.room = room
    if found.spans == found.span_room:
        room = max(2 * found.span_room, 16)
        moved = realloc(found.span, room * sizeof(Span))
        if moved == NULL:
            return -1
        found.span = <Span*>moved
        found.span_room = room
    return 0


cdef int64_t count_at_most(const uint16_t* levels, int64_t start, int64_t end, uint16_t low) noexcept nogil:
    """How many of the levels between two places are at most `low`."""
    cdef int64_t found = 0
    while start < end:
        found += lt_popcount(mask_at_most(<const uint8_t*>(levels + start), min(end - start, 64), low))
        start += 64
    return found


cdef int64_t next_start(
    const uint16_t* repetition, int64_t at, int64_t count, uint16_t below, int64_t skip
) noexcept nogil:
    """The place of the row start that comes `skip` starts after `at`; `count` if there are fewer."""
    cdef uint64_t mask
    cdef int64_t width, found
    while at < count:
        width = min(count - at, 64)
        mask = ~mask_at_most(<const uint8_t*>(repetition + at), width, below)
        if width < 64:
            mask &= (<uint64_t>1 << width) - 1
        found = lt_popcount(mask)
        if found > skip:
            while skip:
                mask &= mask - 1
                skip -= 1
            return at + lt_lowest(mask)
        skip -= found
        at += 64
    return count


cdef int emit(
    Entries* found, const uint16_t* repetition, const uint16_t* definition, int64_t start, int64_t end, int64_t chunk,
    int64_t place, uint16_t num_lists, uint16_t top, uint16_t highest,
) noexcept nogil:
    """Entries `start` to `end` of a chunk; `place` values are visible before them."""
    cdef int64_t i, at = found.count, visible = end - start
    cdef bint bad = False
    cdef Span* last
    if grow(found, end - start, definition != NULL):
        return -1
    for i in range(start, end):
        bad |= repetition[i] > num_lists
    memcpy(found.repetition + at, repetition + start, (end - start) * 2)
    if definition != NULL:
        for i in range(start, end):
            bad |= definition[i] > highest
        memcpy(found.definition + at, definition + start, (end - start) * 2)
        visible = count_at_most(definition, start, end, top)
    found.count = at + end - start
    if visible:
        last = found.span + found.spans - 1
        if found.spans and last.owner == chunk and last.place + last.length == place:
            last.length += visible
        else:
            last[1].owner, last[1].place, last[1].length = chunk, place, visible
            found.spans += 1
    return LEVEL if bad else OK


def entries_of_rows(
    data, repetition, definition, num_levels, counts, chunks, first_rows, num_rows, rows, int num_lists, int top,
    int highest,
):
    """-> repetition, definition, and (3, m) spans of visible values. `repetition` and `definition` are triples of
    positions, sizes and forms.
    """
    cdef Bytes source = Bytes(data), level = Bytes(num_levels)
    cdef int64_t k = level.size // 8, i, most = 0, row, at, end, count, place, counted, base, own, wanted = 0, open_row = -1
    cdef Bytes value = column(counts, k, 8), number = column(chunks, k, 8), before = column(first_rows, k, 8)
    cdef Bytes starting = column(num_rows, k, 8), asked = Bytes(rows)
    cdef Bytes rep_at = column(repetition[0], k, 8), rep_size = column(repetition[1], k, 8)
    cdef Bytes rep_form = column(repetition[2], k, 8)
    cdef bint has_definition = definition is not None
    triple = definition if has_definition else repetition
    cdef Bytes def_at = column(triple[0], k, 8), def_size = column(triple[1], k, 8), def_form = column(triple[2], k, 8)
    cdef int64_t total = asked.size // 8
    cdef const int64_t* want = <int64_t*>asked.at
    cdef const int64_t* num = <int64_t*>level.at
    cdef Entries found
    cdef Bytes place_of
    cdef int code = OK
    cdef uint16_t below
    if not 0 < num_lists < 65536 or not 0 <= top < 65536 or not 0 <= highest < 65536:
        raise ValueError("layers without lists")
    below = <uint16_t>(num_lists - 1)
    memset(&found, 0, sizeof(found))
    for i in range(k):
        if not 0 <= num[i] < 65536:
            check(OUTSIDE)
        most = max(most, num[i])
    cdef uint16_t* scratch = <uint16_t*>malloc((2 * most + 64) * 2)
    if scratch == NULL:
        raise MemoryError
    cdef uint16_t* second = scratch + most
    cdef const uint16_t* defined = second if has_definition else NULL
    try:
        with nogil:
            for i in range(k):
                count = num[i]
                code = levels_of(
                    source, (<int64_t*>rep_at.at)[i], (<int64_t*>rep_size.at)[i], (<int64_t*>rep_form.at)[i], count,
                    scratch,
                )
                if code == OK and has_definition:
                    code = levels_of(
                        source, (<int64_t*>def_at.at)[i], (<int64_t*>def_size.at)[i], (<int64_t*>def_form.at)[i],
                        count, second,
                    )
                if code:
                    break
                counted = count if not has_definition else count_at_most(second, 0, count, <uint16_t>top)
                own = count - count_at_most(scratch, 0, count, below)
                if counted != (<int64_t*>value.at)[i] or own != (<int64_t*>starting.at)[i]:
                    code = ROWS
                    break
                base = (<int64_t*>before.at)[i]
                # Rows that went on from the chunk before.
                at = next_start(scratch, 0, count, below, 0)
                if open_row >= 0:
                    if i and (<int64_t*>number.at)[i] == (<int64_t*>number.at)[i - 1] + 1 and open_row == base - 1:
                        code = emit(
                            &found, scratch, defined, 0, at, i, 0, <uint16_t>num_lists, <uint16_t>top, <uint16_t>highest
                        )
                        if code:
                            break
                    if at < count:
                        open_row = -1
                place = at if not has_definition else count_at_most(second, 0, at, <uint16_t>top)
                row = base
                while wanted < total and want[wanted] < base + own:
                    if want[wanted] < row:
                        code = ROWS
                        break
                    end = next_start(scratch, at, count, below, want[wanted] - row)
                    place += (end - at) if not has_definition else count_at_most(second, at, end, <uint16_t>top)
                    at, row = end, want[wanted]
                    end = next_start(scratch, at, count, below, 1)
                    code = emit(
                        &found, scratch, defined, at, end, i, place, <uint16_t>num_lists, <uint16_t>top,
                        <uint16_t>highest,
                    )
                    if code:
                        break
                    open_row = row if end == count else -1
                    place += (end - at) if not has_definition else count_at_most(second, at, end, <uint16_t>top)
                    at = end
                    row += 1
                    wanted += 1
                if code:
                    break
            if code == OK and wanted != total:
                code = ROWS
        if code == -1:
            raise MemoryError
        check(code)
        new_repetition = np.empty(found.count, np.uint16)
        new_definition = np.empty(found.count, np.uint16) if has_definition else None
        spans = np.empty((3, found.spans), np.int64)
        if found.count:
            copy_to(new_repetition, found.repetition, found.count * 2)
            if has_definition:
                copy_to(new_definition, found.definition, found.count * 2)
        place_of = Bytes(spans, True)
        for i in range(found.spans):
            (<int64_t*>place_of.at)[i] = found.span[i].owner
            (<int64_t*>place_of.at)[found.spans + i] = found.span[i].place
            (<int64_t*>place_of.at)[2 * found.spans + i] = found.span[i].length
    finally:
        free(scratch)
        free(found.repetition)
        free(found.definition)
        free(found.span)
    return new_repetition, new_definition, spans


cdef int copy_to(target, const void* source, int64_t size) except -1:
    cdef Bytes held = Bytes(target, True)
    memcpy(held.at, source, size)
    return 0


cdef int64_t chunks_of(
    const int64_t* begin, const uint8_t* more, int64_t chunks, const int64_t* rows, int64_t total, int64_t* found
) noexcept nogil:
    """How many chunks hold ascending rows; their numbers go to `found`. `begin` are rows before each chunk."""
    cdef int64_t i, row, low, high, middle, count = 0, last = -1
    for i in range(total):
        row = rows[i]
        # The last chunk before which at most `row` rows start.
        low, high = max(last, 0), chunks
        while high - low > 1:
            middle = (low + high) >> 1
            if begin[middle] <= row:
                low = middle
            else:
                high = middle
        while True:
            if low > last:
                found[count] = low
                count += 1
                last = low
            # The last row of a chunk may go on in the next one, which may hold nothing else.
            if row != begin[low + 1] - 1 or not more[low] or low + 1 == chunks:
                break
            low += 1
    return count


def chunks_of_rows(starts, continues, rows):
    """-> the ascending chunks that hold ascending rows. `starts` are (chunks + 1,) rows before each chunk."""
    cdef Bytes first = Bytes(starts), more = Bytes(continues), asked = Bytes(rows)
    cdef int64_t chunks = more.size, count
    if first.size != 8 * (chunks + 1) or chunks == 0:
        raise ValueError("an index of another number of chunks")
    out = np.empty(chunks, np.int64)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        count = chunks_of(
            <int64_t*>first.at, more.at, chunks, <int64_t*>asked.at, asked.size // 8, <int64_t*>target.at
        )
    return out[:count]


def locate(tables, rows):
    """-> (4, rows) start, end and values of the chunk of each row, and its place there. `rows` are ascending in each of
    the tables, which are triples of starts, ends, and values before each chunk.
    """
    cdef int64_t total = 0, done = 0, chunks, i, n, row, low, high, middle
    cdef Bytes first, last, value, asked
    cdef const int64_t* before
    cdef int code = OK
    for each in rows:
        total += len(each)
    out = np.empty((4, total), np.int64)
    cdef Bytes target = Bytes(out, True)
    cdef int64_t* found
    for table, each in zip(tables, rows):
        first, asked = Bytes(table[0]), Bytes(each)
        chunks, n = first.size // 8, asked.size // 8
        last, value = column(table[1], chunks, 8), column(table[2], chunks + 1, 8)
        if chunks == 0 or n > total - done:
            raise ValueError("a table without chunks")
        before = <int64_t*>value.at
        found = <int64_t*>target.at + done
        with nogil:
            low = 0
            for i in range(n):
                row = (<int64_t*>asked.at)[i]
                if row < before[low] or row >= before[chunks]:
                    code = OUTSIDE
                    break
                # The last chunk before which at most `row` values lie; often the one of the row before.
                high = chunks
                if row < before[low + 1]:
                    high = low + 1
                while high - low > 1:
                    middle = (low + high) >> 1
                    if before[middle] <= row:
                        low = middle
                    else:
                        high = middle
                found[i] = (<int64_t*>first.at)[low]
                found[total + i] = (<int64_t*>last.at)[low]
                found[2 * total + i] = before[low + 1] - before[low]
                found[3 * total + i] = row - before[low]
        check(code)
        done += n
    return out


def locate_lists(tables, indices, rows, forms):
    """-> (8, k) about the chunks that hold rows of lists, the rows numbered through, and how many of the chunks come
    before each table and after the last; see picks.py.
    """
    cdef int64_t tables_done = 0, room = 0, total = 0, k = 0, i, n, c, chunks, count, base_chunk = 0, base_row = 0, at = 0
    cdef int64_t rows_done = 0, repetition, definition
    cdef Bytes first, last, value, begin, more, asked
    cdef list held = []
    for table, index, each in zip(tables, indices, rows):
        first, begin, more, asked = Bytes(table[0]), Bytes(index[0]), Bytes(index[1]), Bytes(each)
        chunks = first.size // 8
        last, value = column(table[1], chunks, 8), column(table[2], chunks + 1, 8)
        if chunks == 0 or more.size != chunks or begin.size != 8 * (chunks + 1):
            raise ValueError("an index of another number of chunks")
        held.append((first, last, value, begin, more, asked))
        room += chunks
        total += asked.size // 8
    cdef int64_t* chosen = <int64_t*>malloc(max(room, 1) * 8)
    if chosen == NULL:
        raise MemoryError
    cdef Bytes target, numbered
    cdef int64_t* found
    cdef list bounds = [0]
    try:
        for first, last, value, begin, more, asked in held:
            k += chunks_of(
                <int64_t*>begin.at, more.at, more.size, <int64_t*>asked.at, asked.size // 8, chosen + k
            )
            bounds.append(k)
        out = np.empty((8, k), np.int64)
        every = np.empty(total, np.int64)
        target, numbered = Bytes(out, True), Bytes(every, True)
        found = <int64_t*>target.at
        for first, last, value, begin, more, asked in held:
            repetition, definition = forms[tables_done]
            tables_done += 1
            count = bounds[tables_done]
            while at < count:
                c = chosen[at]
                found[at] = (<int64_t*>first.at)[c]
                found[k + at] = (<int64_t*>last.at)[c]
                found[2 * k + at] = (<int64_t*>value.at)[c + 1] - (<int64_t*>value.at)[c]
                found[3 * k + at] = base_chunk + c
                found[4 * k + at] = base_row + (<int64_t*>begin.at)[c]
                found[5 * k + at] = (<int64_t*>begin.at)[c + 1] - (<int64_t*>begin.at)[c]
                found[6 * k + at] = repetition
                found[7 * k + at] = definition
                at += 1
            n = asked.size // 8
            for i in range(n):
                (<int64_t*>numbered.at)[rows_done + i] = base_row + (<int64_t*>asked.at)[i]
            rows_done += n
            # Chunks of different tables do not continue each other.
            base_chunk += more.size + 1
            base_row += (<int64_t*>begin.at)[more.size]
    finally:
        free(chosen)
    return out, every, bounds


def spread(spans, starts, sizes, counts):
    """-> (2 b + 2, n) start and size in each of b buffers, number and place of each value of the spans."""
    cdef Bytes span = Bytes(spans), number = Bytes(counts)
    cdef int64_t k = number.size // 8, m = span.size // 24, b, i, j, own, total = 0, at = 0, size
    cdef Bytes first = Bytes(starts)
    if k == 0 and m:
        raise ValueError("spans without chunks")
    b = first.size // (8 * k) if k else 0
    cdef Bytes length = column(sizes, b * k, 8)
    if span.size != 24 * m or first.size != 8 * b * k:
        raise ValueError("spans of another number of chunks")
    cdef const int64_t* owner = <int64_t*>span.at
    for i in range(m):
        if not 0 <= owner[i] < k or not 0 <= owner[2 * m + i] < <int64_t>1 << 40:
            raise ValueError("a span of no chunk")
        total += owner[2 * m + i]
    out = np.empty((2 * b + 2, total), np.int64)
    cdef Bytes target = Bytes(out, True)
    cdef int64_t* found = <int64_t*>target.at
    with nogil:
        for i in range(m):
            own, size = owner[i], owner[2 * m + i]
            for j in range(b):
                fill(found + 2 * j * total + at, size, (<int64_t*>first.at)[j * k + own])
                fill(found + (2 * j + 1) * total + at, size, (<int64_t*>length.at)[j * k + own])
            fill(found + 2 * b * total + at, size, (<int64_t*>number.at)[own])
            for j in range(size):
                found[(2 * b + 1) * total + at + j] = owner[m + i] + j
            at += size
    return out


cdef inline void fill(int64_t* out, int64_t count, int64_t value) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        out[i] = value


# ----------------------------------------------------------------------------------------------- twins of general.py


cdef int unpack_lz4_block(const uint8_t* at, int64_t size, uint8_t* out, int64_t room) noexcept nogil:
    """One raw LZ4 block of exactly `room` bytes of content."""
    cdef const uint8_t* end = at + size
    cdef uint8_t* start = out
    cdef uint8_t* limit = out + room
    cdef const uint8_t* source
    cdef int64_t length, distance, k
    cdef uint8_t token, more
    while at < end:
        token = at[0]
        at += 1
        length = token >> 4
        if length == 15:
            more = 255
            while more == 255:
                if at == end:
                    return CUT_SHORT
                more = at[0]
                at += 1
                length += more
        if length > end - at or length > limit - out:
            return CUT_SHORT
        lt_copy(out, at, length, min(end - at, limit - out))
        at += length
        out += length
        if at == end:
            break  # the last sequence has literals only
        if end - at < 2:
            return CUT_SHORT
        distance = lt_load16(at)
        at += 2
        length = (token & 15) + 4
        if length == 19:
            more = 255
            while more == 255:
                if at == end:
                    return CUT_SHORT
                more = at[0]
                at += 1
                length += more
        if distance == 0 or distance > out - start or length > limit - out:
            return OUTSIDE
        source = out - distance
        if distance >= 8 and limit - out >= length + 8:
            for k in range(0, length, 8):
                lt_store64(out + k, lt_load64(source + k))
        else:
            for k in range(length):
                out[k] = source[k]
        out += length
    return OK if out == limit and size else CUT_SHORT


def unpack_lz4(data, starts, sizes, lengths):
    """Raw LZ4 blocks -> their contents side by side, `lengths[i]` bytes each."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t count = first.size // 8, i, total = 0, done = 0
    cdef Bytes size = column(sizes, count, 8), length = column(lengths, count, 8)
    cdef int code = OK
    for i in range(count):
        if not 0 <= (<int64_t*>length.at)[i] <= <int64_t>1 << 40:
            raise ValueError("an impossible length")
        total += (<int64_t*>length.at)[i]
    out = np.empty(total, np.uint8)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        for i in range(count):
            if not inside((<int64_t*>first.at)[i], (<int64_t*>size.at)[i], source.size):
                code = OUTSIDE
                break
            code = unpack_lz4_block(
                source.at + (<int64_t*>first.at)[i], (<int64_t*>size.at)[i], target.at + done, (<int64_t*>length.at)[i]
            )
            if code:
                break
            done += (<int64_t*>length.at)[i]
    check(code)
    return out


# ------------------------------------------------------------------------------------------------ twins of frames.py


cdef int64_t frame_content(const uint8_t* frame, int64_t size) noexcept nogil:
    """What the header of a zstd frame says about its content, -1 if it says nothing."""
    cdef uint8_t descriptor
    cdef int64_t begin, width
    if size < 5 or lt_load32(frame) != <uint32_t>0xFD2FB528:
        return -1
    descriptor = frame[4]
    width = (1 << (descriptor >> 6)) if descriptor >> 6 else <int64_t>((descriptor & 0x20) != 0)
    begin = 5 + (0 if descriptor & 0x20 else 1) + (1 << (descriptor & 3) >> 1)
    if width == 0 or size < begin + width:
        return -1
    if width == 1:
        return frame[begin]
    if width == 2:
        return <int64_t>lt_load16(frame + begin) + 256
    if width == 4:
        return lt_load32(frame + begin)
    return <int64_t>min(lt_load64(frame + begin), <uint64_t>1 << 62)


def frame_contents(data, starts, sizes):
    """-> what each frame says about its content, or None if one does not say it."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t count = first.size // 8, i, found = 0
    cdef Bytes size = column(sizes, count, 8)
    out = np.empty(count, np.int64)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        for i in range(count):
            if not inside((<int64_t*>first.at)[i], (<int64_t*>size.at)[i], source.size):
                found = -1
                break
            found = frame_content(source.at + (<int64_t*>first.at)[i], (<int64_t*>size.at)[i])
            if found < 0:
                break
            (<int64_t*>target.at)[i] = found
    return None if found < 0 else out


# ------------------------------------------------------------------------------------------------ twins of interleave.py


def interleave(streams):
    """`streams` are pairs of bytes and int64 offsets, of one length."""
    cdef list held = [(Bytes(data), Bytes(offsets)) for data, offsets in streams]
    cdef int64_t count = len(held), runs, i, k, total = 0, size, done = 0
    cdef Bytes each
    if count == 0:
        return np.empty(0, np.uint8)
    runs = (<Bytes>held[0][1]).size // 8 - 1
    cdef const uint8_t** sources = <const uint8_t**>malloc(count * 3 * sizeof(void*))
    if sources == NULL:
        raise MemoryError
    cdef const int64_t** offsets_of = <const int64_t**>(sources + count)
    cdef int64_t* limits = <int64_t*>(sources + 2 * count)
    cdef int code = OK
    try:
        for k in range(count):
            each = held[k][1]
            if runs < 0 or each.size != 8 * (runs + 1):
                raise ValueError("streams of different lengths")
            offsets_of[k] = <int64_t*>each.at
            each = held[k][0]
            sources[k] = each.at
            limits[k] = each.size
        with nogil:
            for k in range(count):
                code = code or check_offsets(offsets_of[k], runs, limits[k])
                total += offsets_of[k][runs] - offsets_of[k][0]
        check(code)
        out = np.empty(total, np.uint8)
        each = Bytes(out, True)
        with nogil:
            for i in range(runs):
                for k in range(count):
                    size = offsets_of[k][i + 1] - offsets_of[k][i]
                    lt_copy(
                        each.at + done, sources[k] + offsets_of[k][i], size,
                        min(total - done, limits[k] - offsets_of[k][i]),
                    )
                    done += size
    finally:
        free(sources)
    return out


# ---------------------------------------------------------------------------------------------------- twins of varbin.py


cdef int64_t span_offsets_of(
    const int64_t* starts, const int64_t* ends, int64_t count, int64_t size, offset_t* offsets
) noexcept nogil:
    """Bytes of all values; -1 if one lies outside of `size`, -2 if they are too long for their offsets."""
    cdef int64_t i, total = 0
    offsets[0] = 0
    for i in range(count):
        if not inside(starts[i], ends[i] - starts[i], size) or ends[i] < starts[i]:
            return -1
        total += ends[i] - starts[i]
        offsets[i + 1] = <offset_t>total
        if sizeof(offset_t) == 4 and total > 0x7FFFFFFF:
            return -2
    return total


cdef void copy_spans(
    const uint8_t* data, int64_t size, const int64_t* starts, const int64_t* ends, int64_t count,
    uint8_t* out, int64_t total,
) noexcept nogil:
    cdef int64_t i, length
    for i in range(count):
        length = ends[i] - starts[i]
        lt_copy(out, data + starts[i], length, min(total, size - starts[i]))
        out += length
        total -= length


cdef int check_total(int64_t total) except -1:
    if total == -1:
        check(OUTSIDE)
    if total == -2:
        check(TOO_LONG)
    if total == -3:
        check(INDEX)
    return 0


def gather(starts, ends, data, int offset_bytes):
    """-> offsets, bytes."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t count = first.size // 8, total
    cdef Bytes last = column(ends, count, 8)
    offsets = np.empty(count + 1, np.int32 if offset_bytes == 4 else np.int64)
    cdef Bytes bound = Bytes(offsets, True)
    with nogil:
        if offset_bytes == 4:
            total = span_offsets_of(
                <int64_t*>first.at, <int64_t*>last.at, count, source.size, <int32_t*>bound.at
            )
        else:
            total = span_offsets_of(
                <int64_t*>first.at, <int64_t*>last.at, count, source.size, <int64_t*>bound.at
            )
    check_total(total)
    out = np.empty(total, np.uint8)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        copy_spans(
            source.at, source.size, <int64_t*>first.at, <int64_t*>last.at, count, target.at, total
        )
    return offsets, out


cdef int64_t taken_offsets_of(
    const offset_t* offsets, int64_t values, int64_t size, const word_t* rows, const uint8_t* valid, int64_t count,
    offset_t* out,
) noexcept nogil:
    """Bytes of the values at `rows`; -1 if one lies outside, -2 if they are too long for their offsets, -3 for a row
    that is not there.
    """
    cdef int64_t i, start, end, total = 0
    cdef uint64_t row
    cdef bint bad = False
    out[0] = 0
    for i in range(count):
        if valid == NULL or valid[i >> 3] >> (i & 7) & 1:
            row = rows[i]
            if row >= <uint64_t>values:
                return -3
            start, end = offsets[row], offsets[row + 1]
            bad |= (start < 0) | (end < start) | (end > size)
            total += end - start
            if sizeof(offset_t) == 4 and total > 0x7FFFFFFF:
                return -2
        out[i + 1] = <offset_t>total
    return -1 if bad else total


cdef void copy_taken(
    const uint8_t* data, int64_t size, const offset_t* offsets, const word_t* rows, int64_t count,
    const offset_t* new_offsets, uint8_t* out, int64_t total,
) noexcept nogil:
    cdef int64_t i, start, done, length
    for i in range(count):
        done = new_offsets[i]
        length = new_offsets[i + 1] - done
        if length:
            start = offsets[rows[i]]
            lt_copy(out + done, data + start, length, min(total - done, size - start))


cdef tuple take_of(
    Bytes data, const offset_t* offsets, int64_t values, const word_t* rows, Bytes valid, int64_t count
):
    cdef int64_t total
    cdef const uint8_t* bits = NULL if valid is None else valid.at
    if valid is not None and valid.size * 8 < count:
        raise ValueError("a bitmap too short")
    new_offsets = np.empty(count + 1, np.int32 if sizeof(offset_t) == 4 else np.int64)
    cdef Bytes bound = Bytes(new_offsets, True)
    with nogil:
        total = taken_offsets_of(offsets, values, data.size, rows, bits, count, <offset_t*>bound.at)
    check_total(total)
    out = np.empty(total, np.uint8)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        copy_taken(data.at, data.size, offsets, rows, count, <offset_t*>bound.at, target.at, total)
    return new_offsets, out


def take(offsets, data, rows, validity, int offset_bytes, int row_bytes):
    """-> offsets, bytes. `rows` are unsigned, or signed of 8 bytes; what is not valid is left empty."""
    cdef Bytes bound = Bytes(offsets), source = Bytes(data), row = Bytes(rows)
    cdef Bytes valid = None if validity is None else Bytes(validity)
    cdef int64_t values = bound.size // offset_bytes - 1, count = row.size // row_bytes
    if values < 0:
        raise ValueError("no offsets")
    if offset_bytes == 4:
        if row_bytes == 1:
            return take_of(source, <int32_t*>bound.at, values, <uint8_t*>row.at, valid, count)
        if row_bytes == 2:
            return take_of(source, <int32_t*>bound.at, values, <uint16_t*>row.at, valid, count)
        if row_bytes == 4:
            return take_of(source, <int32_t*>bound.at, values, <uint32_t*>row.at, valid, count)
        return take_of(source, <int32_t*>bound.at, values, <uint64_t*>row.at, valid, count)
    if row_bytes == 1:
        return take_of(source, <int64_t*>bound.at, values, <uint8_t*>row.at, valid, count)
    if row_bytes == 2:
        return take_of(source, <int64_t*>bound.at, values, <uint16_t*>row.at, valid, count)
    if row_bytes == 4:
        return take_of(source, <int64_t*>bound.at, values, <uint32_t*>row.at, valid, count)
    return take_of(source, <int64_t*>bound.at, values, <uint64_t*>row.at, valid, count)


cdef bint is_ascii_of(const uint8_t* data, int64_t size) noexcept nogil:
    """Whether no byte has its high bit set."""
    cdef int64_t i, k
    cdef uint64_t every = 0, a, b, c, d
    for i in range(0, size - 4095, 4096):
        a = b = c = d = 0
        for k in range(i, i + 4096, 32):
            a |= lt_load64(data + k)
            b |= lt_load64(data + k + 8)
            c |= lt_load64(data + k + 16)
            d |= lt_load64(data + k + 24)
        if (a | b | c | d) & <uint64_t>0x8080808080808080:
            return False
    for i in range(size & ~<int64_t>4095, size):
        every |= data[i]
    return every < 0x80


def is_ascii(data):
    cdef Bytes source = Bytes(data)
    cdef bint found
    with nogil:
        found = is_ascii_of(source.at, source.size)
    return found


# ----------------------------------------------------------------------------------------------- twins of statistics.py


cdef int64_t count_bits_of(const uint8_t* bitmap, int64_t start, int64_t end) noexcept nogil:
    """Set bits between two positions."""
    cdef int64_t octet, octets = (end + 7) >> 3, found = 0
    cdef uint64_t word
    for octet in range(start >> 3, octets, 8):
        word = 0
        if octets - octet >= 8:
            word = lt_load64(bitmap + octet)
        else:
            memcpy(&word, bitmap + octet, octets - octet)
        if octet * 8 < start:
            word &= (<uint64_t>0xFFFFFFFFFFFFFFFF) << (start - octet * 8)
        if octet * 8 + 64 > end:
            word &= (<uint64_t>0xFFFFFFFFFFFFFFFF) >> (octet * 8 + 64 - end)
        found += lt_popcount(word)
    return found


def count_bits(bitmap, int64_t skip, starts, ends):
    """-> for each piece of rows, the number of set bits; row 0 is bit `skip`."""
    cdef Bytes source = Bytes(bitmap), first = Bytes(starts)
    cdef int64_t pieces = first.size // 8, i, start, end
    cdef Bytes last = column(ends, pieces, 8)
    counts = np.empty(pieces, np.int64)
    cdef Bytes target = Bytes(counts, True)
    cdef bint bad = False
    with nogil:
        for i in range(pieces):
            start, end = (<int64_t*>first.at)[i], (<int64_t*>last.at)[i]
            if skip < 0 or not inside(start, end - start, source.size * 8 - skip):
                bad = True
                break
            (<int64_t*>target.at)[i] = count_bits_of(source.at, skip + start, skip + end)
    if bad:
        raise ValueError("a zone beyond the last row")
    return counts
