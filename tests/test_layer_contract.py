"""The contract that every Ising layer keeps; a new layer adds to conftest.LAYERS how it is built, and nothing else."""

import copy
import itertools
import math
import pickle

import pytest
import torch
from conftest import (
    EXACT,
    LAYERS,
    NEED_EXTRAS,
    ROUNDING,
    SAMPLERS,
    SAMPLING,
    WITH_COUPLINGS,
    build_layer,
    draw_fields,
    every_layer,
    gradients,
    marked,
    rounding,
)
from oracle import causal_mask, draw_mask, largest_difference

PAIRS = [
    pytest.param(*pair, marks=pytest.mark.plugins) if set(pair) & set(NEED_EXTRAS) else pair
    for pair in itertools.product(WITH_COUPLINGS, repeat=2)
]

# Gradients of the loss in `gradients` are sums of up to this many covariances with weights of up to 2.
OF_LOSS = 10

with_couplings = pytest.mark.parametrize("kind", marked(WITH_COUPLINGS))


def assert_same(ours, theirs, tolerance=0.0):
    for mine, reference in zip(ours, theirs, strict=True):
        assert largest_difference(mine, reference) <= tolerance


def pairs_with(spin, num_spins):
    return [i for i, pair in enumerate(itertools.combinations(range(num_spins), 2)) if spin in pair]


@every_layer
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 2, 3), (2, 2, 4, 3), (1, 2, 2, 2, 3), (3, 2, 1)])
def test_output_has_the_shape_and_dtype_of_the_fields_and_lies_in_0_to_1(kind, shape, dtype):
    fields = (4 * draw_fields(*shape)).to(dtype)
    p = build_layer(kind, 3, 2)(fields)
    assert p.shape == shape
    assert p.dtype == dtype
    assert ((p >= 0) & (p <= 1)).all()
    assert p.std() > 0.05


@every_layer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(kind, dtype):
    layer, fields, present = build_layer(kind, 3, 2), draw_fields(2, 2, 3, 3).to(dtype), causal_mask(3)
    assert torch.equal(layer(fields, present), layer(fields.float(), present).to(dtype))


@every_layer
def test_float32_agrees_with_float64(kind):
    layer, fields, present = build_layer(kind, 4, 2), draw_fields(2, 2, 4, 4), causal_mask(4)
    single = copy.deepcopy(layer).float()
    tolerance = OF_LOSS * SAMPLING if kind in SAMPLERS else 1e-4 if kind == "tap" else 1e-5  # tap is ill conditioned
    assert_same(gradients(single, fields.float(), present), gradients(layer, fields, present), tolerance)


@every_layer
@pytest.mark.parametrize("backward_inside", [False, True], ids=["forward", "forward and backward"])
def test_autocast_changes_nothing(kind, backward_inside):
    layer, fields, present = build_layer(kind, 4, 2).float(), draw_fields(2, 2, 4, 4).float(), causal_mask(4)
    expected = gradients(layer, fields, present)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        p = layer(fields.requires_grad_(), present)
        assert p.dtype == torch.float32
        loss = (torch.linspace(-1, 2, p.numel()).view(p.shape) * p).sum()
        if backward_inside:
            found = torch.autograd.grad(loss, [fields, *layer.parameters()])
    if not backward_inside:
        found = torch.autograd.grad(loss, [fields, *layer.parameters()])
    assert_same((p.detach(), *found), expected)


@every_layer
@pytest.mark.parametrize("value", [1e6, math.nan, math.inf])
def test_a_removed_spin_leaves_no_trace(kind, value):
    layer, fields = build_layer(kind, 4, 2), draw_fields(2, 2, 3, 4)
    present = torch.tensor([True, False, True, True])
    ours = gradients(layer, torch.where(present, fields, value), present)
    assert_same(ours, gradients(layer, fields, present))
    assert (ours[0][..., 1] == 0).all()
    assert (ours[1][..., 1] == 0).all()
    assert (ours[1][..., [0, 2, 3]] != 0).all()
    if layer.couplings is not None:
        removed, kept = pairs_with(1, 4), [1, 2, 5]
        assert (ours[2][:, removed] == 0).all()
        assert (ours[2][:, kept] != 0).all()
        with torch.no_grad():
            layer.couplings[:, removed] = 7.0
        assert largest_difference(layer(fields, present), ours[0]) <= rounding(kind)


