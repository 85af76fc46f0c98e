"""The benchmarks run, and what they compare the exact layer with computes the same numbers."""

import importlib.util
from pathlib import Path

import pytest
import torch

from hybrid_attention import ExactLayer


@pytest.fixture(scope="module")
def exact_layer():
    path = Path(__file__).parents[1] / "benchmarks" / "exact_layer.py"
    spec = importlib.util.spec_from_file_location("exact_layer_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("num_spins", [1, 2, 5, 9])
def test_plain_enumeration_agrees_with_the_exact_layer(exact_layer, num_spins):
    torch.manual_seed(num_spins)
    present = torch.ones(num_spins, num_spins, dtype=torch.bool).tril()
    fields = torch.randn(3, 1, num_spins, num_spins)
    layer, full, prefix = ExactLayer(num_spins), exact_layer.FullTable(num_spins), exact_layer.PrefixTables(num_spins)
    couplings = torch.randn(1, num_spins * (num_spins - 1) // 2)
    first, second = torch.triu_indices(num_spins, num_spins, 1)
    with torch.no_grad():
        layer.couplings.copy_(couplings)
        full.couplings.copy_(couplings[0])
        prefix.couplings[first, second] = couplings[0]
    expected = layer(fields, present)
    torch.testing.assert_close(full(fields, present), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(prefix(fields, present), expected, rtol=0, atol=1e-5)


def test_the_exact_layer_benchmark_runs(exact_layer, capsys):
    exact_layer.measure(3, batch=2, rounds=1)
    exact_layer.training_step(rounds=1, num_spins=3, embed_dim=4, batch=2)
    out = capsys.readouterr().out
    assert out.startswith("  3 | ")
    assert "training step, T = 3, embed_dim 4, batch 2" in out
