"""Statistics over seeds: intervals, paired differences, their correction for many, equivalence, and trends.

All of them take the seeds as independent draws of a normal distribution: they cover what changes with the seed (initial
weights, order of the data, and the data where it is drawn anew), and nothing else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its confidence interval; infinite with a single seed.

    Args:
        mean: over the seeds.
        low: lower end.
        high: upper end.
        count: number of seeds.
    """

    mean: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds, its interval, and the p value of no difference.

    Args:
        interval: of the mean difference.
        p: two-sided; NaN with fewer than two seeds, and where all differ by the same, which leaves no scatter to judge
            by.
    """

    interval: Interval
    p: float


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided tests of a mean difference against -margin and +margin.

    Args:
        interval: of the mean difference at a confidence of 1 - 2 alpha, so 90 % for alpha = 0.05.
        p_low: p value of a difference of -margin or less.
        p_high: p value of a difference of +margin or more.
        verdict: "equivalent" where both are below alpha; "different" where the interval of confidence 1 - alpha has 0
            outside; else "undecided", and so where all differ by the same and not by 0. A difference that is real and
            smaller than the margin is "equivalent".
    """

    interval: Interval
    p_low: float
    p_high: float
    verdict: str


def mean_interval(values: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of a sample and its confidence interval by Student's t.

    Raises:
        ValueError: if there are no values.
    """
    sample = _sample(values)
    mean, error = float(sample.mean()), _standard_error(sample)
    if len(sample) < 2:
        return Interval(mean, -math.inf, math.inf, len(sample))
    half = float(stats.t.ppf((1 + confidence) / 2, len(sample) - 1)) * error
    return Interval(mean, mean - half, mean + half, len(sample))


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Return the mean of first - second, pair by pair, and the two-sided p value of the paired t test.

    Raises:
        ValueError: if the samples are empty or of different length.
    """
    return _difference(_paired(first, second))


def equivalence(first: Sequence[float], second: Sequence[float], margin: float, alpha: float = 0.05) -> Equivalence:
    """Return whether the mean of first - second, pair by pair, lies within -margin and +margin.

    Raises:
        ValueError: if the samples are empty or of different length, or the margin is not positive.

    Source: the two one-sided tests of D. J. Schuirmann, J. Pharmacokinet. Biopharm. 15, 657 (1987).
    """
    if not margin > 0:
        raise ValueError(f"margin={margin} was given: give a positive number.")
    differences = _paired(first, second)
    interval = mean_interval(differences, 1 - 2 * alpha)
    if len(differences) < 2 or (_standard_error(differences) == 0 and interval.mean != 0):
        return Equivalence(interval, math.nan, math.nan, "undecided")
    p_low = _p_above(differences + margin)
    p_high = _p_above(margin - differences)
    wide = mean_interval(differences, 1 - alpha)
    verdict = "undecided"
    if max(p_low, p_high) < alpha:
        verdict = "equivalent"
    elif wide.low > 0 or wide.high < 0:
        verdict = "different"
    return Equivalence(interval, p_low, p_high, verdict)


def trend(places: Sequence[float], values: Sequence[Sequence[float]]) -> Difference:
    """Return the mean over seeds of the slope of a least-squares line through each seed's values, and its p value.

    Args:
        places: x of each value, such as the context length.
        values: for every seed, its value at each place.

    Raises:
        ValueError: if there are no seeds, a seed has another number of values, or fewer than two places differ.
    """
    x = np.asarray(places, dtype=np.float64)
    y = np.asarray(values, dtype=np.float64)
    if len(set(x.tolist())) < 2:
        raise ValueError(f"A trend over {x.tolist()} was asked for: give two or more different places.")
    if y.ndim != 2 or not len(y) or y.shape[1] != len(x):
        raise ValueError(f"Values of shape {y.shape} were given for {len(x)} places: give (seeds, {len(x)}).")
    centered = x - x.mean()
    return _difference((y - y[:, :1]) @ centered / (centered @ centered))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p values of a family of tests, corrected so that any false one among them is as rare as for one test.

    Source: S. Holm, Scand. J. Statist. 6, 65 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda place: (math.isnan(p_values[place]), p_values[place]))
    corrected, largest = [math.nan] * len(p_values), 0.0
    for rank, place in enumerate(order):
        if math.isnan(p_values[place]):
            continue
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def _difference(differences: np.ndarray) -> Difference:
    interval = mean_interval(differences)
    if len(differences) < 2:
        return Difference(interval, math.nan)
    error = _standard_error(differences)
    if error == 0:
        return Difference(interval, 1.0 if interval.mean == 0 else math.nan)
    return Difference(interval, float(2 * stats.t.sf(abs(interval.mean) / error, len(differences) - 1)))


def _p_above(sample: np.ndarray) -> float:
    """Return the p value of a mean of 0 or less."""
    error = _standard_error(sample)
    if error == 0:
        return 0.0 if sample.mean() > 0 else 1.0
    return float(stats.t.sf(sample.mean() / error, len(sample) - 1))


def _standard_error(sample: np.ndarray) -> float:
    """Return the standard error of the mean; 0 where values are equal up to rounding."""
    if len(sample) < 2:
        return math.inf
    spread = float(sample.std(ddof=1))
    return spread / math.sqrt(len(sample)) if spread > _ROUNDING * float(np.abs(sample).max()) else 0.0


def _paired(first: Sequence[float], second: Sequence[float]) -> np.ndarray:
    if len(first) != len(second):
        raise ValueError(f"Samples of {len(first)} and {len(second)} were given: give pairs.")
    return _sample(first) - _sample(second)


def _sample(values: Sequence[float] | np.ndarray) -> np.ndarray:
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise ValueError(f"A sample of shape {sample.shape} was given: give one or more numbers.")
    return sample
