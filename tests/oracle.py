"""Slow, obvious float64 references, written with loops."""

import itertools
import math

import torch
from torch import Tensor


def marginals_by_loops(fields: Tensor, couplings: Tensor, present: Tensor | None = None) -> Tensor:
    """Enumerate one model: fields (T,), couplings (T, T), present (T,); absent spins are left out of the sum."""
    spins = [j for j in range(len(fields)) if present is None or present[j]]
    h = [float(x) for x in fields.double()]
    J = couplings.double().tolist()
    exponents, states = [], []
    for state in itertools.product((-1, 1), repeat=len(spins)):
        exponent = sum(h[j] * s for j, s in zip(spins, state, strict=True))
        for a, j in enumerate(spins):
            for b in range(a + 1, len(spins)):
                exponent += J[j][spins[b]] * state[a] * state[b]
        exponents.append(exponent)
        states.append(state)
    largest = max(exponents)
    weights = [math.exp(e - largest) for e in exponents]
    p = torch.zeros(len(fields), dtype=torch.float64)
    for a, j in enumerate(spins):
        p[j] = math.fsum(w for w, s in zip(weights, states, strict=True) if s[a] == 1) / math.fsum(weights)
    return p


def marginals_by_table(fields: Tensor, couplings: Tensor, present: Tensor | None = None) -> Tensor:
    """Enumerate many models at once, differentiably: (..., T), (..., T, T), (..., T), all float64.

    A removed spin is left out by counting only the states in which it is at -1, with its field and couplings cut.
    """
    length = fields.shape[-1]
    spins = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=length)), dtype=torch.float64)
    spins = spins.reshape(-1, length)
    leading = torch.broadcast_shapes(
        fields.shape[:-1], couplings.shape[:-2], () if present is None else present.shape[:-1]
    )
    keep = torch.ones(*leading, length, dtype=torch.bool) if present is None else present.expand(*leading, length)
    h = torch.where(keep, fields, 0.0)
    J = torch.where(keep.unsqueeze(-1) & keep.unsqueeze(-2), couplings, 0.0).triu(1)
    exponents = h @ spins.T + torch.einsum("sj,...jk,sk->...s", spins, J, spins)
    counted = ~((~keep).double() @ (spins > 0).double().T > 0)
    exponents = exponents.masked_fill(~counted, -math.inf)
    return exponents.softmax(-1) @ (spins > 0).double()


def draw(*shape: int, seed: int = 0, center: float = 0.0, spread: float = 1.0) -> Tensor:
    """Draw normal numbers in float64, the same for the same seed."""
    return center + spread * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def draw_mask(*shape: int, seed: int = 0, kept: float = 0.6) -> Tensor:
    """Draw a mask that holds each spin with probability `kept`."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < kept


def causal_mask(length: int) -> Tensor:
    """Row i sees spins 0..i."""
    return torch.tensor([[k <= i for k in range(length)] for i in range(length)], dtype=torch.bool).view(length, length)


def largest_difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest |difference| in float64, infinite where the shapes differ or something is NaN."""
    if ours.shape != theirs.shape:
        return math.inf
    difference = (ours.detach().double() - theirs.detach().double()).abs()
    return float(difference.nan_to_num(math.inf).max()) if difference.numel() else 0.0
