"""A study's file: which runs it becomes, when a run counts as another one, and what is refused."""

from pathlib import Path

import pytest
import yaml

from lightning_modules.studies.plan import read_study
from lightning_modules.studies.selection import select

STUDY = {
    "seeds": [7, 9, 11],
    "experiments": {
        "words": {
            "metric": "accuracy",
            "settings": {"config": ["base.yaml"], "data": {"init_args": {"seed": "${seed}"}}},
            "axes": {
                "attention": {"softmax": {"config": ["soft.yaml"]}, "boltzmann": {"model": {"init_args": {"x": 1}}}},
                "context_length": {8: {"data": {"init_args": {"context_length": 8}}}, 12: None},
            },
            "exceptions": [
                {"of": {"attention": "boltzmann", "context_length": [12]}, "seeds": 2},
                {"of": {"attention": "softmax", "context_length": 12}, "settings": {"model": {"init_args": {"x": 2}}}},
            ],
        }
    },
}


@pytest.fixture
def study(tmp_path):
    """Read a study with some of its content changed."""
    (tmp_path / "base.yaml").write_text("seed_everything: 3\ntrainer: {max_steps: 5, logger: true}\n")
    (tmp_path / "soft.yaml").write_text("model: {init_args: {layer: null}}\n")

    def read(change=None, **settings):
        content = yaml.safe_load(yaml.safe_dump(STUDY, sort_keys=False))
        if change is not None:
            change(content)
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return read_study(tmp_path / "study.yaml", **settings)

    read.folder = tmp_path
    return read


def find(plan, attention, length, seed):
    (run,) = (r for r in plan.runs if r.cell == {"attention": attention, "context_length": length} and r.seed == seed)
    return run


def test_every_combination_is_a_run_first_for_the_first_seed(study):
    runs = study().runs
    assert len(runs) == 3 * 4 - 1
    assert [run.seed for run in runs] == [7] * 4 + [9] * 4 + [11] * 3
    assert len({run.folder for run in runs}) == len(runs)


def test_settings_come_in_the_order_of_base_swaps_exceptions_and_what_is_set(study):
    plan = study(overrides=["words.trainer.max_steps=2", "words.model.init_args.x=4"])
    softmax = find(plan, "softmax", "12", 9)
    assert softmax.configs == [
        {"trainer": {"max_steps": 5}},
        {"data": {"init_args": {"seed": 9}}},
        {"model": {"init_args": {"layer": None}}},
        {"model": {"init_args": {"x": 2}}},
        {"trainer": {"max_steps": 2}, "model": {"init_args": {"x": 4}}},
    ]


def test_exceptions_take_the_first_seeds_or_leave_runs_out(study):
    def skip(content):
        content["experiments"]["words"]["exceptions"].append({"of": {"attention": "softmax"}, "skip": True})

    kinds = [(run.cell["attention"], run.cell["context_length"], run.seed) for run in study(skip).runs]
    assert kinds == [("boltzmann", length, 7) for length in ("8", "12")] + [
        ("boltzmann", "8", 9),
        ("boltzmann", "12", 9),
        ("boltzmann", "8", 11),
    ]
    assert {run.seed for run in study(num_seeds=1).runs} == {7}


def test_a_run_is_another_one_when_any_of_its_settings_changes_also_in_a_file_that_the_study_names(study):
    before = study()
    assert [run.folder for run in before.runs] == [run.folder for run in study().runs]
    (study.folder / "soft.yaml").write_text("model: {init_args: {layer: null, embed_dim: 4}}\n")
    after = study()
    assert find(before, "softmax", "8", 7).folder != find(after, "softmax", "8", 7).folder
    assert find(before, "boltzmann", "8", 7).folder == find(after, "boltzmann", "8", 7).folder
    changed = study(overrides=["words.trainer.max_steps=6"])
    assert not {run.fingerprint for run in after.runs} & {run.fingerprint for run in changed.runs}


def experiment(**changes):
    return lambda content: content["experiments"]["words"].update(changes)


def compare(kind, **changes):
    given = {"experiment": "words", "first": {"attention": "boltzmann"}, "second": {"attention": "softmax"}, **changes}
    return lambda content: content.update({kind: [given]})


AT = {"context_length": 8}


