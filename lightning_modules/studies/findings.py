"""The results of a study's folder by cell and seed, and the comparisons between them."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from lightning_modules.studies.comparisons import Comparison, Comparisons
from lightning_modules.studies.metrics import METRICS, Metric
from lightning_modules.studies.plan import ATTENTION, Experiment
from lightning_modules.studies.results import Result, read_result
from lightning_modules.studies.seed_statistics import Difference, Equivalence, equivalence, paired_difference, trend
from lightning_modules.studies.study import STUDY_FILE

Cell = dict[str, str]


@dataclass(frozen=True)
class Findings:
    """What a study has found so far.

    Args:
        folder: of the study.
        title: of the study.
        experiments: by name.
        comparisons: what the study tests.
        results: by experiment and values of its axes, then by seed.
        missing: names of runs that are not finished.
    """

    folder: Path
    title: str
    experiments: dict[str, Experiment]
    comparisons: Comparisons
    results: dict[tuple[str, ...], dict[int, Result]]
    missing: list[str]

    def of(self, experiment: str, cell: Mapping[str, str]) -> dict[int, Result]:
        """Return the results of a cell by seed."""
        axes = self.experiments[experiment].axes
        return self.results.get((experiment, *(cell[axis] for axis in axes)), {})

    def places(self, experiment: str) -> list[Cell]:
        """Return the values of all axes but attention, in every combination that has results."""
        axes = {axis: values for axis, values in self.experiments[experiment].axes.items() if axis != ATTENTION}
        every = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        return [place for place in every if self.variants(experiment, place)]

    def variants(self, experiment: str, place: Cell) -> list[str]:
        """Return the kinds of attention that have results at a place."""
        kinds = self.experiments[experiment].axes[ATTENTION]
        return [kind for kind in kinds if self.of(experiment, {**place, ATTENTION: kind})]

    def metric(self, experiment: str) -> Metric:
        """Return what is compared in an experiment."""
        return METRICS[self.experiments[experiment].metric]

    def difference(self, experiment: str, first: Cell, second: Cell) -> Difference | None:
        """Return the difference first - second of two cells over the seeds that both have, or None without any."""
        ours, theirs = self._pairs(experiment, first, second)
        return paired_difference(ours, theirs) if ours else None

    def compared(self, comparison: Comparison) -> Difference | None:
        """Return the difference of a comparison, or None without results."""
        first, second = ({**comparison.at, **chosen} for chosen in (comparison.first, comparison.second))
        return self.difference(comparison.experiment, first, second)

    def equivalent(self, comparison: Comparison) -> Equivalence | None:
        """Return the test of equivalence of a comparison, or None without results."""
        first, second = ({**comparison.at, **chosen} for chosen in (comparison.first, comparison.second))
        ours, theirs = self._pairs(comparison.experiment, first, second)
        margin = self.metric(comparison.experiment).margin(comparison.margin or math.nan)
        return equivalence(ours, theirs, margin) if ours else None

    def grown(self, comparison: Comparison) -> tuple[list[str], Difference] | None:
        """Return the slope of a comparison's difference along its axis, and the values with results that it is over.

        None where no seed has results at two values or more.
        """
        assert comparison.axis is not None
        at_each: dict[str, dict[int, float]] = {}
        for value in self.experiments[comparison.experiment].axes[comparison.axis]:
            place = {**comparison.at, comparison.axis: value}
            found = self._by_seed(comparison.experiment, {**place, **comparison.first}, {**place, **comparison.second})
            if found:
                at_each[value] = {seed: ours - theirs for seed, (ours, theirs) in found.items()}
        seeds = sorted(set.intersection(*(set(values) for values in at_each.values()))) if at_each else []
        if len(at_each) < 2 or not seeds:
            return None
        return list(at_each), trend(
            [float(value) for value in at_each], [[values[seed] for values in at_each.values()] for seed in seeds]
        )

    def unpaired(self) -> list[str]:
        """Return the places and seeds whose runs differ in initial weights or in the order of the data."""
        found = []
        for experiment in self.experiments:
            for place in self.places(experiment):
                by_seed: dict[int, set[tuple[str, str]]] = {}
                for kind in self.variants(experiment, place):
                    for seed, result in self.of(experiment, {**place, ATTENTION: kind}).items():
                        content = result.content
                        by_seed.setdefault(seed, set()).add((content["initial_weights"], content["data_order"]))
                name = "/".join([experiment, *place.values()])
                found += [f"{name}, seed {seed}" for seed, kinds in by_seed.items() if len(kinds) > 1]
        return found

    def _pairs(self, experiment: str, first: Cell, second: Cell) -> tuple[list[float], list[float]]:
        found = self._by_seed(experiment, first, second).values()
        return [ours for ours, _ in found], [theirs for _, theirs in found]

    def _by_seed(self, experiment: str, first: Cell, second: Cell) -> dict[int, tuple[float, float]]:
        """Return the logged numbers of two cells by seed, for the seeds that both have."""
        name = self.metric(experiment).name
        ours, theirs = self.of(experiment, first), self.of(experiment, second)
        return {seed: (ours[seed].metric(name), theirs[seed].metric(name)) for seed in ours if seed in theirs}


def read_findings(folder: Path) -> Findings:
    """Return the findings of a study's folder.

    Raises:
        ValueError: if it is not the folder of a study, or has no finished run.
    """
    try:
        study = json.loads((folder / STUDY_FILE).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{str(folder)!r} is not the folder of a study: give the one that `hybrid-attention study` printed."
        ) from error
    results: dict[tuple[str, ...], dict[int, Result]] = {}
    missing = []
    for run in study["runs"]:
        result = read_result(folder / run["folder"], run["fingerprint"])
        if result is None:
            missing.append(run["folder"])
        else:
            results.setdefault((run["experiment"], *run["cell"].values()), {})[run["seed"]] = result
    if not results:
        raise ValueError(f"The study in {str(folder)!r} has no finished run: wait for the first one.")
    comparisons = {
        kind: tuple(Comparison(**given) for given in comparisons) for kind, comparisons in study["comparisons"].items()
    }
    experiments = {name: Experiment(**given) for name, given in study["experiments"].items()}
    return Findings(folder, study["title"], experiments, Comparisons(**comparisons), results, missing)
