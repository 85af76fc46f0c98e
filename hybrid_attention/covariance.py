"""Marginals from a sampler's distribution, with the gradients that the same samples give for nothing.

For a Boltzmann distribution dm_j/dh_k = cov(s_j, s_k) and dm_j/dJ_kl = cov(s_j, s_k s_l). A sampler that is close to it
has nearly these derivatives, so a layer on hardware trains on its forward passes alone.
"""

from typing import Any

import torch
from torch import Tensor

from hybrid_attention.ising import num_pairs, pair_index
from hybrid_attention.precision import without_autocast
from hybrid_attention.state_tables import occupations


def covariance_marginals(fields: Tensor, pairs: Tensor, probabilities: Tensor, shots: int | None = None) -> Tensor:
    """Return the marginals of given distributions, whose gradients are covariances of the same distributions.

    Args:
        fields: (rows, T), in nats, of the Boltzmann distributions that are meant; only gradients flow to them.
        pairs: (rows, T (T - 1) / 2), the couplings, in nats, strict upper triangle row by row, likewise.
        probabilities: (rows, 2^T), exact or counted, wire 0 the leftmost bit and |0> spin +1; taken as constants.
        shots: the number of samples that were counted, 2 or more: covariances are then divided by shots - 1, which
            makes them unbiased. Without it the probabilities are exact.

    Returns:
        p_j = P(s_j = +1): (rows, T).

    Cost: O(T 2^T) for each row forward and O(T^2 2^T) backward, and as much memory as a few times the probabilities.
    Source: linear response of the Boltzmann distribution, dm_j/dh_k = cov(s_j, s_k) at beta = 1.
    """
    unbiased = 1.0 if shots is None else shots / (shots - 1)
    return _Covariances.apply(fields, pairs, probabilities.detach(), unbiased)


class _Covariances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fields: Tensor, pairs: Tensor, probabilities: Tensor, unbiased: float) -> Tensor:
        n = occupied(fields.shape[-1], probabilities.dtype, probabilities.device)
        p = probabilities @ n.T
        ctx.save_for_backward(probabilities, p)
        ctx.unbiased = unbiased
        return p

    @staticmethod
    @torch.autograd.function.once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, p = ctx.saved_tensors
        size = p.shape[-1]
        n = occupied(size, probabilities.dtype, probabilities.device)
        deviations = grad @ n - (grad * p).sum(-1, keepdim=True)
        weights = deviations.mul_(probabilities).mul_(ctx.unbiased)
        spins = 2 * n - 1
        grad_fields = weights @ spins.T if ctx.needs_input_grad[0] else None
        grad_pairs = None
        if ctx.needs_input_grad[1]:
            grad_pairs = weights.new_empty(len(weights), num_pairs(size))
            first, _ = pair_index(size, weights.device)
            for j in range(size - 1):
                grad_pairs[:, first == j] = (weights * spins[j]) @ spins[j + 1 :].T
        return grad_fields, grad_pairs, None, None


def occupied(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return which spins are +1 in each basis state of a circuit, wire 0 the leftmost bit: (T, 2^T), 0 or 1."""
    return occupations(num_spins, dtype, device).flip(0)


def standard_errors(p: Tensor, shots: int, readout_errors: Tensor | None = None) -> Tensor:
    """Return the standard errors of marginals estimated from samples, sqrt(p (1 - p) / (shots - 1)).

    Args:
        p: (..., T), estimated from `shots` samples.
        shots: 2 or more.
        readout_errors: (T', 2), T' >= T, probabilities of reading |0> as 1 and |1> as 0 that were taken out of p, which
            makes its errors larger by 1 / (1 - a - b).

    Returns:
        (..., T), with an unbiased estimate of the variance under the root; 0 where all samples agree.
    """
    if readout_errors is None:
        return (p * (1 - p) / (shots - 1)).clamp_min(0).sqrt()
    a, b = readout_errors[: p.shape[-1]].to(p).unbind(-1)
    read = p * (1 - a - b) + b
    return (read * (1 - read) / (shots - 1)).clamp_min(0).sqrt() / (1 - a - b)
