"""Jobs of braket.aws.qubit: quantum tasks and program sets, which run on Braket's local simulator."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from quench_rows import FIELDS, QUICK, ROWS, SHOTS, assert_close, exact, need, quench, run

from devices import make_device

pytestmark = pytest.mark.plugins


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
