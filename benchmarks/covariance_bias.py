"""How far covariance gradients are from the circuit's derivative and from Boltzmann's, and how samples approach them.

    python benchmarks/covariance_bias.py [--spins 4 6 8] [--instances 200] [--plot FILE.png] [--threads 1]

Fields and couplings of the instances are normal with the spreads of a row of the table, and the loss is a random linear
function of the marginals p. Its gradients with respect to the fields h and the couplings J are compared over all
instances, as the rms of their difference over the rms of the second one, and as the cosine between the two:
  covariance   the covariances of the circuit's own distribution, which a sampler gives for nothing
  circuit      the derivative of the circuit's marginals, by backprop
  Boltzmann    the derivative of the exact marginals
The schedules are linear, with the tau that gives the best marginals at their number of steps. At last, the rms error of
covariances from samples against those of the same distribution, and its slope in the number of shots.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from hybrid_attention import DQALayer, LinearSchedule, exact_marginals
from hybrid_attention.ising import num_pairs, pair_index

SPREADS = ((0.5, 0.2), (1.0, 0.3))
SCHEDULES = (LinearSchedule(4, 4.0), LinearSchedule(8, 12.0), LinearSchedule(16, 16.0))
SHOTS = tuple(2**k for k in range(6, 17, 2))
COMPARISONS = (("covariance", "circuit"), ("covariance", "Boltzmann"), ("circuit", "Boltzmann"))
PARAMETERS = ("h", "J")
_REPEATS = 20


@dataclass(frozen=True)
class Instances:
    """Models and linear functions of their marginals: fields and weights (N, T), couplings (N, pairs)."""

    fields: Tensor
    couplings: Tensor
    weights: Tensor

    def gradients(self, p: Tensor, fields: Tensor, couplings: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of sum_j w_j p_j of every instance, (N, T) and (N, pairs)."""
        of_fields, of_couplings = torch.autograd.grad(
            (self.weights * p.view_as(self.weights)).sum(), (fields, couplings)
        )
        return of_fields.view_as(self.fields), of_couplings.view_as(self.couplings)


@dataclass(frozen=True)
class Agreement:
    """Two gradients compared: rms of the difference over the rms of the second one, and the cosine between them."""

    difference: float
    cosine: float


def draw_instances(number: int, num_spins: int, spreads: tuple[float, float], seed: int = 0) -> Instances:
    generator = torch.Generator().manual_seed(seed)

    def normal(size: int) -> Tensor:
        return torch.randn(number, size, dtype=torch.float64, generator=generator)

    return Instances(spreads[0] * normal(num_spins), spreads[1] * normal(num_pairs(num_spins)), normal(num_spins))


