/* The kernels in float32 and float64 for one instruction set, ISA. */

#define JOIN_PARTS(name, real, isa) name##_##real##_##isa
#define JOIN(name, real, isa) JOIN_PARTS(name, real, isa)
#define NAME(name) JOIN(name, REAL, ISA)

#define REAL float
#define LEAST_NORMAL FLT_MIN
#define EXP_DEGREE 7
#include "products.h"
#include "tables.h"
#include "rows.h"
#include "gradients.h"
#include "passes.h"
#undef REAL
#undef LEAST_NORMAL
#undef EXP_DEGREE

#define REAL double
#define LEAST_NORMAL DBL_MIN
#define EXP_DEGREE 13
#include "products.h"
#include "tables.h"
#include "rows.h"
#include "gradients.h"
#include "passes.h"
#undef REAL
#undef LEAST_NORMAL
#undef EXP_DEGREE

static const kernels JOIN(kernels_of, both, ISA)[2] = {
    {JOIN(solve, float, ISA), JOIN(gradient, float, ISA), JOIN(saved_entries, float, ISA),
     JOIN(scratch_entries, float, ISA), (void (*)(void))JOIN(exponentials, float, ISA)},
    {JOIN(solve, double, ISA), JOIN(gradient, double, ISA), JOIN(saved_entries, double, ISA),
     JOIN(scratch_entries, double, ISA), (void (*)(void))JOIN(exponentials, double, ISA)},
};

#undef NAME
#undef JOIN
#undef JOIN_PARTS
