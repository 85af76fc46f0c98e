"""Finite shots on hybrid.statevector, and batches that a small memory budget runs some rows at a time."""

import numpy as np
import pennylane as qml
import pytest
from test_statevector import (
    OTHER,
    SETS,
    Z_BASIS,
    after_gates,
    alone,
    assert_alike,
    convert,
    draw,
    make_qnode,
    twice,
)

from devices import statevector

SAMPLED = {
    "samples": lambda w: qml.sample(wires=[w[2], w[0]]),
    "samples of X": lambda w: qml.sample(qml.X(w[1])),
    "counts": lambda w: qml.counts(wires=w[:3]),
    "counts of Z": lambda w: qml.counts(qml.Z(w[0])),
    "counts of all outcomes": lambda w: qml.counts(wires=w[:2], all_outcomes=True),
    "Z": Z_BASIS["Z"],
    "variance of Z Z": Z_BASIS["variance of Z Z"],
    "some probabilities": Z_BASIS["some probabilities"],
    "sum": OTHER["sum"],
    "Hermitian": OTHER["Hermitian"],
    "several": [Z_BASIS["Z"], OTHER["X"], Z_BASIS["all probabilities"], lambda w: qml.counts(wires=w[0])],
}
every_sampled = pytest.mark.parametrize("measure", SAMPLED.values(), ids=SAMPLED)
SHOTS = {"shots": 50, "one shot": 1, "shot vector": (5, 10, 5)}
every_shots = pytest.mark.parametrize("shots", SHOTS.values(), ids=SHOTS)


def sampling(name, measure, shots, circuit=alone, seed=3, **device_options):
    options = {"seed": seed, **device_options}
    return qml.set_shots(make_qnode(name, circuit, measure, device_options=options), shots)


def flatten(result):
    """All leaves of a result, its dictionaries of counts as they are."""
    if isinstance(result, (tuple, list)):
        return [leaf for part in result for leaf in flatten(part)]
    return [result]


def equal(one, other):
    pairs = list(zip(flatten(one), flatten(other), strict=True))
    return all(x == y if isinstance(x, dict) else np.array_equal(x, y) for x, y in pairs)


@pytest.mark.parametrize("batched", [(False, False), (True, True)], ids=["one", "batch"])
@every_shots
@every_sampled
def test_draws_are_those_of_default_qubit_at_the_same_seed(measure, shots, batched):
    found, expected = (
        sampling(name, measure, shots)(*draw(batched)) for name in ("hybrid.statevector", "default.qubit")
    )
    assert_structure(found, expected)
    assert equal(found, expected)


