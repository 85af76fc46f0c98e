"""A provider of the tests: it fails as it is told to, and keeps the books of what was paid."""

from collections import Counter

import pennylane as qml

from devices.circuit_keys import circuit_keys
from devices.jobs import JobFailed
from devices.retrying import RetryingDevice

REFUSED, UNREACHABLE = "refused", "unreachable"


class Remote:
    """A provider that keeps the books, ends its jobs last come first served, and has troubles, one for each start.

    None: the job runs; "refused": the connection is lost before it starts; "unreachable": after it started, once; an
    exception: the job fails with it; a tuple of positions: their results are lost. A circuit is paid when its result is
    handed over. Its n-th paid sample is the same in every run.
    """

    def __init__(self, *troubles, circuits_per_job=2):
        self.circuits_per_job = circuits_per_job
        self.troubles = list(troubles)
        self.paid = Counter()
        self.started, self.waiting, self.ended = [], [], []

    def start(self, groups):
        for group in groups:
            trouble = self.troubles.pop(0) if self.troubles else None
            if trouble == REFUSED:
                raise ConnectionError("the line is down")
            job = RemoteJob(self, f"job-{len(self.started)}", list(group), trouble)
            self.started.append(job)
            self.waiting.append(job)
            yield job

    def run_waiting_jobs(self):
        while self.waiting:
            job = self.waiting.pop()
            self.ended.append(job.job_id)
            lost = job.trouble if isinstance(job.trouble, tuple) else ()
            if not isinstance(job.trouble, Exception):
                job.found = [None if n in lost else self.sample(circuit) for n, circuit in enumerate(job.circuits)]

    def sample(self, circuit):
        key = circuit_keys([circuit])[0][0]
        self.paid[key] += 1
        seed = int.from_bytes(key[:4]) + self.paid[key]
        return qml.device("default.qubit", wires=circuit.wires, seed=seed).execute(circuit)


class RemoteJob:
    def __init__(self, provider, job_id, circuits, trouble):
        self.provider, self.job_id, self.circuits, self.trouble = provider, job_id, circuits, trouble
        self.found = None

    def results(self):
        self.provider.run_waiting_jobs()
        trouble, self.trouble = self.trouble, None
        if trouble == UNREACHABLE:
            raise ConnectionError("the line is down")
        if self.found is None:
            raise JobFailed("the fridge is warm") from trouble
        return self.found


FAILURE = JobFailed()
TROUBLES = (REFUSED, FAILURE, (1,), UNREACHABLE)


def device_on(provider, waits=None, wires=3, **settings):
    """lightning.qubit takes a circuit for each row, as remote devices do."""
    sleep = (lambda seconds: None) if waits is None else waits.append
    return RetryingDevice(qml.device("lightning.qubit", wires=wires), provider, sleep=sleep, **settings)
