"""Compiled form of bitpacking.py and of the packed chunks of miniblock.py: transposed blocks of 1,024 values."""

cdef const int* ROW_ORDER = [0, 4, 2, 6, 1, 5, 3, 7]


cdef void unpack_block(const word_t* packed, int width, word_t* out) noexcept nogil:
    """Unpack 1,024 values; `packed` is aligned."""
    cdef int bits = 8 * sizeof(word_t)
    cdef int lanes = 1024 // bits
    cdef int row, lane, shift, back
    cdef word_t mask
    cdef const word_t* source
    cdef word_t* target
    if width == 0:
        memset(out, 0, 1024 * sizeof(word_t))
        return
    mask = (<word_t>~<word_t>0) >> (bits - width)
    for row in range(bits):
        source = packed + row * width // bits * lanes
        target = out + ROW_ORDER[row // 8] * 16 + row % 8 * 128
        shift = row * width % bits
        if shift + width <= bits:
            for lane in range(lanes):
                target[lane] = (source[lane] >> shift) & mask
        else:
            back = bits - shift
            for lane in range(lanes):
                target[lane] = ((source[lane] >> shift) | <word_t>(source[lane + lanes] << back)) & mask


cdef void unpack_block_at(const uint8_t* packed, int width, word_t* out, int64_t count) noexcept nogil:
    """Unpack the first `count` values of a block at any address."""
    cdef word_t[1024] aligned
    cdef word_t[1024] whole
    cdef const word_t* source = <const word_t*>packed
    if <uint64_t>packed % sizeof(word_t):
        memcpy(aligned, packed, 128 * width)
        source = aligned
    if count >= 1024:
        unpack_block(source, width, out)
    else:
        unpack_block(source, width, &whole[0])
        memcpy(out, whole, count * sizeof(word_t))


cdef void pack_block(const word_t* values, int width, word_t* out) noexcept nogil:
    """Pack 1,024 values; `out` is aligned and has 128 * width bytes."""
    cdef int bits = 8 * sizeof(word_t)
    cdef int lanes = 1024 // bits
    cdef int row, lane, shift, back
    cdef word_t mask
    cdef const word_t* source
    cdef word_t* target
    if width == 0:
        return
    mask = (<word_t>~<word_t>0) >> (bits - width)
    for row in range(bits):
        source = values + ROW_ORDER[row // 8] * 16 + row % 8 * 128
        target = out + row * width // bits * lanes
        shift = row * width % bits
        if shift == 0:
            for lane in range(lanes):
                target[lane] = source[lane] & mask
        else:
            for lane in range(lanes):
                target[lane] |= <word_t>((source[lane] & mask) << shift)
        if shift + width > bits:
            back = bits - shift
            for lane in range(lanes):
                target[lane + lanes] = (source[lane] & mask) >> back


cdef void unpack_blocks_of(const uint8_t* packed, int width, int64_t blocks, word_t* out) noexcept nogil:
    cdef int64_t i
    for i in range(blocks):
        unpack_block_at(packed + i * 128 * width, width, out + i * 1024, 1024)


def unpack_blocks(packed, int width, word_t[::1] out):
    cdef Bytes source = Bytes(packed)
    cdef int64_t blocks = out.shape[0] // 1024
    if not 0 <= width <= 8 * <int>sizeof(word_t) or source.size < blocks * 128 * width:
        raise ValueError(f"{source.size} bytes are not {blocks} blocks of width {width}")
    with nogil:
        unpack_blocks_of(source.at, width, blocks, &out[0])


cdef void pack_block_at(const word_t* values, int64_t count, int width, word_t* out) noexcept nogil:
    """Pack a block of `count` values, padded with zeros."""
    cdef word_t[1024] whole
    if count >= 1024:
        pack_block(values, width, out)
    else:
        memcpy(whole, values, count * sizeof(word_t))
        memset(&whole[count], 0, (1024 - count) * sizeof(word_t))
        pack_block(&whole[0], width, out)


def pack_blocks(const word_t[::1] values, int width):
    cdef int64_t count = values.shape[0], first, words = 128 * width // <int64_t>sizeof(word_t)
    if not 0 <= width <= 8 * <int>sizeof(word_t):
        raise ValueError(f"width {width} is not between 0 and {8 * sizeof(word_t)}")
    packed = np.empty((count + 1023) // 1024 * 128 * width, np.uint8)
    cdef Bytes target = Bytes(packed, True)
    with nogil:
        for first in range(0, count, 1024):
            pack_block_at(&values[first], count - first, width, <word_t*>target.at + first // 1024 * words)
    return packed


cdef int unpack_inline_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, int64_t chunks,
    word_t* out, int64_t room,
) noexcept nogil:
    cdef int64_t i, at, count
    cdef word_t width
    for i in range(chunks):
        at, count = starts[i], counts[i]
        if not inside(at, sizes[i], data.size) or count < 0 or count > 1024 or count > room:
            return OUTSIDE
        if sizes[i] < <int64_t>sizeof(word_t):
            return PAYLOAD
        memcpy(&width, data.at + at, sizeof(word_t))
        if width > 8 * sizeof(word_t):
            return WIDTH
        if sizes[i] != <int64_t>(sizeof(word_t) + 128 * width):
            return PAYLOAD
        unpack_block_at(data.at + at + sizeof(word_t), <int>width, out, count)
        out += count
        room -= count
    return OK


def unpack_inline(data, starts, sizes, counts, word_t[::1] out):
    cdef Pieces chunks = Pieces(data, starts, sizes, counts)
    cdef int code
    with nogil:
        code = unpack_inline_of(
            chunks.data, chunks.starts, chunks.sizes, chunks.counts, chunks.rows, &out[0], out.shape[0]
        )
    check(code)


cdef int width_of(const word_t* values, int64_t count) noexcept nogil:
    """Return the number of bits of the largest value."""
    cdef word_t union = 0
    cdef int64_t i
    cdef int width = 0
    for i in range(count):
        union |= values[i]
    while union:
        union >>= 1
        width += 1
    return width


cdef int64_t block_sizes_of(const word_t* values, int64_t count, int64_t* sizes) noexcept nogil:
    """Compute the size of each block including its width word; return the sum."""
    cdef int64_t block, left, total = 0
    for block in range((count + 1023) // 1024):
        left = count - block * 1024
        sizes[block] = <int64_t>sizeof(word_t) + 128 * width_of(values + block * 1024, left if left < 1024 else 1024)
        total += sizes[block]
    return total


def pack_inline(const word_t[::1] values):
    cdef int64_t count = values.shape[0], blocks = (count + 1023) // 1024, i, total
    cdef word_t* out
    sizes = np.empty(blocks, np.int64)
    cdef Bytes size = Bytes(sizes, True), target
    with nogil:
        total = block_sizes_of(&values[0], count, <int64_t*>size.at)
    packed = np.empty(total, np.uint8)
    target = Bytes(packed, True)
    with nogil:
        out = <word_t*>target.at
        for i in range(blocks):
            pack_inline_block(&values[i * 1024], count - i * 1024, (<int64_t*>size.at)[i], out)
            out += (<int64_t*>size.at)[i] // <int64_t>sizeof(word_t)
    return packed, sizes


cdef void pack_inline_block(const word_t* values, int64_t count, int64_t size, word_t* out) noexcept nogil:
    """Write the width word and the packed values of a block of `size` bytes."""
    out[0] = <word_t>((size - <int64_t>sizeof(word_t)) // 128)
    pack_block_at(values, count, out[0], out + 1)


cdef int unpack_out_of_line_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, int64_t chunks, int width,
    word_t* out, int64_t room,
) noexcept nogil:
    cdef int64_t i, at, count, full, tail, rest
    if not 0 <= width <= 8 * <int>sizeof(word_t):
        return WIDTH
    for i in range(chunks):
        at, count = starts[i], counts[i]
        if not inside(at, sizes[i], data.size) or count < 0 or count > room:
            return OUTSIDE
        full, tail = count // 1024, count % 1024
        rest = sizes[i] - full * 128 * width
        if rest < 0 or (tail == 0 and rest != 0):
            return PAYLOAD
        unpack_blocks_of(data.at + at, width, full, out)
        at += full * 128 * width
        if tail:
            if rest == tail * <int64_t>sizeof(word_t):
                memcpy(out + full * 1024, data.at + at, rest)
            elif rest == 128 * width:
                unpack_block_at(data.at + at, width, out + full * 1024, tail)
            else:
                return PAYLOAD
        out += count
        room -= count
    return OK


def unpack_out_of_line(data, starts, sizes, counts, int width, word_t[::1] out):
    cdef Pieces chunks = Pieces(data, starts, sizes, counts)
    cdef int code
    with nogil:
        code = unpack_out_of_line_of(
            chunks.data, chunks.starts, chunks.sizes, chunks.counts, chunks.rows, width, &out[0], out.shape[0]
        )
    check(code)
