"""What the tables of the states of a row are made from: factors of its fields, and its partition function."""

import torch
from torch import Tensor

from hybrid_attention.state_tables import half_penalties

_SMALLEST_MARGIN = 1e14


def field_factors(costs: Tensor) -> Tensor:
    """Return exp(h . s - sum |h|) of the states of half a, then of half b, in at most 1: (G, 2^a + 2^b, M).

    `costs` (G, T, 2, M) are what each spin costs at -1 and at +1, max(h, 0) and max(-h, 0), in nats.
    """
    penalties = half_penalties(costs.shape[1], costs.dtype, costs.device)
    return each_group(penalties, costs.flatten(1, 2)).exp_()


def each_group(matrix: Tensor, tables: Tensor) -> Tensor:
    """Multiply (m, n) with the table of each group: (G, n, M) -> (G, m, M)."""
    return torch.bmm(matrix.expand(len(tables), -1, -1), tables)


def inverse_partition(partition: Tensor, careful: bool) -> Tensor:
    """Return 1 / Z; if careful, 0 in the rows whose partition function underflows or is NaN."""
    inverse = partition.reciprocal()
    if careful:
        inverse.masked_fill_(~(partition >= smallest_partition(partition.dtype)), 0)
    return inverse


def smallest_partition(dtype: torch.dtype) -> float:
    """Return the least partition function whose row needs no other way: its states that count are within range."""
    return torch.finfo(dtype).tiny * _SMALLEST_MARGIN
