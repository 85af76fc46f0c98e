"""How the jobs of each provider hold circuits, and what a failure costs, on stand-ins that need no credentials."""

import copy
from types import SimpleNamespace

import numpy as np
import pennylane as qml
import pytest
import torch
from trotter_oracle import trotter_state

from devices import DQA, make_device
from hybrid_attention import DQALayer, LinearSchedule

pytestmark = pytest.mark.plugins

SHOTS = 4000
ANGLES = np.array([[0.3, 0.3, 0.35], [0.2, 0.4, 0.3]])
FIELDS = np.array([[0.2, 0.7, -0.4], [0.6, -0.3, 0.1], [-0.5, 0.4, 0.3], [0.2, 0.2, 0.9]])
COUPLINGS = np.array([0.4, -0.2, 0.3])
QUICK = {"first_wait": 0}


def need(name):
    if name not in qml.plugin_devices:
        pytest.skip(f"pip install the extra of {name}")


def quench(fields, shots=SHOTS, measure_z=False):
    """A circuit on the first wires, and on fewer than the device has where there are fewer fields."""
    wires = range(len(fields))
    pairs = COUPLINGS if len(fields) == 3 else COUPLINGS[: len(fields) - 1]
    measured = [qml.expval(qml.Z(wire)) for wire in wires] if measure_z else [qml.probs(wires=wires)]
    return qml.tape.QuantumScript([DQA(fields, pairs, ANGLES, wires=wires)], measured, shots=shots)


def exact(fields):
    """Probabilities from matrix exponentials, wire 0 the leftmost bit."""
    pairs = COUPLINGS if len(fields) == 3 else COUPLINGS[: len(fields) - 1]
    return abs(trotter_state(fields, pairs, ANGLES)) ** 2


def run(device, circuits):
    return qml.execute(circuits, device, diff_method=None)


def assert_close(found, expected, shots=SHOTS):
    for ours, theirs in zip(found, expected, strict=True):
        assert (abs(np.asarray(ours) - theirs) <= 5 * np.sqrt(theirs * (1 - theirs) / shots)).all()


ROWS = [*FIELDS, FIELDS[0, :2], FIELDS[1, :1]]


def test_the_rows_tell_circuits_and_wires_apart():
    """So that results in a wrong order, or of reversed wires, are beyond the tolerance."""
    all_exact = [exact(row) for row in ROWS[:4]]
    for n, p in enumerate(all_exact):
        for other in (*all_exact[:n], *all_exact[n + 1 :], p.reshape(2, 2, 2).T.ravel()):
            assert (abs(other - p) > 5 * np.sqrt(p * (1 - p) / SHOTS)).any()


@pytest.fixture
def sampler(monkeypatch):
    """The jobs that SamplerV2 started, and what happens to the next ones."""
    need("qiskit.remote")
    import qiskit_ibm_runtime

    seen = SimpleNamespace(pubs=[], modes=[], batches=[], closed=[], troubles=[])
    run_pubs, make_batch, close = (
        qiskit_ibm_runtime.SamplerV2.run,
        qiskit_ibm_runtime.Batch.__init__,
        qiskit_ibm_runtime.Batch.close,
    )

    def run_recorded(self, pubs, **kwargs):
        trouble = seen.troubles.pop(0) if seen.troubles else None
        if trouble == "refused":
            raise ConnectionError("the line is down")
        seen.pubs.append(len(pubs))
        seen.modes.append(self.mode)
        job = run_pubs(self, pubs, **kwargs)
        return job if trouble is None else Troubled(job, trouble)

    def make_recorded(self, *args, **kwargs):
        make_batch(self, *args, **kwargs)
        seen.batches.append(self)

    def close_recorded(self):
        close(self)
        seen.closed.append(self)

    monkeypatch.setattr(qiskit_ibm_runtime.SamplerV2, "run", run_recorded)
    monkeypatch.setattr(qiskit_ibm_runtime.Batch, "__init__", make_recorded)
    monkeypatch.setattr(qiskit_ibm_runtime.Batch, "close", close_recorded)
    return seen


class Troubled:
    """A job of Qiskit that failed, or whose answer is lost once."""

    def __init__(self, job, trouble):
        self.job, self.trouble = job, trouble

    def __getattr__(self, name):
        return getattr(self.job, name)

    def result(self):
        if self.trouble == "failed":
            raise RuntimeError("the fridge is warm")
        if self.trouble == "unreachable":
            self.trouble = None
            raise ConnectionError("the line is down")
        return self.job.result()

    def in_final_state(self):
        return True

    def done(self):
        return self.trouble != "failed"


def noiseless(wires=3, **options):
    from qiskit_aer import AerSimulator

    return make_device("qiskit.remote", wires, backend=AerSimulator(seed_simulator=5), **QUICK, **options)


def test_qiskit_remote_runs_all_circuits_in_one_job(sampler):
    assert_close(run(noiseless(), [quench(row) for row in ROWS]), [exact(row) for row in ROWS])
    assert sampler.pubs == [6]
    assert not sampler.batches


