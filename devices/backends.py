"""What runs a plugin's circuits, from its name: IBM's machines, stand-ins for them, and local Braket simulators."""

import inspect
from typing import Any

from devices.credentials import credentials_hint
from devices.messages import one_line, unknown

_STAND_IN = "Fake"
_ANALOG = "braket_ahs"


def fake_backend(name: str) -> Any:
    """Return a stand-in for one of IBM's machines, which runs here with the noise that the machine once had.

    Args:
        name: a class of qiskit_ibm_runtime.fake_provider, such as "FakeManilaV2".

    Raises:
        ValueError: if there is no such class.

    Cost: seconds on the first call, which imports qiskit.
    """
    from qiskit_ibm_runtime import fake_provider
    from qiskit_ibm_runtime.fake_provider.fake_backend import FakeBackendV2

    found = {
        key: kind
        for key, kind in vars(fake_provider).items()
        if inspect.isclass(kind) and issubclass(kind, FakeBackendV2) and kind is not FakeBackendV2
    }
    if name not in found:
        raise ValueError(unknown("fake backend", name, found))
    return found[name]()


def ibm_backend(name: str, wires: int) -> Any:
    """Return IBM's machine of that name, or a stand-in for it that runs here.

    Args:
        name: the machine's name, such as "ibm_brisbane", or that of a stand-in, such as "FakeManilaV2".
        wires: how many qubits are needed.

    Raises:
        ValueError: if there is no such machine for this account, no account, or the machine has fewer qubits.

    Cost: seconds for a stand-in; a few requests to IBM for a machine.
    """
    if name.startswith(_STAND_IN):
        backend = fake_backend(name)
    else:
        from qiskit_ibm_runtime import QiskitRuntimeService

        try:
            service = QiskitRuntimeService()
        except Exception as error:
            hint = credentials_hint(error) or "see whether https://quantum.cloud.ibm.com can be reached from here"
            raise ValueError(f"IBM's machine {name!r} cannot be used ({one_line(error)}): {hint}.") from error
        try:
            backend = service.backend(name)
        except Exception as error:
            raise ValueError(unknown("machine of IBM's", name, [other.name for other in service.backends()])) from error
    check_size(name, backend, wires)
    return backend


def check_size(name: str, backend: Any, wires: int) -> None:
    """Raise ValueError if the backend has fewer qubits than wires.

    Args:
        name: the backend's, for the error.
        backend: has a number num_qubits.
        wires: how many qubits are needed.
    """
    if backend.num_qubits < wires:
        raise ValueError(
            f"The backend {name!r} has {backend.num_qubits} qubits and {wires} wires were asked for: take fewer spins "
            "or a larger backend."
        )


def check_braket_simulator(name: str) -> None:
    """Raise ValueError if no local Braket simulator of that name is installed.

    Args:
        name: such as "braket_sv" or "braket_dm", which runs noise.
    """
    from braket.devices import LocalSimulator

    known = LocalSimulator.registered_backends() - {_ANALOG}
    if name not in known:
        raise ValueError(unknown("local Braket simulator", name, known))
