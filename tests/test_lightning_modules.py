"""The Lightning modules: what they optimize, what they log, and what their checkpoints hold."""

import math
from functools import partial

import pytest
import pytorch_lightning as pl
import torch
from torch.nn import functional

from datamodules import BracketDataModule, TinyShakespeareDataModule
from hybrid_attention import DQALayer, ExactLayer, FieldsOnlyLayer, LinearSchedule
from lightning_modules import BracketMatcher, CharLanguageModel

TEXT = "to be, or not to be: that is the question.\n" * 40


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def brackets(**changes):
    settings = {"context_length": 8, "num_types": 1, "num_train": 96, "num_val": 50, "num_test": 50, "batch_size": 32}
    return BracketDataModule(**{**settings, **changes})


def trainer(path=None, **changes):
    settings = {
        "max_epochs": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        **({} if path is None else {"default_root_dir": str(path)}),
    }
    return pl.Trainer(**{**settings, **changes})


def fitted(module, data, path):
    runner = trainer(path, max_steps=3, max_epochs=-1)
    runner.fit(module, data)
    file = path / "model.ckpt"
    runner.save_checkpoint(file)
    return file


def test_couplings_learn_at_their_own_rate_and_nothing_but_linear_maps_decays():
    module = BracketMatcher(8, embed_dim=8, layer=ExactLayer, learning_rate=0.01, coupling_learning_rate_factor=0.25)
    runner = trainer(max_steps=10, max_epochs=-1)
    runner.fit(module, brackets())
    (optimizer,) = runner.optimizers
    by_parameter = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert len(by_parameter) == len(list(module.parameters()))
    for name, parameter in module.named_parameters():
        group = by_parameter[id(parameter)]
        assert group["max_lr"] == pytest.approx(0.0025 if name.endswith("couplings") else 0.01)
        is_linear_map = parameter.dim() == 2 and not name.endswith(("couplings", "tokens.weight", "positions.weight"))
        assert group["weight_decay"] == (0.01 if is_linear_map else 0.0)


def test_position_biases_learn_at_the_rate_of_couplings_and_belong_to_softmax():
    module = BracketMatcher(8, embed_dim=8, position_bias=True, learning_rate=0.01, coupling_learning_rate_factor=0.25)
    runner = trainer(max_steps=3, max_epochs=-1)
    runner.fit(module, brackets())
    bias = module.model.blocks[0].attention.position_bias
    (group,) = (group for group in runner.optimizers[0].param_groups if any(p is bias for p in group["params"]))
    assert group["max_lr"] == pytest.approx(0.0025)
    assert group["weight_decay"] == 0
    assert torch.count_nonzero(bias) == bias.numel() == 28
    with pytest.raises(ValueError, match=r"position_bias=True was given with the layer hybrid_attention\.ExactLayer"):
        BracketMatcher(8, layer=ExactLayer, position_bias=True)


def test_training_moves_the_couplings_from_zero():
    module = BracketMatcher(8, embed_dim=8, layer=ExactLayer)
    (layer,) = module.ising_layers()
    assert torch.count_nonzero(layer.couplings) == 0
    trainer(max_steps=3, max_epochs=-1).fit(module, brackets())
    assert torch.count_nonzero(layer.couplings) == layer.couplings.numel()


def test_a_model_without_couplings_trains():
    for layer in (None, FieldsOnlyLayer):
        trainer(max_steps=2, max_epochs=-1).fit(BracketMatcher(8, 2, layer=layer), brackets())


def test_the_logged_loss_is_the_mean_over_scored_positions_also_with_a_smaller_last_batch(text_file):
    data = TinyShakespeareDataModule(8, text_file, batch_size=4)
    module = CharLanguageModel(data.vocabulary, 8, embed_dim=8)
    runner = trainer()
    (logged,) = runner.test(module, data, verbose=False)
    logits, targets = [], []
    for tokens, nexts in data.test_dataloader():
        logits.append(module(tokens))
        targets.append(nexts)
    logits, targets = torch.cat(logits).flatten(0, 1), torch.cat(targets).flatten()
    loss = functional.cross_entropy(logits, targets).item()
    assert logged["test_loss"] == pytest.approx(loss, rel=1e-5)
    assert logged["test_perplexity"] == pytest.approx(math.exp(loss), rel=1e-4)
    assert logged["test_accuracy"] == pytest.approx((logits.argmax(-1) == targets).double().mean().item(), abs=1e-6)


