"""Hash table of the distinct strings or fixed-width values of a column; see distinct.py."""

cdef struct Item:
    uint64_t hash
    int64_t start
    int64_t length


cdef struct Table:
    int32_t* slots  # indices of items, -1 if free
    uint64_t mask
    Item* items
    int64_t count
    int64_t room


cdef inline uint64_t mixed(uint64_t word) noexcept nogil:
    """Mix a word so that every bit depends on every bit."""
    word = (word ^ (word >> 33)) * <uint64_t>0xFF51AFD7ED558CCD
    word = (word ^ (word >> 33)) * <uint64_t>0xC4CEB9FE1A85EC53
    return word ^ (word >> 33)


cdef inline uint64_t hash_of(const uint8_t* at, int64_t length) noexcept nogil:
    cdef uint64_t word = 0, found = <uint64_t>length * <uint64_t>0x9E3779B97F4A7C15
    cdef int64_t i = 0
    if length < 8:
        if length >= 4:
            word = lt_load32(at) | <uint64_t>lt_load32(at + length - 4) << 8 * (length - 4)
        elif length > 0:
            word = at[0] | <uint64_t>at[length >> 1] << 8 | <uint64_t>at[length - 1] << 16
        return mixed(found ^ word)
    while i + 8 < length:
        found = (found ^ lt_load64(at + i)) * <uint64_t>0x9E3779B97F4A7C15
        found ^= found >> 32
        i += 8
    return mixed(found ^ lt_load64(at + length - 8))


cdef int32_t* slot_of(Table* table, const uint8_t* data, const Item* wanted) noexcept nogil:
    """Return the slot of a string or, if it is not in the table, the free slot to insert it."""
    cdef uint64_t at = wanted.hash & table.mask
    cdef Item* item
    while table.slots[at] >= 0:
        item = table.items + table.slots[at]
        if item.hash == wanted.hash and item.length == wanted.length:
            if not memcmp(data + item.start, data + wanted.start, wanted.length):
                break
        at = (at + 1) & table.mask
    return table.slots + at


cdef bint grow_table(Table* table, const uint8_t* data) noexcept nogil:
    """Double the capacity for items, with four slots for each. Returns False if memory is exhausted."""
    cdef int64_t room = table.room * 2 if table.room else 512, i
    cdef Item* items = <Item*>realloc(table.items, room * sizeof(Item))
    cdef int32_t* slots = <int32_t*>realloc(table.slots, 4 * room * sizeof(int32_t))
    table.items = items if items != NULL else table.items
    table.slots = slots if slots != NULL else table.slots
    if items == NULL or slots == NULL:
        return False
    memset(slots, 0xFF, 4 * room * sizeof(int32_t))
    table.room, table.mask = room, <uint64_t>(4 * room - 1)
    for i in range(table.count):
        slot_of(table, data, items + i)[0] = <int32_t>i
    return True


cdef enum:
    TOO_MANY = -1
    NO_MEMORY = -2


cdef int index_of(
    Table* table, const offset_t* offsets, int64_t rows, const uint8_t* data, int64_t size, Validity valid,
    int64_t most, int32_t* indices, int64_t* firsts,
) noexcept nogil:
    cdef int64_t row
    cdef Item item
    cdef int32_t* slot
    if not grow_table(table, data):
        return NO_MEMORY
    for row in range(rows):
        indices[row] = 0
        if not valid.has(row):
            continue
        if not 0 <= offsets[row] <= offsets[row + 1] <= size:
            return OUTSIDE
        item.start, item.length = offsets[row], offsets[row + 1] - offsets[row]
        item.hash = hash_of(data + item.start, item.length)
        slot = slot_of(table, data, &item)
        if slot[0] < 0:
            if table.count == most:
                return TOO_MANY
            if table.count == table.room:
                if not grow_table(table, data):
                    return NO_MEMORY
                slot = slot_of(table, data, &item)
            table.items[table.count], firsts[table.count] = item, row
            slot[0] = <int32_t>table.count
            table.count += 1
        indices[row] = slot[0]
    return OK
