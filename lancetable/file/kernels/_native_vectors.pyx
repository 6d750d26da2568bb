# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled form of vector_distances.py: distances of queries to the vectors or codes of a partition.

Functions are compiled twice on x86: for AVX2 with FMA, and for any processor. The processor selects the form when the
module is loaded. Sums of floats have a fixed order, so that they do not depend on the form, except for FMA, nor on the
number of rows or queries.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

import numpy as np

cdef extern from *:
    """
    #include <math.h>
    #include <string.h>

    #if defined(__x86_64__)
    #define LTV_WIDE 1
    #define LTV_TARGET __attribute__((target("avx2,fma,popcnt")))
    #else
    #define LTV_WIDE 0
    #define LTV_TARGET
    #endif
    #if defined(__clang__) || __GNUC__ >= 12
    #define LTV_SHUFFLE __builtin_shufflevector
    #endif
    #define LTV_INLINE static inline __attribute__((always_inline))
    #define ltv_bits(x) ((uint32_t)__builtin_popcountll(x))
    #pragma GCC diagnostic ignored "-Wpsabi"

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

    typedef float ltv_8 __attribute__((vector_size(32)));
    typedef float ltv_8_at __attribute__((vector_size(32), aligned(4), may_alias));
    typedef int32_t ltv_mask __attribute__((vector_size(32)));
    enum { LTV_AHEAD = 2048 };
    #define LTV_LOAD(from) (*(const ltv_8_at *)(from))

    /* 8 partial sums of the terms of two vectors; 32 accumulators hide the latency of additions. */
    #define LTV_SUMS(name, term)                                                                                       \\
        LTV_INLINE ltv_8 name(const float *a, const float *b, int64_t width) {                                         \\
            ltv_8 s[4] = {{0}};                                                                                        \\
            int64_t i = 0;                                                                                             \\
            for (; i + 32 <= width; i += 32)                                                                           \\
                for (int j = 0; j < 4; j++) { ltv_8 x = LTV_LOAD(a + i + 8 * j), y = LTV_LOAD(b + i + 8 * j); s[j] += term; } \\
            for (; i + 8 <= width; i += 8) { ltv_8 x = LTV_LOAD(a + i), y = LTV_LOAD(b + i); s[0] += term; }           \\
            if (i < width) {                                                                                           \\
                ltv_8 x = {0}, y = {0};                                                                                \\
                for (int j = 0; i < width; i++, j++) { x[j] = a[i]; y[j] = b[i]; }                                     \\
                s[1] += term;                                                                                          \\
            }                                                                                                          \\
            return (s[0] + s[2]) + (s[1] + s[3]);                                                                      \\
        }
    LTV_SUMS(ltv_l2_parts, (x - y) * (x - y))
    LTV_SUMS(ltv_dot_parts, x * y)

    LTV_INLINE float ltv_sum(ltv_8 s) { return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])); }
    LTV_INLINE float ltv_l2(const float *a, const float *b, int64_t width) { return ltv_sum(ltv_l2_parts(a, b, width)); }
    LTV_INLINE float ltv_dot(const float *a, const float *b, int64_t width) { return ltv_sum(ltv_dot_parts(a, b, width)); }

    /* The sums of ltv_sum of four rows. */
    LTV_INLINE void ltv_sum4(ltv_8 a, ltv_8 b, ltv_8 c, ltv_8 d, float *out) {
    #ifdef LTV_SHUFFLE
        ltv_8 ab = LTV_SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + LTV_SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
        ltv_8 cd = LTV_SHUFFLE(c, d, 0, 1, 2, 3, 8, 9, 10, 11) + LTV_SHUFFLE(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
        ltv_8 s = LTV_SHUFFLE(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + LTV_SHUFFLE(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
        s += LTV_SHUFFLE(s, s, 1, 0, 3, 2, 5, 4, 7, 6);
        out[0] = s[0]; out[1] = s[4]; out[2] = s[2]; out[3] = s[6];
    #else
        out[0] = ltv_sum(a); out[1] = ltv_sum(b); out[2] = ltv_sum(c); out[3] = ltv_sum(d);
    #endif
    }

    #define LTV_DOUBLE_SUMS(name, term)                                                                                \\
        LTV_INLINE double name(const double *a, const double *b, int64_t width) {                                      \\
            double sums[16] = {0};                                                                                     \\
            int64_t i = 0;                                                                                             \\
            for (; i + 16 <= width; i += 16)                                                                           \\
                for (int j = 0; j < 16; j++) { double x = a[i + j], y = b[i + j]; sums[j] += term; }                   \\
            for (; i < width; i++) { double x = a[i], y = b[i]; sums[i % 16] += term; }                                \\
            for (int half = 8; half; half /= 2)                                                                        \\
                for (int j = 0; j < half; j++) sums[j] += sums[j + half];                                              \\
            return sums[0];                                                                                            \\
        }
    LTV_DOUBLE_SUMS(ltv_l2_double, (x - y) * (x - y))
    LTV_DOUBLE_SUMS(ltv_dot_double, x * y)

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

    /* Sums of table entries of `count` rows, 8 rows at a time. */
    LTV_INLINE void ltv_pq8(const ltv_codes *c, int64_t start, int64_t count, float *out) {
        const float *query = (const float *)c->query;
        int64_t row = 0;
        for (; row + 8 <= count; row += 8) {
            const uint8_t *at = c->codes + start + row;
            const float *t = query;
            float s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, s5 = 0, s6 = 0, s7 = 0;
            for (int64_t i = 0; i < c->width; i++, at += c->rows, t += 256) {
                uint64_t w;
                memcpy(&w, at, 8);
                s0 += t[w & 255]; s1 += t[w >> 8 & 255]; s2 += t[w >> 16 & 255]; s3 += t[w >> 24 & 255];
                s4 += t[w >> 32 & 255]; s5 += t[w >> 40 & 255]; s6 += t[w >> 48 & 255]; s7 += t[w >> 56];
            }
            float *to = out + row;
            to[0] = s0; to[1] = s1; to[2] = s2; to[3] = s3; to[4] = s4; to[5] = s5; to[6] = s6; to[7] = s7;
        }
        for (; row < count; row++) out[row] = ltv_one(c, start + row);
    }

    LTV_INLINE void ltv_pq4(const ltv_codes *c, int64_t start, int64_t count, float *out) {
        memset(out, 0, (size_t)count * sizeof(float));
        for (int64_t i = 0; i < c->width; i++) {
            const float *t = (const float *)c->query + 32 * i;
            const uint8_t *a = c->codes + i * c->rows + start;
            for (int64_t j = 0; j < count; j++) { out[j] += t[a[j] & 15]; out[j] += t[16 + (a[j] >> 4)]; }
        }
    }

    /* Distances of `count` rows from `start`. With `prefetch`, following floats are loaded into the level-2 cache: the
       prefetcher of the processor stops at the end of a page. */
    LTV_INLINE void ltv_range(const ltv_codes *c, int64_t start, int64_t count, int prefetch, float *out) {
        const float *query = (const float *)c->query, *at = (const float *)c->codes + start * c->width;
        const int64_t width = c->width;
        int64_t i = 0;
        #define LTV_FOUR(parts, other)                                                                                 \\
            for (; i + 4 <= count; i += 4) {                                                                           \\
                const float *x = at + i * width;                                                                       \\
                if (prefetch) for (int64_t j = 0; j < 4 * width; j += 16) __builtin_prefetch(x + j + LTV_AHEAD, 0, 1); \\
                ltv_sum4(parts(x, query, width), parts(x + width, query, width), parts(x + 2 * width, query, width),   \\
                         parts(x + 3 * width, query, width), out + i);                                                 \\
                other                                                                                                  \\
            }
        #define LTV_EACH(known) case known:                                                                            \\
            { ltv_codes k = *c; k.kind = known; for (; i < count; i++) out[i] = ltv_one(&k, start + i); } break;
        switch (c->kind) {
        case LTV_PQ8: ltv_pq8(c, start, count, out); break;
        case LTV_PQ4: ltv_pq4(c, start, count, out); break;
        case LTV_L2: LTV_FOUR(ltv_l2_parts, ) for (; i < count; i++) out[i] = ltv_one(c, start + i); break;
        case LTV_DOT:
            LTV_FOUR(ltv_dot_parts, for (int j = 0; j < 4; j++) out[i + j] = 1 - out[i + j];)
            for (; i < count; i++) out[i] = ltv_one(c, start + i);
            break;
        LTV_EACH(LTV_COSINE) LTV_EACH(LTV_L2_DOUBLE) LTV_EACH(LTV_DOT_DOUBLE) LTV_EACH(LTV_COSINE_DOUBLE)
        LTV_EACH(LTV_HAMMING) LTV_EACH(LTV_SQ_L2) LTV_EACH(LTV_SQ_DOT)
        }
    }

    LTV_INLINE void ltv_all(const ltv_codes *c, const int64_t *rows, int64_t count, float *out) {
        if (rows == NULL) ltv_range(c, 0, count, 1, out);
        else for (int64_t i = 0; i < count; i++) out[i] = ltv_one(c, rows[i]);
    }

    /* Distances of a query to a codebook (m, width, codes), whose number of codes is a multiple of 16. */
    LTV_INLINE void ltv_table(const float *codebook, const float *query, int64_t m, int64_t width, int64_t codes, int dot,
                              float *out) {
        const float first = dot ? 1.0f / (float)m : 0.0f;
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < codes; j += 16) {
                const float *a = codebook + i * width * codes + j, *b = query + i * width;
                ltv_8 s0 = {0}, s1 = s0;
                for (int64_t k = 0; k < width; k++, a += codes) {
                    const ltv_8 x = LTV_LOAD(a), y = LTV_LOAD(a + 8);
                    if (dot) { s0 += x * b[k]; s1 += y * b[k]; }
                    else { s0 += (x - b[k]) * (x - b[k]); s1 += (y - b[k]) * (y - b[k]); }
                }
                if (dot) { s0 = first - s0; s1 = first - s1; }
                memcpy(out + i * codes + j, &s0, sizeof s0);
                memcpy(out + i * codes + j + 8, &s1, sizeof s1);
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

    /* True if one of 32 distances is below a limit. */
    LTV_INLINE int ltv_any_below(const float *d, float limit) {
        const ltv_8 all = limit - (ltv_8){0};
        union { ltv_mask m; int64_t words[4]; } below;
        below.m = (LTV_LOAD(d) < all) | (LTV_LOAD(d + 8) < all) | (LTV_LOAD(d + 16) < all) | (LTV_LOAD(d + 24) < all);
        return (below.words[0] | below.words[1] | below.words[2] | below.words[3]) != 0;
    }

    /* Add rows to the k rows with the least distances in [lower, upper), a heap with the greatest one first. Distances of
       rows that are not allowed are ignored. Returns the number of rows; `upper` becomes the k-th distance. */
    LTV_INLINE int64_t ltv_least(const float *d, int64_t first, int64_t count, const uint8_t *allowed, int64_t k, float lower,
                                 float *upper, ltv_near *best, int64_t found) {
        float limit = *upper;
        for (int64_t i = 0; i < count; i++) {
            if (i % 32 == 0)
                while (i + 32 <= count && !ltv_any_below(d + i, limit)) i += 32;
            if (i >= count) break;
            if (!(d[i] < limit) || d[i] < lower || (allowed != NULL && !allowed[i])) continue;
            ltv_near item = {d[i], (uint32_t)(first + i)};
            if (found < k) {
                ltv_push(best, found++, item, 1);
                if (found == k && best[0].distance < limit) limit = best[0].distance;
            } else {
                ltv_replace(best, found, item, 1);
                limit = best[0].distance;
            }
        }
        *upper = limit;
        return found;
    }

    /* The k nearest of some rows for each query, in blocks of rows that stay in the cache. `rows` are selected rows, or
       `allowed` marks them; both are NULL for all rows. */
    LTV_INLINE void ltv_nearest(
        ltv_codes *c, int64_t queries, int64_t query_bytes, int64_t row_bytes, const double *offsets, const double *norms,
        const int64_t *rows, int64_t count, const uint8_t *allowed, int64_t k, float lower, float *upper, ltv_near *best,
        int64_t *found
    ) {
        enum { BLOCK = 2048 };
        float d[BLOCK];
        const uint8_t *query = c->query;
        int64_t block = queries > 1 && row_bytes > 16 ? 32768 / row_bytes : BLOCK;
        block = block < 32 ? 32 : block > BLOCK ? BLOCK : block / 32 * 32;
        for (int64_t start = 0; start < count; start += block) {
            const int64_t n = count - start < block ? count - start : block;
            for (int64_t i = 0; i < queries; i++) {
                c->query = query + i * query_bytes;
                c->offset = offsets == NULL ? 0 : offsets[i];
                c->norm = norms == NULL ? 1 : norms[i];
                if (rows != NULL) ltv_all(c, rows + start, n, d);
                else ltv_range(c, start, n, i == 0, d);
                found[i] = ltv_least(d, start, n, allowed == NULL ? NULL : allowed + start, k, lower, upper + i, best + i * k,
                                     found[i]);
            }
        }
    }

    #define LTV_FORMS(result, name, signature, arguments)                                                              \\
        static result name##_any signature { arguments; }                                                              \\
        LTV_TARGET static result name##_wide signature { arguments; }
    LTV_FORMS(void, ltv_all, (const ltv_codes *c, const int64_t *rows, int64_t count, float *out),
              ltv_all(c, rows, count, out))
    LTV_FORMS(void, ltv_nearest,
              (ltv_codes *c, int64_t queries, int64_t query_bytes, int64_t row_bytes, const double *offsets,
               const double *norms, const int64_t *rows, int64_t count, const uint8_t *allowed, int64_t k, float lower,
               float *upper, ltv_near *best, int64_t *found),
              ltv_nearest(c, queries, query_bytes, row_bytes, offsets, norms, rows, count, allowed, k, lower, upper, best, found))
    LTV_FORMS(void, ltv_table,
              (const float *book, const float *query, int64_t m, int64_t width, int64_t codes, int dot, float *out),
              if (dot) ltv_table(book, query, m, width, codes, 1, out); else ltv_table(book, query, m, width, codes, 0, out))
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
    void ltv_nearest_any(ltv_codes* c, int64_t queries, int64_t query_bytes, int64_t row_bytes, const double* offsets, const double* norms, const int64_t* rows, int64_t count, const uint8_t* allowed, int64_t k, float lower, float* upper, ltv_near* best, int64_t* found) nogil
    void ltv_nearest_wide(ltv_codes* c, int64_t queries, int64_t query_bytes, int64_t row_bytes, const double* offsets, const double* norms, const int64_t* rows, int64_t count, const uint8_t* allowed, int64_t k, float lower, float* upper, ltv_near* best, int64_t* found) nogil
    void ltv_table_any(const float* book, const float* query, int64_t m, int64_t width, int64_t codes, int dot, float* out) nogil
    void ltv_table_wide(const float* book, const float* query, int64_t m, int64_t width, int64_t codes, int dot, float* out) nogil
    int64_t ltv_beam_any(const ltv_codes* c, const int64_t* starts, const uint32_t* neighbors, uint32_t entry, const uint8_t* allowed, float lower, float upper, int64_t ef, uint8_t* visited, ltv_near* todo, ltv_near* best) nogil
    int64_t ltv_beam_wide(const ltv_codes* c, const int64_t* starts, const uint32_t* neighbors, uint32_t entry, const uint8_t* allowed, float lower, float upper, int64_t ef, uint8_t* visited, ltv_near* todo, ltv_near* best) nogil
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


cdef const double* numbers_of(const double[::1] values, int64_t count) except? NULL:
    """Return the address of the number of each query; NULL if there are none."""
    if values is None:
        return NULL
    if values.shape[0] != count:
        raise ValueError("wrong number of queries")
    return &values[0]


def nearest(int kind, const uint8_t[::1] codes, const uint8_t[::1] queries, int64_t num_rows, int64_t width, double scale,
            const double[::1] offsets, const double[::1] norms, const int64_t[::1] rows, const uint8_t[::1] allowed,
            int64_t k, float lower, const float[::1] limits):
    """Return for each query the k nearest of some rows and their distances, in any order; see vector_distances.py."""
    cdef ltv_codes c
    cdef int64_t i, num_queries = limits.shape[0], count = num_rows if rows is None else rows.shape[0]
    cdef const int64_t* selected = NULL
    cdef const uint8_t* mask = NULL
    if num_queries < 1 or queries.shape[0] % num_queries:
        raise ValueError("wrong number of queries")
    cdef int64_t query_bytes = queries.shape[0] // num_queries
    fill(&c, kind, codes, queries[:query_bytes], num_rows, width, scale, 0, 1)
    cdef const double* offset = numbers_of(offsets, num_queries)
    cdef const double* norm = numbers_of(norms, num_queries)
    if rows is not None and rows.shape[0]:
        selected = &rows[0]
        for i in range(count):
            if rows[i] < 0 or rows[i] >= num_rows:
                raise ValueError("row out of range")
    if allowed is not None:
        if allowed.shape[0] != num_rows or rows is not None:
            raise ValueError("wrong number of rows")
        if num_rows:
            mask = &allowed[0]
    k = min(k, count)
    if k < 1 or num_rows > 0xFFFFFFFF:
        return [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in range(num_queries)]
    cdef int64_t row_bytes = codes.shape[0] // num_rows
    cdef ltv_near* best = <ltv_near*>malloc(<size_t>(num_queries * k) * sizeof(ltv_near))
    cdef int64_t* found = <int64_t*>malloc(<size_t>num_queries * sizeof(int64_t))
    cdef float* upper = <float*>malloc(<size_t>num_queries * sizeof(float))
    try:
        if best == NULL or found == NULL or upper == NULL:
            raise MemoryError
        for i in range(num_queries):
            found[i], upper[i] = 0, limits[i]
        with nogil:
            if WIDE:
                ltv_nearest_wide(&c, num_queries, query_bytes, row_bytes, offset, norm, selected, count, mask, k, lower, upper, best, found)
            else:
                ltv_nearest_any(&c, num_queries, query_bytes, row_bytes, offset, norm, selected, count, mask, k, lower, upper, best, found)
        return [listed(best + i * k, found[i]) for i in range(num_queries)]
    finally:
        free(best)
        free(found)
        free(upper)


def tables(const float[:, :, ::1] codebook, const float[:, ::1] queries, bint dot, float[:, :, ::1] out):
    """Compute the tables of distances of queries to a codebook (m, width, codes); see vector_distances.py."""
    cdef int64_t i, m = codebook.shape[0], width = codebook.shape[1], codes = codebook.shape[2], count = queries.shape[0]
    if m < 1 or width < 1 or codes < 16 or codes % 16:
        raise ValueError("wrong size of codebook")
    if queries.shape[1] != m * width or out.shape[0] != count or out.shape[1] != m or out.shape[2] != codes:
        raise ValueError("wrong size of queries or tables")
    if count == 0:
        return
    with nogil:
        for i in range(count):
            if WIDE:
                ltv_table_wide(&codebook[0, 0, 0], &queries[i, 0], m, width, codes, dot, &out[i, 0, 0])
            else:
                ltv_table_any(&codebook[0, 0, 0], &queries[i, 0], m, width, codes, dot, &out[i, 0, 0])


cdef tuple listed(ltv_near* found, int64_t count):
    """Return the items as arrays of positions and distances."""
    cdef int64_t i
    positions, values = np.empty(count, np.int64), np.empty(count, np.float32)
    cdef int64_t[::1] at = positions
    cdef float[::1] value = values
    for i in range(count):
        at[i], value[i] = found[i].node, found[i].distance
    return positions, values


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
