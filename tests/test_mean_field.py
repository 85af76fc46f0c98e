"""Mean field and TAP: closed forms, orders of their errors, implicit gradients, and a convergence that is reported."""

import copy
import warnings

import pytest
import torch
from conftest import build_layer, draw_fields
from oracle import causal_mask, draw, largest_difference

from hybrid_attention import ExactLayer, MeanFieldLayer

both = pytest.mark.parametrize("tap", [False, True], ids=["naive", "tap"])


def build(num_spins, tap, spread, heads=1, seed=0, **settings):
    layer = MeanFieldLayer(num_spins, heads, tap=tap, **settings).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, seed=seed, spread=spread))
    return layer


@both
@pytest.mark.parametrize("spread", [0.1, 1.0, 5.0])
def test_the_solution_satisfies_the_equations(tap, spread):
    layer, fields = build(9, tap, spread), draw_fields(40, 1, 9)
    m = 2 * layer(fields)[:, 0].detach() - 1
    J = layer.coupling_matrix()[0].detach()
    x = fields[:, 0] + m @ J - (m * ((1 - m**2) @ J**2) if tap else 0)
    if layer.metrics()["unconverged"] == 0:
        assert largest_difference(torch.tanh(x), m) < 1e-11
    else:
        assert largest_difference(torch.tanh(x), m) < 1e-2
    assert layer.metrics()["unconverged"] <= 0.05


@pytest.mark.parametrize(("tap", "order"), [(False, 2), (True, 3)])
def test_errors_fall_with_the_order_of_the_expansion_in_the_couplings(tap, order):
    """Naive mean field is right to first order in J, TAP to second (the Plefka expansion)."""
    found = []
    for scale in (0.02, 0.01):
        layer, exact = build(6, tap, scale), ExactLayer(6).double()
        exact.load_state_dict(layer.state_dict())
        fields = draw_fields(30, 1, 6)
        found.append(float((layer(fields) - exact(fields)).detach().square().mean().sqrt()))
    assert torch.log2(torch.tensor(found[0] / found[1])).item() == pytest.approx(order, abs=0.25)


@both
def test_gradcheck(tap):
    layer, fields = build(4, tap, 0.3, heads=2), draw_fields(1, 2, 2, 4).requires_grad_()
    present = torch.tensor([True, True, False, True])

    def function(fields, couplings):
        return torch.func.functional_call(layer, {"couplings": couplings}, (fields, present))

    assert torch.autograd.gradcheck(function, (fields, layer.couplings))


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("field", "coupling"), [(1e4, 50.0), (1.0, 50.0), (0.0, 5.0), (1e-3, 1.0)])
def test_strong_couplings_give_finite_marginals_and_gradients(tap, dtype, field, coupling):
    layer = build(8, tap, coupling, max_iterations=50).to(dtype)
    fields = (field * draw_fields(4, 1, 8, 8)).to(dtype).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        p = layer(fields, causal_mask(8))
    p.square().sum().backward()
    assert ((p >= 0) & (p <= 1)).all()
    assert fields.grad.isfinite().all()
    assert layer.couplings.grad.isfinite().all()


@both
def test_negative_fields_keep_their_relative_precision_in_float32(tap):
    layer = build(6, tap, 0.2)
    fields = torch.full((1, 1, 6), -12.0, dtype=torch.float64)
    expected = layer(fields)
    p = copy.deepcopy(layer).float()(fields.float())
    assert ((p - expected).abs() <= 1e-4 * expected).all()
    assert (p > 0).all()


def test_rows_that_do_not_converge_are_reported_and_warn_once():
    layer, fields = build(6, False, 1.0, max_iterations=2), draw_fields(5, 1, 6)
    with pytest.warns(UserWarning, match="of the queries of a MeanFieldLayer did not converge in 2 iterations"):
        layer(fields)
    found = layer.metrics()
    assert found["unconverged"] > 0.5
    assert found["residual"] > 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(fields)
    assert build(6, False, 0.1)(fields).shape == fields.shape


def test_rows_converge_on_their_own():
    layer, fields = build_layer("mean field", 6, 3), draw_fields(30, 3, 6)
    alone = torch.cat([layer(row[None]) for row in fields])
    assert largest_difference(layer(fields), alone) < 1e-12


@pytest.mark.parametrize("settings", [{"max_iterations": 0}, {"max_iterations": 1.5}, {"tolerance": 0.0}])
def test_settings_that_do_not_fit_are_named(settings):
    with pytest.raises(ValueError, match="take a whole number of 1 or more, and a positive number or None"):
        MeanFieldLayer(3, **settings)
