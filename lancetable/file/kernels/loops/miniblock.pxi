"""Compiled form of miniblock.py: decoding of all chunks of a page together."""

def chunk_headers(data, starts, sizes, int num_level_buffers, int num_buffers, bint large, has_levels=None):
    """Return numbers of levels, sizes and positions; None if buffers do not fill their chunk.

    Chunks without `has_levels` have no level buffers; by default, all have them.
    """
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t chunks = first.size // 8, i, at, end, header
    cdef Bytes length = column(sizes, chunks, 8)
    cdef int64_t every = num_level_buffers + num_buffers, k, size
    cdef Bytes kinds = None if has_levels is None else column(has_levels, chunks, 1)
    cdef bint bad = False, leveled = True
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
    cdef const uint8_t* kind_of = NULL if kinds is None else kinds.at
    with nogil:
        for i in range(chunks):
            leveled = kind_of == NULL or kind_of[i] != 0
            header = 2 + (2 * num_level_buffers if leveled else 0) + (4 if large else 2) * num_buffers
            header = (header + 7) // 8 * 8
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
                if k < num_level_buffers and not leveled:
                    size_of[k * chunks + i] = at_of[k * chunks + i] = 0
                    continue
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


def chunk_bounds(words, int64_t start, int64_t num_values, bint large):
    """Return the (k + 1,) bounds of the bytes and of the values of k chunks. The last chunk has the remaining values."""
    cdef Bytes source = Bytes(words)
    cdef int64_t chunks = source.size // (4 if large else 2), i, word, first_value = 0
    starts = np.empty(chunks + 1, np.int64)
    values = np.empty(chunks + 1, np.int64)
    cdef Bytes start_bytes = Bytes(starts, True), value_bytes = Bytes(values, True)
    cdef int64_t* start_of = <int64_t*>start_bytes.at
    cdef int64_t* value_of = <int64_t*>value_bytes.at
    with nogil:
        for i in range(chunks):
            start_of[i], value_of[i] = start, first_value
            word = lt_load32(source.at + 4 * i) if large else lt_load16(source.at + 2 * i)
            start += ((word >> 4) + 1) << 3
            first_value += (<int64_t>1) << (word & 15)
        start_of[chunks], value_of[chunks] = start, num_values
    return starts, values


cdef int variable_of(
    Pieces chunks, offset_t* offsets, int64_t room, int64_t* firsts, int64_t* lengths
) noexcept nogil:
    """Decode the offsets of all chunks, which together have at most `room` values."""
    cdef int64_t i, k, start, count, base = 0, head, before, end = 0
    cdef const uint8_t* stored
    offsets[0] = 0
    offsets += 1
    for i in range(chunks.rows):
        start, count = chunks.starts[i], chunks.counts[i]
        if not 0 <= count <= room or not inside(start, chunks.sizes[i], chunks.data_size):
            return OUTSIDE
        room -= count
        head = (count + 1) * <int64_t>sizeof(offset_t)
        if chunks.sizes[i] < head:
            return FIRST_OFFSET
        stored = chunks.at + start
        before = lt_load32(stored) if sizeof(offset_t) == 4 else <int64_t>lt_load64(stored)
        if before < head:
            return FIRST_OFFSET
        firsts[i], base = before, base - before
        for k in range(count):
            stored += sizeof(offset_t)
            end = lt_load32(stored) if sizeof(offset_t) == 4 else <int64_t>lt_load64(stored)
            if end < before:
                return DECREASE
            offsets[k] = <offset_t>(<uint64_t>base + <uint64_t>end)
            before = end
        if before > chunks.sizes[i]:
            return OUTSIDE
        base += before
        lengths[i] = before - firsts[i]
        firsts[i] += start
        offsets += count
        if sizeof(offset_t) == 4 and base > 0x7FFFFFFF:
            return TOO_LONG
    return OK


def variable(data, starts, sizes, counts, offset_t[::1] offsets):
    """Fill the offsets of all values; return the positions and sizes of the bytes of each chunk."""
    cdef Pieces chunks = Pieces(data, starts, sizes, counts)
    content = np.empty((2, chunks.rows), np.int64)
    cdef Bytes target = Bytes(content, True)
    cdef int64_t* first = <int64_t*>target.at
    cdef int code
    with nogil:
        code = variable_of(chunks, &offsets[0], offsets.shape[0] - 1, first, first + chunks.rows)
    check(code)
    return content


cdef int run_lengths_of(
    const word_t* values, const uint8_t* lengths, const int64_t* runs, int64_t num_runs, const int64_t* counts,
    int64_t chunks, word_t* out, int64_t room,
) noexcept nogil:
    cdef int64_t i, k, j, left, length
    cdef int64_t slack = 8 // <int64_t>sizeof(word_t)  # values of the 8-byte word that is stored at once
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


def run_lengths(const word_t[::1] values, lengths, runs, counts, word_t[::1] out):
    cdef Bytes length = column(lengths, values.shape[0], 1), run = Bytes(runs)
    cdef int64_t chunks = run.size // 8
    cdef Bytes number = column(counts, chunks, 8)
    cdef int code
    with nogil:
        code = run_lengths_of(
            &values[0], length.at, <int64_t*>run.at, length.size, <int64_t*>number.at, chunks, &out[0], out.shape[0]
        )
    check(code)


cdef void join_streams(const uint8_t* streams, int64_t count, word_t* out) noexcept nogil:
    """Join sizeof(word_t) streams of `count` bytes each."""
    cdef int64_t i
    cdef int byte
    for i in range(count):
        out[i] = streams[i]
    for byte in range(1, <int>sizeof(word_t)):
        for i in range(count):
            out[i] |= <word_t>(<word_t>streams[byte * count + i] << 8 * byte)


def byte_streams(data, starts, counts, word_t[::1] out):
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t chunks = first.size // 8, i, start, count, done = 0
    cdef Bytes number = column(counts, chunks, 8)
    cdef int code = OK
    with nogil:
        for i in range(chunks):
            start, count = (<int64_t*>first.at)[i], (<int64_t*>number.at)[i]
            if not 0 <= count <= out.shape[0] - done or not inside(start, count * sizeof(word_t), source.size):
                code = OUTSIDE
                break
            join_streams(source.at + start, count, &out[done])
            done += count
    check(code)
