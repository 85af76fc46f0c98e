"""Tasks on processes and on a Dask cluster: each is done, and one that kills its process takes no other along."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from lightning_modules.cli import main
from lightning_modules.studies.execution import execute
from lightning_modules.studies.findings import read_findings

CONFIGS = Path(__file__).parents[1] / "configs"


@dataclass(frozen=True)
class Note:
    """Writes a file for each task; 'kill' kills its process, 'fail' goes wrong, 'once' kills the first one to try."""

    folder: Path

    def __call__(self, task):
        attempt = len(list(self.folder.glob(f"{task}.started*")))
        (self.folder / f"{task}.started{attempt}").touch()
        if task == "kill" or (task == "once" and attempt == 0):
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / f"{task}.done").write_text(str(os.getpid()))
        return "it went wrong" if task == "fail" else None

    def started(self, task):
        return any(self.folder.glob(f"{task}.started*")) and not (self.folder / f"{task}.done").exists()


def test_one_worker_does_the_tasks_in_this_process_one_after_another(tmp_path):
    assert list(execute(Note(tmp_path), ["a", "fail", "b"], workers=1)) == [(0, None), (1, "it went wrong"), (2, None)]
    assert (tmp_path / "a.done").read_text() == str(os.getpid())
    assert list(execute(Note(tmp_path), [], workers=1)) == []


def test_no_workers_are_refused_and_a_scheduler_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="workers=0 was given: give 1 or more"):
        next(execute(Note(tmp_path), ["a"], workers=0))


@pytest.mark.slow
@pytest.mark.parametrize("deadly", ["kill", "once"])
def test_a_task_that_kills_its_process_takes_no_other_along(tmp_path, deadly):
    tasks = ["a", "b", deadly, "fail", "c", "d"]
    found = dict(execute(Note(tmp_path), tasks, workers=2))
    assert sorted(found) == list(range(6))
    assert found[3] == "it went wrong"
    assert all(found[number] is None for number in (0, 1, 4, 5))
    if deadly == "kill":
        assert found[2].startswith("Its process died (TerminatedWorkerError)")
        assert len(list(tmp_path.glob("kill.started*"))) == 2
    else:
        assert found[2] is None
    assert str(os.getpid()) not in {path.read_text() for path in tmp_path.glob("*.done")}


LONG_WORK = """
import os, sys, time
from dataclasses import dataclass
from pathlib import Path
from lightning_modules.studies.execution import execute

@dataclass(frozen=True)
class Sleep:
    folder: Path

    def __call__(self, task):
        (self.folder / str(os.getpid())).touch()
        time.sleep(600)

    def started(self, task):
        return True

if __name__ == "__main__":
    list(execute(Sleep(Path(sys.argv[1])), [1, 2], workers=2))
"""


def running(pid):
    """Return whether a process is there, and not only waits for its parent to see that it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the states of processes from Linux's /proc")
def test_workers_end_with_the_process_that_started_them(tmp_path):
    """Killed, it cannot stop them, and they would go on to write into the folder of the next start."""
    (tmp_path / "long_work.py").write_text(LONG_WORK)
    notes = tmp_path / "notes"
    notes.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "long_work.py"), str(notes)], env=environment)
    try:
        limit = time.monotonic() + 120
        while len(list(notes.iterdir())) < 2 and time.monotonic() < limit:
            time.sleep(0.1)
        workers = [int(path.name) for path in notes.iterdir()]
        assert len(workers) == 2
        assert all(map(running, workers))
        parent.kill()
        parent.wait()
        limit = time.monotonic() + 60
        while any(map(running, workers)) and time.monotonic() < limit:
            time.sleep(0.1)
        assert not any(map(running, workers))
    finally:
        parent.kill()
        for path in notes.iterdir():
            if running(path.name):
                os.kill(int(path.name), signal.SIGKILL)


@pytest.mark.plugins
def test_a_scheduler_that_does_not_answer_is_named(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    with pytest.raises(ValueError, match=r"The scheduler 'tcp://127\.0\.0\.1:1' does not answer .*dask scheduler"):
        next(execute(Note(tmp_path), ["a"], workers=1, scheduler="tcp://127.0.0.1:1"))


def test_without_dask_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_modules.studies.execution.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'hybrid-attention\[dask\]'"):
        next(execute(Note(tmp_path), ["a"], workers=1, scheduler="tcp://127.0.0.1:1"))


@pytest.mark.plugins
def test_a_study_on_a_dask_cluster_outlives_a_worker_that_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed")
    kinds = {name: {"config": [str(CONFIGS / f"attention/{name}.yaml")]} for name in ("softmax", "boltzmann")}
    sizes = {"context_length": 6, "num_train": 640, "num_val": 16, "num_test": 16, "batch_size": 16}
    trainer = {"max_steps": 300, "val_check_interval": 10, "accelerator": "cpu"}
    settings = {
        "config": [str(CONFIGS / "brackets.yaml")],
        "trainer": trainer,
        "data": {"init_args": sizes},
    }
    words = {"metric": "accuracy", "settings": settings, "axes": {"attention": kinds}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"seeds": 3, "experiments": {"words": words}}, sort_keys=False))
    killed = []

    def kill_a_worker(cluster):
        """Kill the worker of the first run that has begun to train."""
        limit = time.monotonic() + 120
        while not killed and time.monotonic() < limit:
            if list((tmp_path / "out").rglob("metrics.csv")):
                worker = cluster.workers[0]
                os.kill(worker.pid, signal.SIGKILL)
                killed.append(worker.pid)
            time.sleep(0.05)

    with distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=":0") as cluster:
        from threading import Thread

        thread = Thread(target=kill_a_worker, args=(cluster,))
        thread.start()
        study = ["study", str(tmp_path / "study.yaml"), "--output", str(tmp_path / "out")]
        main([*study, "--scheduler", cluster.scheduler_address])
        thread.join()
    assert killed
    findings = read_findings(tmp_path / "out")
    assert findings.missing == []
    assert [len(results) for results in findings.results.values()] == [3, 3]
    assert findings.unpaired() == []
