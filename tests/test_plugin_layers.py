"""DQALayer with shots on devices of other packages: estimates against exact probabilities, and their gradients."""

import numpy as np
import pennylane as qml
import pytest
import torch
from conftest import draw_fields, gradients
from oracle import causal_mask, draw
from test_benchmarks import load
from test_device_plugins import need

from devices import DQA
from hybrid_attention import DQALayer, LinearSchedule
from hybrid_attention.covariance import covariance_marginals
from hybrid_attention.ising import pair_index

pytestmark = pytest.mark.plugins

SHOTS = 20_000
SPINS = 3
SCHEDULE = LinearSchedule(3, 3.0)
PRESENT = causal_mask(SPINS)
STAND_IN = "FakeManilaV2"
DEPOLARIZING, DAMPING = 0.004, 0.006
SEEDED_REMOTE = {"backend": STAND_IN, "seed_transpiler": 7, "simulator": {"seed_simulator": 7}}
NOISELESS = {
    "kokkos": ("lightning.kokkos", {"seed": 7}),
    "aer": ("qiskit.aer", {"seed_simulator": 7}),
    "braket_sv": ("braket.local.qubit", {"backend": "braket_sv"}),
    "braket_dm": ("braket.local.qubit", {"backend": "braket_dm"}),
    "cirq": ("cirq.simulator", {}),
}
NOISY = {
    "aer": ("qiskit.aer", {"noise_model": STAND_IN, "seed_simulator": 7}),
    "remote": ("qiskit.remote", SEEDED_REMOTE),
    "braket_dm": ("braket.local.qubit", {"backend": "braket_dm"}),
}


def build(device="hybrid.statevector", options=None, shots=None):
    settings = {"schedule": SCHEDULE, "gradient": "covariance", "clip": False, "shots": shots}
    layer = DQALayer(SPINS, device=device, device_options=options, **settings).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, center=0.1, spread=0.3))
    return layer


def on_device(kind, noisy):
    """The layer on a device, with the same samples in every run, but of Braket's, which have no seed."""
    name, options = (NOISY if noisy else NOISELESS)[kind]
    need(name)
    np.random.seed(11)
    if noisy and kind == "braket_dm":
        options = {**options, "noise_model": braket_noise()}
    return build(name, options, SHOTS)


def braket_noise():
    """Two channels on each wire of every gate."""
    from braket.circuits.noise_model import GateCriteria, NoiseModel
    from braket.circuits.noises import AmplitudeDamping, Depolarizing

    model = NoiseModel()
    for noise in (Depolarizing(DEPOLARIZING), AmplitudeDamping(DAMPING)):
        model.add_noise(noise, GateCriteria())
    return model


def inputs():
    return draw_fields(2, 1, SPINS, SPINS)


def spread(exact):
    return (exact * (1 - exact) / SHOTS).sqrt()


def farthest(estimate, exact):
    """The largest difference over queries and spins, in standard errors."""
    return ((estimate - exact).abs() / spread(exact)).max()


def exact_under_aer(layer, monkeypatch):
    """The marginals of every query under the stand-in's noise: (2, 1, T, T), by density matrices.

    The circuits are those that reach Aer, one for each query in turn, so after the plugin's transpilation, and the
    noise model is the one that they meet there.
    """
    from qiskit_aer import AerSimulator

    submitted = []
    run = AerSimulator.run

    def watch(self, circuits, *given, **options):
        submitted.extend((circuit, self.options.noise_model) for circuit in circuits)
        return run(self, circuits, *given, **options)

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(AerSimulator, "run", watch)
        for query in inputs().flatten(0, 2):
            layer(query[None, None])
    assert len(submitted) == 2 * SPINS
    return torch.stack([density_matrix_marginals(*each) for each in submitted]).view(2, 1, SPINS, SPINS)


def density_matrix_marginals(circuit, noise_model):
    """P(0 is read) of each classical bit of a transpiled circuit: its exact evolution, then the readout errors."""
    from qiskit_aer import AerSimulator

    bare, read = circuit.copy_empty_like(), {}
    for step in circuit.data:
        if step.operation.name == "measure":
            read[circuit.find_bit(step.clbits[0]).index] = circuit.find_bit(step.qubits[0]).index
        else:
            bare.append(step)
    for bit in range(SPINS):
        bare.save_probabilities([read[bit]], label=str(bit))
    result = AerSimulator(method="density_matrix", noise_model=noise_model).run(bare).result()
    confusion = {
        error["gate_qubits"][0][0]: torch.tensor(error["probabilities"], dtype=torch.float64)
        for error in noise_model.to_dict()["errors"]
        if error["type"] == "roerror"
    }
    true = [torch.tensor(result.data()[str(bit)], dtype=torch.float64) for bit in range(SPINS)]
    return torch.stack([(p @ confusion[read[bit]])[0] for bit, p in enumerate(true)])


