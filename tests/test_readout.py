"""Readout errors taken out again: exactly on a noisy simulator, within standard errors from shots."""

from functools import partial, reduce

import pennylane as qml
import pytest
import torch
from conftest import draw_fields
from oracle import causal_mask, draw

from devices.readout import calibrate_readout, mitigate_probabilities, mitigate_z
from hybrid_attention import DQALayer, LinearSchedule

SCHEDULE = LinearSchedule(2, 2.0)
FLIPPED, DAMPED = 0.05, 0.06
ERRORS = (FLIPPED * (1 - DAMPED), FLIPPED + (1 - FLIPPED) * DAMPED)


def noisy_device(name, wires, **options):
    """A device of PennyLane's that reads |0> as 1 and |1> as 0 with the probabilities ERRORS.

    Its own option readout_prob fails in PennyLane 0.45, which loops over channels where it has a number.
    """
    device = qml.device(name, wires=wires, **options)
    device.readout_err = [partial(qml.BitFlip, FLIPPED), partial(qml.AmplitudeDamping, DAMPED)]
    return device


@pytest.fixture
def noise(monkeypatch):
    """Lets every layer that is made run on a device with readout errors."""
    monkeypatch.setattr("hybrid_attention.circuits.make_device", noisy_device)


def build(num_heads=1, **settings):
    layer = DQALayer(3, num_heads, schedule=SCHEDULE, **settings).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, center=0.1, spread=0.3))
    return layer


def mixed(gradient="covariance", **options):
    return {"device": "default.mixed", "gradient": gradient, "device_options": options}


def test_inverse_confusion_matrices_undo_the_confusion():
    true = draw(4, 8).abs()
    true /= true.sum(-1, keepdim=True)
    errors = torch.tensor([[0.01, 0.2], [0.0, 0.0], [0.1, 0.05]], dtype=torch.float64)
    confusion = reduce(torch.kron, [torch.tensor([[1 - a, b], [a, 1 - b]], dtype=torch.float64) for a, b in errors])
    read = true @ confusion.T
    assert (mitigate_probabilities(read, errors) - true).abs().max() < 1e-14
    signs = torch.tensor([[1 - 2 * (i >> wire & 1) for wire in (2, 1, 0)] for i in range(8)], dtype=torch.float64)
    assert (mitigate_z(read @ signs, errors) - true @ signs).abs().max() < 1e-14


def test_calibration_finds_the_readout_errors_of_each_wire():
    expected = torch.tensor(ERRORS, dtype=torch.float64).expand(3, 2)
    assert (calibrate_readout(noisy_device("default.mixed", 3), None) - expected).abs().max() < 1e-12
    counted = calibrate_readout(noisy_device("default.mixed", 3, seed=1), 4000)
    assert ((counted - expected).abs() < 5 * (expected * (1 - expected) / 4000).sqrt()).all()
    assert (calibrate_readout(qml.device("hybrid.statevector", wires=2), None) == 0).all()


def test_wires_that_read_nothing_are_refused():
    device = qml.device("default.mixed", wires=2)
    device.readout_err = [partial(qml.BitFlip, 0.5)]
    with pytest.raises(ValueError, match=r"wires \[0, 1\] read"):
        calibrate_readout(device, None)


@pytest.mark.parametrize("gradient", ["covariance", "parameter-shift"])
@pytest.mark.parametrize("present", [None, causal_mask(3)], ids=["all", "causal"])
def test_mitigation_gives_the_marginals_and_gradients_of_a_device_without_readout_errors(
    present, gradient, monkeypatch
):
    fields = draw_fields(1, 2, 2, 3) if present is None else draw_fields(1, 1, 3, 3)

    def run(**settings):
        h = fields.clone().requires_grad_()
        layer = build(fields.shape[1], **mixed(gradient), **settings)
        p = layer(h, present)
        p.square().sum().backward()
        return p.detach(), h.grad, layer.couplings.grad

    clean = run()
    monkeypatch.setattr("hybrid_attention.circuits.make_device", noisy_device)
    for without, ours, unmitigated in zip(clean, run(mitigate_readout=True), run(), strict=True):
        assert (ours - without).abs().max() < 1e-10
        assert (unmitigated - without).abs().max() > 1e-3


def test_mitigated_estimates_lie_within_their_larger_standard_errors(noise):
    fields = draw_fields(40, 1, 3)
    with torch.no_grad():
        exact = build()(fields)
        layer = build(**mixed(seed=3), shots=4000, mitigate_readout=True)
        layer._circuits.readout_errors = torch.tensor(ERRORS, dtype=torch.float64).expand(3, 2)
        estimate = layer(fields)
    scores = (estimate - exact) / layer.standard_error
    assert scores.abs().max() < 5
    assert scores.square().mean() == pytest.approx(1, abs=5 * (2 / scores.numel()) ** 0.5)
    assert (layer.standard_error > (estimate * (1 - estimate) / 3999).sqrt()).all()
    assert ((estimate >= 0) & (estimate <= 1)).all()


def test_calibration_runs_once_and_is_counted(noise):
    layer = build(**mixed(seed=3), shots=100, mitigate_readout=True)
    fields = draw_fields(2, 1, 3)
    layer(fields)
    assert layer.circuits_run == 2 + 2
    layer(fields)
    assert layer.circuits_run == 2 + 2 + 2
    exact = build(**mixed(), mitigate_readout=True)
    exact(fields)
    assert exact.circuits_run == 2 + 2
    limited = build(**mixed(seed=3), shots=100, mitigate_readout=True, max_circuits=1)
    with pytest.raises(RuntimeError, match="4 more circuits after 0 would pass max_circuits=1"):
        limited(fields)
