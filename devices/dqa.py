"""The Trotterized diabatic quantum annealing (DQA) circuit as one PennyLane operation."""

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pennylane as qml
from pennylane.decomposition import add_decomps, register_resources
from pennylane.operation import Operation
from pennylane.typing import TensorLike


class DQA(Operation):
    """Quench an Ising model from |+...+> through P Trotter steps: Hadamard, then RZ, IsingZZ and RX in each step.

    Step p applies RZ(-2 a_p h_j) on every wire, IsingZZ(-2 b_p J_jk) on every pair and RX(-2 c_p) on every wire, so a
    spin at +1 is |0>, and a positive field or coupling favors +1 or agreement, as in `hybrid_attention.energy`. The
    linear schedule has a_p = b_p = dt B_p and c_p = dt A_p.

    Args:
        fields: (T,) or, broadcast, (batch, T).
        couplings: (T (T - 1) / 2,) or (batch, T (T - 1) / 2), the strict upper triangle of J, row by row.
        angles: (P, 3), P >= 1, the multipliers (a_p, b_p, c_p) of fields, pairs and mixer in each step.
        wires: the spins in order, T of them.
        coupling_range: couplings hold only the pairs at most that far apart, and only these have gates; all without it.

    Raises:
        ValueError: if there are no wires, a shape does not fit their number, or the batch sizes differ or are 0.

    Fields and couplings are in nats, at the inverse temperatures of the schedule behind the angles.
    Cost: T + P (2 T + pairs) gates. Source: arXiv 2606.12478, the diabatic quantum annealing sampler.
    """

    num_params = 3
    ndim_params = (1, 1, 2)
    grad_method = None
    resource_keys = frozenset({"num_wires", "num_steps", "coupling_range"})

    def __init__(
        self,
        fields: TensorLike,
        couplings: TensorLike,
        angles: TensorLike,
        wires: Any,
        coupling_range: int | None = None,
    ) -> None:
        wires = qml.wires.Wires(wires)
        count = len(wires)
        pairs = len(coupled_pairs(count, coupling_range))
        if not count:
            raise ValueError("DQA was given no wires: give one wire for each spin, at least one.")
        shapes = [tuple(qml.math.shape(x)) for x in (fields, couplings, angles)]
        fits = all(1 <= len(shape) <= 2 for shape in shapes) and len(shapes[2]) == 2 and shapes[2][0] > 0
        if not fits or shapes[0][-1] != count or shapes[1][-1] != pairs or shapes[2][1] != 3:
            raise ValueError(
                f"DQA on {count} wire(s) was given fields {shapes[0]}, couplings {shapes[1]} and angles {shapes[2]}: "
                f"give ({count},) or (batch, {count}), ({pairs},) or (batch, {pairs}), and (steps, 3) with 1 step "
                "or more."
            )
        if any(len(shape) == 2 and not shape[0] for shape in shapes[:2]):
            raise ValueError("DQA was given an empty batch: give fields and couplings of one circuit or more.")
        batches = {shape[0] for shape in shapes[:2] if len(shape) == 2}
        if len(batches) > 1:
            raise ValueError(
                f"DQA was given fields {shapes[0]} and couplings {shapes[1]}, batches of different sizes: give one "
                "size, or leave the batch dimension of one of them out."
            )
        super().__init__(fields, couplings, angles, wires=wires)
        self._hyperparameters = {"coupling_range": coupling_range}

    @property
    def resource_params(self) -> dict[str, int]:
        """The numbers that fix the gate counts."""
        return {
            "num_wires": len(self.wires),
            "num_steps": qml.math.shape(self.data[2])[0],
            "coupling_range": self.hyperparameters["coupling_range"],
        }

    @staticmethod
    def compute_decomposition(
        fields: TensorLike, couplings: TensorLike, angles: TensorLike, wires: Any, coupling_range: int | None = None
    ) -> list[Operation]:
        """Return the gates in order."""
        return list(_gates(fields, couplings, angles, wires, coupling_range))


def coupled_pairs(num_wires: int, coupling_range: int | None = None) -> list[tuple[int, int]]:
    """Return the pairs (j, k), j < k, at most coupling_range apart, upper triangle row by row."""
    pairs = combinations(range(num_wires), 2)
    return [(j, k) for j, k in pairs if coupling_range is None or k - j <= coupling_range]


def _gates(
    fields: TensorLike, couplings: TensorLike, angles: TensorLike, wires: Any, coupling_range: int | None = None
) -> Iterator[Operation]:
    pairs = coupled_pairs(len(wires), coupling_range)
    if not pairs:  # no pair gate carries the batch of the (batch, 0) couplings, so the field does
        fields = fields + qml.math.sum(couplings, axis=-1, keepdims=True)
    for wire in wires:
        yield qml.Hadamard(wire)
    for step in range(qml.math.shape(angles)[0]):
        field_angle, pair_angle, mixer_angle = (angles[step][k] for k in range(3))
        for j, wire in enumerate(wires):
            yield qml.RZ(fields[..., j] * (-2 * field_angle), wires=wire)
        for index, (j, k) in enumerate(pairs):
            yield qml.IsingZZ(couplings[..., index] * (-2 * pair_angle), wires=[wires[j], wires[k]])
        for wire in wires:
            yield qml.RX(-2 * mixer_angle, wires=wire)


def _gate_counts(num_wires: int, num_steps: int, coupling_range: int | None) -> dict[type[Operation], int]:
    counts = {
        qml.Hadamard: num_wires,
        qml.RZ: num_steps * num_wires,
        qml.IsingZZ: num_steps * len(coupled_pairs(num_wires, coupling_range)),
        qml.RX: num_steps * num_wires,
    }
    return {gate: count for gate, count in counts.items() if count}


@register_resources(_gate_counts)
def _decompose(
    fields: TensorLike,
    couplings: TensorLike,
    angles: TensorLike,
    wires: Any,
    coupling_range: int | None = None,
    **_: Any,
) -> None:
    """Queue the gates, for PennyLane's decomposition graph."""
    for _gate in _gates(fields, couplings, angles, wires, coupling_range):
        pass


add_decomps(DQA, _decompose)
