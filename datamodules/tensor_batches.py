"""Batches of data in memory: whole batches are indexed at once, as collating single items would slow training."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class TensorBatches(Dataset[tuple[Tensor, Tensor]]):
    """Rows of two tensors of equal length, which may be views; a list of row numbers gives a whole batch."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first = first
        self.second = second

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.first)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        """Return one row of both tensors."""
        return self.first[row], self.second[row]

    def __getitems__(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return rows of both tensors, (batch, ...)."""
        index = torch.as_tensor(rows)
        return self.first[index], self.second[index]


def batches(first: Tensor, second: Tensor, batch_size: int, shuffle: bool, num_workers: int) -> DataLoader:
    """Return a loader of (batch, ...) pairs; the last batch may be smaller. Shuffling follows torch's global seed.

    The sampler is an ordinary one, over rows, so that Lightning can split the rows over processes or fix their order.
    """
    return DataLoader(
        TensorBatches(first, second),
        batch_size=batch_size,
        shuffle=shuffle,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        collate_fn=_as_it_is,
    )


def _as_it_is(batch: Any) -> Any:
    return batch
