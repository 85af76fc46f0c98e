"""The tables of a study: results, differences to softmax, what was to be tested, and what it was made with."""

import math
import statistics
from collections.abc import Callable

from lightning_modules.studies.findings import Cell, Findings
from lightning_modules.studies.metrics import METRICS, Metric
from lightning_modules.studies.plan import ATTENTION
from lightning_modules.studies.results import Result
from lightning_modules.studies.seed_statistics import CONFIDENCE, Interval, holm, mean_interval
from lightning_modules.studies.tables import PValue, Quantity, Table, Value

REFERENCE = "softmax"
_NEAREST = "accuracy_nearest_open"
_LEVEL = 1 - CONFIDENCE


def test_tables(findings: Findings) -> list[Table]:
    """Return the tables of what the study was to test, those that are empty left out."""
    tables = [_primary(findings), _equivalences(findings), _trends(findings)]
    return [table for table in tables if table.rows]


def experiment_tables(findings: Findings, experiment: str) -> list[Table]:
    """Return the results of an experiment, and where there is softmax attention the differences to it."""
    tables = [_results(findings, experiment), _differences(findings, experiment)]
    return [table for table in tables if table.rows]


def versions_table(findings: Findings) -> Table:
    """Return what the runs were made with; where runs differ, all that occurred."""
    found: dict[str, dict[str, None]] = {}
    for by_seed in findings.results.values():
        for result in by_seed.values():
            further = {"device": result.content["device"], "threads": str(result.content["threads"])}
            for name, value in {**result.content["versions"], **further}.items():
                found.setdefault(name, {})[value] = None
    rows = tuple((name, ", ".join(values)) for name, values in found.items())
    return Table("versions", "Packages and machine", ("what", "value"), rows, "A + after the commit: with changes.")


def runs_table(findings: Findings) -> Table:
    """Return one row for every finished run."""
    axes = list(dict.fromkeys(axis for experiment in findings.experiments.values() for axis in experiment.axes))
    results = [result for by_seed in findings.results.values() for result in by_seed.values()]
    logged = list(dict.fromkeys(name for result in results for name in result.content["metrics"]))
    rows = tuple(
        (
            result.content["experiment"],
            *(result.content["cell"].get(axis, "") for axis in axes),
            result.seed,
            *(result.content["metrics"].get(name, "") for name in logged),
            result.content["steps"],
            result.seconds,
            result.content["train_seconds"],
            result.content["finished"],
            str(result.folder.relative_to(findings.folder)),
        )
        for result in results
    )
    header = ("experiment", *axes, "seed", *logged, "steps", "seconds", "train_seconds", "finished", "folder")
    return Table("runs", "Runs", header, rows)


def _results(findings: Findings, experiment: str) -> Table:
    rows: list[tuple[Value, ...]] = []
    places = findings.places(experiment)
    for place in places:
        for kind in findings.variants(experiment, place):
            results = list(findings.of(experiment, {**place, ATTENTION: kind}).values())
            rows.append((*place.values(), kind, *_row(results)))
        baseline = [
            result.metric(_NEAREST)
            for kind in findings.variants(experiment, place)
            for result in findings.of(experiment, {**place, ATTENTION: kind}).values()
            if f"test_{_NEAREST}" in result.content["metrics"]
        ]
        if baseline:
            accuracy = f"{100 * statistics.fmean(baseline):.2f}"
            rows.append((*place.values(), "nearest open bracket", "", accuracy, "", "", "", "", ""))
    axes = [axis.replace("_", " ") for axis in places[0]] if places else []
    labels = [metric.label for metric in METRICS.values()]
    header = (*axes, "attention", "seeds", *labels, "parameters", "of pairs", "s per run", "ms per step")
    return Table(
        f"{experiment}_results",
        "Results on the test split",
        header,
        tuple(rows),
        f"Means over seeds with {100 * CONFIDENCE:.0f} % intervals, which cover what changes with the seed and not the "
        "choice of the text or of the kind of words; of perplexity geometric means. Seconds are wall time of training "
        "and testing, steps with validation.",
    )


def _row(results: list[Result]) -> tuple[Value, ...]:
    metrics = [
        _quantity(mean_interval([result.metric(metric.name) for result in results]), metric.show, metric.digits)
        for metric in METRICS.values()
    ]
    content = results[0].content
    step = statistics.fmean(1000 * result.content["train_seconds"] / result.content["steps"] for result in results)
    return (
        len(results),
        *metrics,
        content["parameters"]["total"],
        content["parameters"]["pairs"],
        f"{statistics.fmean(result.seconds for result in results):.0f}",
        f"{step:.1f}",
    )


