"""What a study tests: differences, equivalences and trends, fixed in its file before the runs."""

import math
from dataclasses import dataclass
from typing import Any

Axes = dict[str, dict[str, list[str]]]


@dataclass(frozen=True)
class Comparison:
    """The difference between two values of axes, first - second, paired by seed.

    Args:
        experiment: name.
        first: chosen values of axes.
        second: chosen values of the same axes.
        at: chosen values of all other axes, in a trend of all but one.
        margin: of an equivalence, in the unit of shown differences.
        axis: of a trend, whose values are numbers.
    """

    experiment: str
    first: dict[str, str]
    second: dict[str, str]
    at: dict[str, str]
    margin: float | None = None
    axis: str | None = None

    @property
    def name(self) -> str:
        """What is compared, in words."""
        first, second = (" ".join(chosen.values()) for chosen in (self.first, self.second))
        place = ", ".join(f"{axis.replace('_', ' ')} {value}" for axis, value in self.at.items())
        return f"{self.experiment}: {first} - {second}" + (f" at {place}" if place else "")


@dataclass(frozen=True)
class Comparisons:
    """All that a study tests.

    Args:
        primary: differences whose p values are corrected together.
        equivalences: tests of being on par.
        trends: tests of whether a difference grows along an axis.
    """

    primary: tuple[Comparison, ...] = ()
    equivalences: tuple[Comparison, ...] = ()
    trends: tuple[Comparison, ...] = ()


def read_comparisons(content: dict[str, Any], axes: Axes) -> Comparisons:
    """Return the comparisons under `primary`, `equivalences` and `trends` of a study.

    Args:
        content: of the study's file.
        axes: the values of every axis of each experiment.

    Raises:
        ValueError: if one names what the study does not have, or leaves an axis open.
    """
    kinds = {"primary": (), "equivalences": ("margin",), "trends": ("axis",)}
    found = {
        kind: tuple(_comparison(kind, given, further, axes) for given in content.get(kind) or [])
        for kind, further in kinds.items()
    }
    return Comparisons(**found)


def _comparison(kind: str, given: Any, further: tuple[str, ...], axes: Axes) -> Comparison:
    keys = {"experiment", "first", "second", "at", *further}
    if not isinstance(given, dict) or set(given) | {"at"} != keys:
        raise ValueError(f"{kind} holds {given!r}: give {', '.join(sorted(keys))}.")
    experiment = str(given["experiment"])
    if experiment not in axes:
        raise ValueError(f"{kind} names the experiment {experiment!r}: the study has {', '.join(axes)}.")
    for part in ("first", "second", "at"):
        if not isinstance(given.get(part) or {}, dict):
            raise ValueError(
                f"{kind} has {part}: {given[part]!r}: give axes and their values, such as attention: softmax."
            )
    first, second, at = (
        {str(k): str(v) for k, v in (given.get(part) or {}).items()} for part in ("first", "second", "at")
    )
    named, own = axes[experiment], Comparison(experiment, first, second, at, **{key: given[key] for key in further})
    for chosen in (first, second, at):
        for axis, value in chosen.items():
            if value not in named.get(axis, ()):
                raise ValueError(f"{kind} names {axis} {value} of {experiment}, which does not have it.")
    fixed = [*first, *at, *([own.axis] if own.axis else [])]
    if first.keys() != second.keys() or sorted(fixed) != sorted(named):
        raise ValueError(
            f"{kind} compares {first} with {second} at {at} in {experiment}: give both the same axes, and with `at` "
            f"each of {', '.join(named)} once."
        )
    if first == second:
        raise ValueError(f"{kind} compares {first} with itself in {experiment}: give two different values.")
    if own.margin is not None and not (
        isinstance(own.margin, int | float) and not isinstance(own.margin, bool) and 0 < own.margin < math.inf
    ):
        raise ValueError(f"{kind} has the margin {own.margin!r}: give a positive number.")
    if own.axis is not None and not all(_is_number(value) for value in named[own.axis]):
        raise ValueError(f"{kind} has the axis {own.axis}: give one whose values are numbers.")
    return own


def _is_number(value: str) -> bool:
    try:
        return math.isfinite(float(value))
    except ValueError:
        return False