def test_accuracy_counts_closing_brackets_alone_and_the_baseline_is_logged():
    data, module = brackets(), BracketMatcher(8, embed_dim=8, layer=ExactLayer)
    (logged,) = trainer().test(module, data, verbose=False)
    right = scored = nearest = 0
    for tokens, targets in data.test_dataloader():
        closing = tokens % 2 == 1
        scored += closing.sum().item()
        right += (module(tokens).argmax(-1) == targets)[closing].sum().item()
        for row, word in enumerate(tokens.tolist()):
            last = None
            for place, token in enumerate(word):
                if token % 2 == 0:
                    last = place
                else:
                    nearest += last == targets[row, place].item()
    assert logged["test_accuracy"] == pytest.approx(right / scored, abs=1e-6)
    assert logged["test_accuracy_nearest_open"] == pytest.approx(nearest / scored, abs=1e-6)


def test_every_stage_logs_loss_and_metrics_and_what_the_layer_reports(text_file):
    data = TinyShakespeareDataModule(4, text_file, stride=8)
    module = CharLanguageModel(
        data.vocabulary, 4, embed_dim=8, layer=partial(DQALayer, schedule=LinearSchedule(4, 5.0))
    )
    runner = trainer(
        max_steps=2, max_epochs=-1, log_every_n_steps=1, val_check_interval=2, check_val_every_n_epoch=None
    )
    runner.fit(module, data)
    names = {f"{stage}_{what}" for stage in ("train", "val") for what in ("loss", "accuracy", "perplexity")}
    assert names | {"train_clipped_fields_0"} <= set(runner.logged_metrics)


def test_each_block_has_a_layer_of_its_own():
    module = BracketMatcher(8, embed_dim=8, num_heads=2, num_blocks=3, layer=ExactLayer)
    layers = module.ising_layers()
    assert len({id(layer.couplings) for layer in layers}) == 3
    assert all(layer.num_spins == 8 and layer.num_heads == 2 for layer in layers)


@pytest.mark.parametrize(
    "layer", [None, ExactLayer, FieldsOnlyLayer, partial(DQALayer, schedule=LinearSchedule(4, 5.0), clip=False)]
)
def test_a_checkpoint_alone_rebuilds_the_model_and_holds_plain_data(layer, tmp_path):
    module = BracketMatcher(8, 2, embed_dim=8, layer=layer)
    file = fitted(module, brackets(), tmp_path)
    again = BracketMatcher.load_from_checkpoint(file)
    tokens = torch.randint(4, (5, 8))
    torch.testing.assert_close(again.eval()(tokens), module.eval()(tokens), rtol=0, atol=0)
    saved = torch.load(file, weights_only=True)["hyper_parameters"]
    assert saved["layer"] == again.hparams["layer"] == module.hparams["layer"]


