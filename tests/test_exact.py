"""Exact marginals against enumeration by loops and by one table, in value and gradient, on every path of the code."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import causal_mask, draw, draw_mask, largest_difference, marginals_by_loops, marginals_by_table

import hybrid_attention.exact
import hybrid_attention.meet_in_the_middle
import hybrid_attention.native_rows
from hybrid_attention import exact_marginals

pytestmark = pytest.mark.usefixtures("each_path")
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
both_precisions = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])


def loop_over_rows(fields, couplings, present=None):
    present = torch.ones(fields.shape[-1], dtype=torch.bool) if present is None else present
    length = fields.shape[-1]
    leading = torch.broadcast_shapes(fields.shape[:-1], couplings.shape[:-2], present.shape[:-1])
    h, J = fields.expand(*leading, length), couplings.expand(*leading, length, length)
    keep = present.expand(*leading, length)
    p = torch.zeros(*leading, length, dtype=torch.float64)
    for row in itertools.product(*map(range, leading)):
        p[row] = marginals_by_loops(h[row], J[row], keep[row])
    return p


def gradients(function, fields, couplings, present):
    """p, dL/dfields and dL/dcouplings, for a loss that tells all outputs apart."""
    fields, couplings = fields.detach().clone().requires_grad_(), couplings.detach().clone().requires_grad_()
    p = function(fields, couplings, present)
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    return p.detach(), *torch.autograd.grad((weights * p).sum(), (fields, couplings))


def assert_equal_to_the_table(fields, couplings, present, tolerance, scale=1.0):
    """Values, and gradients relative to the largest one: a coupling sums over all rows."""
    ours = gradients(exact_marginals, fields, couplings, present)
    theirs = gradients(marginals_by_table, fields.double(), couplings.double(), present)
    for mine, reference in zip(ours, theirs, strict=True):
        assert largest_difference(mine, reference) <= scale * tolerance * max(1.0, float(reference.abs().max()))


MASKS = {
    "none": lambda length: None,
    "causal": causal_mask,
    "causal, shuffled": lambda length: causal_mask(length).flip(0),
    "random holes": lambda length: draw_mask(length, length, seed=length),
    "padding": lambda length: torch.arange(length) < max(1, length - 2),
    "left padding": lambda length: torch.arange(length) >= length // 2,
    "causal and padding": lambda length: causal_mask(length) & (torch.arange(length) != length // 3),
    "some rows empty": lambda length: draw_mask(length, length, seed=length) & draw_mask(length, 1, seed=1),
    "nothing present": lambda length: torch.zeros(length, length, dtype=torch.bool),
}


@both_precisions
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 5, 8])
def test_marginals_are_those_of_the_enumeration(length, mask, dtype):
    h = draw(length, length, seed=1, center=0.3).to(dtype)
    J = draw(length, length, seed=2, center=-0.1, spread=0.7).to(dtype)
    present = MASKS[mask](length)
    p = exact_marginals(h, J, present)
    assert p.dtype == dtype
    assert largest_difference(p, loop_over_rows(h, J, present)) < TOLERANCE[dtype]


@both_precisions
@pytest.mark.parametrize("length", range(9, 13))
def test_marginals_of_more_spins_are_those_of_the_enumeration(length, dtype):
    h, J = draw(2, length, seed=length).to(dtype), draw(length, length, seed=2, spread=0.5).to(dtype)
    present = torch.stack((torch.ones(length, dtype=torch.bool), draw_mask(length, seed=3)))
    assert largest_difference(exact_marginals(h, J, present), loop_over_rows(h, J, present)) < TOLERANCE[dtype]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), length=st.integers(0, 6), rows=st.integers(0, 3), heads=st.integers(1, 2))
def test_small_models_drawn_at_random(data, length, rows, heads):
    def numbers(*shape, bound):
        size = math.prod(shape)
        values = data.draw(st.lists(st.floats(-bound, bound, width=32), min_size=size, max_size=size))
        return torch.tensor(values, dtype=torch.float64).view(shape)

    size = rows * heads * length
    bits = data.draw(st.none() | st.lists(st.booleans(), min_size=size, max_size=size))
    h, J = numbers(rows, heads, length, bound=20), numbers(heads, length, length, bound=5)
    present = None if bits is None else torch.tensor(bits, dtype=torch.bool).view(h.shape)
    expected = loop_over_rows(h, J, present)
    assert largest_difference(exact_marginals(h, J, present), expected) < 1e-10
    assert largest_difference(exact_marginals(h.float(), J.float(), present), expected) < 1e-5


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_gradcheck(length, mask):
    h = draw(length, length, seed=3, center=0.4).requires_grad_()
    J = draw(length, length, seed=4, center=0.2, spread=0.8).requires_grad_()
    assert torch.autograd.gradcheck(lambda h, J: exact_marginals(h, J, MASKS[mask](length)), (h, J))


@pytest.mark.parametrize("mask", ["none", "causal", "random holes"])
def test_gradcheck_with_heads(mask):
    h, J = draw(2, 2, 3, 3).requires_grad_(), draw(2, 1, 3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda h, J: exact_marginals(h, J, MASKS[mask](3)), (h, J))


@both_precisions
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 9, 10])
def test_gradients_are_those_of_autograd_through_the_table(length, mask, dtype):
    h, J = draw(3, length, length, seed=5, center=-0.3), draw(length, length, seed=6, spread=0.6)
    assert_equal_to_the_table(h.to(dtype), J.to(dtype), MASKS[mask](length), TOLERANCE[dtype])


@both_precisions
@pytest.mark.parametrize("mask", ["none", "causal", "causal and padding"])
@pytest.mark.parametrize("length", [12, 13, 16, 17])
def test_large_models_agree_with_the_table(length, mask, dtype):
    """Rows fall into several buckets of sizes; odd sizes have halves that differ."""
    rows = slice(None, None, 1 if length < 16 else 4)
    present = MASKS[mask](length)
    present = None if present is None else present[rows].contiguous()
    h = draw(2 if present is None else len(present), length, seed=7).to(dtype)
    assert_equal_to_the_table(h, draw(length, length, seed=8, spread=0.4).to(dtype), present, TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("fields", "couplings", "present"),
    [
        ((4,), (4, 4), None),
        ((4,), (4, 4), (4,)),
        ((5, 4), (4, 4), (4,)),
        ((4,), (5, 4, 4), None),
        ((4,), (4, 4), (5, 4)),
        ((3, 5, 4), (5, 4, 4), (3, 1, 4)),
        ((3, 5, 4), (3, 1, 4, 4), (5, 4)),
        ((3, 5, 4), (3, 5, 4, 4), (3, 5, 4)),
        ((2, 3, 5, 4), (3, 1, 4, 4), (2, 1, 1, 4)),
        ((2, 3, 5, 4), (3, 1, 4, 4), (5, 4)),
        ((2, 3, 5, 4), (3, 1, 4, 4), (2, 1, 5, 4)),
        ((2, 3, 5, 4), (3, 1, 4, 4), (2, 3, 5, 4)),
        ((2, 3, 5, 4), (2, 1, 5, 4, 4), (3, 1, 4)),
        ((2, 1, 5, 4), (3, 1, 4, 4), (1, 3, 1, 4)),
        ((5, 1, 1, 2, 4), (3, 2, 1, 4, 4), (3, 1, 1, 4)),
        ((2, 3, 4), (2, 3, 4, 4), (3, 4)),
        ((2, 3, 4), (2, 3, 4, 4), (2, 1, 4)),
        ((5, 2, 3, 4), (2, 3, 4, 4), (5, 1, 3, 4)),
        ((2, 5, 3, 4), (2, 1, 3, 4, 4), (2, 5, 1, 4)),
        ((0, 4), (4, 4), None),
        ((0, 4), (4, 4), (4,)),
        ((2, 0, 3, 4), (3, 4, 4), (3, 4)),
        ((4,), (0, 4, 4), None),
        ((2, 3, 0), (3, 0, 0), (2, 1, 0)),
    ],
)
def test_leading_shapes_broadcast(fields, couplings, present):
    h, J = draw(*fields), draw(*couplings, seed=1)
    mask = None if present is None else draw_mask(*present, seed=2)
    leading = torch.broadcast_shapes(fields[:-1], couplings[:-2], (present or fields)[:-1])
    assert exact_marginals(h, J, mask).shape == (*leading, fields[-1])
    assert largest_difference(exact_marginals(h, J, mask), loop_over_rows(h, J, mask)) < 1e-10
    if 0 not in (*leading, fields[-1]):
        assert_equal_to_the_table(h, J, mask, 1e-10)


@pytest.mark.parametrize("mask", ["none", "random holes"])
@pytest.mark.parametrize("length", [4, 10])
@pytest.mark.parametrize("filler", [7.0, 1e30, math.inf, math.nan])
def test_lower_triangle_and_diagonal_are_not_read(length, mask, filler):
    h, J, present = draw(length, length), draw(length, length, seed=1), MASKS[mask](length)
    upper = torch.ones(length, length, dtype=torch.bool).triu(1)
    ours = gradients(exact_marginals, h, torch.where(upper, J, filler), present)
    theirs = gradients(exact_marginals, h, torch.where(upper, J, 0.0), present)
    for mine, reference in zip(ours, theirs, strict=True):
        assert largest_difference(mine, reference) < 1e-12
    assert (ours[2][~upper] == 0).all()
    assert (ours[2][upper] != 0).all()


@pytest.mark.parametrize("mask", ["none", "causal", "random holes", "some rows empty"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(mask, dtype):
    h, J, present = draw(7, 7, center=-4.0).to(dtype), draw(7, 7, seed=1).to(dtype), MASKS[mask](7)
    p, by_fields, by_couplings = gradients(exact_marginals, h, J, present)
    assert p.dtype == by_fields.dtype == by_couplings.dtype == dtype
    assert torch.equal(p, exact_marginals(h.float(), J.float(), present).to(dtype))
    _, exact_fields, exact_couplings = gradients(marginals_by_table, h.double(), J.double(), present)
    resolution = 4 * torch.finfo(dtype).eps
    assert largest_difference(by_fields, exact_fields) < resolution * float(exact_fields.abs().max())
    assert largest_difference(by_couplings, exact_couplings) < resolution * float(exact_couplings.abs().max())


def test_autocast_changes_nothing():
    h, J, present = draw(7, 7).float(), draw(7, 7, seed=1).float(), MASKS["causal"](7)
    expected = exact_marginals(h, J, present)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = exact_marginals(h, J, present)
    assert torch.equal(found, expected)


def test_fields_decide_the_precision_of_the_result():
    h, J = draw(4), draw(4, 4, seed=1)
    expected = marginals_by_loops(h, J.float())
    assert largest_difference(exact_marginals(h, J.float()), expected) < 1e-10
    assert exact_marginals(h.float(), J).dtype == torch.float32


@both_precisions
@pytest.mark.parametrize("mask", ["none", "causal", "random holes", "causal and padding"])
@pytest.mark.parametrize("length", [4, 9, 13])
@pytest.mark.parametrize(("in_a_piece", "saved"), [(1, 0), (2**10, 0), (2**10, 2**22)])
def test_rows_solved_in_pieces_agree_with_the_table(monkeypatch, in_a_piece, saved, length, mask, dtype):
    """However few rows fit at once, and whether or not their tables are kept for the backward pass."""
    monkeypatch.setattr(hybrid_attention.meet_in_the_middle, "_PIECE_ENTRIES", in_a_piece)
    monkeypatch.setattr(hybrid_attention.meet_in_the_middle, "_SAVED_ENTRIES", saved)
    monkeypatch.setattr(hybrid_attention.native_rows, "_SAVED_ENTRIES", saved)
    present = MASKS[mask](length)
    present = None if present is None else present[::4].unsqueeze(1)
    h = draw(1 if present is None else len(present), 9, length, seed=9).to(dtype)
    assert_equal_to_the_table(h, draw(length, length, seed=10, spread=0.5).to(dtype), present, TOLERANCE[dtype])


@pytest.mark.slow
def test_half_a_million_rows_agree_with_the_table():
    """More rows than fit in a piece, and more than are kept for the backward pass, at the real limits."""
    h, J = draw(530_000, 4), draw(4, 4, seed=1)
    assert_equal_to_the_table(h, J, None, 1e-10)


@pytest.mark.parametrize("mask", ["none", "causal", "random holes"])
@pytest.mark.parametrize("shared", [False, True], ids=["mask of each group", "shared mask"])
def test_more_groups_than_fit_at_once_agree_with_the_table(monkeypatch, mask, shared):
    monkeypatch.setattr(hybrid_attention.exact, "_PAIR_ENTRIES", 2 * 2**5)
    present = MASKS[mask](5)
    if present is not None and not shared:
        present = torch.stack([present.roll(group, 0) for group in range(7)])
    assert_equal_to_the_table(draw(3, 7, 5, 5), draw(7, 1, 5, 5, seed=1), present, 1e-10)


def test_more_groups_than_fit_at_once_at_the_real_limit():
    """Of 18 spins 64 groups fit at once; the last group of 65 has spins that couple in pairs alone, by hand."""
    h, J = torch.zeros(65, 18), torch.zeros(65, 18, 18)
    h[:, 0], J[:, 0, 17] = 0.7, torch.linspace(-1, 1, 65)
    p = exact_marginals(h, J)
    magnetization = math.tanh(0.7) * torch.tanh(J[:, 0, 17])
    assert largest_difference(p[:, 17], (1 + magnetization) / 2) < 1e-5
    assert largest_difference(p[:, 1:17], torch.full((65, 16), 0.5)) < 1e-5


def test_rows_do_not_depend_on_each_other():
    """A row alone gives what it gives among others that underflow or have other spins."""
    h, J = draw(6, 6, seed=11).float(), draw(6, 6, seed=12).float()
    h[3] = torch.tensor([500.0, -500.0] * 3)
    present = draw_mask(6, 6, seed=13)
    together = exact_marginals(h, J, present)
    for row in range(6):
        assert largest_difference(together[row], exact_marginals(h[row], J, present[row])) < 1e-6


def test_gradients_of_one_input_alone():
    h, J, present = draw(5, 5), draw(5, 5, seed=1), MASKS["random holes"](5)
    _, by_fields, by_couplings = gradients(exact_marginals, h, J, present)
    weights = torch.linspace(-1, 2, 25, dtype=torch.float64).view(5, 5)
    h.requires_grad_()
    assert torch.equal(torch.autograd.grad((weights * exact_marginals(h, J, present)).sum(), h)[0], by_fields)
    h.requires_grad_(False)
    J.requires_grad_()
    assert torch.equal(torch.autograd.grad((weights * exact_marginals(h, J, present)).sum(), J)[0], by_couplings)


def test_inputs_are_left_as_they_were():
    h, J, present = draw(5, 5), draw(5, 5, seed=1), MASKS["random holes"](5)
    copies = h.clone(), J.clone(), present.clone()
    gradients(exact_marginals, h, J, present)
    assert all(torch.equal(ours, before) for ours, before in zip((h, J, present), copies, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training_works_after_a_first_run_without_gradients(mode):
    """Tables and plans made under inference_mode may not be saved for backward: none may be kept."""
    h, J, present = draw(11, 11), draw(11, 11, seed=1), MASKS["causal"](11)
    with mode():
        silent = exact_marginals(h, J, present)
    p, *_ = gradients(exact_marginals, h, J, present)
    assert torch.equal(silent, p)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mask", ["none", "causal", "random holes"])
@pytest.mark.parametrize("length", [3, 9])
def test_a_present_field_that_is_not_finite_is_an_error(length, mask, value):
    present = MASKS[mask](length)
    h = draw(length, length)
    row, spin = (1, 0) if present is None else (int(x) for x in present.nonzero()[-1])
    h[row, spin] = value
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(ValueError, match=r"NaN or infinite.*`present` removes a spin"):
            exact_marginals(h.to(dtype), draw(length, length, seed=1).to(dtype), present)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("length", [3, 9])
def test_a_coupling_that_is_not_finite_is_an_error(length, value):
    J = draw(length, length)
    J[0, 2] = value
    with pytest.raises(ValueError, match="couplings hold NaN or infinite"):
        exact_marginals(draw(2, length, seed=1), J)


@both_precisions
@pytest.mark.parametrize("value", [1e6, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mask", ["causal", "random holes", "left padding", "some rows empty", "nothing present"])
def test_the_field_of_a_removed_spin_is_ignored(mask, value, dtype):
    present = MASKS[mask](7).expand(7, 7)
    h, J = draw(7, 7).to(dtype), draw(7, 7, seed=1).to(dtype)
    ours = gradients(exact_marginals, torch.where(present, h, value), J, present)
    theirs = gradients(exact_marginals, torch.where(present, h, 0.0), J, present)
    assert all(torch.equal(mine, reference) for mine, reference in zip(ours, theirs, strict=True))
    assert (ours[0][~present] == 0).all()
    assert (ours[1][~present] == 0).all()


@both_precisions
@pytest.mark.parametrize("value", [50.0, 1e6])
def test_the_couplings_of_a_spin_removed_everywhere_reach_nothing(value, dtype):
    h, J, present = draw(5, 6).to(dtype), draw(6, 6, seed=1).to(dtype), draw_mask(5, 6, seed=2)
    present[:, 3] = False
    touched = torch.zeros(6, 6, dtype=torch.bool)
    touched[3, :] = touched[:, 3] = True
    ours = gradients(exact_marginals, h, torch.where(touched, value, J), present)
    theirs = gradients(exact_marginals, h, torch.where(touched, 0.0, J), present)
    for mine, reference in zip(ours, theirs, strict=True):
        assert largest_difference(mine, reference) < (1e-12 if dtype == torch.float64 else 1e-6)
    assert (ours[2][touched] == 0).all()


@pytest.mark.parametrize(
    ("fields", "couplings", "present"),
    [
        (torch.zeros(3, dtype=torch.int64), torch.zeros(3, 3), None),
        (torch.zeros(3), torch.zeros(3, 3, dtype=torch.int64), None),
        (torch.zeros(3, dtype=torch.bool), torch.zeros(3, 3), None),
        (torch.zeros(3, dtype=torch.complex64), torch.zeros(3, 3), None),
        (torch.zeros(3), torch.zeros(3, 3), torch.ones(3)),
        (torch.zeros(3), torch.zeros(3, 3), torch.ones(3, dtype=torch.int64)),
    ],
)
def test_types_that_do_not_fit_are_an_error(fields, couplings, present):
    with pytest.raises(TypeError, match=r"give (a bool tensor|floating-point tensors)"):
        exact_marginals(fields, couplings, present)


@pytest.mark.parametrize(
    ("fields", "couplings", "present"),
    [
        ((), (1, 1), None),
        ((3,), (3,), None),
        ((3,), (4, 4), None),
        ((3,), (3, 4), None),
        ((3,), (1, 1), None),
        ((2, 3), (4, 3, 3), None),
        ((2, 3), (3, 3), (4,)),
        ((2, 3), (3, 3), (1,)),
        ((2, 3), (3, 3), ()),
        ((2, 3), (3, 3), (5, 3)),
    ],
)
def test_shapes_that_do_not_fit_are_named(fields, couplings, present):
    mask = None if present is None else torch.ones(present, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"do not fit: give \(\.\.\., T\), \(\.\.\., T, T\) and \(\.\.\., T\)"):
        exact_marginals(torch.zeros(fields), torch.zeros(couplings), mask)


@pytest.mark.parametrize(("length", "gigabytes"), [(25, "2 GB"), (30, "52 GB"), (40, "52,777 GB")])
def test_too_many_spins_name_the_memory_and_what_to_use(length, gigabytes):
    with pytest.raises(ValueError, match=rf"{length} spins would take about {gigabytes}.*24 spins, or MeanFieldLayer"):
        exact_marginals(torch.zeros(length), torch.zeros(length, length))


def test_differentiating_twice_is_refused_rather_than_wrong():
    h = draw(3).requires_grad_()
    p = exact_marginals(h, draw(3, 3, seed=1))
    (first,) = torch.autograd.grad(p.square().sum(), h, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
