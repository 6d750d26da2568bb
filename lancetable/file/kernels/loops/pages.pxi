"""Encoding of a mini-block page of values without levels in one call; see encodings_v2_1/choose_numbers.py.

    chunk    u16 number of levels, 0 | u16 or u32 size of the values | pad to 8 | the values | pad to 8
"""

cdef int64_t fewest_runs(const word_t* values, int64_t count, int64_t enough) noexcept nogil:
    """Return the number of runs of equal values, or an estimate from a sample if that is at least twice `enough`."""
    cdef int64_t i, piece, at, changes = 0
    if count > 4096:
        for piece in range(16):
            at = piece * (count - 256) // 15
            for i in range(at + 1, at + 256):
                changes += values[i] != values[i - 1]
        changes = changes * count // (16 * 255)
        if 1 + changes >= 2 * enough:
            return 1 + changes
        changes = 0
    for i in range(1, count):
        changes += values[i] != values[i - 1]
    return 1 + changes


cdef inline int64_t chunk_frame(uint8_t* out, int64_t size, bint large) noexcept nogil:
    """Write the header of a chunk and the padding after `size` bytes of values; return the size of the chunk."""
    cdef int64_t room = 8 + (size + 7) // 8 * 8
    memset(out, 0xFE, 8)
    memset(out, 0, 2)
    memcpy(out + 2, &size, 4 if large else 2)
    if size % 8:
        memset(out + room - 8, 0xFE, 8)
    return room


