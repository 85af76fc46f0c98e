"""Training on samples: exact attention, DQA with exact probabilities, and DQA with shots and covariance gradients.

    python benchmarks/shots_training.py [--seeds 1 2 3] [--steps 1500] [--shots 1000] [--folder runs/shots_training]
        [--csv FILE.csv] [--plot FILE.png] [--threads 1]

Each run is `hybrid-attention fit` on the shipped configs: brackets of 3 types at T = 8, with layers/exact.yaml or
layers/dqa.yaml on hybrid.statevector. Runs in the folder with these settings are not run again. Printed are accuracies
of the best checkpoints on the test split, and the last validation losses; the CSV file has validation accuracy and loss
after each number of steps, and the picture shows them, which needs matplotlib.
"""

import argparse
import csv
import hashlib
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch

from lightning_modules.cli import main as hybrid_attention

CONFIGS = Path(__file__).parents[1] / "configs"
_POINTS = 30
_STYLES = {"exact": ("black", "-", 3.0), "DQA": ("tab:blue", "--", 2.0), "shots": ("tab:orange", "-", 1.0)}


class Run(NamedTuple):
    """One training run: (step, accuracy, loss) on the validation split, and the accuracy on the test split."""

    method: str
    seed: int
    validation: list[tuple[int, float, float]]
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


def folder_name(steps: int, shots: int, further: Iterable[str]) -> str:
    """Return a name that tells runs of different settings apart."""
    rest = " ".join(further)
    return f"{steps}_steps_{shots}_shots" + (f"_{hashlib.sha256(rest.encode()).hexdigest()[:8]}" if rest else "")


def read(method: str, seed: int, folder: Path) -> Run | None:
    """Return the run that the folder holds, or None where it has not ended."""
    path = folder / method / f"version_{seed}" / "metrics.csv"
    rows = list(csv.DictReader(path.open())) if path.is_file() else []
    tests = [float(row["test_accuracy"]) for row in rows if row.get("test_accuracy")]
    if not tests:
        return None
    validation = [
        (int(row["step"]) + 1, float(row["val_accuracy"]), float(row["val_loss"]))
        for row in rows
        if row.get("val_accuracy")
    ]
    return Run(method, seed, validation, tests[-1])


def table(runs: list[Run]) -> list[str]:
    """Return a line for each method: test accuracies in percent and last losses, as mean +- spread, and all of them."""
    lines = []
    for method in dict.fromkeys(run.method for run in runs):
        found = [run for run in runs if run.method == method]
        accuracy, each = summary([100 * run.test for run in found], 2)
        loss, _ = summary([run.validation[-1][2] for run in found], 5)
        lines.append(f"{method:6s} test accuracy {accuracy} % ({each}), validation loss {loss}")
    return lines


def summary(values: list[float], digits: int) -> tuple[str, str]:
    """Return mean +- standard deviation, and the values."""
    spread = f" +- {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}", ", ".join(f"{value:.{digits}f}" for value in values)


def write(path: Path, runs: list[Run]) -> None:
    """Write the validation accuracies and losses, one row for each method, seed and step."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("method", "seed", "step", "val_accuracy", "val_loss"))
        for run in runs:
            writer.writerows(
                (run.method, run.seed, step, f"{accuracy:.4f}", f"{loss:.6f}")
                for step, accuracy, loss in run.validation
            )


def plot(path: Path, runs: list[Run], shots: int) -> None:
    """Write the picture: a faint line for each seed, and one for the mean, narrower than the last so that all show."""
    from matplotlib.figure import Figure

    labels = {"exact": "exact", "DQA": "DQA, exact probabilities", "shots": f"DQA, {shots:,} shots, covariances"}
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    panels = figure.subplots(1, 2)
    for place, axes in enumerate(panels, 1):
        for method in dict.fromkeys(run.method for run in runs):
            color, line, width = _STYLES[method]
            curves = [run.validation for run in runs if run.method == method]
            steps = [point[0] for point in curves[0]]
            values = [[point[place] * (100 if place == 1 else 1) for point in curve] for curve in curves]
            for each in values:
                axes.plot(steps, each, line, color=color, lw=0.6, alpha=0.35)
            mean = [statistics.mean(points) for points in zip(*values, strict=True)]
            axes.plot(steps, mean, line, color=color, lw=width, label=labels[method])
        axes.set(xlabel="training steps")
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="validation accuracy (%)", title=f"Brackets of 3 types, T = 8, {len(curves)} seed(s)")
    panels[0].legend(loc="lower right")
    panels[1].set(ylabel="validation loss (nats)", yscale="log", title="mean of the seeds, and each of them faint")
    figure.savefig(path, dpi=110)


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
    folder = options.folder / folder_name(options.steps, options.shots, further)
    for seed in options.seeds:
        for method in _STYLES:
            run = read(method, seed, folder)
            if run is None:
                start = time.perf_counter()
                train(method, seed, folder, options.steps, options.shots, further)
                print(f"{method}, seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
                run = read(method, seed, folder)
            runs.append(run)
    runs.sort(key=lambda run: list(_STYLES).index(run.method))
    print("\n".join(table(runs)))
    if options.csv:
        write(options.csv, runs)
    if options.plot:
        plot(options.plot, runs, options.shots)


if __name__ == "__main__":
    main()
