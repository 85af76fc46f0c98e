"""Attention over every layer and softmax: against loops over queries, and what no key may do."""

import math
from itertools import combinations

import pytest
import torch
from conftest import LAYERS, NEED_EXTRAS, SAMPLERS, build_layer, marked, rounding
from oracle import draw, largest_difference, marginals_by_table
from torch.nn import functional

from hybrid_attention import BoltzmannAttention, ExactLayer, FieldsOnlyLayer, SoftmaxAttention

# The same numbers in another order of summation, in float64.
ROUNDING = 1e-12

KINDS = (*LAYERS, "softmax", "biased softmax")
every_attention = pytest.mark.parametrize("kind", marked(KINDS))
causal_or_not = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


def build(kind, embed_dim=6, num_heads=2, length=4, causal=True, seed=0, **settings):
    """A float64 module with weights and couplings of order 1."""
    if kind == "softmax":
        module = SoftmaxAttention(embed_dim, num_heads, causal, **settings)
    elif kind == "biased softmax":
        module = SoftmaxAttention(embed_dim, num_heads, causal, biased_positions=length, **settings)
        torch.nn.init.normal_(module.position_bias, generator=torch.Generator().manual_seed(seed))
    else:
        module = BoltzmannAttention(embed_dim, build_layer(kind, length, num_heads, spread=1.0), causal, **settings)
    module = module.double()
    with torch.no_grad():
        for number, linear in enumerate((module.query_key_value, module.output)):
            linear.weight.copy_(draw(*linear.weight.shape, seed=seed + number, spread=0.5))
    return module


def gradients(module, x, padding=None):
    """The output, dL/dx, and dL/d of each parameter, of a loss over the positions that are no padding."""
    x = x.detach().clone().requires_grad_()
    out = module(x, padding)
    counted = out if padding is None else out.masked_fill(padding.unsqueeze(-1), 0)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    (weights * counted).sum().backward()
    found = [x.grad, *(parameter.grad.clone() for parameter in module.parameters())]
    module.zero_grad()
    return out.detach(), *found


def attention_by_loops(module, x, weigh, padding=None):
    """One query of one head at a time: weigh(fields, head, places) turns scores over the keys seen into weights."""
    batch, length, width = x.shape
    heads, size = module.num_heads, width // module.num_heads
    to_query, to_key, to_value = module.query_key_value.weight.detach().chunk(3)
    out, weights = torch.zeros_like(x), torch.zeros(batch, heads, length, length, dtype=x.dtype)
    for b in range(batch):
        for i in range(length):
            seen = [j for j in range(i + 1 if module.causal else length) if padding is None or not padding[b, j]]
            if not seen:
                continue
            attended = []
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                query = (to_query @ x[b, i])[part]
                keys = torch.stack([(to_key @ x[b, j])[part] for j in seen])
                values = torch.stack([(to_value @ x[b, j])[part] for j in seen])
                a = weigh(keys @ query / math.sqrt(size), head, seen)
                weights[b, head, i, seen] = a
                attended.append(a @ values)
            out[b, i] = module.output.weight.detach() @ torch.cat(attended)
    return out, weights


def weigh_exactly(module):
    def weigh(fields, head, seen):
        p = marginals_by_table(fields, module.layer.coupling_matrix().detach()[head][seen][:, seen])
        return p / p.sum()

    return weigh


def weigh_by_sigmoid(fields, head, seen):
    p = 1 / (1 + torch.exp(-2 * fields))
    return p / p.sum()


def weigh_by_biased_softmax(module):
    def weigh(fields, head, seen):
        query = seen[-1]  # causal: the last key seen is the query's own, unless it is padding
        bias = {pair: module.position_bias[head, place].item() for place, pair in enumerate(combinations(range(4), 2))}
        scores = [f + bias.get((min(j, query), max(j, query)), 0.0) for f, j in zip(fields.tolist(), seen, strict=True)]
        return weigh_by_softmax(torch.tensor(scores, dtype=torch.float64), head, seen)

    return weigh


def weigh_by_softmax(fields, head, seen):
    return fields.exp() / fields.exp().sum()


REFERENCES = {
    "exact": weigh_exactly,
    "fields only": lambda module: weigh_by_sigmoid,
    "softmax": lambda m: weigh_by_softmax,
}
PADDING = {
    "no padding": None,
    "right padding": torch.tensor([[False, False, False, True], [False] * 4, [False, True, True, True]]),
    "left padding": torch.tensor([[True, False, False, False], [True, True, True, False], [False] * 4]),
    "holes and all padding": torch.tensor([[False, True, False, False], [True] * 4, [False, True, False, True]]),
}
every_padding = pytest.mark.parametrize("padding", PADDING)


