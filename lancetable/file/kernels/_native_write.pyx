# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled kernels that only writers need; see _native.pyx.

Arguments come from Arrow arrays in memory; every position is still checked against the size of its buffer.
"""

from libc.stdint cimport int8_t, int16_t

include "loops/common.pxi"
include "loops/distinct.pxi"

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define ltw_swap(x) __builtin_bswap64(x)
    #else
    static inline uint64_t ltw_swap(uint64_t x) {
        x = ((x & 0x00ff00ff00ff00ffULL) << 8) | ((x >> 8) & 0x00ff00ff00ff00ffULL);
        x = ((x & 0x0000ffff0000ffffULL) << 16) | ((x >> 16) & 0x0000ffff0000ffffULL);
        return (x << 32) | (x >> 32);
    }
    #endif
    """
    uint64_t ltw_swap(uint64_t x) nogil

ctypedef fused number_t:
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    float
    double


@cython.final
cdef class Zones:
    """Ranges of rows. Raises ValueError unless all are within `rows`."""

    cdef Bytes first, last
    cdef const int64_t* starts
    cdef const int64_t* ends
    cdef int64_t count

    def __cinit__(self, starts, ends, int64_t rows):
        cdef int64_t i
        self.first = Bytes(starts)
        self.count = self.first.size // 8
        self.last = column(ends, self.count, 8)
        self.starts, self.ends = <int64_t*>self.first.at, <int64_t*>self.last.at
        for i in range(self.count):
            if not 0 <= self.starts[i] <= self.ends[i] <= rows:
                raise ValueError("zone beyond the last row")


# ----------------------------------------------------------------------------------------- zone maps, as in zone_bounds.py


cdef void extend(const number_t* values, int64_t count, number_t* low, number_t* high, int64_t* nans) noexcept nogil:
    """Extend bounds to values. NaN is counted and does not change the bounds, because its comparisons are false."""
    cdef int64_t i, lane, whole = count - count % 8
    cdef number_t value
    cdef number_t[8] least, most  # independent lanes, so that the compiler can vectorize
    for lane in range(8):
        least[lane], most[lane] = low[0], high[0]
    for i in range(0, whole, 8):
        for lane in range(8):
            value = values[i + lane]
            least[lane] = value if value < least[lane] else least[lane]
            most[lane] = value if value > most[lane] else most[lane]
    for i in range(whole, count):
        least[0], most[0] = min(least[0], values[i]), max(most[0], values[i])
    for lane in range(8):
        low[0], high[0] = min(low[0], least[lane]), max(high[0], most[lane])
    for i in range(count):
        nans[0] += values[i] != values[i]


cdef void extend_valid(
    const number_t* values, int64_t start, int64_t end, Validity valid, number_t* low, number_t* high, int64_t* nulls,
    int64_t* nans,
) noexcept nogil:
    """Extend bounds to the valid values of the rows `start` to `end`."""
    cdef number_t[1024] kept
    cdef int64_t row, first, count, bit
    cdef const uint8_t* bits = valid.bits
    for first in range(start, end, 1024):
        count, bit = 0, valid.skip + first
        for row in range(first, min(first + 1024, end)):  # branch-free, because a branch would be unpredictable
            kept[count] = values[row]
            count += bits[bit >> 3] >> (bit & 7) & 1
            bit += 1
        nulls[0] += min(1024, end - first) - count
        extend(&kept[0], count, low, high, nans)


def number_zones(const number_t[::1] values, validity, int64_t skip, starts, ends, low, high):
    """Extend `low` and `high`, inverted bounds of the type of the values, to them; return the numbers of nulls and NaNs."""
    cdef Validity valid = Validity(validity, skip, values.shape[0])
    cdef Zones zones = Zones(starts, ends, values.shape[0])
    cdef Bytes least = Bytes(low, True), most = Bytes(high, True)
    cdef int64_t i
    if not least.size == most.size == zones.count * <int64_t>sizeof(number_t):
        raise ValueError("bounds and zones differ in number")
    nulls, nans = np.zeros(zones.count, np.int64), np.zeros(zones.count, np.int64)
    cdef Bytes null = Bytes(nulls, True), nan = Bytes(nans, True)
    cdef number_t* lows = <number_t*>least.at
    cdef number_t* highs = <number_t*>most.at
    cdef int64_t* null_counts = <int64_t*>null.at
    cdef int64_t* nan_counts = <int64_t*>nan.at
    cdef int64_t start, end
    with nogil:
        for i in range(zones.count):
            start, end = zones.starts[i], zones.ends[i]
            if valid.bits == NULL:
                extend(&values[start], end - start, &lows[i], &highs[i], &nan_counts[i])
            else:
                extend_valid(&values[0], start, end, valid, &lows[i], &highs[i], &null_counts[i], &nan_counts[i])
    return nulls, nans


