"""Jobs of IBM's machines: many circuits of qiskit.remote in one job of the sampler."""

from collections.abc import Generator, Sequence
from contextlib import closing, nullcontext
from typing import Any

import pennylane as qml
from pennylane.tape import QuantumScript

from devices.jobs import JobFailed
from devices.messages import one_line

_CIRCUITS_PER_JOB = 300


class IBMProvider:
    """Sends circuits of qiskit.remote as jobs of SamplerV2; several jobs of a call in one Batch.

    Everything is estimated from samples in the Z basis, also the expectation values for which the plugin would take
    EstimatorV2. Options of the plugin's constructor go to the transpiler and to the sampler, and a session is used.

    Args:
        device: of the plugin.
    """

    def __init__(self, device: qml.devices.Device) -> None:
        self._device = device

    @property
    def circuits_per_job(self) -> int:
        """The machine's own limit where it states one, and never more than a few hundred, which bounds a job's size."""
        return min(self._device.backend.max_circuits or _CIRCUITS_PER_JOB, _CIRCUITS_PER_JOB)

    def start(self, groups: Sequence[Sequence[QuantumScript]]) -> Generator["IBMJob", None, None]:
        """Transpile and send each group as one job."""
        from pennylane_qiskit.converter import circuit_to_qiskit
        from qiskit_ibm_runtime import Batch, SamplerV2

        device = self._device
        mode = device.session or device.backend
        together = nullcontext(mode) if device.session or len(groups) == 1 else closing(Batch(backend=device.backend))
        with together as mode:
            sampler = SamplerV2(mode=mode)
            sampler.options.update(**device._kwargs)
            for group in groups:
                circuits = device.compile_circuits([circuit_to_qiskit(each, device.num_wires) for each in group])
                pubs = [(circuit, None, each.shots.total_shots) for circuit, each in zip(circuits, group, strict=True)]
                yield IBMJob(sampler.run(pubs), group, device.wires)


class IBMJob:
    """A job of the sampler.

    Args:
        job: of Qiskit.
        circuits: one for each of its results.
        wires: all wires of the device, which are measured in this order.
    """

    def __init__(self, job: Any, circuits: Sequence[QuantumScript], wires: qml.wires.Wires) -> None:
        self._job = job
        self._circuits = circuits
        self._wires = wires

    @property
    def job_id(self) -> str:
        """IBM's name for the job."""
        return self._job.job_id()

    def results(self) -> list[tuple[Any, ...]]:
        """Wait for the job, and return the estimates of each circuit's measurements."""
        try:
            found = self._job.result()
        except Exception as error:
            if self._job.in_final_state() and not self._job.done():
                raise JobFailed(one_line(error)) from error
            raise
        return [self._estimates(circuit, pub) for circuit, pub in zip(self._circuits, found, strict=False)]

    def _estimates(self, circuit: QuantumScript, pub: Any) -> tuple[Any, ...]:
        """Return the estimate of each measurement from the bits of one circuit, wire 0 first."""
        (bits,) = pub.data.values()
        samples = bits.to_bool_array(order="little").astype(int)
        return tuple(measured.process_samples(samples, wire_order=self._wires) for measured in circuit.measurements)
