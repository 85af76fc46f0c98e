"""Devices of other packages: wire order, sign, noise and errors, on all that run without credentials."""

import functools

import numpy as np
import pennylane as qml
import pytest
import torch
from trotter_oracle import magnetizations, trotter_state

from devices import DQA, make_device, samples_only
from hybrid_attention.schedules import single_spin_response

pytestmark = pytest.mark.plugins

SHOTS = 4000
ANGLES = np.array([[0.3, 0.3, 0.35], [0.2, 0.4, 0.3]])
FIELDS, COUPLING = np.array([0.2, 0.7]), np.array([0.4])
STAND_IN = "FakeManilaV2"
EXTRAS = {"lightning": "kokkos", "qiskit": "qiskit", "braket": "braket", "ionq": "ionq", "cirq": "cirq"}
DEVICES = {
    "kokkos": ("lightning.kokkos", {}),
    "aer": ("qiskit.aer", {"seed_simulator": 7}),
    "basicsim": ("qiskit.basicsim", {"seed_simulator": 7}),
    "braket": ("braket.local.qubit", {}),
    "braket_sv": ("braket.local.qubit", {"backend": "braket_sv"}),
    "braket_dm": ("braket.local.qubit", {"backend": "braket_dm"}),
    "cirq": ("cirq.simulator", {}),
    "cirq mixed": ("cirq.mixedsimulator", {}),
}
NOISY = {
    "aer": ("qiskit.aer", {"noise_model": STAND_IN, "seed_simulator": 7}),
    "remote": ("qiskit.remote", {"backend": STAND_IN, "seed_transpiler": 7}),
}
SINGLE_PRECISION = ("cirq.simulator", "cirq.mixedsimulator")
ANALYTIC = {key: value for key, value in DEVICES.items() if not samples_only(value[0])}
every = pytest.mark.parametrize("kind", DEVICES)
every_analytic = pytest.mark.parametrize("kind", ANALYTIC)
every_noisy = pytest.mark.parametrize("kind", NOISY)


def tolerance(kind):
    return 1e-6 if ANALYTIC[kind][0] in SINGLE_PRECISION else 1e-9


def need(name):
    if name not in qml.plugin_devices:
        pytest.skip(f"pip install 'hybrid-attention[{EXTRAS[name.partition('.')[0]]}]'")


def probabilities(device, h, J, shots=None):
    name, options = device
    need(name)
    wires = range(len(h))

    def quench():
        DQA(h, J, ANGLES, wires=wires)
        return qml.probs(wires=wires)

    np.random.seed(11)
    circuit = qml.QNode(quench, make_device(name, len(h), **options))
    return np.asarray(circuit() if shots is None else qml.set_shots(circuit, shots)())


def one_spin(h):
    return float(single_spin_response(torch.tensor(ANGLES), torch.tensor(h, dtype=torch.float64)))


@functools.cache
def two_spins():
    return abs(trotter_state(FIELDS, COUPLING, ANGLES)) ** 2


def assert_within_five_standard_errors(estimate, exact):
    assert (abs(estimate - exact) <= 5 * np.sqrt(exact * (1 - exact) / SHOTS)).all()


def test_the_instance_tells_wires_and_signs_apart():
    """Under swapped wires or flipped spins the probabilities differ by more than the tolerance with shots."""
    exact = two_spins()
    for other in (exact.reshape(2, 2).T.ravel(), exact[::-1]):
        assert abs(other - exact).max() > 5 * 0.5 / np.sqrt(SHOTS)
    first, second = magnetizations(trotter_state(FIELDS, COUPLING, ANGLES), 2)
    assert 0 < first < second


@every_analytic
@pytest.mark.parametrize("h", [0.6, -0.3])
def test_one_spin_has_its_closed_form(kind, h):
    p = probabilities(ANALYTIC[kind], np.array([h]), np.zeros(0))
    assert p[0] - p[1] == pytest.approx(one_spin(h), abs=tolerance(kind))


@every_analytic
def test_two_spins_are_the_product_of_matrix_exponentials(kind):
    assert probabilities(ANALYTIC[kind], FIELDS, COUPLING) == pytest.approx(two_spins(), abs=tolerance(kind))


