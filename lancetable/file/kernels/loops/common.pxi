"""Shared parts of the loops: buffers of Python objects, unaligned words, and error codes.

Sizes, offsets, counts and codes are read from files and not trusted: each is checked against the size of its buffer
before memory is accessed. A loop that finds an invalid value returns an error code of the table below, and the caller
raises CorruptFileError with the same message as the NumPy form.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

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
    /* Unaligned words. */
    static inline uint16_t lt_load16(const uint8_t *at) { uint16_t x; memcpy(&x, at, 2); return x; }
    static inline uint32_t lt_load32(const uint8_t *at) { uint32_t x; memcpy(&x, at, 4); return x; }
    static inline uint64_t lt_load64(const uint8_t *at) { uint64_t x; memcpy(&x, at, 8); return x; }
    static inline void lt_store64(uint8_t *at, uint64_t x) { memcpy(at, &x, 8); }
    /* Bit k is set if the k-th of 16 levels is at most `low`. */
    static inline uint32_t lt_at_most(const uint8_t *at, uint16_t low) {
    #if defined(__SSE2__)
        __m128i limits = _mm_set1_epi16((short)low), zero = _mm_setzero_si128();
        __m128i a = _mm_loadu_si128((const __m128i *)at), b = _mm_loadu_si128((const __m128i *)(at + 16));
        a = _mm_cmpeq_epi16(_mm_subs_epu16(a, limits), zero);
        b = _mm_cmpeq_epi16(_mm_subs_epu16(b, limits), zero);
        return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(a, b));
    #else
        uint32_t bits = 0;
        for (int k = 0; k < 16; k++) bits |= (uint32_t)(lt_load16(at + 2 * k) <= low) << k;
        return bits;
    #endif
    }
    /* Copy n bytes; both sides have `room` accessible bytes. Up to 16 bytes are copied as two words if possible. */
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
    INDEX = 12
    FIRST_OFFSET = 13
    ROWS = 14

_MESSAGES = {
    OUTSIDE: "value is outside its page",
    WIDTH: "packed values are wider than their type",
    PAYLOAD: "wrong size of values in a chunk",
    DECREASE: "value ends before it starts",
    TOO_LONG: "values are too long for their type",
    NO_SYMBOL: "FSST code without a symbol",
    OPEN_ESCAPE: "FSST value ends inside an escape",
    ZERO_RUN: "run of length zero",
    SHORT_RUNS: "runs end before the last value",
    LEVEL: "level out of range",
    CUT_SHORT: "entry exceeds the end of its row",
    INDEX: "dictionary index out of range",
    FIRST_OFFSET: "first offset is inside the offset table",
    ROWS: "rows of a chunk do not match the repetition index",
}


cdef int check(int code) except -1:
    if code:
        raise CorruptFileError(_MESSAGES[code])
    return 0


cdef enum:
    LARGE_BYTES = 1 << 20


cdef object new_bytes(int64_t size):
    """Return an uninitialized (size,) uint8 array.

    Large arrays use Arrow's allocator: the C library does not release memory that one thread allocates and another one
    frees, so memory would grow during a long scan of large values.
    """
    if size < LARGE_BYTES:
        return np.empty(size, np.uint8)
    return np.frombuffer(pa.allocate_buffer(size), np.uint8)


@cython.final
@cython.freelist(32)
cdef class Bytes:
    """The contiguous buffer of an object, which it keeps alive."""

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
    """Return the buffer of `count` values of `width` bytes. Raises ValueError for another size."""
    cdef Bytes values = Bytes(owner)
    if values.size != count * width:
        raise ValueError(f"expected {count} values of {width} bytes, got {values.size} bytes")
    return values


@cython.final
cdef class Validity:
    """Validity of rows: row 0 is bit `skip` of a bitmap. Without a bitmap, all rows are valid."""

    cdef Bytes bitmap
    cdef const uint8_t* bits
    cdef int64_t skip

    def __cinit__(self, bitmap, int64_t skip, int64_t rows):
        self.bitmap = None if bitmap is None else Bytes(bitmap)
        self.bits, self.skip = NULL if bitmap is None else self.bitmap.at, skip
        if skip < 0 or (bitmap is not None and self.bitmap.size * 8 - skip < rows):
            raise ValueError("validity too short")

    cdef inline bint has(self, int64_t row) noexcept nogil:
        return self.bits == NULL or self.bits[(self.skip + row) >> 3] >> ((self.skip + row) & 7) & 1


@cython.final
cdef class Pieces:
    """Pieces of the data with their numbers of values and, for gather.Pieces, the index of one value in each."""

    cdef Bytes data, start_bytes, size_bytes, count_bytes, place_bytes
    cdef int64_t rows, data_size
    cdef const uint8_t* at
    cdef const int64_t* starts
    cdef const int64_t* sizes
    cdef const int64_t* counts
    cdef const int64_t* places

    def __cinit__(self, data, starts, sizes, counts, places=None):
        self.data, self.start_bytes = Bytes(data), Bytes(starts)
        self.rows = self.start_bytes.size // 8
        self.size_bytes, self.count_bytes = column(sizes, self.rows, 8), column(counts, self.rows, 8)
        self.at, self.data_size = self.data.at, self.data.size
        self.starts, self.sizes = <int64_t*>self.start_bytes.at, <int64_t*>self.size_bytes.at
        self.counts, self.places = <int64_t*>self.count_bytes.at, NULL
        if places is not None:
            self.place_bytes = column(places, self.rows, 8)
            self.places = <int64_t*>self.place_bytes.at

    cdef int check(self, int64_t i) noexcept nogil:
        """Return OUTSIDE unless the piece is within the data and the value is within the piece."""
        if inside(self.starts[i], self.sizes[i], self.data_size) and 0 <= self.places[i] < self.counts[i]:
            return OK
        return OUTSIDE


cdef inline uint64_t load_word(const uint8_t* at, int width) noexcept nogil:
    """Return the unaligned word of 1, 2, 4 or 8 bytes; 0 for another width."""
    if width == 1:
        return at[0]
    if width == 2:
        return lt_load16(at)
    if width == 4:
        return lt_load32(at)
    return lt_load64(at) if width == 8 else 0


cdef int check_offsets(const offset_t* offsets, int64_t values, int64_t size) noexcept nogil:
    """Return OUTSIDE unless (values + 1,) offsets ascend and are within `size` bytes."""
    cdef int64_t i
    cdef bint bad = offsets[0] < 0 or offsets[values] > size
    for i in range(values):
        bad |= offsets[i + 1] < offsets[i]
    return OUTSIDE if bad else OK


cdef inline bint inside(int64_t start, int64_t length, int64_t size) noexcept nogil:
    return start >= 0 and length >= 0 and start <= size and length <= size - start
