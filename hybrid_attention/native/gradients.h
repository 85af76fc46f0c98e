/* The backward pass of the rows of a set; the letters are those of rows.h. */

/* d_a and d_b of the states from g and p, times 1 / Z; the constant -g . p is counted in half a. Idle lanes get 0. */
static void NAME(deviations)(const call *c, const row_set *set, NAME(block) * b)
{
    int64_t grad_offsets[MAX_LANES], offsets[MAX_LANES];
    REAL slopes[MAX_SPINS * MAX_LANES], mean[MAX_LANES] = {0};
    NAME(lane_offsets)(b, &c->grad, grad_offsets);
    NAME(lane_offsets)(b, &c->marginals, offsets);
    for (int j = 0; j < b->size; j++) {
        const REAL *grad = (const REAL *)c->grad.data + set->group * c->grad.strides[1] +
                           set->spins[j] * c->grad.strides[2];
        const REAL *p = (const REAL *)c->marginals.data + set->group * c->marginals.strides[1] +
                        set->spins[j] * c->marginals.strides[2];
        for (int l = 0; l < b->lanes; l++) {
            const REAL g = l < b->count && !(b->absent[l] >> j & 1) ? grad[grad_offsets[l]] : 0;
            slopes[j * b->lanes + l] = g * b->inverse[l];
            mean[l] -= l < b->count ? g * p[offsets[l]] : 0;
        }
    }
    for (int l = 0; l < b->lanes; l++) mean[l] *= b->inverse[l];
    const int first = NUM_FIRST(b->size);
    NAME(spin_totals)(first, b->lanes, mean, slopes, b->deviation);
    NAME(spin_totals)(NUM_SECOND(b->size), b->lanes, NULL, slopes + first * b->lanes,
                      b->deviation + b->first * b->lanes);
}

/* Add B (A d_a)^T + (B d_b) A^T, summed over lanes, to the expectation (2^b, 2^a). */
static void NAME(add_expectation)(NAME(block) * b)
{
    const int64_t ld = NAME(ld)(b->size), width = NAME(width)(b->size), half = b->first * b->lanes;
    for (int l = 0; l < b->lanes; l++)
        for (int64_t i = b->first; i < width; i++) b->turned[l * ld + i] = b->turned_weighted[l * ld + i] = 0;
    for (int64_t start = 0; start < b->first; start += NAME(PADDING)) {
        const int64_t stop = start + NAME(PADDING) < b->first ? start + NAME(PADDING) : b->first;
        for (int l = 0; l < b->lanes; l++)
            for (int64_t i = start; i < stop; i++) {
                b->turned[l * ld + i] = b->factors[i * b->lanes + l];
                b->turned_weighted[l * ld + i] = b->weighted[i * b->lanes + l];
            }
    }
    const NAME(matrix) B = {b->factors + half, b->lanes, 1}, weighted_B = {b->weighted + half, b->lanes, 1};
    NAME(product)(b->second, b->lanes, width, B, b->turned_weighted, ld, b->expectation, ld, NULL, 1);
    NAME(product)(b->second, b->lanes, width, weighted_B, b->turned, ld, b->expectation, ld, NULL, 1);
}

/* dL/dh = 2 E[d n] of a block; and, as a pinned spin has s = 1, take E[d s_k] off its pairs' E[d s_j s_k]. */
static void NAME(write_field_gradient)(const call *c, const row_set *set, NAME(block) * b, double *grad_couplings)
{
    const int size = b->size;
    int64_t offsets[MAX_LANES];
    for (int64_t i = 0; i < (b->first + b->second) * b->lanes; i++) b->deviation[i] *= b->weights[i];
    NAME(other_half)(b, b->weighted, b->deviation, b->factors, 1);
    NAME(spin_sums)(b, b->deviation, b->deviation);
    NAME(lane_offsets)(b, &c->grad_fields, offsets);
    for (int j = 0; j < size; j++) {
        REAL *grad_fields = (REAL *)c->grad_fields.data + set->group * c->grad_fields.strides[1] +
                            set->spins[j] * c->grad_fields.strides[2];
        for (int l = 0; l < b->count; l++) {
            if (b->absent[l] >> j & 1) continue;
            const REAL value = grad_fields[offsets[l]] = 2 * b->sums[j * b->lanes + l];
            for (int64_t rest = grad_couplings ? b->absent[l] : 0; rest; rest &= rest - 1) {
                const int k = __builtin_ctzll(rest);
                grad_couplings[j < k ? j * size + k : k * size + j] -= value;
            }
        }
    }
}

/* In place, sum_i x[i] prod_{j in mask} s_j(i) for every mask of spins (the Walsh-Hadamard transform), 2^count. */
static void NAME(spin_correlations)(int count, double *x)
{
    for (int j = 0; j < count; j++)
        for (int64_t i = 0; i < (int64_t)1 << count; i++)
            if (!(i >> j & 1)) {
                const double up = x[i], down = x[i + ((int64_t)1 << j)];
                x[i] = up + down;
                x[i + ((int64_t)1 << j)] = up - down;
            }
}

/* Add E[d s_j s_k], j < k, to (size, size), from the expectation of the states, which is overwritten.

   The pairs of a half are correlations of its sums over the other half; for those across, the sums over the states of
   b with s_k at +1 and at -1 are subtracted, and correlated with each s_j. */
static void NAME(add_pair_moments)(NAME(block) * b, double *out)
{
    const int first = NUM_FIRST(b->size), second = NUM_SECOND(b->size), size = b->size;
    const int64_t ld = NAME(ld)(size), width = NAME(width)(size);
    double *x = b->pair_scratch;
    for (int64_t row = 0; row < b->second; row++) {
        REAL *restrict entries = b->expectation + row * ld;
        const REAL *restrict W = b->W + row * ld;
        NAME(vec) total = {0};
        for (int64_t i = 0; i < width; i += NAME(VEC)) {
            NAME(vec) *part = (NAME(vec) *)(entries + i);
            *part *= *(const NAME(vec) *)(W + i);
            total += *part;
        }
        x[row] = 0;
        for (int i = 0; i < NAME(VEC); i++) x[row] += total[i];
    }
    NAME(spin_correlations)(second, x);
    for (int j = 0; j < second; j++)
        for (int k = j + 1; k < second; k++)
            out[(first + j) * size + first + k] += x[((int64_t)1 << j) + ((int64_t)1 << k)];
    NAME(state_sums)(second, width, ld, b->expectation, b->expectation, b->sums);
    const REAL *total = b->sums + second * width;
    for (int64_t i = 0; i < b->first; i++) x[i] = total[i];
    NAME(spin_correlations)(first, x);
    for (int j = 0; j < first; j++)
        for (int k = j + 1; k < first; k++) out[j * size + k] += x[((int64_t)1 << j) + ((int64_t)1 << k)];
    for (int k = 0; k < second; k++) {
        for (int64_t i = 0; i < b->first; i++) x[i] = 2 * (double)b->sums[k * width + i] - total[i];
        NAME(spin_correlations)(first, x);
        for (int j = 0; j < first; j++) out[j * size + first + k] += x[(int64_t)1 << j];
    }
}
