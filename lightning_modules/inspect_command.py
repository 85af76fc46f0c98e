"""The subcommand `hybrid-attention inspect`: pictures and arrays of what a trained model does with an input."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jsonargparse import ArgumentParser, Namespace
from torch import Tensor

from datamodules.text import encode
from hybrid_attention import DQALayer
from lightning_modules.attention_figures import attention_figures
from lightning_modules.bracket_matcher import BracketMatcher
from lightning_modules.character_language_model import CharLanguageModel
from lightning_modules.checkpoint_files import read_checkpoint
from lightning_modules.config_files import value_of
from lightning_modules.inspection import BlockInspection, arrays, inspect_sequence
from lightning_modules.layer_factories import LayerFactory, imported, to_plain
from lightning_modules.plotting import check_matplotlib
from lightning_modules.sequence_module import SequenceModule

_DESCRIPTION = """Draw what a trained model does with an input: attention weights, correlations of spins, couplings as
heat maps and by distance, and energies, as PNG files and as arrays in inspection.npz. With config files such as
configs/layers/dqa.yaml the weights run on another layer or device than they were trained with."""
_BRACKETS = "()[]{}<>"
_LAYER = "model.init_args.layer"
_ARRAYS = "inspection.npz"
_FIGURES = ("attention", "correlations", "couplings", "couplings_by_distance", "energies")


def inspect_command(arguments: Sequence[str]) -> None:
    """Run `hybrid-attention inspect` with the arguments that follow it on the command line.

    Raises:
        ValueError: if an argument is not allowed, the checkpoint or the input does not fit, or a file that would be
            written exists.
    """
    parser = ArgumentParser(prog="hybrid-attention inspect", description=_DESCRIPTION, exit_on_error=False)
    parser.add_argument("--config", action="config", help="A YAML file that sets the layer or its device.")
    parser.add_argument("--ckpt_path", type=str, required=True, help="The checkpoint of a trained model.")
    parser.add_argument("--text", type=str | None, help="Text for a CharLanguageModel.")
    parser.add_argument(
        "--word", type=str | None, help=f"Brackets of {_BRACKETS} for a BracketMatcher, such as (()())."
    )
    parser.add_argument("--output", type=str, required=True, help="Folder to write to.")
    parser.add_argument("--overwrite", type=bool, default=False, help="Whether files that exist are overwritten.")
    parser.add_argument(f"--{_LAYER}", type=LayerFactory | None, help="Layer to run on, in place of the model's own.")
    path = value_of("ckpt_path", arguments)
    settings: dict[str, Any] = {} if path is None else read_checkpoint(path)["hyper_parameters"]
    parser.set_defaults({_LAYER: settings.get("layer")})
    given = parser.parse_args(list(arguments))
    _inspect(given, settings, parser.instantiate(given)["model"]["init_args"]["layer"])


def tokens_of(model: SequenceModule, text: str | None, word: str | None) -> tuple[Tensor, list[str]]:
    """Return the token ids of an input, int64 (T,), and a label for each position.

    Raises:
        ValueError: if the input is not of the model's kind, empty, longer than its context, or has unknown characters.
    """
    kinds = {CharLanguageModel: "text", BracketMatcher: "word"}
    name = next((name for kind, name in kinds.items() if isinstance(model, kind)), None)
    if name is None:
        raise ValueError(f"{type(model).__name__} takes neither text nor words: give a checkpoint of another model.")
    value, other = (text, word) if name == "text" else (word, text)
    if value is None or other is not None:
        raise ValueError(f"The checkpoint is one of a {type(model).__name__}: give --{name}, and only that.")
    longest = model.hparams["context_length"]
    if not 0 < len(value) <= longest:
        raise ValueError(f"--{name} has {len(value)} characters: give 1 to {longest}, the model's context.")
    if isinstance(model, CharLanguageModel):
        return encode(value, model.hparams["vocabulary"]), [repr(character)[1:-1] for character in value]
    brackets = _BRACKETS[: 2 * model.hparams["num_types"]]
    unknown = sorted(set(value) - set(brackets))
    if unknown:
        raise ValueError(f"--word has {', '.join(map(repr, unknown))}: give characters of {brackets}.")
    return torch.tensor([brackets.index(character) for character in value]), list(value)


def _inspect(given: Namespace, settings: dict[str, Any], layer: LayerFactory | None) -> None:
    folder = Path(given.output)
    paths = [folder / f"{name}.png" for name in _FIGURES] + [folder / _ARRAYS]
    existing = [path for path in paths if path.exists()]
    if existing and not given.overwrite:
        raise ValueError(f"{str(existing[0])!r} exists: move it away, give another folder, or set --overwrite=true.")
    check_matplotlib()
    model = _load(given.ckpt_path, settings, layer)
    tokens, labels = tokens_of(model, given.text, given.word)
    print(model.describe("Inspecting"), flush=True)
    _announce_circuits(model, len(tokens))
    blocks = inspect_sequence(model, tokens)
    folder.mkdir(parents=True, exist_ok=True)
    for path in existing:
        path.unlink()
    np.savez(folder / _ARRAYS, allow_pickle=False, tokens=tokens.numpy(), **arrays(blocks))
    figures = attention_figures(blocks, labels)
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", format="png", dpi=120)
    print("\n".join(_summary(blocks)))
    print(f"Arrays: {folder / _ARRAYS}\nFigures: {', '.join(str(folder / f'{name}.png') for name in figures)}")


def _announce_circuits(model: SequenceModule, length: int) -> None:
    layers = [layer for layer in model.ising_layers() if isinstance(layer, DQALayer)]
    if layers:
        number = 2 * sum(layer.num_heads for layer in layers) * length
        print(f"up to {number} circuits on {layers[0].device}: a pass, and one for correlations", flush=True)


def _summary(blocks: list[BlockInspection]) -> list[str]:
    lines = []
    for number, block in enumerate(blocks):
        if block.couplings is None or block.statistics is None:
            continue
        below = block.couplings.tril(-1).abs().max() if block.couplings.numel() else 0.0
        sampled = " of samples" if block.statistics.sampled else ""
        correlations = block.statistics.correlations[:, -1]
        off = correlations - torch.diag_embed(correlations.diagonal(dim1=-2, dim2=-1))
        lines.append(
            f"block {number}: largest |J| {float(below):.3g} nats, largest |<s_j s_k>|{sampled} of the last query "
            f"{float(off.abs().max()):.3g}"
        )
    return lines


def _load(path: str, settings: dict[str, Any], layer: LayerFactory | None) -> SequenceModule:
    kind = imported(settings["_class_path"])
    if not (isinstance(kind, type) and issubclass(kind, SequenceModule)):
        raise ValueError(f"The checkpoint {path!r} is of {settings['_class_path']}, which cannot be inspected.")
    if settings.get("layer") is None and layer is not None:
        raise ValueError(f"The model of {path!r} has softmax attention, which has no couplings for a layer to run on.")
    return kind.load_from_checkpoint(path, map_location="cpu", layer=to_plain(layer))
