"""Long runs of every layer keep the memory of the process flat."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import os
import sys

import torch

from hybrid_attention import (
    DimodLayer, DQALayer, ExactLayer, FieldsOnlyLayer, GibbsLayer, LinearSchedule, MeanFieldLayer, ToeplitzCouplings,
    TransferMatrixLayer,
)

torch.set_num_threads(1)
schedule = LinearSchedule(6, 6.0)
layer = {
    "exact": lambda: ExactLayer(8, 2),
    "fields only": lambda: FieldsOnlyLayer(8, 2),
    "transfer matrix": lambda: TransferMatrixLayer(32, 2, ToeplitzCouplings(4)),
    "mean field": lambda: MeanFieldLayer(16, 2),
    "tap": lambda: MeanFieldLayer(16, 2, tap=True),
    "gibbs": lambda: GibbsLayer(8, 2, num_samples=100, num_chains=20, burn_in=10),
    "dimod": lambda: DimodLayer(4, 1, num_reads=20),
    "dqa on hybrid.statevector": lambda: DQALayer(8, 2, schedule=schedule),
    "dqa with shots": lambda: DQALayer(8, 2, schedule=schedule, shots=100),
    "dqa on default.qubit": lambda: DQALayer(4, 1, device="default.qubit", schedule=schedule),
    "dqa on lightning.qubit": lambda: DQALayer(4, 1, device="lightning.qubit", schedule=schedule),
}[sys.argv[1]]()
T, H = layer.num_spins, layer.num_heads
scale = torch.nn.Parameter(torch.ones(()))
optimizer = torch.optim.Adam([scale, *layer.parameters()], lr=1e-3)
causal = torch.ones(T, T, dtype=torch.bool).tril()


def train(steps):
    for _ in range(steps):
        fields = scale * torch.randn(4 if H > 1 else 1, H, T, T)
        loss = layer(fields, causal).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


train(100)
before = resident_bytes()
train(500)
print(resident_bytes() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "exact",
        "fields only",
        "transfer matrix",
        "mean field",
        "tap",
        "gibbs",
        pytest.param("dimod", marks=pytest.mark.plugins),
        "dqa on hybrid.statevector",
        "dqa with shots",
        "dqa on default.qubit",
        "dqa on lightning.qubit",
    ],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from Linux's /proc")
def test_resident_memory_is_flat_over_500_training_steps(kind):
    """A leak of one state vector a step, 256 rows of 2 KiB, would be 250 MiB."""
    if kind == "dimod":
        pytest.importorskip("dimod", reason="pip install 'hybrid-attention[dwave]'")
    run = subprocess.run(
        [sys.executable, "-c", TRAIN, kind],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 8 * 2**20
