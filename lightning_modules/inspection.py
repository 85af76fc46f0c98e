"""What a model does with one sequence: attention weights, correlations, couplings and energies of every block."""

from dataclasses import dataclass

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from hybrid_attention.attention_record import AttentionRecord, record_attention
from hybrid_attention.spin_statistics import SpinStatistics, couplings_by_distance, has_statistics, spin_statistics


@dataclass
class BlockInspection:
    """One block of a model on one sequence of T positions.

    Args:
        weights: attention weights (H, T, T), rows are queries.
        couplings: J (H, T, T) in nats, None without an Ising layer.
        statistics: of the spins, None without an Ising layer and where they cannot be told (has_statistics).
        record: what was recorded.
    """

    weights: Tensor
    couplings: Tensor | None
    statistics: SpinStatistics | None
    record: AttentionRecord


def inspect_sequence(model: pl.LightningModule, tokens: Tensor) -> list[BlockInspection]:
    """Run a model on one sequence and return what each block did.

    Args:
        model: maps token ids (B, T) to logits, such as a BracketMatcher; on any device.
        tokens: int64 (T,), T up to the model's context_length.

    Cost: a forward pass, and that of spin_statistics for each block.
    """
    was_training = model.training
    with torch.no_grad(), record_attention(model.eval()) as records:
        model(tokens.unsqueeze(0).to(model.device))
    model.train(was_training)
    return [_inspected(record) for record in records]


def arrays(blocks: list[BlockInspection]) -> dict[str, np.ndarray]:
    """Return everything by name, one block after the other along the first dimension.

    attention (blocks, H, T, T); and with Ising layers fields, present and marginals (blocks, H, T, T), couplings
    (blocks, H, T, T), couplings_by_distance (blocks, H, T - 1), correlations (blocks, H, T, T, T), the query third;
    energy_edges (blocks, H, bins + 1), energy_of_layer, energy_of_boltzmann and energy_of_states (blocks, H, bins).
    Without correlations and energies where they cannot be told.
    """
    found: dict[str, list[Tensor]] = {}
    for block in blocks:
        found.setdefault("attention", []).append(block.weights)
        if block.couplings is None:
            continue
        record, statistics = block.record, block.statistics
        assert record.fields is not None
        assert record.present is not None
        assert record.marginals is not None
        for name, values in {
            "fields": record.fields[0],
            "present": record.present[0],
            "marginals": record.marginals[0],
            "couplings": block.couplings,
            "couplings_by_distance": couplings_by_distance(block.couplings),
        }.items():
            found.setdefault(name, []).append(values)
        if statistics is None:
            continue
        for name, values in {
            "correlations": statistics.correlations,
            "energy_edges": statistics.edges,
            "energy_of_layer": statistics.of_layer,
            "energy_of_boltzmann": statistics.of_boltzmann,
            "energy_of_states": statistics.of_states,
        }.items():
            found.setdefault(name, []).append(values)
    return {
        name: torch.stack([x.cpu() if x.dtype == torch.bool else _readable(x) for x in values]).numpy()
        for name, values in found.items()
    }


def _inspected(record: AttentionRecord) -> BlockInspection:
    weights = _readable(record.weights[0])
    layer, length = record.layer, weights.shape[-1]
    if layer is None:
        return BlockInspection(weights, None, None, record)
    couplings = _readable(layer.coupling_matrix(length).detach())
    statistics = spin_statistics(record) if has_statistics(layer, length) else None
    return BlockInspection(weights, couplings, statistics, record)


def _readable(values: Tensor) -> Tensor:
    """Return values on the CPU, of a dtype that NumPy has."""
    return values.cpu().to(torch.promote_types(values.dtype, torch.float32))
