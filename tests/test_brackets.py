"""BracketDataModule: what is in its batches and splits, and how it refuses what it cannot give."""

import copy
import pickle

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from datamodules import BracketDataModule
from datamodules.bracket_words import count_words, matching_targets

SILENT = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class BatchRecorder(pl.LightningModule):
    """One linear map, and the tokens of each batch by stage."""

    def __init__(self, data):
        super().__init__()
        self.logits = nn.Embedding(data.vocab_size, data.num_classes)
        self.tokens = {"train": [], "val": [], "test": []}

    def step(self, batch, stage):
        tokens, targets = batch
        self.tokens[stage].append(tokens)
        return nn.functional.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())

    def training_step(self, batch, batch_idx):
        return self.step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.step(batch, "val"))

    def test_step(self, batch, batch_idx):
        self.step(batch, "test")

    def predict_step(self, batch, batch_idx):
        return batch[0]

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def build(context_length=12, **settings):
    data = BracketDataModule(context_length, **{"num_train": 90, "num_val": 25, "num_test": 17, **settings})
    data.setup()
    return data


def splits(data):
    """The tokens of the three splits; the training words in the order of one epoch."""
    loaders = (data.train_dataloader(), data.val_dataloader(), data.test_dataloader())
    return [torch.cat([tokens for tokens, _ in loader]) for loader in loaders]


def as_set(words):
    return set(map(tuple, words.tolist()))


def sorted_rows(words):
    return sorted(words.tolist())


def test_sizes_are_there_before_setup():
    data = BracketDataModule(12, num_types=3)
    assert (data.context_length, data.num_types, data.vocab_size, data.num_classes) == (12, 3, 6, 12)


def test_batches_are_tokens_and_their_targets_and_drop_nothing():
    data = build(num_types=2, batch_size=32)
    for loader, sizes in (
        (data.train_dataloader(), [32, 32, 26]),
        (data.val_dataloader(), [25]),
        (data.test_dataloader(), [17]),
        (data.predict_dataloader(), [17]),
    ):
        found = list(loader)
        assert [len(tokens) for tokens, _ in found] == sizes
        for tokens, targets in found:
            assert tokens.dtype == targets.dtype == torch.int64
            assert tokens.shape == targets.shape == (len(tokens), 12)
            assert torch.equal(targets, matching_targets(tokens))


