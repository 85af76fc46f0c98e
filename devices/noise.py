"""Noise from plain data: channels after every gate of default.mixed, and the noise of IBM's machines for qiskit.aer."""

import numbers
from collections.abc import Mapping
from typing import Any

import pennylane as qml

from devices.backends import check_size, fake_backend
from devices.messages import unknown

_CHANNELS = {
    "depolarizing": qml.DepolarizingChannel,
    "amplitude_damping": qml.AmplitudeDamping,
    "phase_damping": qml.PhaseDamping,
    "bit_flip": qml.BitFlip,
    "phase_flip": qml.PhaseFlip,
}
_READOUT = "readout"


def add_noise(device: qml.devices.Device, noise: Mapping[str, float]) -> qml.devices.Device:
    """Return the device with channels after every gate that it runs, and flipped results.

    Gates are those after decomposition: an IsingZZ on default.mixed counts as two CNOT and an RZ.

    Args:
        device: one that runs channels, such as default.mixed.
        noise: the strength of each channel on each wire of a gate: "depolarizing", "amplitude_damping",
            "phase_damping", "bit_flip", "phase_flip"; "readout" is the probability that a measured bit is flipped, in
            measurements of Z.

    Raises:
        ValueError: if there is no such channel, or a strength is not a number from 0 to 1.

    Cost: one operation for each channel, gate and wire; with readout noise, a circuit for each set of measured wires.
    """
    if not isinstance(noise, Mapping):
        raise ValueError(f"noise={noise!r} was given: give strengths by name, such as {{depolarizing: 0.01}}.")
    for name, strength in noise.items():
        if name not in (*_CHANNELS, _READOUT):
            raise ValueError(unknown("noise", name, (*_CHANNELS, _READOUT)))
        if isinstance(strength, bool) or not isinstance(strength, numbers.Real) or not 0 <= strength <= 1:
            raise ValueError(f"The noise {name!r} was given {strength!r}: give a number from 0 to 1.")
    channels = [(_CHANNELS[name], strength) for name, strength in noise.items() if name != _READOUT]
    readout = [(qml.BitFlip, noise[_READOUT])] if _READOUT in noise else []
    model = qml.NoiseModel({_is_gate: _on_each_wire(channels)}, {_is_measured: _on_each_wire(readout)})
    return qml.noise.add_noise(device, model)


def aer_noise_model(name: str, wires: int) -> Any:
    """Return qiskit-aer's noise model of one of IBM's machines, from data that comes with qiskit-ibm-runtime.

    Pairs of qubits that the machine does not connect have gates without noise in it, as qiskit.aer does not route.

    Args:
        name: a class of qiskit_ibm_runtime.fake_provider, such as "FakeManilaV2".
        wires: how many qubits are used.

    Raises:
        ValueError: if there is no such machine, or it has fewer qubits, the others of which would have no noise.

    Cost: seconds on the first call, which imports qiskit.
    """
    from qiskit_aer.noise import NoiseModel

    backend = fake_backend(name)
    check_size(name, backend, wires)
    return NoiseModel.from_backend(backend)


_is_gate = qml.BooleanFn(lambda operation: not isinstance(operation, qml.operation.Channel))
_is_measured = qml.BooleanFn(lambda measurement: True)


def _on_each_wire(channels: list[tuple[Any, float]]) -> Any:
    def noise(target: Any, **_: Any) -> None:
        for channel, strength in channels:
            for wire in target.wires:
                channel(strength, wires=wire)

    return noise
