"""Devices by name: what is made, and what is said where it cannot be."""

import pennylane as qml
import pytest

from devices import make_device, samples_only


@pytest.mark.parametrize("name", ["default.qubit", "lightning.qubit"])
def test_device_has_the_wires_asked_for(name):
    device = make_device(name, 3)
    assert device.name == name
    assert list(device.wires) == [0, 1, 2]


def test_options_reach_the_device():
    assert make_device("default.qubit", 2, max_workers=2)._max_workers == 2


def test_unknown_device_names_a_close_match_and_the_installed_ones():
    with pytest.raises(ValueError, match=r"lightning\.qubit.*Did you mean 'default\.qubit'"):
        make_device("default.qbit", 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lightning.gpu", r"pip install 'hybrid-attention\[gpu\]'.*pennylane-lightning-gpu"),
        ("lightning.kokkos", r"pip install 'hybrid-attention\[kokkos\]'.*pennylane-lightning-kokkos"),
        ("qiskit.aer", r"pip install 'hybrid-attention\[qiskit\]'.*pennylane-qiskit"),
        ("qiskit.remote", r"pip install 'hybrid-attention\[qiskit\]'.*pennylane-qiskit"),
        ("braket.local.qubit", r"pip install 'hybrid-attention\[braket\]'.*amazon-braket-pennylane-plugin"),
        ("ionq.simulator", r"pip install 'hybrid-attention\[ionq\]'.*pennylane-ionq"),
        ("qulacs.simulator", "pip install pennylane-qulacs"),
        ("cirq.simulator", r"pip install 'hybrid-attention\[cirq\]'.*pennylane-cirq"),
    ],
)
def test_missing_package_is_named(monkeypatch, name, words):
    without = {key: value for key, value in qml.plugin_devices.items() if key != name}
    monkeypatch.setattr(qml, "plugin_devices", without)
    monkeypatch.setattr(qml, "refresh_devices", lambda: None)
    with pytest.raises(ValueError, match=words):
        make_device(name, 2)


@pytest.mark.parametrize(
    "failure",
    [
        RuntimeError("CUDA driver version is insufficient for CUDA runtime version"),
        ImportError("Pre-compiled binaries for lightning.gpu are not available."),
    ],
    ids=["no driver", "no binaries"],
)
def test_lightning_gpu_without_a_gpu_says_what_it_needs(monkeypatch, failure):
    def fail(*args, **kwargs):
        raise failure

    monkeypatch.setattr(qml, "plugin_devices", {**qml.plugin_devices, "lightning.gpu": None})
    monkeypatch.setattr(qml, "device", fail)
    with pytest.raises(ValueError, match=r"NVIDIA GPU.*lightning\.qubit") as caught:
        make_device("lightning.gpu", 2)
    assert caught.value.__cause__ is failure


@pytest.mark.parametrize("name", ["default.qubit", "lightning.qubit"])
def test_option_that_the_device_does_not_have_is_named(name):
    with pytest.raises(ValueError, match="flavor='sweet'"):
        make_device(name, 2, flavor="sweet")


def test_device_with_fewer_wires_is_an_error(monkeypatch):
    small = qml.device("default.qubit", wires=2)
    monkeypatch.setattr(qml, "device", lambda *args, **kwargs: small)
    with pytest.raises(ValueError, match="has 2 wires and 5 were asked for"):
        make_device("default.qubit", 5)


@pytest.mark.parametrize("wires", [0, -1])
def test_no_wires_is_an_error(wires):
    with pytest.raises(ValueError, match="at least 1"):
        make_device("default.qubit", wires)


@pytest.fixture
def stand_in(monkeypatch):
    """Make any name a device, and qml.device either raise what is given or record its options."""

    def install(name, failure=None):
        seen = {}

        def device(short_name, wires, **options):
            if failure is not None:
                raise failure
            seen.update(options)
            return qml.devices.DefaultQubit(wires=wires)

        monkeypatch.setattr(qml, "plugin_devices", {**qml.plugin_devices, name: None})
        monkeypatch.setattr(qml, "device", device)
        return seen

    return install


