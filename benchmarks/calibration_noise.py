"""How much of what tuning gains is left under shots and under the noise of a machine's gates, against the steps.

    python benchmarks/calibration_noise.py [--steps 2 4 8 16] [--spins 8] [--models 1000] [--shots 1000 10000]
        [--noisy-models 100] [--machine FakeGuadalupeV2] [--noisy-shots 10000] [--csv runs/calibration_noise.csv]
        [--plot FILE.png] [--threads 1]

Error of the magnetizations against Boltzmann's, on models that no schedule was tuned on, with spreads of (h, J) of
(0.5, 0.2) and (1.0, 0.3) nats, fields clipped as DQALayer clips them, for
  linear  the linear schedule with the tau of least error without noise, for each number of steps and each spread
  tuned   the schedule that comes with the package, where one of so many steps does
under
  exact      exact probabilities of the circuit
  shots      samples without noise
  machine    qiskit.aer with the noise of a stand-in for a machine and --noisy-shots samples, on the first models;
             pairs of qubits that the machine does not connect have gates without noise
  mitigated  the same with readout errors taken out, which were measured with as many samples
The last two need the extra `qiskit`, and --noisy-models 0 leaves them out. Noise mostly shrinks <Z>, so beside the
error stand the share of <Z> that is left, and the error after division by that share, which a user would have to know.

Rows are in the CSV file as soon as they are measured, and are not measured again with the same settings.
"""

import argparse
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from kept_rows import append, read
from schedule_keys import schedule_key
from torch import Tensor

from devices import calibrate_readout, make_device
from devices.readout import mitigate_z
from hybrid_attention import LinearSchedule, TunedSchedule
from hybrid_attention.annealing import Annealer
from hybrid_attention.instances import Instances, boltzmann_log_probabilities, draw_instances, magnetizations
from hybrid_attention.schedules import Schedule
from hybrid_attention.tuned_schedule import available_steps
from hybrid_attention.tuning import tune_duration

SPREADS = ((0.5, 0.2), (1.0, 0.3))
SEED = 2**20  # as in calibration.py, no schedule was tuned on these
TAU_MODELS = 200
EXACT, SHOTS, MITIGATED = "exact", "shots", "mitigated"
HEADER = "  T  steps  spreads  schedule  condition        shots  models  rms error  +-      left  scaled  correlation"
_COLORS = ("black", "tab:blue", "tab:cyan", "tab:red", "tab:orange")


class Key(NamedTuple):
    """What is measured: a schedule, known by its angles, under a condition, which names the machine if there is one."""

    spins: int
    steps: int
    field_spread: float
    coupling_spread: float
    schedule: str
    angles: str
    condition: str
    shots: int
    models: int


class Row(NamedTuple):
    """A measurement: rms error of <s_j> and its standard error, the share of <s_j> that is left (the slope of a line
    through 0), the rms error after division by it, and the correlation.
    """

    spins: int
    steps: int
    field_spread: float
    coupling_spread: float
    schedule: str
    angles: str
    condition: str
    shots: int
    models: int
    rms_error: float
    standard_error: float
    left: float
    scaled_error: float
    correlation: float

    @property
    def key(self) -> Key:
        return Key(*self[: len(Key._fields)])


class Condition(NamedTuple):
    """A device, its number of models, and the name of a machine or "exact" or "shots"."""

    name: str
    annealer: Annealer
    models: int
    noisy: bool


def compare(ours: Tensor, exact: Tensor) -> list[float]:
    """Return the numbers of a row for two sets of magnetizations (N, T)."""
    squares = (ours - exact).square().mean(1)
    rms = squares.mean().sqrt()
    standard_error = squares.std() / len(squares) ** 0.5 / (2 * rms)
    left = (ours * exact).sum() / exact.square().sum()
    scaled = (ours / left - exact).square().mean().sqrt()
    correlation = torch.corrcoef(torch.stack((ours.flatten(), exact.flatten())))[0, 1]
    return [round(float(number), 6) for number in (rms, standard_error, left, scaled, correlation)]


def schedules(steps: int, models: Instances) -> dict[str, Schedule]:
    """Return the linear schedule of least error for the models, and the tuned one if there is one."""
    few = Instances(models.fields[:TAU_MODELS], models.couplings[:TAU_MODELS])
    found: dict[str, Schedule] = {"linear": tune_duration([few], LinearSchedule(steps, tau=1.0))[0]}
    return {**found, "tuned": TunedSchedule(steps)} if steps in available_steps() else found


def conditions(shots: Iterable[int], models: int, noisy_models: int, machine: str, noisy_shots: int) -> list[Condition]:
    found = [Condition(EXACT, Annealer(), models, False)]
    found += [Condition(SHOTS, Annealer(shots=each, device_options={"seed": 1}), models, False) for each in shots]
    if noisy_models:
        noisy = Annealer("qiskit.aer", noisy_shots, {"noise_model": machine, "seed_simulator": 1})
        found.append(Condition(machine, noisy, noisy_models, True))
    return found


