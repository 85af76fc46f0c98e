"""Jobs of ionq.simulator and ionq.qpu: all circuits in one job of an API that runs here."""

from types import SimpleNamespace

import numpy as np
import pennylane as qml
import pytest
from quench_rows import FIELDS, QUICK, ROWS, SHOTS, assert_close, exact, need, quench, run

from devices import make_device

pytestmark = pytest.mark.plugins


class Api:
    """Stands in for IonQ's API: jobs run where they are looked at for the second time."""

    def __init__(self):
        self.jobs, self.created, self.troubles = {}, [], []

    def post(self, path, payload):
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble == "refused":
            raise ConnectionError("the line is down")
        job_id = f"job-{len(self.created)}"
        self.created.append(payload)
        self.jobs[job_id] = {"looks": 0, "payload": payload, "trouble": trouble}
        return reply({"id": job_id, "status": "ready"})

    def get(self, path, params=None):
        _, job_id, *rest = path.split("/")
        job = self.jobs[job_id]
        job["looks"] += 1
        if job["trouble"] == "unreachable":
            job["trouble"] = None
            raise ConnectionError("the line is down")
        if job["trouble"] in ("failed", "canceled"):
            return reply({"id": job_id, "status": job["trouble"]})
        if rest:
            circuits = job["payload"]["input"].get("circuits", [job["payload"]["input"]])
            found = [histogram(circuit["circuit"], job["payload"]["input"]["qubits"]) for circuit in circuits]
            return reply({f"child-{n}": each for n, each in enumerate(found)} if len(found) > 1 else found[0])
        results = {"probabilities": {"url": f"{job_id}/results"}}
        return reply({"id": job_id, "status": "completed" if job["looks"] > 1 else "running", "results": results})


def reply(content):
    return SimpleNamespace(status_code=200, json=lambda: content)


def histogram(gates, qubits):
    """The distribution of one circuit as IonQ gives it: qubit 0 the rightmost bit."""
    kinds = {"h": qml.Hadamard, "rx": qml.RX, "rz": qml.RZ, "zz": qml.IsingZZ}
    operations = [
        kinds[each["gate"]](
            *([each["rotation"]] if "rotation" in each else []), each.get("targets", each.get("target"))
        )
        for each in gates
    ]
    p = qml.device("default.qubit").execute(qml.tape.QuantumScript(operations, [qml.probs(wires=range(qubits))]))
    return {str(int(f"{state:0{qubits}b}"[::-1], 2)): float(weight) for state, weight in enumerate(p) if weight > 0}


@pytest.fixture
def api(monkeypatch):
    need("ionq.simulator")
    from pennylane_ionq.api_client import APIClient

    stand_in = Api()
    monkeypatch.setenv("IONQ_API_KEY", "not a key")
    monkeypatch.setattr(APIClient, "post", lambda self, path, payload: stand_in.post(path, payload))
    monkeypatch.setattr(APIClient, "get", lambda self, path, params=None: stand_in.get(path, params))
    monkeypatch.setattr("devices.ionq_jobs._SECONDS_BETWEEN_LOOKS", 0)
    return stand_in


@pytest.mark.parametrize("name", ["ionq.simulator", "ionq.qpu"])
def test_ionq_runs_all_circuits_in_one_job(api, name):
    np.random.seed(14)
    found = run(make_device(name, 3, **QUICK), [quench(row) for row in ROWS])
    assert_close(found, [exact(row) for row in ROWS])
    assert [len(payload["input"]["circuits"]) for payload in api.created] == [6]
    assert api.created[0]["shots"] == SHOTS


def test_ionq_runs_one_circuit_in_a_job_of_its_own(api):
    np.random.seed(15)
    assert_close(run(make_device("ionq.simulator", 3, **QUICK), [quench(FIELDS[0])]), [exact(FIELDS[0])])


def test_circuits_of_different_shots_are_different_jobs_of_ionq(api):
    np.random.seed(16)
    found = run(make_device("ionq.qpu", 3, **QUICK), [quench(FIELDS[0]), quench(FIELDS[1], 50), quench(FIELDS[2])])
    assert [payload["shots"] for payload in api.created] == [SHOTS, 50]
    assert_close([found[0], found[2]], [exact(FIELDS[0]), exact(FIELDS[2])])


def test_failed_jobs_of_ionq_run_again_and_others_are_asked_again(api):
    np.random.seed(17)
    api.troubles += ["refused", "failed", "unreachable", "canceled"]
    device = make_device("ionq.simulator", 3, circuits_per_job=2, **QUICK)
    assert_close(run(device, [quench(row) for row in FIELDS]), [exact(row) for row in FIELDS])
    assert [len(payload["input"]["circuits"]) for payload in api.created] == [2] * 4


def test_jobs_of_ionq_are_named(api):
    api.troubles += ["failed"] * 2
    with pytest.raises(RuntimeError, match=r"jobs job-0, job-1 \(job job-1: FAILED\)"):
        run(make_device("ionq.simulator", 3, retries=1, **QUICK), [quench(FIELDS[0])])
