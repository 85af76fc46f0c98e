"""Training on two processes with DDP: each step is that of one process on both batches."""

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, DistributedSampler

from datamodules import BracketDataModule
from hybrid_attention import ExactLayer, FieldsOnlyLayer
from lightning_modules import BracketMatcher

VARIANTS = {
    "softmax": {},
    "softmax with position bias": {"position_bias": True},
    "fields only": {"layer": FieldsOnlyLayer},
    "couplings only": {"layer": ExactLayer, "use_fields": False},
    "boltzmann": {"layer": ExactLayer},
}
FROZEN = ("boltzmann", "couplings only")


class InOrder(BracketDataModule):
    """Training words in a fixed order, of which each process takes every other one."""

    def train_dataloader(self):
        loader = self._loader(0)
        if not torch.distributed.is_initialized():
            return loader
        sampler = DistributedSampler(loader.dataset, shuffle=False)
        return DataLoader(loader.dataset, self.batch_size, sampler=sampler, collate_fn=loader.collate_fn)


def trained(variant, freeze, devices):
    """The weights after three steps on the same words, with and without another process."""
    torch.manual_seed(3)
    module = BracketMatcher(6, 3, embed_dim=8, coupling_learning_rate_factor=1.0, **VARIANTS[variant]).double()
    for layer in module.ising_layers():
        if layer.couplings is not None:
            torch.nn.init.normal_(layer.couplings, std=0.3)
            layer.couplings.requires_grad_(not freeze)
    trainer = pl.Trainer(
        max_steps=3,
        accelerator="cpu",
        devices=devices,
        strategy="ddp_spawn" if devices > 1 else "auto",
        precision="64-true",
        use_distributed_sampler=False,  # Lightning's shuffles
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        limit_val_batches=0,
    )
    start = {name: value.clone() for name, value in module.state_dict().items()}
    trainer.fit(module, InOrder(6, 3, num_train=96, batch_size=32 // devices))
    return start, module.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variant", "freeze"), [(name, False) for name in VARIANTS] + [(name, True) for name in FROZEN]
)
def test_two_processes_train_like_one_on_both_batches(variant, freeze):
    start, together = trained(variant, freeze, 2)
    _, alone = trained(variant, freeze, 1)
    moved = {name for name in start if (start[name] - together[name]).abs().max() > 1e-6}
    assert any(name.endswith("query_key_value.weight") for name in moved)
    assert any(name.endswith("couplings") for name in moved) == (variant == "boltzmann" and not freeze)
    assert any(name.endswith("position_bias") for name in moved) == (variant == "softmax with position bias")
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-9, atol=1e-9, msg=name)