@pytest.mark.parametrize("kind", REFERENCES)
@every_padding
@causal_or_not
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_attention_is_the_loop_over_heads_and_queries(num_heads, causal, padding, kind):
    module, x, mask = build(kind, num_heads=num_heads, causal=causal), draw(3, 4, 6, seed=5), PADDING[padding]
    cleared = x if mask is None else x.masked_fill(mask.unsqueeze(-1), 0)
    out, weights = attention_by_loops(module, cleared, REFERENCES[kind](module), mask)
    ours, our_weights = module(x, mask, need_weights=True)
    assert largest_difference(ours, out) < ROUNDING
    assert largest_difference(our_weights, weights) < ROUNDING
    assert largest_difference(module(x, mask), out) < ROUNDING


@every_attention
def test_a_later_token_moves_no_earlier_output(kind):
    module, x = build(kind), draw(2, 4, 6, seed=5)
    before, weights = module(x, need_weights=True)
    for place in range(1, 4):
        changed = x.clone()
        changed[:, place:] = 10 * draw(2, 4 - place, 6, seed=place)
        after, changed_weights = module(changed, need_weights=True)
        assert torch.equal(after[:, :place], before[:, :place])
        assert torch.equal(changed_weights[:, :, :place], weights[:, :, :place])
        assert (after[:, place:] - before[:, place:]).abs().max() > 1e-3


@every_attention
def test_earlier_outputs_have_no_gradient_from_later_tokens(kind):
    module, x = build(kind), draw(2, 4, 6, seed=5).requires_grad_()
    weights = draw(2, 4, 6, seed=6)
    for place in range(4):
        (grad,) = torch.autograd.grad((weights * module(x))[:, : place + 1].sum(), x)
        assert (grad[:, place + 1 :] == 0).all()
        assert (grad[:, : place + 1] != 0).all()


@every_attention
def test_a_prefix_gives_what_the_shorter_sequence_gives(kind):
    module, x = build(kind), draw(2, 4, 6, seed=5)
    whole = module(x)
    for length in range(1, 5):
        assert largest_difference(module(x[:, :length]), whole[:, :length]) < 4 * rounding(kind)


@every_attention
def test_without_a_causal_mask_every_token_moves_every_output(kind):
    module, x = build(kind, causal=False), draw(2, 4, 6, seed=5).requires_grad_()
    weights = draw(6, seed=6)
    for query in range(4):
        (grad,) = torch.autograd.grad((weights * module(x)[:, query]).sum(), x)
        assert (grad.abs().amax(-1) > 1e-6).all()


@every_attention
@causal_or_not
@pytest.mark.parametrize(
    ("padding", "value"), [("right padding", 1e6), ("left padding", math.nan), ("holes and all padding", math.nan)]
)
def test_the_value_of_a_padded_position_reaches_nothing(value, padding, causal, kind):
    """Neither an output nor a gradient, of the input or of a parameter."""
    module, x, mask = build(kind, causal=causal), draw(3, 4, 6, seed=5), PADDING[padding]
    before = gradients(module, x, mask)
    after = gradients(module, x.masked_fill(mask.unsqueeze(-1), value), mask)
    for ours, theirs in zip(after, before, strict=True):
        assert ours.isfinite().all()
        assert torch.equal(ours, theirs)
    assert (after[1][mask] == 0).all()


@every_attention
@causal_or_not
def test_padding_on_the_right_equals_the_shorter_sequence(kind, causal):
    module, x = build(kind, causal=causal), draw(2, 4, 6, seed=5)
    mask = torch.tensor([[False, False, False, True]]).expand(2, 4)
    ours, theirs = gradients(module, x, mask), gradients(module, x[:, :3])
    assert largest_difference(ours[0][:, :3], theirs[0]) < 4 * rounding(kind)


@every_attention
@causal_or_not
@pytest.mark.parametrize("padding", ["left padding", "holes and all padding"])
def test_a_query_with_nothing_to_attend_to_gives_zeros_and_finite_gradients(padding, causal, kind):
    module, x, mask = build(kind, causal=causal), draw(3, 4, 6, seed=5), PADDING[padding]
    seen = (~mask).unsqueeze(1).expand(3, 4, 4)
    nothing = ~(seen.tril() if causal else seen).any(-1)
    assert nothing.any() or not causal
    x.requires_grad_()
    out, weights = module(x, mask, need_weights=True)
    assert (out[nothing] == 0).all()
    assert (weights.transpose(1, 2)[nothing] == 0).all()
    assert torch.equal(module(x, mask)[nothing], out[nothing])
    for result in (out, module(x, mask)):
        module.zero_grad()
        found = torch.autograd.grad(result.square().sum(), [x, *module.parameters()])
        assert all(grad.isfinite().all() for grad in found)


