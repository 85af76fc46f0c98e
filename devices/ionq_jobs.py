"""Jobs of IonQ: all circuits of a group in one job."""

import time
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any

import pennylane as qml
from pennylane.tape import QuantumScript

from devices.interception import read_by, sent_by
from devices.jobs import JobFailed

_SUBMIT = "_submit_job"
_ENDED = ("FAILED", "CANCELED", "CANCELLED")
_SECONDS_BETWEEN_LOOKS = 0.5


class IonQProvider:
    """Sends circuits of ionq.simulator or ionq.qpu as jobs of IonQ's API, which hold any number of circuits.

    The plugin's own execution translates circuits and results.

    Args:
        device: of the plugin.
    """

    circuits_per_job = None

    def __init__(self, device: qml.devices.Device) -> None:
        self._device = device

    def start(self, groups: Sequence[Sequence[QuantumScript]]) -> Generator["IonQJob", None, None]:
        """Create a job for each group."""
        for group in groups:
            execute = partial(self._device.execute, group)
            job = sent_by(execute, self._device.target_device, _SUBMIT, self._create)
            yield IonQJob(job, group, self._device)

    def _create(self) -> Any:
        from pennylane_ionq.api_client import Job

        plugin = self._device.target_device
        job = Job(
            api_key=plugin.api_key,
            timeout=plugin.timeout,
            max_retries=plugin.max_retries,
            retry_delay=plugin.retry_delay,
        )
        job.manager.create(**plugin.job)
        return job


class IonQJob:
    """A job of IonQ's API.

    Args:
        job: of the plugin's client.
        circuits: what it runs.
        device: of the plugin.
    """

    def __init__(self, job: Any, circuits: Sequence[QuantumScript], device: qml.devices.Device) -> None:
        self._job = job
        self._circuits = circuits
        self._device = device

    @property
    def job_id(self) -> str:
        """IonQ's name for the job."""
        return self._job.id.value

    def results(self) -> Sequence[Any]:
        """Wait for the job, and return the plugin's result for each circuit."""
        plugin = self._device.target_device
        while not self._job.is_complete:
            status = str(self._job.status.value).upper()
            if status in _ENDED:
                raise JobFailed(status)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
            self._job.reload()
        self._job.manager.get(
            resource_id=self._job.id.value, params={} if plugin.sharpen is None else {"sharpen": plugin.sharpen}
        )
        histograms = self._histograms()
        if len(histograms) != len(self._circuits):
            raise JobFailed(f"{len(histograms)} histograms came for {len(self._circuits)} circuits")

        def answer() -> None:
            plugin.histograms = histograms

        return read_by(partial(self._device.execute, self._circuits), plugin, _SUBMIT, answer)

    def _histograms(self) -> list[dict[str, float]]:
        """Return the probabilities of each circuit: one for each, or alone where there is but one."""
        found = self._job.data.value or {}
        several = any(isinstance(value, dict) for value in found.values())
        return list(found.values()) if several else [found]
