"""Which pairs of spins are coupled, and which pairs share one coupling: the parameters behind the matrix J."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from hybrid_attention.ising import num_pairs, pair_index

MAX_SWEPT_RANGE = 12  # of TransferMatrixLayer


class CouplingShape(ABC):
    """How the couplings J_jk of T spins follow from the parameter of a layer, which holds one set for each head.

    Shapes are compared and hashed, so a subclass is best a frozen dataclass.
    """

    @abstractmethod
    def range_of(self, num_spins: int) -> int:
        """Return the largest distance |j - k| of two coupled spins among `num_spins`, 0 where there is none."""

    @abstractmethod
    def size(self, num_spins: int) -> tuple[int, ...]:
        """Return the shape of the parameter of one head."""

    @abstractmethod
    def places(self, first: Tensor, second: Tensor, num_spins: int) -> Tensor:
        """Return where the couplings of the pairs (first, second) lie in the flat parameter of one head.

        Args:
            first: int64, any shape, the spins j.
            second: the same shape, the spins k, with 0 < k - j <= range_of(num_spins).
            num_spins: T, to which the parameter belongs.
        """

    def extended(self, couplings: Tensor, num_spins: int) -> Tensor | None:
        """Return a smaller parameter of the same shape made to fit `num_spins` spins, or None where it does not."""
        return None


@dataclass(frozen=True)
class FreeCouplings(CouplingShape):
    """A coupling of its own for every pair: (T (T - 1) / 2,), the strict upper triangle of J row by row.

    Source: arXiv 2606.12478.
    """

    def range_of(self, num_spins: int) -> int:
        """Return T - 1."""
        return max(num_spins - 1, 0)

    def size(self, num_spins: int) -> tuple[int, ...]:
        """Return (T (T - 1) / 2,)."""
        return (num_pairs(num_spins),)

    def places(self, first: Tensor, second: Tensor, num_spins: int) -> Tensor:
        """Return the places in the upper triangle."""
        return _places_row_by_row(first, second, num_spins, self.range_of(num_spins))


@dataclass(frozen=True)
class BandedCouplings(CouplingShape):
    """A coupling of its own for every pair at most `range` apart, J = 0 for the others.

    The parameter holds these pairs of the upper triangle row by row: (T w - w (w + 1) / 2,) with w = min(range, T - 1).
    From a range of T - 1 on it is that of FreeCouplings.

    Args:
        range: the largest distance |j - k| of two coupled spins, 0 or more.

    Raises:
        ValueError: if range is not a whole number of 0 or more.
    """

    range: int

    def __post_init__(self) -> None:
        _check_range(self, self.range)

    def range_of(self, num_spins: int) -> int:
        """Return min(range, T - 1)."""
        return max(min(self.range, num_spins - 1), 0)

    def size(self, num_spins: int) -> tuple[int, ...]:
        """Return the number of pairs within the range."""
        return (num_pairs(num_spins, self.range),)

    def places(self, first: Tensor, second: Tensor, num_spins: int) -> Tensor:
        """Return the places among the pairs within the range."""
        return _places_row_by_row(first, second, num_spins, self.range_of(num_spins))


@dataclass(frozen=True)
class ToeplitzCouplings(CouplingShape):
    """One coupling for each distance |j - k|, the same at all positions, so that it carries over to any length.

    The parameter is (1, w), the couplings at distances 1..w, with w = min(range, T - 1). A layer takes weights of fewer
    distances, from fewer spins or a smaller range, and couples spins further apart by 0, so it gives the same numbers
    as before wherever those weights reach.

    Args:
        range: the largest distance of two coupled spins, 0 or more; None for all of them.

    Raises:
        ValueError: if range is not a whole number of 0 or more.
    """

    range: int | None = None

    def __post_init__(self) -> None:
        if self.range is not None:
            _check_range(self, self.range)

    def range_of(self, num_spins: int) -> int:
        """Return min(range, T - 1)."""
        longest = max(num_spins - 1, 0)
        return longest if self.range is None else min(self.range, longest)

    def size(self, num_spins: int) -> tuple[int, ...]:
        """Return (1, number of distances)."""
        return (1, self.range_of(num_spins))

    def places(self, first: Tensor, second: Tensor, num_spins: int) -> Tensor:
        """Return distance - 1."""
        return second - first - 1

    def extended(self, couplings: Tensor, num_spins: int) -> Tensor | None:
        """Return couplings (H, 1, fewer distances) with 0 at the others: (H, *size(num_spins))."""
        missing = self.range_of(num_spins) - couplings.shape[-1]
        return (
            pad(couplings, (0, missing)) if couplings.dim() == 3 and couplings.shape[1] == 1 and missing > 0 else None
        )


def convert_couplings(couplings: Tensor, source: CouplingShape, target: CouplingShape, num_spins: int) -> Tensor:
    """Return the parameter of another shape that gives the same matrix J.

    Args:
        couplings: (H, *source.size(num_spins)), in nats.
        source: the shape of these couplings.
        target: the shape wanted.
        num_spins: T.

    Returns:
        (H, *target.size(num_spins)), without gradient.

    Raises:
        ValueError: if the couplings are not of the shape `source`, or the target cannot hold them: it has a smaller
            range, or shares a coupling between pairs that differ.

    Cost: O(T^2) for the list of pairs, O(T range) for each head.
    """
    expected = source.size(num_spins)
    if not couplings.dim() or not len(couplings) or tuple(couplings.shape[1:]) != expected:
        raise ValueError(
            f"The couplings have shape {tuple(couplings.shape)}, and {source} over {num_spins} spins is (heads, "
            f"{', '.join(map(str, expected))}): give the shape and the number of spins that they belong to."
        )
    first, second = pair_index(num_spins, couplings.device, source.range_of(num_spins))
    values = couplings.detach().flatten(1).index_select(1, source.places(first, second, num_spins))
    near = second - first <= target.range_of(num_spins)
    places = target.places(first[near], second[near], num_spins)
    converted = values.new_zeros(len(values), *target.size(num_spins))
    flat = converted.view(len(values), -1)
    flat[:, places] = values[:, near]
    if values[:, ~near].any() or not torch.equal(flat[:, places], values[:, near]):
        raise ValueError(
            f"{target} cannot hold these {source} couplings: take a shape with at least their range, and with a "
            "coupling of its own for every pair if they differ at equal distances."
        )
    return converted


def _places_row_by_row(first: Tensor, second: Tensor, num_spins: int, coupling_range: int) -> Tensor:
    in_row = torch.arange(num_spins - 1, -1, -1, device=first.device).clamp_max(coupling_range)
    return (in_row.cumsum(0) - in_row)[first] + second - first - 1


def _check_range(shape: CouplingShape, value: object) -> None:
    if type(value) is not int or value < 0:
        raise ValueError(f"{type(shape).__name__}(range={value!r}) was given: take a whole number of 0 or more.")
