"""What a training step costs at sizes that one machine does not reach, from rates that are measured here.

    python benchmarks/scaling.py [--batch 64] [--rounds 5] [--threads 1] [--device cpu] [--shots 1000] [--no-processes]

Time       Forward and backward pass of each layer alone, on causal windows of T positions with one head, float32. Each
           layer has a law for how its work grows with T. Its constant is fitted at one length and checked at a longer
           one ("measured / predicted"), from which times for all longer ones follow; shorter ones are measured.
Cluster    Data parallel training: work over n processes, and a ring that sums gradients, 2 (n - 1) messages of
           1 / n of the parameters each. Checked by two processes of torch.distributed (gloo) on this machine, which sum
           gradients of the size that dense couplings have; --no-processes leaves them out.
Hardware   Circuits are counted by the layer itself. A step takes the machine's time for them and one wait for each job
           that is submitted alone; prices are those of PRICES, published by the vendors in 2025. The closed form is
           checked by a simulation of the machines' queues, event by event.
"""

import argparse
import heapq
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from exact_layer import both_passes, seconds
from torch import nn

from hybrid_attention import DQALayer, ExactLayer, ToeplitzCouplings, TransferMatrixLayer

LENGTHS = (16, 24, 32, 64, 256, 1024, 4096)
BATCHES = (64, 1_000, 100_000)
PROCESSES = (1, 8, 64, 1024)
STEPS = 2_000
BANDWIDTH, LATENCY = 1.25e9, 50e-6  # bytes per second and seconds per message: ethernet of 10 Gbit/s


class Method(NamedTuple):
    """A way to compute attention, with the law for its work.

    Args:
        name: for the tables.
        layer: makes it for windows of T positions.
        work: for a causal window of T positions, up to a constant.
        law: the same in words.
        fitted: length at which the constant is measured.
        checked: longer length at which the law is.
        parameters: number of couplings of a head at T positions.
        longest: positions that the layer allows.
    """

    name: str
    layer: Callable[[int], nn.Module]
    work: Callable[[int], float]
    law: str
    fitted: int
    checked: int
    parameters: Callable[[int], int]
    longest: int | None = None


class Softmax(nn.Module):
    """The softmax of the fields of present positions."""

    def forward(self, fields: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        return fields.masked_fill(~present, -torch.inf).softmax(-1)


def chain(reach: int) -> Method:
    """The transfer matrix with one coupling for each distance up to `reach`."""
    return Method(
        f"transfer matrix, w = {reach}",
        lambda length: TransferMatrixLayer(length, coupling_shape=ToeplitzCouplings(reach)),
        lambda length: length**2 * 2**reach,
        "T^2 2^w",
        64,
        256,
        lambda length: reach,
    )


def states(length: int) -> float:
    """Return 2^T, or infinity where that is no float."""
    return 2.0**length if length < 1024 else math.inf


def pairs(length: int) -> int:
    return length * (length - 1) // 2


METHODS = (
    Method("softmax", lambda length: Softmax(), lambda length: length**2, "T^2", 64, 256, lambda length: 0),
    Method("exact", ExactLayer, states, "2^T", 16, 24, pairs, 24),
    chain(4),
    chain(8),
    Method("DQA, simulated, 8 steps", DQALayer, lambda length: length * states(length), "T 2^T", 10, 16, pairs),
)


def window_seconds(method: Method, length: int, batch: int, rounds: int, device: str) -> float:
    """Return the time of both passes for one window; the smallest of some rounds."""
    torch.manual_seed(length)
    layer = method.layer(length).to(device)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.2)
    fields = torch.randn(batch, 1, length, length, device=device).requires_grad_()
    present = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    grad = torch.randn(batch, 1, length, length, device=device)

    def run() -> None:
        both_passes(layer, fields, present, grad)
        if device != "cpu":
            torch.accelerator.synchronize()

    run()
    return min(seconds(run) for _ in range(rounds)) / batch


def reduce_seconds(parameters: int, processes: int, bandwidth: float = BANDWIDTH, latency: float = LATENCY) -> float:
    """Return the time in which a ring of processes sums float32 gradients.

    Source: P. Patarasuk and X. Yuan, J. Parallel Distrib. Comput. 69, 117 (2009).
    """
    if processes < 2:
        return 0.0
    return 2 * (processes - 1) * (latency + 4 * parameters / processes / bandwidth)


def efficiency(step: float, parameters: int, processes: int) -> float:
    """Return the share of a step that is work, when each process works for `step` seconds."""
    return step / (step + reduce_seconds(parameters, processes))


class Machine(NamedTuple):
    """How a quantum computer is paid and how fast it is.

    Args:
        name: for the table.
        per_circuit: US dollars for each circuit that is submitted.
        per_shot: US dollars.
        per_second: US dollars.
        shot_seconds: time of a shot, with reset and readout.
        circuits_per_job: how many are submitted at once.
    """

    name: str
    per_circuit: float
    per_shot: float
    per_second: float
    shot_seconds: float
    circuits_per_job: int

    def job_seconds(self, shots: int) -> float:
        """Return how long a full job takes."""
        return self.circuits_per_job * shots * self.shot_seconds

    def price(self, circuits: int, shots: int) -> float:
        """Return the price of some circuits in US dollars."""
        each = self.per_circuit + shots * (self.per_shot + self.per_second * self.shot_seconds)
        return circuits * each


