"""The layer for long sequences: exact marginals for couplings of a range, linear in the number of spins."""

from functools import lru_cache

import torch
from torch import Tensor

from hybrid_attention.chain_rows import ChainRows
from hybrid_attention.coupling_shapes import MAX_SWEPT_RANGE, CouplingShape
from hybrid_attention.ising import pair_index
from hybrid_attention.layers import IsingLayer, check_finite, check_finite_couplings


class TransferMatrixLayer(IsingLayer):
    """The exact marginals of Boltzmann attention for couplings of a range w, by sweeps over the states of w spins.

    Args and errors as for IsingLayer; the coupling shape has to have a range, as BandedCouplings(range=4) or
    ToeplitzCouplings(range=4) have, of at most 12, or there are at most 13 spins.

    Cost: for a query of T spins O(T 2^(2w) / w) multiplications while w is up to 5 and O(T 2^(3w/2) / w) beyond, in
    matrix products of all queries of a head, and O(T 2^w / w) other operations. For gradients about T 2^w / w numbers a
    query are kept up to w = 5, and 2 T 2^w / w beyond; w counts as 4 at least. The backward pass is analytic, takes two
    to three times as long as the forward pass, and cannot be differentiated twice. Rows whose weights span more than
    floating point does, with couplings of many nats, are done again in float64 or in the log domain, which is slower.
    Source: the transfer matrix of the Ising chain, as forward-backward sweep; arXiv 2606.12478 for the attention.
    """

    def __init__(self, num_spins: int, num_heads: int = 1, coupling_shape: CouplingShape | None = None) -> None:
        super().__init__(num_spins, num_heads, coupling_shape)
        reach = self.coupling_shape.range_of(num_spins)
        if reach > MAX_SWEPT_RANGE:
            raise ValueError(
                f"{self.coupling_shape} couples spins up to {reach} apart, and a sweep over their 2^{reach} states "
                f"takes too long: give coupling_shape=BandedCouplings(range) or ToeplitzCouplings(range) with a range "
                f"of at most {MAX_SWEPT_RANGE}, or take MeanFieldLayer or GibbsLayer."
            )

    @torch.compiler.disable
    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return the exact marginals, (batch, H, ..., T)."""
        check_finite(fields, present)
        couplings = self._earlier_couplings(fields.shape[-1]).to(fields.dtype)
        check_finite_couplings(couplings)
        if fields.numel() == 0:
            return fields * 1
        length = fields.shape[-1]
        if present is None:
            present = torch.ones(length, dtype=torch.bool, device=fields.device)
        mask = present[(None,) * (fields.dim() - present.dim())]
        mask = mask.expand(*mask.shape[:-1], length)
        arranged = [_arrange(one, fields[:, 0].shape[:-1], couplings.shape[-1]) for one in mask.unbind(1)]
        p = [
            arranged[min(head, len(arranged) - 1)].marginals(fields[:, head].reshape(-1, length), couplings[head])
            for head in range(self.num_heads)
        ]
        return torch.stack([x.view(fields[:, 0].shape) for x in p], dim=1)

    def _earlier_couplings(self, size: int) -> Tensor:
        """Return J of spin t with spin t - d at [head, t, d - 1]: (H, T, w), w at least 1, 0 where there is none."""
        reach = max(self.coupling_shape.range_of(size), 1)
        pairs = self.pair_couplings(size)
        places = _earlier_places(size, self.coupling_shape.range_of(size), pairs.device).expand(self.num_heads, -1)
        flat = pairs.new_zeros(self.num_heads, size * reach).scatter(1, places, pairs)
        return flat.view(self.num_heads, size, reach)


def _arrange(mask: Tensor, leading: torch.Size, coupling_range: int) -> ChainRows:
    """Return the rows of one head: mask (batch or 1, ..., T), whose leading dimensions broadcast to `leading`."""
    masks = mask.reshape(-1, mask.shape[-1])
    numbers = torch.arange(len(masks), device=mask.device).view(mask.shape[:-1])
    return ChainRows(masks, numbers.expand(leading).reshape(-1), coupling_range)


@lru_cache(maxsize=64)
def _earlier_places(num_spins: int, coupling_range: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        first, second = pair_index(num_spins, device, coupling_range)
        return second * max(coupling_range, 1) + second - first - 1
