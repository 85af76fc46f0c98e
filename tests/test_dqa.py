"""The quantum layer: its numbers, its gradients, and that a removed spin leaves no trace."""

import numpy as np
import pytest
import torch
from trotter_oracle import boltzmann_magnetizations, magnetizations, trotter_state

from hybrid_attention import DQALayer, LinearSchedule

SCHEDULE = LinearSchedule(4, 4.0)
DEVICES = ("hybrid.statevector", "default.qubit", "lightning.qubit")
on_every_device = pytest.mark.parametrize("name", DEVICES)


def build(num_spins, num_heads=1, name="hybrid.statevector", seed=0, spread=0.4, **settings):
    layer = DQALayer(num_spins, num_heads, device=name, **{"schedule": SCHEDULE, **settings}).double()
    with torch.no_grad():
        layer.couplings.normal_(0.1, spread, generator=torch.Generator().manual_seed(seed))
    return layer


def draw_fields(*shape, seed=1, spread=0.6):
    values = 0.2 + spread * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return values.requires_grad_()


def gradients(layer, fields, present=None):
    """dL/dfields and dL/dcouplings of a loss that tells all outputs apart."""
    p = layer(fields, present)
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    return torch.autograd.grad((weights * p).sum(), (fields, layer.couplings))


@on_every_device
@pytest.mark.parametrize("num_spins", [1, 2, 4])
def test_layer_is_the_matrix_oracle_at_rescaled_fields_and_couplings(name, num_spins):
    layer = build(num_spins, 2, name, clip=False)
    fields = draw_fields(2, 2, 3, num_spins)
    p = layer(fields).detach().numpy()
    h, J = fields.detach().numpy() / SCHEDULE.beta_h, layer.couplings.detach().numpy() / SCHEDULE.beta_J
    for row, head, query in np.ndindex(2, 2, 3):
        psi = trotter_state(h[row, head, query], J[head], SCHEDULE.angles())
        expected = (1 + magnetizations(psi, num_spins)) / 2
        assert p[row, head, query] == pytest.approx(expected, abs=1e-10)


def test_magnetizations_follow_the_boltzmann_distribution():
    """At tau = 8, P = 40, T = 8 a prototype measured a correlation of 0.992 and an rms error of 0.059."""
    layer = DQALayer(8, 24, schedule=LinearSchedule(40, 8.0)).double()
    fields = 0.5 * torch.randn(8, 24, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.couplings.normal_(0, 0.2, generator=torch.Generator().manual_seed(1))
        m = 2 * layer(fields)[:, :, 0].numpy() - 1
    J = layer.couplings.detach().numpy()
    exact = np.stack([boltzmann_magnetizations(fields[:, head, 0].numpy(), J[head]) for head in range(24)], axis=1)
    correlation = np.corrcoef(m.ravel(), exact.ravel())[0, 1]
    rms = np.sqrt(np.mean((m - exact) ** 2))
    print(f"correlation {correlation:.4f}, rms error {rms:.4f} of rms {np.sqrt(np.mean(exact**2)):.4f}")
    assert correlation > 0.985
    assert rms < 0.075


@on_every_device
def test_weak_fields_and_couplings_reach_the_boltzmann_limit(name):
    """To first order in both, m = h, as for the exact distribution."""
    layer = build(3, name=name)
    with torch.no_grad():
        layer.couplings.mul_(1e-4)
    fields = 1e-4 * draw_fields(2, 1, 3)
    assert (2 * layer(fields) - 1 - fields).abs().max() < 1e-7


@on_every_device
def test_gradients_are_the_finite_differences(name):
    layer, fields, step = build(3, 2, name), draw_fields(2, 2, 2, 3), 1e-6
    present = torch.rand(2, 2, 2, 3, generator=torch.Generator().manual_seed(2)) > 0.3
    by_fields, by_couplings = gradients(layer, fields, present)

    def loss():
        p = layer(fields, present)
        return float((torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape) * p).sum())

    with torch.no_grad():
        for values, found in ((fields, by_fields), (layer.couplings, by_couplings)):
            flat = values.view(-1)
            for i in range(len(flat)):
                center = flat[i].item()
                flat[i] = center + step
                above = loss()
                flat[i] = center - step
                below = loss()
                flat[i] = center
                assert float(found.reshape(-1)[i]) == pytest.approx((above - below) / (2 * step), abs=1e-8)


