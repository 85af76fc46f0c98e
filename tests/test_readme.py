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


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("hybrid-attention")])
def test_each_command_runs(command, tmp_path, monkeypatch, capsys):
    arguments = shlex.split(command)[1:]
    (tmp_path / "my_text.txt").write_text(TEXT)
    os.symlink(ROOT / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    if "--ckpt_path=my_checkpoint.ckpt" in arguments:
        small = ["--data.init_args.context_length=4", "--trainer.max_steps=1", "--trainer.enable_progress_bar=false"]
        main(["fit", "--config", "configs/brackets.yaml", "--test_after_fit=false", *small])
        next(Path("runs").rglob("last.ckpt")).rename("my_checkpoint.ckpt")
    if "my_schedule.yaml" in arguments:
        (tmp_path / "my_schedule.yaml").write_text(yaml.safe_dump(schedule_config(LinearSchedule(4, 5.0))))
    small = ["--data.init_args.batch_size=2", "--trainer.fast_dev_run=true", "--trainer.enable_progress_bar=false"]
    few = ["--num_spins=[3]", "--num_instances=9", "--num_tuning=9"]
    main([*arguments, *(few if arguments[0] == "calibrate" else small)])
    shown = {"estimate": "training epoch", "calibrate": "rms error"}
    assert shown.get(arguments[0], "test_accuracy") in capsys.readouterr().out


def test_the_configs_of_the_table_exist_and_no_other():
    for folder in ("attention", "layers", "devices"):
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