PRICES = (
    Machine("superconducting, paid by time", 0.0, 0.0, 1.60, 250e-6, 300),
    Machine("superconducting, paid by shot", 0.30, 0.0009, 0.0, 250e-6, 1),
    Machine("trapped ions, paid by shot", 0.30, 0.03, 0.0, 10e-3, 1),
)


def circuits_per_window(length: int, shots: int) -> int:
    """Return how many circuits a training step runs for a window of different tokens, as the layer counts them."""
    layer = DQALayer(length, shots=shots, device="default.qubit")
    fields = torch.randn(1, 1, length, length, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with layer.counting() as executions:
        layer(fields, torch.ones(length, length, dtype=torch.bool).tril())
    return sum(execution.all_circuits for execution in executions)


def step_seconds(jobs: int, machines: int, wait: float, job: float) -> float:
    """Return how long a step takes when its jobs queue on equal machines: each machine's share, one after the other."""
    return math.ceil(jobs / machines) * (wait + job)


def simulated_step_seconds(jobs: int, machines: int, wait: float, job: float, seed: int = 0) -> float:
    """Return the same by events: the machine that is free first takes the next job after an exponential wait."""
    waits = torch.empty(jobs, dtype=torch.float64)
    waits.exponential_(1 / wait if wait else math.inf, generator=torch.Generator().manual_seed(seed))
    free = [0.0] * machines
    last = 0.0
    for extra in waits.tolist():
        ended = heapq.heappop(free) + (extra if wait else 0.0) + job
        last = max(last, ended)
        heapq.heappush(free, ended)
    return last


def time_of_reduction(rank: int, processes: int, store: str, sizes: tuple[int, ...], rounds: int) -> list[float]:
    """Sum gradients of each size over processes, and return the smallest time for each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    found = []
    for size in sizes:
        gradients, taken = torch.ones(size), math.inf
        for _ in range(rounds):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(gradients)
            taken = min(taken, time.perf_counter() - start)
        found.append(taken)
    dist.destroy_process_group()
    return found


def measured_reduction(sizes: tuple[int, ...], rounds: int) -> list[float]:
    """Return how long two processes on this machine take to sum gradients of each size."""
    import tempfile
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(time_of_reduction, rank, 2, f"{folder}/store", sizes, rounds) for rank in range(2)]
        return [max(taken) for taken in zip(*(job.result() for job in jobs), strict=True)]


def duration(seconds_: float) -> str:
    """Return a time with two digits in the unit that fits it."""
    units = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
    name, size = next((unit for unit in reversed(units) if seconds_ >= unit[1]), units[0])
    if seconds_ >= 365.25 * 86400:
        name, size = "years", 365.25 * 86400
    if seconds_ >= 1e6 * size:
        return "-"
    return f"{seconds_ / size:.2g} {name}" if seconds_ / size < 100 else f"{seconds_ / size:.0f} {name}"


def line(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def heading(title: str, *columns: object) -> None:
    print(f"\n{title}\n", flush=True)
    line(*columns)
    line(*("---" for _ in columns))


class Times(NamedTuple):
    """What windows cost: seconds that were measured, by length, and the constant of the law for longer ones."""

    method: Method
    measured: dict[int, float]
    constant: float

    def seconds(self, length: int) -> float:
        """Return the time of both passes for one window."""
        return self.measured.get(length, self.constant * self.method.work(length))


def show_rates(batch: int, rounds: int, device: str) -> list[Times]:
    """Print what was measured against what was predicted, and return the times of each method."""
    heading("Rates", "layer", "law", "fitted at T", "checked at T", "measured", "predicted", "measured / predicted")
    times = []
    for method in METHODS:
        fitted = window_seconds(method, method.fitted, batch, rounds, device) / method.work(method.fitted)
        measured = window_seconds(method, method.checked, batch, rounds, device)
        predicted = fitted * method.work(method.checked)
        shorter = {n: window_seconds(method, n, batch, rounds, device) for n in LENGTHS if n < method.checked}
        known = {**shorter, method.checked: measured}
        times.append(Times(method, known, measured / method.work(method.checked)))
        shown = duration(measured), duration(predicted), f"{measured / predicted:.2f}"
        line(method.name, method.law, method.fitted, method.checked, *shown)
    return times


def show_times(times: list[Times]) -> None:
    for batch in BATCHES:
        heading(f"One step of {batch:,} windows, one process", "layer", *(f"T = {length}" for length in LENGTHS))
        for each in times:
            longest = each.method.longest or LENGTHS[-1]
            taken = [duration(each.seconds(length) * batch) for length in LENGTHS]
            cells = [t if length <= longest else f"({t})" for length, t in zip(LENGTHS, taken, strict=True)]
            line(each.method.name, *cells)
    fields = [", ".join(f"T = {n}: {4 * batch * n * n / 2**30:.2g} GiB" for n in LENGTHS) for batch in BATCHES]
    print("\nFields of one head in float32:")
    for batch, text in zip(BATCHES, fields, strict=True):
        print(f"  {batch:,} windows: {text}")


def show_limits(times: list[Times]) -> None:
    """Print the longest windows whose training takes a day."""
    columns = (f"{n:,} processes, batch {batch:,}" for batch in BATCHES for n in (1, 1024))
    heading(f"Longest T for {STEPS:,} steps in a day", "layer", *columns)
    for each in times:
        cells = []
        for batch in BATCHES:
            for processes in (1, 1024):
                allowed = 86_400 / STEPS * min(processes, batch) / batch
                last = each.method.longest or 10**6
                longest = max((n for n in doubling(last) if each.seconds(n) <= allowed), default=0)
                cells.append(f"{longest}" + (" (its end)" if longest == each.method.longest else ""))
        line(each.method.name, *cells)


def doubling(last: int) -> list[int]:
    """Return every length up to 32, and beyond in steps of an eighth."""
    found = list(range(1, 33))
    while found[-1] < last:
        found.append(found[-1] + 2 ** (found[-1].bit_length() - 4))
    return [length for length in found if length <= last]


def show_cluster(times: list[Times], batch: int, rounds: int, processes: bool) -> None:
    columns = ("layer", "T", "work of a process", "gradients", *(f"n = {n:,}" for n in PROCESSES[1:]))
    heading(f"Data parallel: share of a step that is work, {batch} windows for each of n processes", *columns)
    for name, length in (("exact", 16), ("exact", 24), ("transfer matrix, w = 8", 1024)):
        each = next(each for each in times if each.method.name == name)
        step = each.seconds(length) * batch
        size = each.method.parameters(length) + 65 * 32 * 2 + length * 32 + 12 * 32**2
        shares = (f"{100 * efficiency(step, size, n):.1f} %" for n in PROCESSES[1:])
        line(name, length, duration(step), f"{4 * size / 1024:.0f} KiB", *shares)
    if not processes:
        return
    sizes = (10_000, 100_000, 1_000_000, 10_000_000)
    taken = measured_reduction(sizes, rounds)
    latency = taken[0] / 2
    bandwidth = 4 * sizes[2] / (taken[2] - taken[0])
    heading("Two processes here sum gradients", "parameters", "measured", "ring formula", "measured / predicted")
    for size, measured in zip(sizes, taken, strict=True):
        predicted = reduce_seconds(size, 2, bandwidth, latency)
        line(f"{size:,}", duration(measured), duration(predicted), f"{measured / predicted:.2f}")
    print(f"\nwith {latency * 1e6:.0f} us a message and {bandwidth / 1e9:.2f} GB/s, fitted to the first and third row")


def show_hardware(shots: int) -> None:
    print(f"\nCircuits that the layer counts for a window: {[circuits_per_window(n, shots) for n in (4, 8, 12)]}")
    columns = ("T", "batch", "circuits", "time on the machine", "price of a step", f"of {STEPS:,} steps")
    for machine in PRICES:
        heading(f"Hardware, {machine.name}: {shots:,} shots, gradient: covariance", *columns)
        for length, batch in ((8, 64), (16, 64), (64, 64), (256, 64), (4096, 64), (16, 1_000), (16, 100_000)):
            circuits = batch * length
            price = machine.price(circuits, shots)
            busy = duration(circuits * shots * machine.shot_seconds)
            line(length, f"{batch:,}", f"{circuits:,}", busy, f"${price:,.0f}", f"${STEPS * price:,.0f}")
    columns = ("circuits", "machines", "wait for a job", "closed form", "simulated", "simulated / closed form")
    machine = PRICES[0]
    heading(f"Queues, {machine.name}, {machine.circuits_per_job} circuits in a job", *columns)
    for circuits in (1_024, 100_000):
        for machines in (1, 4):
            for wait in (0.0, 60.0, 3600.0):
                jobs = math.ceil(circuits / machine.circuits_per_job)
                job = machine.job_seconds(shots)
                closed = step_seconds(jobs, machines, wait, job)
                simulated = sum(simulated_step_seconds(jobs, machines, wait, job, seed) for seed in range(200)) / 200
                ratio = f"{simulated / closed:.2f}"
                line(f"{circuits:,}", machines, duration(wait), duration(closed), duration(simulated), ratio)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="windows that are measured")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shots", type=int, default=1_000)
    parser.add_argument("--no-processes", action="store_true")
    settings = parser.parse_args(arguments)
    torch.set_num_threads(settings.threads)
    print(f"{settings.device}, {settings.threads} thread(s), {settings.rounds} rounds, torch {torch.__version__}")
    times = show_rates(settings.batch, settings.rounds, settings.device)
    show_times(times)
    show_limits(times)
    show_cluster(times, settings.batch, settings.rounds, not settings.no_processes)
    show_hardware(settings.shots)


if __name__ == "__main__":
    main()
