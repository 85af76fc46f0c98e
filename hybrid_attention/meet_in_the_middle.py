"""Exact marginals of many Ising models that share couplings, by two matrix products instead of 2^T energies a row.

Cut the T spins into halves a and b. With A[s_a] = exp(h_a . s_a), B[s_b] = exp(h_b . s_b) and the pair weights
W[s_b, s_a] = exp(sum_{j<k} J_jk s_j s_k), which all rows share,

    U = W A      V = W^T B      Z = sum(U B)      p_b = N_b (U B) / Z      p_a = N_a (V A) / Z

where N holds the occupations n = (s + 1) / 2 of the states. With g = dL/dp and d(n) = g . n - g . p the gradients are

    dL/dh_k  = 2 E[d n_k]        from W (A d_a) and W^T (B d_b)
    dL/dJ_kl = sum E[d s_k s_l]  from W * (B (A d_a)^T + (B d_b) A^T)

so a row costs O(2^(T/2)) memory and O(2^T) multiplications, forward and backward. All factors are scaled to at most 1:
A and B for each spin, exp(-2 |h_j|) where spin j opposes its field, which keeps them accurate at any field; and W by
its largest entry where energies are large.

The tables of both halves stand one below the other in one tensor (groups, 2^a + 2^b, rows), half a first, and every
product of a batch of matrices gives a tensor of its own: written into a part of another one, torch would multiply
one matrix at a time. Below T = 12 the tensor operations cost more than the arithmetic.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hybrid_attention.pair_weights import pair_gradient, pair_weights
from hybrid_attention.precision import without_autocast
from hybrid_attention.row_order import Bucket
from hybrid_attention.state_tables import half_occupations, half_penalties

_PIECE_ENTRIES = 2**20
_SAVED_ENTRIES = 2**22
_SMALLEST_MARGIN = 1e14
_NEVER = 1e4


class _Tables(NamedTuple):
    """The tables of a piece of a bucket, (groups, 2^a + 2^b, rows) but for the last."""

    factors: Tensor  # A and B
    weights: Tensor  # V A and U B
    inverse: Tensor  # 1 / Z, (groups, 1, rows), and 0 in rows that were found to underflow


class MeetInTheMiddle(Function):
    """Marginals of rows of one or more groups; the rows of a group share their couplings.

    Input: fields (V, G, T, R), couplings (G, T, T) of which the strict upper triangle is read, absent bool
    (V, G or 1, T, 1) or None, buckets along V, and whether to look for rows whose partition function underflows.

    Output: p (V, G, T, R), 0 at absent spins and in the rows that were found to underflow; bool (V, G, 1, R), True in
    those rows, or None; and the least partition function (), NaN if one is NaN.
    """

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, couplings: Tensor, absent: Tensor | None, buckets: Sequence[Bucket], careful: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the marginals, which rows underflow, and the least partition function."""
        costs = _spin_costs(fields, absent, buckets)
        p = torch.zeros_like(fields)
        underflow = torch.zeros_like(fields[:, :, :1], dtype=torch.bool) if careful else None
        rows = fields.shape[1] * fields.shape[3]
        entries = sum(_row_entries(bucket.size) * (bucket.stop - bucket.start) for bucket in buckets) * rows
        keep = any(ctx.needs_input_grad) and entries <= _SAVED_ENTRIES
        largest_energy = float(couplings.abs().sum())
        kept: list[Tensor] = []
        smallest = []
        for bucket in buckets:
            pairs = _pair_table(bucket, couplings, largest_energy)
            for piece, part in _pieces(bucket, costs):
                tables, sums = _solve(part, pairs, bucket.size, careful)
                smallest.append(sums[:, bucket.size :].amin())
                if underflow is not None:
                    bucket.put(underflow, tables.inverse == 0, piece)
                bucket.put(p, sums[:, : bucket.size] * tables.inverse, piece)
                if keep:
                    kept += tables
            if keep:
                kept.append(pairs)
        p.clamp_(max=1)
        if absent is not None:
            p.mul_(~absent)
        ctx.buckets, ctx.kept, ctx.careful, ctx.largest_energy = buckets, keep, careful, largest_energy
        ctx.save_for_backward(fields, couplings, absent, p, *kept)
        least = _least(smallest) if smallest else p.new_ones(())
        ctx.mark_non_differentiable(least, *([] if underflow is None else [underflow]))
        return p, underflow, least

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor | None, None, None, None]:
        """Return the gradients for fields and couplings."""
        fields, couplings, absent, p, *kept = ctx.saved_tensors
        stored = iter(kept)
        if absent is not None:
            grad = grad.masked_fill(absent, 0)
        costs = grad if ctx.kept else _spin_costs(fields, absent, ctx.buckets)
        grad_fields = torch.zeros_like(p)
        grad_couplings = torch.zeros_like(couplings) if ctx.needs_input_grad[1] else None
        mean = (grad * p).sum(2, keepdim=True)
        for bucket in ctx.buckets:
            pieces = list(_pieces(bucket, costs))
            if ctx.kept:
                solved = [_Tables(next(stored), next(stored), next(stored)) for _ in pieces]
                pairs = next(stored)
            else:
                pairs = _pair_table(bucket, couplings, ctx.largest_energy)
            pair_sums = None
            for number, (piece, part) in enumerate(pieces):
                tables = solved[number] if ctx.kept else _solve(part, pairs, bucket.size, ctx.careful)[0]
                slopes = torch.cat((bucket.take(grad, piece), -bucket.take(mean, piece)), dim=1).mul_(tables.inverse)
                values, weighted = _field_gradient(tables, pairs, slopes)
                bucket.put(grad_fields, values, piece)
                if grad_couplings is not None:
                    pair_sums = _add_pair_sums(pair_sums, tables.factors, weighted, pairs)
            if grad_couplings is not None and pair_sums is not None:
                bucket.add_couplings_gradient(grad_couplings, pair_gradient(pair_sums.mul_(pairs), bucket.size))
        if absent is not None:
            grad_fields.mul_(~absent)
        return grad_fields, grad_couplings, None, None, None


