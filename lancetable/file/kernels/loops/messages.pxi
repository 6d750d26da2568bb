"""Parser of the metadata message of a column (protos/file2.proto, ColumnMetadata); see footer.py."""

cdef struct Part:  # of a message: a field number, and its bytes, or its value if `at` is NULL
    uint64_t number
    uint64_t value
    const uint8_t* at
    const uint8_t* end


cdef inline bint read_varint(const uint8_t** at, const uint8_t* end, uint64_t* value) noexcept nogil:
    """Read a varint of at most 9 bytes and advance `at`. Returns False if it is longer or incomplete."""
    cdef int shift = 0
    cdef uint64_t octet
    value[0] = 0
    while at[0] < end and shift < 63:
        octet = at[0][0]
        value[0] |= (octet & 0x7F) << shift
        shift += 7
        at[0] += 1
        if octet < 0x80:
            return True
    return False


cdef bint read_part(const uint8_t** at, const uint8_t* end, Part* part) noexcept nogil:
    """Read a varint field or a field of bytes and advance `at`. Returns False for others and incomplete ones."""
    cdef uint64_t tag
    if not read_varint(at, end, &tag) or not read_varint(at, end, &part.value):
        return False
    part.number, part.at, part.end = tag >> 3, NULL, NULL
    if tag & 7 == 2:
        if part.value > <uint64_t>(end - at[0]):
            return False
        part.at, part.end = at[0], at[0] + part.value
        at[0] = part.end
    return tag & 7 == 0 or tag & 7 == 2


cdef bytes direct_encoding(Part message):
    """Return the bytes of an Encoding, empty if it has none, and None unless they are direct."""
    cdef Part location, encoding
    cdef const uint8_t* at = message.at
    if at == message.end:
        return b""
    if not read_part(&at, message.end, &location) or at != message.end or location.at == NULL:
        return None
    if location.number == 3 or (location.number == 2 and location.at == location.end):
        return b""
    at = location.at
    if location.number != 2 or not read_part(&at, location.end, &encoding) or at != location.end:
        return None
    return encoding.at[: encoding.end - encoding.at] if encoding.number == 1 and encoding.at != NULL else None


cdef list packed_numbers(Part part):
    """Return the numbers of a packed field; None if it is invalid."""
    cdef uint64_t value
    cdef list numbers = []
    while part.at < part.end:
        if not read_varint(&part.at, part.end, &value):
            return None
        numbers.append(value)
    return numbers


cdef tuple page_members(Part page):
    """Return the members of a page (footer.PageMembers); None for an unusual message."""
    cdef Part parts[5]
    cdef Part part
    cdef const uint8_t* at = page.at
    cdef bytes encoding
    cdef list starts, sizes
    memset(parts, 0, sizeof(parts))
    while at < page.end:
        if not read_part(&at, page.end, &part) or part.number < 1 or part.number > 5 or parts[part.number - 1].number:
            return None
        if (part.at == NULL) != (part.number == 3 or part.number == 5):
            return None
        parts[part.number - 1] = part
    starts, sizes, encoding = packed_numbers(parts[0]), packed_numbers(parts[1]), direct_encoding(parts[3])
    if starts is None or sizes is None or encoding is None or len(starts) != len(sizes):
        return None
    return parts[2].value, (*starts, *sizes), encoding


def column_metadata(metadata, int64_t start, int64_t size, int64_t max_pages):
    """Return the pages (footer.PageMembers) and the encoding of a column.

    None for a column with buffers of its own or more than `max_pages` pages, and for an unusual message.
    """
    cdef Bytes source = Bytes(metadata)
    cdef Part part
    cdef bytes encoding = None
    cdef list pages = []
    cdef tuple page
    if not inside(start, size, source.size):
        raise ValueError(f"{size} bytes at {start} exceed {source.size} bytes")
    cdef const uint8_t* at = source.at + start
    cdef const uint8_t* end = at + size
    while at < end:
        if not read_part(&at, end, &part) or part.at == NULL:
            return None
        if part.number == 2 and len(pages) < max_pages:
            page = page_members(part)
            if page is None:
                return None
            pages.append(page)
        elif part.number == 1 and encoding is None:
            encoding = direct_encoding(part)
            if encoding is None:
                return None
        else:
            return None
    return pages, encoding or b""