cdef struct Text:
    int64_t row
    const uint8_t* at
    int64_t length
    uint64_t key


cdef inline uint64_t key_of(const uint8_t* data, int64_t start, int64_t length, int64_t size) noexcept nogil:
    """Return the first eight bytes of a value, padded with zeros, as a number that sorts like the bytes."""
    cdef uint64_t word = 0
    if lt_likely(start + 8 <= size):
        word = lt_load64(data + start)
    else:
        memcpy(&word, data + start, min(length, size - start))
    if length >= 8:
        return ltw_swap(word)
    return ltw_swap(word) & ~(<uint64_t>0xFFFFFFFFFFFFFFFF >> 8 * length)


cdef inline bint is_below(const Text* a, const Text* b) noexcept nogil:
    """Return True if a is less than b in byte order; the keys are compared first."""
    cdef int order
    if a.key != b.key:
        return a.key < b.key
    order = memcmp(a.at, b.at, min(a.length, b.length))
    return order < 0 or (order == 0 and a.length < b.length)


cdef int extremes_of(
    const offset_t* offsets, const uint8_t* data, int64_t size, int64_t start, int64_t end, Validity valid,
    int64_t* low, int64_t* high,
) noexcept nogil:
    cdef Text text, least, most
    memset(&least, 0xFF, sizeof(Text))  # row -1
    most = least
    for text.row in range(start, end):
        if not valid.has(text.row):
            continue
        if not 0 <= offsets[text.row] <= offsets[text.row + 1] <= size:
            return OUTSIDE
        text.length = offsets[text.row + 1] - offsets[text.row]
        text.at = data + offsets[text.row]
        text.key = key_of(data, offsets[text.row], text.length, size)
        if least.row < 0:
            least = most = text
        elif is_below(&text, &least):
            least = text
        elif is_below(&most, &text):
            most = text
    low[0], high[0] = least.row, most.row
    return OK


def extremes(const offset_t[::1] offsets, data, validity, int64_t skip, starts, ends):
    """Return the rows of the minimum and the maximum string of each zone, or -1 if all strings are null.

    `offsets` has (rows + 1,) positions in `data`. Raises CorruptFileError for offsets outside the data.
    """
    cdef Bytes source = Bytes(data)
    cdef Validity valid = Validity(validity, skip, offsets.shape[0] - 1)
    cdef Zones zones = Zones(starts, ends, offsets.shape[0] - 1)
    cdef int64_t i
    cdef int code = OK
    low, high = np.empty(zones.count, np.int64), np.empty(zones.count, np.int64)
    cdef int64_t[::1] least = low, most = high
    with nogil:
        for i in range(zones.count):
            code = extremes_of(
                &offsets[0], source.at, source.size, zones.starts[i], zones.ends[i], valid, &least[i], &most[i]
            )
            if code:
                break
    check(code)
    return low, high


# ------------------------------------------------------------------------------- distinct values, as in distinct.py


def index_strings(const offset_t[::1] offsets, data, validity, int64_t skip, int64_t most):
    """Return the indices, and the first row of each distinct value; None for more than `most` distinct values."""
    cdef Bytes source = Bytes(data)
    cdef int64_t rows = offsets.shape[0] - 1
    cdef Validity valid = Validity(validity, skip, rows)
    cdef Table table
    cdef int code
    if rows < 0:
        raise ValueError("no offsets")
    indices, firsts = np.empty(rows, np.int32), np.empty(min(rows, most), np.int64)
    cdef Bytes target = Bytes(indices, True), first = Bytes(firsts, True)
    memset(&table, 0, sizeof(Table))
    with nogil:
        code = index_of(
            &table, &offsets[0], rows, source.at, source.size, valid, most, <int32_t*>target.at, <int64_t*>first.at
        )
        free(table.slots)
        free(table.items)
    if code == NO_MEMORY:
        raise MemoryError
    if code == TOO_MANY:
        return None
    check(code)
    return indices, firsts[: table.count]
