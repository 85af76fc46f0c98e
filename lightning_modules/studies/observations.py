"""What a trained model has learned: its couplings, and its attention weights on examples of the test split."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hybrid_attention import SoftmaxAttention
from hybrid_attention.transformer import Block
from lightning_modules.layer_factories import imported
from lightning_modules.sequence_module import SequenceModule

FILE = "observations.npz"
_EXAMPLES = 3
_BRACKETS = "()[]{}<>"


def observe(checkpoint: Path, file: Path) -> None:
    """Write arrays to an .npz file: couplings (blocks, H, T, T), weights (examples, blocks, H, T, T) and symbols.

    Couplings are J, or the position biases of softmax attention, in nats; absent where the model has neither. Symbols
    (examples, T) are the characters of the examples, the first words or windows of the test split.

    Args:
        checkpoint: that `fit` wrote.
        file: to write.

    Cost: one forward pass of a few examples.
    """
    saved = torch.load(checkpoint, map_location="cpu", weights_only=True)
    model: SequenceModule = imported(saved["hyper_parameters"]["_class_path"]).load_from_checkpoint(
        checkpoint, map_location="cpu"
    )
    data = imported(saved["datamodule_hyper_parameters"]["_class_path"]).load_from_checkpoint(checkpoint)
    tokens = next(iter(data.test_dataloader()))[0][:_EXAMPLES]
    arrays: dict[str, Any] = {
        "weights": attention_weights(model.eval(), tokens).numpy(),
        "symbols": np.array(_symbols(model, tokens)),
    }
    couplings = pair_matrices(model)
    if couplings is not None:
        arrays["couplings"] = couplings.numpy()
    np.savez_compressed(file, **arrays)


def attention_weights(model: SequenceModule, tokens: Tensor) -> Tensor:
    """Return the attention weights of token ids (B, T) in every block: (B, blocks, H, T, T), on the CPU."""
    inputs: list[tuple[nn.Module, Tensor]] = []
    blocks = cast(Iterable[Block], model.model.blocks)
    hooks = [
        block.attention.register_forward_pre_hook(lambda module, given: inputs.append((module, given[0])))
        for block in blocks
    ]
    with torch.no_grad():
        model(tokens)
        for hook in hooks:
            hook.remove()
        weights = [module(x, need_weights=True)[1] for module, x in inputs]
    return torch.stack(weights, dim=1).float().cpu()


def pair_matrices(model: SequenceModule) -> Tensor | None:
    """Return J, or the position biases of softmax attention, of every block: (blocks, H, T, T), or None."""
    matrices = [layer.coupling_matrix() for layer in model.ising_layers() if layer.couplings is not None]
    matrices += [
        module.bias_matrix()
        for module in model.modules()
        if isinstance(module, SoftmaxAttention) and module.position_bias is not None
    ]
    return torch.stack(matrices).detach().float().cpu() if matrices else None


def _symbols(model: Any, tokens: Tensor) -> list[list[str]]:
    vocabulary = model.hparams.get("vocabulary")
    if vocabulary is None:
        known = 2 * model.hparams["num_types"] <= len(_BRACKETS)
        return [[_BRACKETS[token] if known else str(token) for token in row] for row in tokens.tolist()]
    return [[vocabulary[token] for token in row] for row in tokens.tolist()]