@every_attention
@causal_or_not
@every_padding
def test_weights_sum_to_1_and_give_the_output(padding, causal, kind):
    module, x, mask = build(kind, causal=causal), draw(3, 4, 6, seed=5), PADDING[padding]
    out, weights = module(x, key_padding_mask=mask, need_weights=True)
    assert weights.shape == (3, 2, 4, 4)
    assert (weights >= 0).all()
    seen = torch.ones(3, 2, 4, 4, dtype=torch.bool)
    seen = seen if mask is None else seen & ~mask[:, None, None, :]
    seen = seen.tril() if causal else seen
    assert ((weights > 0) == seen).all()
    assert largest_difference(weights.sum(-1), seen.any(-1).double()) < ROUNDING
    cleared = x if mask is None else x.masked_fill(mask.unsqueeze(-1), 0)
    values = functional.linear(cleared, module.query_key_value.weight[12:]).view(3, 4, 2, 3).transpose(1, 2)
    assert largest_difference(module.output((weights @ values).transpose(1, 2).reshape(3, 4, 6)), out) < ROUNDING
    assert largest_difference(module(x, mask), out) < ROUNDING


@pytest.mark.parametrize("kind", marked(LAYERS))
@causal_or_not
def test_without_fields_every_weight_is_the_same(kind, causal):
    """Flipping all spins leaves the energy unchanged where h = 0: every marginal is 1/2, whatever the couplings."""
    module, x = build(kind, causal=causal, use_fields=False), draw(2, 4, 6, seed=5)
    _, weights = module(x, need_weights=True)
    seen = torch.ones(4, 4, dtype=torch.float64)
    seen = seen.tril() if causal else seen
    assert largest_difference(weights, (seen / seen.sum(-1, keepdim=True)).expand(2, 2, 4, 4)) < 4 * rounding(kind)
    out, *found = gradients(module, x)
    assert out.abs().max() > 0.1
    query_and_key = found[1][:12]
    assert (query_and_key == 0).all()
    if module.layer.couplings is not None and kind not in SAMPLERS:
        assert found[-1].abs().max() < ROUNDING


@pytest.mark.parametrize("causal", [True, False])
def test_softmax_attention_is_torchs(causal):
    module, x = build("softmax", causal=causal), draw(3, 4, 6, seed=5)
    query, key, value = module.query_key_value(x).view(3, 4, 3, 2, 3).permute(2, 0, 3, 1, 4)
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    expected = module.output(attended.transpose(1, 2).reshape(3, 4, 6))
    assert largest_difference(module(x), expected) < ROUNDING
    assert largest_difference(module(x, need_weights=True)[0], expected) < ROUNDING


def test_a_position_bias_is_added_to_the_score_of_its_pair_in_every_query():
    module, x = build("biased softmax"), draw(3, 4, 6, seed=5)
    out, weights = attention_by_loops(module, x, weigh_by_biased_softmax(module))
    ours, our_weights = module(x, need_weights=True)
    assert largest_difference(ours, out) < ROUNDING
    assert largest_difference(our_weights, weights) < ROUNDING
    assert largest_difference(module(x[:, :3]), out[:, :3]) < ROUNDING
    matrix = module.bias_matrix()
    assert torch.equal(matrix, matrix.mT)
    assert (matrix.diagonal(dim1=1, dim2=2) == 0).all()
    assert matrix.triu().count_nonzero() == module.position_bias.numel() == 2 * 6


def test_a_position_bias_of_zero_is_plain_softmax_with_as_many_parameters_as_couplings_more():
    biased, plain, x = SoftmaxAttention(6, 2, biased_positions=4), SoftmaxAttention(6, 2), draw(3, 4, 6, seed=5).float()
    plain.load_state_dict({key: value for key, value in biased.state_dict().items() if key != "position_bias"})
    assert largest_difference(biased(x), plain(x)) < 1e-6
    assert biased.position_bias.shape == ExactLayer(4, 2).couplings.shape
    with pytest.raises(ValueError, match="has 5 positions, and the attention has biases for 4"):
        biased(torch.zeros(1, 5, 6))
    with pytest.raises(ValueError, match="biased_positions=-1 was given"):
        SoftmaxAttention(6, biased_positions=-1)


def test_couplings_matter():
    module, x = build("exact"), draw(2, 4, 6, seed=5)
    coupled = module(x)
    torch.nn.init.zeros_(module.layer.couplings)
    without = BoltzmannAttention(6, FieldsOnlyLayer(4, 2)).double()
    without.load_state_dict({key: value for key, value in module.state_dict().items() if key != "layer.couplings"})
    assert largest_difference(module(x), without(x)) < ROUNDING
    assert (coupled - without(x)).abs().max() > 0.01


