"""The callback that logs effective inverse temperatures and divergences during training."""

import math
from functools import partial

import pytest
import pytorch_lightning as pl
import torch

from datamodules import BracketDataModule
from hybrid_attention import DQALayer, ExactLayer, LinearSchedule
from hybrid_attention.annealing import Annealer
from hybrid_attention.calibration import compare
from hybrid_attention.instances import draw_instances
from lightning_modules import BracketMatcher, CalibrationCallback
from lightning_modules.cli import main

SCHEDULE = LinearSchedule(6, 7.5)
NAMES = {"beta_h", "beta_J", "kl", "rms_error"}


class Kept(pl.Callback):
    """The metrics after every step."""

    def __init__(self):
        self.steps = []

    def on_train_batch_end(self, trainer, *given):
        self.steps.append({key: float(value) for key, value in trainer.callback_metrics.items()})


def train(layer, callback, steps=5, **settings):
    torch.manual_seed(0)
    data = BracketDataModule(4, 2, num_train=40, num_val=4, num_test=4, batch_size=8)
    model = BracketMatcher(4, 2, embed_dim=4, layer=layer, **settings)
    kept = Kept()
    trainer = pl.Trainer(
        max_steps=steps,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[callback, kept],
        accelerator="cpu",
    )
    trainer.fit(model, data)
    return model, kept.steps


def test_every_so_many_steps_each_layer_is_compared():
    callback = CalibrationCallback(every_n_steps=2, count=10)
    calls = []
    measure = callback.measure
    callback.measure = lambda layer, seen: calls.append(len(seen)) or measure(layer, seen)
    model, steps = train(partial(DQALayer, schedule=SCHEDULE), callback, num_blocks=2)
    found = {key for key in steps[-1] if key.startswith("calibration_")}
    assert found == {f"calibration_{name}_{number}" for name in NAMES for number in (0, 1)}
    assert calls == [1] * 6
    assert all(not layer._forward_pre_hooks for layer in model.ising_layers())
    assert 0 <= steps[-1]["calibration_kl_0"] < 0.1
    assert steps[-1]["calibration_beta_h_0"] == pytest.approx(1, abs=0.2)


def test_what_is_logged_is_the_report_of_the_queries():
    torch.manual_seed(0)
    models = draw_instances(4, 6, 0.8, 0.0, seed=1)
    layer = DQALayer(4, schedule=SCHEDULE).double()
    with torch.no_grad():
        layer.couplings.copy_(0.3 * torch.randn(1, 6))
    rows = layer.coupling_matrix().expand(6, 4, 4)
    seen = [(models.fields, torch.ones(6, 4, dtype=torch.bool), rows.detach())]
    found = CalibrationCallback(count=10).measure(layer, seen)
    ours = type(models)(models.fields, layer.couplings.detach().expand(6, -1))
    expected = compare(ours, Annealer()(ours, SCHEDULE))
    assert found["kl"] == pytest.approx(expected.kl)
    assert found["rms_error"] == pytest.approx(expected.rms_error)
    assert (found["beta_h"], found["beta_J"]) == pytest.approx(expected.betas)


def test_with_many_positions_the_inverse_temperatures_come_from_samples():
    models = draw_instances(15, 8, 0.6, 0.0, seed=1)
    layer = DQALayer(15, schedule=LinearSchedule(4, 5.0)).double()
    seen = [(models.fields, torch.ones(8, 15, dtype=torch.bool), torch.zeros(8, 15, 15))]
    found = CalibrationCallback(shots=200, device_options={"seed": 1}).measure(layer, seen)
    assert set(found) == {"beta_h", "beta_J"}
    assert found["beta_h"] == pytest.approx(1, abs=0.15)
    assert math.isnan(found["beta_J"])


def test_other_layers_are_left_alone():
    _, steps = train(ExactLayer, CalibrationCallback(every_n_steps=1))
    assert not [key for key in steps[-1] if key.startswith("calibration_")]


def test_training_is_not_changed():
    one, _ = train(partial(DQALayer, schedule=SCHEDULE), CalibrationCallback(every_n_steps=1))
    other, _ = train(partial(DQALayer, schedule=SCHEDULE), pl.Callback())
    for ours, theirs in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def rows_of(layer, models):
    matrix = layer.coupling_matrix().detach().expand(len(models), *layer.coupling_matrix().shape[1:])
    return [(models.fields, torch.ones_like(models.fields, dtype=torch.bool), matrix)]


def test_rescaling_brings_the_inverse_temperatures_nearer_to_one():
    layer, callback = DQALayer(5, schedule=SCHEDULE).double(), CalibrationCallback(count=40)
    with torch.no_grad():
        layer.couplings.normal_(0, 0.3, generator=torch.Generator().manual_seed(4))
    seen = rows_of(layer, draw_instances(5, 40, 1.0, 0.0, seed=2))
    before = callback.measure(layer, seen)
    scales = callback.follow(layer, seen, before)
    after = callback.measure(layer, seen)
    assert abs(before["beta_h"] - 1) > 0.05
    for name in ("beta_h", "beta_J"):
        assert scales[f"{name}_scale"] == pytest.approx(before[name])
        assert abs(after[name] - 1) < 0.2 * abs(before[name] - 1)
    assert after["rms_error"] < before["rms_error"]


