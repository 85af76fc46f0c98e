"""Coupling shapes: which pairs are coupled, which share a coupling, and what weights of one are in another."""

import itertools
import math
import pickle
from functools import partial

import pytest
import torch
from conftest import SCHEDULE, draw_fields, gradients
from oracle import causal_mask, draw, draw_mask, largest_difference, marginals_by_table

from devices import DQA
from hybrid_attention import (
    BandedCouplings,
    DQALayer,
    ExactLayer,
    FieldsOnlyLayer,
    FreeCouplings,
    GibbsLayer,
    MeanFieldLayer,
    ToeplitzCouplings,
    TransferMatrixLayer,
    convert_couplings,
)
from hybrid_attention.ising import num_pairs, pair_index
from lightning_modules import BracketMatcher
from lightning_modules.layer_factories import to_factory, to_plain

SHAPES = [
    FreeCouplings(),
    BandedCouplings(0),
    BandedCouplings(1),
    BandedCouplings(2),
    BandedCouplings(9),
    ToeplitzCouplings(),
    ToeplitzCouplings(0),
    ToeplitzCouplings(2),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
LAYERS = {
    "exact": ExactLayer,
    "transfer matrix": TransferMatrixLayer,
    "dqa": partial(DQALayer, schedule=SCHEDULE),
    "dqa on default.qubit": partial(DQALayer, schedule=SCHEDULE, device="default.qubit"),
    "dqa on lightning.qubit": partial(DQALayer, schedule=SCHEDULE, device="lightning.qubit"),
    "dqa by covariance": partial(DQALayer, schedule=SCHEDULE, gradient="covariance"),
    "dqa by parameter-shift": partial(
        DQALayer, schedule=SCHEDULE, device="lightning.qubit", gradient="parameter-shift"
    ),
    "mean field": MeanFieldLayer,
    "tap": partial(MeanFieldLayer, tap=True),
    "gibbs": partial(GibbsLayer, num_samples=60, num_chains=20),
}
every_layer = pytest.mark.parametrize("kind", LAYERS)


def build(kind, num_spins, num_heads, shape):
    layer = LAYERS[kind](num_spins, num_heads, coupling_shape=shape).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape, center=0.1, spread=0.5))
    return layer


def matrix_by_loops(couplings, shape, num_spins):
    """J of one head, written down pair by pair."""
    J, place = torch.zeros(num_spins, num_spins, dtype=couplings.dtype), 0
    reach = math.inf if getattr(shape, "range", None) is None else shape.range
    for j, k in itertools.combinations(range(num_spins), 2):
        if k - j > reach:
            continue
        J[j, k] = J[k, j] = couplings[0, k - j - 1] if isinstance(shape, ToeplitzCouplings) else couplings[place]
        place += 1
    return J


@every_shape
@pytest.mark.parametrize("num_spins", [0, 1, 2, 5])
def test_the_coupling_matrix_is_written_pair_by_pair(shape, num_spins):
    layer = ExactLayer(num_spins, 2, shape).double()
    with torch.no_grad():
        layer.couplings.copy_(draw(*layer.couplings.shape))
    expected = torch.stack([matrix_by_loops(values, shape, num_spins) for values in layer.couplings.detach()])
    assert torch.equal(layer.coupling_matrix(), expected)
    for size in range(num_spins):
        assert torch.equal(layer.coupling_matrix(size), expected[:, :size, :size])


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (FreeCouplings(), (10,)),
        (BandedCouplings(0), (0,)),
        (BandedCouplings(2), (7,)),
        (BandedCouplings(4), (10,)),
        (BandedCouplings(40), (10,)),
        (ToeplitzCouplings(), (1, 4)),
        (ToeplitzCouplings(2), (1, 2)),
        (ToeplitzCouplings(40), (1, 4)),
    ],
)
def test_the_state_dict_follows_from_the_shape_alone(shape, size):
    for kind in ("exact", "transfer matrix", "dqa"):
        state = LAYERS[kind](5, 3, coupling_shape=shape).state_dict()
        assert tuple(state["couplings"].shape) == (3, *size)
    assert "couplings" not in FieldsOnlyLayer(5, 3, shape).state_dict()
    assert "coupling_shape" not in repr(FieldsOnlyLayer(5, 3, shape))


