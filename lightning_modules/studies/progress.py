"""Lines about the progress of a study, with the time left."""

import statistics
from collections.abc import Sequence

from lightning_modules.studies.plan import PlannedRun

_MINUTE, _HOUR = 60, 3600


class Progress:
    """Counts runs and estimates the time left from what runs of the same settings took.

    Args:
        total: number of runs of the study.
        waiting: the runs that are left.
        workers: how many run at once.
    """

    def __init__(self, total: int, waiting: Sequence[PlannedRun], workers: int) -> None:
        self._total = total
        self._waiting = list(waiting)
        self._workers = max(workers, 1)
        self._seconds: dict[tuple[str, ...], list[float]] = {}

    def took(self, run: PlannedRun, seconds: float) -> None:
        """Take note of the time of a finished run."""
        for key in _keys(run):
            self._seconds.setdefault(key, []).append(seconds)

    def ended(self, run: PlannedRun) -> None:
        """Take a run off those that are left."""
        self._waiting.remove(run)

    def line(self, run: PlannedRun, outcome: str) -> str:
        """Return the line about a run that has ended."""
        done, width = self._total - len(self._waiting), len(str(self._total))
        return f"[{done:{width}}/{self._total}] {run.name}: {outcome}{self._left()}"

    def _left(self) -> str:
        if not self._waiting or not self._seconds:
            return ""
        seconds = sum(self._expected(run) for run in self._waiting) / min(self._workers, len(self._waiting))
        return f"; about {duration(seconds)} left"

    def _expected(self, run: PlannedRun) -> float:
        """Return the mean time of runs of the same cell, or else of the same experiment, or else of all."""
        return next(statistics.fmean(self._seconds[key]) for key in _keys(run) if key in self._seconds)


def duration(seconds: float) -> str:
    """Return a time in words, such as "3 min"."""
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds // _HOUR:.0f} h {seconds % _HOUR / _MINUTE:.0f} min"


def _keys(run: PlannedRun) -> list[tuple[str, ...]]:
    return [(run.experiment, *run.cell.values()), (run.experiment,), ()]