def test_rescaling_that_makes_the_error_larger_is_undone():
    """Beyond the range of a schedule, a circuit that is given more samples at a lower inverse temperature still."""
    layer, callback = DQALayer(5, schedule=SCHEDULE).double(), CalibrationCallback(count=40)
    with torch.no_grad():
        layer.couplings.normal_(0, 2.0, generator=torch.Generator().manual_seed(3))
    seen = rows_of(layer, draw_instances(5, 40, 2.0, 0.0, seed=2))
    before = callback.measure(layer, seen)
    assert before["beta_J"] < 0.7
    assert callback.follow(layer, seen, before) == {"beta_h_scale": 1.0, "beta_J_scale": 1.0}
    assert callback.measure(layer, seen) == before


def test_what_is_rescaled_is_what_the_layer_gives_its_circuits():
    layer, other = DQALayer(3, schedule=SCHEDULE, clip=False).double(), DQALayer(3, schedule=SCHEDULE, clip=False)
    other.double()
    fields = draw_instances(3, 5, 0.7, 0.0, seed=4).fields[:, None]
    with torch.no_grad():
        layer.couplings.normal_(0, 0.3, generator=torch.Generator().manual_seed(5))
        other.couplings.copy_(layer.couplings / 0.7)
        layer(fields)
        layer.rescale(1.25, 0.7)
        torch.testing.assert_close(layer(fields), other(fields / 1.25))
    assert layer.max_field == pytest.approx(1.25 * other.max_field, rel=1e-3)
    assert set(layer.state_dict()) == {"couplings"}
    layer.rescale(1.0, 1.0)
    torch.testing.assert_close(layer.max_field, other.max_field)


@pytest.mark.parametrize("betas", [(0.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.inf)])
def test_a_layer_is_not_rescaled_by_what_is_no_inverse_temperature(betas):
    layer = DQALayer(2, schedule=SCHEDULE)
    with pytest.raises(ValueError, match=r"give two numbers from 0.001 to 1000"):
        layer.rescale(*betas)
    assert layer.beta_scale == (1, 1)


def test_fits_without_a_value_change_nothing_and_large_ones_are_bounded(monkeypatch):
    layer, callback = DQALayer(2, schedule=SCHEDULE), CalibrationCallback()
    monkeypatch.setattr(callback, "measure", lambda *given: {"beta_h": 1.0, "beta_J": math.nan})
    found = callback.follow(layer, [], {"beta_h": 1.1, "beta_J": math.nan})
    assert found == {"beta_h_scale": pytest.approx(1.1), "beta_J_scale": 1.0}
    found = callback.follow(layer, [], {"beta_h": -0.3, "beta_J": 50.0})
    assert found == {"beta_h_scale": pytest.approx(1.1), "beta_J_scale": 2.0}


def test_checkpoints_keep_the_divisors_for_the_schedule_they_were_measured_for(tmp_path):
    callback = CalibrationCallback(every_n_steps=1, rescale=True)
    model, steps = train(partial(DQALayer, schedule=SCHEDULE), callback)
    (layer,) = model.ising_layers()
    assert layer.beta_scale != (1, 1)
    assert steps[-1]["calibration_beta_h_scale_0"] == pytest.approx(layer.beta_scale[0])
    assert steps[-1]["calibration_beta_J_scale_0"] == pytest.approx(layer.beta_scale[1])
    path = tmp_path / "rescaled.ckpt"
    model.trainer.save_checkpoint(path)
    again = BracketMatcher.load_from_checkpoint(path)
    assert again.ising_layers()[0].beta_scale == pytest.approx(layer.beta_scale)
    for other in (partial(DQALayer, schedule=LinearSchedule(4, 5.0)), ExactLayer):
        (loaded,) = BracketMatcher.load_from_checkpoint(path, layer=other).ising_layers()
        assert getattr(loaded, "beta_scale", (1, 1)) == (1, 1)


def test_rescaling_without_a_quantum_layer_is_refused():
    with pytest.raises(ValueError, match="a model without a DQALayer"):
        train(ExactLayer, CalibrationCallback(rescale=True))


@pytest.mark.parametrize("settings", [{"every_n_steps": 0}, {"count": 0}, {"shots": 1}, {"device": "qiskit.aer"}])
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ValueError, match=r"was given|were given"):
        CalibrationCallback(**settings)


def test_the_command_line_takes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(
        [
            "fit",
            "--data=BracketDataModule",
            "--data.context_length=4",
            "--model=BracketMatcher",
            "--model.layer=hybrid_attention.DQALayer",
            "--trainer.callbacks+=lightning_modules.CalibrationCallback",
            "--trainer.callbacks.every_n_steps=1",
            "--trainer.fast_dev_run=true",
            "--trainer.enable_progress_bar=false",
        ]
    )
    assert "test_accuracy" in capsys.readouterr().out
