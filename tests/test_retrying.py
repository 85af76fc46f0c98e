"""Remote devices whose jobs fail: what is run again, what is kept, and what is paid."""

import logging
from collections import Counter

import pennylane as qml
import pytest
from mock_remote import FAILURE, REFUSED, TROUBLES, UNREACHABLE, Remote, RemoteJob, device_on

from devices import make_device
from devices.circuit_keys import circuit_keys
from devices.retrying import RetryingDevice

SHOTS = 200


def rotated(*angles, shots=SHOTS):
    return [
        qml.tape.QuantumScript([qml.RX(a, 0), qml.RY(2 * a, 2)], [qml.probs(wires=[0, 2])], shots=shots) for a in angles
    ]


ANGLES = [0.1 * n for n in range(1, 8)]
CIRCUITS = rotated(*ANGLES)


def once(circuits):
    return Counter(key for key, _ in circuit_keys(circuits))


def undisturbed(circuits):
    return device_on(Remote()).execute(circuits)


def assert_equal_results(found, expected):
    assert len(found) == len(expected)
    assert all((ours == theirs).all() for ours, theirs in zip(found, expected, strict=True))


def test_failures_losses_and_disorder_change_no_result_and_pay_nothing_twice():
    provider, waits = Remote(*TROUBLES), []
    found = device_on(provider, waits).execute(CIRCUITS)
    assert_equal_results(found, undisturbed(CIRCUITS))
    assert provider.paid == once(CIRCUITS)
    assert not provider.troubles
    assert provider.ended != sorted(provider.ended)
    exact = [qml.device("default.qubit").execute(circuit) for circuit in rotated(*ANGLES, shots=None)]
    assert all((abs(f - e) <= 5 * (e * (1 - e) / SHOTS) ** 0.5).all() for f, e in zip(found, exact, strict=True))


def test_all_jobs_are_started_before_one_is_waited_for():
    provider = Remote(circuits_per_job=1)
    device_on(provider).execute(CIRCUITS)
    assert provider.ended == [job.job_id for job in reversed(provider.started)]


def test_only_what_is_missing_is_sent_again():
    provider = Remote((0,), FAILURE)
    device_on(provider).execute(CIRCUITS[:5])
    sent = [list(map(CIRCUITS.index, job.circuits)) for job in provider.started]
    assert sent == [[0, 1], [2, 3], [4], [0, 2], [3]]


@pytest.mark.parametrize(
    ("ours", "theirs", "size"), [(None, None, 7), (3, None, 3), (None, 2, 2), (3, 2, 2), (2, 3, 2)]
)
def test_jobs_hold_as_many_circuits_as_both_sides_allow(ours, theirs, size):
    provider = Remote(circuits_per_job=theirs)
    device_on(provider, circuits_per_job=ours).execute(CIRCUITS)
    assert max(len(job.circuits) for job in provider.started) == size
    assert len(provider.started) == -(-7 // size)


def test_circuits_of_different_shots_go_in_different_jobs():
    circuits = [*rotated(0.1, 0.2), *rotated(0.3, shots=50), *rotated(0.4)]
    provider = Remote(circuits_per_job=None)
    found = device_on(provider).execute(circuits)
    assert [[circuit.shots.total_shots for circuit in job.circuits] for job in provider.started] == [[SHOTS] * 3, [50]]
    assert found[2] * 50 == pytest.approx((found[2] * 50).round(), abs=1e-9)
    assert_equal_results(found, undisturbed(circuits))


def test_waits_double_until_something_arrives():
    provider, waits = Remote(REFUSED, REFUSED, REFUSED, None, FAILURE, REFUSED), []
    device_on(provider, waits, first_wait=0.5).execute(CIRCUITS[:4])
    assert waits == [0.5, 1.0, 2.0, 0.5, 1.0]
    assert provider.paid == once(CIRCUITS[:4])


def test_retries_in_vain_name_the_jobs_and_the_same_call_pays_only_for_the_rest():
    provider = Remote(None, FAILURE, *[FAILURE] * 2)
    device = device_on(provider, retries=2)
    with pytest.raises(RuntimeError, match=r"^2 of 4 .* 2 retries .* job-1, job-2, job-3 \(job job-3: the f"):
        device.execute(CIRCUITS[:4])
    assert provider.paid == once(CIRCUITS[:2])
    assert_equal_results(device.execute(CIRCUITS[:4]), undisturbed(CIRCUITS[:4]))
    assert provider.paid == once(CIRCUITS[:4])
    assert len(provider.started) == 5


def test_the_last_cause_is_chained():
    with pytest.raises(RuntimeError, match="no job started: the line is down") as caught:
        device_on(Remote(*[REFUSED] * 2), retries=1).execute(CIRCUITS)
    assert isinstance(caught.value.__cause__, ConnectionError)


def test_a_job_that_runs_on_is_asked_again_and_not_started_again():
    provider = Remote(UNREACHABLE)
    device = device_on(provider, retries=0)
    with pytest.raises(RuntimeError, match=r"jobs job-0 \(job job-0: the line is down\)"):
        device.execute(CIRCUITS[:2])
    assert_equal_results(device.execute(CIRCUITS[:2]), undisturbed(CIRCUITS[:2]))
    assert len(provider.started) == 1
    assert provider.paid == once(CIRCUITS[:2])


def test_a_job_without_an_answer_does_not_keep_others_from_being_asked():
    provider = Remote()
    silent = []

    def answer(job):
        if job.job_id == "job-0":
            silent.append(job)
            raise ConnectionError("the line is down")
        provider.run_waiting_jobs()
        return job.found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteJob, "results", answer)
        with pytest.raises(RuntimeError, match="2 of 7 circuits"):
            device_on(provider, retries=1).execute(CIRCUITS)
    assert len(silent) == 3


