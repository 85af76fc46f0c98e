"""Independent tasks on this machine's processes or on a Dask cluster, where a process that dies takes nothing along."""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Protocol, TypeAlias, TypeVar

import joblib
from joblib.externals.loky.process_executor import BrokenProcessPool

Task = TypeVar("Task", contravariant=True)
_Numbered: TypeAlias = Callable[[int, Any], tuple[int, str | None]]


class Work(Protocol[Task]):
    """What is done with each task: called with it, it returns what went wrong in one sentence, or None."""

    def __call__(self, task: Task, /) -> str | None:
        """Do a task."""
        ...

    def started(self, task: Task, /) -> bool:
        """Return whether a task has been started and has not ended."""
        ...


def execute(
    work: Work[Task], tasks: Sequence[Task], workers: int, scheduler: str | None = None
) -> Iterator[tuple[int, str | None]]:
    """Yield (number of the task, what went wrong or None) as tasks end.

    When a process dies, the tasks that were started are done again one at a time, so that only the one that kills its
    process fails, and the others go on. When this process dies, those that it started end too: within a second, or once
    they have started; not on Windows, where nothing tells them.

    Args:
        work: what is done with a task; it is pickled, and so are the tasks.
        tasks: in the order in which they are started.
        workers: processes on this machine; a single one is this process.
        scheduler: address of a Dask scheduler, such as tcp://host:8786, whose workers are used instead.

    Raises:
        ValueError: if workers is not positive, there is no Dask, or its scheduler does not answer.
    """
    if workers < 1:
        raise ValueError(f"workers={workers} was given: give 1 or more.")
    if scheduler is None and workers == 1:
        for number, task in enumerate(tasks):
            yield number, work(task)
        return
    waiting = dict(enumerate(tasks))
    do: _Numbered = functools.partial(_numbered, work, os.getpid() if scheduler is None else None)
    with _backend(workers, scheduler) as dead:
        while waiting:
            try:
                for number, wrong in _all(do, waiting):
                    del waiting[number]
                    yield number, wrong
            except dead:
                yield from _one_by_one(do, work.started, waiting, dead)


def _one_by_one(
    do: _Numbered, started: Callable[[Task], bool], waiting: dict[int, Task], dead: Any
) -> Iterator[tuple[int, str | None]]:
    """Do the started tasks, or else the first, one at a time, and take them off the waiting ones."""
    suspects = [number for number, task in waiting.items() if started(task)] or [next(iter(waiting))]
    for number in suspects:
        task = waiting.pop(number)
        try:
            ((_, wrong),) = _all(do, {number: task})
        except dead as error:
            wrong = f"Its process died ({type(error).__name__}): it may have run out of memory."
        yield number, wrong


def _all(do: _Numbered, tasks: dict[int, Task]) -> Iterator[tuple[int, str | None]]:
    parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
    found: Iterator[tuple[int, str | None]] = parallel(joblib.delayed(do)(*item) for item in list(tasks.items()))
    return found


def _numbered(work: Callable[[Any], str | None], parent: int | None, number: int, task: Any) -> tuple[int, str | None]:
    if parent is not None:
        _end_with(parent)
    return number, work(task)


@functools.cache
def _end_with(parent: int) -> None:
    """Let this process end when its parent does, which may have no time to stop it."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _backend(workers: int, scheduler: str | None) -> Iterator[Any]:
    """Choose where joblib's tasks run, and yield the errors that say that a process died."""
    if scheduler is None:
        with joblib.parallel_config("loky", n_jobs=workers):
            yield BrokenProcessPool
        return
    if find_spec("distributed") is None:
        raise ValueError("A scheduler needs Dask, which is not installed: pip install 'hybrid-attention[dask]'.")
    from distributed import Client, KilledWorker

    try:
        client = Client(scheduler, timeout="20s")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The scheduler {scheduler!r} does not answer ({type(error).__name__}): start it with `dask scheduler`, "
            "and give its address, such as tcp://host:8786."
        ) from error
    with client, joblib.parallel_config("dask", n_jobs=-1):
        yield KilledWorker
