"""Correlations and energies of the spins behind recorded attention, from each layer's own distribution."""

from typing import NamedTuple

import torch
from torch import Tensor

from hybrid_attention.annealing import Annealer
from hybrid_attention.attention_record import AttentionRecord
from hybrid_attention.correlations import exact_correlations, weighted_correlations
from hybrid_attention.dqa import DQALayer
from hybrid_attention.energy_levels import energy_histogram, energy_levels
from hybrid_attention.exact import MAX_SPINS, ExactLayer
from hybrid_attention.instances import MAX_ENUMERATED, Instances, state_spins
from hybrid_attention.ising import energy, pair_index
from hybrid_attention.layers import FieldsOnlyLayer, IsingLayer
from hybrid_attention.transfer_matrix import TransferMatrixLayer

_SAMPLES = 1000
_EXACT_LAYERS = (ExactLayer, FieldsOnlyLayer, TransferMatrixLayer)


class _States(NamedTuple):
    """States or samples of the spins at `places`: spins (N, n), weights (N,), places (n,)."""

    spins: Tensor
    weights: Tensor
    places: Tensor


class SpinStatistics(NamedTuple):
    """What the spins of one sequence do.

    Args:
        correlations: <s_j s_k> for every query, (H, T, T, T), the query second; 0 at removed spins.
        edges: bins of energy in nats for the last query, (H, bins + 1).
        of_layer: share of the layer's distribution in each bin, (H, bins), NaN where the layer
            gives marginals and no distribution that is known.
        of_boltzmann: share of the Boltzmann distribution, (H, bins), NaN where its states are too many to list.
        of_states: share of all states, (H, bins), likewise.
        sampled: whether the layer's distribution was estimated from samples.
    """

    correlations: Tensor
    edges: Tensor
    of_layer: Tensor
    of_boltzmann: Tensor
    of_states: Tensor
    sampled: bool


def has_statistics(layer: IsingLayer, length: int) -> bool:
    """Return whether spin_statistics can tell those of a layer over some positions.

    It can for up to 24 positions, and at any length for a circuit and for layers without couplings.
    """
    return length <= MAX_SPINS or layer.couplings is None or isinstance(layer, DQALayer)


def spin_statistics(record: AttentionRecord, bins: int = 40) -> SpinStatistics:
    """Return correlations of spins and histograms of energies for the first sequence of a batch.

    A DQALayer's come from its circuit, run once more for each query and head on the layer's device with its shots and
    neither counted by max_circuits nor corrected for readout errors: probabilities for up to 14 positions, and samples
    beyond. Those of other layers are of the exact Boltzmann distribution, also where the layer approximates it.

    Args:
        record: of Boltzmann attention, as record_attention makes it.
        bins: of energy.

    Raises:
        ValueError: if the record is one of softmax attention, or the layer has couplings, over 24 positions and no
            circuit.

    Cost: T exact forward passes and O(H 2^T), or H T circuits.
    """
    layer, fields, present = record.layer, record.fields, record.present
    if layer is None or fields is None or present is None:
        raise ValueError("Softmax attention has no spins: give the record of a BoltzmannAttention.")
    heads, length = fields.shape[1], fields.shape[-1]
    if not has_statistics(layer, length):
        raise ValueError(
            f"{length} positions were given: exact correlations are there for up to {MAX_SPINS}; give a shorter input."
        )
    fields, present = fields[0].double().cpu(), present[0].cpu()
    couplings = layer.coupling_matrix(length).detach().double().cpu()
    if isinstance(layer, DQALayer):
        states = [[_annealed(layer, *row) for row in _rows(fields, present, couplings, h)] for h in range(heads)]
        correlations = torch.stack([torch.stack([_spread(each, length) for each in rows]) for rows in states])
        last = [rows[-1] for rows in states]
    else:
        correlations = _exact(layer, fields, couplings, present)
        last = [_boltzmann(fields[h, -1], couplings[h], present[h, -1]) for h in range(heads)]
    sampled = layer.shots is not None or length > MAX_ENUMERATED if isinstance(layer, DQALayer) else length > MAX_SPINS
    histograms = [_histograms(fields[h, -1], couplings[h], states, bins) for h, states in enumerate(last)]
    edges, *shares = (torch.stack(each) for each in zip(*histograms, strict=True))
    if not isinstance(layer, (DQALayer, *_EXACT_LAYERS)):
        shares[0] = torch.full_like(shares[0], torch.nan)
    return SpinStatistics(correlations, edges, shares[0], shares[1], shares[2], sampled)


