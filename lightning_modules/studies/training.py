"""One run of a study: `fit` with its test, into a folder that appears when all is done."""

import contextlib
import json
import logging
import os
import shutil
import threading
import time
import traceback
import uuid
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.utilities.exceptions import SIGTERMException

from lightning_modules.studies import observations, run_record
from lightning_modules.studies.plan import PlannedRun
from lightning_modules.studies.results import RESULT, test_metrics, write_json

Command = Callable[[list[str]], None]
UNFINISHED = ".unfinished-"
_LOG, _ERROR = "log.txt", "error.txt"
_one_at_a_time = threading.Lock()  # seeds, the number of threads and the output belong to the process


@dataclass(frozen=True)
class Training:
    """How runs are trained; called with a run, it trains it and returns None, or what went wrong in one sentence.

    Args:
        folder: of the study, on a file system that all workers share.
        command: the command line, called with its arguments.
        threads: of torch, for every run.
        keep_checkpoints: whether the weights are kept.
        versions: what the result says it was made with.
    """

    folder: Path
    command: Command
    threads: int
    keep_checkpoints: bool
    versions: dict[str, Any]

    def __call__(self, run: PlannedRun) -> str | None:
        """Train a run into its folder.

        A run that fails leaves its unfinished folder with error.txt. Where two processes train the same run, the folder
        of the first one that ends is kept; a folder that has lost its result is moved aside.
        """
        final = self.folder / run.folder
        working = final.with_name(f"{final.name}{UNFINISHED}{uuid.uuid4().hex[:8]}")
        working.mkdir(parents=True)
        with _one_at_a_time, _settings_of_process(self.threads), (working / _LOG).open("w") as log:
            try:
                with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                    result = self._train(run, working)
            except SIGTERMException:
                raise  # the study is to end, not only this run
            except (Exception, SystemExit) as error:
                (working / _ERROR).write_text(traceback.format_exc())
                return _sentence(error)
        write_json(working / RESULT, result)
        if final.exists() and not (final / RESULT).exists():
            final.rename(final.with_name(f"{final.name}.without-result-{uuid.uuid4().hex[:8]}"))
        with contextlib.suppress(OSError):
            os.rename(working, final)
        if working.exists():
            shutil.rmtree(working)
        return None

    def started(self, run: PlannedRun) -> bool:
        """Return whether a run has been started and has not ended."""
        final = self.folder / run.folder
        return not final.exists() and any(final.parent.glob(f"{final.name}{UNFINISHED}*"))

    def _train(self, run: PlannedRun, working: Path) -> dict[str, Any]:
        start = time.perf_counter()
        self.command(arguments(run, working))
        seconds = time.perf_counter() - start
        record = json.loads((working / run_record.FILE).read_text())
        checkpoints = working / "checkpoints"
        best = [path for path in checkpoints.glob("*.ckpt") if path.name != "last.ckpt"]
        if best:
            observations.observe(max(best, key=lambda path: path.stat().st_mtime), working / observations.FILE)
        if checkpoints.exists() and not self.keep_checkpoints:
            shutil.rmtree(checkpoints)
        return {
            "experiment": run.experiment,
            "cell": run.cell,
            "seed": run.seed,
            "fingerprint": run.fingerprint,
            "settings": run.configs,
            "metrics": test_metrics(working),
            "seconds": seconds,
            **record,
            "threads": self.threads,
            "versions": self.versions,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def arguments(run: PlannedRun, folder: Path) -> list[str]:
    """Return the arguments of the command line that train a run into a folder."""
    logger = {"class_path": "pytorch_lightning.loggers.CSVLogger", "init_args": {"save_dir": str(folder)}}
    logger["init_args"] |= {"name": "", "version": ""}  # type: ignore[operator]
    trainer = {
        "logger": logger,
        "default_root_dir": str(folder),
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    contents = [*run.configs, {"trainer": trainer, "seed_everything": run.seed}]
    files = [argument for content in contents for argument in ("--config", json.dumps(content))]
    return ["fit", *files, f"--trainer.callbacks+={run_record.RunRecord.__module__}.RunRecord"]


def remove_unfinished(folder: Path) -> int:
    """Remove the folders that killed and failed runs left in that of a study, and return their number."""
    left = [path for path in folder.rglob(f"*{UNFINISHED}*") if path.is_dir()]
    for path in left:
        shutil.rmtree(path)
    return len(left)


@contextlib.contextmanager
def _settings_of_process(threads: int) -> Iterator[None]:
    """Set the number of threads and quiet Lightning, and set both back."""
    loggers = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    before, levels = torch.get_num_threads(), [logger.level for logger in loggers]

    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore", ".*exists and is not empty.*")  # the log of the run lies there
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _sentence(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text.removeprefix("hybrid-attention: error: ")
