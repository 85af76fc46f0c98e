"""The transfer matrix: the same marginals as enumeration, and as closed forms where no enumeration runs."""

import copy
import math

import pytest
import torch
from conftest import gradients
from oracle import causal_mask, draw, draw_mask, largest_difference, marginals_by_loops, marginals_by_table

import hybrid_attention.chain_rows
from hybrid_attention import (
    BandedCouplings,
    BoltzmannAttention,
    ExactLayer,
    FreeCouplings,
    ToeplitzCouplings,
    TransferMatrixLayer,
    exact_marginals,
)
from hybrid_attention.chain_blocks import blocks_of
from hybrid_attention.chain_log_domain import log_domain_marginals
from hybrid_attention.chain_rows import ChainRows
from hybrid_attention.chain_sweeps import ChainSweeps

MASKS = {
    "none": lambda length: None,
    "causal": causal_mask,
    "holes": lambda length: draw_mask(length, length, seed=length, kept=0.6),
    "holes that differ in the batch": lambda length: draw_mask(2, 1, length, length, seed=length, kept=0.7),
    "holes that differ in the heads": lambda length: draw_mask(2, length, length, seed=length, kept=0.7),
    "padding at the start": lambda length: torch.arange(length) >= length // 2,
}
masks = pytest.mark.parametrize("mask", MASKS)


def build(num_spins, num_heads, shape, spread=0.6, center=0.1, kind=TransferMatrixLayer):
    layer = kind(num_spins, num_heads, shape).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, center=center, spread=spread))
    return layer


def chain_by_transfer_matrices(h, J):
    """p of an open chain with couplings J_t of spins t and t + 1: products of 2 x 2 matrices, spin after spin."""
    steps = [torch.stack((j, -j, -j, j)).exp().view(2, 2) for j in J]
    sites = [torch.stack((x, -x)).exp() for x in h]
    p = torch.zeros(len(h), dtype=torch.float64)
    for t in range(len(h)):
        left = torch.ones(2, dtype=torch.float64)
        for site, step in zip(sites[:t], steps[:t], strict=True):
            left = step @ (site * left)
            left = left / left.sum()
        right = torch.ones(2, dtype=torch.float64)
        for site, step in zip(sites[:t:-1], steps[: t - 1 if t else None : -1], strict=True):
            right = step @ (site * right)
            right = right / right.sum()
        weights = left * sites[t] * right
        p[t] = weights[0] / weights.sum()
    return p


@masks
@pytest.mark.parametrize("reach", [0, 1, 2, 3, 4, 5, 6, 7, 8, 11])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 7, 12])
def test_it_equals_enumeration_with_all_gradients(length, reach, mask):
    shape = BandedCouplings(reach)
    layer, exact = build(length, 2, shape), build(length, 2, shape, kind=ExactLayer)
    fields, present = draw(2, 2, length, length, seed=1, center=0.2), MASKS[mask](length)
    for ours, theirs in zip(gradients(layer, fields, present), gradients(exact, fields, present), strict=True):
        assert largest_difference(ours, theirs) < 1e-11


@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_a_range_of_1_is_the_linear_chain(length):
    layer, h = build(length, 1, BandedCouplings(1)), draw(length, seed=2)
    p = chain_by_transfer_matrices(h, layer.couplings.detach()[0])
    assert largest_difference(layer(h.view(1, 1, -1))[0, 0], p) < 1e-13


@pytest.mark.parametrize("reach", [0, 1, 4, 8])
def test_without_couplings_marginals_are_sigmoids_at_any_length(reach):
    fields = draw(1, 1, 300, spread=3.0)
    p = TransferMatrixLayer(300, coupling_shape=ToeplitzCouplings(reach)).double()(fields)
    assert largest_difference(p, torch.sigmoid(2 * fields)) < 1e-13


