"""Derivatives on hybrid.statevector are those of default.qubit, with autograd and with torch, first and second."""

import itertools

import numpy as np
import pennylane as qml
import pytest
import torch
from test_statevector import (
    CIRCUITS,
    EXACT,
    OTHER,
    Z_BASIS,
    after_gates,
    alone,
    alone_on_a_permutation,
    convert,
    draw,
    make_qnode,
)

REAL = {name: measure for name, measure in {**Z_BASIS, **OTHER}.items() if name not in ("state", "density matrix")}
FEW = {name: REAL[name] for name in ("all probabilities", "some probabilities", "Z Z", "variance of Z", "X", "sum")}
every_batch = pytest.mark.parametrize("batched", list(itertools.product((False, True), repeat=2)), ids=str)
every_one_of_a_few = pytest.mark.parametrize("measure", FEW.values(), ids=FEW)


def weigh(values, library):
    """A loss that tells all entries apart."""
    weights = np.linspace(-1, 2, int(np.prod(values.shape))).reshape(values.shape)
    return (values * (torch.tensor(weights) if library == "torch" else weights)).sum()


def by_torch(qnode, inputs):
    tensors = convert(inputs, "torch")
    return [x.numpy() for x in torch.autograd.grad(weigh(qnode(*tensors), "torch"), tensors, allow_unused=True)]


def by_autograd(qnode, inputs):
    return qml.grad(lambda *args: weigh(qnode(*args), "autograd"))(*convert(inputs, "autograd"))


def assert_close(found, expected, tolerance=EXACT):
    for ours, theirs in zip(found, expected, strict=True):
        assert np.shape(ours) == np.shape(theirs)
        assert np.abs(np.asarray(ours) - np.asarray(theirs)).max() < tolerance
    assert any(np.abs(x).max() > 1e-3 for x in found)


@pytest.mark.parametrize("gradient", [by_torch, by_autograd])
@pytest.mark.parametrize("batched", [(False, False), (True, True)], ids=["one", "batch"])
@pytest.mark.parametrize("name", [name for name in REAL if name not in ("identity", "Z of a wire that stays idle")])
def test_each_measurement_after_dqa_alone(name, batched, gradient):
    expected = gradient(make_qnode("default.qubit", alone, REAL[name]), draw(batched))
    assert_close(gradient(make_qnode("hybrid.statevector", alone, REAL[name]), draw(batched)), expected)


@pytest.mark.parametrize("gradient", [by_torch, by_autograd])
@pytest.mark.parametrize("name", ["identity", "Z of a wire that stays idle"])
def test_constants_have_zero_gradients(name, gradient):
    found = gradient(make_qnode("hybrid.statevector", alone, REAL[name]), draw())
    assert [x.shape for x in found] == [x.shape for x in draw()]
    assert max(np.abs(x).max() for x in found) < 1e-14


@pytest.mark.parametrize(("name", "gradient"), [("some probabilities", by_torch), ("sum", by_autograd)])
@every_batch
@pytest.mark.parametrize("circuit", CIRCUITS)
def test_every_circuit(circuit, name, batched, gradient):
    expected = gradient(make_qnode("default.qubit", circuit, REAL[name]), draw(batched))
    assert_close(gradient(make_qnode("hybrid.statevector", circuit, REAL[name]), draw(batched)), expected)


@pytest.mark.parametrize("batched", [(False, False), (True, False)], ids=["one", "batch"])
@every_one_of_a_few
def test_jacobians_by_autograd(measure, batched):
    found, expected = (
        qml.jacobian(make_qnode(name, alone, measure))(*convert(draw(batched), "autograd"))
        for name in ("hybrid.statevector", "default.qubit")
    )
    assert_close(found, expected)


@every_one_of_a_few
def test_jacobians_by_torch(measure):
    found, expected = (
        torch.autograd.functional.jacobian(make_qnode(name, alone, measure), tuple(convert(draw(), "torch")))
        for name in ("hybrid.statevector", "default.qubit")
    )
    assert_close([x.numpy() for x in found], [x.numpy() for x in expected])


