/* The exponential function, computed in double precision and written so that compilers vectorize loops over it. */

#define EXP_LEAST -708.0

static const double EXP_COEFFICIENTS[14] = {
    1.0,         1.0,          1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,        1.0 / 720,
    1.0 / 5040,  1.0 / 40320,  1.0 / 362880,  1.0 / 3628800,  1.0 / 39916800,  1.0 / 479001600,  1.0 / 6227020800.0,
};

/* exp(x) for -708 < x < 700, and 0 below: 2^n times the Taylor polynomial of exp(x - n log 2) up to `degree`.

   The error of the polynomial is 5e-9 at degree 7, and 4e-18 at 13. */
INLINE double exponential(double x, const int degree)
{
    const double shift = 0x1.8p52; /* adding it rounds to integers, and leaves them in the low bits */
    const double kept = x < EXP_LEAST ? EXP_LEAST : x;
    const double shifted = kept * 1.4426950408889634 + shift;
    const double n = shifted - shift;
    const double r = (kept - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33; /* log 2 in two parts */
    double sum = EXP_COEFFICIENTS[degree];
    UNROLL for (int k = degree - 1; k >= 0; k--) sum = sum * r + EXP_COEFFICIENTS[k];
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return x < EXP_LEAST ? 0.0 : sum * power;
}