@every_layer
@pytest.mark.parametrize("removed", range(4))
def test_removal_equals_the_smaller_model(kind, removed):
    layer, fields = build_layer(kind, 4, 2), draw_fields(2, 2, 3, 4)
    keep = [j for j in range(4) if j != removed]
    smaller = build_layer(kind, 3, 2)
    if layer.couplings is not None:
        with torch.no_grad():
            smaller.couplings.copy_(layer.couplings[:, [i for i in range(6) if i not in pairs_with(removed, 4)]])
    p = layer(fields, torch.tensor([j != removed for j in range(4)]))
    assert largest_difference(p[..., keep], smaller(fields[..., keep])) <= rounding(kind)


@every_layer
def test_a_causal_prefix_equals_the_shorter_sequence(kind):
    layer, fields, causal = build_layer(kind, 4, 2), draw_fields(2, 2, 4, 4), causal_mask(4)
    whole = layer(fields, causal)
    for length in range(1, 5):
        short = layer(fields[..., :length, :length], causal[:length, :length])
        assert largest_difference(whole[..., :length, :length], short) <= rounding(kind)
        alone = layer(fields[..., length - 1, :length])
        assert largest_difference(whole[..., length - 1, :length], alone) <= rounding(kind)


@every_layer
def test_a_short_input_uses_the_leading_block_of_the_couplings(kind):
    layer, fields = build_layer(kind, 5, 2), draw_fields(2, 2, 3)
    short = build_layer(kind, 3, 2)
    if layer.couplings is not None:
        with torch.no_grad():
            short.couplings.copy_(layer.couplings[:, [0, 1, 4]])  # pairs (0, 1), (0, 2), (1, 2) of 5 spins
    assert largest_difference(layer(fields), short(fields)) <= rounding(kind)
    assert torch.equal(layer.coupling_matrix(3), layer.coupling_matrix()[:, :3, :3])


@every_layer
@pytest.mark.parametrize(
    "shape", [(4,), (3, 4), (2, 1, 3, 4), (2, 2, 3, 4), (1, 2, 1, 4), (2, 1, 3, 1), (2, 2, 3, 1), (3, 1), (1,), ()]
)
def test_masks_broadcast_to_the_fields(kind, shape):
    layer, fields = build_layer(kind, 4, 2), draw_fields(2, 2, 3, 4)
    present = draw_mask(*shape, seed=5) if shape else torch.tensor(True)
    whole = present.expand(fields.shape).contiguous()
    assert_same(gradients(layer, fields, present), gradients(layer, fields, whole), rounding(kind))
    assert (layer(fields, present)[~whole] == 0).all()


@every_layer
def test_a_mask_of_rows_with_as_many_rows_as_spins_is_not_taken_for_another(kind):
    """(batch, 4 heads, queries, 1) has as many entries as (batch, queries, 4 spins): it must not be read as that."""
    layer, fields = build_layer(kind, 4, 4), draw_fields(2, 4, 2, 4)
    present = draw_mask(2, 4, 2, 1, seed=5)
    assert largest_difference(layer(fields, present), layer(fields, present.expand(fields.shape))) <= rounding(kind)


@every_layer
@pytest.mark.parametrize("field", [1e-3, 0.03, 0.1])
def test_without_couplings_weak_fields_give_their_sigmoid(kind, field):
    """p = sigmoid(2 h), up to the third order for a quench, whose response to one spin is odd."""
    layer = build_layer(kind, 4, 2, spread=0.0)
    if layer.couplings is not None:
        torch.nn.init.zeros_(layer.couplings)
    fields = field * torch.linspace(-1, 1, 12, dtype=torch.float64).view(1, 1, 3, 4).expand(2, 2, 3, 4)
    difference = largest_difference(layer(fields), torch.sigmoid(2 * fields))
    assert difference <= (rounding(kind) if kind in (*EXACT, *SAMPLERS) else field**3)


@pytest.mark.parametrize("kind", EXACT)
def test_without_couplings_an_exact_layer_is_the_sigmoid_at_any_field(kind):
    layer, fields = LAYERS[kind](4, 2).double(), 20 * draw_fields(2, 2, 3, 4)
    p, expected = layer(fields), torch.sigmoid(2 * fields)
    assert ((p - expected).abs() <= ROUNDING * expected).all()


