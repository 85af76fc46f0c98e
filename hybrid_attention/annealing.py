"""Distributions over states that the annealing circuit has for sets of Ising models, on any PennyLane device."""

from typing import Any

import pennylane as qml
import torch
from torch import Tensor

from devices import DQA, make_device, samples_only
from hybrid_attention.clipping import clip_fields
from hybrid_attention.instances import MAX_ENUMERATED, Instances
from hybrid_attention.schedules import Schedule

DEFAULT_DEVICE = "hybrid.statevector"
_AMPLITUDES_AT_ONCE = 2**20


class Annealer:
    """The annealing circuit on a device, with probabilities of all states as its result.

    Args:
        device: name of a PennyLane device.
        shots: samples for each model, 2 or more; None for exact probabilities, which autograd differentiates where the
            device offers backprop.
        device_options: further options of the device, such as `seed`.

    Raises:
        ValueError: if there are fewer than 2 shots, or none on a device that only samples.
    """

    def __init__(
        self, device: str = DEFAULT_DEVICE, shots: int | None = None, device_options: dict[str, Any] | None = None
    ) -> None:
        if shots is not None and (type(shots) is not int or shots < 2):
            raise ValueError(
                f"shots={shots!r} was given: take a whole number of 2 or more, or None for exact probabilities."
            )
        if shots is None and samples_only(device):
            raise ValueError(
                f"The device {device!r} was given no shots, and has no exact probabilities: set `shots` to the number "
                "of samples for each model, such as 1000."
            )
        self.device = device
        self.shots = shots
        self.device_options = dict(device_options or {})
        self._devices: dict[int, Any] = {}

    def __call__(self, instances: Instances, schedule: Schedule, clip: bool = True) -> Tensor:
        """Return the distributions of models, each of which goes into the circuit as a query of a DQALayer does.

        Args:
            instances: the models, N of T spins.
            schedule: the quench; fields are divided by its beta_h, couplings by its beta_J.
            clip: bend fields below schedule.max_field first, as the layer does.

        Returns:
            (N, 2^T), wire 0 the leftmost bit, |0> spin +1; with shots the share of samples in each state.

        Raises:
            ValueError: if there are more than 14 spins, or the device cannot be made.

        Cost: N circuits, on simulators O(P T 2^T) each.
        """
        with torch.no_grad():
            return self.run(_as_given(instances, schedule, clip), schedule.angles())

    def samples(self, instances: Instances, schedule: Schedule, clip: bool = True) -> Tensor:
        """Return samples in place of distributions, for any number of spins: (N, shots, T), -1 and +1.

        Raises:
            ValueError: if there are no shots, or the device cannot be made.
        """
        if self.shots is None:
            raise ValueError("Samples were asked for without shots: give the Annealer a number of shots.")
        wires, given = range(instances.num_spins), _as_given(instances, schedule, clip)

        def circuit(fields: Tensor, couplings: Tensor) -> Any:
            DQA(fields, couplings, schedule.angles(), wires=wires)
            return qml.sample(wires=wires)

        node = qml.set_shots(qml.QNode(circuit, self._device(len(wires)), "torch", diff_method=None), self.shots)
        bits = self._in_parts(node, given).view(len(given), self.shots, len(wires))
        return 1 - 2 * bits.to(instances.fields)

    def run(self, instances: Instances, angles: Tensor) -> Tensor:
        """Return the distributions of models that go into the circuit as they are: (N, 2^T), for angles (P, 3)."""
        if instances.num_spins > MAX_ENUMERATED:
            raise ValueError(
                f"Models of {instances.num_spins} spins were given: distributions over all states are kept for up to "
                f"{MAX_ENUMERATED} spins."
            )
        wires = range(instances.num_spins)

        def circuit(fields: Tensor, couplings: Tensor) -> Any:
            DQA(fields, couplings, angles, wires=wires)
            return qml.probs(wires=wires)

        trains = torch.is_grad_enabled() and angles.requires_grad
        node = qml.QNode(circuit, self._device(len(wires)), "torch", diff_method="backprop" if trains else None)
        if self.shots is not None:
            node = qml.set_shots(node, self.shots)
        return self._in_parts(node, instances).to(instances.fields)

    def _in_parts(self, node: qml.QNode, instances: Instances) -> Tensor:
        """Return the results of a circuit for all rows, (N, ...) flattened to (N, entries)."""
        rows = max(1, _AMPLITUDES_AT_ONCE // 2**instances.num_spins)
        parts = zip(instances.fields.split(rows), instances.couplings.split(rows), strict=True)
        return torch.cat([node(fields, couplings).reshape(len(fields), -1) for fields, couplings in parts])

    def _device(self, num_wires: int) -> Any:
        if num_wires not in self._devices:
            self._devices[num_wires] = make_device(self.device, num_wires, **self.device_options)
        return self._devices[num_wires]


def _as_given(instances: Instances, schedule: Schedule, clip: bool) -> Instances:
    """Return the models as the circuit is given them: fields clipped, then both divided by the schedule's betas."""
    fields = clip_fields(instances.fields, schedule.max_field) if clip else instances.fields
    return Instances(fields, instances.couplings).times(1 / schedule.beta_h, 1 / schedule.beta_J)
