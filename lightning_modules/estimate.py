"""The table that `hybrid-attention estimate` prints."""

import pytorch_lightning as pl
from torch import nn

from hybrid_attention import DQALayer
from lightning_modules.circuit_bill import Pass, broadcasts, gates_of, passes_of_fit, quantum_layers

_BYTES_PER_AMPLITUDE = 16
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_GRADIENTS = {
    "backprop": "by backprop through the simulation cost no further circuits",
    "adjoint": "by adjoint differentiation of the simulation cost no further circuits",
    "covariance": "are covariances of what the forward pass measures and cost no further circuits",
    "parameter-shift": "by parameter-shift cost two further circuits for each query and parameter of an RZ or IsingZZ "
    "gate. At most: PennyLane leaves out queries whose results have no gradient",
}
_NO_CIRCUITS = "No circuits are run: the model has no quantum layer, such as configs/layers/dqa.yaml sets."


def estimate(model: nn.Module, data: pl.LightningDataModule, trainer: pl.Trainer) -> str:
    """Return what `fit` would run in circuits, as text, without running any.

    Args:
        model: maps the tokens of a batch to logits.
        data: batches are (tokens, targets).
        trainer: its limits of batches count.

    Cost: the model's without the circuits, for an epoch at most.
    """
    layers = quantum_layers(model)
    if not layers:
        return _NO_CIRCUITS
    passes = passes_of_fit(model, data, trainer)
    parts = (_table(_passes(passes, layers[0])), _table(_sizes(passes, layers[0])), "\n".join(_notes(passes, layers)))
    return "\n\n".join(parts)


def _passes(passes: list[Pass], layer: DQALayer) -> list[list[str]]:
    at_once = broadcasts(layer)
    rows = [["", "batches", "circuits", "shots", "device calls"]]
    for each in passes:
        shots = "exact" if layer.shots is None else f"{each.circuits * layer.shots:,}"
        numbers = (each.batches, each.circuits, each.device_calls(at_once))
        batches, circuits, calls = (f"{number:,}" for number in numbers)
        rows.append([each.name, batches, circuits, shots, calls])
    return rows


def _sizes(passes: list[Pass], layer: DQALayer) -> list[list[str]]:
    forward, _, epoch = passes[:3]
    rows = [["circuit", "a forward pass", "an epoch", "depth", "gates", "of which", "state"]]
    for wires in sorted({wires for each in passes for wires in each.sizes}):
        gates = gates_of(layer, wires)
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in gates.kinds.items())
        counts = (f"{each.sizes.get(wires, 0):,}" for each in (forward, epoch))
        state = _bytes(_BYTES_PER_AMPLITUDE * 2**wires)
        rows.append([f"{wires} wires", *counts, f"{gates.depth:,}", f"{gates.total:,}", kinds, state])
    return rows


def _notes(passes: list[Pass], layers: list[DQALayer]) -> list[str]:
    layer = layers[0]
    at_once = broadcasts(layer)
    together = max(execution.circuits * 2**execution.wires for each in passes for execution in each.executions)
    largest = max(2**wires for each in passes for wires in each.sizes)
    memory = _bytes(_BYTES_PER_AMPLITUDE * (together if at_once else largest))
    notes = [
        "A circuit is one query of one head in one block.",
        f"Gradients {_GRADIENTS[layer.gradient]}.",
        f"All circuits of a layer call go out in one execution, which {layer.device} runs "
        + ("as batches, one for each number of wires." if at_once else "circuit by circuit."),
        f"A simulator needs {memory} for the states of a call in complex128, and more for gradients through them.",
        "Shots: none, probabilities are exact." if layer.shots is None else f"Shots: {layer.shots:,} for each circuit.",
    ]
    if layer.gradient == "covariance":
        notes.append("Equal queries run once; how many are equal in a training batch depends on how it was drawn.")
    else:
        notes.append("Equal queries run once in validation and tests.")
    if layer.shots is None:
        trials = sum(each.num_heads for each in layers)
        notes.append(f"Making the model, here too, tries the device with circuits of 1 wire: {trials:,} more.")
    else:
        notes.append("No circuit was run for this estimate.")
    return notes


def _bytes(number: int) -> str:
    size, unit = float(number), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.4g} {_UNITS[unit]}"


def _table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    return "\n".join(lines)
