"""Copies of hybrid.statevector, of its results and of layers on it, in this process and in another."""

import copy
import multiprocessing
import pickle

import numpy as np
import pennylane as qml
import pytest
import torch
from test_statevector import Z_BASIS, after_gates, alone, assert_alike, convert, draw, make_qnode

from devices import DQA, HybridStatevector
from hybrid_attention import DQALayer, LinearSchedule

run_before = pytest.mark.parametrize("ran", [False, True], ids=["fresh", "after a run"])
COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}
every_copy = pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)


def run(device, circuit=alone, **options):
    @qml.qnode(device, **options)
    def measure(h, J, angles):
        circuit(h, J, angles, range(4))
        return qml.probs(wires=range(3)), qml.expval(qml.Z(1))

    return measure(*draw())


@every_copy
@run_before
def test_a_copied_device_works_and_keeps_its_settings(ran, duplicate):
    device = HybridStatevector(wires=4, seed=5, memory_budget=4321)
    expected = run(HybridStatevector(wires=4))
    if ran:
        run(device)
        run(device, after_gates, diff_method="adjoint")
    made = duplicate(device)
    assert made is not device
    assert made.memory_budget == 4321
    assert made.wires == device.wires
    assert_alike(run(made), expected)
    assert_alike(run(device), expected)


def draws(device):
    circuit = qml.QNode(lambda: (alone(*draw(), range(4)), qml.sample(wires=range(3)))[1], device)
    return qml.set_shots(circuit, 100)().tolist()


@pytest.mark.parametrize("duplicate", [COPIES["deepcopy"], COPIES["pickle"]], ids=["deepcopy", "pickle"])
@run_before
def test_a_copied_device_draws_on_from_the_same_state(ran, duplicate):
    device = HybridStatevector(wires=4, seed=5)
    if ran:
        draws(device)
    made = duplicate(device)
    assert draws(made) == draws(device)


@pytest.mark.parametrize("interface", ["numpy", "autograd", "torch"])
def test_copied_results_are_equal(interface):
    for measure in (Z_BASIS["all probabilities"], Z_BASIS["Z"]):
        result = make_qnode("hybrid.statevector", alone, measure)(*convert(draw((True, True)), interface))
        if interface == "torch":
            result = result.detach()
        for duplicate in COPIES.values():
            assert_alike(duplicate(result), result)


def test_a_copied_operation_runs():
    operation = DQA(*draw(), wires=range(3))
    for duplicate in COPIES.values():
        made = duplicate(operation)
        circuit = qml.QNode(lambda made=made: (qml.apply(made), qml.probs(wires=range(3)))[1], HybridStatevector())
        assert_alike(circuit(), make_qnode("hybrid.statevector", alone, Z_BASIS["all probabilities"])(*draw()))


def build_layer():
    layer = DQALayer(3, 2, device="hybrid.statevector", schedule=LinearSchedule(3, 3.0))
    with torch.no_grad():
        layer.couplings.normal_(0.1, 0.4, generator=torch.Generator().manual_seed(0))
    return layer


def work_elsewhere(devices, layers, result):
    """Run everything in this process; the results go back."""
    fields = torch.linspace(-1, 1, 12).view(2, 2, 3).requires_grad_()
    outputs = []
    for layer in layers:
        p = layer(fields)
        outputs.append((p.detach().numpy(), torch.autograd.grad(p.square().sum(), layer.couplings)[0].numpy()))
    return [run(device) for device in devices], outputs, result


@pytest.mark.slow
def test_devices_layers_and_results_reach_a_spawned_process():
    device, layer = HybridStatevector(wires=4), build_layer()
    ran, used = HybridStatevector(wires=4), build_layer()
    result = run(ran)
    used(torch.zeros(2, 2, 3)).sum().backward()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(work_elsewhere, ([device, ran], [layer, used], result))
    here = work_elsewhere([device, ran], [layer, used], result)
    for ours, theirs in zip(found[0], here[0], strict=True):
        assert_alike(ours, theirs, 1e-14)
    for ours, theirs in zip(found[1], here[1], strict=True):
        assert np.abs(ours[0] - theirs[0]).max() < 1e-6
        assert np.abs(ours[1] - theirs[1]).max() < 1e-6
    assert_alike(found[2], result, 1e-14)
