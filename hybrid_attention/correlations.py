"""Correlations of spins: how much two positions are attended to together."""

import torch
from torch import Tensor

from hybrid_attention.exact import exact_marginals


def exact_correlations(fields: Tensor, couplings: Tensor, present: Tensor | None = None) -> Tensor:
    """Return the exact correlations <s_j s_k> of Ising models, P(s) = exp(-energy(s)) / Z.

    Where spin j is +1 the others are an Ising model without it, whose fields are h_k + J_jk, so that

        <n_j n_k> = p_j p_k(s_j = +1)      <s_j s_k> = 4 <n_j n_k> - 2 p_j - 2 p_k + 1

    with the occupations n = (s + 1) / 2.

    Args:
        fields: (..., T), in nats, float32 or float64 (half precision is computed in float32).
        couplings: (..., T, T), in nats; only the strict upper triangle is read.
        present: bool (..., T); a False spin is removed from its model, and its correlations are 0.

    Returns:
        (..., T, T) in the dtype of fields, symmetric, 1 on the diagonal of present spins. The leading shapes broadcast.

    Raises:
        TypeError, ValueError: as for exact_marginals.

    Cost: that of exact_marginals for T + 1 times as many rows.
    Source: conditional probabilities of the Boltzmann distribution of arXiv 2606.12478.
    """
    p = exact_marginals(fields, couplings, present)
    length = fields.shape[-1]
    upper = couplings.triu(1)
    given = fields.unsqueeze(-2) + (upper + upper.mT).to(fields.dtype)
    others = ~torch.eye(length, dtype=torch.bool, device=fields.device)
    left = others if present is None else others & present.unsqueeze(-2)
    conditional = exact_marginals(given, upper.unsqueeze(-3), left)
    together = p.unsqueeze(-1) * conditional
    together = (together + together.mT) / 2
    correlations = 4 * together - 2 * p.unsqueeze(-1) - 2 * p.unsqueeze(-2) + 1
    correlations = torch.where(others, correlations, torch.ones_like(correlations))
    if present is None:
        return correlations
    return correlations.masked_fill(~(present.unsqueeze(-1) & present.unsqueeze(-2)), 0)


def weighted_correlations(spins: Tensor, weights: Tensor) -> Tensor:
    """Return <s_j s_k> over states or samples: spins (..., N, T), -1 and +1, weights (..., N) -> (..., T, T).

    The weights sum to 1: probabilities of states, or 1 / N for samples. Cost: O(N T^2).
    """
    return (spins * weights.unsqueeze(-1)).mT @ spins
