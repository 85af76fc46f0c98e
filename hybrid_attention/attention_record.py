"""What every attention module of a model did in a forward pass: weights, fields, marginals."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hybrid_attention.attention import BoltzmannAttention, SoftmaxAttention
from hybrid_attention.layers import IsingLayer


@dataclass
class AttentionRecord:
    """One attention module in one forward pass.

    Args:
        name: of the module in the model.
        weights: attention weights (B, H, T, T), rows are queries.
        layer: the Ising layer, None for softmax attention, which has none of what follows.
        fields: (B, H, T, T), in nats.
        present: bool (B, H, T, T), the spins of each query.
        marginals: (B, H, T, T).
    """

    name: str
    weights: Tensor
    layer: IsingLayer | None = None
    fields: Tensor | None = None
    present: Tensor | None = None
    marginals: Tensor | None = None


@contextmanager
def record_attention(model: nn.Module) -> Iterator[list[AttentionRecord]]:
    """Record every BoltzmannAttention and SoftmaxAttention of a model, in the order in which they run.

    The modules return what they return outside of the context. Recorded tensors carry no gradient, and no circuit is
    run twice.

    Cost: the weights that are kept, and with softmax attention O(B H T^2) memory that fused attention saves.
    """
    records: list[AttentionRecord] = []
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    asked = False

    def ask(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        nonlocal asked
        asked = given[2] if len(given) > 2 else named.get("need_weights", False)
        return given[:2], {**named, "need_weights": True}

    def keep_marginals(layer: nn.Module, given: tuple[Any, ...], p: Tensor) -> None:
        fields, present = given[0], given[1] if len(given) > 1 else None
        here = torch.ones_like(fields, dtype=torch.bool) if present is None else present.expand(fields.shape)
        seen[:] = [(fields.detach(), here, p.detach())]

    def keep_weights(module: nn.Module, given: tuple[Any, ...], out: tuple[Tensor, Tensor]) -> Any:
        record = AttentionRecord(names[module], out[1].detach())
        if isinstance(module, BoltzmannAttention):
            record.layer = module.layer
            record.fields, record.present, record.marginals = seen.pop()
        records.append(record)
        return out if asked else out[0]

    kinds = (BoltzmannAttention, SoftmaxAttention)
    names: dict[nn.Module, str] = {module: name for name, module in model.named_modules() if isinstance(module, kinds)}
    layers = [module.layer for module in names if isinstance(module, BoltzmannAttention)]
    hooks = [module.register_forward_pre_hook(ask, with_kwargs=True) for module in names]
    hooks += [layer.register_forward_hook(keep_marginals) for layer in dict.fromkeys(layers)]
    hooks += [module.register_forward_hook(keep_weights) for module in names]
    try:
        yield records
    finally:
        for hook in hooks:
            hook.remove()
