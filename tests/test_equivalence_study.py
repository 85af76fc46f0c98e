"""The test of equivalence decides as its closed forms say, and the study pairs its runs."""

import math

import pytest
import torch
from benchmark_scripts import load

TEXT = "shall i compare thee to a summer's day? thou art more lovely and more temperate.\n" * 20


@pytest.fixture(scope="module")
def tost():
    return load("tost")


@pytest.fixture(scope="module")
def study():
    return load("dqa_equivalence")


def test_two_pairs_give_the_p_values_of_a_cauchy_distribution(tost):
    """Mean 0.2, standard error 0.1, and one degree of freedom: P(t > x) = 1/2 - arctan(x) / pi."""
    found = tost.equivalence([0.1, 0.3], margin=0.5)
    assert (found.count, found.mean, found.spread) == pytest.approx((2, 0.2, math.sqrt(0.02)))
    assert found.p_above == pytest.approx(0.5 - math.atan(7) / math.pi)
    assert found.p_below == pytest.approx(0.5 - math.atan(3) / math.pi)
    assert found.p_zero == pytest.approx(1 - 2 * math.atan(2) / math.pi)
    half = 0.1 * math.tan(0.45 * math.pi)
    assert (found.low, found.high) == pytest.approx((0.2 - half, 0.2 + half))
    assert found.verdict == "cannot decide"


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.1, -0.1, 0.05, 0.02], "equivalent"),
        ([0.11, 0.1, 0.09, 0.1], "equivalent"),  # differs from 0, and less than the margin
        ([0.4, 0.5, 0.45, 0.55], "different"),
        ([-2.0, -1.8, -2.2, -1.9], "different"),
        ([1.0, -1.0, 0.5, 0.2], "cannot decide"),
    ],
)
def test_verdicts(tost, differences, verdict):
    assert tost.equivalence(differences, 0.5).verdict == verdict


def test_equivalence_is_found_where_the_interval_lies_between_the_margins(tost):
    generator = torch.Generator().manual_seed(0)
    verdicts = set()
    for _ in range(60):
        found = tost.equivalence((0.5 * torch.randn(6, generator=generator)).tolist(), 0.5)
        assert (found.verdict == "equivalent") == (found.low > -0.5 and found.high < 0.5)
        verdicts.add(found.verdict)
    assert {"equivalent", "cannot decide"} <= verdicts


