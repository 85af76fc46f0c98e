"""Time and memory of the exact layer, forward and backward, against plain enumeration and softmax, in one run.

    python benchmarks/exact_layer.py [--batch 64] [--spins 4 8 12 16 20] [--rounds 15] [--threads 1]

The input is causal, float32: a batch of T x T fields, of which query i sees the first i + 1. Compared are
  exact   hybrid_attention.ExactLayer, by native kernels where they were compiled
  tensor  the same by tensor operations, as with HYBRID_ATTENTION_NATIVE=0
  full    one softmax over N x 2^T energies with autograd, absent spins penalized, all rows at full length
  prefix  the same, one table for every prefix length, on its own states only
  softmax the softmax of the masked fields
The floor is the time that the six matrix products of all rows take at the rate of a large float32 matrix product.
Candidates take turns in every round, and medians are compared. A candidate whose energies would take more than 1 GiB
runs on a smaller batch and is scaled, which the table marks with *. At last, whole training steps at T = 12,
embed_dim 64.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from hybrid_attention import BoltzmannAttention, DecoderOnlyTransformer, ExactLayer, SoftmaxAttention
from hybrid_attention.native_rows import native_is_used

_MOST_ENERGIES = 2**28
_PENALTY = 1e4
_SWITCH = "HYBRID_ATTENTION_NATIVE"


def state_tables(num_spins: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return spins (T, 2^T), products of pairs (pairs, 2^T), and occupations (2^T, T)."""
    bits = (torch.arange(2**num_spins) >> torch.arange(num_spins)[:, None]) & 1
    spins = (2 * bits - 1).float()
    rows, columns = torch.triu_indices(num_spins, num_spins, 1)
    return spins, spins[rows] * spins[columns], bits.T.float()


