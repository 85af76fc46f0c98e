"""Jobs of Amazon Braket: a quantum task for each circuit, or a program set for many."""

from collections.abc import Generator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pennylane as qml
from pennylane.tape import QuantumScript

from devices.interception import read_by, sent_by
from devices.jobs import JobFailed

_ENDED = ("FAILED", "CANCELLED")


class BraketProvider:
    """Sends circuits of braket.aws.qubit as quantum tasks, which run side by side.

    A task holds one circuit, or a program set of several where the machine takes these. The plugin's own execution
    translates circuits and results; its settings `parallel`, `max_parallel` and `max_retries` have no effect.

    Args:
        device: of the plugin.
    """

    def __init__(self, device: qml.devices.Device) -> None:
        self._device = device

    @property
    def circuits_per_job(self) -> int:
        """The machine's limit for program sets, or 1."""
        return self._device._max_program_set_executables or 1

    def start(self, groups: Sequence[Sequence[QuantumScript]]) -> Generator["BraketJob", None, None]:
        """Create a task for each group."""
        self._device._parallel = False
        machine = self._device._device
        for group in groups:
            task = sent_by(partial(self._device.execute, group), machine, "run", machine.run)
            yield BraketJob(task, group, self._device)


class BraketJob:
    """A quantum task.

    Args:
        task: of Braket.
        circuits: what it runs.
        device: of the plugin.
    """

    def __init__(self, task: Any, circuits: Sequence[QuantumScript], device: qml.devices.Device) -> None:
        self._task = task
        self._circuits = circuits
        self._device = device

    @property
    def job_id(self) -> str:
        """The task's Amazon resource name."""
        return self._task.id

    def results(self) -> Sequence[Any]:
        """Wait for the task, and return the plugin's result for each circuit, None where a program set lost it."""
        found = self._task.result()
        if found is None:
            state = self._task.state()
            if state in _ENDED:
                reason = self._task.metadata(use_cached_value=True).get("failureReason")
                raise JobFailed(f"{state}, {reason}" if reason else state)
            raise TimeoutError(f"still {state} after the device's poll_timeout_seconds")
        if not hasattr(found, "entries"):
            return self._read(self._circuits, found)
        kept = [place for place, entry in enumerate(found.entries) if hasattr(entry[0], "measurements")]
        if not kept:
            raise JobFailed(f"all {len(self._circuits)} circuits of the program set failed")
        measured = type(found)([found.entries[place] for place in kept], found.task_metadata, len(kept), None)
        read = dict(zip(kept, self._read([self._circuits[place] for place in kept], measured), strict=True))
        return [read.get(place) for place in range(len(self._circuits))]

    def _read(self, circuits: Sequence[QuantumScript], found: Any) -> Sequence[Any]:
        """Return the plugin's results of circuits, where `found` is that of their task."""

        def answer(*args: Any, **kwargs: Any) -> Any:
            return SimpleNamespace(result=lambda: found)

        return read_by(partial(self._device.execute, circuits), self._device._device, "run", answer)