@every
@pytest.mark.parametrize("h", [0.6, -0.3])
def test_samples_of_one_spin_agree_with_its_closed_form(kind, h):
    exact = (1 + np.array([1, -1]) * one_spin(h)) / 2
    assert_within_five_standard_errors(probabilities(DEVICES[kind], np.array([h]), np.zeros(0), SHOTS), exact)


@every
def test_samples_of_two_spins_agree_with_the_matrix_exponentials(kind):
    estimate = probabilities(DEVICES[kind], FIELDS, COUPLING, SHOTS)
    assert estimate.sum() == pytest.approx(1)
    assert abs(estimate - two_spins()).max() > 0
    assert_within_five_standard_errors(estimate, two_spins())


@every_noisy
def test_noise_weakens_but_keeps_wire_order_and_sign(kind):
    estimate = probabilities(NOISY[kind], FIELDS, COUPLING, SHOTS).reshape(2, 2)
    z = np.array([estimate[0].sum() - estimate[1].sum(), estimate[:, 0].sum() - estimate[:, 1].sum()])
    exact = magnetizations(trotter_state(FIELDS, COUPLING, ANGLES), 2)
    assert (z < exact + 5 / np.sqrt(SHOTS)).all()
    assert (z > 0.7 * exact).all()
    assert z[0] < z[1]


def test_noise_model_of_aer_changes_the_samples():
    clean, noisy = (probabilities(device["aer"], FIELDS, COUPLING, SHOTS) for device in (DEVICES, NOISY))
    spread = np.sqrt(two_spins() * (1 - two_spins()) / SHOTS)
    assert (abs(noisy - two_spins()) / spread).max() > 5 > (abs(clean - two_spins()) / spread).max()


@pytest.mark.parametrize("name", ["qiskit.aer", "qiskit.remote"])
def test_device_that_only_samples_takes_shots_of_its_own(name):
    """The silent default that samples_only is there for: multiples of 1/1024 without a number of shots."""
    options = {"backend": STAND_IN} if name == "qiskit.remote" else {}
    estimate = probabilities((name, options), FIELDS, COUPLING)
    assert estimate * 1024 == pytest.approx(np.rint(estimate * 1024), abs=1e-9)


@every_noisy
def test_wrong_stand_in_names_a_close_match(kind):
    name, options = NOISY[kind]
    need(name)
    wrong = {key: "FakeManilaV3" if value == STAND_IN else value for key, value in options.items()}
    with pytest.raises(ValueError, match=r"no fake backend 'FakeManilaV3' \(did you mean 'FakeManilaV2'"):
        make_device(name, 2, **wrong)


@every_noisy
def test_too_few_qubits_are_an_error(kind):
    name, options = NOISY[kind]
    need(name)
    with pytest.raises(ValueError, match="has 5 qubits and 6 wires were asked for"):
        make_device(name, 6, **options)


def test_wrong_braket_simulator_names_a_close_match():
    need("braket.local.qubit")
    with pytest.raises(ValueError, match=r"no local Braket simulator 'braket_dn' \(did you mean 'braket_dm'"):
        make_device("braket.local.qubit", 2, backend="braket_dn")


@pytest.mark.parametrize("name", ["lightning.kokkos", "cirq.simulator", "braket.local.qubit", "qiskit.aer"])
def test_noise_is_for_default_mixed(name):
    need(name)
    with pytest.raises(ValueError, match=r"only default\.mixed"):
        make_device(name, 2, noise={"depolarizing": 0.1})


def test_ibm_machine_without_an_account_says_what_to_set(tmp_path, monkeypatch):
    need("qiskit.remote")
    monkeypatch.delenv("QISKIT_IBM_TOKEN", raising=False)
    monkeypatch.setattr("qiskit_ibm_runtime.accounts.management._DEFAULT_ACCOUNT_CONFIG_JSON_FILE", str(tmp_path / "x"))
    with pytest.raises(ValueError, match=r"set QISKIT_IBM_TOKEN, or save an account"):
        make_device("qiskit.remote", 2, backend="ibm_brisbane")


