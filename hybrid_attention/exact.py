"""Exact marginals for fields and couplings of any leading shape, and the layer that returns them."""

import math

import torch
from torch import Tensor

from hybrid_attention.coupling_shapes import MAX_SWEPT_RANGE, CouplingShape
from hybrid_attention.layers import IsingLayer, check_finite, check_finite_couplings
from hybrid_attention.log_domain import LogDomainEnumeration
from hybrid_attention.meet_in_the_middle import MeetInTheMiddle
from hybrid_attention.native_rows import native_is_used, native_marginals
from hybrid_attention.precision import full_precision
from hybrid_attention.row_arrangement import arrange_rows
from hybrid_attention.row_order import Bucket, RowOrder, plan_rows
from hybrid_attention.row_tables import smallest_partition

MAX_SPINS = 24
_PAIR_ENTRIES = 2**24
_BYTES_PER_STATE = 48


def exact_marginals(fields: Tensor, couplings: Tensor, present: Tensor | None = None) -> Tensor:
    """Return the exact marginals p_j = P(s_j = +1) of Ising models, P(s) = exp(-energy(s)) / Z.

    Args:
        fields: (..., T), in nats, float32 or float64 (half precision is computed in float32).
        couplings: (..., T, T), in nats; only the strict upper triangle is read, every other entry gets gradient 0.
        present: bool (..., T); a False spin is removed from its model, whatever its field: its p is 0, and its field
            and couplings get gradient 0. All spins are present without it.

    Returns:
        p (..., T) in the dtype of fields; the leading shapes broadcast. Rows that share couplings (a leading dimension
        of size 1, or none) share their tables, so do not expand couplings.

    Raises:
        TypeError: if fields or couplings are not floating point, or present is not bool.
        ValueError: if the shapes do not fit, T is over 24, or a present field or a coupling is not finite.

    Cost: O(2^T) multiplications and O(2^(T/2)) memory for a row, and O(2^T) memory for each set of couplings; the
    backward pass is analytic and costs about twice the forward pass. It cannot be differentiated twice.
    Source: arXiv 2606.12478, the marginals of Boltzmann attention; the algorithm is in meet_in_the_middle.py.
    """
    leading = _check(fields, couplings, present)
    dtype = fields.dtype
    working = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    fields, couplings = fields.to(working), couplings.to(working).triu(1)
    with full_precision(fields.device):
        return broadcast_marginals(fields, couplings, present, leading).to(dtype)


class ExactLayer(IsingLayer):
    """The exact marginals of Boltzmann attention, by enumeration in two halves.

    Args and errors as for IsingLayer; num_spins up to 24. A smaller range of the couplings costs no less.

    Cost: O(2^T) multiplications and O(2^(T/2)) memory for a query of T spins, O(2^T) memory for a head.
    Source: arXiv 2606.12478, exact enumeration.
    """

    def __init__(self, num_spins: int, num_heads: int = 1, coupling_shape: CouplingShape | None = None) -> None:
        super().__init__(num_spins, num_heads, coupling_shape)
        _check_size(num_spins, self.coupling_shape)

    @torch.compiler.disable
    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return the exact marginals, (batch, H, ..., T)."""
        length = fields.shape[-1]
        couplings = self.upper_couplings(length).to(fields.dtype)
        if fields.dim() > 3:
            couplings = couplings.view(self.num_heads, *(1,) * (fields.dim() - 3), length, length)
        return broadcast_marginals(fields, couplings, present, fields.shape[:-1])


def broadcast_marginals(fields: Tensor, couplings: Tensor, present: Tensor | None, leading: torch.Size) -> Tensor:
    """Return the marginals of float32 or float64 input of checked shapes."""
    length = fields.shape[-1]
    if length == 0 or math.prod(leading) == 0:
        return fields.expand(*leading, length) * 1
    if fields.shape[:-1] != leading:
        fields = fields.expand(*leading, length)
    arrangement = arrange_rows(leading, couplings.shape[:-2], None if present is None else present.shape[:-1])
    if native_is_used(fields, couplings):
        p = native_marginals(fields, couplings, present, arrangement)
        if p is not None:
            return p
    p = _group_marginals(
        arrangement.rows(fields),
        couplings.reshape(-1, length, length),
        None if present is None else arrangement.mask(present, length),
    )
    return arrangement.restore(p)


def _group_marginals(fields: Tensor, couplings: Tensor, present: Tensor | None) -> Tensor:
    """Return p for fields (V, G, T, R), couplings (G, T, T), present (V, G or 1, T, 1), a few G at a time."""
    groups, length = fields.shape[1:3]
    at_once = max(1, _PAIR_ENTRIES >> length)
    if groups <= at_once:
        return _row_marginals(fields, couplings, present)
    if present is not None:
        present = present.expand(-1, groups, -1, -1)
    parts = [slice(start, start + at_once) for start in range(0, groups, at_once)]
    return torch.cat(
        [_row_marginals(fields[:, g], couplings[g], None if present is None else present[:, g]) for g in parts], dim=1
    )


def _row_marginals(fields: Tensor, couplings: Tensor, present: Tensor | None) -> Tensor:
    """Sort the rows by reach, solve them, and redo those that underflow; see _group_marginals for the shapes."""
    if present is None:
        order = RowOrder(None, (Bucket(fields.shape[2], 0, 1, (fields.shape[2],)),), None)
    else:
        order = plan_rows(present)
    rows, pairs, mask = fields, couplings, present
    if mask is not None and order.rows is not None:
        index = torch.tensor(order.rows, device=fields.device)
        rows, mask = rows.index_select(0, index), mask.index_select(0, index)
    if mask is not None and order.pinned is not None:
        reach = torch.tensor(order.pinned, device=fields.device).view(-1, 1, 1, 1)
        rows, pairs = _pin(rows, couplings, mask, reach)
    absent = None if mask is None else ~mask
    p, underflow, least = MeetInTheMiddle.apply(rows, pairs, absent, order.buckets, False)
    amiss = not float(least) >= smallest_partition(p.dtype)
    if amiss:
        p, underflow, _ = MeetInTheMiddle.apply(rows, pairs, absent, order.buckets, True)
    if order.rows is not None:
        back = index.argsort()
        p, underflow = p.index_select(0, back), underflow.index_select(0, back) if amiss else None
    return _again(p, underflow, fields, couplings, present) if amiss else p


def _pin(fields: Tensor, couplings: Tensor, present: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Take the field of the absent spins, pinned to +1, off the others, and cut pairs that are never both present.

    Only the first `reach` spins of a row are in its tables: fields (V, G, T, R), couplings (G, T, T), present
    (V, G or 1, T, 1), reach (V or 1, 1, 1, 1).
    """
    together = present.to(fields.dtype).squeeze(-1).permute(1, 2, 0)
    pairs = couplings.triu(1).masked_fill((together @ together.mT) == 0, 0)
    places = torch.arange(fields.shape[2], device=fields.device).view(-1, 1)
    absent = (~present & (places < reach)).to(fields.dtype)
    return (fields - (pairs + pairs.mT) @ absent).masked_fill(~present, 0), pairs