def assert_structure(found, expected):
    if isinstance(expected, (tuple, list)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert_structure(ours, theirs)
    elif isinstance(expected, dict):
        assert {type(key) for key in found} == {type(key) for key in expected}
    else:
        assert_alike(np.asarray(found), np.asarray(expected), np.inf)


@pytest.mark.parametrize("circuit", [alone, after_gates, twice])
def test_a_seed_fixes_the_draws_and_another_seed_gives_others(circuit):
    first, again, other = (
        sampling("hybrid.statevector", SAMPLED["samples"], 200, circuit, seed)(*draw()) for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_two_runs_of_one_device_draw_anew():
    circuit = sampling("hybrid.statevector", SAMPLED["samples"], 200)
    assert not np.array_equal(circuit(*draw()), circuit(*draw()))


@pytest.mark.parametrize("circuit", [alone, after_gates])
def test_sampling_errors_fall_with_the_square_root_of_the_shots(circuit):
    exact = make_qnode("hybrid.statevector", circuit, Z_BASIS["Z"])(*draw())
    spread = np.sqrt(1 - exact**2)
    for shots in (100, 10000):
        estimate = sampling("hybrid.statevector", Z_BASIS["Z"], shots, circuit)
        errors = np.array([estimate(*draw()) - exact for _ in range(100)])
        assert np.sqrt(np.mean(errors**2)) == pytest.approx(spread / np.sqrt(shots), rel=0.25)
        assert abs(errors.mean()) < 4 * spread / np.sqrt(100 * shots)


def test_samples_come_from_the_probabilities():
    exact = make_qnode("hybrid.statevector", alone, Z_BASIS["all probabilities"])(*draw())
    samples = sampling("hybrid.statevector", lambda w: qml.sample(wires=w[:3]), 20000)(*draw())
    assert samples.shape == (20000, 3)
    frequencies = np.bincount(samples @ [4, 2, 1], minlength=8) / 20000
    assert (np.abs(frequencies - exact) < 5 * np.sqrt(exact * (1 - exact) / 20000) + 1e-12).all()


def test_the_constructor_takes_shots():
    with pytest.warns(qml.exceptions.PennyLaneDeprecationWarning, match="shots"):
        device = qml.device("hybrid.statevector", wires=2, shots=7)
    with pytest.warns(qml.exceptions.PennyLaneDeprecationWarning, match="shots"):
        other = qml.device("default.qubit", wires=2, shots=7)
    assert device.shots.total_shots == 7
    ours, theirs = (qml.QNode(lambda: qml.sample(wires=[0]), made)() for made in (device, other))
    assert np.shape(ours) == np.shape(theirs)


def test_gradients_by_parameter_shift_with_shots_are_near_the_exact_ones():
    inputs = [qml.numpy.array(x, requires_grad=True) for x in draw()]
    exact = qml.grad(make_qnode("hybrid.statevector", alone, Z_BASIS["Z"]))(*inputs)
    estimate = qml.set_shots(
        make_qnode(
            "hybrid.statevector", alone, Z_BASIS["Z"], diff_method="parameter-shift", device_options={"seed": 1}
        ),
        100000,
    )
    for found, expected in zip(qml.grad(estimate)(*inputs), exact, strict=True):
        assert np.abs(found - expected).max() < 0.05


def split(rows, wires=4):
    """Device options whose memory holds this many rows."""
    return {"memory_budget": rows * 2**wires * 16}


@pytest.fixture
def parts(monkeypatch):
    """The numbers of rows that simulations ran on."""
    counts = []
    simulate = statevector.simulate

    def count(circuit, *args, **kwargs):
        counts.append(circuit.batch_size)
        return simulate(circuit, *args, **kwargs)

    monkeypatch.setattr(statevector, "simulate", count)
    return counts


def count_parts(rows):
    """A single row runs without a batch dimension."""
    return {1: [None] * 3, 2: [2, None]}[rows]


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("batched", [(True, True), (True, False), (False, True)], ids=["both", "fields", "couplings"])
@pytest.mark.parametrize("interface", ["numpy", "torch"])
def test_a_divided_batch_gives_the_same_analytic_results(interface, batched, rows, parts):
    inputs = convert(draw(batched), interface)
    for circuit in (after_gates, twice):
        whole = make_qnode("hybrid.statevector", circuit, SETS["with others"])(*inputs)
        parts.clear()
        options = split(rows)
        divided = make_qnode("hybrid.statevector", circuit, SETS["with others"], device_options=options)(*inputs)
        assert parts == count_parts(rows)
        assert_alike(divided, whole)


@every_shots
@every_sampled
def test_a_divided_batch_gives_results_of_the_same_form_with_shots(measure, shots, parts):
    whole = sampling("hybrid.statevector", measure, shots)(*draw((True, True)))
    parts.clear()
    divided = sampling("hybrid.statevector", measure, shots, memory_budget=1)(*draw((True, True)))
    assert parts == count_parts(1)
    assert_structure(divided, whole)
    for ours, theirs in zip(flatten(divided), flatten(whole), strict=True):
        if isinstance(theirs, dict):
            assert sum(ours.values()) == sum(theirs.values())


def certain(h, J, angles, w):
    """A state of the computational basis, another for each row, so that draws are certain."""
    alone(h * 0, J, angles * 0, w)
    for wire in w[:3]:
        qml.Hadamard(wire)
    qml.RX(np.array([0.0, np.pi, 0.0]), w[0])
    qml.RX(np.array([0.0, np.pi, np.pi]), w[2])


CERTAIN = {name: SAMPLED[name] for name in ("samples", "counts", "counts of Z", "counts of all outcomes", "Z")}


@pytest.mark.parametrize("rows", [1, 2])
@every_shots
@pytest.mark.parametrize("measure", CERTAIN.values(), ids=CERTAIN)
def test_a_divided_batch_keeps_the_order_of_its_rows(measure, shots, rows, parts):
    whole = sampling("default.qubit", measure, shots, certain)(*draw((True, True)))
    divided = sampling("hybrid.statevector", measure, shots, certain, **split(rows, 3))(*draw((True, True)))
    assert parts[-len(count_parts(rows)) :] == count_parts(rows)
    assert_structure(divided, whole)
    assert equal(divided, whole)
    if shots == 50 and measure is SAMPLED["samples"]:
        assert [row[0].tolist() for row in divided] == [[0, 0], [1, 1], [1, 0]]


def test_a_divided_batch_counts_as_one_simulation():
    circuit = make_qnode("hybrid.statevector", after_gates, OTHER["X"], device_options=split(1))
    with qml.Tracker(circuit.device) as tracker:
        circuit(*draw((True, True)))
    assert tracker.totals["simulations"] == tracker.totals["batches"] == 1


BATCH = np.array([0.1, 0.2, 0.3])
COMPOSITE = {
    "product": lambda: qml.prod(qml.RX(BATCH, 0), qml.RY(0.3, 1)),
    "exponential": lambda: qml.exp(qml.X(0), 1j * BATCH),
    "controlled exponential": lambda: qml.ctrl(qml.exp(qml.X(0), 1j * BATCH), 1),
    "adjoint": lambda: qml.adjoint(qml.Rot(BATCH, 0.2, BATCH, 0)),
    "power": lambda: qml.pow(qml.RX(BATCH, 0), 2),
    "controlled": lambda: qml.ctrl(qml.RX(BATCH, 0), 1),
    "state": lambda: qml.StatePrep(np.eye(4)[:3], wires=[0, 1]),
    "matrix": lambda: qml.QubitUnitary(np.stack([qml.RX(x, 0).matrix() for x in BATCH]), 0),
}


@pytest.mark.parametrize("states", [1, 2])
@pytest.mark.parametrize("name", COMPOSITE)
def test_every_kind_of_operator_with_a_batch_is_divided(name, states):
    def circuit():
        qml.RY(0.4, 0)
        qml.H(1)
        COMPOSITE[name]()
        return qml.expval(qml.Z(0)), qml.probs()

    def start():
        COMPOSITE[name]()
        return qml.expval(qml.Z(0)), qml.probs()

    function = start if name == "state" else circuit
    divided = qml.device("hybrid.statevector", wires=2, memory_budget=states * 4 * 16)
    found, expected = (qml.QNode(function, device)() for device in (divided, qml.device("default.qubit", wires=2)))
    for ours, theirs in zip(found, expected, strict=True):
        assert np.shape(ours) == np.shape(theirs)
        assert abs(ours - theirs).max() < 1e-12


@pytest.mark.parametrize("budget", ["1GB", 0, -1, 0.5, float("nan"), float("inf"), True, None])
def test_a_budget_that_is_not_a_number_of_bytes_is_refused(budget):
    with pytest.raises(ValueError, match=r"memory_budget=.* was given: give a positive number of bytes"):
        qml.device("hybrid.statevector", wires=2, memory_budget=budget)


def test_a_budget_may_be_written_as_a_float():
    circuit = qml.QNode(COMPOSITE["power"], qml.device("hybrid.statevector", wires=1, memory_budget=64.0))
    assert circuit.device.memory_budget == 64
