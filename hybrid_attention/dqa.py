"""The quantum layer: marginals from the Trotterized diabatic annealing circuit on any PennyLane device."""

from collections.abc import Callable
from typing import Any

import pennylane as qml
import torch
from torch import Tensor

from devices import DQA, make_device
from hybrid_attention.ising import num_pairs
from hybrid_attention.layers import IsingLayer, check_finite
from hybrid_attention.schedules import LinearSchedule, Schedule
from hybrid_attention.state_tables import occupations

_GRADIENTS = ("backprop", "adjoint")
_CLIP_POWER = 8


class DQALayer(IsingLayer):
    """Marginals from diabatic quantum annealing, which samples close to a Boltzmann distribution but not from it.

    Each query is one circuit: the fields over beta_h and the couplings over beta_J go through the Trotterized quench
    `devices.DQA`, and p_j is the probability of |0> on wire j. All queries of a call go out as one broadcast execution
    of a QNode inside a `pennylane.qnn.TorchLayer`. Circuits run in float64.

    Args:
        num_spins: as for IsingLayer, one wire for each spin.
        num_heads: as for IsingLayer.
        device: name of a PennyLane device that simulates analytically.
        schedule: the quench; LinearSchedule() by default.
        gradient: "backprop" or "adjoint" through the circuit; "auto" takes the first that the device offers.
        clip: bend fields smoothly so that |h| stays below schedule.max_field, past which a larger field would give a
            smaller <Z>. Fields up to half of it change by less than 0.1 %.
        device_options: further options of the device.

    Raises:
        ValueError: as for IsingLayer, and if the device cannot be made or does not offer the gradient.

    Cost: for each query O(P T^2 2^T) on a simulator; devices that do not broadcast run a circuit for every query.
    Source: arXiv 2606.12478, Boltzmann attention by diabatic quantum annealing.
    """

    def __init__(
        self,
        num_spins: int,
        num_heads: int = 1,
        device: str = "default.qubit",
        schedule: Schedule | None = None,
        gradient: str = "auto",
        clip: bool = True,
        device_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(num_spins, num_heads)
        self.device = device
        self.device_options = dict(device_options or {})
        self.schedule = LinearSchedule() if schedule is None else schedule
        self.clip = clip
        self.max_field = self.schedule.max_field
        self.gradient = _choose_gradient(
            gradient, device, make_device(device, max(num_spins, 1), **self.device_options)
        )
        self._circuits: dict[int, qml.qnn.TorchLayer] = {}
        self._clipped: Tensor | None = None

    @torch.compiler.disable
    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return p = P(|0>) on every wire, (batch, H, ..., T)."""
        check_finite(fields, present)
        if fields.numel() == 0:
            return fields * 1
        rows = fields.double() if present is None else fields.double().masked_fill(~present, 0)
        if self.clip:
            self._clipped = _fraction(rows.detach().abs() > self.max_field, present)
            rows = rows * (1 + (rows / self.max_field) ** _CLIP_POWER) ** (-1 / _CLIP_POWER)
        length = fields.shape[-1]
        here = torch.ones_like(rows) if present is None else present.to(rows.dtype).expand(rows.shape)
        inputs = torch.cat((rows, here), dim=-1).transpose(0, 1)
        p = self._circuit(length)(inputs.reshape(-1, 2 * length))
        p = p.view(inputs.shape[:-1] + (length,)).transpose(0, 1).to(fields.dtype)
        return p if present is None else p.masked_fill(~present, 0)

    def metrics(self) -> dict[str, Tensor]:
        """Return the fraction of present fields beyond schedule.max_field in the last forward pass."""
        return {} if self._clipped is None else {"clipped_fields": self._clipped}

    def extra_repr(self) -> str:
        """Return the settings, for repr."""
        return f"{super().extra_repr()}, device={self.device!r}, gradient={self.gradient!r}, schedule={self.schedule}"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to one process: devices cannot be copied once they have run."""
        return {**self.__dict__, "_circuits": {}, "_clipped": None}

    def _circuit(self, length: int) -> Callable[[Tensor], Tensor]:
        """Return the circuit on `length` wires, from (H x rows, 2 length) to p (H x rows, length)."""
        if length not in self._circuits:
            qnode = qml.QNode(
                self._quantum_function(length),
                make_device(self.device, length, **self.device_options),
                interface="torch",
                diff_method=self.gradient,
            )
            shapes = {"couplings": (self.num_heads, num_pairs(length))}
            self._circuits[length] = qml.qnn.TorchLayer(qnode, shapes, {"couplings": torch.nn.init.zeros_})
        circuit = self._circuits[length]
        circuit.qnode_weights["couplings"] = self._leading_couplings(length)

        def run(inputs: Tensor) -> Tensor:
            measured = circuit(inputs)
            if self.gradient == "adjoint":
                return (1 + measured) / 2
            return measured @ occupations(length, measured.dtype, measured.device).flip(0).T

        return run

    def _quantum_function(self, length: int) -> Callable[[Tensor, Tensor], Any]:
        """Return the QNode's function: the probabilities of all states, or <Z> where adjoint can do no more."""
        angles = self.schedule.angles()
        beta_h, beta_J, heads = self.schedule.beta_h, self.schedule.beta_J, self.num_heads
        first, second = torch.triu_indices(length, length, offset=1)
        wires = range(length)

        def quench(inputs: Tensor, couplings: Tensor) -> Any:
            fields, here = inputs[:, :length], inputs[:, length:]
            pairs = couplings.repeat_interleave(len(inputs) // heads, dim=0) * (here[:, first] * here[:, second])
            DQA(fields / beta_h, pairs / beta_J, angles.to(inputs.device), wires=wires)
            if self.gradient == "adjoint":
                return [qml.expval(qml.Z(wire)) for wire in wires]
            return qml.probs(wires=wires)

        return quench

    def _leading_couplings(self, length: int) -> Tensor:
        """Return the couplings of the first `length` spins, (H, pairs); the parameter itself where that is all."""
        if length == self.num_spins:
            return self.couplings
        first, second = torch.triu_indices(length, length, offset=1, device=self.couplings.device)
        return self.coupling_matrix(length)[:, first, second]


def _fraction(beyond: Tensor, present: Tensor | None) -> Tensor:
    """Return which share of the present spins is `beyond`."""
    if present is None:
        return beyond.double().mean()
    present = present.expand(beyond.shape)
    return (beyond & present).sum() / present.sum().clamp_min(1)


def _choose_gradient(gradient: str, name: str, device: qml.devices.Device) -> str:
    """Return the gradient method to use, or raise where the device does not offer it."""
    offered = [
        method
        for method in _GRADIENTS
        if device.supports_derivatives(qml.devices.ExecutionConfig(gradient_method=method))
    ]
    if gradient == "auto" and offered:
        return offered[0]
    if gradient in offered:
        return gradient
    raise ValueError(
        f"gradient={gradient!r} was given for the device {name!r}, which offers {' and '.join(offered) or 'neither'}: "
        'take "auto", or a device that simulates analytically, such as default.qubit.'
    )
