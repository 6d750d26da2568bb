"""Pages of many small columns in one call; see encodings_v2_1/small_columns.py.

    position ─► words | pad | chunks | pad      words | pad | chunks | pad      ...      a page for each column
    message     offsets and sizes of both buffers, length, encoding                      and its entry in the metadata
"""


cdef enum:
    MAX_TOGETHER = 1 << 20  # bytes of the pages of one call


cdef uint8_t* put_number(uint8_t* at, uint64_t number) noexcept nogil:
    """Write a number as a protobuf varint of at most 10 bytes; return its end."""
    while number >= 128:
        at[0] = <uint8_t>(number | 128)
        at, number = at + 1, number >> 7
    at[0] = <uint8_t>number
    return at + 1


cdef uint8_t* put_pair(uint8_t* at, int field, const int64_t* numbers) noexcept nogil:
    """Write a repeated field of two numbers; return its end."""
    cdef uint8_t* end = put_number(put_number(at + 2, numbers[0]), numbers[1])
    at[0], at[1] = <uint8_t>(field << 3 | 2), <uint8_t>(end - at - 2)
    return end


cdef bytes page_message(const int64_t* starts, const int64_t* sizes, int64_t rows, bytes encoding):
    """Return `pages` of a serialized ColumnMetadata; `encoding` is a serialized Page that only has an encoding."""
    cdef uint8_t[64] fields  # at most 22 + 22 + 11 bytes
    cdef uint8_t[16] head
    cdef uint8_t* end = put_pair(put_pair(fields, 1, starts), 2, sizes)
    cdef uint8_t* start
    end[0] = 3 << 3
    end = put_number(end + 1, rows)
    head[0] = 2 << 3 | 2
    start = put_number(head + 1, end - fields + len(encoding))
    return (<char*>head)[: start - head] + (<char*>fields)[: end - fields] + encoding


cdef bint has_fewer(
    const offset_t* offsets, int64_t rows, const uint8_t* data, int64_t size, Validity valid, int64_t least
) except -1:
    """Return True if there are fewer than `least` distinct values. Raises as `index_strings`."""
    cdef Table table
    cdef int code = NO_MEMORY
    cdef int64_t* firsts = <int64_t*>malloc(rows * (sizeof(int64_t) + sizeof(int32_t)) + 1)
    memset(&table, 0, sizeof(Table))
    if firsts != NULL:
        code = index_of(&table, offsets, rows, data, size, valid, least - 1, <int32_t*>(firsts + rows), firsts)
    free(table.slots)
    free(table.items)
    free(firsts)
    if code == NO_MEMORY:
        raise MemoryError
    return code != TOO_MANY and not check(code)


