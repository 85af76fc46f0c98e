"""Config files of a command line, checked before they are merged, so that an error names the file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

_WITHOUT_CIRCUITS = (
    "ExactLayer",
    "FieldsOnlyLayer",
    "TransferMatrixLayer",
    "MeanFieldLayer",
    "GibbsLayer",
    "DimodLayer",
)


def value_of(option: str, arguments: Sequence[str]) -> str | None:
    """Return the last value that `--option` has among the arguments, or None."""
    values = values_of(option, arguments)
    return values[-1] if values else None


def values_of(option: str, arguments: Sequence[str]) -> list[str]:
    """Return all values of `--option value` and `--option=value`, in order."""
    found = []
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name != f"--{option}":
            continue
        if equals:
            found.append(value)
        elif place + 1 < len(arguments):
            found.append(arguments[place + 1])
    return found


def checkpoint_path(arguments: Sequence[str]) -> str | None:
    """Return the checkpoint that the command line names, or else the last config file that names one, or None."""
    path = value_of("ckpt_path", arguments)
    for file in [] if path is not None else reversed(_files(arguments)):
        named = _read(file).get("ckpt_path")
        if named is not None:
            return str(named)
    return path


def needed_checkpoint(arguments: Sequence[str]) -> str:
    """Return the checkpoint that the arguments name, and raise ValueError where they name none."""
    path = checkpoint_path(arguments)
    if path is None:
        raise ValueError("No checkpoint was given: set --ckpt_path to a .ckpt file that fit wrote.")
    return path


def null_settings_as_config(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with each `--model...=null` as a config in its place.

    The parser passes the value None of an argument two levels down as the text 'None'.
    """
    found = []
    for argument in arguments:
        name, _, value = argument.partition("=")
        keys = name.removeprefix("--").split(".")
        if value != "null" or keys[0] != "model" or len(keys) < 3:
            found.append(argument)
            continue
        nested: Any = None
        for key in reversed(_with_init_args(keys)):
            nested = {key: nested}
        found += ["--config", json.dumps(nested)]
    return found


def check_config_files(arguments: Sequence[str], config: dict[str, Any] | None = None) -> None:
    """Raise ValueError, with the name of the file, where a config file is missing, empty, broken or too early.

    Args:
        arguments: of the command line.
        config: the model before any file is read, as {class_path, init_args}; none without it.
    """
    layer_on_the_line = any("layer=" in argument or "layer.class_path=" in argument for argument in arguments)
    has_quantum_layer = layer_on_the_line or _sets_options(_layer_of({"model": config or {}}))
    for path in _files(arguments):
        content = _read(path)
        layer = _layer_of(content)
        if "class_path" in layer:
            has_quantum_layer = _sets_options(layer)
        elif "device" in (layer.get("init_args") or {}) and not has_quantum_layer:
            raise ValueError(
                f"{path!r} sets the device of a layer that runs no circuits: give a layer file before it, "
                "--config configs/layers/dqa.yaml."
            )


def _files(arguments: Sequence[str]) -> list[str]:
    return [path for path in values_of("config", arguments) if not path.lstrip().startswith("{") and "://" not in path]


def _sets_options(layer: dict[str, Any]) -> bool:
    """Return whether a layer may have a device: every one except those known to run no circuits."""
    return "class_path" in layer and layer["class_path"].rpartition(".")[2] not in _WITHOUT_CIRCUITS


def _layer_of(content: dict[str, Any]) -> dict[str, Any]:
    place: Any = content
    for key in ("model", "init_args", "layer"):
        place = place.get(key) if isinstance(place, dict) else None
    if isinstance(place, str):
        return {"class_path": place}
    return place if isinstance(place, dict) else {}


def _read(path: str) -> dict[str, Any]:
    if not Path(path).is_file():
        raise ValueError(f"There is no config file {path!r}: give the path of a YAML file.")
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"The config file {path!r} is not YAML ({' '.join(str(error).split())}): mend it.") from error
    if not isinstance(content, dict):
        what = "is empty" if content is None else f"holds a {type(content).__name__}"
        raise ValueError(f"The config file {path!r} {what}: give settings, such as those in configs/.")
    return content


def _with_init_args(keys: list[str]) -> list[str]:
    """Return the keys with the `init_args` that the command line may leave out after `model` and `layer`."""
    found = []
    for place, key in enumerate(keys):
        found.append(key)
        following = keys[place + 1] if place + 1 < len(keys) else None
        if key in ("model", "layer") and following not in (None, "init_args", "class_path"):
            found.append("init_args")
    return found
