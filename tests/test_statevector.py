"""hybrid.statevector gives what default.qubit gives: the same types, shapes, dtypes and values in every interface."""

import itertools

import numpy as np
import pennylane as qml
import pytest
import torch

from devices import DQA

BATCH = 3
EXACT = 1e-10
LABELS = {"numbers": [0, 1, 2, 3], "strings": ["q", "b", "a", "z"]}
INTERFACES = ("numpy", "autograd", "torch")


def alone(h, J, angles, w):
    DQA(h, J, angles, wires=w[:3])


def alone_on_a_permutation(h, J, angles, w):
    DQA(h, J, angles, wires=[w[3], w[0], w[1]])


def after_gates(h, J, angles, w):
    qml.RX(0.4, w[0])
    qml.CNOT([w[0], w[3]])
    qml.RY(-0.7, w[2])
    DQA(h, J, angles, wires=w[:3])


def after_a_batch_of_gates(h, J, angles, w):
    qml.RX(np.linspace(0.1, 0.9, BATCH), w[0])
    qml.CNOT([w[0], w[1]])
    DQA(h, J, angles, wires=w[:3])


def before_gates(h, J, angles, w):
    DQA(h, J, angles, wires=w[:3])
    qml.RX(0.4, w[1])
    qml.CNOT([w[1], w[3]])


def among_gates_on_a_permutation(h, J, angles, w):
    for wire, angle in zip(w, (0.3, 0.5, -0.4, 0.8), strict=True):
        qml.RY(angle, wire)
    DQA(h, J, angles, wires=[w[2], w[0], w[3]])
    qml.CRX(0.7, [w[0], w[1]])


def twice(h, J, angles, w):
    DQA(h, J, angles, wires=w[:3])
    DQA(J, h, angles, wires=w[1:])


CIRCUITS = (
    alone,
    alone_on_a_permutation,
    after_gates,
    after_a_batch_of_gates,
    before_gates,
    among_gates_on_a_permutation,
    twice,
)

Z_BASIS = {
    "all probabilities": lambda w: qml.probs(wires=[w[0], w[1], w[2]]),
    "some probabilities": lambda w: qml.probs(wires=[w[1], w[0]]),
    "Z": lambda w: qml.expval(qml.Z(w[1])),
    "Z Z": lambda w: qml.expval(qml.Z(w[0]) @ qml.Z(w[1])),
    "variance of Z": lambda w: qml.var(qml.Z(w[0])),
    "variance of Z Z": lambda w: qml.var(qml.Z(w[1]) @ qml.Z(w[0])),
    "Z of a wire beside the others": lambda w: qml.expval(qml.Z(w[2])),
    "identity": lambda w: qml.expval(qml.Identity(w[0])),
}
OTHER = {
    "state": lambda w: qml.state(),
    "probabilities of the device": lambda w: qml.probs(),
    "density matrix": lambda w: qml.density_matrix([w[1]]),
    "purity": lambda w: qml.purity([w[0], w[1]]),
    "X": lambda w: qml.expval(qml.X(w[1])),
    "Y Z": lambda w: qml.expval(qml.Y(w[0]) @ qml.Z(w[1])),
    "variance of X": lambda w: qml.var(qml.X(w[0])),
    "multiple of Z": lambda w: qml.expval(1.5 * qml.Z(w[0])),
    "sum": lambda w: qml.expval(0.5 * qml.Z(w[0]) + qml.X(w[1]) @ qml.Z(w[2]) - qml.Identity(w[0])),
    "sum of Z": lambda w: qml.expval(qml.Z(w[0]) + qml.Z(w[1])),
    "Hamiltonian": lambda w: qml.expval(qml.Hamiltonian([0.3, -0.8], [qml.Z(w[0]) @ qml.Z(w[2]), qml.Y(w[1])])),
    "Hermitian": lambda w: qml.expval(qml.Hermitian(np.array([[1.0, 2 - 1j], [2 + 1j, -3]]), wires=w[1])),
    "projector": lambda w: qml.expval(qml.Projector([1, 0], wires=[w[0], w[2]])),
    "variance of a projector": lambda w: qml.var(qml.Projector([1], wires=[w[0]])),
    "Z of a wire that stays idle": lambda w: qml.expval(qml.Z(w[3])),
    "probabilities of an idle wire": lambda w: qml.probs(wires=[w[3], w[0]]),
    "probabilities of X": lambda w: qml.probs(op=qml.X(w[0])),
}
MEASUREMENTS = {**Z_BASIS, **OTHER}
SETS = {
    "Z basis": list(Z_BASIS.values()),
    "with others": [*Z_BASIS.values(), *OTHER.values()],
}


