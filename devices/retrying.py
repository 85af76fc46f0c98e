"""A remote device whose jobs are started together, and started again where they fail."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pennylane as qml
from pennylane.devices import ExecutionConfig
from pennylane.devices.modifiers import single_tape_support
from pennylane.tape import QuantumScript
from pennylane.transforms.core import CompilePipeline

from devices.circuit_keys import circuit_keys
from devices.jobs import Job, JobFailed, Provider
from devices.messages import one_line
from devices.permanent_errors import is_permanent

_log = logging.getLogger(__name__)

Key = tuple[bytes, int]

_TROUBLES_SAID = 3


@dataclass(frozen=True, eq=False)
class _Running:
    """A job that was started, and the keys of its circuits."""

    job: Job
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class _Trouble:
    """Why circuits have no result yet."""

    reason: str
    cause: BaseException | None = None
    job_id: str | None = None

    def __str__(self) -> str:
        return f"job {self.job_id}: {self.reason}" if self.job_id else f"no job started: {self.reason}"


@single_tape_support
class RetryingDevice(qml.devices.Device):
    """A remote device that runs all circuits of a call side by side in jobs, and pays for none of them twice.

    All jobs of a call are started before any is waited for. The circuits of a job that failed are sent again; where the
    connection was lost, the same job is asked again; of a job that lost some results, only these circuits are sent
    again. Results that arrived and jobs that still run are kept: after an error or an interruption from the keyboard,
    the same call takes them and starts only what is missing. A call that succeeded keeps nothing, and the next one
    samples anew.

    An active qml.Tracker counts the circuits of every job that was started: batches, executions, shots and job_id.
    Retries are logged as warnings, started jobs as information. Everything else is the device's own, except
    derivatives, which a remote device has none of.

    Args:
        device: what checks, decomposes and describes circuits.
        provider: sends them.
        retries: how many in a row may bring no new result before the call fails.
        first_wait: seconds before the first retry; the wait doubles with each one in a row.
        circuits_per_job: how many circuits a job holds at most; None for as many as the provider takes.
        sleep: waits for some seconds.

    Raises:
        ValueError: if a setting is not one of these.

    Errors that would come again, such as that a circuit is refused or credentials are missing, are raised at once.
    """

    def __init__(
        self,
        device: qml.devices.Device,
        provider: Provider,
        retries: int = 4,
        first_wait: float = 1.0,
        circuits_per_job: int | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        _check_settings(retries, first_wait, circuits_per_job)
        self._device = device
        super().__init__(wires=device.wires)
        self.retries = retries
        self.first_wait = first_wait
        self.circuits_per_job = circuits_per_job
        self._provider = provider
        self._sleep = sleep
        self._running: list[_Running] = []
        self._arrived: dict[Key, Any] = {}

    @property
    def name(self) -> str:
        """PennyLane's short name of the device, where it has one."""
        return getattr(self._device, "short_name", self._device.name)

    @property
    def shots(self) -> qml.measurements.Shots:
        """The device's number of shots, for circuits that name none."""
        return self._device.shots

    def __getattr__(self, key: str) -> Any:
        if key == "_device":
            raise AttributeError(key)
        return getattr(self._device, key)

    def preprocess_transforms(self, execution_config: ExecutionConfig | None = None) -> CompilePipeline:
        """Return the device's transforms."""
        return self._device.preprocess_transforms(execution_config)

    def setup_execution_config(
        self, config: ExecutionConfig | None = None, circuit: QuantumScript | None = None
    ) -> ExecutionConfig:
        """Return the device's configuration."""
        return self._device.setup_execution_config(config, circuit)

    def supports_derivatives(
        self, execution_config: ExecutionConfig | None = None, circuit: QuantumScript | None = None
    ) -> bool:
        """Return False: jobs bring no derivatives."""
        return False

    def execute(self, circuits: Sequence[QuantumScript], execution_config: ExecutionConfig | None = None) -> Any:
        """Return the result of each circuit.

        Raises:
            RuntimeError: if circuits have no result after all retries, or a job would fail again; it names the jobs.

        Cost: waits for the provider.
        """
        keys = circuit_keys(circuits)
        wanted = dict(zip(keys, circuits, strict=True))
        in_vain, ids = -1, dict[str, None]()
        while missing := self._missing(wanted):
            troubles = [*self._start(missing, wanted), *self._collect(wanted)]
            ids.update((trouble.job_id, None) for trouble in troubles if trouble.job_id)
            left = self._missing(wanted)
            if not left:
                break
            in_vain = in_vain + 1 if len(left) == len(missing) else 0
            if in_vain >= self.retries:
                raise RuntimeError(self._given_up(len(left), len(wanted), ids, troubles)) from troubles[-1].cause
            wait = self.first_wait * 2**in_vain
            _log.warning(
                "%d of %d circuits have no result from %s yet (%s): next try in %g s.",
                len(left),
                len(wanted),
                self.name,
                _in_short(troubles),
                wait,
            )
            self._sleep(wait)
        return tuple(self._arrived.pop(key) for key in keys)

    def _missing(self, wanted: dict[Key, QuantumScript]) -> list[Key]:
        return [key for key in wanted if key not in self._arrived]

    def _start(self, missing: list[Key], wanted: dict[Key, QuantumScript]) -> list[_Trouble]:
        """Start jobs for the circuits that no job is running for; stop at the first one that does not start."""
        running = {key for each in self._running for key in each.keys}
        groups = self._groups([key for key in missing if key not in running], wanted)
        if not groups:
            return []
        try:
            with closing(self._provider.start([[wanted[key] for key in group] for group in groups])) as jobs:
                for group, job in zip(groups, jobs, strict=True):
                    self._running.append(_Running(job, group))
                    self._record(job, [wanted[key] for key in group])
        except Exception as error:
            if is_permanent(error):
                if self._running:
                    ids = ", ".join(each.job.job_id for each in self._running)
                    error.add_note(f"Jobs on {self.name} that still run: {ids}.")
                raise
            return [_Trouble(one_line(error), error)]
        return []

    def _groups(self, keys: list[Key], wanted: dict[Key, QuantumScript]) -> list[tuple[Key, ...]]:
        """Return the keys in groups of equal shots that fit into a job."""
        by_shots: dict[Any, list[Key]] = {}
        for key in keys:
            by_shots.setdefault(wanted[key].shots, []).append(key)
        limits = [limit for limit in (self.circuits_per_job, self._provider.circuits_per_job) if limit is not None]
        size = min([*limits, len(keys)])
        return [
            tuple(alike[first : first + size]) for alike in by_shots.values() for first in range(0, len(alike), size)
        ]

    def _record(self, job: Job, circuits: list[QuantumScript]) -> None:
        _log.info("Job %s with %d circuits started on %s.", job.job_id, len(circuits), self.name)
        if self.tracker.active:
            shots = sum(circuit.shots.total_shots or 0 for circuit in circuits)
            self.tracker.update(batches=1, executions=len(circuits), shots=shots, job_id=job.job_id)
            self.tracker.record()

    def _collect(self, wanted: dict[Key, QuantumScript]) -> list[_Trouble]:
        """Wait for the jobs that run wanted circuits, keep what they bring, and return what went wrong.

        Where a job gives no answer, the others are not asked in vain, and come first the next time.
        """
        troubles = []
        for running in [each for each in self._running if not wanted.keys().isdisjoint(each.keys)]:
            number, job_id = len(running.keys), running.job.job_id
            try:
                results = running.job.results()
            except Exception as error:
                self._running.remove(running)
                failed = isinstance(error, JobFailed)
                if not failed:
                    self._running.append(running)
                if failed and is_permanent(error):
                    raise RuntimeError(
                        f"The job {job_id} of {number} circuits on {self.name} failed ({one_line(error)}) and would "
                        "fail again: change the circuits, or the options or credentials of the device."
                    ) from error
                if is_permanent(error):
                    error.add_note(f"This came while the job {job_id} of {number} circuits on {self.name} was asked.")
                    raise
                troubles.append(_Trouble(one_line(error), error, job_id))
                if failed:
                    continue
                break
            self._running.remove(running)
            if len(results) != number:
                reason = f"{len(results)} results came for {number} circuits, and nothing says for which"
                troubles.append(_Trouble(reason, None, job_id))
                continue
            found = {key: result for key, result in zip(running.keys, results, strict=True) if result is not None}
            self._arrived.update(found)
            if len(found) < number:
                troubles.append(_Trouble(f"{number - len(found)} of {number} results were lost", None, job_id))
        return troubles

    def _given_up(self, left: int, number: int, ids: dict[str, None], troubles: list[_Trouble]) -> str:
        jobs = f" of the jobs {', '.join(ids)}" if ids else ""
        return (
            f"{left} of {number} circuits on {self.name} have no result after {self.retries} retries in a row"
            f"{jobs} ({troubles[-1]}): run the same call again, which takes the results that arrived and the jobs that "
            "still run, and starts only what is missing."
        )


def _in_short(troubles: list[_Trouble]) -> str:
    said = "; ".join(map(str, troubles[:_TROUBLES_SAID]))
    return said if len(troubles) <= _TROUBLES_SAID else f"{said}; and {len(troubles) - _TROUBLES_SAID} more"


def _check_settings(retries: int, first_wait: float, circuits_per_job: int | None) -> None:
    if type(retries) is not int or retries < 0:
        raise ValueError(f"retries={retries!r} was given: take a whole number of 0 or more.")
    if isinstance(first_wait, bool) or not isinstance(first_wait, int | float) or not 0 <= first_wait < float("inf"):
        raise ValueError(f"first_wait={first_wait!r} was given: take a number of seconds, 0 or more.")
    if circuits_per_job is not None and (type(circuits_per_job) is not int or circuits_per_job < 1):
        raise ValueError(
            f"circuits_per_job={circuits_per_job!r} was given: take a whole number of 1 or more, or None for as many "
            "as the provider takes."
        )
