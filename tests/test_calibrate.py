"""`hybrid-attention calibrate`: what it prints and writes, and that fit takes what it writes."""

import re
from pathlib import Path

import pytest
import torch
import yaml

from hybrid_attention import BoltzmannAttention, ExactLayer, FreeSchedule, LinearSchedule
from hybrid_attention.instances import boltzmann_log_probabilities, magnetizations
from lightning_modules import plotting
from lightning_modules.calibrate import schedule_config
from lightning_modules.checkpoint_instances import checkpoint_instances, group_rows, record_models
from lightning_modules.cli import main

CONFIGS = Path(__file__).parents[1] / "configs"
SMALL = ["--num_spins=[3]", "--num_instances=20", "--num_tuning=8", "--restarts=1", "--iterations=6", "--steps=2"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def table(out):
    lines = out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("models "))
    return [re.split(r"\s{2,}", line) for line in lines[start : start + 3]]


def train(*arguments):
    small = ["--data.init_args.context_length=4", "--data.init_args.num_types=2", "--data.init_args.num_val=30"]
    quiet = ["--trainer.max_steps=3", "--trainer.enable_progress_bar=false", "--test_after_fit=false"]
    main(["fit", "--config", str(CONFIGS / "brackets.yaml"), *arguments, *small, *quiet])


def test_the_report_of_the_schedule_that_is_given(capsys):
    schedule = "--schedule=PausedSchedule", "--schedule.steps=6", "--schedule.tau=7"
    main(["calibrate", *SMALL[:2], *schedule])
    out = capsys.readouterr().out
    assert "PausedSchedule(steps=6, tau=7.0" in out
    header, small, large = table(out)
    assert header == [
        *("models", "T", "count", "rms error", "of rms", "correlation", "KL"),
        *("beta_h", "beta_J", "pseudo h", "pseudo J"),
    ]
    assert (small[0], large[0]) == ("h 0.5, J 0.2", "h 1, J 0.3")
    assert small[1:3] == ["3", "20"]
    assert 0 < float(small[3]) < 0.1
    assert float(small[5]) > 0.97


def test_the_seed_fixes_the_report_and_another_changes_it(capsys):
    tables = []
    for seed in ("1", "1", "2"):
        main(["calibrate", *SMALL, "--seed", seed])
        tables.append(table(capsys.readouterr().out))
    assert tables[0] == tables[1] != tables[2]


def test_shots_are_reported_with_their_noise(capsys):
    main(["calibrate", *SMALL, "--shots=200", "--device=default.qubit", "--device_options={seed: 3}"])
    out = capsys.readouterr().out
    noise = re.search(r"up to (0\.\d+) is the noise of 200 shots", out)
    assert 0.03 < float(noise[1]) < 0.08


@pytest.mark.parametrize(("tune", "kind"), [("tau", "LinearSchedule"), ("angles", "FreeSchedule")])
def test_fit_takes_the_schedule_that_was_tuned(tune, kind, capsys):
    main(["calibrate", *SMALL, f"--tune={tune}", "--output=new/tuned.yaml"])
    out = capsys.readouterr().out
    assert "best of" in out
    text = Path("new/tuned.yaml").read_text()
    assert text.startswith("# A schedule for DQALayer, made by: hybrid-attention calibrate '--num_spins=[3]'")
    assert table("\n".join(line.removeprefix("# ") for line in text.splitlines())) == table(out)
    train("--config", str(CONFIGS / "layers/dqa.yaml"), "--config", "new/tuned.yaml")
    assert f"schedule={kind}(" in capsys.readouterr().out
    train("--config", "new/tuned.yaml")
    assert f"schedule={kind}(" in capsys.readouterr().out
    (first, _) = sorted(Path("runs").rglob("last.ckpt"))
    main(["test", "--ckpt_path", str(first), "--trainer.enable_progress_bar=false", "--trainer.logger=false"])
    assert f"schedule={kind}(" in capsys.readouterr().out


def test_the_config_of_a_schedule_is_plain_data():
    for schedule in (LinearSchedule(3, 2.0), FreeSchedule((0.7, 0.4), (0.3, 0.5), (0.5, 0.3), (1.0, 0.9))):
        config = schedule_config(schedule)
        assert yaml.safe_load(yaml.safe_dump(config)) == config
        plain = config["model"]["init_args"]["layer"]["init_args"]["schedule"]
        assert type(schedule)(**plain["init_args"]) == schedule


