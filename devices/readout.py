"""Readout errors: measured by two circuits, and taken back out of what a device reads.

Each wire is read wrongly on its own: |0> as 1 with probability a, |1> as 0 with probability b. The distribution of what
is read is the true one times the confusion matrix [[1 - a, b], [a, 1 - b]] of each wire, which has an inverse.
"""

import numpy as np
import pennylane as qml
import torch
from torch import Tensor


def calibrate_readout(device: qml.devices.Device, shots: int | None) -> Tensor:
    """Return the probabilities (a, b) of reading |0> as 1 and |1> as 0: (T, 2), float64, for each wire of the device.

    Args:
        device: with wires 0..T-1.
        shots: for each of the two circuits, which prepare |0...0> and |1...1>; None where the device is analytic.

    Raises:
        ValueError: if a wire reads both states alike, so that nothing can be learned from it.

    Cost: two circuits of at most one gate a wire, in one execution.
    """
    wires = range(len(device.wires))
    nothing = [qml.RZ(0.0, wires=0)]  # some machines refuse a circuit without gates
    circuits = [
        qml.tape.QuantumScript(gates, [qml.expval(qml.Z(wire)) for wire in wires], shots=shots)
        for gates in (nothing, [qml.X(wire) for wire in wires])
    ]
    results = qml.execute(circuits, device, diff_method=None)
    zeros, ones = (torch.tensor([float(z) for z in np.atleast_1d(of_one)], dtype=torch.float64) for of_one in results)
    errors = torch.stack(((1 - zeros) / 2, (1 + ones) / 2), -1)
    blind = [wire for wire in wires if errors[wire].sum() >= 1]
    if blind:
        raise ValueError(
            f"The wires {blind} read |0> and |1> alike or exchanged: take other wires, or leave out the mitigation of "
            "readout errors."
        )
    return errors


def mitigate_probabilities(probabilities: Tensor, errors: Tensor) -> Tensor:
    """Return the distributions before readout: (..., 2^T), which sum to 1 and may have small negative entries.

    Args:
        probabilities: (..., 2^T), of what was read, wire 0 the leftmost bit.
        errors: (T, 2), as from `calibrate_readout`.

    Cost: O(T 2^T) for each distribution.
    Source: the inverse of a tensor product of confusion matrices, arXiv 2006.14044.
    """
    a, b = errors.to(probabilities).unbind(-1)
    inverse = torch.stack((torch.stack((1 - b, -b), -1), torch.stack((-a, 1 - a), -1)), -2)
    inverse = inverse / (1 - a - b)[:, None, None]
    shape = probabilities.shape
    for wire, matrix in enumerate(inverse):
        split = probabilities.reshape(*shape[:-1], 2**wire, 2, -1)
        probabilities = torch.einsum("ij,...jk->...ik", matrix, split)
    return probabilities.reshape(shape)


def mitigate_z(z: Tensor, errors: Tensor) -> Tensor:
    """Return <Z> before readout: (..., T), from what was read and `errors` (T, 2) as from `calibrate_readout`."""
    a, b = errors.to(z).unbind(-1)
    return (z - (b - a)) / (1 - a - b)