@pytest.mark.parametrize("kind", ["exact", "fields only", "softmax", "biased softmax"])
def test_gradcheck(kind):
    module, x = build(kind, embed_dim=4, length=3), draw(2, 3, 4, seed=5).requires_grad_()
    names, parameters = zip(*module.named_parameters(), strict=True)
    mask = torch.tensor([[False, False, True], [True, False, False]])

    def function(x, *values):
        return torch.func.functional_call(module, dict(zip(names, values, strict=True)), (x, mask))

    assert torch.autograd.gradcheck(function, (x, *parameters))


@every_attention
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_precision(kind, dtype):
    """The output keeps the dtype of the module, and is off by a few roundings of its largest value."""
    reference, x, mask = build(kind), draw(3, 4, 6, seed=5), PADDING["left padding"]
    expected = reference(x, mask)
    module = build(kind).to(dtype)
    ours, weights = module(x.to(dtype), mask, need_weights=True)
    assert ours.dtype == weights.dtype == module(x.to(dtype), mask).dtype == dtype
    scale = float(expected.detach().abs().max())
    assert largest_difference(ours, expected) <= 16 * torch.finfo(dtype).eps * scale + (kind in SAMPLERS) * rounding(
        kind
    )
    assert all(grad.isfinite().all() for grad in gradients(module, x.to(dtype), mask))


@pytest.mark.parametrize("kind", ["exact", "fields only", "softmax"])
def test_strongly_negative_scores_keep_their_weights_in_float32(kind):
    """All scores at -12: p is about 4e-11 for every key, and every key has the same weight."""
    module = build(kind, embed_dim=1, num_heads=1, causal=False).float()
    if kind == "exact":
        torch.nn.init.zeros_(module.layer.couplings)
    with torch.no_grad():
        module.query_key_value.weight.copy_(torch.tensor([[-12.0], [1.0], [1.0]]))
    _, weights = module(torch.ones(1, 4, 1), need_weights=True)
    assert largest_difference(weights, torch.full((1, 1, 4, 4), 0.25)) < 1e-6


@every_attention
def test_empty_input(kind):
    assert build(kind)(draw(0, 4, 6)).shape == (0, 4, 6)
    out, weights = build(kind)(draw(2, 0, 6), need_weights=True)
    assert out.shape == (2, 0, 6)
    assert weights.shape == (2, 2, 0, 0)


def test_weights_load_into_attention_of_another_layer():
    module = build("exact")
    for kind in LAYERS:
        if kind not in ("fields only", *NEED_EXTRAS):
            other = build(kind, seed=7)
            other.load_state_dict(module.state_dict())
            assert torch.equal(other.layer.couplings, module.layer.couplings)


@pytest.mark.parametrize("kind", marked(LAYERS))
def test_a_context_longer_than_the_layer_is_named(kind):
    with pytest.raises(ValueError, match="hold 5 spins, the layer has 4"):
        build(kind)(draw(1, 5, 6))


@pytest.mark.parametrize(("embed_dim", "num_heads"), [(6, 4), (0, 1), (-2, 1), (2, 4)])
def test_widths_that_do_not_split_into_heads_are_named(embed_dim, num_heads):
    with pytest.raises(ValueError, match=f"embed_dim={embed_dim} does not split into {num_heads}"):
        BoltzmannAttention(embed_dim, ExactLayer(3, num_heads))
    with pytest.raises(ValueError, match="positive multiple of the number of heads"):
        SoftmaxAttention(embed_dim, num_heads)


@pytest.mark.parametrize("kind", ["exact", "softmax"])
@pytest.mark.parametrize(
    ("x", "mask", "error", "words"),
    [
        (torch.zeros(2, 4, 6, dtype=torch.int64), None, TypeError, "int64: give a floating-point"),
        (torch.zeros(4, 6), None, ValueError, r"\(4, 6\): give \(B, T, 6\)"),
        (torch.zeros(2, 4, 5), None, ValueError, r"\(2, 4, 5\): give \(B, T, 6\)"),
        (torch.zeros(2, 4, 6), torch.zeros(2, 4), TypeError, "float32: give a bool tensor, True at padding"),
        (torch.zeros(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64), TypeError, "int64: give a bool tensor"),
        (torch.zeros(2, 4, 6), torch.zeros(4, dtype=torch.bool), ValueError, r"shape \(4,\): give \(2, 4\)"),
        (torch.zeros(2, 4, 6), torch.zeros(2, 3, dtype=torch.bool), ValueError, r"shape \(2, 3\): give \(2, 4\)"),
    ],
)
def test_input_that_does_not_fit_is_named(kind, x, mask, error, words):
    with pytest.raises(error, match=words):
        build(kind)(x, mask)
