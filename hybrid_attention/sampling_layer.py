"""What layers that draw classical samples share: which samples they draw, and what follows from them."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hybrid_attention.coupling_shapes import CouplingShape
from hybrid_attention.covariance import sample_marginals
from hybrid_attention.layers import IsingLayer, check_finite, check_finite_couplings


@dataclass(frozen=True)
class Draw:
    """Samples of R models in each of H heads, and the estimates from them.

    Args:
        p: (H, R, T), the marginals.
        standard_error: (H, R, T), of the marginals, or None where it is not known.
        weight_standard_error: (H, R, T), of attention weights p_j / sum_k p_k, or None where it is not known.
        spins: (H, T, K, R), int8, -1 and +1, and 0 at removed spins; None where no gradient is wanted.
    """

    p: Tensor
    standard_error: Tensor | None
    weight_standard_error: Tensor | None
    spins: Tensor | None


class SamplingLayer(IsingLayer):
    """Marginals from classical samples, with the covariances of the same samples as gradients.

    Subclasses implement `draw`. The samples are fixed by `seed` and by how many forward passes were made in training
    mode: each of these takes further samples, and every pass in evaluation mode takes the first ones again, so that it
    gives the same numbers for the same input. torch's global generator is not touched. `training_passes` is their
    number so far: set it to go on with the samples of an earlier training.

    After a forward pass, `standard_error` holds the standard errors of the marginals, in their shape, and
    `weight_standard_error` those of attention weights p_j / sum_k p_k, or None where they are not known.

    Args:
        num_spins: as for IsingLayer.
        num_heads: as for IsingLayer.
        seed: 0 or more.
        coupling_shape: as for IsingLayer.

    Raises:
        ValueError: as for IsingLayer, and if the seed is negative or no whole number.
    """

    def __init__(
        self, num_spins: int, num_heads: int = 1, seed: int = 0, coupling_shape: CouplingShape | None = None
    ) -> None:
        super().__init__(num_spins, num_heads, coupling_shape)
        if type(seed) is not int or seed < 0:
            raise ValueError(f"seed={seed!r} was given: take a whole number of 0 or more.")
        self.seed = seed
        self.standard_error: Tensor | None = None
        self.weight_standard_error: Tensor | None = None
        self.training_passes = 0

    @abstractmethod
    def draw(self, fields: Tensor, couplings: Tensor, present: Tensor | None, seed: int, with_spins: bool) -> Draw:
        """Sample R models in each of H heads.

        Args:
            fields: (H, R, T), 0 at removed spins, H, R and T 1 or more.
            couplings: (H, T, T), symmetric, zero diagonal.
            present: bool (H, R, T), or None where all spins are present.
            seed: 32 bits.
            with_spins: whether the samples are wanted beside the estimates.
        """

    @torch.compiler.disable
    def marginals(self, fields: Tensor, present: Tensor | None) -> Tensor:
        """Return the estimated marginals, (batch, H, ..., T)."""
        check_finite(fields, present)
        assert self.couplings is not None
        check_finite_couplings(self.couplings)
        self.standard_error = self.weight_standard_error = None
        if fields.numel() == 0:
            return fields * 1
        heads_first = fields.transpose(0, 1)

        def to_rows(values: Tensor) -> Tensor:
            return values.transpose(0, 1).reshape(self.num_heads, -1, values.shape[-1])

        def from_rows(values: Tensor) -> Tensor:
            return values.reshape(heads_first.shape).transpose(0, 1).to(fields.dtype)

        rows, here = to_rows(fields), None
        if present is not None:
            here = to_rows(present.expand(fields.shape))
            rows = rows.masked_fill(~here, 0)
        couplings = self.coupling_matrix(fields.shape[-1]).to(fields.dtype)
        trains = torch.is_grad_enabled() and (rows.requires_grad or couplings.requires_grad)
        with torch.no_grad():
            drawn = self.draw(rows.detach(), couplings.detach(), here, self._next_seed(), trains)
        if drawn.standard_error is not None:
            self.standard_error = from_rows(drawn.standard_error)
        if drawn.weight_standard_error is not None:
            self.weight_standard_error = from_rows(drawn.weight_standard_error)
        if drawn.spins is None:
            return from_rows(drawn.p)
        return from_rows(sample_marginals(rows, couplings, drawn.p, drawn.spins))

    def metrics(self) -> dict[str, Tensor]:
        """Return numbers of the last forward pass: standard_error, the largest one of a marginal."""
        return {} if self.standard_error is None else {"standard_error": self.standard_error.max()}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to the last forward pass."""
        return {**self.__dict__, "standard_error": None, "weight_standard_error": None}

    def _next_seed(self) -> int:
        """Return the seed of this forward pass."""
        if not self.training:
            return mixed_seed(self.seed, 0)
        self.training_passes += 1
        return mixed_seed(self.seed, self.training_passes)


def mixed_seed(*numbers: int) -> int:
    """Return 31 bits that look unrelated for different numbers of 0 or more."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 1
