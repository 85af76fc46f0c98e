"""Tables over the states of a few spins.

State i of k spins has spin j at +1 where bit j of i is 0, as |0> is spin +1 in a circuit. So the states in which the
last spins are +1 come first, and the table of a shorter prefix of spins is a leading block of a longer one's.
"""

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def occupations(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the occupations n = (s + 1) / 2 of every state: (num_spins, 2^num_spins), 0 or 1."""
    with torch.inference_mode(False):
        bits = torch.arange(2**num_spins, device=device) >> torch.arange(num_spins, device=device).unsqueeze(1)
        return (1 - (bits & 1)).to(dtype)


@lru_cache(maxsize=256)
def spins(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the spins of every state: (num_spins, 2^num_spins), -1 or +1."""
    with torch.inference_mode(False):
        return 2 * occupations(num_spins, dtype, device) - 1


@lru_cache(maxsize=256)
def spin_products(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return s_j s_k of every state for j < k, and 0 for j >= k: (num_spins^2, 2^num_spins)."""
    with torch.inference_mode(False):
        s = spins(num_spins, dtype, device)
        above = torch.ones(num_spins, num_spins, dtype=dtype, device=device).triu(1)
        return ((s.unsqueeze(1) * s.unsqueeze(0)) * above.unsqueeze(2)).flatten(0, 1)


@lru_cache(maxsize=256)
def half_penalties(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return -2 where a state of a half has spin j at -1, or at +1, and 0 at the spins of the other half.

    The 2^a + 2^b states of halves of a = num_spins // 2 and b spins are rows, half a first, and each j and sign is a
    column: (2^a + 2^b, 2 num_spins). Times the costs max(h_j, 0) and max(-h_j, 0) it gives h . s - sum_j |h_j| of the
    half, without cancellation.
    """
    with torch.inference_mode(False):
        first, second = (occupations(k, dtype, device) for k in _halves(num_spins))
        opposed = [-2 * torch.stack((1 - n, n), dim=1).flatten(0, 1).T for n in (first, second)]
        return torch.block_diag(*opposed)


@lru_cache(maxsize=256)
def half_occupations(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the occupations of the states of two halves, side by side as the rows of half_penalties are.

    (num_spins + 1, 2^a + 2^b): the first row is 1 at the states of half a, then each spin is 0 in the other half.
    """
    with torch.inference_mode(False):
        first, second = (occupations(k, dtype, device) for k in _halves(num_spins))
        both = torch.block_diag(first, second)
        in_first = torch.arange(both.shape[1], device=device) < first.shape[1]
        return torch.cat((in_first.unsqueeze(0).to(dtype), both))


@lru_cache(maxsize=256)
def counted_occupations(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a row of ones and the occupations of every state: (num_spins + 1, 2^num_spins)."""
    with torch.inference_mode(False):
        n = occupations(num_spins, dtype, device)
        return torch.cat((n.new_ones(1, n.shape[1]), n))


def _halves(num_spins: int) -> tuple[int, int]:
    return num_spins // 2, num_spins - num_spins // 2
