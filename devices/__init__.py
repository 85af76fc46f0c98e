"""Quantum devices and circuits: the DQA operation, hybrid.statevector, devices by name, and their readout errors."""

from devices.configuration import make_device
from devices.dqa import DQA
from devices.readout import calibrate_readout, mitigate_probabilities, mitigate_z
from devices.sampling import samples_only
from devices.statevector import HybridStatevector

__all__ = [
    "DQA",
    "HybridStatevector",
    "calibrate_readout",
    "make_device",
    "mitigate_probabilities",
    "mitigate_z",
    "samples_only",
]
