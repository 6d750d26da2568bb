"""What all the loops share: memory of Python objects, words at any address, and what is wrong with a file.

Sizes, offsets, counts and codes come from files and are not believed: each is compared with the memory it leads to
before that memory is touched. A loop that meets a wrong one returns its code from the table below, and the caller
raises CorruptFileError.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset

import cython

import numpy as np
import pyarrow as pa

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


cdef enum:
    LARGE_BYTES = 1 << 20


cdef object new_bytes(int64_t size):
    """(size,) uint8. Large ones come from Arrow's allocator: the C library's keeps what one thread makes and another
    frees, and a scan of large values would hold more of them the longer it runs.
    """
    if size < LARGE_BYTES:
        return np.empty(size, np.uint8)
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


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
