"""Figures need matplotlib, which is an extra."""

from importlib.util import find_spec


def check_matplotlib() -> None:
    """Raise ValueError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise ValueError("A figure needs matplotlib, which is not installed: pip install 'hybrid-attention[plots]'.")