def test_an_endless_chain_without_fields_correlates_as_its_transfer_matrix():
    """<s_j s_0> = tanh(J)^j: a strong field on the first spin fixes it at +1."""
    layer = TransferMatrixLayer(60, coupling_shape=ToeplitzCouplings(1)).double()
    torch.nn.init.constant_(layer.couplings, 0.7)
    fields = torch.zeros(1, 1, 60, dtype=torch.float64)
    fields[..., 0] = 50
    expected = math.tanh(0.7) ** torch.arange(60, dtype=torch.float64)
    assert largest_difference(2 * layer(fields)[0, 0] - 1, expected) < 1e-12


def test_spins_are_at_distances_by_position_also_where_others_are_removed():
    layer, h = build(5, 1, BandedCouplings(2)), draw(5, seed=3)
    present = torch.tensor([True, False, True, False, True])
    p = layer(h.view(1, 1, -1), present)[0, 0]
    assert largest_difference(p, marginals_by_loops(h, layer.coupling_matrix()[0].detach(), present)) < 1e-13
    cut = torch.tensor([True, False, False, True, True])
    p = layer(h.view(1, 1, -1), cut)[0, 0]
    assert largest_difference(p[0], torch.sigmoid(2 * h[0])) < 1e-13  # spin 3 is out of its range


def test_one_field_moves_all_marginals_of_a_long_chain_as_finite_differences_say():
    layer, fields = build(90, 1, ToeplitzCouplings(6), spread=0.2), draw(1, 1, 90, seed=4).requires_grad_()
    weights = draw(90, seed=5)
    found, by_couplings = torch.autograd.grad((weights * layer(fields)).sum(), (fields, layer.couplings))
    with torch.no_grad():
        for place in (0, 3, 44, 89):
            moved = fields.detach().clone()
            moved[..., place] += 1e-5
            above = (weights * layer(moved)).sum()
            moved[..., place] -= 2e-5
            assert float(found[0, 0, place]) == pytest.approx(
                float(above - (weights * layer(moved)).sum()) / 2e-5, abs=1e-7
            )
        for place in range(6):
            values = []
            for step in (1e-5, -1e-5):
                other = copy.deepcopy(layer)
                other.couplings[..., place] += step
                values.append(float((weights * other(fields)).sum()))
            assert float(by_couplings[0, 0, place]) == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-6)


