"""The estimate of circuits: to the circuit what qml.Tracker counts when they are run, and none is run for it."""

import re
from collections import Counter
from pathlib import Path

import pennylane as qml
import pytest
import pytorch_lightning as pl
import torch

from datamodules import BracketDataModule, TinyShakespeareDataModule
from devices import DQA
from hybrid_attention import DQALayer, ExactLayer, LinearSchedule, circuit_sizes
from hybrid_attention import circuits as circuits_module
from hybrid_attention.circuits import QuenchCircuits
from lightning_modules import BracketMatcher, CharLanguageModel
from lightning_modules.circuit_bill import broadcasts, executions_of, gates_of, passes_of_fit, quantum_layers
from lightning_modules.cli import main
from lightning_modules.estimate import estimate

CONFIGS = Path(__file__).parents[1] / "configs"
TEXT = "now is the winter of our discontent made glorious summer by this sun of york;\n"
SCHEDULE = {"class_path": "hybrid_attention.LinearSchedule", "init_args": {"steps": 2, "tau": 2.0}}
DEVICES = ("hybrid.statevector", "default.qubit", "lightning.qubit")
MODELS = ("causal", "both sides", "two blocks and heads", "text")
FEW = {"num_train": 5, "num_val": 4, "num_test": 5, "batch_size": 3}
on_devices = pytest.mark.parametrize("device", DEVICES)


