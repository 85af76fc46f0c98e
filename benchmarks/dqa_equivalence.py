"""Are models trained on the annealing circuit as good as models trained exactly? A test of equivalence.

    python benchmarks/dqa_equivalence.py [--tasks brackets narrow_brackets tiny_shakespeare] [--seeds 1 2 ... 10]
        [--steps N] [--embed-dim N] [--text karpathy/tiny_shakespeare] [--folder runs/dqa_equivalence]
        [--plot FILE.png] [--threads 1]

Needs the extra `plots` for the picture. The protocol, fixed before the runs:

Tasks      brackets of 3 types and Tiny Shakespeare, both at T = 8, models of one block and one head with the learning
           rates of configs/. The last weights are tested; nothing is chosen by validation.
Methods    ExactLayer, and DQALayer as it is by default: exact probabilities, the tuned schedule, derivatives of the
           circuit. Beside them the weights that were trained exactly, tested on DQALayer.
Pairs      A seed gives both methods the same words, initial weights and order of batches. Seeds 1 to 10.
Measures   brackets: accuracy on 10,000 test words, in points; Tiny Shakespeare: log of the perplexity on the test
           split, in percent. The difference of a pair is that of the other method from exact training and testing.
Test       two one-sided paired t tests at 0.05, with margins of 0.5 points and of 100 ln 1.005. "equivalent" if both
           reject, else "different" if a two-sided t test at 0.05 finds a difference, else "undecided".
Regime     Trained for long, brackets are learned completely. `brackets` stops before: of the settings whose accuracy
           was 85 to 97 % with the exact layer alone, on seeds 101 to 106, embed_dim 16 and 80 steps had the least
           spread (94.8 +- 2.4 %). `narrow_brackets`, embed_dim 3 and 1,000 steps (87.8 +- 3.1 %, seeds 101 to 104),
           cannot learn them all. Tiny Shakespeare is as in its config, embed_dim 32, for 1,000 steps.

Every run is a row of runs.csv in the folder as soon as it has ended, and is not run again with the same settings.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytorch_lightning as pl
import torch
from kept_rows import append, read
from quiet_training import quiet, trainer_of
from schedule_keys import schedule_key

from datamodules import BracketDataModule, TinyShakespeareDataModule
from hybrid_attention import DQALayer, ExactLayer, IsingLayer
from lightning_modules import BracketMatcher, CharLanguageModel
from lightning_modules.studies.seed_statistics import Equivalence, equivalence

T = 8
NUM_TYPES = 3
NUM_TEST = 10_000
LAYERS: dict[str, type[IsingLayer]] = {"exact": ExactLayer, "DQA": DQALayer}
COMPARED = {("DQA", "DQA"): "trained and tested on DQA", ("exact", "DQA"): "trained exactly, tested on DQA"}


class Setting(NamedTuple):
    """What a run is made with; results of other settings are kept apart."""

    task: str
    steps: int
    embed_dim: int
    text: str
    schedule: str


class Result(NamedTuple):
    """One test of one trained model: accuracy (a share) and mean cross-entropy (nats) on the test split."""

    task: str
    steps: int
    embed_dim: int
    text: str
    schedule: str
    seed: int
    trained_on: str
    tested_on: str
    accuracy: float
    loss: float

    @property
    def setting(self) -> Setting:
        return Setting(*self[: len(Setting._fields)])


class Task(NamedTuple):
    """How to build a task, the protocol's sizes and margin, what differences are taken of, and what the table shows."""

    build: Callable[[int, Setting, type[IsingLayer]], tuple[pl.LightningDataModule, pl.LightningModule]]
    steps: int
    embed_dim: int
    margin: float
    measure: Callable[[Result], float]
    unit: str
    shown: Callable[[Result], float]
    shown_as: str


def brackets(seed: int, setting: Setting, layer: type[IsingLayer]) -> tuple[pl.LightningDataModule, pl.LightningModule]:
    data = BracketDataModule(context_length=T, num_types=NUM_TYPES, num_test=NUM_TEST, seed=seed)
    return data, BracketMatcher(context_length=T, num_types=NUM_TYPES, embed_dim=setting.embed_dim, layer=layer)


