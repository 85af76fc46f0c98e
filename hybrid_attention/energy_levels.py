"""Energies of all states of Ising models, and how a distribution spreads over them."""

import torch
from torch import Tensor

from hybrid_attention.exact import MAX_SPINS


def energy_levels(fields: Tensor, couplings: Tensor) -> Tensor:
    """Return the energies of all states of one Ising model.

    Args:
        fields: (T,), in nats.
        couplings: (T, T), in nats; only the strict upper triangle is read.

    Returns:
        (2^T,), in nats, wire 0 the leftmost bit and |0> spin +1, as circuits order their probabilities.

    Raises:
        ValueError: if there are more than 24 spins.

    Cost: O(2^T) time and memory.
    """
    if len(fields) > MAX_SPINS:
        raise ValueError(f"Energies of {len(fields)} spins were asked for: states are listed for up to {MAX_SPINS}.")
    energies = fields.new_zeros(1)
    for j in range(len(fields)):
        local = fields[j : j + 1]
        for k in range(j):
            local = torch.stack((local + couplings[k, j], local - couplings[k, j]), dim=1).flatten()
        energies = torch.stack((energies - local, energies + local), dim=1).flatten()
    return energies


def energy_histogram(energies: Tensor, weights: Tensor, edges: Tensor) -> Tensor:
    """Return the share of a distribution in each bin of energy.

    Args:
        energies: (N,), in nats, of states or samples.
        weights: (N,), which sum to 1.
        edges: (bins + 1,), ascending, around all energies.

    Returns:
        (bins,), which sum to 1.
    """
    bins = len(edges) - 1
    places = (torch.bucketize(energies, edges, right=True) - 1).clamp(0, bins - 1)
    return weights.new_zeros(bins).index_add(0, places, weights)
