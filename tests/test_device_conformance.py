"""hybrid.statevector passes the tests that PennyLane has for devices, and skips only those that cannot apply to it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EITHER_MODE = {
    r"could not import 'jax'": "jax is not installed",
    r"QutritBasisState template only works on qutrit devices": "it has qubits only",
    r"test(?: is)? (?:specific (?:for|to) )?old (?:device )?interface(?: specific)?": "it has the new interface",
    r"operation not supported on the device": "QubitDensityMatrix: it has state vectors only",
    r"test only works with (?:backprop|parameter-shift)": "each gradient test runs with one differentiation method",
}
SKIPPED = {
    "None": {
        **EITHER_MODE,
        r"Device is in analytic mode, cannot test sampling": "a test of shots",
        r"Shots must be specified in the device to compute a sampled measurement": "a test of shots",
        r"If shots=None no warning is raised": "a test of shots",
    },
    "10000": {
        **EITHER_MODE,
        r"Device is in non-analytical mode": "an analytic test",
        r"test should only be run in analytic mode": "an analytic test",
        r"SparseHamiltonian only supported in analytic mode": "an analytic test",
        r"test only works with analytic-mode (?:pure statevector simulators|simulations)": "an analytic test",
        r"If shots!=None no error is raised": "an analytic test",
        r"Some plugins don't update state information when shots is not None": "an analytic test",
    },
}


def run_suite(shots):
    """Run PennyLane's suite in a process of its own, with this interpreter's pytest, and return what it printed."""
    folder = Path(sys.executable).parent
    paths = os.pathsep.join([str(folder), os.environ.get("PATH", "")])
    command = [folder / "pl-device-test", "--device", "hybrid.statevector", "--shots", shots, "-rs", "-W", "ignore"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "PATH": paths})


@pytest.mark.parametrize("shots", SKIPPED)
def test_pennylanes_device_tests_pass_and_skip_only_what_cannot_apply(shots):
    suite = run_suite(shots)
    assert suite.returncode == 0, suite.stdout[-4000:] + suite.stderr[-4000:]
    summary = suite.stdout.strip().splitlines()[-1]
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (\w+)", summary)}
    assert not {"failed", "error", "errors"} & set(counts)
    assert counts["passed"] > 300

    found = re.findall(r"^SKIPPED \[(\d+)\] .*?:\d+: (.*)$", suite.stdout, re.MULTILINE)
    assert sum(int(count) for count, _ in found) == counts["skipped"]
    unused = set(SKIPPED[shots])
    for _, reason in found:
        fits = {pattern for pattern in SKIPPED[shots] if re.match(pattern, reason)}
        assert fits, f"skipped for a reason that is not listed: {reason}"
        unused -= fits
    assert not unused
