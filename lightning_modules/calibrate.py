"""The subcommand `hybrid-attention calibrate`: how Boltzmann the annealing is, and schedules that make it more so."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentParser

from hybrid_attention.annealing import DEFAULT_DEVICE, Annealer
from hybrid_attention.calibration import Calibration, calibrate
from hybrid_attention.free_schedule import FreeSchedule, interpolate_angles
from hybrid_attention.instances import Instances, draw_instances
from hybrid_attention.schedules import LinearSchedule, RampSchedule, Schedule, inverse_temperatures
from hybrid_attention.tuned_schedule import TunedSchedule, available_steps
from hybrid_attention.tuning import tune_angles, tune_duration
from lightning_modules.calibration_plot import write_plot
from lightning_modules.checkpoint_instances import checkpoint_instances
from lightning_modules.layer_factories import class_path
from lightning_modules.plotting import check_matplotlib

_DESCRIPTION = """Compare what the annealing circuit samples with Boltzmann distributions, tune its schedule, and write
the schedule as a YAML file that fit takes with --config. Models are drawn at random, or are those that a trained model
has on its validation data; schedules are tuned on some models and reported on others."""
_HEADER = (
    "models",
    "T",
    "count",
    "rms error",
    "of rms",
    "correlation",
    "KL",
    "beta_h",
    "beta_J",
    "pseudo h",
    "pseudo J",
)
_FRESH = 1
_TAU_PER_STEP = 1.25
_STEPS = 8


@dataclass(frozen=True)
class Group:
    """Models of one kind and size, to tune on and to report on.

    Args:
        name: for the table.
        tuning: models to tune on.
        fresh: other models, to report on.
    """

    name: str
    tuning: Instances
    fresh: Instances


def calibrate_command(arguments: Sequence[str]) -> None:
    """Run `hybrid-attention calibrate` with the arguments that follow it on the command line.

    Raises:
        ValueError: if an argument is not allowed, or a file that would be written exists.
    """
    parser = ArgumentParser(prog="hybrid-attention calibrate", description=_DESCRIPTION, exit_on_error=False)
    parser.add_argument("--config", action="config", help="A YAML file with these settings.")
    parser.add_function_arguments(run_calibration, skip={"command"})
    settings = parser.instantiate(parser.parse_args(list(arguments)))
    settings.pop("config", None)
    run_calibration(command=shlex.join(["hybrid-attention", "calibrate", *arguments]), **settings)


def run_calibration(
    num_spins: list[int] = [4, 6, 8],  # noqa: B006
    num_instances: int = 1000,
    field_spread: list[float] = [0.5, 1.0],  # noqa: B006
    coupling_spread: list[float] = [0.2, 0.3],  # noqa: B006
    ckpt_path: str | None = None,
    steps: int | None = None,
    schedule: Schedule | None = None,
    tune: Literal["none", "tau", "angles"] = "none",
    num_tuning: int = 128,
    restarts: int = 16,
    iterations: int = 200,
    reach: float = 2.0,
    device: str = DEFAULT_DEVICE,
    device_options: dict[str, Any] | None = None,
    shots: int | None = None,
    seed: int = 0,
    output: str | None = None,
    plot: str | None = None,
    overwrite: bool = False,
    command: str = "",
) -> None:
    """Compare, tune, and write.

    Args:
        num_spins: Numbers of spins T of the models.
        num_instances: Models of each kind and size to report on.
        field_spread: Spreads of the fields h in nats, one for each kind of models.
        coupling_spread: Spreads of the couplings J in nats, one for each kind of models.
        ckpt_path: Checkpoint whose couplings, and fields on its validation data, are taken in place of random ones.
        steps: Trotter steps, 8 without, of the linear schedule of tau = 1.25 steps that is taken where none is given.
        schedule: Schedule to report on, or to tune.
        tune: Tune nothing, the duration tau of the schedule, or all its angles.
        num_tuning: Models of each kind and size to tune on, at most.
        restarts: Perturbed starts of the search for angles.
        iterations: Iterations of the search for angles.
        reach: Size of fields in nats up to which the search also fits the response of a spin without couplings.
        device: PennyLane device that the report is made on; tuning and error curves are simulated exactly.
        device_options: Further options of the device.
        shots: Samples for each model; exact probabilities without.
        seed: Fixes the models and the search.
        output: YAML file to write the schedule to.
        plot: PNG file to write a figure to.
        overwrite: Whether files that exist are overwritten.
        command: What the file says it was made by.
    """
    for path in (output, plot):
        if path is not None and Path(path).exists() and not overwrite:
            raise ValueError(f"{path!r} exists: move it away, give another name, or set --overwrite=true.")
    if steps is not None and schedule is not None:
        raise ValueError(f"steps={steps} and a schedule were given: set the steps of the schedule, --schedule.steps.")
    if plot is not None:
        check_matplotlib()
    annealer = Annealer(device, shots, device_options)
    if ckpt_path is None:
        groups = _drawn(num_spins, field_spread, coupling_spread, num_instances, num_tuning, seed)
    else:
        groups = _of_checkpoint(ckpt_path, num_instances, num_tuning, seed)
    chosen = _linear(_STEPS if steps is None else steps) if schedule is None else schedule
    if tune != "none":
        chosen = _tuned(tune, chosen, [group.tuning for group in groups], restarts, iterations, seed, reach)
    reports = []
    for group in groups:
        print(f"{group.name}, T = {group.fresh.num_spins}: {len(group.fresh)} circuits on {device}", flush=True)
        reports.append(calibrate(group.fresh, chosen, annealer))
    lines = _lines(groups, reports)
    first_h, first_J = (float(beta) for beta in inverse_temperatures(chosen.angles()))
    print(f"\n{chosen}\nbeta_h = {chosen.beta_h:.4g}, beta_J = {chosen.beta_J:.4g} ", end="")
    print(f"({first_h:.4g} and {first_J:.4g} to first order); monotonic up to |h| = {chosen.max_field:.3g}\n")
    print("\n".join(lines))
    if output is not None:
        _write(Path(output), chosen, command, lines)
        print(f"\nSchedule: {output}")
    if plot is not None:
        write_plot(Path(plot), [(group.name, group.fresh) for group in groups], chosen, annealer, _say)
        print(f"Figure: {plot}")


def schedule_config(schedule: Schedule) -> dict[str, Any]:
    """Return the config that gives a model a DQALayer with a schedule, as plain data."""
    arguments = {}
    for field in fields(schedule):  # type: ignore[arg-type]
        value = getattr(schedule, field.name)
        arguments[field.name] = list(value) if isinstance(value, tuple) else value
    plain = {"class_path": class_path(type(schedule)), "init_args": arguments}
    layer = {"class_path": "hybrid_attention.DQALayer", "init_args": {"schedule": plain}}
    return {"model": {"init_args": {"layer": layer}}}


def _linear(steps: int) -> LinearSchedule:
    return LinearSchedule(steps, tau=_TAU_PER_STEP * steps)


def _drawn(
    num_spins: list[int],
    field_spread: list[float],
    coupling_spread: list[float],
    num_instances: int,
    num_tuning: int,
    seed: int,
) -> list[Group]:
    if len(field_spread) != len(coupling_spread) or not field_spread or not num_spins:
        raise ValueError(
            f"{len(field_spread)} spreads of fields and {len(coupling_spread)} of couplings were given for "
            f"{len(num_spins)} numbers of spins: give as many of fields as of couplings, and one or more of each."
        )
    groups = []
    for kind, spreads in enumerate(zip(field_spread, coupling_spread, strict=True)):
        for size in num_spins:
            place = 2 * (1000 * seed + 100 * kind + size)
            tuning = draw_instances(size, num_tuning, *spreads, seed=place)
            fresh = draw_instances(size, num_instances, *spreads, seed=place + _FRESH)
            groups.append(Group(f"h {spreads[0]:g}, J {spreads[1]:g}", tuning, fresh))
    return groups


def _of_checkpoint(path: str, num_instances: int, num_tuning: int, seed: int) -> list[Group]:
    groups = []
    for models in checkpoint_instances(path, num_instances + num_tuning, seed):
        few = min(num_tuning, (len(models) + 1) // 2)
        parts = [
            Instances(models.fields[piece], models.couplings[piece]) if len(models) > 1 else models
            for piece in (slice(0, few), slice(few, None))
        ]
        groups.append(Group(Path(path).name, *parts))
    return groups


def _tuned(
    tune: str, start: Schedule, groups: list[Instances], restarts: int, iterations: int, seed: int, reach: float
) -> RampSchedule | FreeSchedule:
    if tune == "tau":
        if not isinstance(start, RampSchedule):
            raise ValueError(f"{start} has no duration to tune: give a ramp such as LinearSchedule, or tune=angles.")
        return tune_duration(groups, start, _say)[0]
    steps = len(start.angles())
    starts: list[Schedule] = [tune_duration(groups, start, _say)[0] if isinstance(start, RampSchedule) else start]
    if steps % 2 == 0 and steps // 2 in available_steps():
        starts.append(FreeSchedule.from_angles(interpolate_angles(TunedSchedule(steps // 2).angles(), steps)))
    return tune_angles(groups, starts, restarts, iterations, seed, _say, reach)


def _lines(groups: list[Group], reports: list[Calibration]) -> list[str]:
    """Return the table of the reports."""
    rows = [list(_HEADER)]
    for group, found in zip(groups, reports, strict=True):
        betas = (*found.betas, *found.pseudo_betas)
        rows.append(
            [
                group.name,
                str(found.num_spins),
                f"{found.count:,}",
                f"{found.rms_error:.4f}",
                f"{found.rms_magnetization:.3f}",
                f"{found.correlation:.4f}",
                f"{found.kl:.4f}",
                *(f"{beta:.3f}" for beta in betas),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    if reports[0].shots is not None:
        noise = max(found.sampling_error for found in reports)
        lines.append(f"Of each rms error up to {noise:.4f} is the noise of {reports[0].shots:,} shots.")
    return lines


def _write(path: Path, schedule: Schedule, command: str, lines: list[str]) -> None:
    header = [f"A schedule for DQALayer, made by: {command}", *lines]
    path.parent.mkdir(parents=True, exist_ok=True)
    body = yaml.safe_dump(schedule_config(schedule), sort_keys=False)
    path.write_text("\n".join(f"# {line}" for line in header) + "\n" + body)


def _say(line: str) -> None:
    print(line, file=sys.stdout, flush=True)
