/* The Python module hybrid_attention.row_kernels: the exact marginals of the rows of a plan, and their gradients.

   Tensors are given by address and strides; the Python side, native_rows.py, owns all memory. The kernels are compiled
   for several instruction sets, of which the best that the processor has is taken when the module is loaded. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "call.h"

#if !defined(__GNUC__)
#error "the kernels need the vector extensions of GCC and Clang"
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#define IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#define IVDEP _Pragma("GCC ivdep")
#endif
#define LARGEST_UNSCALED_ENERGY 32

typedef struct {
    double (*solve)(const call *);
    void (*gradient)(const call *);
    int64_t (*saved_entries)(const row_set *);
    int64_t (*scratch_entries)(const row_set *);
    void (*exponentials)(void);
} kernels;

#include "exponential.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#define ISA avx512
#define VECTOR_BYTES 64
#define TILE_ROWS 8
#define TILE_VECS 2
#include "both_precisions.h"
#undef ISA
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECS
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define ISA avx2
#define VECTOR_BYTES 32
#define TILE_ROWS 4
#define TILE_VECS 2
#include "both_precisions.h"
#undef ISA
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef TILE_VECS
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif

#define ISA baseline
#define VECTOR_BYTES 16
#if defined(__aarch64__)
#define TILE_ROWS 8
#else
#define TILE_ROWS 4
#endif
#define TILE_VECS 2
#include "both_precisions.h"

/* The instruction sets that the processor has, the best first, and which of them is in use. */
static struct {
    const char *name;
    const kernels *of_precision; /* float32, float64 */
} available[3];
static int num_available;
static const kernels *chosen;

static void add_available(const char *name, const kernels *of_precision)
{
    available[num_available].name = name;
    available[num_available++].of_precision = of_precision;
}

static void find_available(void)
{
    num_available = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        add_available("avx512", kernels_of_both_avx512);
    if (avx2) add_available("avx2", kernels_of_both_avx2);
#endif
    add_available("baseline", kernels_of_both_baseline);
    chosen = available[0].of_precision;
}

/* Read `count` integers from Python; -1 on an error. */
static int read_integers(PyObject *const *args, Py_ssize_t count, int64_t *out)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        out[i] = PyLong_AsLongLong(args[i]);
        if (out[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static tensor read_tensor(const int64_t *numbers)
{
    return (tensor){(void *)(intptr_t)numbers[0], {numbers[1], numbers[2], numbers[3], numbers[4]}};
}

enum { SOLVE_ARGUMENTS = 15, GRADIENT_ARGUMENTS = 26 };

static PyObject *solve(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[SOLVE_ARGUMENTS];
    (void)module;
    if (count != SOLVE_ARGUMENTS) return PyErr_Format(PyExc_TypeError, "solve takes %d integers", SOLVE_ARGUMENTS);
    if (read_integers(args, count, n)) return NULL;
    const call c = {.plan = (const int64_t *)(intptr_t)n[1], .couplings = (void *)(intptr_t)n[2],
                    .saved = (void *)(intptr_t)n[3], .scratch = (void *)(intptr_t)n[4],
                    .fields = read_tensor(n + 5), .marginals = read_tensor(n + 10)};
    double least;
    Py_BEGIN_ALLOW_THREADS;
    least = chosen[n[0] != 0].solve(&c);
    Py_END_ALLOW_THREADS;
    return PyFloat_FromDouble(least);
}

static PyObject *gradient(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[GRADIENT_ARGUMENTS];
    (void)module;
    if (count != GRADIENT_ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "gradient takes %d integers", GRADIENT_ARGUMENTS);
    if (read_integers(args, count, n)) return NULL;
    const call c = {.plan = (const int64_t *)(intptr_t)n[1], .couplings = (void *)(intptr_t)n[2],
                    .saved = (void *)(intptr_t)n[3], .scratch = (void *)(intptr_t)n[4],
                    .fields = read_tensor(n + 5), .marginals = read_tensor(n + 10), .grad = read_tensor(n + 15),
                    .grad_fields = read_tensor(n + 20), .grad_couplings = (double *)(intptr_t)n[25]};
    Py_BEGIN_ALLOW_THREADS;
    chosen[n[0] != 0].gradient(&c);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *entries(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[2];
    (void)module;
    if (count != 2) return PyErr_Format(PyExc_TypeError, "entries takes 2 integers");
    if (read_integers(args, count, n)) return NULL;
    const int64_t *plan = (const int64_t *)(intptr_t)n[1], *entry = plan + PLAN_HEADER;
    int64_t saved = 0, scratch = 0;
    for (int64_t number = 0; number < plan[0]; number++) {
        row_set set;
        entry = read_set(entry, &set);
        const int64_t needed = chosen[n[0] != 0].scratch_entries(&set);
        saved += chosen[n[0] != 0].saved_entries(&set);
        scratch = needed > scratch ? needed : scratch;
    }
    return Py_BuildValue("LL", (long long)saved, (long long)scratch);
}

static PyObject *exponentials(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    int64_t n[4];
    (void)module;
    if (count != 4) return PyErr_Format(PyExc_TypeError, "exponentials takes 4 integers");
    if (read_integers(args, count, n)) return NULL;
    const double *x = (const double *)(intptr_t)n[1];
    if (n[0])
        ((void (*)(const double *, double, int64_t, double *))chosen[1].exponentials)(x, 0, n[3], (void *)(intptr_t)n[2]);
    else
        ((void (*)(const double *, double, int64_t, float *))chosen[0].exponentials)(x, 0, n[3], (void *)(intptr_t)n[2]);
    Py_RETURN_NONE;
}

static PyObject *instruction_sets(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *names = PyTuple_New(num_available);
    for (int i = 0; names && i < num_available; i++) {
        PyObject *name = PyUnicode_FromString(available[i].name);
        if (!name) Py_CLEAR(names);
        else PyTuple_SET_ITEM(names, i, name);
    }
    return names;
}

static PyObject *use_instruction_set(PyObject *module, PyObject *name)
{
    (void)module;
    for (int i = 0; PyUnicode_Check(name) && i < num_available; i++)
        if (PyUnicode_CompareWithASCIIString(name, available[i].name) == 0) {
            chosen = available[i].of_precision;
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "%R is none of the instruction sets of this processor", name);
}

static PyObject *interface_number(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(INTERFACE);
}

static PyMethodDef methods[] = {
    {"solve", (PyCFunction)(void (*)(void))solve, METH_FASTCALL, "Write the marginals; return the least Z."},
    {"gradient", (PyCFunction)(void (*)(void))gradient, METH_FASTCALL, "Write dL/dh, and add dL/dJ."},
    {"entries", (PyCFunction)(void (*)(void))entries, METH_FASTCALL, "Count what a plan saves and takes as scratch."},
    {"exponentials", (PyCFunction)(void (*)(void))exponentials, METH_FASTCALL, "Write exp(x), for the tests."},
    {"interface", interface_number, METH_NOARGS, "Number what Python hands over, as call.h does."},
    {"instruction_sets", instruction_sets, METH_NOARGS, "Name those that the processor has, the best first."},
    {"use_instruction_set", use_instruction_set, METH_O, "Use one of instruction_sets(); at first it is the best."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "row_kernels", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit_row_kernels(void)
{
    find_available();
    return PyModuleDef_Init(&definition);
}
