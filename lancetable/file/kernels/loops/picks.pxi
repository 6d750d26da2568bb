"""Twins of picks.py: single values out of chunks."""

# How the levels of a chunk are stored; the width of packed ones stands above.
cdef enum:
    FLAT = 1
    INLINE = 2
    OUT_OF_LINE = 3
    RUNS = 4
    WIDTH_SHIFT = 8


cdef int place_in(int64_t start, int64_t size, int64_t count, int64_t place, int64_t room) noexcept nogil:
    """Whether a piece lies within `room` bytes and a place within its values."""
    return OK if inside(start, size, room) and 0 <= place < count else OUTSIDE


def pick_fixed(data, starts, sizes, counts, places, int64_t width):
    """-> the bytes of one value of `width` bytes from each piece."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    if not 0 <= width <= <int64_t>1 << 32:
        raise ValueError("an impossible width")
    out = np.empty(rows * width, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(rows):
            at = (<int64_t*>first.at)[i]
            code = place_in(
                at, (<int64_t*>length.at)[i], (<int64_t*>number.at)[i], (<int64_t*>place.at)[i], source.size
            )
            if code:
                break
            if width and (<int64_t*>number.at)[i] > source.size // width:
                code = PAYLOAD
                break
            if (<int64_t*>length.at)[i] != (<int64_t*>number.at)[i] * width:
                code = PAYLOAD
                break
            at += (<int64_t*>place.at)[i] * width
            if width == 8:
                memcpy(target.at + i * 8, source.at + at, 8)
            elif width == 4:
                memcpy(target.at + i * 4, source.at + at, 4)
            else:
                memcpy(target.at + i * width, source.at + at, width)
    check(code)
    return out


def pick_bits(data, starts, sizes, counts, places):
    """-> a bitmap of one bit from each piece."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at, k
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    out = np.zeros((rows + 7) // 8, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(rows):
            at, k = (<int64_t*>first.at)[i], (<int64_t*>place.at)[i]
            code = place_in(at, (<int64_t*>length.at)[i], (<int64_t*>number.at)[i], k, source.size)
            if code:
                break
            if (<int64_t*>length.at)[i] != ((<int64_t*>number.at)[i] + 7) // 8:
                code = PAYLOAD
                break
            target.at[i >> 3] |= (source.at[at + (k >> 3)] >> (k & 7) & 1) << (i & 7)
    check(code)
    return out


cdef inline word_t value_of(const uint8_t* packed, int width, int64_t place, word_t kind) noexcept nogil:
    """One value of a block of 1,024; `kind` only tells the type."""
    cdef int bits = 8 * sizeof(word_t)
    cdef int lanes = 1024 // bits
    cdef int rest = <int>(place & 127), lane = rest % lanes
    cdef int row = ROW_ORDER[(rest - lane) // 16] * 8 + <int>(place >> 7)
    cdef int bit = row * width, shift = row * width % bits
    cdef word_t low, high = 0
    if width == 0:
        return 0
    packed += (bit // bits * lanes + lane) * <int>sizeof(word_t)
    memcpy(&low, packed, sizeof(word_t))
    low = low >> shift
    if shift + width > bits:
        memcpy(&high, packed + lanes * <int>sizeof(word_t), sizeof(word_t))
        low = low | <word_t>(high << (bits - shift))
    return low & ((<word_t>~<word_t>0) >> (bits - width))


cdef int pick_inline_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, const int64_t* places, int64_t rows,
    word_t* out,
) noexcept nogil:
    cdef int64_t i, at
    cdef word_t width
    for i in range(rows):
        at = starts[i]
        if place_in(at, sizes[i], counts[i], places[i], data.size) or counts[i] > 1024:
            return OUTSIDE
        if sizes[i] < <int64_t>sizeof(word_t):
            return PAYLOAD
        memcpy(&width, data.at + at, sizeof(word_t))
        if width > 8 * sizeof(word_t):
            return WIDTH
        if sizes[i] != <int64_t>(sizeof(word_t) + 128 * width):
            return PAYLOAD
        out[i] = value_of(data.at + at + sizeof(word_t), <int>width, places[i], <word_t>0)
    return OK


def pick_inline(data, starts, sizes, counts, places, int bits):
    """-> one value of each inline bit-packed piece."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    out = np.empty(rows * bits // 8, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>length.at
    cdef const int64_t* c = <int64_t*>number.at
    cdef const int64_t* d = <int64_t*>place.at
    cdef int code = OK
    with nogil:
        if bits == 8:
            code = pick_inline_of(source, a, b, c, d, rows, <uint8_t*>target.at)
        elif bits == 16:
            code = pick_inline_of(source, a, b, c, d, rows, <uint16_t*>target.at)
        elif bits == 32:
            code = pick_inline_of(source, a, b, c, d, rows, <uint32_t*>target.at)
        elif bits == 64:
            code = pick_inline_of(source, a, b, c, d, rows, <uint64_t*>target.at)
    check(code)
    return out


cdef int pick_out_of_line_of(
    Bytes data, const int64_t* starts, const int64_t* sizes, const int64_t* counts, const int64_t* places, int64_t rows,
    int width, word_t* out,
) noexcept nogil:
    cdef int64_t i, at, full, tail, rest, place
    for i in range(rows):
        at, place = starts[i], places[i]
        if place_in(at, sizes[i], counts[i], place, data.size):
            return OUTSIDE
        full, tail = counts[i] // 1024, counts[i] % 1024
        if full > data.size // 128 and width:
            return PAYLOAD
        rest = sizes[i] - full * 128 * width
        if rest < 0 or (tail == 0 and rest != 0):
            return PAYLOAD
        if tail and rest != tail * <int64_t>sizeof(word_t) and rest != 128 * width:
            return PAYLOAD
        at += place // 1024 * 128 * width
        if place // 1024 == full and rest == tail * <int64_t>sizeof(word_t):
            memcpy(&out[i], data.at + at + place % 1024 * <int64_t>sizeof(word_t), sizeof(word_t))
        else:
            out[i] = value_of(data.at + at, width, place % 1024, <word_t>0)
    return OK


def pick_out_of_line(data, starts, sizes, counts, places, int width, int bits):
    """-> one value of each out-of-line bit-packed piece."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    if not 0 <= width <= bits:
        check(WIDTH)
    out = np.empty(rows * bits // 8, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>length.at
    cdef const int64_t* c = <int64_t*>number.at
    cdef const int64_t* d = <int64_t*>place.at
    cdef int code = OK
    with nogil:
        if bits == 8:
            code = pick_out_of_line_of(source, a, b, c, d, rows, width, <uint8_t*>target.at)
        elif bits == 16:
            code = pick_out_of_line_of(source, a, b, c, d, rows, width, <uint16_t*>target.at)
        elif bits == 32:
            code = pick_out_of_line_of(source, a, b, c, d, rows, width, <uint32_t*>target.at)
        elif bits == 64:
            code = pick_out_of_line_of(source, a, b, c, d, rows, width, <uint64_t*>target.at)
    check(code)
    return out


def pick_variable(data, starts, sizes, counts, places, int offset_bytes):
    """-> where the bytes of one value of each piece begin and end."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at, size, head, before, end
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    begins = np.empty(rows, np.int64)
    ends = np.empty(rows, np.int64)
    cdef Bytes begin = Bytes(begins, True), stop = Bytes(ends, True)
    cdef const uint8_t* stored
    cdef int code = OK
    if offset_bytes not in (4, 8):
        raise ValueError("offsets of an impossible width")
    with nogil:
        for i in range(rows):
            at, size = (<int64_t*>first.at)[i], (<int64_t*>length.at)[i]
            code = place_in(at, size, (<int64_t*>number.at)[i], (<int64_t*>place.at)[i], source.size)
            if code:
                break
            if (<int64_t*>number.at)[i] >= size // offset_bytes:
                code = FIRST_OFFSET
                break
            head = ((<int64_t*>number.at)[i] + 1) * offset_bytes
            stored = source.at + at + (<int64_t*>place.at)[i] * offset_bytes
            if offset_bytes == 4:
                before, end = lt_load32(stored), lt_load32(stored + 4)
            else:
                before, end = <int64_t>lt_load64(stored), <int64_t>lt_load64(stored + 8)
            if before < head:
                code = FIRST_OFFSET
                break
            if end < before:
                code = DECREASE
                break
            if end > size:
                code = OUTSIDE
                break
            (<int64_t*>begin.at)[i] = at + before
            (<int64_t*>stop.at)[i] = at + end
    check(code)
    return begins, ends


def pick_runs(data, value_starts, value_sizes, starts, sizes, counts, places, int width):
    """-> one value of each piece of run values and run lengths. Neighbours from one piece go on where the last ended."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at, k = 0, reached = 0, where = -1, runs
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    cdef Bytes value_at = column(value_starts, rows, 8), value_size = column(value_sizes, rows, 8)
    out = np.empty(rows * width, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int64_t before = -1
    cdef int code = OK
    with nogil:
        for i in range(rows):
            at, runs = (<int64_t*>first.at)[i], (<int64_t*>length.at)[i]
            code = place_in(at, runs, (<int64_t*>number.at)[i], (<int64_t*>place.at)[i], source.size)
            if code:
                break
            if (
                not inside((<int64_t*>value_at.at)[i], (<int64_t*>value_size.at)[i], source.size)
                or (<int64_t*>value_size.at)[i] != runs * width
            ):
                code = OUTSIDE
                break
            if at != where or (<int64_t*>place.at)[i] < before:
                where, k, reached = at, 0, 0
            before = (<int64_t*>place.at)[i]
            # Run k covers the values before `reached`, once its length is added.
            while True:
                if k == runs:
                    code = SHORT_RUNS
                    break
                if source.at[at + k] == 0:
                    code = ZERO_RUN
                    break
                if before < reached + source.at[at + k]:
                    break
                reached += source.at[at + k]
                k += 1
            if code:
                break
            memcpy(target.at + i * width, source.at + (<int64_t*>value_at.at)[i] + k * width, width)
    check(code)
    return out


def pick_streams(data, starts, sizes, counts, places, int width):
    """-> one value of each piece of `width` byte streams."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t rows = first.size // 8, i, at, count
    cdef int byte
    cdef Bytes length = column(sizes, rows, 8), number = column(counts, rows, 8), place = column(places, rows, 8)
    out = np.empty(rows * width, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(rows):
            at, count = (<int64_t*>first.at)[i], (<int64_t*>number.at)[i]
            code = place_in(at, (<int64_t*>length.at)[i], count, (<int64_t*>place.at)[i], source.size)
            if code:
                break
            if count > source.size or (<int64_t*>length.at)[i] != count * width:
                code = PAYLOAD
                break
            at += (<int64_t*>place.at)[i]
            for byte in range(width):
                target.at[i * width + byte] = source.at[at + byte * count]
    check(code)
    return out
