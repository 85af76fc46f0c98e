"""Batches of data in memory: whole batches are indexed at once, as collating single items would slow training."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler


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


class ResumableLoader(DataLoader[tuple[Tensor, Tensor]]):
    """A DataLoader that goes on in the middle of an epoch, with the batches that an unbroken run would have had.

    Its arguments are those of DataLoader. Where its sampler has a generator, the first epoch is shuffled by that
    generator's seed, and each further one by the next number. `state_dict` holds the number and the batches handed out.
    """

    _seed: int | None = None
    _next_seed: int | None = None
    _skipped: int = 0
    _handed_out: int = 0

    def __iter__(self) -> Any:
        """Yield the batches of an epoch, in the first one after load_state_dict those that are left."""
        skipped, self._skipped = self._skipped, 0
        generator = getattr(self.sampler, "generator", None)
        if generator is not None:
            self._seed = generator.initial_seed() if self._next_seed is None else self._next_seed
            self._next_seed = self._seed + 1
            generator.manual_seed(self._seed)
        self._handed_out = skipped
        for batch in islice(super().__iter__(), skipped, None):
            self._handed_out += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return where the loader stands, as plain data."""
        return {"seed": self._seed, "batches": self._handed_out}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was called."""
        self._next_seed, self._skipped = state["seed"], state["batches"]


def settle(state: dict[str, Any], unfinished: int, epoch_is_over: bool) -> None:
    """Change a loader's state so that it counts finished batches, or is at the start of the epoch after a whole one.

    Args:
        state: as ResumableLoader.state_dict returns it.
        unfinished: how many batches were handed out and not trained on.
        epoch_is_over: whether the last batch of the epoch was trained on.
    """
    state["batches"] -= unfinished
    if epoch_is_over:
        state["batches"] = 0
        state["seed"] = None if state["seed"] is None else state["seed"] + 1


def batches(first: Tensor, second: Tensor, batch_size: int, shuffle: bool, num_workers: int) -> DataLoader:
    """Return a loader of (batch, ...) pairs; the last batch may be smaller.

    Torch's global generator, when the loader is made, fixes how its epochs are shuffled.
    The sampler is an ordinary one, over rows, so that Lightning can split the rows over processes or fix their order.
    """
    rows = TensorBatches(first, second)
    sampler = None
    if shuffle:
        sampler = RandomSampler(rows, generator=Generator().manual_seed(int(torch.randint(2**62, ()))))
    return ResumableLoader(
        rows,
        batch_size=batch_size,
        sampler=sampler,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        collate_fn=_as_it_is,
    )


def _as_it_is(batch: Any) -> Any:
    return batch
