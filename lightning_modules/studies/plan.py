"""A study as a YAML file: experiments, each a grid of settings, that become single runs."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from lightning_modules.studies.comparisons import Comparisons, read_comparisons
from lightning_modules.studies.metrics import METRICS

SEED = "${seed}"
ATTENTION = "attention"
_NAME = re.compile(r"\w[\w.-]*")
_STUDY_KEYS = {"title", "seeds", "keep_checkpoints", "experiments", "primary", "equivalences", "trends"}
_EXPERIMENT_KEYS = {"title", "metric", "settings", "axes", "exceptions", "seeds", "search"}
_EXCEPTION_KEYS = {"of", "settings", "seeds", "skip"}
_FIXED = ("logger", "default_root_dir", "enable_progress_bar", "enable_model_summary")


class _NamesAsWritten(yaml.SafeLoader):
    """YAML whose keys mean what they say: 8_3, which is the number 83, would name another value than its folder."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping, or refuse keys that come twice or are numbers in another form than Python's."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            value = self.construct_object(key)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            wrong = ""
            if number and str(value) != key.value:
                wrong = f"the name {key.value} is the number {value}, write it so or put it into quotes"
            elif str(value) in seen:
                wrong = f"the name {key.value} stands twice in one mapping"
            if wrong:
                raise yaml.constructor.ConstructorError(problem=wrong, problem_mark=key.start_mark)
            seen.add(str(value))
        return super().construct_mapping(node, deep)