def test_ibm_machine_that_an_account_does_not_have_names_those_it_has(monkeypatch):
    need("qiskit.remote")
    from qiskit_ibm_runtime.fake_provider import FakeManilaV2

    class Service:
        def backend(self, name):
            if name != "fake_manila":
                raise LookupError(name)
            return FakeManilaV2()

        def backends(self):
            return [FakeManilaV2()]

    monkeypatch.setattr("qiskit_ibm_runtime.QiskitRuntimeService", Service)
    assert len(make_device("qiskit.remote", 2, backend="fake_manila").wires) >= 2
    with pytest.raises(ValueError, match=r"did you mean 'fake_manila'\?\): take one of fake_manila"):
        make_device("qiskit.remote", 2, backend="fake_manilla")


def test_braket_without_region_or_credentials_says_what_to_set(tmp_path, monkeypatch):
    need("braket.aws.qubit")
    for variable in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable, raising=False)
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    machine = {"device_arn": "arn:aws:braket:::device/quantum-simulator/amazon/sv1"}
    with pytest.raises(ValueError, match=r"region\): set AWS_DEFAULT_REGION"):
        make_device("braket.aws.qubit", 2, **machine)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with pytest.raises(ValueError, match=r"credentials\): set AWS_ACCESS_KEY_ID"):
        make_device("braket.aws.qubit", 2, **machine)


@pytest.mark.parametrize("name", ["ionq.simulator", "ionq.qpu"])
def test_ionq_is_made_with_a_key(monkeypatch, name):
    need(name)
    monkeypatch.setenv("IONQ_API_KEY", "not a key")
    assert len(make_device(name, 2).wires) == 2


@pytest.mark.parametrize(
    ("name", "options", "wrong", "guess"),
    [
        ("qiskit.aer", {}, "noise_modell", "noise_model"),
        ("qiskit.basicsim", {}, "seed_simulatr", "seed_simulator"),
        ("qiskit.remote", {"backend": STAND_IN}, "seed_transpilr", "seed_transpiler"),
        ("braket.local.qubit", {"backend": "braket_dm"}, "nois_model", "noise_model"),
        (
            "braket.aws.qubit",
            {"device_arn": "arn:aws:braket:::device/quantum-simulator/amazon/sv1"},
            "paralel",
            "parallel",
        ),
    ],
)
def test_misspelled_option_names_a_close_match(name, options, wrong, guess):
    """Constructors of these plugins take any keyword."""
    need(name)
    with pytest.raises(ValueError, match=rf"^The device '{name}' has no option '{wrong}' \(did you mean '{guess}'\?\)"):
        make_device(name, 2, **options, **{wrong: 1})


def test_routing_method_is_none_of_aers_options_as_its_plugin_sets_it():
    need("qiskit.aer")
    with pytest.raises(ValueError, match="has no option 'routing_method'"):
        make_device("qiskit.aer", 2, routing_method="sabre")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qiskit.aer", {"method": "density_matrix", "seed_simulator": 1}),
        ("qiskit.aer", {"optimization_level": 0, "seed_transpiler": 1, "fusion_enable": False}),
        ("qiskit.aer", {"precision": "single", "max_parallel_threads": 1, "noise_model": STAND_IN}),
        ("qiskit.basicsim", {"seed_simulator": 1, "optimization_level": 1}),
        ("qiskit.remote", {"backend": STAND_IN, "simulator": {"seed_simulator": 1}, "session": None}),
        ("qiskit.remote", {"backend": STAND_IN, "options": {"simulator": {"seed_simulator": 1}}}),
        ("braket.local.qubit", {"backend": "braket_sv", "batch_size": 2, "parallel": True, "max_parallel": 1}),
        ("braket.local.qubit", {"noise_model": None, "parametrize_differentiable": False}),
    ],
    ids=str,
)
def test_options_of_constructors_simulators_and_the_transpiler_are_taken_and_run(name, options):
    estimate = probabilities((name, options), FIELDS, COUPLING, SHOTS)
    assert estimate.sum() == pytest.approx(1)
    assert estimate[0] == estimate.max()
