"""Quantum devices by name, with errors that say what to install or change."""

import difflib
from typing import Any

import pennylane as qml

from devices.backends import check_braket_simulator, ibm_backend
from devices.credentials import check_credentials, credentials_hint
from devices.messages import one_line
from devices.noise import add_noise, aer_noise_model
from devices.options import check_options
from devices.remote import take_retry_settings, with_retries

_PACKAGES = {
    "lightning.gpu": "pennylane-lightning-gpu",
    "lightning.kokkos": "pennylane-lightning-kokkos",
    "lightning.tensor": "pennylane-lightning-tensor",
    "qiskit": "pennylane-qiskit",
    "braket": "amazon-braket-pennylane-plugin",
    "ionq": "pennylane-ionq",
    "cirq": "pennylane-cirq",
    "qulacs": "pennylane-qulacs",
}
_EXTRAS = {
    "lightning.gpu": "gpu",
    "lightning.kokkos": "kokkos",
    "qiskit": "qiskit",
    "braket": "braket",
    "ionq": "ionq",
    "cirq": "cirq",
}
_NOISY = "default.mixed"


def make_device(name: str, wires: int | None, **options: Any) -> qml.devices.Device:
    """Return the PennyLane device `name` with wires 0..wires-1, which are the spins in order.

    Remote devices (qiskit.remote, braket.aws.qubit, ionq.simulator and ionq.qpu) come as a `RetryingDevice`.

    Args:
        name: PennyLane's short name, such as "default.qubit", "lightning.qubit" or "lightning.gpu".
        wires: number of wires, 1 or more, or None on devices that can take those of each circuit.
        options: passed to the device. Plain data stand for objects: `noise` of default.mixed, such as
            {"depolarizing": 0.01, "readout": 0.02}; `noise_model` of qiskit.aer and `backend` of qiskit.remote, names
            such as "FakeManilaV2", or for the latter that of a machine of IBM's. Remote devices also take `retries`,
            `first_wait` and `circuits_per_job`, as RetryingDevice does.

    Raises:
        ValueError: if there is no such device, its package is not installed, an option is missing, not one of the
            device's, or names nothing, credentials are missing, the device has fewer wires, or it cannot be made
            here (such as lightning.gpu without a GPU).

    Cost: that of the device's constructor; importing a plugin for the first time takes seconds.
    """
    if wires is not None and wires < 1:
        raise ValueError(f"A device with {wires} wires was asked for: a device needs at least 1.")
    if name not in qml.plugin_devices:
        qml.refresh_devices()
    if name not in qml.plugin_devices:
        raise ValueError(_no_such_device(name))
    noise = options.pop("noise", None)
    if noise is not None and name != _NOISY:
        raise ValueError(f"The device {name!r} was given noise={noise!r}: only {_NOISY} has this option.")
    retry_settings = take_retry_settings(name, options)
    check_credentials(name, options)
    objects = _with_objects(name, wires or 1, options)
    check_options(name, objects)
    try:
        device = qml.device(name, wires=wires, **objects)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "nothing but wires"
        raise ValueError(
            f"The device {name!r} was given {given} and refused it ({one_line(error)}): give only options that its "
            "constructor has."
        ) from error
    except Exception as error:
        missing = credentials_hint(error)
        if missing:
            raise ValueError(f"The device {name!r} has no credentials ({one_line(error)}): {missing}.") from error
        hint = (
            " It needs an NVIDIA GPU with a recent driver; use lightning.qubit on a CPU."
            if name.endswith("gpu")
            else ""
        )
        raise ValueError(f"The device {name!r} cannot be used here ({one_line(error)}).{hint}") from error
    if wires is not None and device.wires is not None and len(device.wires) < wires:
        raise ValueError(
            f"The device {name!r} has {len(device.wires)} wires and {wires} were asked for: take fewer spins or "
            "another device."
        )
    return with_retries(name, device, retry_settings) if noise is None else add_noise(device, noise)


def _with_objects(name: str, wires: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with the objects that their names stand for."""
    noise_model, backend = options.get("noise_model"), options.get("backend")
    if name == "qiskit.aer" and isinstance(noise_model, str):
        return {**options, "noise_model": aer_noise_model(noise_model, wires)}
    if name == "qiskit.remote" and backend is None:
        raise ValueError(
            "The device 'qiskit.remote' was given no backend: name one of IBM's machines, or a stand-in for one "
            "that runs here, such as FakeManilaV2."
        )
    if name == "qiskit.remote" and isinstance(backend, str):
        return {**options, "backend": ibm_backend(backend, wires)}
    if name == "braket.local.qubit" and isinstance(backend, str):
        check_braket_simulator(backend)
    return options


def _no_such_device(name: str) -> str:
    family = name.partition(".")[0]
    package = _PACKAGES.get(name) or _PACKAGES.get(family)
    if package:
        extra = _EXTRAS.get(name) or _EXTRAS.get(family)
        wanted = f"'hybrid-attention[{extra}]', which brings {package}" if extra else package
        return f"The device {name!r} is not installed: pip install {wanted}."
    known = sorted(qml.plugin_devices)
    close = difflib.get_close_matches(name, known, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is no device {name!r} here; installed are {', '.join(known)}.{guess}"
