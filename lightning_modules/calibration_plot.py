"""The figure of `hybrid-attention calibrate`: annealed against exact magnetizations, and what the error depends on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hybrid_attention.annealing import Annealer
from hybrid_attention.instances import Instances, boltzmann_log_probabilities, magnetizations
from hybrid_attention.schedules import LinearSchedule, Schedule
from hybrid_attention.tuning import rms_errors, tune_duration
from lightning_modules.plotting import check_matplotlib

_STEPS = (2, 4, 8, 16, 32)
_SIZES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
_FEW = 100

Named = list[tuple[str, Instances]]


def write_plot(
    path: Path, groups: Named, schedule: Schedule, annealer: Annealer, progress: Callable[[str], None]
) -> None:
    """Write a PNG with four panels.

    Annealed against exact magnetizations, on the given device; and, simulated without shots on up to 100 models of each
    group, the rms error against the number of steps, against tau, and against the size of fields and couplings.

    Args:
        path: of the file.
        groups: models with the name of their kind.
        schedule: the quench.
        annealer: the device of the first panel.
        progress: is called with a line about each stage.

    Raises:
        ValueError: if matplotlib is not installed.

    Cost: about 250 circuits for each model of the error panels.
    """
    check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9), layout="constrained")
    (scatter, by_steps), (by_tau, by_size) = figure.subplots(2, 2)
    few = [(_label(name, models), _first(models)) for name, models in groups]
    progress("figure: magnetizations")
    _draw_magnetizations(scatter, few, schedule, annealer)
    progress("figure: error against steps")
    _draw_steps(by_steps, few, schedule)
    progress("figure: error against tau")
    _draw_tau(by_tau, few, len(schedule.angles()))
    progress("figure: error against the size of fields and couplings")
    _draw_size(by_size, few, schedule)
    figure.suptitle(f"{type(schedule).__name__}, {len(schedule.angles())} steps, {annealer.device}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120)


def error_by_steps(models: Instances) -> list[tuple[int, float]]:
    """Return (P, rms error) of the linear schedule of P steps with the best tau for these models."""
    found = []
    for steps in _STEPS:
        best, _ = tune_duration([models], LinearSchedule(steps, tau=1.0 * steps))
        found.append((steps, rms_errors([models], best)[0]))
    return found


def error_by_tau(models: Instances, steps: int) -> list[tuple[float, float]]:
    """Return (tau, rms error) of the linear schedule for durations of up to half a turn of a spin in a step."""
    return tune_duration([models], LinearSchedule(steps, tau=1.0 * steps))[1]


def error_by_size(models: Instances, schedule: Schedule) -> list[tuple[float, float]]:
    """Return (x, rms error) of the models with all fields and couplings times x."""
    return [(size, rms_errors([models.times(size, size)], schedule)[0]) for size in _SIZES]


def _draw_magnetizations(axes: Any, groups: Named, schedule: Schedule, annealer: Annealer) -> None:
    axes.plot([-1, 1], [-1, 1], color="gray", linewidth=1)
    for label, models in groups:
        exact = magnetizations(boltzmann_log_probabilities(models).exp())
        ours = magnetizations(annealer(models, schedule))
        axes.scatter(exact.flatten(), ours.flatten(), s=4, alpha=0.5, label=label)
    axes.set(xlabel="exact magnetization", ylabel="annealed magnetization")
    axes.legend(fontsize="small")


def _draw_steps(axes: Any, groups: Named, schedule: Schedule) -> None:
    for label, models in groups:
        (line,) = axes.plot(*zip(*error_by_steps(models), strict=True), marker="o", label=label)
        own = rms_errors([models], schedule)[0]
        axes.plot(len(schedule.angles()), own, marker="*", markersize=12, color=line.get_color(), linestyle="none")
    axes.set(xscale="log", yscale="log", xlabel="steps P", ylabel="rms error")
    axes.set_xticks(_STEPS, [str(steps) for steps in _STEPS])
    axes.set_xticks([], minor=True)
    axes.set_title("linear with the best tau; star: this schedule", fontsize="medium")


def _draw_tau(axes: Any, groups: Named, steps: int) -> None:
    for label, models in groups:
        axes.plot(*zip(*error_by_tau(models, steps), strict=True), marker=".", label=label)
    axes.set(yscale="log", xlabel="tau * gamma", ylabel="rms error")
    axes.set_title(f"linear, {steps} steps", fontsize="medium")


def _draw_size(axes: Any, groups: Named, schedule: Schedule) -> None:
    for label, models in groups:
        (line,) = axes.plot(*zip(*error_by_size(models, schedule), strict=True), marker="o", label=label)
        linear, _ = tune_duration([models], LinearSchedule(len(schedule.angles()), tau=1.0))
        axes.plot(*zip(*error_by_size(models, linear), strict=True), linestyle=":", color=line.get_color())
    axes.set(yscale="log", xlabel="all h and J times", ylabel="rms error")
    axes.set_title("this schedule; dotted: linear with the best tau at 1", fontsize="medium")


def _first(models: Instances) -> Instances:
    return Instances(models.fields[:_FEW], models.couplings[:_FEW])


def _label(name: str, models: Instances) -> str:
    return f"{name}, T = {models.num_spins}"
