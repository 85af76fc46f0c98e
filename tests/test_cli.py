"""The command line: what it writes, that the command line wins, and one sentence for each mistake."""

import re
from pathlib import Path

import pytest
import torch

from lightning_modules import CharLanguageModel, cli
from lightning_modules.cli import main

CONFIGS = Path(__file__).parents[1] / "configs"
SMALL = [
    "--trainer.enable_progress_bar=false",
    "--trainer.max_steps=4",
    "--trainer.val_check_interval=2",
    "--trainer.log_every_n_steps=1",
    "--data.init_args.context_length=6",
    "--data.init_args.num_train=64",
    "--data.init_args.num_val=32",
    "--data.init_args.num_test=32",
    "--data.init_args.batch_size=16",
]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def fit(*arguments):
    main(["fit", "--config", str(CONFIGS / "brackets.yaml"), *SMALL, *arguments])


def the_best(version=0):
    (best,) = Path(f"runs/brackets/version_{version}/checkpoints").glob("epoch*.ckpt")
    return str(best)


def file_contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_fit_writes_checkpoints_metrics_and_its_config_and_ends_with_a_test(capsys):
    fit()
    out = capsys.readouterr().out
    assert "Training 1 block(s) of BoltzmannAttention" in out
    assert f"Best checkpoint: {the_best()}" in out
    assert "Last checkpoint: runs/brackets/version_0/checkpoints/last.ckpt" in out
    assert re.search(r"test_accuracy\s+\d\.\d+", out)
    assert re.search(r"test_accuracy_nearest_open\s+0\.\d+", out)
    folder = Path("runs/brackets/version_0")
    assert {path.name for path in folder.iterdir()} == {"checkpoints", "config.yaml", "hparams.yaml", "metrics.csv"}
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"train_loss", "train_accuracy", "val_loss", "val_accuracy", "test_accuracy"} <= set(header)


def test_the_test_after_training_can_be_left_out(capsys):
    fit("--test_after_fit=false")
    assert "test_accuracy" not in capsys.readouterr().out


def test_a_second_run_leaves_the_first_one_untouched():
    fit("--test_after_fit=false")
    before = file_contents("runs/brackets/version_0")
    fit("--test_after_fit=false")
    assert file_contents("runs/brackets/version_0") == before
    assert the_best(1)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others():
    weights = []
    for version, seed in enumerate((3, 3, 4)):
        fit("--test_after_fit=false", f"--seed_everything={seed}")
        weights.append(torch.load(the_best(version), weights_only=True)["state_dict"])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


