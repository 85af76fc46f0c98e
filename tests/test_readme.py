"""Everything that the README shows runs."""

import os
import re
import shlex
from pathlib import Path

import pytest
import torch
import yaml

from hybrid_attention import LinearSchedule
from lightning_modules import BracketMatcher
from lightning_modules.calibrate import schedule_config
from lightning_modules.cli import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
TEXT = "now is the winter of our discontent made glorious summer by this sun of york;\n" * 50


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands():
    parts = [part.strip() for line in "".join(blocks("bash")).splitlines() for part in line.split("&&")]
    return list(dict.fromkeys(part.removeprefix(".venv/bin/") for part in parts))


def test_the_commands_are_those_that_this_test_knows():
    kinds = {command.split()[0] for command in commands()}
    assert kinds == {"python3", "pip", "python", "hybrid-attention"}


def checkpoint(task, name, *settings):
    small = ["--trainer.max_steps=1", "--trainer.enable_progress_bar=false", "--test_after_fit=false"]
    main(["fit", "--config", f"configs/{task}.yaml", *small, *settings])
    next(Path("runs").rglob("last.ckpt")).rename(name)


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("hybrid-attention")])
def test_each_command_runs(command, tmp_path, monkeypatch, capsys):
    arguments = shlex.split(command)[1:]
    (tmp_path / "my_text.txt").write_text(TEXT)
    os.symlink(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    if "--ckpt_path=my_checkpoint.ckpt" in arguments:
        short = "16" if arguments[0] == "fit" else "4"
        checkpoint("brackets", "my_checkpoint.ckpt", f"--data.init_args.context_length={short}")
    if "--ckpt_path=my_language_model.ckpt" in arguments:
        source = ["--data.init_args.source=my_text.txt", "--data.init_args.context_length=6"]
        checkpoint("tiny_shakespeare", "my_language_model.ckpt", *source)
    if "my_schedule.yaml" in arguments:
        (tmp_path / "my_schedule.yaml").write_text(yaml.safe_dump(schedule_config(LinearSchedule(4, 5.0))))
    small = ["--data.init_args.batch_size=2", "--trainer.fast_dev_run=true", "--trainer.enable_progress_bar=false"]
    few_steps = [f"brackets.{name}" for name in ("trainer.max_steps=1", "trainer.val_check_interval=1")]
    few_words = [f"brackets.data.init_args.num_{split}=16" for split in ("train", "val", "test")]
    few = {
        "calibrate": ["--num_spins=[3]", "--num_instances=9", "--num_tuning=9"],
        "inspect": [],
        "generate": ["--max_new_characters=4"],
        "study": ["--workers=1", "--seeds=1", "--set", *few_steps, *few_words],
        "report": [],
    }
    if arguments[0] in ("inspect", "report"):
        pytest.importorskip("matplotlib")
    if arguments[0] == "report":
        main(["study", "configs/studies/smoke.yaml", *few["study"]])
    main([*arguments, *few.get(arguments[0], small)])
    shown = {
        "estimate": "training epoch",
        "calibrate": "rms error",
        "generate": "Generating with 1 block",
        "inspect": "pictures/attention.png",
        "study": "runs are finished",
        "report": "Report: ",
    }
    assert shown.get(arguments[0], "test_accuracy") in "".join(capsys.readouterr())


def test_the_configs_of_the_table_exist_and_no_other():
    for folder in ("attention", "layers", "couplings", "devices", "studies"):
        row = next(line for line in README.splitlines() if line.startswith("|") and f"configs/{folder}/..." in line)
        named = set(re.findall(r"`(\w+\.yaml)`", row))
        assert named == {path.name for path in (ROOT / "configs" / folder).glob("*.yaml")}


def test_the_python_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    scope = {}
    for block in blocks("python"):
        exec(block, scope)
    assert scope["p"].shape == (2, 1, 6, 6)
    assert isinstance(scope["model"], BracketMatcher)
