"""Keys of circuits: equal where circuits are, and different where anything differs."""

import pennylane as qml
import torch

from devices.circuit_keys import circuit_keys


def test_keys_tell_circuits_apart_to_the_bit():
    def script(angle=0.1, wire=0, gate=qml.RX, measured=0, shots=10):
        return qml.tape.QuantumScript([gate(angle, wire)], [qml.expval(qml.Z(measured))], shots=shots)

    circuits = [
        script(),
        script(angle=0.1 + 1e-16),
        script(angle=torch.tensor(0.1, dtype=torch.float32)),
        script(wire=1),
        script(gate=qml.RY),
        script(measured=1),
        script(shots=11),
        script(shots=None),
    ]
    keys = circuit_keys(circuits)
    assert len(set(keys)) == len(circuits)
    assert circuit_keys([script(), script()]) == [keys[0], (keys[0][0], 1)]
    trained = script(angle=torch.tensor(0.1, dtype=torch.float64, requires_grad=True))
    assert circuit_keys([trained]) == circuit_keys([script(angle=torch.tensor(0.1, dtype=torch.float64))])
