"""Quenches whose progress is not even in time: a smooth ramp, and a ramp with a pause."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hybrid_attention.schedules import RampSchedule


@dataclass(frozen=True)
class SmoothSchedule(RampSchedule):
    """The cubic ramp s = 3 x^2 - 2 x^3 of the time x over tau, which starts and ends at rest.

    Args and errors as for RampSchedule.
    Source: arXiv 0808.2697, where derivatives that vanish at both ends make an adiabatic evolution more accurate.
    """

    def progress(self, time: Tensor) -> Tensor:
        """Return 3 x^2 - 2 x^3."""
        return time.square() * (3 - 2 * time)


@dataclass(frozen=True)
class PausedSchedule(RampSchedule):
    """The linear ramp with a pause: s rests at `pause_at` for a share `pause` of the time.

    Args:
        steps: as for RampSchedule.
        tau: as for RampSchedule, the pause included.
        gamma: as for RampSchedule.
        order: as for RampSchedule.
        pause_at: where s rests, between 0 and 1.
        pause: share of tau for which it rests, at least 0 and below 1.

    Raises:
        ValueError: as for RampSchedule, and if pause_at or pause is outside of its range.

    Source: arXiv 1810.05881, where a pause brings an annealer closer to a Boltzmann distribution.
    """

    pause_at: float = 0.5
    pause: float = 0.2

    def check_ramp(self) -> None:
        """Raise ValueError if pause_at or pause is outside of its range."""
        if not 0 < self.pause_at < 1 or not 0 <= self.pause < 1:
            raise ValueError(
                f"pause_at={self.pause_at} and pause={self.pause} were given: take pause_at between 0 and 1, and pause "
                "at least 0 and below 1."
            )

    def progress(self, time: Tensor) -> Tensor:
        """Return x / (1 - pause) up to pause_at, and from there on after the pause."""
        moving = 1 - self.pause
        before, after = time / moving, (time - self.pause) / moving
        return torch.where(before < self.pause_at, before, after.clamp_min(self.pause_at))
