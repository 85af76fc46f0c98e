"""The report of a study: numbers against those worked out from the results, and a page that needs nothing else."""

import csv
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from lightning_modules.cli import main
from lightning_modules.studies.figures import attention_map, coupling_by_distance
from lightning_modules.studies.findings import read_findings
from lightning_modules.studies.seed_statistics import mean_interval, paired_difference, trend
from lightning_modules.studies.tables import PValue, Quantity, Table

pytest.importorskip("matplotlib")

SEEDS = (1, 2, 3)
KINDS = ("softmax", "boltzmann")
LENGTHS = (4, 8)
SYMBOLS = [list("<>&("), list("()()"), list("(())")]


def accuracy(kind, length, seed):
    return 0.8 + 0.01 * seed + (0.02 * length / 4 + 0.003 * (seed == 2) if kind == "boltzmann" else 0.0)


def loss(kind, length, seed):
    return 2.0 - accuracy(kind, length, seed)


def couplings(length, seed):
    distance = np.abs(np.subtract.outer(np.arange(length), np.arange(length)))
    return np.where(distance > 0, 1.0 / np.maximum(distance, 1) + 0.1 * seed, 0.0)


def write_run(folder, experiment, kind, length, seed):
    """Write the files of a finished run, with made-up results."""
    place = f"{experiment}/{kind}/{length}/seed_{seed}-abc"
    run = folder / place
    run.mkdir(parents=True)
    content = {
        "experiment": experiment,
        "cell": {"attention": kind, "context_length": str(length)},
        "seed": seed,
        "fingerprint": "abc",
        "metrics": {"test_accuracy": accuracy(kind, length, seed), "test_loss": loss(kind, length, seed)},
        "seconds": 10.0 * seed,
        "train_seconds": 8.0,
        "steps": 400,
        "initial_weights": f"w{seed}",
        "data_order": f"d{seed}",
        "parameters": {"total": 1000, "pairs": 6 if kind == "boltzmann" else 0},
        "device": "cpu",
        "threads": 1,
        "versions": {"torch": "2.13", "commit": "0123456789ab"},
        "finished": "2026-01-01T00:00:00+00:00",
    }
    if experiment == "words":
        content["metrics"]["test_accuracy_nearest_open"] = 0.625
    (run / "result.json").write_text(json.dumps(content))
    (run / "metrics.csv").write_text("step,val_accuracy,val_loss\n9,0.5,1.5\n19,0.7,1.3\n")
    arrays = {"weights": np.full((3, 1, 1, length, length), 1 / length), "symbols": np.array(SYMBOLS * (length // 4))}
    arrays["symbols"] = np.tile(np.array(SYMBOLS), length // 4)
    if kind == "boltzmann":
        arrays["couplings"] = couplings(length, seed)[None, None]
    np.savez_compressed(run / "observations.npz", **arrays)
    cell = content["cell"]
    return {"experiment": experiment, "cell": cell, "seed": seed, "folder": place, "fingerprint": "abc"}


def write_study(folder):
    """Write the folder of a study of two experiments with made-up results."""
    runs = [
        write_run(folder, experiment, kind, length, seed)
        for experiment in ("words", "text")
        for kind in KINDS
        for length in LENGTHS
        for seed in SEEDS
    ]
    axes = {"attention": list(KINDS), "context_length": [str(length) for length in LENGTHS]}
    compared = {"first": {"attention": "boltzmann"}, "second": {"attention": "softmax"}, "at": {"context_length": "8"}}
    rest = {"margin": None, "axis": None}
    content = {
        "title": "Made up & <small>",
        "file": "made_up.yaml",
        "experiments": {
            "words": {"title": "Words", "metric": "accuracy", "axes": axes},
            "text": {"title": "Text", "metric": "perplexity", "axes": axes},
        },
        "comparisons": {
            "primary": [{"experiment": name, **compared, **rest} for name in ("words", "text")],
            "equivalences": [{"experiment": "text", **compared, **rest, "margin": 50.0}],
            "trends": [{"experiment": "words", **compared, **rest, "at": {}, "axis": "context_length"}],
        },
        "runs": runs,
    }
    (folder / "study.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def study(tmp_path):
    """The folder of a study, to change."""
    return write_study(tmp_path)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The folder of a study with its report, to read."""
    folder = write_study(tmp_path_factory.mktemp("study"))
    main(["report", str(folder)])
    return folder


def table(folder, name):
    with (folder / "report" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_search_takes_the_trial_of_the_lowest_validation_loss_and_not_the_best_test(study):
    content = json.loads((study / "study.json").read_text())
    content["experiments"]["words"]["search"] = ["context_length"]
    (study / "study.json").write_text(json.dumps(content))
    for place in study.glob("words/softmax/4/seed_*"):
        (place / "metrics.csv").write_text(f"step,val_loss\n9,{1.0 + 0.1 * int(place.name[5])}\n19,2.0\n")
    main(["report", str(study)])
    rows = {(row["attention"], row["context length"]): row for row in table(study, "words_search")}
    assert not (study / "report" / "text_search.csv").exists()
    assert float(rows["softmax", "4"]["validation loss (nats)"]) == pytest.approx(1.2)
    assert float(rows["softmax", "8"]["validation loss (nats)"]) == pytest.approx(1.3)
    assert [rows["softmax", length][""] for length in ("4", "8")] == ["lowest", ""]


def test_a_search_ranks_neither_diverged_trials_nor_those_with_fewer_seeds(study):
    content = json.loads((study / "study.json").read_text())
    content["experiments"]["words"]["search"] = ["context_length"]
    (study / "study.json").write_text(json.dumps(content))
    for place in study.glob("words/softmax/4/seed_*"):
        (place / "metrics.csv").write_text("step,val_loss\n9,nan\n")
    (study / "words/boltzmann/4/seed_2-abc/result.json").unlink()
    for place in study.glob("words/boltzmann/4/seed_*"):
        (place / "metrics.csv").write_text("step,val_loss\n9,0.1\n")
    main(["report", str(study)])
    rows = {(row["attention"], row["context length"]): row for row in table(study, "words_search")}
    for kind in KINDS:
        assert [rows[kind, length][""] for length in ("4", "8")] == ["", "lowest"]


def test_the_tables_hold_means_and_intervals_over_seeds(reported):
    rows = table(reported, "words_results")
    assert [(row["context length"], row["attention"]) for row in rows] == [
        (str(length), kind) for length in LENGTHS for kind in (*KINDS, "nearest open bracket")
    ]
    found = mean_interval([100 * accuracy("boltzmann", 8, seed) for seed in SEEDS])
    row = rows[4]
    assert float(row["accuracy (%)"]) == pytest.approx(found.mean)
    assert float(row["accuracy (%) low"]) == pytest.approx(found.low)
    assert float(row["accuracy (%) high"]) == pytest.approx(found.high)
    assert row["seeds"] == "3"
    assert (row["parameters"], row["of pairs"], row["s per run"], row["ms per step"]) == ("1000", "6", "20", "20.0")
    assert rows[5]["accuracy (%)"] == "62.50"
    assert "nearest open bracket" not in {row["attention"] for row in table(reported, "text_results")}


def test_perplexities_are_compared_by_their_logarithms_and_shown_in_percent(reported):
    ours, theirs = ([loss(kind, 8, seed) for seed in SEEDS] for kind in ("boltzmann", "softmax"))
    found = paired_difference(ours, theirs)
    row = table(reported, "text_differences")[1]
    assert float(row["difference of perplexity (%)"]) == pytest.approx(100 * math.expm1(found.interval.mean))
    assert float(row["difference of perplexity (%) low"]) == pytest.approx(100 * math.expm1(found.interval.low))
    assert float(row["p"]) == pytest.approx(found.p)
    assert row["pairs"] == "3"
    result = table(reported, "text_results")[2]
    assert float(result["perplexity"]) == pytest.approx(math.exp(np.mean(theirs)))


def test_primary_comparisons_are_corrected_together_and_trends_follow_each_seed(reported):
    first, second = table(reported, "primary")
    assert float(first["p (Holm)"]) == pytest.approx(2 * float(first["p"]))
    assert float(second["p (Holm)"]) == pytest.approx(2 * float(second["p"]))
    assert first["verdict"] == "different"
    assert table(reported, "equivalences")[0]["verdict"] == "equivalent"
    gaps = [[accuracy("boltzmann", n, s) - accuracy("softmax", n, s) for n in LENGTHS] for s in SEEDS]
    slope = trend(LENGTHS, gaps)
    (row,) = table(reported, "trends")
    assert row["difference"].endswith(f"along context length {', '.join(map(str, LENGTHS))}")
    assert float(row["slope"]) == pytest.approx(100 * slope.interval.mean) == pytest.approx(0.5)


def test_only_seeds_that_both_have_are_compared_and_missing_runs_are_told(study, capsys):
    (study / "words/boltzmann/8/seed_2-abc/result.json").unlink()
    main(["report", str(study)])
    row = table(study, "words_differences")[1]
    gap = 100 * np.mean([accuracy("boltzmann", 8, s) - accuracy("softmax", 8, s) for s in (1, 3)])
    assert row["pairs"] == "2"
    assert float(row["difference (points)"]) == pytest.approx(gap)
    assert "1 runs are missing, such as words/boltzmann/8/seed_2-abc." in capsys.readouterr().out


def test_runs_that_do_not_share_weights_or_data_are_told(study, capsys):
    path = study / "words/boltzmann/8/seed_3-abc/result.json"
    path.write_text(path.read_text().replace('"d3"', '"another"'))
    assert read_findings(study).unpaired() == ["words/8, seed 3"]
    main(["report", str(study)])
    assert "such as words/8, seed 3: their differences are not paired" in capsys.readouterr().out
    assert "their differences are not paired" in (study / "report/report.html").read_text()


def test_the_page_holds_everything_and_loads_nothing(reported):
    page = (reported / "report/report.html").read_text()
    assert "<title>Made up &amp; &lt;small&gt;</title>" in page
    outside = re.findall(
        r"""(?:src|href)=["'](?!#|data:image/png;base64,)[^"']*|url\((?!#)|@import|<script|<link""", page
    )
    assert outside == []
    for heading in ("Primary comparisons", "Learning curves", "Learned couplings", "Attention weights", "Packages"):
        assert heading in page
    # of each experiment: differences, 2 curves, 2 x (by distance + heat map), and 2 examples of 2 kinds at 2 lengths
    assert page.count("<svg") == 2 * (1 + 2 + 2 * 2 + 2 * 2 * 2)
    assert "0123456789ab" in page
    pictures = [path.read_text() for path in (reported / "report/pictures").glob("*.svg")]
    assert sorted(pictures) == sorted(re.findall(r"<svg.*?</svg>\n", page, re.DOTALL))
    assert all(ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg" for picture in pictures)
    markdown = (reported / "report/tables.md").read_text()
    assert markdown.count("\n| --- |") == 3 + 2 * 2 + 1


def test_a_report_replaces_its_own_pictures_and_no_others(study):
    """A report of fewer cells leaves no picture of the earlier one, and what else lies in the folder stays."""
    main(["report", str(study)])
    folder = study / "report/pictures"
    before = {path.name for path in folder.iterdir()}
    (folder / "mine.svg").write_text("mine")
    (folder / "words_learning_curves_final.svg").write_text("mine")
    content = json.loads((study / "study.json").read_text())
    content["runs"] = [run for run in content["runs"] if run["cell"]["context_length"] == "4"]
    (study / "study.json").write_text(json.dumps(content))
    main(["report", str(study)])
    after = {path.name for path in folder.iterdir()}
    page = (study / "report/report.html").read_text()
    assert after - before == {"mine.svg", "words_learning_curves_final.svg"}
    assert len(after & before) == page.count("<svg") < len(before)
    assert (folder / "mine.svg").read_text() == "mine"


def test_symbols_that_cannot_be_shown_leave_a_picture_that_can_be_read():
    picture = attention_map("a", np.eye(4) / 2, ["\x01", "\ufffe", "\n", "<"])
    text = "".join(ElementTree.fromstring(picture).itertext())
    assert "\\x01" in text
    assert "\\n" in text


def test_runs_are_listed_with_all_their_numbers(reported):
    rows = table(reported, "runs")
    assert len(rows) == 24
    assert {float(row["test_loss"]) for row in rows if row["attention"] == "softmax"} == {1.19, 1.18, 1.17}


def test_a_study_of_one_seed_and_one_kind_is_shown_without_intervals(study):
    content = json.loads((study / "study.json").read_text())
    content["runs"] = [run for run in content["runs"] if run["seed"] == 1 and run["cell"]["attention"] == "boltzmann"]
    (study / "study.json").write_text(json.dumps(content))
    main(["report", str(study)])
    page = (study / "report/report.html").read_text()
    assert "no results yet" in page
    assert "inf" not in page.replace("infinite", "")
    assert not (study / "report/words_differences.csv").exists()


def test_what_is_no_study_is_named(tmp_path):
    with pytest.raises(SystemExit, match="is not the folder of a study"):
        main(["report", str(tmp_path)])
    content = {"title": "x", "runs": [], "comparisons": {}, "experiments": {}}
    (tmp_path / "study.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit, match="has no finished run"):
        main(["report", str(tmp_path)])


def test_couplings_by_distance_are_means_over_the_pairs_at_that_distance():
    found = coupling_by_distance(np.stack([couplings(5, seed) for seed in SEEDS]))
    assert [x.mean for x in found] == pytest.approx([1.2, 0.7, 1 / 3 + 0.2, 0.45])
    assert found[0].low == pytest.approx(mean_interval([1.1, 1.2, 1.3]).low)


def test_values_are_shown_with_their_interval_and_p_values_with_two_digits():
    assert str(Quantity(1.234, 0.5, 2.0, 2)) == "1.23 [0.50, 2.00]"
    assert str(Quantity(1.234, -math.inf, math.inf, 1, signed=True)) == "+1.2"
    assert [str(PValue(p)) for p in (1e-7, 0.0123, 0.512, math.nan)] == ["< 0.0001", "0.012", "0.51", "-"]


def test_markup_in_values_is_escaped_in_every_form():
    found = Table("t", "A < B", ("x",), (("a|b <i>",),))
    assert "a\\|b <i>" in found.markdown()
    assert "a|b &lt;i&gt;" in found.html()
    assert found.csv() == "x\na|b <i>\n"


def test_the_folder_of_the_report_can_be_chosen(study, tmp_path):
    main(["report", str(study), "--output", str(tmp_path / "elsewhere")])
    assert Path(tmp_path / "elsewhere/report.html").exists()
    assert not (study / "report").exists()
