"""The batched quench kernel: values and gradients against explicit matrices and against plain torch operations."""

import itertools

import numpy as np
import pytest
import torch
from trotter_oracle import X, Z, on_wires, trotter_state

from devices import quench
from devices.plain_quench import plain_quench
from devices.quench import quench_probabilities, quench_state
from hybrid_attention import LinearSchedule

ROWS = 3
EXACT = 1e-10


def generator(seed):
    return torch.Generator().manual_seed(seed)


def draw_angles(kind, steps):
    """Angles that the kernel treats differently, by kind; the first three grow evenly."""
    even = torch.arange(1.0, steps + 1, dtype=torch.float64).unsqueeze(1)
    uneven = 0.4 + 0.5 * torch.randn(steps, 3, dtype=torch.float64, generator=generator(steps))
    return {
        "linear": LinearSchedule(steps, 0.7 * steps).angles(),
        "even, a != b": torch.cat((0.2 * even, 0.3 - 0.1 * even, uneven[:, 2:]), 1),
        "constant": torch.cat((0.3 * torch.ones_like(even), 0.2 * torch.ones_like(even), uneven[:, 2:]), 1),
        "uneven, a = b": uneven[:, [0, 0, 2]],
        "uneven, a != b": uneven,
    }[kind]


EVEN = ("linear", "even, a != b", "constant")
KINDS = (*EVEN, "uneven, a = b", "uneven, a != b")
every_kind = pytest.mark.parametrize("kind", KINDS)


def draw(num_wires, batched=(True, True), initial=None, seed=0, dtype=torch.float64, rows=ROWS):
    """Fields, couplings and, where `initial` is not None, an initial state, with rows or (False) without."""
    source = generator(100 * num_wires + seed)
    pairs = num_wires * (num_wires - 1) // 2
    fields = 0.3 + 0.8 * torch.randn(rows, num_wires, dtype=torch.float64, generator=source)
    couplings = -0.2 + 0.7 * torch.randn(rows, pairs, dtype=torch.float64, generator=source)
    states = torch.randn(rows, 2**num_wires, dtype=torch.complex128, generator=source)
    states = states / states.norm(dim=1, keepdim=True)
    values = [x if many else x[0] for x, many in zip((fields, couplings), batched, strict=True)]
    values = [x.to(dtype) for x in values]
    if initial is None:
        return [*values, None]
    return [*values, (states if initial else states[0]).to(dtype.to_complex())]


def run_kernel(kernel, fields, couplings, angles, initial, **options):
    if kernel is quench_probabilities:
        return quench_probabilities(fields, couplings, angles, **options)
    return quench_state(fields, couplings, angles, initial, **options)


def run_plain(kernel, fields, couplings, angles, initial):
    given = [None if x is None else torch.atleast_2d(x) for x in (fields, couplings, initial)]
    psi = plain_quench(given[0], given[1], angles, given[2])
    result = (psi * psi.conj()).real if kernel is quench_probabilities else psi
    return result if 2 in [x.dim() for x in (fields, couplings, initial) if x is not None] else result[0]


def weigh(result):
    """A real loss that tells all entries of a result apart."""
    real, imaginary = torch.randn(2, *result.shape, dtype=torch.float64, generator=generator(7))
    return (real * result.real + (imaginary * result.imag if result.is_complex() else 0)).sum()


def gradients(run, kernel, fields, couplings, angles, initial, **options):
    """The result and the gradients of all inputs."""
    inputs = [None if x is None else x.detach().clone().requires_grad_() for x in (fields, couplings, angles, initial)]
    result = run(kernel, *inputs, **options)
    weigh(result).backward()
    return result.detach(), [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs if x is not None]


def assert_equal_gradients(found, expected, tolerance=EXACT):
    assert (found[0] - expected[0]).abs().max() < tolerance
    assert found[0].shape == expected[0].shape
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert ours.shape == theirs.shape
        assert ours.numel() == 0 or (ours - theirs).abs().max() < tolerance


CASES = [(quench_probabilities, None), (quench_state, None), (quench_state, False), (quench_state, True)]
every_case = pytest.mark.parametrize(
    ("kernel", "initial"), CASES, ids=["probabilities", "state", "state from one", "state from a batch"]
)
every_batch = pytest.mark.parametrize("batched", list(itertools.product((False, True), repeat=2)), ids=str)


