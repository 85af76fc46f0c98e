"""Jobs of qiskit.remote: many circuits in one job of the sampler, on simulators that run here."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from quench_rows import FIELDS, QUICK, ROWS, SHOTS, assert_close, exact, need, quench, run

from devices import make_device
from hybrid_attention import DQALayer, LinearSchedule

pytestmark = pytest.mark.plugins


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
