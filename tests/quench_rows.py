"""Circuits that tell providers' orders of circuits, wires and signs apart, and their exact probabilities."""

import numpy as np
import pennylane as qml
import pytest
from trotter_oracle import trotter_state

from devices import DQA

SHOTS = 4000
ANGLES = np.array([[0.3, 0.3, 0.35], [0.2, 0.4, 0.3]])
FIELDS = np.array([[0.2, 0.7, -0.4], [0.6, -0.3, 0.1], [-0.5, 0.4, 0.3], [0.2, 0.2, 0.9]])
COUPLINGS = np.array([0.4, -0.2, 0.3])
QUICK = {"first_wait": 0}


def need(name):
    if name not in qml.plugin_devices:
        pytest.skip(f"pip install the extra of {name}")


def quench(fields, shots=SHOTS, measure_z=False):
    """A circuit on the first wires, and on fewer than the device has where there are fewer fields."""
    wires = range(len(fields))
    pairs = COUPLINGS if len(fields) == 3 else COUPLINGS[: len(fields) - 1]
    measured = [qml.expval(qml.Z(wire)) for wire in wires] if measure_z else [qml.probs(wires=wires)]
    return qml.tape.QuantumScript([DQA(fields, pairs, ANGLES, wires=wires)], measured, shots=shots)


def exact(fields):
    """Probabilities from matrix exponentials, wire 0 the leftmost bit."""
    pairs = COUPLINGS if len(fields) == 3 else COUPLINGS[: len(fields) - 1]
    return abs(trotter_state(fields, pairs, ANGLES)) ** 2


def run(device, circuits):
    return qml.execute(circuits, device, diff_method=None)


def assert_close(found, expected, shots=SHOTS):
    for ours, theirs in zip(found, expected, strict=True):
        assert (abs(np.asarray(ours) - theirs) <= 5 * np.sqrt(theirs * (1 - theirs) / shots)).all()


ROWS = [*FIELDS, FIELDS[0, :2], FIELDS[1, :1]]
