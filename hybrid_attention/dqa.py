"""The quantum layer: marginals from the Trotterized diabatic annealing circuit on any PennyLane device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hybrid_attention.circuit_counts import Execution, stand_in_marginals
from hybrid_attention.circuit_sizes import choose_sizes, reaches
from hybrid_attention.circuits import QuenchCircuits, Queries, distinct, present_pairs
from hybrid_attention.clipping import clip_fields
from hybrid_attention.coupling_shapes import CouplingShape
from hybrid_attention.covariance import covariance_marginals, occupied, standard_errors, weight_standard_errors
from hybrid_attention.free_schedule import FreeSchedule
from hybrid_attention.gradient_methods import shifted_circuits
from hybrid_attention.layers import IsingLayer, check_finite, check_finite_couplings
from hybrid_attention.precision import without_autocast
from hybrid_attention.schedules import Schedule, single_spin_response
from hybrid_attention.tuned_schedule import TunedSchedule

_FIXED_SETTINGS = ("device", "device_options", "schedule", "shots", "gradient", "mitigate_readout", "coupling_shape")
_ROOM_FOR_NOISE = 0.1
_LEAST_BETA, _MOST_BETA = 0.001, 1000


class DQALayer(IsingLayer):
    """Marginals from diabatic quantum annealing, which samples close to a Boltzmann distribution but not from it.

    Each query is one circuit: the fields over beta_h and the couplings over beta_J go through the Trotterized quench
    `devices.DQA`, and p_j is the probability of |0> on wire j. All queries of a call go out in one execution, broadcast
    by a QNode inside a `pennylane.qnn.TorchLayer`, or by up to four, where queries that see only the first spins cost
    less on fewer wires. Parameters are float32 or float64, as the fields are.

    After a forward pass with shots, `standard_error` holds the standard errors of the marginals, in their shape, and
    `weight_standard_error` those of attention weights p_j / sum_k p_k, or None with parameter-shift, whose circuits
    measure each wire apart.

    Args:
        num_spins: as for IsingLayer, one wire for each spin.
        num_heads: as for IsingLayer.
        device: name of a PennyLane device; hybrid.statevector is made for these circuits.
        schedule: the quench; TunedSchedule(8) by default.
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
        coupling_shape: as for IsingLayer; a pair that is not coupled has no gate.

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
        coupling_shape: CouplingShape | None = None,
    ) -> None:
        super().__init__(num_spins, num_heads, coupling_shape)
        self.device = device
        self.device_options = dict(device_options or {})
        self.schedule = TunedSchedule() if schedule is None else schedule
        self.clip = clip
        self.max_field = self.schedule.max_field
        self.shots = shots
        self.mitigate_readout = mitigate_readout
        self.standard_error: Tensor | None = None
        self.weight_standard_error: Tensor | None = None
        self._clipped: Tensor | None = None
        self._counted: list[Execution] | None = None
        self._circuits = QuenchCircuits(
            num_spins,
            num_heads,
            device,
            self.device_options,
            self.schedule,
            shots,
            gradient,
            mitigate_readout,
            self.coupling_shape.range_of(num_spins),
        )
        self.gradient = self._circuits.gradient
        if num_spins and shots is None:
            self._try_device()
        self.max_circuits = max_circuits

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but no setting that circuits were made with."""
        if name in _FIXED_SETTINGS and name in self.__dict__:
            raise AttributeError(
                f"{name} of a DQALayer was set, which its circuits are made with: make another layer and load this "
                "one's state_dict into it."
            )
        super().__setattr__(name, value)

    @property
    def max_circuits(self) -> int | None:
        """How many circuits the layer may submit in its life, or None for no limit."""
        return self._circuits.max_circuits

    @max_circuits.setter
    def max_circuits(self, limit: int | None) -> None:
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ValueError(
                f"max_circuits={limit!r} was given: take a whole number of 0 or more, or None for no limit."
            )
        self._circuits.max_circuits = limit

    @property
    def beta_scale(self) -> tuple[float, float]:
        """What the schedule's beta_h and beta_J are multiplied by; (1, 1) unless `rescale` set others."""
        betas, given = self.rescaled_schedule, self.schedule
        return betas.beta_h / given.beta_h, betas.beta_J / given.beta_J

    @property
    def rescaled_schedule(self) -> Schedule:
        """The schedule with the inverse temperatures that fields and couplings are divided by."""
        return self._circuits.schedule

    def rescale(self, beta_h: float, beta_J: float) -> None:
        """Divide fields by beta_h and couplings by beta_J from now on, beyond the division by the schedule's own.

        Both are measured inverse temperatures, such as those of `likelihood_betas`. They replace those of an earlier
        call, are no parameters, and are not in the state_dict.

        Raises:
            ValueError: if one of them is not between 0.001 and 1000.
        """
        if not all(_LEAST_BETA <= beta <= _MOST_BETA for beta in (beta_h, beta_J)):
            raise ValueError(
                f"beta_h={beta_h} and beta_J={beta_J} were given: give two numbers from {_LEAST_BETA} to {_MOST_BETA}."
            )
        betas = (self.schedule.beta_h * beta_h, self.schedule.beta_J * beta_J)
        given = (beta_h, beta_J) == (1, 1)
        self._circuits.use(self.schedule if given else FreeSchedule.from_angles(self.schedule.angles(), betas))
        self.max_field = self.rescaled_schedule.max_field

    @property
    def circuits_run(self) -> int:
        """How many circuits the layer has submitted."""
        return self._circuits.num_run

    @torch.compiler.disable
    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return p = P(|0>) on every wire, (batch, H, ..., T)."""
        check_finite(fields, present)
        assert self.couplings is not None
        check_finite_couplings(self.couplings)
        self._clipped = self.standard_error = self.weight_standard_error = None
        if fields.numel() == 0:
            return fields * 1
        rows = fields if present is None else fields.masked_fill(~present, 0)
        self._clipped = _fraction(rows.detach().abs() > self.max_field, present)
        if self.clip:
            rows = clip_fields(rows, self.max_field)
        here = torch.ones_like(rows) if present is None else present.to(rows.dtype).expand(rows.shape)
        inputs = torch.stack((rows, here), dim=-2).transpose(0, 1)
        results = self._run_rows(inputs.flatten(1, -3), None if present is None else reaches(present, fields.shape))
        p, *of_weights = (x.view(inputs.shape[:-2] + fields.shape[-1:]).transpose(0, 1) for x in results)
        if self.mitigate_readout:
            p = p + (p.clamp(0, 1) - p).detach()
        p = p if present is None else p.masked_fill(~present, 0)
        if self.shots is not None:
            self.standard_error = standard_errors(p.detach(), self.shots, self._circuits.readout_errors)
            self.weight_standard_error = of_weights[0] if of_weights else None
        return p

    def _run_rows(self, inputs: Tensor, reach: Tensor | None) -> tuple[Tensor, ...]:
        """Return what `_run` does, (H, rows, T), for inputs (H, rows, 2, T), where rows may be run in several sizes."""
        length = inputs.shape[-1]
        if reach is None:
            return self._run([inputs])[0]
        found, counts = reach.clamp_min(1).unique(return_counts=True)
        sizes = choose_sizes(tuple(zip(found.tolist(), counts.tolist(), strict=True)), len(self.schedule.angles()))
        if sizes == (length,):
            return self._run([inputs])[0]
        bucket = torch.bucketize(reach, torch.tensor(sizes, device=reach.device))
        places = [(bucket == index).nonzero().squeeze(1) for index in range(len(sizes))]
        parts = self._run([inputs[..., :size].index_select(1, rows) for size, rows in zip(sizes, places, strict=True)])
        order = torch.cat(places).argsort()
        padded = [[torch.nn.functional.pad(x, (0, length - x.shape[-1])) for x in part] for part in parts]
        return tuple(torch.cat(each, dim=1).index_select(1, order) for each in zip(*padded, strict=True))

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
        self._counted = executions
        try:
            yield executions
        finally:
            self._counted = None

    def extra_repr(self) -> str:
        """Return the settings, for repr."""
        return (
            f"{super().extra_repr()}, device={self.device!r}, shots={self.shots}, gradient={self.gradient!r}, "
            f"schedule={self.schedule}" + ("" if self.beta_scale == (1, 1) else f", beta_scale={self.beta_scale}")
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to the last forward pass."""
        return {**self.__dict__, "_clipped": None, "standard_error": None, "weight_standard_error": None}

    @torch.inference_mode(False)
    @torch.no_grad()
    def _try_device(self) -> None:
        """Raise ValueError if the device does not give a single spin the response that its circuit has, up to noise."""
        field = -self.max_field / 2
        expected = (1 + single_spin_response(self.schedule.angles(), torch.tensor(field / self.schedule.beta_h))) / 2
        try:
            inputs = torch.tensor([[[[field], [1.0]]]], dtype=torch.float64)
            ((p, *_),) = self._run([inputs.repeat(self.num_heads, 1, 1, 1)])
        except Exception as error:
            reason = " ".join(str(error).split())
            raise ValueError(
                f"The device {self.device!r} cannot run the annealing circuit ({reason}): take a qubit simulator, "
                "such as hybrid.statevector or lightning.qubit."
            ) from error
        finally:
            self._circuits.forget()
        if not torch.allclose(p, expected.to(p).expand_as(p), rtol=0, atol=_ROOM_FOR_NOISE):
            raise ValueError(
                f"The device {self.device!r} gives a single spin p = {float(p[0, 0, 0]):.3g} where its circuit has "
                f"{float(expected):.3g}: take a qubit simulator, such as hybrid.statevector or lightning.qubit."
            )

    def _run(self, groups: list[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return p (H, rows, T) for each of the inputs (H, rows, 2, T), fields and then present spins.

        Where samples of all wires are counted together, the standard errors of attention weights come beside p.
        """
        couplings = [self.pair_couplings(inputs.shape[-1]) for inputs in groups]
        trains_fields, trains_couplings = (
            torch.is_grad_enabled() and any(values.requires_grad for values in tensors)
            for tensors in (groups, couplings)
        )
        trains = trains_fields or trains_couplings
        pairs = list(zip(groups, couplings, strict=True))
        if trains and self.gradient != "covariance":
            queries = [self._differentiated(*each, trains_fields, trains_couplings) for each in pairs]
            places: list[Tensor | None] = [None for _ in queries]
        else:
            found = [distinct(Queries(inputs.detach(), values.detach())) for inputs, values in pairs]
            queries, places = [each for each, _ in found], [rows for _, rows in found]
        if self._counted is not None:
            self._counted += [each.execution for each in queries]
            return [(stand_in_marginals(*each),) for each in pairs]
        measured = [
            values if rows is None else values.index_select(1, rows)
            for values, rows in zip(self._circuits.run(queries), places, strict=True)
        ]
        if trains and self.gradient == "covariance":
            p = [self._with_covariances(*each, values) for each, values in zip(pairs, measured, strict=True)]
        else:
            p = [self._marginals(values) for values in measured]
        if self.shots is None or self._circuits.measures_z:
            return [(each,) for each in p]
        errors = self._circuits.readout_errors
        of_weights = (
            weight_standard_errors(values, self.shots, inputs[:, :, 1].detach(), errors)
            for inputs, values in zip(groups, measured, strict=True)
        )
        return list(zip(p, of_weights, strict=True))

    def _differentiated(self, inputs: Tensor, couplings: Tensor, fields: bool, pairs: bool) -> Queries:
        """Return queries whose circuits are differentiated, for gradients of fields, pairs or both."""
        shifted = 0
        if self.gradient == "parameter-shift":
            gates = inputs.shape[-1] * fields + couplings.shape[-1] * pairs
            shifted = shifted_circuits(gates, len(self.schedule.angles()))
        if self._circuits.measures_z:
            inputs, couplings = _OnceDifferentiable.apply(inputs), _OnceDifferentiable.apply(couplings)
        return Queries(inputs, couplings, self.gradient, shifted)

    def _with_covariances(self, inputs: Tensor, couplings: Tensor, probabilities: Tensor) -> Tensor:
        """Return p (H, rows, T) from probabilities (H, rows, 2^T), with covariances as gradients."""
        fields, here = inputs[:, :, 0], inputs[:, :, 1].detach()
        coupling_range = self.coupling_shape.range_of(fields.shape[-1])
        pairs = present_pairs(couplings.unsqueeze(1), here, coupling_range)
        flat_fields, flat_pairs, flat = (values.flatten(0, 1) for values in (fields, pairs, probabilities))
        return covariance_marginals(flat_fields, flat_pairs, flat, self.shots, coupling_range).view(fields.shape)

    def _marginals(self, measured: Tensor) -> Tensor:
        """Return p (H, rows, T) from what was measured."""
        return ((1 + measured) / 2).clamp(0, 1) if self._circuits.measures_z else _Marginals.apply(measured)


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


def _fraction(beyond: Tensor, present: Tensor | None) -> Tensor:
    """Return which share of the present spins is `beyond`."""
    if present is None:
        return beyond.double().mean()
    present = present.expand(beyond.shape)
    return (beyond & present).sum() / present.sum().clamp_min(1)
