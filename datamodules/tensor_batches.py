"""Batches of data in memory: whole batches are indexed at once, as collating single items would slow training."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler


class TensorBatches(Dataset[tuple[Tensor, Tensor]]):
    """Rows of two tensors of equal length, indexed by a list of row numbers."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first = first
        self.second = second

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.first)

    def __getitem__(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the rows of both tensors."""
        index = torch.as_tensor(rows)
        return self.first[index], self.second[index]


def batches(first: Tensor, second: Tensor, batch_size: int, shuffle: bool, num_workers: int) -> DataLoader:
    """Return a loader of (batch, ...) pairs; the last batch may be smaller. Shuffling follows torch's global seed."""
    dataset = TensorBatches(first, second)
    sampler = RandomSampler(dataset) if shuffle else SequentialSampler(dataset)
    return DataLoader(
        dataset,
        sampler=BatchSampler(sampler, batch_size, drop_last=False),
        batch_size=None,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