def tiny_shakespeare(
    seed: int, setting: Setting, layer: type[IsingLayer]
) -> tuple[pl.LightningDataModule, pl.LightningModule]:
    data = TinyShakespeareDataModule(context_length=T, source=setting.text)
    return data, CharLanguageModel(data.vocabulary, context_length=T, embed_dim=setting.embed_dim, layer=layer)


def accuracy(result: Result) -> float:
    return 100 * result.accuracy


BRACKETS = Task(brackets, 80, 16, 0.5, accuracy, "points", accuracy, "test accuracy (%)")
TASKS = {
    "brackets": BRACKETS,
    "narrow_brackets": BRACKETS._replace(steps=1000, embed_dim=3),
    "tiny_shakespeare": Task(
        tiny_shakespeare,
        1000,
        32,
        100 * math.log(1.005),
        lambda result: 100 * result.loss,
        "% (log)",
        lambda result: math.exp(result.loss),
        "test perplexity",
    ),
}


def train(seed: int, setting: Setting, trained_on: str) -> list[Result]:
    """Train one model, and return its test, and for an exact one that of its weights on DQA."""
    build = TASKS[setting.task].build
    pl.seed_everything(seed, verbose=False)
    data, model = build(seed, setting, LAYERS[trained_on])
    pl.seed_everything(seed, verbose=False)  # batches come in the same order, whatever building has drawn
    trainer_of(setting.steps).fit(model, data)
    results = [test(seed, setting, trained_on, trained_on, data, model)]
    if trained_on == "exact":
        _, other = build(seed, setting, DQALayer)
        other.load_state_dict(model.state_dict())
        results.append(test(seed, setting, "exact", "DQA", data, other))
    return results


def test(
    seed: int,
    setting: Setting,
    trained_on: str,
    tested_on: str,
    data: pl.LightningDataModule,
    model: pl.LightningModule,
) -> Result:
    (found,) = trainer_of(1).test(model, data, verbose=False)
    return Result(*setting, seed, trained_on, tested_on, found["test_accuracy"], found["test_loss"])


def run_all(settings: Iterable[Setting], seeds: Iterable[int], path: Path) -> None:
    """Run what the CSV file does not hold yet, seed by seed, and add each result to it as it comes."""
    ended = {(result.setting, result.seed, result.trained_on) for result in read(path, Result)}
    wanted = [(seed, setting, method) for seed in seeds for setting in settings for method in LAYERS]
    left = [run for run in wanted if (run[1], run[0], run[2]) not in ended]
    print(f"{len(wanted) - len(left)} of {len(wanted)} runs are in {path}")
    start = time.perf_counter()
    for number, (seed, setting, method) in enumerate(left, 1):
        begin = time.perf_counter()
        results = train(seed, setting, method)
        append(path, results)
        now = time.perf_counter()
        minutes = (now - start) / number * (len(left) - number) / 60
        found = ", ".join(f"{r.tested_on} {100 * r.accuracy:.2f} % {r.loss:.5f} nats" for r in results)
        print(
            f"{setting.task}, seed {seed}, trained on {method}, tested on {found}: {now - begin:.0f} s, "
            f"{len(left) - number} runs, {minutes:.0f} min left",
            flush=True,
        )


class Comparison(NamedTuple):
    """A method against exact training and testing: values as shown, differences in the unit of the margin, outcome."""

    task: str
    compared: str
    exact: list[float]
    other: list[float]
    differences: list[float]
    outcome: Equivalence


def compare(results: Iterable[Result], settings: Iterable[Setting], seeds: list[int]) -> list[Comparison]:
    """Return the comparisons of each setting over the seeds."""
    found = {(r.setting, r.seed, r.trained_on, r.tested_on): r for r in results}
    comparisons = []
    for setting in settings:
        task = TASKS[setting.task]
        exact = [found[setting, seed, "exact", "exact"] for seed in seeds]
        for methods, label in COMPARED.items():
            other = [found[(setting, seed, *methods)] for seed in seeds]
            measured = [[task.measure(r) for r in kind] for kind in (other, exact)]
            differences = [b - a for b, a in zip(*measured, strict=True)]
            outcome = equivalence(*measured, task.margin)
            shown = [[task.shown(r) for r in kind] for kind in (exact, other)]
            comparisons.append(Comparison(setting.task, label, *shown, differences, outcome))
    return comparisons


