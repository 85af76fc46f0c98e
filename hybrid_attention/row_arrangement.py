"""How models of any leading shape are arranged as rows that share couplings and masks."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowArrangement:
    """Which leading dimensions of (..., T) become V, G and R of (V, G, T, R).

    Along G, groups, the couplings vary; along V the set of present spins varies; the rows along R repeat both.
    """

    leading: tuple[int, ...]
    varied: tuple[int, ...]
    groups: tuple[int, ...]
    repeats: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return V, G and R."""
        rows, groups, repeats = (
            math.prod(self.leading[d] for d in part) for part in (self.varied, self.groups, self.repeats)
        )
        return rows, groups, repeats

    @property
    def order(self) -> tuple[int, ...]:
        """Return the dimensions of (..., T) as they stand in (V, G, T, R)."""
        return *self.varied, *self.groups, len(self.leading), *self.repeats

    def rows(self, tensor: Tensor) -> Tensor:
        """Arrange a tensor of the whole leading shape: (..., T) -> (V, G, T, R)."""
        rows, groups, repeats = self.sizes
        return tensor.permute(self.order).reshape(rows, groups, tensor.shape[-1], repeats)

    def restore(self, rows: Tensor) -> Tensor:
        """Undo `rows`: (V, G, T, R) -> (..., T)."""
        shape = (*self.leading, rows.shape[2])
        split = rows.view([shape[d] for d in self.order])
        return split.permute([self.order.index(d) for d in range(len(shape))])

    def mask(self, present: Tensor, length: int) -> Tensor:
        """Arrange which of `length` spins are present: (..., T) -> (V, G, T, 1), (V, 1, T, 1) where groups share it."""
        masked = present[(None,) * (len(self.leading) + 1 - present.dim())]
        shared = all(masked.shape[d] == 1 for d in self.groups)
        sizes = [-1 if shared or d not in self.groups else size for d, size in enumerate(self.leading)]
        masked = masked.expand(*sizes, length)
        return masked.permute(self.order).reshape(self.sizes[0], -1, length, 1)


@lru_cache(maxsize=256)
def arrange_rows(leading: torch.Size, coupled: torch.Size, masked: torch.Size | None) -> RowArrangement:
    """Return the arrangement for leading shapes of the whole, of the couplings, and of the mask, which broadcast."""
    dims = range(len(leading))

    def varies(shape: torch.Size | None, d: int) -> bool:
        place = d - len(leading) + len(shape or ())
        return shape is not None and place >= 0 and shape[place] > 1

    groups = tuple(d for d in dims if varies(coupled, d))
    varied = tuple(d for d in dims if d not in groups and varies(masked, d))
    repeats = tuple(d for d in dims if d not in groups and d not in varied)
    return RowArrangement(tuple(leading), varied, groups, repeats)
