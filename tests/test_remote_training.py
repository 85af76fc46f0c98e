"""Quantum layers on a remote device in trouble: the same numbers as without, each circuit paid once."""

import pennylane as qml
import pytest
import torch
from conftest import draw_fields
from mock_remote import FAILURE, REFUSED, UNREACHABLE, Remote, device_on
from oracle import causal_mask, draw

from devices import calibrate_readout, make_device
from hybrid_attention import DQALayer, LinearSchedule
from lightning_modules.circuit_bill import broadcasts

SHOTS = 200
SCHEDULE = LinearSchedule(2, 2.0)


@pytest.fixture
def remote(monkeypatch):
    """Make `remote.mock` a device of PennyLane, on a provider that the test is given."""

    def install(provider):
        class Entry:
            def load(self):
                return lambda wires: device_on(provider, wires=wires)

        monkeypatch.setitem(qml.devices.device_constructor.plugin_devices, "remote.mock", Entry())
        return provider

    return install


def train(steps=3, **settings):
    """Marginals of every step, and the couplings after them; no two rows of a step are equal."""
    layer = DQALayer(3, device="remote.mock", schedule=SCHEDULE, shots=SHOTS, **settings).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, center=0.1, spread=0.3))
    fields = draw_fields(2, 1, 3, 3).requires_grad_()
    optimizer = torch.optim.SGD([layer.couplings, fields], lr=0.1)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        p = layer(fields, causal_mask(3))
        p.square().sum().backward()
        optimizer.step()
        seen.append(p.detach())
    return layer, torch.stack(seen), layer.couplings.detach(), fields.detach()


@pytest.mark.parametrize("settings", [{}, {"gradient": "parameter-shift"}, {"mitigate_readout": True}], ids=str)
def test_training_on_a_remote_device_in_trouble_is_training_on_one_without(remote, settings):
    calm = remote(Remote(circuits_per_job=3))
    layer, *expected = train(**settings)
    troubled = remote(Remote(REFUSED, FAILURE, (2,), None, UNREACHABLE, (0, 1), FAILURE, circuits_per_job=3))
    _, *found = train(**settings)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    assert not troubled.troubles
    assert troubled.paid == calm.paid
    assert calm.paid.total() == layer.circuits_run


def test_a_layer_that_gave_up_goes_on_where_it_was(remote):
    provider = remote(Remote(None, *[FAILURE] * 99, circuits_per_job=2))
    layer = DQALayer(3, device="remote.mock", schedule=SCHEDULE, shots=SHOTS)
    fields = draw_fields(4, 1, 3)
    with pytest.raises(RuntimeError, match="no result after 4 retries in a row"):
        layer(fields)
    assert provider.paid.total() == 2
    provider.troubles.clear()
    layer(fields)
    assert provider.paid.total() == 4
    assert max(provider.paid.values()) == 1


def test_estimate_and_calibration_take_the_device(remote):
    provider = remote(Remote())
    layer = DQALayer(3, device="remote.mock", schedule=SCHEDULE, shots=SHOTS)
    assert not broadcasts(layer)
    assert (calibrate_readout(make_device("remote.mock", 3), SHOTS) == 0).all()
    assert provider.paid.total() == 2
