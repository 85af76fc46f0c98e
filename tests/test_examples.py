"""The examples run, and show what they say."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

from hybrid_attention import ExactLayer
from lightning_modules.cli import main

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def load(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)


def test_every_example_is_tested_here():
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == {
        "annealing_qnode.py",
        "boltzmann_encoder.py",
        "own_layer.py",
        "own_layer.yaml",
        "walkthrough.py",
    }


def test_the_encoder_learns(capsys):
    load("boltzmann_encoder")["main"]()
    losses = [float(line.rsplit(" ", 1)[1]) for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert losses[-1] < losses[0]


def test_padding_does_not_reach_the_output_of_the_encoder():
    torch.manual_seed(0)
    layer, x = load("boltzmann_encoder")["EncoderLayer"](8, 2, 5), torch.randn(2, 5, 8)
    padding = torch.tensor([[False, False, False, True, True]]).expand(2, 5)
    other = torch.where(padding.unsqueeze(-1), 100.0, x)
    torch.testing.assert_close(layer(x, padding)[:, :3], layer(other, padding)[:, :3])
    torch.testing.assert_close(layer(x, padding)[:, :3], layer(x[:, :3])[:, :3])


def test_the_circuit_is_drawn_counted_and_close_to_exact(capsys):
    load("annealing_qnode")["main"]()
    out = capsys.readouterr().out
    assert "DQA" in out
    assert "'IsingZZ': 12" in out
    rows = {
        line.split(":")[0]: eval(line.split(":")[1]) for line in out.splitlines() if line.startswith(("ann", "exa"))
    }
    assert rows["annealed"] == pytest.approx(rows["exact"], abs=0.05)


def test_a_layer_of_ones_own_trains_in_python_and_from_yaml(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    sys.modules.pop("own_layer", None)
    small = ["--trainer.fast_dev_run=true", "--trainer.enable_progress_bar=false", "--data.init_args.num_train=64"]
    files = [str(ROOT / "configs/brackets.yaml"), str(EXAMPLES / "own_layer.yaml")]
    main(["fit", *(argument for file in files for argument in ("--config", file)), *small])
    assert "layer=MeanFieldLayer(" in capsys.readouterr().out
    import own_layer

    own_layer.main()
    assert "test_accuracy" in capsys.readouterr().out
    layer, exact = own_layer.MeanFieldLayer(4, iterations=50).double(), ExactLayer(4).double()
    with torch.no_grad():
        exact.couplings.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    layer.load_state_dict(exact.state_dict())
    fields = torch.linspace(-1, 1, 12, dtype=torch.float64).view(1, 1, 3, 4)
    causal = torch.ones(3, 4, dtype=torch.bool).tril()
    torch.testing.assert_close(layer(fields, causal), exact(fields, causal), atol=0.03, rtol=0)


@pytest.mark.slow
def test_the_walkthrough_ends_with_every_file_that_it_names(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "day"
    seconds = load("walkthrough")["walk"](folder, steps=4)
    assert list(seconds)[-1] == "export"
    assert "\nnow is" in capsys.readouterr().out
    for name in ("word/inspection.npz", "text/attention.png", "weights.pt", "brackets/version_1/metrics.csv"):
        assert (folder / name).is_file()
    whole, resumed = (
        torch.load(folder / f"brackets/version_{version}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        for version in (0, 1)
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
