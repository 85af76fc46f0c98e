"""Circuits with a batch of parameters, cut into circuits of fewer rows, and their results put together again."""

from typing import Any

import pennylane as qml
from pennylane.ops.functions import bind_new_parameters
from pennylane.tape import QuantumScript


def split_rows(circuit: QuantumScript, rows: int) -> list[QuantumScript]:
    """Return circuits of at most `rows` rows each, in order, that together run the batch of `circuit`.

    A single row has no batch dimension: PennyLane's simulators drop it from some results and keep it in others.
    """
    parts = []
    for start in range(0, circuit.batch_size, rows):
        stop = min(start + rows, circuit.batch_size)
        piece = start if stop == start + 1 else slice(start, stop)
        operations = [_take(operation, piece) for operation in circuit.operations]
        parts.append(circuit.copy(operations=operations))
    return parts


def join_rows(parts: list[QuantumScript], results: list[Any]) -> Any:
    """Return the results of the parts as those of the whole batch: arrays joined by rows, lists of counts by rows."""
    first = results[0]
    if isinstance(first, tuple):
        return tuple(join_rows(parts, list(pieces)) for pieces in zip(*results, strict=True))
    single = [part.batch_size is None for part in parts]
    if isinstance(first, dict | list):
        return [row for result, alone in zip(results, single, strict=True) for row in ([result] if alone else result)]
    arrays = [qml.math.expand_dims(x, 0) if alone else x for x, alone in zip(results, single, strict=True)]
    return qml.math.concatenate(arrays, axis=0)


def _take(operation: Any, piece: int | slice) -> Any:
    if operation.batch_size is None:
        return operation
    if not hasattr(operation, "ndim_params"):
        return qml.QubitUnitary(operation.matrix()[piece], operation.wires)
    data = [
        values[piece] if qml.math.ndim(values) > ndim else values
        for values, ndim in zip(operation.data, operation.ndim_params, strict=True)
    ]
    return bind_new_parameters(operation, data)