def draw(batched=(False, False), steps=2):
    """Fields, couplings and angles for three wires."""
    rng = np.random.default_rng(5)
    h, J = rng.normal(0.3, 0.8, (BATCH, 3)), rng.normal(-0.2, 0.7, (BATCH, 3))
    values = [x if many else x[0] for x, many in zip((h, J), batched, strict=True)]
    return [*values, rng.normal(0.4, 0.5, (steps, 3))]


def convert(values, interface):
    if interface == "torch":
        return [torch.tensor(x, requires_grad=True) for x in values]
    return [qml.numpy.array(x, requires_grad=True) for x in values] if interface == "autograd" else values


def make_qnode(name, circuit, measurements, labels="numbers", **options):
    """A QNode that returns one measurement, or, of a list, the tuple of all."""
    w = LABELS[labels]
    device_options = options.pop("device_options", {})

    @qml.qnode(qml.device(name, wires=w, **device_options), **options)
    def run(h, J, angles):
        circuit(h, J, angles, w)
        return [make(w) for make in measurements] if isinstance(measurements, list) else measurements(w)

    return run


def to_float64(x):
    return x.detach().numpy() if isinstance(x, torch.Tensor) else np.array(x, dtype=float)


def assert_alike(found, expected, tolerance=EXACT):
    assert type(found) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert_alike(ours, theirs, tolerance)
        return
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    assert getattr(found, "requires_grad", None) == getattr(expected, "requires_grad", None)
    ours, theirs = (x.detach().numpy() if isinstance(x, torch.Tensor) else x for x in (found, expected))
    assert np.abs(ours - theirs).max() < tolerance


every_interface = pytest.mark.parametrize("interface", INTERFACES)
every_batch = pytest.mark.parametrize("batched", list(itertools.product((False, True), repeat=2)), ids=str)


@pytest.mark.parametrize("batched", [(False, False), (True, True)], ids=["one", "batch"])
@every_interface
@pytest.mark.parametrize("measure", MEASUREMENTS.values(), ids=MEASUREMENTS)
def test_each_measurement_after_dqa_alone(measure, interface, batched):
    inputs = convert(draw(batched), interface)
    expected = make_qnode("default.qubit", alone, measure)(*inputs)
    assert_alike(make_qnode("hybrid.statevector", alone, measure)(*inputs), expected)


@every_batch
@pytest.mark.parametrize(("interface", "labels"), [("numpy", "numbers"), ("autograd", "numbers"), ("torch", "strings")])
@pytest.mark.parametrize("measurements", SETS.values(), ids=SETS)
@pytest.mark.parametrize("circuit", CIRCUITS)
def test_all_measurements_of_every_circuit(circuit, measurements, labels, interface, batched):
    inputs = convert(draw(batched), interface)
    expected = make_qnode("default.qubit", circuit, measurements, labels)(*inputs)
    assert_alike(make_qnode("hybrid.statevector", circuit, measurements, labels)(*inputs), expected)


@pytest.mark.parametrize("measurements", SETS.values(), ids=SETS)
def test_circuits_without_dqa(measurements):
    def gates(x, y, _, w):
        qml.RX(x[..., 0], w[0])
        qml.CNOT([w[0], w[2]])
        qml.RY(y[..., 1], w[1])

    inputs = draw((True, True))
    expected = make_qnode("default.qubit", gates, measurements)(*inputs)
    assert_alike(make_qnode("hybrid.statevector", gates, measurements)(*inputs), expected)


@every_interface
def test_a_device_without_wires_takes_those_of_the_circuit(interface):
    inputs = convert(draw(), interface)

    def run(name):
        circuit = lambda h, J, angles: (alone(h, J, angles, ["c", 7, "a"]), qml.probs(wires=[7, "c"]))[1]  # noqa: E731
        return qml.QNode(circuit, qml.device(name))(*inputs)

    assert_alike(run("hybrid.statevector"), run("default.qubit"))


def test_inputs_of_mixed_kinds():
    h, J, angles = draw((True, True))
    mixed = [
        (torch.tensor(h, requires_grad=True), J, angles),
        (h, torch.tensor(J), torch.tensor(angles)),
        (qml.numpy.array(h, requires_grad=True), J, angles),
        (h.tolist(), J.tolist(), angles.tolist()),
        (np.ones((BATCH, 3), dtype=int), J, angles),
    ]
    for inputs in mixed:
        expected = make_qnode("default.qubit", alone, SETS["Z basis"])(*(to_float64(x) for x in inputs))
        found = make_qnode("hybrid.statevector", alone, SETS["Z basis"])(*inputs)
        for ours, theirs in zip(found, expected, strict=True):
            assert np.abs(to_float64(ours) - theirs).max() < EXACT