@every_kind
@pytest.mark.parametrize("num_wires", range(1, 6))
def test_values_are_the_product_of_matrix_exponentials(num_wires, kind):
    fields, couplings, initial = draw(num_wires, initial=True)
    angles = draw_angles(kind, 4)
    for start, states in (
        (None, quench_state(fields, couplings, angles)),
        (initial, quench_state(fields, couplings, angles, initial)),
    ):
        expected = np.stack(
            [
                trotter_state(
                    fields[i].numpy(), couplings[i].numpy(), angles, None if start is None else start[i].numpy()
                )
                for i in range(ROWS)
            ]
        )
        assert states.numpy() == pytest.approx(expected, abs=EXACT)
        if start is None:
            found = quench_probabilities(fields, couplings, angles).numpy()
            assert found == pytest.approx(abs(expected) ** 2, abs=EXACT)


@pytest.mark.parametrize("kind", ["linear", "uneven, a != b"])
@pytest.mark.parametrize("num_wires", [1, 2, 3, 5])
def test_gradients_are_those_of_matrix_exponentials(num_wires, kind):
    fields, couplings, initial = draw(num_wires, (False, False), False)
    z = [torch.tensor(on_wires(Z, [j], num_wires)) for j in range(num_wires)]
    pairs = [z[j] @ z[k] for j, k in itertools.combinations(range(num_wires), 2)]
    x = sum(torch.tensor(on_wires(X, [j], num_wires)) for j in range(num_wires))
    hadamards = torch.tensor(on_wires((X + Z) / 2**0.5, range(num_wires), num_wires))

    def by_matrices(_, h, J, angles, psi):
        psi = hadamards @ psi
        field = sum(value * matrix for value, matrix in zip(h, z, strict=True))
        pair = sum((value * matrix for value, matrix in zip(J, pairs, strict=True)), torch.zeros_like(x))
        for a, b, c in angles:
            for exponent in (a * field, b * pair, c * x):
                psi = torch.matrix_exp(1j * exponent) @ psi
        return psi

    angles = draw_angles(kind, 3)
    found = gradients(run_kernel, quench_state, fields, couplings, angles, initial)
    expected = gradients(by_matrices, None, fields, couplings, angles, initial)
    assert_equal_gradients(found, expected)


@every_kind
@pytest.mark.parametrize("steps", [1, 2, 5])
@every_case
def test_values_and_gradients_are_those_of_plain_operations_for_every_kind_of_angles(kernel, initial, steps, kind):
    fields, couplings, start = draw(5, initial=initial)
    inputs = (kernel, fields, couplings, draw_angles(kind, steps), start)
    assert_equal_gradients(gradients(run_kernel, *inputs), gradients(run_plain, *inputs))


@pytest.mark.parametrize("num_wires", range(1, 11))
@pytest.mark.parametrize(
    ("kernel", "initial", "kind"),
    [(quench_probabilities, None, "linear"), (quench_state, None, "uneven, a != b"), (quench_state, True, "linear")],
)
def test_values_and_gradients_are_those_of_plain_operations_for_every_number_of_wires(kernel, initial, kind, num_wires):
    fields, couplings, start = draw(num_wires, initial=initial, rows=2)
    inputs = (kernel, fields, couplings, draw_angles(kind, 3), start)
    assert_equal_gradients(gradients(run_kernel, *inputs), gradients(run_plain, *inputs))


@every_batch
@pytest.mark.parametrize("kind", ["linear", "uneven, a != b"])
@pytest.mark.parametrize("num_wires", [1, 5, 9])
@every_case
def test_values_and_gradients_are_those_of_plain_operations_for_every_batch(kernel, initial, num_wires, kind, batched):
    fields, couplings, start = draw(num_wires, batched, initial)
    inputs = (kernel, fields, couplings, draw_angles(kind, 3), start)
    assert_equal_gradients(gradients(run_kernel, *inputs), gradients(run_plain, *inputs))


def test_angles_that_grow_evenly_are_told_from_others():
    for kind in KINDS:
        assert (quench._even_increments(draw_angles(kind, 5)) is not None) == (kind in EVEN)
    bent = LinearSchedule(5, 4.0).angles()
    bent[2, 1] += 1e-9
    assert quench._even_increments(bent) is None


@every_batch
@every_kind
@every_case
def test_recomputation_gives_the_same_gradients(kernel, initial, kind, batched):
    fields, couplings, start = draw(5, batched, initial)
    inputs = (kernel, fields, couplings, draw_angles(kind, 4), start)
    kept = gradients(run_kernel, *inputs)
    again = gradients(run_kernel, *inputs, memory_budget=1)
    assert torch.equal(again[0], kept[0])
    assert_equal_gradients(again, kept, 1e-13)