@pytest.mark.parametrize("mask", ["none", "causal", "holes"])
@pytest.mark.parametrize(("field", "coupling"), [(1e4, 1.0), (1.0, 50.0), (1e4, 50.0), (10.0, 5.0), (100.0, 20.0)])
@pytest.mark.parametrize("reach", [1, 4, 8, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_huge_fields_and_couplings_are_right(dtype, reach, field, coupling, mask):
    fields = (field * draw(1, 1, 12, 12, seed=6)).to(dtype)
    layer = build(12, 1, BandedCouplings(reach), spread=coupling, center=0.0).to(dtype)
    J = layer.upper_couplings()[0].detach().double().requires_grad_()
    present, h = MASKS[mask](12), fields.double().requires_grad_()
    expected = marginals_by_table(h, J, present)
    weights = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64).view(expected.shape)
    by_fields, by_pairs = torch.autograd.grad((weights * expected).sum(), (h, J))
    p, *found = gradients(layer, fields, present)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    assert ((p >= 0) & (p <= 1)).all()
    assert largest_difference(p, expected) < tolerance
    assert largest_difference(found[0], by_fields) < tolerance * max(1, float(by_fields.abs().max()))
    first, second = torch.triu_indices(12, 12, 1)
    near = second - first <= reach
    by_pairs = by_pairs[first[near], second[near]]
    assert largest_difference(found[1][0], by_pairs) < tolerance * max(1, float(by_pairs.abs().max()))


@pytest.mark.parametrize("field", [-7.0, -12.0, -20.0])
def test_negative_fields_keep_their_relative_precision_in_float32(field):
    layer = build(40, 1, ToeplitzCouplings(8), spread=0.2)
    h = torch.full((1, 1, 40), field, dtype=torch.float64)
    p, q = copy.deepcopy(layer).float()(h.float()).double(), layer(h)
    assert ((p - q).abs() <= 1e-5 * q).all()
    assert (p > 0).all()


@pytest.mark.parametrize("reach", [1, 3, 6])
def test_long_chains_with_strong_couplings_do_not_underflow(reach):
    """Without fields flips leave the energy as it is, so p = 1/2; the weights of 400 spins span 10^1000 and more."""
    layer = build(400, 1, BandedCouplings(reach), spread=3.0).float()
    assert largest_difference(layer(torch.zeros(1, 1, 400)), torch.full((1, 1, 400), 0.5)) < 1e-5


def test_the_log_domain_is_that_of_enumeration():
    shape = BandedCouplings(3)
    layer, fields, present = build(9, 1, shape), draw(4, 9, seed=7), draw_mask(4, 9, seed=8, kept=0.7)
    earlier = layer._earlier_couplings(9)[0]
    p = log_domain_marginals(fields, earlier, present)
    assert largest_difference(p, marginals_by_table(fields, layer.coupling_matrix()[0].triu(), present)) < 1e-13


def test_rows_that_float32_loses_are_done_again_and_leave_the_others_alone(monkeypatch):
    """Two spins at the ends of the range that their fields and a strong coupling pull apart, beside harmless rows."""
    layer = TransferMatrixLayer(6, coupling_shape=BandedCouplings(2))
    torch.nn.init.constant_(layer.couplings, 40.0)
    fields = torch.tensor([[0.1] * 6, [60.0, -70.0, 60.0, -70.0, 65.0, -70.0], [-0.2] * 6]).view(1, 1, 3, 6)
    redone = []
    sweep = ChainRows._sweep

    def watch(self, rows, couplings):
        redone.append((len(rows), rows.dtype))
        return sweep(self, rows, couplings)

    monkeypatch.setattr(ChainRows, "_sweep", watch)
    p, *found = gradients(layer, fields)
    assert (3, torch.float32) in redone
    assert any(dtype == torch.float64 for _, dtype in redone)
    J = layer.coupling_matrix()[0].detach().double()
    h = fields.double().requires_grad_()
    expected = marginals_by_table(h, J.triu(), None)
    weights = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64).view(expected.shape)
    (by_fields,) = torch.autograd.grad((weights * expected).sum(), h)
    assert largest_difference(p, expected) < 1e-5
    assert largest_difference(found[0], by_fields) < 1e-4


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 1), (torch.float64, 100)])
def test_rows_that_are_lost_leave_rows_without_spins_at_0(dtype, size):
    layer = TransferMatrixLayer(4, coupling_shape=BandedCouplings(1)).to(dtype)
    with torch.no_grad():
        layer.couplings.copy_(size * torch.tensor([[5.0, -5.0, 5.0]]))
    fields = (size * torch.tensor([20.0, -20.0, -20.0, 20.0], dtype=dtype)).repeat(2, 1, 1, 1).requires_grad_()
    p = layer(fields, torch.tensor([[True] * 4, [False] * 4]).view(2, 1, 1, 4))
    p.square().sum().backward()
    expected = exact_marginals(fields[0].double(), layer.coupling_matrix(4).double())
    assert largest_difference(p[0], expected) < 1e-5
    assert (p[1] == 0).all()
    assert fields.grad.isfinite().all()
    assert (fields.grad[1] == 0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_fields_of_heads_without_spins_are_not_read(value):
    layer = TransferMatrixLayer(4, 2, BandedCouplings(1))
    fields = torch.stack([torch.full((4,), value), torch.ones(4)]).view(1, 2, 1, 4)
    present = torch.tensor([[False] * 4, [True] * 4]).view(1, 2, 1, 4)
    assert (layer(fields, present)[:, 0] == 0).all()
    assert (layer(fields, torch.zeros(4, dtype=torch.bool)) == 0).all()


def test_what_is_kept_for_gradients_grows_linearly_with_the_spins():
    """2^w / w numbers a spin and row, and a fixed number of others."""
    kept = []
    for length in (32, 64, 128):
        layer, fields = build(length, 1, ToeplitzCouplings(4)), draw(3, 1, length).requires_grad_()
        held = []

        def keep(x, held=held):
            held.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            layer(fields)
        kept.append(sum(held))
    assert kept[2] - kept[1] == pytest.approx(2 * (kept[1] - kept[0]), rel=0.02)


def test_rows_are_swept_to_their_own_ends():
    rows = ChainRows(causal_mask(8), torch.arange(8), 4)
    assert rows.blocks.size == 4
    assert rows.rows_of_step == (8, 4)
    assert rows.order.tolist() == [4, 5, 6, 7, 0, 1, 2, 3]
    assert rows.pinned.sum() == 2 * (3 + 2 + 1)
    assert ChainRows(torch.ones(1, 8, dtype=torch.bool), torch.zeros(2, dtype=torch.long), 4).pinned is None


@pytest.mark.parametrize("reach", range(1, 13))
def test_blocks_reach_back_as_far_as_couplings(reach):
    blocks = blocks_of(reach)
    assert blocks.size * blocks.kept >= reach
    assert blocks.message_states == 2 ** (blocks.size * blocks.kept)


def test_chunks_of_rows_give_the_same(monkeypatch):
    layer, fields = build(9, 1, BandedCouplings(3)), draw(5, 1, 9, 9)
    whole = gradients(layer, fields, causal_mask(9))
    monkeypatch.setattr("hybrid_attention.chain_sweeps._FEWEST_ROWS", 7)
    monkeypatch.setattr("hybrid_attention.chain_sweeps._ENTRIES_AT_ONCE", 1)
    for ours, theirs in zip(gradients(layer, fields, causal_mask(9)), whole, strict=True):
        assert largest_difference(ours, theirs) < 1e-13


@pytest.mark.parametrize("shape", [FreeCouplings(), ToeplitzCouplings(), BandedCouplings(13)], ids=str)
def test_shapes_without_a_range_are_refused_with_what_to_use(shape):
    with pytest.raises(
        ValueError,
        match=r"couples spins up to 1?\d+ apart.*give coupling_shape=BandedCouplings\(range\) or "
        r"ToeplitzCouplings\(range\) with a range of at most 12, or take MeanFieldLayer or GibbsLayer",
    ):
        TransferMatrixLayer(14, coupling_shape=shape)
    assert TransferMatrixLayer(13, coupling_shape=shape)(torch.zeros(1, 1, 13)).shape == (1, 1, 13)


def test_a_longer_layer_takes_the_weights_of_a_shorter_one():
    short, long = build(8, 1, ToeplitzCouplings(4)), build(100, 1, ToeplitzCouplings(4), spread=2.0)
    long.load_state_dict(short.state_dict())
    fields = draw(2, 1, 8)
    assert torch.equal(long(fields), short(fields))


def test_attention_over_hundreds_of_positions_is_causal():
    """A changed token moves no output before it."""
    torch.manual_seed(0)
    layer = TransferMatrixLayer(200, coupling_shape=ToeplitzCouplings(5))
    attention = BoltzmannAttention(8, layer)
    torch.nn.init.normal_(layer.couplings, std=0.3)
    x = torch.randn(1, 200, 8)
    changed = x.clone()
    changed[0, 150] += 1
    before, after = attention(x), attention(changed)
    torch.testing.assert_close(before[:, :150], after[:, :150], rtol=0, atol=1e-6)
    assert (before[:, 150:] - after[:, 150:]).abs().amax(-1).min() > 1e-6


def test_second_derivatives_are_refused():
    layer, fields = build(4, 1, BandedCouplings(2)), draw(1, 1, 4).requires_grad_()
    (grad,) = torch.autograd.grad(layer(fields).square().sum(), fields, create_graph=True)
    with pytest.raises(RuntimeError, match=r"once_differentiable|differentiate twice"):
        grad.sum().backward()


def test_the_sweeps_are_the_only_path_of_ordinary_rows(monkeypatch):
    monkeypatch.setattr(hybrid_attention.chain_rows, "log_domain_marginals", lambda *_: pytest.fail("log domain"))
    layer = build(64, 1, ToeplitzCouplings(8), spread=0.5).float()
    p = layer(draw(4, 1, 64, spread=3.0).float())
    assert p.isfinite().all()
    assert issubclass(ChainSweeps, torch.autograd.Function)