def test_comparisons_are_read_with_the_names_of_values_as_text(study):
    (primary,) = study(compare("primary", at=AT)).comparisons.primary
    assert primary.at == {"context_length": "8"}
    assert primary.name == "words: boltzmann - softmax at context length 8"
    (trend,) = study(compare("trends", axis="context_length")).comparisons.trends
    assert trend.axis == "context_length"

    def rates(content):
        content["experiments"]["words"]["axes"]["context_length"] = {0.001: None, 0.01: None}
        content["experiments"]["words"]["exceptions"] = []
        compare("trends", axis="context_length")(content)

    assert len(study(rates).comparisons.trends) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.update(titel="x"), r"has \['titel'\]: give equivalences, experiments, "),
        (lambda content: content.update(seeds=[1, 1]), "different numbers"),
        (lambda content: content.update(experiments={}), "has no runs"),
        (experiment(metric="f1"), "metric 'f1': give accuracy or perplexity"),
        (experiment(axes={"size": {"a": None}}), "give one that is named attention"),
        (experiment(axes={"attention": {True: None}}), "YAML reads on, off, yes and no"),
        (experiment(axes={"attention": {"a/b": None}}), "has the name 'a/b'"),
        (experiment(axes={"attention": {"a": 3}}, exceptions=[]), "has the settings 3"),
        (experiment(search=["attention"]), r"searches \['attention'\]: give a list of its axes other than attention"),
        (experiment(search="size"), "searches 'size': give a list"),
        (experiment(settings={"config": ["none.yaml"]}), r"'none.yaml' of Experiment 'words' cannot be read \(No such"),
        (experiment(exceptions=[{"of": {"attention": "gibbs"}}]), "exception of attention=gibbs, which it does not"),
        (experiment(exceptions=[{"for": {}}]), r"has \['for'\]: give of, seeds, settings, skip only"),
        (lambda content: content.update(keep_checkpoints="never"), "keep_checkpoints: 'never': give true or false"),
        (lambda content: content.update(experiments=[]), "has no runs"),
        (lambda content: content.update(experiments=["words"]), "experiments without names"),
        (lambda content: content.update(seeds=True), "has the seeds True"),
        (experiment(exceptions=[{"of": {}, "seeds": [1]}]), r"seeds: \[1\]: give the number of first seeds"),
        (experiment(exceptions=[{"of": {}, "seeds": -1}]), "seeds: -1: give the number of first seeds"),
        (experiment(settings={"config": "none.yaml"}), r"'none.yaml' of Experiment 'words' cannot be read"),
        (compare("primary", at=AT, first="boltzmann"), "has first: 'boltzmann': give axes and their values"),
        (compare("primary", at=AT, first={"attention": "softmax"}), "with itself in words: give two different"),
        (compare("equivalences", at=AT, margin=True), "has the margin True: give a positive number"),
        (compare("equivalences", at=AT, margin=float("inf")), "has the margin inf: give a positive number"),
        (compare("primary"), "compares .* give both the same axes, and with `at`"),
        (compare("primary", at={"context_length": 10}), "names context_length 10 of words"),
        (compare("primary", at=AT, experiment="text"), "names the experiment 'text': the study has words"),
        (compare("primary", at=AT, margin=1), "give at, experiment, first, second"),
        (compare("equivalences", at=AT, margin=0), "has the margin 0: give a positive number"),
        (compare("trends", axis="attention", first=AT, second={"context_length": 12}), "whose values are numbers"),
    ],
)
def test_a_mistake_in_the_file_is_named(study, change, message):
    with pytest.raises(ValueError, match=message):
        study(change)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["text.trainer.max_steps=1"], "There is no experiment 'text': the study has words"),
        (["words=1"], "give EXPERIMENT.key=value"),
        (["words.trainer.max_steps"], "give EXPERIMENT.key=value"),
        (["words.model=1", "words.model.x=3"], "'model' has a value by another: give one of them"),
        (["words.trainer.max_steps=[1"], "whose value is not YAML: mend it"),
        (["words.trainer.logger=false"], r"set words\.trainer\.logger was given, which the study sets"),
        (["words.trainer.logger.init_args.name=x"], "which the study sets for each run: set others"),
        (["words.trainer={enable_progress_bar: true}"], r"set words\.trainer\.enable_progress_bar was given"),
        (["words.trainer.default_root_dir=x"], r"set words\.trainer\.default_root_dir was given"),
        (["words.trainer=null"], r"trainer=None was given: give one of its settings"),
        (["words.config=x.yaml"], "put seeds and config files into the study"),
        (["words.seed_everything=3"], "which the study sets for each run: set others"),
    ],
)
def test_settings_on_the_command_line_name_an_experiment_and_a_key(study, overrides, message):
    with pytest.raises(ValueError, match=message):
        study(overrides=overrides)


