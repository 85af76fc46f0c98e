"""Properties of every layer at sizes, masks and dtypes that are drawn at random."""

import pytest
import torch
from conftest import EXACT, build_layer, every_layer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import draw, draw_mask, largest_difference, marginals_by_table

few = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@st.composite
def inputs(draw_from):
    """A layer's sizes, fields (batch, heads, *more, T) and a mask that broadcasts to them, or None."""
    batch, heads, length = (draw_from(st.integers(1, most)) for most in (3, 3, 4))
    more = draw_from(st.sampled_from([(), (1,), (3,), (2, 2)]))
    shape = (batch, heads, *more, length)
    seed = draw_from(st.integers(0, 1000))
    present = None
    if draw_from(st.booleans()):
        kept = [size if draw_from(st.booleans()) else 1 for size in shape[:-1]]
        present = draw_mask(*kept, length, seed=seed)
        while present.shape[0] == 1 and present.dim() > 1 and draw_from(st.booleans()):
            present = present[0]
    spins = length + draw_from(st.integers(0, 2))
    return spins, draw(*shape, seed=seed, spread=0.8), present


@every_layer
@few
@given(given_input=inputs(), dtype=st.sampled_from(list(TOLERANCE)))
def test_shape_dtype_and_range(kind, given_input, dtype):
    spins, fields, present = given_input
    layer = build_layer(kind, spins, fields.shape[1])
    p = layer(fields.to(dtype), present)
    assert (p.shape, p.dtype) == (fields.shape, dtype)
    assert ((p >= 0) & (p <= 1)).all()
    if present is not None:
        assert (p[~present.expand(p.shape)] == 0).all()
    rounded = layer(fields.to(dtype).double(), present)
    assert largest_difference(p, rounded) <= TOLERANCE[dtype]


@pytest.mark.parametrize("kind", EXACT)
@few
@given(given_input=inputs())
def test_exact_layers_are_the_sum_over_all_states(kind, given_input):
    spins, fields, present = given_input
    layer = build_layer(kind, spins, fields.shape[1])
    length = fields.shape[-1]
    J = layer.coupling_matrix(length).detach().double()
    J = J.view(len(J), *(1,) * (fields.dim() - 3), length, length)
    assert largest_difference(layer(fields, present), marginals_by_table(fields, J, present)) <= 1e-12


@every_layer
@few
@given(given_input=inputs(), seed=st.integers(0, 1000))
def test_what_is_removed_changes_nothing(kind, given_input, seed):
    spins, fields, present = given_input
    layer = build_layer(kind, spins, fields.shape[1])
    present = torch.ones((), dtype=torch.bool) if present is None else present
    other = torch.where(present, fields, draw(*fields.shape, seed=seed, spread=50.0))
    assert largest_difference(layer(fields, present), layer(other, present)) == 0


@every_layer
@few
@given(given_input=inputs())
def test_gradients_are_finite_and_0_at_removed_spins(kind, given_input):
    spins, fields, present = given_input
    layer, fields = build_layer(kind, spins, fields.shape[1]), fields.requires_grad_()
    layer(fields, present).square().sum().backward()
    assert fields.grad.isfinite().all()
    if present is not None:
        assert (fields.grad[~present.expand(fields.shape)] == 0).all()
    if layer.couplings is not None:
        assert layer.couplings.grad is None or layer.couplings.grad.isfinite().all()


@every_layer
@few
@given(given_input=inputs())
def test_a_mask_is_the_same_however_it_broadcasts(kind, given_input):
    spins, fields, present = given_input
    if present is None:
        present = torch.ones(fields.shape[-1], dtype=torch.bool)
    layer = build_layer(kind, spins, fields.shape[1])
    whole = present.expand(fields.shape).contiguous()
    assert largest_difference(layer(fields, present), layer(fields, whole)) <= 1e-12
