"""Schedules that come tuned with the package, as `hybrid-attention calibrate` wrote them."""

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import yaml
from torch import Tensor

from hybrid_attention.free_schedule import FreeSchedule
from hybrid_attention.schedules import Schedule

_FOLDER = files("hybrid_attention") / "tuned_schedules"


@dataclass(frozen=True)
class TunedSchedule(Schedule):
    """A quench whose step angles were tuned to sample close to Boltzmann distributions.

    They were tuned on random models of 6 and 8 spins; the files in `hybrid_attention/tuned_schedules` name the command
    and what it measured. Large fields and couplings are out of their range: see docs/calibration.md.

    Args:
        steps: number of Trotter steps, one of those that `available_steps` lists.

    Raises:
        ValueError: if there is no tuned schedule of so many steps.
    """

    steps: int = 8

    def __post_init__(self) -> None:
        if self.steps not in available_steps():
            raise ValueError(
                f"steps={self.steps} was given: schedules of {', '.join(map(str, available_steps()))} steps come "
                "tuned, and `hybrid-attention calibrate` tunes others."
            )

    @property
    def free(self) -> FreeSchedule:
        """The same quench as a FreeSchedule."""
        return _read(self.steps)

    @property
    def beta_h(self) -> float:
        """Inverse temperature of the fields over the range that the angles were tuned to."""
        return self.free.beta_h

    @property
    def beta_J(self) -> float:  # noqa: N802
        """Inverse temperature of the couplings over the range that the angles were tuned to."""
        return self.free.beta_J

    def angles(self) -> Tensor:
        """Return (P, 3), float64."""
        return self.free.angles()


@lru_cache(maxsize=1)
def available_steps() -> tuple[int, ...]:
    """Return the numbers of steps of the tuned schedules, ascending."""
    names = [path.name for path in _FOLDER.iterdir() if path.name.endswith(".yaml")]
    return tuple(sorted(int(name.removeprefix("steps_").removesuffix(".yaml")) for name in names))


@lru_cache(maxsize=16)
def _read(steps: int) -> FreeSchedule:
    config: dict[str, Any] = yaml.safe_load((_FOLDER / f"steps_{steps}.yaml").read_text())
    return FreeSchedule(**config["model"]["init_args"]["layer"]["init_args"]["schedule"]["init_args"])
