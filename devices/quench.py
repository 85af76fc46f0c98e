"""A batch of quenches on state vectors, with a reversible backward pass whose memory does not grow with the steps."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from devices.mixers import mix, mixer_generator, mixer_groups, mixer_matrices, multiply_group
from devices.phase_tables import energy_matrices, expand_tables, multiply_by_tables, sum_to_tables
from devices.plain_quench import plain_quench, quarter_turns

DEFAULT_MEMORY_BUDGET = 2**30
_CHUNK_BYTES = 2**20
_FEWEST_COLUMNS = 16
_LARGEST_PART = 14
_LARGEST_EXPANDED = 9


def quench_probabilities(
    fields: Tensor, couplings: Tensor, angles: Tensor, memory_budget: int = DEFAULT_MEMORY_BUDGET
) -> Tensor:
    """Return the probabilities of all states after the quench `devices.DQA` from |+...+>.

    Args:
        fields: (T,) or (batch, T), floating point.
        couplings: (T (T - 1) / 2,) or (batch, T (T - 1) / 2), the strict upper triangle row by row.
        angles: (P, 3), the multipliers of fields, pairs and mixer in each step.
        memory_budget: bytes that the final states may take to be kept for the backward pass; beyond it the backward
            pass runs the quench once more.

    Returns:
        (2^T,) or (batch, 2^T), in the common dtype of fields and couplings, wire 0 the leftmost bit.

    Cost: per row and step 2^T times about 8 T multiplications for the mixers and three complex ones for the phases;
    the backward pass, which undoes the steps one by one, about twice that. Rows are worked on in chunks that fit a
    processor's cache, 16 at least; beside them memory holds the result and, for gradients, the final states. Tables
    for each number of wires stay in memory: 3 * 2^(2T/3) T^2 / 2 numbers, and one for each state.
    Source: arXiv 2606.12478, the diabatic quantum annealing sampler.
    """
    return _run(fields, couplings, angles, None, True, memory_budget)


def quench_state(
    fields: Tensor,
    couplings: Tensor,
    angles: Tensor,
    initial: Tensor | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Tensor:
    """Return the state after the operation `devices.DQA`, Hadamard gates included, complex (2^T,) or (batch, 2^T).

    Args:
        fields: as for quench_probabilities.
        couplings: as for quench_probabilities.
        angles: as for quench_probabilities.
        initial: (2^T,) or (batch, 2^T), complex, the state that the operation acts on; |0...0> without it.
        memory_budget: as for quench_probabilities.

    Cost and source: as for quench_probabilities.
    """
    return _run(fields, couplings, angles, initial, False, memory_budget)


def _run(
    fields: Tensor, couplings: Tensor, angles: Tensor, initial: Tensor | None, measured: bool, memory_budget: int
) -> Tensor:
    dtype = torch.promote_types(fields.dtype, couplings.dtype)
    if initial is not None:
        dtype = torch.promote_types(dtype, initial.dtype.to_real())
        initial = initial.to(dtype.to_complex())
    fields, couplings = fields.to(dtype), couplings.to(dtype)
    batched = fields.dim() == 2 or couplings.dim() == 2 or (initial is not None and initial.dim() == 2)
    fields, couplings = torch.atleast_2d(fields), torch.atleast_2d(couplings)
    initial = None if initial is None else torch.atleast_2d(initial)
    with torch.autocast(fields.device.type, enabled=False):
        result = _Quench.apply(fields, couplings, angles, initial, measured, memory_budget)
    return result if batched else result[0]


class _Steps:
    """The steps of a quench for all rows: what every chunk shares."""

    def __init__(self, fields: Tensor, couplings: Tensor, angles: Tensor) -> None:
        self.num_wires = fields.shape[1]
        of_fields, of_pairs = energy_matrices(self.num_wires, fields.dtype, fields.device)
        self.field_tables, self.pair_tables = of_fields @ fields.T, of_pairs @ couplings.T
        double = angles.detach().to(torch.float64)
        self.field_angles, self.pair_angles, mixer_angles = double.T.tolist()
        self.alike = self.field_angles == self.pair_angles
        self.increments = _even_increments(double)
        self.expands = self.num_wires <= _LARGEST_EXPANDED
        self.groups = mixer_groups(self.num_wires)
        self.leading = 1 if self.num_wires > _LARGEST_PART else 0
        self.parts = 2 ** sum(self.groups[: self.leading])
        made = (mixer_matrices(tuple(mixer_angles), size, fields.dtype, fields.device) for size in self.groups)
        self.mixers = list(zip(*made, strict=True))
        self.start = quarter_turns(self.num_wires, fields.dtype.to_complex(), fields.device).conj_physical()

    def phases(self, piece: slice) -> Iterator[Tensor]:
        """Yield exp(i (a_p h.s + b_p sum J s s)) of each step for `multiply`; the next may overwrite it."""
        return self._phases(piece, range(len(self.mixers)), 1)

    def conjugate_phases(self, piece: slice) -> Iterator[Tensor]:
        """Yield the conjugates of `phases`, from the last step to the first."""
        return self._phases(piece, range(len(self.mixers) - 1, -1, -1), -1)

    def _phases(self, piece: slice, order: range, sign: int) -> Iterator[Tensor]:
        """Take sines and cosines at each step; where angles grow evenly, multiply by the same turn instead."""
        field_tables, pair_tables = _columns(self.field_tables, piece), _columns(self.pair_tables, piece)

        def turn(by_fields: float, by_pairs: float) -> Tensor:
            exponents = torch.add(field_tables * (sign * by_fields), pair_tables, alpha=sign * by_pairs)
            tables = torch.complex(exponents.cos(), exponents.sin())
            return expand_tables(tables, self.num_wires) if self.expands else tables

        first = order[0]
        phases = turn(self.field_angles[first], self.pair_angles[first])
        yield phases
        if self.increments is None:
            for step in order[1:]:
                yield turn(self.field_angles[step], self.pair_angles[step])
        elif len(order) > 1:
            once = turn(order.step * self.increments[0], order.step * self.increments[1])
            for _ in order[1:]:
                yield phases.mul_(once)

    def multiply(self, state: Tensor, phases: Tensor, part: int) -> None:
        """Multiply one of the parts of a state (2^T / parts, ..., columns) by its phases, in place."""
        if self.expands:
            state *= phases
        else:
            multiply_by_tables(state, phases, self.num_wires, part, self.parts)

    def run(self, piece: slice, initial: Tensor | None) -> Tensor:
        """Return the final amplitudes of the rows in `piece` without their quarter turns, (2^T, columns)."""
        num_states = len(self.start)
        columns = piece.stop - piece.start
        if initial is None:
            state = (self.start * num_states**-0.5).unsqueeze(1).repeat(1, columns)
            spare = torch.empty_like(state)
        else:
            state = initial.T.expand(-1, columns).clone(memory_format=torch.contiguous_format)
            state, spare = mix(self.hadamards(), state, torch.empty_like(state))
            state *= self.start.unsqueeze(1)
        for mixer, phases in zip(self.mixers, self.phases(piece), strict=True):
            for part, (source, target) in enumerate(zip(self.cut(state), self.cut(spare), strict=True)):
                self.multiply(source, phases, part)
                mix(mixer[self.leading :], source, target)
            if (len(mixer) - self.leading) % 2:
                state, spare = spare, state
            state, spare = mix(mixer[: self.leading], state, spare)
        return state

    def cut(self, state: Tensor) -> tuple[Tensor, ...]:
        """Return the parts of a state that the mixers of all but the leading groups act on one by one."""
        return state.chunk(self.parts)

    def hadamards(self) -> list[Tensor]:
        """Return the Hadamard gates of each group of wires."""
        single = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=self.field_tables.dtype) / 2**0.5
        made = []
        for size in self.groups:
            matrix = single
            for _ in range(size - 1):
                matrix = torch.kron(matrix, single)
            made.append(matrix.to(self.start.device))
        return made


class _Quench(torch.autograd.Function):
    """Fields, couplings, angles and an initial state in; probabilities or states out.

    Backward, with lambda the gradient of the amplitudes: undo a mixer on lambda and on the state, whose phases then
    have the gradient Im(lambda conj(state)); undo the phases; and so on to the first step. lambda and the state are
    the two halves of one tensor, which every product acts on at once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        fields: Tensor,
        couplings: Tensor,
        angles: Tensor,
        initial: Tensor | None,
        measured: bool,
        memory_budget: int,
    ) -> Tensor:
        steps = _Steps(fields, couplings, angles)
        rows = max(len(fields), len(couplings), 1 if initial is None else len(initial))
        num_states = 2**steps.num_wires
        keeps = any(ctx.needs_input_grad) and rows * num_states * steps.start.element_size() <= memory_budget
        finals = []
        result = torch.empty(
            num_states, rows, dtype=fields.dtype if measured else steps.start.dtype, device=fields.device
        )
        for piece in _pieces(rows, num_states, steps.start.element_size()):
            state = steps.run(piece, _rows(initial, piece))
            if measured:
                result[:, piece] = (state * state.conj_physical()).real
            else:
                torch.mul(state, steps.start.conj_physical().unsqueeze(1), out=result[:, piece])
            if keeps:
                finals.append(state)
        ctx.measured, ctx.steps = measured, steps
        ctx.save_for_backward(fields, couplings, angles, initial, *finals)
        return result.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        fields, couplings, angles, initial, *finals = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            if torch.is_grad_enabled():
                return (*_plain_gradients(ctx, grad, fields, couplings, angles, initial), None, None)
            found = _Gradients(ctx.steps, angles.shape, ctx.needs_input_grad)
            pieces = _pieces(grad.shape[0], grad.shape[1], fields.element_size() * 2)
            for index, piece in enumerate(pieces):
                state = finals[index] if finals else found.steps.run(piece, _rows(initial, piece))
                found.add(piece, state, grad[piece].T, ctx.measured)
            return (*found.results(fields, couplings, angles, initial), None, None)


