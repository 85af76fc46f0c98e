"""The Ising model behind Boltzmann attention: the one sign convention, energies, and the order of pairs.

Every key position j carries a spin s_j in {-1, +1}: +1 attends, -1 ignores. For one query

    E(s) = - sum_j h_j s_j - sum_{j<k} J_jk s_j s_k        P(s) = exp(-E(s)) / Z

with fields h (the query-key scores) and couplings J. Energies are in nats, beta = 1. A positive field
favors attending, a positive coupling favors agreement: h = 2 and J = 0 give P(s = +1) = sigmoid(4) = 0.982,
and two spins without fields give <s_1 s_2> = tanh(J_12).
"""

import torch
from torch import Tensor


def energy(spins: Tensor, fields: Tensor, couplings: Tensor) -> Tensor:
    """Return the Ising energy E(s) = - sum_j h_j s_j - sum_{j<k} J_jk s_j s_k.

    Args:
        spins: (..., T), values -1 and +1; a 0 leaves its spin out.
        fields: (..., T), in nats.
        couplings: (..., T, T), in nats; only the strict upper triangle is read.

    Returns:
        (...), in nats: the leading shapes broadcast.

    Raises:
        ValueError: if the last dimensions differ.

    Cost: O(T^2) per configuration. Source: arXiv 2606.12478, the energy function.
    """
    num_spins = fields.shape[-1]
    if spins.shape[-1] != num_spins or couplings.shape[-2:] != (num_spins, num_spins):
        raise ValueError(
            f"spins {tuple(spins.shape)}, fields {tuple(fields.shape)} and couplings {tuple(couplings.shape)} do not "
            "agree: give (..., T), (..., T) and (..., T, T)."
        )
    pairs = (torch.triu(couplings, diagonal=1) @ spins.unsqueeze(-1)).squeeze(-1)
    return -(fields * spins).sum(-1) - (spins * pairs).sum(-1)


def num_pairs(num_spins: int, coupling_range: int | None = None) -> int:
    """Return the number of pairs of `num_spins` spins, T (T - 1) / 2, or of those at most `coupling_range` apart."""
    longest = max(num_spins - 1, 0)
    reach = longest if coupling_range is None else min(coupling_range, longest)
    return reach * (2 * num_spins - reach - 1) // 2


def pair_index(
    num_spins: int, device: torch.device | None = None, coupling_range: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the spins (j, k), j < k, of each pair, upper triangle row by row: two (T (T - 1) / 2,) tensors.

    With `coupling_range` only pairs at most that far apart are there: two (num_pairs(T, coupling_range),) tensors.
    """
    rows, columns = torch.triu_indices(num_spins, num_spins, offset=1, device=device)
    if coupling_range is None:
        return rows, columns
    near = columns - rows <= coupling_range
    return rows[near], columns[near]
