"""Compiled form of fsst.py: training of symbol tables, compression and decompression.

The main loops are written in C, so that the compiler can specialize them and keep four streams of values in registers.
They process four streams in turn: a symbol can only be matched after the previous symbol of its stream, so a single
stream would mostly wait.
"""

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define LTF_INLINE static inline __attribute__((always_inline))
    #else
    #define LTF_INLINE static inline
    #endif

    enum {
        LTF_ESCAPE = 255, LTF_LITERAL = 1 << 12, LTF_HASH_BITS = 12, LTF_SLOTS = 1 << 12, LTF_TOKENS = 512,
        LTF_STREAMS = 4, LTF_BLOCK = 64, LTF_ROOM = 8 * 64 + 16
    };

    /* ---------------------------------------------------------------------------------------------------- symbols */

    typedef struct { uint64_t word; uint32_t length; } ltf_symbol;  /* first byte lowest, zeros above */

    /* A symbol of three bytes or more. ltf_match returns `found`; `shift` removes the bytes after the symbol. */
    typedef struct { uint64_t word; uint32_t found; uint32_t shift; } ltf_slot;

    typedef struct {
        ltf_slot slots[LTF_SLOTS];   /* by a hash of the first three bytes */
        uint16_t pairs[65536];       /* by the next two bytes, if no slot matches */
        uint16_t singles[256];
    } ltf_matcher;

    LTF_INLINE uint32_t ltf_hash(uint64_t word) {
        return (uint32_t)(((word & 0xFFFFFF) * 0x9E3779B97F4A7C15ULL) >> (64 - LTF_HASH_BITS));
    }

    static void ltf_build(ltf_matcher *m, const ltf_symbol *symbols, int count) {
        memset(m->slots, 0, sizeof m->slots);
        m->slots[0].word = 1;  /* an empty slot matches only word 0, which has hash 0; word 1 does not have hash 0 */
        for (int i = 0; i < 256; i++) m->singles[i] = LTF_ESCAPE | 1 << 8 | LTF_LITERAL;
        for (int i = 0; i < count; i++)
            if (symbols[i].length == 1) m->singles[symbols[i].word & 0xFF] = (uint16_t)(i | 1 << 8);
        for (int i = 0; i < 256; i++) memcpy(m->pairs + 256 * i, m->singles, sizeof m->singles);
        for (int i = 0; i < count; i++) {
            uint32_t length = symbols[i].length;
            if (length == 2) m->pairs[symbols[i].word & 0xFFFF] = (uint16_t)(i | 2 << 8);
            if (length < 3) continue;
            ltf_slot *slot = &m->slots[ltf_hash(symbols[i].word)];
            slot->word = symbols[i].word;
            slot->found = (uint32_t)i | length << 8;
            slot->shift = 64 - 8 * length;
        }
    }

    /* Return the code of the longest symbol at `at`, and its length << 8; an escape and LTF_LITERAL if none matches. At
       most `left` bytes are matched; bytes up to `end`, the end of the data, may be read. */
    LTF_INLINE uint32_t ltf_match(const ltf_matcher *m, const uint8_t *at, int64_t left, const uint8_t *end) {
        uint64_t word = 0;
        if (lt_likely(end - at >= 8)) word = lt_load64(at);
        else memcpy(&word, at, (size_t)(end - at));
        const ltf_slot *slot = &m->slots[ltf_hash(word)];
        uint32_t found = m->pairs[word & 0xFFFF];
        int fits = (((word ^ slot->word) << slot->shift) == 0) & ((int64_t)(slot->found >> 8) <= left);
        if (left < 2) found = m->singles[word & 0xFF];
        uint32_t all = (uint32_t)-fits;  /* a branch would be unpredictable */
        return (slot->found & all) | (found & ~all);
    }

    /* ------------------------------------------------------------------------------------------------ compression */

    /* A stream of values up to row `last`: the rest of the value of `row`, and the destination of the codes. */
    typedef struct { const uint8_t *at, *end; uint8_t *out, *begin; int64_t row, last; } ltf_stream;

    /* Advance to the next nonempty value; return 0 if none is left. */
    LTF_INLINE int ltf_next(ltf_stream *s, const uint8_t *data, const int64_t *offsets, int64_t *ends) {
        while (s->row < s->last) {
            ends[++s->row] = s->out - s->begin;
            if (s->row == s->last) return 0;
            s->at = data + offsets[s->row];
            s->end = data + offsets[s->row + 1];
            if (s->at < s->end) return 1;
        }
        return 0;
    }

    #define LTF_STEP(S)                                                                                                \
        {                                                                                                              \
            uint32_t found = ltf_match(m, S.at, S.end - S.at, stop);                                                   \
            S.out[0] = (uint8_t)found;                                                                                 \
            S.out[1] = *S.at;                                                                                          \
            S.out += 1 + (found >> 12);                                                                                \
            S.at += (found >> 8) & 0xF;                                                                                \
        }

    /* Compress values into `out`, which has two bytes for each of their bytes, and store (values + 1,) `ends` of codes. */
    static int64_t ltf_encode(
        const ltf_matcher *m, const uint8_t *data, int64_t size, const int64_t *offsets, int64_t values, uint8_t *out,
        int64_t *ends
    ) {
        const uint8_t *stop = data + size;
        int64_t content = offsets[values] - offsets[0], row = 0;
        ltf_stream s[LTF_STREAMS];
        uint8_t *cursor = out;
        int alive = 1;
        ends[0] = 0;
        for (int k = 0; k < LTF_STREAMS; k++) {
            /* Give the streams about the same number of bytes. */
            int64_t wanted = offsets[0] + content / LTF_STREAMS * (k + 1), low = row, high = values;
            while (low < high) {
                int64_t middle = low + (high - low) / 2;
                if (offsets[middle] < wanted) low = middle + 1; else high = middle;
            }
            if (k == LTF_STREAMS - 1) low = values;
            s[k].row = row;
            s[k].last = low;
            s[k].at = data + offsets[row];
            s[k].end = data + offsets[row < low ? row + 1 : row];
            s[k].out = s[k].begin = out + 2 * (offsets[row] - offsets[0]);
            row = low;
            if (s[k].at == s[k].end) alive &= ltf_next(&s[k], data, offsets, ends);
        }
        if (alive) {
            ltf_stream a = s[0], b = s[1], c = s[2], d = s[3];
            for (;;) {
                LTF_STEP(a) LTF_STEP(b) LTF_STEP(c) LTF_STEP(d)
                if (a.at == a.end && !ltf_next(&a, data, offsets, ends)) break;
                if (b.at == b.end && !ltf_next(&b, data, offsets, ends)) break;
                if (c.at == c.end && !ltf_next(&c, data, offsets, ends)) break;
                if (d.at == d.end && !ltf_next(&d, data, offsets, ends)) break;
            }
            s[0] = a; s[1] = b; s[2] = c; s[3] = d;
        }
        row = 0;
        for (int k = 0; k < LTF_STREAMS; k++) {
            ltf_stream one = s[k];
            while (one.at < one.end || ltf_next(&one, data, offsets, ends)) LTF_STEP(one)
            int64_t before = cursor - out;
            for (; row < one.last; row++) ends[row + 1] += before;
            memmove(cursor, one.begin, (size_t)(one.out - one.begin));
            cursor += one.out - one.begin;
        }
        return cursor - out;
    }

    /* -------------------------------------------------------------------------------------------------- expansion */

    typedef struct { int64_t row, at; uint8_t *cursor; } ltf_progress;

    #define LTF_PUT(CODE)                                                                                              \
        { unsigned code = (CODE); lt_store64(cursor, words[code]); cursor += lengths[code];                            \
          if (sparse) bad |= (uint8_t)(lengths[code] - 1); }

    /* Decode values from `p->row` on; `p->at` is the next code. Return 0 if all are decoded, -1 if fewer than LTF_ROOM
       bytes are left before `top`, `open` if a value ends with an escape, `unknown` for a code without a symbol. The
       length of a code without a symbol is 0; such codes exist only if `sparse`. */
    LTF_INLINE int ltf_decode_any(
        const uint8_t *codes, const int64_t *offsets, int64_t values, const uint64_t *words, const uint8_t *lengths,
        uint8_t *out, const uint8_t *top, int64_t *ends, ltf_progress *p, int open, int unknown, int sparse
    ) {
        uint8_t *cursor = p->cursor, bad = 0;
        int64_t at = p->at;
        for (int64_t row = p->row; row < values; row++) {
            int64_t end = offsets[row + 1];
            while (at < end) {
                int64_t stop = end - at > LTF_BLOCK ? at + LTF_BLOCK : end;
                if (top - cursor < LTF_ROOM) {
                    p->row = row, p->at = at, p->cursor = cursor;
                    return bad & 0x80 ? unknown : -1;
                }
                while (at < stop) {
                    if (at + 8 <= stop) {
                        uint64_t eight = lt_load64(codes + at);
                        /* True if no byte of the word is 255. */
                        if (lt_likely(((~eight - 0x0101010101010101ULL) & eight & 0x8080808080808080ULL) == 0)) {
                            LTF_PUT(eight & 0xFF) LTF_PUT((eight >> 8) & 0xFF) LTF_PUT((eight >> 16) & 0xFF)
                            LTF_PUT((eight >> 24) & 0xFF) LTF_PUT((eight >> 32) & 0xFF) LTF_PUT((eight >> 40) & 0xFF)
                            LTF_PUT((eight >> 48) & 0xFF) LTF_PUT(eight >> 56)
                            at += 8;
                            continue;
                        }
                    } else if (at + 4 <= stop) {
                        uint32_t four = lt_load32(codes + at);
                        if (lt_likely(((~four - 0x01010101U) & four & 0x80808080U) == 0)) {
                            LTF_PUT(four & 0xFF) LTF_PUT((four >> 8) & 0xFF) LTF_PUT((four >> 16) & 0xFF)
                            LTF_PUT(four >> 24)
                            at += 4;
                            continue;
                        }
                    }
                    unsigned next = codes[at++];
                    if (next != LTF_ESCAPE) LTF_PUT(next)
                    else {
                        if (at == end) return open;
                        *cursor++ = codes[at++];
                    }
                }
            }
            ends[row + 1] = cursor - out;
        }
        p->row = values, p->at = at, p->cursor = cursor;
        return bad & 0x80 ? unknown : 0;
    }

    /* Specialize the loop: a full table has a symbol for every code, so the check is omitted. */
    static int ltf_decode(
        const uint8_t *codes, const int64_t *offsets, int64_t values, const uint64_t *words, const uint8_t *lengths,
        uint8_t *out, const uint8_t *top, int64_t *ends, ltf_progress *p, int open, int unknown, int sparse
    ) {
        if (sparse) return ltf_decode_any(codes, offsets, values, words, lengths, out, top, ends, p, open, unknown, 1);
        return ltf_decode_any(codes, offsets, values, words, lengths, out, top, ends, p, open, unknown, 0);
    }

    /* --------------------------------------------------------------------------------------------------- training */

    enum {
        LTF_CANDIDATE_BITS = 13, LTF_CANDIDATES = 1 << 13, LTF_MOST_CANDIDATES = 3 << 11, LTF_BUCKETS = 256, LTF_SORTED_FIRST = 512,
        LTF_SINGLE_WORTH = 4, LTF_BYTES_OF_PAIR = 8192  /* rarer pairs are ignored */
    };

    typedef struct { uint64_t word; uint32_t gain, length; } ltf_candidate;  /* length 0: free */

    /* Initialized to zeros. `counts` and `pairs` are all zeros again after each training. */
    typedef struct {
        ltf_matcher matcher;
        ltf_symbol symbols[256];
        int num_symbols;
        uint32_t counts[LTF_TOKENS];               /* of a code, or of 256 + a literal byte */
        uint16_t pairs[LTF_TOKENS * LTF_TOKENS];   /* token before << 9 | token */
        ltf_candidate candidates[LTF_CANDIDATES];  /* open addressing */
        int num_candidates;
    } ltf_training;

    typedef struct { const uint8_t *at, *end; int before; int64_t piece; } ltf_reader;

    #define LTF_COUNT(S)                                                                                               \
        {                                                                                                              \
            uint32_t found = ltf_match(&t->matcher, S.at, S.end - S.at, stop), length = (found >> 8) & 0xF;            \
            int token = found & LTF_LITERAL ? 256 + *S.at : (int)(found & 0xFF);                                       \
            t->counts[token]++;                                                                                        \
            if (joins && S.before >= 0) {                                                                                       \
                uint16_t *row = t->pairs + (S.before << 9);                                                            \
                row[token] = (uint16_t)(row[token] + (row[token] < 65535));                                            \
                /* Also count the first byte alone, in case both symbols together are too long. */                     \
                if (length > 1) { uint16_t *byte = row + (256 | *S.at); *byte = (uint16_t)(*byte + (*byte < 65535)); } \
            }                                                                                                          \
            S.before = token;                                                                                          \
            S.at += length;                                                                                            \
        }

    /* Count the tokens of every `step`-th piece and, if `joins` is set, the pairs of adjacent tokens. */
    LTF_INLINE void ltf_count(
        ltf_training *t, const uint8_t *data, int64_t size, const int64_t *starts, const int64_t *ends, int64_t pieces,
        int64_t step, int joins
    ) {
        const uint8_t *stop = data + size;
        ltf_reader s[LTF_STREAMS];
        int64_t next = 0;
        #define LTF_TAKE(S)                                                                                            \
            {                                                                                                          \
                while (next < pieces && starts[next] == ends[next]) next += step;                                      \
                S.at = S.end = data;                                                                                   \
                S.before = -1;                                                                                         \
                if (next < pieces) { S.at = data + starts[next]; S.end = data + ends[next]; next += step; }            \
            }
        for (int k = 0; k < LTF_STREAMS; k++) LTF_TAKE(s[k])
        ltf_reader a = s[0], b = s[1], c = s[2], d = s[3];
        while (a.at < a.end && b.at < b.end && c.at < c.end && d.at < d.end) {
            LTF_COUNT(a) LTF_COUNT(b) LTF_COUNT(c) LTF_COUNT(d)
            if (a.at == a.end) LTF_TAKE(a)
            if (b.at == b.end) LTF_TAKE(b)
            if (c.at == c.end) LTF_TAKE(c)
            if (d.at == d.end) LTF_TAKE(d)
        }
        s[0] = a; s[1] = b; s[2] = c; s[3] = d;
        for (int k = 0; k < LTF_STREAMS; k++) {
            ltf_reader one = s[k];
            while (one.at < one.end) {
                LTF_COUNT(one)
                if (one.at == one.end) LTF_TAKE(one)
            }
        }
    }

    static void ltf_add(ltf_training *t, uint64_t word, uint32_t length, uint32_t gain) {
        uint32_t at = (uint32_t)(((word ^ length) * 0x9E3779B97F4A7C15ULL) >> (64 - LTF_CANDIDATE_BITS));
        for (;; at = (at + 1) % LTF_CANDIDATES) {
            ltf_candidate *one = &t->candidates[at];
            if (one->length == 0) {
                if (t->num_candidates == LTF_MOST_CANDIDATES) return;
                t->num_candidates++;
                one->word = word, one->length = length, one->gain = gain;
                return;
            }
            if (one->word == word && one->length == length) {
                one->gain += gain;
                return;
            }
        }
    }

    static ltf_symbol ltf_spelled(const ltf_training *t, int token) {
        if (token < 256) return t->symbols[token];
        ltf_symbol symbol = { (uint64_t)(token - 256), 1 };
        return symbol;
    }

    /* Collect the used tokens, and the concatenations of pairs that occur at least `least` times; reset the counts. */
    static void ltf_gather(ltf_training *t, uint32_t least) {
        memset(t->candidates, 0, sizeof t->candidates);
        t->num_candidates = 0;
        for (int token = 0; token < LTF_TOKENS; token++) {
            uint32_t count = t->counts[token];
            if (count == 0) continue;
            ltf_symbol first = ltf_spelled(t, token);
            /* A byte without a symbol costs two bytes, so a single byte gains more than its length. */
            ltf_add(t, first.word, first.length, count * (first.length == 1 ? LTF_SINGLE_WORTH : first.length));
            uint16_t *row = t->pairs + (token << 9);
            for (int from = 0; from < LTF_TOKENS && first.length < 8 && count >= least; from += 32) {
                int any = 0;
                for (int k = 0; k < 32; k++) any |= row[from + k] >= least;
                if (!any) continue;
                for (int after = from; after < from + 32; after++) {
                    if (row[after] < least) continue;
                    ltf_symbol second = ltf_spelled(t, after);
                    uint32_t length = first.length + second.length < 8 ? first.length + second.length : 8;
                    uint64_t word = first.word | second.word << (8 * first.length);
                    ltf_add(t, word & (~0ULL >> (64 - 8 * length)), length, row[after] * length);
                }
            }
            memset(row, 0, LTF_TOKENS * sizeof *row);
        }
        memset(t->counts, 0, sizeof t->counts);
    }

    /* Compare by descending gain, then by content, so that files are reproducible. */
    static int ltf_by_gain(const void *a, const void *b) {
        const ltf_candidate *x = (const ltf_candidate *)a, *y = (const ltf_candidate *)b;
        if (x->gain != y->gain) return x->gain > y->gain ? -1 : 1;
        if (x->word != y->word) return x->word < y->word ? -1 : 1;
        return (int)x->length - (int)y->length;
    }

    /* Return the bucket of a gain: four buckets for each power of two. */
    static int ltf_bucket(uint32_t gain) {
        int power = 0;
    #if defined(__GNUC__) || defined(__clang__)
        power = 31 - __builtin_clz(gain | 1);
    #else
        for (uint32_t rest = gain; rest >>= 1;) power++;
    #endif
        return 4 * power + (power >= 2 ? (int)((gain >> (power - 2)) & 3) : 0);
    }

    /* Select the candidates with the highest gains, only the first of those that share a slot. */
    static void ltf_choose(ltf_training *t) {
        uint8_t taken[LTF_SLOTS];
        int counts[LTF_BUCKETS] = {0}, kept = 0, bucket = LTF_BUCKETS, done = 0;
        memset(taken, 0, sizeof taken);
        for (int i = 0; i < LTF_CANDIDATES; i++)
            if (t->candidates[i].length) {
                t->candidates[kept] = t->candidates[i];
                counts[ltf_bucket(t->candidates[kept++].gain)]++;
            }
        t->num_symbols = 0;
        while (done < kept) {
            /* Move the best remaining candidates to the front and sort them; nearly always, these are sufficient. */
            int wanted = 0, end = done;
            while (bucket > 0 && wanted < LTF_SORTED_FIRST) wanted += counts[--bucket];
            for (int i = done; i < kept; i++)
                if (ltf_bucket(t->candidates[i].gain) >= bucket) {
                    ltf_candidate other = t->candidates[end];
                    t->candidates[end++] = t->candidates[i];
                    t->candidates[i] = other;
                }
            qsort(t->candidates + done, (size_t)(end - done), sizeof(ltf_candidate), ltf_by_gain);
            for (; done < end; done++) {
                const ltf_candidate *one = &t->candidates[done];
                if (one->length >= 3) {
                    uint32_t slot = ltf_hash(one->word);
                    if (taken[slot]) continue;
                    taken[slot] = 1;
                }
                t->symbols[t->num_symbols].word = one->word;
                t->symbols[t->num_symbols++].length = one->length;
                if (t->num_symbols == 255) return;
            }
        }
    }

    /* Train in rounds over increasing shares of the pieces; each round concatenates symbols that are often adjacent.
       Symbols that save much alone may save little together, so the best table of the last rounds is used. */
    static void ltf_train(
        ltf_training *t, const uint8_t *data, int64_t size, const int64_t *starts, const int64_t *ends, int64_t pieces
    ) {
        static const int steps[] = {8, 2, 1, 1, 1};
        ltf_symbol best[256];
        int num_best = -1, last = sizeof steps / sizeof *steps - 1;
        int64_t content = 0, least = 0;
        for (int64_t i = 0; i < pieces; i++) content += ends[i] - starts[i];
        t->num_symbols = 0;
        for (int round = 0;; round++) {
            ltf_build(&t->matcher, t->symbols, t->num_symbols);
            if (round == last) ltf_count(t, data, size, starts, ends, pieces, 1, 0);
            else ltf_count(t, data, size, starts, ends, pieces, steps[round], 1);
            if (steps[round] == 1) {
                int64_t cost = 0;
                for (int token = 0; token < LTF_TOKENS; token++) cost += (int64_t)t->counts[token] << (token >> 8);
                if (num_best < 0 || cost < least) {
                    memcpy(best, t->symbols, sizeof best);
                    num_best = t->num_symbols;
                    least = cost;
                }
                if (round == last) break;
            }
            int64_t often = content / steps[round] / LTF_BYTES_OF_PAIR, least_often = steps[round] == 1 ? 4 : 2;
            ltf_gather(t, (uint32_t)(often > least_often ? often : least_often));
            ltf_choose(t);
        }
        memset(t->counts, 0, sizeof t->counts);
        memcpy(t->symbols, best, sizeof best);
        t->num_symbols = num_best;
    }
    """
    ctypedef struct ltf_symbol:
        uint64_t word
        uint32_t length
    ctypedef struct ltf_matcher:
        pass
    ctypedef struct ltf_progress:
        int64_t row
        int64_t at
        uint8_t* cursor
    ctypedef struct ltf_training:
        ltf_symbol* symbols
        int num_symbols
    int LTF_ROOM
    void ltf_build(ltf_matcher* matcher, const ltf_symbol* symbols, int count) nogil
    int64_t ltf_encode(
        const ltf_matcher* matcher, const uint8_t* data, int64_t size, const int64_t* offsets, int64_t values,
        uint8_t* out, int64_t* ends) nogil
    int ltf_decode(
        const uint8_t* codes, const int64_t* offsets, int64_t values, const uint64_t* words, const uint8_t* lengths,
        uint8_t* out, const uint8_t* top, int64_t* ends, ltf_progress* p, int open, int unknown, bint sparse) nogil
    void ltf_train(
        ltf_training* training, const uint8_t* data, int64_t size, const int64_t* starts, const int64_t* ends,
        int64_t pieces) nogil

cdef enum:
    MAX_SYMBOLS = 255
    SAMPLED = 64  # ranges of codes in the sample that estimates the expansion
    SAMPLED_CODES = 128


# Training uses about 1 MiB. Allocating it takes as long as training, so the memory of the last training is kept.
cdef ltf_training* spare = NULL


cdef int64_t expected_size(const uint8_t* codes, int64_t count, const uint8_t* lengths) noexcept nogil:
    """Estimate the size of the decompressed codes from a sample of them, with a margin."""
    cdef int64_t i, k, at, step, seen = 0, found = 0
    if count <= SAMPLED * SAMPLED_CODES:
        step, k = 0, count
    else:
        step, k = (count - SAMPLED_CODES) // (SAMPLED - 1), SAMPLED_CODES
    for i in range(SAMPLED if step else 1):
        for at in range(i * step, i * step + k):
            found += lengths[codes[at]]
        seen += k
    if seen == 0:
        return 0
    return <int64_t>(<double>found / seen * count * 1.02) + 64


def decompress(codes, offsets, words, lengths):
    """Return the bytes, followed by unused memory, and the offsets, which are int64."""
    cdef Bytes source = Bytes(codes), bound = Bytes(offsets), word = Bytes(words), length = Bytes(lengths)
    cdef int64_t values = bound.size // 8 - 1, symbols = length.size, first, last, made
    cdef const int64_t* at = <int64_t*>bound.at
    cdef uint64_t[256] word_of
    cdef uint8_t[256] length_of
    cdef ltf_progress progress
    cdef int code
    if values < 0 or symbols > MAX_SYMBOLS or word.size != 8 * symbols:
        raise ValueError("offsets or symbol table have the wrong size")
    memset(word_of, 0, sizeof(word_of))
    memset(length_of, 0, sizeof(length_of))
    memcpy(word_of, word.at, word.size)
    memcpy(length_of, length.at, symbols)
    for i in range(symbols):
        if not 1 <= length_of[i] <= 8:
            raise ValueError("a symbol has 1 to 8 bytes")
    check(check_offsets(at, values, source.size))
    first, last = at[0], at[values]
    out = new_bytes(expected_size(source.at + first, last - first, length_of) + LTF_ROOM)
    ends = np.zeros(values + 1, np.int64)
    cdef Bytes new_bound = Bytes(ends, True)
    cdef Bytes target
    progress.row, progress.at, made = 0, first, 0
    while True:
        target = Bytes(out, True)
        progress.cursor = target.at + made
        with nogil:
            code = ltf_decode(
                source.at, at, values, word_of, length_of, target.at, target.at + target.size,
                <int64_t*>new_bound.at, &progress, OPEN_ESCAPE, NO_SYMBOL, symbols < MAX_SYMBOLS,
            )
        if code >= 0:
            break
        # Expect the remaining codes to expand slightly more than the previous codes.
        made = progress.cursor - target.at
        longer = new_bytes(
            made + LTF_ROOM + max(
                <int64_t>(<double>made / max(progress.at - first, 1) * (last - progress.at) * 1.1),
                expected_size(source.at + progress.at, last - progress.at, length_of),
            )
        )
        longer[:made] = out[:made]
        out = longer
    check(code)
    return out, ends


def compress(data, offsets, words, lengths):
    """Return the codes, followed by unused memory, and their offsets. `offsets` are int64."""
    cdef Bytes source = Bytes(data), bound = Bytes(offsets), word = Bytes(words), length = Bytes(lengths)
    cdef int64_t values = bound.size // 8 - 1, i
    cdef ltf_symbol[256] symbols
    cdef ltf_matcher* matcher
    cdef const int64_t* at = <int64_t*>bound.at
    if values < 0 or length.size > MAX_SYMBOLS or word.size != 8 * length.size:
        raise ValueError("offsets or symbol table have the wrong size")
    check(check_offsets(at, values, source.size))
    for i in range(length.size):
        if not 1 <= length.at[i] <= 8:
            raise ValueError("a symbol has 1 to 8 bytes")
        symbols[i].length = length.at[i]
        symbols[i].word = lt_load64(word.at + 8 * i) & (<uint64_t>0xFFFFFFFFFFFFFFFF >> (64 - 8 * length.at[i]))
    codes = np.empty(2 * (at[values] - at[0]) + 2, np.uint8)
    ends = np.empty(values + 1, np.int64)
    cdef Bytes target = Bytes(codes, True), new_bound = Bytes(ends, True)
    matcher = <ltf_matcher*>malloc(sizeof(ltf_matcher))
    if matcher == NULL:
        raise MemoryError
    with nogil:
        ltf_build(matcher, symbols, <int>length.size)
        ltf_encode(matcher, source.at, source.size, at, values, target.at, <int64_t*>new_bound.at)
        free(matcher)
    return codes, ends


def train(data, starts, ends):
    """Train a table on pieces of `data`; return its words and lengths. `starts` and `ends` are int64."""
    cdef Bytes source = Bytes(data), first = Bytes(starts)
    cdef int64_t pieces = first.size // 8, i
    cdef Bytes last = column(ends, pieces, 8)
    cdef const int64_t* a = <int64_t*>first.at
    cdef const int64_t* b = <int64_t*>last.at
    for i in range(pieces):
        if not 0 <= a[i] <= b[i] <= source.size:
            check(OUTSIDE)
    global spare
    cdef ltf_training* training = spare
    spare = NULL  # so that no other thread uses it
    if training == NULL:
        training = <ltf_training*>calloc(1, sizeof(ltf_training))
        if training == NULL:
            raise MemoryError
    with nogil:
        ltf_train(training, source.at, source.size, a, b, pieces)
    try:
        words = np.array([training.symbols[i].word for i in range(training.num_symbols)], np.uint64)
        lengths = np.array([training.symbols[i].length for i in range(training.num_symbols)], np.uint8)
    finally:
        if spare == NULL:
            spare = training
        else:
            free(training)
    return words, lengths
