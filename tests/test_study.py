"""Studies: what a run leaves, what is run again and what is not, and that variants are paired."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from pytorch_lightning.utilities.exceptions import SIGTERMException

from lightning_modules.cli import main
from lightning_modules.studies.findings import read_findings
from lightning_modules.studies.metrics import METRICS
from lightning_modules.studies.study import study_command

CONFIGS = Path(__file__).parents[1] / "configs"
STUDY = {
    "title": "Test study",
    "seeds": 2,
    "experiments": {
        "words": {
            "title": "Words",
            "metric": "accuracy",
            "settings": {
                "config": [str(CONFIGS / "brackets.yaml")],
                "trainer": {"max_steps": 6, "val_check_interval": 2, "log_every_n_steps": 1, "accelerator": "cpu"},
                "data": {
                    "init_args": {
                        "context_length": 6,
                        "num_types": 3,
                        "num_train": 64,
                        "num_val": 16,
                        "num_test": 16,
                        "batch_size": 16,
                        "seed": "${seed}",
                    }
                },
            },
            "axes": {
                "attention": {
                    name: {"config": [str(CONFIGS / f"attention/{name}.yaml")]}
                    for name in ("softmax", "softmax_position_bias", "fields_only", "couplings_only", "boltzmann")
                }
            },
        }
    },
    "primary": [{"experiment": "words", "first": {"attention": "boltzmann"}, "second": {"attention": "softmax"}}],
}
NUM_RUNS = 10


def write(path, kinds=None, **changes):
    """Write the study, with some of its kinds of attention and a changed experiment."""
    content = yaml.safe_load(yaml.safe_dump(STUDY, sort_keys=False))
    words = content["experiments"]["words"]
    words.update(changes)
    if kinds is not None:
        words["axes"]["attention"] = {kind: words["axes"]["attention"][kind] for kind in kinds}
        content.pop("primary")
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "study.json"}


def runs(folder):
    return sorted(path.parent for path in folder.rglob("result.json"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a finished study of every attention variant, and its file."""
    folder = tmp_path_factory.mktemp("finished")
    file = write(folder / "study.yaml")
    main(["study", file, "--output", str(folder / "out"), "--workers=1"])
    return folder / "out", file


@pytest.fixture
def two(tmp_path):
    """The file of a study of two runs."""
    return write(tmp_path / "study.yaml", kinds=["softmax", "fields_only"], seeds=1)


def test_each_run_is_a_fit_with_its_test_in_a_folder_of_its_own(finished):
    folder, _ = finished
    assert len(runs(folder)) == NUM_RUNS
    for run in runs(folder):
        assert {"config.yaml", "metrics.csv", "result.json", "log.txt", "checkpoints"} <= {
            p.name for p in run.iterdir()
        }
        result = json.loads((run / "result.json").read_text())
        assert result["metrics"].keys() == {"test_accuracy", "test_loss", "test_accuracy_nearest_open"}
        assert result["steps"] == 6
        assert "Testing 1 block(s) of" in (run / "log.txt").read_text()
        assert yaml.safe_load((run / "config.yaml").read_text())["seed_everything"] == result["seed"]
        assert {"torch", "commit", "machine"} <= result["versions"].keys()
    assert not list(folder.rglob("*unfinished*"))


def test_variants_share_initial_weights_and_data_order_and_seeds_do_not(finished):
    folder, _ = finished
    findings = read_findings(folder)
    by_seed = {}
    for results in findings.results.values():
        for seed, result in results.items():
            by_seed.setdefault(seed, set()).add((result.content["initial_weights"], result.content["data_order"]))
    assert [len(kinds) for kinds in by_seed.values()] == [1, 1]
    (first,), (second,) = by_seed.values()
    assert first[0] != second[0]
    assert first[1] != second[1]
    assert findings.unpaired() == []


def test_pairs_are_counted_as_parameters_and_their_matrices_are_kept(finished):
    findings = read_findings(finished[0])
    for kind in STUDY["experiments"]["words"]["axes"]["attention"]:
        result = findings.of("words", {"attention": kind})[1]
        has_pairs = kind in ("softmax_position_bias", "couplings_only", "boltzmann")
        assert result.content["parameters"]["pairs"] == (15 if has_pairs else 0)
        observed = result.observations()
        assert ("couplings" in observed) == has_pairs
        assert observed["weights"].shape == (3, 1, 1, 6, 6)
        np.testing.assert_allclose(observed["weights"].sum(-1), 1, atol=1e-5)
        assert set("".join(observed["symbols"].flatten())) <= set("()[]{}")
        if kind == "boltzmann":
            (checkpoint,) = (result.folder / "checkpoints").glob("epoch*.ckpt")
            saved = torch.load(checkpoint, weights_only=True)["state_dict"]
            (couplings,) = (value for name, value in saved.items() if name.endswith("couplings"))
            assert couplings.abs().max() > 0
            np.testing.assert_array_equal(observed["couplings"][0, 0][np.triu_indices(6, 1)], couplings[0].numpy())


