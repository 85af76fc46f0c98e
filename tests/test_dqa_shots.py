"""DQALayer with shots, gradients that hardware can afford, and how many circuits they take."""

import copy
import math
import pickle

import pennylane as qml
import pytest
import torch
from conftest import draw_fields, gradients
from oracle import causal_mask, draw, draw_mask

from hybrid_attention import BoltzmannAttention, DQALayer, LinearSchedule, circuit_sizes
from hybrid_attention.circuits import QuenchCircuits
from hybrid_attention.covariance import covariance_marginals
from hybrid_attention.ising import num_pairs

SCHEDULE = LinearSchedule(3, 3.0)
SAMPLERS = ("hybrid.statevector", "default.qubit", "lightning.qubit")
on_samplers = pytest.mark.parametrize("device", SAMPLERS)


def build(num_spins, num_heads=1, seed=1, **settings):
    """A float64 layer with couplings; settings with shots have a seeded device."""
    if "shots" in settings:
        settings.setdefault("device_options", {"seed": seed})
    layer = DQALayer(num_spins, num_heads, schedule=SCHEDULE, **settings).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, center=0.1, spread=0.3))
    return layer


@on_samplers
@pytest.mark.parametrize("gradient", ["covariance", "parameter-shift"])
def test_estimates_are_within_five_standard_errors_of_the_circuits_probabilities(device, gradient):
    fields, present = draw_fields(3, 2, 4, 4), causal_mask(4)
    with torch.no_grad():
        exact = build(4, 2)(fields, present)
        layer = build(4, 2, device=device, shots=2000, gradient=gradient)
        estimate = layer(fields, present)
    spread = (exact * (1 - exact) / 2000).sqrt()
    assert ((estimate - exact).abs() <= 5 * spread).all()
    assert (estimate - exact).abs().max() > 0
    scores = ((estimate - exact) / spread)[present.expand_as(exact)]
    assert scores.square().mean() == pytest.approx(1, abs=5 * math.sqrt(2 / len(scores)))
    assert layer.standard_error.shape == fields.shape
    assert torch.equal(layer.standard_error, (estimate * (1 - estimate) / 1999).sqrt())
    assert layer.metrics()["standard_error"] == layer.standard_error.max()


@pytest.mark.parametrize("length", [4, 16])
def test_attention_weights_lie_within_their_standard_errors(length):
    """At 16 positions rows run in several sizes; deviations have the spread that is stated for them."""
    causal, fields = causal_mask(length), draw_fields(2 if length == 16 else 30, 1, length, length)
    with torch.no_grad():
        exact = build(length)(fields, causal)
        layer = build(length, shots=4000)
        p = layer(fields, causal)
    weights, expected = (x / x.sum(-1, keepdim=True) for x in (p, exact))
    errors = layer.weight_standard_error
    assert errors.shape == p.shape
    assert (errors[..., 0, :] == 0).all()
    assert (errors.masked_select(~causal) == 0).all()
    scores = ((weights - expected) / errors)[errors > 0]
    assert scores.abs().max() < 5
    assert scores.square().mean() == pytest.approx(1, abs=5 * math.sqrt(2 / len(scores)))


def test_weights_of_wires_measured_apart_have_no_standard_errors():
    layer = build(3, shots=50, gradient="parameter-shift")
    layer(draw_fields(2, 1, 3))
    assert layer.weight_standard_error is None
    assert layer.standard_error is not None


@on_samplers
def test_all_circuits_of_a_call_go_out_in_one_execution(device, monkeypatch):
    """Also those on fewer wires, which on a remote device would be jobs of their own."""
    monkeypatch.setattr(circuit_sizes, "_EXECUTION_COST", 1)
    circuit_sizes.choose_sizes.cache_clear()
    layer, calls = build(6, device=device, shots=20), []
    execute = type(layer._circuits.device).execute

    def watch(self, circuits, *rest, **settings):
        calls.append({len(circuit.wires) for circuit in circuits})
        return execute(self, circuits, *rest, **settings)

    monkeypatch.setattr(type(layer._circuits.device), "execute", watch)
    try:
        layer(draw_fields(3, 1, 6, 6).requires_grad_(), causal_mask(6)).sum().backward()
    finally:
        circuit_sizes.choose_sizes.cache_clear()
    assert len(calls) == 1
    assert len(calls[0]) > 1


