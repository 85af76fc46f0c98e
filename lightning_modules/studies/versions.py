"""What results were made with: versions of packages, the git commit, and the kind of machine."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

import torch

_PACKAGES = ("hybrid-attention", "torch", "pytorch-lightning", "pennylane", "numpy", "scipy")
_ROOT = Path(__file__).parents[2]


def versions() -> dict[str, str]:
    """Return versions by name, the commit of the clone ("unknown" without one, "+" for changes), and the processors."""
    found = {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
    processors = f"{platform.machine()}, {os.cpu_count()} CPUs"
    if torch.cuda.is_available():
        processors += f", {torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return {**found, "commit": _commit(), "machine": processors}


def _commit() -> str:
    if not (_ROOT / ".git").exists():
        return "unknown"
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()
