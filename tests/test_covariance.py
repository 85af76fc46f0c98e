"""Gradients from the covariances of a distribution: linear response, and how fast samples approach it."""

import math
from functools import reduce

import pytest
import torch
from oracle import draw

from devices import mitigate_probabilities
from hybrid_attention import exact_marginals
from hybrid_attention.covariance import covariance_marginals, occupied, standard_errors, weight_standard_errors
from hybrid_attention.ising import energy, num_pairs, pair_index

ROWS = 5


def draw_models(num_spins, seed=0):
    fields = draw(ROWS, num_spins, seed=seed, center=0.2, spread=0.7)
    pairs = draw(ROWS, num_pairs(num_spins), seed=seed + 1, spread=0.4)
    return fields, pairs


def as_matrix(pairs, num_spins):
    first, second = pair_index(num_spins)
    matrix = pairs.new_zeros(*pairs.shape[:-1], num_spins, num_spins)
    matrix[..., first, second] = pairs
    return matrix


def boltzmann(fields, pairs):
    """The probabilities of all states, by enumeration, in the order of a circuit's."""
    size = fields.shape[-1]
    s = 2 * occupied(size, torch.float64, fields.device).T - 1
    exponents = torch.stack([-energy(s, h, as_matrix(J, size)) for h, J in zip(fields, pairs, strict=True)])
    return exponents.softmax(-1)


def value_and_gradients(p, fields, pairs):
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    return p.detach(), *torch.autograd.grad((weights * p).sum(), (fields, pairs))


@pytest.mark.parametrize("num_spins", range(1, 8))
def test_linear_response_of_a_boltzmann_distribution_is_its_derivative(num_spins):
    fields, pairs = (x.requires_grad_() for x in draw_models(num_spins))
    probabilities = boltzmann(fields.detach(), pairs.detach())
    found = value_and_gradients(covariance_marginals(fields, pairs, probabilities), fields, pairs)
    exact = value_and_gradients(exact_marginals(fields, as_matrix(pairs, num_spins)), fields, pairs)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.numel() == 0 or (ours - theirs).abs().max() < 1e-12


def test_sample_covariances_are_those_of_the_samples_with_one_degree_of_freedom_less():
    fields, pairs = (x.requires_grad_() for x in draw_models(3))
    probabilities = boltzmann(fields.detach(), pairs.detach())
    states = torch.multinomial(probabilities, 40, replacement=True, generator=torch.Generator().manual_seed(0))
    counted = torch.nn.functional.one_hot(states, 8).double().mean(1)
    p = covariance_marginals(fields, pairs, counted, shots=40)
    s = 2 * occupied(3, torch.float64, fields.device).T[states] - 1
    of_pairs = torch.stack([s[..., j] * s[..., k] for j, k in ((0, 1), (0, 2), (1, 2))], -1)
    assert (p - (1 + s.mean(1)) / 2).abs().max() < 1e-14
    for j in range(3):
        found = torch.autograd.grad(p[:, j].sum(), (fields, pairs), retain_graph=True)
        for row in range(ROWS):
            together = torch.cov(torch.cat((s[row], of_pairs[row]), -1).T)
            assert (found[0][row] - together[j, :3] / 2).abs().max() < 1e-13
            assert (found[1][row] - together[j, 3:] / 2).abs().max() < 1e-13


def test_covariances_of_samples_are_unbiased_and_approach_the_exact_ones_as_one_over_the_root_of_shots():
    fields, pairs = (x.requires_grad_() for x in draw_models(4))
    probabilities = boltzmann(fields.detach(), pairs.detach())
    exact = value_and_gradients(covariance_marginals(fields, pairs, probabilities), fields, pairs)[1:]
    generator = torch.Generator().manual_seed(3)
    shots, errors, repeats = [2**k for k in range(4, 14, 2)], [], 200
    for number in shots:
        found = []
        for _ in range(repeats):
            states = torch.multinomial(probabilities, number, replacement=True, generator=generator)
            counted = torch.nn.functional.one_hot(states, 16).double().mean(1)
            p = covariance_marginals(fields, pairs, counted, number)
            found.append(torch.cat(value_and_gradients(p, fields, pairs)[1:], -1))
        off = torch.stack(found) - torch.cat(exact, -1)
        errors.append(off.square().mean().sqrt().item())
        scores = off.mean(0) / (off.std(0) / math.sqrt(repeats))
        assert scores.abs().max() < 5
    logs = torch.tensor([shots, errors], dtype=torch.float64).log()
    slope = torch.cov(logs)[0, 1] / logs[0].var()
    assert slope == pytest.approx(-0.5, abs=0.03)