class _Gradients:
    """Gradients of the tables, the angles and the initial state, collected chunk by chunk."""

    def __init__(self, steps: _Steps, shape: torch.Size, needed: tuple[bool, ...]) -> None:
        self.steps = steps
        self.of_angles = torch.zeros(shape, dtype=torch.float64, device=steps.start.device) if needed[2] else None
        self.of_fields: list[Tensor] = []
        self.of_pairs: list[Tensor] = []
        self.of_initial: list[Tensor] | None = [] if needed[3] else None

    def add(self, piece: slice, state: Tensor, grad: Tensor, measured: bool) -> None:
        """Undo the steps for the rows in `piece`, whose final amplitudes are `state` and gradient is `grad`."""
        steps = self.steps
        wires = steps.num_wires
        both = torch.empty(len(state), 2, state.shape[1], dtype=state.dtype, device=state.device)
        if measured:
            torch.mul(state, grad * 2, out=both[:, 0])
        else:
            torch.mul(grad, steps.start.unsqueeze(1), out=both[:, 0])
        both[:, 1] = state
        spare = torch.empty_like(both)
        conjugate = torch.empty_like(steps.cut(state)[0])
        by_pairs = torch.zeros_like(state)
        by_fields = by_pairs if steps.alike else torch.zeros_like(state)
        for step, phases in zip(reversed(range(len(steps.mixers))), steps.conjugate_phases(piece), strict=True):
            if self.of_angles is not None:
                self.of_angles[step, 2] += _turning(steps, both)
            back = [matrix.T for matrix in steps.mixers[step]]
            both, spare = mix(back[: steps.leading], both, spare)
            sums = [steps.cut(by_pairs), steps.cut(by_fields)]
            for part, (source, target) in enumerate(zip(steps.cut(both), steps.cut(spare), strict=True)):
                undone, _ = mix(back[steps.leading :], source, target)
                torch.conj_physical(undone[:, 1], out=conjugate)
                sums[0][part].addcmul_(undone[:, 0], conjugate, value=steps.pair_angles[step])
                if not steps.alike:
                    sums[1][part].addcmul_(undone[:, 0], conjugate, value=steps.field_angles[step])
                if step or self.of_initial is not None:
                    steps.multiply(undone, phases.unsqueeze(1), part)
            if (len(back) - steps.leading) % 2:
                both, spare = spare, both
            if self.of_angles is not None:
                turned = sum_to_tables(both[:, 0] * both[:, 1].conj_physical(), wires).imag
                self.of_angles[step, 0] += (turned * _columns(steps.field_tables, piece)).sum()
                self.of_angles[step, 1] += (turned * _columns(steps.pair_tables, piece)).sum()
        self.of_pairs.append(sum_to_tables(by_pairs, wires).imag)
        self.of_fields.append(self.of_pairs[-1] if steps.alike else sum_to_tables(by_fields, wires).imag)
        if self.of_initial is not None:
            slope = both[:, 0] * steps.start.conj_physical().unsqueeze(1)
            slope, _ = mix(steps.hadamards(), slope, torch.empty_like(slope))
            self.of_initial.append(slope.T)

    def results(
        self, fields: Tensor, couplings: Tensor, angles: Tensor, initial: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of fields, couplings, angles and initial state."""
        of_fields, of_pairs = energy_matrices(self.steps.num_wires, fields.dtype, fields.device)
        grad_fields = _fold(torch.cat(self.of_fields, 1).T @ of_fields, len(fields))
        grad_couplings = _fold(torch.cat(self.of_pairs, 1).T @ of_pairs, len(couplings))
        grad_angles = None if self.of_angles is None else self.of_angles.to(angles)
        grad_initial = None
        if self.of_initial is not None and initial is not None:
            grad_initial = _fold(torch.cat(self.of_initial), len(initial))
        return grad_fields, grad_couplings, grad_angles, grad_initial


def _turning(steps: _Steps, both: Tensor) -> Tensor:
    """Return dL/dc of a mixer from what it gave: Re sum of lambda conj(K state)."""
    slope, state = both.unbind(1)
    state = state.contiguous()
    turned = torch.empty_like(state)
    total = torch.zeros((), dtype=torch.float64, device=both.device)
    left = 1
    for size in steps.groups:
        generator = mixer_generator(size, steps.field_tables.dtype, both.device)
        multiply_group(generator, state, turned, left)
        total += (slope * turned.conj_physical()).real.sum()
        left *= len(generator)
    return total


def _plain_gradients(
    ctx: Any, grad: Tensor, fields: Tensor, couplings: Tensor, angles: Tensor, initial: Tensor | None
) -> tuple[Tensor | None, ...]:
    """Return gradients that can be differentiated once more, at the memory of plain backprop."""
    result = plain_quench(fields, couplings, angles, initial)
    if ctx.measured:
        result = (result * result.conj()).real
    inputs = zip((fields, couplings, angles, initial), ctx.needs_input_grad, strict=False)
    wanted = [x for x, needed in inputs if needed and x is not None]
    found = iter(torch.autograd.grad(result, wanted, grad, create_graph=True))
    return tuple(next(found) if needed else None for needed in ctx.needs_input_grad[:4])


def _even_increments(angles: Tensor) -> tuple[float, float] | None:
    """Return how much the angles of fields and of pairs grow from each step to the next, or None if unevenly."""
    grown = angles[:, :2].diff(dim=0)
    if not len(grown) or (grown - grown.mean(0)).abs().max() > 1e-14 * angles.abs().max():
        return None
    by_fields, by_pairs = grown.mean(0).tolist()
    return by_fields, by_pairs


def _pieces(rows: int, num_states: int, bytes_per_amplitude: int) -> Iterator[slice]:
    """Yield chunks of rows whose states fit a processor's cache, or enough rows to keep matrix products efficient."""
    columns = max(_FEWEST_COLUMNS, _CHUNK_BYTES // (num_states * bytes_per_amplitude))
    for start in range(0, rows, columns):
        yield slice(start, min(start + columns, rows))


def _rows(initial: Tensor | None, piece: slice) -> Tensor | None:
    return initial if initial is None or len(initial) == 1 else initial[piece]


def _columns(tables: Tensor, piece: slice) -> Tensor:
    return tables if tables.shape[1] == 1 else tables[:, piece]


def _fold(grad: Tensor, rows: int) -> Tensor:
    return grad.sum(0, keepdim=True) if rows == 1 and len(grad) > 1 else grad
