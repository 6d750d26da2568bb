"""Compiled form of gather.py: location of rows in chunks, and selection of the entries of rows of lists."""

cdef int levels_of(
    Bytes data, int64_t start, int64_t size, int64_t form, int64_t count, uint16_t* out
) noexcept nogil:
    """Decode the levels of one chunk."""
    cdef int64_t kind = form & ((1 << WIDTH_SHIFT) - 1), values
    cdef uint64_t head
    cdef int64_t done, k, left, room
    cdef uint16_t value
    if not inside(start, size, data.size):
        return OUTSIDE
    if kind == FLAT:
        if size != 2 * count:
            return PAYLOAD
        memcpy(out, data.at + start, size)
        return OK
    if kind == INLINE:
        return unpack_inline_of(data, &start, &size, &count, 1, out, count)
    if kind == OUT_OF_LINE:
        return unpack_out_of_line_of(data, &start, &size, &count, 1, <int>(form >> WIDTH_SHIFT), out, count)
    # Runs: u64 size of the values, values, lengths of one byte.
    if size < 8:
        return PAYLOAD
    head = lt_load64(data.at + start)
    if head > <uint64_t>(size - 8) or head % 2 or <int64_t>(head // 2) != size - 8 - <int64_t>head:
        return PAYLOAD
    values = <int64_t>(head // 2)
    done = 0
    for k in range(values):
        value = lt_load16(data.at + start + 8 + 2 * k)
        left = data.at[start + 8 + <int64_t>head + k]
        if left == 0:
            return ZERO_RUN
        if left > count - done:
            left = count - done
        for room in range(left):
            out[done + room] = value
        done += left
    return OK if done == count else SHORT_RUNS


cdef struct Span:
    # Contiguous values in one chunk.
    int64_t owner
    int64_t place
    int64_t length


cdef struct Entries:
    # Selected entries, in arrays that grow.
    int64_t count
    int64_t room
    int64_t spans
    int64_t span_room
    uint16_t* repetition
    uint16_t* definition
    Span* span


cdef int grow(Entries* found, int64_t entries, bint has_definition) noexcept nogil:
    """Reserve memory for more entries and one more span; return -1 if memory is exhausted."""
    cdef int64_t room
    cdef void* moved
    if found.count + entries > found.room:
        room = max(2 * found.room, found.count + entries)
        moved = realloc(found.repetition, room * 2)
        if moved == NULL:
            return -1
        found.repetition = <uint16_t*>moved
        if has_definition:
            moved = realloc(found.definition, room * 2)
            if moved == NULL:
                return -1
            found.definition = <uint16_t*>moved
        found.room = room
    if found.spans == found.span_room:
        room = max(2 * found.span_room, 16)
        moved = realloc(found.span, room * sizeof(Span))
        if moved == NULL:
            return -1
        found.span = <Span*>moved
        found.span_room = room
    return 0


cdef int64_t count_at_most(const uint16_t* levels, int64_t start, int64_t end, uint16_t low) noexcept nogil:
    """Count the levels between two indices that are at most `low`."""
    cdef int64_t found = 0
    while start < end:
        found += lt_popcount(mask_at_most(<const uint8_t*>(levels + start), min(end - start, 64), low))
        start += 64
    return found


cdef int64_t next_start(
    const uint16_t* repetition, int64_t at, int64_t count, uint16_t below, int64_t skip
) noexcept nogil:
    """Return the index of the row start that follows `skip` other row starts from `at` on, or `count` if none does."""
    cdef uint64_t mask
    cdef int64_t width, found
    while at < count:
        width = min(count - at, 64)
        mask = ~mask_at_most(<const uint8_t*>(repetition + at), width, below)
        if width < 64:
            mask &= (<uint64_t>1 << width) - 1
        found = lt_popcount(mask)
        if found > skip:
            while skip:
                mask &= mask - 1
                skip -= 1
            return at + lt_lowest(mask)
        skip -= found
        at += 64
    return count


cdef int emit(
    Entries* found, const uint16_t* repetition, const uint16_t* definition, int64_t start, int64_t end, int64_t chunk,
    int64_t place, uint16_t num_lists, uint16_t top, uint16_t highest,
) noexcept nogil:
    """Append the entries `start` to `end` of a chunk; `place` values are visible before them."""
    cdef int64_t i, at = found.count, visible = end - start
    cdef bint bad = False
    cdef Span* span
    if grow(found, end - start, definition != NULL):
        return -1
    for i in range(start, end):
        bad |= repetition[i] > num_lists
    memcpy(found.repetition + at, repetition + start, (end - start) * 2)
    if definition != NULL:
        for i in range(start, end):
            bad |= definition[i] > highest
        memcpy(found.definition + at, definition + start, (end - start) * 2)
        visible = count_at_most(definition, start, end, top)
    found.count = at + end - start
    if visible:
        span = found.span + found.spans
        if found.spans and (span - 1).owner == chunk and (span - 1).place + (span - 1).length == place:
            (span - 1).length += visible
        else:
            span.owner, span.place, span.length = chunk, place, visible
            found.spans += 1
    return LEVEL if bad else OK


def entries_of_rows(
    data, repetition, definition, num_levels, counts, chunks, first_rows, num_rows, rows, int num_lists, int top,
    int highest,
):
    """Return repetition and definition levels, and (3, m) spans of visible values.

    `repetition` and `definition` are triples of positions, sizes and forms.
    """
    cdef Bytes source = Bytes(data), level = Bytes(num_levels)
    cdef int64_t k = level.size // 8, i, most = 0, row, at, end, count, place, counted, base, own, wanted = 0, open_row = -1
    cdef Bytes value = column(counts, k, 8), number = column(chunks, k, 8), before = column(first_rows, k, 8)
    cdef Bytes starting = column(num_rows, k, 8), asked = Bytes(rows)
    cdef Bytes rep_at = column(repetition[0], k, 8), rep_size = column(repetition[1], k, 8)
    cdef Bytes rep_form = column(repetition[2], k, 8)
    cdef bint has_definition = definition is not None
    triple = definition if has_definition else repetition
    cdef Bytes def_at = column(triple[0], k, 8), def_size = column(triple[1], k, 8), def_form = column(triple[2], k, 8)
    cdef int64_t total = asked.size // 8
    cdef const int64_t* want = <int64_t*>asked.at
    cdef const int64_t* num = <int64_t*>level.at
    cdef Entries found
    cdef Bytes place_of
    cdef int code = OK
    cdef uint16_t below
    if not 0 < num_lists < 65536 or not 0 <= top < 65536 or not 0 <= highest < 65536:
        raise ValueError("levels out of range")
    below = <uint16_t>(num_lists - 1)
    memset(&found, 0, sizeof(found))
    for i in range(k):
        if not 0 <= num[i] < 65536:
            check(OUTSIDE)
        most = max(most, num[i])
    cdef uint16_t* scratch = <uint16_t*>malloc((2 * most + 64) * 2)
    if scratch == NULL:
        raise MemoryError
    cdef uint16_t* second = scratch + most
    cdef const uint16_t* defined = second if has_definition else NULL
    try:
        with nogil:
            for i in range(k):
                count = num[i]
                code = levels_of(
                    source, (<int64_t*>rep_at.at)[i], (<int64_t*>rep_size.at)[i], (<int64_t*>rep_form.at)[i], count,
                    scratch,
                )
                if code == OK and has_definition:
                    code = levels_of(
                        source, (<int64_t*>def_at.at)[i], (<int64_t*>def_size.at)[i], (<int64_t*>def_form.at)[i],
                        count, second,
                    )
                if code:
                    break
                counted = count if not has_definition else count_at_most(second, 0, count, <uint16_t>top)
                own = count - count_at_most(scratch, 0, count, below)
                if counted != (<int64_t*>value.at)[i] or own != (<int64_t*>starting.at)[i]:
                    code = ROWS
                    break
                base = (<int64_t*>before.at)[i]
                # Entries that continue a row of the previous chunk.
                at = next_start(scratch, 0, count, below, 0)
                if open_row >= 0:
                    if i and (<int64_t*>number.at)[i] == (<int64_t*>number.at)[i - 1] + 1 and open_row == base - 1:
                        code = emit(
                            &found, scratch, defined, 0, at, i, 0, <uint16_t>num_lists, <uint16_t>top, <uint16_t>highest
                        )
                        if code:
                            break
                    if at < count:
                        open_row = -1
                place = at if not has_definition else count_at_most(second, 0, at, <uint16_t>top)
                row = base
                while wanted < total and want[wanted] < base + own:
                    if want[wanted] < row:
                        code = ROWS
                        break
                    end = next_start(scratch, at, count, below, want[wanted] - row)
                    place += (end - at) if not has_definition else count_at_most(second, at, end, <uint16_t>top)
                    at, row = end, want[wanted]
                    end = next_start(scratch, at, count, below, 1)
                    code = emit(
                        &found, scratch, defined, at, end, i, place, <uint16_t>num_lists, <uint16_t>top,
                        <uint16_t>highest,
                    )
                    if code:
                        break
                    open_row = row if end == count else -1
                    place += (end - at) if not has_definition else count_at_most(second, at, end, <uint16_t>top)
                    at = end
                    row += 1
                    wanted += 1
                if code:
                    break
            if code == OK and wanted != total:
                code = ROWS
        if code == -1:
            raise MemoryError
        check(code)
        new_repetition = np.empty(found.count, np.uint16)
        new_definition = np.empty(found.count, np.uint16) if has_definition else None
        spans = np.empty((3, found.spans), np.int64)
        if found.count:
            copy_to(new_repetition, found.repetition, found.count * 2)
            if has_definition:
                copy_to(new_definition, found.definition, found.count * 2)
        place_of = Bytes(spans, True)
        for i in range(found.spans):
            (<int64_t*>place_of.at)[i] = found.span[i].owner
            (<int64_t*>place_of.at)[found.spans + i] = found.span[i].place
            (<int64_t*>place_of.at)[2 * found.spans + i] = found.span[i].length
    finally:
        free(scratch)
        free(found.repetition)
        free(found.definition)
        free(found.span)
    return new_repetition, new_definition, spans


cdef int copy_to(target, const void* source, int64_t size) except -1:
    cdef Bytes held = Bytes(target, True)
    memcpy(held.at, source, size)
    return 0


cdef inline int64_t last_at_most(const int64_t* before, int64_t low, int64_t high, int64_t row) noexcept nogil:
    """Return the last chunk from `low` to `high` - 1 with at most `row` rows before it; `low` must be such a chunk."""
    cdef int64_t middle
    while high - low > 1:
        middle = (low + high) >> 1
        if before[middle] <= row:
            low = middle
        else:
            high = middle
    return low


cdef int64_t chunks_of(
    const int64_t* before, const uint8_t* continues, int64_t chunks, const int64_t* rows, int64_t total, int64_t* out
) noexcept nogil:
    """Store the numbers of the chunks that contain ascending rows in `out`; return their number."""
    cdef int64_t i, chunk, count = 0, last = -1
    for i in range(total):
        chunk = last_at_most(before, max(last, 0), chunks, rows[i])
        while True:
            if chunk > last:
                out[count] = chunk
                count += 1
                last = chunk
            # The last row of a chunk may continue in the next chunk, and even fill it.
            if rows[i] != before[chunk + 1] - 1 or not continues[chunk] or chunk + 1 == chunks:
                break
            chunk += 1
    return count


def locate(tables, rows):
    """Return (4, rows): start, end and number of values of the chunk of each row, and the index of its value in it.

    `rows` ascend within each table. A table has the starts, the ends, and the number of values before each chunk.
    """
    cdef int64_t total = sum(map(len, rows)), done = 0, chunks, i, n, row, chunk
    cdef Bytes first, last, value, row_bytes
    cdef const int64_t* before
    cdef int code = OK
    out = np.empty((4, total), np.int64)
    cdef Bytes target = Bytes(out, True)
    cdef int64_t* located
    for table, table_rows in zip(tables, rows):
        first, row_bytes = Bytes(table[0]), Bytes(table_rows)
        chunks, n = first.size // 8, row_bytes.size // 8
        last, value = column(table[1], chunks, 8), column(table[2], chunks + 1, 8)
        if chunks == 0 or n > total - done:
            raise ValueError("table without chunks")
        before = <int64_t*>value.at
        located = <int64_t*>target.at + done
        with nogil:
            chunk = 0
            for i in range(n):
                row = (<int64_t*>row_bytes.at)[i]
                if row < before[chunk] or row >= before[chunks]:
                    code = OUTSIDE
                    break
                if row >= before[chunk + 1]:  # often the row is in the chunk of the previous row
                    chunk = last_at_most(before, chunk, chunks, row)
                located[i] = (<int64_t*>first.at)[chunk]
                located[total + i] = (<int64_t*>last.at)[chunk]
                located[2 * total + i] = before[chunk + 1] - before[chunk]
                located[3 * total + i] = row - before[chunk]
        check(code)
        done += n
    return out


def locate_lists(tables, indices, rows, forms):
    """Locate the chunks that contain rows of lists; see gather.py."""
    cdef int64_t room = 0, k = 0, i, chunk, chunks, base_chunk = 0, base_row = 0, at = 0
    cdef int64_t repetition, definition, at_row, rows_done = 0
    cdef Bytes first, last, value, begin, continues, row_bytes
    cdef list buffers = [], bounds = [0]
    for table, index, table_rows in zip(tables, indices, rows):
        first, begin, continues, row_bytes = Bytes(table[0]), Bytes(index[0]), Bytes(index[1]), Bytes(table_rows)
        chunks = first.size // 8
        last, value = column(table[1], chunks, 8), column(table[2], chunks + 1, 8)
        if chunks == 0 or continues.size != chunks or begin.size != 8 * (chunks + 1):
            raise ValueError("repetition index of another number of chunks")
        buffers.append((first, last, value, begin, continues, row_bytes))
        room += chunks
    chosen, all_rows = np.empty(room, np.int64), np.empty(sum(map(len, rows)), np.int64)
    cdef Bytes chosen_bytes = Bytes(chosen, True), all_bytes = Bytes(all_rows, True), target
    cdef int64_t* numbers = <int64_t*>chosen_bytes.at
    cdef int64_t* located
    for first, last, value, begin, continues, row_bytes in buffers:
        k += chunks_of(
            <int64_t*>begin.at, continues.at, continues.size, <int64_t*>row_bytes.at, row_bytes.size // 8, numbers + k
        )
        bounds.append(k)
    out = np.empty((8, k), np.int64)
    target = Bytes(out, True)
    located = <int64_t*>target.at
    for i, (first, last, value, begin, continues, row_bytes) in enumerate(buffers):
        repetition, definition = forms[i]
        while at < <int64_t>bounds[i + 1]:
            chunk = numbers[at]
            located[at] = (<int64_t*>first.at)[chunk]
            located[k + at] = (<int64_t*>last.at)[chunk]
            located[2 * k + at] = (<int64_t*>value.at)[chunk + 1] - (<int64_t*>value.at)[chunk]
            located[3 * k + at] = base_chunk + chunk
            located[4 * k + at] = base_row + (<int64_t*>begin.at)[chunk]
            located[5 * k + at] = (<int64_t*>begin.at)[chunk + 1] - (<int64_t*>begin.at)[chunk]
            located[6 * k + at], located[7 * k + at] = repetition, definition
            at += 1
        for at_row in range(row_bytes.size // 8):
            (<int64_t*>all_bytes.at)[rows_done] = base_row + (<int64_t*>row_bytes.at)[at_row]
            rows_done += 1
        # Skip one number, because a row does not continue from one table into the next.
        base_chunk += continues.size + 1
        base_row += (<int64_t*>begin.at)[continues.size]
    return out, all_rows, bounds


def expand_spans(spans, starts, sizes, counts):
    """Expand spans to single values.

    Returns (2 b + 2, n): for each value, start and size of its chunk in each of b buffers, the number of values of the
    chunk, and the index of the value in it.
    """
    cdef Bytes span = Bytes(spans), number = Bytes(counts)
    cdef int64_t k = number.size // 8, m = span.size // 24, b, i, j, own, total = 0, at = 0, size
    cdef Bytes first = Bytes(starts)
    if k == 0 and m:
        raise ValueError("spans without chunks")
    b = first.size // (8 * k) if k else 0
    cdef Bytes length = column(sizes, b * k, 8)
    if span.size != 24 * m or first.size != 8 * b * k:
        raise ValueError("buffers of another number of chunks")
    cdef const int64_t* owner = <int64_t*>span.at
    for i in range(m):
        if not 0 <= owner[i] < k or not 0 <= owner[2 * m + i] < <int64_t>1 << 40:
            raise ValueError("span outside the chunks")
        total += owner[2 * m + i]
    out = np.empty((2 * b + 2, total), np.int64)
    cdef Bytes target = Bytes(out, True)
    cdef int64_t* found = <int64_t*>target.at
    with nogil:
        for i in range(m):
            own, size = owner[i], owner[2 * m + i]
            for j in range(b):
                fill(found + 2 * j * total + at, size, (<int64_t*>first.at)[j * k + own])
                fill(found + (2 * j + 1) * total + at, size, (<int64_t*>length.at)[j * k + own])
            fill(found + 2 * b * total + at, size, (<int64_t*>number.at)[own])
            for j in range(size):
                found[(2 * b + 1) * total + at + j] = owner[m + i] + j
            at += size
    return out


cdef inline void fill(int64_t* out, int64_t count, int64_t value) noexcept nogil:
    cdef int64_t i
    for i in range(count):
        out[i] = value