def second_by_torch(qnode, inputs):
    """Gradients of the squared norms of all gradients."""
    tensors = convert(inputs, "torch")
    first = torch.autograd.grad(weigh(qnode(*tensors), "torch"), tensors, create_graph=True)
    return [x.numpy() for x in torch.autograd.grad(sum(x.square().sum() for x in first), tensors)]


def second_by_autograd(qnode, inputs):
    gradient = qml.grad(lambda *args: weigh(qnode(*args), "autograd"), argnums=[0, 1, 2])
    values = convert(inputs, "autograd")
    return qml.grad(lambda *args: sum((x**2).sum() for x in gradient(*args)), argnums=[0, 1, 2])(*values)


@pytest.mark.parametrize("second", [second_by_torch, second_by_autograd])
@pytest.mark.parametrize("batched", [(False, False), (True, True)], ids=["one", "batch"])
@pytest.mark.parametrize("circuit", [alone, alone_on_a_permutation, after_gates])
@pytest.mark.parametrize("measure", [FEW["some probabilities"], FEW["sum"]], ids=["some probabilities", "sum"])
def test_second_derivatives(measure, circuit, batched, second):
    expected = second(make_qnode("default.qubit", circuit, measure), draw(batched))
    assert_close(second(make_qnode("hybrid.statevector", circuit, measure), draw(batched)), expected, 1e-9)


@pytest.mark.parametrize("measure", [Z_BASIS["Z Z"], OTHER["X"]], ids=["Z Z", "X"])
def test_hessian_by_autograd_is_symmetric_and_that_of_default_qubit(measure):
    inputs = convert(draw(), "autograd")
    found, expected = (
        qml.jacobian(qml.grad(make_qnode(name, alone, measure), argnums=0), argnums=0)(*inputs)
        for name in ("hybrid.statevector", "default.qubit")
    )
    assert found == pytest.approx(expected, abs=EXACT)
    assert found == pytest.approx(found.T, abs=EXACT)


@pytest.mark.parametrize("argnum", [0, 1, 2])
def test_the_gradient_of_one_argument_alone(argnum):
    inputs = convert(draw(), "autograd")
    for x in inputs:
        x.requires_grad = x is inputs[argnum]
    found, expected = (
        qml.grad(make_qnode(name, alone, Z_BASIS["Z Z"]))(*inputs) for name in ("hybrid.statevector", "default.qubit")
    )
    assert found == pytest.approx(expected, abs=EXACT)


@pytest.mark.parametrize("gradient", [by_torch, by_autograd])
@pytest.mark.parametrize("method", ["adjoint", "parameter-shift", "finite-diff"])
@pytest.mark.parametrize("circuit", [alone, after_gates])
def test_other_differentiation_methods(circuit, method, gradient):
    found = gradient(make_qnode("hybrid.statevector", circuit, Z_BASIS["Z Z"], diff_method=method), draw())
    expected = gradient(make_qnode("hybrid.statevector", circuit, Z_BASIS["Z Z"]), draw())
    assert_close(found, expected, 1e-5 if method == "finite-diff" else EXACT)


def test_adjoint_of_several_expectation_values():
    def run(name):
        circuit = make_qnode(name, alone, [Z_BASIS["Z"], OTHER["X"]], diff_method="adjoint")
        return qml.jacobian(lambda *args: qml.math.stack(circuit(*args)))(*convert(draw(), "autograd"))

    assert_close(run("hybrid.statevector"), run("default.qubit"))


@pytest.mark.parametrize("gradient", [by_torch, by_autograd, second_by_torch])
def test_a_small_memory_budget_changes_no_gradient(gradient):
    for circuit, measure in ((alone, Z_BASIS["some probabilities"]), (after_gates, OTHER["sum"])):
        plain = make_qnode("hybrid.statevector", circuit, measure)
        tight = make_qnode("hybrid.statevector", circuit, measure, device_options={"memory_budget": 1})
        assert_close(gradient(tight, draw((True, True))), gradient(plain, draw((True, True))), 1e-12)
