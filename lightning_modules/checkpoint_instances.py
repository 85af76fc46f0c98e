"""The Ising models that a trained model has on its own validation data."""

from itertools import islice
from typing import Any

import torch
from torch import Tensor

from hybrid_attention.exact import MAX_SPINS
from hybrid_attention.instances import MAX_ENUMERATED, Instances
from hybrid_attention.ising import pair_index
from lightning_modules.checkpoint_files import read_checkpoint
from lightning_modules.layer_factories import imported
from lightning_modules.sequence_module import SequenceModule

_EXACT = "hybrid_attention.ExactLayer"
_NEEDED = ("hyper_parameters", "datamodule_hyper_parameters")
_SMALLEST = 2


def checkpoint_instances(path: str, count: int, seed: int, batches: int = 16) -> list[Instances]:
    """Return the models of a checkpoint's queries on its validation data, grouped by their number of spins.

    Args:
        path: a checkpoint that `fit` wrote.
        count: how many models to take of each number of spins at most, drawn without replacement.
        seed: the same seed draws the same models.
        batches: validation batches to look at, at most.

    Returns:
        One set for each number of spins from 2 to 14 that occurs, ascending, float64.

    Raises:
        ValueError: if there is no such checkpoint, its model has no couplings, or no query sees 2 to 14 positions.

    Cost: that of exact attention on these batches; over more than 24 positions, of the checkpoint's own layer.
    """
    model, data = _load(path)
    data.setup("fit")
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    hooks = [layer.register_forward_pre_hook(record_models(seen)) for layer in model.ising_layers()]
    with torch.no_grad():
        for tokens, _ in islice(data.val_dataloader(), batches):
            model(tokens)
    for hook in hooks:
        hook.remove()
    groups = group_rows(seen, count, seed)
    if not groups:
        raise ValueError(
            f"No query of {path!r} sees {_SMALLEST} to {MAX_ENUMERATED} positions: give another checkpoint."
        )
    return groups


def group_rows(
    seen: list[tuple[Tensor, Tensor, Tensor]], count: int, seed: int, largest: int = MAX_ENUMERATED
) -> list[Instances]:
    """Return models grouped by their number of present spins.

    Args:
        seen: fields (R, T), present spins (R, T), bool, and coupling matrices (R, T, T) of rows, in batches.
        count: as for checkpoint_instances.
        seed: as for checkpoint_instances.
        largest: the most spins of a model that is returned.
    """
    generator = torch.Generator().manual_seed(seed)
    fields, present, couplings = (torch.cat(kind) for kind in zip(*seen, strict=True))
    sizes = present.sum(1)
    groups = []
    for size in range(_SMALLEST, min(int(sizes.max()), largest) + 1):
        rows = (sizes == size).nonzero().squeeze(1)
        rows = rows[torch.randperm(len(rows), generator=generator)[:count]]
        if not len(rows):
            continue
        places = present[rows].nonzero()[:, 1].view(-1, size)
        first, second = pair_index(size)
        pairs = couplings[rows.unsqueeze(1), places[:, first], places[:, second]]
        groups.append(Instances(fields[rows].gather(1, places).double(), pairs.double()))
    return groups


def record_models(seen: list[tuple[Tensor, Tensor, Tensor]]) -> Any:
    """Return a forward pre-hook for an Ising layer that adds its rows to `seen`, as group_rows takes them."""

    def record(layer: Any, given: tuple[Any, ...]) -> None:
        fields, present = given[0], given[1] if len(given) > 1 else None
        length = fields.shape[-1]
        here = torch.ones_like(fields, dtype=torch.bool) if present is None else present.expand(fields.shape)
        matrix = layer.coupling_matrix(length)
        matrix = matrix.view(1, *matrix.shape[:1], *(1,) * (fields.dim() - 3), length, length)
        rows = matrix.expand(*fields.shape, length).reshape(-1, length, length)
        flat_fields, flat_here = fields.detach().cpu().reshape(-1, length), here.cpu().reshape(-1, length)
        seen.append((flat_fields, flat_here, rows.detach().cpu()))

    return record


def _load(path: str) -> tuple[SequenceModule, Any]:
    checkpoint = read_checkpoint(path)
    kinds = [checkpoint[name].get("_class_path") for name in _NEEDED if name in checkpoint]
    if len(kinds) < len(_NEEDED) or None in kinds:
        raise ValueError(f"{path!r} is not a checkpoint of a model and its data: give a .ckpt file that fit wrote.")
    if not any(name.endswith(".couplings") for name in checkpoint["state_dict"]):
        raise ValueError(f"The model of {path!r} has no couplings: give one with Boltzmann attention.")
    layer = _exactly(checkpoint["hyper_parameters"])
    model = imported(kinds[0]).load_from_checkpoint(path, map_location="cpu", layer=layer)
    return model.eval(), imported(kinds[1]).load_from_checkpoint(path)


def _exactly(saved: dict[str, Any]) -> dict[str, Any]:
    """Return the exact layer for the couplings of a checkpoint, or its own layer where there are too many spins."""
    layer: dict[str, Any] = saved["layer"]
    if saved["context_length"] > MAX_SPINS:
        return layer
    kept = {name: value for name, value in layer.get("init_args", {}).items() if name == "coupling_shape"}
    return {"class_path": _EXACT, "init_args": kept}
