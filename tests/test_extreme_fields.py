"""Exact marginals where floating point runs out: negative and huge fields, strong couplings, zero temperature."""

import itertools
import math

import pytest
import torch
from oracle import causal_mask, draw, draw_mask, largest_difference, marginals_by_loops, marginals_by_table

import hybrid_attention.exact
from hybrid_attention import exact_marginals
from hybrid_attention.log_domain import LogDomainEnumeration

pytestmark = pytest.mark.usefixtures("each_path")
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}
both_precisions = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
MASKS = {
    "none": lambda length: None,
    "causal": causal_mask,
    "random holes": lambda length: draw_mask(length, length, seed=length, kept=0.8),
}
masks = pytest.mark.parametrize("mask", MASKS)


def value_and_gradients(function, h, J, present):
    h, J = h.detach().clone().requires_grad_(), J.detach().clone().requires_grad_()
    p = function(h, J, present)
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    return p.detach(), *torch.autograd.grad((weights * p).sum(), (h, J))


def assert_right(h, J, present, dtype):
    p, by_fields, by_couplings = value_and_gradients(exact_marginals, h, J, present)
    q, exact_fields, exact_couplings = value_and_gradients(marginals_by_table, h.double(), J.double(), present)
    assert ((p >= 0) & (p <= 1)).all()
    assert by_fields.isfinite().all()
    assert by_couplings.isfinite().all()
    assert largest_difference(p, q) < TOLERANCE[dtype]
    assert largest_difference(by_fields, exact_fields) < TOLERANCE[dtype] * max(1, float(exact_fields.abs().max()))
    largest = max(1, float(exact_couplings.abs().max()))
    assert largest_difference(by_couplings, exact_couplings) < TOLERANCE[dtype] * largest


