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