class Trackers:
    """One qml.Tracker for each device that layers make."""

    def __init__(self):
        self.made = []

    def make_device(self, name, wires, **options):
        device = DEVICE_OF(name, wires, **options)
        self.made.append((device, qml.Tracker(device)))
        self.made[-1][1].__enter__()
        return device

    def total(self, name):
        return sum(tracker.totals.get(name, 0) for _, tracker in self.made)

    def circuits(self):
        return sum(
            executions - derivatives + derivatives // times_tracked(device)
            for device, tracker in self.made
            for executions, derivatives in [[tracker.totals.get(name, 0) for name in ("executions", "derivatives")]]
        )

    def sizes(self):
        """How many circuits of each number of wires ran, in training alone or without gradients alone."""
        found = Counter()
        for device, tracker in self.made:
            wires = [resources.num_allocs for resources in tracker.history.get("resources", ())]
            if tracker.totals.get("derivatives"):
                assert tracker.totals["derivatives"] == tracker.totals["executions"] == len(wires)
                found.update({size: count // times_tracked(device) for size, count in Counter(wires).items()})
                continue
            for size, executions in zip(wires, tracker.history.get("executions", ()), strict=True):
                found[size] += executions
        return dict(sorted(found.items()))

    def reset(self):
        for _, tracker in self.made:
            tracker.reset()


def times_tracked(device):
    """How often a device counts an execution with adjoint gradients: lightning.qubit and its base class both do."""
    methods = [vars(kind).get("execute_and_compute_derivatives") for kind in type(device).__mro__]
    return max(sum(hasattr(method, "__wrapped__") for method in methods), 1)


DEVICE_OF = circuits_module.make_device


@pytest.fixture
def trackers(monkeypatch):
    made = Trackers()
    monkeypatch.setattr(circuits_module, "make_device", made.make_device)
    return made


@pytest.fixture
def _many_sizes(monkeypatch):
    """Circuits of several sizes in small batches too."""
    monkeypatch.setattr(circuit_sizes, "_EXECUTION_COST", 1)
    circuit_sizes.choose_sizes.cache_clear()
    yield
    circuit_sizes.choose_sizes.cache_clear()


def build(kind, folder, **settings):
    """A model and its data."""
    torch.manual_seed(0)
    layer = {"class_path": "hybrid_attention.DQALayer", "init_args": {"schedule": SCHEDULE, **settings}}
    if kind == "text":
        (folder / "text.txt").write_text(TEXT * 2)
        text = TinyShakespeareDataModule(4, str(folder / "text.txt"), batch_size=5, stride=20)
        return CharLanguageModel(text.vocabulary, 4, embed_dim=4, layer=layer), text
    if kind == "two blocks and heads":
        sizes = {"embed_dim": 4, "num_heads": 2, "num_blocks": 2}
        return BracketMatcher(4, 2, layer=layer, **sizes), BracketDataModule(4, 2, **FEW)
    length = 8 if kind == "causal" else 4
    model = BracketMatcher(length, 3, kind == "causal", embed_dim=4, layer=layer)
    return model, BracketDataModule(length, 3, **FEW)


def trainer(**settings):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return pl.Trainer(max_epochs=1, logger=False, accelerator="cpu", **quiet, **settings)


def bill(model, data, **settings):
    return {each.name: each for each in passes_of_fit(model, data, trainer(**settings))}


def circuits_tracked(trackers, run):
    """What the trackers count while something runs: circuits, and simulations."""
    trackers.reset()
    run()
    return trackers.circuits(), trackers.total("simulations")


@on_devices
@pytest.mark.parametrize("kind", MODELS)
def test_every_pass_runs_the_circuits_of_the_estimate_and_the_estimate_none(kind, device, trackers, tmp_path):
    model, data = build(kind, tmp_path, device=device)
    layers = quantum_layers(model)
    assert trackers.circuits() == sum(layer.num_heads for layer in layers)  # their trials
    trackers.reset()
    expected = bill(model, data)
    assert trackers.total("batches") == trackers.total("executions") == 0
    assert [layer.circuits_run for layer in layers] == [0] * len(layers)

    at_once = broadcasts(layers[0])
    assert at_once == (device != "lightning.qubit")
    tokens, _ = next(iter(data.train_dataloader()))
    runs = {
        "forward pass, one training batch": lambda: model(tokens),
        "training step": lambda: trainer(limit_train_batches=1, limit_val_batches=0).fit(model, data),
        "training epoch": lambda: trainer(limit_val_batches=0).fit(model, data),
        "validation before training": lambda: trainer(limit_val_batches=2).validate(model, data, verbose=False),
        "validation pass": lambda: trainer().validate(model, data, verbose=False),
        "test pass": lambda: trainer().test(model, data, verbose=False),
    }
    assert set(runs) == set(expected)
    for name, run in runs.items():
        circuits, simulations = circuits_tracked(trackers, run)
        assert (name, circuits) == (name, expected[name].circuits)
        if simulations:  # adjoint gradients of lightning.qubit come with executions that are not called so
            assert simulations == expected[name].device_calls(at_once)
    assert expected["training epoch"].circuits > expected["training step"].circuits > 0


@on_devices
@pytest.mark.parametrize("settings", [{"shots": 7}, {"gradient": "covariance"}], ids=["shots", "no shots"])
def test_covariance_gradients_run_the_forward_circuits_with_equal_rows_once(device, settings, trackers, tmp_path):
    model, _ = build("causal", tmp_path, device=device, **settings)
    data = BracketDataModule(8, 3, num_train=6, num_val=4, num_test=4, batch_size=6)
    expected = bill(model, data)
    circuits, _ = circuits_tracked(trackers, lambda: trainer(limit_val_batches=0).fit(model, data))
    assert circuits == expected["training step"].circuits == expected["training epoch"].circuits < 6 * 8
    assert trackers.total("shots") == settings.get("shots", 0) * circuits


@on_devices
def test_parameter_shift_runs_two_more_circuits_for_each_gate_parameter(device, trackers, tmp_path):
    model, data = build("both sides", tmp_path, device=device, gradient="parameter-shift")
    expected = bill(model, data)
    (rows,) = expected["forward pass, one training batch"].sizes.values()
    kinds = gates_of(quantum_layers(model)[0], 4).kinds
    assert rows == 3 * 4
    assert expected["training step"].circuits == rows * (1 + 2 * (kinds["RZ"] + kinds["IsingZZ"]))
    tokens, _ = next(iter(data.train_dataloader()))
    weights = torch.randn(3, 4, 4)
    circuits, simulations = circuits_tracked(trackers, lambda: (weights * model(tokens)).sum().backward())
    assert circuits == simulations == expected["training step"].circuits
    assert simulations == expected["training step"].device_calls(broadcasts(quantum_layers(model)[0]))


def test_parameter_shift_is_a_limit_where_pennylane_leaves_out_queries_without_gradient(trackers, tmp_path):
    model, data = build("text", tmp_path, device="default.qubit", gradient="parameter-shift")
    step = bill(model, data)["training step"]
    (layer,) = quantum_layers(model)
    run = circuits_tracked(trackers, lambda: trainer(limit_train_batches=1, limit_val_batches=0).fit(model, data))
    assert layer.circuits_run == step.circuits
    assert run[0] < step.circuits
    assert "At most" in estimate(model, data, trainer())


@pytest.mark.usefixtures("_many_sizes")
@pytest.mark.parametrize("device", ["hybrid.statevector", "lightning.qubit"])
@pytest.mark.parametrize("kind", ["causal", "two blocks and heads", "text"])
def test_circuits_of_each_size_are_those_that_run(kind, device, trackers, tmp_path):
    model, data = build(kind, tmp_path, device=device)
    expected = bill(model, data)
    trackers.reset()
    trainer(limit_val_batches=0).fit(model, data)
    assert trackers.sizes() == expected["training epoch"].sizes
    trackers.reset()
    trainer().test(model, data, verbose=False)
    assert trackers.sizes() == expected["test pass"].sizes
    assert len(expected["training epoch"].sizes) > 1


@pytest.mark.parametrize("wires", [1, 2, 5])
def test_gates_and_depth_are_pennylanes(wires):
    layer = DQALayer(5, schedule=LinearSchedule(3, 3.0))
    operation = DQA(torch.ones(wires), torch.ones(wires * (wires - 1) // 2), layer.schedule.angles(), range(wires))
    tape = qml.tape.QuantumScript(operation.decomposition(), [qml.probs(wires=range(wires))])
    found = gates_of(layer, wires)
    pairs = wires * (wires - 1) // 2
    kinds = {"Hadamard": wires, "RZ": 3 * wires, "IsingZZ": 3 * pairs, "RX": 3 * wires}
    assert found.kinds == {kind: count for kind, count in kinds.items() if count}
    assert found.total == len(tape.operations)
    assert found.depth == tape.graph.get_depth()


def test_counting_leaves_the_layer_as_it_was(tmp_path):
    model, data = build("causal", tmp_path, max_circuits=0)
    tokens, _ = next(iter(data.train_dataloader()))
    for training in (True, False):
        assert sum(execution.circuits for execution in executions_of(model, tokens, training)) > 0
        assert model.training
    with pytest.raises(RuntimeError, match="max_circuits=0"):
        model(tokens)


def test_limits_of_the_trainer_count(tmp_path):
    model, data = build("causal", tmp_path)
    limited = bill(model, data, limit_train_batches=1, limit_val_batches=0.5, num_sanity_val_steps=0)
    assert limited["training epoch"].batches == limited["validation pass"].batches == 1
    assert "validation before training" not in limited
    assert bill(model, data)["training epoch"].batches == 2
    assert bill(model, data, num_sanity_val_steps=-1)["validation before training"].batches == 2


def run_command(*arguments):
    main(["estimate", "--config", str(CONFIGS / "brackets.yaml"), *arguments, "--trainer.accelerator=cpu"])


def line(out, start):
    (found,) = (text for text in out.splitlines() if text.startswith(start))
    return re.split(r"\s{2,}", found)


def test_the_command_prints_the_bill_of_the_configs_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trials = []
    run = QuenchCircuits.run

    def watch(self, queries):
        trials.extend(each.inputs.shape for each in queries)
        return run(self, queries)

    monkeypatch.setattr(QuenchCircuits, "run", watch)
    run_command("--config", str(CONFIGS / "layers/dqa.yaml"))
    out = capsys.readouterr().out
    assert trials == [(1, 1, 2, 1)]
    assert line(out, "forward pass") == ["forward pass, one training batch", "1", "1,024", "exact", "4"]
    assert line(out, "training step") == ["training step", "1", "1,024", "exact", "4"]
    assert line(out, "training epoch") == ["training epoch", "313", "320,000", "exact", "1,252"]
    assert line(out, "validation pass")[1] == line(out, "test pass")[1] == "32"
    gates = "16 Hadamard, 128 RZ, 960 IsingZZ, 128 RX"
    assert line(out, "16 wires") == ["16 wires", "64", "20,000", "158", "1,232", gates, "1 MiB"]
    assert "Gradients by backprop through the simulation cost no further circuits." in out
    assert "tries the device with circuits of 1 wire: 1 more." in out
    assert not list(tmp_path.iterdir())


def test_the_command_counts_shots(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(QuenchCircuits, "run", lambda *_: pytest.fail("a circuit was run"))
    shots = ["--config", str(CONFIGS / "layers/dqa.yaml"), "--model.init_args.layer.init_args.shots=1000"]
    run_command(*shots, "--data.init_args.context_length=4", "--data.init_args.batch_size=20000")
    out = capsys.readouterr().out
    assert line(out, "training epoch") == ["training epoch", "1", "7", "7,000", "4"]  # (()) and ()() begin alike
    assert "Shots: 1,000 for each circuit." in out
    assert "No circuit was run for this estimate." in out


def test_a_checkpoint_gives_the_settings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model, data = build("causal", tmp_path, shots=9)
    fitting = trainer(limit_train_batches=1, limit_val_batches=0)
    fitting.fit(model, data)
    fitting.save_checkpoint("my.ckpt")
    capsys.readouterr()
    main(["estimate", "--ckpt_path=my.ckpt", "--trainer.accelerator=cpu", "--trainer.logger=false"])
    out = capsys.readouterr().out
    assert line(out, "training epoch")[1] == "2"
    assert "Shots: 9 for each circuit." in out
    assert "random weights" not in out


def test_other_layers_run_no_circuits(capsys):
    run_command()
    out = capsys.readouterr().out.strip().splitlines()
    assert out[-1].startswith("No circuits are run: the model has no quantum layer")
    assert estimate(BracketMatcher(4, layer=ExactLayer), BracketDataModule(4), trainer()) == out[-1]
