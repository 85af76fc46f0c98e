"""The study of equivalence pairs its runs, in the units of its margins."""

import math

import pytest
import torch
from benchmark_scripts import load

TEXT = "shall i compare thee to a summer's day? thou art more lovely and more temperate.\n" * 20


@pytest.fixture(scope="module")
def study():
    return load("dqa_equivalence")


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
    assert "give two or more different ones" in capsys.readouterr().err


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
def test_the_picture_of_the_study_is_a_png_file(study, tmp_path):
    pytest.importorskip("matplotlib", reason="pip install 'hybrid-attention[plots]'")
    values = [0.1, 0.2, -0.1]
    outcome = study.equivalence(values, [0.0] * 3, 0.5)
    study.plot(
        tmp_path / "pairs.png",
        [study.Comparison(task, label, values, values, values, outcome) for task in study.TASKS for label in "ab"],
    )
    assert (tmp_path / "pairs.png").read_bytes().startswith(b"\x89PNG")