def couplings_by_distance(couplings: Tensor) -> Tensor:
    """Return the mean of J_jk over all pairs at each distance |j - k|: (..., T, T) -> (..., T - 1), from 1 to T - 1."""
    length = couplings.shape[-1]
    means = [couplings.diagonal(distance, -2, -1).mean(-1) for distance in range(1, length)]
    return torch.stack(means, -1) if means else couplings.new_zeros(*couplings.shape[:-2], 0)


def _rows(fields: Tensor, present: Tensor, couplings: Tensor, head: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(row, couplings[head], here) for row, here in zip(fields[head], present[head], strict=True)]


def _annealed(layer: DQALayer, fields: Tensor, couplings: Tensor, present: Tensor) -> _States:
    """Return the states of a query's circuit with their probabilities, or its samples: (T,), (T, T), (T,)."""
    places = present.nonzero().squeeze(1)
    if not len(places):
        return _States(fields.new_zeros(1, 0), fields.new_ones(1), places)
    first, second = pair_index(len(places))
    model = Instances(fields[places].unsqueeze(0), couplings[places[first], places[second]].unsqueeze(0))
    if len(places) <= MAX_ENUMERATED:
        weights = Annealer(layer.device, layer.shots, layer.device_options)(model, layer.schedule, layer.clip)[0]
        return _States(state_spins(len(places), fields.dtype, fields.device).T, weights, places)
    shots = _SAMPLES if layer.shots is None else layer.shots
    samples = Annealer(layer.device, shots, layer.device_options).samples(model, layer.schedule, layer.clip)[0]
    return _States(samples, samples.new_full((len(samples),), 1 / len(samples)), places)


def _exact(layer: IsingLayer, fields: Tensor, couplings: Tensor, present: Tensor) -> Tensor:
    if fields.shape[-1] <= MAX_SPINS:
        return exact_correlations(fields, couplings.unsqueeze(1), present)
    m = fields.tanh().masked_fill(~present, 0)
    independent = m.unsqueeze(-1) * m.unsqueeze(-2)
    return torch.where(torch.eye(len(m[0]), dtype=torch.bool), present.to(m).unsqueeze(-1), independent)


def _boltzmann(fields: Tensor, couplings: Tensor, present: Tensor) -> _States:
    """Return all states with their Boltzmann probabilities, or samples of independent spins where they are too many."""
    places = present.nonzero().squeeze(1)
    fields, couplings = fields[places], couplings[places][:, places]
    if len(places) <= MAX_SPINS:
        return _States(fields.new_empty(0, 0), (-energy_levels(fields, couplings)).softmax(0), places)
    generator = torch.Generator().manual_seed(0)
    up = torch.rand(_SAMPLES, len(places), dtype=fields.dtype, generator=generator) < (2 * fields).sigmoid()
    return _States(2 * up.to(fields) - 1, fields.new_full((_SAMPLES,), 1 / _SAMPLES), places)


def _spread(states: _States, length: int) -> Tensor:
    """Return the correlations of all T spins, (T, T)."""
    whole = states.weights.new_zeros(length, length)
    whole[states.places.unsqueeze(1), states.places] = weighted_correlations(states.spins, states.weights)
    return whole


def _histograms(fields: Tensor, couplings: Tensor, states: _States, bins: int) -> tuple[Tensor, ...]:
    """Return edges (bins + 1,), and the shares (bins,) of the layer, the Boltzmann distribution and all states."""
    fields, couplings = fields[states.places], couplings[states.places][:, states.places]
    if len(fields) > MAX_SPINS:
        energies = energy(states.spins, fields, couplings)
        edges, unknown = _edges(energies, bins), fields.new_full((bins,), torch.nan)
        return edges, energy_histogram(energies, states.weights, edges), unknown, unknown
    levels = energy_levels(fields, couplings)
    edges = _edges(levels, bins)
    is_list = len(states.weights) == len(levels)
    energies = levels if is_list else energy(states.spins, fields, couplings)
    equal = torch.full_like(levels, 1 / len(levels))
    return (
        edges,
        energy_histogram(energies, states.weights, edges),
        energy_histogram(levels, (-levels).softmax(0), edges),
        energy_histogram(levels, equal, edges),
    )


def _edges(energies: Tensor, bins: int) -> Tensor:
    low, high = float(energies.min()), float(energies.max())
    return torch.linspace(low, high if high > low else low + 1, bins + 1, dtype=energies.dtype)
