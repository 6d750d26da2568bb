# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled form of key_tables.py. Ends that decrease or exceed the data are rejected before any byte is read."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

import numpy as np

ctypedef fused end_t:
    int32_t
    int64_t


cdef extern from *:
    """
    #include <string.h>

    /* Mix eight bytes at a time, the last ones padded with zeros; `limit` is the end of the readable bytes. */
    static inline uint64_t ltk_hash(const uint8_t *at, int64_t size, const uint8_t *limit, uint64_t by, uint64_t length) {
        uint64_t hash = (uint64_t)size * length, word;
        while (size >= 8) {
            memcpy(&word, at, 8);
            hash = (hash ^ word) * by;
            hash ^= hash >> 29;
            at += 8;
            size -= 8;
        }
        if (size > 0) {
            if (limit - at >= 8) {
                memcpy(&word, at, 8);
                word &= ~(uint64_t)0 >> (64 - 8 * size);
            } else {
                word = 0;
                memcpy(&word, at, (size_t)size);
            }
            hash = (hash ^ word) * by;
            hash ^= hash >> 29;
        }
        return hash;
    }

    static inline int ltk_equal(const uint8_t *one, const uint8_t *other, int64_t size) {
        return memcmp(one, other, (size_t)size) == 0;
    }
    """
    uint64_t ltk_hash(const uint8_t *at, int64_t size, const uint8_t *limit, uint64_t by, uint64_t length) nogil
    int ltk_equal(const uint8_t *one, const uint8_t *other, int64_t size) nogil


cdef bint _fit(const end_t[::1] ends, int64_t size) noexcept nogil:
    cdef int64_t i
    if ends.shape[0] < 1 or ends[0] < 0 or ends[ends.shape[0] - 1] > size:
        return False
    for i in range(ends.shape[0] - 1):
        if ends[i] > ends[i + 1]:
            return False
    return True


def hash_values(const end_t[::1] ends, const uint8_t[::1] data, uint64_t by, uint64_t length):
    """Return (n,) hashes of the values between (n + 1,) `ends`; None if the ends do not fit the data."""
    cdef int64_t num_rows = ends.shape[0] - 1, size = data.shape[0], i
    cdef uint64_t[::1] hashes
    cdef const uint8_t *first = &data[0] if size else NULL
    if not _fit(ends, size):
        return None
    made = np.zeros(num_rows, np.uint64)
    if num_rows and size:
        hashes = made
        with nogil:
            for i in range(num_rows):
                hashes[i] = ltk_hash(first + ends[i], ends[i + 1] - ends[i], first + size, by, length)
    return made


def equal_values(
    const end_t[::1] ends, const uint8_t[::1] data, const int64_t[::1] rows,
    const end_t[::1] other_ends, const uint8_t[::1] other_data, const int64_t[::1] other_rows,
):
    """Return True if the values at `rows` equal those at `other_rows`; None for ends or rows out of range."""
    cdef int64_t i, row, other, size, at, num_rows = ends.shape[0] - 1, num_others = other_ends.shape[0] - 1
    cdef int equal = 1
    if rows.shape[0] != other_rows.shape[0] or not _fit(ends, data.shape[0]):
        return None
    if not _fit(other_ends, other_data.shape[0]):
        return None
    with nogil:
        for i in range(rows.shape[0]):
            row, other = rows[i], other_rows[i]
            if row < 0 or row >= num_rows or other < 0 or other >= num_others:
                equal = -1
                break
            size = ends[row + 1] - ends[row]
            if size != other_ends[other + 1] - other_ends[other]:
                equal = 0
                break
            if size and not ltk_equal(&data[ends[row]], &other_data[other_ends[other]], size):
                equal = 0
                break
    return None if equal < 0 else bool(equal)


