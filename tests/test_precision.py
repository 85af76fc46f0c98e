"""Precision and copies of whole models with every layer: what trains, in which dtype, and what copies compute."""

import copy
import io
import pickle

import pytest
import pytorch_lightning as pl
import torch
from conftest import LAYERS, every_layer
from torch.optim.swa_utils import AveragedModel

from datamodules import BracketDataModule
from hybrid_attention import BoltzmannAttention, DecoderOnlyTransformer
from lightning_modules import BracketMatcher

PRECISIONS = {
    "32-true": torch.float32,
    "bf16-mixed": torch.float32,
    "16-mixed": torch.float32,
    "64-true": torch.float64,
    "bf16-true": torch.bfloat16,
}


def model_with(kind, dtype=torch.float32):
    torch.manual_seed(0)
    model = DecoderOnlyTransformer(4, 4, 4, 8, lambda: BoltzmannAttention(8, LAYERS[kind](4, 2)), 1)
    for name, parameter in model.named_parameters():
        if name.endswith("couplings"):
            torch.nn.init.normal_(parameter, 0.1, 0.5)
    return model.to(dtype)


def tokens():
    return torch.tensor([[0, 2, 3, 1], [2, 3, 0, 1]])


class Watched(BracketMatcher):
    """A matcher on a layer of the tests, which keeps the dtypes that the layer computes in."""

    def __init__(self, kind):
        super().__init__(4, 2, embed_dim=4)
        for block in self.model.blocks:
            block.attention = BoltzmannAttention(4, LAYERS[kind](4, 1))
        self.computed = set()
        for layer in self.ising_layers():
            self._watch(layer)

    def _watch(self, layer):
        inner = layer.marginals

        def marginals(fields, present):
            assert not torch.is_autocast_enabled("cpu")
            p = inner(fields, present)
            self.computed |= {fields.dtype, p.dtype}
            return p

        layer.marginals = marginals


@every_layer
@pytest.mark.parametrize(
    "precision",
    [name if name in ("bf16-mixed", "64-true") else pytest.param(name, marks=pytest.mark.slow) for name in PRECISIONS],
)
def test_every_precision_trains_with_ising_models_in_float32_or_better(kind, precision):
    torch.manual_seed(0)
    model = Watched(kind)
    trainer = pl.Trainer(
        max_steps=3,
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        limit_val_batches=1,
        val_check_interval=3,
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer.fit(model, BracketDataModule(4, 2, num_train=24, num_val=8, num_test=8, batch_size=8))
    assert model.computed == {torch.float64 if precision == "64-true" else torch.float32}
    assert {p.dtype for p in model.parameters()} == {PRECISIONS[precision]}
    assert trainer.callback_metrics["train_loss"].isfinite()
    assert trainer.callback_metrics["val_loss"].isfinite()
    moved = [name for name, p in model.named_parameters() if not torch.equal(p, before[name].to(p.dtype))]
    assert {name for name in before if "query_key_value" in name or name.endswith("couplings")} <= set(moved)


@every_layer
def test_mixed_precision_changes_outputs_by_no_more_than_the_rounding_of_linear_maps(kind):
    model = model_with(kind)
    plain = model(tokens())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(tokens())
    assert 0 < (mixed.float() - plain).abs().max() < 0.03 * plain.abs().max()


def copies(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return {
        "deepcopy": copy.deepcopy(model),
        "pickle": pickle.loads(pickle.dumps(model)),
        "torch.save": torch.load(buffer, weights_only=False),
        "average": AveragedModel(model),
    }


@every_layer
@pytest.mark.parametrize("ran", [False, True], ids=["before", "after"])
def test_copies_of_a_model_compute_the_same_and_learn_on_their_own(kind, ran):
    model = model_with(kind)
    if ran:
        model(tokens()).sum().backward()
        model.zero_grad()
    expected = model(tokens()).detach()
    for name, made in copies(model).items():
        out = made(tokens())
        assert torch.equal(out, expected), name
        out.square().sum().backward()
        assert all(p.grad is None for p in model.parameters())
        with torch.no_grad():
            for parameter in made.parameters():
                parameter += 0.1
        assert torch.equal(model(tokens()), expected)


@every_layer
def test_an_average_of_weights_is_the_model_of_the_mean_weights(kind):
    model = model_with(kind)
    average = AveragedModel(model)
    first = copy.deepcopy(model.state_dict())
    average.update_parameters(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2
    average.update_parameters(model)
    mean = model_with(kind)
    mean.load_state_dict({name: (value + model.state_dict()[name]) / 2 for name, value in first.items()})
    torch.testing.assert_close(average(tokens()), mean(tokens()), atol=1e-5, rtol=1e-5)
