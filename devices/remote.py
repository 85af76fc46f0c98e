"""Which devices are remote, and how their jobs are started and retried."""

from collections.abc import Callable
from typing import Any

import pennylane as qml

from devices.braket_jobs import BraketProvider
from devices.ibm_jobs import IBMProvider
from devices.ionq_jobs import IonQProvider
from devices.jobs import Provider
from devices.retrying import RetryingDevice

_PROVIDERS: dict[str, Callable[[qml.devices.Device], Provider]] = {
    "qiskit.remote": IBMProvider,
    "braket.aws.qubit": BraketProvider,
    "ionq.simulator": IonQProvider,
    "ionq.qpu": IonQProvider,
}
_SETTINGS = ("retries", "first_wait", "circuits_per_job")


def take_retry_settings(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of RetryingDevice out of a device's options, and return them.

    Args:
        name: PennyLane's short name of the device.
        options: loses them.

    Raises:
        ValueError: if there are any, and the device is not a remote one.
    """
    settings = {key: options.pop(key) for key in _SETTINGS if key in options}
    if settings and name not in _PROVIDERS:
        given = ", ".join(f"{key}={value!r}" for key, value in settings.items())
        raise ValueError(
            f"The device {name!r} was given {given}: only {', '.join(_PROVIDERS)}, whose jobs are retried, have this."
        )
    return settings


def with_retries(name: str, device: qml.devices.Device, settings: dict[str, Any]) -> qml.devices.Device:
    """Return a remote device with its jobs started together and retried, and any other device as it is.

    Args:
        name: PennyLane's short name of the device.
        device: of that name.
        settings: of RetryingDevice.

    Raises:
        ValueError: if a setting is wrong.
    """
    return RetryingDevice(device, _PROVIDERS[name](device), **settings) if name in _PROVIDERS else device
