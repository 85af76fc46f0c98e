/* Marginals and gradients of the rows of a set, a block of lanes at a time.

   In the letters of meet_in_the_middle.py: A and B are the factors of the fields, W the pair weights, U = W A and
   V = W^T B; n the occupations, d = g . n - g . p. Tables of both halves stand one below the other, half a first. */

/* The tables of a block, and what a set needs once. */
typedef struct {
    int size, lanes, count; /* lanes is a multiple of PADDING, of which `count` are in use */
    int64_t first, second;  /* 2^a, 2^b */
    int64_t rows[MAX_LANES], repeats[MAX_LANES], absent[MAX_LANES]; /* of the lanes */
    REAL *W, *factors, *weights, *inverse; /* A and B; V A and U B; 1 / Z */
    REAL *deviation, *weighted;            /* d_a and d_b; A d_a and B d_b */
    REAL *turned, *turned_weighted;        /* A and A d_a as [lane][state] */
    REAL *expectation;                     /* sum over lanes of B (A d_a)^T + (B d_b) A^T */
    REAL *sums;                            /* of states, (size + 2, lanes or width) */
    double *pair_scratch;
} NAME(block);

INLINE int64_t NAME(table_entries)(int size, int64_t lanes)
{
    return (((int64_t)1 << NUM_FIRST(size)) + ((int64_t)1 << NUM_SECOND(size))) * lanes;
}

INLINE int64_t NAME(matrix_entries)(int size) { return NAME(ld)(size) << NUM_SECOND(size); }

INLINE int NAME(padded)(int64_t lanes) { return (int)TO_MULTIPLE(lanes, NAME(PADDING)); }

/* Entries that the forward pass saves of a set: W, then V A, U B and 1 / Z of each block. */
static int64_t NAME(saved_entries)(const row_set *set)
{
    int64_t total = NAME(matrix_entries)(set->size);
    for (int64_t lane = set->first_lane; lane < set->last_lane; lane += MAX_LANES) {
        const int64_t rest = set->last_lane - lane;
        const int lanes = NAME(padded)(rest < MAX_LANES ? rest : MAX_LANES);
        total += NAME(table_entries)(set->size, lanes) + lanes;
    }
    return total;
}

/* Lay out the tables of a block in scratch, and return how many entries they take. */
static int64_t NAME(lay_out)(NAME(block) * b, int size, int lanes, REAL *scratch)
{
    const int64_t table = NAME(table_entries)(size, lanes), turned = lanes * NAME(ld)(size);
    const int64_t sums = (size + 2) * (lanes > NAME(width)(size) ? lanes : NAME(width)(size));
    const int64_t doubles = TO_MULTIPLE(NAME(pair_scratch)(size) * (int64_t)(sizeof(double) / sizeof(REAL)), NAME(PADDING));
    REAL **parts[] = {&b->W, &b->expectation, &b->factors, &b->weights, &b->deviation, &b->weighted,
                      &b->turned, &b->turned_weighted, &b->sums, &b->inverse};
    const int64_t entries[] = {NAME(matrix_entries)(size), NAME(matrix_entries)(size), table, table, table, table,
                               turned, turned, sums, lanes};
    int64_t total = 0;
    b->size = size;
    b->lanes = lanes;
    b->first = (int64_t)1 << NUM_FIRST(size);
    b->second = (int64_t)1 << NUM_SECOND(size);
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        *parts[i] = scratch ? scratch + total : NULL;
        total += entries[i];
    }
    b->pair_scratch = scratch ? (double *)(scratch + total) : NULL; /* the parts are multiples of 64 bytes */
    return total + doubles;
}

/* Entries of scratch that a set takes. */
static int64_t NAME(scratch_entries)(const row_set *set)
{
    NAME(block) b;
    const int64_t rows = set->last_lane - set->first_lane;
    return NAME(lay_out)(&b, (int)set->size, NAME(padded)(rows < MAX_LANES ? rows : MAX_LANES), NULL);
}

/* The set's couplings (size, size), symmetric, 0 for pairs that no row has both of; and the sum of |J|. */
static double NAME(read_couplings)(const call *c, const row_set *set, double *out)
{
    const int64_t length = c->plan[2], size = set->size;
    const REAL *couplings = (const REAL *)c->couplings + set->group * length * length;
    double total = 0;
    for (int j = 0; j < size; j++) {
        out[j * size + j] = 0;
        for (int k = j + 1; k < size; k++) {
            const double J = couplings[set->spins[j] * length + set->spins[k]];
            const double value = set->together[j] >> k & 1 ? J : 0;
            out[j * size + k] = out[k * size + j] = value;
            total += fabs(value);
        }
    }
    return total;
}

/* Where the lanes of a block lie in a tensor (V, G, T, R), as offsets of their spin 0. */
static void NAME(lane_offsets)(const NAME(block) * b, const tensor *t, int64_t *out)
{
    for (int l = 0; l < b->count; l++) out[l] = b->rows[l] * t->strides[0] + b->repeats[l] * t->strides[3];
}

/* The fields (size, lanes) of a block, in double, less the field of absent spins, which are pinned to +1; 0 for absent
   spins and idle lanes. Return 0 if a field of a present spin is not finite. */
