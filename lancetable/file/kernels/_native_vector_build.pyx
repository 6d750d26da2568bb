# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Compiled loops for builds of vector indexes: nearest centroids, sums of clusters, and graphs (HNSW).

Callers: index/vector/nearest_centroids.py and index/vector/graph_builder.py, which have equivalents in NumPy.

Centroids are stored in tiles of 16, so that the inner loops compare a vector with 16 centroids:

    tiles (tiles, dim, 16)     tiles[t, d, l] = centroids[16 t + l, d]
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

import numpy as np


cdef extern from *:
    """
    #include <math.h>
    #include <stdlib.h>
    #include <string.h>

    #define LTV_INLINE static inline __attribute__((always_inline))
    #if defined(__x86_64__)
    #define LTV_AVX512 __attribute__((target("avx512f,avx2,fma")))
    #define LTV_AVX2 __attribute__((target("avx2,fma")))
    /* 2 or 1 if the processor has these instructions, otherwise 0. */
    static int ltv_instructions(void) {
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
        return __builtin_cpu_supports("avx512f") ? 2 : 1;
    }
    #else
    #define LTV_AVX512
    #define LTV_AVX2
    static int ltv_instructions(void) { return 0; }
    #endif
    /* Define a function three times from its body, an inline function, for different instructions. */
    #define LTV_VARIANTS(result, name, body, parameters, arguments) \
        LTV_AVX512 static result name##_avx512 parameters { body arguments; } \
        LTV_AVX2 static result name##_avx2 parameters { body arguments; } \
        static result name##_plain parameters { body arguments; }

    enum { LTV_LANES = 16, LTV_ROWS = 4 };

    typedef float ltv_lanes __attribute__((vector_size(64)));
    typedef int32_t ltv_numbers __attribute__((vector_size(64)));

    typedef float ltv_unaligned __attribute__((vector_size(64), aligned(4), may_alias));

    #define LTV_LOAD(from) (*(const ltv_unaligned *)(from))
    #define LTV_WHERE(mask, a, b) (((mask) & (ltv_numbers)(a)) | (~(mask) & (ltv_numbers)(b)))

    /* The nearest centroids of `num_rows` vectors, LTV_ROWS at a time. The score of centroid j is bias[j] plus the
       squared distance, or bias[j] minus the product if `dot`. */
    LTV_INLINE void ltv_nearest_of(
        const float *vectors, int64_t stride, int64_t num_rows, int64_t dim, const float *tiles, const float *bias,
        int64_t num_tiles, const int dot, uint32_t *found, float *scores
    ) {
        for (int64_t row = 0; row < num_rows; row += LTV_ROWS) {
            const int64_t rows = num_rows - row < LTV_ROWS ? num_rows - row : LTV_ROWS;
            const float *x0 = vectors + row * stride;
            const float *x1 = x0 + (rows > 1 ? stride : 0), *x2 = x0 + (rows > 2 ? 2 * stride : 0);
            const float *x3 = x0 + (rows > 3 ? 3 * stride : 0);
            ltv_lanes b0 = INFINITY - (ltv_lanes){0}, b1 = b0, b2 = b0, b3 = b0;
            ltv_numbers n0 = {0}, n1 = n0, n2 = n0, n3 = n0;
            for (int64_t tile = 0; tile < num_tiles; tile++) {
                const float *c = tiles + tile * dim * LTV_LANES;
                const ltv_lanes bias_of_tile = LTV_LOAD(bias + tile * LTV_LANES);
                ltv_lanes s0 = bias_of_tile, s1 = s0, s2 = s0, s3 = s0;
                for (int64_t d = 0; d < dim; d++, c += LTV_LANES) {
                    const ltv_lanes v = LTV_LOAD(c);
                    if (dot) {
                        s0 -= v * x0[d];
                        s1 -= v * x1[d];
                        s2 -= v * x2[d];
                        s3 -= v * x3[d];
                    } else {
                        const ltv_lanes d0 = v - x0[d], d1 = v - x1[d], d2 = v - x2[d], d3 = v - x3[d];
                        s0 += d0 * d0;
                        s1 += d1 * d1;
                        s2 += d2 * d2;
                        s3 += d3 * d3;
                    }
                }
                const ltv_numbers number = (int32_t)tile - (ltv_numbers){0};
                const ltv_numbers l0 = s0 < b0, l1 = s1 < b1, l2 = s2 < b2, l3 = s3 < b3;
                b0 = (ltv_lanes)LTV_WHERE(l0, s0, b0);
                b1 = (ltv_lanes)LTV_WHERE(l1, s1, b1);
                b2 = (ltv_lanes)LTV_WHERE(l2, s2, b2);
                b3 = (ltv_lanes)LTV_WHERE(l3, s3, b3);
                n0 = LTV_WHERE(l0, number, n0);
                n1 = LTV_WHERE(l1, number, n1);
                n2 = LTV_WHERE(l2, number, n2);
                n3 = LTV_WHERE(l3, number, n3);
            }
            const ltv_lanes best[LTV_ROWS] = {b0, b1, b2, b3};
            const ltv_numbers at[LTV_ROWS] = {n0, n1, n2, n3};
            for (int64_t r = 0; r < rows; r++) {
                float least = best[r][0];
                int64_t number = (int64_t)at[r][0] * LTV_LANES;
                for (int l = 1; l < LTV_LANES; l++) {
                    const int64_t other = (int64_t)at[r][l] * LTV_LANES + l;
                    if (best[r][l] < least || (best[r][l] == least && other < number)) {
                        least = best[r][l];
                        number = other;
                    }
                }
                found[row + r] = (uint32_t)number;
                scores[row + r] = least;
            }
        }
    }

    #define LTV_PARAMETERS ( \
        const float *vectors, int64_t stride, int64_t num_rows, int64_t dim, const float *tiles, const float *bias, \
        int64_t num_tiles, uint32_t *found, float *scores)
    #define LTV_ARGUMENTS(dot) (vectors, stride, num_rows, dim, tiles, bias, num_tiles, dot, found, scores)
    LTV_VARIANTS(void, ltv_nearest_l2, ltv_nearest_of, LTV_PARAMETERS, LTV_ARGUMENTS(0))
    LTV_VARIANTS(void, ltv_nearest_dot, ltv_nearest_of, LTV_PARAMETERS, LTV_ARGUMENTS(1))

    static void ltv_nearest(
        const float *vectors, int64_t stride, int64_t num_rows, int64_t dim, const float *tiles, const float *bias,
        int64_t num_tiles, int dot, uint32_t *found, float *scores
    ) {
        typedef void (*variant) LTV_PARAMETERS;
        const variant variants[2][3] = {
            {ltv_nearest_l2_plain, ltv_nearest_l2_avx2, ltv_nearest_l2_avx512},
            {ltv_nearest_dot_plain, ltv_nearest_dot_avx2, ltv_nearest_dot_avx512},
        };
        variants[dot][ltv_instructions()](vectors, stride, num_rows, dim, tiles, bias, num_tiles, found, scores);
    }

    static void ltv_add(
        const float *vectors, int64_t stride, int64_t num_rows, int64_t dim, const uint32_t *clusters, double *sums
    ) {
        for (int64_t row = 0; row < num_rows; row++) {
            const float *x = vectors + row * stride;
            double *sum = sums + (int64_t)clusters[row] * dim;
            for (int64_t d = 0; d < dim; d++) sum[d] += x[d];
        }
    }

    /* --- HNSW. The nodes of a level are linked in both directions; a node has at most m links, and 2 m on level 0. */

    typedef struct {
        float distance;
        uint32_t node;
    } ltv_link;

    typedef struct {
        int64_t num_nodes, dim, m, ef;
        int dot;
        float (*distance)(const float *, const float *, int64_t);
        const float *vectors;
        const uint8_t *levels;
        const int64_t *upper;  /* first row of a node in the links of levels 1 ... */
        ltv_link *links[2];    /* (nodes, 2 m) of level 0, and (rows, m) of other levels */
        uint32_t *counts[2];
        uint32_t *visited;
        uint32_t mark;
        ltv_link *open, *near, *chosen, *rejected;
    } ltv_graph;

    LTV_INLINE float ltv_distance(const float *a, const float *b, int64_t dim, const int dot) {
        ltv_lanes lanes = {0};
        float sum = 0;
        int64_t d = 0;
        if (dot) {
            for (; d + LTV_LANES <= dim; d += LTV_LANES) lanes += LTV_LOAD(a + d) * LTV_LOAD(b + d);
            for (; d < dim; d++) sum += a[d] * b[d];
        } else {
            for (; d + LTV_LANES <= dim; d += LTV_LANES) {
                const ltv_lanes difference = LTV_LOAD(a + d) - LTV_LOAD(b + d);
                lanes += difference * difference;
            }
            for (; d < dim; d++) sum += (a[d] - b[d]) * (a[d] - b[d]);
        }
        for (int l = 0; l < LTV_LANES; l++) sum += lanes[l];
        return dot ? 1 - sum : sum;
    }

    #undef LTV_PARAMETERS
    #undef LTV_ARGUMENTS
    #define LTV_PARAMETERS (const float *a, const float *b, int64_t dim)
    LTV_VARIANTS(float, ltv_l2, return ltv_distance, LTV_PARAMETERS, (a, b, dim, 0))
    LTV_VARIANTS(float, ltv_dot, return ltv_distance, LTV_PARAMETERS, (a, b, dim, 1))

    static float ltv_between(const ltv_graph *g, uint32_t a, uint32_t b) {
        return g->distance(g->vectors + (int64_t)a * g->dim, g->vectors + (int64_t)b * g->dim, g->dim);
    }

    static int64_t ltv_row(const ltv_graph *g, uint32_t node, int level) {
        return level ? g->upper[node] + level - 1 : node;
    }

    static int64_t ltv_limit(const ltv_graph *g, int level) { return level ? g->m : 2 * g->m; }

    /* Heaps; `sign` 1: the least distance first, -1: the greatest. */
    static void ltv_push(ltv_link *heap, int64_t *size, ltv_link link, float sign) {
        int64_t at = (*size)++;
        while (at > 0) {
            int64_t parent = (at - 1) / 2;
            if (sign * heap[parent].distance <= sign * link.distance) break;
            heap[at] = heap[parent];
            at = parent;
        }
        heap[at] = link;
    }

    static ltv_link ltv_pop(ltv_link *heap, int64_t *size, float sign) {
        const ltv_link first = heap[0], last = heap[--(*size)];
        int64_t at = 0;
        for (;;) {
            int64_t child = 2 * at + 1;
            if (child >= *size) break;
            if (child + 1 < *size && sign * heap[child + 1].distance < sign * heap[child].distance) child++;
            if (sign * last.distance <= sign * heap[child].distance) break;
            heap[at] = heap[child];
            at = child;
        }
        heap[at] = last;
        return first;
    }

    static int ltv_ascending(const void *left, const void *right) {
        const ltv_link *a = left, *b = right;
        if (a->distance != b->distance) return a->distance < b->distance ? -1 : 1;
        return a->node < b->node ? -1 : a->node > b->node;
    }

    /* Find up to `ef` nodes of a level near a node, from those in g->near, where the result is ascending. */
    static int64_t ltv_search(ltv_graph *g, uint32_t node, int64_t num_near, int64_t ef, int level) {
        int64_t num_open = 0, size = 0;
        const int64_t limit = ltv_limit(g, level);
        if (++g->mark == 0) {
            memset(g->visited, 0, sizeof(uint32_t) * g->num_nodes);
            g->mark = 1;
        }
        g->visited[node] = g->mark;
        for (int64_t i = 0; i < num_near; i++) g->rejected[i] = g->near[i];
        for (int64_t i = 0; i < num_near; i++) {
            g->visited[g->rejected[i].node] = g->mark;
            ltv_push(g->open, &num_open, g->rejected[i], 1);
            ltv_push(g->near, &size, g->rejected[i], -1);
        }
        while (num_open) {
            const ltv_link nearest = ltv_pop(g->open, &num_open, 1);
            if (size >= ef && nearest.distance > g->near[0].distance) break;
            const int64_t row = ltv_row(g, nearest.node, level);
            const ltv_link *links = g->links[level > 0] + row * limit;
            const uint32_t count = g->counts[level > 0][row];
            for (uint32_t i = 0; i < count; i++) {
                const uint32_t other = links[i].node;
                if (g->visited[other] == g->mark) continue;
                g->visited[other] = g->mark;
                ltv_link found = {ltv_between(g, node, other), other};
                if (size >= ef && !(found.distance < g->near[0].distance)) continue;
                ltv_push(g->open, &num_open, found, 1);
                if (size >= ef) ltv_pop(g->near, &size, -1);
                ltv_push(g->near, &size, found, -1);
            }
        }
        qsort(g->near, size, sizeof(ltv_link), ltv_ascending);
        return size;
    }

    /* Choose up to `limit` of ascending candidates: first those that are nearer to the node than to all chosen ones,
       then the nearest others. */
    static int64_t ltv_choose(ltv_graph *g, const ltv_link *candidates, int64_t count, int64_t limit) {
        int64_t size = 0, num_rejected = 0;
        for (int64_t i = 0; i < count && size < limit; i++) {
            int far = 1;
            for (int64_t j = 0; far && j < size; j++) {
                far = ltv_between(g, candidates[i].node, g->chosen[j].node) >= candidates[i].distance;
            }
            if (far) g->chosen[size++] = candidates[i];
            else g->rejected[num_rejected++] = candidates[i];
        }
        for (int64_t i = 0; i < num_rejected && size < limit; i++) g->chosen[size++] = g->rejected[i];
        return size;
    }

    static void ltv_link_back(ltv_graph *g, uint32_t node, ltv_link link, int level, ltv_link *all) {
        const int64_t limit = ltv_limit(g, level), row = ltv_row(g, node, level);
        ltv_link *links = g->links[level > 0] + row * limit;
        uint32_t *count = &g->counts[level > 0][row];
        if (*count < limit) {
            links[(*count)++] = link;
            return;
        }
        memcpy(all, links, sizeof(ltv_link) * limit);
        all[limit] = link;
        qsort(all, limit + 1, sizeof(ltv_link), ltv_ascending);
        *count = (uint32_t)ltv_choose(g, all, limit + 1, limit);
        memcpy(links, g->chosen, sizeof(ltv_link) * *count);
    }

    static void ltv_prepare(ltv_graph *g) {
        float (*const distances[2][3])(const float *, const float *, int64_t) = {
            {ltv_l2_plain, ltv_l2_avx2, ltv_l2_avx512}, {ltv_dot_plain, ltv_dot_avx2, ltv_dot_avx512},
        };
        g->distance = distances[g->dot][ltv_instructions()];
    }

    static void ltv_find_links(ltv_graph *g, uint32_t entry, uint32_t node) {
        int64_t num_near = 1;
        g->near[0].node = entry;
        g->near[0].distance = ltv_between(g, node, entry);
        for (int level = g->levels[entry]; level > g->levels[node]; level--) num_near = ltv_search(g, node, num_near, 1, level);
        for (int level = g->levels[node]; level >= 0; level--) {
            num_near = ltv_search(g, node, num_near, g->ef, level);
            const int64_t limit = ltv_limit(g, level), row = ltv_row(g, node, level);
            const int64_t count = ltv_choose(g, g->near, num_near, g->m);
            memcpy(g->links[level > 0] + row * limit, g->chosen, sizeof(ltv_link) * count);
            g->counts[level > 0][row] = (uint32_t)count;
        }
    }

    /* One step of adding the nodes `first` to `last` - 1, which are not linked to each other. With `back` 0, find links
       of every `parts`-th of these nodes; with 1, add the links back to every `parts`-th of all nodes. Threads that run
       the parts of a step write different links, and the result does not depend on their number. */
    static int ltv_add_nodes(const ltv_graph *graph, uint32_t entry, int64_t first, int64_t last, int back, int64_t part,
                             int64_t parts) {
        ltv_graph copy = *graph, *g = &copy;
        const int64_t width = 2 * g->m + 1 > g->ef ? 2 * g->m + 1 : g->ef;
        g->mark = 0;
        g->visited = back ? NULL : calloc(g->num_nodes, sizeof(uint32_t));
        g->open = back ? NULL : malloc(sizeof(ltv_link) * (g->num_nodes + 1));
        g->near = malloc(sizeof(ltv_link) * (width + 1));
        g->chosen = malloc(sizeof(ltv_link) * (width + 1));
        g->rejected = malloc(sizeof(ltv_link) * (width + 1));
        const int done = (back || (g->visited && g->open)) && g->near && g->chosen && g->rejected;
        for (int64_t i = back ? first : first + part; done && i < last; i += back ? 1 : parts) {
            const uint32_t node = (uint32_t)i;
            if (node == entry) continue;
            if (!back) {
                ltv_find_links(g, entry, node);
                continue;
            }
            for (int level = g->levels[node]; level >= 0; level--) {
                const int64_t row = ltv_row(g, node, level);
                const ltv_link *links = g->links[level > 0] + row * ltv_limit(g, level);
                for (int64_t j = 0; j < g->counts[level > 0][row]; j++) {
                    const ltv_link link = {links[j].distance, node};
                    if (links[j].node % parts == part) ltv_link_back(g, links[j].node, link, level, g->near);
                }
            }
        }
        free(g->visited);
        free(g->open);
        free(g->near);
        free(g->chosen);
        free(g->rejected);
        return done;
    }
    """
    ctypedef struct ltv_link:
        float distance
        uint32_t node

    ctypedef struct ltv_graph:
        int64_t num_nodes, dim, m, ef
        int dot
        const float *vectors
        const uint8_t *levels
        const int64_t *upper
        ltv_link *links[2]
        uint32_t *counts[2]

    void ltv_nearest(
        const float *vectors, int64_t stride, int64_t num_rows, int64_t dim, const float *tiles, const float *bias,
        int64_t num_tiles, int dot, uint32_t *found, float *scores
    ) nogil
    void ltv_add(
        const float *vectors, int64_t stride, int64_t num_rows, int64_t dim, const uint32_t *clusters, double *sums
    ) nogil
    void ltv_prepare(ltv_graph *g) nogil
    int ltv_add_nodes(const ltv_graph *graph, uint32_t entry, int64_t first, int64_t last, int back, int64_t part,
                      int64_t parts) nogil


