"""Gradients from the covariances of a distribution: linear response, and how fast samples approach it."""

import math

import pytest
import torch
from oracle import draw

from hybrid_attention import exact_marginals
from hybrid_attention.covariance import covariance_marginals, occupied, standard_errors
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
