"""Gibbs sampling: what it converges to, how fast, its standard errors, and which random numbers it draws."""

import math
import pickle

import pytest
import torch
from conftest import draw_fields, gradients
from oracle import causal_mask, draw, largest_difference

from hybrid_attention import ExactLayer, GibbsLayer
from hybrid_attention.covariance import covariance_marginals, sample_marginals
from hybrid_attention.gibbs import independent_groups
from hybrid_attention.ising import num_pairs, pair_index


def build(num_spins, spread=0.3, heads=1, **settings):
    layer, exact = GibbsLayer(num_spins, heads, **settings).double(), ExactLayer(num_spins, heads).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, spread=spread))
    exact.load_state_dict(layer.state_dict())
    return layer, exact


@pytest.mark.parametrize("present", [None, causal_mask(5)], ids=["all", "causal"])
def test_estimates_lie_within_five_standard_errors_of_exact_marginals(present):
    layer, exact = build(5, heads=2, num_samples=20000, num_chains=200)
    fields = draw_fields(2, 2, 5, 5)
    errors = (layer(fields, present) - exact(fields, present)).abs().detach()
    assert (errors <= 5 * layer.standard_error + 1e-15).all()
    assert layer.standard_error.max() < 0.01
    assert layer.standard_error.max() == layer.metrics()["standard_error"]


def test_errors_fall_with_the_root_of_the_samples():
    rms = []
    counts = (100, 400, 1600, 6400)
    for count in counts:
        layer, exact = build(5, num_samples=count, num_chains=count // 5)
        fields = draw_fields(60, 1, 5)
        rms.append(float((layer(fields) - exact(fields)).detach().square().mean().sqrt()))
    slope = (math.log(rms[-1]) - math.log(rms[0])) / (math.log(counts[-1]) - math.log(counts[0]))
    assert slope == pytest.approx(-0.5, abs=0.06)


def test_standard_errors_are_the_spread_of_repeated_estimates():
    """Of marginals and of attention weights, for chains whose samples are correlated."""
    layer, _ = build(4, spread=0.8, num_samples=120, num_chains=40)
    fields, found = draw_fields(1, 1, 4), []
    for _ in range(250):
        p = layer(fields).detach()
        found.append(torch.stack((p, p / p.sum(-1, keepdim=True), layer.standard_error, layer.weight_standard_error)))
    p, weights, *errors = torch.stack(found).unbind(1)
    for values, error in zip((p, weights), errors, strict=True):
        assert ((error.square().mean(0) / values.var(0)) - 1).abs().max() < 0.35


def test_gradients_approach_those_of_the_boltzmann_distribution():
    layer, exact = build(4, heads=2, num_samples=40000, num_chains=400)
    fields = draw_fields(1, 2, 3, 4)
    for ours, theirs in zip(gradients(layer, fields), gradients(exact, fields), strict=True):
        assert largest_difference(ours, theirs) < 0.06


def test_covariances_of_listed_samples_are_those_of_counted_states():
    """The same samples, once listed and once counted in the table of all states, give the same gradients."""
    size, rows, shots = 3, 4, 50
    states = torch.randint(8, (rows, shots), generator=torch.Generator().manual_seed(1))
    counted = torch.nn.functional.one_hot(states, 8).double().mean(1)
    bits = torch.stack([1 - (states >> wire & 1) for wire in (2, 1, 0)])
    spins = (2 * bits - 1).to(torch.int8).permute(0, 2, 1)[None]
    fields, J = draw(rows, size).requires_grad_(), draw(size, size).requires_grad_()
    first, second = pair_index(size)
    p = covariance_marginals(fields, J[first, second].expand(rows, num_pairs(size)), counted, shots)
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    expected = torch.autograd.grad((weights * p).sum(), (fields, J))
    q = sample_marginals(fields[None], J[None], p.detach()[None], spins)[0]
    found = torch.autograd.grad((weights * q).sum(), (fields, J))
    assert torch.equal(p, q)
    for ours, theirs in zip(found, expected, strict=True):
        assert largest_difference(ours, theirs) < 1e-14


def test_training_passes_take_further_samples_and_evaluation_the_first_ones_again():
    layer, _ = build(4)
    before, fields = torch.get_rng_state(), draw_fields(2, 1, 4)
    first, second = layer(fields), layer(fields)
    assert not torch.equal(first, second)
    other, _ = build(4)
    assert torch.equal(other(fields), first)
    copied = pickle.loads(pickle.dumps(other))
    assert torch.equal(copied(fields), second)
    assert not torch.equal(build(4, seed=1)[0](fields), first)
    layer.eval()
    assert torch.equal(layer(fields), layer(fields))
    assert torch.equal(torch.get_rng_state(), before)
    assert set(layer.state_dict()) == {"couplings"}


def test_strongly_negative_fields_keep_their_weights():
    """No sample has a spin at +1, yet the conditional probabilities are those of the closed form."""
    layer, fields = GibbsLayer(4).double(), torch.full((1, 1, 4), -12.0, dtype=torch.float64)
    assert largest_difference(layer(fields) / torch.sigmoid(2 * fields), torch.ones_like(fields)) < 1e-12


@pytest.mark.parametrize("reach", [0, 1, 2, 5])
def test_spins_of_a_group_are_not_coupled(reach):
    J = torch.ones(2, 6, 6).triu(1).tril(reach)
    groups = independent_groups(J + J.mT)
    assert len(groups) == reach + 1
    assert torch.cat(groups).sort().values.tolist() == list(range(6))
    assert all((J[:, group][:, :, group] == 0).all() for group in groups)


def test_a_range_changes_the_order_and_not_the_distribution():
    layer, exact = build(6, num_samples=20000, num_chains=200)
    first, second = pair_index(6)
    for each in (layer, exact):
        with torch.no_grad():
            each.couplings[:, second - first > 1] = 0
    fields = draw_fields(2, 1, 6)
    assert ((layer(fields) - exact(fields)).abs() <= 5 * layer.standard_error).all()


def test_one_chain_has_no_standard_error():
    layer, _ = build(3, num_samples=10, num_chains=1)
    layer(draw_fields(1, 1, 3))
    assert layer.standard_error is None
    assert layer.metrics() == {}


@pytest.mark.parametrize(
    "settings", [{"num_samples": 1, "num_chains": 1}, {"num_samples": 30}, {"num_chains": 0}, {"burn_in": -1}]
)
def test_numbers_that_do_not_fit_are_named(settings):
    with pytest.raises(ValueError, match=r"num_samples=.* were given: take whole numbers"):
        GibbsLayer(3, **settings)


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match="seed=-1 was given"):
        GibbsLayer(3, seed=-1)