@on_samplers
def test_a_seed_fixes_the_samples(device):
    fields = draw_fields(3, 1, 4)
    first, again, other = (build(4, device=device, shots=50, seed=seed)(fields) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_copies_run_on_their_own_device():
    fields = draw_fields(3, 1, 4)
    layer = build(4, shots=50)
    layer(fields)
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert made.shots == 50
        assert made.standard_error is None
        assert torch.equal(made(fields), build(4, shots=50)(fields))


@pytest.mark.parametrize("device", ["hybrid.statevector", "default.qubit", "lightning.qubit", "reference.qubit"])
@pytest.mark.parametrize("shots", [None, 200])
def test_covariance_gradients_are_those_of_the_forward_passes_own_distribution(device, shots, monkeypatch):
    seen = []

    def watch(fields, pairs, probabilities, shots, coupling_range):
        seen.append((fields.detach(), pairs.detach(), probabilities, shots))
        return covariance_marginals(fields, pairs, probabilities, shots, coupling_range)

    monkeypatch.setattr("hybrid_attention.dqa.covariance_marginals", watch)
    options = {"device_options": {}} if device == "reference.qubit" else {"device_options": {"seed": 5}}
    layer = build(3, 2, device=device, shots=shots, gradient="covariance", clip=False, **options)
    fields = draw_fields(2, 2, 3, 3)
    p, of_fields, of_couplings = gradients(layer, fields)
    ((h, J, probabilities, used),) = seen
    assert used == shots
    assert torch.allclose(probabilities.sum(-1), torch.ones(12, dtype=torch.float64))
    states = [[1 - (index >> wire & 1) for wire in (2, 1, 0)] for index in range(8)]
    s = 2 * torch.tensor(states, dtype=torch.float64) - 1
    products = torch.cat((s, s[:, [0]] * s[:, [1]], s[:, [0]] * s[:, [2]], s[:, [1]] * s[:, [2]]), 1)
    weights = torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape).transpose(0, 1).flatten(0, 2)
    slopes = []
    for row in range(12):
        mean = probabilities[row] @ products
        cov = (products - mean).T @ (probabilities[row].unsqueeze(1) * (products - mean))
        slopes.append(weights[row] @ cov[:3] / 2 * (1 if shots is None else shots / (shots - 1)))
    slopes = torch.stack(slopes).view(2, 2, 3, 6)
    assert (of_fields - slopes[..., :3].transpose(0, 1)).abs().max() < 1e-12
    assert (of_couplings - slopes[..., 3:].sum((1, 2))).abs().max() < 1e-12
    assert torch.equal(h, fields.transpose(0, 1).flatten(0, 2))
    assert torch.equal(J, layer.couplings.detach().repeat_interleave(6, 0))


@pytest.mark.parametrize("device", ["hybrid.statevector", "default.qubit"])
def test_removed_spins_get_no_covariance_gradients(device):
    layer = build(4, 2, device=device, gradient="covariance")
    fields, present = draw_fields(3, 2, 5, 4), draw_mask(3, 1, 5, 4)
    present[..., 2] = False
    _, of_fields, of_couplings = gradients(layer, fields, present)
    assert (of_fields[~present.expand_as(fields)] == 0).all()
    touches = torch.tensor([False, True, False, True, False, True])
    assert (of_couplings[:, touches] == 0).all()
    assert (of_couplings[:, ~touches] != 0).all()


@on_samplers
def test_covariance_training_and_no_grad_run_the_forward_circuits_and_no_others(device):
    layer = build(4, 2, device=device, shots=20, gradient="covariance")
    fields = draw_fields(3, 2, 4).requires_grad_()
    counts = []
    for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        before = layer.circuits_run
        made = []
        with mode, _tracked(layer, made):
            p = layer(fields)
            if p.requires_grad:
                p.sum().backward()
        counts.append((_circuits(made), layer.circuits_run - before))
    assert counts == [(6, 6)] * 3


def _tracked(layer, made):
    """Collect a tracker for each device that the layer makes or has."""
    tracker = qml.Tracker(layer._circuits.device)
    made.append(tracker)
    return tracker


def _circuits(made):
    """How many rows were run, of which devices that broadcast run many in one simulation."""
    return sum(tracker.totals.get("executions", 0) for tracker in made)