def test_an_interruption_keeps_what_arrived_and_what_runs():
    provider = Remote(circuits_per_job=1)
    device = device_on(provider)
    interrupted = []
    results = RemoteJob.results

    def interrupt_once(job):
        if job.job_id == "job-1" and not interrupted:
            interrupted.append(job)
            raise KeyboardInterrupt
        return results(job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteJob, "results", interrupt_once)
        with pytest.raises(KeyboardInterrupt):
            device.execute(CIRCUITS)
    assert_equal_results(device.execute(CIRCUITS), undisturbed(CIRCUITS))
    assert provider.paid == once(CIRCUITS)
    assert len(provider.started) == len(CIRCUITS)


def test_a_job_with_too_few_results_is_run_again_whole():
    """Nothing says which circuits they belong to."""
    provider = Remote()
    results = RemoteJob.results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteJob, "results", lambda job: results(job)[job.job_id == "job-0" :])
        device_on(provider).execute(CIRCUITS)
    assert [job.circuits for job in provider.started[4:]] == [CIRCUITS[:2]]


def test_equal_circuits_of_a_call_are_samples_of_their_own():
    provider = Remote(FAILURE, (0,))
    found = device_on(provider).execute(rotated(*[0.7] * 5))
    assert len({tuple(result) for result in found}) > 1
    assert provider.paid.total() == 5


def test_a_call_that_succeeded_samples_anew():
    provider = Remote()
    device = device_on(provider)
    first, second = device.execute(CIRCUITS), device.execute(CIRCUITS)
    assert any((a != b).any() for a, b in zip(first, second, strict=True))
    assert provider.paid == Counter(dict.fromkeys(once(CIRCUITS), 2))


@pytest.mark.parametrize(
    "error",
    [
        TypeError("x"),
        ValueError("x"),
        KeyError("x"),
        AttributeError("x"),
        NotImplementedError("x"),
        PermissionError("x"),
        qml.exceptions.DeviceError("x"),
        type("NoCredentialsError", (Exception,), {})("x"),
    ],
)
@pytest.mark.parametrize("when", ["at start", "when asked", "at the end"])
def test_errors_that_would_come_again_are_raised_at_once(error, when, monkeypatch):
    provider, waits = Remote(None, error), []
    device = device_on(provider, waits)

    def fail(*args):
        raise error
        yield

    if when == "at start":
        monkeypatch.setattr(provider, "start", fail)
    if when == "when asked":
        monkeypatch.setattr(RemoteJob, "results", lambda job: next(fail()))
    if when != "at the end":
        with pytest.raises(type(error)) as caught:
            device.execute(CIRCUITS)
        if when == "when asked":
            assert "the job job-" in caught.value.__notes__[-1]
    else:
        with pytest.raises(
            RuntimeError, match=r"job job-1 of 2 circuits .* failed \(the fridge is warm\) and would fail"
        ):
            device.execute(CIRCUITS[:4])
        device.execute(CIRCUITS[:4])
        assert provider.paid == once(CIRCUITS[:4])
    assert not waits


def test_a_tracker_counts_what_was_started():
    provider = Remote(*TROUBLES)
    device = device_on(provider)
    with qml.Tracker(device) as tracker:
        device.execute(CIRCUITS)
    started = sum(len(job.circuits) for job in provider.started)
    assert tracker.totals == {"batches": len(provider.started), "executions": started, "shots": SHOTS * started}
    assert tracker.history["job_id"] == [job.job_id for job in provider.started]
    assert started > len(CIRCUITS)


def test_retries_are_warned_of_and_started_jobs_told(caplog):
    caplog.set_level(logging.INFO, "devices")
    device_on(Remote(FAILURE)).execute(CIRCUITS[:2])
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "Job job-0 with 2 circuits started on lightning.qubit."),
        (
            "WARNING",
            "2 of 2 circuits have no result from lightning.qubit yet (job job-0: the fridge is warm): next try in 1 s.",
        ),
        ("INFO", "Job job-1 with 2 circuits started on lightning.qubit."),
    ]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"retries": -1}, "retries=-1 was given: take a whole number of 0 or more"),
        ({"retries": 2.0}, r"retries=2\.0 was given"),
        ({"first_wait": -1}, "first_wait=-1 was given: take a number of seconds"),
        ({"first_wait": float("inf")}, "first_wait=inf was given"),
        ({"circuits_per_job": 0}, "circuits_per_job=0 was given: take a whole number of 1 or more"),
    ],
)
def test_wrong_settings_are_errors(setting, words):
    with pytest.raises(ValueError, match=words):
        device_on(Remote(), **setting)


def test_settings_are_for_remote_devices():
    with pytest.raises(ValueError, match=r"'lightning\.qubit' was given retries=2: only qiskit\.remote, braket\.aws"):
        make_device("lightning.qubit", 2, retries=2)


def test_the_device_is_otherwise_its_own():
    inner = qml.device("lightning.qubit", wires=3)
    device = RetryingDevice(inner, Remote())
    assert device.name == "lightning.qubit"
    assert device.wires == inner.wires
    assert device.c_dtype == inner.c_dtype
    assert not device.supports_derivatives()
    assert device.execute(CIRCUITS[0]).shape == (4,)
