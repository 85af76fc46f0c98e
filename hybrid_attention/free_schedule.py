"""A quench whose 3P step angles are all free, and how the angles of one become those of one with more steps."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hybrid_attention.schedules import Schedule


@dataclass(frozen=True)
class FreeSchedule(Schedule):
    """A quench with an angle of its own for the fields, the pairs and the mixer of each step.

    Args:
        field_angles: the multiplier a_p of the fields in each of P steps, 1 or more.
        pair_angles: the multiplier b_p of the couplings in each step.
        mixer_angles: the angle c_p of the mixer in each step.
        betas: (beta_h, beta_J), by which fields and couplings are divided, where the angles were tuned to sample at
            these over a range of fields and couplings; those to first order without.

    Raises:
        ValueError: if the three differ in their number of angles or have none, a number is not finite, or an inverse
            temperature, given or to first order, is not positive.

    Source: arXiv 1411.4028, the quantum approximate optimization algorithm, here with fields and pairs apart.
    """

    field_angles: tuple[float, ...]
    pair_angles: tuple[float, ...]
    mixer_angles: tuple[float, ...]
    betas: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("field_angles", "pair_angles", "mixer_angles", "betas"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, tuple(float(number) for number in getattr(self, name)))
        counts = [len(kind) for kind in (self.field_angles, self.pair_angles, self.mixer_angles)]
        if len(set(counts)) > 1 or not counts[0]:
            raise ValueError(
                f"{counts[0]} field angles, {counts[1]} pair angles and {counts[2]} mixer angles were given: give one "
                "of each for every step, and one step or more."
            )
        if not self.angles().isfinite().all():
            raise ValueError(f"{self} has angles that are not finite: give finite numbers.")
        _ = self._betas

        if self.betas is not None and (len(self.betas) != 2 or not all(0 < beta < math.inf for beta in self.betas)):
            raise ValueError(f"betas={self.betas} were given: give two positive numbers, beta_h and beta_J.")

    @staticmethod
    def from_angles(angles: Tensor, betas: tuple[float, float] | None = None) -> "FreeSchedule":
        """Return the schedule of angles (P, 3)."""
        field_angles, pair_angles, mixer_angles = (tuple(kind.tolist()) for kind in angles.detach().double().unbind(1))
        return FreeSchedule(field_angles, pair_angles, mixer_angles, betas)

    @property
    def beta_h(self) -> float:
        """Inverse temperature of the fields, given or to first order."""
        return super().beta_h if self.betas is None else self.betas[0]

    @property
    def beta_J(self) -> float:  # noqa: N802
        """Inverse temperature of the couplings, given or to first order."""
        return super().beta_J if self.betas is None else self.betas[1]

    @property
    def steps(self) -> int:
        """Number of Trotter steps."""
        return len(self.mixer_angles)

    def angles(self) -> Tensor:
        """Return (P, 3), float64."""
        kinds = (self.field_angles, self.pair_angles, self.mixer_angles)
        return torch.tensor(kinds, dtype=torch.float64).T.contiguous()


def interpolate_angles(angles: Tensor, steps: int) -> Tensor:
    """Return angles of `steps` steps that follow those of fewer or more steps over the same time.

    Args:
        angles: (P, 3).
        steps: the number of steps P' of the result.

    Returns:
        (P', 3): the angles at the middle of each step, linear between the middles of the given steps and beyond them
        those of the first and the last one, times P / P', as the steps become shorter.

    Source: arXiv 1812.01041, where angles of p steps start the search for those of p + 1.
    """
    given = len(angles)
    places = ((torch.arange(steps, dtype=angles.dtype) + 0.5) * given / steps - 0.5).clamp(0, given - 1)
    below = places.floor().long().clamp(max=max(given - 2, 0))
    share = (places - below).unsqueeze(1)
    above = angles[(below + 1).clamp(max=given - 1)]
    return torch.lerp(angles[below], above, share) * (given / steps)
