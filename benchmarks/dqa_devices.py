"""Time and memory of the annealing circuit on hybrid.statevector, against other PennyLane devices, in one run.

    python benchmarks/dqa_devices.py [--sizes 8,10,512 16,16,64] [--devices default.qubit lightning.qubit]
                                     [--rounds 5] [--threads 1]

Each size is wires,steps,batch: a batch of circuits that differ in their fields, float32, with random couplings, through
a DQALayer without present spins, so that every device runs what training runs. Devices take turns in every round, and
medians are compared.
  forward   the marginals, without gradients, as in evaluation
  both      forward and backward
  peak      the largest sum of live tensors in both, of the whole batch; "-" for devices that work outside of torch
  copies    the same over the batch's state, batch x 2^wires complex numbers of hybrid.statevector's precision
hybrid.statevector runs the whole batch. A device on which that would take too long or too much memory runs the number
of circuits given in the table, fewer times, and is scaled to the batch, which the table marks with *:
on default.qubit, whose fixed cost then falls on fewer circuits, that is an upper bound. From 16 wires on,
hybrid.statevector is also compared with a floor, the arithmetic and the memory traffic of its algorithm without
anything else, at the speeds measured in the same rounds. At last, whole training steps of configs/brackets.yaml
with DQALayer over those with ExactLayer, at T = 8, and each aim of the device with what was measured.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import yaml
from exact_layer import one_step, peak_bytes
from torch import Tensor

from devices.mixers import mixer_groups
from hybrid_attention import BoltzmannAttention, DecoderOnlyTransformer, DQALayer, ExactLayer, LinearSchedule
from lightning_modules.layer_factories import to_factory

OURS = "hybrid.statevector"
OTHERS = ("default.qubit", "lightning.qubit")
SIZES = ((6, 10, 64), (8, 10, 512), (8, 16, 512), (12, 16, 768), (16, 16, 64))
CPU = torch.device("cpu")
_CONFIGS = Path(__file__).parents[1] / "configs"
_TAU = 12.0
_MOST_SECONDS = 6.0
_MOST_BYTES = 2**31
_AGREEMENT = 1e-4
_FLOOR_WIRES = 16
_PRODUCT_WIDTHS = (2**10, 2**12, 2**14, 2**16)
_BYTES_PER_AMPLITUDE = 8

Size = tuple[int, int, int]


def seconds(run: Callable[[], object], place: torch.device) -> float:
    """Return how long a call takes, with all that it starts on a GPU."""
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    start = time.perf_counter()
    run()
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    return time.perf_counter() - start


def peak(run: Callable[[], object], place: torch.device) -> int:
    """Return the largest sum of live tensors that the call allocates."""
    if place.type != "cuda":
        return peak_bytes(run)
    torch.cuda.synchronize(place)
    before = torch.cuda.memory_allocated(place)
    torch.cuda.reset_peak_memory_stats(place)
    run()
    torch.cuda.synchronize(place)
    return torch.cuda.max_memory_allocated(place) - before


class Candidate:
    """A batch of circuits on one device."""

    def __init__(self, name: str, steps: int, fields: Tensor, couplings: Tensor) -> None:
        self.in_torch = not name.startswith("lightning")
        self.place = fields.device if self.in_torch else CPU
        self.layer = DQALayer(fields.shape[-1], device=name, schedule=LinearSchedule(steps, tau=_TAU)).to(self.place)
        with torch.no_grad():
            self.layer.couplings.copy_(couplings)
        self.all_fields = fields.to(self.place)
        self.take(1)

    def take(self, size: int) -> None:
        self.size = size
        self.fields = self.all_fields[:size].clone().requires_grad_()
        self.grad = torch.linspace(-1, 2, self.fields.numel(), device=self.place).view(self.fields.shape)

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.layer(self.fields, None)

    def both(self) -> None:
        self.forget_gradients()
        self.layer(self.fields, None).backward(self.grad)

    def forget_gradients(self) -> None:
        self.fields.grad = None
        self.layer.zero_grad()

    def peak(self) -> int | None:
        if not self.in_torch:
            return None
        self.forget_gradients()
        return peak(self.both, self.place)

    def take_as_many_as_fit(self, batch: int, rounds: int) -> int:
        """Take four times as many circuits until both passes would take too long or too much memory.

        Returns the number of rounds to take part in, at most `rounds`.
        """
        memory = self.peak()
        most = batch if memory is None else max(1, min(batch, _MOST_BYTES // memory))
        taken = seconds(self.both, self.place)
        while self.size < most:
            grown = min(4 * self.size, most)
            if taken * grown / self.size > _MOST_SECONDS:
                taken = min(taken, *(seconds(self.both, self.place) for _ in range(2)))  # it may have been disturbed
            if taken * grown / self.size > _MOST_SECONDS:
                break
            self.take(grown)
            taken = seconds(self.both, self.place)
        return max(1, min(rounds, int(2 * _MOST_SECONDS / taken)))


@dataclass(frozen=True)
class Measured:
    """Seconds per circuit, bytes of the batch, and the number of circuits that ran."""

    forward: float
    both: float
    peak: float | None
    circuits: int


@dataclass(frozen=True)
class Floor:
    """What forward and backward of a batch need at least: mixers at `rate`, phases at the speed of copies.

    A mixer of g wires is a product of a real matrix, 2^g x 2^g, with real and imaginary parts of a state: forward
    once, backward once on the state and once on its gradient. Phases take a pass that reads and writes a state, as
    copying does: forward one, backward one for the state and one for its gradient, and then half of one, which reads
    only, for the gradient of the phases.
    """

    size: Size
    copy_seconds: float
    rate: float
    width: int

    @property
    def mixer_flops(self) -> int:
        wires, steps, batch = self.size
        return 3 * steps * sum(2 * 2**group * 2 for group in mixer_groups(wires)) * batch * 2**wires

    @property
    def mixer_seconds(self) -> float:
        return self.mixer_flops / self.rate

    @property
    def phase_seconds(self) -> float:
        return self.size[1] * (1 + 2 + 0.5) * self.copy_seconds

    @property
    def seconds(self) -> float:
        return self.mixer_seconds + self.phase_seconds

    def show(self, measured: float) -> None:
        wires, steps, batch = self.size
        state = state_bytes(self.size)
        print(
            f"     floor: copying the batch's state of {state / 2**20:.3g} MiB {self.copy_seconds * 1e3:.3g} ms "
            f"({2 * state / self.copy_seconds / 1e9:.1f} GB/s read and written), products of 16 x 16 by "
            f"16 x {self.width} at {self.rate / 1e9:.1f} GFlop/s\n"
            f"       mixers: 3 x {steps} steps x {len(mixer_groups(wires))} groups x {batch} x 2^{wires} amplitudes = "
            f"{self.mixer_flops / 1e9:.3g} GFlop, {self.mixer_seconds * 1e3:.3g} ms; "
            f"phases: {steps} steps x (1 + 2 + 1/2) copies, {self.phase_seconds * 1e3:.3g} ms\n"
            f"       sum {self.seconds * 1e3:.4g} ms, measured {measured * 1e3:.4g} ms: "
            f"{measured / self.seconds:.2f} x floor",
            flush=True,
        )


def state_bytes(size: Size) -> int:
    return size[2] * 2 ** size[0] * _BYTES_PER_AMPLITUDE


def floor_runs(size: Size, place: torch.device) -> dict[str, Callable[[], object]]:
    """Return a copy of the batch's state, and ten matrix products of each width."""
    state = torch.randn(state_bytes(size) // 4, device=place)
    runs: dict[str, Callable[[], object]] = {"copy": partial(torch.empty_like(state).copy_, state)}
    matrix = torch.randn(16, 16, device=place)
    for width in _PRODUCT_WIDTHS:
        source = torch.randn(16, width, device=place)
        runs[f"product {width}"] = partial(ten_products, matrix, source, torch.empty_like(source))
    return runs


def ten_products(matrix: Tensor, source: Tensor, out: Tensor) -> None:
    for _ in range(10):
        torch.mm(matrix, source, out=out)


def floor_of(size: Size, middle: dict[str, float]) -> Floor:
    """Return the floor for the median seconds of `floor_runs`, at the rate of the fastest width."""
    rates = {width: 10 * 2 * 16 * 16 * width / middle[f"product {width}"] for width in _PRODUCT_WIDTHS}
    width = max(rates, key=lambda width: rates[width])
    return Floor(size, middle["copy"], rates[width], width)


def measure(
    size: Size, names: Sequence[str], rounds: int, place: torch.device = CPU, with_floor: bool | None = None
) -> tuple[dict[str, Measured], Floor | None]:
    """Measure hybrid.statevector and the other devices, with a floor if asked for or from 16 wires on; print all."""
    wires, steps, batch = size
    torch.manual_seed(0)
    fields = torch.randn(batch, 1, wires, device=place)
    couplings = 0.2 * torch.randn(1, wires * (wires - 1) // 2, device=place)
    candidates = {name: Candidate(name, steps, fields, couplings) for name in (OURS, *names)}
    runs: dict[str, Callable[[], object]] = {}
    turns, places = {}, {}
    expected = candidates[OURS].forward().cpu()
    for name, candidate in candidates.items():
        deviation = float((candidate.forward().cpu() - expected).abs().max())
        if deviation > _AGREEMENT:
            raise RuntimeError(f"{name} gives marginals that differ by {deviation:.2g} from those of {OURS}.")
        turn = rounds
        if name == OURS:
            candidate.take(batch)
            candidate.forward()
            candidate.both()
        else:
            turn = candidate.take_as_many_as_fit(batch, rounds)
        for kind, run in (("forward", candidate.forward), ("both", candidate.both)):
            runs[f"{name} {kind}"], turns[f"{name} {kind}"], places[f"{name} {kind}"] = run, turn, candidate.place
    with_floor = wires >= _FLOOR_WIRES if with_floor is None else with_floor
    for name, run in floor_runs(size, place).items() if with_floor else ():
        runs[name], turns[name], places[name] = run, rounds, place
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            if number < turns[name]:
                times[name].append(seconds(run, places[name]))
    middle = {name: statistics.median(taken) for name, taken in times.items()}
    found = {}
    for name, candidate in candidates.items():
        memory = candidate.peak()
        found[name] = Measured(
            middle[f"{name} forward"] / candidate.size,
            middle[f"{name} both"] / candidate.size,
            None if memory is None else memory * batch / candidate.size,
            candidate.size,
        )
    floor = floor_of(size, middle) if with_floor else None
    show(size, found)
    if floor is not None:
        floor.show(found[OURS].both * batch)
    return found, floor


NOTE = f"times per circuit, and over {OURS}'s; * measured on fewer circuits than the batch, and scaled to it"
HEADER = (
    "wires steps batch | device             | circuits |    forward us      ratio |       both us      ratio |"
    "    peak MiB   copies"
)


def show(size: Size, found: dict[str, Measured]) -> None:
    ours = found[OURS]
    for name, row in found.items():
        mark = "*" if row.circuits < size[2] else " "
        memory = f"{'-':>11} " if row.peak is None else f"{row.peak / 2**20:11.1f}{mark}"
        copies = f"{row.peak / state_bytes(size):8.2f}" if name == OURS and row.peak is not None else ""
        print(
            f"{size[0]:5d} {size[1]:5d} {size[2]:5d} | {name:18} | {row.circuits:7d}{mark} | "
            f"{row.forward * 1e6:12.2f}{mark} {row.forward / ours.forward:8.1f}x | "
            f"{row.both * 1e6:12.2f}{mark} {row.both / ours.both:8.1f}x |{memory}{copies}",
            flush=True,
        )


def training_step(rounds: int, num_spins: int = 8, place: torch.device = CPU) -> float:
    """Print the time of a training step with DQALayer on hybrid.statevector and with ExactLayer; return the ratio."""
    torch.manual_seed(0)
    config = yaml.safe_load((_CONFIGS / "brackets.yaml").read_text())
    data, model_config = config["data"]["init_args"], config["model"]["init_args"]
    dqa_config = yaml.safe_load((_CONFIGS / "layers" / "dqa.yaml").read_text())
    quantum = to_factory(dqa_config["model"]["init_args"]["layer"])
    embed_dim, num_heads, batch = model_config["embed_dim"], model_config["num_heads"], data["batch_size"]
    tokens = torch.randint(2 * data["num_types"], (batch, num_spins), device=place)
    targets = torch.randint(num_spins, (batch, num_spins), device=place)
    layers = {
        "DQALayer": quantum(num_spins, num_heads),
        "ExactLayer": ExactLayer(num_spins, num_heads),
    }
    steps = {}
    for name, layer in layers.items():
        attention = BoltzmannAttention(embed_dim, layer, use_fields=model_config["use_fields"])
        model = DecoderOnlyTransformer(
            2 * data["num_types"],
            num_spins,
            num_spins,
            embed_dim,
            lambda attention=attention: attention,
            feed_forward=model_config["feed_forward"],
        ).to(place)
        optimizer = torch.optim.AdamW(model.parameters(), lr=model_config["learning_rate"])
        steps[name] = partial(one_step, model, optimizer, tokens, targets)
        for _ in range(3):
            steps[name]()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(seconds(step, place))
    dqa, exact = (statistics.median(taken) for taken in times.values())
    print(
        f"training step of configs/brackets.yaml, T = {num_spins}, embed_dim {embed_dim}, batch {batch}, "
        f"{layers['DQALayer'].schedule}: DQALayer {dqa * 1e3:.2f} ms, ExactLayer {exact * 1e3:.2f} ms, "
        f"ratio {dqa / exact:.2f}",
        flush=True,
    )
    return dqa / exact


def show_aims(results: dict[Size, tuple[dict[str, Measured], Floor | None]], training_ratio: float) -> None:
    """Print a line for each aim: what was measured, and whether it is met."""
    for other, least in (("default.qubit", 60), ("lightning.qubit", 200)):
        found, _ = results.get((8, 10, 512), ({}, None))
        ratio = found[other].both / found[OURS].both if other in found else None
        scaled = " (scaled)" if other in found and found[other].circuits < 512 else ""
        aim(f"8 wires, 10 steps, batch 512, both: {other}{scaled} over {OURS}", ratio, "x", least=least)
    found, floor = results.get((16, 16, 64), ({}, None))
    ours = found.get(OURS)
    over_floor = None if ours is None or floor is None else ours.both * 64 / floor.seconds
    copies = None if ours is None or ours.peak is None else ours.peak / state_bytes((16, 16, 64))
    aim("16 wires, 16 steps, batch 64, both: time over the floor", over_floor, "x", most=2)
    aim("16 wires, 16 steps, batch 64, both: peak memory", copies, " state copies", most=4)
    aim("training step: DQALayer over ExactLayer", training_ratio, "x", most=8)


def aim(name: str, value: float | None, unit: str, least: float | None = None, most: float | None = None) -> None:
    wanted = f"at least {least}{unit}" if least is not None else f"at most {most}{unit}"
    if value is None:
        print(f"aim: {name}: {wanted}; not measured")
        return
    met = (least is None or value >= least) and (most is None or value <= most)
    print(f"aim: {name}: {wanted}; measured {value:.2f}{unit}: {'met' if met else 'not met'}")


def parse_size(text: str) -> Size:
    try:
        wires, steps, batch = (int(part) for part in text.split(","))
        if min(wires, steps, batch) < 1:
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not wires,steps,batch, such as 8,10,512") from None
    return wires, steps, batch


def make_parser(description: str | None, others: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=list(SIZES), metavar="WIRES,STEPS,BATCH")
    parser.add_argument("--devices", nargs="*", default=list(others), help=f"compared with {OURS}")
    parser.add_argument("--rounds", type=int, default=5)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, OTHERS)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} thread(s), {options.rounds} round(s)")
    print(NOTE)
    print(HEADER)
    names = [name for name in dict.fromkeys(options.devices) if name != OURS]
    results = {size: measure(size, names, options.rounds) for size in options.sizes}
    show_aims(results, training_step(10 * options.rounds))


if __name__ == "__main__":
    main()