def test_float32_parameters_run_in_float32_where_dqa_is_alone_on_the_z_basis():
    inputs = draw((True, True))
    narrow = [torch.tensor(x, dtype=torch.float32, requires_grad=True) for x in inputs]
    expected = make_qnode("default.qubit", alone, SETS["with others"])(*inputs)
    found = make_qnode("hybrid.statevector", alone, SETS["Z basis"])(*narrow)
    assert {x.dtype for x in found} == {torch.float32}
    for ours, theirs in zip(found, expected, strict=False):
        assert np.abs(ours.detach().numpy() - theirs).max() < 1e-5
    sum(x.sum() for x in found).backward()
    assert {x.grad.dtype for x in narrow} == {torch.float32}
    state = make_qnode("hybrid.statevector", alone, OTHER["state"])(*narrow)
    assert state.dtype == make_qnode("default.qubit", alone, OTHER["state"])(*narrow).dtype


def test_a_product_with_two_z_on_one_wire_is_real():
    """default.qubit gives it as a complex number."""
    measure = lambda w: qml.expval(qml.Z(w[0]) @ qml.Z(w[1]) @ qml.Z(w[0]))  # noqa: E731
    found = make_qnode("hybrid.statevector", alone, measure)(*draw())
    assert found.dtype == np.float64
    assert found == pytest.approx(make_qnode("default.qubit", alone, Z_BASIS["Z"])(*draw()), abs=EXACT)


@pytest.mark.parametrize("method", ["backprop", "best", None])
@pytest.mark.parametrize(("circuit", "count"), [(alone, 1), (twice, 2)])
def test_the_operation_reaches_the_device_whole(circuit, count, method):
    qnode = make_qnode("hybrid.statevector", circuit, Z_BASIS["Z"], diff_method=method)
    with qml.Tracker(qnode.device) as tracker:
        qnode(*convert(draw(), "autograd"))
    assert [dict(resources.gate_types) for resources in tracker.history["resources"]] == [{"DQA": count}]


def test_specs_at_the_level_of_the_device():
    counted = {
        method: qml.specs(make_qnode("hybrid.statevector", alone, Z_BASIS["Z"], diff_method=method), level="device")(
            *convert(draw(), "autograd")
        )["resources"].gate_types
        for method in ("backprop", "adjoint")
    }
    assert counted["backprop"] == {"DQA": 1}
    assert counted["adjoint"] == {"Hadamard": 3, "RZ": 6, "IsingZZ": 6, "RX": 6}


def test_a_broadcast_execution_is_one_simulation():
    for circuit, measure in ((alone, Z_BASIS["Z"]), (after_gates, OTHER["X"])):
        qnode = make_qnode("hybrid.statevector", circuit, measure)
        with qml.Tracker(qnode.device) as tracker:
            qnode(*draw((True, True)))
        assert tracker.totals["batches"] == tracker.totals["simulations"] == 1
        assert tracker.totals["executions"] == BATCH


def test_name_and_kind():
    device = qml.device("hybrid.statevector", wires=2)
    assert device.name == "hybrid.statevector"
    assert "hybrid.statevector" in repr(device)


@pytest.mark.parametrize("budget", [0, -1])
def test_a_memory_budget_that_is_not_positive_is_an_error(budget):
    with pytest.raises(ValueError, match=f"memory_budget={budget}"):
        qml.device("hybrid.statevector", wires=2, memory_budget=budget)


def test_an_unknown_option_is_an_error():
    with pytest.raises(TypeError, match="flavor"):
        qml.device("hybrid.statevector", wires=2, flavor="sweet")


def test_more_wires_than_the_device_has_are_an_error():
    with pytest.raises(qml.exceptions.WireError):
        qml.QNode(lambda: (alone(*draw(), [0, 1, 2]), qml.probs())[1], qml.device("hybrid.statevector", wires=2))()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_parameters_are_computed_in_float32(dtype):
    circuit = qml.QNode(
        lambda h, J, angles: (DQA(h, J, angles, wires=range(3)), qml.probs(wires=range(3)))[1],
        qml.device("hybrid.statevector", wires=3),
    )
    parameters = [
        torch.linspace(-0.5, 0.7, 3).to(dtype),
        torch.linspace(0.2, 0.4, 3).to(dtype),
        torch.full((2, 3), 0.3),
    ]
    found = circuit(*parameters)
    assert found.dtype == torch.float32
    assert torch.equal(found, circuit(*(x.float() for x in parameters)))


def test_complex_parameters_are_refused_and_long_doubles_are_not():
    circuit = make_alone(2)
    with pytest.raises(ValueError, match="complex"):
        circuit(torch.tensor([0.1 + 0.5j, 0.2]), torch.zeros(1))
    long = circuit(np.array([0.1, 0.2], dtype=np.longdouble), np.zeros(1))
    assert abs(long - circuit(np.array([0.1, 0.2]), np.zeros(1))).max() < 1e-15


def make_alone(wires):
    @qml.qnode(qml.device("hybrid.statevector", wires=wires))
    def circuit(fields, couplings):
        DQA(fields, couplings, torch.full((2, 3), 0.3), wires=range(wires))
        return qml.probs(wires=range(wires))

    return circuit
