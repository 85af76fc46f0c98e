"""Layer factories as plain data, so that checkpoints hold nothing but names, numbers and text."""

import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from hybrid_attention import IsingLayer

LayerFactory = Callable[[int, int], IsingLayer]
_PLAIN = (bool, int, float, str, type(None))


def to_plain(factory: Any) -> dict[str, Any] | None:
    """Return {class_path, init_args} for a class, a functools.partial of one, such a dict itself, or None.

    Raises:
        ValueError: if the factory is something else, or holds an argument that is neither plain data nor a dataclass.
    """
    if factory is None:
        return None
    if isinstance(factory, dict):
        return _checked(factory)
    kind, arguments = factory, {}
    if isinstance(factory, partial):
        kind, arguments = factory.func, factory.keywords
        if isinstance(kind, type) and factory.args:
            kind = None
        elif not isinstance(kind, type):  # from a config: partial(instantiate, ..., class)
            kind = factory.args[-1] if factory.args else None
    if not (isinstance(kind, type) and issubclass(kind, IsingLayer)):
        raise ValueError(
            f"layer={factory!r} cannot be written to a checkpoint: give a layer class, a functools.partial of one with "
            "keyword arguments, or a dict {class_path, init_args}."
        )
    return _spec(kind, arguments)


def to_factory(plain: dict[str, Any]) -> LayerFactory:
    """Return what builds the layer that `to_plain` describes.

    Raises:
        ValueError: if there is no such class, it is not an Ising layer, or it does not have an argument; arguments are
            plain data and dataclasses, so that a checkpoint cannot name anything else to be called.
    """
    kind = imported(plain["class_path"])
    if not (isinstance(kind, type) and issubclass(kind, IsingLayer)):
        raise ValueError(
            f"{plain['class_path']!r} is not an Ising layer: give a subclass of hybrid_attention.IsingLayer."
        )
    arguments = _built(plain.get("init_args", {}))
    try:
        inspect.signature(kind).bind(0, 1, **arguments)
    except TypeError as error:
        raise ValueError(
            f"{plain['class_path']} was given {sorted(arguments)} ({error}): see its arguments."
        ) from error
    return partial(kind, **arguments)


def class_path(kind: type) -> str:
    """Return the import path of a class, that of its top-level package where the class is public there."""
    package = kind.__module__.partition(".")[0]
    if getattr(import_module(package), kind.__name__, None) is kind:
        return f"{package}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _spec(kind: type, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": class_path(kind), "init_args": {name: _plain(name, x) for name, x in arguments.items()}}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_plain(name, item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(name, item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return _spec(type(value), fields)
    if hasattr(value, "as_dict"):
        return _plain(name, value.as_dict())
    raise ValueError(
        f"The layer's argument {name}={value!r} cannot be written to a checkpoint: give numbers, text, lists, dicts or "
        "a dataclass of these."
    )


def _checked(plain: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(plain.get("class_path"), str) or plain.keys() - {"class_path", "init_args"}:
        raise ValueError(f"layer={plain!r} was given: a dict needs class_path, may have init_args, and nothing else.")
    arguments = plain.get("init_args") or {}
    return {"class_path": plain["class_path"], "init_args": {name: _plain(name, x) for name, x in arguments.items()}}


def _built(value: Any) -> Any:
    if isinstance(value, list):
        return [_built(item) for item in value]
    if isinstance(value, dict):
        if "class_path" in value:
            kind = imported(value["class_path"])
            if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
                raise ValueError(f"{value['class_path']!r} is not a dataclass: an argument of a layer has to be one.")
            return kind(**_built(value.get("init_args") or {}))
        return {key: _built(item) for key, item in value.items()}
    return value


def imported(path: str) -> Any:
    """Return what an import path names, or raise ValueError."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"There is no class {path!r} ({error}): give the import path of a class.") from error