def _spin_costs(fields: Tensor, absent: Tensor | None, buckets: Sequence[Bucket]) -> Tensor:
    """Return what each spin costs at -1 and at +1, max(h, 0) and max(-h, 0): (V, G, T, 2, R).

    In a bucket that shares couplings, an absent spin is pinned to +1: it costs too much at -1. In the other buckets
    absent spins come last, and the pair table leaves out the states in which they are at -1.
    """
    if absent is not None:
        fields = fields.masked_fill(absent, 0)
    costs = torch.stack((fields, -fields), dim=3).clamp_(min=0)
    if absent is not None and any(bucket.reaches is None for bucket in buckets):
        costs[:, :, :, 0].masked_fill_(absent, _NEVER)
    return costs


def _pair_table(bucket: Bucket, couplings: Tensor, largest_energy: float) -> Tensor:
    """Return the pair weights W of each group of the bucket, (groups, 2^b, 2^a), 0 at states that do not count."""
    pairs = pair_weights(bucket.couplings(couplings), largest_energy)
    counted = bucket.counted_states(couplings.dtype, couplings.device)
    if counted is not None:
        pairs.view(len(counted), -1, *pairs.shape[1:]).mul_(counted)
    return pairs


def _row_entries(size: int) -> int:
    """Return how many entries the factors and the weights of a row take."""
    return int(2 * (2 ** (size // 2) + 2 ** ((size + 1) // 2)))


def _pieces(bucket: Bucket, rows: Tensor) -> Iterator[tuple[slice | None, Tensor]]:
    """Yield the bucket's part of (V, G, T, ..., R), cut along R so that the tables of a piece stay small."""
    groups = rows.shape[1] * (bucket.stop - bucket.start)
    most = max(1, _PIECE_ENTRIES // (groups * _row_entries(bucket.size)))
    total = rows.shape[-1]
    if total <= most:
        yield None, bucket.take(rows, None)
        return
    for start in range(0, total, most):
        piece = slice(start, start + most)
        yield piece, bucket.take(rows, piece)


def smallest_partition(dtype: torch.dtype) -> float:
    """Return the least partition function whose row needs no other way: all of its states that count are in range."""
    return torch.finfo(dtype).tiny * _SMALLEST_MARGIN


def _least(values: Sequence[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(list(values)).amin()


def _solve(costs: Tensor, pairs: Tensor, size: int, careful: bool) -> tuple[_Tables, Tensor]:
    """Return the tables of a piece from the costs of its spins (G, size, 2, M), and Z p_j and Z (G, size + 1, M)."""
    factors = _each_group(half_penalties(size, costs.dtype, costs.device), costs.flatten(1, 2)).exp_()
    weights = _sum_other_half(factors, pairs).mul_(factors)
    sums = _each_group(half_occupations(size, costs.dtype, costs.device), weights)
    partition = sums[:, size:]
    inverse = partition.reciprocal()
    if careful:
        inverse.masked_fill_(~(partition >= smallest_partition(costs.dtype)), 0)
    return _Tables(factors, weights, inverse), sums


def _each_group(matrix: Tensor, tables: Tensor) -> Tensor:
    """Multiply (m, n) with the table of each group: (G, n, M) -> (G, m, M)."""
    return torch.bmm(matrix.expand(len(tables), -1, -1), tables)


def _sum_other_half(halves: Tensor, pairs: Tensor) -> Tensor:
    """Return W^T B and W A for tables A and B, in the same layout."""
    states = pairs.shape[2]
    return torch.cat((torch.bmm(pairs.mT, halves[:, states:]), torch.bmm(pairs, halves[:, :states])), dim=1)


def _field_gradient(tables: _Tables, pairs: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Return dL/dh (G, size, M), and A d_a / Z and B d_b / Z, from g / Z and -g . p / Z (G, size + 1, M).

    The constant -g . p is counted in half b.
    """
    size = slopes.shape[1] - 1
    n = half_occupations(size, slopes.dtype, slopes.device)
    deviation = _each_group(n.T, slopes)
    weighted = tables.factors * deviation
    sums = _sum_other_half(weighted, pairs).mul_(tables.factors).addcmul_(deviation, tables.weights)
    return _each_group(n[:size], sums).mul_(2), weighted


def _add_pair_sums(total: Tensor | None, factors: Tensor, weighted: Tensor, pairs: Tensor) -> Tensor:
    """Add B (A d_a)^T + (B d_b) A^T, summed over rows, to (G, 2^b, 2^a)."""
    states = pairs.shape[2]
    second, first_weighted = factors[:, states:], weighted[:, :states].mT
    total = torch.bmm(second, first_weighted) if total is None else total.baddbmm_(second, first_weighted)
    return total.baddbmm_(weighted[:, states:], factors[:, :states].mT)