def test_standard_errors_are_the_spread_of_estimates():
    p = torch.tensor([0.02, 0.3, 0.5, 0.97], dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    samples = torch.rand(20000, 50, 4, generator=generator, dtype=torch.float64) < p
    estimates = samples.double().mean(1)
    expected = estimates.var(0)
    assert standard_errors(estimates, 50).square().mean(0).tolist() == pytest.approx(expected.tolist(), rel=0.05)
    assert standard_errors(torch.tensor([0.0, 1.0]), 2).tolist() == [0, 0]


def test_a_second_derivative_is_refused():
    fields, pairs = (x.requires_grad_() for x in draw_models(2))
    p = covariance_marginals(fields, pairs, boltzmann(fields.detach(), pairs.detach()))
    slope = torch.autograd.grad(p.square().sum(), fields, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def draw_distributions(rows, num_spins, seed=0):
    fields = draw(rows, num_spins, seed=seed, center=0.1, spread=0.7)
    return boltzmann(fields, draw(rows, num_pairs(num_spins), seed=seed + 1, spread=0.6))


def count_samples(probabilities, shots, repeats, seed=0):
    """Estimates of a distribution (states,), each from samples of its own: (repeats, states)."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.multinomial(probabilities.expand(repeats, -1), shots, replacement=True, generator=generator)
    return torch.zeros(repeats, len(probabilities), dtype=torch.float64).scatter_add_(
        1, states, torch.full(states.shape, 1 / shots, dtype=torch.float64)
    )


def weights_of(probabilities, present):
    size = probabilities.shape[-1].bit_length() - 1
    p = probabilities @ occupied(size, torch.float64, probabilities.device).T * present
    return p / p.sum(-1, keepdim=True)


def assert_variances_agree(estimates, errors):
    """The variance of normal estimates is known up to sqrt(2 / repeats); their mean error squared has to agree."""
    expected, repeats = errors.square().mean(0), len(estimates)
    ratios = (estimates.var(0) / expected)[expected > 0]
    assert ratios.tolist() == pytest.approx([1] * len(ratios), abs=5 * math.sqrt(2 / repeats))
    assert (estimates.var(0)[expected == 0] == 0).all()


@pytest.mark.parametrize("present", [(1, 1, 1, 1), (1, 0, 1, 1), (0, 0, 1, 1)], ids=str)
def test_standard_errors_of_weights_are_the_spread_of_estimates(present):
    present = torch.tensor(present, dtype=torch.float64)
    for probabilities in draw_distributions(3, 4):
        counted = count_samples(probabilities, 2000, 4000)
        errors = weight_standard_errors(counted, 2000, present)
        assert_variances_agree(weights_of(counted, present), errors)
        assert (errors[:, present == 0] == 0).all()
        assert (errors[:, present == 1] > 0).all()


def test_independent_errors_of_marginals_would_give_other_standard_errors_of_weights():
    """The correlations between spins count: without them the variance is another by more than the tests allow."""
    probabilities = draw_distributions(1, 4)
    n = occupied(4, torch.float64, probabilities.device)
    p = probabilities @ n.T
    apart = p * (1 - p)
    mean = p.sum(-1, keepdim=True)
    a = p / mean
    variances = (apart - 2 * a * apart + a.square() * apart.sum(-1, keepdim=True)) / (1999 * mean.square())
    ratios = weight_standard_errors(probabilities, 2000).square() / variances
    assert (ratios - 1).abs().max() > 5 * math.sqrt(2 / 4000)


def test_standard_errors_of_weights_agree_with_a_bootstrap_of_the_same_samples():
    present = torch.tensor([True, True, False, True])
    for number, counted in enumerate(count_samples(draw_distributions(1, 4)[0], 3000, 3, seed=5)):
        again = count_samples(counted, 3000, 4000, seed=number)
        errors = weight_standard_errors(counted, 3000, present)
        assert_variances_agree(weights_of(again, present), errors.expand(4000, -1))


def test_a_single_present_spin_has_a_weight_without_error():
    probabilities = draw_distributions(5, 3)
    errors = weight_standard_errors(probabilities, 100, torch.tensor([False, True, False]))
    assert (errors == 0).all()
    assert (weight_standard_errors(boltzmann(*draw_models(1)), 100) == 0).all()


def test_weights_of_two_independent_spins_have_the_closed_form():
    """J = 0: a_1 = p / (p + q), so Var a_1 = (q^2 p (1 - p) + p^2 q (1 - q)) / (p + q)^4 / (shots - 1)."""
    fields = draw(ROWS, 2, center=0.2, spread=0.7)
    p, q = (2 * fields).sigmoid().unbind(-1)
    expected = (q**2 * p * (1 - p) + p**2 * q * (1 - q)) / (p + q) ** 4 / 99
    errors = weight_standard_errors(boltzmann(fields, torch.zeros(ROWS, 1, dtype=torch.float64)), 100)
    assert (errors.square() - expected.unsqueeze(-1)).abs().max() < 1e-15


def test_rows_without_a_spin_at_plus_one_have_no_error():
    probabilities = torch.tensor([[0.0, 0, 0, 1], [0, 0, 0.5, 0.5]], dtype=torch.float64)
    assert (weight_standard_errors(probabilities, 100)[0] == 0).all()
    assert (weight_standard_errors(probabilities, 100, torch.tensor([True, False]))[1] == 0).all()
    assert (weight_standard_errors(probabilities, 100, torch.zeros(2)) == 0).all()


def test_mitigated_weights_have_the_larger_spread_of_what_was_read():
    readout = torch.tensor([[0.04, 0.1], [0.0, 0.0], [0.02, 0.07]], dtype=torch.float64)
    present = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    confusion = reduce(torch.kron, [torch.tensor([[1 - a, b], [a, 1 - b]], dtype=torch.float64) for a, b in readout])
    for true in draw_distributions(2, 3):
        counted = mitigate_probabilities(count_samples(confusion @ true, 2000, 4000), readout)
        errors = weight_standard_errors(counted, 2000, present, readout)
        assert_variances_agree(weights_of(counted, present), errors)
        assert (errors[:, 0] > weight_standard_errors(counted, 2000, present)[:, 0]).all()
    none = weight_standard_errors(true, 2000, present, torch.zeros(3, 2))
    assert torch.equal(none, weight_standard_errors(true, 2000, present))
