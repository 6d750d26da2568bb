# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled search for a substring in many strings. Its caller, expr/evaluate/operators.py, has an equivalent in Arrow.

The bytes of all strings are searched together, 64 positions at a time: three bytes of the substring are compared first,
and the others only where these three match. A match that crosses the end of a string is ignored.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t

import numpy as np


cdef extern from *:
    """
    enum { LTS_BLOCK = 64 };

    static int lts_ascii(const uint8_t *data, int64_t size) {
        uint8_t seen = 0;
        for (int64_t i = 0; i < size; i++) seen |= data[i];
        return seen < 0x80;
    }

    static int lts_equal(const uint8_t *at, const uint8_t *needle, const uint8_t *fold, int64_t size) {
        for (int64_t i = 0; i < size; i++) {
            if ((at[i] | fold[i]) != needle[i]) return 0;
        }
        return 1;
    }

    /* `fold[i]` is the case bit if byte i of the needle is a letter that matches in any case, otherwise 0. The caller
       has checked the first and the last offset against the data; the others only select the next position. */
    static void lts_contains(
        const uint8_t *data, const int32_t *offsets, int64_t num_rows, const uint8_t *needle, const uint8_t *fold,
        int64_t size, uint8_t *found
    ) {
        const int64_t stop = (int64_t)offsets[num_rows] - size + 1, middle = size / 2, last = size - 1;
        const uint8_t a = needle[0], b = needle[middle], c = needle[last];
        const uint8_t fold_a = fold[0], fold_b = fold[middle], fold_c = fold[last];
        int64_t row = 0, at = offsets[0];
        while (at < stop) {
            uint8_t hits[LTS_BLOCK];
            const uint8_t *one = data + at, *two = one + middle, *three = one + last;
            int64_t places = stop - at < LTS_BLOCK ? stop - at : LTS_BLOCK;
            uint8_t any = 0;
            if (places == LTS_BLOCK) {
                for (int i = 0; i < LTS_BLOCK; i++) {
                    uint8_t hit = ((one[i] | fold_a) == a) & ((two[i] | fold_b) == b) & ((three[i] | fold_c) == c);
                    hits[i] = hit;
                    any |= hit;
                }
            } else {
                for (int64_t i = 0; i < places; i++) {
                    hits[i] = ((one[i] | fold_a) == a) & ((two[i] | fold_b) == b) & ((three[i] | fold_c) == c);
                    any |= hits[i];
                }
            }
            int64_t next = at + places;
            for (int64_t i = 0; any && i < places; i++) {
                if (!hits[i] || !lts_equal(one + i, needle, fold, size)) continue;
                while (row < num_rows - 1 && offsets[row + 1] <= at + i) row++;
                int64_t end = offsets[row + 1];
                if (at + i + size > end) continue;
                found[row] = 1;
                if (end >= next) {
                    next = end;
                    break;
                }
                i = end - at - 1;
            }
            at = next;
        }
    }
    """
    int lts_ascii(const uint8_t *data, int64_t size) nogil
    void lts_contains(
        const uint8_t *data, const int32_t *offsets, int64_t num_rows, const uint8_t *needle, const uint8_t *fold,
        int64_t size, uint8_t *found
    ) nogil


def containing(
    const int32_t[::1] offsets, const uint8_t[::1] data, const uint8_t[::1] needle, const uint8_t[::1] fold, bint ascii
):
    """Return a mask of the strings that contain `needle`; the (n + 1,) `offsets` of the n strings refer to `data`.

    The bits of `fold` are set in a byte of a string before it is compared. Returns None if the offsets do not fit the
    data, or if `ascii` is True and the data contains a byte outside ASCII.
    """
    cdef int64_t num_rows = offsets.shape[0] - 1
    cdef int64_t size = needle.shape[0]
    cdef uint8_t[::1] found
    if num_rows < 0 or size < 1 or fold.shape[0] != size:
        return None
    made = np.zeros(num_rows, np.uint8)
    if offsets[0] < 0 or offsets[num_rows] < offsets[0] or offsets[num_rows] > data.shape[0]:
        return None
    if num_rows == 0 or offsets[num_rows] - offsets[0] < size:
        return made.view(np.bool_)
    found = made
    with nogil:
        if ascii:
            ascii = lts_ascii(&data[offsets[0]], offsets[num_rows] - offsets[0])
            if not ascii:
                num_rows = -1
        if num_rows > 0:
            lts_contains(&data[0], &offsets[0], num_rows, &needle[0], &fold[0], size, &found[0])
    return None if num_rows < 0 else made.view(np.bool_)