def _again(p: Tensor, underflow: Tensor, fields: Tensor, couplings: Tensor, present: Tensor | None) -> Tensor:
    """Replace the rows that underflowed: float32 by float64 tables, float64 by enumeration in the log domain."""
    check_finite(fields, present)
    check_finite_couplings(couplings)
    parts = []
    for g in range(fields.shape[1]):
        v, r = underflow[:, g, 0].nonzero(as_tuple=True)
        if not len(v):
            parts.append(p[:, g])
            continue
        rows = fields[v, g, :, r].double()
        mask = torch.ones_like(rows, dtype=torch.bool)
        if present is not None:
            mask = present[v, g if present.shape[1] > 1 else 0, :, 0]
        rows, mask, pairs = rows[:, None, :, None], mask[:, None, :, None], couplings[g : g + 1].double()
        if fields.dtype != torch.float64:
            redone = _row_marginals(rows, pairs, mask)[:, 0, :, 0]
        else:
            rows, pairs = _pin(rows, pairs, mask, mask.new_tensor(fields.shape[2], dtype=torch.long))
            redone = LogDomainEnumeration.apply(rows[:, 0, :, 0], pairs[0], mask[:, 0, :, 0])
        places = torch.arange(fields.shape[2], device=p.device)
        parts.append(p[:, g].index_put((v[:, None], places, r[:, None]), redone.to(p.dtype)))
    return torch.stack(parts, dim=1)


def _check_size(length: int, shape: CouplingShape | None = None) -> None:
    if length > MAX_SPINS:
        if shape is not None and shape.range_of(length) <= MAX_SWEPT_RANGE:
            fits = "TransferMatrixLayer, which is exact for couplings of this range at any length"
        else:
            fits = (
                "MeanFieldLayer or GibbsLayer, which approximate any couplings, or TransferMatrixLayer for couplings "
                f"of a range up to {MAX_SWEPT_RANGE}, such as BandedCouplings(range=4)"
            )
        gigabytes = _BYTES_PER_STATE * 2.0**length / 1e9
        raise ValueError(
            f"Exact enumeration over {length} spins would take about {gigabytes:,.0f} GB for the pair weights of one "
            f"head: use at most {MAX_SPINS} spins, or {fits}."
        )


def _check(fields: Tensor, couplings: Tensor, present: Tensor | None) -> torch.Size:
    """Return the broadcast leading shape, or raise."""
    if not fields.is_floating_point() or not couplings.is_floating_point():
        raise TypeError(f"fields are {fields.dtype} and couplings {couplings.dtype}: give floating-point tensors.")
    if present is not None and present.dtype != torch.bool:
        raise TypeError(f"present is {present.dtype}: give a bool tensor, True where a spin is present.")
    fits = fields.dim() >= 1 and couplings.shape[-2:] == (fields.shape[-1], fields.shape[-1])
    fits = fits and (present is None or present.shape[-1:] == fields.shape[-1:])
    shapes = [fields.shape[:-1], couplings.shape[:-2], *([] if present is None else [present.shape[:-1]])]
    try:
        leading = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        fits = False
    if not fits:
        mask = "" if present is None else f", present {tuple(present.shape)}"
        raise ValueError(
            f"The shapes fields {tuple(fields.shape)}, couplings {tuple(couplings.shape)}{mask} do not fit: give "
            "(..., T), (..., T, T) and (..., T), whose leading dimensions broadcast."
        )
    _check_size(fields.shape[-1])
    return leading
