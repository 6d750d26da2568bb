"""Compiled form of levels.py: repetition and definition levels."""

cdef uint64_t mask_at_most(const uint8_t* levels, int64_t count, uint16_t low) noexcept nogil:
    """Return a mask with bit k set if level k, of up to 64, is at most `low`."""
    cdef uint64_t mask = 0
    cdef int64_t k = 0
    if lt_likely(count >= 64):
        for k in range(0, 64, 16):
            mask |= <uint64_t>lt_at_most(levels + 2 * k, low) << k
    else:
        for k in range(count):
            mask |= <uint64_t>(lt_load16(levels + 2 * k) <= low) << k
    return mask


def validity(definition, uint16_t low):
    """Return the bitmap of levels of at most `low`, and its number of zeros."""
    cdef Bytes source = Bytes(definition)
    cdef int64_t count = source.size // 2, valid = 0, i
    cdef uint64_t mask
    bitmap = np.empty((count + 7) // 8, np.uint8)
    cdef Bytes target = Bytes(bitmap, True)
    with nogil:
        for i in range(0, count, 64):
            mask = mask_at_most(source.at + 2 * i, count - i, low)
            valid += lt_popcount(mask)
            if lt_likely(count - i >= 64):
                lt_store64(target.at + i // 8, mask)
            else:
                memcpy(target.at + i // 8, &mask, (count - i + 7) // 8)
    return bitmap, count - valid


cdef struct ListLayer:
    int64_t starts
    int64_t lists
    int64_t nulls


cdef void list_layer_of(
    const uint8_t* repetition, const uint8_t* definition, int64_t count, int low, int high, int slots, int null,
    int64_t* offsets, uint8_t* valid, uint16_t* outer, uint16_t* levels, ListLayer* found,
) noexcept nogil:
    cdef int64_t first, at, hidden = 0, starts = 0, lists = 0, nulls = 0
    cdef uint64_t mask
    cdef uint16_t level
    cdef bint missing
    for first in range(0, count, 64):
        # A list starts at each repetition level other than 0.
        mask = ~mask_at_most(repetition + 2 * first, count - first, 0)
        if count - first < 64:
            mask &= (<uint64_t>1 << (count - first)) - 1
        while mask:
            at = first + lt_lowest(mask)
            mask &= mask - 1
            level = lt_load16(definition + 2 * at)
            outer[starts] = lt_load16(repetition + 2 * at) - 1
            levels[starts] = level
            starts += 1
            # Without a branch: the next list overwrites an entry that is not a list of this layer.
            missing = (level == null and null != 0) or level > high
            offsets[lists] = at - hidden
            valid[lists] = not missing
            nulls += missing and level <= slots
            lists += level <= slots
            hidden += level > low
    offsets[lists] = count - hidden
    found.starts, found.lists, found.nulls = starts, lists, nulls


def list_layer(repetition, definition, int low, int high, int slots, int null):
    """Return offsets, validity, levels of the next layer, and the number of null lists."""
    cdef Bytes repeated = Bytes(repetition)
    cdef int64_t count = repeated.size // 2, i, starts = 0
    cdef Bytes level = column(definition, count, 2)
    cdef ListLayer found
    with nogil:
        for i in range(0, count, 64):
            starts -= lt_popcount(mask_at_most(repeated.at + 2 * i, count - i, 0))
        starts += count
    offsets = np.empty(starts + 1, np.int64)
    valid = np.empty(starts + 1, np.bool_)
    outer = np.empty(starts, np.uint16)
    levels = np.empty(starts, np.uint16)
    cdef Bytes a = Bytes(offsets, True), b = Bytes(valid, True), c = Bytes(outer, True), d = Bytes(levels, True)
    with nogil:
        list_layer_of(
            repeated.at, level.at, count, low, high, slots, null,
            <int64_t*>a.at, b.at, <uint16_t*>c.at, <uint16_t*>d.at, &found,
        )
    return offsets[: found.lists + 1], valid[: found.lists], outer, levels, found.nulls
