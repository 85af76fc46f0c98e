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
one matrix at a time. Below T = 12 the tensor operations cost more than the arithmetic, so that rows of a few spins
are solved from one table of all states instead (direct_table.py).
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hybrid_attention.direct_table import DirectTable
from hybrid_attention.pair_weights import pair_gradient, pair_weights
from hybrid_attention.precision import without_autocast
from hybrid_attention.row_order import Bucket
from hybrid_attention.row_tables import each_group, field_factors, inverse_partition
from hybrid_attention.state_tables import half_occupations

_PIECE_ENTRIES = 2**20
_SAVED_ENTRIES = 2**22
_LARGEST_DIRECT = 7
_NEVER = 1e4


class HalfTables(NamedTuple):
    """The tables of the halves of rows that share couplings in groups, (groups, 2^a + 2^b, rows) but for the last."""

    factors: Tensor  # A and B
    weights: Tensor  # V A and U B
    inverse: Tensor  # 1 / Z, (groups, 1, rows), and 0 in rows that were found to underflow

    @staticmethod
    def row_entries(size: int) -> int:
        """Return how many entries the tables of a row take."""
        return int(2 * (2 ** (size // 2) + 2 ** ((size + 1) // 2)))

    @staticmethod
    def solve(costs: Tensor, pairs: Tensor, careful: bool) -> tuple["HalfTables", Tensor]:
        """Return the tables, and Z and Z p_j (G, T + 1, M), from the costs of spins (G, T, 2, M) and W."""
        size = costs.shape[1]
        factors = field_factors(costs)
        weights = _sum_other_half(factors, pairs).mul_(factors)
        sums = each_group(half_occupations(size, costs.dtype, costs.device), weights)
        return HalfTables(factors, weights, inverse_partition(sums[:, :1], careful)), sums

    def gradient(self, pairs: Tensor, slopes: Tensor, with_pairs: bool) -> tuple[Tensor, Tensor | None]:
        """Return dL/dh (G, T, M), and with pairs E[d] of the states, summed over rows (G, 2^b, 2^a).

        `slopes` are -g . p / Z and g / Z (G, T + 1, M); the constant -g . p is counted in half a.
        """
        n = half_occupations(slopes.shape[1] - 1, slopes.dtype, slopes.device)
        deviation = each_group(n.T, slopes)
        weighted = self.factors * deviation
        sums = _sum_other_half(weighted, pairs).mul_(self.factors).addcmul_(deviation, self.weights)
        grad_fields = each_group(n[1:], sums).mul_(2)
        if not with_pairs:
            return grad_fields, None
        states = pairs.shape[2]
        expectation = torch.bmm(self.factors[:, states:], weighted[:, :states].mT)
        expectation.baddbmm_(weighted[:, states:], self.factors[:, :states].mT).mul_(pairs)
        return grad_fields, expectation


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
        bucket_rows = [(b.stop - b.start) * fields.shape[1] * fields.shape[3] for b in buckets]
        entries = sum(_kind(b).row_entries(b.size) * rows for b, rows in zip(buckets, bucket_rows, strict=True))
        keep = any(ctx.needs_input_grad) and entries <= _SAVED_ENTRIES
        largest_energy = float(couplings.abs().sum())
        kept: list[Tensor] = []
        smallest = []
        for bucket in buckets:
            pairs = _pair_table(bucket, couplings, largest_energy)
            if keep:
                kept.append(pairs)
            for piece in _pieces(bucket, fields):
                tables, sums = _kind(bucket).solve(bucket.take(costs, piece), pairs, careful)
                smallest.append(sums[:, :1].amin())
                if underflow is not None:
                    bucket.put(underflow, tables.inverse == 0, piece)
                bucket.put(p, sums[:, 1:] * tables.inverse, piece)
                if keep:
                    kept += tables
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
        costs = None if ctx.kept else _spin_costs(fields, absent, ctx.buckets)
        grad_fields = torch.zeros_like(p)
        grad_couplings = torch.zeros_like(couplings) if ctx.needs_input_grad[1] else None
        slopes = torch.cat(((grad * p).sum(2, keepdim=True).neg_(), grad), dim=2)
        for bucket in ctx.buckets:
            kind = _kind(bucket)
            pairs = next(stored) if costs is None else _pair_table(bucket, couplings, ctx.largest_energy)
            expectation = None
            for piece in _pieces(bucket, fields):
                if costs is None:
                    tables = kind(*islice(stored, len(kind._fields)))
                else:
                    tables = kind.solve(bucket.take(costs, piece), pairs, ctx.careful)[0]
                part = bucket.take(slopes, piece, bucket.size + 1).mul(tables.inverse)
                values, deviation = tables.gradient(pairs, part, grad_couplings is not None)
                bucket.put(grad_fields, values, piece)
                expectation = deviation if expectation is None or deviation is None else expectation.add_(deviation)
            if grad_couplings is not None and expectation is not None:
                bucket.add_couplings_gradient(grad_couplings, pair_gradient(expectation, bucket.size))
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


def _kind(bucket: Bucket) -> type[DirectTable] | type[HalfTables]:
    return DirectTable if bucket.size <= _LARGEST_DIRECT else HalfTables


def _pieces(bucket: Bucket, rows: Tensor) -> Iterator[slice | None]:
    """Yield the pieces of (V, G, T, R) along R, None for all of it, so that the tables of a piece stay small."""
    groups = rows.shape[1] * (bucket.stop - bucket.start)
    most = max(1, _PIECE_ENTRIES // (groups * _kind(bucket).row_entries(bucket.size)))
    total = rows.shape[-1]
    if total <= most:
        yield None
        return
    for start in range(0, total, most):
        yield slice(start, start + most)


def _least(values: Sequence[Tensor]) -> Tensor:
    return values[0] if len(values) == 1 else torch.stack(list(values)).amin()


def _sum_other_half(halves: Tensor, pairs: Tensor) -> Tensor:
    """Return W^T B and W A for tables A and B, in the same layout."""
    states = pairs.shape[2]
    return torch.cat((torch.bmm(pairs.mT, halves[:, states:]), torch.bmm(pairs, halves[:, :states])), dim=1)
