"""Twins of varbin.py: offsets, gathers, ASCII."""

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
    out = new_bytes(total)
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
    out = new_bytes(total)
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
