"""Quantum devices and circuits: the DQA operation for any QNode, and devices by name."""

from devices.configuration import make_device
from devices.dqa import DQA

__all__ = ["DQA", "make_device"]
