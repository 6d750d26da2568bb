# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled kernels that only writers need; see _native.pyx.

Arguments come from Arrow arrays in memory; every position is still checked against the size of its buffer. Loops over
numbers are C, because Cython cannot build a loop twice: for every processor, and with AVX2.
"""

from libc.string cimport memcmp

include "loops/common.pxi"

cdef extern from *:
    """
    #include <string.h>
    #if defined(__GNUC__) || defined(__clang__)
    #define LTW_INLINE static inline __attribute__((always_inline))
    #define ltw_swap(x) __builtin_bswap64(x)
    #else
    #define LTW_INLINE static inline
    static inline uint64_t ltw_swap(uint64_t x) {
        x = ((x & 0x00ff00ff00ff00ffULL) << 8) | ((x >> 8) & 0x00ff00ff00ff00ffULL);
        x = ((x & 0x0000ffff0000ffffULL) << 16) | ((x >> 16) & 0x0000ffff0000ffffULL);
        return (x << 32) | (x >> 32);
    }
    #endif
    #if defined(__x86_64__) && defined(__GNUC__)
    #define LTW_WIDE 1
    #endif

    enum { LTW_SIGNED = 0, LTW_UNSIGNED = 1, LTW_FLOAT = 2, LTW_BLOCK = 1024 };

    /* By octet: eight bytes of zeros or ones, and the number of set bits. */
    static uint64_t ltw_spread[256];
    static uint8_t ltw_set[256];

    static void ltw_prepare(void) {
        for (int octet = 0; octet < 256; octet++) {
            uint8_t bytes[8];
            ltw_set[octet] = 0;
            for (int bit = 0; bit < 8; bit++) {
                bytes[bit] = octet >> bit & 1 ? 0xFF : 0;
                ltw_set[octet] = (uint8_t)(ltw_set[octet] + (octet >> bit & 1));
            }
            memcpy(&ltw_spread[octet], bytes, 8);
        }
    }

    /* Bits first .. first + n of a bitmap of `size` bytes as n bytes of zeros or ones; the number of set ones. */
    LTW_INLINE int64_t ltw_mask(const uint8_t *bitmap, int64_t size, int64_t first, int64_t n, int8_t *mask) {
        int64_t at = first >> 3, found = 0;
        int shift = (int)(first & 7);
        for (int64_t i = 0; i < n; i += 8, at++) {
            unsigned octet = bitmap[at] >> shift;
            if (shift && at + 1 < size) octet |= (unsigned)bitmap[at + 1] << (8 - shift);
            octet &= 0xFF;
            if (n - i < 8) octet &= (1u << (n - i)) - 1;
            memcpy(mask + i, &ltw_spread[octet], 8);
            found += ltw_set[octet];
        }
        return found;
    }

    /* Keys are signed integers in the order of the values. Negative floats have the order of their other bits reversed; a
       NaN counts as missing. Missing keys take part as the highest and the lowest key. */
    #define LTW_TYPE(T, U, BITS, INFINITY_BITS)                                                                        \
    LTW_INLINE T ltw_key_##BITS(U bits, int kind) {                                                                    \
        if (kind == LTW_UNSIGNED) return (T)(bits ^ (U)((U)1 << (BITS - 1)));                                          \
        if (kind == LTW_FLOAT) return (T)((T)bits ^ (T)((U)((T)bits >> (BITS - 1)) >> 1));                             \
        return (T)bits;                                                                                                \
    }                                                                                                                  \
    LTW_INLINE int64_t ltw_run_##BITS(                                                                                 \
        const uint8_t *at, const int8_t *mask, int masked, int64_t n, int kind, T *low, T *high                        \
    ) {                                                                                                                \
        const T top = (T)((U)~(U)0 >> 1), end = (T)~top;                                                               \
        T least = *low, most = *high, missing = 0;                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            U bits;                                                                                                    \
            memcpy(&bits, at + i * (BITS / 8), BITS / 8);                                                              \
            T key = ltw_key_##BITS(bits, kind), keep = masked ? (T)mask[i] : (T)-1;                                    \
            if (kind == LTW_FLOAT) {                                                                                   \
                T nan = (T)-((T)(bits & (U)top) > (T)(INFINITY_BITS));                                                 \
                missing = (T)(missing - (nan & keep));                                                                 \
                keep = (T)(keep & ~nan);                                                                               \
            }                                                                                                          \
            T a = key, b = key;                                                                                        \
            if (masked || kind == LTW_FLOAT) {                                                                         \
                a = (T)((key & keep) | (top & ~keep));                                                                 \
                b = (T)((key & keep) | (end & ~keep));                                                                 \
            }                                                                                                          \
            least = a < least ? a : least;                                                                             \
            most = b > most ? b : most;                                                                                \
        }                                                                                                              \
        *low = least;                                                                                                  \
        *high = most;                                                                                                  \
        return (int64_t)missing;                                                                                       \
    }                                                                                                                  \
    LTW_INLINE void ltw_zones_of_##BITS(                                                                               \
        const uint8_t *values, const uint8_t *bitmap, int64_t size, int64_t skip, const int64_t *starts,               \
        const int64_t *ends, int64_t pieces, int kind, uint8_t *low, uint8_t *high, int64_t *nulls, int64_t *nans      \
    ) {                                                                                                                \
        int8_t mask[LTW_BLOCK + 8];                                                                                    \
        for (int64_t piece = 0; piece < pieces; piece++) {                                                             \
            const T top = (T)((U)~(U)0 >> 1);                                                                          \
            T least = top, most = (T)~top;                                                                             \
            int64_t absent = 0, odd = 0;                                                                               \
            for (int64_t row = starts[piece]; row < ends[piece]; row += LTW_BLOCK) {                                   \
                int64_t n = ends[piece] - row < LTW_BLOCK ? ends[piece] - row : LTW_BLOCK;                             \
                int64_t valid = bitmap ? ltw_mask(bitmap, size, skip + row, n, mask) : n;                              \
                const uint8_t *at = values + row * (BITS / 8);                                                         \
                absent += n - valid;                                                                                   \
                if (valid == n) odd += ltw_run_##BITS(at, mask, 0, n, kind, &least, &most);                            \
                else if (valid) odd += ltw_run_##BITS(at, mask, 1, n, kind, &least, &most);                            \
            }                                                                                                          \
            U bits = (U)ltw_key_##BITS((U)least, kind);                                                                \
            memcpy(low + piece * (BITS / 8), &bits, BITS / 8);                                                         \
            bits = (U)ltw_key_##BITS((U)most, kind);                                                                   \
            memcpy(high + piece * (BITS / 8), &bits, BITS / 8);                                                        \
            nulls[piece] = absent;                                                                                     \
            nans[piece] = odd;                                                                                         \
        }                                                                                                              \
    }

    LTW_TYPE(int8_t, uint8_t, 8, 0)
    LTW_TYPE(int16_t, uint16_t, 16, 0x7C00)
    LTW_TYPE(int32_t, uint32_t, 32, 0x7F800000)
    LTW_TYPE(int64_t, uint64_t, 64, 0x7FF0000000000000LL)

    #define LTW_ARGUMENTS values, bitmap, size, skip, starts, ends, pieces
    #define LTW_FOR(BITS)                                                                                              \
        if (kind == LTW_FLOAT && BITS > 8)                                                                             \
            ltw_zones_of_##BITS(LTW_ARGUMENTS, LTW_FLOAT, low, high, nulls, nans);                                     \
        else if (kind == LTW_UNSIGNED)                                                                                 \
            ltw_zones_of_##BITS(LTW_ARGUMENTS, LTW_UNSIGNED, low, high, nulls, nans);                                  \
        else                                                                                                           \
            ltw_zones_of_##BITS(LTW_ARGUMENTS, LTW_SIGNED, low, high, nulls, nans);
    #define LTW_ZONES(NAME)                                                                                            \
    static void NAME(                                                                                                  \
        const uint8_t *values, const uint8_t *bitmap, int64_t size, int64_t skip, const int64_t *starts,               \
        const int64_t *ends, int64_t pieces, int bits, int kind, uint8_t *low, uint8_t *high, int64_t *nulls,          \
        int64_t *nans                                                                                                  \
    ) {                                                                                                                \
        if (bits == 8) { LTW_FOR(8) }                                                                                  \
        else if (bits == 16) { LTW_FOR(16) }                                                                           \
        else if (bits == 32) { LTW_FOR(32) }                                                                           \
        else { LTW_FOR(64) }                                                                                           \
    }

    LTW_ZONES(ltw_zones_plain)
    #if defined(LTW_WIDE)
    __attribute__((target("avx2"))) LTW_ZONES(ltw_zones_wide)
    #endif

    static void ltw_zones(
        const uint8_t *values, const uint8_t *bitmap, int64_t size, int64_t skip, const int64_t *starts,
        const int64_t *ends, int64_t pieces, int bits, int kind, uint8_t *low, uint8_t *high, int64_t *nulls,
        int64_t *nans
    ) {
    #if defined(LTW_WIDE)
        if (__builtin_cpu_supports("avx2")) {
            ltw_zones_wide(LTW_ARGUMENTS, bits, kind, low, high, nulls, nans);
            return;
        }
    #endif
        ltw_zones_plain(LTW_ARGUMENTS, bits, kind, low, high, nulls, nans);
    }

    /* Return a < b, compared by bytes. */
    static inline int ltw_string_below(const uint8_t *a, int64_t length_a, const uint8_t *b, int64_t length_b) {
        int order = memcmp(a, b, (size_t)(length_a < length_b ? length_a : length_b));
        return order ? order < 0 : length_a < length_b;
    }

    /* Return the first bytes of a value, padded with zeros, as a signed number with their order. */
    LTW_INLINE int64_t ltw_string_key(const uint8_t *data, int64_t start, int64_t length, int64_t size) {
        static const uint64_t masks[9] = {
            0, 0xFF00000000000000ULL, 0xFFFF000000000000ULL, 0xFFFFFF0000000000ULL, 0xFFFFFFFF00000000ULL,
            0xFFFFFFFFFF000000ULL, 0xFFFFFFFFFFFF0000ULL, 0xFFFFFFFFFFFFFF00ULL, 0xFFFFFFFFFFFFFFFFULL
        };
        uint64_t word = 0;
        if (start + 8 <= size) word = lt_load64(data + start);
        else memcpy(&word, data + start, (size_t)(size - start < length ? size - start : length));
        word = ltw_swap(word) & masks[length < 8 ? length : 8];
        return (int64_t)(word ^ 0x8000000000000000ULL);
    }

    /* Find the rows of the minimum and maximum of each piece, -1 if all values are null. Keys are compared in blocks,
       because the minimum and maximum key exclude most blocks. 0 for offsets outside the data. */
    #define LTW_EXTREMES(T, BITS)                                                                                      \
    LTW_INLINE int ltw_extremes_of_##BITS(                                                                             \
        const T *offsets, const uint8_t *data, int64_t size, const uint8_t *bitmap, int64_t skip,                      \
        const int64_t *starts, const int64_t *ends, int64_t pieces, int64_t *low, int64_t *high                        \
    ) {                                                                                                                \
        int64_t keys[256], rows[256];                                                                                  \
        for (int64_t piece = 0; piece < pieces; piece++) {                                                             \
            int64_t least = -1, most = -1, least_key = 0, most_key = 0;                                                \
            for (int64_t first = starts[piece]; first < ends[piece]; first += 256) {                                   \
                int64_t n = ends[piece] - first < 256 ? ends[piece] - first : 256, found = 0;                          \
                const T *at = offsets + first;                                                                         \
                int64_t falling = 0;                                                                                   \
                for (int64_t i = 0; i < n; i++) falling |= at[i + 1] < at[i];                                          \
                if (falling || at[0] < 0 || at[n] > size) return 0;                                                    \
                if (bitmap) {                                                                                          \
                    for (int64_t i = 0; i < n; i++) {                                                                  \
                        rows[found] = i;                                                                               \
                        found += bitmap[(skip + first + i) >> 3] >> ((skip + first + i) & 7) & 1;                      \
                    }                                                                                                  \
                    for (int64_t i = 0; i < found; i++)                                                                \
                        keys[i] = ltw_string_key(data, at[rows[i]], at[rows[i] + 1] - at[rows[i]], size);              \
                } else {                                                                                               \
                    for (int64_t i = 0; i < n; i++) keys[i] = ltw_string_key(data, at[i], at[i + 1] - at[i], size);    \
                    found = n;                                                                                         \
                }                                                                                                      \
                if (!found) continue;                                                                                  \
                int64_t least_here = keys[0], most_here = keys[0];                                                     \
                for (int64_t i = 0; i < found; i++) {                                                                  \
                    least_here = keys[i] < least_here ? keys[i] : least_here;                                          \
                    most_here = keys[i] > most_here ? keys[i] : most_here;                                             \
                }                                                                                                      \
                if (least < 0 || least_here <= least_key) {                                                            \
                    if (least_here < least_key) least = -1;                                                            \
                    least_key = least_here;                                                                            \
                    for (int64_t i = 0; i < found; i++) {                                                              \
                        int64_t row = first + (bitmap ? rows[i] : i);                                                  \
                        if (keys[i] == least_here && (least < 0 || ltw_string_below(                                   \
                            data + offsets[row], offsets[row + 1] - offsets[row],                                      \
                            data + offsets[least], offsets[least + 1] - offsets[least]                                 \
                        ))) least = row;                                                                               \
                    }                                                                                                  \
                }                                                                                                      \
                if (most < 0 || most_here >= most_key) {                                                               \
                    if (most_here > most_key) most = -1;                                                               \
                    most_key = most_here;                                                                              \
                    for (int64_t i = 0; i < found; i++) {                                                              \
                        int64_t row = first + (bitmap ? rows[i] : i);                                                  \
                        if (keys[i] == most_here && (most < 0 || ltw_string_below(                                     \
                            data + offsets[most], offsets[most + 1] - offsets[most],                                   \
                            data + offsets[row], offsets[row + 1] - offsets[row]                                       \
                        ))) most = row;                                                                                \
                    }                                                                                                  \
                }                                                                                                      \
            }                                                                                                          \
            low[piece] = least;                                                                                        \
            high[piece] = most;                                                                                        \
        }                                                                                                              \
        return 1;                                                                                                      \
    }

    LTW_EXTREMES(int32_t, 32)
    LTW_EXTREMES(int64_t, 64)

    #define LTW_STRINGS(NAME)                                                                                          \
    static int NAME(                                                                                                   \
        const uint8_t *offsets, int bits, const uint8_t *data, int64_t size, const uint8_t *bitmap, int64_t skip,      \
        const int64_t *starts, const int64_t *ends, int64_t pieces, int64_t *low, int64_t *high                        \
    ) {                                                                                                                \
        if (bits == 32)                                                                                                \
            return ltw_extremes_of_32(                                                                                 \
                (const int32_t *)offsets, data, size, bitmap, skip, starts, ends, pieces, low, high);                  \
        return ltw_extremes_of_64((const int64_t *)offsets, data, size, bitmap, skip, starts, ends, pieces, low, high);\
    }

    LTW_STRINGS(ltw_extremes_plain)
    #if defined(LTW_WIDE)
    __attribute__((target("avx2"))) LTW_STRINGS(ltw_extremes_wide)
    #endif

    static int ltw_extremes(
        const uint8_t *offsets, int bits, const uint8_t *data, int64_t size, const uint8_t *bitmap, int64_t skip,
        const int64_t *starts, const int64_t *ends, int64_t pieces, int64_t *low, int64_t *high
    ) {
    #if defined(LTW_WIDE)
        if (__builtin_cpu_supports("avx2"))
            return ltw_extremes_wide(offsets, bits, data, size, bitmap, skip, starts, ends, pieces, low, high);
    #endif
        return ltw_extremes_plain(offsets, bits, data, size, bitmap, skip, starts, ends, pieces, low, high);
    }

    /* Return a < b of `width` bytes each, compared by bytes or as numbers in two's complement (a multiple of 8 bytes). */
    static inline int ltw_below(const uint8_t *a, const uint8_t *b, int64_t width, int number) {
        if (!number) return memcmp(a, b, (size_t)width) < 0;
        int64_t x = (int64_t)lt_load64(a + width - 8), y = (int64_t)lt_load64(b + width - 8);
        if (x != y) return x < y;
        for (int64_t at = width - 16; at >= 0; at -= 8) {
            uint64_t u = lt_load64(a + at), v = lt_load64(b + at);
            if (u != v) return u < v;
        }
        return 0;
    }
    """
    void ltw_prepare() nogil
    uint64_t ltw_swap(uint64_t x) nogil
    int ltw_extremes(
        const uint8_t* offsets, int bits, const uint8_t* data, int64_t size, const uint8_t* bitmap, int64_t skip,
        const int64_t* starts, const int64_t* ends, int64_t pieces, int64_t* low, int64_t* high,
    ) nogil
    int ltw_below(const uint8_t* a, const uint8_t* b, int64_t width, int number) nogil
    void ltw_zones(
        const uint8_t* values, const uint8_t* bitmap, int64_t size, int64_t skip, const int64_t* starts,
        const int64_t* ends, int64_t pieces, int bits, int kind, uint8_t* low, uint8_t* high, int64_t* nulls,
        int64_t* nans,
    ) nogil


ltw_prepare()


cdef check_pieces(Bytes starts, Bytes ends, int64_t rows):
    """Raise ValueError unless all pieces are within the rows."""
    cdef int64_t i, start, end
    if starts.size != ends.size:
        raise ValueError("starts and ends of pieces differ in number")
    for i in range(starts.size // 8):
        start, end = (<int64_t*>starts.at)[i], (<int64_t*>ends.at)[i]
        if start < 0 or end < start or end > rows:
            raise ValueError("piece beyond the last row")


# ----------------------------------------------------------------------------------------- zone maps, as in zones.py


def number_zones(values, validity, int64_t skip, starts, ends, int kind, low, high):
    """Fill `low` and `high`; return the numbers of nulls and NaNs. Row 0 is bit `skip` of `validity`, a bitmap or None."""
    cdef Bytes source = Bytes(values), first = Bytes(starts), last = Bytes(ends)
    cdef Bytes least = Bytes(low, True), most = Bytes(high, True)
    cdef Bytes bitmap = None if validity is None else Bytes(validity)
    cdef int64_t pieces = first.size // 8, width = low.dtype.itemsize, rows = source.size // width
    cdef const uint8_t* bits = NULL if bitmap is None else bitmap.at
    cdef int64_t size = 0 if bitmap is None else bitmap.size
    check_pieces(first, last, rows)
    if width not in (1, 2, 4, 8) or least.size != pieces * width or most.size != pieces * width:
        raise ValueError("bounds and pieces differ in number")
    if skip < 0 or (bitmap is not None and size * 8 - skip < rows):
        raise ValueError("validity too short")
    nulls = np.empty(pieces, np.int64)
    nans = np.empty(pieces, np.int64)
    cdef Bytes absent = Bytes(nulls, True), odd = Bytes(nans, True)
    with nogil:
        ltw_zones(
            source.at, bits, size, skip, <int64_t*>first.at, <int64_t*>last.at, pieces, <int>(8 * width), kind,
            least.at, most.at, <int64_t*>absent.at, <int64_t*>odd.at,
        )
    return nulls, nans


cdef inline uint64_t leading(const uint8_t* at, int64_t width, bint number) noexcept nogil:
    """Return a number with the order of the eight most significant bytes."""
    cdef uint64_t word = 0
    if number:
        return lt_load64(at + width - 8) ^ (<uint64_t>1 << 63)
    if width >= 8:
        return ltw_swap(lt_load64(at))
    memcpy(&word, at, width)
    return ltw_swap(word)


cdef void wide_extremes_of(
    const uint8_t* data, int64_t width, bint number, const uint8_t* bitmap, int64_t skip, const int64_t* starts,
    const int64_t* ends, int64_t pieces, int64_t* low, int64_t* high,
) noexcept nogil:
    cdef int64_t i, row, least, most
    cdef uint64_t key, least_key, most_key
    for i in range(pieces):
        least = most = -1
        least_key = most_key = 0
        for row in range(starts[i], ends[i]):
            if bitmap != NULL and not bitmap[(skip + row) >> 3] >> ((skip + row) & 7) & 1:
                continue
            key = leading(data + row * width, width, number)
            if least < 0:
                least = most = row
                least_key = most_key = key
            elif key < least_key or (
                key == least_key and ltw_below(data + row * width, data + least * width, width, number)
            ):
                least, least_key = row, key
            elif key > most_key or (
                key == most_key and ltw_below(data + most * width, data + row * width, width, number)
            ):
                most, most_key = row, key
        low[i], high[i] = least, most


def wide_extremes(values, int64_t width, bint number, validity, int64_t skip, starts, ends):
    """Return the rows of minima and maxima of values of `width` bytes, -1 if all are null.

    Values are compared as bytes, or as numbers of a multiple of 8 bytes.
    """
    cdef Bytes source = Bytes(values), first = Bytes(starts), last = Bytes(ends)
    cdef Bytes bitmap = None if validity is None else Bytes(validity)
    cdef const uint8_t* bits = NULL if bitmap is None else bitmap.at
    cdef int64_t pieces = first.size // 8
    if width < 1 or (number and width % 8):
        raise ValueError(f"numbers of {width} bytes are not supported")
    check_pieces(first, last, source.size // width)
    if skip < 0 or (bitmap is not None and bitmap.size * 8 - skip < source.size // width):
        raise ValueError("validity too short")
    low = np.empty(pieces, np.int64)
    high = np.empty(pieces, np.int64)
    cdef Bytes least = Bytes(low, True), most = Bytes(high, True)
    with nogil:
        wide_extremes_of(
            source.at, width, number, bits, skip, <int64_t*>first.at, <int64_t*>last.at, pieces, <int64_t*>least.at,
            <int64_t*>most.at,
        )
    return low, high


def extremes(const offset_t[::1] offsets, data, validity, int64_t skip, starts, ends):
    """Return the rows of minima and maxima of strings, -1 if all are null; offsets are (rows + 1,) ends in `data`.

    Raises CorruptFileError for offsets outside the data.
    """
    cdef Bytes source = Bytes(data), first = Bytes(starts), last = Bytes(ends)
    cdef Bytes bitmap = None if validity is None else Bytes(validity)
    cdef const uint8_t* bits = NULL if bitmap is None else bitmap.at
    cdef int64_t pieces = first.size // 8, rows = offsets.shape[0] - 1
    cdef int valid
    if rows < 0:
        raise ValueError("no offsets")
    check_pieces(first, last, rows)
    if skip < 0 or (bitmap is not None and bitmap.size * 8 - skip < rows):
        raise ValueError("validity too short")
    low = np.empty(pieces, np.int64)
    high = np.empty(pieces, np.int64)
    cdef Bytes least = Bytes(low, True), most = Bytes(high, True)
    with nogil:
        valid = ltw_extremes(
            <const uint8_t*>&offsets[0], <int>(8 * sizeof(offset_t)), source.at, source.size, bits, skip,
            <int64_t*>first.at, <int64_t*>last.at, pieces, <int64_t*>least.at, <int64_t*>most.at,
        )
    check(OK if valid else OUTSIDE)
    return low, high


# ------------------------------------------------------------------------------- distinct values, as in distinct.py


cdef struct Item:
    uint64_t hash
    int64_t start
    int64_t length


cdef struct Table:
    int32_t* slots  # numbers of items, -1 where free
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


cdef bint grow(Table* table) noexcept nogil:
    """Double the capacity for items, with four slots for each. False without memory."""
    cdef int64_t room = table.room * 2 if table.room else 512
    cdef Item* items = <Item*>realloc(table.items, room * sizeof(Item))
    cdef int32_t* slots
    cdef uint64_t slot
    cdef int64_t i
    if items == NULL:
        return False
    table.items = items
    slots = <int32_t*>malloc(4 * room * sizeof(int32_t))
    if slots == NULL:
        return False
    memset(slots, 0xFF, 4 * room * sizeof(int32_t))
    table.room, table.mask = room, <uint64_t>(4 * room - 1)
    for i in range(table.count):
        slot = items[i].hash & table.mask
        while slots[slot] >= 0:
            slot = (slot + 1) & table.mask
        slots[slot] = <int32_t>i
    free(table.slots)
    table.slots = slots
    return True


cdef int64_t number_of(Table* table, const uint8_t* data, int64_t start, int64_t length, int64_t most) noexcept nogil:
    """Return the number of a string, which is added if it is new; -1 for more than `most`, -2 without memory."""
    cdef uint64_t hash = hash_of(data + start, length), slot
    cdef Item* item
    cdef int32_t number
    slot = hash & table.mask
    while True:
        number = table.slots[slot]
        if number < 0:
            break
        item = &table.items[number]
        if item.hash == hash and item.length == length and not memcmp(data + item.start, data + start, length):
            return number
        slot = (slot + 1) & table.mask
    if table.count == most:
        return -1
    if table.count == table.room:
        if not grow(table):
            return -2
        slot = hash & table.mask
        while table.slots[slot] >= 0:
            slot = (slot + 1) & table.mask
    item = &table.items[table.count]
    item.hash, item.start, item.length = hash, start, length
    table.slots[slot] = <int32_t>table.count
    table.count += 1
    return table.count - 1


cdef int64_t index_of(
    Table* table, const offset_t* offsets, int64_t rows, const uint8_t* data, int64_t size, const uint8_t* bitmap,
    int64_t skip, int64_t most, int32_t* indices, int64_t* firsts, int64_t room,
) noexcept nogil:
    """Return 0, an error of `number_of`, -3 for offsets outside the data, or -4 if `firsts` is full."""
    cdef int64_t row, start, end, number, before
    if not grow(table):
        return -2
    for row in range(rows):
        indices[row] = 0
        if bitmap != NULL and not bitmap[(skip + row) >> 3] >> ((skip + row) & 7) & 1:
            continue
        start, end = offsets[row], offsets[row + 1]
        if start < 0 or end < start or end > size:
            return -3
        before = table.count
        number = number_of(table, data, start, end - start, most)
        if number < 0:
            return number
        if number == before:
            if number >= room:
                return -4
            firsts[number] = row
        indices[row] = <int32_t>number
    return 0


def index_strings(const offset_t[::1] offsets, data, validity, int64_t skip, int64_t most):
    """Return indices, and the first row of each distinct value; None for more than `most` of them."""
    cdef Bytes source = Bytes(data)
    cdef Bytes bitmap = None if validity is None else Bytes(validity)
    cdef const uint8_t* bits = NULL if bitmap is None else bitmap.at
    cdef int64_t rows = offsets.shape[0] - 1, code, room
    cdef Table table
    if rows < 0:
        raise ValueError("no offsets")
    if skip < 0 or (bitmap is not None and bitmap.size * 8 - skip < rows):
        raise ValueError("validity too short")
    room = min(rows, most)
    indices = np.empty(rows, np.int32)
    firsts = np.empty(room, np.int64)
    cdef Bytes target = Bytes(indices, True), first = Bytes(firsts, True)
    memset(&table, 0, sizeof(Table))
    with nogil:
        code = index_of(
            &table, &offsets[0], rows, source.at, source.size, bits, skip, most, <int32_t*>target.at,
            <int64_t*>first.at, room,
        )
        free(table.slots)
        free(table.items)
    if code == -2:
        raise MemoryError
    check(OUTSIDE if code == -3 else OK)
    return None if code < 0 else (indices, firsts[: table.count])


# --------------------------------------------------------- numbers of distinct values, for encodings_v2_1/stats.py


def count_numbers(values, int64_t size):
    """Count the distinct values among `size` evenly spaced ones of (n,) 64-bit numbers, and those that occur once, twice."""
    cdef Bytes source = Bytes(values)
    cdef int64_t count = source.size // 8, i, place, found = 0, once = 0, twice = 0, slots = 16
    if size < 0 or size > count:
        raise ValueError(f"sample of {size} of {count} values")
    if size == 0:
        return 0, 0, 0
    while slots < 2 * size:
        slots *= 2
    # Keys, followed by the count of each up to 3; 0 for a free slot.
    cdef uint64_t* keys = <uint64_t*>malloc(9 * slots)
    if keys == NULL:
        raise MemoryError
    cdef uint8_t* seen = <uint8_t*>(keys + slots)
    cdef uint64_t key, mask = slots - 1
    cdef uint64_t at
    with nogil:
        memset(seen, 0, slots)
        for i in range(size):
            place = i if size == count else i * (count - 1) // (size - 1) if size > 1 else 0
            key = lt_load64(source.at + 8 * place)
            at = key * <uint64_t>0x9E3779B97F4A7C15ULL
            at = (at ^ (at >> 32)) & mask
            while seen[at] and keys[at] != key:
                at = (at + 1) & mask
            if not seen[at]:
                keys[at] = key
                seen[at] = 1
                found += 1
                once += 1
            elif seen[at] == 1:
                seen[at] = 2
                once -= 1
                twice += 1
            elif seen[at] == 2:
                seen[at] = 3
                twice -= 1
    free(keys)
    return found, once, twice
