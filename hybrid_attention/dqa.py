"""The quantum layer: marginals from the Trotterized diabatic annealing circuit on any PennyLane device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pennylane as qml
import torch
from torch import Tensor

from devices import (
    DQA,
    calibrate_readout,
    make_device,
    mitigate_probabilities,
    mitigate_z,
    samples_only,
)
from hybrid_attention.circuit_counts import CircuitsNotRun, Execution, stand_in_marginals
from hybrid_attention.circuit_sizes import choose_sizes, reaches
from hybrid_attention.clipping import clip_fields
from hybrid_attention.covariance import covariance_marginals, occupied, standard_errors
from hybrid_attention.gradient_methods import choose_gradient, shifted_circuits
from hybrid_attention.ising import num_pairs, pair_index
from hybrid_attention.layers import IsingLayer, check_finite, check_finite_couplings
from hybrid_attention.precision import DoublePrecisionNumbers, without_autocast
from hybrid_attention.schedules import LinearSchedule, Schedule, single_spin_response

_RESERVED_OPTIONS = ("wires", "shots")
_FIXED_SETTINGS = ("device", "device_options", "schedule", "shots", "gradient", "mitigate_readout")
_SECRET_OPTIONS = ("api_key", "token", "ibmqx_token", "password")
_ROOM_FOR_NOISE = 0.1


class DQALayer(IsingLayer):
    """Marginals from diabatic quantum annealing, which samples close to a Boltzmann distribution but not from it.

    Each query is one circuit: the fields over beta_h and the couplings over beta_J go through the Trotterized quench
    `devices.DQA`, and p_j is the probability of |0> on wire j. All queries of a call go out as a broadcast execution of
    a QNode inside a `pennylane.qnn.TorchLayer`, or as up to four, where queries that see only the first spins cost less
    on fewer wires. Parameters are float32 or float64, as the fields are.

    After a forward pass with shots, `standard_error` holds the standard errors of the marginals, in their shape.

    Args:
        num_spins: as for IsingLayer, one wire for each spin.
        num_heads: as for IsingLayer.
        device: name of a PennyLane device; hybrid.statevector is made for these circuits.
        schedule: the quench; LinearSchedule() by default.
        shots: samples for each query, 2 or more; None for exact probabilities. A device option `seed` fixes them
            where the device has one.
        gradient: "backprop" or "adjoint" through the circuit; "parameter-shift" from two further circuits for each gate
            and query; "covariance" from the probabilities or samples of the forward pass alone, which would be right
            for a Boltzmann distribution and is not quite the circuit's derivative. "auto" takes covariance with
            shots, else the first of backprop and adjoint that the device offers.
        clip: bend fields smoothly so that |h| stays below schedule.max_field, past which a larger field would give a
            smaller <Z>. Fields up to half of it change by less than 0.1 %.
        device_options: further options of the device, not its wires or shots.
        mitigate_readout: measure how often each wire is read wrongly, by two circuits before the first others, and take
            these errors back out of all results.
        max_circuits: how many circuits the layer may submit in its life, one for each query and shifted parameter; a
            forward pass that would need more raises RuntimeError before it submits any. No limit without it.

    Raises:
        ValueError: as for IsingLayer, and if the schedule has no positive inverse temperatures, the device cannot be
            made, or the gradient or the shots do not fit it. Without shots the device is tried with one spin.

    Second derivatives are those of backprop only; the other gradients refuse them.

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
        shots: int | None = None,
        gradient: str = "auto",
        clip: bool = True,
        device_options: dict[str, Any] | None = None,
        mitigate_readout: bool = False,
        max_circuits: int | None = None,
    ) -> None:
        super().__init__(num_spins, num_heads)
        reserved = [option for option in _RESERVED_OPTIONS if option in (device_options or {})]
        if reserved:
            raise ValueError(
                f"device_options hold {' and '.join(reserved)}: leave them out, the layer makes one wire for each spin "
                "and has a setting `shots` of its own."
            )
        secrets = [option for option in _SECRET_OPTIONS if option in (device_options or {})]
        if secrets:
            raise ValueError(
                f"device_options hold {' and '.join(secrets)}, which checkpoints and logs would save: give credentials "
                "by the environment variables or files of the device's package."
            )
        if shots is not None and (type(shots) is not int or shots < 2):
            raise ValueError(
                f"shots={shots!r} was given: take a whole number of 2 or more, which standard errors and covariances "
                "need, or None for exact probabilities."
            )
        if max_circuits is not None and (type(max_circuits) is not int or max_circuits < 0):
            raise ValueError(
                f"max_circuits={max_circuits!r} was given: take a whole number of 0 or more, or None for no limit."
            )
        self.device = device
        self.device_options = dict(device_options or {})
        self.schedule = LinearSchedule() if schedule is None else schedule
        self.clip = clip
        self.max_field = self.schedule.max_field
        self.shots = shots
        self.mitigate_readout = mitigate_readout
        self._readout_errors: Tensor | None = None
        self.max_circuits: int | None = None
        self.circuits_run = 0
        self.standard_error: Tensor | None = None
        made = make_device(device, max(num_spins, 1), **self.device_options)
        if shots is None and samples_only(device):
            raise ValueError(
                f"The device {device!r} was given no shots, and has no exact probabilities: set `shots` to the number "
                "of samples for each query, such as 1000."
            )
        self.gradient = choose_gradient(gradient, device, made, shots)
        self._circuits: dict[tuple[int, str | None], qml.qnn.TorchLayer] = {}
        self._clipped: Tensor | None = None
        if num_spins and shots is None:
            self._try_device()
        self.max_circuits, self.circuits_run, self._readout_errors = max_circuits, 0, None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but no setting that circuits were made with."""
        if name in _FIXED_SETTINGS and name in self.__dict__:
            raise AttributeError(
                f"{name} of a DQALayer was set, which its circuits are made with: make another layer and load this "
                "one's state_dict into it."
            )
        super().__setattr__(name, value)

    @torch.compiler.disable
    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return p = P(|0>) on every wire, (batch, H, ..., T)."""
        check_finite(fields, present)
        assert self.couplings is not None
        check_finite_couplings(self.couplings)
        self._clipped = self.standard_error = None
        if fields.numel() == 0:
            return fields * 1
        rows = fields if present is None else fields.masked_fill(~present, 0)
        self._clipped = _fraction(rows.detach().abs() > self.max_field, present)
        if self.clip:
            rows = clip_fields(rows, self.max_field)
        here = torch.ones_like(rows) if present is None else present.to(rows.dtype).expand(rows.shape)
        inputs = torch.stack((rows, here), dim=-2).transpose(0, 1)
        p = self._run_rows(inputs.flatten(1, -3), None if present is None else reaches(present, fields.shape))
        p = p.view(inputs.shape[:-2] + fields.shape[-1:]).transpose(0, 1)
        if self.mitigate_readout:
            p = p + (p.clamp(0, 1) - p).detach()
        p = p if present is None else p.masked_fill(~present, 0)
        if self.shots is not None:
            self.standard_error = standard_errors(p.detach(), self.shots, self._readout_errors)
        return p

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
        """Return numbers of the last forward pass.

        clipped_fields is the fraction of present fields beyond schedule.max_field, clipped or not; standard_error, with
        shots, the largest one of a marginal.
        """
        found = {} if self._clipped is None else {"clipped_fields": self._clipped}
        return found if self.standard_error is None else {**found, "standard_error": self.standard_error.max()}

    @contextmanager
    def counting(self) -> Iterator[list[Execution]]:
        """Submit no circuit inside the context, and list the executions that would have been; p is a stand-in."""
        executions: list[Execution] = []
        run = self._run

        def count(inputs: Tensor, couplings: Tensor, diff_method: str | None = None, shifted: int = 0) -> Tensor:
            heads, rows, _, length = inputs.shape
            executions.append(Execution(length, heads * rows, diff_method, shifted))
            raise CircuitsNotRun

        def count_run(inputs: Tensor, length: int) -> Tensor:
            with suppress(CircuitsNotRun):
                run(inputs, length)
            return stand_in_marginals(inputs, self.leading_couplings(length))

        vars(self).update(_run=count_run, _submit=count)
        try:
            yield executions
        finally:
            del vars(self)["_run"], vars(self)["_submit"]

    def extra_repr(self) -> str:
        """Return the settings, for repr."""
        return (
            f"{super().extra_repr()}, device={self.device!r}, shots={self.shots}, gradient={self.gradient!r}, "
            f"schedule={self.schedule}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to one process: devices cannot be copied once they have run."""
        return {**self.__dict__, "_circuits": {}, "_clipped": None, "standard_error": None, "_readout_errors": None}

    @torch.inference_mode(False)
    @torch.no_grad()
    def _try_device(self) -> None:
        """Raise ValueError if the device does not give a single spin the response that its circuit has, up to noise."""
        field = -self.max_field / 2
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
        if not torch.allclose(p, expected.to(p).expand_as(p), rtol=0, atol=_ROOM_FOR_NOISE):
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
            if diff_method == "parameter-shift":
                qnode = qml.transforms.broadcast_expand(qnode)
            if self.shots is not None:
                qnode = qml.set_shots(qnode, self.shots)
            shapes = {"couplings": (self.num_heads, num_pairs(length))}
            circuit = qml.qnn.TorchLayer(qnode, shapes, {"couplings": torch.nn.init.zeros_})
            self._circuits[length, diff_method] = circuit
        return self._circuits[length, diff_method]

    def _run(self, inputs: Tensor, length: int) -> Tensor:
        """Return p (H, rows, length) for inputs (H, rows, 2, length), fields and then present spins."""
        couplings = self.leading_couplings(length)
        trains_fields, trains_couplings = (torch.is_grad_enabled() and x.requires_grad for x in (inputs, couplings))
        trains = trains_fields or trains_couplings
        if trains and self.gradient != "covariance":
            shifted = 0
            if self.gradient == "parameter-shift":
                shifted = shifted_circuits(length, len(self.schedule.angles()), trains_fields, trains_couplings)
            if self._measures_z:
                inputs, couplings = _OnceDifferentiable.apply(inputs), _OnceDifferentiable.apply(couplings)
            return self._marginals(self._submit(inputs, couplings, self.gradient, shifted))
        measured = self._submit_distinct(inputs.detach(), couplings.detach())
        if not trains:
            return self._marginals(measured)
        fields, here = inputs[:, :, 0], inputs[:, :, 1].detach()
        pairs = _present_pairs(couplings.unsqueeze(1), here)
        flat_fields, flat_pairs, probabilities = (x.flatten(0, 1) for x in (fields, pairs, measured))
        return covariance_marginals(flat_fields, flat_pairs, probabilities, self.shots).view(fields.shape)

    def _submit_distinct(self, inputs: Tensor, couplings: Tensor) -> Tensor:
        """Return what `_submit` does, where rows that are equal in all heads are run once and share their samples."""
        rows, places = inputs.transpose(0, 1).flatten(1).unique(dim=0, return_inverse=True)
        if len(rows) < inputs.shape[1]:
            inputs = rows.view(-1, *inputs.shape[:1], *inputs.shape[2:]).transpose(0, 1)
            return self._submit(inputs, couplings).index_select(1, places)
        return self._submit(inputs, couplings)

    def _submit(self, inputs: Tensor, couplings: Tensor, diff_method: str | None = None, shifted: int = 0) -> Tensor:
        """Return what is measured, (H, rows, 2^length) probabilities or (H, rows, length) of <Z>, in one execution.

        PennyLane computes Jacobians with every adjoint execution, also under no_grad, hence circuits without them.
        """
        heads, rows, _, length = inputs.shape
        if self.mitigate_readout and self._readout_errors is None:
            self._count(2)
            device = make_device(self.device, self.num_spins, **self.device_options)
            self._readout_errors = calibrate_readout(device, self.shots)
        self._count(heads * rows * (1 + shifted))
        circuit = self._circuit(length, diff_method)
        circuit.qnode_weights["couplings"] = couplings
        try:
            with DoublePrecisionNumbers() if self._measures_z else nullcontext():
                measured = circuit(inputs.reshape(-1, 2 * length))
        finally:
            circuit.qnode_weights.clear()
        measured = measured.view(heads, rows, -1)
        if self._readout_errors is None:
            return measured
        mitigate = mitigate_z if self._measures_z else mitigate_probabilities
        return mitigate(measured, self._readout_errors[:length])

    def _count(self, circuits: int) -> None:
        """Count circuits that are about to be submitted, or raise RuntimeError where they would be too many."""
        if self.max_circuits is not None and self.circuits_run + circuits > self.max_circuits:
            raise RuntimeError(
                f"{circuits} more circuits after {self.circuits_run} would pass max_circuits={self.max_circuits} of a "
                "DQALayer: raise it, or shorten the run."
            )
        self.circuits_run += circuits

    def _marginals(self, measured: Tensor) -> Tensor:
        """Return p (H, rows, length) from what was measured."""
        return ((1 + measured) / 2).clamp(0, 1) if self._measures_z else _Marginals.apply(measured)

    @property
    def _measures_z(self) -> bool:
        """Whether circuits measure <Z> of each wire, which adjoint and shifts are restricted to or cheaper for."""
        return self.gradient in ("adjoint", "parameter-shift")

    def _quantum_function(self, length: int) -> Callable[[Tensor, Tensor], Any]:
        """Return the QNode's function: the probabilities of all states, or <Z>."""
        with torch.inference_mode(False):
            angles = self.schedule.angles()
        beta_h, beta_J, heads = self.schedule.beta_h, self.schedule.beta_J, self.num_heads
        wires = range(length)

        def quench(inputs: Tensor, couplings: Tensor) -> Any:
            fields, here = inputs[:, :length], inputs[:, length:].detach()
            pairs = _present_pairs(couplings.repeat_interleave(len(inputs) // heads, dim=0), here)
            DQA(fields / beta_h, pairs / beta_J, angles.to(inputs.device), wires=wires)
            if self._measures_z:
                return [qml.expval(qml.Z(wire)) for wire in wires]
            return qml.probs(wires=wires)

        return quench


class _OnceDifferentiable(torch.autograd.Function):
    """The identity, which refuses second derivatives: PennyLane's gradients are constants to autograd."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _Marginals(torch.autograd.Function):
    """P(|0>) of each wire from the probabilities of all states: (..., 2^T) -> (..., T)."""

    @staticmethod
    def forward(ctx: Any, probabilities: Tensor) -> Tensor:
        length = probabilities.shape[-1].bit_length() - 1
        ctx.is_zero = occupied(length, probabilities.dtype, probabilities.device)
        return probabilities @ ctx.is_zero.T

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad @ ctx.is_zero


def _present_pairs(couplings: Tensor, here: Tensor) -> Tensor:
    """Return couplings (..., pairs) where both spins are present, and 0 elsewhere; here (..., T) is 0 or 1."""
    first, second = pair_index(here.shape[-1], here.device)
    return couplings * (here[..., first] * here[..., second])


def _fraction(beyond: Tensor, present: Tensor | None) -> Tensor:
    """Return which share of the present spins is `beyond`."""
    if present is None:
        return beyond.double().mean()
    present = present.expand(beyond.shape)
    return (beyond & present).sum() / present.sum().clamp_min(1)
