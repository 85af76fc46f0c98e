"""Where plugins look for credentials, and what to say where there are none."""

import os
from collections.abc import Mapping
from typing import Any

_IONQ_KEYS = ("IONQ_API_KEY", "PENNYLANE_IONQ_API_KEY")
_HINTS = {
    "NoRegionError": "set AWS_DEFAULT_REGION, or `region` in ~/.aws/config",
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials",
    "PartialCredentialsError": "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials",
    "ProfileNotFound": "set AWS_PROFILE to a profile that ~/.aws/config has",
    "AccountNotFoundError": "set QISKIT_IBM_TOKEN, or save an account to ~/.qiskit/qiskit-ibm.json with "
    "QiskitRuntimeService.save_account",
}


def check_credentials(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError if the device would find out only at its first circuit that it has no credentials.

    Args:
        name: PennyLane's short name of the device.
        options: what its constructor is given.
    """
    if name.startswith("ionq.") and not options.get("api_key") and not any(map(os.getenv, _IONQ_KEYS)):
        raise ValueError(f"The device {name!r} has no API key: set {_IONQ_KEYS[0]} to the key of your IonQ account.")
    if name == "braket.aws.qubit" and not options.get("device_arn"):
        raise ValueError(
            f"The device {name!r} was given no device_arn: set it to the Amazon resource name of the machine, such as "
            "arn:aws:braket:::device/quantum-simulator/amazon/sv1."
        )


def credentials_hint(error: BaseException) -> str | None:
    """Return what to set where the error, or what caused it, says that credentials are missing, else None.

    Args:
        error: raised by a plugin's package, and recognized by the name of its class.
    """
    for kind in type(error).__mro__:
        if kind.__name__ in _HINTS:
            return _HINTS[kind.__name__]
    return None
