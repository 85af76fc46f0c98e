"""Long runs of the quantum layer keep the memory of the process flat."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import os

import torch

from hybrid_attention import DQALayer, LinearSchedule

torch.set_num_threads(1)
layer = DQALayer(8, 2, device="hybrid.statevector", schedule=LinearSchedule(6, 6.0))
optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)
causal = torch.ones(8, 8, dtype=torch.bool).tril()


def train(steps):
    for _ in range(steps):
        fields = torch.randn(4, 2, 8, 8, requires_grad=True)
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
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from Linux's /proc")
def test_resident_memory_is_flat_over_500_training_steps():
    """A leak of one state vector a step, 256 rows of 2 KiB, would be 250 MiB."""
    run = subprocess.run(
        [sys.executable, "-c", TRAIN],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 8 * 2**20
