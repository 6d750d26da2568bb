"""Twins of frames.py: zstd frames, and what they say about themselves."""

cdef enum:
    FRAME_PREFIX_BYTES = 8
    FRAME_MAX_RATIO = 1 << 15
    FRAME_MIN_RATIO_BYTES = 64 << 10
    ZSTD_MAGIC = 0xFD2FB528


cdef int64_t frame_content(const uint8_t* frame, int64_t size) noexcept nogil:
    """What the header of a zstd frame says about its content, -1 if it says nothing."""
    cdef uint8_t descriptor
    cdef int64_t begin, width
    if size < 5 or lt_load32(frame) != <uint32_t>ZSTD_MAGIC:
        return -1
    descriptor = frame[4]
    width = (1 << (descriptor >> 6)) if descriptor >> 6 else <int64_t>((descriptor & 0x20) != 0)
    begin = 5 + (0 if descriptor & 0x20 else 1) + (1 << (descriptor & 3) >> 1)
    if width == 0 or size < begin + width:
        return -1
    if width == 1:
        return frame[begin]
    if width == 2:
        return <int64_t>lt_load16(frame + begin) + 256
    if width == 4:
        return lt_load32(frame + begin)
    return <int64_t>min(lt_load64(frame + begin), <uint64_t>1 << 62)


cdef int64_t sized_content(const uint8_t* buffer, int64_t size, int64_t most) noexcept nogil:
    """Bytes of the content of a size and a frame; -1 if they contradict each other or claim more than can be."""
    cdef uint64_t declared
    if size <= FRAME_PREFIX_BYTES:
        return -1
    declared = lt_load64(buffer)
    if <uint32_t>declared == <uint32_t>ZSTD_MAGIC or most < 0 or declared > <uint64_t>most:
        return -1
    size -= FRAME_PREFIX_BYTES
    if declared > FRAME_MIN_RATIO_BYTES and (declared - 1) // FRAME_MAX_RATIO >= <uint64_t>size:
        return -1
    return <int64_t>declared if frame_content(buffer + FRAME_PREFIX_BYTES, size) == <int64_t>declared else -1


cdef inline bint named_again(const int64_t* starts, const int64_t* sizes, int64_t i) noexcept nogil:
    return i > 0 and starts[i] == starts[i - 1] and sizes[i] == sizes[i - 1]


def pack_frames(data, starts, sizes, int64_t max_bytes):
    """-> frames side by side, bytes of their contents, where each content will lie and how long it is; or None."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t count = first.size // 8, i, total = 0, packed = 0, different = 0, one
    cdef Bytes size = column(sizes, count, 8)
    cdef int64_t* start_of = <int64_t*>first.at
    cdef int64_t* size_of = <int64_t*>size.at
    found = np.empty((2, count), np.int64)
    cdef Bytes found_bytes = Bytes(found, True)
    cdef int64_t* at = <int64_t*>found_bytes.at
    cdef int64_t* length = at + count
    cdef uint8_t* out
    with nogil:
        for i in range(count):
            if named_again(start_of, size_of, i):
                at[i], length[i] = at[i - 1], length[i - 1]
                continue
            one = -1
            if inside(start_of[i], size_of[i], source.size):
                one = sized_content(source.at + start_of[i], size_of[i], max_bytes - total)
            if one < 0:
                different = -1
                break
            at[i], length[i] = total, one
            total += one
            packed += size_of[i] - FRAME_PREFIX_BYTES
            different += 1
    if different <= 0:
        return None
    if different == 1:
        return data[start_of[0] + FRAME_PREFIX_BYTES : start_of[0] + size_of[0]], total, found[0], found[1]
    frames = new_bytes(packed)
    cdef Bytes target = Bytes(frames, True)
    with nogil:
        out = target.at
        for i in range(count):
            if not named_again(start_of, size_of, i):
                one = size_of[i] - FRAME_PREFIX_BYTES
                memcpy(out, source.at + start_of[i] + FRAME_PREFIX_BYTES, one)
                out += one
    return frames, total, found[0], found[1]
