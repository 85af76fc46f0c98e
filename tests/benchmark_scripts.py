"""The scripts of benchmarks/ as modules."""

import importlib
from pathlib import Path

import pytest


def load(name):
    """A script of benchmarks/, which finds the others as it does when it is run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
        return importlib.import_module(name)