def test_a_finished_study_is_not_run_again(finished, capsys):
    folder, file = finished
    before = contents(folder)
    main(["study", file, "--output", str(folder), "--workers=1"])
    assert contents(folder) == before
    assert f"{NUM_RUNS} runs, {NUM_RUNS} finished, 0 to do" in capsys.readouterr().out


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SIGTERMException])
def test_a_study_that_is_stopped_keeps_all_but_the_run_in_flight(stop, tmp_path, capsys):
    file, done = write(tmp_path / "study.yaml", kinds=["softmax", "fields_only", "boltzmann"], seeds=1), []

    def stopped_in_the_second(arguments):
        if done:
            raise stop
        done.append(arguments)
        main(arguments)

    with pytest.raises(stop):
        study_command([file, "--output", str(tmp_path / "out"), "--workers=1"], stopped_in_the_second)
    (first,) = runs(tmp_path / "out")
    before = contents(first)
    main(["study", file, "--output", str(tmp_path / "out"), "--workers=1"])
    out = capsys.readouterr().out
    assert "3 runs, 1 finished, 2 to do" in out
    assert "Removed 1 unfinished runs" in out
    assert len(runs(tmp_path / "out")) == 3
    assert contents(first) == before


def test_results_of_other_settings_are_neither_used_nor_lost(two, tmp_path, capsys):
    arguments = ["study", two, "--output", str(tmp_path / "out"), "--workers=1"]
    main(arguments)
    before = {run: contents(run) for run in runs(tmp_path / "out")}
    main([*arguments, "--set", "words.model.init_args.embed_dim=4"])
    out = capsys.readouterr().out
    assert "2 runs, 0 finished, 2 to do" in out
    assert "2 finished runs have other settings than the study now: they are kept, and not used." in out
    assert {run: contents(run) for run in before} == before
    assert len(runs(tmp_path / "out")) == 4
    found = read_findings(tmp_path / "out").results
    assert {r.content["parameters"]["total"] for by_seed in found.values() for r in by_seed.values()} == {314}


def test_a_result_that_does_not_belong_to_its_folder_is_refused(two, tmp_path):
    arguments = ["study", two, "--output", str(tmp_path / "out"), "--workers=1"]
    main(arguments)
    path = runs(tmp_path / "out")[0] / "result.json"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["fingerprint"], "00000000"))
    with pytest.raises(SystemExit, match=r"result\.json' is of other settings than its folder says"):
        main(arguments)
    path.write_text("{}")
    with pytest.raises(SystemExit, match=r"result\.json' is no result of a run"):
        main(arguments)


def test_a_run_that_diverged_has_an_infinite_perplexity_and_stops_nothing(tmp_path, capsys):
    """exp of a loss of 800 nats is no float."""
    file = write(tmp_path / "study.yaml", kinds=["softmax", "fields_only"], metric="perplexity", seeds=1)
    main(["study", file, "--output", str(tmp_path / "out"), "--workers=1"])
    result = runs(tmp_path / "out")[0] / "result.json"
    content = json.loads(result.read_text())
    content["metrics"]["test_loss"] = 800.0
    result.write_text(json.dumps(content))
    capsys.readouterr()
    main(["study", file, "--output", str(tmp_path / "out"), "--workers=1"])
    main(["report", str(tmp_path / "out")])
    assert "inf" in (tmp_path / "out/report/tables.md").read_text()
    assert METRICS["perplexity"].text(800.0) == "inf"
    assert METRICS["perplexity"].text(1.0) == "2.718"


def test_options_of_a_list_may_be_given_several_times(two, tmp_path, capsys):
    several = ["--set", "words.trainer.max_steps=2", "--set=words.trainer.val_check_interval=1", "--only=words"]
    main(
        ["study", two, "--only", "words.attention=softmax", *several, "--output", str(tmp_path / "out"), "--workers=1"]
    )
    (run,) = runs(tmp_path / "out")
    result = json.loads((run / "result.json").read_text())
    assert (result["cell"]["attention"], result["steps"]) == ("softmax", 2)


def test_a_selection_is_trained_and_the_rest_goes_on_later(two, tmp_path, capsys):
    main(["study", two, "--output", str(tmp_path / "out"), "--workers=1", "--only", "words.attention=fields_only"])
    assert "1 runs, 0 finished, 1 to do" in capsys.readouterr().out
    assert [path.parent.name for path in runs(tmp_path / "out")] == ["fields_only"]
    assert len(read_findings(tmp_path / "out").missing) == 1
    main(["study", two, "--output", str(tmp_path / "out"), "--workers=1"])
    assert "2 runs, 1 finished, 1 to do" in capsys.readouterr().out


