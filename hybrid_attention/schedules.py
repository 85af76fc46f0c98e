"""Annealing schedules: the angles of each Trotter step, and the inverse temperatures at which the quench samples."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_LARGEST_FIELD = 40.0
_POINTS_PER_HALF_WAVE = 256
_POINTS_AT_ONCE = 4096


def inverse_temperatures(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return (beta_h, beta_J), at which a quench samples fields and couplings to first order in them.

    A field turns its spin from x towards y by 2 a_p h in step p, and the mixers from step p on turn y towards z by
    2 sum_{q>=p} c_q, so <Z_j> = beta_h h_j; a pair's y z and z y components turn twice as fast, so
    <Z_j Z_k> = beta_J J_jk, with

        beta_h = sum_p 2 a_p sin(2 sum_{q>=p} c_q)      beta_J = sum_p 2 b_p sin(4 sum_{q>=p} c_q)

    The Trotter error is inside these sums. Dividing fields by beta_h and couplings by beta_J samples at beta = 1.

    Args:
        angles: (P, 3), the multipliers (a_p, b_p, c_p) of fields, pairs and mixer.

    Returns:
        Two scalars, which autograd differentiates. Cost: O(P).
    """
    field_angles, pair_angles, mixer_angles = angles.unbind(1)
    left = mixer_angles.flip(0).cumsum(0).flip(0)
    return (2 * field_angles * torch.sin(2 * left)).sum(), (2 * pair_angles * torch.sin(4 * left)).sum()


def single_spin_response(angles: Tensor, fields: Tensor) -> Tensor:
    """Return <Z> of one spin without couplings after the quench, in closed form.

    The spin starts at (x, y, z) = (1, 0, 0); step p turns it about z by -2 a_p h, then about x by -2 c_p.

    Args:
        angles: (P, 3), as for inverse_temperatures.
        fields: (...), the fields that the circuit is given.

    Returns:
        (...). Cost: O(P) for every field.
    """
    x, y, z = torch.ones_like(fields), torch.zeros_like(fields), torch.zeros_like(fields)
    for field_angle, _, mixer_angle in angles:
        cos, sin = torch.cos(2 * field_angle * fields), torch.sin(2 * field_angle * fields)
        x, y = x * cos + y * sin, y * cos - x * sin
        cos, sin = torch.cos(2 * mixer_angle), torch.sin(2 * mixer_angle)
        y, z = y * cos + z * sin, z * cos - y * sin
    return z


class Schedule(ABC):
    """The step angles of a quench, and what follows from them.

    Raises:
        ValueError: on reading beta_h or beta_J where one of them is not positive: such a schedule samples no Boltzmann
            distribution.
    """

    @abstractmethod
    def angles(self) -> Tensor:
        """Return the multipliers (a_p, b_p, c_p) of fields, pairs and mixer in each step: (P, 3), float64."""

    @cached_property
    def _betas(self) -> tuple[float, float]:
        beta_h, beta_J = (float(beta) for beta in inverse_temperatures(self.angles()))
        if not (beta_h > 0 and beta_J > 0):
            raise ValueError(
                f"{self} has inverse temperatures beta_h = {beta_h:.3g} and beta_J = {beta_J:.3g}, which have to be "
                "positive: take more steps or a shorter quench (smaller tau * gamma)."
            )
        return beta_h, beta_J

    @property
    def beta_h(self) -> float:
        """Inverse temperature of the fields, to first order."""
        return self._betas[0]

    @property
    def beta_J(self) -> float:  # noqa: N802
        """Inverse temperature of the couplings, to first order."""
        return self._betas[1]

    @cached_property
    def max_field(self) -> float:
        """The |h| in nats, before the division by beta_h, up to which <Z> of a single spin grows with h; at most 40.

        <Z> is a sum of waves in h of frequencies up to Omega = 2 sum_p |a_p| / beta_h, so a grid that is fine against
        pi / Omega misses no turn; the interval of the first fall is then searched on a finer grid.
        Cost: O(P) for each point, mostly a few thousand points.
        """
        angles, beta_h = self.angles(), self.beta_h
        spacing = math.pi * beta_h / float(2 * angles[:, 0].abs().sum()) / _POINTS_PER_HALF_WAVE
        start = 0.0
        while start < _LARGEST_FIELD:
            fields = start + spacing * torch.arange(_POINTS_AT_ONCE, dtype=torch.float64)
            turn = _first_fall(angles, fields / beta_h)
            if turn is not None:
                near = torch.linspace(
                    float(fields[max(turn - 1, 0)]), float(fields[turn + 1]), 512, dtype=torch.float64
                )
                finer = _first_fall(angles, near / beta_h)
                return min(float(near[max((finer or 0) - 1, 0)]), _LARGEST_FIELD)
            start = float(fields[-2])
        return _LARGEST_FIELD


