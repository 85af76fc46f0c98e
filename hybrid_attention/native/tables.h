/* The tables of the states of a model, and sums over them.

   State i of k spins has spin j at +1 where bit j of i is 0. Tables are [state][lane], where a lane is one row of the
   batch, but for W, which is [state of half b][state of half a], its rows `ld` entries apart. */

#define NUM_FIRST(size) ((size) / 2)
#define NUM_SECOND(size) ((size) - (size) / 2)
#define TO_MULTIPLE(n, of) (((n) + (of)-1) / (of) * (of))

/* The width of all tables is a multiple of this, which is one of VEC on any instruction set. */
enum { NAME(PADDING) = 64 / sizeof(REAL) };

/* How wide a row of W is, padded, and how far rows are apart: not by a power of two, for the caches' sake. */
INLINE int64_t NAME(width)(int size) { return TO_MULTIPLE((int64_t)1 << NUM_FIRST(size), NAME(PADDING)); }
INLINE int64_t NAME(ld)(int size)
{
    const int64_t width = NAME(width)(size);
    return width >= 128 ? width + NAME(PADDING) : width;
}

/* out[i] = exp(x[i] - offset), in which values under the least normal number are 0. */
static void NAME(exponentials)(const double *restrict x, double offset, int64_t count, REAL *restrict out)
{
    for (int64_t i = 0; i < count; i++) {
        const double value = exponential(x[i] - offset, EXP_DEGREE);
        out[i] = (REAL)(value < LEAST_NORMAL ? 0.0 : value);
    }
}

/* Energies, with the sign of exponents, sum_{j<k} J_jk s_j s_k of the states of `count` spins from `start`.

   Spin j adds s_j times the field of the spins before it; `field` is scratch of 2^(count - 1) entries. */
static void NAME(pair_exponents)(const double *couplings, int size, int start, int count, double *restrict field,
                                 double *restrict out)
{
    out[0] = 0;
    for (int j = 0; j < count; j++) {
        const int64_t states = (int64_t)1 << j;
        field[0] = 0;
        for (int k = 0; k < j; k++) {
            const double J = couplings[(start + k) * size + start + j];
            for (int64_t i = 0; i < (int64_t)1 << k; i++) {
                field[i + ((int64_t)1 << k)] = field[i] - J;
                field[i] += J;
            }
        }
        for (int64_t i = 0; i < states; i++) {
            out[i + states] = out[i] - field[i];
            out[i] += field[i];
        }
    }
}

/* How many doubles `pair_weights` uses as scratch. */
INLINE int64_t NAME(pair_scratch)(int size)
{
    const int64_t first = (int64_t)1 << NUM_FIRST(size), second = (int64_t)1 << NUM_SECOND(size);
    return 2 * first + (2 + NUM_FIRST(size)) * second;
}

/* W (2^b, 2^a) = exp(sum_{j<k} J_jk s_j s_k), scaled to a maximum of 1 where energies may leave the range of numbers.

   couplings are (size, size), symmetric. A row of W is the exponents within a, those within b, and the fields of
   b's spins on a's. */
static void NAME(pair_weights)(const double *couplings, int size, double largest_energy, double *scratch, REAL *W)
{
    const int first = NUM_FIRST(size), second = NUM_SECOND(size);
    const int64_t columns = (int64_t)1 << first, rows = (int64_t)1 << second;
    double *within = scratch, *x = within + columns, *within_second = x + columns, *fields = within_second + rows;
    NAME(pair_exponents)(couplings, size, 0, first, x, within);
    NAME(pair_exponents)(couplings, size, first, second, fields, within_second);
    for (int j = 0; j < first; j++) {
        fields[j] = 0;
        for (int k = 0; k < second; k++) fields[j] += couplings[j * size + first + k];
    }
    for (int k = 0; k < second; k++)
        for (int64_t i = 0; i < (int64_t)1 << k; i++)
            for (int j = 0; j < first; j++)
                fields[(i + ((int64_t)1 << k)) * first + j] =
                    fields[i * first + j] - 2 * couplings[j * size + first + k];
    double offset = 0;
    for (int pass = largest_energy > LARGEST_UNSCALED_ENERGY ? 0 : 1; pass < 2; pass++) {
        double largest = -INFINITY;
        for (int64_t row = 0; row < rows; row++) {
            const double *field = fields + row * first;
            x[0] = within_second[row];
            for (int j = 0; j < first; j++) x[0] += field[j];
            for (int j = 0; j < first; j++)
                for (int64_t i = 0; i < (int64_t)1 << j; i++) x[i + ((int64_t)1 << j)] = x[i] - 2 * field[j];
            for (int64_t i = 0; i < columns; i++) x[i] += within[i];
            if (pass == 0) {
                for (int64_t i = 0; i < columns; i++) largest = x[i] > largest ? x[i] : largest;
            } else {
                REAL *out = W + row * NAME(ld)(size);
                NAME(exponentials)(x, offset, columns, out);
                for (int64_t i = columns; i < NAME(width)(size); i++) out[i] = 0;
            }
        }
        if (pass == 0) offset = largest;
    }
}