def _differences(findings: Findings, experiment: str) -> Table:
    metric = findings.metric(experiment)
    rows: list[tuple[Value, ...]] = []
    places = findings.places(experiment)
    for place in places:
        for kind in findings.variants(experiment, place):
            cells: list[Cell] = [{**place, ATTENTION: chosen} for chosen in (kind, REFERENCE)]
            found = None if kind == REFERENCE else findings.difference(experiment, *cells)
            if found is not None:
                shown = _difference(found.interval, metric)
                rows.append((*place.values(), kind, shown, PValue(found.p), found.interval.count))
    axes = [axis.replace("_", " ") for axis in places[0]] if places else []
    return Table(
        f"{experiment}_differences",
        f"Differences to {REFERENCE}",
        (*axes, "attention", _difference_label(metric), "p", "pairs"),
        tuple(rows),
        "Paired by seed; p of the two-sided paired t test, not corrected for the number of rows: exploratory.",
    )


def _primary(findings: Findings) -> Table:
    found = [(comparison, findings.compared(comparison)) for comparison in findings.comparisons.primary]
    corrected = holm([math.nan if difference is None else difference.p for _, difference in found])
    rows: list[tuple[Value, ...]] = []
    for (comparison, difference), p in zip(found, corrected, strict=True):
        if difference is None:
            rows.append((comparison.name, "no results yet", "", "", "", "", ""))
            continue
        metric = findings.metric(comparison.experiment)
        shown = _difference(difference.interval, metric)
        verdict = "undecided" if math.isnan(p) else "different" if p < _LEVEL else "not distinguishable"
        count = difference.interval.count
        rows.append((comparison.name, shown, metric.unit, PValue(difference.p), PValue(p), count, verdict))
    return Table(
        "primary",
        "Primary comparisons",
        ("comparison", "difference", "unit", "p", "p (Holm)", "pairs", "verdict"),
        tuple(rows),
        "Fixed before the runs. Paired by seed, two-sided paired t test, p corrected by Holm for the number of rows. "
        "Differences of accuracy in points, of perplexity in percent (of log perplexity in the test).",
    )


def _equivalences(findings: Findings) -> Table:
    rows: list[tuple[Value, ...]] = []
    for comparison in findings.comparisons.equivalences:
        found, metric = findings.equivalent(comparison), findings.metric(comparison.experiment)
        margin = f"{comparison.margin:g}"
        if found is None:
            rows.append((comparison.name, "no results yet", margin, metric.unit, "", "", ""))
            continue
        shown = _difference(found.interval, metric)
        p = max(found.p_low, found.p_high)
        rows.append((comparison.name, shown, margin, metric.unit, PValue(p), found.interval.count, found.verdict))
    return Table(
        "equivalences",
        "Equivalence",
        ("comparison", "difference, 90 % interval", "margin", "unit", "p", "pairs", "verdict"),
        tuple(rows),
        "Two one-sided paired t tests; p is the larger one, and below 0.05 the difference is inside the margin.",
    )


def _trends(findings: Findings) -> Table:
    rows: list[tuple[Value, ...]] = []
    for comparison in findings.comparisons.trends:
        found, metric = findings.grown(comparison), findings.metric(comparison.experiment)
        name = f"{comparison.name}, along {str(comparison.axis).replace('_', ' ')}"
        if found is None:
            rows.append((name, "no results yet", "", "", ""))
            continue
        places, slope = found
        name, interval = f"{name} {', '.join(places)}", slope.interval
        shown = _quantity(interval, metric.show_difference, metric.digits + 1, signed=True)
        rows.append((name, shown, metric.unit, PValue(slope.p), interval.count))
    return Table(
        "trends",
        "Trends",
        ("difference", "slope", "unit", "p", "seeds"),
        tuple(rows),
        "Mean over seeds of the slope, per unit of the axis, of a line through the differences of each seed that "
        "has them at all values named, with a two-sided t test.",
    )


def _difference(interval: Interval, metric: Metric) -> Quantity:
    return _quantity(interval, metric.show_difference, metric.digits, signed=True)


def _difference_label(metric: Metric) -> str:
    return f"difference ({metric.unit})" if metric.unit != "%" else f"difference of {metric.label} (%)"


def _quantity(interval: Interval, show: Callable[[float], float], digits: int, signed: bool = False) -> Quantity:
    finite = math.isfinite(interval.low)
    low, high = (show(end) if finite else end for end in (interval.low, interval.high))
    return Quantity(show(interval.mean), low, high, digits, signed)


def place_name(place: Cell) -> str:
    """Return the values of axes in words; nothing where there are no axes."""
    return ", ".join(f"{axis.replace('_', ' ')} {value}" for axis, value in place.items())
