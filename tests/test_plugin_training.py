"""Training through the command line on a noisy device of another package, and the circuits that it takes."""

import re
from pathlib import Path

import pytest
from test_device_plugins import need

from hybrid_attention import DQALayer
from lightning_modules import BracketMatcher
from lightning_modules.cli import main

pytestmark = pytest.mark.plugins

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = ("brackets.yaml", "layers/dqa.yaml", "devices/qiskit_aer_noisy.yaml")
STEPS = 5
SETTINGS = {
    "data.init_args.num_types": 3,
    "data.init_args.context_length": 8,
    "data.init_args.num_train": 2,  # one batch, so that the same queries are equal in every step
    "data.init_args.num_val": 2,
    "data.init_args.num_test": 2,
    "data.init_args.batch_size": 2,
    "model.init_args.layer.init_args.schedule": "LinearSchedule",
    "model.init_args.layer.init_args.schedule.init_args.steps": 2,
    "model.init_args.layer.init_args.schedule.init_args.tau": 2,
    "trainer.max_steps": STEPS,
    "trainer.val_check_interval": STEPS,
    "trainer.accelerator": "cpu",
    "trainer.enable_progress_bar": "false",
}


def run(subcommand):
    files = [argument for file in FILES for argument in ("--config", str(CONFIGS / file))]
    main([subcommand, *files, *(f"--{name}={value}" for name, value in SETTINGS.items())])


def estimated_circuits(out, name):
    (row,) = (line for line in out.splitlines() if line.startswith(name))
    return int(re.split(r"\s{2,}", row)[2].replace(",", ""))


def test_five_steps_on_aer_with_noise_move_all_weights_and_run_the_circuits_of_the_estimate(
    tmp_path, monkeypatch, capsys
):
    need("qiskit.aer")
    from qiskit_aer import AerSimulator

    monkeypatch.chdir(tmp_path)
    submitted, before, modules = [], {}, []
    simulate, start = AerSimulator.run, BracketMatcher.on_fit_start

    def watch(self, circuits, *given, **options):
        submitted.extend((circuit.num_qubits, options["shots"]) for circuit in circuits)
        assert self.options.noise_model is not None
        return simulate(self, circuits, *given, **options)

    def keep(self):
        modules.append(self)
        before.update({name: parameter.detach().clone() for name, parameter in self.named_parameters()})
        start(self)

    monkeypatch.setattr(AerSimulator, "run", watch)
    monkeypatch.setattr(BracketMatcher, "on_fit_start", keep)
    run("estimate")
    out = capsys.readouterr().out
    assert not submitted
    run("fit")
    assert "test_accuracy" in capsys.readouterr().out

    (module,) = modules
    assert module.trainer.global_step == STEPS
    for name, parameter in module.named_parameters():
        assert parameter.isfinite().all()
        assert (parameter - before[name]).abs().max() > 0, name

    names = ("validation before training", "validation pass", "test pass")
    expected = STEPS * estimated_circuits(out, "training epoch") + sum(estimated_circuits(out, name) for name in names)
    assert len(submitted) == expected
    assert {shots for _, shots in submitted} == {1000}
    (layer,) = (part for part in module.modules() if isinstance(part, DQALayer))
    assert layer.circuits_run == expected
    assert "Shots: 1,000 for each circuit." in out
