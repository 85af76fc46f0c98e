"""Every shipped YAML file is parsed and run for a step, in the combinations that the README names."""

import importlib.util
import re
from pathlib import Path

import pennylane as qml
import pytest
import torch
import yaml

from lightning_modules.cli import main
from lightning_modules.studies.plan import read_study
from lightning_modules.studies.training import arguments

CONFIGS = Path(__file__).parents[1] / "configs"
TEXT = "all the world is a stage, and all the men and women merely players.\n" * 60
PLUGINS = ("lightning.kokkos", "qiskit.", "braket.", "ionq.", "cirq.")
NEED_CREDENTIALS = {
    "ionq.simulator": ("IONQ_API_KEY", "PENNYLANE_IONQ_API_KEY"),
    "ionq.qpu": ("IONQ_API_KEY", "PENNYLANE_IONQ_API_KEY"),
    "braket.aws.qubit": ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"),
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)

    def run_once(task, *files, **settings):
        arguments = ["fit", "--config", str(CONFIGS / f"{task}.yaml")]
        for file in files:
            arguments += ["--config", str(CONFIGS / file)]
        if task == "tiny_shakespeare":
            arguments += ["--data.init_args.source=text.txt"]
        arguments += [
            "--trainer.fast_dev_run=true",
            "--trainer.enable_progress_bar=false",
            "--data.init_args.batch_size=4",
        ]
        main([*arguments, *(f"--{name}={value}" for name, value in settings.items())])
        return capsys.readouterr().out

    return run_once


def every(folder):
    return sorted(f"{folder}/{path.name}" for path in (CONFIGS / folder).glob("*.yaml"))


def test_all_files_are_covered_here():
    folders = {path.parent.name for path in CONFIGS.rglob("*.yaml") if path.parent != CONFIGS}
    assert folders == {"attention", "layers", "couplings", "devices", "callbacks", "studies"}
    assert {path.name for path in CONFIGS.glob("*.yaml")} == {"brackets.yaml", "tiny_shakespeare.yaml"}


@pytest.mark.parametrize("variant", every("attention"))
@pytest.mark.parametrize("task", ["brackets", "tiny_shakespeare"])
def test_each_attention_variant_trains_and_tests(run, task, variant):
    out = run(task, variant)
    assert "test_accuracy" in out
    name = Path(variant).stem
    shown = {"softmax": "SoftmaxAttention", "softmax_position_bias": "SoftmaxAttention"}
    assert {**shown, "fields_only": "FieldsOnlyLayer"}.get(name, "ExactLayer") in out
    assert f"use_fields={name != 'couplings_only'}" in out or name in shown
    assert ("biased_positions=" in out) == (name == "softmax_position_bias")


NEED_DIMOD = {"layers/dimod.yaml": [pytest.mark.plugins] if importlib.util.find_spec("dimod") else []}


@pytest.mark.parametrize("layer", [pytest.param(file, marks=NEED_DIMOD.get(file, [])) for file in every("layers")])
@pytest.mark.parametrize("task", ["brackets", "tiny_shakespeare"])
def test_each_layer_trains_and_tests_or_says_what_is_missing(run, task, layer):
    settings = {"data.init_args.context_length": 4}
    if layer in NEED_DIMOD and not NEED_DIMOD[layer]:
        with pytest.raises(SystemExit, match=r"pip install 'hybrid-attention\[dwave\]'"):
            run(task, layer, **settings)
        return
    class_path = yaml.safe_load((CONFIGS / layer).read_text())["model"]["init_args"]["layer"]["class_path"]
    assert class_path.removeprefix("hybrid_attention.") in run(task, layer, **settings)


@pytest.mark.parametrize("shape", every("couplings"))
def test_each_coupling_shape_trains_on_any_layer(run, shape):
    for layer in set(every("layers")) - NEED_DIMOD.keys():
        out = run("brackets", layer, shape, **{"data.init_args.context_length": 4})
        shown = {
            "free": "num_heads=1",
            "banded": "coupling_shape=BandedCouplings(range=8)",
            "toeplitz": "coupling_shape=ToeplitzCouplings(range=None)",
            "banded_toeplitz": "coupling_shape=ToeplitzCouplings(range=8)",
        }[Path(shape).stem]
        assert shown in out


def device_of(file):
    return yaml.safe_load((CONFIGS / file).read_text())["model"]["init_args"]["layer"]["init_args"]["device"]


def plugin_marks(file):
    """Plugins that are installed run with -m plugins; the others only have to say what to install."""
    name = device_of(file)
    return [pytest.mark.plugins] if name.startswith(PLUGINS) and name in qml.plugin_devices else []


@pytest.mark.parametrize("device", [pytest.param(file, marks=plugin_marks(file)) for file in every("devices")])
def test_each_device_trains_or_says_what_is_missing(run, device, monkeypatch):
    name = device_of(device)
    settings = {"data.init_args.context_length": 4}
    missing = None
    if name not in qml.plugin_devices:
        missing = r"is not installed: pip install 'hybrid-attention\["
    elif name == "lightning.gpu" and not torch.cuda.is_available():
        missing = "cannot be used"
    elif name in NEED_CREDENTIALS:
        for variable in NEED_CREDENTIALS[name]:
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", "none")
        missing = rf"[\s\S]*set {NEED_CREDENTIALS[name][0]}"
    if missing:
        with pytest.raises(SystemExit, match=rf"error: The device '{re.escape(name)}' {missing}"):
            run("brackets", "layers/dqa.yaml", device, **settings)
        return
    assert f"device='{name}'" in run("brackets", "layers/dqa.yaml", device, **settings)


def first_of_each_kind(study):
    """The first run of each kind of attention in each experiment, which has the shortest context."""
    runs = {}
    for run in read_study(CONFIGS / study).runs:
        runs.setdefault((run.experiment, run.cell["attention"]), run)
    return list(runs.values())


@pytest.mark.slow
@pytest.mark.parametrize("study", every("studies"))
def test_each_kind_of_run_of_each_study_trains_and_tests(study, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    for run in first_of_each_kind(study):
        text = ["--data.init_args.source=text.txt"] if run.experiment == "shakespeare" else []
        main([*arguments(run, tmp_path / run.folder), "--trainer.fast_dev_run=true", *text])
        out = capsys.readouterr().out
        assert "test_accuracy" in out
        schedule = {"dqa_linear": "LinearSchedule", "dqa_tuned": "TunedSchedule"}.get(run.cell["attention"], "")
        assert schedule in out


def test_files_are_commented_and_swap_one_thing_each():
    for path in CONFIGS.rglob("*.yaml"):
        assert path.read_text().startswith("# "), path
    for folder in ("attention", "layers", "couplings", "devices"):
        for file in every(folder):
            content = yaml.safe_load((CONFIGS / file).read_text())
            assert content.keys() == {"model"}
            assert content["model"].keys() == {"init_args"}
            assert content["model"]["init_args"].keys() <= {"layer", "use_fields", "position_bias"}
