"""The contract that every Ising layer shares, and the layer without couplings."""

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from hybrid_attention.coupling_shapes import CouplingShape, FreeCouplings
from hybrid_attention.ising import pair_index
from hybrid_attention.precision import full_precision


class IsingLayer(nn.Module, ABC):
    """Turn the fields of every query into the marginals p_j = P(s_j = +1) of its spins.

    A layer owns one parameter, `couplings` (num_heads, ...), in nats, zero at the start, whose further dimensions
    follow from the coupling shape: (num_heads, T (T - 1) / 2), the strict upper triangle of J row by row, where the
    couplings are free. A layer without couplings owns none. The state_dict is the same for every layer with couplings
    of one shape, so weights trained with one load into any other; load_state_dict refuses those of another size, which
    is all that it can tell of their shape.

    A subclass implements `marginals`; shapes and precision are settled here.

    Args:
        num_spins: the largest number of spins T, 0 or more.
        num_heads: the number of heads H, each with couplings of its own.
        coupling_shape: which pairs are coupled and which share a coupling; FreeCouplings() by default. It changes
            nothing in a layer without couplings.

    Raises:
        ValueError: if num_spins is negative or num_heads is not positive.
        TypeError: if coupling_shape is not a CouplingShape.
    """

    has_couplings: bool = True

    def __init__(self, num_spins: int, num_heads: int = 1, coupling_shape: CouplingShape | None = None) -> None:
        super().__init__()
        if num_spins < 0 or num_heads < 1:
            raise ValueError(
                f"num_spins={num_spins} and num_heads={num_heads} were given: a layer needs at least 0 spins and "
                "at least 1 head."
            )
        if not isinstance(coupling_shape, CouplingShape | None):
            raise TypeError(f"coupling_shape={coupling_shape!r} was given: give one, such as BandedCouplings(range=4).")
        self.num_spins = num_spins
        self.num_heads = num_heads
        self.coupling_shape = FreeCouplings() if coupling_shape is None else coupling_shape
        self.couplings: nn.Parameter | None
        if self.has_couplings:
            self.couplings = nn.Parameter(torch.zeros(num_heads, *self.coupling_shape.size(num_spins)))
        else:
            self.register_parameter("couplings", None)

    def coupling_matrix(self, num_spins: int | None = None) -> Tensor:
        """Return J of the first `num_spins` spins: (H, T, T), symmetric, zero diagonal, in nats."""
        upper = self.upper_couplings(num_spins)
        return upper + upper.mT

    def upper_couplings(self, num_spins: int | None = None) -> Tensor:
        """Return the strict upper triangle of J of the first `num_spins` spins, and 0 below: (H, T, T), in nats."""
        size = self.num_spins if num_spins is None else num_spins
        if not 0 <= size <= self.num_spins:
            raise ValueError(f"{size} spins were asked for: the layer has 0 to {self.num_spins}.")
        if self.couplings is None:
            return torch.zeros(self.num_heads, size, size)
        couplings = self.pair_couplings(size)
        places = _matrix_places(size, self.coupling_shape.range_of(size), couplings.device).expand(self.num_heads, -1)
        flat = couplings.new_zeros(self.num_heads, size * size).scatter(1, places, couplings)
        return flat.view(self.num_heads, size, size)

    def pair_couplings(self, size: int) -> Tensor:
        """Return J of the coupled pairs of the first `size` spins, row by row: (H, pairs); the parameter where it is.

        The pairs are those of pair_index(size, coupling_range=coupling_shape.range_of(size)).
        """
        assert self.couplings is not None
        places = _parameter_places(self.coupling_shape, self.num_spins, size, self.couplings.device)
        flat = self.couplings if self.couplings.dim() == 2 else self.couplings.flatten(1)
        return flat if places is None else flat.index_select(1, places)

    def forward(self, fields: Tensor, present: Tensor | None = None) -> Tensor:
        """Return the marginals p_j = P(s_j = +1).

        Args:
            fields: (batch, H, ..., T), in nats, floating point, T <= num_spins.
            present: bool, broadcasts to fields; a False spin is removed: its p is 0, and neither its field
                (whatever its value) nor its couplings reach any other spin. All spins are present without it.

        Returns:
            (batch, H, ..., T), in the dtype of fields; half precision is computed in float32.

        Raises:
            TypeError: if fields are not floating point or present is not bool.
            ValueError: if the shapes do not fit or a present field is not finite.
        """
        self._check(fields, present)
        with full_precision(fields.device):
            working = fields if fields.dtype in (torch.float32, torch.float64) else fields.float()
            return self.marginals(working, present).to(fields.dtype)

    @abstractmethod
    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return the marginals for input of checked shape, in float32 or float64, with p = 0 at removed spins."""

    def metrics(self) -> dict[str, Tensor]:
        """Return what the layer wants logged of its last forward pass, by name; nothing by default."""
        return {}

    def extra_repr(self) -> str:
        """Return the sizes, and the coupling shape where couplings are not free, for repr."""
        sizes = f"num_spins={self.num_spins}, num_heads={self.num_heads}"
        if self.couplings is None or self.coupling_shape == FreeCouplings():
            return sizes
        return f"{sizes}, coupling_shape={self.coupling_shape}"

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load the couplings, those of fewer distances too where the shape takes them, or say that they do not fit."""
        name = f"{prefix}couplings"
        given, ours = state_dict.get(name), self.couplings
        if ours is not None and isinstance(given, Tensor) and given.shape != ours.shape:
            heads = len(given) if given.dim() else 0
            fitted = self.coupling_shape.extended(given, self.num_spins) if heads == self.num_heads else None
            if fitted is None:
                *_, errors = rest
                errors.append(
                    f"{name} has shape {tuple(given.shape)}, and {self.coupling_shape} over {self.num_spins} spins "
                    f"and {self.num_heads} head(s) has {tuple(ours.shape)}: build the layer with the coupling shape "
                    "and the sizes of these weights, or convert them with convert_couplings."
                )
            state_dict = {**state_dict, name: ours.detach() if fitted is None else fitted}
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _check(self, fields: Tensor, present: Tensor | None) -> None:
        if not fields.is_floating_point():
            raise TypeError(f"The fields are {fields.dtype}: give a floating-point tensor.")
        if fields.dim() < 3 or fields.shape[1] != self.num_heads:
            raise ValueError(
                f"The fields have shape {tuple(fields.shape)}: give (batch, {self.num_heads}, ..., num_spins), "
                f"with {self.num_heads} head(s) in the second dimension."
            )
        if fields.shape[-1] > self.num_spins:
            raise ValueError(
                f"The fields hold {fields.shape[-1]} spins, the layer has {self.num_spins}: shorten the input or "
                "build a larger layer."
            )
        if present is None:
            return
        if present.dtype != torch.bool:
            raise TypeError(f"present is {present.dtype}: give a bool tensor, True where a spin is present.")
        sizes = zip(reversed(present.shape), reversed(fields.shape), strict=False)
        if present.dim() > fields.dim() or any(size not in (1, whole) for size, whole in sizes):
            raise ValueError(
                f"present has shape {tuple(present.shape)}, which does not broadcast to the fields' "
                f"{tuple(fields.shape)}: give a mask of that shape or of size 1 where it repeats."
            )