def test_devices_and_gradient_methods_agree():
    fields = draw_fields(3, 2, 2, 4)
    present = torch.ones(2, 4, dtype=torch.bool).tril(2)
    reference = build(4, 2, gradient="backprop")
    for name, method in (("default.qubit", "adjoint"), ("lightning.qubit", "adjoint"), ("lightning.qubit", "auto")):
        layer = build(4, 2, name, gradient=method)
        assert (layer(fields, present) - reference(fields, present)).abs().max() < 1e-10
        for ours, theirs in zip(gradients(layer, fields, present), gradients(reference, fields, present), strict=True):
            assert (ours - theirs).abs().max() < 1e-9


def test_auto_takes_the_devices_best_gradient():
    assert build(2).gradient == "backprop"
    assert build(2, name="lightning.qubit").gradient == "adjoint"


@on_every_device
@pytest.mark.parametrize("value", [1e6, float("nan"), float("inf")])
def test_a_removed_spin_leaves_no_trace(name, value):
    layer, fields = build(4, name=name), draw_fields(2, 1, 2, 4)
    present = torch.tensor([True, False, True, True])
    changed = fields.detach().clone()
    changed[..., 1] = value
    changed.requires_grad_()
    p = layer(fields, present)
    assert torch.equal(layer(changed, present), p)
    assert (p[..., 1] == 0).all()
    for ours, theirs in zip(gradients(layer, changed, present), gradients(layer, fields, present), strict=True):
        assert torch.equal(ours, theirs)
    by_fields, by_couplings = gradients(layer, fields, present)
    assert (by_fields[..., 1] == 0).all()
    pairs_of_removed = [0, 3, 4]  # (0, 1), (1, 2), (1, 3)
    assert (by_couplings[0, pairs_of_removed] == 0).all()
    assert (by_couplings[0, [1, 2, 5]] != 0).all()
    with torch.no_grad():
        layer.couplings[0, pairs_of_removed] = 7.0
    assert torch.equal(layer(fields, present), p)


@on_every_device
def test_removal_equals_the_smaller_problem(name):
    layer, fields = build(4, name=name), draw_fields(2, 1, 2, 4)
    keep, pairs = [0, 2, 3], [1, 2, 5]
    smaller = build(3, name=name)
    with torch.no_grad():
        smaller.couplings.copy_(layer.couplings[:, pairs])
    p = layer(fields, torch.tensor([True, False, True, True]))
    assert (p[..., keep] - smaller(fields[..., keep])).abs().max() < 1e-12


@on_every_device
def test_a_causal_prefix_equals_the_shorter_problem(name):
    layer, fields = build(4, 2, name), draw_fields(2, 2, 4, 4)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    whole = layer(fields, causal)
    for length in range(1, 5):
        short = layer(fields[..., :length, :length], causal[:length, :length])
        assert (whole[..., :length, :length] - short).abs().max() < 1e-12
    later = fields.detach().clone()
    later[..., 3] += 1.0
    assert torch.equal(layer(later, causal)[..., :3, :], whole[..., :3, :])


@on_every_device
def test_a_short_input_uses_the_leading_block_of_the_couplings(name):
    layer, fields = build(4, 2, name), draw_fields(2, 2, 2)
    with torch.no_grad():
        block = layer.coupling_matrix(2)[:, 0, 1]
        smaller = build(2, 2, name)
        smaller.couplings.copy_(block.unsqueeze(1))
    assert torch.equal(layer(fields), smaller(fields))
    by_couplings = gradients(layer, fields)[1]
    assert (by_couplings[:, 1:] == 0).all()
    assert (by_couplings[:, 0] != 0).all()