def circuit_gradients(
    instances: Instances, schedule: LinearSchedule, gradient: str, shots: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the gradients that a DQALayer gives, one head for each instance."""
    number, num_spins = instances.fields.shape
    options = {} if shots is None else {"seed": seed}
    layer = DQALayer(
        num_spins, number, schedule=schedule, shots=shots, gradient=gradient, clip=False, device_options=options
    ).double()
    with torch.no_grad():
        layer.couplings.copy_(instances.couplings)
    fields = instances.fields.clone().requires_grad_()
    return instances.gradients(layer(fields[None]), fields, layer.couplings)


def boltzmann_gradients(instances: Instances) -> tuple[Tensor, Tensor]:
    fields, couplings = instances.fields.clone().requires_grad_(), instances.couplings.clone().requires_grad_()
    number, num_spins = fields.shape
    first, second = pair_index(num_spins)
    matrices = couplings.new_zeros(number, num_spins, num_spins)
    matrices[:, first, second] = couplings
    return instances.gradients(exact_marginals(fields, matrices), fields, couplings)


def compare(ours: Tensor, theirs: Tensor) -> Agreement:
    difference = (ours - theirs).norm() / theirs.norm()
    cosine = torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0)
    return Agreement(float(difference), float(cosine))


def bias(instances: Instances, schedule: LinearSchedule) -> dict[tuple[str, str, str], Agreement]:
    """Return how far each two of the three gradients are apart, by (first, second, parameter)."""
    found = {
        "covariance": circuit_gradients(instances, schedule, "covariance"),
        "circuit": circuit_gradients(instances, schedule, "backprop"),
        "Boltzmann": boltzmann_gradients(instances),
    }
    return {
        (first, second, name): compare(found[first][place], found[second][place])
        for first, second in COMPARISONS
        for place, name in enumerate(PARAMETERS)
    }


def sampling_errors(instances: Instances, schedule: LinearSchedule, shots: Sequence[int], repeats: int) -> list[float]:
    """Return the rms error of covariance gradients from samples over the rms of those without, for each of `shots`."""
    exact = torch.cat(circuit_gradients(instances, schedule, "covariance"), 1)
    errors = []
    for number in shots:
        runs = [circuit_gradients(instances, schedule, "covariance", number, seed) for seed in range(repeats)]
        squares = [(torch.cat(run, 1) - exact).square().mean() for run in runs]
        errors.append(float((torch.stack(squares).mean() / exact.square().mean()).sqrt()))
    return errors


def slope(shots: Sequence[int], errors: Sequence[float]) -> float:
    """Return d log(error) / d log(shots), by least squares."""
    logs = torch.tensor([list(shots), list(errors)], dtype=torch.float64).log()
    return float(torch.cov(logs)[0, 1] / logs[0].var())


def plot(path: Path, rows: dict, errors: Sequence[float]) -> None:
    """Write two panels: the differences against the number of steps at the largest size, and errors against shots."""
    from matplotlib.figure import Figure

    num_spins = max(size for size, _, _ in rows)
    styles = {COMPARISONS[0]: ("black", "-", "o"), COMPARISONS[1]: ("tab:blue", "--", "s")}
    styles[COMPARISONS[2]] = ("tab:orange", ":", "^")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [schedule.steps for schedule in SCHEDULES]
    for (first, second), (color, line, marker) in styles.items():
        for name, fill in zip(PARAMETERS, ("full", "none"), strict=True):
            values = [rows[num_spins, SPREADS[0], schedule][first, second, name].difference for schedule in SCHEDULES]
            label = f"{first} against {second}, {name}"
            left.plot(steps, values, line, marker=marker, fillstyle=fill, color=color, label=label)
    left.set(
        xscale="log",
        xticks=steps,
        xticklabels=steps,
        ylim=(0, None),
        xlabel="Trotter steps P",
        ylabel="relative rms difference",
        title=f"Gradients at T = {num_spins}, spreads {SPREADS[0]}",
    )
    left.minorticks_off()
    left.legend(fontsize=7)
    right.plot(SHOTS, errors, "o", color="black", label="measured")
    guide = [errors[-1] * math.sqrt(SHOTS[-1] / number) for number in SHOTS]
    right.plot(SHOTS, guide, "--", color="gray", label="1 / sqrt(shots)")
    right.set(xscale="log", yscale="log", xlabel="shots", ylabel="relative rms error", title="Covariances from samples")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spins", type=int, nargs="+", default=[4, 6, 8])
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also write a PNG, which needs matplotlib")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"{options.instances} instances; relative rms difference and cosine, for the fields h and the couplings J")
    titles = [f"{first} against {second}" for first, second in COMPARISONS]
    print("  T  spreads (h, J)  steps  tau | " + " | ".join(f"{title:^31}" for title in titles))
    print(" " * 32 + "| " + " | ".join([f"{'h':^15} {'J':^15}"] * len(titles)))
    rows = {}
    for num_spins, spreads, schedule in product(options.spins, SPREADS, SCHEDULES):
        found = bias(draw_instances(options.instances, num_spins, spreads), schedule)
        rows[num_spins, spreads, schedule] = found
        numbers = [[found[first, second, name] for name in PARAMETERS] for first, second in COMPARISONS]
        cells = [" ".join(f"{each.difference:7.4f} {each.cosine:7.4f}" for each in pair) for pair in numbers]
        print(
            f"{num_spins:3d}  {spreads!s:>14} {schedule.steps:6d} {schedule.tau:4.0f} | " + " | ".join(cells),
            flush=True,
        )
    instances = draw_instances(min(options.instances, 20), min(options.spins), SPREADS[0])
    errors = sampling_errors(instances, SCHEDULES[1], SHOTS, _REPEATS)
    table = ", ".join(f"{number:,}: {error:.4f}" for number, error in zip(SHOTS, errors, strict=True))
    print(f"relative rms error of covariances from samples, T = {min(options.spins)}, by shots: {table}")
    print(f"slope of its logarithm in that of the shots: {slope(SHOTS, errors):.3f}")
    if options.plot:
        plot(options.plot, rows, errors)


if __name__ == "__main__":
    main()