@pytest.mark.parametrize(("truth", "rate", "tolerance"), [(0.5, 0.05, 0.03), (-0.5, 0.05, 0.03), (0.0, 1.0, 0.01)])
def test_methods_that_differ_by_the_margin_are_called_equivalent_as_often_as_the_level_says(
    tost, truth, rate, tolerance
):
    """500 experiments of 10 pairs with a spread of a fifth of the margin: a standard error of the rate of 0.01."""
    draws = truth + 0.1 * torch.randn(500, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    verdicts = [tost.equivalence(row, 0.5).verdict for row in draws.tolist()]
    assert verdicts.count("equivalent") / 500 == pytest.approx(rate, abs=tolerance)


@pytest.mark.parametrize(
    ("differences", "margin", "message"),
    [
        ([0.1], 0.5, "1 pairs and a margin of 0.5"),
        ([0.1, 0.2], 0.0, "2 pairs and a margin of 0.0"),
        ([0.0, 0.0, 0.0], 0.5, "All 3 differences are 0"),
    ],
)
def test_differences_that_cannot_be_tested_are_refused(tost, differences, margin, message):
    with pytest.raises(ValueError, match=message):
        tost.equivalence(differences, margin)


def test_a_seed_gives_both_methods_the_same_weights_and_batches(study, monkeypatch):
    monkeypatch.setattr(study, "NUM_TEST", 20)
    seen = {}
    training_step = study.BracketMatcher.training_step

    def recorded(model, batch, batch_idx):
        if batch_idx == 0:
            seen[method] = [weights.detach().clone() for weights in model.parameters()]
        seen[method] += [part.clone() for part in batch]
        return training_step(model, batch, batch_idx)

    monkeypatch.setattr(study.BracketMatcher, "training_step", recorded)
    for method in ("exact", "DQA"):
        results = study.train(3, study.Setting("brackets", 2, 4, "", ""), method)
        assert [(r.seed, r.trained_on) for r in results] == [(3, method)] * len(results)
        assert [r.tested_on for r in results] == (["exact", "DQA"] if method == "exact" else ["DQA"])
    for exact, quantum in zip(seen["exact"], seen["DQA"], strict=True):
        torch.testing.assert_close(quantum, exact, rtol=0, atol=0)


@pytest.mark.usefixtures("one_thread")
def test_the_study_runs_each_method_once_and_ends_in_a_table(study, tmp_path, monkeypatch, capsys):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    arguments = ["--tasks", "tiny_shakespeare", "--seeds", "1", "2", "--steps", "2", "--embed-dim", "4"]
    arguments += ["--text", str(text), "--folder", str(tmp_path / "out")]
    study.main(arguments)
    out = capsys.readouterr().out
    results = study.read(tmp_path / "out" / "runs.csv", study.Result)
    expected = [("exact", "exact"), ("exact", "DQA"), ("DQA", "DQA")]
    assert [(r.seed, r.trained_on, r.tested_on) for r in results] == [(s, *m) for s in (1, 2) for m in expected]
    assert all(0 < r.loss < 5 for r in results)
    assert out.count("min left") == 4
    table = out.splitlines()[-4:]
    assert [line.split(" | ")[1] for line in table[2:]] == list(study.COMPARED.values())
    monkeypatch.setattr(study, "train", lambda *_: pytest.fail("a run was repeated"))
    study.main(arguments)
    assert capsys.readouterr().out.splitlines()[-4:] == table
    assert (tmp_path / "out" / "table.md").read_text().splitlines() == table
    with pytest.raises(pytest.fail.Exception, match="a run was repeated"):
        study.main([*arguments, "--steps", "3"])
    with pytest.raises(SystemExit):
        study.main([*arguments, "--seeds", "1"])
    assert "give two or more" in capsys.readouterr().err


def test_differences_are_taken_seed_by_seed_in_the_units_of_the_margins(study):
    def results(task, numbers):
        setting = study.Setting(task, 1, 1, "", "")
        return setting, [
            study.Result(*setting, seed, trained_on, tested_on, accuracy, loss)
            for seed, row in numbers.items()
            for (trained_on, tested_on), (accuracy, loss) in row.items()
        ]

    exact, quantum, moved = ("exact", "exact"), ("DQA", "DQA"), ("exact", "DQA")
    settings, rows = zip(
        results(
            "brackets",
            {
                1: {exact: (0.90, 1.0), quantum: (0.91, 1.0), moved: (0.89, 1.0)},
                2: {exact: (0.80, 1.0), quantum: (0.84, 1.0), moved: (0.80, 1.0)},
            },
        ),
        results(
            "tiny_shakespeare",
            {
                1: {exact: (0.5, 2.000), quantum: (0.5, 2.001), moved: (0.5, 1.998)},
                2: {exact: (0.5, 2.100), quantum: (0.5, 2.102), moved: (0.5, 2.099)},
            },
        ),
        strict=True,
    )
    found = study.compare([row for part in rows for row in part], settings, [1, 2])
    differences = [[1.0, 4.0], [-1.0, 0.0], [0.1, 0.2], [-0.2, -0.1]]
    assert [each.differences for each in found] == [pytest.approx(row, abs=1e-9) for row in differences]
    assert found[2].exact == pytest.approx([math.exp(2.0), math.exp(2.1)])
    assert study.TASKS["tiny_shakespeare"].margin == pytest.approx(100 * math.log(1.005))
    assert "| 85.000 +- 7.071 | 87.500 +- 4.950 | +2.500 (" in study.table(found)[2]


@pytest.mark.plugins
def test_the_picture_of_the_study_is_a_png_file(study, tost, tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'hybrid-attention[plots]'")
    values = [0.1, 0.2, -0.1]
    outcome = tost.equivalence(values, 0.5)
    study.plot(
        tmp_path / "pairs.png",
        [study.Comparison(task, label, values, values, values, outcome) for task in study.TASKS for label in "ab"],
    )
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")
