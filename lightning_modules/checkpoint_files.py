"""Checkpoint files that fit wrote, read as plain data, and their settings as a config."""

from pathlib import Path
from typing import Any

import torch

_HYPER_PARAMETERS = {"model": "hyper_parameters", "data": "datamodule_hyper_parameters"}
LINKED = ("context_length", "num_types", "vocabulary")


def read_checkpoint(path: str) -> dict[str, Any]:
    """Return the content of a checkpoint; nothing in it is run.

    Raises:
        ValueError: if there is no such file, or it is not a checkpoint of plain data.
    """
    if not Path(path).is_file():
        raise ValueError(f"There is no checkpoint {path!r}: give the path of a .ckpt file.")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        saved = checkpoint.get("hyper_parameters")
        named = isinstance(checkpoint["state_dict"], dict) and isinstance(saved, dict)
        named = named and isinstance(saved.get("_class_path"), str)
    except Exception as error:
        raise ValueError(f"{path!r} is not a checkpoint of plain data: give a .ckpt file that fit wrote.") from error
    if not named:
        raise ValueError(
            f"The checkpoint {path!r} does not say which model it holds, so it is not of this project's: give a .ckpt "
            "file that fit wrote."
        )
    return dict(checkpoint)


def checkpoint_config(path: str) -> dict[str, Any]:
    """Return the model and the data of a checkpoint as a config, without what the model takes from the data."""
    checkpoint = read_checkpoint(path)
    saved = {key: dict(checkpoint.get(name, {})) for key, name in _HYPER_PARAMETERS.items()}
    return {
        key: class_config(settings, LINKED if key == "model" else ())
        for key, settings in saved.items()
        if "_class_path" in settings
    }


def class_config(settings: dict[str, Any], left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return saved hyper-parameters as {class_path, init_args}."""
    arguments = {name: value for name, value in settings.items() if name not in ("_class_path", *left_out)}
    return {"class_path": settings["_class_path"], "init_args": arguments}


def check_same_class(saved: str, asked_for: str) -> None:
    """Raise ValueError where a checkpoint is of another class than that of the model, both as import paths."""
    if saved != asked_for:
        raise ValueError(
            f"The checkpoint is of {saved}, and the model is a {asked_for}: take the other model, or a checkpoint of "
            "this one."
        )
