"""Generated bracket words, with the position of the matching bracket as target."""

import pytorch_lightning as pl
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader

from datamodules.bracket_words import count_words, draw_distinct_words, draw_words, matching_targets
from datamodules.tensor_batches import batches

_SPLITS = ("all_words", "disjoint")


class BracketDataModule(pl.LightningDataModule):
    """Balanced bracket words, drawn uniformly; batches are (tokens, targets), both int64 (B, T).

    The target at a closing bracket is the position of the bracket that it closes, elsewhere -100, which is not scored.

    Args:
        context_length: length T of the words, even.
        num_types: kinds of brackets; kind t opens with token 2t and closes with 2t + 1.
        max_depth: how deep brackets nest; unlimited by default.
        split: "all_words" draws every split from all words (capacity); "disjoint" lets no word occur twice, in one
            split or in two (generalization).
        num_train: number of training words.
        num_val: number of validation words.
        num_test: number of test words.
        batch_size: words in a batch.
        num_workers: processes that load batches; 0 is fastest, as the words lie in memory.
        seed: fixes the words, whatever else is drawn.

    Raises:
        ValueError: if an argument is not allowed, or there are fewer words than "disjoint" needs.

    Cost: O(words x T) in memory and time. Source: arXiv 2606.12478, bracket matching.
    """

    def __init__(
        self,
        context_length: int,
        num_types: int = 1,
        max_depth: int | None = None,
        split: str = "all_words",
        num_train: int = 20_000,
        num_val: int = 2_000,
        num_test: int = 2_000,
        batch_size: int = 64,
        num_workers: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if context_length < 2 or context_length % 2:
            raise ValueError(f"context_length={context_length} was given: balanced words have an even length from 2.")
        at_least_one = {
            "num_types": num_types,
            "max_depth": 1 if max_depth is None else max_depth,
            "num_train": num_train,
            "num_val": num_val,
            "num_test": num_test,
            "batch_size": batch_size,
        }
        for name, value in at_least_one.items():
            if value < 1:
                raise ValueError(f"{name}={value} was given: give 1 or more.")
        if num_workers < 0:
            raise ValueError(f"num_workers={num_workers} was given: give 0 or more.")
        if split not in _SPLITS:
            raise ValueError(f"split={split!r} was given: take {' or '.join(repr(name) for name in _SPLITS)}.")
        available, wanted = count_words(context_length, num_types, max_depth), num_train + num_val + num_test
        if split == "disjoint" and wanted > available:
            raise ValueError(
                f"{wanted:,} distinct words were asked for, and there are {available:,} of length {context_length} "
                f"with {num_types} type(s): ask for fewer, take a longer context_length, more num_types, or "
                'split="all_words".'
            )
        self.save_hyperparameters(logger=False)
        self.hparams["_class_path"] = "datamodules.BracketDataModule"
        self.context_length = context_length
        self.num_types = num_types
        self.max_depth = max_depth
        self.split = split
        self.num_train = num_train
        self.num_val = num_val
        self.num_test = num_test
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.seed = seed
        self._words: tuple[Tensor, ...] | None = None

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return 2 * self.num_types

    @property
    def num_classes(self) -> int:
        """Number of positions that a target can name."""
        return self.context_length

    def setup(self, stage: str | None = None) -> None:
        """Draw the words, once."""
        if self._words is not None:
            return
        sizes = (self.num_train, self.num_val, self.num_test)
        kind = (self.context_length, self.num_types, self.max_depth)
        if self.split == "disjoint":
            words = draw_distinct_words(sum(sizes), *kind, self._generator(0))
            self._words = words.split(sizes)
        else:
            self._words = tuple(draw_words(size, *kind, self._generator(place)) for place, size in enumerate(sizes))

    def train_dataloader(self) -> DataLoader:
        """Return the training batches, shuffled."""
        return self._loader(0, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        """Return the validation batches."""
        return self._loader(1)

    def test_dataloader(self) -> DataLoader:
        """Return the test batches."""
        return self._loader(2)

    def predict_dataloader(self) -> DataLoader:
        """Return the test batches."""
        return self._loader(2)

    def _loader(self, place: int, shuffle: bool = False) -> DataLoader:
        self.setup()
        assert self._words is not None
        words = self._words[place]
        return batches(words, matching_targets(words), self.batch_size, shuffle, self.num_workers)

    def _generator(self, place: int) -> Generator:
        return torch.Generator().manual_seed(3 * self.seed + place)
