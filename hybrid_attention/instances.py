"""Sets of Ising models of one size, and their Boltzmann distributions by enumeration."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from hybrid_attention.ising import num_pairs, pair_index
from hybrid_attention.state_tables import spins

MAX_ENUMERATED = 14


@dataclass(frozen=True, eq=False)
class Instances:
    """Ising models of T spins, one a row.

    Args:
        fields: (N, T), in nats.
        couplings: (N, T (T - 1) / 2), the strict upper triangle row by row, in nats.

    Raises:
        ValueError: if the shapes do not fit, or there is no row or no spin.
    """

    fields: Tensor
    couplings: Tensor

    def __post_init__(self) -> None:
        shape = tuple(self.fields.shape)
        if len(shape) != 2 or not all(shape) or self.couplings.shape != (shape[0], num_pairs(shape[1])):
            raise ValueError(
                f"fields {shape} and couplings {tuple(self.couplings.shape)} were given: give (N, T) and "
                "(N, T (T - 1) / 2), with one row and one spin or more."
            )

    def __len__(self) -> int:
        return len(self.fields)

    @property
    def num_spins(self) -> int:
        """The number of spins T."""
        return self.fields.shape[1]

    def times(self, beta_h: float | Tensor, beta_J: float | Tensor) -> "Instances":
        """Return the models with fields times beta_h and couplings times beta_J."""
        return Instances(self.fields * beta_h, self.couplings * beta_J)


def draw_instances(
    num_spins: int, count: int, field_spread: float, coupling_spread: float, seed: int, field_mean: float = 0.0
) -> Instances:
    """Return models with fields h ~ N(field_mean, field_spread^2) and couplings J ~ N(0, coupling_spread^2), float64.

    Args:
        num_spins: T, 1 or more.
        count: number of models N, 1 or more.
        field_spread: in nats, 0 or more.
        coupling_spread: in nats, 0 or more.
        seed: the same seed draws the same models.
        field_mean: in nats.

    Raises:
        ValueError: if there is no model or no spin, or a spread is negative or not finite.
    """
    if num_spins < 1 or count < 1 or not 0 <= field_spread < math.inf or not 0 <= coupling_spread < math.inf:
        raise ValueError(
            f"{count} models of {num_spins} spins with spreads {field_spread} and {coupling_spread} were asked for: "
            "take 1 or more of both, and finite spreads of 0 or more."
        )
    generator = torch.Generator().manual_seed(seed)
    fields = torch.randn(count, num_spins, dtype=torch.float64, generator=generator)
    couplings = torch.randn(count, num_pairs(num_spins), dtype=torch.float64, generator=generator)
    return Instances(field_mean + field_spread * fields, coupling_spread * couplings)


def state_energies(instances: Instances) -> tuple[Tensor, Tensor]:
    """Return sum_j h_j s_j and sum_{j<k} J_jk s_j s_k of every state: two (N, 2^T), in nats, wire 0 the leftmost bit.

    Raises:
        ValueError: if there are more than 14 spins.

    Cost: O(T^2 2^T) for each model.
    """
    if instances.num_spins > MAX_ENUMERATED:
        raise ValueError(
            f"Models of {instances.num_spins} spins were given: distributions are enumerated for up to "
            f"{MAX_ENUMERATED} spins; larger ones need samples."
        )
    fields = instances.fields
    return (
        fields @ state_spins(instances.num_spins, fields.dtype, fields.device),
        instances.couplings @ _state_pairs(instances.num_spins, fields.dtype, fields.device),
    )


def boltzmann_log_probabilities(instances: Instances) -> Tensor:
    """Return log P(s) of every state at beta = 1: (N, 2^T). Errors and cost as for state_energies."""
    of_fields, of_pairs = state_energies(instances)
    return (of_fields + of_pairs).log_softmax(1)


def magnetizations(probabilities: Tensor) -> Tensor:
    """Return <s_j> of distributions over states, wire 0 the leftmost bit: (N, 2^T) -> (N, T)."""
    num_spins = probabilities.shape[1].bit_length() - 1
    return probabilities @ state_spins(num_spins, probabilities.dtype, probabilities.device).T


def draw_samples(probabilities: Tensor, shots: int, seed: int) -> Tensor:
    """Return independent samples of distributions over states: (N, 2^T) -> (N, shots, T), spins -1 and +1.

    The same seed draws the same samples.
    """
    generator = torch.Generator(probabilities.device).manual_seed(seed)
    states = torch.multinomial(probabilities, shots, replacement=True, generator=generator)
    num_spins = probabilities.shape[1].bit_length() - 1
    return state_spins(num_spins, probabilities.dtype, probabilities.device).T[states]


@lru_cache(maxsize=64)
def state_spins(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the spins of every state, wire 0 the leftmost bit: (T, 2^T), -1 or +1."""
    with torch.inference_mode(False):
        return spins(num_spins, dtype, device).flip(0)


@lru_cache(maxsize=64)
def _state_pairs(num_spins: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        s = state_spins(num_spins, dtype, device)
        first, second = pair_index(num_spins, device)
        return s[first] * s[second]