def exact_under_braket_noise(layer):
    """The marginals of every query with both channels behind every gate: (2, 1, T, T), on default.mixed."""

    @qml.qnode(qml.device("default.mixed", wires=SPINS))
    def circuit(h, J):
        with qml.QueuingManager.stop_recording():
            gates = DQA.compute_decomposition(h, J, SCHEDULE.angles(), range(SPINS))
        for gate in gates:
            qml.apply(gate)
            for wire in gate.wires:
                qml.DepolarizingChannel(DEPOLARIZING, wires=wire)
            for wire in gate.wires:
                qml.AmplitudeDamping(DAMPING, wires=wire)
        return [qml.probs(wires=wire) for wire in range(SPINS)]

    J = layer.couplings.detach()[0] / SCHEDULE.beta_J
    rows = [torch.stack([p[0] for p in circuit(h / SCHEDULE.beta_h, J)]) for h in inputs().flatten(0, 2)]
    return torch.stack(rows).view(2, 1, SPINS, SPINS)


@pytest.mark.parametrize("kind", NOISELESS)
def test_estimates_without_noise_lie_within_five_standard_errors_of_analytic_dqa(kind):
    layer = on_device(kind, noisy=False)
    with torch.no_grad():
        exact = build()(inputs())
        estimate = layer(inputs())
    assert 0 < farthest(estimate, exact) < 5
    assert ((estimate - exact).abs() <= 5 * layer.standard_error).all()


@pytest.mark.parametrize("kind", NOISY)
def test_estimates_with_noise_lie_within_five_standard_errors_of_the_noise_models_probabilities(kind, monkeypatch):
    layer = on_device(kind, noisy=True)
    with torch.no_grad():
        noiseless = build()(inputs())
        estimate = layer(inputs())
    exact = exact_under_braket_noise(layer) if kind == "braket_dm" else exact_under_aer(layer, monkeypatch)
    assert 0 < farthest(estimate, exact) < 5
    assert farthest(exact, noiseless) > 10
    assert farthest(estimate, noiseless) > 5


@pytest.mark.parametrize(
    ("kind", "noisy"), [*((kind, False) for kind in NOISELESS), *((kind, True) for kind in NOISY)], ids=str
)
def test_covariance_gradients_are_the_covariances_of_the_devices_own_samples(kind, noisy, monkeypatch):
    seen = []

    def watch(fields, pairs, probabilities, shots, coupling_range):
        seen.append((probabilities, shots))
        return covariance_marginals(fields, pairs, probabilities, shots, coupling_range)

    monkeypatch.setattr("hybrid_attention.dqa.covariance_marginals", watch)
    layer = on_device(kind, noisy)
    p, of_fields, of_couplings = gradients(layer, inputs(), PRESENT)
    ((probabilities, shots),) = seen
    counts = (probabilities * SHOTS).round().long()
    assert shots == SHOTS
    assert (probabilities * SHOTS - counts).abs().max() < 1e-6
    assert (counts.sum(-1) == SHOTS).all()

    states = torch.tensor([[1 - (index >> wire & 1) for wire in (2, 1, 0)] for index in range(8)]).double()
    first, second = pair_index(SPINS)
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape)
    slopes = torch.zeros_like(of_couplings)
    for word in range(2):
        for query in range(SPINS):
            here = PRESENT[query].double()
            n = states.repeat_interleave(counts[word * SPINS + query], 0)
            s = 2 * n - 1
            observable = n @ (weights[word, 0, query] * here)
            together = torch.cov(torch.cat((observable[:, None], s, s[:, first] * s[:, second]), 1).T)[0, 1:]
            assert (p[word, 0, query] - n.mean(0) * here).abs().max() < 1e-12
            assert (of_fields[word, 0, query] - together[:SPINS] * here).abs().max() < 1e-10
            slopes[0] += together[SPINS:] * here[first] * here[second]
    assert (of_couplings - slopes).abs().max() < 1e-10
    assert of_couplings.abs().min() > 0


def test_the_noise_benchmark_prints_what_the_noise_leaves(capsys, monkeypatch):
    need("qiskit.aer")
    benchmark = load("device_noise")
    monkeypatch.setattr(benchmark, "SCHEDULES", (SCHEDULE,))
    benchmark.main(["--spins", "2", "--machine", STAND_IN, "--queries", "2", "--threads", str(torch.get_num_threads())])
    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert row[0].split()[:2] == ["2", "3"]
    aer, mitigated, routed = ([float(number) for number in cell.split()] for cell in row[1:])
    assert 0.5 < aer[0] < mitigated[0] < 1.05
    assert 0.5 < routed[0] < mitigated[0]
    assert min(aer[2], mitigated[2], routed[2]) > 0.9
