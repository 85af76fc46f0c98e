"""The PennyLane device hybrid.statevector: PennyLane's gates and measurements, and DQA circuits a batch at a time."""

from collections.abc import Sequence
from functools import partial
from math import inf
from numbers import Real
from typing import Any

import pennylane as qml
from pennylane.devices import DefaultQubit, ExecutionConfig
from pennylane.devices.modifiers import simulator_tracking, single_tape_support
from pennylane.devices.preprocess import decompose
from pennylane.devices.qubit.simulate import simulate
from pennylane.tape import QuantumScript
from pennylane.transforms.core import BoundTransform, CompilePipeline

from devices.dqa import DQA
from devices.dqa_on_states import INTERFACES, dqa_probabilities
from devices.quench import DEFAULT_MEMORY_BUDGET
from devices.row_batches import join_rows, split_rows
from devices.z_measurements import measure_probabilities, needs_probabilities_only

_BYTES_PER_AMPLITUDE = 16


@simulator_tracking
@single_tape_support
class HybridStatevector(DefaultQubit):
    """State vectors of PennyLane circuits, in which the operation `devices.DQA` runs whole, a batch of rows at once.

    Registered as `hybrid.statevector`. A circuit that is one DQA operation, measured on the Z basis (probabilities,
    expectation values and variances of products of Z), runs in the precision of its parameters, on the device that
    torch parameters are on; its gradients, by backprop, undo the Trotter steps one by one, so that their memory does
    not grow with the number of steps. Any other circuit is simulated as by default.qubit, with DQA as one of its
    gates; numpy, autograd and torch parameters give what they give there, and so do shots, whose draws `seed` fixes.

    Args:
        wires: number of wires or their labels; any wires without it.
        shots: number of shots of circuits that name none.
        seed: seed of the draws, as for default.qubit.
        memory_budget: bytes. Circuits of other gates whose batch of states is larger run some rows at a time, and
            backprop through them keeps every state, as in default.qubit. Circuits of DQA alone run 16 rows or more at a
            time in any case; their gradients keep the final states up to this size, and run the quench again beyond it.

    Raises:
        ValueError: if memory_budget is not a positive, finite number.

    Cost: O(P T 2^T) for each row of a DQA circuit with P steps, forward and backward; as default.qubit otherwise.
    """

    def __init__(
        self,
        wires: Any = None,
        shots: Any = None,
        seed: Any = "global",
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
    ) -> None:
        if isinstance(memory_budget, bool) or not isinstance(memory_budget, Real) or not 1 <= memory_budget < inf:
            raise ValueError(f"memory_budget={memory_budget!r} was given: give a positive number of bytes.")
        super().__init__(wires=wires, shots=shots, seed=seed)
        self.memory_budget: int = int(memory_budget)

    @property
    def name(self) -> str:
        """The name under which qml.device finds the device."""
        return "hybrid.statevector"

    def preprocess_transforms(self, execution_config: ExecutionConfig | None = None) -> CompilePipeline:
        """Return default.qubit's transforms, which leave DQA operations whole except for adjoint differentiation."""
        pipeline = super().preprocess_transforms(execution_config)
        if execution_config is not None and execution_config.gradient_method == "adjoint":
            return pipeline
        return CompilePipeline([_keep_whole(step) for step in pipeline])

    def execute(self, circuits: Sequence[QuantumScript], execution_config: ExecutionConfig | None = None) -> Any:
        """Return the results of each circuit."""
        config = execution_config or ExecutionConfig()
        self.reset_prng_key()
        self._state_cache: dict[Any, Any] | None = {} if config.use_device_jacobian_product else None
        return tuple(self._simulate(circuit, config) for circuit in circuits)

    def _simulate(self, circuit: QuantumScript, config: ExecutionConfig) -> Any:
        operation = circuit.operations[0] if len(circuit.operations) == 1 else None
        if (
            isinstance(operation, DQA)
            and not circuit.shots
            and needs_probabilities_only(circuit.measurements, operation.wires)
            and qml.math.get_deep_interface(operation.data) in INTERFACES
        ):
            probabilities = dqa_probabilities(operation, self.memory_budget)
            return measure_probabilities(circuit.measurements, probabilities, operation.wires)
        rows = max(self.memory_budget // (_BYTES_PER_AMPLITUDE * 2 ** len(circuit.wires)), 1)
        if circuit.batch_size is None or circuit.batch_size <= rows:
            return self._simulate_gates(circuit, config)
        parts = split_rows(circuit, rows)
        return join_rows(parts, [self._simulate_gates(part, config) for part in parts])

    def _simulate_gates(self, circuit: QuantumScript, config: ExecutionConfig) -> Any:
        return simulate(
            circuit,
            debugger=self._debugger,
            state_cache=self._state_cache,
            rng=self._rng,
            prng_key=self.get_prng_keys()[0],
            interface=config.interface if config.gradient_method in ("backprop", None) else None,
            mcm_method=config.mcm_config.mcm_method,
            postselect_mode=config.mcm_config.postselect_mode,
        )


def _keep_whole(step: BoundTransform) -> BoundTransform:
    """Return the transform, which leaves DQA whole where it decomposes."""
    if step.tape_transform is not decompose.tape_transform:
        return step
    accepts = partial(_accepts, step.kwargs["stopping_condition"])
    return BoundTransform(decompose, step.args, {**step.kwargs, "stopping_condition": accepts})


def _accepts(other_gates: Any, operation: Any) -> bool:
    return isinstance(operation, DQA) or other_gates(operation)
