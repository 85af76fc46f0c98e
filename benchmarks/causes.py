"""Why do couplings gain so little on text? Boltzmann attention with one thing changed at a time, beside softmax.

    python benchmarks/causes.py [--text karpathy/tiny_shakespeare] [--seeds 1 2 3 4 5] [--steps 4000]
        [--folder runs/causes] [--threads 1]

The model, data and learning rates are those of configs/studies/paper.yaml at T = 12: softmax 0.048, all others 0.024. A
seed gives all of them the same initial weights and order of the data. The last weights are tested, where studies test
those of the lowest validation loss, so perplexities are not to be compared with theirs. What is changed:

boltzmann            nothing
fields x 0.5, x 2    h is multiplied, which scales it at the start; queries and keys learn their own scale from there
J starts at random   from N(0, 0.3^2) nats in place of 0, other draws for each seed
J as fast as h       with the same learning rate as everything else, in place of 0.3 of it
not normalized       the output is sum_j p_ij v_j, so that a query can attend to more or to less

Every run is a row of runs.csv in the folder as soon as it has ended, and is not run again with the same settings. The
differences are exploratory: nothing is corrected for their number.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytorch_lightning as pl
import torch
from kept_rows import append, read
from quiet_training import quiet, trainer_of
from torch import Tensor, nn

from datamodules import TinyShakespeareDataModule
from hybrid_attention import BoltzmannAttention, ExactLayer
from lightning_modules import CharLanguageModel
from lightning_modules.studies.seed_statistics import mean_interval, paired_difference

T = 12
EMBED_DIM = 32
BATCH_SIZE = 64


class ScaledFields(ExactLayer):
    """The exact layer with all fields multiplied."""

    def __init__(self, num_spins: int, num_heads: int = 1, scale: float = 1.0) -> None:
        super().__init__(num_spins, num_heads)
        self.scale = scale

    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        return super().marginals(self.scale * fields, present)


class Unnormalized(BoltzmannAttention):
    """Attention whose output is sum_j p_ij v_j."""

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, present: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        p = self.layer((query / math.sqrt(query.shape[-1])) @ key.mT, present)
        return p @ value, p if need_weights else None


def unnormalized(model: CharLanguageModel) -> None:
    for block in model.model.blocks:
        before = block.attention
        assert isinstance(before, BoltzmannAttention)
        block.attention = Unnormalized(before.embed_dim, before.layer, before.causal)
        block.attention.load_state_dict(before.state_dict())


def random_couplings(model: CharLanguageModel) -> None:
    for layer in model.ising_layers():
        assert layer.couplings is not None
        nn.init.normal_(layer.couplings, std=0.3)


class Variant(NamedTuple):
    """A model: settings of CharLanguageModel, and what is done to it before it is trained."""

    settings: dict[str, object]
    change: Callable[[CharLanguageModel], None] = lambda model: None


BOLTZMANN: dict[str, object] = {
    "layer": ExactLayer,
    "learning_rate": 0.024,
    "coupling_learning_rate_factor": 0.3,
}
VARIANTS = {
    "softmax": Variant({"layer": None, "learning_rate": 0.048}),
    "boltzmann": Variant(BOLTZMANN),
    "fields x 0.5": Variant({**BOLTZMANN, "layer": partial(ScaledFields, scale=0.5)}),
    "fields x 2": Variant({**BOLTZMANN, "layer": partial(ScaledFields, scale=2.0)}),
    "J starts at random": Variant(BOLTZMANN, random_couplings),
    "J as fast as h": Variant({**BOLTZMANN, "coupling_learning_rate_factor": 1.0}),
    "not normalized": Variant(BOLTZMANN, unnormalized),
}


class Result(NamedTuple):
    """One test of one trained model: its mean cross-entropy (nats)."""

    text: str
    steps: int
    seed: int
    variant: str
    loss: float


def train(text: str, steps: int, seed: int, name: str) -> Result:
    variant = VARIANTS[name]
    pl.seed_everything(seed, verbose=False)
    data = TinyShakespeareDataModule(context_length=T, source=text, batch_size=BATCH_SIZE)
    model = CharLanguageModel(data.vocabulary, context_length=T, embed_dim=EMBED_DIM, **variant.settings)
    variant.change(model)
    pl.seed_everything(seed, verbose=False)  # batches come in the same order, whatever building has drawn
    trainer_of(steps).fit(model, data)
    (found,) = trainer_of(1).test(model, data, verbose=False)
    return Result(text, steps, seed, name, found["test_loss"])


def run_all(text: str, steps: int, seeds: list[int], path: Path) -> list[Result]:
    """Run what the CSV file does not hold yet, seed by seed, and return all results that were asked for."""
    wanted = [(text, steps, seed, name) for seed in seeds for name in VARIANTS]
    results = {result[:4]: result for result in read(path, Result)}
    left = [run for run in wanted if run not in results]
    print(f"{len(wanted) - len(left)} of {len(wanted)} runs are in {path}")
    start = time.perf_counter()
    for number, run in enumerate(left, 1):
        results[run] = train(*run)
        append(path, [results[run]])
        minutes = (time.perf_counter() - start) / number * (len(left) - number) / 60
        print(f"{run[3]}, seed {run[2]}: {results[run].loss:.4f} nats; {minutes:.0f} min left", flush=True)
    return [results[run] for run in wanted]


def table(results: Iterable[Result]) -> list[str]:
    """Return the lines of a Markdown table: perplexity, and its differences in percent with 95 % intervals."""
    losses: dict[str, list[float]] = {name: [] for name in VARIANTS}
    for result in results:
        losses[result.variant].append(100 * result.loss)
    lines = ["| | perplexity | to softmax (%) | to boltzmann (%) |", "| --- | ---: | ---: | ---: |"]
    for name, of in losses.items():
        level = mean_interval(of)
        cells = [" to ".join(f"{math.exp(x / 100):.3f}" for x in (level.low, level.high))]
        for other in ("softmax", "boltzmann"):
            found = paired_difference(of, losses[other])
            mean, low, high = (100 * math.expm1(x / 100) for x in vars(found.interval).values() if isinstance(x, float))
            shown = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}], p = {found.p:.2g}"
            cells.append("" if name == other else shown)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="karpathy/tiny_shakespeare", help="a text file, a folder, or on the Hub")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--folder", type=Path, default=Path("runs/causes"))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    if len(options.seeds) < 2 or len(set(options.seeds)) < len(options.seeds):
        parser.error(f"the seeds {options.seeds} were given: give two or more different ones, whose runs are compared.")
    if options.steps < 1 or options.threads < 1:
        parser.error(f"steps={options.steps} and threads={options.threads} were given: give 1 or more.")
    torch.set_num_threads(options.threads)
    with quiet():
        lines = table(run_all(options.text, options.steps, options.seeds, options.folder / "runs.csv"))
    print("\n".join(lines))
    (options.folder / "table.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
