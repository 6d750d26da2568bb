# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled form of vector_distances.py: distances of a query to the vectors or codes of a partition.

Functions are compiled twice on x86: for AVX2 with FMA, and for any processor. The processor selects the form when the
module is loaded. Sums of floats use 16 accumulators, so that they do not depend on the form, except for FMA.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import numpy as np

cdef extern from *:
    """
    #include <math.h>
    #include <string.h>

    #if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
    #define LTV_WIDE 1
    #define LTV_TARGET __attribute__((target("avx2,fma,popcnt")))
    #else
    #define LTV_WIDE 0
    #define LTV_TARGET
    #endif
    #if defined(__GNUC__) || defined(__clang__)
    #define LTV_INLINE static inline __attribute__((always_inline))
    #define ltv_bits(x) ((uint32_t)__builtin_popcountll(x))
    #else
    #define LTV_INLINE static inline
    static uint32_t ltv_bits(uint64_t x) {
        x -= (x >> 1) & 0x5555555555555555ULL;
        x = (x & 0x3333333333333333ULL) + ((x >> 2) & 0x3333333333333333ULL);
        x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
        return (uint32_t)((x * 0x0101010101010101ULL) >> 56);
    }
    #endif

    enum { LTV_L2, LTV_DOT, LTV_COSINE, LTV_L2_DOUBLE, LTV_DOT_DOUBLE, LTV_COSINE_DOUBLE, LTV_HAMMING, LTV_SQ_L2, LTV_SQ_DOT,
           LTV_PQ8, LTV_PQ4 };

    /* Codes of a partition and a prepared query. For PQ, `codes` are columns of `rows` bytes, otherwise rows of `width`
       numbers. The distance of a row is `scale` times the sum, plus `offset`, where the kind uses them. */
    typedef struct {
        int kind;
        const uint8_t *codes, *query;
        int64_t rows, width;
        double scale, offset, norm;
    } ltv_codes;

    #define LTV_SUMS(name, number, lanes, term)                                                                        \\
        LTV_INLINE number name(const number *a, const number *b, int64_t width) {                                      \\
            number sums[lanes] = {0}, sum = 0;                                                                         \\
            int64_t i = 0;                                                                                             \\
            for (; i + lanes <= width; i += lanes)                                                                     \\
                for (int j = 0; j < lanes; j++) { number x = a[i + j], y = b[i + j]; sums[j] += term; }                \\
            for (; i < width; i++) { number x = a[i], y = b[i]; sums[i % lanes] += term; }                             \\
            for (int half = lanes / 2; half; half /= 2)                                                                \\
                for (int j = 0; j < half; j++) sums[j] += sums[j + half];                                              \\
            sum = sums[0];                                                                                             \\
            return sum;                                                                                                \\
        }
    LTV_SUMS(ltv_l2, float, 32, (x - y) * (x - y))
    LTV_SUMS(ltv_dot, float, 32, x * y)
    LTV_SUMS(ltv_l2_double, double, 16, (x - y) * (x - y))
    LTV_SUMS(ltv_dot_double, double, 16, x * y)

    LTV_INLINE int64_t ltv_sq_l2(const uint8_t *a, const uint8_t *b, int64_t width) {
        int64_t sum = 0;
        while (width > 0) {
            int32_t part = 0, n = width < 16384 ? (int32_t)width : 16384;
            for (int32_t i = 0; i < n; i++) { int32_t d = (int32_t)a[i] - b[i]; part += d * d; }
            sum += part;
            a += n; b += n; width -= n;
        }
        return sum;
    }

    LTV_INLINE float ltv_sq_dot(const uint8_t *a, const float *b, int64_t width) {
        float sums[32] = {0};
        int64_t i = 0;
        for (; i + 32 <= width; i += 32)
            for (int j = 0; j < 32; j++) sums[j] += (float)a[i + j] * b[i + j];
        for (; i < width; i++) sums[i % 32] += (float)a[i] * b[i];
        for (int half = 16; half; half /= 2)
            for (int j = 0; j < half; j++) sums[j] += sums[j + half];
        return sums[0];
    }

    LTV_INLINE uint32_t ltv_hamming(const uint8_t *a, const uint8_t *b, int64_t width) {
        uint32_t sum = 0;
        for (; width >= 8; width -= 8, a += 8, b += 8) {
            uint64_t x, y;
            memcpy(&x, a, 8); memcpy(&y, b, 8);
            sum += ltv_bits(x ^ y);
        }
        for (int64_t i = 0; i < width; i++) sum += ltv_bits((uint64_t)(a[i] ^ b[i]));
        return sum;
    }

    LTV_INLINE float ltv_one(const ltv_codes *c, int64_t row) {
        const float *query = (const float *)c->query, *at = (const float *)c->codes + row * c->width;
        const double *query2 = (const double *)c->query, *at2 = (const double *)c->codes + row * c->width;
        const uint8_t *bytes = c->codes + row * c->width;
        float sum = 0;
        switch (c->kind) {
        case LTV_L2: return ltv_l2(at, query, c->width);
        case LTV_DOT: return 1 - ltv_dot(at, query, c->width);
        case LTV_COSINE:
            return (float)(1 - ltv_dot(at, query, c->width) / (sqrt(ltv_dot(at, at, c->width)) * c->norm));
        case LTV_L2_DOUBLE: return (float)ltv_l2_double(at2, query2, c->width);
        case LTV_DOT_DOUBLE: return (float)(1 - ltv_dot_double(at2, query2, c->width));
        case LTV_COSINE_DOUBLE:
            return (float)(1 - ltv_dot_double(at2, query2, c->width) / (sqrt(ltv_dot_double(at2, at2, c->width)) * c->norm));
        case LTV_HAMMING: return (float)ltv_hamming(bytes, c->query, c->width);
        case LTV_SQ_L2: return (float)((double)ltv_sq_l2(bytes, c->query, c->width) * c->scale);
        case LTV_SQ_DOT: return (float)(c->offset + (double)ltv_sq_dot(bytes, query, c->width) * c->scale);
        case LTV_PQ8:
            for (int64_t i = 0; i < c->width; i++) sum += query[256 * i + c->codes[i * c->rows + row]];
            return sum;
        default:
            for (int64_t i = 0; i < c->width; i++) {
                uint8_t code = c->codes[i * c->rows + row];
                sum += query[32 * i + (code & 15)];
                sum += query[32 * i + 16 + (code >> 4)];
            }
            return sum;
        }
    }

    /* Sums of table entries for all rows, in blocks that stay in the cache, four bytes of a code at a time. */
    LTV_INLINE void ltv_pq8(const ltv_codes *c, float *out) {
        enum { BLOCK = 2048 };
        for (int64_t start = 0; start < c->rows; start += BLOCK) {
            int64_t n = c->rows - start < BLOCK ? c->rows - start : BLOCK, i = 0;
            float *to = out + start;
            memset(to, 0, (size_t)n * sizeof(float));
            for (; i + 4 <= c->width; i += 4) {
                const float *t = (const float *)c->query + 256 * i;
                const uint8_t *a = c->codes + i * c->rows + start, *b = a + c->rows, *d = b + c->rows, *e = d + c->rows;
                for (int64_t j = 0; j < n; j++)
                    to[j] += (t[a[j]] + t[256 + b[j]]) + (t[512 + d[j]] + t[768 + e[j]]);
            }
            for (; i < c->width; i++) {
                const float *t = (const float *)c->query + 256 * i;
                const uint8_t *a = c->codes + i * c->rows + start;
                for (int64_t j = 0; j < n; j++) to[j] += t[a[j]];
            }
        }
    }

    LTV_INLINE void ltv_pq4(const ltv_codes *c, float *out) {
        memset(out, 0, (size_t)c->rows * sizeof(float));
        for (int64_t i = 0; i < c->width; i++) {
            const float *t = (const float *)c->query + 32 * i;
            const uint8_t *a = c->codes + i * c->rows;
            for (int64_t j = 0; j < c->rows; j++) out[j] += t[a[j] & 15] + t[16 + (a[j] >> 4)];
        }
    }

    LTV_INLINE void ltv_all(const ltv_codes *c, const int64_t *rows, int64_t count, float *out) {
        if (rows != NULL) {
            for (int64_t i = 0; i < count; i++) out[i] = ltv_one(c, rows[i]);
        } else if (c->kind == LTV_PQ8) {
            ltv_pq8(c, out);
        } else if (c->kind == LTV_PQ4) {
            ltv_pq4(c, out);
        } else {
            #define LTV_LOOP(known) case known: \\
                { ltv_codes k = *c; k.kind = known; for (int64_t i = 0; i < count; i++) out[i] = ltv_one(&k, i); } break;
            switch (c->kind) {
            LTV_LOOP(LTV_L2) LTV_LOOP(LTV_DOT) LTV_LOOP(LTV_COSINE)
            LTV_LOOP(LTV_L2_DOUBLE) LTV_LOOP(LTV_DOT_DOUBLE) LTV_LOOP(LTV_COSINE_DOUBLE)
            LTV_LOOP(LTV_HAMMING) LTV_LOOP(LTV_SQ_L2) LTV_LOOP(LTV_SQ_DOT)
            }
        }
    }

    /* Distances of several queries to the same rows, which are read from memory once: out[query][row]. */
    LTV_INLINE void ltv_many(ltv_codes *c, int64_t queries, int64_t query_bytes, int64_t row_bytes, const double *offsets,
                             const double *norms, float *out) {
        const int64_t rows = c->rows, block = row_bytes < 16384 ? 16384 / row_bytes : 1;
        const uint8_t *codes = c->codes, *query = c->query;
        for (int64_t start = 0; start < rows; start += block) {
            c->codes = codes + start * row_bytes;
            c->rows = rows - start < block ? rows - start : block;
            for (int64_t i = 0; i < queries; i++) {
                c->query = query + i * query_bytes;
                c->offset = offsets[i];
                c->norm = norms[i];
                ltv_all(c, NULL, c->rows, out + i * rows + start);
            }
        }
    }

    LTV_INLINE void ltv_table(const float *codebook, const float *query, int64_t m, int64_t codes, int64_t width, int dot,
                              float *out) {
        float first = dot ? 1.0f / (float)m : 0.0f;
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < codes; j++) {
                const float *a = codebook + (i * codes + j) * width, *b = query + i * width;
                float sum = 0;
                if (width == 8) {
                    float s[8];
                    for (int k = 0; k < 8; k++) { float d = a[k] - b[k]; s[k] = dot ? a[k] * b[k] : d * d; }
                    sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
                } else {
                    sum = dot ? ltv_dot(a, b, width) : ltv_l2(a, b, width);
                }
                out[i * codes + j] = dot ? first - sum : sum;
            }
    }

    /* ---- search of a graph: a heap of the nodes to visit, and a heap of the `ef` nearest nodes that may be returned */

    typedef struct { float distance; uint32_t node; } ltv_near;

    LTV_INLINE int ltv_before(ltv_near a, ltv_near b, int farthest) {
        if (a.distance != b.distance) return farthest ? a.distance > b.distance : a.distance < b.distance;
        return farthest ? a.node > b.node : a.node < b.node;
    }

    LTV_INLINE void ltv_push(ltv_near *heap, int64_t size, ltv_near item, int farthest) {
        int64_t at = size;
        while (at > 0 && ltv_before(item, heap[(at - 1) / 2], farthest)) {
            heap[at] = heap[(at - 1) / 2];
            at = (at - 1) / 2;
        }
        heap[at] = item;
    }

    /* Replace the first item of a heap by `item`. */
    LTV_INLINE void ltv_replace(ltv_near *heap, int64_t size, ltv_near item, int farthest) {
        int64_t at = 0;
        for (;;) {
            int64_t child = 2 * at + 1;
            if (child >= size) break;
            if (child + 1 < size && ltv_before(heap[child + 1], heap[child], farthest)) child++;
            if (!ltv_before(heap[child], item, farthest)) break;
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = item;
    }

    /* Ends are checked by the caller; neighbours are below the number of nodes. Returns the number of nodes found. */
    LTV_INLINE int64_t ltv_beam(
        const ltv_codes *c, const int64_t *starts, const uint32_t *neighbors, uint32_t entry, const uint8_t *allowed,
        float lower, float upper, int64_t ef, uint8_t *visited, ltv_near *todo, ltv_near *best
    ) {
        int64_t waiting = 1, found = 0;
        ltv_near first = {ltv_one(c, entry), entry};
        visited[entry] = 1;
        todo[0] = first;
        if ((allowed == NULL || allowed[entry]) && first.distance >= lower && first.distance < upper) best[found++] = first;
        while (waiting > 0) {
            ltv_near current = todo[0];
            waiting--;
            if (waiting > 0) ltv_replace(todo, waiting, todo[waiting], 0);
            if (found == ef && current.distance > best[0].distance) break;
            for (int64_t i = starts[current.node]; i < starts[current.node + 1]; i++) {
                uint32_t node = neighbors[i];
                if (visited[node]) continue;
                visited[node] = 1;
                ltv_near next = {ltv_one(c, node), node};
                if (found == ef && !(next.distance <= best[0].distance)) continue;
                if ((allowed == NULL || allowed[node]) && next.distance >= lower && next.distance < upper) {
                    if (found < ef) ltv_push(best, found++, next, 1);
                    else if (next.distance < best[0].distance) ltv_replace(best, found, next, 1);
                }
                ltv_push(todo, waiting++, next, 0);
            }
        }
        return found;
    }

    /* The k least of `count` distances within [lower, upper), as a heap with the greatest one first. */
    LTV_INLINE int64_t ltv_least(const float *d, int64_t count, int64_t k, float lower, float upper, ltv_near *best) {
        int64_t found = 0;
        for (int64_t i = 0; i < count; i++) {
            if (!(d[i] < upper) || d[i] < lower) continue;
            ltv_near item = {d[i], (uint32_t)i};
            if (found < k) {
                ltv_push(best, found++, item, 1);
                if (found == k && best[0].distance < upper) upper = best[0].distance;
            } else {
                ltv_replace(best, found, item, 1);
                upper = best[0].distance;
            }
        }
        return found;
    }

    #define LTV_FORMS(result, name, signature, arguments)                                                              \\
        static result name##_any signature { arguments; }                                                              \\
        LTV_TARGET static result name##_wide signature { arguments; }
    LTV_FORMS(void, ltv_all, (const ltv_codes *c, const int64_t *rows, int64_t count, float *out),
              ltv_all(c, rows, count, out))
    LTV_FORMS(void, ltv_many,
              (ltv_codes *c, int64_t queries, int64_t query_bytes, int64_t row_bytes, const double *offsets,
               const double *norms, float *out),
              ltv_many(c, queries, query_bytes, row_bytes, offsets, norms, out))
    LTV_FORMS(void, ltv_table,
              (const float *book, const float *query, int64_t m, int64_t codes, int64_t width, int dot, float *out),
              if (dot) ltv_table(book, query, m, codes, width, 1, out); else ltv_table(book, query, m, codes, width, 0, out))
    LTV_FORMS(int64_t, ltv_beam,
              (const ltv_codes *c, const int64_t *starts, const uint32_t *neighbors, uint32_t entry,
               const uint8_t *allowed, float lower, float upper, int64_t ef, uint8_t *visited, ltv_near *todo,
               ltv_near *best),
              return ltv_beam(c, starts, neighbors, entry, allowed, lower, upper, ef, visited, todo, best))

    static int ltv_is_wide(void) {
    #if LTV_WIDE
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    #else
        return 0;
    #endif
    }
    """
    int LTV_L2, LTV_DOT, LTV_COSINE, LTV_L2_DOUBLE, LTV_DOT_DOUBLE, LTV_COSINE_DOUBLE
    int LTV_HAMMING, LTV_SQ_L2, LTV_SQ_DOT, LTV_PQ8, LTV_PQ4
    ctypedef struct ltv_codes:
        int kind
        const uint8_t* codes
        const uint8_t* query
        int64_t rows
        int64_t width
        double scale
        double offset
        double norm
    ctypedef struct ltv_near:
        float distance
        uint32_t node
    void ltv_all_any(const ltv_codes* c, const int64_t* rows, int64_t count, float* out) nogil
    void ltv_all_wide(const ltv_codes* c, const int64_t* rows, int64_t count, float* out) nogil
    void ltv_many_any(ltv_codes* c, int64_t queries, int64_t query_bytes, int64_t row_bytes, const double* offsets, const double* norms, float* out) nogil
    void ltv_many_wide(ltv_codes* c, int64_t queries, int64_t query_bytes, int64_t row_bytes, const double* offsets, const double* norms, float* out) nogil
    void ltv_table_any(const float* book, const float* query, int64_t m, int64_t codes, int64_t width, int dot, float* out) nogil
    void ltv_table_wide(const float* book, const float* query, int64_t m, int64_t codes, int64_t width, int dot, float* out) nogil
    int64_t ltv_beam_any(const ltv_codes* c, const int64_t* starts, const uint32_t* neighbors, uint32_t entry, const uint8_t* allowed, float lower, float upper, int64_t ef, uint8_t* visited, ltv_near* todo, ltv_near* best) nogil
    int64_t ltv_beam_wide(const ltv_codes* c, const int64_t* starts, const uint32_t* neighbors, uint32_t entry, const uint8_t* allowed, float lower, float upper, int64_t ef, uint8_t* visited, ltv_near* todo, ltv_near* best) nogil
    int64_t ltv_least(const float* d, int64_t count, int64_t k, float lower, float upper, ltv_near* best) nogil
    int ltv_is_wide() nogil

