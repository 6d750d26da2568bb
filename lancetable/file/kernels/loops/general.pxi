"""Twins of general.py: LZ4 blocks."""

cdef int unpack_lz4_block(const uint8_t* at, int64_t size, uint8_t* out, int64_t room) noexcept nogil:
    """One raw LZ4 block of exactly `room` bytes of content."""
    cdef const uint8_t* end = at + size
    cdef uint8_t* start = out
    cdef uint8_t* limit = out + room
    cdef const uint8_t* source
    cdef int64_t length, distance, k
    cdef uint8_t token, more
    while at < end:
        token = at[0]
        at += 1
        length = token >> 4
        if length == 15:
            more = 255
            while more == 255:
                if at == end:
                    return CUT_SHORT
                more = at[0]
                at += 1
                length += more
        if length > end - at or length > limit - out:
            return CUT_SHORT
        lt_copy(out, at, length, min(end - at, limit - out))
        at += length
        out += length
        if at == end:
            break  # the last sequence has literals only
        if end - at < 2:
            return CUT_SHORT
        distance = lt_load16(at)
        at += 2
        length = (token & 15) + 4
        if length == 19:
            more = 255
            while more == 255:
                if at == end:
                    return CUT_SHORT
                more = at[0]
                at += 1
                length += more
        if distance == 0 or distance > out - start or length > limit - out:
            return OUTSIDE
        source = out - distance
        if distance >= 8 and limit - out >= length + 8:
            for k in range(0, length, 8):
                lt_store64(out + k, lt_load64(source + k))
        else:
            for k in range(length):
                out[k] = source[k]
        out += length
    return OK if out == limit and size else CUT_SHORT


def unpack_lz4(data, starts, sizes, lengths):
    """Raw LZ4 blocks -> their contents side by side, `lengths[i]` bytes each."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t count = first.size // 8, i, total = 0, done = 0
    cdef Bytes size = column(sizes, count, 8), length = column(lengths, count, 8)
    cdef int code = OK
    for i in range(count):
        if not 0 <= (<int64_t*>length.at)[i] <= <int64_t>1 << 40:
            raise ValueError("an impossible length")
        total += (<int64_t*>length.at)[i]
    out = new_bytes(total)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        for i in range(count):
            if not inside((<int64_t*>first.at)[i], (<int64_t*>size.at)[i], source.size):
                code = OUTSIDE
                break
            code = unpack_lz4_block(
                source.at + (<int64_t*>first.at)[i], (<int64_t*>size.at)[i], target.at + done, (<int64_t*>length.at)[i]
            )
            if code:
                break
            done += (<int64_t*>length.at)[i]
    check(code)
    return out