def test_weights_trained_exactly_run_on_a_circuit_and_back(tmp_path):
    file = fitted(BracketMatcher(6, embed_dim=8, layer=ExactLayer), brackets(context_length=6), tmp_path)
    exact = BracketMatcher.load_from_checkpoint(file)
    quantum = BracketMatcher.load_from_checkpoint(file, layer=partial(DQALayer, device="lightning.qubit"))
    assert isinstance(quantum.ising_layers()[0], DQALayer)
    for (name, ours), (_, theirs) in zip(exact.named_parameters(), quantum.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    exact.load_state_dict(quantum.state_dict())


def test_a_checkpoint_with_another_vocabulary_or_size_says_so(tmp_path, text_file):
    data = TinyShakespeareDataModule(4, text_file)
    file = fitted(CharLanguageModel(data.vocabulary, 4, embed_dim=8), data, tmp_path)
    other = CharLanguageModel(data.vocabulary.replace("q", "Q"), 4, embed_dim=8)
    with pytest.raises(ValueError, match="trained on another vocabulary"):
        trainer().test(other, data, ckpt_path=file, weights_only=True)
    with pytest.raises(ValueError, match=r"does not fit the model: .* has shape \(.*8.*\) in the checkpoint and"):
        CharLanguageModel.load_from_checkpoint(file, embed_dim=16)
    with pytest.raises(ValueError, match="couplings has shape none in the checkpoint"):
        CharLanguageModel.load_from_checkpoint(file, layer=ExactLayer)


def test_predictions_are_the_most_likely_classes():
    data, module = brackets(), BracketMatcher(8, 2, embed_dim=8)
    predictions = torch.cat(trainer().predict(module, data))
    tokens = torch.cat([tokens for tokens, _ in data.test_dataloader()])
    assert torch.equal(predictions, module(tokens).argmax(-1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate=-1.0 was given"),
        ({"weight_decay": math.nan}, "weight_decay=nan was given"),
        ({"coupling_learning_rate_factor": math.inf}, "coupling_learning_rate_factor=inf was given"),
        ({"embed_dim": 7, "num_heads": 2}, "embed_dim=7 does not split into 2"),
        ({"num_types": 0}, "num_types=0 was given"),
        ({"num_blocks": 0}, "num_blocks=0 was given"),
        ({"layer": lambda spins, heads: None}, "cannot be written to a checkpoint"),
        ({"layer": ExactLayer, "context_length": 40}, r"Exact enumeration over 40 spins would take about .* GB"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(arguments, message):
    with pytest.raises(ValueError, match=message):
        BracketMatcher(**{"context_length": 8, **arguments})


@pytest.mark.parametrize("vocabulary", ["", "aa"])
def test_a_vocabulary_has_each_character_once(vocabulary):
    with pytest.raises(ValueError, match="give each character once"):
        CharLanguageModel(vocabulary, 8)


def test_a_context_longer_than_the_model_is_refused():
    with pytest.raises(ValueError, match="T up to the model's context_length of 8"):
        BracketMatcher(8)(torch.zeros(1, 9, dtype=torch.long))


def test_tokens_that_are_no_ids_are_refused():
    with pytest.raises(TypeError, match=r"The tokens are torch\.float32: give int64 token ids"):
        BracketMatcher(8)(torch.zeros(1, 8))
    with pytest.raises(ValueError, match="The tokens run from 0 to 7: give ids from 0 to 1"):
        BracketMatcher(8)(torch.arange(8).unsqueeze(0))


def test_training_without_an_end_is_refused():
    with pytest.raises(ValueError, match=r"set trainer\.max_steps or trainer\.max_epochs"):
        trainer(max_epochs=-1).fit(BracketMatcher(8, 2), brackets())


def test_double_precision_stays_double_in_the_loss():
    module = BracketMatcher(8, embed_dim=8, layer=ExactLayer).double()
    runner = trainer(max_steps=1, max_epochs=-1, precision="64-true")
    runner.fit(module, brackets())
    assert runner.callback_metrics["train_loss"].dtype == torch.float64


@pytest.mark.slow
def test_two_processes_log_the_mean_over_all_words(tmp_path):
    data, module = brackets(num_val=60), BracketMatcher(8, embed_dim=8, layer=ExactLayer)
    (alone,) = trainer().validate(module, data, verbose=False)
    runner = trainer(tmp_path, devices=2, strategy="ddp_spawn")
    (together,) = runner.validate(module, data, verbose=False)
    assert together["val_loss"] == pytest.approx(alone["val_loss"], rel=1e-5)
    assert together["val_accuracy"] == pytest.approx(alone["val_accuracy"], abs=1e-6)