@every_layer
def test_marginals_rise_with_their_field(kind):
    """Fields go up: h and p agree in sign and order. Sign conventions cannot hide in symmetric values."""
    fields = torch.tensor([-0.9, -0.3, 0.2, 0.8], dtype=torch.float64).view(1, 1, 4)
    p = LAYERS[kind](4).double()(fields)[0, 0]
    assert (p.diff() > 0.05).all()
    assert ((p > 0.5) == (fields[0, 0] > 0)).all()


@with_couplings
def test_a_positive_coupling_pulls_a_spin_to_its_neighbor(kind):
    layer, fields = LAYERS[kind](2).double(), torch.tensor([0.0, 0.8], dtype=torch.float64).view(1, 1, 2)
    found = []
    for coupling in (-0.5, 0.0, 0.5):
        torch.nn.init.constant_(layer.couplings, coupling)
        found.append(float(layer(fields)[0, 0, 0].detach()))
    assert found[0] < 0.45 < 0.55 < found[2]
    assert found[1] == pytest.approx(0.5, abs=rounding(kind))


@every_layer
def test_state_dict_depends_on_the_shape_of_the_couplings_alone(kind):
    layer = LAYERS[kind](5, 3)
    expected = {"couplings": (3, 10)} if kind in WITH_COUPLINGS else {}
    layer(torch.zeros(1, 3, 5))
    assert {key: tuple(value.shape) for key, value in layer.state_dict().items()} == expected
    assert {key: tuple(value.shape) for key, value in layer.named_parameters()} == expected


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_weights_load_from_any_layer_into_any_other(source, target):
    trained, fresh = build_layer(source, 4, 2, seed=3), LAYERS[target](4, 2).double()
    fresh.load_state_dict(trained.state_dict())
    assert torch.equal(fresh.couplings, trained.couplings)
    fields = draw_fields(2, 2, 4)
    assert torch.equal(fresh(fields), build_layer(target, 4, 2, seed=3)(fields))


@with_couplings
def test_load_state_dict_with_assign_takes_effect(kind):
    layer, other, fields = build_layer(kind, 3, 2), build_layer(kind, 3, 2, seed=5), draw_fields(2, 2, 3)
    before = layer(fields)
    layer.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)
    assert torch.equal(layer(fields), other(fields))
    assert not torch.equal(layer(fields), before)


@with_couplings
def test_functional_call_uses_the_couplings_given(kind):
    layer, other, fields = build_layer(kind, 3, 2), build_layer(kind, 3, 2, seed=5), draw_fields(2, 2, 3)
    before = layer(fields)
    given = other.couplings.detach().clone().requires_grad_()
    p = torch.func.functional_call(layer, {"couplings": given}, (fields,))
    assert torch.equal(p, other(fields))
    p.square().sum().backward()
    assert (given.grad != 0).all()
    assert layer.couplings.grad is None
    assert torch.equal(layer(fields), before)


@every_layer
def test_copies_give_the_same_and_share_nothing(kind):
    layer, fields = build_layer(kind, 3, 2), draw_fields(2, 2, 3)
    p = layer(fields)
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(made(fields), p)
        assert made.num_spins == 3
        assert made.num_heads == 2
        if layer.couplings is not None:
            torch.nn.init.zeros_(made.couplings)
            assert not torch.equal(made(fields), p)
            assert torch.equal(layer(fields), p)


@every_layer
@pytest.mark.parametrize("shape", [(0, 2, 3), (0, 2, 3, 3), (2, 2, 0), (2, 2, 4, 0), (2, 2, 0, 3)])
@pytest.mark.parametrize("masked", [False, True])
def test_an_empty_batch_or_no_spins_give_an_empty_result(kind, shape, masked):
    fields = torch.zeros(shape, requires_grad=True)
    present = torch.ones(shape[-1], dtype=torch.bool) if masked else None
    p = LAYERS[kind](3, 2)(fields, present)
    assert p.shape == shape
    p.sum().backward()
    assert fields.grad.shape == shape


@every_layer
@pytest.mark.parametrize("size", [0, 1])
def test_layers_of_no_spin_and_of_one(kind, size):
    layer = LAYERS[kind](size, 2).double()
    assert layer.coupling_matrix().shape == (2, size, size)
    fields = 1e-3 * draw_fields(3, 2, size)
    assert largest_difference(layer(fields), torch.sigmoid(2 * fields)) < max(1e-8, rounding(kind))


