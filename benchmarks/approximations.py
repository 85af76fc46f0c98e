"""Which approximation to take for dense couplings: errors against exact marginals, and time, on the same models.

    python benchmarks/approximations.py [--models 500] [--spins 12] [--rounds 3] [--threads 1]

Fields and couplings are normal, with spreads that are weak, medium and strong. Printed are the rms errors of the
magnetizations <s_j> and of the attention weights p_j / sum_k p_k over all models and spins, and the time for each query
of a forward pass over the fields of all models with the couplings of the first, the least of some rounds. DimodLayer
needs the extra dwave, and is left out without it.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hybrid_attention import (
    DimodLayer,
    DQALayer,
    ExactLayer,
    FieldsOnlyLayer,
    GibbsLayer,
    IsingLayer,
    MeanFieldLayer,
    TunedSchedule,
)
from hybrid_attention.instances import Instances, draw_instances

SPREADS = {"weak": (0.5, 0.1), "medium": (1.0, 0.3), "strong": (1.0, 0.8)}
SEED = 2**21
SAMPLES = (100, 1000, 10000)
_SMALLEST_SUM = 1e-30
_STEPS = 8

Factory = Callable[[int, int], IsingLayer]


def methods() -> dict[str, Factory]:
    """Return how each layer is built, by what the table calls it."""
    found: dict[str, Factory] = {
        "exact": ExactLayer,
        "without couplings": FieldsOnlyLayer,
        "mean field": MeanFieldLayer,
        "TAP": lambda spins, heads: MeanFieldLayer(spins, heads, tap=True),
        f"DQA, {_STEPS} tuned steps": lambda spins, heads: DQALayer(spins, heads, schedule=TunedSchedule(_STEPS)),
    }
    for samples in SAMPLES:
        found[f"Gibbs, {samples} samples"] = lambda spins, heads, samples=samples: GibbsLayer(
            spins, heads, num_samples=samples
        )
    if importlib.util.find_spec("dimod") and importlib.util.find_spec("dwave.samplers"):
        for reads in SAMPLES[:2]:
            found[f"annealing, {reads} reads"] = lambda spins, heads, reads=reads: DimodLayer(
                spins, heads, num_reads=reads
            )
    return found


def marginals(factory: Factory, models: Instances) -> tuple[Tensor, float]:
    """Return p (models, T), and the share of models that the layer says have not converged."""
    layer = factory(models.num_spins, len(models.fields)).eval()
    with torch.no_grad():
        if layer.couplings is not None:
            layer.couplings.copy_(models.couplings)
        p = layer(models.fields.float().unsqueeze(0))[0]
    return p.double(), float(layer.metrics().get("unconverged", 0.0))


def seconds(factory: Factory, models: Instances, rounds: int) -> float:
    """Return the least time of a forward pass over all fields with the couplings of the first model."""
    layer = factory(models.num_spins, 1).eval()
    fields, least = models.fields.float().unsqueeze(1), float("inf")
    with torch.no_grad():
        if layer.couplings is not None:
            layer.couplings.copy_(models.couplings[:1])
        for _ in range(rounds):
            start = time.perf_counter()
            layer(fields)
            least = min(least, time.perf_counter() - start)
    return least


def errors(p: Tensor, exact: Tensor) -> tuple[float, float]:
    """Return the rms errors of the magnetizations and of the attention weights."""
    weights, expected = (x / x.sum(-1, keepdim=True).clamp_min(_SMALLEST_SUM) for x in (p, exact))
    return float(2 * (p - exact).square().mean().sqrt()), float((weights - expected).square().mean().sqrt())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--spins", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    print("couplings  spreads h, J  layer                    <s> rms   weights rms   us / query")
    for name, spreads in SPREADS.items():
        models = draw_instances(given.spins, given.models, *spreads, seed=SEED)
        exact = None
        for label, factory in methods().items():
            p, unconverged = marginals(factory, models)
            least = seconds(factory, models, given.rounds)
            exact = p if exact is None else exact
            of_spins, of_weights = errors(p, exact)
            note = f"  {unconverged:.1%} not converged" if unconverged else ""
            print(
                f"{name:10} {f'{spreads[0]:g}, {spreads[1]:g}':12}  {label:22} {of_spins:9.4f} {of_weights:13.5f} "
                f"{least / given.models * 1e6:12.1f}{note}",
                flush=True,
            )


if __name__ == "__main__":
    main()
