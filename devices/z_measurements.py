"""Measurements on the Z basis, from the probabilities of all states."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pennylane as qml
from pennylane.measurements import ExpectationMP, MeasurementProcess, ProbabilityMP, VarianceMP
from pennylane.typing import TensorLike
from pennylane.wires import Wires


def needs_probabilities_only(measurements: Iterable[MeasurementProcess], wires: Wires) -> bool:
    """Return whether all are probabilities of some of `wires`, or means or variances of products of Z on them."""
    return all(_is_diagonal(measurement, wires) for measurement in measurements)


def measure_probabilities(
    measurements: Iterable[MeasurementProcess], probabilities: TensorLike, wires: Wires
) -> TensorLike | tuple[TensorLike, ...]:
    """Return the results of measurements that needs_probabilities_only accepts; one result alone is not in a tuple.

    Args:
        measurements: one or more.
        probabilities: (2^T,) or (batch, 2^T), of any interface, the first wire the leftmost bit.
        wires: the T wires in order.
    """
    results = tuple(_measure(measurement, probabilities, wires) for measurement in measurements)
    return results[0] if len(results) == 1 else results


def _is_diagonal(measurement: MeasurementProcess, wires: Wires) -> bool:
    if measurement.mv is not None or not measurement.wires or not wires.contains_wires(measurement.wires):
        return False
    if isinstance(measurement, ProbabilityMP):
        return measurement.obs is None and measurement.eigvals() is None
    if isinstance(measurement, ExpectationMP | VarianceMP) and measurement.obs is not None:
        return _z_wires(measurement) is not None
    return False


def _z_wires(measurement: MeasurementProcess) -> list[Any] | None:
    """Return the wires whose Z the observable multiplies, or None if it is anything else."""
    sentence = measurement.obs.pauli_rep
    if sentence is None or len(sentence) != 1:
        return None
    (word, coefficient) = next(iter(sentence.items()))
    if qml.math.get_interface(coefficient) != "numpy" or coefficient != 1 or set(word.values()) - {"Z"}:
        return None
    return list(word)


def _measure(measurement: MeasurementProcess, probabilities: TensorLike, wires: Wires) -> TensorLike:
    if isinstance(measurement, ProbabilityMP):
        return _marginal(probabilities, [wires.index(wire) for wire in measurement.wires], len(wires))
    places = [wires.index(wire) for wire in _z_wires(measurement) or []]
    if not places:
        mean = qml.math.sum(probabilities, axis=-1)
    else:
        marginal = _marginal(probabilities, places, len(wires))
        ones = sum((np.arange(2 ** len(places)) >> place) & 1 for place in range(len(places)))
        signs = 1.0 - 2.0 * (np.asarray(ones) % 2)
        like = qml.math.cast_like(qml.math.convert_like(signs, probabilities), probabilities)
        mean = qml.math.sum(marginal * like, axis=-1)
    return mean if isinstance(measurement, ExpectationMP) else 1 - mean**2


def _marginal(probabilities: TensorLike, places: list[int], count: int) -> TensorLike:
    """Return the probabilities of the wires at `places`, in that order."""
    if places == list(range(count)):
        return probabilities
    batch = tuple(qml.math.shape(probabilities)[:-1])
    table = qml.math.reshape(probabilities, (*batch, *(2,) * count))
    others = tuple(len(batch) + place for place in range(count) if place not in places)
    if others:
        table = qml.math.sum(table, axis=others)
    order = np.argsort(np.argsort(places))
    table = qml.math.transpose(table, (*range(len(batch)), *(len(batch) + int(place) for place in order)))
    return qml.math.reshape(table, (*batch, 2 ** len(places)))
