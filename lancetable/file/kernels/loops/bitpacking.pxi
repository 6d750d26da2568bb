"""Twins of bitpacking.py, and of what miniblock.py does with packed chunks: blocks of 1,024 values, transposed."""

cdef const int* ROW_ORDER = [0, 4, 2, 6, 1, 5, 3, 7]


cdef void unpack_block(const word_t* packed, int width, word_t* out) noexcept nogil:
    """1,024 values; `packed` is aligned."""
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
    """The first `count` values of a block at any address."""
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
    """1,024 values; `out` is aligned and has 128 * width bytes."""
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


def unpack_blocks(packed, int width, out, int bits):
    cdef Bytes source = Bytes(packed), target = Bytes(out, True)
    cdef int64_t blocks = target.size // (128 * bits)
    if not 0 <= width <= bits or source.size < blocks * 128 * width:
        raise ValueError("the blocks do not fit")
    with nogil:
        if bits == 8:
            unpack_blocks_of(source.at, width, blocks, <uint8_t*>target.at)
        elif bits == 16:
            unpack_blocks_of(source.at, width, blocks, <uint16_t*>target.at)
        elif bits == 32:
            unpack_blocks_of(source.at, width, blocks, <uint32_t*>target.at)
        elif bits == 64:
            unpack_blocks_of(source.at, width, blocks, <uint64_t*>target.at)


cdef void pack_block_at(const word_t* values, int64_t count, int width, word_t* out) noexcept nogil:
    """A block of `count` values, filled up with zeros."""
    cdef word_t[1024] whole
    if count >= 1024:
        pack_block(values, width, out)
    else:
        memcpy(whole, values, count * sizeof(word_t))
        memset(&whole[count], 0, (1024 - count) * sizeof(word_t))
        pack_block(&whole[0], width, out)


cdef void pack_blocks_of(const word_t* values, int64_t count, int width, word_t* out) noexcept nogil:
    cdef int64_t first
    for first in range(0, count, 1024):
        pack_block_at(values + first, count - first, width, out)
        out += 16 * width // sizeof(word_t) * 8


