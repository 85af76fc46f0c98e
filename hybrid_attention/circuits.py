"""The circuits of a quantum layer on one device: made on their first use, counted, and submitted in one execution."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pennylane as qml
import torch
from torch import Tensor

from devices import DQA, calibrate_readout, make_device, mitigate_probabilities, mitigate_z, samples_only
from hybrid_attention.circuit_counts import Execution
from hybrid_attention.gradient_methods import choose_gradient
from hybrid_attention.ising import num_pairs, pair_index
from hybrid_attention.precision import DoublePrecisionNumbers
from hybrid_attention.schedules import Schedule

_RESERVED_OPTIONS = ("wires", "shots")
_SECRET_OPTIONS = ("api_key", "token", "ibmqx_token", "password")
_WIRES_OF_CIRCUITS = "lightning."


@dataclass(frozen=True)
class Queries:
    """Queries on the first T spins, whose circuits run on T wires.

    Args:
        inputs: (H, rows, 2, T), fields and then present spins, 1 or 0.
        couplings: (H, pairs).
        gradient: method that differentiates the circuits, or None.
        shifted: further circuits for the gradient of each of them.
    """

    inputs: Tensor
    couplings: Tensor
    gradient: str | None = None
    shifted: int = 0

    @property
    def num_wires(self) -> int:
        """T."""
        return self.inputs.shape[-1]

    @property
    def execution(self) -> Execution:
        """What is submitted, as numbers."""
        return Execution(self.num_wires, self.inputs[:, :, 0, 0].numel(), self.gradient, self.shifted)


class QuenchCircuits:
    """The annealing circuits of a layer, and what came of them.

    Args:
        num_spins: number of wires of the device.
        num_heads: H, each with couplings of its own.
        device: name of a PennyLane device.
        options: further options of the device.
        schedule: the quench.
        shots: samples for each query, or None for exact probabilities.
        gradient: as for DQALayer, which keeps what is chosen.
        mitigate_readout: whether errors of readout are measured and taken out of all results.
        coupling_range: the largest distance of two coupled spins; pairs further apart have no gate.

    Raises:
        ValueError: if the options hold wires, shots or credentials, the shots are no whole number of 2 or more, the
            device cannot be made or has no exact probabilities, or the gradient does not fit it.

    `max_circuits` limits how many circuits are submitted in all, `num_run`; None is no limit.
    """

    def __init__(
        self,
        num_spins: int,
        num_heads: int,
        device: str,
        options: dict[str, Any],
        schedule: Schedule,
        shots: int | None,
        gradient: str,
        mitigate_readout: bool,
        coupling_range: int,
    ) -> None:
        _check_options(options)
        if shots is not None and (type(shots) is not int or shots < 2):
            raise ValueError(
                f"shots={shots!r} was given: take a whole number of 2 or more, which standard errors and covariances "
                "need, or None for exact probabilities."
            )
        self.num_spins = num_spins
        self.num_heads = num_heads
        self.name = device
        self.options = options
        self.schedule = schedule
        self.shots = shots
        self.mitigate_readout = mitigate_readout
        self.coupling_range = coupling_range
        self.max_circuits: int | None = None
        self.num_run = 0
        self.readout_errors: Tensor | None = None
        self.made: dict[tuple[int, str | None], qml.qnn.TorchLayer] = {}
        made = self.device
        if shots is None and samples_only(device):
            raise ValueError(
                f"The device {device!r} was given no shots, and has no exact probabilities: set `shots` to the number "
                "of samples for each query, such as 1000."
            )
        self.gradient = choose_gradient(gradient, device, made, shots)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to one process: devices cannot be copied once they have run."""
        state = {**self.__dict__, "made": {}, "readout_errors": None}
        state.pop("device", None)
        return state

    @cached_property
    def device(self) -> qml.devices.Device:
        """The device, with one wire for each spin, or with those of each circuit where fewer wires then cost less."""
        takes_any = self.name.startswith(_WIRES_OF_CIRCUITS) and not self.mitigate_readout
        wires = None if takes_any else max(self.num_spins, 1)
        return make_device(self.name, wires, **self.options)

    @property
    def measures_z(self) -> bool:
        """Whether circuits measure <Z> of each wire, which adjoint and shifts are restricted to or cheaper for."""
        return self.gradient in ("adjoint", "parameter-shift")

    def forget(self) -> None:
        """Start anew: with a fresh device, no calibration, and no circuit counted."""
        self.__dict__.pop("device", None)
        self.made.clear()
        self.readout_errors = None
        self.num_run = 0

    def use(self, schedule: Schedule) -> None:
        """Make circuits of another schedule from now on."""
        self.schedule = schedule
        self.made.clear()

    def run(self, queries: Sequence[Queries]) -> list[Tensor]:
        """Return what is measured, (H, rows, 2^T) probabilities or (H, rows, T) of <Z>, for each of the queries.

        Raises:
            RuntimeError: if these circuits would be more than max_circuits allow; none of them is run then.
        """
        calibrates = self.mitigate_readout and self.readout_errors is None
        self._count(2 * calibrates + sum(each.execution.all_circuits for each in queries))
        if calibrates:
            self.readout_errors = calibrate_readout(self.device, self.shots)
        with DoublePrecisionNumbers() if self.measures_z else nullcontext():
            # of one sampled row, PennyLane's simulators drop the batch dimension, which TorchLayer needs
            one_circuit = self.shots is not None and queries[0].execution.circuits == 1
            together = len(queries) > 1 or one_circuit
            measured = self._run_together(queries) if together else self._run_one(queries[0])
        found = []
        for each, values in zip(queries, measured, strict=True):
            values = values.view(*each.inputs.shape[:2], -1)
            if self.readout_errors is not None:
                mitigate = mitigate_z if self.measures_z else mitigate_probabilities
                values = mitigate(values, self.readout_errors[: each.num_wires])
            found.append(values)
        return found

    def circuit(self, num_wires: int, gradient: str | None) -> qml.qnn.TorchLayer:
        """Return the circuit on the first wires, made on its first use, without weights.

        PennyLane computes Jacobians with every adjoint execution, also under no_grad, hence circuits without gradient.
        """
        if (num_wires, gradient) not in self.made:
            qnode = qml.QNode(self._quantum_function(num_wires), self.device, interface="torch", diff_method=gradient)
            if gradient == "parameter-shift":
                qnode = qml.transforms.broadcast_expand(qnode)
            if self.shots is not None:
                qnode = qml.set_shots(qnode, self.shots)
            shapes = {"couplings": (self.num_heads, num_pairs(num_wires, self.coupling_range))}
            self.made[num_wires, gradient] = qml.qnn.TorchLayer(qnode, shapes, {"couplings": torch.nn.init.zeros_})
        return self.made[num_wires, gradient]

    def _run_one(self, queries: Queries) -> list[Tensor]:
        circuit = self.circuit(queries.num_wires, queries.gradient)
        circuit.qnode_weights["couplings"] = queries.couplings
        try:
            return [circuit(queries.inputs.reshape(-1, 2 * queries.num_wires))]
        finally:
            circuit.qnode_weights.clear()

    def _run_together(self, queries: Sequence[Queries]) -> list[Tensor]:
        """Run circuits of several sizes in one execution of their device, which a QNode cannot."""
        nodes = [self.circuit(each.num_wires, each.gradient).qnode for each in queries]
        tapes = [
            qml.workflow.construct_tape(node, level="top")(
                inputs=each.inputs.reshape(-1, 2 * each.num_wires), couplings=each.couplings.to(each.inputs)
            )
            for node, each in zip(nodes, queries, strict=True)
        ]
        results = qml.execute(
            tapes,
            self.device,
            diff_method=queries[0].gradient,
            interface="torch",
            transform_program=nodes[0].compile_pipeline,
        )
        stacked = (result if isinstance(result, Tensor) else torch.stack(result, dim=-1) for result in results)
        return [values.to(each.inputs.dtype) for each, values in zip(queries, stacked, strict=True)]

    def _count(self, circuits: int) -> None:
        """Count circuits that are about to be submitted, or raise RuntimeError where they would be too many."""
        if self.max_circuits is not None and self.num_run + circuits > self.max_circuits:
            raise RuntimeError(
                f"{circuits} more circuits after {self.num_run} would pass max_circuits={self.max_circuits} of a "
                "DQALayer: raise it, or shorten the run."
            )
        self.num_run += circuits

    def _quantum_function(self, num_wires: int) -> Callable[[Tensor, Tensor], Any]:
        """Return the QNode's function: the probabilities of all states, or <Z>."""
        with torch.inference_mode(False):
            angles = self.schedule.angles()
        beta_h, beta_J, heads = self.schedule.beta_h, self.schedule.beta_J, self.num_heads
        measures_z, wires, coupling_range = self.measures_z, range(num_wires), self.coupling_range

        def quench(inputs: Tensor, couplings: Tensor) -> Any:
            fields, here = inputs[:, :num_wires], inputs[:, num_wires:].detach()
            pairs = present_pairs(couplings.repeat_interleave(len(inputs) // heads, dim=0), here, coupling_range)
            DQA(fields / beta_h, pairs / beta_J, angles.to(inputs.device), wires, coupling_range)
            if measures_z:
                return [qml.expval(qml.Z(wire)) for wire in wires]
            return qml.probs(wires=wires)

        return quench


def distinct(queries: Queries) -> tuple[Queries, Tensor | None]:
    """Return the queries with rows that are equal in all heads once, and where each row went, or None if nowhere."""
    inputs = queries.inputs
    rows, places = inputs.transpose(0, 1).flatten(1).unique(dim=0, return_inverse=True)
    if len(rows) == inputs.shape[1]:
        return queries, None
    return replace(queries, inputs=rows.view(-1, *inputs.shape[:1], *inputs.shape[2:]).transpose(0, 1)), places


def present_pairs(couplings: Tensor, here: Tensor, coupling_range: int | None = None) -> Tensor:
    """Return couplings (..., pairs) where both spins are present, and 0 elsewhere; here (..., T) is 0 or 1."""
    first, second = pair_index(here.shape[-1], here.device, coupling_range)
    return couplings * (here[..., first] * here[..., second])


def _check_options(options: dict[str, Any]) -> None:
    reserved = [option for option in _RESERVED_OPTIONS if option in options]
    if reserved:
        raise ValueError(
            f"device_options hold {' and '.join(reserved)}: leave them out, the layer makes one wire for each spin "
            "and has a setting `shots` of its own."
        )
    secrets = [option for option in _SECRET_OPTIONS if option in options]
    if secrets:
        raise ValueError(
            f"device_options hold {' and '.join(secrets)}, which checkpoints and logs would save: give credentials "
            "by the environment variables or files of the device's package."
        )
