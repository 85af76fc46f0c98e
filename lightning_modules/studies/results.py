"""Finished runs on disk: one result file each, which is there only when the run has ended."""

import csv
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightning_modules.studies.observations import FILE as OBSERVATIONS

RESULT = "result.json"


@dataclass(frozen=True)
class Result:
    """One finished run.

    Args:
        folder: of the run.
        content: of its result file.
    """

    folder: Path
    content: dict[str, Any]

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.content["seed"])

    @property
    def seconds(self) -> float:
        """Wall time of training and testing."""
        return float(self.content["seconds"])

    def metric(self, name: str) -> float:
        """Return a logged number of the test split, such as "accuracy"."""
        return float(self.content["metrics"][f"test_{name}"])

    def curve(self, name: str) -> list[tuple[int, float]]:
        """Return (steps, logged number) of the validation split during training."""
        rows = _rows(self.folder / "metrics.csv")
        return [(int(row["step"]) + 1, float(row[f"val_{name}"])) for row in rows if row.get(f"val_{name}")]

    def observations(self) -> dict[str, np.ndarray]:
        """Return couplings, attention weights and symbols, or nothing where the run wrote no checkpoint."""
        path = self.folder / OBSERVATIONS
        if not path.is_file():
            return {}
        with np.load(path) as arrays:
            return dict(arrays)


def read_result(folder: Path, fingerprint: str) -> Result | None:
    """Return the finished run of a folder, or None where there is none.

    Raises:
        ValueError: if the file is not a result, or one of other settings.
    """
    path = folder / RESULT
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text())
        found = content["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{str(path)!r} is no result of a run: move its folder away, and it is run anew.") from error
    if found != fingerprint:
        raise ValueError(f"{str(path)!r} is of other settings than its folder says: move it away, and it is run anew.")
    return Result(folder, content)


def test_metrics(folder: Path) -> dict[str, float]:
    """Return the numbers that the test at the end of `fit` logged to metrics.csv.

    Raises:
        ValueError: if it logged none.
    """
    for row in reversed(_rows(folder / "metrics.csv")):
        found = {name: float(value) for name, value in row.items() if name.startswith("test_") and value}
        if found:
            return found
    raise ValueError("The run logged no test metrics: let test_after_fit be true.")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file that is there as a whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=1))
    os.replace(unfinished, path)


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
