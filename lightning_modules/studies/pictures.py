"""Which panels a report shows of an experiment, drawn from its results."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

import numpy as np

from lightning_modules.studies.figures import Curve, Panels, attention_map, heat_map
from lightning_modules.studies.findings import Cell, Findings
from lightning_modules.studies.plan import ATTENTION
from lightning_modules.studies.result_tables import REFERENCE, place_name
from lightning_modules.studies.results import Result
from lightning_modules.studies.seed_statistics import Interval

_EXAMPLES = 2


@dataclass(frozen=True)
class Gallery:
    """Panels under a heading.

    Args:
        title: the heading.
        rows: SVG pictures side by side, in rows that wrap.
        note: what they show.
    """

    title: str
    rows: list[list[str]]
    note: str


def galleries(findings: Findings, experiment: str) -> Iterator[Gallery]:
    """Yield what is to be seen of an experiment; what has no data is left out."""
    panels = Panels(findings.experiments[experiment].axes[ATTENTION])
    yield from (
        gallery
        for gallery in (
            _differences(findings, experiment, panels),
            _curves(findings, experiment, panels),
            _couplings(findings, experiment, panels),
            _attention(findings, experiment),
        )
        if gallery.rows
    )


def _differences(findings: Findings, experiment: str, panels: Panels) -> Gallery:
    metric = findings.metric(experiment)
    found: dict[str, list[tuple[str, Interval]]] = {}
    for place in findings.places(experiment):
        for kind in findings.variants(experiment, place):
            cells = [{**place, ATTENTION: chosen} for chosen in (kind, REFERENCE)]
            has_reference = REFERENCE in findings.variants(experiment, place)
            difference = findings.difference(experiment, *cells) if has_reference and kind != REFERENCE else None
            if difference is not None and isfinite(difference.interval.low):
                low, mean, high = (
                    metric.show_difference(end)
                    for end in (difference.interval.low, difference.interval.mean, difference.interval.high)
                )
                shown = Interval(mean, low, high, difference.interval.count)
                found.setdefault(kind, []).append((place_name(place), shown))
    label = f"{metric.label.partition(' (')[0]}: difference to {REFERENCE} ({metric.unit})"
    drawn = [[panels.differences("Paired differences", label, found)]] if found else []
    return Gallery(f"Differences to {REFERENCE}", drawn, "Mean over seeds of paired differences, 95 % intervals.")


def _curves(findings: Findings, experiment: str, panels: Panels) -> Gallery:
    metric = findings.metric(experiment)
    drawn: list[str] = []
    for place in findings.places(experiment):
        curves: dict[str, list[Curve]] = {}
        for kind in findings.variants(experiment, place):
            runs: list[Curve] = [
                [(step, metric.show(value)) for step, value in result.curve(metric.name)]
                for result in findings.of(experiment, {**place, ATTENTION: kind}).values()
            ]
            if all(runs):
                curves[kind] = runs
        if curves:
            drawn.append(panels.curves(place_name(place), f"validation {metric.label}", curves))
    return Gallery(
        "Learning curves",
        [drawn] if drawn else [],
        "Mean over seeds on the validation split; bands from lowest to highest.",
    )


def _couplings(findings: Findings, experiment: str, panels: Panels) -> Gallery:
    drawn = []
    for place in findings.places(experiment):
        found = {
            kind: _all_couplings(findings, experiment, place, kind) for kind in findings.variants(experiment, place)
        }
        with_couplings = {kind: matrices for kind, matrices in found.items() if matrices is not None}
        if not with_couplings:
            continue
        blocks, heads = next(iter(with_couplings.values())).shape[1:3]
        for block, head in np.ndindex(blocks, heads):
            where = ", ".join(filter(None, [place_name(place), _head_name(block, head, (blocks, heads))]))
            of_head = {kind: matrices[:, block, head] for kind, matrices in with_couplings.items()}
            heat_maps = [heat_map(_title(kind, where), matrices.mean(0)) for kind, matrices in of_head.items()]
            drawn.append([panels.by_distance(where, of_head), *heat_maps])
    return Gallery(
        "Learned couplings",
        drawn,
        "J in nats, and the position biases of softmax attention where it has them: mean over pairs at a distance with "
        "95 % intervals over seeds, and mean over seeds of every pair (blue: positive).",
    )


def _all_couplings(findings: Findings, experiment: str, place: Cell, kind: str) -> np.ndarray | None:
    """Return the couplings of all seeds, (seeds, blocks, H, T, T), or None where a run has none or they stayed at 0."""
    results = findings.of(experiment, {**place, ATTENTION: kind}).values()
    found = [result.observations().get("couplings") for result in results]
    matrices = [matrix for matrix in found if matrix is not None]
    return np.stack(matrices) if len(matrices) == len(found) and np.any(matrices) else None


def _attention(findings: Findings, experiment: str) -> Gallery:
    drawn = []
    for place in findings.places(experiment):
        seen: dict[str, dict[str, np.ndarray]] = {}
        for kind in findings.variants(experiment, place):
            by_seed = findings.of(experiment, {**place, ATTENTION: kind})
            result: Result = by_seed[min(by_seed)]
            observations = result.observations()
            if observations:
                seen[kind] = observations
        for example in range(_EXAMPLES if seen else 0):
            row = []
            for kind, observations in seen.items():
                weights, symbols = observations["weights"][example], observations["symbols"][example]
                for block, head in np.ndindex(weights.shape[:2]):
                    where = _head_name(block, head, weights.shape[:2])
                    row.append(attention_map(_title(kind, where or place_name(place)), weights[block, head], symbols))
            drawn.append(row)
    return Gallery(
        "Attention weights",
        drawn,
        "Of the first seed, on the first inputs of the test split: a row for every query, from white (0) to dark (1).",
    )


def _title(kind: str, where: str) -> str:
    return f"{kind}\n{where}" if where else kind


def _head_name(block: int, head: int, shape: tuple[int, ...]) -> str:
    """Return which block and head of several, in words."""
    return f"block {block + 1}, head {head + 1}" if shape != (1, 1) else ""