@every_layer
def test_a_row_with_nothing_present_gives_zeros_and_finite_gradients(kind):
    layer, fields, present = build_layer(kind, 3, 2), draw_fields(2, 2, 3, 3), causal_mask(3).clone()
    present[1] = False
    p, *found = gradients(layer, fields, present)
    assert (p[..., 1, :] == 0).all()
    assert (found[0][..., 1, :] == 0).all()
    assert all(grad.isfinite().all() for grad in found)
    others = [0, 2]
    assert largest_difference(p[..., others, :], layer(fields[..., others, :], present[others])) <= rounding(kind)
    p, *found = gradients(layer, fields, torch.zeros(3, dtype=torch.bool))
    assert all((values == 0).all() for values in (p, *found))


@with_couplings
def test_couplings_start_at_0(kind):
    layer = LAYERS[kind](4, 2)
    assert (layer.couplings == 0).all()
    assert layer.couplings.dtype == torch.float32
    assert layer.couplings.requires_grad


@every_layer
def test_coupling_matrix_is_symmetric_with_a_zero_diagonal(kind):
    layer = build_layer(kind, 4, 2)
    J = layer.coupling_matrix()
    assert J.shape == (2, 4, 4)
    assert torch.equal(J, J.mT)
    assert (J.diagonal(dim1=1, dim2=2) == 0).all()
    if layer.couplings is not None:
        for i, (j, k) in enumerate(itertools.combinations(range(4), 2)):
            assert torch.equal(J[:, j, k], layer.couplings[:, i])
        J.sum().backward()
        assert (layer.couplings.grad == 2).all()
    with pytest.raises(ValueError, match="layer has 0 to 4"):
        layer.coupling_matrix(5)


@every_layer
def test_each_head_uses_its_own_couplings(kind):
    layer, fields = build_layer(kind, 3, 3), draw_fields(2, 1, 3).expand(2, 3, 3)
    p = layer(fields)
    for head in range(3):
        single = build_layer(kind, 3)
        if layer.couplings is not None:
            with torch.no_grad():
                single.couplings.copy_(layer.couplings[head : head + 1])
        assert largest_difference(p[:, head : head + 1], single(fields[:, :1])) <= rounding(kind)
    if layer.couplings is not None:
        assert (p[:, 0] - p[:, 1]).abs().max() > 0.01


@every_layer
def test_rows_of_a_batch_do_not_depend_on_each_other(kind):
    layer, fields, present = build_layer(kind, 3, 2), draw_fields(3, 2, 2, 3), draw_mask(3, 1, 2, 3, seed=4)
    p = layer(fields, present)
    for row in range(3):
        alone = layer(fields[row : row + 1], present[row : row + 1])
        assert largest_difference(p[row : row + 1], alone) <= rounding(kind)
    assert largest_difference(layer(fields.flip(0), present.flip(0)), p.flip(0)) <= rounding(kind)


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind not in SAMPLERS])
def test_gradients_are_the_finite_differences(kind):
    layer, present = build_layer(kind, 3, 2), torch.tensor([[True, True, True], [True, False, True]])
    fields, step = draw_fields(1, 2, 2, 3), 1e-6
    _, *found = gradients(layer, fields, present)

    def loss():
        p = layer(fields, present)
        return float((torch.linspace(-1, 2, p.numel(), dtype=p.dtype).view(p.shape) * p).sum())

    with torch.no_grad():
        for values, grad in zip((fields, *layer.parameters()), found, strict=True):
            flat = values.view(-1)
            for i, center in enumerate(flat.tolist()):
                flat[i] = center + step
                above = loss()
                flat[i] = center - step
                assert float(grad.flatten()[i]) == pytest.approx((above - loss()) / (2 * step), abs=1e-8)
                flat[i] = center


@every_layer
def test_the_same_call_gives_the_same_numbers(kind):
    layer, fields, present = build_layer(kind, 4, 2), draw_fields(2, 2, 4, 4), causal_mask(4)
    first = gradients(layer, fields, present)
    layer(draw_fields(1, 2, 2))
    assert_same(gradients(layer, fields, present), first)


@every_layer
def test_fields_that_are_not_contiguous(kind):
    layer, fields = build_layer(kind, 3, 2), draw_fields(3, 2, 2, 3)
    expected = layer(fields)
    assert largest_difference(layer(fields.mT.contiguous().mT), expected) <= rounding(kind)
    assert largest_difference(layer(fields.flip(0).flip(0)), expected) <= rounding(kind)
