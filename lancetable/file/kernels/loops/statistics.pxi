"""Counts of set bits, for zone maps."""

cdef int64_t count_bits_of(const uint8_t* bitmap, int64_t start, int64_t end) noexcept nogil:
    """Count the set bits between two positions."""
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
    """Return the number of set bits of each range of rows; row 0 is bit `skip`."""
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
        raise ValueError("range beyond the last row")
    return counts