def test_qiskit_remote_estimates_z_from_samples_in_wire_order(sampler):
    found = run(noiseless(), [quench(row, measure_z=True) for row in FIELDS])
    for row, estimates in zip(FIELDS, found, strict=True):
        p = exact(row).reshape(2, 2, 2)
        up = [p[0].sum(), p[:, 0].sum(), p[:, :, 0].sum()]
        assert_close([(1 + np.array(estimates)) / 2], [np.array(up)])
    assert sampler.pubs == [4]


def test_several_jobs_of_qiskit_remote_are_one_batch(sampler):
    assert_close(run(noiseless(circuits_per_job=2), [quench(row) for row in FIELDS]), [exact(row) for row in FIELDS])
    assert sampler.pubs == [2, 2]
    assert len(sampler.batches) == 1
    assert sampler.closed == sampler.batches
    assert sampler.modes == sampler.batches * 2


def test_a_session_of_qiskit_remote_is_used(sampler):
    from qiskit_ibm_runtime import Session

    device = noiseless(circuits_per_job=2)
    device.update_session(Session(backend=device.backend))
    run(device, [quench(row) for row in FIELDS])
    assert sampler.modes == [device.session] * 2
    assert not sampler.batches


def test_failed_jobs_of_qiskit_remote_run_again_and_others_are_asked_again(sampler):
    sampler.troubles = ["refused", "failed", "unreachable", None]
    found = run(noiseless(circuits_per_job=2), [quench(row) for row in FIELDS])
    assert_close(found, [exact(row) for row in FIELDS])
    assert sampler.pubs == [2, 2, 2]


def test_job_ids_of_qiskit_remote_are_named(sampler):
    sampler.troubles = ["failed"] * 2
    with pytest.raises(
        RuntimeError, match=r"jobs [0-9a-f-]{36}, [0-9a-f-]{36} \(job [0-9a-f-]{36}: the fridge is warm\)"
    ):
        run(noiseless(retries=1), [quench(FIELDS[0])])


def test_one_job_has_the_noise_and_the_numbers_of_one_job_a_circuit(sampler):
    device = make_device("qiskit.remote", 3, backend="FakeManilaV2", seed_transpiler=7, optimization_level=1)
    circuits, _ = device.preprocess()[0]([quench(row) for row in FIELDS])
    together, apart = device.execute(circuits), device._device.execute(circuits)
    ours, theirs, clean = (np.array(found) for found in (together, apart, [[exact(row)] for row in FIELDS]))
    spread = np.sqrt((theirs * (1 - theirs) + 1 / SHOTS) / SHOTS)
    assert (abs(ours - theirs) <= 5 * np.sqrt(2) * spread).all()
    assert (abs(ours - clean) > 5 * spread).any()
    assert sampler.pubs == [4, 1, 1, 1, 1]


def test_a_layer_on_qiskit_remote_takes_one_job_a_call(sampler):
    layer = DQALayer(
        3,
        device="qiskit.remote",
        device_options={"backend": "FakeManilaV2", "seed_transpiler": 7},
        schedule=LinearSchedule(2, 2.0),
        shots=SHOTS,
    )
    layer(torch.tensor(FIELDS).unsqueeze(1)).sum().backward()
    assert sampler.pubs == [4]


class Aws:
    """Stands in for braket.aws.AwsSession: tasks run on Braket's local simulator, or meet the troubles listed.

    "refused": the connection is lost before the task is created; "unreachable": after that, once; "FAILED"; a list of
    places: these circuits of a program set fail, which then has results and the state FAILED.
    """

    region = "us-east-1"

    def __init__(self, program_sets):
        from braket.device_schema import DeviceActionType
        from braket.devices import LocalSimulator

        self.simulator = LocalSimulator()
        self.properties = copy.deepcopy(self.simulator.properties)
        if not program_sets:
            del self.properties.action[DeviceActionType.OPENQASM_PROGRAM_SET]
        self.tasks, self.troubles = [], []

    def add_braket_user_agent(self, user_agent):
        pass

    def default_bucket(self):
        return "bucket"

    def get_device(self, arn):
        capabilities = self.properties.json()
        return {"deviceName": "stand-in", "deviceType": "SIMULATOR", "deviceCapabilities": capabilities}

    def create_quantum_task(self, action, shots, **settings):
        trouble = self.troubles.pop(0) if self.troubles else None
        if trouble == "refused":
            raise ConnectionError("the line is down")
        self.tasks.append(SimpleNamespace(action=action, shots=shots, trouble=trouble))
        return f"arn:aws:braket:{self.region}:1:quantum-task/{len(self.tasks) - 1}"

    def get_quantum_task(self, arn):
        number = arn.rpartition("/")[2]
        task = self.tasks[int(number)]
        if task.trouble == "unreachable":
            task.trouble = None
            raise ConnectionError("the line is down")
        status = "FAILED" if task.trouble else "COMPLETED"
        kind = "program_set" if "program_set" in task.action[:100] else "program"
        return {
            "status": status,
            "failureReason": "the laser is off",
            "actionMetadata": {"actionType": f"braket.ir.openqasm.{kind}"},
            "outputS3Bucket": "bucket",
            "outputS3Directory": number,
        }

    def retrieve_s3_object_body(self, bucket, path):
        from braket.schema_common import BraketSchemaBase
        from braket.task_result import ProgramSetExecutableFailure
        from braket.tasks import GateModelQuantumTaskResult

        task = self.tasks[int(path.partition("/")[0])]
        found = self.simulator._delegate.run(BraketSchemaBase.parse_raw_schema(task.action), shots=task.shots)
        for place in task.trouble if isinstance(task.trouble, list) else ():
            reason = {"failureReason": "the laser is off", "retryable": True, "category": "DEVICE"}
            failure = ProgramSetExecutableFailure(inputsIndex=0, failureMetadata=reason)
            found.programResults[place].executableResults[0] = failure
        if hasattr(found, "resultTypes"):
            values = GateModelQuantumTaskResult.from_object(found).result_types
            found.resultTypes = [
                {"type": each.type.dict(), "value": np.asarray(each.value).tolist()} for each in values
            ]
        return found.json()


