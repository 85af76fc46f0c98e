"""`hybrid-attention inspect`, and the callback that logs the same pictures during training."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from datamodules import BracketDataModule
from hybrid_attention import (
    DQALayer,
    ExactLayer,
    FieldsOnlyLayer,
    LinearSchedule,
    MeanFieldLayer,
    ToeplitzCouplings,
    TransferMatrixLayer,
    exact_correlations,
)
from lightning_modules import AttentionPictures, BracketMatcher, CharLanguageModel, plotting
from lightning_modules.attention_figures import attention_figures
from lightning_modules.cli import main
from lightning_modules.inspection import arrays, inspect_sequence

CONFIGS = Path(__file__).parents[1] / "configs"
SCHEDULE = LinearSchedule(4, 5.0)
FILES = {"attention", "correlations", "couplings", "couplings_by_distance", "energies"}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def trainer(**changes):
    settings = {
        "max_steps": 2,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "val_check_interval": 1,
    }
    return pl.Trainer(**{**settings, **changes})


def data():
    return BracketDataModule(6, 2, num_train=16, num_val=4, num_test=4, batch_size=8)


def matcher(layer=ExactLayer, **changes):
    torch.manual_seed(0)
    model = BracketMatcher(6, **{"num_types": 2, "embed_dim": 4, "num_heads": 2, "layer": layer, **changes})
    for each in model.ising_layers():
        if each.couplings is not None:
            torch.nn.init.normal_(each.couplings, 0.1, 0.5)
    return model


def saved(model, name="model.ckpt"):
    runner = trainer()
    runner.strategy.connect(model)
    runner.save_checkpoint(name, weights_only=True)
    return name


def inspect(*arguments):
    main(["inspect", *arguments])


def test_figures_and_arrays_are_written(capsys):
    pytest.importorskip("matplotlib")
    path = saved(matcher(num_blocks=2))
    inspect(f"--ckpt_path={path}", "--word=([]())", "--output=new/out")
    out = capsys.readouterr().out
    assert "Inspecting 2 block(s) of BoltzmannAttention(embed_dim=4" in out
    assert {file.stem for file in Path("new/out").glob("*.png")} == FILES
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in Path("new/out").glob("*.png"))
    found = np.load("new/out/inspection.npz")
    shapes = {name: found[name].shape for name in found.files}
    assert shapes == {
        "tokens": (6,),
        **dict.fromkeys(("attention", "fields", "present", "marginals", "couplings"), (2, 2, 6, 6)),
        "couplings_by_distance": (2, 2, 5),
        "correlations": (2, 2, 6, 6, 6),
        "energy_edges": (2, 2, 41),
        **dict.fromkeys(("energy_of_layer", "energy_of_boltzmann", "energy_of_states"), (2, 2, 40)),
    }
    assert found["tokens"].tolist() == [0, 2, 3, 0, 1, 1]
    np.testing.assert_allclose(found["attention"].sum(-1), 1, rtol=1e-5)


def test_softmax_attention_has_weights_alone():
    pytest.importorskip("matplotlib")
    inspect(f"--ckpt_path={saved(matcher(None))}", "--word=()", "--output=out")
    assert {file.name for file in Path("out").iterdir()} == {"attention.png", "inspection.npz"}


def test_files_are_not_overwritten_silently():
    pytest.importorskip("matplotlib")
    path = saved(matcher())
    Path("out").mkdir()
    Path("out/energies.png").write_text("my own")
    with pytest.raises(SystemExit, match=r"energies\.png' exists: move it away"):
        inspect(f"--ckpt_path={path}", "--word=()", "--output=out")
    assert [file.name for file in Path("out").iterdir()] == ["energies.png"]
    assert Path("out/energies.png").read_text() == "my own"
    inspect(f"--ckpt_path={path}", "--word=()", "--output=out", "--overwrite=true")
    assert Path("out/energies.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_line_chooses_the_layer_and_keeps_the_rest_of_what_the_checkpoint_says(capsys):
    pytest.importorskip("matplotlib")
    path = saved(matcher())
    quantum = [f"--config={CONFIGS / 'layers/dqa.yaml'}", f"--config={CONFIGS / 'devices/default_qubit.yaml'}"]
    inspect(f"--ckpt_path={path}", *quantum, "--word=()", "--output=out")
    out = capsys.readouterr().out
    assert "layer=DQALayer(num_spins=6, num_heads=2, device='default.qubit', shots=None" in out
    assert "up to 8 circuits on default.qubit" in out
    path = saved(matcher(partial(DQALayer, schedule=SCHEDULE)), "quantum.ckpt")
    inspect(f"--ckpt_path={path}", "--model.init_args.layer.init_args.shots=100", "--word=()", "--output=other")
    out = capsys.readouterr().out
    assert "shots=100" in out
    assert "schedule=LinearSchedule(steps=4, tau=5.0" in out
    assert "of samples" in out


def test_text_goes_into_a_language_model():
    pytest.importorskip("matplotlib")
    path = saved(CharLanguageModel("\n abc", 5, embed_dim=4, layer=ExactLayer))
    inspect(f"--ckpt_path={path}", "--text=a cab", "--output=out")
    assert np.load("out/inspection.npz")["tokens"].tolist() == [2, 1, 4, 2, 3]


def test_of_a_text_that_is_too_long_the_end_is_taken(capsys):
    pytest.importorskip("matplotlib")
    path = saved(CharLanguageModel("\n abc", 5, embed_dim=4, layer=ExactLayer))
    inspect(f"--ckpt_path={path}", "--text=ccca cab", "--output=out")
    assert np.load("out/inspection.npz")["tokens"].tolist() == [2, 1, 4, 2, 3]
    assert "The model sees the last 5 of 8 characters." in capsys.readouterr().out


def test_the_seed_fixes_what_is_sampled():
    pytest.importorskip("matplotlib")
    path = saved(matcher(partial(DQALayer, schedule=SCHEDULE, shots=10)))
    found = []
    for before, seed in ((1, 3), (2, 3), (3, 4)):
        np.random.seed(before)  # what a new process would draw of its own
        inspect(f"--ckpt_path={path}", "--word=(())", f"--output=out{before}", f"--seed={seed}")
        found.append(np.load(f"out{before}/inspection.npz"))
    for name in ("attention", "correlations"):
        np.testing.assert_array_equal(found[0][name], found[1][name])
    assert not np.array_equal(found[0]["attention"], found[2]["attention"])


def test_every_setting_of_the_model_can_be_given():
    pytest.importorskip("matplotlib")
    inspect(
        f"--ckpt_path={saved(matcher())}",
        f"--config={CONFIGS / 'attention/couplings_only.yaml'}",
        "--word=()",
        "--output=out",
    )
    np.testing.assert_allclose(np.load("out/inspection.npz")["marginals"][0, :, 1], 0.5, atol=1e-6)


def test_beyond_24_positions_correlations_and_energies_are_left_out(capsys):
    pytest.importorskip("matplotlib")
    layer = partial(TransferMatrixLayer, coupling_shape=ToeplitzCouplings(2))
    path = saved(CharLanguageModel("ab", 30, embed_dim=4, layer=layer))
    inspect(f"--ckpt_path={path}", "--text=" + "ab" * 15, "--output=out")
    assert {file.stem for file in Path("out").glob("*.png")} == FILES - {"correlations", "energies"}
    found = np.load("out/inspection.npz")
    assert set(found.files) == {
        "tokens",
        "attention",
        "fields",
        "present",
        "marginals",
        "couplings",
        "couplings_by_distance",
    }
    assert "correlations and energies are told for up to 24 positions" in capsys.readouterr().out


def test_layers_that_approximate_have_no_energies_of_their_own():
    model = matcher(MeanFieldLayer)
    found = arrays(inspect_sequence(model, torch.tensor([0, 2, 3, 1])))
    assert np.isnan(found["energy_of_layer"]).all()
    assert np.isfinite(found["energy_of_boltzmann"]).all()
    exact = arrays(inspect_sequence(matcher(), torch.tensor([0, 2, 3, 1])))
    np.testing.assert_allclose(exact["energy_of_layer"], exact["energy_of_boltzmann"])


def test_low_precision_is_shown_in_float32():
    pytest.importorskip("matplotlib")
    blocks = inspect_sequence(matcher().to(torch.bfloat16), torch.tensor([0, 2, 3, 1]))
    assert {values.dtype.name for values in arrays(blocks).values()} == {"bool", "float32", "float64"}
    assert set(attention_figures(blocks, list("([])"))) == FILES


@pytest.mark.parametrize("hyper_parameters", [None, ["_class_path"], {"_class_path": None}, {}])
def test_a_checkpoint_that_names_no_class_is_refused(hyper_parameters):
    pytest.importorskip("matplotlib")
    torch.save({"state_dict": {}, "hyper_parameters": hyper_parameters}, "odd.ckpt")
    with pytest.raises(SystemExit, match=r"'odd\.ckpt' does not say which model it holds"):
        inspect("--ckpt_path=odd.ckpt", "--word=()", "--output=out")


def test_a_checkpoint_without_an_argument_of_its_model_is_refused():
    pytest.importorskip("matplotlib")
    content = torch.load(saved(CharLanguageModel("ab", 4, embed_dim=4, layer=ExactLayer)), weights_only=True)
    del content["hyper_parameters"]["vocabulary"]
    torch.save(content, "odd.ckpt")
    with pytest.raises(SystemExit, match=r"^hybrid-attention: error: .*vocabulary"):
        inspect("--ckpt_path=odd.ckpt", "--text=a", "--output=out")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([f"--config={CONFIGS / 'devices/default_qubit.yaml'}"], "give a layer file before it"),
        (["--config=none.yaml"], r"There is no config file 'none\.yaml'"),
        (["--output=text.ckpt", "--word=()"], "'text.ckpt' is a file: give a folder as --output"),
        ([], "give --word, and only that"),
        (["--text=ab"], "give --word, and only that"),
        (["--word=((((()))))"], "--word has 10 characters: give 1 to 6"),
        (["--word="], "--word has 0 characters"),
        (["--word={}"], r"--word has '\{', '\}': give characters of \(\)\[\]\."),
        (["--ckpt_path=none.ckpt"], "There is no checkpoint 'none.ckpt'"),
        (["--ckpt_path=text.ckpt"], "is not a checkpoint of plain data"),
        (["--nonsense=1"], "nonsense"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_a_sentence(arguments, words):
    pytest.importorskip("matplotlib")
    Path("text.ckpt").write_text("text")
    with pytest.raises(SystemExit, match=rf"^hybrid-attention: error: .*{words}"):
        inspect(f"--ckpt_path={saved(matcher())}", "--output=out", *arguments)
    assert not Path("out").exists()


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(plotting, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"pip install 'hybrid-attention\[plots\]'"):
        inspect(f"--ckpt_path={saved(matcher())}", "--word=()", "--output=out")
    with pytest.raises(ValueError, match=r"hybrid-attention\[plots\]"):
        AttentionPictures()


def test_arrays_agree_with_each_other():
    model = matcher(num_blocks=2).double().eval()
    found = arrays(inspect_sequence(model, torch.tensor([0, 2, 3, 1])))
    fields, present, couplings, p = (
        torch.from_numpy(found[name]) for name in ("fields", "present", "couplings", "marginals")
    )
    torch.testing.assert_close(
        torch.from_numpy(found["attention"]).double(), p / p.sum(-1, keepdim=True), atol=1e-6, rtol=0
    )
    assert torch.equal(present, torch.ones(4, 4, dtype=torch.bool).tril().expand_as(present))
    expected = exact_correlations(fields, couplings.unsqueeze(2), present)
    torch.testing.assert_close(torch.from_numpy(found["correlations"]), expected)
    J = found["couplings"]
    np.testing.assert_allclose(found["couplings_by_distance"][..., 1], (J[..., 0, 2] + J[..., 1, 3]) / 2)


def test_what_is_inspected_does_not_depend_on_being_inspected():
    model, tokens = matcher().train(), torch.tensor([0, 2, 3, 1])
    before = model(tokens.unsqueeze(0))
    inspect_sequence(model, tokens)
    assert model.training
    assert torch.equal(model(tokens.unsqueeze(0)), before)
    assert not [m for m in model.modules() if m._forward_hooks or m._forward_pre_hooks]


@pytest.mark.parametrize(
    "layer",
    [
        ExactLayer,
        pytest.param(FieldsOnlyLayer, marks=pytest.mark.slow),
        pytest.param(partial(DQALayer, schedule=SCHEDULE), marks=pytest.mark.slow),
    ],
)
def test_pictures_are_logged_at_every_validation_and_training_is_not_changed(layer):
    pytest.importorskip("matplotlib")
    weights = []
    for callbacks in ([AttentionPictures()], []):
        model = matcher(layer)
        runner = trainer(logger=CSVLogger("runs"), callbacks=callbacks)
        torch.manual_seed(1)
        runner.fit(model, data())
        weights.append([p.detach() for p in model.parameters()])
    names = {file.name for file in Path("runs/lightning_logs/version_0/pictures").iterdir()}
    assert names == {f"{name}_step_{step}.png" for name in FILES for step in (1, 2)}
    assert not Path("runs/lightning_logs/version_1/pictures").exists()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*weights, strict=True))


@pytest.mark.slow
def test_pictures_of_a_second_run_into_a_folder_leave_the_first_ones():
    pytest.importorskip("matplotlib")
    for _ in range(2):
        trainer(logger=CSVLogger("runs", version="mine"), callbacks=[AttentionPictures()], max_steps=1).fit(
            matcher(), data()
        )
    pictures = {file.name for file in Path("runs/lightning_logs/mine/pictures").iterdir()}
    assert {"energies_step_1.png", "energies_step_1-1.png"} <= pictures


def test_tensorboard_gets_figures():
    pytest.importorskip("matplotlib")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer(logger=TensorBoardLogger("runs"), callbacks=[AttentionPictures()]).fit(matcher(), data())
    events = EventAccumulator("runs/lightning_logs/version_0").Reload()
    assert set(events.Tags()["images"]) == {f"pictures/{name}" for name in FILES}
    assert [image.step for image in events.Images("pictures/attention")] == [1, 2]


@pytest.mark.slow
def test_weights_and_biases_get_images(monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=".", offline=True)
    trainer(logger=logger, callbacks=[AttentionPictures()], max_steps=1).fit(matcher(), data())
    logger.experiment.finish()
    assert len(list(Path("wandb").rglob("media/images/pictures/*.png"))) == len(FILES)


def test_without_a_logger_there_is_nothing_to_log_to():
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match=r"AttentionPictures has no logger: set trainer\.logger"):
        trainer(callbacks=[AttentionPictures()]).fit(matcher(), data())


def test_the_config_adds_the_callback():
    pytest.importorskip("matplotlib")
    small = ["--data.init_args.context_length=4", "--data.init_args.num_train=64", "--data.init_args.num_val=8"]
    quiet = ["--trainer.max_steps=1", "--trainer.val_check_interval=1", "--trainer.enable_progress_bar=false"]
    configs = [f"--config={CONFIGS / name}" for name in ("brackets.yaml", "callbacks/attention_pictures.yaml")]
    main(["fit", *configs, *small, *quiet, "--test_after_fit=false"])
    assert len(list(Path("runs/brackets/version_0/pictures").glob("*_step_1.png"))) == len(FILES)


def test_labels_say_which_character_is_where():
    from lightning_modules.inspect_command import tokens_of

    tokens, labels = tokens_of(CharLanguageModel("\n ab", 4), "a\nb", None)
    assert (tokens.tolist(), labels) == ([2, 0, 3], ["a", r"\n", "b"])
    assert re.fullmatch(r"[()\[\]]+", "".join(tokens_of(matcher(), None, "[()]")[1]))
