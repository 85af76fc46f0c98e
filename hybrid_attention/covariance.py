"""Marginals from a sampler's distribution, with the gradients that the same samples give for nothing.

For a Boltzmann distribution dm_j/dh_k = cov(s_j, s_k) and dm_j/dJ_kl = cov(s_j, s_k s_l). A sampler that is close to it
has nearly these derivatives, so a layer on hardware trains on its forward passes alone.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hybrid_attention.ising import num_pairs, pair_index
from hybrid_attention.precision import without_autocast
from hybrid_attention.state_tables import occupations

_ENTRIES_AT_ONCE = 2**22


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
    size = fields.shape[-1]
    reach = size if coupling_range is None else coupling_range
    table = _AllStates(2 * occupied(size, probabilities.dtype, probabilities.device) - 1, unbiased, reach)
    p = probabilities.detach() @ (table.spins > 0).to(probabilities.dtype).T
    return _Covariances.apply(fields, pairs, p, table, probabilities.detach())


def sample_marginals(fields: Tensor, couplings: Tensor, p: Tensor, spins: Tensor) -> Tensor:
    """Return marginals that were estimated from samples, whose gradients are covariances of these samples.

    Args:
        fields: (G, R, T), in nats, of the Boltzmann distributions that are meant; only gradients flow to them.
        couplings: (G, T, T), in nats, shared by the R rows of a group, likewise; the strict upper triangle alone gets
            gradients.
        p: (G, R, T), the estimates that are returned.
        spins: (G, T, K, R), int8, K samples of every row, 2 or more: -1, +1, and 0 at removed spins. The covariances
            are divided by K - 1, which makes them unbiased for independent samples.

    Returns:
        p: (G, R, T).

    Cost: O(K T) for a row of each group, and O(K T^2) for the gradients of its couplings; memory for a few million
    entries beside the samples.
    Source: as for covariance_marginals.
    """
    return _Covariances.apply(fields, couplings, p.detach(), _Samples(spins), spins)


@dataclass(frozen=True)
class _AllStates:
    """The spins of all states, (T, K), whose probabilities (rows, K) differ from row to row."""

    spins: Tensor
    unbiased: float
    coupling_range: int

    def covariances(self, grad: Tensor, probabilities: Tensor, of_pairs: bool) -> tuple[Tensor, Tensor | None]:
        """Return cov(g . n, s_k), (rows, T), and cov(g . n, s_k s_l), (rows, pairs), for grad (rows, T)."""
        projected = grad @ self.spins / 2
        deviations = projected - (projected * probabilities).sum(-1, keepdim=True)
        weights = deviations.mul_(probabilities).mul_(self.unbiased)
        of_fields = weights @ self.spins.T
        if not of_pairs:
            return of_fields, None
        size = grad.shape[-1]
        grad_pairs = weights.new_empty(len(weights), num_pairs(size, self.coupling_range))
        first, _ = pair_index(size, weights.device, self.coupling_range)
        for j in range(size - 1):
            coupled = self.spins[j + 1 : j + 1 + self.coupling_range]
            grad_pairs[:, first == j] = (weights * self.spins[j]) @ coupled.T
        return of_fields, grad_pairs


@dataclass(frozen=True)
class _Samples:
    """Samples (G, T, K, R) of equal weight."""

    spins: Tensor

    def covariances(self, grad: Tensor, _: Tensor, of_pairs: bool) -> tuple[Tensor, Tensor | None]:
        """Return cov(g . n, s_k), (G, R, T), and cov(g . n, s_k s_l) summed over R, (G, T, T), for grad (G, R, T)."""
        groups, size, count, rows = self.spins.shape
        slopes = grad.mT.unsqueeze(2) / 2
        at_once = max(1, _ENTRIES_AT_ONCE // max(1, groups * size * rows))
        mean = self.spins.sum(2, dtype=grad.dtype, keepdim=True) / count
        of_fields = grad.new_zeros(groups, size, rows)
        grad_couplings = grad.new_zeros(groups, size, size) if of_pairs else None
        for part in self.spins.split(at_once, dim=2):
            s = part.to(grad.dtype)
            weights = (slopes * (s - mean)).sum(1, keepdim=True) / (count - 1)
            weighted = s * weights
            of_fields += weighted.sum(2)
            if grad_couplings is not None:
                grad_couplings += weighted.flatten(2) @ s.flatten(2).mT
        return of_fields.mT, None if grad_couplings is None else grad_couplings.triu_(1)


class _Covariances(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, pairs: Tensor, p: Tensor, states: _AllStates | _Samples, weights: Tensor
    ) -> Tensor:
        ctx.save_for_backward(weights)
        ctx.states = states
        return p.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (weights,) = ctx.saved_tensors
        grad_fields, grad_pairs = ctx.states.covariances(grad, weights, ctx.needs_input_grad[1])
        return grad_fields if ctx.needs_input_grad[0] else None, grad_pairs, None, None, None


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
    return _ratio_errors(p, squares, with_total + squares - p, shots)


def sample_weight_standard_errors(spins: Tensor) -> Tensor:
    """Return what `weight_standard_errors` does, for independent samples that are listed.

    Args:
        spins: (G, T, K, R), int8, K samples of every row, 2 or more: -1, +1, and 0 at removed spins.

    Returns:
        (G, R, T), float32. Cost: O(K T) for each row of a group.
    """
    count = spins.shape[2]
    occupied_spins = spins > 0
    total = occupied_spins.sum(1, dtype=torch.float32)
    p = occupied_spins.sum(2, dtype=torch.float32).mT / count
    with_total = torch.stack([(n * total).sum(1) for n in occupied_spins.unbind(1)], dim=-1) / count
    return _ratio_errors(p, p, with_total, count)


def _ratio_errors(p: Tensor, squares: Tensor, with_total: Tensor, shots: int) -> Tensor:
    """Return the standard errors of p_j / sum_k p_k from <n_j^2> and <n_j N>, all (..., T)."""
    mean = p.sum(-1, keepdim=True)
    weights = torch.where(mean > 0, p / mean, 0)
    second = with_total.sum(-1, keepdim=True)
    variances = squares - 2 * weights * with_total + weights.square() * second
    errors = (variances.clamp_min(0) / (shots - 1)).sqrt() / mean
    return torch.where(mean > 0, errors, 0)