cdef bint WIDE = ltv_is_wide()

KINDS = {
    "l2": LTV_L2, "dot": LTV_DOT, "cosine": LTV_COSINE, "l2_double": LTV_L2_DOUBLE, "dot_double": LTV_DOT_DOUBLE,
    "cosine_double": LTV_COSINE_DOUBLE, "hamming": LTV_HAMMING, "sq_l2": LTV_SQ_L2, "sq_dot": LTV_SQ_DOT,
    "pq8": LTV_PQ8, "pq4": LTV_PQ4,
}


cdef int fill(ltv_codes* c, int kind, const uint8_t[::1] codes, const uint8_t[::1] query, int64_t rows, int64_t width,
              double scale, double offset, double norm) except -1:
    """Check the sizes of codes and query."""
    cdef int64_t number = 1, asked = 1
    if kind in (LTV_L2, LTV_DOT, LTV_COSINE):
        number = asked = 4
    elif kind in (LTV_L2_DOUBLE, LTV_DOT_DOUBLE, LTV_COSINE_DOUBLE):
        number = asked = 8
    elif kind == LTV_SQ_DOT:
        asked = 4
    elif kind == LTV_PQ8:
        asked = 1024
    elif kind == LTV_PQ4:
        asked = 128
    if rows < 0 or width < 1 or codes.shape[0] != rows * width * number or query.shape[0] != width * asked:
        raise ValueError("wrong size of codes or query")
    c.kind, c.rows, c.width, c.scale, c.offset, c.norm = kind, rows, width, scale, offset, norm
    c.codes = NULL
    if codes.shape[0]:
        c.codes = &codes[0]
    c.query = &query[0]
    return 0