class FieldsOnlyLayer(IsingLayer):
    """Sigmoid attention, the J = 0 limit in closed form: p_j = sigmoid(2 h_j), no couplings.

    Args and errors as for IsingLayer. Cost: O(T) per query. Source: arXiv 2606.12478, the ablation h only.
    """

    has_couplings = False

    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return sigmoid(2 h), of the shape of fields."""
        check_finite(fields, present)
        if present is None:
            return torch.sigmoid(2 * fields)
        return torch.sigmoid(2 * fields.masked_fill(~present, 0)).masked_fill(~present, 0)


def check_finite(fields: Tensor, present: Tensor | None) -> None:
    """Raise ValueError if the field of a present spin is NaN or infinite."""
    fields = fields.detach()
    if present is not None:
        fields = fields.masked_fill(~present, 0)
    if not fields.sum().isfinite() and not fields.isfinite().all():
        raise ValueError(
            "The fields hold NaN or infinite values: give finite fields (in training, lower the learning rate); "
            "`present` removes a spin."
        )


def check_finite_couplings(couplings: Tensor) -> None:
    """Raise ValueError if a coupling is NaN or infinite."""
    if not couplings.detach().isfinite().all():
        raise ValueError("The couplings hold NaN or infinite values: give finite couplings.")


@lru_cache(maxsize=64)
def _matrix_places(num_spins: int, coupling_range: int, device: torch.device) -> Tensor:
    """Return where each coupled pair lies in a flat (T, T) matrix: (pairs,)."""
    with torch.inference_mode(False):
        rows, columns = pair_index(num_spins, device, coupling_range)
        return rows * num_spins + columns


@lru_cache(maxsize=64)
def _parameter_places(shape: CouplingShape, num_spins: int, size: int, device: torch.device) -> Tensor | None:
    """Return where each coupled pair of the first `size` of `num_spins` spins lies in the flat parameter of one head.

    None where these are all entries, in order.
    """
    with torch.inference_mode(False):
        first, second = pair_index(size, device, shape.range_of(size))
        places = shape.places(first, second, num_spins)
        entries = torch.arange(math.prod(shape.size(num_spins)), device=device)
        return None if torch.equal(places, entries) else places
