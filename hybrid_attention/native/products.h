/* Products of a matrix with a table of vectors: out[i][l] = sum_k C(i, k) table[k][l].

   The strides of C are free, so that W A and W^T B read the same W. A tile of `rows` x `vecs` vectors is summed in
   registers; TILE_ROWS and TILE_VECS say how large it may be on the instruction set at hand. */

enum { NAME(VEC) = VECTOR_BYTES / sizeof(REAL) };
typedef REAL NAME(vec) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

typedef struct {
    const REAL *data;
    int64_t row, column; /* strides */
} NAME(matrix);

/* One tile: out = scale * (C table), plus out itself if `accumulate`; no scale where it is NULL. */
INLINE void NAME(tile)(const int rows, const int vecs, int64_t depth, NAME(matrix) c, const REAL *table,
                       int64_t table_stride, REAL *out, int64_t stride, const REAL *scale, int accumulate)
{
    NAME(vec) sum[TILE_ROWS][TILE_VECS] = {{{0}}};
    for (int64_t k = 0; k < depth; k++) {
        const NAME(vec) *entries = (const NAME(vec) *)(table + k * table_stride);
        UNROLL for (int i = 0; i < rows; i++)
        {
            const REAL factor = c.data[i * c.row + k * c.column];
            UNROLL for (int v = 0; v < vecs; v++) sum[i][v] += factor * entries[v];
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
    {
        NAME(vec) *result = (NAME(vec) *)(out + i * stride);
        const NAME(vec) *factors = (const NAME(vec) *)(scale + (scale ? i * stride : 0));
        UNROLL for (int v = 0; v < vecs; v++)
        {
            NAME(vec) value = sum[i][v];
            if (scale) value *= factors[v];
            if (accumulate) value += result[v];
            result[v] = value;
        }
    }
}

/* All tiles of `vecs` vectors width below each other; `rows` is a power of two, or a multiple of TILE_ROWS. */
INLINE void NAME(column)(const int vecs, int64_t rows, int64_t depth, NAME(matrix) c, const REAL *table,
                         int64_t table_stride, REAL *out, int64_t stride, const REAL *scale, int accumulate)
{
#define TILES(step) \
    for (int64_t i = 0; i < rows; i += step) { \
        const NAME(matrix) part = {c.data + i * c.row, c.row, c.column}; \
        NAME(tile)(step, vecs, depth, part, table, table_stride, out + i * stride, stride, \
                   scale ? scale + i * stride : NULL, accumulate); \
    }
    if (rows >= TILE_ROWS) {
        TILES(TILE_ROWS)
    } else if (rows == 4) {
        TILES((TILE_ROWS < 4 ? TILE_ROWS : 4))
    } else if (rows == 2) {
        TILES((TILE_ROWS < 2 ? TILE_ROWS : 2))
    } else {
        TILES(1)
    }
#undef TILES
}

/* out (rows, width) = scale * (C table), as in `tile`; the width is a multiple of VEC. */
static void NAME(product)(int64_t rows, int64_t depth, int64_t width, NAME(matrix) c, const REAL *table,
                          int64_t table_stride, REAL *out, int64_t stride, const REAL *scale, int accumulate)
{
    int64_t l = 0;
    for (; l + TILE_VECS * NAME(VEC) <= width; l += TILE_VECS * NAME(VEC))
        NAME(column)(TILE_VECS, rows, depth, c, table + l, table_stride, out + l, stride, scale ? scale + l : NULL,
                     accumulate);
    for (; l < width; l += NAME(VEC))
        NAME(column)(1, rows, depth, c, table + l, table_stride, out + l, stride, scale ? scale + l : NULL,
                     accumulate);
}
