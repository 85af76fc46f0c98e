"""The quantum layer: marginals from the Trotterized diabatic annealing circuit on any PennyLane device."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pennylane as qml
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from devices import DQA, make_device
from hybrid_attention.circuit_sizes import choose_sizes, reaches
from hybrid_attention.ising import num_pairs, pair_index
from hybrid_attention.layers import IsingLayer, check_finite, check_finite_couplings
from hybrid_attention.precision import without_autocast
from hybrid_attention.schedules import LinearSchedule, Schedule, single_spin_response
from hybrid_attention.state_tables import occupations

_GRADIENTS = ("backprop", "adjoint")
_RESERVED_OPTIONS = ("wires", "shots")
_CLIP_POWER = 8
_FAR_BEYOND = 1e3
_AGREEMENT = 1e-4


class DQALayer(IsingLayer):
    """Marginals from diabatic quantum annealing, which samples close to a Boltzmann distribution but not from it.

    Each query is one circuit: the fields over beta_h and the couplings over beta_J go through the Trotterized quench
    `devices.DQA`, and p_j is the probability of |0> on wire j. All queries of a call go out as a broadcast execution of
    a QNode inside a `pennylane.qnn.TorchLayer`, or as up to four, where queries that see only the first spins cost less
    on fewer wires. Parameters are float32 or float64, as the fields are.

    Args:
        num_spins: as for IsingLayer, one wire for each spin.
        num_heads: as for IsingLayer.
        device: name of a PennyLane device that simulates analytically; hybrid.statevector is made for these circuits.
        schedule: the quench; LinearSchedule() by default.
        gradient: "backprop" or "adjoint" through the circuit; "auto" takes the first that the device offers.
        clip: bend fields smoothly so that |h| stays below schedule.max_field, past which a larger field would give a
            smaller <Z>. Fields up to half of it change by less than 0.1 %.
        device_options: further options of the device, not its wires or shots.

    Raises:
        ValueError: as for IsingLayer, and if the schedule has no positive inverse temperatures, the device cannot be
            made, or it does not offer the gradient.

    Cost: for each query O(P T 2^T) on hybrid.statevector, whose memory for gradients does not grow with P. On other
    simulators O(P T^2 2^T); devices that do not broadcast run a circuit for every query, and backprop keeps the state
    after each of the O(P T^2) gates.
    Source: arXiv 2606.12478, Boltzmann attention by diabatic quantum annealing.
    """

    def __init__(
        self,
        num_spins: int,
        num_heads: int = 1,
        device: str = "hybrid.statevector",
        schedule: Schedule | None = None,
        gradient: str = "auto",
        clip: bool = True,
        device_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(num_spins, num_heads)
        reserved = [option for option in _RESERVED_OPTIONS if option in (device_options or {})]
        if reserved:
            raise ValueError(
                f"device_options hold {' and '.join(reserved)}: leave them out, the layer makes one wire for each spin "
                "and runs analytically."
            )
        self.device = device
        self.device_options = dict(device_options or {})
        self.schedule = LinearSchedule() if schedule is None else schedule
        self.clip = clip
        self.max_field = self.schedule.max_field
        self.gradient = _choose_gradient(
            gradient, device, make_device(device, max(num_spins, 1), **self.device_options)
        )
        self._circuits: dict[tuple[int, str | None], qml.qnn.TorchLayer] = {}
        self._clipped: Tensor | None = None
        if num_spins:
            self._try_device()

    @torch.compiler.disable
    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return p = P(|0>) on every wire, (batch, H, ..., T)."""
        check_finite(fields, present)
        assert self.couplings is not None
        check_finite_couplings(self.couplings)
        self._clipped = None
        if fields.numel() == 0:
            return fields * 1
        rows = fields if present is None else fields.masked_fill(~present, 0)
        self._clipped = _fraction(rows.detach().abs() > self.max_field, present)
        if self.clip:
            rows = _clip(rows, self.max_field)
        here = torch.ones_like(rows) if present is None else present.to(rows.dtype).expand(rows.shape)
        inputs = torch.stack((rows, here), dim=-2).transpose(0, 1)
        p = self._run_rows(inputs.flatten(1, -3), None if present is None else reaches(present, fields.shape))
        p = p.view(inputs.shape[:-2] + fields.shape[-1:]).transpose(0, 1)
        return p if present is None else p.masked_fill(~present, 0)

    def _run_rows(self, inputs: Tensor, reach: Tensor | None) -> Tensor:
        """Return p (H, rows, T) for inputs (H, rows, 2, T), in one execution for each number of wires."""
        length = inputs.shape[-1]
        if reach is None:
            return self._run(inputs, length)
        found, counts = reach.clamp_min(1).unique(return_counts=True)
        sizes = choose_sizes(tuple(zip(found.tolist(), counts.tolist(), strict=True)), len(self.schedule.angles()))
        if sizes == (length,):
            return self._run(inputs, length)
        bucket = torch.bucketize(reach, torch.tensor(sizes, device=reach.device))
        places, parts = [], []
        for index, size in enumerate(sizes):
            places.append((bucket == index).nonzero().squeeze(1))
            p = self._run(inputs[..., :size].index_select(1, places[-1]), size)
            parts.append(torch.nn.functional.pad(p, (0, length - size)))
        return torch.cat(parts, dim=1).index_select(1, torch.cat(places).argsort())

    def metrics(self) -> dict[str, Tensor]:
        """Return the fraction of present fields beyond schedule.max_field in the last forward pass, clipped or not."""
        return {} if self._clipped is None else {"clipped_fields": self._clipped}

    def extra_repr(self) -> str:
        """Return the settings, for repr."""
        return f"{super().extra_repr()}, device={self.device!r}, gradient={self.gradient!r}, schedule={self.schedule}"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to one process: devices cannot be copied once they have run."""
        return {**self.__dict__, "_circuits": {}, "_clipped": None}

    @torch.inference_mode(False)
    @torch.no_grad()
    def _try_device(self) -> None:
        """Raise ValueError if the device does not give a single spin the response that its circuit has."""
        field = self.max_field / 2
        expected = (1 + single_spin_response(self.schedule.angles(), torch.tensor(field / self.schedule.beta_h))) / 2
        try:
            p = self._run(torch.tensor([[[[field], [1.0]]]], dtype=torch.float64).repeat(self.num_heads, 1, 1, 1), 1)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"The device {self.device!r} cannot run the annealing circuit ({reason}): take a qubit simulator, "
                "such as hybrid.statevector or lightning.qubit."
            ) from error
        finally:
            self._circuits.clear()
        if not torch.allclose(p, expected.to(p).expand_as(p), rtol=0, atol=_AGREEMENT):
            raise ValueError(
                f"The device {self.device!r} gives a single spin p = {float(p[0, 0, 0]):.3g} where its circuit has "
                f"{float(expected):.3g}: take a qubit simulator, such as hybrid.statevector or lightning.qubit."
            )

    def _circuit(self, length: int, diff_method: str | None) -> qml.qnn.TorchLayer:
        """Return the circuit on `length` wires, made on its first use, without weights."""
        if (length, diff_method) not in self._circuits:
            qnode = qml.QNode(
                self._quantum_function(length),
                make_device(self.device, length, **self.device_options),
                interface="torch",
                diff_method=diff_method,
            )
            shapes = {"couplings": (self.num_heads, num_pairs(length))}
            circuit = qml.qnn.TorchLayer(qnode, shapes, {"couplings": torch.nn.init.zeros_})
            self._circuits[length, diff_method] = circuit
        return self._circuits[length, diff_method]

    def _run(self, inputs: Tensor, length: int) -> Tensor:
        """Return p (H, rows, length) for inputs (H, rows, 2, length), fields and then present spins.

        PennyLane computes Jacobians with every adjoint execution, also under no_grad, hence the circuit without them.
        """
        couplings = self.leading_couplings(length)
        trains = torch.is_grad_enabled() and (inputs.requires_grad or couplings.requires_grad)
        circuit = self._circuit(length, self.gradient if trains or self.gradient == "backprop" else None)
        circuit.qnode_weights["couplings"] = couplings
        try:
            with nullcontext() if self.gradient == "backprop" else _DoublePrecisionNumbers():
                measured = circuit(inputs.reshape(-1, 2 * length))
        finally:
            circuit.qnode_weights.clear()
        p = ((1 + measured) / 2).clamp(0, 1) if self.gradient == "adjoint" else _Marginals.apply(measured)
        return p.view(*inputs.shape[:2], length)

    def _quantum_function(self, length: int) -> Callable[[Tensor, Tensor], Any]:
        """Return the QNode's function: the probabilities of all states, or <Z> where adjoint can do no more."""
        with torch.inference_mode(False):
            angles = self.schedule.angles()
            first, second = pair_index(length)
        beta_h, beta_J, heads = self.schedule.beta_h, self.schedule.beta_J, self.num_heads
        wires = range(length)

        def quench(inputs: Tensor, couplings: Tensor) -> Any:
            fields, here = inputs[:, :length], inputs[:, length:]
            pairs = couplings.repeat_interleave(len(inputs) // heads, dim=0) * (here[:, first] * here[:, second])
            DQA(fields / beta_h, pairs / beta_J, angles.to(inputs.device), wires=wires)
            if self.gradient == "adjoint":
                return [qml.expval(qml.Z(wire)) for wire in wires]
            return qml.probs(wires=wires)

        return quench


class _Marginals(torch.autograd.Function):
    """P(|0>) of each wire from the probabilities of all states: (rows, 2^T) -> (rows, T)."""

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor) -> Tensor:
        length = probabilities.shape[-1].bit_length() - 1
        ctx.is_zero = occupations(length, probabilities.dtype, probabilities.device).flip(0)
        return probabilities @ ctx.is_zero.T

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad @ ctx.is_zero