def _first_fall(angles: Tensor, fields: Tensor) -> int | None:
    """Return the first i at which <Z> does not grow from fields[i] to fields[i + 1], or None."""
    falls = (single_spin_response(angles, fields).diff() <= 0).nonzero()
    return int(falls[0]) if len(falls) else None


@dataclass(frozen=True)
class RampSchedule(Schedule):
    """A quench A = gamma (1 - s), B = s over a time tau, in `steps` Trotter steps; subclasses say how s grows in time.

    Args:
        steps: number of Trotter steps P.
        tau: duration of the quench; only tau * gamma matters beside the number of steps.
        gamma: strength of the mixer at the start.
        order: order of the splitting: 1 takes A in the middle of a step, 2 at its end.

    Raises:
        ValueError: if steps < 1, tau or gamma is not positive, order is neither 1 nor 2, a step turns spins by more
            than half a turn, or an inverse temperature is not positive.

    A mixer of angle c = dt A above pi / 2 is that of c - pi / 2 and a flip of all spins, which reverses the fields of
    the steps before it: such steps do not approximate the quench, whatever the signs of its inverse temperatures.
    """

    steps: int = 8
    tau: float = 12.0
    gamma: float = 1.0
    order: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 < self.tau < math.inf or not 0 < self.gamma < math.inf:
            raise ValueError(f"{self} was given: steps has to be 1 or more, tau and gamma positive and finite.")
        if self.order not in (1, 2):
            raise ValueError(f"order={self.order} was given: the splitting has order 1 or 2.")
        self.check_ramp()
        largest = float(self.angles()[:, 2].max())
        if largest > math.pi / 2:
            raise ValueError(
                f"{self} turns spins by dt A = {largest:.3g} > pi / 2 in a step, which no longer follows the quench: "
                "take more steps or a shorter quench (smaller tau * gamma)."
            )
        _ = self._betas

    def check_ramp(self) -> None:
        """Raise ValueError if an argument of the subclass is not allowed."""

    @abstractmethod
    def progress(self, time: Tensor) -> Tensor:
        """Return s, from 0 to 1, at times over tau, from 0 to 1: (...) -> (...)."""

    def angles(self) -> Tensor:
        """Return (P, 3): a_p = b_p = dt s, c_p = dt gamma (1 - s); a and b in the middle of a step, c as order says."""
        dt = self.tau / self.steps
        step = torch.arange(self.steps, dtype=torch.float64)
        middle = self.progress((step + 0.5) / self.steps)
        mixer = middle if self.order == 1 else self.progress((step + 1) / self.steps)
        return torch.stack((dt * middle, dt * middle, dt * self.gamma * (1 - mixer)), dim=1)


@dataclass(frozen=True)
class LinearSchedule(RampSchedule):
    """The linear quench: s grows evenly in time.

    Args and errors as for RampSchedule. Source: arXiv 2606.12478, diabatic quantum annealing; s_p = (p + 1/2) / P.
    """

    def progress(self, time: Tensor) -> Tensor:
        """Return the time."""
        return time
