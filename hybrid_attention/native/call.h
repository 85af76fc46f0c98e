/* What a call of the kernels works on, in the layout that row_kernels.c reads from Python. */

enum { MAX_SPINS = 24, MAX_LANES = 64 };

/* A tensor (V, G, T, R) by its address and its strides, in entries. */
typedef struct {
    void *data;
    int64_t strides[4];
} tensor;

/* Rows that share the couplings of a group and a set of spins; lane m is the row (rows[m / repeats], m % repeats).

   Bit j of absent[i] says that row i lacks the set's spin j, which is then pinned to +1. */
typedef struct {
    int64_t group, size, num_rows, first_lane, last_lane;
    const int64_t *spins, *rows, *absent;
    int64_t together[MAX_SPINS]; /* the spins that some row has beside spin j, as bits */
} row_set;

typedef struct {
    const int64_t *plan; /* num_sets, repeats, length, then each row_set */
    tensor fields, marginals, grad, grad_fields;
    const void *couplings;   /* (G, T, T) */
    double *grad_couplings;  /* (G, T, T), added to; NULL where no gradient is wanted */
    void *saved, *scratch;   /* what the forward pass leaves for the backward pass, or NULL */
} call;

enum { PLAN_HEADER = 3, SET_HEADER = 5 };

/* Raised with every change of what Python hands over, so that a build from older sources is not called. */
enum { INTERFACE = 1 };

/* Read the set at `entry` of a plan, and return where the next one begins. */
static inline const int64_t *read_set(const int64_t *entry, row_set *set)
{
    set->group = entry[0];
    set->size = entry[1];
    set->num_rows = entry[2];
    set->first_lane = entry[3];
    set->last_lane = entry[4];
    set->spins = entry + SET_HEADER;
    set->rows = set->spins + set->size;
    set->absent = set->rows + set->num_rows;
    const int64_t all = ((int64_t)1 << set->size) - 1;
    for (int j = 0; j < set->size; j++) {
        set->together[j] = 0;
        for (int64_t i = 0; i < set->num_rows; i++)
            if (!(set->absent[i] >> j & 1)) set->together[j] |= all & ~set->absent[i];
    }
    return set->absent + set->num_rows;
}