def distances(int kind, const uint8_t[::1] codes, const uint8_t[::1] query, int64_t num_rows, int64_t width, double scale,
              double offset, double norm, const int64_t[::1] rows, float[::1] out):
    """Compute the distances of all rows, or of `rows`; see vector_distances.py."""
    cdef ltv_codes c
    cdef int64_t i, count = num_rows if rows is None else rows.shape[0]
    fill(&c, kind, codes, query, num_rows, width, scale, offset, norm)
    if out.shape[0] != count:
        raise ValueError("wrong size of distances")
    if count == 0:
        return
    cdef const int64_t* selected = NULL
    if rows is not None:
        selected = &rows[0]
        for i in range(count):
            if rows[i] < 0 or rows[i] >= num_rows:
                raise ValueError("row out of range")
    with nogil:
        if WIDE:
            ltv_all_wide(&c, selected, count, &out[0])
        else:
            ltv_all_any(&c, selected, count, &out[0])


def distances_of_queries(int kind, const uint8_t[::1] codes, const uint8_t[::1] queries, int64_t num_rows, int64_t width,
                         double scale, const double[::1] offsets, const double[::1] norms, float[:, ::1] out):
    """Compute the distances of several queries to all rows, except for PQ; see vector_distances.py."""
    cdef ltv_codes c
    cdef int64_t count = out.shape[0], query_bytes
    if count < 1 or queries.shape[0] % count or offsets.shape[0] != count or norms.shape[0] != count:
        raise ValueError("wrong number of queries")
    if kind in (LTV_PQ8, LTV_PQ4):
        raise ValueError("PQ has a table for each query")
    query_bytes = queries.shape[0] // count
    fill(&c, kind, codes, queries[:query_bytes], num_rows, width, scale, 0, 0)
    if out.shape[1] != num_rows:
        raise ValueError("wrong size of distances")
    if num_rows == 0:
        return
    with nogil:
        if WIDE:
            ltv_many_wide(&c, count, query_bytes, codes.shape[0] // num_rows, &offsets[0], &norms[0], &out[0, 0])
        else:
            ltv_many_any(&c, count, query_bytes, codes.shape[0] // num_rows, &offsets[0], &norms[0], &out[0, 0])


def table(const float[:, :, ::1] codebook, const float[::1] query, bint dot, float[:, ::1] out):
    """Compute the table of distances of a query to a codebook; see vector_distances.py."""
    cdef int64_t m = codebook.shape[0], codes = codebook.shape[1], width = codebook.shape[2]
    if query.shape[0] != m * width or out.shape[0] != m or out.shape[1] != codes or m < 1 or codes < 1 or width < 1:
        raise ValueError("wrong size of query or table")
    with nogil:
        if WIDE:
            ltv_table_wide(&codebook[0, 0, 0], &query[0], m, codes, width, dot, &out[0, 0])
        else:
            ltv_table_any(&codebook[0, 0, 0], &query[0], m, codes, width, dot, &out[0, 0])


cdef tuple listed(ltv_near* found, int64_t count):
    """Return the items as arrays of positions and distances."""
    cdef int64_t i
    positions, values = np.empty(count, np.int64), np.empty(count, np.float32)
    cdef int64_t[::1] at = positions
    cdef float[::1] value = values
    for i in range(count):
        at[i], value[i] = found[i].node, found[i].distance
    return positions, values


def least(const float[::1] values, int64_t k, float lower, float upper):
    """Return the positions of the k least values in [lower, upper), and the values, in any order."""
    cdef int64_t found, count = values.shape[0]
    k = min(k, count)
    if k < 1 or count > 0xFFFFFFFF:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    cdef ltv_near* best = <ltv_near*>malloc(<size_t>k * sizeof(ltv_near))
    if best == NULL:
        raise MemoryError
    try:
        with nogil:
            found = ltv_least(&values[0], count, k, lower, upper, best)
        return listed(best, found)
    finally:
        free(best)


def search_graph(int kind, const uint8_t[::1] codes, const uint8_t[::1] query, int64_t num_rows, int64_t width, double scale,
                 double offset, double norm, const int64_t[::1] starts, const uint32_t[::1] neighbors, int64_t entry,
                 const uint8_t[::1] allowed, float lower, float upper, int64_t ef):
    """Return up to `ef` rows near a query in the lowest level of a graph, and their distances; see hnsw_graph.py.

    `starts` ascend from 0 to the number of neighbours, all of which are below `num_rows`.
    """
    cdef ltv_codes c
    cdef int64_t found
    fill(&c, kind, codes, query, num_rows, width, scale, offset, norm)
    if starts.shape[0] != num_rows + 1 or entry < 0 or entry >= num_rows or ef < 1:
        raise ValueError("wrong graph")
    if allowed is not None and allowed.shape[0] != num_rows:
        raise ValueError("wrong number of rows")
    ef = min(ef, num_rows)
    cdef const uint8_t* selected = NULL
    cdef const uint32_t* edges = NULL
    if allowed is not None:
        selected = &allowed[0]
    if neighbors.shape[0]:
        edges = &neighbors[0]
    cdef uint8_t* visited = <uint8_t*>malloc(<size_t>num_rows)
    cdef ltv_near* todo = <ltv_near*>malloc(<size_t>num_rows * sizeof(ltv_near))
    cdef ltv_near* best = <ltv_near*>malloc(<size_t>ef * sizeof(ltv_near))
    try:
        if visited == NULL or todo == NULL or best == NULL:
            raise MemoryError
        with nogil:
            memset(visited, 0, <size_t>num_rows)
            if WIDE:
                found = ltv_beam_wide(&c, &starts[0], edges, <uint32_t>entry, selected, lower, upper, ef, visited, todo, best)
            else:
                found = ltv_beam_any(&c, &starts[0], edges, <uint32_t>entry, selected, lower, upper, ef, visited, todo, best)
        return listed(best, found)
    finally:
        free(visited)
        free(todo)
        free(best)
