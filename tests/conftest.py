"""The layers under test: a new layer adds to LAYERS how it is built, and the contract and attention tests run on it."""

import os

import pytest
import torch
from oracle import draw

import hybrid_attention.native_rows
from hybrid_attention import DQALayer, ExactLayer, FieldsOnlyLayer, LinearSchedule, TransferMatrixLayer

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers take all processors

SCHEDULE = LinearSchedule(3, 3.0)
LAYERS = {
    "exact": ExactLayer,
    "fields only": FieldsOnlyLayer,
    "transfer matrix": TransferMatrixLayer,
    "dqa on hybrid.statevector": lambda *sizes: DQALayer(*sizes, schedule=SCHEDULE),
    "dqa on default.qubit": lambda *sizes: DQALayer(*sizes, device="default.qubit", schedule=SCHEDULE),
    "dqa on lightning.qubit": lambda *sizes: DQALayer(*sizes, device="lightning.qubit", schedule=SCHEDULE),
}
EXACT = ("exact", "fields only", "transfer matrix")
WITH_COUPLINGS = [kind for kind in LAYERS if LAYERS[kind](2, 1).couplings is not None]

# Batches of different sizes may be summed in different order.
ROUNDING = 1e-12

needs_native_kernels = pytest.mark.skipif(
    hybrid_attention.native_rows.row_kernels is None, reason="the native kernels were not compiled at installation"
)


@pytest.fixture(scope="module", params=["tensor operations", pytest.param("native", marks=needs_native_kernels)])
def each_path(request):
    """The exact marginals on the CPU by tensor operations, and by the native kernels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRID_ATTENTION_NATIVE", "1" if request.param == "native" else "0")
        yield


every_layer = pytest.mark.parametrize("kind", LAYERS)


def build_layer(kind, num_spins, num_heads=1, seed=0, spread=0.8):
    """A float64 layer whose couplings are far from 0."""
    layer = LAYERS[kind](num_spins, num_heads).double()
    if layer.couplings is not None:
        with torch.no_grad():
            layer.couplings.copy_(draw(*layer.couplings.shape, seed=seed, center=0.1, spread=spread))
    return layer


def draw_fields(*shape, seed=1):
    return draw(*shape, seed=seed, center=0.2, spread=0.7)


def gradients(layer, fields, present=None):
    """p, dL/dfields, and dL/dcouplings where there are any, of a loss that tells all outputs apart."""
    fields = fields.detach().clone().requires_grad_()
    p = layer(fields, present)
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    return p.detach(), *torch.autograd.grad((weights * p).sum(), [fields, *layer.parameters()])


@pytest.fixture
def one_thread():
    """Scripts set the number of threads of the process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
