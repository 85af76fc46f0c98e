"""torch.compile: the same numbers, with exact marginals and circuits outside of the graphs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo
from conftest import LAYERS, marked
from test_precision import model_with, tokens

from hybrid_attention import BoltzmannAttention, IsingLayer

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++", "c++")),
    reason="inductor needs a C++ compiler, and none is on the path",
)


def layers(*left_out):
    """The layers; those on gate-by-gate devices take seconds and are the same as hybrid.statevector's to a compiler."""
    kinds = [kind for kind in LAYERS if kind not in left_out]
    on_gates = [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds if kind.endswith(".qubit")]
    others = marked([kind for kind in kinds if not kind.endswith(".qubit")])
    return pytest.mark.parametrize("kind", [*others, *on_gates])


@pytest.fixture(autouse=True)
def _fresh_graphs():
    torch._dynamo.reset()


def gradients(model, run):
    model.zero_grad()
    out = run(tokens())
    out.square().mean().backward()
    return [out.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


@layers()
def test_a_compiled_model_gives_the_same_outputs_and_gradients(kind):
    model = model_with(kind)
    plain = gradients(model, model)
    compiled = gradients(model, torch.compile(model, backend="eager"))
    for ours, theirs in zip(compiled, plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@layers("fields only")
def test_marginals_are_outside_of_the_graphs_and_linear_maps_inside(kind, monkeypatch):
    """In a graph, a call would be seen once while it is traced and never again."""
    attention = BoltzmannAttention(8, LAYERS[kind](4, 2))
    graphs, calls, traced = [], [], []
    forward = torch.nn.Linear.forward
    monkeypatch.setattr(
        torch.nn.Linear,
        "forward",
        lambda linear, x: (traced.append(torch.compiler.is_compiling()), forward(linear, x))[1],
    )
    marginals = type(attention.layer).marginals
    outer = torch.compiler.disable(
        lambda layer, *given: (calls.append(torch.compiler.is_compiling()), marginals(layer, *given))[1]
    )
    assert getattr(marginals, "_torchdynamo_disable", False)
    monkeypatch.setattr(type(attention.layer), "marginals", outer)

    def backend(graph, example):
        graphs.append(graph)
        return graph.forward

    compiled, x = torch.compile(attention, backend=backend), torch.randn(2, 4, 8)
    expected = attention(x)
    calls.clear()
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected)
    assert calls == [False] * 3
    code = "\n".join(graph.code for graph in graphs)
    assert "linear" in code
    assert not any(name in code for name in ("MeetInTheMiddle", "exp_", "complex"))


@layers()
def test_compiled_attention_hands_no_view_across_a_graph_break(kind):
    """From torch 2.13's cache of compiled graphs, views of intermediate tensors come back with shapes at random."""
    outputs = []

    def backend(graph, example):
        def run(*given):
            found = graph.forward(*given)
            outputs.extend(x for x in found if isinstance(x, torch.Tensor) and x.requires_grad)
            return found

        return run

    torch.compile(BoltzmannAttention(8, LAYERS[kind](4, 2)), backend=backend)(torch.randn(2, 4, 8))
    assert outputs
    assert all(x._base is None or x._base.shape.numel() == x.numel() for x in outputs)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("kind", ["exact", "dqa on hybrid.statevector"])
def test_compiled_code_gives_the_same_numbers_also_from_its_cache(kind, tmp_path):
    here = Path(__file__).parent
    settings = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "PYTHONPATH": f"{here.parent}{os.pathsep}{here}"}
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, str(here / "compiled_attention.py"), kind],
            capture_output=True,
            text=True,
            timeout=900,
            env={**os.environ, **settings, "OMP_NUM_THREADS": "1"},
        )
        assert run.returncode == 0, run.stderr
        assert float(run.stdout) < 1e-5


def test_layers_keep_their_contract_when_they_are_compiled_alone():
    layer = LAYERS["exact"](3, 1)
    assert isinstance(torch.compile(layer, backend="eager")._orig_mod, IsingLayer)
    fields = torch.tensor([[[0.3, -0.2, 1.0]]])
    assert torch.equal(torch.compile(layer, backend="eager")(fields), layer(fields))