def test_files_are_not_overwritten_silently():
    for option in ("output", "plot"):
        Path("mine").write_text("my own")
        with pytest.raises(SystemExit, match=r"error: 'mine' exists: move it away"):
            main(["calibrate", *SMALL, f"--{option}=mine"])
        assert Path("mine").read_text() == "my own"
    main(["calibrate", *SMALL, "--output=mine", "--overwrite=true"])
    assert Path("mine").read_text().startswith("# A schedule")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--field_spread=[1.0]"], "1 spreads of fields and 2 of couplings"),
        (["--num_spins=[]"], "one or more of each"),
        (["--num_spins=[15]"], "up to 14 spins"),
        (["--field_spread=[-1.0, 1.0]"], "finite spreads of 0 or more"),
        (["--tune=tau", "--schedule=TunedSchedule", "--schedule.steps=4"], "has no duration to tune"),
        (["--tune=all"], "tune"),
        (["--device=default.qbit"], "Did you mean 'default.qubit'"),
        (["--shots=1"], "2 or more"),
        (["--ckpt_path=none.ckpt"], "There is no checkpoint 'none.ckpt'"),
        (["--nonsense=1"], "nonsense"),
        (["--steps=2", "--schedule=TunedSchedule"], "steps=2 and a schedule were given"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_a_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit, match=rf"hybrid-attention: error: .*{words}"):
        main(["calibrate", *SMALL[1:-1], *arguments])


def test_a_figure_without_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setattr(plotting, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"pip install 'hybrid-attention\[plots\]'"):
        main(["calibrate", *SMALL, "--plot=figure.png"])
    assert not Path("figure.png").exists()


def test_the_figure_is_written():
    pytest.importorskip("matplotlib")
    main(["calibrate", *SMALL, "--num_instances=5", "--plot=figures/figure.png"])
    assert Path("figures/figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_checkpoint_gives_its_own_models(capsys):
    train()
    (path,) = Path("runs").rglob("last.ckpt")
    capsys.readouterr()
    main(["calibrate", "--ckpt_path", str(path), "--num_instances=20", "--num_tuning=10", "--steps=4"])
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith("last.ckpt  ")]
    assert [re.split(r"\s{2,}", row)[:3] for row in rows] == [["last.ckpt", str(size), "20"] for size in (2, 3, 4)]
    couplings = torch.load(path, weights_only=True)["state_dict"]
    (values,) = (value for name, value in couplings.items() if name.endswith("couplings"))
    found = checkpoint_instances(str(path), 7, seed=0)
    assert [len(models) for models in found] == [7, 7, 7]
    torch.testing.assert_close(found[2].couplings, values.double().expand(7, 6))


def test_a_checkpoint_without_couplings_is_refused():
    train("--config", str(CONFIGS / "attention/softmax.yaml"))
    (path,) = Path("runs").rglob("last.ckpt")
    with pytest.raises(SystemExit, match=r"has no couplings: give one with Boltzmann attention"):
        main(["calibrate", "--ckpt_path", str(path)])
    Path("not.ckpt").write_text("text")
    with pytest.raises(SystemExit, match=r"'not.ckpt' is not a checkpoint"):
        main(["calibrate", "--ckpt_path=not.ckpt"])


def test_models_of_queries_have_the_marginals_that_the_layer_gives():
    torch.manual_seed(0)
    layer = ExactLayer(4, num_heads=2).double()
    with torch.no_grad():
        layer.couplings.normal_()
    attention = BoltzmannAttention(6, layer).double()
    seen, marginals = [], []
    layer.register_forward_pre_hook(record_models(seen))
    layer.register_forward_hook(lambda layer, given, p: marginals.append(p))
    with torch.no_grad():
        attention(torch.randn(3, 4, 6).double(), torch.tensor([[0, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0]]).bool())
    groups = group_rows(seen, 100, seed=0)
    assert [(models.num_spins, len(models)) for models in groups] == [(2, 6), (3, 6), (4, 2)]
    p = marginals[0].flatten(0, -2)
    for models in groups:
        ours = (1 + magnetizations(boltzmann_log_probabilities(models).exp())) / 2
        theirs = torch.stack([row[row > 0] for row in p if (row > 0).sum() == models.num_spins])
        torch.testing.assert_close(ours.sum(1).sort().values, theirs.sum(1).sort().values)
