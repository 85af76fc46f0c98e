"""The DQA operation on PennyLane's arrays: probabilities with gradients in each interface, and as a gate on a state."""

from functools import partial
from typing import Any

import autograd
import numpy as np
import pennylane as qml
import torch
from autograd.extend import defvjp_argnums, primitive
from autograd.tracer import isbox
from pennylane.devices.qubit import apply_operation
from pennylane.typing import TensorLike
from torch import Tensor

from devices.dqa import DQA, coupled_pairs
from devices.quench import DEFAULT_MEMORY_BUDGET, quench_probabilities, quench_state

INTERFACES = ("torch", "autograd", "numpy")


def dqa_probabilities(operation: DQA, memory_budget: int = DEFAULT_MEMORY_BUDGET) -> TensorLike:
    """Return the probabilities of all states after `operation` on |0...0>, (2^T,) or (batch, 2^T).

    They come in the interface of the operation's parameters, which differentiates them; numbers become numpy arrays.
    Cost: that of quench_probabilities.
    """
    data = _with_all_pairs(operation)
    interface = qml.math.get_deep_interface(data)
    if interface == "torch":
        return quench_probabilities(*as_tensors(data), memory_budget=memory_budget)
    if interface == "autograd":
        return _probabilities(*data, memory_budget=memory_budget)
    return quench_probabilities(*as_tensors(data), memory_budget=memory_budget).numpy()


def _with_all_pairs(operation: DQA) -> tuple[TensorLike, TensorLike, TensorLike]:
    """Return fields, couplings of all pairs, with 0 for those that are not coupled, and angles."""
    fields, couplings, angles = operation.data
    coupled = coupled_pairs(len(operation.wires), operation.hyperparameters["coupling_range"])
    every = coupled_pairs(len(operation.wires))
    if len(coupled) == len(every):
        return fields, couplings, angles
    where = {pair: place for place, pair in enumerate(every)}
    spread = np.zeros((len(coupled), len(every)))
    spread[range(len(coupled)), [where[pair] for pair in coupled]] = 1
    if isinstance(couplings, Tensor):
        return fields, couplings @ torch.from_numpy(spread).to(couplings), angles
    return fields, qml.math.dot(couplings, spread), angles


def as_tensors(data: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return fields, couplings and angles as float32 or float64 tensors, on the device of those that torch has."""
    device = next((x.device for x in data if isinstance(x, Tensor)), torch.device("cpu"))
    tensors = (x if isinstance(x, Tensor) else _from_array(qml.math.unwrap(x)) for x in data)
    fields, couplings, angles = (_in_working_precision(x).to(device) for x in tensors)
    return fields, couplings, angles


def _from_array(values: Any) -> Tensor:
    array = np.array(values)
    return torch.from_numpy(array.astype(np.float64) if array.dtype == np.longdouble else array)


def _in_working_precision(values: Tensor) -> Tensor:
    if values.is_complex():
        raise ValueError("DQA was given complex fields, couplings or angles: give real ones.")
    if values.dtype in (torch.float32, torch.float64):
        return values
    return values.float() if values.is_floating_point() else values.double()


@primitive
def _probabilities(fields: Any, couplings: Any, angles: Any, memory_budget: int) -> Any:
    result = quench_probabilities(*as_tensors((fields, couplings, angles)), memory_budget=memory_budget)
    return qml.numpy.array(result.numpy())


def _backward(argnums: tuple[int, ...], _answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the function from the gradient of the probabilities to those of the arguments `argnums`.

    Where autograd traces it in turn, for second derivatives, it goes through the gates one by one.
    """

    def of_arguments(grad: Any) -> tuple[Any, ...]:
        if any(isbox(x) for x in (*args, grad)):
            by_gates = partial(_probabilities_by_gates, args, argnums)
            return autograd.make_vjp(by_gates)(tuple(args[i] for i in argnums))[0](grad)
        tensors = as_tensors(args)
        wanted = [tensors[i].requires_grad_() for i in argnums]
        with torch.enable_grad():
            result = quench_probabilities(*tensors, **kwargs)
        return tuple(x.numpy() for x in torch.autograd.grad(result, wanted, torch.from_numpy(np.array(grad))))

    return of_arguments


defvjp_argnums(_probabilities, _backward)


def _probabilities_by_gates(args: tuple[Any, ...], argnums: tuple[int, ...], values: tuple[Any, ...]) -> Any:
    given = list(args)
    for index, value in zip(argnums, values, strict=True):
        given[index] = value
    fields, couplings, angles = given
    wires = range(qml.math.shape(fields)[-1])
    gates = DQA.compute_decomposition(fields, couplings, angles, wires)
    circuit = qml.tape.QuantumScript(gates, [qml.probs(wires=wires)])
    return qml.devices.qubit.simulate(circuit, interface="autograd")


@apply_operation.register
def _apply_dqa(operation: DQA, state: TensorLike, is_state_batched: bool = False, **_: Any) -> TensorLike:
    """Apply DQA to a state of PennyLane's simulators, (2, ..., 2) or (batch, 2, ..., 2), wires numbered from 0."""
    interface = qml.math.get_deep_interface((state, *operation.data))
    if interface not in ("torch", "numpy"):
        for gate in operation.decomposition():
            state = apply_operation(gate, state, is_state_batched=is_state_batched)
            is_state_batched = is_state_batched or gate.batch_size is not None
        return state
    parameters = as_tensors(_with_all_pairs(operation))
    psi = state if isinstance(state, Tensor) else torch.from_numpy(np.array(state))
    wires = [wire + is_state_batched for wire in operation.wires]
    after = _apply_to_wires(psi.to(parameters[0].device), parameters, wires, is_state_batched, operation.batch_size)
    return after if interface == "torch" else after.numpy()


def _apply_to_wires(
    state: Tensor,
    parameters: tuple[Tensor, Tensor, Tensor],
    wires: list[int],
    is_state_batched: bool,
    batch_size: int | None,
) -> Tensor:
    """Move the operation's wires to the end, and fold the batch and all other wires into rows of one quench."""
    fields, couplings, angles = parameters
    if not is_state_batched:
        state = state.unsqueeze(0)
        wires = [wire + 1 for wire in wires]
    ends = list(range(state.dim() - len(wires), state.dim()))
    moved = state.movedim(wires, ends)
    if batch_size is not None and len(moved) == 1:
        moved = moved.expand(batch_size, *moved.shape[1:])
    others = 2 ** (moved.dim() - 1 - len(wires))
    fields, couplings = (x.repeat_interleave(others, 0) if x.dim() == 2 else x for x in (fields, couplings))
    after = quench_state(fields, couplings, angles, moved.reshape(-1, 2 ** len(wires)))
    after = after.reshape(moved.shape).movedim(ends, wires)
    return after if is_state_batched or batch_size is not None else after[0]