@pytest.mark.parametrize("kind", ["linear", "uneven, a != b"])
@pytest.mark.parametrize("num_wires", [5, 9, 10])
@every_case
def test_a_state_in_parts_gives_the_same_as_a_whole_one(kernel, initial, num_wires, kind, monkeypatch):
    inputs = (kernel, *draw(num_wires, initial=initial, rows=2)[:2], draw_angles(kind, 3))
    start = draw(num_wires, initial=initial, rows=2)[2]
    monkeypatch.setattr(quench, "_LARGEST_EXPANDED", 0)
    whole = gradients(run_kernel, *inputs, start)
    monkeypatch.setattr(quench, "_LARGEST_PART", 4)
    steps = quench._Steps(inputs[1], inputs[2], inputs[3])
    assert len(steps.cut(torch.zeros(2**num_wires, 1))) == 2 ** steps.groups[0]
    assert_equal_gradients(gradients(run_kernel, *inputs, start), whole, 1e-13)


@every_batch
@pytest.mark.parametrize("memory_budget", [1, 2**30])
@every_case
def test_several_chunks_give_the_same_as_one(kernel, initial, memory_budget, batched, monkeypatch):
    fields, couplings, start = draw(5, batched, initial, rows=5)
    inputs = (kernel, fields, couplings, draw_angles("uneven, a != b", 3), start)
    one = gradients(run_kernel, *inputs)
    assert len(list(quench._pieces(5, 32, 16))) == 1
    monkeypatch.setattr(quench, "_CHUNK_BYTES", 1)
    monkeypatch.setattr(quench, "_FEWEST_COLUMNS", 2)
    assert [piece.stop - piece.start for piece in quench._pieces(5, 32, 16)] == [2, 2, 1]
    assert_equal_gradients(gradients(run_kernel, *inputs, memory_budget=memory_budget), one, 1e-13)


@pytest.mark.parametrize("num_wires", [1, 2, 9])
@every_case
def test_first_and_second_derivatives_are_finite_differences(kernel, initial, num_wires):
    given = [*draw(num_wires, initial=initial, rows=2)]
    angles = draw_angles("uneven, a != b", 2)
    inputs = [x.requires_grad_() for x in (given[0], given[1], angles, given[2]) if x is not None and x.numel()]

    def run(*values):
        left = iter(values)
        fields = next(left)
        couplings = next(left) if given[1].numel() else given[1]
        return run_kernel(kernel, fields, couplings, next(left), next(left, None))

    assert torch.autograd.gradcheck(run, inputs, fast_mode=num_wires > 2)
    assert torch.autograd.gradgradcheck(run, inputs, fast_mode=num_wires > 2)


@pytest.mark.parametrize("wanted", range(4))
def test_each_input_alone_has_the_gradient_it_has_among_all(wanted):
    fields, couplings, initial = draw(3, initial=True)
    inputs = [fields, couplings, draw_angles("uneven, a != b", 3), initial]
    expected = gradients(run_kernel, quench_state, *inputs)[1][wanted]
    inputs[wanted] = inputs[wanted].clone().requires_grad_()
    result = quench_state(*inputs)
    weigh(result).backward()
    assert (inputs[wanted].grad - expected).abs().max() < 1e-13
    assert [x.grad is None for x in inputs] == [index != wanted for index in range(4)]


@pytest.mark.parametrize("num_wires", [1, 4, 6, 10])
def test_probabilities_are_not_negative_and_sum_to_one_whatever_the_inputs(num_wires):
    fields, couplings = (x.requires_grad_() for x in draw(num_wires)[:2])
    angles = draw_angles("linear", 6).requires_grad_()
    p = quench_probabilities(fields, couplings, angles)
    assert (p >= 0).all()
    assert (p.sum(-1) - 1).abs().max() < 1e-13
    for found in torch.autograd.grad(p.sum(), (fields, couplings, angles)):
        assert found.numel() == 0 or found.abs().max() < 1e-13


@every_case
def test_float32_runs_in_float32_with_rounding_errors_only(kernel, initial):
    fields, couplings, start = draw(8, initial=initial, dtype=torch.float32)
    angles = draw_angles("linear", 8)
    found = gradients(run_kernel, kernel, fields, couplings, angles, start)
    wide = [
        None if x is None else x.to(torch.complex128 if x.is_complex() else torch.float64)
        for x in (fields, couplings, start)
    ]
    exact = gradients(run_kernel, kernel, wide[0], wide[1], angles, wide[2])
    assert found[0].dtype == (torch.float32 if kernel is quench_probabilities else torch.complex64)
    assert (found[0] - exact[0]).abs().max() > 0
    bound = 8 * 8 * torch.finfo(torch.float32).eps
    assert (found[0] - exact[0]).abs().max() < bound * exact[0].abs().max()
    for ours, theirs, given in zip(found[1], exact[1], (fields, couplings, angles, start), strict=False):
        assert ours.dtype == given.dtype
        assert (ours - theirs).abs().max() < bound * theirs.abs().max()


