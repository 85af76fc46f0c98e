"""What a circuit is, as a key under which its result can be kept."""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import pennylane as qml
from pennylane.tape import QuantumScript


def circuit_keys(circuits: Sequence[QuantumScript]) -> list[tuple[bytes, int]]:
    """Return a key for each circuit: a hash of its gates, wires, measurements, shots, and parameters to the bit.

    Circuits that are equal get different keys, numbered as they occur, since each is a sample of its own.

    Args:
        circuits: of plain operations, as they reach a device.

    Cost: a walk over the gates of each circuit.
    """
    occurred: Counter[bytes] = Counter()
    keys = []
    for circuit in circuits:
        parameters, structure = qml.pytrees.flatten(circuit)
        hashed = sha256(repr(structure).encode())
        for parameter in parameters:
            hashed.update(_bits(parameter))
        what = hashed.digest()
        keys.append((what, occurred[what]))
        occurred[what] += 1
    return keys


def _bits(parameter: Any) -> bytes:
    array = qml.math.toarray(qml.math.unwrap([parameter])[0])
    if array.dtype == object:
        return repr(parameter).encode()
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()