@dataclass(frozen=True)
class PlannedRun:
    """One training run of a study.

    Args:
        experiment: name of its experiment.
        cell: the chosen value of every axis, by name.
        seed: of weights and data order.
        configs: contents of config files for `fit`, each merged over the ones before it.
    """

    experiment: str
    cell: dict[str, str]
    seed: int
    configs: list[dict[str, Any]]

    @property
    def fingerprint(self) -> str:
        """Eight hexadecimal digits that change with any setting."""
        text = json.dumps([self.configs, self.seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def folder(self) -> str:
        """Folder of the run inside that of the study; runs of other settings have others."""
        return "/".join([self.experiment, *self.cell.values(), f"seed_{self.seed}-{self.fingerprint}"])

    @property
    def name(self) -> str:
        """What the run is called on the terminal."""
        return f"{self.experiment}/{'/'.join(self.cell.values())}, seed {self.seed}"


@dataclass(frozen=True)
class Experiment:
    """A grid of settings on one task.

    Args:
        title: for the report.
        metric: what is compared, a name in METRICS.
        axes: the values of every axis, by name.
        search: names of the axes whose values are tried in a tuning search.
    """

    title: str
    metric: str
    axes: dict[str, list[str]]
    search: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Study:
    """What a study file says.

    Args:
        title: for the report.
        experiments: by name.
        runs: all runs, first all of the first seed.
        comparisons: what is tested.
        keep_checkpoints: whether the weights of finished runs are kept.
    """

    title: str
    experiments: dict[str, Experiment]
    runs: list[PlannedRun] = field(repr=False)
    comparisons: Comparisons
    keep_checkpoints: bool = True


def read_study(path: Path, overrides: Sequence[str] = (), num_seeds: int | None = None) -> Study:
    """Return the study that a YAML file describes; docs/studies.md says what such a file holds.

    Args:
        path: of the file; the config files that it names are relative to its folder.
        overrides: settings such as "brackets.trainer.max_steps=100", which win over those of the file in all runs of an
            experiment.
        num_seeds: take the first seeds only.

    Raises:
        ValueError: if a file cannot be read, or what it says is not allowed.
    """
    content = _mapping(path, _STUDY_KEYS, f"The study {str(path)!r}")
    changes = _overrides(overrides)
    keep_checkpoints = content.get("keep_checkpoints", True)
    if not isinstance(keep_checkpoints, bool):
        raise ValueError(f"The study {str(path)!r} has keep_checkpoints: {keep_checkpoints!r}: give true or false.")
    if not isinstance(content.get("experiments") or {}, dict):
        raise ValueError(f"The study {str(path)!r} has experiments without names: give a mapping from names to them.")
    experiments: dict[str, Experiment] = {}
    runs: list[tuple[int, PlannedRun]] = []
    for name, described in (content.get("experiments") or {}).items():
        place = f"Experiment {name!r}"
        _check_names(place, [name])
        seeds = _seeds(place, described, content.get("seeds"))[:num_seeds]
        experiments[str(name)] = _experiment(place, described)
        settings = _contents(place, described.get("settings"), path.parent)
        change = changes.pop(str(name), None)
        last = [] if change is None else [change]
        runs += _runs(str(name), place, described, seeds, settings, last, path.parent)
    if changes:
        raise ValueError(
            f"There is no experiment {next(iter(changes))!r}: the study has {', '.join(experiments) or 'none'}."
        )
    if not runs:
        raise ValueError(f"The study {str(path)!r} has no runs: give it experiments with axes and seeds.")
    axes = {name: experiment.axes for name, experiment in experiments.items()}
    return Study(
        str(content.get("title", path.stem)),
        experiments,
        [run for _, run in sorted(runs, key=lambda numbered: numbered[0])],
        read_comparisons(content, axes),
        keep_checkpoints,
    )


def _runs(
    name: str,
    place: str,
    described: dict[str, Any],
    seeds: list[int],
    base: list[dict[str, Any]],
    last: list[dict[str, Any]],
    folder: Path,
) -> Iterator[tuple[int, PlannedRun]]:
    """Yield the runs of one experiment, each with the place of its seed."""
    axes = described["axes"]
    swaps = {
        axis: {str(value): _contents(f"{place}, {axis} {value}", content, folder) for value, content in values.items()}
        for axis, values in axes.items()
    }
    exceptions = _exceptions(place, described, swaps)
    for values in product(*swaps.values()):
        cell = dict(zip(swaps, values, strict=True))
        configs = base + [content for axis, value in cell.items() for content in swaps[axis][value]]
        chosen, skipped = seeds, False
        for exception in exceptions:
            if all(cell[axis] in allowed for axis, allowed in exception["of"].items()):
                configs = configs + _contents(place, exception.get("settings"), folder)
                chosen = chosen[: exception.get("seeds", len(chosen))]
                skipped = skipped or exception.get("skip", False)
        if skipped:
            continue
        for number, seed in enumerate(chosen):
            filled = [_with_seed(content, seed) for content in configs + last]
            yield number, PlannedRun(name, cell, seed, filled)


def _experiment(place: str, described: Any) -> Experiment:
    _known(place, described, _EXPERIMENT_KEYS)
    metric = described.get("metric")
    if metric not in METRICS:
        raise ValueError(f"{place} has the metric {metric!r}: give {' or '.join(METRICS)}.")
    axes = described.get("axes")
    if not isinstance(axes, dict) or not all(isinstance(values, dict) and values for values in axes.values()):
        raise ValueError(f"{place} needs axes: give each a mapping from the names of its values to settings.")
    _check_names(f"{place}, axes", axes)
    if ATTENTION not in axes:
        raise ValueError(f"{place} has the axes {', '.join(map(str, axes))}: give one that is named {ATTENTION}.")
    for axis, values in axes.items():
        _check_names(f"{place}, axis {axis}", values)
    named = {str(axis): [str(value) for value in values] for axis, values in axes.items()}
    search = described.get("search", [])
    if not isinstance(search, list) or not set(map(str, search)) <= named.keys() - {ATTENTION}:
        raise ValueError(f"{place} searches {search!r}: give a list of its axes other than {ATTENTION}.")
    return Experiment(str(described.get("title", place)), metric, named, [str(axis) for axis in search])


def _exceptions(place: str, described: dict[str, Any], swaps: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the exceptions, with lists of values to match."""
    found = []
    for exception in described.get("exceptions") or []:
        _known(f"{place}, exceptions", exception, _EXCEPTION_KEYS)
        matched = {}
        for axis, values in (exception.get("of") or {}).items():
            allowed = [str(value) for value in (values if isinstance(values, list) else [values])]
            if axis not in swaps or not set(allowed) <= set(swaps[axis]):
                raise ValueError(f"{place} has an exception of {axis}={values}, which it does not have.")
            matched[axis] = allowed
        seeds = exception.get("seeds", 1)
        if isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1:
            raise ValueError(
                f"{place} has an exception with seeds: {seeds!r}: give the number of first seeds that are run."
            )
        found.append({**exception, "of": matched})
    return found


def _seeds(place: str, described: Any, of_study: Any) -> list[int]:
    seeds = described.get("seeds", of_study) if isinstance(described, dict) else of_study
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        seeds = list(range(1, seeds + 1))
    if not isinstance(seeds, list) or not all(isinstance(seed, int) for seed in seeds) or len(set(seeds)) < len(seeds):
        raise ValueError(f"{place} has the seeds {seeds!r}: give a number of seeds, or a list of different numbers.")
    return seeds


def _contents(place: str, settings: Any, folder: Path) -> list[dict[str, Any]]:
    """Return the contents of the config files of some settings, and then the settings themselves."""
    if settings is None:
        return []
    if not isinstance(settings, dict):
        raise ValueError(f"{place} has the settings {settings!r}: give a mapping as in a config file.")
    files = settings.get("config") or []
    files = [files] if isinstance(files, str) else files
    contents = [_mapping(folder / name, None, f"The file {name!r} of {place}") for name in files]
    rest = {key: value for key, value in settings.items() if key != "config"}
    contents += [rest] if rest else []
    return [_without_fixed(content) for content in contents]


def _without_fixed(content: dict[str, Any]) -> dict[str, Any]:
    """Return a config without what the study sets itself for every run."""
    kept = {key: value for key, value in content.items() if key != "seed_everything"}
    if isinstance(kept.get("trainer"), dict):
        kept["trainer"] = {key: value for key, value in kept["trainer"].items() if key not in _FIXED}
    return kept


def _overrides(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of each experiment that "experiment.key.key=value" lists."""
    found: dict[str, dict[str, Any]] = {}
    for text in given:
        name, separator, value = text.partition("=")
        keys = name.split(".")
        if not separator or len(keys) < 2:
            raise ValueError(
                f"set {text!r} was given: give EXPERIMENT.key=value, with a key such as trainer.max_steps."
            )
        place = found
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise ValueError(f"set {text!r} was given, and {key!r} has a value by another: give one of them.")
        try:
            place[keys[-1]] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"set {text!r} was given, whose value is not YAML: mend it.") from error
    for name, settings in found.items():
        _check_override(name, settings)
    return found


def _check_override(name: str, settings: dict[str, Any]) -> None:
    """Refuse overrides of what a study sets itself, and config files, whose content would not count as a setting."""
    trainer = settings.get("trainer", {})
    if not isinstance(trainer, dict):
        raise ValueError(
            f"set {name}.trainer={trainer!r} was given: give one of its settings, as trainer.max_steps=100."
        )
    fixed = [f"trainer.{key}" for key in trainer if key in _FIXED]
    fixed += [key for key in settings if key in ("seed_everything", "config")]
    if fixed:
        raise ValueError(
            f"set {name}.{fixed[0]} was given, which the study sets for each run: set others, and put seeds and config "
            "files into the study."
        )


def _with_seed(value: Any, seed: int) -> Any:
    if isinstance(value, dict):
        return {key: _with_seed(item, seed) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_seed(item, seed) for item in value]
    return seed if value == SEED else value


def _mapping(path: Path, keys: set[str] | None, what: str) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _NamesAsWritten)
    except OSError as error:
        raise ValueError(f"{what} cannot be read ({error.strerror}): give the path of a YAML file.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{what} is not YAML that can be read ({' '.join(str(error).split())}): mend it.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{what} holds no settings: give a mapping.")
    if keys is not None:
        _known(what, content, keys)
    return content


def _known(place: str, given: Any, keys: set[str]) -> None:
    if not isinstance(given, dict):
        raise ValueError(f"{place} is {given!r}: give a mapping with {', '.join(sorted(keys))}.")
    unknown = set(given) - keys
    if unknown:
        raise ValueError(f"{place} has {sorted(map(str, unknown))}: give {', '.join(sorted(keys))} only.")


def _check_names(place: str, names: Any) -> None:
    for name in names:
        if name is None or isinstance(name, bool) or not _NAME.fullmatch(str(name)):
            raise ValueError(
                f"{place} has the name {name!r}: give letters, digits, '_', '.' and '-', as it names a folder (YAML "
                "reads on, off, yes and no as true and false, null and ~ as none)."
            )
