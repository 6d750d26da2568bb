"""Compiled form of interleave.py."""

def interleave(streams):
    """Interleave the runs of streams, which are pairs of bytes and int64 offsets of the same length."""
    cdef list buffers = [(Bytes(data), Bytes(offsets)) for data, offsets in streams]
    cdef int64_t count = len(buffers), runs, i, k, total = 0, size, done = 0
    cdef Bytes buffer
    if count == 0:
        return np.empty(0, np.uint8)
    runs = (<Bytes>buffers[0][1]).size // 8 - 1
    cdef const uint8_t** sources = <const uint8_t**>malloc(count * 3 * sizeof(void*))
    if sources == NULL:
        raise MemoryError
    cdef const int64_t** offsets_of = <const int64_t**>(sources + count)
    cdef int64_t* limits = <int64_t*>(sources + 2 * count)
    cdef int code = OK
    try:
        for k in range(count):
            buffer = buffers[k][1]
            if runs < 0 or buffer.size != 8 * (runs + 1):
                raise ValueError("streams have different numbers of runs")
            offsets_of[k] = <int64_t*>buffer.at
            buffer = buffers[k][0]
            sources[k] = buffer.at
            limits[k] = buffer.size
        with nogil:
            for k in range(count):
                code = code or check_offsets(offsets_of[k], runs, limits[k])
        check(code)
        for k in range(count):
            total += offsets_of[k][runs] - offsets_of[k][0]
        out = new_bytes(total)
        buffer = Bytes(out, True)
        with nogil:
            for i in range(runs):
                for k in range(count):
                    size = offsets_of[k][i + 1] - offsets_of[k][i]
                    lt_copy(
                        buffer.at + done, sources[k] + offsets_of[k][i], size,
                        min(total - done, limits[k] - offsets_of[k][i]),
                    )
                    done += size
    finally:
        free(sources)
    return out
