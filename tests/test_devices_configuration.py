"""Devices by name: what is made, and what is said where it cannot be."""

import pennylane as qml
import pytest

from devices import make_device


@pytest.mark.parametrize("name", ["default.qubit", "lightning.qubit"])
def test_device_has_the_wires_asked_for(name):
    device = make_device(name, 3)
    assert device.name == name
    assert list(device.wires) == [0, 1, 2]


def test_options_reach_the_device():
    assert make_device("default.qubit", 2, max_workers=2)._max_workers == 2


def test_unknown_device_names_a_close_match_and_the_installed_ones():
    with pytest.raises(ValueError, match=r"lightning\.qubit.*Did you mean 'default\.qubit'"):
        make_device("default.qbit", 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lightning.gpu", r"pip install 'hybrid-attention\[gpu\]'.*pennylane-lightning-gpu"),
        ("lightning.kokkos", "pip install pennylane-lightning-kokkos"),
        ("qiskit.aer", "pip install pennylane-qiskit"),
        ("qiskit.remote", "pip install pennylane-qiskit"),
        ("braket.local.qubit", "pip install amazon-braket-pennylane-plugin"),
        ("ionq.simulator", "pip install pennylane-ionq"),
        ("cirq.simulator", "pip install pennylane-cirq"),
    ],
)
def test_missing_package_is_named(monkeypatch, name, words):
    without = {key: value for key, value in qml.plugin_devices.items() if key != name}
    monkeypatch.setattr(qml, "plugin_devices", without)
    monkeypatch.setattr(qml, "refresh_devices", lambda: None)
    with pytest.raises(ValueError, match=words):
        make_device(name, 2)


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("CUDA driver version is insufficient for CUDA runtime version"),
        ImportError("Pre-compiled binaries for lightning.gpu are not available."),
    ],
    ids=["no driver", "no binaries"],
)
def test_lightning_gpu_without_a_gpu_says_what_it_needs(monkeypatch, failure):
    def fail(*args, **kwargs):
        raise failure

    monkeypatch.setattr(qml, "plugin_devices", {**qml.plugin_devices, "lightning.gpu": None})
    monkeypatch.setattr(qml, "device", fail)
    with pytest.raises(ValueError, match=r"NVIDIA GPU.*lightning\.qubit") as caught:
        make_device("lightning.gpu", 2)
    assert caught.value.__cause__ is failure


@pytest.mark.parametrize("name", ["default.qubit", "lightning.qubit"])
def test_option_that_the_device_does_not_have_is_named(name):
    with pytest.raises(ValueError, match="flavor='sweet'"):
        make_device(name, 2, flavor="sweet")


def test_device_with_fewer_wires_is_an_error(monkeypatch):
    small = qml.device("default.qubit", wires=2)
    monkeypatch.setattr(qml, "device", lambda *args, **kwargs: small)
    with pytest.raises(ValueError, match="has 2 wires and 5 were asked for"):
        make_device("default.qubit", 5)


@pytest.mark.parametrize("wires", [0, -1])
def test_no_wires_is_an_error(wires):
    with pytest.raises(ValueError, match="at least 1"):
        make_device("default.qubit", wires)