@pytest.mark.parametrize("present", [None, causal_mask(3)], ids=["all", "causal"])
def test_parameter_shift_gradients_are_those_of_backprop(present):
    fields = draw_fields(2, 2, 3, 3)
    shifted = gradients(build(3, 2, gradient="parameter-shift", device="default.qubit"), fields, present)
    expected = gradients(build(3, 2, gradient="backprop", device="default.qubit"), fields, present)
    for ours, theirs in zip(shifted, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-10


@pytest.mark.parametrize(("trains_fields", "trains_couplings"), [(True, True), (True, False), (False, True)])
def test_parameter_shift_submits_as_many_circuits_as_it_counts(trains_fields, trains_couplings):
    layer = build(3, gradient="parameter-shift", device="default.qubit")
    layer.couplings.requires_grad_(trains_couplings)
    fields = draw_fields(2, 1, 3).requires_grad_(trains_fields)
    with qml.Tracker(layer._circuits.device) as tracker:
        layer(fields).sum().backward()
    assert tracker.totals["executions"] == layer.circuits_run
    steps = len(SCHEDULE.angles())
    assert layer.circuits_run == 2 * (1 + 2 * steps * (3 * trains_fields + 3 * trains_couplings))
    with torch.no_grad(), qml.Tracker(layer._circuits.device) as tracker:
        layer(fields)
    assert tracker.totals["simulations"] == 1


def test_parameter_shift_estimates_the_circuits_own_derivative_from_shots():
    fields = draw_fields(1, 1, 2)
    exact = gradients(build(2), fields)
    runs = [gradients(build(2, shots=100, gradient="parameter-shift", seed=seed), fields) for seed in range(60)]
    for of_runs, expected in zip(zip(*runs, strict=True), exact, strict=True):
        found = torch.stack(of_runs)
        assert ((found.mean(0) - expected).abs() < 5 * found.std(0) / math.sqrt(len(runs))).all()


@on_samplers
def test_rows_that_are_identical_are_run_once(device):
    attention = BoltzmannAttention(4, build(3, 2, device=device, shots=100, gradient="covariance"), use_fields=False)
    attention = attention.double()
    x = draw(5, 3, 4)
    y = attention(x)
    assert attention.layer.circuits_run == 2 * 3
    y.sum().backward()
    assert attention.layer.couplings.grad.abs().min() > 0


def test_identical_rows_have_the_gradients_of_rows_run_apart():
    one, rows = draw_fields(1, 2, 1, 3), draw_fields(1, 2, 4, 3)
    fields = torch.cat((one, rows, one), 2)
    layer = build(3, 2, gradient="covariance")
    found = gradients(layer, fields)
    assert layer.circuits_run == 2 * 5
    apart = [gradients_of_row(layer, fields, row) for row in range(6)]
    for index, values in enumerate(zip(*apart, strict=True)):
        expected = torch.cat(values, 2) if index < 2 else sum(values)
        assert (found[index] - expected).abs().max() < 1e-12


def gradients_of_row(layer, fields, row):
    weights = torch.linspace(-1, 2, fields.numel(), dtype=fields.dtype).view(fields.shape)[:, :, row : row + 1]
    h = fields[:, :, row : row + 1].clone().requires_grad_()
    p = layer(h)
    return p.detach(), *torch.autograd.grad((weights * p).sum(), (h, layer.couplings))


@pytest.mark.parametrize("settings", [{"shots": 10}, {}, {"gradient": "parameter-shift", "device": "default.qubit"}])
def test_max_circuits_stops_before_more_are_submitted(settings, monkeypatch):
    layer = build(3, max_circuits=5, **settings)
    fields = draw_fields(2, 1, 3)
    with torch.no_grad():
        layer(fields)
        layer(fields + 1)
    assert layer.circuits_run == 4
    monkeypatch.setattr(layer._circuits, "circuit", lambda *_: pytest.fail("a circuit was made"))
    with torch.no_grad(), pytest.raises(RuntimeError, match="2 more circuits after 4 would pass max_circuits=5"):
        layer(fields + 2)
    with pytest.raises(RuntimeError, match="max_circuits=5"):
        layer(fields + 2).sum().backward()
    assert layer.circuits_run == 4


def test_shots_bring_no_trial_run_at_construction(monkeypatch):
    monkeypatch.setattr(QuenchCircuits, "run", lambda *_: pytest.fail("a circuit was run"))
    DQALayer(3, shots=100)


def test_float32_stays_float32_with_shots():
    layer = DQALayer(3, shots=100, schedule=SCHEDULE)
    fields = draw_fields(2, 1, 3).float().requires_grad_()
    p = layer(fields)
    p.sum().backward()
    assert {p.dtype, fields.grad.dtype, layer.couplings.grad.dtype, layer.standard_error.dtype} == {torch.float32}
    assert layer.couplings.grad.shape == (1, num_pairs(3))


@pytest.mark.parametrize("gradient", ["adjoint", "parameter-shift", "covariance"])
@pytest.mark.parametrize("wanted", ["fields", "couplings"])
def test_second_derivatives_are_refused_where_they_would_be_wrong(gradient, wanted):
    layer = build(2, gradient=gradient, device="lightning.qubit" if gradient == "adjoint" else "default.qubit")
    fields = draw_fields(2, 1, 2).requires_grad_()
    inputs = {"fields": fields, "couplings": layer.couplings}
    slope = torch.autograd.grad(layer(fields).square().sum(), inputs[wanted], create_graph=True)[0]
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()
