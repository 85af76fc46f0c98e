"""How a quantum layer gets its gradients: which methods there are, and which fit a device and its shots."""

import pennylane as qml

THROUGH_SIMULATION = ("backprop", "adjoint")
GRADIENTS = (*THROUGH_SIMULATION, "parameter-shift", "covariance")


def choose_gradient(gradient: str, name: str, device: qml.devices.Device, shots: int | None) -> str:
    """Return the gradient method to use.

    Args:
        gradient: one of GRADIENTS, or "auto": covariance with shots, else the first of backprop and adjoint offered.
        name: the device's, for errors.
        device: asked for what it offers.
        shots: number of samples for each circuit, or None if the device is to be analytic.

    Raises:
        ValueError: if there is no such method, or it does not fit the device or the shots.
    """
    if gradient not in ("auto", *GRADIENTS):
        allowed = ", ".join(f'"{method}"' for method in GRADIENTS)
        raise ValueError(f'gradient={gradient!r} was given: take "auto", {allowed}.')
    if gradient in GRADIENTS[len(THROUGH_SIMULATION) :]:
        return gradient
    if shots is not None:
        if gradient == "auto":
            return "covariance"
        raise ValueError(
            f"gradient={gradient!r} was given with shots={shots}: a state is not known from samples, so take "
            '"covariance" or "parameter-shift", or leave out the shots.'
        )
    offered = [
        method
        for method in THROUGH_SIMULATION
        if device.supports_derivatives(qml.devices.ExecutionConfig(gradient_method=method))
    ]
    if gradient == "auto" and offered:
        return offered[0]
    if gradient in offered:
        return gradient
    if offered:
        raise ValueError(
            f"gradient={gradient!r} was given for the device {name!r}, which offers {' and '.join(offered)}: take "
            'that, "covariance", "parameter-shift" or "auto".'
        )
    raise ValueError(
        f"The device {name!r} offers neither of the gradients {' and '.join(THROUGH_SIMULATION)}: take "
        '"covariance", which costs no further circuits, or "parameter-shift".'
    )


def shifted_circuits(gates: int, steps: int) -> int:
    """Return how many circuits parameter-shift runs for each query beyond its forward one, two for each gate.

    Args:
        gates: in a step whose angle needs a gradient: an RZ for each wire, an IsingZZ for each coupled pair.
        steps: Trotter steps P.
    """
    return 2 * steps * gates
