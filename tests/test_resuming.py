"""A run that is resumed has the losses and the weights of an unbroken one, bit for bit."""

from functools import partial

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from datamodules import BracketDataModule
from datamodules.tensor_batches import batches
from hybrid_attention import ExactLayer, GibbsLayer
from lightning_modules import BracketMatcher

BY_STEPS = {"max_steps": 12, "val_check_interval": 3, "check_val_every_n_epoch": None}


class Record(pl.Callback):
    """Losses by step, and an error before the weights are changed at one of them."""

    def __init__(self, broken_at=None):
        self.losses = {}
        self.broken_at = broken_at

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        if trainer.global_step == self.broken_at:
            raise RuntimeError("broken off")

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.losses["train", trainer.global_step] = float(outputs["loss"])

    def on_validation_end(self, trainer, pl_module):
        if not trainer.sanity_checking:
            self.losses["val", trainer.global_step] = float(trainer.callback_metrics["val_loss"])


def fit(folder, ckpt_path=None, broken_at=None, seed=0, num_workers=0, layer=ExactLayer, **settings):
    """Losses and weights; 5 batches an epoch."""
    torch.manual_seed(seed)
    data = BracketDataModule(6, num_train=70, num_val=20, num_test=20, batch_size=16, num_workers=num_workers)
    model = BracketMatcher(6, layer=layer)
    record = Record(broken_at)
    keep = ModelCheckpoint(folder, "{step}", "val_loss", save_top_k=-1, save_last=True, save_on_exception=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[keep, record],
        **(settings or BY_STEPS),
    )
    if broken_at is None:
        trainer.fit(model, data, ckpt_path=ckpt_path)
    else:
        with pytest.raises(RuntimeError, match="broken off"):
            trainer.fit(model, data)
    return record.losses, model.state_dict()


def check_same(resumed, unbroken, first_step):
    losses, weights = resumed
    assert min(step for _, step in losses) == first_step
    assert all(unbroken[0][place] == loss for place, loss in losses.items())
    assert all(torch.equal(tensor, unbroken[1][name]) for name, tensor in weights.items())


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({}, (3, 6, 9)),
        ({"num_workers": 1}, (6,)),
        ({**BY_STEPS, "val_check_interval": 5}, (5, 10)),
        ({**BY_STEPS, "limit_train_batches": 4, "val_check_interval": 4}, (4, 8)),
        ({"max_epochs": 3}, (5, 10)),
        ({"max_epochs": 3, "limit_train_batches": 3}, (3, 6)),
    ],
    ids=str,
)
def test_from_every_checkpoint_in_an_epoch_or_at_its_end(settings, steps, tmp_path):
    unbroken = fit(tmp_path / "whole", **settings)
    for step in steps:
        resumed = fit(tmp_path / f"from {step}", str(tmp_path / f"whole/step={step}.ckpt"), seed=1, **settings)
        check_same(resumed, unbroken, step + 1)


@pytest.mark.parametrize("layer", [ExactLayer, partial(GibbsLayer, num_samples=40)], ids=["exact", "gibbs"])
@pytest.mark.parametrize("broken_at", [1, 5, 7])
def test_from_the_checkpoint_of_a_step_that_was_broken_off(broken_at, layer, tmp_path):
    unbroken = fit(tmp_path / "whole", layer=layer)
    fit(tmp_path / "broken", broken_at=broken_at, layer=layer)
    resumed = fit(tmp_path / "resumed", str(tmp_path / "broken/last.ckpt"), seed=1, layer=layer)
    check_same(resumed, unbroken, broken_at + 1)


def test_from_the_end_of_an_epoch_with_sampled_marginals(tmp_path):
    layer = partial(GibbsLayer, num_samples=40)
    unbroken = fit(tmp_path / "whole", layer=layer)
    resumed = fit(tmp_path / "resumed", str(tmp_path / "whole/step=6.ckpt"), seed=1, layer=layer)
    check_same(resumed, unbroken, 7)


def test_a_loader_goes_on_where_another_one_stood():
    rows = torch.arange(40)
    torch.manual_seed(0)
    loader = batches(rows, rows, 6, shuffle=True, num_workers=0)
    epochs = [[first.tolist() for first, _ in loader] for _ in range(2)]
    other = batches(rows, rows, 6, shuffle=True, num_workers=0)
    torch.manual_seed(0)
    again = batches(rows, rows, 6, shuffle=True, num_workers=0)
    iterator = iter(again)
    for _ in range(3):
        next(iterator)
    other.load_state_dict(again.state_dict())
    assert [first.tolist() for first, _ in other] == epochs[0][3:]
    assert [first.tolist() for first, _ in other] == epochs[1]
    assert epochs[0] != epochs[1]
