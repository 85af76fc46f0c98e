"""Which options a device has, where its constructor takes any keyword and lets a misspelled one pass unnoticed."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

_SET_BY_PLUGINS = {"self", "wires", "shots", "circuits", "device", "inputs", "openqasm_ir", "task_specification"}


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise ValueError if an option is none of the device's, and its constructor would not say so.

    Args:
        name: PennyLane's short name of the device.
        options: what its constructor is given beside wires and shots.

    Cost: milliseconds; seconds where the plugin is imported for the first time.
    """
    if name not in _KNOWN or not options:
        return
    try:
        known, places = _KNOWN[name](options)
    except ImportError:  # the constructor says what is missing
        return
    known -= _SET_BY_PLUGINS
    for option in options:
        if option not in known:
            close = difflib.get_close_matches(option, sorted(known), n=1)
            guess = f" (did you mean {close[0]!r}?)" if close else ""
            raise ValueError(f"The device {name!r} has no option {option!r}{guess}: give only options of {places}.")


def _aer(options: Mapping[str, Any]) -> tuple[set[str], str]:
    from pennylane_qiskit import AerDevice
    from qiskit_aer import AerSimulator

    own = _parameters(AerDevice) | {"name", "compile_backend", "noise_model"}
    simulator = set(AerSimulator().options.__dict__) - {"device"}
    return own | _transpiler() - {"routing_method"} | simulator, "AerDevice, AerSimulator and qiskit.transpile"


def _basicsim(options: Mapping[str, Any]) -> tuple[set[str], str]:
    from pennylane_qiskit import BasicSimulatorDevice
    from qiskit.providers.basic_provider import BasicSimulator

    own = _parameters(BasicSimulatorDevice) | {"name", "compile_backend"}
    simulator = set(BasicSimulator().options.__dict__)
    places = "BasicSimulatorDevice, BasicSimulator and qiskit.transpile"
    return own | _transpiler() - {"routing_method"} | simulator, places


def _remote(options: Mapping[str, Any]) -> tuple[set[str], str]:
    from pennylane_qiskit import RemoteDevice
    from pennylane_qiskit.qiskit_device import QiskitDevice
    from qiskit_ibm_runtime.options import EstimatorOptions, SamplerOptions

    own = _parameters(RemoteDevice) | _parameters(QiskitDevice) | {"options", "noise_model"}
    primitives = _parameters(SamplerOptions) | _parameters(EstimatorOptions)
    return own | _transpiler() | primitives, "RemoteDevice, SamplerOptions, EstimatorOptions and qiskit.transpile"


def _braket_local(options: Mapping[str, Any]) -> tuple[set[str], str]:
    from braket.pennylane_plugin import BraketLocalQubitDevice

    simulator = options.get("backend", "default")
    if isinstance(simulator, str):
        (entry,) = entry_points(group="braket.simulators", name=simulator)
        simulator = entry.load()
    run = _parameters(getattr(simulator, "run_openqasm", simulator.run))
    return _with_base(BraketLocalQubitDevice) | run, "BraketLocalQubitDevice and its simulator's run"


def _braket_aws(options: Mapping[str, Any]) -> tuple[set[str], str]:
    from braket.aws import AwsDevice, AwsQuantumTask
    from braket.pennylane_plugin import BraketAwsQubitDevice

    run = _parameters(AwsDevice.run) | _parameters(AwsQuantumTask.create)
    return _with_base(BraketAwsQubitDevice) | run, "BraketAwsQubitDevice and AwsDevice.run"


def _with_base(device: type) -> set[str]:
    """Return the options of a device's constructor and of the one that it passes them on to."""
    return _parameters(device) | _parameters(device.__bases__[0])


def _transpiler() -> set[str]:
    from qiskit import transpile

    return _parameters(transpile)


def _parameters(call: Callable[..., Any]) -> set[str]:
    return {
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


_KNOWN: dict[str, Callable[[Mapping[str, Any]], tuple[set[str], str]]] = {
    "qiskit.aer": _aer,
    "qiskit.basicsim": _basicsim,
    "qiskit.remote": _remote,
    "braket.local.qubit": _braket_local,
    "braket.aws.qubit": _braket_aws,
}
