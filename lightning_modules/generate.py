"""The subcommand `hybrid-attention generate`: text from a checkpoint of a character language model."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pytorch_lightning as pl
import torch
from jsonargparse import ArgumentParser

from datamodules.text import encode
from hybrid_attention.generation import check_sampling, generate_tokens
from lightning_modules.character_language_model import CharLanguageModel
from lightning_modules.checkpoint_files import class_config, read_checkpoint
from lightning_modules.config_files import check_config_files, needed_checkpoint, null_settings_as_config
from lightning_modules.layer_factories import imported

_DESCRIPTION = """Continue a text, character by character, with the model of a checkpoint. Its layer and device are
those of training, unless --config names other files of configs/layers and configs/devices, or single settings do,
such as --model.init_args.layer.init_args.shots=1000. Text goes to the standard output, all else to the standard
error."""


_SEEDS = 2**32


def generate_command(arguments: Sequence[str]) -> None:
    """Run `hybrid-attention generate` with the arguments that follow it on the command line.

    Raises:
        ValueError: if an argument is not allowed, or the checkpoint is not one of a character language model.
    """
    given = null_settings_as_config(arguments)
    parser = ArgumentParser(prog="hybrid-attention generate", description=_DESCRIPTION, exit_on_error=False)
    parser.add_argument("--config", action="config", help="A YAML file with settings of the model, such as its layer.")
    parser.add_function_arguments(run_generation, skip={"model"})
    parser.add_subclass_arguments(CharLanguageModel, "model", help="Settings in place of the checkpoint's.")
    if {"-h", "--help"} & set(given):
        parser.parse_args(given)
    path = needed_checkpoint(given)
    config = class_config(read_checkpoint(path)["hyper_parameters"])
    kind = imported(config["class_path"])
    if not (isinstance(kind, type) and issubclass(kind, CharLanguageModel)):
        raise ValueError(
            f"The checkpoint {path!r} is of {config['class_path']}, which has no text to go on with: give one of "
            "lightning_modules.CharLanguageModel."
        )
    check_config_files(given, config)
    parser.set_defaults({"model": config})
    settings = parser.parse_args(given).as_dict()
    settings.pop("config", None)
    for name in ("prompt", "stop"):
        settings[name] = _as_utf8(settings[name])
    run_generation(**{**settings, "model": settings["model"]["init_args"]})


def run_generation(
    ckpt_path: str,
    prompt: str = "",
    max_new_characters: int = 500,
    temperature: float = 1.0,
    top_k: int | None = None,
    stop: str = "",
    seed: int = 0,
    model: dict[str, Any] | None = None,
) -> None:
    """Write the prompt and what follows it.

    Args:
        ckpt_path: Checkpoint of a CharLanguageModel.
        prompt: Text to continue, of any length; of a longer one than the context, the model sees the end.
        max_new_characters: How many characters to write at most.
        temperature: Logits are divided by it; 0 takes the most likely character each time.
        top_k: How many of the most likely characters are drawn from; all of them without it.
        stop: Characters of the vocabulary; the text ends before the first place where they would be generated.
        seed: Fixes what is drawn, and the samples of simulators without a seed of their own.
        model: Arguments of the model in place of the checkpoint's.
    """
    if max_new_characters < 1:
        raise ValueError(f"max_new_characters={max_new_characters} was given: give 1 or more.")
    if not 0 <= seed < _SEEDS:
        raise ValueError(f"seed={seed} was given: give a whole number from 0 to {_SEEDS - 1}.")
    check_sampling(temperature, top_k)
    pl.seed_everything(seed, verbose=False)  # simulators are seeded when they are made
    language_model = CharLanguageModel.load_from_checkpoint(ckpt_path, map_location="cpu", **(model or {})).eval()
    vocabulary = language_model.hparams["vocabulary"]
    for name, text in {"prompt": prompt, "stop": stop}.items():
        try:
            encode(text, vocabulary)
        except ValueError as error:
            raise ValueError(f"In {name}: {error}") from None
    start = prompt
    if not prompt:
        start = "\n" if "\n" in vocabulary else vocabulary[0]
        print(f"No prompt was given: the text starts after {start!r}.", file=sys.stderr)
    print(language_model.describe("Generating with"), file=sys.stderr, flush=True)
    _write_what_can_be_written(vocabulary)
    generator = torch.Generator().manual_seed(seed)
    tokens = generate_tokens(language_model.model, encode(start, vocabulary), temperature, top_k, generator)
    print(prompt, end="", flush=True)
    for piece in until(stop, (vocabulary[token] for token in islice(tokens, max_new_characters))):
        print(piece, end="", flush=True)
    print(flush=True)


def until(stop: str, characters: Iterable[str]) -> Iterator[str]:
    """Yield text up to the first occurrence of `stop`, each piece once it cannot be the beginning of `stop`."""
    held = ""
    for character in characters:
        held += character
        if stop and held == stop:
            return
        begun = next(start for start in range(len(held) + 1) if stop.startswith(held[start:]))
        if begun:
            yield held[:begun]
            held = held[begun:]
    if held:
        yield held


def _as_utf8(text: str) -> str:
    """Return an argument of the command line as UTF-8, whatever the terminal's encoding is."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _write_what_can_be_written(vocabulary: str) -> None:
    """Let the standard output write escapes where its encoding lacks characters, and say so."""
    out: Any = sys.stdout
    encoding = getattr(out, "encoding", None) or "utf-8"
    try:
        vocabulary.encode(encoding)
    except UnicodeEncodeError as error:
        if hasattr(out, "reconfigure"):
            out.reconfigure(errors="backslashreplace")
        print(
            f"{vocabulary[error.start]!a} cannot be written in {encoding} and will be escaped: set "
            "PYTHONIOENCODING=utf-8 to write it.",
            file=sys.stderr,
        )