class FullTable(nn.Module):
    """One table of N x 2^T energies for all rows."""

    def __init__(self, num_spins: int) -> None:
        super().__init__()
        self.couplings = nn.Parameter(torch.zeros(num_spins * (num_spins - 1) // 2))
        self.spins, self.products, self.occupations = state_tables(num_spins)
        absent = torch.ones(num_spins, num_spins).triu(1)
        self.ruled_out = -_PENALTY * (absent @ (self.spins < 0).float())
        first, second = torch.triu_indices(num_spins, num_spins, 1)
        self.first, self.second, self.absent = first, second, absent

    def forward(self, fields: Tensor, present: Tensor) -> Tensor:
        pairs = torch.zeros_like(self.absent).index_put((self.first, self.second), self.couplings)
        pinned = fields.masked_fill(~present, 0) - self.absent @ (pairs + pairs.T)
        exponents = pinned @ self.spins + self.couplings @ self.products + self.ruled_out
        return (exponents.softmax(-1) @ self.occupations).masked_fill(~present, 0)


class PrefixTables(nn.Module):
    """One table for every prefix length."""

    def __init__(self, num_spins: int) -> None:
        super().__init__()
        self.couplings = nn.Parameter(torch.zeros(num_spins, num_spins))
        self.tables = [state_tables(length) for length in range(1, num_spins + 1)]

    def forward(self, fields: Tensor, present: Tensor) -> Tensor:
        parts = []
        for row, (spins, products, occupations) in enumerate(self.tables):
            first, second = torch.triu_indices(row + 1, row + 1, 1)
            exponents = fields[..., row, : row + 1] @ spins + self.couplings[first, second] @ products
            p = exponents.softmax(-1) @ occupations
            parts.append(functional.pad(p, (0, fields.shape[-1] - row - 1)))
        return torch.stack(parts, dim=-2)


class TensorOperations(ExactLayer):
    """The exact layer without native kernels."""

    def forward(self, fields: Tensor, present: Tensor | None = None) -> Tensor:
        before = os.environ.get(_SWITCH)
        os.environ[_SWITCH] = "0"
        try:
            return super().forward(fields, present)
        finally:
            del os.environ[_SWITCH]
            if before is not None:
                os.environ[_SWITCH] = before


class Softmax(nn.Module):
    """The softmax of the masked fields."""

    def forward(self, fields: Tensor, present: Tensor) -> Tensor:
        return fields.masked_fill(~present, -torch.inf).softmax(-1)


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the largest sum of live tensors that the call allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    live = peak = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def both_passes(module: nn.Module, fields: Tensor, present: Tensor, grad: Tensor) -> None:
    fields.grad = None
    module.zero_grad()
    module(fields, present).backward(grad)


def measure(num_spins: int, batch: int, rounds: int) -> None:
    torch.manual_seed(0)
    present = torch.ones(num_spins, num_spins, dtype=torch.bool).tril()
    candidates: dict[str, tuple[nn.Module, int, int]] = {
        "exact": (ExactLayer(num_spins), batch, rounds),
        "tensor": (TensorOperations(num_spins), batch, rounds),
        "softmax": (Softmax(), batch, rounds),
    }
    per_row = {"full": num_spins * 2**num_spins, "prefix": 2 ** (num_spins + 1)}
    kinds = {"full": FullTable, "prefix": PrefixTables}
    for name, entries in per_row.items():
        size = min(batch, _MOST_ENERGIES // entries)
        if size:
            candidates[name] = (kinds[name](num_spins), size, max(2, min(rounds, 2**27 // (size * entries))))
    runs, times, scales = {}, {name: [] for name in candidates}, {}
    for name, (module, size, _) in candidates.items():
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.2)
        fields = torch.randn(size, 1, num_spins, num_spins).requires_grad_()
        runs[name] = partial(both_passes, module, fields, present, torch.randn(size, 1, num_spins, num_spins))
        scales[name] = batch / size
        runs[name]()
    for number in range(rounds):
        for name, run in runs.items():
            if number < candidates[name][2]:
                times[name].append(seconds(run))
    middle = {name: statistics.median(times[name]) * scales[name] for name in runs}
    memory = {name: peak_bytes(run) * scales[name] for name, run in runs.items()}
    cells = [f"{num_spins:3d}"]
    for name in ("exact", "tensor", "full", "prefix", "softmax"):
        if name not in runs:
            cells.append(f"{'-':>40}")
            continue
        mark = "*" if scales[name] > 1 else " "
        ratio = f"{middle[name] / middle['exact']:8.2f}x {memory[name] / memory['exact']:7.2f}x"
        cells.append(
            f"{middle[name] * 1e3:9.2f}{mark}{memory[name] / 2**20:9.1f}{mark}" + (ratio if name != "exact" else "")
        )
    cells.append(f"{floor_seconds(num_spins, batch) * 1e3:7.2f}")
    print(" | ".join(cells), flush=True)


def floor_seconds(num_spins: int, batch: int) -> float:
    """Return how long six multiplications and additions for each state of each row take at the least."""
    states = batch * (2 ** (num_spins + 1) - 2)
    return 12 * states / flops_per_second()


@cache
def flops_per_second(size: int = 1024) -> float:
    a, b = torch.randn(size, size), torch.randn(size, size)
    return 2 * size**3 / min(seconds(lambda: a @ b) for _ in range(5))


def training_step(rounds: int, num_spins: int = 12, embed_dim: int = 64, batch: int = 128) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(65, (batch, num_spins))
    targets = torch.randint(65, (batch, num_spins))
    steps = {}
    for name, attention in {
        "exact": lambda: BoltzmannAttention(embed_dim, ExactLayer(num_spins)),
        "softmax": lambda: SoftmaxAttention(embed_dim),
    }.items():
        model = DecoderOnlyTransformer(65, 65, num_spins, embed_dim, attention)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        steps[name] = partial(one_step, model, optimizer, tokens, targets)
        for _ in range(5):
            steps[name]()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(seconds(step))
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    print(
        f"training step, T = {num_spins}, embed_dim {embed_dim}, batch {batch}, with feed-forward: "
        f"exact {middle['exact'] * 1e3:.2f} ms, softmax {middle['softmax'] * 1e3:.2f} ms, "
        f"ratio {middle['exact'] / middle['softmax']:.2f}"
    )


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: Tensor, targets: Tensor) -> None:
    optimizer.zero_grad()
    functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--spins", type=int, nargs="+", default=list(range(4, 21)))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"torch {torch.__version__}, {options.threads} thread(s), batch {options.batch}: ms, MiB, and both over exact's"
    )
    native = native_is_used(torch.zeros(1), torch.zeros(1))
    print(f"exact is computed by {'native kernels' if native else 'tensor operations'}")
    titles = [f"{'exact':>20}", *(f"{name:>40}" for name in ("tensor", "full", "prefix", "softmax"))]
    print(" | ".join(["  T", *titles, "  floor"]))
    for num_spins in options.spins:
        measure(num_spins, options.batch, options.rounds)
    training_step(2 * options.rounds)


if __name__ == "__main__":
    main()
