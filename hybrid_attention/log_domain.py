"""Exact marginals by enumeration in the log domain, for rows whose weights span more than floating point does."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hybrid_attention.precision import without_autocast
from hybrid_attention.state_tables import occupations

_CHUNK_ENTRIES = 2**20


class LogDomainEnumeration(Function):
    """Marginals of rows that share their couplings, from all 2^T energies, a chunk of states at a time.

    Input: fields (R, T) float64, couplings (T, T) float64 of which the strict upper triangle is read, present bool
    (R, T); a spin that is absent is pinned to +1, as in MeetInTheMiddle, and gets p = 0. Output: p (R, T).

    Cost: O(R 2^T T) multiplications twice, forward and again backward; memory for 2^20 energies at a time.
    """

    @staticmethod
    def forward(ctx: Any, fields: Tensor, couplings: Tensor, present: Tensor) -> Tensor:
        """Return the marginals."""
        largest = fields.new_full((fields.shape[0], 1), -torch.inf)
        for spins in _chunks(fields):
            largest = torch.maximum(largest, _exponents(fields, couplings, present, spins).amax(1, keepdim=True))
        partition = torch.zeros_like(largest)
        p = torch.zeros_like(fields)
        for spins in _chunks(fields):
            weights = (_exponents(fields, couplings, present, spins) - largest).exp_()
            partition += weights.sum(1, keepdim=True)
            p += weights @ (spins > 0).to(fields.dtype).T
        p = (p / partition).masked_fill_(~present, 0)
        ctx.save_for_backward(fields, couplings, present, p, largest + partition.log())
        return p

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return dL/dh_k = 2 E[d n_k] and dL/dJ_kl = sum E[d s_k s_l] with d = g . n - g . p."""
        fields, couplings, present, p, log_partition = ctx.saved_tensors
        grad_fields = torch.zeros_like(fields)
        grad_couplings = torch.zeros_like(couplings)
        grad = grad.masked_fill(~present, 0)
        mean = (grad * p).sum(1, keepdim=True)
        for spins in _chunks(fields):
            n = (spins > 0).to(fields.dtype)
            weights = (_exponents(fields, couplings, present, spins) - log_partition).exp_()
            weights *= grad @ n - mean
            grad_fields += 2 * weights @ n.T
            grad_couplings += (spins * weights.sum(0)) @ spins.T
        return grad_fields.masked_fill_(~present, 0), grad_couplings.triu_(1), None


def _chunks(fields: Tensor) -> Iterator[Tensor]:
    """Yield the spins of all states in chunks (T, states), the later spins constant within a chunk."""
    rows, length = fields.shape
    inner = min(length, max(1, (_CHUNK_ENTRIES // max(rows, 1)).bit_length() - 1))
    first = 2 * occupations(inner, fields.dtype, fields.device) - 1
    rest = 2 * occupations(length - inner, fields.dtype, fields.device) - 1
    for column in rest.unbind(1):
        yield torch.cat((first, column.unsqueeze(1).expand(-1, first.shape[1])))


def _exponents(fields: Tensor, couplings: Tensor, present: Tensor, spins: Tensor) -> Tensor:
    """Return -E of the states, (R, states), and -inf where a spin that is absent is at -1."""
    pairs = ((couplings.triu(1) @ spins) * spins).sum(0)
    ruled_out = (~present).to(fields.dtype) @ (spins < 0).to(fields.dtype) > 0
    return (fields @ spins + pairs).masked_fill_(ruled_out, -torch.inf)
