"""Jobs of Amazon Braket: a quantum task for each circuit, or a program set for many."""

from collections.abc import Generator, Sequence
from functools import partial
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
        """Wait for the task, and return the plugin's result for each circuit."""
        if self._task.result() is None:
            state = self._task.state()
            if state in _ENDED:
                reason = self._task.metadata(use_cached_value=True).get("failureReason")
                raise JobFailed(f"{state}, {reason}" if reason else state)
            raise TimeoutError(f"still {state} after the device's poll_timeout_seconds")
        return read_by(partial(self._device.execute, self._circuits), self._device._device, "run", self._task_again)

    def _task_again(self, *args: Any, **kwargs: Any) -> Any:
        return self._task
