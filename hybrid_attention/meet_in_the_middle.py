"""Exact marginals of many Ising models that share couplings, by two matrix products instead of 2^T energies a row.

Cut the T spins into halves a and b. With A[s_a] = exp(h_a . s_a), B[s_b] = exp(h_b . s_b) and the pair weights
W[s_b, s_a] = exp(sum_{j<k} J_jk s_j s_k), which all rows share,

    U = W A      V = W^T B      Z = sum(U B)      p_b = N_b (U B) / Z      p_a = N_a (V A) / Z

where N holds the occupations n = (s + 1) / 2 of the states. With g = dL/dp and d(n) = g . n - g . p the gradients are

    dL/dh_k  = 2 E[d n_k]        from W (A d_a) and W^T (B d_b)
    dL/dJ_kl = sum E[d s_k s_l]  from W * (B (A d_a)^T + (B d_b) A^T)

so a row costs O(2^(T/2)) memory and O(2^T) multiplications, forward and backward. All factors are scaled to at most 1:
A and B for each spin, exp(-2 |h_j|) where spin j opposes its field, which keeps them accurate at any field; and W by
its largest entry.

Both halves stand side by side in one tensor (groups, 2, 2^ceil(T/2), rows), half a first. At odd T half a is a spin
short: its table ends with a block of zeros. The code counts every tensor operation: below T = 12 they cost more than
the arithmetic.
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
from hybrid_attention.state_tables import occupations, penalties

_PIECE_ENTRIES = 2**20
_SAVED_ENTRIES = 2**22
_SMALLEST_MARGIN = 1e14
_WORTH_SLICING = 12
_NEVER = 1e4


class _Tables(NamedTuple):
    """The tables of a piece of a bucket, (groups, 2, states, rows)."""

    factors: Tensor  # A / Z and B
    probability: Tensor  # V A / Z and U B / Z


class MeetInTheMiddle(Function):
    """Marginals of rows of one or more groups; the rows of a group share their couplings.

    Input: fields (V, G, T, R), couplings (G, T, T) of which the strict upper triangle is read, absent bool
    (V, G or 1, T, 1) or None, buckets along V, and whether to look for rows whose partition function underflows.

    Output: p (V, G, T, R), 0 at absent spins and in the rows that were found to underflow; bool (V, G, 1, R), True in
    those rows, or None; and bool (), True if some partition function underflows or is NaN.
    """

    @staticmethod
    def forward(
        ctx: Any, fields: Tensor, couplings: Tensor, absent: Tensor | None, buckets: Sequence[Bucket], careful: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the marginals, which rows underflow, and whether any does."""
        costs = _spin_costs(fields, absent, buckets)
        p = torch.zeros_like(fields)
        underflow = torch.zeros_like(fields[:, :, :1], dtype=torch.bool) if careful else None
        entries = sum(2 ** ((b.size + 3) // 2) * (b.stop - b.start) for b in buckets) * fields[0, :, 0].numel()
        keep = any(ctx.needs_input_grad) and entries <= _SAVED_ENTRIES
        threshold = torch.finfo(fields.dtype).tiny * _SMALLEST_MARGIN
        kept: list[Tensor] = []
        smallest = []
        for bucket in buckets:
            weights = pair_weights(bucket.couplings(couplings), fields.dtype)
            for piece, rows in _pieces(bucket, costs):
                tables, partition = _solve(rows, weights, bucket)
                smallest.append(partition.amin())
                if underflow is not None:
                    tiny = ~(partition >= threshold)
                    tables.factors[:, 0].masked_fill_(tiny, 0)
                    tables.probability.masked_fill_(tiny.unsqueeze(1), 0)
                    bucket.put(underflow, tiny, piece)
                n = occupations((bucket.size + 1) // 2, p.dtype, p.device)
                bucket.put(p, _whole(_each_half(n, tables.probability), bucket.size), piece)
                if keep:
                    kept += tables
            if keep:
                kept.append(weights)
        p.clamp_(max=1)
        if absent is not None:
            p.mul_(~absent)
        amiss = ~(torch.stack(smallest).amin() >= threshold) if smallest else torch.zeros((), dtype=torch.bool)
        ctx.buckets, ctx.kept, ctx.careful = buckets, keep, careful
        ctx.save_for_backward(fields, couplings, absent, p, underflow, *kept)
        ctx.mark_non_differentiable(amiss, *([] if underflow is None else [underflow]))
        return p, underflow, amiss

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor, Tensor | None, None, None, None]:
        """Return the gradients for fields and couplings."""
        fields, couplings, absent, p, underflow, *kept = ctx.saved_tensors
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
                solved = [_Tables(next(stored), next(stored)) for _ in pieces]
                weights = next(stored)
            else:
                weights = pair_weights(bucket.couplings(couplings), fields.dtype)
            sums = None
            for number, (piece, rows) in enumerate(pieces):
                tables = solved[number] if ctx.kept else _solve_again(rows, weights, bucket, underflow, piece)
                g, g_mean = bucket.take(grad, piece), bucket.take(mean, piece)
                values, weighted = _field_gradient(tables, weights, bucket, g, g_mean)
                bucket.put(grad_fields, values, piece)
                if grad_couplings is not None:
                    sums = _add_pair_sums(sums, tables.factors, weighted, weights, bucket)
            if grad_couplings is not None and sums is not None:
                bucket.add_couplings_gradient(grad_couplings, pair_gradient(sums.mul_(weights), bucket.size))
        if absent is not None:
            grad_fields.mul_(~absent)
        return grad_fields, grad_couplings, None, None, None


def _spin_costs(fields: Tensor, absent: Tensor | None, buckets: Sequence[Bucket]) -> Tensor:
    """Return what each spin costs at -1 and at +1, max(h, 0) and max(-h, 0): (V, G, T, 2, R).

    In a bucket that shares couplings, an absent spin is pinned to +1: it costs too much at -1. In the other buckets
    absent spins come last, and the states in which they are at -1 are left out of the tables.
    """
    if absent is not None:
        fields = fields.masked_fill(absent, 0)
    costs = torch.stack((fields, -fields), dim=3).clamp_(min=0)
    if absent is not None and any(bucket.reaches is None for bucket in buckets):
        costs[:, :, :, 0].masked_fill_(absent, _NEVER)
    return costs


def _pieces(bucket: Bucket, rows: Tensor) -> Iterator[tuple[slice | None, Tensor]]:
    """Yield the bucket's part of (V, G, T, ..., R), cut along R so that the tables of a piece stay small."""
    groups = rows.shape[1] * (bucket.stop - bucket.start)
    most = max(1, _PIECE_ENTRIES // (groups * 2 ** ((bucket.size + 3) // 2)))
    total = rows.shape[-1]
    if total <= most:
        yield None, bucket.take(rows, None)
        return
    for start in range(0, total, most):
        piece = slice(start, start + most)
        yield piece, bucket.take(rows, piece)


def _halves(rows: Tensor, size: int) -> Tensor:
    """Part (G, size, ...) into (G, 2, ceil(size / 2), ...); at odd size half a ends with a filler of zeros."""
    if size % 2:
        half = size // 2
        rows = torch.cat((rows[:, :half], torch.zeros_like(rows[:, :1]), rows[:, half:]), dim=1)
    return rows.unflatten(1, (2, -1))


def _whole(halves: Tensor, size: int) -> Tensor:
    """Undo _halves, dropping the filler: (G, 2, ceil(size / 2), R) -> (G, size, R)."""
    rows = halves.flatten(1, 2)
    if size % 2:
        half = size // 2
        rows = torch.cat((rows[:, :half], rows[:, half + 1 :]), dim=1)
    return rows


def _each_half(matrix: Tensor, halves: Tensor) -> Tensor:
    """Multiply (m, n) with both halves: (G, 2, n, R) -> (G, 2, m, R)."""
    groups = halves.shape[0]
    flat = halves.reshape(2 * groups, halves.shape[2], -1)
    return torch.bmm(matrix.expand(2 * groups, -1, -1), flat).view(groups, 2, len(matrix), -1)


def _solve(costs: Tensor, weights: Tensor, bucket: Bucket) -> tuple[_Tables, Tensor]:
    """Return the tables of a piece from the costs of its spins (G, size, 2, R), and Z (G, 1, R)."""
    spins = (bucket.size + 1) // 2
    halves = _halves(costs, bucket.size).flatten(2, 3)
    factors = _each_half(penalties(spins, costs.dtype, costs.device), halves).exp_()
    counted = bucket.counted_states(costs.dtype, costs.device)
    if counted is not None:
        factors.view(len(counted), -1, *factors.shape[1:]).mul_(counted)
    probability = _sum_other_half(factors, weights, bucket).mul_(factors)
    partition = probability[:, 1].sum(1, keepdim=True)
    inverse = partition.reciprocal()
    probability.mul_(inverse.unsqueeze(1))
    factors[:, 0].mul_(inverse)
    return _Tables(factors, probability), partition


def _solve_again(
    costs: Tensor, weights: Tensor, bucket: Bucket, underflow: Tensor | None, piece: slice | None
) -> _Tables:
    """Return the tables of a piece that were not kept, with those of the rows that underflow at zero."""
    tables, _ = _solve(costs, weights, bucket)
    if underflow is not None:
        tiny = bucket.take(underflow, piece)
        tables.factors[:, 0].masked_fill_(tiny, 0)
        tables.probability.masked_fill_(tiny.unsqueeze(1), 0)
    return tables


def _sum_other_half(halves: Tensor, weights: Tensor, bucket: Bucket) -> Tensor:
    """Return W^T B and W A for tables A and B, in the same layout."""
    if not _sliced(bucket) and bucket.size % 2 == 0:
        sums = torch.empty_like(halves)
        first, second = halves.unbind(1)
        first_sums, second_sums = sums.unbind(1)
        torch.bmm(weights.mT, second, out=first_sums)
        torch.bmm(weights, first, out=second_sums)
        return sums
    sums = torch.zeros_like(halves)
    states = weights.shape[2]
    for groups, second_states in _parts(weights, bucket):
        w = weights[groups, :second_states]
        torch.bmm(w.mT, halves[groups, 1, :second_states], out=sums[groups, 0, :states])
        torch.bmm(w, halves[groups, 0, :states], out=sums[groups, 1, :second_states])
    return sums


def _sliced(bucket: Bucket) -> bool:
    return bucket.reaches is not None and len(bucket.reaches) > 1 and bucket.size > _WORTH_SLICING


def _parts(weights: Tensor, bucket: Bucket) -> list[tuple[slice, int]]:
    """Return groups and how many states of half b they use: large tables are cut to the reach of each group."""
    if bucket.reaches is None or not _sliced(bucket):
        return [(slice(None), weights.shape[1])]
    each = weights.shape[0] // len(bucket.reaches)
    return [
        (slice(place * each, (place + 1) * each), 2 ** (reach - bucket.size // 2))
        for place, reach in enumerate(bucket.reaches)
    ]


def _field_gradient(
    tables: _Tables, weights: Tensor, bucket: Bucket, grad: Tensor, mean: Tensor
) -> tuple[Tensor, Tensor]:
    """Return dL/dh (G, size, R), and the tables A d_a / Z and B d_b; the constant - g . p is counted in half a."""
    n = occupations((bucket.size + 1) // 2, grad.dtype, grad.device)
    deviation = _each_half(n.T, _halves(grad, bucket.size))
    deviation[:, 0] -= mean
    weighted = tables.factors * deviation
    sums = _sum_other_half(weighted, weights, bucket).mul_(tables.factors).addcmul_(deviation, tables.probability)
    return _whole(_each_half(n, sums), bucket.size).mul_(2), weighted


def _add_pair_sums(sums: Tensor | None, factors: Tensor, weighted: Tensor, weights: Tensor, bucket: Bucket) -> Tensor:
    """Add B (A d_a)^T + (B d_b) A^T, summed over rows, to (G, 2^b, 2^a)."""
    if sums is None and not _sliced(bucket) and bucket.size % 2 == 0:
        (first, second), (first_weighted, second_weighted) = factors.unbind(1), weighted.unbind(1)
        return torch.bmm(second, first_weighted.mT).baddbmm_(second_weighted, first.mT)
    sums = torch.zeros_like(weights) if sums is None else sums
    states = weights.shape[2]
    for groups, second_states in _parts(weights, bucket):
        target = sums[groups, :second_states]
        target.baddbmm_(factors[groups, 1, :second_states], weighted[groups, 0, :states].mT)
        target.baddbmm_(weighted[groups, 1, :second_states], factors[groups, 0, :states].mT)
    return sums