def test_the_saved_config_repeats_the_run():
    fit("--test_after_fit=false", "--model.init_args.embed_dim=4")
    main(["fit", "--config", "runs/brackets/version_0/config.yaml"])
    first, second = (torch.load(the_best(version), weights_only=True)["state_dict"] for version in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_checkpoints_can_be_switched_off(capsys):
    fit("--trainer.enable_checkpointing=false")
    assert "No checkpoint was written by validation; the last weights are tested." in capsys.readouterr().out
    assert not Path("runs/brackets/version_0/checkpoints").exists()


def test_a_checkpoint_alone_is_tested_on_the_settings_that_it_was_trained_with(capsys):
    fit("--model.init_args.embed_dim=4", "--test_after_fit=false")
    capsys.readouterr()
    main(["test", "--ckpt_path", the_best(), "--trainer.enable_progress_bar=false", "--trainer.logger=false"])
    out = capsys.readouterr().out
    assert "Testing 1 block(s) of BoltzmannAttention(embed_dim=4" in out
    assert "layer=ExactLayer(num_spins=6, num_heads=1)" in out


def test_trained_exactly_tested_on_a_circuit_the_command_line_wins(capsys):
    fit("--test_after_fit=false")
    quantum = [str(CONFIGS / "layers/dqa.yaml"), str(CONFIGS / "devices/lightning_qubit.yaml")]
    files = [argument for path in quantum for argument in ("--config", path)]
    quiet = ["--trainer.enable_progress_bar=false", "--trainer.logger=false", "--data.init_args.num_test=4"]
    capsys.readouterr()
    main(["test", f"--ckpt_path={the_best()}", *files, *quiet])
    assert "layer=DQALayer(num_spins=6, num_heads=1, device='lightning.qubit'" in capsys.readouterr().out


def test_training_goes_on_from_a_checkpoint_to_the_end_of_its_schedule():
    fit("--test_after_fit=false", "--checkpoint.save_top_k=-1")
    (middle,) = Path("runs/brackets/version_0/checkpoints").glob("*step=2.ckpt")
    fit("--test_after_fit=false", "--ckpt_path", str(middle))
    last = torch.load("runs/brackets/version_1/checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == 4
    assert last["lr_schedulers"][0]["last_epoch"] == 4
    with pytest.raises(SystemExit, match=r"schedule of the checkpoint has 4 steps and this run 6: .*max_steps=4"):
        fit("--trainer.max_steps=6", "--ckpt_path", str(middle))


def test_a_finished_training_has_nothing_left_to_train(capsys):
    fit("--test_after_fit=false")
    fit("--test_after_fit=false", "--ckpt_path=runs/brackets/version_0/checkpoints/last.ckpt")
    assert capsys.readouterr().out.count("The checkpoint has all its 4 steps: there is nothing left to train.") == 1


def test_training_that_ends_before_its_first_validation_says_so(caplog):
    with caplog.at_level("INFO"):
        fit("--test_after_fit=false")
        fit("--test_after_fit=false", "--trainer.accumulate_grad_batches=2", "--trainer.val_check_interval=8")
        assert the_best(1)
        assert "no validation" not in caplog.text
        fit("--test_after_fit=false", "--trainer.val_check_interval=5")
    assert (
        "There will be no validation in 4 batches, as trainer.val_check_interval is 5: set it to 4 or less"
        in caplog.text
    )


def test_a_config_file_may_name_the_checkpoint(capsys):
    fit("--model.init_args.embed_dim=4", "--test_after_fit=false")
    Path("mine.yaml").write_text(f"ckpt_path: {the_best()}\n")
    main(["test", "--config", "mine.yaml", "--trainer.enable_progress_bar=false"])
    assert "Testing 1 block(s) of BoltzmannAttention(embed_dim=4" in capsys.readouterr().out
    assert {path.name for path in Path().iterdir()} == {"mine.yaml", "runs"}


def test_output_into_a_pipe_that_is_closed_ends_without_a_word(monkeypatch, capsys):
    def closed(arguments):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setitem(cli._OTHER_SUBCOMMANDS, "report", closed)
    with pytest.raises(SystemExit) as stop:
        main(["report"])
    assert stop.value.code == 1
    assert "pipe" not in "".join(capsys.readouterr())


def test_predict_writes_the_predictions():
    fit("--test_after_fit=false")
    main(
        ["predict", "--ckpt_path", the_best(), "--trainer.enable_progress_bar=false", "--trainer.default_root_dir=out"]
    )
    (file,) = Path("out").rglob("predictions.pt")
    assert torch.cat(torch.load(file, weights_only=True)).shape == (32, 6)


def mistakes():
    dqa = ["--config", str(CONFIGS / "layers/dqa.yaml")]
    device = "--model.init_args.layer.init_args.device"
    return {
        "odd length": (
            ["--data.init_args.context_length=7"],
            "context_length=7 was given: balanced words have an even",
        ),
        "too few words": (["--data.init_args.split=disjoint"], "128 distinct words were asked for, and there are 5 of"),
        "no such device": ([*dqa, f"{device}=lightning.qubits"], "Did you mean 'lightning.qubit'"),
        "missing package": (
            [*dqa, f"{device}=lightning.tensor"],
            "pip install pennylane-lightning-tensor",
        ),
        "too many spins": (
            ["--data.init_args.context_length=26"],
            "Exact enumeration over 26 spins .* GB .* MeanFieldLayer or GibbsLayer",
        ),
        "unknown key": (
            ["--model.init_args.embed_dimension=4"],
            r"model \(.*BracketMatcher\): Option 'embed_dimension'",
        ),
        "unknown section": (["--modell.init_args.embed_dim=4"], "unrecognized arguments"),
        "wrong type": (["--model.init_args.embed_dim=wide"], r"model\.embed_dim .*Expected a <class 'int'>"),
        "heads": (["--model.init_args.num_heads=3"], "embed_dim=8 does not split into 3"),
        "no such class": (
            ["--model.init_args.layer=hybrid_attention.NoLayer"],
            "module 'hybrid_attention' has no attribute 'NoLayer'",
        ),
        "no such file": (["--config", "missing.yaml"], "There is no config file 'missing.yaml'"),
        "empty file": (["--config", "empty.yaml"], "The config file 'empty.yaml' is empty: give settings"),
        "broken file": (["--config=broken.yaml"], r"The config file 'broken.yaml' is not YAML \(.*line 1.*\)"),
        "no settings": (["--config", "text.txt"], "The config file 'text.txt' holds a str: give settings"),
        "not text": (["--config", "binary.yaml"], "The config file 'binary.yaml' is not YAML"),
        "device without circuits": (
            ["--config", str(CONFIGS / "devices/lightning_qubit.yaml")],
            "lightning_qubit.yaml' sets the device of a layer that runs no circuits: give a layer file before it",
        ),
        "wrong monitor": (
            ["--checkpoint.monitor=val_acuracy"],
            "ModelCheckpoint monitors 'val_acuracy', which is not logged: did you mean 'val_accuracy'",
        ),
        "no steps": (["--trainer.max_steps=0"], r"trainer\.max_steps=0 was given, so training would have 0 steps"),
        "no epochs": (["--trainer.max_epochs=0"], r"trainer\.max_epochs=0 was given"),
        "short text": (
            [
                "--data=datamodules.TinyShakespeareDataModule",
                "--data.init_args.source=text.txt",
                "--model=lightning_modules.CharLanguageModel",
            ],
            "In the train split of 'text.txt': The text has 4 characters, and one window needs 7",
        ),
        "not ours": (["--ckpt_path=other.ckpt"], "'other.ckpt' does not say which model it holds"),
        "of another model": (
            ["--ckpt_path=bare.ckpt", "--trainer.max_steps=4"],
            r"The checkpoint is of lightning_modules\.CharLanguageModel, and the model is a .*BracketMatcher",
        ),
        "other data": (
            ["--model=lightning_modules.CharLanguageModel"],
            "CharLanguageModel needs data with a vocabulary",
        ),
        "what the data decides": (
            ["--model.init_args.context_length=4"],
            "The model takes context_length from the data: set --data.init_args.context_length",
        ),
        "not a qubit device": ([*dqa, f"{device}=default.qutrit"], "'default.qutrit' cannot run the annealing circuit"),
        "no simulation": ([*dqa, f"{device}=null.qubit"], "'null.qubit' gives a single spin p = 1 where"),
        "no checkpoint": (["--ckpt_path=missing.ckpt"], "There is no checkpoint 'missing.ckpt'"),
        "not a checkpoint": (["--ckpt_path=text.txt"], "'text.txt' is not a checkpoint of plain data"),
        "negative beta": (
            [
                *dqa,
                "--model.init_args.layer.init_args.schedule=hybrid_attention.LinearSchedule",
                "--model.init_args.layer.init_args.schedule.init_args.steps=4",
                "--model.init_args.layer.init_args.schedule.init_args.tau=9",
            ],
            "turns spins by dt A = 1.97 > pi / 2 in a step",
        ),
    }


@pytest.mark.parametrize("mistake", mistakes())
def test_a_mistake_ends_in_one_sentence_before_any_work(mistake):
    Path("text.txt").write_text("hello")
    Path("empty.yaml").write_text("# nothing")
    Path("broken.yaml").write_text("a: [b")
    Path("binary.yaml").write_bytes(b"\xff\xfe")
    torch.save({"state_dict": {}}, "other.ckpt")
    other = CharLanguageModel("ab", 6)
    torch.save(
        {"state_dict": other.state_dict(), "hyper_parameters": dict(other.hparams), "pytorch-lightning_version": "2.6"},
        "bare.ckpt",
    )
    arguments, message = mistakes()[mistake]
    with pytest.raises(SystemExit, match=f"^hybrid-attention: error: .*{message}") as stop:
        fit(*arguments)
    assert "\n" not in str(stop.value)
    assert not Path("runs").exists()


def test_the_traceback_is_there_for_who_asks(monkeypatch):
    monkeypatch.setenv("HYBRID_ATTENTION_TRACEBACK", "1")
    with pytest.raises(ValueError, match="does not split into 3"):
        fit("--model.init_args.num_heads=3")


def test_a_checkpoint_that_does_not_fit_the_command_line_says_where():
    fit("--test_after_fit=false")
    with pytest.raises(SystemExit, match=r"The checkpoint does not fit the model: .*give the sizes"):
        main(["test", "--ckpt_path", the_best(), "--model.init_args.embed_dim=16", "--trainer.logger=false"])
    with pytest.raises(SystemExit, match=r"context_length of 6, and the data has 4: set --data\.init_args\.context_l"):
        main(["test", "--ckpt_path", the_best(), "--data.init_args.context_length=4", "--trainer.logger=false"])


def test_a_text_that_cannot_be_read_is_said_once(monkeypatch):
    Path("latin.txt").write_bytes("caf\xe9".encode("latin-1") * 50)
    reads = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or read_bytes(path))
    with pytest.raises(SystemExit, match=r"error: 'latin\.txt' is not UTF-8 text"):
        main(["fit", "--config", str(CONFIGS / "tiny_shakespeare.yaml"), "--data.init_args.source=latin.txt"])
    assert len([path for path in reads if path.name == "latin.txt"]) == 1


def test_validation_says_on_what_and_random_weights_are_pointed_out(capsys):
    quiet = [*SMALL[:1], *SMALL[3:], "--trainer.logger=false"]
    main(["validate", "--config", str(CONFIGS / "brackets.yaml"), *[a for a in quiet if "log_every" not in a]])
    out = capsys.readouterr().out
    assert "No --ckpt_path was given: validate runs on random weights." in out
    assert "Validating 1 block(s) of BoltzmannAttention" in out
    assert re.search(r"val_accuracy\s+\d\.\d+", out)


def test_predictions_are_never_overwritten():
    fit("--test_after_fit=false")
    predict = ["predict", "--ckpt_path", the_best(), "--trainer.enable_progress_bar=false", "--trainer.logger=false"]
    main(predict)
    before = Path("runs/predictions.pt")
    content = before.read_bytes()
    main(predict)
    assert before.read_bytes() == content
    assert torch.cat(torch.load("runs/predictions-v1.pt", weights_only=True)).shape == (32, 6)


def test_a_second_run_without_a_logger_leaves_the_first_one_untouched_too():
    fit("--test_after_fit=false", "--trainer.logger=false")
    before = file_contents(".")
    fit("--test_after_fit=false", "--trainer.logger=false", "--seed_everything=1")
    after = file_contents(".")
    assert {path: after[path] for path in before} == before
    assert {path.name for path in before} >= {"config.yaml", "last.ckpt"}
    assert {path.name for path in after} >= {"config-v1.yaml", "last-v1.ckpt"}


def test_a_checkpoint_file_holds_plain_data_alone():
    fit("--test_after_fit=false")
    saved = torch.load("runs/brackets/version_0/checkpoints/last.ckpt", weights_only=True)
    assert saved["hyper_parameters"]["_class_path"] == "lightning_modules.BracketMatcher"
    assert saved["datamodule_hyper_parameters"]["_class_path"] == "datamodules.BracketDataModule"


@pytest.mark.parametrize("name", ["shots", "max_circuits", "device_options"])
@pytest.mark.parametrize("prefix", ["model.init_args.layer.init_args", "model.layer"])
def test_null_unsets_a_setting_of_the_layer(name, prefix, capsys):
    values = {"shots": "50", "max_circuits": "3", "device_options": "{no_such_option: 1}"}
    key = f"--model.init_args.layer.init_args.{name}"
    fast = ["--trainer.fast_dev_run=true", "--data.init_args.num_train=4", "--test_after_fit=false"]
    dqa = ["--config", str(CONFIGS / "layers/dqa.yaml")]
    fit(*dqa, f"{key}={values[name]}", f"--{prefix}.{name}=null", *fast)
    assert "shots=None" in capsys.readouterr().out


def test_circuits_that_would_pass_their_limit_end_a_run_in_one_sentence():
    dqa = ["--config", str(CONFIGS / "layers/dqa.yaml"), "--model.init_args.layer.init_args.max_circuits=200"]
    with pytest.raises(SystemExit, match=r"^hybrid-attention: error: \d+ more circuits after \d+ would pass") as stop:
        fit(*dqa)
    assert "\n" not in str(stop.value)
    saved = torch.load("runs/brackets/version_0/checkpoints/last.ckpt", weights_only=True)
    assert saved["global_step"] == 1
