"""Whether paired differences are small enough to call two methods equivalent, by two one-sided t tests (TOST)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

ALPHA = 0.05


@dataclass(frozen=True)
class Equivalence:
    """The outcome of a test of equivalence.

    Args:
        count: number of pairs N.
        mean: of the differences, in their unit.
        spread: standard deviation of the differences, with N - 1.
        low: lower end of the 1 - 2 alpha interval of the mean (90 % at alpha = 0.05).
        high: its upper end.
        p_above: one-sided p of "the mean is -margin or less".
        p_below: one-sided p of "the mean is +margin or more".
        p_zero: two-sided p of "the mean is 0", the ordinary paired t test.
        alpha: level of each test.
    """

    count: int
    mean: float
    spread: float
    low: float
    high: float
    p_above: float
    p_below: float
    p_zero: float
    alpha: float

    @property
    def verdict(self) -> str:
        """Return "equivalent" where both one-sided tests reject, so that the interval lies between the margins.

        Else "different" where the mean differs from 0, and "cannot decide" where it does not.
        """
        if max(self.p_above, self.p_below) < self.alpha:
            return "equivalent"
        return "different" if self.p_zero < self.alpha else "cannot decide"


def equivalence(differences: Sequence[float], margin: float, alpha: float = ALPHA) -> Equivalence:
    """Return whether the mean of paired differences lies between -margin and +margin.

    Args:
        differences: one for each pair, N of them, taken as independent and normal.
        margin: in the unit of the differences, positive.
        alpha: level of each of the two one-sided tests, which is the level of both together.

    Raises:
        ValueError: if there are fewer than two pairs, they do not differ among each other, or the margin is not
            positive.

    Source: D. J. Schuirmann, "A comparison of the two one-sided tests procedure and the power approach for assessing
    the equivalence of average bioavailability" (1987).
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2 or not margin > 0:
        raise ValueError(f"{len(values)} pairs and a margin of {margin} were given: give 2 or more, and above 0.")
    spread = float(values.std(ddof=1))
    if not spread > 0:
        raise ValueError(f"All {len(values)} differences are {values[0]:g}, which has no error: take a harder task.")
    mean, error, freedom = float(values.mean()), spread / math.sqrt(len(values)), len(values) - 1
    p_above, p_below, p_beyond = stats.t.sf(np.array([mean + margin, margin - mean, abs(mean)]) / error, freedom)
    half = error * float(stats.t.isf(alpha, freedom))
    return Equivalence(
        count=len(values),
        mean=mean,
        spread=spread,
        low=mean - half,
        high=mean + half,
        p_above=float(p_above),
        p_below=float(p_below),
        p_zero=2 * float(p_beyond),
        alpha=alpha,
    )
