"""The inverse temperatures at which a sampler samples, fitted to its distributions or to its samples alone.

A sampler that is given models with fields h and couplings J is described best by the Boltzmann distributions of the
models beta_h h, beta_J J. Both likelihoods are concave in (beta_h, beta_J), so Newton's method finds the one maximum.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hybrid_attention.instances import Instances, state_energies, state_spins
from hybrid_attention.ising import pair_index

_MOST_STEPS = 100
_LARGEST_BETA = 1e3
_PRECISION = 1e-10
_FLAT = 1e-12
_ENTRIES_AT_ONCE = 2**22

Objective = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


class Betas(NamedTuple):
    """Inverse temperatures of fields and couplings; nan where the data do not fix one."""

    beta_h: float
    beta_J: float  # noqa: N815


def likelihood_betas(instances: Instances, probabilities: Tensor) -> Betas:
    """Return the (beta_h, beta_J) of greatest likelihood, given the distributions that a sampler has for some models.

    Maximizes the mean over models of sum_s q(s) log P(s; beta_h h, beta_J J), whose slopes are <h.s> and <J.ss> under q
    less those under P, and whose curvature is minus their covariance under P: the moments are matched.

    Args:
        instances: the models, N of T spins.
        probabilities: (N, 2^T), q of each model, exact or counted from samples, wire 0 the leftmost bit.

    Returns:
        The two numbers, shared by all models. One is nan where all fields, or all couplings, are 0, and both are where
        no finite ones are best, as when all samples are ground states.

    Raises:
        ValueError: if there are more than 14 spins, or the shapes do not fit.

    Cost: O(2^T) for each model in each of a few steps.
    Source: maximum likelihood of an exponential family with two parameters.
    """
    _check_states(instances, probabilities)
    energies = torch.stack([x.double() for x in state_energies(instances)], 2)  # (N, 2^T, 2)
    observed = torch.einsum("ns,nsk->k", probabilities.double(), energies) / len(instances)

    def objective(betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        exponents = energies @ betas
        p = exponents.softmax(1)
        means = torch.einsum("ns,nsk->nk", p, energies)
        products = torch.einsum("ns,nsk,nsl->kl", p, energies, energies)
        covariance = (products - means.T @ means) / len(instances)
        return observed @ betas - exponents.logsumexp(1).mean(), observed - means.mean(0), covariance

    return _maximum(objective, instances)


def pseudo_likelihood_betas(instances: Instances, samples: Tensor, weights: Tensor | None = None) -> Betas:
    """Return the (beta_h, beta_J) of greatest pseudo-likelihood, given samples alone, for any number of spins.

    Maximizes the mean of sum_j log P(s_j | the other spins) = sum_j log sigmoid(2 s_j (beta_h h_j + beta_J f_j)) with
    f_j = sum_k J_jk s_k, a logistic regression; nothing is enumerated.

    Args:
        instances: the models, N of T spins.
        samples: (N, S, T) or, with weights, (1, S, T) for the same states in all models, spins -1 and +1.
        weights: (N, S), how often each sample occurred, in any unit; equally often without.

    Returns:
        As likelihood_betas.

    Raises:
        ValueError: if the shapes do not fit.

    Cost: O(S T^2) for each model once, and O(S T) in each of a few steps.
    Source: J. Besag, "Statistical analysis of non-lattice data", The Statistician 24 (1975) 179.
    """
    count, num_spins = len(instances), instances.num_spins
    fits = samples.dim() == 3 and samples.shape[2] == num_spins and len(samples) in (1, count)
    if not fits or (weights is not None and weights.shape != (count, samples.shape[1])):
        shape = "none" if weights is None else tuple(weights.shape)
        raise ValueError(
            f"samples {tuple(samples.shape)} and weights {shape} do not fit {count} models of {num_spins} spins: give "
            f"({count}, S, {num_spins}) and ({count}, S)."
        )
    parts = [_Part(instances, samples, weights, piece) for piece in _pieces(count, samples.shape[1] * num_spins)]

    def objective(betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = [part.objective(betas) for part in parts]
        value, slope, curvature = (torch.stack(kind).sum(0) for kind in zip(*found, strict=True))
        return value, slope, curvature

    return _maximum(objective, instances)


def counted_pseudo_likelihood_betas(instances: Instances, probabilities: Tensor) -> Betas:
    """Return pseudo_likelihood_betas of counted states, (N, 2^T), wire 0 the leftmost bit."""
    _check_states(instances, probabilities)
    states = state_spins(instances.num_spins, probabilities.dtype, probabilities.device).T
    return pseudo_likelihood_betas(instances, states.unsqueeze(0), probabilities)


class _Part:
    """The pseudo-likelihood of some models."""

    def __init__(self, instances: Instances, samples: Tensor, weights: Tensor | None, piece: slice) -> None:
        fields, couplings = instances.fields[piece].double(), instances.couplings[piece].double()
        spins = (samples if len(samples) == 1 else samples[piece]).to(fields)
        first, second = pair_index(instances.num_spins, fields.device)
        matrix = fields.new_zeros(len(fields), instances.num_spins, instances.num_spins)
        matrix[:, first, second] = matrix[:, second, first] = couplings
        terms = torch.stack((fields.unsqueeze(1).expand(-1, spins.shape[1], -1), spins @ matrix), 3)
        self.terms = 2 * spins.unsqueeze(3) * terms  # (models, S, T, 2)
        whole = torch.ones_like(self.terms[:, :, 0, 0]) if weights is None else weights[piece].to(fields)
        self.weights = (whole / whole.sum(1, keepdim=True) / len(instances)).unsqueeze(2)

    def objective(self, betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        margins = self.terms @ betas
        p = torch.sigmoid(margins)
        value = (self.weights * functional.logsigmoid(margins)).sum()
        slope = torch.einsum("nsj,nsjk->k", self.weights * (1 - p), self.terms)
        curvature = torch.einsum("nsj,nsjk,nsjl->kl", self.weights * p * (1 - p), self.terms, self.terms)
        return value, slope, curvature


def _maximum(objective: Objective, instances: Instances) -> Betas:
    """Return where a concave function of (beta_h, beta_J) is largest, by Newton's method with steps that are halved."""
    fixed = [bool(instances.fields.any()), bool(instances.couplings.any())]
    place = torch.tensor([k for k in range(2) if fixed[k]], dtype=torch.long, device=instances.fields.device)
    betas = torch.tensor(fixed, dtype=torch.float64, device=instances.fields.device)
    value, slope, curvature = objective(betas)
    for _ in range(_MOST_STEPS if len(place) else 0):
        inner = curvature[place][:, place]
        scale = inner.diagonal().max()
        if not scale > _FLAT:
            return Betas(math.nan, math.nan)
        ridge = _FLAT * scale * torch.eye(len(place), dtype=inner.dtype, device=inner.device)
        step = torch.zeros_like(betas).index_copy(0, place, torch.linalg.solve(inner + ridge, slope[place]))
        for _ in range(_MOST_STEPS):
            after = objective(betas + step)
            if after[0] >= value - _PRECISION * value.abs():
                break
            step = step / 2
        betas = betas + step
        value, slope, curvature = after
        if betas.abs().max() > _LARGEST_BETA:
            return Betas(math.nan, math.nan)
        if step.abs().max() < _PRECISION:
            break
    found = [float(beta) if known else math.nan for beta, known in zip(betas, fixed, strict=True)]
    return Betas(*found)


def _check_states(instances: Instances, probabilities: Tensor) -> None:
    expected = (len(instances), 2**instances.num_spins)
    if tuple(probabilities.shape) != expected:
        raise ValueError(
            f"The distributions have shape {tuple(probabilities.shape)}: give {expected}, one for each of "
            f"{len(instances)} models of {instances.num_spins} spins."
        )


def _pieces(count: int, entries: int) -> list[slice]:
    rows = max(1, _ENTRIES_AT_ONCE // max(entries, 1))
    return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]
