"""The decoder-only transformer: what it computes, that it never looks ahead, and what it refuses."""

import copy

import pytest
import torch
from conftest import build_layer
from oracle import draw, largest_difference
from torch import nn

from hybrid_attention import BoltzmannAttention, DecoderOnlyTransformer, SoftmaxAttention

ATTENTION = {
    "exact": lambda: BoltzmannAttention(8, build_layer("exact", 5, 2)),
    "fields only": lambda: BoltzmannAttention(8, build_layer("fields only", 5, 2)),
    "dqa": lambda: BoltzmannAttention(8, build_layer("dqa on default.qubit", 5, 2)),
    "softmax": lambda: SoftmaxAttention(8, 2),
}
every_attention = pytest.mark.parametrize("kind", ATTENTION)


def build(kind="exact", **settings):
    torch.manual_seed(0)
    sizes = {"vocab_size": 7, "num_outputs": 3, "context_length": 5, "embed_dim": 8, "attention": ATTENTION[kind]}
    return DecoderOnlyTransformer(**{**sizes, **settings}).double()


def draw_tokens(*shape, seed=0):
    return torch.randint(7, shape, generator=torch.Generator().manual_seed(seed))


@every_attention
@pytest.mark.parametrize("length", [0, 1, 3, 5])
def test_logits_at_every_position(kind, length):
    logits = build(kind)(draw_tokens(2, length))
    assert logits.shape == (2, length, 3)
    assert logits.isfinite().all()


@every_attention
@pytest.mark.parametrize("num_blocks", [1, 2])
def test_a_later_token_moves_no_earlier_logit(kind, num_blocks):
    model, tokens = build(kind, num_blocks=num_blocks), draw_tokens(2, 5)
    before = model(tokens)
    for place in range(1, 5):
        changed = tokens.clone()
        changed[:, place:] = (changed[:, place:] + 3) % 7
        after = model(changed)
        assert torch.equal(after[:, :place], before[:, :place])
        assert (after[:, place:] - before[:, place:]).abs().amax(-1).min() > 1e-4


@every_attention
def test_a_prefix_gives_what_the_whole_sequence_gives(kind):
    model, tokens = build(kind, num_blocks=2), draw_tokens(2, 5)
    whole = model(tokens)
    for length in range(1, 5):
        assert largest_difference(model(tokens[:, :length]), whole[:, :length]) < 1e-12


@pytest.mark.parametrize("feed_forward", [True, False])
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_the_model_is_embeddings_pre_norm_blocks_norm_and_head(num_blocks, feed_forward):
    model, tokens = build(num_blocks=num_blocks, feed_forward=feed_forward), draw_tokens(2, 4)
    x = model.tokens.weight[tokens] + model.positions.weight[:4]
    for block in model.blocks:
        x = x + block.attention(block.attention_norm(x))
        if feed_forward:
            norm, widen, _, narrow = block.feed_forward
            hidden = norm(x) @ widen.weight.T + widen.bias
            x = x + nn.functional.gelu(hidden) @ narrow.weight.T + narrow.bias
    expected = model.norm(x) @ model.head.weight.T + model.head.bias
    assert largest_difference(model(tokens), expected) < 1e-12


def test_the_order_of_tokens_matters():
    model, tokens = build(), torch.tensor([[1, 2, 3, 4, 5]])
    swapped = torch.tensor([[2, 1, 3, 4, 5]])
    assert (model(tokens)[:, -1] - model(swapped)[:, -1]).abs().max() > 1e-4


def test_each_block_has_a_layer_of_its_own():
    made = []

    def attention():
        made.append(ATTENTION["exact"]())
        return made[-1]

    model = build(num_blocks=3, attention=attention)
    assert [block.attention for block in model.blocks] == made
    assert len(model.blocks) == 3
    couplings = [block.attention.layer.couplings for block in model.blocks]
    assert len({parameter.data_ptr() for parameter in couplings}) == 3
    assert {f"blocks.{i}.attention.layer.couplings" for i in range(3)} < set(model.state_dict())
    before = model(draw_tokens(1, 5))
    nn.init.zeros_(couplings[2])
    assert (model(draw_tokens(1, 5)) - before).abs().max() > 1e-6
    assert (couplings[1] != 0).all()


def test_without_feed_forward_there_are_no_such_weights():
    model = build(feed_forward=False)
    assert not [name for name in model.state_dict() if "feed_forward" in name]
    assert [name for name in build().state_dict() if "feed_forward" in name]


@every_attention
def test_every_parameter_gets_a_gradient(kind):
    model = build(kind, num_blocks=2)
    model(draw_tokens(6, 5)).mul(draw(6, 5, 3)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-9, name


def test_weights_load_into_a_fresh_model():
    model, fresh = build(num_blocks=2), build(num_blocks=2)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    fresh.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(fresh(draw_tokens(2, 5)), model(draw_tokens(2, 5)))


@pytest.mark.parametrize("shape", [(2, 6), (5,), (2, 3, 4), ()])
def test_tokens_that_do_not_fit_are_named(shape):
    with pytest.raises(ValueError, match=r"give \(B, T\) with T up to the model's context_length of 5"):
        build()(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("name", ["vocab_size", "num_outputs", "context_length", "embed_dim", "num_blocks"])
@pytest.mark.parametrize("size", [0, -1])
def test_sizes_that_are_not_positive_are_named(name, size):
    with pytest.raises(ValueError, match=f"{name}={size} was given"):
        build(**{name: size})


@pytest.mark.parametrize("kind", ["exact", "softmax"])
def test_a_few_steps_of_training_lower_the_loss(kind):
    """The task: repeat the token before, which only attention can do."""
    model, tokens = build(kind, num_outputs=7), draw_tokens(64, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        logits = model(tokens)[:, 1:]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.25 * losses[0]
