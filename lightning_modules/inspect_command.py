"""The subcommand `hybrid-attention inspect`: pictures and arrays of what a trained model does with an input."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentParser
from torch import Tensor

from datamodules.text import encode
from hybrid_attention import DQALayer
from hybrid_attention.exact import MAX_SPINS
from lightning_modules.attention_figures import attention_figures
from lightning_modules.bracket_matcher import BracketMatcher
from lightning_modules.character_language_model import CharLanguageModel
from lightning_modules.checkpoint_files import class_config, read_checkpoint
from lightning_modules.config_files import check_config_files, needed_checkpoint, null_settings_as_config
from lightning_modules.inspection import BlockInspection, arrays, inspect_sequence
from lightning_modules.layer_factories import imported
from lightning_modules.plotting import check_matplotlib
from lightning_modules.sequence_module import SequenceModule

_DESCRIPTION = """Draw what a trained model does with an input: attention weights, correlations of spins, couplings as
heat maps and by distance, and energies, as PNG files and as arrays in inspection.npz. With config files such as
configs/layers/dqa.yaml the weights run on another layer or device than they were trained with."""
_BRACKETS = "()[]{}<>"
_ARRAYS = "inspection.npz"
_FIGURES = ("attention", "correlations", "couplings", "couplings_by_distance", "energies")


def inspect_command(arguments: Sequence[str]) -> None:
    """Run `hybrid-attention inspect` with the arguments that follow it on the command line.

    Raises:
        ValueError: if an argument is not allowed, the checkpoint or the input does not fit, or a file that would be
            written exists.
    """
    given = null_settings_as_config(arguments)
    parser = ArgumentParser(prog="hybrid-attention inspect", description=_DESCRIPTION, exit_on_error=False)
    parser.add_argument("--config", action="config", help="A YAML file with settings of the model, such as its layer.")
    parser.add_argument("--ckpt_path", type=str, required=True, help="The checkpoint of a trained model.")
    parser.add_argument(
        "--text", type=str | None, help="Text for a CharLanguageModel; of a longer one than the context, the end."
    )
    parser.add_argument(
        "--word",
        type=str | None,
        help=f"Brackets of {_BRACKETS} for a BracketMatcher, such as (()()); they need not be balanced.",
    )
    parser.add_argument("--output", type=str, required=True, help="Folder to write to.")
    parser.add_argument("--overwrite", type=bool, default=False, help="Whether files that exist are overwritten.")
    parser.add_argument(
        "--seed", type=int, default=0, help="Fixes the samples of simulators without a seed of their own."
    )
    if {"-h", "--help"} & set(given):
        parser.add_subclass_arguments(SequenceModule, "model", help="Settings in place of the checkpoint's.")
        parser.parse_args(given)
    path = needed_checkpoint(given)
    config = class_config(read_checkpoint(path)["hyper_parameters"])
    kind = imported(config["class_path"])
    if not (isinstance(kind, type) and issubclass(kind, SequenceModule)):
        raise ValueError(f"The checkpoint {path!r} is of {config['class_path']}, which cannot be inspected.")
    check_config_files(given, config)
    parser.add_subclass_arguments(kind, "model", help="Settings in place of the checkpoint's.")
    parser.set_defaults({"model": config})
    settings = parser.parse_args(given).as_dict()
    changed = settings["model"]["init_args"]
    if config["init_args"].get("layer") is None and changed.get("layer") is not None:
        raise ValueError(f"The model of {path!r} has softmax attention, which has no couplings for a layer to run on.")
    folder = Path(settings["output"])
    existing = _existing(folder, settings["overwrite"])
    check_matplotlib()
    pl.seed_everything(settings["seed"], verbose=False)  # simulators are seeded when they are made
    model = kind.load_from_checkpoint(path, map_location="cpu", **changed)
    _inspect(model, *tokens_of(model, settings["text"], settings["word"]), folder, existing)


def tokens_of(model: SequenceModule, text: str | None, word: str | None) -> tuple[Tensor, list[str]]:
    """Return the token ids of an input, int64 (T,), and a label for each position.

    Raises:
        ValueError: if the input is not of the model's kind, empty, a word longer than its context, or has unknown
            characters.
    """
    kinds = {CharLanguageModel: "text", BracketMatcher: "word"}
    name = next((name for kind, name in kinds.items() if isinstance(model, kind)), None)
    if name is None:
        raise ValueError(f"{type(model).__name__} takes neither text nor words: give a checkpoint of another model.")
    value, other = (text, word) if name == "text" else (word, text)
    if value is None or other is not None:
        raise ValueError(f"The checkpoint is one of a {type(model).__name__}: give --{name}, and only that.")
    longest = model.hparams["context_length"]
    if name == "text" and len(value) > longest:
        print(f"The model sees the last {longest} of {len(value)} characters.", flush=True)
        value = value[-longest:]
    if not 0 < len(value) <= longest:
        raise ValueError(f"--{name} has {len(value)} characters: give 1 to {longest}, the model's context.")
    if isinstance(model, CharLanguageModel):
        return encode(value, model.hparams["vocabulary"]), [repr(character)[1:-1] for character in value]
    brackets = _BRACKETS[: 2 * model.hparams["num_types"]]
    unknown = sorted(set(value) - set(brackets))
    if unknown:
        raise ValueError(f"--word has {', '.join(map(repr, unknown))}: give characters of {brackets}.")
    return torch.tensor([brackets.index(character) for character in value]), list(value)


def _existing(folder: Path, overwrite: bool) -> list[Path]:
    """Return the files that will be overwritten, and raise ValueError where none may be."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{str(folder)!r} is a file: give a folder as --output.")
    paths = [folder / f"{name}.png" for name in _FIGURES] + [folder / _ARRAYS]
    existing = [path for path in paths if path.exists()]
    if existing and not overwrite:
        raise ValueError(f"{str(existing[0])!r} exists: move it away, give another folder, or set --overwrite=true.")
    return existing


def _inspect(model: SequenceModule, tokens: Tensor, labels: list[str], folder: Path, existing: list[Path]) -> None:
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
        if block.couplings is None:
            continue
        below = block.couplings.tril(-1).abs().max() if block.couplings.numel() else 0.0
        if block.statistics is None:
            lines.append(
                f"block {number}: largest |J| {float(below):.3g} nats; correlations and energies are told for up to "
                f"{MAX_SPINS} positions"
            )
            continue
        sampled = " of samples" if block.statistics.sampled else ""
        correlations = block.statistics.correlations[:, -1]
        off = correlations - torch.diag_embed(correlations.diagonal(dim1=-2, dim2=-1))
        lines.append(
            f"block {number}: largest |J| {float(below):.3g} nats, largest |<s_j s_k>|{sampled} of the last query "
            f"{float(off.abs().max()):.3g}"
        )
    return lines
