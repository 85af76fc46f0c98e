"""The subcommand `hybrid-attention study`: all runs of a study, those that are finished once only."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import joblib
from filelock import FileLock, Timeout
from jsonargparse import ArgumentParser

from lightning_modules.studies.execution import execute
from lightning_modules.studies.metrics import METRICS
from lightning_modules.studies.plan import PlannedRun, Study, read_study
from lightning_modules.studies.progress import Progress, duration
from lightning_modules.studies.results import Result, read_result, write_json
from lightning_modules.studies.selection import select
from lightning_modules.studies.training import Command, Training, remove_unfinished
from lightning_modules.studies.versions import versions

STUDY_FILE = "study.json"
_LOCK = ".lock"
_DESCRIPTION = """Train all runs of a study: a grid of tasks, attention, layers, sizes and seeds in a YAML file, whose
form docs/studies.md tells. Each run is `fit` with its test, in a folder of its own. Started again, the study goes on
where it stopped; runs of changed settings are run anew in other folders. Then `hybrid-attention report` shows it."""


def study_command(arguments: Sequence[str], command: Command) -> None:
    """Run `hybrid-attention study` with the arguments that follow it on the command line.

    Args:
        arguments: of the subcommand.
        command: the command line, with which runs are trained.

    Raises:
        ValueError: if an argument or the study is not allowed, another process has the folder, or runs failed.
    """
    parser = ArgumentParser(prog="hybrid-attention study", description=_DESCRIPTION, exit_on_error=False)
    parser.add_argument("study", type=str, help="The YAML file.")
    parser.add_argument("--output", type=str, help="Folder of the study; runs/studies/NAME by default.")
    parser.add_argument("--workers", type=int, help="Processes on this machine; as many as CPUs by default.")
    parser.add_argument("--scheduler", type=str, help="Dask scheduler whose workers train, such as tcp://host:8786.")
    parser.add_argument("--threads", type=int, default=1, help="Threads of each run.")
    parser.add_argument("--seeds", type=int, help="Train the first seeds only, this many.")
    parser.add_argument(
        "--only",
        type=str,
        nargs="+",
        default=[],
        help="Train these runs only: EXPERIMENT, or EXPERIMENT.axis=value,value.",
    )
    parser.add_argument(
        "--set", type=str, nargs="+", default=[], help="Settings such as brackets.trainer.max_steps=100, of all runs."
    )
    given = _gathered(list(arguments), ("--set", "--only"))
    settings = parser.parse_args(given).as_dict()
    run_study(Path(settings.pop("study")), command, **settings)


def _gathered(arguments: list[str], options: Sequence[str]) -> list[str]:
    """Return the arguments with all values of each option, which may stand in several places, after its last one."""
    rest: list[str] = []
    values: dict[str, list[str]] = {}
    here = rest
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in options:
            here = values.setdefault(name, [])
            here += [value] if equals else []
        else:
            here = rest if argument.startswith("--") else here
            here.append(argument)
    return [*rest, *(part for name, found in values.items() for part in (name, *found))]


def run_study(
    study: Path,
    command: Command,
    output: str | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    threads: int = 1,
    seeds: int | None = None,
    only: Sequence[str] = (),
    set: Sequence[str] = (),
) -> None:
    """Train the runs of a study that are not finished, and say how each ends.

    Args:
        study: the YAML file.
        command: as for study_command.
        output: folder of the study.
        workers: processes on this machine.
        scheduler: address of a Dask scheduler, whose workers train instead; they need the folder on a shared file
            system.
        threads: of each run.
        seeds: train the first seeds only.
        only: train these experiments, or these values of their axes, only.
        set: settings EXPERIMENT.key=value that win over those of the file.

    Raises:
        ValueError: as study_command.
    """
    if threads < 1 or (seeds is not None and seeds < 1):
        raise ValueError(f"threads={threads} and seeds={seeds} were given: give 1 or more.")
    plan = read_study(study, set, seeds)
    runs = select(plan, only)
    folder = Path("runs/studies") / study.stem if output is None else Path(output)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / _LOCK, timeout=0):
            write_json(folder / STUDY_FILE, _description(plan, study))
            training = Training(folder, command, threads, plan.keep_checkpoints, versions())
            _run(plan, runs, training, joblib.cpu_count() if workers is None else workers, scheduler)
    except Timeout as error:
        raise ValueError(
            f"Another study runs in {str(folder)!r}: wait for its end, or give another --output."
        ) from error


def _run(plan: Study, runs: list[PlannedRun], training: Training, workers: int, scheduler: str | None) -> None:
    folder = training.folder
    results = {run.folder: read_result(folder / run.folder, run.fingerprint) for run in runs}
    waiting = [run for run in runs if results[run.folder] is None]
    _announce(plan, folder, len(runs) - len(waiting), len(waiting))
    progress = Progress(len(runs), waiting, workers if scheduler is None else len(waiting))
    for run in runs:
        finished = results[run.folder]
        if finished is not None:
            progress.took(run, finished.seconds)
    failed: list[tuple[PlannedRun, str]] = []
    for number, wrong in execute(training, waiting, workers, scheduler):
        run = waiting[number]
        result = read_result(folder / run.folder, run.fingerprint) if wrong is None else None
        if wrong is None and result is None:
            wrong = f"Its worker wrote nothing to {str(folder)!r}: give an --output that all workers share."
        progress.ended(run)
        if result is None:
            failed.append((run, str(wrong)))
            print(progress.line(run, f"failed: {wrong}"), flush=True)
        else:
            progress.took(run, result.seconds)
            print(progress.line(run, _outcome(plan, result)), flush=True)
    if failed:
        print("\n".join(["", "Failed runs:", *(f"  {run.name}: {wrong}" for run, wrong in failed)]))
        raise ValueError(
            f"{len(failed)} of {len(runs)} runs failed; their folders under {str(folder)!r} hold error.txt and "
            "log.txt, and the study can be started again."
        )
    print(f"All {len(runs)} runs are finished. Show them with: hybrid-attention report {folder}")


def _announce(plan: Study, folder: Path, finished: int, waiting: int) -> None:
    """Print what there is to do, and what is in the folder that the study does not use."""
    removed = remove_unfinished(folder)
    planned = {folder / run.folder for run in plan.runs}
    others = sum(path.parent not in planned for path in folder.rglob("result.json"))
    print(f"{plan.title}: {finished + waiting} runs, {finished} finished, {waiting} to do; in {folder}")
    if removed:
        print(f"Removed {removed} unfinished runs that an earlier start left.")
    if others:
        print(f"{others} finished runs have other settings than the study now: they are kept, and not used.")


def _outcome(plan: Study, result: Result) -> str:
    metric = METRICS[plan.experiments[result.content["experiment"]].metric]
    return f"{metric.label} {metric.text(result.metric(metric.name))} in {duration(result.seconds)}"


def _description(plan: Study, file: Path) -> dict[str, Any]:
    """Return what the report needs to know of the study, as plain data."""
    comparisons = {
        kind: [vars(comparison) for comparison in getattr(plan.comparisons, kind)]
        for kind in ("primary", "equivalences", "trends")
    }
    return {
        "title": plan.title,
        "file": str(file),
        "experiments": {name: vars(experiment) for name, experiment in plan.experiments.items()},
        "comparisons": comparisons,
        "runs": [
            {"experiment": run.experiment, "cell": run.cell, "seed": run.seed, "folder": run.folder}
            | {"fingerprint": run.fingerprint}
            for run in plan.runs
        ],
    }