@on_every_device
def test_a_query_with_nothing_present_is_zero_with_finite_gradients(name):
    layer, fields = build(3, name=name), draw_fields(2, 1, 2, 3)
    present = torch.tensor([[False, False, False], [True, True, False]])
    p = layer(fields, present)
    assert (p[:, :, 0] == 0).all()
    assert all(found.isfinite().all() for found in gradients(layer, fields, present))
    assert (layer(fields, torch.tensor(False)) == 0).all()


@on_every_device
@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 2, 0), (2, 2, 0, 3), (0, 2, 0)])
def test_empty_input(name, shape):
    layer, fields = build(3, 2, name), draw_fields(*shape)
    p = layer(fields)
    assert p.shape == shape
    p.sum().backward()
    assert layer.metrics() == {}
    assert DQALayer(0, device=name)(torch.zeros(2, 1, 0)).shape == (2, 1, 0)


@on_every_device
def test_heads_have_their_own_couplings_and_rows_keep_their_order(name):
    layer, fields = build(3, 2, name), draw_fields(3, 2, 2, 3)
    whole = layer(fields)
    for head in range(2):
        single = build(3, 1, name)
        with torch.no_grad():
            single.couplings.copy_(layer.couplings[head : head + 1])
        assert (single(fields[:, head : head + 1]) - whole[:, head : head + 1]).abs().max() < 1e-12
    assert (layer(fields.flip(0)) - whole.flip(0)).abs().max() < 1e-12


def test_clip_leaves_small_fields_and_bounds_large_ones():
    clipped, free = build(1), build(1, clip=False)
    limit = SCHEDULE.max_field
    small = torch.linspace(-limit / 2, limit / 2, 101, dtype=torch.float64).view(-1, 1, 1)
    assert (clipped(small) - free(small)).abs().max() < 1e-3
    growing = torch.linspace(-3 * limit, 3 * limit, 1001, dtype=torch.float64).view(-1, 1, 1)
    assert (clipped(growing).diff(dim=0) > 0).all()
    assert (free(growing).diff(dim=0) < 0).any()


@on_every_device
@pytest.mark.parametrize("value", [0.0, 1e4, -1e4, 1e30, 1e100])
def test_gradients_are_finite_at_any_field(name, value):
    layer, fields = build(2, name=name), draw_fields(2, 1, 2)
    with torch.no_grad():
        fields[0, 0, 0] = value
    p = layer(fields)
    assert ((p >= 0) & (p <= 1)).all()
    assert all(found.isfinite().all() for found in gradients(layer, fields))
    if value:
        assert (p[0, 0, 0] > 0.5) == (value > 0)


def test_clipped_fields_are_counted_among_the_present_ones():
    layer = build(2)
    assert layer.metrics() == {}
    fields = torch.tensor([[[0.1, 50.0]], [[-50.0, 50.0]]], dtype=torch.float64, requires_grad=True)
    layer(fields)
    counted = layer.metrics()["clipped_fields"]
    assert counted.item() == 0.75
    assert not counted.requires_grad
    layer(fields, torch.tensor([True, False]))
    assert layer.metrics()["clipped_fields"].item() == 0.5
    layer(fields, torch.tensor(False))
    assert layer.metrics()["clipped_fields"].item() == 0
    assert set(layer.state_dict()) == {"couplings"}


@on_every_device
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_circuits_answer_in_the_dtype_given_and_run_in_float32_or_better(name, dtype):
    layer = DQALayer(3, device=name, schedule=SCHEDULE)
    fields = draw_fields(2, 1, 3).detach().to(dtype)
    p = layer(fields)
    assert p.dtype == dtype
    rounding = torch.finfo(dtype).eps if dtype.itemsize == 2 else 20 * torch.finfo(dtype).eps
    assert (p.double() - layer(fields.double())).abs().max() < rounding
    assert layer.couplings.dtype == torch.float32
