"""Which devices can only sample."""

_SAMPLERS = ("qiskit.aer", "qiskit.basicsim", "qiskit.remote", "braket.aws.qubit", "ionq.simulator", "ionq.qpu")


def samples_only(name: str) -> bool:
    """Return whether the device `name` needs a number of shots, because hardware or its plugin gives only samples.

    Such a device does not refuse a circuit without shots everywhere: qiskit.aer and qiskit.remote silently take 1024,
    and braket.aws.qubit a default of the machine behind it. So ask here, and give a number.

    Args:
        name: PennyLane's short name; a device that is not known here counts as one with exact probabilities.
    """
    return name in _SAMPLERS