def test_a_selection_takes_what_matches_all_axes_of_an_experiment_in_the_order_of_the_study(study):
    plan = study()
    assert select(plan, []) == select(plan, ["words"]) == plan.runs
    both = select(plan, ["words.attention=boltzmann,softmax", "words.context_length=12"])
    assert both == [run for run in plan.runs if run.cell["context_length"] == "12"]
    assert {run.cell["attention"] for run in select(plan, ["words.attention=softmax"])} == {"softmax"}


def test_selected_experiments_are_taken_together(study):
    def another(content):
        content["experiments"] |= dict.fromkeys(("text", "code"), content["experiments"]["words"])

    plan = study(another)
    chosen = select(plan, ["code", "words.attention=softmax"])
    assert {(run.experiment, run.cell["attention"]) for run in chosen} == {
        ("code", "softmax"),
        ("code", "boltzmann"),
        ("words", "softmax"),
    }


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("text", "only 'text' was given: the study has the experiments words"),
        ("words.attention=sigmoid", "words has the axes and values attention=softmax,boltzmann; context_length=8,12"),
        ("words.length=8", "words has the axes and values attention="),
        ("words.attention", "words has the axes and values attention="),
        ("words=softmax", "words has the axes and values attention="),
    ],
)
def test_a_selection_names_what_the_study_has(study, only, message):
    with pytest.raises(ValueError, match=message):
        select(study(), [only])


def test_a_selection_of_nothing_is_refused(study):
    def without_boltzmann_12(content):
        content["experiments"]["words"]["exceptions"][0] |= {"skip": True}

    with pytest.raises(ValueError, match="the study has no such runs"):
        select(study(without_boltzmann_12), ["words.attention=boltzmann", "words.context_length=12"])


def test_a_file_that_is_no_study_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"The study '.*none\.yaml' cannot be read \(No such file"):
        read_study(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("experiments: [")
    with pytest.raises(ValueError, match=r"broken\.yaml' is not YAML"):
        read_study(tmp_path / "broken.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ValueError, match=r"empty\.yaml' holds no settings"):
        read_study(tmp_path / "empty.yaml")


@pytest.mark.parametrize(("written", "number"), [("8_3", "83"), ("010", "8"), ("1.50", "1.5"), ("0x10", "16")])
def test_a_name_that_yaml_would_change_is_refused_and_taken_in_quotes(tmp_path, written, number):
    study = "seeds: 1\nexperiments: {words: {metric: accuracy, axes: {attention: {a: null}, depth: {%s: null}}}}"
    (tmp_path / "study.yaml").write_text(study % written)
    with pytest.raises(
        ValueError, match=f"the name {written} is the number {number}, write it so or put it into quotes"
    ):
        read_study(tmp_path / "study.yaml")
    (tmp_path / "study.yaml").write_text(study % f"'{written}'")
    assert read_study(tmp_path / "study.yaml").experiments["words"].axes["depth"] == [written]


@pytest.mark.parametrize("names", ["{6: null, '6': null}", "{6: null, 6: null}", "{a: null, a: null}"])
def test_a_name_that_stands_twice_is_refused(tmp_path, names):
    study = f"seeds: 1\nexperiments: {{words: {{metric: accuracy, axes: {{attention: {{a: null}}, depth: {names}}}}}}}"
    (tmp_path / "study.yaml").write_text(study)
    with pytest.raises(ValueError, match="stands twice in one mapping"):
        read_study(tmp_path / "study.yaml")


@pytest.mark.parametrize("axis", ["null", "yes", "$x$"])
def test_axes_have_names_too(tmp_path, axis):
    study = (
        f"seeds: 1\nexperiments: {{words: {{metric: accuracy, axes: {{attention: {{a: null}}, {axis}: {{b: null}}}}}}}}"
    )
    (tmp_path / "study.yaml").write_text(study)
    with pytest.raises(ValueError, match="Experiment 'words', axes has the name"):
        read_study(tmp_path / "study.yaml")


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[1] / "configs/studies").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_study_is_read(path):
    plan = read_study(path)
    assert plan.title != path.stem
    assert path.read_text().startswith("# ")
    assert len({run.folder for run in plan.runs}) == len(plan.runs)
