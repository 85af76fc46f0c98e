"""The weights exp(sum_{j<k} J_jk s_j s_k) of all states, as a matrix between two halves of the spins."""

from functools import lru_cache

import torch
from torch import Tensor

from hybrid_attention.state_tables import spin_products, spins

_SMALL = 9
_LARGEST_FLOAT32_ENERGY = 64
_LARGEST_UNSCALED_ENERGY = 32


def pair_weights(couplings: Tensor, largest_energy: float) -> Tensor:
    """Return W, up to a factor for each group: couplings (G, T, T), strict upper triangle -> (G, 2^b, 2^a), a = T // 2.

    `largest_energy` bounds the energies, in nats. Above 64 they are summed in float64, as their float32 rounding would
    show in the weights, and above 32 the weights are scaled to a maximum of 1, lest they leave the range of float32.
    """
    size = couplings.shape[-1]
    half = size // 2
    pairs = couplings if largest_energy <= _LARGEST_FLOAT32_ENERGY else couplings.double()
    if size <= _SMALL:
        table = spin_products(size, pairs.dtype, pairs.device)
        exponents = (pairs.flatten(1) @ table).view(-1, 2 ** (size - half), 2**half)
    else:
        first, second, ones = _half_tables(half, size - half, len(pairs), pairs.dtype, pairs.device)
        first_products = spin_products(half, pairs.dtype, pairs.device)
        second_products = spin_products(size - half, pairs.dtype, pairs.device)
        within_first = pairs[:, :half, :half].reshape(-1, 1, half**2) @ first_products
        within_second = pairs[:, half:, half:].reshape(-1, 1, (size - half) ** 2) @ second_products
        left = torch.cat((second, within_second), dim=1)
        right = torch.cat((pairs[:, :half, half:].mT @ first, within_first, ones), dim=1)
        exponents = torch.bmm(left.mT, right)
    if not largest_energy <= _LARGEST_UNSCALED_ENERGY:
        exponents.sub_(exponents.amax((1, 2), keepdim=True))
    return exponents.to(couplings.dtype).exp_()


def pair_gradient(expectation: Tensor, size: int) -> Tensor:
    """Return sum E[d s_j s_k] in the strict upper triangle, from E[d] of the states: (G, 2^b, 2^a) -> (G, T, T)."""
    dtype, device = expectation.dtype, expectation.device
    if size <= _SMALL:
        return (expectation.flatten(1) @ spin_products(size, dtype, device).T).view(-1, size, size)
    half, groups = size // 2, len(expectation)
    first, later, _ = _half_tables(half, size - half, groups, dtype, device)
    moments = torch.bmm(later, expectation)
    grad = expectation.new_zeros(groups, size, size)
    grad[:, :half, :half] = (moments[:, -1] @ spin_products(half, dtype, device).T).view(groups, half, half)
    grad[:, half:, half:] = (expectation.sum(2) @ spin_products(size - half, dtype, device).T).view(
        groups, size - half, size - half
    )
    grad[:, :half, half:] = (moments[:, :-1] @ first.T).mT
    return grad


@lru_cache(maxsize=64)
def _half_tables(
    first: int, second: int, groups: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the spins of half a (a, 2^a), those of half b and a row of ones (G, b + 1, 2^b), and ones (G, 1, 2^a)."""
    with torch.inference_mode(False):
        up = torch.ones(groups, 1, 2**second, dtype=dtype, device=device)
        later = torch.cat((spins(second, dtype, device).expand(groups, -1, -1), up), dim=1)
        return spins(first, dtype, device), later, torch.ones_like(up[:, :, :1]).expand(-1, -1, 2**first)