def table(comparisons: Iterable[Comparison]) -> list[str]:
    """Return the lines of a Markdown table, with means +- standard deviations over seeds."""
    header = ("task", "", "exact", "other", "difference (90 % interval)", "margin", "p above", "p below", "verdict")
    rows = [header, ("---",) * len(header)]
    for task, label, exact, other, _, found in comparisons:
        of, mean = TASKS[task], found.interval
        rows.append(
            (
                f"{task}, {of.shown_as}",
                label,
                mean_and_spread(exact),
                mean_and_spread(other),
                f"{mean.mean:+.3f} ({mean.low:+.3f} to {mean.high:+.3f}) {of.unit}",
                f"{of.margin:.3f}",
                f"{found.p_low:.2g}",
                f"{found.p_high:.2g}",
                found.verdict,
            )
        )
    return [f"| {' | '.join(row)} |" for row in rows]


def mean_and_spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} +- {statistics.stdev(values):.3f}"


def plot(path: Path, comparisons: list[Comparison]) -> None:
    """Write the picture: the difference of every pair, their mean with its 90 % interval, and the margins."""
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(each.task for each in comparisons))
    figure = Figure(figsize=(4.6 * len(tasks), 3.8), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        of, shown = TASKS[task], [each for each in comparisons if each.task == task]
        axes.axhspan(-of.margin, of.margin, color="tab:green", alpha=0.12, label="margins")
        axes.axhline(0, color="black", lw=0.8)
        for place, each in enumerate(shown):
            seeds = torch.linspace(-0.15, 0.15, len(each.differences)).tolist()
            axes.plot([place + x for x in seeds], each.differences, "o", color="tab:blue", ms=4, alpha=0.6)
            mean, verdict = each.outcome.interval, each.outcome.verdict
            error = [[mean.mean - mean.low], [mean.high - mean.mean]]
            axes.errorbar([place + 0.28], [mean.mean], error, fmt="s", color="tab:orange", capsize=4)
            axes.text(place + 0.05, 0.98, verdict, transform=axes.get_xaxis_transform(), ha="center", va="top")
        axes.set(
            xlim=(-0.5, len(shown) - 0.3),
            ylabel=f"difference from exact ({of.unit})",
            title=f"{task}: {of.shown_as}, {len(shown[0].differences)} seeds",
        )
        axes.set_xticks(range(len(shown)), [each.compared.replace(", ", ",\n") for each in shown])
        axes.margins(y=0.2)
        axes.grid(alpha=0.3, axis="y")
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1, 11)))
    parser.add_argument("--steps", type=int, help="of every task; the protocol's without")
    parser.add_argument("--embed-dim", type=int, help="of every task; the protocol's without")
    parser.add_argument("--text", default="karpathy/tiny_shakespeare", help="a text file, a folder, or on the Hub")
    parser.add_argument("--folder", type=Path, default=Path("runs/dqa_equivalence"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    if len(options.seeds) < 2 or len(set(options.seeds)) < len(options.seeds):
        parser.error(f"the seeds {options.seeds} were given: give two or more different ones, whose runs are compared.")
    torch.set_num_threads(options.threads)
    key = schedule_key(DQALayer(T).schedule)
    settings = [
        Setting(
            name,
            options.steps or TASKS[name].steps,
            options.embed_dim or TASKS[name].embed_dim,
            options.text if name == "tiny_shakespeare" else "",
            key,
        )
        for name in dict.fromkeys(options.tasks)
    ]
    path = options.folder / "runs.csv"
    with quiet():
        run_all(settings, options.seeds, path)
    comparisons = compare(read(path, Result), settings, options.seeds)
    lines = table(comparisons)
    print("\n".join(lines))
    (options.folder / "table.md").write_text("\n".join(lines) + "\n")
    if options.plot:
        plot(options.plot, comparisons)


if __name__ == "__main__":
    main()
