"""How close the annealing circuit comes to Boltzmann distributions: the figures of docs/calibration.md, in one run.

    python benchmarks/calibration.py [--steps 4 8 16] [--spins 6 8 9 12] [--models 1000] [--threads 1]

On fresh random models, as many for each number of spins up to 9 and a tenth for more, with spreads of (h, J) of
(0.5, 0.2) and (1.0, 0.3) nats: rms error and correlation of the magnetizations, KL(DQA || Boltzmann) in nats, and
fitted inverse temperatures, for
  linear  the linear schedule with the tau of least error for these models themselves
  smooth, paused  the same of SmoothSchedule and PausedSchedule
  tuned   the schedule that comes with the package, one for all models
At last each aim with what was measured. Fields are clipped as DQALayer clips them.
"""

import argparse
from collections.abc import Sequence

import torch

from hybrid_attention import LinearSchedule, PausedSchedule, SmoothSchedule, TunedSchedule
from hybrid_attention.calibration import Calibration, calibrate
from hybrid_attention.instances import Instances, draw_instances
from hybrid_attention.tuning import tune_duration

SPREADS = ((0.5, 0.2), (1.0, 0.3))
RAMPS = {"linear": LinearSchedule, "smooth": SmoothSchedule, "paused": PausedSchedule}
LARGEST_WITH_ALL = 9
SEED = 2**20  # no schedule was tuned on these
TAU_MODELS = 200
HEADER = "  P   T  spreads      schedule            rms error  correlation     KL   beta_h  beta_J   max |h|"

Key = tuple[str, int, int, tuple[float, float]]


def models_of(num_spins: int, spreads: tuple[float, float], count: int) -> Instances:
    count = count if num_spins <= LARGEST_WITH_ALL else max(count // 10, 2)
    return draw_instances(num_spins, count, *spreads, seed=SEED + num_spins)


def measure(steps: int, num_spins: int, spreads: tuple[float, float], count: int) -> dict[Key, Calibration]:
    """Measure every schedule of `steps` steps, and print a line for each."""
    models = models_of(num_spins, spreads, count)
    few = Instances(models.fields[:TAU_MODELS], models.couplings[:TAU_MODELS])
    schedules = {name: tune_duration([few], ramp(steps, tau=1.0))[0] for name, ramp in RAMPS.items()}
    found = {}
    for name, schedule in {**schedules, "tuned": TunedSchedule(steps)}.items():
        result = calibrate(models, schedule)
        found[name, steps, num_spins, spreads] = result
        label = f"{name} tau {schedule.tau:.1f}" if name in schedules else name
        print(
            f"{steps:3d} {num_spins:3d}  {spreads[0]:g}, {spreads[1]:<6g} {label:20} {result.rms_error:8.4f} "
            f"{result.correlation:12.4f} {result.kl:8.4f} {result.betas.beta_h:7.3f} {result.betas.beta_J:7.3f} "
            f"{schedule.max_field:8.2f}",
            flush=True,
        )
    return found


def show_aims(results: dict[Key, Calibration]) -> None:
    """Print a line for each aim whose figures were measured."""
    for spreads in SPREADS:

        def error(name: str, steps: int, num_spins: int, spreads: tuple[float, float] = spreads) -> float | None:
            found = results.get((name, steps, num_spins, spreads))
            return None if found is None else found.rms_error

        def gain(steps: int, num_spins: int) -> float | None:
            linear, tuned = error("linear", steps, num_spins), error("tuned", steps, num_spins)
            return None if linear is None or tuned is None else linear / tuned

        best = results.get(("linear", 16, 8, spreads))
        if best is not None:
            aim(f"{spreads}: correlation of linear P = 16 at T = 8", best.correlation, 0.994)
        aim(f"{spreads}: gain of tuned P = 8 at T = 8", gain(8, 8), 3.0)
        few, many = error("tuned", 4, 8), error("linear", 16, 8)
        if few is not None and many is not None:
            aim(f"{spreads}: linear P = 16 over tuned P = 4 at T = 8", many / few, 1.0)
        for steps in (4, 8, 16):
            for num_spins in (9, 12):
                larger, at_eight = gain(steps, num_spins), gain(steps, 8)
                if larger is not None and at_eight is not None:
                    aim(f"{spreads}: P = {steps}, gain at T = {num_spins} over that at 8", larger / at_eight, 2 / 3)


def aim(what: str, measured: float | None, least: float) -> None:
    if measured is not None:
        print(f"{what}: {measured:.4g}, aim {least:.3g} or more: {'met' if measured >= least else 'not met'}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--spins", type=int, nargs="+", default=[6, 8, 9, 12])
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    print(HEADER)
    results: dict[Key, Calibration] = {}
    for steps in given.steps:
        for num_spins in given.spins:
            for spreads in SPREADS:
                results.update(measure(steps, num_spins, spreads, given.models))
    show_aims(results)


if __name__ == "__main__":
    main()
