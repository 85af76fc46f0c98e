"""Training on samples: exact attention, DQA with exact probabilities, and DQA with shots and covariance gradients.

    python benchmarks/shots_training.py [--seeds 1 2 3] [--steps 1500] [--shots 1000] [--folder runs/shots_training]
        [--csv FILE.csv] [--plot FILE.png] [--threads 1]

Each run is `hybrid-attention fit` on the shipped configs: brackets of 3 types at T = 8, with layers/exact.yaml or
layers/dqa.yaml on hybrid.statevector. Runs that are in the folder already are not run again. Printed are the accuracies
of the best checkpoints on the test split; the CSV file has the validation accuracy after each number of steps, and the
picture shows it, which needs matplotlib.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from lightning_modules.cli import main as hybrid_attention

CONFIGS = Path(__file__).parents[1] / "configs"
_POINTS = 30
_STYLES = {"exact": ("black", "-"), "DQA": ("tab:blue", "--"), "shots": ("tab:orange", "-")}


class Run(NamedTuple):
    """One training run: validation accuracies (step, accuracy), and the accuracy on the test split."""

    method: str
    seed: int
    validation: list[tuple[int, float]]
    test: float


def settings(method: str, shots: int) -> list[str]:
    """Return the arguments that a method adds to those of the task."""
    layer = ["--config", str(CONFIGS / f"layers/{'exact' if method == 'exact' else 'dqa'}.yaml")]
    prefix = "--model.init_args.layer.init_args"
    return [*layer, f"{prefix}.shots={shots}", f"{prefix}.gradient=covariance"] if method == "shots" else layer


def train(method: str, seed: int, folder: Path, steps: int, shots: int, further: Iterable[str] = ()) -> None:
    """Run `hybrid-attention fit`, which writes its metrics to a folder of that method and seed."""
    if method == "shots":
        further = (*further, f"--model.init_args.layer.init_args.device_options={{seed: {seed}}}")
    hybrid_attention(
        [
            "fit",
            "--config",
            str(CONFIGS / "brackets.yaml"),
            *settings(method, shots),
            "--data.init_args.num_types=3",
            "--data.init_args.context_length=8",
            f"--seed_everything={seed}",
            f"--trainer.max_steps={steps}",
            f"--trainer.val_check_interval={max(steps // _POINTS, 1)}",
            "--trainer.accelerator=cpu",
            "--trainer.enable_progress_bar=false",
            f"--trainer.logger.init_args.save_dir={folder}",
            f"--trainer.logger.init_args.name={method}",
            f"--trainer.logger.init_args.version={seed}",
            *further,
        ]
    )


def read(method: str, seed: int, folder: Path) -> Run | None:
    """Return the run that the folder holds, or None where it has not ended."""
    path = folder / method / f"version_{seed}" / "metrics.csv"
    rows = list(csv.DictReader(path.open())) if path.is_file() else []
    tests = [float(row["test_accuracy"]) for row in rows if row.get("test_accuracy")]
    if not tests:
        return None
    validation = [(int(row["step"]) + 1, float(row["val_accuracy"])) for row in rows if row.get("val_accuracy")]
    return Run(method, seed, validation, tests[-1])


def table(runs: list[Run]) -> list[str]:
    """Return a line for each method: the mean of the test accuracies in percent, their spread, and each of them."""
    lines = []
    for method in dict.fromkeys(run.method for run in runs):
        found = [100 * run.test for run in runs if run.method == method]
        spread = f" +- {statistics.stdev(found):.2f}" if len(found) > 1 else ""
        each = ", ".join(f"{accuracy:.2f}" for accuracy in found)
        lines.append(f"{method:6s} {statistics.mean(found):6.2f}{spread} % of {len(found)} seed(s): {each}")
    return lines


def write(path: Path, runs: list[Run]) -> None:
    """Write the validation accuracies, one row for each method, seed and step."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("method", "seed", "step", "val_accuracy"))
        writer.writerows((run.method, run.seed, step, f"{value:.4f}") for run in runs for step, value in run.validation)


def plot(path: Path, runs: list[Run], shots: int) -> None:
    """Write the picture: a thin line for each seed, and a thick one for the mean."""
    from matplotlib.figure import Figure

    labels = {
        "exact": "exact",
        "DQA": "DQA, exact probabilities",
        "shots": f"DQA, {shots:,} shots, covariance gradients",
    }
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    for method in dict.fromkeys(run.method for run in runs):
        color, line = _STYLES[method]
        curves = [run.validation for run in runs if run.method == method]
        for curve in curves:
            axes.plot(
                *zip(*((step, 100 * value) for step, value in curve), strict=True), line, color=color, lw=0.6, alpha=0.4
            )
        steps = [step for step, _ in curves[0]]
        mean = [100 * statistics.mean(value for _, value in points) for points in zip(*curves, strict=True)]
        axes.plot(steps, mean, line, color=color, lw=2, label=f"{labels[method]}: mean of {len(curves)} seed(s)")
    axes.set(xlabel="training steps", ylabel="validation accuracy (%)", title="Brackets of 3 types, T = 8")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--shots", type=int, default=1000)
    parser.add_argument("--folder", type=Path, default=Path("runs/shots_training"))
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options, further = parser.parse_known_args(arguments)
    torch.set_num_threads(options.threads)
    runs = []
    for seed in options.seeds:
        for method in _STYLES:
            run = read(method, seed, options.folder)
            if run is None:
                start = time.perf_counter()
                train(method, seed, options.folder, options.steps, options.shots, further)
                print(f"{method}, seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
                run = read(method, seed, options.folder)
            runs.append(run)
    runs.sort(key=lambda run: list(_STYLES).index(run.method))
    print("\n".join(table(runs)))
    if options.csv:
        write(options.csv, runs)
    if options.plot:
        plot(options.plot, runs, options.shots)


if __name__ == "__main__":
    main()