@pytest.fixture
def no_keys(monkeypatch):
    for variable in ("IONQ_API_KEY", "PENNYLANE_IONQ_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


@pytest.mark.parametrize("name", ["ionq.simulator", "ionq.qpu"])
def test_ionq_without_a_key_names_the_variable(stand_in, no_keys, name):
    stand_in(name)
    with pytest.raises(ValueError, match="set IONQ_API_KEY"):
        make_device(name, 2)


@pytest.mark.parametrize("variable", ["IONQ_API_KEY", "PENNYLANE_IONQ_API_KEY"])
def test_ionq_with_a_key_is_made(stand_in, no_keys, monkeypatch, variable):
    seen = stand_in("ionq.simulator")
    monkeypatch.setenv(variable, "not a key")
    make_device("ionq.simulator", 2, noise_model="aria-1")
    assert seen == {"noise_model": "aria-1"}


def test_braket_without_an_arn_says_what_to_give(stand_in):
    stand_in("braket.aws.qubit")
    with pytest.raises(ValueError, match=r"no device_arn.*arn:aws:braket"):
        make_device("braket.aws.qubit", 2)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("NoRegionError", "AWS_DEFAULT_REGION"),
        ("NoCredentialsError", "AWS_ACCESS_KEY_ID"),
        ("PartialCredentialsError", "AWS_ACCESS_KEY_ID"),
        ("ProfileNotFound", "AWS_PROFILE"),
    ],
)
def test_braket_without_credentials_names_the_variable(stand_in, kind, words):
    failure = type(kind, (Exception,), {})("Unable to locate it.")
    stand_in("braket.aws.qubit", failure)
    with pytest.raises(ValueError, match=rf"has no credentials \(Unable to locate it\): .*{words}") as caught:
        make_device("braket.aws.qubit", 2, device_arn="arn:aws:braket:::device/quantum-simulator/amazon/sv1")
    assert caught.value.__cause__ is failure


def test_qiskit_remote_without_a_backend_says_what_to_give(stand_in):
    stand_in("qiskit.remote")
    with pytest.raises(ValueError, match=r"no backend.*FakeManilaV2"):
        make_device("qiskit.remote", 2)


def test_whatever_a_constructor_raises_is_one_sentence(stand_in):
    stand_in("cirq.simulator", AttributeError("no such\nthing."))
    with pytest.raises(ValueError, match=r"^The device 'cirq\.simulator' cannot be used here \(no such thing\)\.$"):
        make_device("cirq.simulator", 2)


def noisy_mean(name="default.mixed", num_gates=1, **noise):
    """<Z> after X gates on one wire."""

    @qml.qnode(make_device(name, 1, noise=noise))
    def circuit():
        for _ in range(num_gates):
            qml.X(0)
        return qml.expval(qml.Z(0))

    return float(circuit())


@pytest.mark.parametrize(
    ("channel", "kept"), [("depolarizing", 1 - 4 * 0.1 / 3), ("bit_flip", 1 - 2 * 0.1), ("phase_flip", 1.0)]
)
@pytest.mark.parametrize("num_gates", [1, 3])
def test_noise_of_default_mixed_follows_every_gate(channel, kept, num_gates):
    assert noisy_mean(num_gates=num_gates, **{channel: 0.1}) == pytest.approx(-(kept**num_gates), abs=1e-12)


def test_damping_and_readout_noise():
    assert noisy_mean(amplitude_damping=0.2) == pytest.approx(-0.6, abs=1e-12)
    assert noisy_mean(phase_damping=0.2) == pytest.approx(-1, abs=1e-12)
    assert noisy_mean(num_gates=5, readout=0.1) == pytest.approx(-0.8, abs=1e-12)
    assert noisy_mean(depolarizing=0.3, readout=0.1) == pytest.approx(-0.6 * 0.8, abs=1e-12)
    assert noisy_mean() == pytest.approx(-1, abs=1e-12)
    assert noisy_mean(depolarizing=0, readout=0) == pytest.approx(-1, abs=1e-12)


def test_noise_reaches_every_wire_of_a_gate():
    device = make_device("default.mixed", 2, noise={"bit_flip": 0.1, "readout": 0.05})
    circuit = qml.QNode(lambda: (qml.CNOT([0, 1]), qml.probs(wires=[0, 1]))[1], device)
    kept = (1 + 0.8 * 0.9) / 2
    expected = [kept * kept, kept * (1 - kept), (1 - kept) * kept, (1 - kept) ** 2]
    assert circuit() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        ({"depolarising": 0.1}, "did you mean 'depolarizing'.*amplitude_damping"),
        ({"depolarizing": 1.2}, "'depolarizing' was given 1.2: give a number from 0 to 1"),
        ({"readout": "much"}, "'readout' was given 'much'"),
        ({"readout": True}, "'readout' was given True"),
        (0.1, "give strengths by name"),
    ],
)
def test_wrong_noise_is_an_error(noise, words):
    with pytest.raises(ValueError, match=words):
        make_device("default.mixed", 1, noise=noise)


@pytest.mark.parametrize("name", ["default.qubit", "lightning.qubit"])
def test_noise_on_a_device_without_noise_is_an_error(name):
    with pytest.raises(ValueError, match=r"noise=.*only default\.mixed"):
        make_device(name, 2, noise={"depolarizing": 0.1})


def test_devices_that_only_sample():
    samplers = ("qiskit.aer", "qiskit.basicsim", "qiskit.remote", "braket.aws.qubit", "ionq.simulator", "ionq.qpu")
    others = ("hybrid.statevector", "default.qubit", "default.mixed", "lightning.kokkos", "braket.local.qubit")
    assert all(map(samples_only, samplers))
    assert not any(map(samples_only, (*others, "cirq.simulator")))
