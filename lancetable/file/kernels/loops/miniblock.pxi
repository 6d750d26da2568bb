"""Twins of miniblock.py: the chunks of a page, decoded together."""

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
    out = new_bytes(total)
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