@pytest.fixture(params=[False], ids=["tasks"])
def aws(request):
    need("braket.aws.qubit")
    return Aws(program_sets=request.param)


program_sets = pytest.mark.parametrize("aws", [True], ids=["program sets"], indirect=True)


def braket(aws, **options):
    arn = "arn:aws:braket:::device/quantum-simulator/amazon/stand-in"
    return make_device("braket.aws.qubit", 3, device_arn=arn, aws_session=aws, **QUICK, **options)


@pytest.mark.parametrize("options", [{}, {"parallel": True, "max_parallel": 2}], ids=["plain", "parallel"])
def test_braket_runs_a_task_for_each_circuit(aws, options):
    np.random.seed(11)
    assert_close(run(braket(aws, **options), [quench(row) for row in ROWS]), [exact(row) for row in ROWS])
    assert len(aws.tasks) == 6


def test_braket_runs_again_only_the_tasks_that_failed(aws):
    np.random.seed(12)
    aws.troubles += [None, "refused", "FAILED", "unreachable"]
    assert_close(run(braket(aws), [quench(row) for row in ROWS]), [exact(row) for row in ROWS])
    assert len(aws.tasks) == 7
    assert not aws.troubles


def test_braket_tasks_that_failed_are_named(aws):
    aws.troubles += ["FAILED", None, "FAILED"]
    device = braket(aws, retries=1)
    with pytest.raises(RuntimeError, match=r"task/0, \S*task/2 \(job \S*task/2: FAILED, the laser is off\)"):
        run(device, [quench(row) for row in FIELDS[:2]])
    run(device, [quench(row) for row in FIELDS[:2]])
    assert len(aws.tasks) == 4


def test_a_task_that_takes_too_long_is_asked_again(aws, monkeypatch):
    from braket.aws import AwsQuantumTask

    states = ["RUNNING"] * 3
    look = aws.get_quantum_task
    monkeypatch.setattr(aws, "get_quantum_task", lambda arn: look(arn) | ({"status": states.pop()} if states else {}))
    monkeypatch.setattr(AwsQuantumTask, "queue_position", lambda self: None)
    device = braket(aws, poll_timeout_seconds=0)
    assert_close(run(device, [quench(FIELDS[0])]), [exact(FIELDS[0])])
    assert len(aws.tasks) == 1
    assert not states


@program_sets
def test_braket_runs_program_sets_as_one_task(aws):
    np.random.seed(13)
    aws.troubles += [[0, 1, 2, 3]]
    device = braket(aws)
    assert_close(run(device, [quench(row) for row in FIELDS]), [exact(row) for row in FIELDS])
    assert len(aws.tasks) == 1 + 1
    for row, estimates in zip(FIELDS, run(device, [quench(row, measure_z=True) for row in FIELDS]), strict=True):
        p = exact(row).reshape(2, 2, 2)
        assert_close([(1 + np.array(estimates)) / 2], [np.array([p[0].sum(), p[:, 0].sum(), p[:, :, 0].sum()])])
    assert len(aws.tasks) == 2 + 1
    run(braket(aws, circuits_per_job=3), [quench(row) for row in FIELDS])
    assert len(aws.tasks) == 3 + 2


@program_sets
def test_braket_runs_again_only_what_a_program_set_lost(aws):
    np.random.seed(14)
    aws.troubles += [[0, 2], [1]]
    assert_close(run(braket(aws), [quench(row) for row in FIELDS]), [exact(row) for row in FIELDS])
    assert [task.shots for task in aws.tasks] == [4 * SHOTS, 2 * SHOTS, SHOTS]


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
