"""Mini-block pages of values without levels, all chunks in one step; see choose.py of the encodings.

    chunk    u16 levels, none | u16 or u32 bytes of the values | fill up to 8 | the values | fill up to 8
"""

cdef int64_t fewest_runs(const word_t* values, int64_t count, int64_t enough) noexcept nogil:
    """Runs of equal values; only about, from slices spread over them, where they seem to be twice `enough`."""
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


cdef void number_chunks_of(const word_t* values, int64_t count, const int64_t* sizes, uint8_t* out) noexcept nogil:
    """Chunks of packed blocks, each behind its header of eight bytes."""
    cdef int64_t block
    cdef word_t* at
    for block in range((count + 1023) // 1024):
        at = <word_t*>(out + 8)
        at[0] = <word_t>((sizes[block] - <int64_t>sizeof(word_t)) // 128)
        pack_block_at(values + block * 1024, count - block * 1024, at[0], at + 1)
        out += 8 + (sizes[block] + 7) // 8 * 8


cdef inline int64_t chunk_frame(uint8_t* out, int64_t size, bint large) noexcept nogil:
    """The head of a chunk, and what fills it up behind `size` bytes of values -> its bytes."""
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
    """The chunks of a mini-block page of numbers without levels, bit-packed or plain, whatever is smaller.

    -> whether they are packed, the words about the chunks, the chunks; None if runs of equal values may be smaller, or
    for values at an odd address.
    """
    cdef Bytes source = Bytes(values)
    cdef int64_t plain = (count * bits + 7) // 8, packed = plain, runs = plain, blocks = (count + 1023) // 1024
    cdef int64_t chunks = blocks, per_chunk = 1024, chunk_bytes = 0, i, at, size, room, total = 0
    cdef bint numbers = bits in (8, 16, 32, 64)
    if bits <= 0 or count <= 0 or plain > source.size or (bits % 8 and bits != 1) or 16 * bits > 8 * target_bytes:
        raise ValueError("values of a wrong width or number")
    if numbers and <uint64_t>source.at % <uint64_t>(bits // 8):
        return None
    sizes = np.empty(blocks, np.int64)
    cdef Bytes held = Bytes(sizes, True)
    cdef int64_t* block_sizes = <int64_t*>held.at
    if numbers and max_values >= 1024:
        with nogil:
            if bits == 8:
                packed = block_sizes_of(<uint8_t*>source.at, count, block_sizes)
                runs = fewest_runs(<uint8_t*>source.at, count, 1 + min(packed, plain) // 2)
            elif bits == 16:
                packed = block_sizes_of(<uint16_t*>source.at, count, block_sizes)
                runs = fewest_runs(<uint16_t*>source.at, count, 1 + min(packed, plain) // 3)
            elif bits == 32:
                packed = block_sizes_of(<uint32_t*>source.at, count, block_sizes)
                runs = fewest_runs(<uint32_t*>source.at, count, 1 + min(packed, plain) // 5)
            else:
                packed = block_sizes_of(<uint64_t*>source.at, count, block_sizes)
                runs = fewest_runs(<uint64_t*>source.at, count, 1 + min(packed, plain) // 9)
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
    cdef int64_t log = 0
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
            if not is_packed:
                memcpy(out + 8, source.at + at, size)
                at += size
            chunk_word(word.at, i, room, log if i + 1 < chunks else 0, large)
            out += room
        if is_packed:
            if bits == 8:
                number_chunks_of(<uint8_t*>source.at, count, block_sizes, target.at)
            elif bits == 16:
                number_chunks_of(<uint16_t*>source.at, count, block_sizes, target.at)
            elif bits == 32:
                number_chunks_of(<uint32_t*>source.at, count, block_sizes, target.at)
            else:
                number_chunks_of(<uint64_t*>source.at, count, block_sizes, target.at)
    return is_packed, words, data


cdef int64_t text_sizes_of(
    const offset_t* offsets, int64_t count, int64_t per_chunk, int64_t max_bytes, int64_t* sizes
) noexcept nogil:
    """Bytes of the values of each chunk, their offsets and what fills up the last one -> of all chunks with their
    heads; -1 if a chunk takes more than `max_bytes`.
    """
    cdef int64_t word = sizeof(offset_t), first = 0, end, i = 0, total = 0
    while first < count:
        end = min(first + per_chunk, count)
        sizes[i] = (end - first + 1) * word + (offsets[end] - offsets[first] + word - 1) // word * word
        if sizes[i] > max_bytes:
            return -1
        total += 8 + (sizes[i] + 7) // 8 * 8
        first = end
        i += 1
    return total


cdef void text_chunks_of(
    const offset_t* offsets, const uint8_t* data, int64_t count, int64_t per_chunk, const int64_t* sizes, bint large,
    uint8_t* words, uint8_t* out
) noexcept nogil:
    cdef int64_t first = 0, end, i = 0, k, content, room, log = 0
    cdef offset_t shift
    cdef offset_t* table
    while 1 << (log + 1) <= per_chunk:
        log += 1
    while first < count:
        end = min(first + per_chunk, count)
        room = chunk_frame(out, sizes[i], large)
        table = <offset_t*>(out + 8)
        shift = <offset_t>((end - first + 1) * <int64_t>sizeof(offset_t)) - offsets[first]
        for k in range(end - first + 1):
            table[k] = offsets[first + k] + shift
        content = offsets[end] - offsets[first]
        memcpy(out + 8 + (end - first + 1) * <int64_t>sizeof(offset_t), data + offsets[first], content)
        k = (end - first + 1) * <int64_t>sizeof(offset_t) + content
        memset(out + 8 + k, 0x48, sizes[i] - k)
        chunk_word(words, i, room, log if end < count else 0, large)
        out += room
        first = end
        i += 1


def text_page(offsets, int offset_bytes, data, int64_t per_chunk, int64_t max_bytes, bint large):
    """The chunks of a mini-block page of strings or bytes without levels, `per_chunk` values in each.

    -> the words about the chunks, the chunks; None if one of them would take more than `max_bytes`.
    """
    cdef Bytes bound = Bytes(offsets), source = Bytes(data)
    cdef int64_t count = bound.size // offset_bytes - 1, chunks, total
    cdef int code
    if offset_bytes not in (4, 8) or count <= 0 or per_chunk <= 0:
        raise ValueError("no values, or offsets of an odd width")
    with nogil:
        if offset_bytes == 4:
            code = check_offsets(<int32_t*>bound.at, count, source.size)
        else:
            code = check_offsets(<int64_t*>bound.at, count, source.size)
    check(code)
    chunks = (count + per_chunk - 1) // per_chunk
    sizes = np.empty(chunks, np.int64)
    cdef Bytes size = Bytes(sizes, True)
    with nogil:
        if offset_bytes == 4:
            total = text_sizes_of(<int32_t*>bound.at, count, per_chunk, max_bytes, <int64_t*>size.at)
        else:
            total = text_sizes_of(<int64_t*>bound.at, count, per_chunk, max_bytes, <int64_t*>size.at)
    if total < 0:
        return None
    words = np.empty(chunks, np.uint32 if large else np.uint16)
    out = np.empty(total, np.uint8)
    cdef Bytes word = Bytes(words, True), target = Bytes(out, True)
    with nogil:
        if offset_bytes == 4:
            text_chunks_of(
                <int32_t*>bound.at, source.at, count, per_chunk, <int64_t*>size.at, large, word.at, target.at
            )
        else:
            text_chunks_of(
                <int64_t*>bound.at, source.at, count, per_chunk, <int64_t*>size.at, large, word.at, target.at
            )
    return words, out
