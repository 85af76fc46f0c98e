"""Time and memory of the transfer matrix at lengths T, forward and backward, against softmax and another chain library.

    python benchmarks/long_sequences.py [--lengths 16 64 256 1024] [--ranges 1 4 8] [--rows 256] [--rounds 7]

Each query sees all T positions, float32, one head with couplings that depend on the distance. Compared are
  transfer matrix   hybrid_attention.TransferMatrixLayer for each range w
  softmax           the softmax of the fields
  torch-struct      LinearChainCRF, at w = 1, if it is installed (pip install 'hybrid-attention[benchmarks]')
Candidates take turns in every round, and minima are compared. The exponents are those of least squares in logarithms.
Marginals are compared with enumeration where it runs, and at w = 1 with torch-struct. At last, whole training steps of
a character model at T = 64, embed_dim 32.
"""

import argparse
import copy
import math
import warnings
from collections.abc import Callable
from functools import partial

import torch
from exact_layer import both_passes, one_step, peak_bytes, seconds
from torch import Tensor, nn

from hybrid_attention import (
    BoltzmannAttention,
    DecoderOnlyTransformer,
    SoftmaxAttention,
    ToeplitzCouplings,
    TransferMatrixLayer,
    exact_marginals,
)

try:
    from torch_struct import LinearChainCRF
except ImportError:
    LinearChainCRF = None

_MOST_EXPONENT = 1.1
_AGREEMENT = 1e-9
_ENUMERATED = 16


class Softmax(nn.Module):
    """The softmax of the fields."""

    def forward(self, fields: Tensor, present: None) -> Tensor:
        return fields.softmax(-1)


class StructuredChain(nn.Module):
    """p of the linear chain as torch-struct has it: the gradient of a log partition function, kept differentiable."""

    def __init__(self, couplings: Tensor) -> None:
        super().__init__()
        self.couplings = nn.Parameter(couplings)

    def forward(self, fields: Tensor, present: None) -> Tensor:
        spins = fields.new_tensor([1.0, -1.0])
        h = fields.flatten(0, -2)
        pairs = self.couplings.flatten()[0] * spins[:, None] * spins
        exponents = h[:, 1:, None, None] * spins[:, None] + pairs
        first = h[:, 0, None, None] * spins
        exponents = torch.cat((exponents[:, :1] + first.unsqueeze(1), exponents[:, 1:]), dim=1)
        marginals = LinearChainCRF(exponents).marginals
        p = torch.cat((marginals[:, :1].sum(-2)[..., 0], marginals.sum(-1)[..., 0]), dim=1)
        return p.view(fields.shape)


def layer_of(length: int, coupling_range: int) -> TransferMatrixLayer:
    layer = TransferMatrixLayer(length, coupling_shape=ToeplitzCouplings(coupling_range))
    nn.init.normal_(layer.couplings, std=0.3, generator=torch.Generator().manual_seed(coupling_range))
    return layer


def candidates(length: int, ranges: list[int]) -> dict[str, nn.Module]:
    found: dict[str, nn.Module] = {f"w = {reach}": layer_of(length, reach) for reach in ranges}
    found["softmax"] = Softmax()
    if LinearChainCRF is not None and 1 in ranges:
        found["torch-struct"] = StructuredChain(layer_of(length, 1).couplings.detach().clone())
    return found


def check(modules: dict[str, nn.Module], fields: Tensor) -> None:
    """Raise RuntimeError where marginals in float64 differ from those of enumeration or of the other library."""
    length, few = fields.shape[-1], fields.detach()[:, :, :4].double()
    doubled = {name: copy.deepcopy(module).double() for name, module in modules.items()}
    pairs = []
    for name, module in doubled.items():
        if isinstance(module, TransferMatrixLayer) and length <= _ENUMERATED:
            pairs.append((name, "enumeration", module(few), exact_marginals(few, module.upper_couplings()[0])))
    if "torch-struct" in doubled:
        pairs.append(("w = 1", "torch-struct", doubled["w = 1"](few), doubled["torch-struct"](few, None)))
    for name, other, ours, theirs in pairs:
        difference = float((ours - theirs).detach().abs().max())
        if not difference <= _AGREEMENT:
            raise RuntimeError(f"T = {length}: {name} and {other} differ by {difference:.1e}.")