@masks
@pytest.mark.parametrize("spread", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("field", [-7.0, -12.0, -20.0])
@pytest.mark.parametrize("length", [1, 2, 5, 8, 12])
def test_negative_fields_keep_their_relative_precision_in_float32(length, field, spread, mask):
    """p is about exp(2 h), and only sums of positive terms reach it: (m + 1) / 2 would be NaN or 0 here."""
    h = torch.full((length, length), field)
    J, present = draw(length, length, seed=1, spread=spread).float(), MASKS[mask](length)
    p, q = exact_marginals(h, J, present).double(), marginals_by_table(h.double(), J.double(), present)
    assert ((p - q).abs() <= 1e-5 * q).all()
    assert (p[q > 0] > 0).all()
    weights, expected = (x / x.sum(-1, keepdim=True).clamp_min(1e-30) for x in (p, q))
    assert ((weights - expected).abs() <= 2e-5 * expected).all()


@masks
def test_gradients_at_negative_fields_keep_their_relative_precision_in_float32(mask):
    h, J, present = torch.full((6, 6), -12.0), draw(6, 6, seed=1, spread=0.2).float(), MASKS[mask](6)
    _, by_fields, by_couplings = value_and_gradients(exact_marginals, h, J, present)
    _, exact_fields, exact_couplings = value_and_gradients(marginals_by_table, h.double(), J.double(), present)
    assert float(exact_fields.abs().max()) < 1e-8
    assert largest_difference(by_fields, exact_fields) < 1e-5 * float(exact_fields.abs().max())
    assert largest_difference(by_couplings, exact_couplings) < 1e-5 * float(exact_couplings.abs().max())


@both_precisions
@masks
@pytest.mark.parametrize("length", [2, 4, 9, 12])
@pytest.mark.parametrize(
    ("fields", "couplings"),
    [(1e4, 50), (1e4, 1), (1e3, 50), (100, 50), (10, 50), (1, 50), (1e-3, 50), (10, 5), (1, 10), (1e4, 0)],
)
def test_huge_fields_and_strong_couplings(fields, couplings, length, mask, dtype):
    """Uniform up to |h| and |J|, so both the fields and the couplings win in some rows.

    In float32 the worst of a sweep over these scales was 2.4e-6, from taking the field of pinned spins off in float32.
    """
    generator = torch.Generator().manual_seed(length)
    h = fields * (2 * torch.rand(3, length, length, generator=generator, dtype=torch.float64) - 1)
    J = couplings * (2 * torch.rand(length, length, generator=generator, dtype=torch.float64) - 1)
    assert_right(h.to(dtype), J.to(dtype), MASKS[mask](length), dtype)


@both_precisions
@masks
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("coupling", [-50.0, 50.0])
def test_all_fields_and_couplings_at_their_bounds(coupling, sign, mask, dtype):
    h = torch.full((9, 9), sign * 1e4, dtype=dtype)
    assert_right(h, torch.full((9, 9), coupling, dtype=dtype), MASKS[mask](9), dtype)


def three_states(length, coupling, dtype):
    """Fields +-h in turn, chosen so that the state that follows them weighs as much as all-up and all-down do.

    The pairs give J T (T - 1) / 2 where all agree and -J T / 2 where half are up, so h = J T / 2. The two best factors,
    of fields and of pairs, never meet: all three states have exp(-J T^2 / 2) of their product, and p = 2/3 or 1/3.
    """
    field = coupling * length / 2
    h = field * (1 - 2 * (torch.arange(length) % 2)).to(dtype)
    return h.unsqueeze(0), torch.full((length, length), coupling, dtype=dtype)


def spy(monkeypatch, owner, name):
    calls, original = [], getattr(owner, name)

    def watched(*args):
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(owner, name, watched)
    return calls


@both_precisions
@pytest.mark.parametrize("length", [4, 8, 12])
@pytest.mark.parametrize("masked", [False, True])
def test_rows_whose_partition_function_underflows_are_done_again(monkeypatch, masked, length, dtype):
    """float64 by enumeration in the log domain; float32 by tables in float64, and from there as float64 does."""
    again = spy(monkeypatch, hybrid_attention.exact, "_again")
    in_logarithms = spy(monkeypatch, LogDomainEnumeration, "apply")
    # exp(-800) is left in float64, exp(-80) in float32
    h, J = three_states(length, (1600 if dtype == torch.float64 else 160) / length**2, dtype)
    expected = torch.where(h > 0, 2 / 3, 1 / 3)
    present = None
    if masked:
        h, J = torch.nn.functional.pad(h, (0, 1), value=math.nan), torch.nn.functional.pad(J, (0, 1, 0, 1), value=3.0)
        expected = torch.nn.functional.pad(expected, (0, 1))
        present = torch.arange(length + 1) < length
    ordinary = torch.zeros_like(h)
    assert largest_difference(exact_marginals(torch.cat((ordinary, h)), J, present)[1:], expected) < 1e-3
    assert len(again) == 1
    assert len(in_logarithms) == (dtype == torch.float64)
    assert_right(torch.cat((ordinary, h, 1.001 * h)), J, present, dtype)


def test_gradcheck_in_the_log_domain(monkeypatch):
    in_logarithms = spy(monkeypatch, LogDomainEnumeration, "apply")
    h, J = three_states(4, 120.0, torch.float64)
    h = torch.cat((h, h + draw(1, 4, spread=0.3), draw(1, 4))).requires_grad_()
    present = torch.tensor([[True] * 4, [True] * 4, [True, False, True, True]])
    assert torch.autograd.gradcheck(lambda h, J: exact_marginals(h, J, present), (h, J.requires_grad_()), atol=1e-4)
    assert in_logarithms


@both_precisions
@pytest.mark.parametrize("chunk", [1, 2**7])
def test_states_enumerated_in_chunks(monkeypatch, chunk, dtype):
    monkeypatch.setattr("hybrid_attention.log_domain._CHUNK_ENTRIES", chunk)
    h, J = three_states(8, 40.0, dtype)
    assert_right(torch.cat((h, 0.999 * h, torch.zeros_like(h))), J, None, dtype)


@both_precisions
@pytest.mark.parametrize("saved", [0, 2**22])
def test_rows_that_underflow_among_heads_masks_and_pieces(monkeypatch, saved, dtype):
    monkeypatch.setattr("hybrid_attention.meet_in_the_middle._PIECE_ENTRIES", 2**6)
    monkeypatch.setattr("hybrid_attention.meet_in_the_middle._SAVED_ENTRIES", saved)
    h, J = three_states(8, 40.0, dtype)
    h, couplings = (
        h * torch.linspace(0, 1.5, 12, dtype=dtype).view(1, 6, 2, 1),
        J * torch.tensor([1, 0.01]).view(-1, 1, 1, 1),
    )
    h, couplings = h.transpose(1, 2), couplings.to(dtype)
    assert_right(h, couplings, None, dtype)
    assert_right(h, couplings, draw_mask(6, 8, seed=1, kept=0.8), dtype)
    assert_right(h, couplings, draw_mask(1, 2, 6, 8, seed=2, kept=0.8), dtype)


@both_precisions
@masks
@pytest.mark.parametrize("length", [3, 7])
def test_zero_temperature_leaves_the_ground_state(length, mask, dtype):
    h, J, present = draw(length, seed=20), draw(length, length, seed=21, spread=0.7), MASKS[mask](length)
    rows = torch.ones(1, length, dtype=torch.bool) if present is None else present
    expected = torch.zeros(rows.shape, dtype=torch.float64)
    gaps = []
    for row, keep in enumerate(rows.tolist()):
        spins = [j for j in range(length) if keep[j]]
        states = list(itertools.product((-1, 1), repeat=len(spins)))
        energies = [
            -sum(h[j] * s for j, s in zip(spins, state, strict=True))
            - sum(J[spins[a], spins[b]] * state[a] * state[b] for a, b in itertools.combinations(range(len(spins)), 2))
            for state in states
        ]
        ranked = sorted(range(len(states)), key=energies.__getitem__)
        gaps.append(float(energies[ranked[1]] - energies[ranked[0]]))
        for j, s in zip(spins, states[ranked[0]], strict=True):
            expected[row, j] = s == 1
    beta = 60 / min(gaps)
    h, J = (beta * h).to(dtype).expand(rows.shape), (beta * J).to(dtype)
    p, by_fields, by_couplings = value_and_gradients(exact_marginals, h, J, present)
    rounding = 16 * torch.finfo(dtype).eps
    assert largest_difference(p, expected) < rounding
    assert by_fields.abs().max() < rounding
    assert by_couplings.abs().max() < rounding


@both_precisions
@pytest.mark.parametrize("length", [2, 5, 10])
def test_two_degenerate_ground_states_share_the_weight(length, dtype):
    """Without fields, strong positive couplings leave all-up and all-down: p = 1/2 and <s_j s_k> = 1."""
    h, J = torch.zeros(1, length, dtype=dtype), torch.full((length, length), 50.0, dtype=dtype)
    p, by_fields, _ = value_and_gradients(exact_marginals, h, J, None)
    assert largest_difference(p, torch.full_like(p, 0.5)) < 1e-15
    # dm_j/dh_k = <s_j s_k> = 1, so each dL/dh is half the sum of the loss's weights
    assert largest_difference(by_fields, torch.full_like(p, length / 4)) < 1e-5 * length


@pytest.mark.parametrize("length", [3, 8])
def test_half_precision_at_its_largest_values(length):
    h = torch.tensor([60000.0, -60000.0, 1.0]).half().repeat(length)[:length]
    J = torch.full((length, length), -50.0).half()
    expected = marginals_by_loops(h, J)
    assert largest_difference(exact_marginals(h, J), expected) < 1e-3


@both_precisions
@pytest.mark.parametrize("factor", [1.0, 40.0])
def test_rows_of_one_head_underflow_and_those_of_another_do_not(factor, dtype):
    h, J = three_states(4, 10.0 * factor, dtype)
    assert_right(
        h.expand(3, 2, 4), torch.stack((J, torch.zeros_like(J))).unsqueeze(0).expand(1, -1, -1, -1), None, dtype
    )


@both_precisions
@pytest.mark.parametrize("length", [6, 8, 12])
def test_small_differences_of_large_energies_decide(length, dtype):
    """Two clusters, each held together by 30 nats a pair: what is left is a model of two spins with weak couplings."""
    cluster = torch.arange(length) % 2
    strong = 30 + 3 * draw(length, length, seed=1)
    J = torch.where(cluster.unsqueeze(0) == cluster.unsqueeze(1), strong, draw(length, length, seed=2, spread=0.1))
    h = draw(16, length, seed=3, spread=0.2)
    assert exact_marginals(h, J).std() > 0.1
    assert_right(h.to(dtype), J.to(dtype), None, dtype)
