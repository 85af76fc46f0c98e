"""What studies compare: the logged number, and how it and its differences are shown."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

_LARGEST_LOSS = math.log(sys.float_info.max)


@dataclass(frozen=True)
class Metric:
    """One kind of result.

    Args:
        name: the logged number is test_NAME, and val_NAME during training.
        label: of the shown value, with its unit.
        unit: of shown differences.
        digits: decimals of shown values and differences.
        show: turns the logged number into the shown one.
        show_difference: the same for differences of logged numbers; increasing.
        margin: turns a shown difference into one of logged numbers.
    """

    name: str
    label: str
    unit: str
    digits: int
    show: Callable[[float], float]
    show_difference: Callable[[float], float]
    margin: Callable[[float], float]

    def text(self, logged: float) -> str:
        """Return the shown value of a logged number."""
        return f"{self.show(logged):.{self.digits}f}"


def _percent(share: float) -> float:
    return 100 * share


def _perplexity(loss: float) -> float:
    """Return exp(loss), infinite where that is no float, as after training that diverged."""
    return math.inf if loss > _LARGEST_LOSS else math.exp(loss)


def _growth(difference: float) -> float:
    """Return by how many percent exp(x) grows when x grows by `difference`."""
    return math.inf if difference > math.log(1e9) else 100 * math.expm1(difference)


METRICS = {
    "accuracy": Metric("accuracy", "accuracy (%)", "points", 2, _percent, _percent, lambda points: points / 100),
    "perplexity": Metric("loss", "perplexity", "%", 3, _perplexity, _growth, lambda percent: math.log1p(percent / 100)),
}
