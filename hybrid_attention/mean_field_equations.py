"""The fixed point of the mean field and TAP equations, and its derivative."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hybrid_attention.precision import without_autocast

_STEPS_TO_NEWTON = 10
_NEWTON_STEPS = 6


@dataclass(frozen=True)
class Convergence:
    """How the iteration ended: iterations and residual (H, R), the latter in nats, and whether all rows are done."""

    iterations: Tensor
    residual: Tensor
    done: Tensor

    @property
    def all_done(self) -> bool:
        """Whether every row has converged."""
        return bool(self.done.all())

    def metrics(self) -> dict[str, Tensor]:
        """Return the mean number of iterations, the largest residual, and the share of rows that are not done."""
        return {
            "iterations": self.iterations.double().mean(),
            "residual": self.residual.max(),
            "unconverged": 1 - self.done.double().mean(),
        }


@dataclass(frozen=True)
class _Equations:
    """x = right_side(tanh x): fields and present (H, R, T), couplings (H, T, T), symmetric with a zero diagonal."""

    fields: Tensor
    couplings: Tensor
    present: Tensor | None
    tap: bool

    def take(self, heads: Tensor, rows: Tensor) -> "_Equations":
        """Return those of some heads and rows."""
        here = None if self.present is None else self.present[heads][:, rows]
        return _Equations(self.fields[heads][:, rows], self.couplings[heads], here, self.tap)

    def masked(self, values: Tensor) -> Tensor:
        """Return the values, and 0 at removed spins."""
        return values if self.present is None else values.masked_fill(~self.present, 0)

    def right_side(self, x: Tensor) -> Tensor:
        """Return h + J m, with TAP less the reaction term."""
        m = self.masked(x.tanh())
        found = self.fields + m @ self.couplings
        if self.tap:
            found = found - m * (self.variances(x) @ self.couplings.square())
        return self.masked(found)

    def variances(self, x: Tensor) -> Tensor:
        """Return 1 - m^2, without cancellation."""
        return self.masked(4 * torch.sigmoid(2 * x) * torch.sigmoid(-2 * x))

    def slope(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the product with A, the derivative of the right side for m, which is symmetric."""
        if not self.tap:
            return lambda w: w @ self.couplings
        m, squares = self.masked(x.tanh()), self.couplings.square()
        reaction = self.variances(x) @ squares
        return lambda w: w @ self.couplings + 2 * m * ((m * w) @ squares) - reaction * w

    def damping(self) -> Tensor:
        """Return the step that lowers the free energy whatever the state, from present spins alone: (H, R, 1).

        It is over one more than a bound of the curvature of the terms of the couplings, relative to that of the
        entropy; the largest sum of a row of |J| bounds its lowest eigenvalue.
        """
        bound = self.couplings.abs()
        if self.tap:
            bound = bound + 1.5 * self.couplings.square()
        here = torch.ones_like(self.fields) if self.present is None else self.present.to(self.fields.dtype)
        return 1 / (1 + self.masked(here @ bound).amax(-1, keepdim=True))


def mean_field_marginals(
    fields: Tensor, couplings: Tensor, present: Tensor | None, tap: bool, max_iterations: int, tolerance: float
) -> tuple[Tensor, Convergence]:
    """Return p = sigmoid(2 x) at the fixed point, and how the iteration ended.

    Args:
        fields: (H, R, T), in nats, 0 at removed spins.
        couplings: (H, T, T), in nats, symmetric with a zero diagonal, shared by the R rows of a head.
        present: bool (H, R, T), or None where all spins are present.
        tap: with the reaction term.
        max_iterations: 1 or more.
        tolerance: a row is done where no x_j would change by more than tolerance (1 + |h_j| + sum_k |J_jk|).

    Cost and source: as for MeanFieldLayer.
    """
    with torch.no_grad():
        equations = _Equations(fields.detach(), couplings.detach(), present, tap)
        x, convergence = _solve(equations, max_iterations, tolerance)
    return _ImplicitGradient.apply(fields, couplings, x, equations), convergence


