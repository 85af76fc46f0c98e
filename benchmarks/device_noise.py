"""What the noise of one of IBM's machines leaves of the magnetizations, on stand-ins that run here.

    python benchmarks/device_noise.py [--spins 4 8] [--machine FakeGuadalupeV2] [--queries 8] [--shots 4000]
        [--threads 1]

Needs the extra `qiskit`. Fields and couplings are normal with spreads 0.5 and 0.2. Compared with the same circuits
without noise are
  aer        qiskit.aer, where pairs of qubits that the machine does not connect have gates without noise
  mitigated  the same with readout errors taken out
  routed     qiskit.remote on the stand-in, where distant pairs meet by SWAP gates
as the share of <Z> that is kept (the slope of a line through 0), the rms error of <Z>, and their correlation.
"""

import argparse
from itertools import product
from typing import Any

import torch
from torch import Tensor

from hybrid_attention import DQALayer, LinearSchedule

SPREADS = (0.5, 0.2)
SCHEDULES = (LinearSchedule(2, 2.0), LinearSchedule(4, 4.0), LinearSchedule(8, 12.0))


def devices(machine: str) -> dict[str, dict[str, Any]]:
    """Return the settings of DQALayer for each device."""
    aer = {"device": "qiskit.aer", "device_options": {"noise_model": machine, "seed_simulator": 1}}
    remote = {"backend": machine, "seed_transpiler": 1, "simulator": {"seed_simulator": 1}}
    return {
        "aer": aer,
        "mitigated": {**aer, "mitigate_readout": True},
        "routed": {"device": "qiskit.remote", "device_options": remote},
    }


def magnetizations(fields: Tensor, schedule: LinearSchedule, **settings: Any) -> Tensor:
    """Return <Z> of every query and spin: (queries, T)."""
    layer = DQALayer(fields.shape[-1], schedule=schedule, gradient="covariance", clip=False, **settings).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        layer.couplings.normal_(0, SPREADS[1], generator=generator)
        return 2 * layer(fields[None, None])[0, 0] - 1


def compare(noisy: Tensor, clean: Tensor) -> tuple[float, float, float]:
    """Return the share that is kept, the rms error, and the correlation."""
    kept = (noisy * clean).sum() / clean.square().sum()
    correlation = torch.corrcoef(torch.stack((noisy.flatten(), clean.flatten())))[0, 1]
    return float(kept), float((noisy - clean).square().mean().sqrt()), float(correlation)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spins", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--machine", default="FakeGuadalupeV2")
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--shots", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"{options.machine}, {options.queries} queries, {options.shots:,} shots: kept, rms error, correlation of <Z>")
    print("  T  steps   rms <Z> | " + " | ".join(f"{name:^17}" for name in devices("")))
    for num_spins, schedule in product(options.spins, SCHEDULES):
        generator = torch.Generator().manual_seed(0)
        fields = SPREADS[0] * torch.randn(options.queries, num_spins, dtype=torch.float64, generator=generator)
        clean = magnetizations(fields, schedule)
        cells = []
        for settings in devices(options.machine).values():
            found = compare(magnetizations(fields, schedule, shots=options.shots, **settings), clean)
            cells.append(" ".join(f"{number:5.3f}" for number in found))
        rms = float(clean.square().mean().sqrt())
        print(f"{num_spins:3d} {schedule.steps:6d} {rms:9.3f} | " + " | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