@pytest.mark.parametrize(
    ("settings", "exist"), [({}, 132), ({"num_types": 2}, 8448), ({"num_types": 2, "max_depth": 1}, 64)]
)
def test_disjoint_splits_share_no_word_and_repeat_none(settings, exist):
    sizes = {"num_train": exist // 2, "num_val": exist // 4, "num_test": exist - exist // 2 - exist // 4}
    words = [as_set(part) for part in splits(build(split="disjoint", **sizes, **settings))]
    assert [len(part) for part in words] == list(sizes.values())
    assert len(set.union(*words)) == exist == count_words(12, **settings)


def test_all_words_lets_every_split_draw_from_all_words():
    data = build(8, split="all_words", num_train=400, num_val=400, num_test=400)
    assert [len(as_set(part)) for part in splits(data)] == [14, 14, 14]


@pytest.mark.parametrize("split", ["all_words", "disjoint"])
def test_the_seed_fixes_the_words_whatever_else_is_drawn(split):
    torch.manual_seed(1)
    first = splits(build(split=split, seed=5))
    torch.manual_seed(2)
    again, other = splits(build(split=split, seed=5)), splits(build(split=split, seed=6))
    assert [sorted_rows(part) for part in first] == [sorted_rows(part) for part in again]
    assert all(sorted_rows(a) != sorted_rows(b) for a, b in zip(first, other, strict=True))


def test_setup_does_not_touch_the_global_generator():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    build()
    assert torch.equal(torch.rand(3), expected)


def test_splits_are_independent_streams():
    """The size of one split does not move another, and none begins like another, nor like one of the next seed."""
    data, larger = build(16, num_val=90), build(16, num_train=500, num_val=90)
    assert torch.equal(splits(data)[1], splits(larger)[1])
    firsts = [splits(build(16, num_train=17, num_val=17, num_test=17, seed=seed)) for seed in range(3)]
    assert len({str(sorted_rows(part)) for parts in firsts for part in parts}) == 9


def test_training_words_are_shuffled_anew_each_epoch_by_the_global_generator():
    torch.manual_seed(0)
    loader = build().train_dataloader()
    first, second = ([tokens for tokens, _ in loader] for _ in range(2))
    torch.manual_seed(0)
    again = [tokens for tokens, _ in build().train_dataloader()]
    assert torch.equal(torch.cat(first), torch.cat(again))
    assert not torch.equal(torch.cat(first), torch.cat(second))
    assert sorted_rows(torch.cat(first)) == sorted_rows(torch.cat(second))


def test_workers_load_the_same_batches():
    alone, helped = build(batch_size=10), build(batch_size=10, num_workers=1)
    assert helped.val_dataloader().persistent_workers
    for ours, theirs in zip(alone.val_dataloader(), helped.val_dataloader(), strict=True):
        assert torch.equal(ours[0], theirs[0])
        assert torch.equal(ours[1], theirs[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context_length": 7}, "context_length=7 was given: balanced words have an even length"),
        ({"context_length": 0}, "context_length=0 was given"),
        ({"context_length": -2}, "context_length=-2 was given"),
        ({"num_types": 0}, "num_types=0 was given: give 1 or more"),
        ({"max_depth": 0}, "max_depth=0 was given: give 1 or more"),
        ({"num_train": 0}, "num_train=0 was given"),
        ({"num_val": 0}, "num_val=0 was given"),
        ({"num_test": -1}, "num_test=-1 was given"),
        ({"batch_size": 0}, "batch_size=0 was given"),
        ({"num_workers": -1}, "num_workers=-1 was given: give 0 or more"),
        ({"split": "both"}, "split='both' was given: take 'all_words' or 'disjoint'"),
    ],
)
def test_bad_arguments_are_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        BracketDataModule(**{"context_length": 12, **settings})


def test_more_disjoint_words_than_exist_are_refused_at_once_with_what_to_change():
    settings = {"split": "disjoint", "num_train": 131, "num_val": 1, "num_test": 1}
    with pytest.raises(
        ValueError, match=r"133 distinct words were asked for, and there are 132 .* ask for fewer, .*"
    ) as e:
        BracketDataModule(12, **settings)
    assert all(advice in str(e.value) for advice in ("context_length", "num_types", 'split="all_words"'))
    BracketDataModule(12, **{**settings, "num_train": 130})


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda data: pickle.loads(pickle.dumps(data))])
def test_copies_hold_the_same_words(clone):
    data = build()
    assert torch.equal(splits(clone(data))[1], splits(data)[1])


def test_arguments_come_back_from_a_checkpoint_of_plain_data(tmp_path):
    data = BracketDataModule(12, num_types=2, num_train=64, num_val=5, num_test=5, seed=3)
    trainer = pl.Trainer(**SILENT, max_steps=1, default_root_dir=tmp_path)
    trainer.fit(BatchRecorder(data), datamodule=data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    loaded = BracketDataModule.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    names = ("context_length", "num_types", "max_depth", "split", "num_train", "num_val", "num_test", "seed")
    assert [getattr(loaded, name) for name in names] == [getattr(data, name) for name in names]


def test_lightning_runs_every_stage():
    data = build(batch_size=16)
    model = BatchRecorder(data)
    trainer = pl.Trainer(**SILENT, fast_dev_run=True)
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data)
    assert {stage: [tuple(t.shape) for t in seen] for stage, seen in model.tokens.items()} == {
        stage: [(16, 12)] for stage in ("train", "val", "test")
    }
    assert [tuple(tokens.shape) for tokens in pl.Trainer(**SILENT).predict(model, datamodule=data)] == [
        (16, 12),
        (1, 12),
    ]


def test_overfit_batches_repeats_the_same_batch():
    data = build(batch_size=16)
    model = BatchRecorder(data)
    trainer = pl.Trainer(**SILENT, overfit_batches=1, max_epochs=3, num_sanity_val_steps=0)
    trainer.fit(model, datamodule=data)
    assert len(model.tokens["train"]) == 3
    assert all(torch.equal(tokens, model.tokens["train"][0]) for tokens in model.tokens["train"])


def test_processes_of_distributed_training_share_the_words_out():
    """Lightning gives the loader a distributed sampler, by the same call as here."""
    from pytorch_lightning.utilities.data import _update_dataloader

    loader = build(num_train=90, batch_size=16).train_dataloader()
    parts = []
    for rank in range(2):
        sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=rank, seed=1)
        parts.append(torch.cat([tokens for tokens, _ in _update_dataloader(loader, sampler)]))
    assert [len(part) for part in parts] == [45, 45]
    assert sorted_rows(torch.cat(parts)) == sorted_rows(loader.dataset.first)
