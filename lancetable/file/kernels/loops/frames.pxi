"""Twins of frames.py: what zstd frames say about themselves."""

cdef int64_t frame_content(const uint8_t* frame, int64_t size) noexcept nogil:
    """What the header of a zstd frame says about its content, -1 if it says nothing."""
    cdef uint8_t descriptor
    cdef int64_t begin, width
    if size < 5 or lt_load32(frame) != <uint32_t>0xFD2FB528:
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


def frame_contents(data, starts, sizes):
    """-> what each frame says about its content, or None if one does not say it."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t count = first.size // 8, i, found = 0
    cdef Bytes size = column(sizes, count, 8)
    out = np.empty(count, np.int64)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        for i in range(count):
            if not inside((<int64_t*>first.at)[i], (<int64_t*>size.at)[i], source.size):
                found = -1
                break
            found = frame_content(source.at + (<int64_t*>first.at)[i], (<int64_t*>size.at)[i])
            if found < 0:
                break
            (<int64_t*>target.at)[i] = found
    return None if found < 0 else out