@cython.final
cdef class SmallColumns:
    """Number of rows and thresholds of the choice of an encoding, which all columns share.

    `limits` and `level_limits` are the `ChunkLimits` of pages without and with definition levels. Strings of
    `max_content` bytes, or with a value of `max_value` bytes, need another encoding. Columns with fewer than
    `min_distinct` distinct values may need a dictionary, except for strings of less than `min_content` bytes.
    """

    cdef int64_t rows, max_content, max_value, min_distinct, min_content, max_values, target_bytes
    cdef int64_t[2] max_bytes
    cdef bint large
    cdef dict offsets  # by width of a number
    cdef Validity all_valid

    def __cinit__(
        self, int64_t rows, bint large, limits, level_limits, int64_t max_content, int64_t max_value,
        int64_t min_distinct, int64_t min_content,
    ):
        if not 0 < rows <= 1 << 20 or limits.target_bytes < 128:
            raise ValueError(f"{rows} rows do not fit into chunks")
        self.rows, self.large, self.max_content, self.max_value = rows, large, max_content, max_value
        self.min_distinct, self.min_content = min_distinct, min_content
        self.max_values, self.target_bytes = min(limits.max_values, level_limits.max_values), limits.target_bytes
        self.max_bytes[0], self.max_bytes[1] = limits.max_bytes, level_limits.max_bytes
        self.offsets = {width: Bytes(np.arange(0, width * rows + 1, width)) for width in (1, 2, 4, 8)}
        self.all_valid = Validity(None, 0, rows)

    cdef page(self, array, int bits):
        """Return the result of `number_page` or `string_page`; see `small_pages`."""
        cdef int64_t offset = array.offset, row, width = abs(bits) // 8
        cdef list buffers = array.buffers()
        cdef Validity valid = self.all_valid
        cdef Definition levels = Definition(None, self.rows)
        cdef uint16_t* level
        cdef bint any_valid = False
        if len(array) != self.rows or bits not in (8, 16, 32, 64, -32, -64):
            raise ValueError(f"expected {self.rows} values of 8 to 64 bits, got {len(array)} of {bits} bits")
        if buffers[1] is None or (bits < 0 and buffers[2] is None):
            return None
        cdef Bytes values = Bytes(buffers[1])
        if not inside(offset * width, (self.rows + (bits < 0)) * width, values.size):
            raise ValueError(f"{values.size} bytes are not {self.rows} values of {bits} bits from {offset} on")
        if array.null_count:
            valid = Validity(buffers[0], offset, self.rows)
            levels = Definition(np.empty(self.rows, np.uint16), self.rows)
            level = <uint16_t*>levels.source.at
            for row in range(self.rows):
                level[row] = not valid.has(row)
                any_valid |= level[row] == 0
            if not any_valid:
                return None
        if bits > 0:
            return self.numbers(values.at + offset * width, bits, valid, levels)
        if <uint64_t>values.at % width:
            return None
        if bits == -32:
            return self.strings(<const int32_t*>values.at + offset, Bytes(buffers[2]), valid, levels)
        return self.strings(<const int64_t*>values.at + offset, Bytes(buffers[2]), valid, levels)

    cdef numbers(self, const uint8_t* at, int bits, Validity valid, Definition levels):
        cdef int64_t width = bits // 8, least = max(2, self.min_distinct) if bits == 64 else 2
        cdef Bytes offsets = self.offsets[width]
        if self.large and has_fewer(<const int64_t*>offsets.at, self.rows, at, width * self.rows, valid, least):
            return None
        return number_page_at(at, levels, bits, self.rows, self.max_values, self.target_bytes, self.large)

    cdef strings(self, const offset_t* offsets, Bytes data, Validity valid, Definition levels):
        cdef int64_t row, length, longest = 0, count = self.rows, width = sizeof(offset_t), power = 1
        check(check_offsets(offsets, count, data.size))
        cdef int64_t content = offsets[count] - offsets[0], least = 2 if self.large else 0, per_chunk
        for row in range(count):
            length = offsets[row + 1] - offsets[row]
            longest = max(longest, length)
            if length and not valid.has(row):
                return None  # the bytes of nulls are not stored
        if content >= self.max_content or longest >= self.max_value:
            return None
        if content + width * count >= self.min_content:
            least = max(least, self.min_distinct)
        if least and has_fewer(offsets, count, data.at, data.size, valid, least):
            return None
        per_chunk = min(self.max_values, <int64_t>(self.target_bytes / (<double>content / count + width)))
        while 2 * power <= per_chunk:
            power *= 2
        if power < 2:
            return None
        return string_chunks(
            offsets, count, data.at, levels, power, self.max_bytes[levels.at != NULL] - width, self.large
        )


def small_pages(SmallColumns shared, arrays, widths, int64_t first, int64_t position, bytes padding, encoding_of):
    """Encode the pages of columns from `first` on, up to one that may need another encoding, or about 1 MiB.

    `widths` are the bits of the numbers of each array, or the negative bits of the offsets of strings; 0 for a column
    that needs another encoding. `position` is that of the first page in the file. The length of `padding` is the
    alignment of buffers. `encoding_of` returns a serialized `ColumnMetadata.Page` with the encoding of a page, for its
    width, the width of its levels, and True for bit-packed values.

    Returns the bytes of the pages, for each page the serialized entry of its ColumnMetadata, and a flag that is True if
    the next column, if any, may need another encoding.
    """
    cdef int64_t[2] starts
    cdef int64_t[2] sizes
    cdef int64_t alignment = len(padding), columns = len(arrays), column, number, room, end
    cdef list pieces = [], messages = []
    if not 0 <= position < 1 << 62 or alignment == 0 or first < 0 or len(widths) != columns:
        raise ValueError(f"invalid position {position} or {len(widths)} widths of {columns} arrays from {first} on")
    end = position + MAX_TOGETHER
    for column in range(first, columns):
        if position > end:
            return b"".join(pieces), messages, False
        page = shared.page(arrays[column], widths[column]) if widths[column] else None
        if page is None:
            break
        for number in range(2):
            buffer = page[1 + number]
            starts[number], sizes[number] = position, buffer.nbytes
            room = (sizes[number] + alignment - 1) // alignment * alignment
            pieces += (buffer, padding[: room - sizes[number]])
            position += room
        encoding = encoding_of(widths[column], page[0], len(page) == 4 and page[3])
        messages.append(page_message(starts, sizes, shared.rows, encoding))
    return b"".join(pieces), messages, True