@every_shape
@every_layer
def test_every_layer_takes_every_shape_as_the_free_couplings_of_the_same_matrix(kind, shape):
    """p, dL/dh, and dL/dJ, which is summed over the pairs that share a coupling."""
    size = 3 if "shift" in kind else 4
    layer, free = build(kind, size, 2, shape), build(kind, size, 2, None)
    with torch.no_grad():
        free.couplings.copy_(convert_couplings(layer.couplings, shape, FreeCouplings(), size))
    fields, present = draw_fields(1, 2, 2, size), draw_mask(2, size, seed=3, kept=0.8)
    p, by_fields, by_couplings = gradients(layer, fields, present)
    expected, expected_fields, by_pairs = gradients(free, fields, present)
    assert largest_difference(p, expected) < 1e-12
    assert largest_difference(by_fields, expected_fields) < 1e-12
    summed = torch.zeros_like(by_couplings).flatten(1)
    first, second = pair_index(size)
    near = second - first <= shape.range_of(size)
    places = shape.places(first[near], second[near], size)
    summed.index_add_(1, places, by_pairs[:, near])
    assert largest_difference(by_couplings, summed.view_as(by_couplings)) < 1e-12


@every_shape
@pytest.mark.parametrize("kind", ["exact", "transfer matrix"])
def test_gradients_pass_gradcheck(kind, shape):
    layer, fields = build(kind, 5, 2, shape), draw_fields(1, 2, 5, 5).requires_grad_()
    couplings = layer.couplings.detach().clone().requires_grad_()

    def call(fields, couplings):
        return torch.func.functional_call(layer, {"couplings": couplings}, (fields, causal_mask(5)))

    assert torch.autograd.gradcheck(call, (fields, couplings))


@pytest.mark.parametrize("num_wires", [1, 2, 4])
@pytest.mark.parametrize("coupling_range", [0, 1, 2, 9, None])
def test_pairs_beyond_the_range_have_no_gate(num_wires, coupling_range):
    count = num_pairs(num_wires, coupling_range)
    operation = DQA(torch.ones(num_wires), torch.ones(count), torch.ones(3, 3), range(num_wires), coupling_range)
    pairs = [tuple(gate.wires) for gate in operation.decomposition() if gate.name == "IsingZZ"]
    near = [(j, k) for j, k in itertools.combinations(range(num_wires), 2) if k - j <= (coupling_range or 9)]
    assert pairs == (3 * near if coupling_range != 0 else [])
    with pytest.raises(ValueError, match="was given fields"):
        DQA(torch.ones(num_wires), torch.ones(count + 1), torch.ones(3, 3), range(num_wires), coupling_range)


def test_parameter_shift_runs_no_circuit_for_pairs_beyond_the_range():
    layer = DQALayer(4, device="lightning.qubit", gradient="parameter-shift", coupling_shape=BandedCouplings(1))
    with layer.counting() as found:
        layer(torch.zeros(2, 1, 4, requires_grad=True))
    assert [execution.shifted for execution in found] == [2 * len(layer.schedule.angles()) * (4 + 3)]


@every_shape
def test_shapes_are_plain_data_in_checkpoints(shape):
    plain = to_plain(partial(ExactLayer, coupling_shape=shape))
    assert plain["init_args"]["coupling_shape"]["class_path"] == f"hybrid_attention.{type(shape).__name__}"
    layer = to_factory(plain)(6, 2)
    assert layer.coupling_shape == shape
    assert pickle.loads(pickle.dumps(layer)).coupling_shape == shape


def test_weights_of_another_shape_are_refused_with_both_shapes():
    chain, toeplitz = (
        ExactLayer(4, coupling_shape=BandedCouplings(1)),
        ExactLayer(4, coupling_shape=ToeplitzCouplings()),
    )
    with pytest.raises(
        RuntimeError,
        match=r"couplings has shape \(1, 3\), and ToeplitzCouplings\(range=None\) over 4 spins and 1 head\(s\) has "
        r"\(1, 1, 3\): build the layer with the coupling shape and the sizes of these weights, or convert them",
    ):
        toeplitz.load_state_dict(chain.state_dict())
    with pytest.raises(RuntimeError, match=r"\(1, 6\), and BandedCouplings\(range=1\) over 4 spins"):
        chain.load_state_dict(ExactLayer(4).state_dict())
    with pytest.raises(RuntimeError, match=r"\(2, 6\), and FreeCouplings\(\) over 4 spins and 1 head"):
        ExactLayer(4).load_state_dict(ExactLayer(4, 2).state_dict())