static int NAME(read_fields)(const call *c, const row_set *set, const double *couplings, const NAME(block) * b,
                             double *h)
{
    const int size = b->size;
    int64_t offsets[MAX_LANES];
    int finite = 1;
    NAME(lane_offsets)(b, &c->fields, offsets);
    for (int j = 0; j < size; j++) {
        const REAL *fields = (const REAL *)c->fields.data + set->group * c->fields.strides[1] +
                             set->spins[j] * c->fields.strides[2];
        double *h_j = h + j * b->lanes;
        for (int l = 0; l < b->lanes; l++) {
            h_j[l] = l < b->count && !(b->absent[l] >> j & 1) ? fields[offsets[l]] : 0;
            finite &= fabs(h_j[l]) <= DBL_MAX;
        }
        for (int l = 0; l < b->count; l++)
            for (int64_t rest = b->absent[l]; rest; rest &= rest - 1)
                h_j[l] -= couplings[j * size + __builtin_ctzll(rest)];
    }
    return finite;
}

/* A and B of a block. A spin has exp(-2 |h|) where it opposes its field, 1 where it follows it; an absent spin has 1 at
   +1 and 0 at -1. Return 0 if a field of a present spin is not finite. */
static int NAME(field_factors)(const call *c, const row_set *set, const double *couplings, NAME(block) * b)
{
    const int size = b->size, entries = size * b->lanes;
    double h[MAX_SPINS * MAX_LANES], exponents[MAX_SPINS * MAX_LANES];
    REAL opposed[MAX_SPINS * MAX_LANES], up[MAX_SPINS * MAX_LANES], down[MAX_SPINS * MAX_LANES];
    const int finite = NAME(read_fields)(c, set, couplings, b, h);
    for (int i = 0; i < entries; i++) exponents[i] = -2 * fabs(h[i]);
    NAME(exponentials)(exponents, 0, entries, opposed);
    for (int i = 0; i < entries; i++) {
        up[i] = h[i] < 0 ? opposed[i] : 1;
        down[i] = h[i] < 0 ? 1 : opposed[i];
    }
    for (int l = 0; l < b->count; l++)
        for (int64_t rest = b->absent[l]; rest; rest &= rest - 1) {
            const int j = __builtin_ctzll(rest);
            up[j * b->lanes + l] = 1;
            down[j * b->lanes + l] = 0;
        }
    const int first = NUM_FIRST(size);
    NAME(spin_products)(first, b->lanes, up, down, b->factors);
    NAME(spin_products)(NUM_SECOND(size), b->lanes, up + first * b->lanes, down + first * b->lanes,
                        b->factors + b->first * b->lanes);
    return finite;
}

/* out = scale * (W^T times half b, W times half a) of a table of both halves, plus out itself if `accumulate`. */
static void NAME(other_half)(const NAME(block) * b, const REAL *table, REAL *out, const REAL *scale, int accumulate)
{
    const int64_t ld = NAME(ld)(b->size), half = b->first * b->lanes;
    const NAME(matrix) W = {b->W, ld, 1}, transposed = {b->W, 1, ld};
    NAME(product)(b->first, b->second, b->lanes, transposed, table + half, b->lanes, out, b->lanes, scale,
                  accumulate);
    NAME(product)(b->second, b->first, b->lanes, W, table, b->lanes, out + half, b->lanes, scale + half, accumulate);
}

/* Sums over the states with a spin at +1 of a table of both halves, then over all of half b, into b->sums
   (size + 1, lanes). `folded` is scratch, and may be the table itself. */
static void NAME(spin_sums)(NAME(block) * b, const REAL *table, REAL *folded)
{
    const int64_t half = b->first * b->lanes;
    const int first = NUM_FIRST(b->size);
    NAME(state_sums)(first, b->lanes, b->lanes, table, folded, b->sums);
    NAME(state_sums)(NUM_SECOND(b->size), b->lanes, b->lanes, table + half, folded + half, b->sums + first * b->lanes);
}

/* V A, U B and 1 / Z from A and B, and Z p_j in b->sums; the least Z. */
static double NAME(solve_block)(NAME(block) * b)
{
    NAME(other_half)(b, b->factors, b->weights, b->factors, 0);
    NAME(spin_sums)(b, b->weights, b->deviation);
    const REAL *Z = b->sums + b->size * b->lanes;
    double least = INFINITY;
    for (int l = 0; l < b->count; l++) least = Z[l] < least ? Z[l] : least;
    for (int l = 0; l < b->lanes; l++) b->inverse[l] = 1 / Z[l];
    return least;
}

/* Write the marginals of a block, from b->sums. */
static void NAME(write_marginals)(const call *c, const row_set *set, NAME(block) * b)
{
    int64_t offsets[MAX_LANES];
    NAME(lane_offsets)(b, &c->marginals, offsets);
    for (int j = 0; j < b->size; j++) {
        REAL *p = (REAL *)c->marginals.data + set->group * c->marginals.strides[1] +
                  set->spins[j] * c->marginals.strides[2];
        for (int l = 0; l < b->count; l++) {
            if (b->absent[l] >> j & 1) continue;
            const REAL value = b->sums[j * b->lanes + l] * b->inverse[l];
            p[offsets[l]] = value < 1 ? value : 1;
        }
    }
}