class _DoublePrecisionNumbers(TorchFunctionMode):
    """Make float64 tensors of Python numbers: lightning's <Z> are such, and PennyLane would make them float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.as_tensor and args and isinstance(args[0], float):
            kwargs = {"dtype": torch.float64, **kwargs}
        return func(*args, **kwargs)


def _clip(fields: Tensor, limit: float) -> Tensor:
    """Return h (1 + (h / limit)^8)^(-1/8): h where it is small, +-limit where it is large, with finite gradients."""
    fields = fields.clamp(-_FAR_BEYOND * limit, _FAR_BEYOND * limit)
    return fields * (1 + (fields / limit) ** _CLIP_POWER) ** (-1 / _CLIP_POWER)


def _fraction(beyond: Tensor, present: Tensor | None) -> Tensor:
    """Return which share of the present spins is `beyond`."""
    if present is None:
        return beyond.double().mean()
    present = present.expand(beyond.shape)
    return (beyond & present).sum() / present.sum().clamp_min(1)


def _choose_gradient(gradient: str, name: str, device: qml.devices.Device) -> str:
    """Return the gradient method to use, or raise where there is no such method or the device does not offer it."""
    if gradient not in ("auto", *_GRADIENTS):
        raise ValueError(f'gradient={gradient!r} was given: take "auto", "backprop" or "adjoint".')
    offered = [
        method
        for method in _GRADIENTS
        if device.supports_derivatives(qml.devices.ExecutionConfig(gradient_method=method))
    ]
    if gradient == "auto" and offered:
        return offered[0]
    if gradient in offered:
        return gradient
    if offered:
        raise ValueError(
            f"gradient={gradient!r} was given for the device {name!r}, which offers {' and '.join(offered)}: take "
            'that or "auto".'
        )
    raise ValueError(
        f"The device {name!r} offers neither of the gradients {' and '.join(_GRADIENTS)}: take a device that simulates "
        "analytically, such as hybrid.statevector or lightning.qubit."
    )