@pytest.mark.parametrize("assign", [False, True])
def test_toeplitz_weights_of_fewer_distances_load_and_couple_the_others_by_0(assign):
    short, long = ExactLayer(4, 2, ToeplitzCouplings()), ExactLayer(7, 2, ToeplitzCouplings())
    torch.nn.init.normal_(short.couplings)
    torch.nn.init.normal_(long.couplings)
    long.load_state_dict(short.state_dict(), assign=assign)
    assert torch.equal(long.couplings[..., :3], short.couplings)
    assert (long.couplings[..., 3:] == 0).all()
    fields = torch.randn(3, 2, 4)
    assert torch.equal(long(fields), short(fields))
    with pytest.raises(RuntimeError, match=r"\(2, 1, 6\), and ToeplitzCouplings\(range=None\) over 4 spins"):
        short.load_state_dict(long.state_dict())


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (source, target)
        for source in SHAPES
        for target in SHAPES
        if source.range_of(5) <= target.range_of(5)
        and (isinstance(source, ToeplitzCouplings) or not isinstance(target, ToeplitzCouplings))
    ],
    ids=str,
)
def test_a_conversion_that_loses_nothing_keeps_the_matrix(source, target):
    first, second = ExactLayer(5, 2, source), ExactLayer(5, 2, target)
    torch.nn.init.normal_(first.couplings)
    second.load_state_dict({"couplings": convert_couplings(first.couplings, source, target, 5)})
    assert torch.equal(first.coupling_matrix(), second.coupling_matrix())


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (FreeCouplings(), BandedCouplings(2)),
        (FreeCouplings(), ToeplitzCouplings()),
        (BandedCouplings(2), ToeplitzCouplings(2)),
        (ToeplitzCouplings(), ToeplitzCouplings(2)),
    ],
)
def test_a_conversion_that_loses_something_is_refused(source, target):
    with pytest.raises(ValueError, match=r"cannot hold these .* couplings"):
        convert_couplings(draw(2, *source.size(5)), source, target, 5)
    assert convert_couplings(torch.zeros(2, *source.size(5)), source, target, 5).shape == (2, *target.size(5))
    with pytest.raises(ValueError, match="over 6 spins is"):
        convert_couplings(draw(2, *source.size(5), 1), source, target, 6)


@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_a_range_that_is_none_is_refused(value):
    for kind in (BandedCouplings, ToeplitzCouplings):
        with pytest.raises(ValueError, match=rf"range={value!r}\) was given"):
            kind(value)
    with pytest.raises(ValueError, match=r"range=None\) was given"):
        BandedCouplings(None)


def test_what_is_no_shape_is_refused():
    with pytest.raises(TypeError, match="coupling_shape=4 was given: give one"):
        ExactLayer(4, coupling_shape=4)


@pytest.mark.parametrize("shape", [BandedCouplings(2), ToeplitzCouplings(2)], ids=str)
def test_couplings_of_any_shape_have_the_learning_rate_of_couplings(shape):
    model = BracketMatcher(8, layer=partial(ExactLayer, coupling_shape=shape), coupling_learning_rate_factor=0.25)
    model._trainer = type("Steps", (), {"estimated_stepping_batches": 10})()
    optimizer = model.configure_optimizers()["optimizer"]
    (group,) = [g for g in optimizer.param_groups if any(p is model.ising_layers()[0].couplings for p in g["params"])]
    assert len(group["params"]) == 1
    assert group["weight_decay"] == 0
    assert group["max_lr"] == pytest.approx(0.25 * optimizer.param_groups[0]["max_lr"])


def test_a_toeplitz_layer_gives_the_marginals_of_the_full_table():
    layer = build("exact", 6, 1, ToeplitzCouplings(2))
    fields = draw_fields(3, 1, 6)
    J = matrix_by_loops(layer.couplings.detach()[0], layer.coupling_shape, 6)
    assert largest_difference(layer(fields), marginals_by_table(fields, J)) < 1e-12
