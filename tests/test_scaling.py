"""The arithmetic of what training costs beyond this machine: laws, rings, queues, prices."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark_scripts import load


@pytest.fixture(scope="module")
def scaling():
    return load("scaling")


def test_a_ring_moves_twice_the_gradients_and_waits_for_its_messages(scaling):
    assert scaling.reduce_seconds(10**6, 1) == 0
    assert scaling.reduce_seconds(1000, 2, bandwidth=4000.0, latency=0.0) == pytest.approx(1.0)
    many = scaling.reduce_seconds(1000, 10**6, bandwidth=4000.0, latency=0.0)
    assert many == pytest.approx(2.0, rel=1e-5)
    assert scaling.reduce_seconds(0, 5, bandwidth=1.0, latency=3.0) == 2 * 4 * 3.0


def test_a_step_without_communication_is_all_work(scaling):
    assert scaling.efficiency(0.1, 10**6, 1) == 1
    shares = [scaling.efficiency(0.1, 10**6, n) for n in (2, 8, 64, 1024)]
    assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize(("jobs", "machines"), [(1, 1), (7, 1), (7, 3), (6, 3), (2, 5)])
def test_without_waiting_the_simulated_queue_is_the_closed_form(scaling, jobs, machines):
    closed = scaling.step_seconds(jobs, machines, 0.0, 2.0)
    assert scaling.simulated_step_seconds(jobs, machines, 0.0, 2.0) == closed == 2.0 * math.ceil(jobs / machines)


def test_on_one_machine_the_mean_of_simulated_steps_is_the_closed_form(scaling):
    """The sum of 20 exponential waits of mean 5 has a standard deviation of 5 sqrt(20), and 400 steps are averaged."""
    mean = sum(scaling.simulated_step_seconds(20, 1, 5.0, 1.0, seed) for seed in range(400)) / 400
    assert mean == pytest.approx(scaling.step_seconds(20, 1, 5.0, 1.0), abs=5 * 5 * math.sqrt(20) / 20)


def test_two_jobs_on_two_machines_wait_as_long_as_the_slower_one(scaling):
    """The larger of two exponential waits of mean w is 3/2 w in the mean."""
    mean = sum(scaling.simulated_step_seconds(2, 2, 4.0, 1.0, seed) for seed in range(2000)) / 2000
    assert mean == pytest.approx(1.0 + 6.0, abs=5 * 4.0 * math.sqrt(5 / 4) / math.sqrt(2000))


def test_a_window_takes_a_circuit_for_each_position(scaling):
    assert [scaling.circuits_per_window(length, 10) for length in (1, 4, 9)] == [1, 4, 9]


def test_prices_are_by_circuit_by_shot_or_by_time(scaling):
    machine = scaling.Machine("", 0.3, 0.01, 0.0, 1e-3, 1)
    assert machine.price(10, 100) == pytest.approx(10 * (0.3 + 1.0))
    machine = scaling.Machine("", 0.0, 0.0, 2.0, 1e-3, 50)
    assert machine.price(10, 100) == pytest.approx(10 * 100 * 1e-3 * 2.0)
    assert machine.job_seconds(100) == pytest.approx(5.0)


def test_the_laws_are_the_work_of_a_causal_window(scaling):
    """One row for each number of present spins: 2^s states each, or s steps along the chain."""
    methods = {method.name: method for method in scaling.METHODS}
    for name, row in (("exact", lambda s: 2.0**s), ("transfer matrix, w = 4", lambda s: s * 2.0**4)):
        sums = [sum(row(s) for s in range(1, length + 1)) for length in (200, 400)]
        ratio = methods[name].work(400) / methods[name].work(200)
        assert ratio == pytest.approx(sums[1] / sums[0], rel=0.01)
    assert methods["exact"].work(5000) == math.inf


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3e-6, "3 us"), (0.25, "250 ms"), (7200.0, "2 h"), (86400 * 730.5, "2 years"), (1e15, "-"), (math.inf, "-")],
)
def test_durations_are_told_in_the_unit_that_fits(scaling, seconds, text):
    assert scaling.duration(seconds) == text


@pytest.mark.usefixtures("one_thread")
def test_the_script_prints_all_tables(scaling, monkeypatch, capsys):
    smaller = tuple(method._replace(fitted=4, checked=6) for method in scaling.METHODS)
    monkeypatch.setattr(scaling, "METHODS", smaller)
    scaling.main(["--rounds", "1", "--batch", "2", "--no-processes"])
    out = capsys.readouterr().out
    assert all(title in out for title in ("Rates", "One step of 64 windows", "Longest T", "Data parallel", "Queues"))
    assert out.count("DQA, simulated, 8 steps") == 1 + len(scaling.BATCHES) + 1


@pytest.mark.slow
def test_two_processes_sum_gradients():
    script = Path(__file__).parents[1] / "benchmarks/scaling.py"
    command = "import scaling\nif __name__ == '__main__':\n    print(scaling.measured_reduction((10, 1000), 2))"
    done = subprocess.run([sys.executable, "-c", command], cwd=script.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    taken = json.loads(done.stdout)
    assert len(taken) == 2
    assert all(0 < seconds < 60 for seconds in taken)
