"""The search for causes changes one thing at a time, and pairs its runs by seed."""

import logging
import math

import pytest
import torch
from benchmark_scripts import load

TEXT = "shall i compare thee to a summer's day? thou art more lovely and more temperate.\n" * 20


@pytest.fixture(scope="module")
def causes():
    return load("causes")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return str(path)


def test_a_seed_gives_all_variants_the_same_weights_and_batches(causes, text, monkeypatch):
    seen = {}
    training_step = causes.CharLanguageModel.training_step

    def recorded(model, batch, batch_idx):
        if batch_idx == 0:
            weights = {key: value.detach().clone() for key, value in model.named_parameters() if "couplings" not in key}
            seen[name] = [list(weights), *weights.values()]
        seen[name] += [part.clone() for part in batch]
        return training_step(model, batch, batch_idx)

    monkeypatch.setattr(causes.CharLanguageModel, "training_step", recorded)
    found = {}
    for name in causes.VARIANTS:
        found[name] = causes.train(text, 2, 3, name).loss
        assert seen[name][0] == seen["softmax"][0]
        for one, other in zip(seen[name][1:], seen["softmax"][1:], strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert len(set(found.values())) == len(found)


def test_what_is_changed_is_what_the_table_says(causes):
    def built(name):
        torch.manual_seed(0)
        variant = causes.VARIANTS[name]
        model = causes.CharLanguageModel("ab", context_length=12, embed_dim=8, **variant.settings)
        variant.change(model)
        return model

    shipped, fast, random = map(built, ("boltzmann", "J as fast as h", "J starts at random"))
    assert shipped.hparams["coupling_learning_rate_factor"] == 0.3
    assert fast.hparams["coupling_learning_rate_factor"] == 1
    (layer,), (other,) = shipped.ising_layers(), random.ising_layers()
    assert not layer.couplings.any()
    assert other.couplings.std().item() == pytest.approx(0.3, rel=0.25)  # 66 couplings: 3 standard errors


def test_the_layer_that_scales_gives_marginals_of_scaled_fields(causes):
    """p_j = sigmoid(2 c h_j) without couplings, and the derivative by h has the factor c."""
    layer = causes.ScaledFields(3, scale=0.5).double()
    fields = torch.tensor([[[0.4, -1.2, 2.0]]], dtype=torch.float64, requires_grad=True)
    p = layer(fields)
    torch.testing.assert_close(p, torch.sigmoid(fields), rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(p.sum(), fields)
    torch.testing.assert_close(gradient, p * (1 - p), rtol=0, atol=1e-12)


def test_attention_that_is_not_normalized_sums_values_times_marginals(causes):
    attention = causes.Unnormalized(4, causes.ExactLayer(3)).double()
    with torch.no_grad():
        attention.layer.couplings.copy_(torch.tensor([[0.3, -0.2, 0.5]]))
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out, p = attention(x, need_weights=True)
    normalized = causes.BoltzmannAttention(4, attention.layer).double()
    normalized.load_state_dict(attention.state_dict())
    _, weights = normalized(x, need_weights=True)
    torch.testing.assert_close(p / p.sum(-1, keepdim=True), weights, rtol=0, atol=1e-12)
    value = attention.query_key_value(x)[..., 8:]
    torch.testing.assert_close(out, attention.output(p[:, 0] @ value), rtol=0, atol=1e-12)


@pytest.mark.usefixtures("one_thread")
def test_each_variant_is_run_once_and_shown_beside_softmax(causes, text, tmp_path, monkeypatch, capsys):
    arguments = ["--text", text, "--seeds", "1", "2", "--steps", "2", "--folder", str(tmp_path / "out")]
    logger = logging.getLogger("pytorch_lightning")
    before = logger.level
    causes.main(arguments)
    assert logger.level == before
    table = capsys.readouterr().out.splitlines()[-len(causes.VARIANTS) :]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table] == list(causes.VARIANTS)
    results = causes.read(tmp_path / "out" / "runs.csv", causes.Result)
    assert [(r.seed, r.variant) for r in results] == [(seed, name) for seed in (1, 2) for name in causes.VARIANTS]
    losses = {(r.seed, r.variant): r.loss for r in results}
    mean = 100 * math.expm1(sum(losses[seed, "boltzmann"] - losses[seed, "softmax"] for seed in (1, 2)) / 2)
    assert f"| {mean:+.2f} [" in table[1]
    monkeypatch.setattr(causes, "train", lambda *_: pytest.fail("a run was repeated"))
    causes.main(arguments)
    assert capsys.readouterr().out.splitlines()[-len(causes.VARIANTS) :] == table
    with pytest.raises(SystemExit):
        causes.main([*arguments, "--seeds", "1", "1"])
    assert "give two or more different ones" in capsys.readouterr().err
