"""Quantum devices by name, with errors that say what to install or change."""

import difflib
from typing import Any

import pennylane as qml

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
_EXTRAS = {"lightning.gpu": "gpu"}


def make_device(name: str, wires: int, **options: Any) -> qml.devices.Device:
    """Return the PennyLane device `name` with wires 0..wires-1, which are the spins in order.

    Args:
        name: PennyLane's short name, such as "default.qubit", "lightning.qubit" or "lightning.gpu".
        wires: number of wires, 1 or more.
        options: passed to the device.

    Raises:
        ValueError: if there is no such device, its package is not installed, an option is not one of the device's, the
            device has fewer wires, or it cannot be made on this machine (such as lightning.gpu without a GPU).

    Cost: that of the device's constructor; importing a plugin for the first time takes seconds.
    """
    if wires < 1:
        raise ValueError(f"A device with {wires} wires was asked for: a device needs at least 1.")
    if name not in qml.plugin_devices:
        qml.refresh_devices()
    if name not in qml.plugin_devices:
        raise ValueError(_no_such_device(name))
    try:
        device = qml.device(name, wires=wires, **options)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "nothing but wires"
        raise ValueError(
            f"The device {name!r} was given {given} and refused it ({_one_line(error)}): give only options that its "
            "constructor has."
        ) from error
    except (ImportError, RuntimeError, OSError, qml.exceptions.DeviceError) as error:
        hint = (
            " It needs an NVIDIA GPU with a recent driver; use lightning.qubit on a CPU."
            if name.endswith("gpu")
            else ""
        )
        raise ValueError(f"The device {name!r} cannot be used here ({_one_line(error)}).{hint}") from error
    if device.wires is not None and len(device.wires) < wires:
        raise ValueError(
            f"The device {name!r} has {len(device.wires)} wires and {wires} were asked for: take fewer spins or "
            "another device."
        )
    return device


def _no_such_device(name: str) -> str:
    package = _PACKAGES.get(name) or _PACKAGES.get(name.partition(".")[0])
    if package:
        wanted = f"'hybrid-attention[{_EXTRAS[name]}]', which brings {package}" if name in _EXTRAS else package
        return f"The device {name!r} is not installed: pip install {wanted}."
    known = sorted(qml.plugin_devices)
    close = difflib.get_close_matches(name, known, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is no device {name!r} here; installed are {', '.join(known)}.{guess}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
