"""The trials of a tuning search by their validation loss, and which is the best of each kind of attention."""

import math
from itertools import groupby

from lightning_modules.studies.findings import Cell, Findings
from lightning_modules.studies.plan import ATTENTION
from lightning_modules.studies.seed_statistics import Interval, mean_interval
from lightning_modules.studies.tables import Quantity, Table, Value

_LOSS = "loss"


def search_table(findings: Findings, experiment: str) -> Table:
    """Return one row for every trial of an experiment that is a search, and no rows of another.

    A trial is a choice of values of the axes that the experiment searches. It is judged by the mean over seeds of the
    lowest validation loss of each run, in nats.
    """
    described = findings.experiments[experiment]
    fixed = [axis for axis in described.axes if axis not in (*described.search, ATTENTION)]
    trials = (
        sorted(_trials(findings, experiment), key=lambda trial: _place(trial[0], fixed)) if described.search else []
    )
    rows: list[tuple[Value, ...]] = []
    for _, group in groupby(trials, key=lambda trial: _place(trial[0], fixed)):
        tried = list(group)
        most = max(interval.count for _, interval in tried)
        known = [each.mean for _, each in tried if each.count == most and math.isfinite(each.mean)]
        lowest = min(known, default=None)
        for cell, interval in tried:
            shown = Quantity(interval.mean, interval.low, interval.high, 4)
            values = [cell[axis] for axis in (*fixed, ATTENTION, *described.search)]
            rows.append(
                (*values, interval.count, shown, "lowest" if interval.count == most and interval.mean == lowest else "")
            )
    axes = [axis.replace("_", " ") for axis in (*fixed, ATTENTION, *described.search)]
    return Table(
        f"{experiment}_search",
        "Search",
        (*axes, "seeds", "validation loss (nats)", ""),
        tuple(rows),
        "Mean over seeds of the lowest validation loss of a run; the test split plays no part. Trials "
        "with fewer seeds than others beside them are not ranked.",
    )


def _trials(findings: Findings, experiment: str) -> list[tuple[Cell, Interval]]:
    found = []
    for place in findings.places(experiment):
        for kind in findings.variants(experiment, place):
            cell = {**place, ATTENTION: kind}
            curves = [result.curve(_LOSS) for result in findings.of(experiment, cell).values()]
            lowest = [min(loss for _, loss in curve) for curve in curves if curve]
            if lowest:
                found.append((cell, mean_interval(lowest)))
    return found


def _place(cell: Cell, fixed: list[str]) -> tuple[str, ...]:
    return tuple(cell[axis] for axis in (*fixed, ATTENTION))
