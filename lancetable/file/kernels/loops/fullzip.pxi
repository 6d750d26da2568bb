"""Compiled form of fullzip.py: location of the values in entries."""

cdef int walk_of(
    Bytes data, const int64_t* starts, const int64_t* ends, int64_t rows, int control, int bits_def, uint64_t top,
    int64_t value_bytes, int length_bytes, uint32_t* words, int64_t* positions, int64_t* sizes, int64_t* first,
    int64_t room,
) noexcept nogil:
    """Locate the values in the entries of all rows; entries beyond `room` are only counted."""
    cdef int64_t i, at, end, size, entries = 0
    cdef uint64_t word, length, mask = (<uint64_t>1 << bits_def) - 1
    for i in range(rows):
        at, end = starts[i], ends[i]
        if not 0 <= at <= end <= data.size:
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
    cdef int code
    if control not in (0, 1, 2, 4) or length_bytes not in (0, 4, 8) or not 0 <= bits_def <= 32:
        raise ValueError("control words have 0, 1, 2 or 4 bytes, lengths 0, 4 or 8")
    if value_bytes < 0 or top < 0 or (control == 0 and length_bytes == 0):
        raise ValueError("entries have neither a control word nor a length")
    first = np.empty(rows + 1, np.int64)
    cdef Bytes target = Bytes(first, True)
    cdef int64_t* f = <int64_t*>target.at
    with nogil:
        code = walk_of(
            source, <int64_t*>begin.at, <int64_t*>end.at, rows, control, bits_def, top, value_bytes,
            length_bytes, NULL, NULL, NULL, f, 0,
        )
    check(code)
    entries = f[rows]
    words = np.empty(entries, np.uint32)
    positions = np.empty(entries, np.int64)
    sizes = np.empty(entries, np.int64)
    cdef Bytes a = Bytes(words, True), b = Bytes(positions, True), c = Bytes(sizes, True)
    with nogil:
        code = walk_of(
            source, <int64_t*>begin.at, <int64_t*>end.at, rows, control, bits_def, top, value_bytes,
            length_bytes, <uint32_t*>a.at, <int64_t*>b.at, <int64_t*>c.at, f, entries,
        )
    check(code)
    return words, positions, sizes, first