def test_a_run_that_lost_its_result_is_trained_anew_and_what_is_left_of_it_kept(two, tmp_path, capsys):
    main(["study", two, "--output", str(tmp_path / "out"), "--workers=1"])
    run = runs(tmp_path / "out")[0]
    (run / "result.json").unlink()
    (run / "mine.txt").write_text("notes")
    main(["study", two, "--output", str(tmp_path / "out"), "--workers=1"])
    assert "2 runs, 1 finished, 1 to do" in capsys.readouterr().out
    assert len(runs(tmp_path / "out")) == 2
    (left,) = run.parent.glob("*.without-result-*")
    assert (left / "mine.txt").read_text() == "notes"


def test_a_failed_run_is_told_at_the_end_stops_no_other_and_is_run_again(tmp_path, capsys):
    heads = {"heads": {"model": {"init_args": {"num_heads": 3}}}, "softmax": {"model": {"init_args": {"layer": None}}}}
    file = write(tmp_path / "study.yaml", axes={"attention": heads}, seeds=1)
    content = yaml.safe_load(Path(file).read_text())
    content.pop("primary")
    Path(file).write_text(yaml.safe_dump(content, sort_keys=False))
    arguments = ["study", file, "--output", str(tmp_path / "out"), "--workers=1"]
    for _ in range(2):
        with pytest.raises(SystemExit, match=r"1 of 2 runs failed; their folders .* hold error\.txt"):
            main(arguments)
        out = capsys.readouterr().out
        assert re.search(r"Failed runs:\n  words/heads, seed 1: embed_dim=8 does not split into 3 head\(s\): .*\n", out)
        assert [run.parent.name for run in runs(tmp_path / "out")] == ["softmax"]
        (error,) = (tmp_path / "out").rglob("error.txt")
        assert "Traceback" in error.read_text()


def test_the_time_left_is_told_after_each_run(two, tmp_path, capsys):
    main(["study", two, "--output", str(tmp_path / "out"), "--workers=1"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert re.fullmatch(r"\[1/2\] words/softmax, seed 1: accuracy \(%\) [\d.]+ in \d+ s; about \d+ s left", lines[0])
    assert re.fullmatch(r"\[2/2\] words/fields_only, seed 1: accuracy \(%\) [\d.]+ in \d+ s", lines[1])


def test_checkpoints_can_be_left_out_and_what_was_observed_stays(tmp_path):
    file = write(tmp_path / "study.yaml", kinds=["boltzmann"], seeds=1)
    Path(file).write_text(Path(file).read_text() + "keep_checkpoints: false\n")
    main(["study", file, "--output", str(tmp_path / "out"), "--workers=1"])
    (run,) = runs(tmp_path / "out")
    assert not list(run.rglob("*.ckpt"))
    assert (run / "observations.npz").exists()


def test_two_studies_do_not_write_to_one_folder(two, tmp_path):
    (tmp_path / "out").mkdir()
    with (
        FileLock(tmp_path / "out" / ".lock"),
        pytest.raises(SystemExit, match=r"nother study runs in '.*out': wait for its end"),
    ):
        main(["study", two, "--output", str(tmp_path / "out")])


def test_the_settings_of_the_process_are_as_before(two, tmp_path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        main(["study", two, "--output", str(tmp_path / "out"), "--workers=1", "--threads=1"])
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert json.loads((runs(tmp_path / "out")[0] / "result.json").read_text())["threads"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.yaml"], r"The study 'missing\.yaml' cannot be read"),
        (["--workers=0"], "workers=0 was given: give 1 or more"),
        (["--threads=0"], "threads=0 and seeds=None were given"),
        (["--seeds=0"], "seeds=0 were given"),
        (["--only=text"], "only 'text' was given: the study has the experiments words"),
    ],
)
def test_a_mistake_ends_in_one_sentence(two, tmp_path, arguments, message):
    given = [*([two] if arguments[0].startswith("--") else []), *arguments]
    with pytest.raises(SystemExit, match=f"^hybrid-attention: error: .*{message}"):
        main(["study", *given, "--output", str(tmp_path / "out")])


@pytest.mark.slow
def test_processes_find_what_one_process_finds(finished, tmp_path):
    folder, file = finished
    main(["study", file, "--output", str(tmp_path / "out"), "--workers=2"])
    together, alone = (read_findings(place).results for place in (tmp_path / "out", folder))
    for key, by_seed in alone.items():
        for seed, result in by_seed.items():
            assert together[key][seed].content["metrics"] == result.content["metrics"]