def pack_blocks(values, int width, int bits):
    cdef Bytes source = Bytes(values)
    cdef int64_t count = source.size // (bits // 8)
    packed = np.empty((count + 1023) // 1024 * 128 * width, np.uint8)
    cdef Bytes target = Bytes(packed, True)
    if not 0 <= width <= bits or <uint64_t>source.at % <uint64_t>(bits // 8):
        raise ValueError("values of a wrong width or address")
    with nogil:
        if bits == 8:
            pack_blocks_of(<uint8_t*>source.at, count, width, <uint8_t*>target.at)
        elif bits == 16:
            pack_blocks_of(<uint16_t*>source.at, count, width, <uint16_t*>target.at)
        elif bits == 32:
            pack_blocks_of(<uint32_t*>source.at, count, width, <uint32_t*>target.at)
        elif bits == 64:
            pack_blocks_of(<uint64_t*>source.at, count, width, <uint64_t*>target.at)
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


def unpack_inline(data, starts, sizes, counts, out, int bits):
    cdef Bytes source = Bytes(data), target = Bytes(out, True), first = Bytes(starts)
    cdef int64_t chunks = first.size // 8
    cdef Bytes length = column(sizes, chunks, 8), number = column(counts, chunks, 8)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>length.at
    cdef const int64_t* c = <int64_t*>number.at
    cdef int code = OK
    with nogil:
        if bits == 8:
            code = unpack_inline_of(source, a, b, c, chunks, <uint8_t*>target.at, target.size)
        elif bits == 16:
            code = unpack_inline_of(source, a, b, c, chunks, <uint16_t*>target.at, target.size // 2)
        elif bits == 32:
            code = unpack_inline_of(source, a, b, c, chunks, <uint32_t*>target.at, target.size // 4)
        elif bits == 64:
            code = unpack_inline_of(source, a, b, c, chunks, <uint64_t*>target.at, target.size // 8)
    check(code)


cdef int width_of(const word_t* values, int64_t count) noexcept nogil:
    """Bits that the largest value needs."""
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
    """Bytes of each block with its width word, and of all of them."""
    cdef int64_t block, left, total = 0
    for block in range((count + 1023) // 1024):
        left = count - block * 1024
        sizes[block] = <int64_t>sizeof(word_t) + 128 * width_of(values + block * 1024, left if left < 1024 else 1024)
        total += sizes[block]
    return total


cdef void pack_inline_of(const word_t* values, int64_t count, const int64_t* sizes, word_t* out) noexcept nogil:
    cdef int64_t block
    for block in range((count + 1023) // 1024):
        out[0] = <word_t>((sizes[block] - <int64_t>sizeof(word_t)) // 128)
        pack_block_at(values + block * 1024, count - block * 1024, out[0], out + 1)
        out += sizes[block] // <int64_t>sizeof(word_t)


def pack_inline(values, int bits):
    cdef Bytes source = Bytes(values)
    cdef int64_t count = source.size // (bits // 8), total = 0
    if <uint64_t>source.at % <uint64_t>(bits // 8):
        raise ValueError("values at an odd address")
    sizes = np.empty((count + 1023) // 1024, np.int64)
    cdef Bytes size = Bytes(sizes, True)
    with nogil:
        if bits == 8:
            total = block_sizes_of(<uint8_t*>source.at, count, <int64_t*>size.at)
        elif bits == 16:
            total = block_sizes_of(<uint16_t*>source.at, count, <int64_t*>size.at)
        elif bits == 32:
            total = block_sizes_of(<uint32_t*>source.at, count, <int64_t*>size.at)
        elif bits == 64:
            total = block_sizes_of(<uint64_t*>source.at, count, <int64_t*>size.at)
    packed = np.empty(total, np.uint8)
    cdef Bytes target = Bytes(packed, True)
    with nogil:
        if bits == 8:
            pack_inline_of(<uint8_t*>source.at, count, <int64_t*>size.at, <uint8_t*>target.at)
        elif bits == 16:
            pack_inline_of(<uint16_t*>source.at, count, <int64_t*>size.at, <uint16_t*>target.at)
        elif bits == 32:
            pack_inline_of(<uint32_t*>source.at, count, <int64_t*>size.at, <uint32_t*>target.at)
        elif bits == 64:
            pack_inline_of(<uint64_t*>source.at, count, <int64_t*>size.at, <uint64_t*>target.at)
    return packed, sizes


cdef int unpack_out_of_line_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, int64_t chunks, int width,
    word_t* out, int64_t room,
) noexcept nogil:
    cdef int64_t i, at, count, full, tail, rest
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


def unpack_out_of_line(data, starts, sizes, counts, int width, out, int bits):
    cdef Bytes source = Bytes(data), target = Bytes(out, True), first = Bytes(starts)
    cdef int64_t chunks = first.size // 8
    cdef Bytes length = column(sizes, chunks, 8), number = column(counts, chunks, 8)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>length.at
    cdef const int64_t* c = <int64_t*>number.at
    cdef int code = OK
    if not 0 <= width <= bits:
        check(WIDTH)
    with nogil:
        if bits == 8:
            code = unpack_out_of_line_of(source, a, b, c, chunks, width, <uint8_t*>target.at, target.size)
        elif bits == 16:
            code = unpack_out_of_line_of(source, a, b, c, chunks, width, <uint16_t*>target.at, target.size // 2)
        elif bits == 32:
            code = unpack_out_of_line_of(source, a, b, c, chunks, width, <uint32_t*>target.at, target.size // 4)
        elif bits == 64:
            code = unpack_out_of_line_of(source, a, b, c, chunks, width, <uint64_t*>target.at, target.size // 8)
    check(code)
