"""Compiled form of varbin.py: selection of values of variable width by position or by row."""

cdef enum:
    MAX_INT32 = 0x7FFFFFFF

def gather(starts, ends, data):
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t count = first.size // 8, total = 0, i, end
    cdef Bytes last = column(ends, count, 8)
    offsets = np.empty(count + 1, np.int64)
    cdef Bytes bound = Bytes(offsets, True)
    cdef const int64_t* start = <int64_t*>first.at
    cdef int64_t* offset = <int64_t*>bound.at
    cdef int code = OK
    offset[0] = 0
    with nogil:
        for i in range(count):
            end = (<int64_t*>last.at)[i]
            if start[i] < 0 or end < start[i] or end > source.size:
                code = OUTSIDE
                break
            total += end - start[i]
            offset[i + 1] = total
    check(code)
    values = new_bytes(total)
    cdef Bytes target = Bytes(values, True)
    with nogil:
        for i in range(count):
            lt_copy(
                target.at + offset[i], source.at + start[i], offset[i + 1] - offset[i],
                min(total - offset[i], source.size - start[i]),
            )
    return offsets, values


def take(const offset_t[::1] offsets, data, const word_t[::1] rows, validity):
    """Return offsets of the same type, and the bytes; rows that are not valid become empty."""
    cdef Bytes source = Bytes(data), valid = None if validity is None else Bytes(validity)
    cdef int64_t count = rows.shape[0], values = offsets.shape[0] - 1, total = 0, i, start, end
    cdef const uint8_t* bits = NULL if valid is None else valid.at
    cdef int code = OK
    if values < 0 or (valid is not None and valid.size * 8 < count):
        raise ValueError("no offsets, or a bitmap for fewer rows")
    new_offsets = np.zeros(count + 1, np.int32 if sizeof(offset_t) == 4 else np.int64)
    cdef offset_t[::1] new = new_offsets
    with nogil:
        for i in range(count):
            if bits == NULL or bits[i >> 3] >> (i & 7) & 1:
                if rows[i] >= <uint64_t>values:
                    code = INDEX
                    break
                start, end = offsets[<int64_t>rows[i]], offsets[<int64_t>rows[i] + 1]
                if start < 0 or end < start or end > source.size:
                    code = OUTSIDE
                    break
                total += end - start
                if sizeof(offset_t) == 4 and total > MAX_INT32:
                    code = TOO_LONG
                    break
            new[i + 1] = <offset_t>total
    check(code)
    out = new_bytes(total)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        for i in range(count):
            if new[i + 1] > new[i]:
                start = offsets[<int64_t>rows[i]]
                lt_copy(
                    target.at + new[i], source.at + start, new[i + 1] - new[i], min(total - new[i], source.size - start)
                )
    return new_offsets, out
