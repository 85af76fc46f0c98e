"""The DQA operation: what it computes, against explicit matrices, and how it behaves as a PennyLane operation."""

import copy
import itertools
import math

import numpy as np
import pennylane as qml
import pytest
import torch
from trotter_oracle import magnetizations, trotter_state

from devices import DQA

DEVICES = ("default.qubit", "lightning.qubit")


def draw_instance(num_spins, steps, seed=0, batch=()):
    rng = np.random.default_rng(seed)
    pairs = num_spins * (num_spins - 1) // 2
    h = rng.normal(0.3, 0.8, (*batch, num_spins))
    return h, rng.normal(-0.2, 0.7, (*batch, pairs)), rng.normal(0.4, 0.5, (steps, 3))


def state_probabilities(name, num_spins):
    @qml.qnode(qml.device(name, wires=num_spins))
    def circuit(h, J, angles):
        DQA(h, J, angles, wires=range(num_spins))
        return qml.probs(wires=range(num_spins))

    return circuit


def mean_spins(name, num_spins):
    @qml.qnode(qml.device(name, wires=num_spins))
    def circuit(h, J, angles):
        DQA(h, J, angles, wires=range(num_spins))
        return [qml.expval(qml.Z(j)) for j in range(num_spins)]

    return lambda *args: np.stack(circuit(*args), -1)


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("steps", [1, 3, 6])
@pytest.mark.parametrize("num_spins", [1, 2, 3, 4])
def test_circuit_is_the_product_of_matrix_exponentials(name, num_spins, steps):
    h, J, angles = draw_instance(num_spins, steps, seed=10 * num_spins + steps)
    psi = trotter_state(h, J, angles)
    assert state_probabilities(name, num_spins)(h, J, angles) == pytest.approx(abs(psi) ** 2, abs=1e-10)
    assert mean_spins(name, num_spins)(h, J, angles) == pytest.approx(magnetizations(psi, num_spins), abs=1e-10)


def test_state_has_the_phases_of_the_matrix_exponentials():
    h, J, angles = draw_instance(3, 4)
    circuit = qml.QNode(lambda: (DQA(h, J, angles, wires=range(3)), qml.state())[1], qml.device("default.qubit"))
    assert circuit() == pytest.approx(trotter_state(h, J, angles), abs=1e-10)


@pytest.mark.parametrize("name", DEVICES)
def test_one_spin_closed_form_and_sign(name):
    a, c, h = 0.3, 0.4, 0.7
    z = mean_spins(name, 1)(np.array([h]), np.zeros(0), np.array([[a, 99.0, c]]))
    assert z[0] == pytest.approx(math.sin(2 * a * h) * math.sin(2 * c), abs=1e-12)
    assert z[0] > 0


@pytest.mark.parametrize("name", DEVICES)
def test_two_spins_closed_form_and_sign(name):
    b, c, J = 0.3, 0.35, 0.6

    @qml.qnode(qml.device(name, wires=2))
    def circuit():
        DQA(np.zeros(2), np.array([J]), np.array([[99.0, b, c]]), wires=range(2))
        return qml.expval(qml.Z(0) @ qml.Z(1)), qml.expval(qml.Z(0))

    agreement, mean = circuit()
    assert agreement == pytest.approx(math.sin(2 * b * J) * math.sin(4 * c), abs=1e-12)
    assert agreement > 0
    assert mean == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", DEVICES)
def test_fields_reach_their_own_wire_and_couplings_their_own_pair(name):
    angles = np.array([[0.4, 0.3, 0.3]])
    for j in range(3):
        z = mean_spins(name, 3)(np.eye(3)[j], np.zeros(3), angles)
        assert [i for i in range(3) if abs(z[i]) > 1e-9] == [j]
    for i, (j, k) in enumerate(itertools.combinations(range(3), 2)):
        gates = DQA(np.zeros(3), np.eye(3)[i], angles, wires=list("abc")).decomposition()
        coupled = [list(g.wires) for g in gates if g.name == "IsingZZ" and g.data[0] != 0]
        assert coupled == [["abc"[j], "abc"[k]]]


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("batched", [(True, True), (True, False), (False, True)], ids=["both", "fields", "couplings"])
@pytest.mark.parametrize("num_spins", [1, 3])
def test_broadcast_equals_the_loop(name, num_spins, batched):
    hs, Js, angles = draw_instance(num_spins, 3, batch=(4,))
    h, J = (x if many else x[0] for x, many in zip((hs, Js), batched, strict=True))
    circuit = state_probabilities(name, num_spins)
    loop = [circuit(hs[i if batched[0] else 0], Js[i if batched[1] else 0], angles) for i in range(4)]
    assert DQA(h, J, angles, wires=range(num_spins)).batch_size == 4
    assert circuit(h, J, angles) == pytest.approx(np.array(loop), abs=1e-12)


def test_numpy_autograd_and_torch_agree_in_value_and_gradient():
    h, J, angles = draw_instance(3, 2)
    circuit = qml.QNode(
        lambda h, J, angles: (DQA(h, J, angles, wires=range(3)), qml.expval(qml.Z(0) @ qml.Z(2)))[1],
        qml.device("default.qubit"),
    )
    plain = circuit(h, J, angles)
    trainable = [qml.numpy.array(x, requires_grad=True) for x in (h, J, angles)]
    by_autograd = qml.grad(circuit)(*trainable)
    tensors = [torch.tensor(x, requires_grad=True) for x in (h, J, angles)]
    value = circuit(*tensors)
    value.backward()
    assert float(value.detach()) == pytest.approx(float(plain), abs=1e-12)
    for ours, other in zip(tensors, by_autograd, strict=True):
        assert ours.grad.numpy() == pytest.approx(other, abs=1e-10)


