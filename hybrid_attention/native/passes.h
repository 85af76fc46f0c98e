/* The forward and the backward pass over the sets of a plan. */

/* Lay out a block of the lanes from `lane`, W and the saved tables in `saved` where that is given. */
static void NAME(begin_block)(const call *c, const row_set *set, int64_t lane, REAL **saved, REAL *W, NAME(block) * b)
{
    const int64_t rest = set->last_lane - lane, repeats = c->plan[1];
    b->count = (int)(rest < MAX_LANES ? rest : MAX_LANES);
    NAME(lay_out)(b, (int)set->size, NAME(padded)(b->count), c->scratch);
    if (W) b->W = W;
    if (*saved) {
        b->weights = *saved;
        b->inverse = b->weights + NAME(table_entries)(b->size, b->lanes);
        *saved = b->inverse + b->lanes;
    }
    int64_t row = lane / repeats, repeat = lane % repeats;
    for (int l = 0; l < b->count; l++) {
        b->rows[l] = set->rows[row];
        b->repeats[l] = repeat;
        b->absent[l] = set->absent[row];
        if (++repeat < repeats) continue;
        repeat = 0;
        row++;
    }
}

/* Write p of all sets, and return the least partition function, NaN if a field or a coupling is not finite. */
static double NAME(solve)(const call *c)
{
    const int64_t *entry = c->plan + PLAN_HEADER;
    REAL *saved = c->saved;
    double least = INFINITY, couplings[MAX_SPINS * MAX_SPINS];
    for (int64_t number = 0; number < c->plan[0]; number++) {
        row_set set;
        entry = read_set(entry, &set);
        const double largest_energy = NAME(read_couplings)(c, &set, couplings);
        if (!(largest_energy <= DBL_MAX)) return NAN;
        NAME(block) b;
        REAL *W = saved;
        if (saved) saved += NAME(matrix_entries)((int)set.size);
        for (int64_t lane = set.first_lane; lane < set.last_lane; lane += MAX_LANES) {
            NAME(begin_block)(c, &set, lane, &saved, W, &b);
            if (lane == set.first_lane)
                NAME(pair_weights)(couplings, b.size, largest_energy, b.pair_scratch, b.W);
            if (!NAME(field_factors)(c, &set, couplings, &b)) return NAN;
            const double smallest = NAME(solve_block)(&b);
            least = smallest < least ? smallest : least;
            NAME(write_marginals)(c, &set, &b);
        }
    }
    return least;
}

/* Write dL/dh of all sets, and add dL/dJ where it is wanted. */
static void NAME(gradient)(const call *c)
{
    const int64_t *entry = c->plan + PLAN_HEADER, length = c->plan[2];
    REAL *saved = c->saved;
    double couplings[MAX_SPINS * MAX_SPINS], moments[MAX_SPINS * MAX_SPINS];
    for (int64_t number = 0; number < c->plan[0]; number++) {
        row_set set;
        entry = read_set(entry, &set);
        const double largest_energy = NAME(read_couplings)(c, &set, couplings);
        NAME(block) b;
        REAL *W = saved;
        if (saved) saved += NAME(matrix_entries)((int)set.size);
        memset(moments, 0, sizeof moments);
        for (int64_t lane = set.first_lane; lane < set.last_lane; lane += MAX_LANES) {
            NAME(begin_block)(c, &set, lane, &saved, W, &b);
            if (lane == set.first_lane) {
                if (!W) NAME(pair_weights)(couplings, b.size, largest_energy, b.pair_scratch, b.W);
                memset(b.expectation, 0, NAME(matrix_entries)(b.size) * sizeof(REAL));
            }
            NAME(field_factors)(c, &set, couplings, &b);
            if (!W) NAME(solve_block)(&b);
            NAME(deviations)(c, &set, &b);
            for (int64_t i = 0; i < NAME(table_entries)(b.size, b.lanes); i++)
                b.weighted[i] = b.factors[i] * b.deviation[i];
            if (c->grad_couplings) NAME(add_expectation)(&b);
            NAME(write_field_gradient)(c, &set, &b, c->grad_couplings ? moments : NULL);
        }
        if (!c->grad_couplings) continue;
        NAME(add_pair_moments)(&b, moments);
        double *out = c->grad_couplings + set.group * length * length;
        for (int j = 0; j < set.size; j++)
            for (int k = j + 1; k < set.size; k++)
                if (set.together[j] >> k & 1) out[set.spins[j] * length + set.spins[k]] += moments[j * set.size + k];
    }
}