cdef inline void chunk_word(uint8_t* words, int64_t chunk, int64_t room, int64_t log, bint large) noexcept nogil:
    if large:
        (<uint32_t*>words)[chunk] = <uint32_t>((room // 8 - 1) << 4 | log)
    else:
        (<uint16_t*>words)[chunk] = <uint16_t>((room // 8 - 1) << 4 | log)


def number_page(values, int bits, int64_t count, int64_t max_values, int64_t target_bytes, bint large):
    """Encode a page of numbers without levels, bit-packed or plain, whichever is smaller.

    Returns a flag that is True if the values are packed, the chunk words, and the chunks. Returns None if run-length
    encoding may be smaller or the values are unaligned.
    """
    if bits <= 0 or count <= 0 or (bits % 8 and bits != 1) or 16 * bits > 8 * target_bytes:
        raise ValueError(f"{count} values of {bits} bits do not fit into chunks")
    dtype = np.dtype(f"u{bits // 8}" if bits in (16, 32, 64) else "u1")
    numbers = np.frombuffer(values, dtype, (count * bits + 8 * dtype.itemsize - 1) // (8 * dtype.itemsize))
    return number_chunks(numbers, bits, count, max_values, target_bytes, large) if numbers.flags.aligned else None


def number_chunks(
    const word_t[::1] values, int bits, int64_t count, int64_t max_values, int64_t target_bytes, bint large
):
    cdef int64_t plain = (count * bits + 7) // 8, packed = plain, runs, blocks = (count + 1023) // 1024
    cdef int64_t chunks = blocks, per_chunk = 1024, chunk_bytes = 0, i, at, size, room, total = 0, log = 0
    cdef const uint8_t* source = <const uint8_t*>&values[0]
    sizes = np.empty(blocks, np.int64)
    cdef Bytes size_bytes = Bytes(sizes, True)
    cdef int64_t* block_sizes = <int64_t*>size_bytes.at
    if bits == 8 * sizeof(word_t) and max_values >= 1024:
        with nogil:
            packed = block_sizes_of(&values[0], count, block_sizes)
            runs = fewest_runs(&values[0], count, 1 + min(packed, plain) // (1 + <int64_t>sizeof(word_t)))
        if runs * (bits // 8 + 1) < min(packed, plain):
            return None
    cdef bint is_packed = packed < plain
    if is_packed:
        for i in range(chunks):
            total += 8 + (block_sizes[i] + 7) // 8 * 8
    else:
        per_chunk = 8
        while 2 * per_chunk <= max_values and 2 * per_chunk * bits <= 8 * target_bytes:
            per_chunk *= 2
        chunks = (count + per_chunk - 1) // per_chunk
        chunk_bytes = per_chunk * bits // 8
        total = 8 * chunks + (chunks - 1) * ((chunk_bytes + 7) // 8 * 8)
        total += (plain - (chunks - 1) * chunk_bytes + 7) // 8 * 8
    words = np.empty(chunks, np.uint32 if large else np.uint16)
    data = np.empty(total, np.uint8)
    cdef Bytes word = Bytes(words, True), target = Bytes(data, True)
    cdef uint8_t* out = target.at
    while 1 << (log + 1) <= per_chunk:
        log += 1
    with nogil:
        at = 0
        for i in range(chunks):
            if is_packed:
                size = block_sizes[i]
            elif i + 1 < chunks:
                size = chunk_bytes
            else:
                size = plain - at
            room = chunk_frame(out, size, large)
            if is_packed:
                pack_inline_block(&values[i * 1024], count - i * 1024, size, <word_t*>(out + 8))
            else:
                memcpy(out + 8, source + at, size)
                at += size
            chunk_word(word.at, i, room, log if i + 1 < chunks else 0, large)
            out += room
    return is_packed, words, data


def string_page(const offset_t[::1] offsets, data, int64_t per_chunk, int64_t max_bytes, bint large):
    """Encode a page of strings or binaries without levels: in each chunk, offsets from its start, and the bytes.

    `per_chunk` is the number of values of a chunk, a power of two from 2 on. Returns the chunk words and the chunks, or
    None if the values of a chunk need more than `max_bytes`. Raises CorruptFileError for offsets outside the data.
    """
    cdef Bytes source = Bytes(data)
    cdef int64_t count = offsets.shape[0] - 1, width = sizeof(offset_t), log = 0, total = 0, most = 0
    cdef int64_t chunks, i, row, first, last, size, room, shift
    if count <= 0 or per_chunk < 2 or per_chunk & (per_chunk - 1):
        raise ValueError(f"{count} values cannot be split into chunks of {per_chunk}")
    check(check_offsets(&offsets[0], count, source.size))
    chunks = (count + per_chunk - 1) // per_chunk
    with nogil:
        for i in range(chunks):
            first, last = i * per_chunk, min((i + 1) * per_chunk, count)
            size = (last - first + 1) * width + (offsets[last] - offsets[first] + width - 1) // width * width
            most = max(most, size)
            total += 8 + (size + 7) // 8 * 8
    if most > max_bytes:
        return None
    words = np.empty(chunks, np.uint32 if large else np.uint16)
    out = np.empty(total, np.uint8)
    cdef Bytes word = Bytes(words, True), target = Bytes(out, True)
    cdef uint8_t* at = target.at
    cdef offset_t* table
    while 1 << (log + 1) <= per_chunk:
        log += 1
    with nogil:
        for i in range(chunks):
            first, last = i * per_chunk, min((i + 1) * per_chunk, count)
            size = (last - first + 1) * width
            shift = size - offsets[first]
            room = size + (offsets[last] - offsets[first] + width - 1) // width * width
            chunk_word(word.at, i, chunk_frame(at, room, large), log if i + 1 < chunks else 0, large)
            memset(at + 8 + room - width, 0x48, width)  # padding after the bytes
            table = <offset_t*>(at + 8)
            for row in range(last - first + 1):
                table[row] = <offset_t>(offsets[first + row] + shift)
            memcpy(at + 8 + size, source.at + offsets[first], offsets[last] - offsets[first])
            at += 8 + (room + 7) // 8 * 8
    return words, out


def assemble_chunks(int64_t[::1] num_levels, level_buffers, value_buffers, bint large, int64_t limit):
    """Assemble chunks from the runs of their buffers: header, and each buffer padded to 8; see layouts/miniblock.py.

    `level_buffers` and `value_buffers` contain, for each buffer, the streams of which it consists, as pairs of bytes
    and int64 offsets of the runs of all chunks. Returns the bytes and the (chunks,) sizes of the chunks, or None if a
    chunk or a buffer is too large.
    """
    cdef int64_t chunks = num_levels.shape[0], num_level_buffers = len(level_buffers), k = 0, j, i
    cdef int64_t num_buffers = num_level_buffers + len(value_buffers)
    cdef int64_t num_streams = sum([len(streams) for streams in (*level_buffers, *value_buffers)])
    cdef int64_t header, width, size, room, start, total = 0, at
    cdef int code = OK
    cdef bint too_large = False
    cdef Bytes buffer
    cdef uint8_t* out
    owners = []
    cdef const uint8_t** sources = <const uint8_t**>malloc((2 * num_streams + num_buffers + 1) * sizeof(void*))
    if sources == NULL:
        raise MemoryError
    cdef const int64_t** runs = <const int64_t**>(sources + num_streams)
    cdef int64_t* ends = <int64_t*>(sources + 2 * num_streams)  # of the streams of each buffer
    header = (2 + 2 * num_level_buffers + (4 if large else 2) * (num_buffers - num_level_buffers) + 7) // 8 * 8
    try:
        j = 0
        for streams in (*level_buffers, *value_buffers):
            for data, offsets in streams:
                buffer = Bytes(offsets)
                owners.append(buffer)
                if buffer.size != 8 * (chunks + 1):
                    raise ValueError("streams have different numbers of runs")
                runs[k] = <const int64_t*>buffer.at
                buffer = Bytes(data)
                owners.append(buffer)
                sources[k] = buffer.at
                code = code or check_offsets(runs[k], chunks, buffer.size)
                k += 1
            ends[j] = k
            j += 1
        check(code)
        sizes = np.empty(chunks, np.int64)
        buffer = Bytes(sizes, True)
        owners.append(buffer)
        with nogil:
            for i in range(chunks):
                room, k = header, 0
                too_large |= not 0 <= num_levels[i] < 1 << 16
                for j in range(num_buffers):
                    size = 0
                    while k < ends[j]:
                        size += runs[k][i + 1] - runs[k][i]
                        k += 1
                    too_large |= size >> (32 if large and j >= num_level_buffers else 16) != 0
                    room += (size + 7) // 8 * 8
                too_large |= room > limit
                (<int64_t*>buffer.at)[i] = room
                total += room
        if too_large:
            return None
        filled = new_bytes(total)
        buffer = Bytes(filled, True)
        out = buffer.at
        with nogil:
            for i in range(chunks):
                memset(out, 0xFE, header)
                memcpy(out, &num_levels[i], 2)
                at, room, k = 2, header, 0
                for j in range(num_buffers):
                    start = room
                    while k < ends[j]:
                        size = runs[k][i + 1] - runs[k][i]
                        memcpy(out + room, sources[k] + runs[k][i], size)
                        room += size
                        k += 1
                    size, width = room - start, 4 if large and j >= num_level_buffers else 2
                    memcpy(out + at, &size, width)
                    at += width
                    memset(out + room, 0xFE, -size & 7)
                    room += -size & 7
                out += room
    finally:
        free(sources)
    return filled, sizes