def measure(key: Key, condition: Condition, schedule: Schedule, models: Instances) -> list[Row]:
    """Return the row of a condition, and under noise that without readout errors."""
    models = Instances(models.fields[: condition.models], models.couplings[: condition.models])
    exact = magnetizations(boltzmann_log_probabilities(models).exp())
    annealer = condition.annealer
    ours = magnetizations(annealer(models, schedule))
    rows = [Row(*key, *compare(ours, exact))]
    if condition.noisy:
        machine = make_device(annealer.device, models.num_spins, **annealer.device_options)
        mitigated = mitigate_z(ours, calibrate_readout(machine, annealer.shots))
        rows.append(Row(*mitigated_key(key), *compare(mitigated, exact)))
    return rows


def mitigated_key(key: Key) -> Key:
    return key._replace(condition=f"{key.condition} {MITIGATED}")


def measurements(
    spins: int, steps: int, spreads: tuple[float, float], wanted: Sequence[Condition], count: int
) -> Iterator[tuple[Key, Condition, Schedule, Instances]]:
    """Yield all that is to be measured for a number of steps and a spread."""
    models = draw_instances(spins, count, *spreads, seed=SEED + spins)
    for condition, (name, schedule) in product(wanted, schedules(steps, models).items()):
        used = min(condition.models, count)
        shots = condition.annealer.shots or 0
        key = Key(spins, steps, *spreads, name, schedule_key(schedule), condition.name, shots, used)
        yield key, condition, schedule, models


def show(row: Row) -> None:
    print(
        f"{row.spins:3d} {row.steps:6d}  {row.field_spread:g}, {row.coupling_spread:<4g} {row.schedule:8} "
        f"{row.condition:25} {row.shots:6d} {row.models:6d} {row.rms_error:9.4f} +- {row.standard_error:.4f} "
        f"{row.left:6.3f} {row.scaled_error:7.4f} {row.correlation:8.4f}",
        flush=True,
    )


def gains(rows: Iterable[Row]) -> list[str]:
    """Return a line for each condition with both schedules: how many times less error the tuned one has.

    The line ends in that gain after division by the share of <Z> that is left.
    """
    linear = {row.key._replace(schedule="", angles=""): row for row in rows if row.schedule == "linear"}
    lines = []
    for row in rows:
        other = linear.get(row.key._replace(schedule="", angles=""))
        if row.schedule == "tuned" and other is not None:
            shots = f" {row.shots:,}" if row.shots else ""
            lines.append(
                f"P = {row.steps}, spreads {row.field_spread:g}, {row.coupling_spread:g}, {row.condition}{shots}: "
                f"gain {other.rms_error / row.rms_error:.2f}, scaled {other.scaled_error / row.scaled_error:.2f}"
            )
    return lines


def plot(path: Path, rows: list[Row]) -> None:
    """Write the picture: error against steps, a panel for each spread, a color for each condition."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 4.4), layout="constrained")
    panels = figure.subplots(1, len(SPREADS), sharey=True)
    kinds = list(dict.fromkeys((row.condition, row.shots) for row in rows))
    steps = sorted({row.steps for row in rows})
    for axes, (h, J) in zip(panels, SPREADS, strict=True):
        for number, ((condition, shots), (name, style)) in enumerate(
            product(kinds, (("linear", "--o"), ("tuned", "-s")))
        ):
            points = sorted(
                (row.steps, row.rms_error, row.standard_error)
                for row in rows
                if (row.condition, row.shots, row.schedule, row.field_spread) == (condition, shots, name, h)
            )
            if points:
                label = f"{name}, {condition}" + (f" ({shots:,})" if shots else "")
                color = _COLORS[number // 2 % len(_COLORS)]
                axes.errorbar(*zip(*points, strict=True), fmt=style, color=color, ms=4, lw=1.2, label=label)
        axes.set(xscale="log", yscale="log", xlabel="Trotter steps P", title=f"h ~ N(0, {h:g}²), J ~ N(0, {J:g}²)")
        axes.set_xticks(steps, [str(step) for step in steps])
        axes.minorticks_off()
        axes.grid(alpha=0.3, which="both")
    panels[0].set(ylabel="rms error of the magnetizations")
    panels[-1].legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--spins", type=int, default=8)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--shots", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--noisy-models", type=int, default=100)
    parser.add_argument("--machine", default="FakeGuadalupeV2")
    parser.add_argument("--noisy-shots", type=int, default=10_000)
    parser.add_argument("--csv", type=Path, default=Path("runs/calibration_noise.csv"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    wanted = conditions(given.shots, given.models, given.noisy_models, given.machine, given.noisy_shots)
    kept = {row.key: row for row in read(given.csv, Row)}
    print(HEADER)
    rows = []
    cases = list(product(given.steps, SPREADS))
    for number, (steps, spreads) in enumerate(cases, 1):
        start = time.perf_counter()
        for key, condition, schedule, models in measurements(given.spins, steps, spreads, wanted, given.models):
            keys = [key, mitigated_key(key)] if condition.noisy else [key]
            found = [kept[each] for each in keys if each in kept]
            if len(found) < len(keys):
                found = measure(key, condition, schedule, models)
                append(given.csv, found)
            rows += found
            for row in found:
                show(row)
        print(f"{number} of {len(cases)} cases, {time.perf_counter() - start:.0f} s", flush=True)
    print("\n".join(gains(rows)))
    if given.plot:
        plot(given.plot, rows)


if __name__ == "__main__":
    main()