def nearest(const float[:, :] vectors, const float[:, :, ::1] tiles, const float[::1] bias, bint dot):
    """Return the numbers (n,) of the nearest centroids and their scores (n,), float32.

    The score of centroid j is `bias[j]` plus the squared distance, or for `dot` minus the product. Of equal scores, the
    first centroid is returned. Centroids without a finite bias are ignored.
    """
    cdef int64_t num_rows = vectors.shape[0]
    cdef int64_t dim = vectors.shape[1]
    cdef int64_t stride = vectors.strides[0] // <int64_t>sizeof(float)
    cdef uint32_t[::1] numbers
    cdef float[::1] least
    if tiles.shape[1] != dim or tiles.shape[2] != 16 or bias.shape[0] != tiles.shape[0] * 16 or dim == 0:
        raise ValueError("wrong shape of centroids")
    if vectors.strides[1] != sizeof(float):
        raise ValueError("the numbers of a vector must be adjacent")
    found, scores = np.zeros(num_rows, np.uint32), np.zeros(num_rows, np.float32)
    if num_rows and tiles.shape[0]:
        numbers, least = found, scores
        with nogil:
            ltv_nearest(
                &vectors[0, 0], stride, num_rows, dim, &tiles[0, 0, 0], &bias[0], tiles.shape[0], dot, &numbers[0],
                &least[0],
            )
    return found, scores