def build(const uint64_t[::1] keys, const int64_t[::1] rows, int32_t[::1] slots, uint64_t by, int64_t[::1] own):
    """Insert `rows` into `slots`, which are all -1, and set `own[row]` to the first row with the key of `row`.

    The number of slots must be a power of two and exceed the number of rows.
    """
    cdef int64_t i, row, num_slots = slots.shape[0], num_rows = keys.shape[0]
    cdef uint64_t key, place, mask = <uint64_t>(num_slots - 1)
    cdef int shift = 64
    if num_slots < 2 or num_slots & (num_slots - 1) or num_slots <= rows.shape[0] or own.shape[0] != num_rows:
        raise ValueError(f"{num_slots} slots for {rows.shape[0]} rows")
    while num_slots > 1:
        shift -= 1
        num_slots >>= 1
    with nogil:
        for i in range(rows.shape[0]):
            row = rows[i]
            if row < 0 or row >= num_rows:
                continue
            key = keys[row]
            place = ((key ^ (key >> 32)) * by) >> shift
            while slots[place] >= 0 and keys[slots[place]] != key:
                place = (place + 1) & mask
            if slots[place] < 0:
                slots[place] = <int32_t>row
            own[row] = slots[place]


def find(const uint64_t[::1] wanted, const uint64_t[::1] keys, const int32_t[::1] slots, uint64_t by):
    """Look up `wanted` in the slots of `build`. Returns (k,) ascending indices of the matches, and (k,) their rows."""
    cdef int64_t i, found = 0, num_slots = slots.shape[0], num_keys = keys.shape[0]
    cdef uint64_t key, place, mask = <uint64_t>(num_slots - 1)
    cdef int32_t row
    cdef int shift = 64
    if num_slots < 2 or num_slots & (num_slots - 1):
        raise ValueError(f"the number of slots must be a power of two, got {num_slots}")
    while num_slots > 1:
        shift -= 1
        num_slots >>= 1
    hits, rows = np.empty(wanted.shape[0], np.int64), np.empty(wanted.shape[0], np.int64)
    cdef int64_t[::1] hit = hits
    cdef int64_t[::1] at = rows
    with nogil:
        for i in range(wanted.shape[0]):
            key = wanted[i]
            place = ((key ^ (key >> 32)) * by) >> shift
            row = slots[place]
            while row >= 0:
                if row < num_keys and keys[row] == key:
                    hit[found] = i
                    at[found] = row
                    found += 1
                    break
                place = (place + 1) & mask
                row = slots[place]
    return hits[:found].copy(), rows[:found].copy()


def build_near(const uint64_t[::1] values, const int64_t[::1] rows, uint64_t low, int32_t[::1] slots, int64_t[::1] own):
    """Insert each row in the slot `value - low`, and set `own[row]` to the first row with the value of `row`.

    `rows` has the row of each of the (n,) values; None means 0 to n - 1.
    """
    cdef int64_t i, row, num_own = own.shape[0], count = values.shape[0]
    cdef uint64_t place, num_slots = <uint64_t>slots.shape[0]
    cdef bint every = rows is None, wrong = False
    if not every and rows.shape[0] != count:
        raise ValueError(f"{rows.shape[0]} rows of {count} values")
    with nogil:
        for i in range(count):
            row = i if every else rows[i]
            place = values[i] - low
            if place >= num_slots or row < 0 or row >= num_own:
                wrong = True
                break
            if slots[place] < 0:
                slots[place] = <int32_t>row
            own[row] = slots[place]
    if wrong:
        raise ValueError("values or rows out of range")


def find_near(const uint64_t[::1] wanted, uint64_t low, const int32_t[::1] slots):
    """Look up `wanted` in the slots of `build_near`; see `find`."""
    cdef int64_t i, found = 0
    cdef uint64_t place, num_slots = <uint64_t>slots.shape[0]
    hits, rows = np.empty(wanted.shape[0], np.int64), np.empty(wanted.shape[0], np.int64)
    cdef int64_t[::1] hit = hits
    cdef int64_t[::1] at = rows
    with nogil:
        for i in range(wanted.shape[0]):
            place = wanted[i] - low
            if place < num_slots and slots[place] >= 0:
                hit[found] = i
                at[found] = slots[place]
                found += 1
    return hits[:found].copy(), rows[:found].copy()
