"""Compiled form of compression.py: sizes and contents of many compressed buffers."""

cdef enum:
    ZSTD_PREFIX_BYTES = 8
    ZSTD_MAX_RATIO = 1 << 15
    MIN_RATIO_BYTES = 64 << 10
    ZSTD_MAGIC = 0xFD2FB528
    LZ4_PREFIX_BYTES = 4
    LZ4_MAX_RATIO = 255


cdef int64_t frame_content(const uint8_t* frame, int64_t size) noexcept nogil:
    """Return the content size in the header of a zstd frame, -1 if it has none."""
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


cdef int64_t zstd_content(const uint8_t* buffer, int64_t size, int64_t most) noexcept nogil:
    """Return the content size of a buffer that consists of a size and a zstd frame.

    Returns -1 if the frame header lacks this size or has a different one, or if the size exceeds `most` or the maximum
    expansion.
    """
    cdef uint64_t declared
    if size <= ZSTD_PREFIX_BYTES:
        return -1
    declared = lt_load64(buffer)
    if <uint32_t>declared == <uint32_t>ZSTD_MAGIC or most < 0 or declared > <uint64_t>most:
        return -1
    size -= ZSTD_PREFIX_BYTES
    if declared > MIN_RATIO_BYTES and (declared - 1) // ZSTD_MAX_RATIO >= <uint64_t>size:
        return -1
    return <int64_t>declared if frame_content(buffer + ZSTD_PREFIX_BYTES, size) == <int64_t>declared else -1


cdef int64_t lz4_content(const uint8_t* buffer, int64_t size, int64_t most) noexcept nogil:
    """Return the size that precedes an LZ4 block; -1 if it exceeds `most` or the maximum expansion of the block."""
    cdef int64_t declared
    if size <= LZ4_PREFIX_BYTES:
        return -1
    declared = lt_load32(buffer)
    if declared > most or declared > max(<int64_t>MIN_RATIO_BYTES, (size - LZ4_PREFIX_BYTES) * LZ4_MAX_RATIO):
        return -1
    return declared


@cython.final
cdef class Contents:
    """Positions and sizes of the contents of many buffers. Consecutive repetitions of a buffer share one content."""

    cdef Bytes source, first, size, target
    cdef object spans  # (2, count) starts and sizes
    cdef int64_t count, total, compressed_bytes, num_distinct
    cdef const int64_t* starts
    cdef const int64_t* sizes

    def __cinit__(self, data, starts, sizes, int64_t max_bytes, bint zstd):
        """Read the sizes of all contents; `num_distinct` is 0 if one is missing or too large."""
        cdef int64_t i, one
        cdef int64_t* at
        self.source, self.first = Bytes(data), Bytes(starts)
        self.count = self.first.size // 8
        self.size = column(sizes, self.count, 8)
        self.starts, self.sizes = <int64_t*>self.first.at, <int64_t*>self.size.at
        self.spans = np.empty((2, self.count), np.int64)
        self.target = Bytes(self.spans, True)
        at = <int64_t*>self.target.at
        with nogil:
            for i in range(self.count):
                if self.is_repeated(i):
                    at[i], at[self.count + i] = at[i - 1], at[self.count + i - 1]
                    continue
                one = -1
                if inside(self.starts[i], self.sizes[i], self.source.size):
                    if zstd:
                        one = zstd_content(self.source.at + self.starts[i], self.sizes[i], max_bytes - self.total)
                    else:
                        one = lz4_content(self.source.at + self.starts[i], self.sizes[i], max_bytes - self.total)
                if one < 0:
                    self.num_distinct = 0
                    break
                at[i], at[self.count + i] = self.total, one
                self.total += one
                self.compressed_bytes += self.sizes[i]
                self.num_distinct += 1

    cdef bint is_repeated(self, int64_t i) noexcept nogil:
        return i > 0 and self.starts[i] == self.starts[i - 1] and self.sizes[i] == self.sizes[i - 1]


def pack_frames(data, starts, sizes, int64_t max_bytes):
    """Collect the frames of buffers that consist of a size and a zstd frame, for decompression in one call.

    Returns the contiguous frames, the size of all contents, and the start and size of each content. Returns None unless
    the header of every frame has the size that precedes the frame, no size exceeds the maximum expansion, and the sum
    of the sizes is at most `max_bytes`.
    """
    cdef Contents contents = Contents(data, starts, sizes, max_bytes, True)
    cdef int64_t i, size
    cdef uint8_t* out
    if contents.num_distinct == 0:
        return None
    if contents.num_distinct == 1:
        frames = data[contents.starts[0] + ZSTD_PREFIX_BYTES : contents.starts[0] + contents.sizes[0]]
        return frames, contents.total, contents.spans[0], contents.spans[1]
    frames = new_bytes(contents.compressed_bytes - contents.num_distinct * ZSTD_PREFIX_BYTES)
    cdef Bytes target = Bytes(frames, True)
    with nogil:
        out = target.at
        for i in range(contents.count):
            if not contents.is_repeated(i):
                size = contents.sizes[i] - ZSTD_PREFIX_BYTES
                memcpy(out, contents.source.at + contents.starts[i] + ZSTD_PREFIX_BYTES, size)
                out += size
    return frames, contents.total, contents.spans[0], contents.spans[1]


cdef bint unpack_lz4_block(const uint8_t* at, int64_t size, uint8_t* out, int64_t room) noexcept nogil:
    """Decompress a raw LZ4 block; return True if it has exactly `room` bytes of content."""
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
                    return False
                more = at[0]
                at += 1
                length += more
        if length > end - at or length > limit - out:
            return False
        lt_copy(out, at, length, min(end - at, limit - out))
        at += length
        out += length
        if at == end:
            break  # the last sequence has literals only
        if end - at < 2:
            return False
        distance = lt_load16(at)
        at += 2
        length = (token & 15) + 4
        if length == 19:
            more = 255
            while more == 255:
                if at == end:
                    return False
                more = at[0]
                at += 1
                length += more
        if distance == 0 or distance > out - start or length > limit - out:
            return False
        source = out - distance
        if distance >= 8 and limit - out >= length + 8:
            for k in range(0, length, 8):
                lt_store64(out + k, lt_load64(source + k))
        else:
            for k in range(length):
                out[k] = source[k]
        out += length
    return out == limit and size > 0


def unpack_lz4(data, starts, sizes, int64_t max_bytes):
    """Decompress buffers that consist of a size and an LZ4 block.

    Returns all contents, and the start and size of each. Returns None if a buffer is corrupt.
    """
    cdef Contents contents = Contents(data, starts, sizes, max_bytes, False)
    cdef int64_t i
    cdef const int64_t* at = <int64_t*>contents.target.at
    cdef bint valid = contents.num_distinct > 0
    if not valid:
        return None
    out = new_bytes(contents.total)
    cdef Bytes target = Bytes(out, True)
    with nogil:
        for i in range(contents.count):
            if valid and not contents.is_repeated(i):
                valid = unpack_lz4_block(
                    contents.source.at + contents.starts[i] + LZ4_PREFIX_BYTES, contents.sizes[i] - LZ4_PREFIX_BYTES,
                    target.at + at[i], at[contents.count + i],
                )
    return (out, contents.spans[0], contents.spans[1]) if valid else None
