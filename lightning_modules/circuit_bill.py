"""How many circuits a model's passes over data would run, counted without running any."""

from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice

import pennylane as qml
import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from devices import DQA, make_device
from hybrid_attention import DQALayer
from hybrid_attention.circuit_counts import Execution
from hybrid_attention.ising import num_pairs


@dataclass(frozen=True)
class Pass:
    """What one pass over some batches would run.

    Args:
        name: for the table.
        batches: number of batches.
        executions: how often each execution occurs.
    """

    name: str
    batches: int
    executions: Counter[Execution] = field(default_factory=Counter)

    @property
    def circuits(self) -> int:
        """Number of circuits, those of gradients included."""
        return sum(times * execution.all_circuits for execution, times in self.executions.items())

    @property
    def sizes(self) -> dict[int, int]:
        """Number of circuits by their number of wires, ascending."""
        found: Counter[int] = Counter()
        for execution, times in self.executions.items():
            found[execution.wires] += times * execution.all_circuits
        return dict(sorted(found.items()))

    def device_calls(self, broadcasts: bool) -> int:
        """Return how many tapes reach the device: one for each execution, or for each circuit without broadcasting."""
        return sum(
            times * (1 if broadcasts and execution.gradient != "parameter-shift" else execution.all_circuits)
            for execution, times in self.executions.items()
        )

    def without_gradients(self, name: str) -> "Pass":
        """Return the pass without the circuits that gradients take."""
        found: Counter[Execution] = Counter()
        for execution, times in self.executions.items():
            found[Execution(execution.wires, execution.circuits)] += times
        return Pass(name, self.batches, found)


@dataclass(frozen=True)
class Gates:
    """What PennyLane counts in the decomposed circuit.

    Args:
        kinds: number of gates of each kind.
        depth: of the circuit.
    """

    kinds: dict[str, int]
    depth: int

    @property
    def total(self) -> int:
        """Number of gates."""
        return sum(self.kinds.values())


def quantum_layers(model: nn.Module) -> list[DQALayer]:
    """Return the layers of a model that run circuits."""
    return [module for module in model.modules() if isinstance(module, DQALayer)]


def executions_of(model: nn.Module, tokens: Tensor, training: bool) -> list[Execution]:
    """Return the executions that a forward pass, and in training its gradient, would submit; none is.

    Args:
        model: maps tokens to logits.
        tokens: int64 (B, T).
        training: whether parameters get gradients.

    Cost: the model's without the circuits.
    """
    was_training = model.training
    model.train(training)
    try:
        with ExitStack() as contexts, torch.set_grad_enabled(training):
            counts = [contexts.enter_context(layer.counting()) for layer in quantum_layers(model)]
            model(tokens)
    finally:
        model.train(was_training)
    return list(chain.from_iterable(counts))


def count_pass(
    name: str,
    model: nn.Module,
    loader: Iterable[tuple[Tensor, Tensor]],
    training: bool = False,
    limit: int | float | None = None,
) -> Pass:
    """Return what a pass over a loader would run; its batches are (tokens, targets).

    Args:
        name: of the pass.
        model: maps tokens to logits.
        loader: has a length if limit is a fraction.
        training: whether parameters get gradients.
        limit: number of batches at most, or the fraction of them, as limit_train_batches of Lightning's Trainer.

    Rows that are equal run once where no gradient goes through the circuit, so each batch is looked at; otherwise one
    batch of each shape is. Cost: the model's without the circuits, for each of these.
    """
    if isinstance(limit, float):
        limit = None if limit == 1 else int(limit * len(loader))  # type: ignore[arg-type]
    executions: Counter[Execution] = Counter()
    known: dict[torch.Size, list[Execution]] = {}
    batches = 0
    for tokens, _ in islice(loader, limit):
        found = known.get(tokens.shape)
        if found is None:
            found = executions_of(model, tokens, training)
            if all(execution.gradient for execution in found):
                known[tokens.shape] = found
        executions.update(found)
        batches += 1
    return Pass(name, batches, executions)


def passes_of_fit(model: nn.Module, data: pl.LightningDataModule, trainer: pl.Trainer) -> list[Pass]:
    """Return a forward pass and a step on the first training batch, an epoch, and the other passes that fit makes."""
    data.setup("fit")
    step = count_pass("training step", model, data.train_dataloader(), True, 1)
    passes = [
        step.without_gradients("forward pass, one training batch"),
        step,
        count_pass("training epoch", model, data.train_dataloader(), True, trainer.limit_train_batches),
    ]
    passes.append(count_pass("validation pass", model, data.val_dataloader(), limit=trainer.limit_val_batches))
    sanity = min(trainer.num_sanity_val_steps, passes[-1].batches)
    if sanity:
        passes.append(count_pass("validation before training", model, data.val_dataloader(), limit=int(sanity)))
    data.setup("test")
    passes.append(count_pass("test pass", model, data.test_dataloader(), limit=trainer.limit_test_batches))
    return passes


def gates_of(layer: DQALayer, wires: int) -> Gates:
    """Return the gates and the depth of the layer's circuit on some wires, as PennyLane's qml.specs counts them."""
    coupling_range = layer.coupling_shape.range_of(wires)
    numbers = torch.zeros(wires), torch.zeros(num_pairs(wires, coupling_range))
    angles = layer.schedule.angles()

    @qml.qnode(qml.device("default.qubit", wires=wires))
    def circuit() -> qml.measurements.ProbabilityMP:
        DQA.compute_decomposition(*numbers, angles, range(wires), coupling_range)
        return qml.probs(wires=range(wires))

    resources = qml.specs(circuit)()["resources"]
    return Gates(dict(resources.gate_types), int(resources.depth))


def broadcasts(layer: DQALayer) -> bool:
    """Return whether the layer's device takes all rows of an execution in one call, by its own preprocessing."""
    angles = layer.schedule.angles()

    def circuit(fields: Tensor, pairs: Tensor) -> qml.measurements.ProbabilityMP:
        DQA(fields, pairs, angles, wires=range(2))
        return qml.probs(wires=range(2))

    node = qml.QNode(circuit, make_device(layer.device, 2, **layer.device_options), "torch", diff_method=None)
    if layer.shots is not None:
        node = qml.set_shots(node, layer.shots)
    tapes, _ = qml.workflow.construct_batch(node, level="device")(torch.zeros(3, 2), torch.zeros(3, 1))
    return len(tapes) == 1