@pytest.mark.parametrize("method", ["parameter-shift", "adjoint", "finite-diff"])
def test_other_gradient_methods_agree_with_backprop(method):
    h, J, angles = draw_instance(2, 2)

    def gradients(diff_method):
        circuit = qml.QNode(
            lambda h, J, angles: (DQA(h, J, angles, wires=range(2)), qml.expval(qml.Z(0)))[1],
            qml.device("default.qubit"),
            diff_method=diff_method,
        )
        return qml.grad(circuit)(*(qml.numpy.array(x, requires_grad=True) for x in (h, J, angles)))

    for ours, other in zip(gradients(method), gradients("backprop"), strict=True):
        assert ours == pytest.approx(other, abs=1e-5)


@pytest.mark.parametrize("num_spins", [1, 2, 4])
@pytest.mark.parametrize("steps", [1, 3])
def test_gate_counts(num_spins, steps):
    h, J, angles = draw_instance(num_spins, steps)
    names = [gate.name for gate in DQA(h, J, angles, wires=range(num_spins)).decomposition()]
    pairs = num_spins * (num_spins - 1) // 2
    assert names.count("Hadamard") == num_spins
    assert names.count("RZ") == names.count("RX") == steps * num_spins
    assert names.count("IsingZZ") == steps * pairs
    assert len(names) == num_spins + steps * (2 * num_spins + pairs)


def test_specs_count_the_operation_and_its_gates():
    h, J, angles = draw_instance(4, 3)
    circuit = state_probabilities("default.qubit", 4)
    whole = qml.specs(circuit)(h, J, angles)["resources"]
    assert whole.gate_types == {"DQA": 1}
    gates = qml.specs(qml.transforms.decompose(circuit, gate_set={"H", "RZ", "RX", "IsingZZ"}))(h, J, angles)
    assert sum(gates["resources"].gate_types.values()) == 4 + 3 * (2 * 4 + 6)


def test_drawing_names_the_operation():
    h, J, angles = draw_instance(3, 2)
    assert "DQA" in qml.draw(state_probabilities("default.qubit", 3))(h, J, angles)
    assert "IsingZZ" in qml.draw(state_probabilities("default.qubit", 3), level="device")(h, J, angles)


@pytest.mark.parametrize("num_spins", [1, 3])
def test_pennylane_finds_the_operation_valid(num_spins):
    qml.ops.functions.assert_valid(DQA(*draw_instance(num_spins, 2), wires=range(num_spins)))


def test_pennylane_finds_the_broadcast_operation_valid():
    """All but differentiation, which uses the parameter-shift rule, and that refuses trainable broadcast parameters."""
    operation = DQA(*draw_instance(3, 2, batch=(4,))[:2], draw_instance(3, 2)[2], wires=range(3))
    qml.ops.functions.assert_valid(operation, skip_differentiation=True)


@pytest.mark.parametrize("name", DEVICES)
def test_decomposition_graph_gives_the_same_circuit(name):
    h, J, angles = draw_instance(3, 2)
    before = state_probabilities(name, 3)(h, J, angles)
    qml.decomposition.enable_graph()
    try:
        after = state_probabilities(name, 3)(h, J, angles)
    finally:
        qml.decomposition.disable_graph()
    assert after == pytest.approx(before, abs=1e-12)


@pytest.mark.parametrize("name", DEVICES)
def test_adjoint_undoes_the_operation(name):
    h, J, angles = draw_instance(3, 2)

    @qml.qnode(qml.device(name, wires=3))
    def circuit():
        DQA(h, J, angles, wires=range(3))
        qml.adjoint(DQA(h, J, angles, wires=range(3)))
        return qml.probs(wires=range(3))

    assert circuit()[0] == pytest.approx(1, abs=1e-12)


def test_copies_are_equal():
    operation = DQA(*draw_instance(3, 2), wires=["a", 5, "c"])
    qml.assert_equal(copy.deepcopy(operation), operation)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((2,), (3,), (2, 3)), "3 wire"),
        (((3,), (2,), (2, 3)), "3 wire"),
        (((3,), (3,), (2, 2)), "steps, 3"),
        (((3,), (3,), (3,)), "steps, 3"),
        (((3,), (3,), (0, 3)), "1 step or more"),
        (((3,), (3,), (5, 2, 3)), "steps, 3"),
        (((5, 1, 3), (3,), (2, 3)), "batch, 3"),
        (((), (3,), (2, 3)), "batch, 3"),
        (((4, 3), (5, 3), (2, 3)), "different sizes"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, words):
    with pytest.raises(ValueError, match=words):
        DQA(*(np.zeros(shape) for shape in shapes), wires=range(3))


def test_no_wires_is_an_error():
    with pytest.raises(ValueError, match="no wires"):
        DQA(np.zeros(0), np.zeros(0), np.zeros((1, 3)), wires=[])


@pytest.mark.parametrize("empty", ["fields", "couplings"])
def test_an_empty_batch_is_an_error(empty):
    fields = np.zeros((0, 3)) if empty == "fields" else np.zeros(3)
    couplings = np.zeros((0, 3)) if empty == "couplings" else np.zeros(3)
    with pytest.raises(ValueError, match="empty batch"):
        DQA(fields, couplings, np.ones((2, 3)), wires=range(3))
