"""Encoding of a mini-block page of values without lists in one call; see encodings_v2_1/choose_layout.py.

    chunk    u16 levels | u16 size of definition, if any | u16 or u32 size of values | pad to 8 |
             definition | pad to 8 | values | pad to 8
"""

cdef enum:
    PLAIN_LEVELS = 16


@cython.final
cdef class Definition:
    """Definition levels of a page, packed to `width` bits in each chunk; 16 is uncompressed, -1 is no levels."""

    cdef Bytes source
    cdef const uint16_t* at
    cdef int width

    def __cinit__(self, levels, int64_t count):
        self.width = -1
        self.at = NULL
        if levels is not None:
            self.source = column(levels, count, 2)
            self.at = <const uint16_t*>self.source.at

    cdef bint choose(self, int64_t count, int64_t per_chunk, bint large) noexcept nogil:
        """Choose the width. Returns False if run lengths are smaller, or if the levels of a chunk are too large."""
        cdef int64_t i, size, chunks = (count + per_chunk - 1) // per_chunk, runs = chunks
        if self.at == NULL:
            return True
        self.width = width_of(self.at, count)
        size = (chunks - 1) * self.size(per_chunk) + self.size(count - (chunks - 1) * per_chunk)
        if large and self.width:
            for i in range(1, count):
                runs += self.at[i] != self.at[i - 1] and i & (per_chunk - 1) != 0
            if 8 * chunks + 3 * (runs + count // 255) < min(size, 2 * count):
                return False
        if 2 * count <= size:
            self.width = PLAIN_LEVELS
        return min(count, per_chunk) < 1 << 16 and self.size(min(count, per_chunk)) < 1 << 16

    cdef int64_t size(self, int64_t count) noexcept nogil:
        """Return the size of the levels of a chunk; see `out_of_line_bytes` in compressive/bitpacking.py."""
        cdef int64_t blocks = count // 1024, rest = count % 1024
        if self.width < 0:
            return 0
        if self.width == PLAIN_LEVELS:
            return 2 * count
        if self.width * (1024 - rest) < (16 - self.width) * rest:
            blocks, rest = blocks + 1, 0
        return 128 * self.width * blocks + 2 * rest

    cdef void write(self, int64_t first, int64_t count, uint8_t* out) noexcept nogil:
        """Write the levels of a chunk; `out` is aligned."""
        cdef int64_t size = self.size(count), end = first + count
        if 0 < self.width < PLAIN_LEVELS:
            while size >= 128 * self.width and first < end:
                pack_block_at(self.at + first, end - first, self.width, <uint16_t*>out)
                first, size, out = first + 1024, size - 128 * self.width, out + 128 * self.width
        if size > 0:
            memcpy(out, self.at + first, size)


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


cdef inline int64_t chunk_room(Definition levels, int64_t count, int64_t size) noexcept nogil:
    """Return the size of a chunk of `count` values of `size` bytes."""
    return 8 + (levels.size(count) + 7) // 8 * 8 + (size + 7) // 8 * 8


cdef inline uint8_t* chunk_frame(
    uint8_t* out, Definition levels, int64_t first, int64_t count, int64_t size, bint large
) noexcept nogil:
    """Write everything in a chunk except for the `size` bytes of the values; return their address."""
    cdef int64_t level_size = levels.size(count)
    cdef bint has_levels = levels.width >= 0
    memset(out, 0xFE, 8)
    memset(out, 0, 2)
    if has_levels:
        memcpy(out, &count, 2)
        memcpy(out + 2, &level_size, 2)
    memcpy(out + (4 if has_levels else 2), &size, 4 if large else 2)
    out += 8
    if level_size % 8:
        memset(out + level_size // 8 * 8, 0xFE, 8)
    levels.write(first, count, out)
    out += (level_size + 7) // 8 * 8
    if size % 8:
        memset(out + size // 8 * 8, 0xFE, 8)
    return out


cdef inline void chunk_word(uint8_t* words, int64_t chunk, int64_t room, int64_t log, bint large) noexcept nogil:
    if large:
        (<uint32_t*>words)[chunk] = <uint32_t>((room // 8 - 1) << 4 | log)
    else:
        (<uint16_t*>words)[chunk] = <uint16_t>((room // 8 - 1) << 4 | log)


def number_page(values, definition, int bits, int64_t count, int64_t max_values, int64_t target_bytes, bint large):
    """Encode a page of numbers, bit-packed or plain, whichever is smaller.

    Returns the width of the levels as in `Definition`, the chunk words, the chunks, and a flag that is True if the
    values are packed. Returns None if run lengths may be smaller or the values are unaligned.
    """
    if bits <= 0 or count <= 0 or (bits % 8 and bits != 1) or 16 * bits > 8 * target_bytes:
        raise ValueError(f"{count} values of {bits} bits do not fit into chunks")
    cdef Bytes source = Bytes(values)
    if source.size < (count * bits + 7) // 8:
        raise ValueError(f"{source.size} bytes are not {count} values of {bits} bits")
    return number_page_at(source.at, Definition(definition, count), bits, count, max_values, target_bytes, large)


cdef number_page_at(
    const uint8_t* at, Definition levels, int bits, int64_t count, int64_t max_values, int64_t target_bytes, bint large
):
    cdef int width = bits // 8 if bits in (16, 32, 64) else 1
    if <uint64_t>at % width:
        return None
    if width == 8:
        return number_chunks(<const uint64_t*>at, levels, bits, count, max_values, target_bytes, large)
    if width == 4:
        return number_chunks(<const uint32_t*>at, levels, bits, count, max_values, target_bytes, large)
    if width == 2:
        return number_chunks(<const uint16_t*>at, levels, bits, count, max_values, target_bytes, large)
    return number_chunks(at, levels, bits, count, max_values, target_bytes, large)


cdef number_chunks(
    const word_t* values, Definition levels, int bits, int64_t count, int64_t max_values, int64_t target_bytes,
    bint large,
):
    cdef int64_t plain = (count * bits + 7) // 8, packed = plain, runs, blocks = (count + 1023) // 1024
    cdef int64_t chunks = blocks, per_chunk = 1024, chunk_bytes = 0, i, first, number, size, room, total = 0, log = 0
    cdef const uint8_t* source = <const uint8_t*>values
    cdef uint8_t* at
    sizes = np.empty(blocks, np.int64)
    cdef Bytes size_bytes = Bytes(sizes, True)
    cdef int64_t* block_sizes = <int64_t*>size_bytes.at
    if bits == 8 * sizeof(word_t) and max_values >= 1024:
        with nogil:
            packed = block_sizes_of(values, count, block_sizes)
            runs = fewest_runs(values, count, 1 + min(packed, plain) // (1 + <int64_t>sizeof(word_t)))
        if runs * (bits // 8 + 1) < min(packed, plain):
            return None
    cdef bint is_packed = packed < plain
    if not is_packed:
        per_chunk = 8
        while 2 * per_chunk <= max_values and 2 * per_chunk * bits <= 8 * target_bytes:
            per_chunk *= 2
        chunks = (count + per_chunk - 1) // per_chunk
        chunk_bytes = per_chunk * bits // 8
    if not levels.choose(count, per_chunk, large):
        return None
    for i in range(chunks):
        size = block_sizes[i] if is_packed else min(chunk_bytes, plain - i * chunk_bytes)
        total += chunk_room(levels, min(per_chunk, count - i * per_chunk), size)
    words = np.empty(chunks, np.uint32 if large else np.uint16)
    data = np.empty(total, np.uint8)
    cdef Bytes word = Bytes(words, True), target = Bytes(data, True)
    cdef uint8_t* out = target.at
    while 1 << (log + 1) <= per_chunk:
        log += 1
    with nogil:
        for i in range(chunks):
            first = i * per_chunk
            number = min(per_chunk, count - first)
            size = block_sizes[i] if is_packed else min(chunk_bytes, plain - i * chunk_bytes)
            at = chunk_frame(out, levels, first, number, size, large)
            if is_packed:
                pack_inline_block(values + first, number, size, <word_t*>at)
            else:
                memcpy(at, source + i * chunk_bytes, size)
            room = chunk_room(levels, number, size)
            chunk_word(word.at, i, room, log if i + 1 < chunks else 0, large)
            out += room
    return levels.width, words, data, is_packed


def string_page(const offset_t[::1] offsets, data, definition, int64_t per_chunk, int64_t max_bytes, bint large):
    """Encode a page of strings or binaries: in each chunk, offsets from its start, and the bytes.

    `per_chunk` is the number of values of a chunk, a power of two from 2 on. Returns the width of the levels as in
    `Definition`, the chunk words and the chunks. Returns None if the values of a chunk need more than `max_bytes`, or
    if the levels are smaller as run lengths. Raises CorruptFileError for offsets outside the data.
    """
    cdef Bytes source = Bytes(data)
    cdef int64_t count = offsets.shape[0] - 1
    if count <= 0 or per_chunk < 2 or per_chunk & (per_chunk - 1):
        raise ValueError(f"{count} values cannot be split into chunks of {per_chunk}")
    check(check_offsets(&offsets[0], count, source.size))
    return string_chunks(&offsets[0], count, source.at, Definition(definition, count), per_chunk, max_bytes, large)


cdef string_chunks(
    const offset_t* offsets, int64_t count, const uint8_t* data, Definition levels, int64_t per_chunk,
    int64_t max_bytes, bint large,
):
    cdef int64_t width = sizeof(offset_t), log = 0, total = 0, most = 0
    cdef int64_t chunks, i, row, first, last, size, shift, room
    if not levels.choose(count, per_chunk, large):
        return None
    chunks = (count + per_chunk - 1) // per_chunk
    with nogil:
        for i in range(chunks):
            first, last = i * per_chunk, min((i + 1) * per_chunk, count)
            size = (last - first + 1) * width + (offsets[last] - offsets[first] + width - 1) // width * width
            most = max(most, size)
            total += chunk_room(levels, last - first, size)
    if most > max_bytes:
        return None
    words = np.empty(chunks, np.uint32 if large else np.uint16)
    out = np.empty(total, np.uint8)
    cdef Bytes word = Bytes(words, True), target = Bytes(out, True)
    cdef uint8_t* start = target.at
    cdef uint8_t* at
    cdef offset_t* table
    while 1 << (log + 1) <= per_chunk:
        log += 1
    with nogil:
        for i in range(chunks):
            first, last = i * per_chunk, min((i + 1) * per_chunk, count)
            shift = (last - first + 1) * width
            size = shift + (offsets[last] - offsets[first] + width - 1) // width * width
            at = chunk_frame(start, levels, first, last - first, size, large)
            memset(at + size - width, 0x48, width)  # padding after the bytes
            table = <offset_t*>at
            for row in range(last - first + 1):
                table[row] = <offset_t>(offsets[first + row] - offsets[first] + shift)
            memcpy(at + shift, data + offsets[first], offsets[last] - offsets[first])
            room = chunk_room(levels, last - first, size)
            chunk_word(word.at, i, room, log if i + 1 < chunks else 0, large)
            start += room
    return levels.width, words, out


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
