"""Quantum devices and circuits: the DQA operation, the device hybrid.statevector, and devices by name."""

from devices.configuration import make_device
from devices.dqa import DQA
from devices.sampling import samples_only
from devices.statevector import HybridStatevector

__all__ = ["DQA", "HybridStatevector", "make_device", "samples_only"]
