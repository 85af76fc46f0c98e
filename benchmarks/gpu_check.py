"""Whether the circuits and the layers compute on an NVIDIA GPU what they compute on the CPU, and how fast.

    python benchmarks/gpu_check.py [--sizes 8,10,512 16,16,64] [--devices default.qubit lightning.gpu] [--rounds 5]

Without a GPU it says so and ends. Otherwise each check prints the largest difference from the CPU, relative to the
largest number where that is above 1; then come the tables of dqa_devices.py, with tensors and peak memory on the GPU,
but for lightning, which takes its numbers from the CPU. The exit status is 1 if a check fails.
"""

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pennylane as qml
import torch
from dqa_devices import HEADER, NOTE, OURS, Candidate, make_parser, measure, training_step
from torch import Tensor

from devices import DQA, make_device
from devices.quench import quench_probabilities
from hybrid_attention import DQALayer, ExactLayer, LinearSchedule
from hybrid_attention.layers import IsingLayer

OTHERS = ("default.qubit", "lightning.gpu")
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
NO_GPU = "There is no GPU here: torch.cuda.is_available() is false. Nothing was checked."
SPINS = 6

Difference = tuple[str, float, float]


def draw(*shape: int, seed: int) -> Tensor:
    """Return normal numbers, float64 on the CPU, that float32 holds exactly."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def distance(ours: Tensor, expected: Tensor, device: torch.device) -> float:
    """Return the largest difference, relative to the largest number above 1; infinity on another device."""
    if ours.device.type != device.type or ours.shape != expected.shape or not ours.isfinite().all():
        return float("inf")
    if not expected.numel():
        return 0.0
    ours, expected = ours.detach().cpu().double(), expected.detach().double()
    return float((ours - expected).abs().max()) / max(1.0, float(expected.abs().max()))


def with_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor] = ()
) -> tuple[Tensor, ...]:
    """Return a function's result, and the gradients of a weighted sum of it for its inputs and parameters."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    result = function(*inputs)
    weights = torch.linspace(-1, 2, result.numel(), dtype=result.dtype, device=result.device).view(result.shape)
    return result, *torch.autograd.grad((weights * result).sum(), [*inputs, *parameters])


def check_quench(device: torch.device) -> Iterator[Difference]:
    """Compare probabilities and gradients of fields, couplings and angles with those of the CPU in float64."""
    for wires, batch in ((1, 3), (5, 7), (10, 4)):
        inputs = (
            draw(batch, wires, seed=1),
            draw(batch, wires * (wires - 1) // 2, seed=2),
            LinearSchedule(8, tau=12.0).angles().float().double(),
        )
        expected = with_gradients(quench_probabilities, inputs)
        for dtype, tolerance in TOLERANCES.items():
            ours = with_gradients(quench_probabilities, [x.to(device, dtype) for x in inputs])
            for name, x, y in zip(
                ("probabilities", "d fields", "d couplings", "d angles"), ours, expected, strict=True
            ):
                yield f"quench, {wires} wires, {dtype}, {name}", distance(x, y, device), tolerance


def check_qnode(device: torch.device) -> Iterator[Difference]:
    """Compare a QNode on hybrid.statevector, whose parameters are on the device, with default.qubit on the CPU."""
    wires, batch = 4, 5
    inputs = (draw(batch, wires, seed=1), draw(batch, wires * (wires - 1) // 2, seed=2), draw(3, 3, seed=3))

    def function(name: str, measure_all: Callable[[], object]) -> Callable[..., Tensor]:
        def circuit(fields: Tensor, couplings: Tensor, angles: Tensor) -> object:
            DQA(fields, couplings, angles, wires=range(wires))
            return measure_all()

        return qml.QNode(circuit, make_device(name, wires), interface="torch", diff_method="backprop")

    measurements = {
        "probs": lambda: qml.probs(wires=range(wires)),
        "expval Z Z": lambda: qml.expval(qml.Z(0) @ qml.Z(2)),
    }
    for kind, measure_all in measurements.items():
        expected = with_gradients(function("default.qubit", measure_all), inputs)
        ours = with_gradients(function(OURS, measure_all), [x.to(device) for x in inputs])
        for name, x, y in zip(("result", "d fields", "d couplings", "d angles"), ours, expected, strict=True):
            yield f"QNode, {kind}, {name}", distance(x, y, device), TOLERANCES[torch.float64]


def check_layer(build: Callable[[], IsingLayer], device: torch.device) -> Iterator[Difference]:
    """Compare a layer of two heads, with and without a causal mask, with itself on the CPU in float64."""
    layer = build().double()
    name, spins = type(layer).__name__, SPINS
    with torch.no_grad():
        layer.couplings.copy_(0.5 * draw(*layer.couplings.shape, seed=4))
    fields = draw(3, 2, spins, spins, seed=5)
    for masked in (False, True):
        present = torch.ones(spins, spins, dtype=torch.bool).tril() if masked else None
        expected = with_gradients(partial(layer, present=present), [fields], [layer.couplings])
        for dtype, tolerance in TOLERANCES.items():
            there = copy.deepcopy(layer).to(device, dtype)
            mask = None if present is None else present.to(device)
            ours = with_gradients(partial(there, present=mask), [fields.to(device, dtype)], [there.couplings])
            for part, x, y in zip(("p", "d fields", "d couplings"), ours, expected, strict=True):
                label = f"{name}, {'causal' if masked else 'no mask'}, {dtype}, {part}"
                yield label, distance(x, y, device), tolerance


CHECKS: dict[str, Callable[[torch.device], Iterator[Difference]]] = {
    "quench": check_quench,
    "QNode": check_qnode,
    "DQALayer": partial(check_layer, lambda: DQALayer(SPINS, 2, device=OURS, schedule=LinearSchedule(8, tau=12.0))),
    "ExactLayer": partial(check_layer, lambda: ExactLayer(SPINS, 2)),
}


def run_checks(device: torch.device) -> bool:
    """Print each difference; return whether all are within their tolerances."""
    passed = True
    for name, check in CHECKS.items():
        try:
            for label, difference, tolerance in check(device):
                fine = difference <= tolerance
                passed = passed and fine
                print(f"{'ok' if fine else 'FAILED':6} {label}: {difference:.1e}, at most {tolerance:.0e}", flush=True)
        except Exception as error:  # the checks that follow tell more
            passed = False
            print(f"FAILED {name}: {one_line(error)}", flush=True)
    print("all checks passed" if passed else "some checks FAILED", flush=True)
    return passed


def usable(names: Sequence[str], device: torch.device) -> list[str]:
    """Return the PennyLane devices that run a circuit here, and print in one line why another does not."""
    found = []
    for name in names:
        try:
            candidate = Candidate(name, 8, draw(1, 1, 2, seed=1).float().to(device), draw(1, 1, seed=2).to(device))
            candidate.both()
            found.append(name)
        except Exception as error:
            print(f"{name} is left out: {one_line(error)}", flush=True)
    return found


def one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    options = make_parser(__doc__, OTHERS).parse_args(arguments)
    if not torch.cuda.is_available():
        print(NO_GPU)
        return 0
    device = torch.device("cuda", torch.cuda.current_device())
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(device)}")
    passed = run_checks(device)
    names = usable([name for name in dict.fromkeys(options.devices) if name != OURS], device)
    print(NOTE)
    print(HEADER)
    for size in options.sizes:
        measure(size, names, options.rounds, device)
    training_step(10 * options.rounds, place=device)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
