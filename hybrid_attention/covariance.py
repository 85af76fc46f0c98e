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


def covariance_marginals(
    fields: Tensor,
    pairs: Tensor,
    probabilities: Tensor,
    shots: int | None = None,
    coupling_range: int | None = None,
) -> Tensor:
    """Return the marginals of given distributions, whose gradients are covariances of the same distributions.

    Args:
        fields: (rows, T), in nats, of the Boltzmann distributions that are meant; only gradients flow to them.
        pairs: (rows, T (T - 1) / 2), the couplings, in nats, strict upper triangle row by row, likewise.
        probabilities: (rows, 2^T), exact or counted, wire 0 the leftmost bit and |0> spin +1; taken as constants.
        shots: the number of samples that were counted, 2 or more: covariances are then divided by shots - 1, which
            makes them unbiased where no readout errors were taken out, and else right up to 1 / shots. Without it the
            probabilities are exact.
        coupling_range: pairs hold only those at most that far apart; all of them without it.

    Returns:
        p_j = P(s_j = +1): (rows, T).

    Cost: O(T 2^T) for each row forward and O(T^2 2^T) backward, and as much memory as a few times the probabilities.
    Source: linear response of the Boltzmann distribution, dm_j/dh_k = cov(s_j, s_k) at beta = 1.
    """
    unbiased = 1.0 if shots is None else shots / (shots - 1)
    return _Covariances.apply(fields, pairs, probabilities.detach(), unbiased, coupling_range)


class _Covariances(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, pairs: Tensor, probabilities: Tensor, unbiased: float, coupling_range: int | None
    ) -> Tensor:
        n = occupied(fields.shape[-1], probabilities.dtype, probabilities.device)
        p = probabilities @ n.T
        ctx.save_for_backward(probabilities, p)
        ctx.unbiased = unbiased
        ctx.coupling_range = fields.shape[-1] if coupling_range is None else coupling_range
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
            grad_pairs = weights.new_empty(len(weights), num_pairs(size, ctx.coupling_range))
            first, _ = pair_index(size, weights.device, ctx.coupling_range)
            for j in range(size - 1):
                coupled = spins[j + 1 : j + 1 + ctx.coupling_range]
                grad_pairs[:, first == j] = (weights * spins[j]) @ coupled.T
        return grad_fields, grad_pairs, None, None, None


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


def weight_standard_errors(
    probabilities: Tensor, shots: int, present: Tensor | None = None, readout_errors: Tensor | None = None
) -> Tensor:
    """Return the standard errors of attention weights a_j = p_j / sum_k p_k estimated from samples of one distribution.

    The p_j of a query come from the same samples, so their errors are correlated, and with n the occupations, N their
    sum over present spins and S = <N>, to first order in 1 / sqrt(shots)

        Var a_j = <(n_j - a_j N)^2> / (S^2 (shots - 1))

    Args:
        probabilities: (..., 2^T), of the states of a circuit, estimated from `shots` samples, wire 0 the leftmost bit
            and |0> spin +1.
        shots: 2 or more.
        present: (..., T), bool or 0 and 1, the spins that count; all of them by default.
        readout_errors: (T', 2), T' >= T, probabilities of reading |0> as 1 and |1> as 0 that were taken out of the
            probabilities, taken as known.

    Returns:
        (..., T); 0 at removed spins, where a single spin is present, and where no sample has a present spin at +1.

    Cost: O(T 2^T) for each distribution.
    Source: the variance of a ratio of means, by linear error propagation (the delta method).
    """
    size = probabilities.shape[-1].bit_length() - 1
    n = occupied(size, probabilities.dtype, probabilities.device)
    here = probabilities.new_ones(size) if present is None else present.to(probabilities)
    p = (probabilities @ n.T) * here
    total = here @ n
    with_total = ((probabilities * total) @ n.T) * here
    squares = p
    if readout_errors is not None:
        a, b = readout_errors[:size].to(p).unbind(-1)
        kept = 1 - a - b
        read = p * kept + b * here
        squares = (read * (1 - b).square() + (here - read) * b.square()) / kept.square()
    excess = squares - p
    mean = p.sum(-1, keepdim=True)
    weights = torch.where(mean > 0, p / mean, 0)
    second = (with_total + excess).sum(-1, keepdim=True)
    variances = squares - 2 * weights * (with_total + excess) + weights.square() * second
    errors = (variances.clamp_min(0) / (shots - 1)).sqrt() / mean
    return torch.where(mean > 0, errors, 0)