@pytest.mark.parametrize(
    ("dtypes", "result"),
    [
        ((torch.float32, torch.float64, torch.complex64), torch.complex128),
        ((torch.float32, torch.float32, torch.complex128), torch.complex128),
        ((torch.float32, torch.float32, torch.complex64), torch.complex64),
    ],
)
def test_results_have_the_widest_dtype_and_gradients_that_of_their_input(dtypes, result):
    inputs = [x.to(dtype).requires_grad_() for x, dtype in zip(draw(3, initial=True), dtypes, strict=True)]
    angles = draw_angles("linear", 3).float().requires_grad_()
    psi = quench_state(inputs[0], inputs[1], angles, inputs[2])
    assert psi.dtype == result
    psi.abs().sum().backward()
    assert [x.grad.dtype for x in inputs] == list(dtypes)
    assert angles.grad.dtype == torch.float32


@pytest.mark.parametrize("memory_budget", [1, 2**30])
@every_case
def test_no_input_and_no_gradient_is_changed_in_place(kernel, initial, memory_budget):
    given = [x for x in (*draw(5, initial=initial), draw_angles("linear", 4)) if x is not None]
    before = [x.clone() for x in given]
    for x in given:
        x.requires_grad_()
    result = run_kernel(
        kernel, given[0], given[1], given[-1], given[2] if initial is not None else None, memory_budget=memory_budget
    )
    kept, weights = result.detach().clone(), torch.ones_like(result) * 0.3
    found = torch.autograd.grad(result, given, weights, retain_graph=True)
    assert torch.equal(weights, torch.full_like(weights, 0.3))
    assert torch.equal(result, kept)
    assert all(torch.equal(x, old) for x, old in zip(given, before, strict=True))
    again = torch.autograd.grad(result, given, weights)
    assert all(torch.equal(one, two) for one, two in zip(found, again, strict=True))


def saved_bytes(steps, kernel, initial, memory_budget):
    """Bytes that the graph keeps for the backward pass, beside the angles."""
    fields, couplings, start = draw(6, initial=initial, rows=20)
    angles = draw_angles("linear", steps)
    sizes = []

    def count(x):
        if x.data_ptr() != angles.data_ptr():
            sizes.append(x.numel() * x.element_size())
        return x

    with torch.autograd.graph.saved_tensors_hooks(count, lambda x: x):
        run_kernel(
            kernel,
            fields.requires_grad_(),
            couplings.requires_grad_(),
            angles.requires_grad_(),
            start,
            memory_budget=memory_budget,
        )
    return sum(sizes)


@pytest.mark.parametrize("memory_budget", [1, 2**30])
@every_case
def test_saved_memory_does_not_grow_with_the_steps(kernel, initial, memory_budget):
    few = saved_bytes(2, kernel, initial, memory_budget)
    assert few == saved_bytes(40, kernel, initial, memory_budget)
    states = 20 * 2**6 * 16
    inputs = 20 * (6 + 15) * 8 + {None: 0, False: 2**6 * 16, True: states}[initial]
    assert few == inputs + (0 if memory_budget == 1 else states)


@every_case
def test_autocast_changes_nothing(kernel, initial):
    fields, couplings, start = draw(5, initial=initial, dtype=torch.float32)
    inputs = (kernel, fields, couplings, draw_angles("linear", 3), start)
    outside = gradients(run_kernel, *inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = gradients(run_kernel, *inputs)
    assert torch.equal(inside[0], outside[0])
    assert all(torch.equal(one, two) for one, two in zip(inside[1], outside[1], strict=True))


def test_gradients_work_after_a_first_run_under_inference_mode():
    fields, couplings, initial = draw(5, initial=True)
    angles = draw_angles("linear", 2)
    for made_once in (quench.energy_matrices, quench.mixer_generator, quench.quarter_turns):
        made_once.cache_clear()
    with torch.inference_mode():
        first = quench_state(fields, couplings, angles, initial)
    second, found = gradients(run_kernel, quench_state, fields, couplings, angles, initial)
    assert torch.equal(first, second)
    assert all(x.isfinite().all() for x in found)
