"""The layers under test: a new layer adds to LAYERS how it is built, and the contract and attention tests run on it."""

import os

import pytest
import torch
from oracle import draw

import hybrid_attention.native_rows
from hybrid_attention import (
    DimodLayer,
    DQALayer,
    ExactLayer,
    FieldsOnlyLayer,
    GibbsLayer,
    LinearSchedule,
    MeanFieldLayer,
    TransferMatrixLayer,
)

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers take all processors

SCHEDULE = LinearSchedule(3, 3.0)
ANNEALING = {"beta_range": [1.0, 1.0], "num_sweeps": 100, "proposal_acceptance_criteria": "Gibbs"}
LAYERS = {
    "exact": ExactLayer,
    "fields only": FieldsOnlyLayer,
    "transfer matrix": TransferMatrixLayer,
    "dqa on hybrid.statevector": lambda *sizes: DQALayer(*sizes, schedule=SCHEDULE),
    "dqa on default.qubit": lambda *sizes: DQALayer(*sizes, device="default.qubit", schedule=SCHEDULE),
    "dqa on lightning.qubit": lambda *sizes: DQALayer(*sizes, device="lightning.qubit", schedule=SCHEDULE),
    "mean field": MeanFieldLayer,
    "tap": lambda *sizes: MeanFieldLayer(*sizes, tap=True),
    "gibbs": lambda *sizes: GibbsLayer(*sizes, num_samples=4000, num_chains=400, burn_in=100).eval(),
    "dimod": lambda *sizes: DimodLayer(*sizes, num_reads=4000, sample_options=ANNEALING).eval(),
}
EXACT = ("exact", "fields only", "transfer matrix")
NEED_EXTRAS = ("dimod",)
SAMPLERS = ("gibbs", "dimod")

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


# Six standard errors between two estimates from 4000 independent samples of p = 1/2: 6 sqrt(2 / 4 / 4000).
SAMPLING = 0.068


def marked(kinds):
    """The kinds as parameters, with the mark of tests that need other packages where a layer does."""
    return [pytest.param(kind, marks=pytest.mark.plugins) if kind in NEED_EXTRAS else kind for kind in kinds]


def rounding(kind):
    """How far estimates of the same marginals may be apart: by rounding, or by sampling."""
    return SAMPLING if kind in SAMPLERS else ROUNDING


WITH_COUPLINGS = [kind for kind in LAYERS if kind != "fields only"]
every_layer = pytest.mark.parametrize("kind", marked(LAYERS))


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