/* The products over spins of what each has at +1 and at -1, up and down (count, lanes): table (2^count, lanes). */
static void NAME(spin_products)(int count, int64_t lanes, const REAL *up, const REAL *down, REAL *table)
{
    for (int64_t l = 0; l < lanes; l++) table[l] = 1;
    for (int j = 0; j < count; j++, up += lanes, down += lanes)
        for (int64_t i = 0; i < (int64_t)1 << j; i++) {
            REAL *restrict low = table + i * lanes, *restrict high = low + ((int64_t)1 << j) * lanes;
            for (int64_t l = 0; l < lanes; l++) {
                high[l] = low[l] * down[l];
                low[l] *= up[l];
            }
        }
}

/* constant + the sum over the spins at +1 of `up` (count, lanes): table (2^count, lanes). */
static void NAME(spin_totals)(int count, int64_t lanes, const REAL *constant, const REAL *up, REAL *table)
{
    for (int64_t l = 0; l < lanes; l++) table[l] = constant ? constant[l] : 0;
    for (int j = 0; j < count; j++, up += lanes)
        for (int64_t i = 0; i < (int64_t)1 << j; i++) {
            REAL *restrict low = table + i * lanes, *restrict high = low + ((int64_t)1 << j) * lanes;
            for (int64_t l = 0; l < lanes; l++) {
                high[l] = low[l];
                low[l] += up[l];
            }
        }
}

/* Sums over the first `half` rows of a table, `vecs` vectors wide, and to each of them add the row `half` below.

   Sums are in two levels, which keeps their rounding small. */
INLINE void NAME(fold)(const int vecs, int64_t half, int64_t stride, const REAL *table, REAL *folded, REAL *sums)
{
    NAME(vec) total[4] = {{0}};
    for (int64_t start = 0; start < half; start += 16) {
        NAME(vec) part[4] = {{0}};
        for (int64_t i = start; i < half && i < start + 16; i++) {
            const NAME(vec) *up = (const NAME(vec) *)(table + i * stride);
            const NAME(vec) *down = (const NAME(vec) *)(table + (i + half) * stride);
            NAME(vec) *out = (NAME(vec) *)(folded + i * stride);
            UNROLL for (int v = 0; v < vecs; v++)
            {
                part[v] += up[v];
                out[v] = up[v] + down[v];
            }
        }
        UNROLL for (int v = 0; v < vecs; v++) total[v] += part[v];
    }
    UNROLL for (int v = 0; v < vecs; v++) ((NAME(vec) *)sums)[v] = total[v];
}

/* Sums over the states with spin j at +1, for each j, then over all: table (2^count, width) -> (count + 1, width).

   The half of the table with spin j at -1 is added to the other one, from the last spin to the first. `folded` has room
   for half of the table, and may be the table itself, which is then overwritten. */
static void NAME(state_sums)(int count, int64_t width, int64_t stride, const REAL *table, REAL *folded, REAL *sums)
{
    for (int j = count - 1; j >= 0; j--) {
        int64_t l = 0;
        for (; l + 4 * NAME(VEC) <= width; l += 4 * NAME(VEC))
            NAME(fold)(4, (int64_t)1 << j, stride, table + l, folded + l, sums + j * width + l);
        for (; l < width; l += NAME(VEC))
            NAME(fold)(1, (int64_t)1 << j, stride, table + l, folded + l, sums + j * width + l);
        table = folded;
    }
    for (int64_t l = 0; l < width; l++) sums[count * width + l] = table[l];
}