def measure(length: int, ranges: list[int], rows: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return seconds and bytes a query of each candidate, and print them."""
    modules = candidates(length, ranges)
    generator = torch.Generator().manual_seed(length)
    fields = torch.randn(1, 1, rows, length, generator=generator).requires_grad_()
    check(modules, fields)
    grad = torch.randn(1, 1, rows, length, generator=generator)
    runs: dict[str, Callable[[], None]] = {
        name: partial(both_passes, module, fields, None, grad) for name, module in modules.items()
    }
    for run in runs.values():
        run()
    best = dict.fromkeys(runs, math.inf)
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], seconds(run))
    found = {name: (best[name] / rows, peak_bytes(run) / rows) for name, run in runs.items()}
    cells = [f"{taken * 1e6:9.2f} us {held / 1024:9.2f} KiB" for taken, held in found.values()]
    print(" | ".join([f"{length:5d}", *cells]), flush=True)
    return found


def exponent(lengths: list[int], values: list[float]) -> float:
    """Return the slope of the least-squares line of log values over log lengths."""
    x, y = (torch.tensor(numbers, dtype=torch.float64).log() for numbers in (lengths, values))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / x.square().sum())


def show_exponents(results: dict[int, dict[str, tuple[float, float]]]) -> bool:
    """Print how time and memory grow with T, and return whether those of the transfer matrix meet the aim."""
    lengths, met = list(results), True
    for name in results[lengths[0]]:
        time, memory = (exponent(lengths, [results[n][name][i] for n in lengths]) for i in (0, 1))
        line = f"{name}: time grows as T^{time:.2f}, memory as T^{memory:.2f}"
        if name.startswith("w = "):
            good = max(time, memory) <= _MOST_EXPONENT
            met = met and good
            line += f"; aim {_MOST_EXPONENT} or less: {'met' if good else 'not met'}"
        print(line)
    longest = results[lengths[-1]]
    if "torch-struct" in longest:
        ratio = longest["torch-struct"][0] / longest["w = 1"][0]
        print(f"torch-struct takes {ratio:.1f} x the time of w = 1 at T = {lengths[-1]}")
    return met


def training_step(ranges: list[int], rounds: int, length: int = 64, embed_dim: int = 32, batch: int = 64) -> None:
    torch.manual_seed(0)
    tokens, targets = torch.randint(65, (2, batch, length)).unbind(0)
    kinds: dict[str, Callable[[], nn.Module]] = {"softmax": partial(SoftmaxAttention, embed_dim)}
    for reach in ranges:
        kinds[f"w = {reach}"] = lambda reach=reach: BoltzmannAttention(embed_dim, layer_of(length, reach))
    steps = {}
    for name, attention in kinds.items():
        model = DecoderOnlyTransformer(65, 65, length, embed_dim, attention)
        steps[name] = partial(one_step, model, torch.optim.AdamW(model.parameters()), tokens, targets)
        steps[name]()
    best = dict.fromkeys(steps, math.inf)
    for _ in range(rounds):
        for name, step in steps.items():
            best[name] = min(best[name], seconds(step))
    shown = [f"{name} {taken * 1e3:.1f} ms ({taken / best['softmax']:.2f} x)" for name, taken in best.items()]
    print(f"training step, causal, T = {length}, embed_dim {embed_dim}, batch {batch}: {', '.join(shown)}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--ranges", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", module="torch_struct")
    print(f"torch {torch.__version__}, {options.threads} thread(s), {options.rows} queries: a query, both passes")
    if LinearChainCRF is None:
        print("torch-struct is left out: it is not installed.")
    names = candidates(2, options.ranges)
    print(" | ".join(["    T", *(f"{name:>25}" for name in names)]))
    results = {length: measure(length, options.ranges, options.rows, options.rounds) for length in options.lengths}
    show_exponents(results)
    training_step(options.ranges, options.rounds)


if __name__ == "__main__":
    main()
