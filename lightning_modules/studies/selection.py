"""Which runs of a study are trained now: those of some experiments, or of some values of their axes."""

from collections.abc import Sequence

from lightning_modules.studies.plan import PlannedRun, Study


def select(plan: Study, only: Sequence[str]) -> list[PlannedRun]:
    """Return the runs of a study that a selection names, in the order of the study.

    Args:
        plan: the study.
        only: "EXPERIMENT", or "EXPERIMENT.axis=value,value"; several axes of one experiment are to match together, and
            several experiments are taken together. All runs where it is empty.

    Raises:
        ValueError: if the study does not have what is named, or no run is left.
    """
    if not only:
        return plan.runs
    wanted: dict[str, dict[str, list[str]]] = {}
    for text in only:
        name, equals, values = text.partition("=")
        experiment, dot, axis = name.partition(".")
        if experiment not in plan.experiments:
            raise ValueError(f"only {text!r} was given: the study has the experiments {', '.join(plan.experiments)}.")
        axes = wanted.setdefault(experiment, {})
        if not dot and not equals:
            continue
        known = plan.experiments[experiment].axes.get(axis, [])
        chosen = values.split(",")
        if not set(chosen) <= set(known):
            allowed = "; ".join(
                f"{axis}={','.join(named)}" for axis, named in plan.experiments[experiment].axes.items()
            )
            raise ValueError(f"only {text!r} was given: {experiment} has the axes and values {allowed}.")
        axes[axis] = [value for value in known if value in chosen or value in axes.get(axis, [])]
    runs = [run for run in plan.runs if run.experiment in wanted and _matches(run, wanted[run.experiment])]
    if not runs:
        raise ValueError(f"only {' '.join(only)} was given: the study has no such runs.")
    return runs


def _matches(run: PlannedRun, axes: dict[str, list[str]]) -> bool:
    return all(run.cell[axis] in values for axis, values in axes.items())