def _solve(equations: _Equations, max_iterations: int, tolerance: float) -> tuple[Tensor, Convergence]:
    """Iterate every row until it is done; rows, and heads, that are done everywhere leave the iteration."""
    step = equations.damping()
    here = torch.ones_like(equations.fields) if equations.present is None else equations.present.to(step.dtype)
    reach = tolerance * (1 + equations.fields.abs() + here @ equations.couplings.abs())
    solution = equations.fields.clone()
    heads, rows, _ = solution.shape
    iterations = torch.full((heads, rows), max_iterations, device=solution.device)
    residual = solution.new_zeros(heads, rows)
    done = torch.zeros_like(iterations, dtype=torch.bool)
    left = torch.arange(rows, device=solution.device)
    heads_left = torch.arange(heads, device=solution.device)
    part, x, ended = equations, solution, done
    next_newton = _STEPS_TO_NEWTON
    for number in range(max_iterations + 1):
        target = part.right_side(x)
        change = target - x
        now = (change.abs() <= reach).all(-1) & ~ended
        ended = ended | now
        if number == max_iterations:
            now = torch.ones_like(now)
        finished = now.nonzero(as_tuple=True)
        if len(finished[0]):
            places = heads_left[finished[0]], left[finished[1]]
            fresh = ~done[places]
            places, at = (places[0][fresh], places[1][fresh]), (finished[0][fresh], finished[1][fresh])
            solution[places] = target[at]
            residual[places] = change[at].abs().amax(-1)
            iterations[places] = number
            done[places] = ended[at]
        if number == max_iterations or ended.all():
            break
        x = x + step * change
        if number + 1 == next_newton:
            x = _newton(part, x)
            next_newton *= 2
        of_heads, of_rows = ~ended.all(1), ~ended.all(0)
        if 2 * int(of_heads.sum()) * int(of_rows.sum()) <= ended.numel():
            kept_heads, kept_rows = of_heads.nonzero().squeeze(1), of_rows.nonzero().squeeze(1)
            heads_left, left = heads_left[kept_heads], left[kept_rows]
            x, reach, step, ended = (values[kept_heads][:, kept_rows] for values in (x, reach, step, ended))
            part = part.take(kept_heads, kept_rows)
    return solution, Convergence(iterations, residual, done)


def _newton(equations: _Equations, x: Tensor) -> Tensor:
    """Return x after up to six Newton steps, each in the rows where it halves the residual."""
    change = equations.right_side(x) - x
    for _ in range(_NEWTON_STEPS):
        root, slope = equations.variances(x).sqrt(), equations.slope(x)
        moved = x + change + slope(root * _conjugate_gradients(_symmetric(root, slope), root * change))
        left = equations.right_side(moved) - moved
        helps = left.abs().amax(-1, keepdim=True) < change.abs().amax(-1, keepdim=True) / 2
        if not helps.any():
            break
        x, change = torch.where(helps, moved, x), torch.where(helps, left, change)
    return x


class _ImplicitGradient(Function):
    """sigmoid(2 x), with the derivative of the solution x of the equations for fields and couplings.

    With D = diag(1 - m^2) and A the derivative of the right side for m, which is symmetric, dL/dh = D^(1/2) y where
    (1 - D^(1/2) A D^(1/2)) y = D^(1/2) g / 2. The matrix is positive definite where the solution is a minimum of
    the free energy.
    """

    @staticmethod
    def forward(ctx: Any, fields: Tensor, couplings: Tensor, x: Tensor, equations: _Equations) -> Tensor:
        ctx.save_for_backward(x)
        ctx.equations = equations
        return equations.masked(torch.sigmoid(2 * x))

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        equations: _Equations = ctx.equations
        couplings = equations.couplings
        m, variances = equations.masked(x.tanh()), equations.variances(x)
        root, slope = variances.sqrt(), equations.slope(x)
        v = root * _conjugate_gradients(_symmetric(root, slope), root * grad / 2)
        grad_couplings = None
        if ctx.needs_input_grad[1]:
            grad_couplings = v.mT @ m
            if equations.tap:
                grad_couplings = grad_couplings - 2 * couplings * ((v * m).mT @ variances)
        return v, grad_couplings, None, None


def _symmetric(root: Tensor, slope: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the product with 1 - D^(1/2) A D^(1/2), for D^(1/2) = diag(root) and A given by its product."""
    return lambda y: y - root * slope(root * y)


def _conjugate_gradients(operator: Callable[[Tensor], Tensor], right_side: Tensor) -> Tensor:
    """Solve each row's symmetric system, (H, R, T), and stop a row where the operator is not positive on its path.

    Cost: a call of the operator for each of at most 2 T + 20 steps.
    """
    eps = torch.finfo(right_side.dtype).eps
    y = torch.zeros_like(right_side)
    residual = right_side.clone()
    direction = residual.clone()
    size = residual.square().sum(-1, keepdim=True)
    enough = size * (4 * eps) ** 2
    active = size > 0
    for _ in range(2 * right_side.shape[-1] + 20):
        if not active.any():
            break
        image = operator(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        active = active & (curvature > eps * direction.square().sum(-1, keepdim=True))
        length = torch.where(active, size / torch.where(active, curvature, 1), 0)
        y = y + length * direction
        residual = residual - length * image
        fresh = residual.square().sum(-1, keepdim=True)
        active = active & (fresh > enough)
        direction = torch.where(active, residual + fresh / torch.where(active, size, 1) * direction, 0)
        size = fresh
    return y
