"""The subcommand generate: what it writes, on which layer, where it ends, and one sentence for each mistake."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from datamodules import BracketDataModule, TinyShakespeareDataModule
from hybrid_attention import DQALayer, ExactLayer
from lightning_modules import BracketMatcher, CharLanguageModel
from lightning_modules.cli import main
from lightning_modules.generate import until

CONFIGS = Path(__file__).parents[1] / "configs"
TEXT = "to be, or not to be: that is the question.\n" * 60


def checkpoint_of(module, data, path, steps=60):
    trainer = pl.Trainer(
        max_steps=steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
    )
    trainer.fit(module, data)
    trainer.save_checkpoint(path)
    return str(path)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "text.txt").write_text(TEXT)
    data = TinyShakespeareDataModule(5, str(folder / "text.txt"))
    torch.manual_seed(0)
    return checkpoint_of(CharLanguageModel(data.vocabulary, 5, layer=ExactLayer), data, folder / "model.ckpt")


@pytest.fixture
def generate(checkpoint, capsys):
    def run(*arguments):
        main(["generate", f"--ckpt_path={checkpoint}", "--max_new_characters=12", *arguments])
        return capsys.readouterr()

    return run


def test_the_text_goes_on_with_the_most_likely_characters_as_recomputed(generate, checkpoint):
    out, err = generate("--prompt=to be, or not", "--temperature=0")
    model = CharLanguageModel.load_from_checkpoint(checkpoint).eval()
    text = "to be, or not"
    for _ in range(12):
        ids = torch.tensor([[model.hparams["vocabulary"].index(character) for character in text[-5:]]])
        text += model.hparams["vocabulary"][int(model(ids)[0, -1].argmax())]
    assert out == text + "\n"
    assert err.startswith("Generating with 1 block(s) of BoltzmannAttention(")
    assert "layer=ExactLayer(num_spins=5, num_heads=1)" in err


def test_the_seed_fixes_the_text(generate):
    first, again, other = (generate("--prompt=to", "--temperature=3", f"--seed={seed}").out for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == len("to") + 12 + 1


@pytest.mark.parametrize("device", ["hybrid_statevector", "default_qubit", "lightning_qubit"])
def test_the_seed_fixes_the_text_of_circuits_with_shots_too(generate, device):
    files = [f"--config={CONFIGS / name}" for name in ("layers/dqa.yaml", f"devices/{device}.yaml")]
    texts = []
    for before, seed in ((1, 3), (2, 3), (3, 4)):
        np.random.seed(before)  # what a new process would draw of its own
        arguments = ["--model.init_args.layer.init_args.shots=5", "--temperature=3", f"--seed={seed}"]
        texts.append(generate("--prompt=to", *files, *arguments).out)
    assert texts[0] == texts[1] != texts[2]


def test_an_output_without_the_characters_gets_escapes(checkpoint, tmp_path):
    torch.manual_seed(0)
    (tmp_path / "text.txt").write_text("日é" * 200, encoding="utf-8")
    data = TinyShakespeareDataModule(3, str(tmp_path / "text.txt"))
    path = checkpoint_of(CharLanguageModel(data.vocabulary, 3, layer=ExactLayer), data, tmp_path / "m.ckpt", steps=1)
    command = "import sys; from lightning_modules.cli import main; main(sys.argv[1:])"
    arguments = ["generate", f"--ckpt_path={path}", "--prompt=é", "--max_new_characters=9"]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.decode("unicode-escape").rstrip("\n")) == set("日é")
    assert b"set PYTHONIOENCODING=utf-8 to write it" in done.stderr


def test_a_config_file_may_name_the_checkpoint(checkpoint, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text(f"ckpt_path: {checkpoint}\n")
    main(["generate", f"--config={tmp_path / 'mine.yaml'}", "--prompt=to", "--max_new_characters=3"])
    assert len(capsys.readouterr().out) == len("to") + 3 + 1


def test_layer_and_device_are_those_of_the_command_line(generate):
    files = ["--config", str(CONFIGS / "layers/dqa.yaml"), "--config", str(CONFIGS / "devices/lightning_qubit.yaml")]
    out, err = generate("--prompt=to", *files)
    assert "layer=DQALayer(num_spins=5, num_heads=1, device='lightning.qubit', shots=None" in err
    assert len(out) == len("to") + 12 + 1
    sampled = generate("--prompt=to", *files[:2], "--model.init_args.layer.init_args.shots=50")
    assert "shots=50" in sampled.err


def test_the_layer_of_a_checkpoint_trained_on_circuits_is_kept(tmp_path, capsys):
    (tmp_path / "text.txt").write_text(TEXT)
    data = TinyShakespeareDataModule(3, str(tmp_path / "text.txt"))
    model = CharLanguageModel(data.vocabulary, 3, layer=partial(DQALayer, max_circuits=10**6))
    path = checkpoint_of(model, data, tmp_path / "model.ckpt", steps=2)
    main(["generate", "--ckpt_path", path, "--max_new_characters=2", "--prompt=to"])
    assert "layer=DQALayer(num_spins=3" in capsys.readouterr().err
    main(["generate", "--ckpt_path", path, "--max_new_characters=2", "--config", str(CONFIGS / "layers/exact.yaml")])
    assert "layer=ExactLayer(num_spins=3" in capsys.readouterr().err


def test_without_a_prompt_it_says_what_the_text_starts_after(generate):
    out, err = generate("--temperature=0")
    assert "No prompt was given: the text starts after '\\n'." in err
    assert out == generate("--temperature=0", "--prompt=\n").out[1:]


@pytest.mark.parametrize(
    ("stop", "text", "shown"),
    [
        ("", "abc", "abc"),
        ("c", "abcd", "ab"),
        ("aab", "aaab", "a"),
        ("abab", "abaababx", "aba"),
        ("\n\n", "a\nb\n\nc", "a\nb"),
        ("abc", "ab", "ab"),
        ("x", "", ""),
    ],
)
def test_the_text_ends_before_the_stop_string_also_across_pieces(stop, text, shown):
    assert "".join(until(stop, text)) == shown


def test_characters_are_written_as_soon_as_they_cannot_begin_the_stop_string():
    asked = []
    pieces = until("xy", (asked.append(c) or c for c in "abxcxy"))
    assert next(pieces) == "a"
    assert asked == ["a"]
    assert list(pieces) == ["b", "xc"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt=Zoé"], r"In prompt: .* not in the vocabulary \('Z', 'é'\)"),
        (["--stop=Z"], r"In stop: .* not in the vocabulary \('Z'\)"),
        (["--temperature=-1"], "temperature=-1.0 was given: give a finite number"),
        (["--top_k=0"], "top_k=0 was given: give 1 or more"),
        (["--max_new_characters=0"], "max_new_characters=0 was given"),
        (["--seed=-1"], "seed=-1 was given: give a whole number from 0 to 4294967295"),
        (["--model.init_args.embed_dim=16"], "The checkpoint does not fit the model"),
        (["--config", str(CONFIGS / "devices/lightning_qubit.yaml")], "give a layer file before it"),
        (
            ["--config", str(CONFIGS / "layers/dqa.yaml"), "--model.init_args.layer.init_args.max_circuits=3"],
            "1 more circuits after 3 would pass max_circuits=3",
        ),
        (["--ckpt_path=missing.ckpt"], "There is no checkpoint 'missing.ckpt'"),
        (["--ckpt_path=pyproject.toml"], "There is no checkpoint|is not a checkpoint of plain data"),
    ],
)
def test_a_mistake_ends_in_one_sentence(generate, arguments, message):
    with pytest.raises(SystemExit, match=f"^hybrid-attention: error: .*({message})") as stop:
        generate(*arguments)
    assert "\n" not in str(stop.value)


def test_no_checkpoint_and_one_of_another_class_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="No checkpoint was given: set --ckpt_path"):
        main(["generate"])
    data = BracketDataModule(6, num_train=32, num_val=8, num_test=8)
    path = checkpoint_of(BracketMatcher(6), data, tmp_path / "brackets.ckpt", steps=1)
    with pytest.raises(SystemExit, match=r"is of lightning_modules\.BracketMatcher, which has no text to go on with"):
        main(["generate", f"--ckpt_path={path}"])
