"""Rows of a chain with couplings of a range: sorted for the sweeps, with absent spins taken out."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from hybrid_attention.chain_blocks import Blocks, blocks_of
from hybrid_attention.chain_log_domain import log_domain_marginals
from hybrid_attention.chain_sweeps import ChainSweeps


@dataclass(frozen=True)
class ChainRows:
    """Which spins of each row are present, and what follows for the sweeps.

    A row is swept up to the block of its last present spin. An absent spin before the end of that block is pinned to
    +1, and the field that it then puts on the others is taken off.

    Args:
        masks: bool (V, T), the sets of present spins.
        mask_of_row: int64 (R,), which of them each row has.
        coupling_range: w, 1 or more.
    """

    masks: Tensor
    mask_of_row: Tensor
    coupling_range: int

    @cached_property
    def blocks(self) -> Blocks:
        """How spins are grouped."""
        return blocks_of(self.coupling_range)

    @cached_property
    def block_counts(self) -> Tensor:
        """Blocks up to the last present spin of each mask: (V,)."""
        places = torch.arange(1, self.masks.shape[1] + 1, device=self.masks.device)
        reach = (self.masks * places).amax(1)
        return -(-reach // self.blocks.size)

    @cached_property
    def order(self) -> Tensor:
        """The rows, those with most blocks first: (R,)."""
        return self.block_counts[self.mask_of_row].argsort(descending=True, stable=True)

    @cached_property
    def rows_of_step(self) -> tuple[int, ...]:
        """The number of rows that reach each block."""
        counts = self.block_counts[self.mask_of_row].bincount()[1:]
        return tuple(counts.flip(0).cumsum(0).flip(0).tolist())

    @cached_property
    def pinned(self) -> Tensor | None:
        """Absent spins up to the end of the last block of each mask, bool (V, T), or None if there is none."""
        places = torch.arange(self.masks.shape[1], device=self.masks.device)
        pinned = ~self.masks & (places < (self.block_counts * self.blocks.size).unsqueeze(1))
        return pinned if pinned.any() else None

    def select(self, rows: Tensor) -> "ChainRows":
        """Return some of the rows."""
        return ChainRows(self.masks, self.mask_of_row[rows], self.coupling_range)

    def marginals(self, fields: Tensor, couplings: Tensor) -> Tensor:
        """Return p (R, T), 0 at absent spins.

        Args:
            fields: (R, T), float32 or float64, in nats.
            couplings: (T, w), J of spin t with spin t - d at [t, d - 1], in nats, 0 where there is none.

        Rows that float32 loses are done again in float64, and those that float64 loses in the log domain.
        """
        p, lost = self._sweep(fields, couplings)
        if not lost.any():
            return p
        kept, again = (~lost).nonzero().squeeze(1), lost.nonzero().squeeze(1)
        redone = self.select(again)
        if fields.dtype == torch.float64:
            found = log_domain_marginals(fields[again], couplings, self.masks[redone.mask_of_row])
        else:
            found = redone.marginals(fields[again].double(), couplings.double())
        parts = [found.to(fields.dtype)]
        if len(kept):
            parts.append(self.select(kept)._sweep(fields[kept], couplings)[0])
        return torch.cat(parts)[torch.cat((again, kept)).argsort()]

    def _sweep(self, fields: Tensor, couplings: Tensor) -> tuple[Tensor, Tensor]:
        """Return p (R, T), and which rows have none, (R,)."""
        if not self.rows_of_step:  # nothing is present
            absent = torch.ones_like(fields, dtype=torch.bool)
            return fields.masked_fill(absent, 0) + 0 * couplings.sum(), ~absent[:, 0]
        length = fields.shape[1]
        pushes = None
        if self.pinned is not None:
            couplings = couplings * self._ever_both()
            pushes = self._pushes(couplings, self.pinned)
        mask_of_row = self.mask_of_row[self.order]
        present = self.masks[mask_of_row]
        rows = fields.index_select(0, self.order).masked_fill(~present, 0)
        if pushes is not None:
            rows = (rows - pushes.index_select(0, mask_of_row)).masked_fill(~present, 0)
        missing = self.blocks.count(length) * self.blocks.size - length
        p, lost = ChainSweeps.apply(
            pad(rows, (0, missing)).T.contiguous(),
            pad(present, (0, missing)).T.contiguous(),
            couplings,
            self.blocks,
            self.rows_of_step,
        )
        back = self.order.argsort()
        return p.T[:, :length].index_select(0, back), lost[back]

    def _ever_both(self) -> Tensor:
        """Return where any row has both spins of a pair, (T, w): other pairs would only get rounding as gradients."""
        both = torch.zeros(self.masks.shape[1], self.coupling_range, dtype=torch.bool, device=self.masks.device)
        for d in range(1, min(self.coupling_range, len(both) - 1) + 1):
            both[d:, d - 1] = (self.masks[:, d:] & self.masks[:, :-d]).any(0)
        return both

    def _pushes(self, couplings: Tensor, pinned: Tensor) -> Tensor:
        """Return the fields that pinned spins put on the others: (V, T)."""
        at = pinned.to(couplings.dtype)
        total = torch.zeros_like(at)
        for d in range(1, min(self.coupling_range, at.shape[1] - 1) + 1):
            pairs = couplings[d:, d - 1]
            total = total + pad(pairs * at[:, :-d], (d, 0)) + pad(pairs * at[:, d:], (0, d))
        return total