def add_to_clusters(const float[:, :] vectors, const uint32_t[::1] clusters, double[:, ::1] sums):
    """Add vectors (n, dim) to the sums (clusters, dim) of their clusters (n,)."""
    cdef int64_t num_rows = vectors.shape[0]
    cdef int64_t stride = vectors.strides[0] // <int64_t>sizeof(float)
    cdef int64_t row
    if clusters.shape[0] != num_rows or sums.shape[1] != vectors.shape[1] or vectors.strides[1] != sizeof(float):
        raise ValueError("wrong shape of vectors")
    for row in range(num_rows):
        if clusters[row] >= sums.shape[0]:
            raise ValueError("unknown cluster")
    if num_rows and vectors.shape[1]:
        with nogil:
            ltv_add(&vectors[0, 0], stride, num_rows, vectors.shape[1], &clusters[0], &sums[0, 0])


cdef class GraphBuild:
    """A graph (HNSW) to which nodes are added in ascending order: `find_links`, then `link_back`, for each range of nodes.

    `levels` are the highest levels of the nodes, that of `entry` the highest one. The rows of the nodes on levels 1 and
    above are `upper[node] + level - 1`. `links` and `counts` are structured arrays and numbers of links, for level 0 and
    for the other levels.
    """

    cdef ltv_graph graph
    cdef int64_t entry
    cdef readonly object links, counts
    cdef object inputs

    def __init__(
        self, const float[:, ::1] vectors, const uint8_t[::1] levels, const int64_t[::1] upper, int64_t num_upper,
        int64_t entry, int64_t m, int64_t ef, bint dot
    ):
        cdef int64_t num_nodes = vectors.shape[0]
        cdef ltv_link[:, ::1] bottom_links, upper_links
        cdef uint32_t[::1] bottom_counts, upper_counts
        cdef int64_t node
        if levels.shape[0] != num_nodes or upper.shape[0] != num_nodes or not 0 <= entry < num_nodes or m < 1 or ef < 1:
            raise ValueError("wrong shape of nodes")
        if vectors.shape[1] == 0 or num_nodes >= 0xFFFFFFFF:
            raise ValueError("wrong number of nodes")
        for node in range(num_nodes):
            if levels[node] > levels[entry] or upper[node] < 0 or upper[node] + levels[node] > num_upper:
                raise ValueError("wrong levels of nodes")
        kind = np.dtype([("distance", np.float32), ("node", np.uint32)])
        self.links = np.zeros((num_nodes, 2 * m), kind), np.zeros((num_upper + 1, m), kind)
        self.counts = np.zeros(num_nodes, np.uint32), np.zeros(num_upper + 1, np.uint32)
        self.inputs, self.entry = (vectors, levels, upper), entry
        bottom_links, upper_links = self.links
        bottom_counts, upper_counts = self.counts
        self.graph.num_nodes, self.graph.dim, self.graph.m, self.graph.ef = num_nodes, vectors.shape[1], m, ef
        self.graph.dot = dot
        self.graph.vectors, self.graph.levels, self.graph.upper = &vectors[0, 0], &levels[0], &upper[0]
        self.graph.links[0], self.graph.links[1] = &bottom_links[0, 0], &upper_links[0, 0]
        self.graph.counts[0], self.graph.counts[1] = &bottom_counts[0], &upper_counts[0]
        ltv_prepare(&self.graph)

    def find_links(self, int64_t first, int64_t last, int64_t part, int64_t parts):
        """Find the links of nodes of a range among earlier ones. Parts of the range may be processed at the same time."""
        self._add(first, last, 0, part, parts)

    def link_back(self, int64_t first, int64_t last, int64_t part, int64_t parts):
        """Link earlier nodes to those of a range. Parts may be processed at the same time."""
        self._add(first, last, 1, part, parts)

    cdef int _add(self, int64_t first, int64_t last, int back, int64_t part, int64_t parts) except -1:
        cdef int done
        if not 0 <= first <= last <= self.graph.num_nodes or not 0 <= part < parts:
            raise ValueError("wrong range of nodes")
        with nogil:
            done = ltv_add_nodes(&self.graph, <uint32_t>self.entry, first, last, back, part, parts)
        if not done:
            raise MemoryError
        return 0
