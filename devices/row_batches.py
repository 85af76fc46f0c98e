"""Circuits with a batch of parameters, cut into circuits of fewer rows, and their results put together again."""

from typing import Any

import pennylane as qml
from pennylane.ops.functions import bind_new_parameters
from pennylane.tape import QuantumScript


def split_rows(circuit: QuantumScript, rows: int) -> list[QuantumScript]:
    """Return circuits of at most `rows` rows each, in order, that together run the batch of `circuit`."""
    parts = []
    for start in range(0, circuit.batch_size, rows):
        piece = slice(start, start + rows)
        operations = [_take(operation, piece) for operation in circuit.operations]
        parts.append(circuit.copy(operations=operations))
    return parts


def join_rows(results: list[Any]) -> Any:
    """Return the results of the parts as those of the whole batch: arrays joined by rows, lists of counts by rows."""
    first = results[0]
    if isinstance(first, tuple):
        return tuple(join_rows(list(parts)) for parts in zip(*results, strict=True))
    if isinstance(first, list):
        return [row for part in results for row in part]
    return qml.math.concatenate(results, axis=0)


def _take(operation: Any, piece: slice) -> Any:
    if operation.batch_size is None:
        return operation
    data = [
        values[piece] if qml.math.ndim(values) > ndim else values
        for values, ndim in zip(operation.data, operation.ndim_params, strict=True)
    ]
    return bind_new_parameters(operation, data)
