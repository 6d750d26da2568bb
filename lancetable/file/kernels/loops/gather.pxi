"""Compiled form of gather.py: selection of single values from chunks."""

# Encodings of the levels of a chunk, as in gather.py; bits 8 and above are the width of out-of-line packed levels.
cdef enum:
    FLAT = 1
    INLINE = 2
    OUT_OF_LINE = 3
    RUNS = 4
    WIDTH_SHIFT = 8


def gather_fixed(data, starts, sizes, counts, places, int64_t width):
    """Return the bytes of one value of `width` bytes of each piece."""
    cdef Pieces pieces = Pieces(data, starts, sizes, counts, places)
    cdef int64_t i, at
    if not 0 <= width <= <int64_t>1 << 32:
        raise ValueError(f"width {width} is not between 0 and 4 GiB")
    out = np.empty(pieces.rows * width, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(pieces.rows):
            code = pieces.check(i)
            if code == OK and (
                (width and pieces.counts[i] > pieces.data_size // width) or pieces.sizes[i] != pieces.counts[i] * width
            ):
                code = PAYLOAD
            if code:
                break
            at = pieces.starts[i] + pieces.places[i] * width
            memcpy(target.at + i * width, pieces.at + at, width)
    check(code)
    return out


def gather_bits(data, starts, sizes, counts, places):
    """Return one bit of each piece, as a bitmap."""
    cdef Pieces pieces = Pieces(data, starts, sizes, counts, places)
    cdef int64_t i, place
    out = np.zeros((pieces.rows + 7) // 8, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(pieces.rows):
            code = pieces.check(i)
            if code == OK and pieces.sizes[i] != (pieces.counts[i] >> 3) + ((pieces.counts[i] & 7) > 0):
                code = PAYLOAD
            if code:
                break
            place = pieces.places[i]
            target.at[i >> 3] |= ((pieces.at[pieces.starts[i] + (place >> 3)] >> (place & 7)) & 1) << (i & 7)
    check(code)
    return out


cdef inline uint64_t packed_value(const uint8_t* block, int bits, int width, int64_t place) noexcept nogil:
    """Return one value of a block of 1,024 values of type size `bits`."""
    cdef int lanes = 1024 >> lt_lowest(bits), word = bits >> 3
    cdef int rest = <int>(place & 127), lane = rest & (lanes - 1)
    cdef int bit = (ROW_ORDER[(rest - lane) >> 4] * 8 + <int>(place >> 7)) * width, shift = bit & (bits - 1)
    cdef uint64_t value
    if width == 0:
        return 0
    block += ((bit >> lt_lowest(bits)) * lanes + lane) * word
    value = load_word(block, word) >> shift
    if shift + width > bits:
        value |= load_word(block + lanes * word, word) << (bits - shift)
    return value & (<uint64_t>0xFFFFFFFFFFFFFFFF >> (64 - width))


def gather_inline(data, starts, sizes, counts, places, int bits):
    """Return one value of each inline bit-packed piece, as bytes."""
    cdef Pieces pieces = Pieces(data, starts, sizes, counts, places)
    cdef int64_t i, word = bits // 8
    cdef uint64_t width, value
    out = np.empty(pieces.rows * word, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(pieces.rows):
            code = pieces.check(i)
            if code == OK and pieces.counts[i] > 1024:
                code = OUTSIDE
            elif code == OK and pieces.sizes[i] < word:
                code = PAYLOAD
            if code:
                break
            width = load_word(pieces.at + pieces.starts[i], <int>word)
            if width > <uint64_t>bits:
                code = WIDTH
                break
            if pieces.sizes[i] != word + 128 * <int64_t>width:
                code = PAYLOAD
                break
            value = packed_value(pieces.at + pieces.starts[i] + word, bits, <int>width, pieces.places[i])
            memcpy(target.at + i * word, &value, word)
    check(code)
    return out


def gather_out_of_line(data, starts, sizes, counts, places, int width, int bits):
    """Return one value of each out-of-line bit-packed piece, as bytes."""
    cdef Pieces pieces = Pieces(data, starts, sizes, counts, places)
    cdef int64_t i, full, tail, rest, place, word = bits // 8
    cdef uint64_t value
    cdef const uint8_t* block
    if not 0 <= width <= bits:
        check(WIDTH)
    out = np.empty(pieces.rows * word, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(pieces.rows):
            code = pieces.check(i)
            if code:
                break
            full, tail, place = pieces.counts[i] // 1024, pieces.counts[i] % 1024, pieces.places[i]
            if full > pieces.data_size // 128 and width:
                code = PAYLOAD
                break
            rest = pieces.sizes[i] - full * 128 * width
            if rest != tail * word and (tail == 0 or rest != 128 * width):
                code = PAYLOAD
                break
            block = pieces.at + pieces.starts[i] + place // 1024 * 128 * width
            if place // 1024 == full and rest == tail * word:
                value = load_word(block + place % 1024 * word, <int>word)
            else:
                value = packed_value(block, bits, width, place % 1024)
            memcpy(target.at + i * word, &value, word)
    check(code)
    return out


def gather_variable(data, starts, sizes, counts, places, int offset_bytes):
    """Return the start and end positions of one value of each piece."""
    cdef Pieces pieces = Pieces(data, starts, sizes, counts, places)
    cdef int64_t i, at, start, end
    begins = np.empty(pieces.rows, np.int64)
    ends = np.empty(pieces.rows, np.int64)
    cdef Bytes begin = Bytes(begins, True), stop = Bytes(ends, True)
    cdef int code = OK
    if offset_bytes not in (4, 8):
        raise ValueError(f"offsets have 4 or 8 bytes, not {offset_bytes}")
    with nogil:
        for i in range(pieces.rows):
            code = pieces.check(i)
            if code == OK and pieces.counts[i] >= pieces.sizes[i] // offset_bytes:
                code = FIRST_OFFSET
            if code:
                break
            at = pieces.starts[i] + pieces.places[i] * offset_bytes
            start = <int64_t>load_word(pieces.at + at, offset_bytes)
            end = <int64_t>load_word(pieces.at + at + offset_bytes, offset_bytes)
            if start < (pieces.counts[i] + 1) * offset_bytes:
                code = FIRST_OFFSET
            elif end < start:
                code = DECREASE
            elif end > pieces.sizes[i]:
                code = OUTSIDE
            if code:
                break
            (<int64_t*>begin.at)[i] = pieces.starts[i] + start
            (<int64_t*>stop.at)[i] = pieces.starts[i] + end
    check(code)
    return begins, ends


def gather_runs(data, starts, sizes, counts, places, value_starts, value_sizes, int width):
    """Return the bytes of one value of each piece; `sizes` are those of the run lengths.

    If the previous value is in the same piece, the search for the run continues from the run of that value.
    """
    cdef Pieces pieces = Pieces(data, starts, sizes, counts, places)
    cdef int64_t i, at, place, run = 0, covered = 0, previous_piece = -1, previous_place = -1
    cdef Bytes value_start = column(value_starts, pieces.rows, 8), value_size = column(value_sizes, pieces.rows, 8)
    out = np.empty(pieces.rows * width, np.uint8)
    cdef Bytes target = Bytes(out, True)
    cdef int code = OK
    with nogil:
        for i in range(pieces.rows):
            code = pieces.check(i)
            if code:
                break
            at = (<int64_t*>value_start.at)[i]
            if not inside(at, (<int64_t*>value_size.at)[i], pieces.data_size):
                code = OUTSIDE
                break
            if (<int64_t*>value_size.at)[i] != pieces.sizes[i] * width:
                code = PAYLOAD
                break
            place = pieces.places[i]
            if pieces.starts[i] != previous_piece or place < previous_place:
                previous_piece, run, covered = pieces.starts[i], 0, 0
            previous_place = place
            while True:  # `covered` values are in the runs before `run`
                if run >= pieces.sizes[i]:
                    code = SHORT_RUNS
                elif pieces.at[pieces.starts[i] + run] == 0:
                    code = ZERO_RUN
                if code or place < covered + pieces.at[pieces.starts[i] + run]:
                    break
                covered += pieces.at[pieces.starts[i] + run]
                run += 1
            if code:
                break
            memcpy(target.at + i * width, pieces.at + at + run * width, width)
    check(code)
    return out
