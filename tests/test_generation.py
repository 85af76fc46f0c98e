"""Tokens sampled with keys and values kept equal those of recomputing everything, at one attention row for each."""

import itertools

import pytest
import torch
from conftest import SAMPLERS, SAMPLING, build_layer, draw_fields, every_layer
from oracle import largest_difference

from hybrid_attention import BoltzmannAttention, DecoderOnlyTransformer, DQALayer, SoftmaxAttention
from hybrid_attention.generation import choose_token, generate_tokens

VOCABULARY, CONTEXT = 7, 5


def model_with(attention, num_blocks=1):
    torch.manual_seed(0)
    model = DecoderOnlyTransformer(VOCABULARY, VOCABULARY, CONTEXT, 8, attention, num_blocks).double()
    with torch.no_grad():
        for parameter in (model.tokens.weight, model.positions.weight, model.head.weight):
            parameter.copy_(draw_fields(*parameter.shape, seed=len(parameter)))
    return model.eval()


def attention_on(kind, use_fields=True):
    return lambda: BoltzmannAttention(8, build_layer(kind, CONTEXT, 2), use_fields=use_fields)


def check_equal_to_recomputing(model, prompt_length, tolerance=1e-10):
    """Greedy tokens and every logit, past the end of the window."""
    prompt = torch.arange(prompt_length) * 3 % VOCABULARY
    tokens = prompt.tolist()
    for token in itertools.islice(generate_tokens(model, prompt, temperature=0), 2 * CONTEXT):
        expected = model(torch.tensor([tokens[-CONTEXT:]]))[0, -1].argmax()
        assert token == expected
        tokens.append(token)
    ids, known = torch.tensor([tokens[:CONTEXT], tokens[-CONTEXT:]]), None
    for first, last in ((0, 2), (2, 3), (3, 5)):
        logits, known = model.extend(ids[:, first:last], known)
        assert largest_difference(logits, model(ids[:, :last])[:, -1]) < tolerance
    assert all(keys.shape[2] == values.shape[2] == CONTEXT for keys, values in known)


@every_layer
@pytest.mark.parametrize("num_blocks", [1, 2])
def test_generation_equals_recomputing_everything(kind, num_blocks):
    model = model_with(attention_on(kind), num_blocks)
    check_equal_to_recomputing(model, prompt_length=2, tolerance=SAMPLING if kind in SAMPLERS else 1e-10)


@pytest.mark.parametrize(
    "attention", [attention_on("exact", use_fields=False), lambda: SoftmaxAttention(8, 2)], ids=["no fields", "softmax"]
)
@pytest.mark.parametrize("prompt_length", [1, CONTEXT, 3 * CONTEXT])
def test_other_attention_too_and_prompts_of_any_length(attention, prompt_length):
    check_equal_to_recomputing(model_with(attention, 2), prompt_length)


def rows_of(model, prompt_length, count):
    """How many rows each block's layer solves for each token."""
    rows = [[] for _ in model.blocks]
    for block, seen in zip(model.blocks, rows, strict=True):
        block.attention.layer.register_forward_pre_hook(lambda _, given, seen=seen: seen.append(given[0].shape[2]))
    list(itertools.islice(generate_tokens(model, torch.arange(prompt_length)), count))
    return rows


def test_one_row_is_solved_for_each_token_also_once_the_window_slides():
    assert rows_of(model_with(attention_on("exact")), 3, 6) == [[1] * 6]


def test_blocks_before_the_last_solve_one_row_until_the_window_slides():
    assert rows_of(model_with(attention_on("exact"), 2), 3, 5) == [[3, 1, 1, 5, 5], [1] * 5]


def test_a_circuit_a_head_is_run_for_each_token():
    model = model_with(attention_on("dqa on hybrid.statevector"))
    (layer,) = [block.attention.layer for block in model.blocks]
    before = layer.circuits_run
    list(itertools.islice(generate_tokens(model, torch.arange(2)), 7))
    assert layer.circuits_run - before == 7 * 2


def test_no_graph_is_kept():
    model = model_with(attention_on("exact"))
    assert model.extend(torch.zeros(1, 2, dtype=torch.long))[0].requires_grad
    next(generate_tokens(model, torch.arange(2)))
    assert torch.is_grad_enabled()


def drawn(logits, temperature, top_k=None, count=4000):
    generator = torch.Generator().manual_seed(0)
    tokens = [int(choose_token(logits, temperature, top_k, generator)) for _ in range(count)]
    return torch.bincount(torch.tensor(tokens), minlength=len(logits)) / count


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_from_the_softmax_of_logits_over_temperature(temperature):
    logits = torch.tensor([1.0, -0.5, 0.3, 2.0])
    expected = (logits / temperature).softmax(0)
    assert largest_difference(drawn(logits, temperature), expected) < 4 * 0.5 / 4000**0.5


def test_top_k_leaves_the_others_out_and_keeps_the_ratios():
    logits = torch.tensor([1.0, -0.5, 0.3, 2.0])
    found = drawn(logits, 1.0, top_k=2)
    assert found[1] == found[2] == 0
    assert float(found[3]) == pytest.approx(torch.sigmoid(torch.tensor(1.0)).item(), abs=0.03)
    assert torch.equal(drawn(logits, 1.0, top_k=99, count=50), drawn(logits, 1.0, count=50))


def test_temperatures_near_zero_are_the_limit_of_zero():
    logits = torch.tensor([1.0, 3.0, 2.0])
    assert drawn(logits, 1e-300, count=20)[1] == 1
    assert choose_token(logits, 0, None, None) == 1


def test_the_same_generator_gives_the_same_tokens():
    model = model_with(attention_on("exact"))
    first, second, third = (
        list(itertools.islice(generate_tokens(model, torch.arange(2), 2.0, None, torch.Generator().manual_seed(s)), 20))
        for s in (1, 1, 2)
    )
    assert first == second != third


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        (torch.zeros(0, dtype=torch.long), {}, r"The prompt has shape \(0,\)"),
        (torch.zeros(1, 2, dtype=torch.long), {}, r"The prompt has shape \(1, 2\)"),
        (torch.arange(2), {"temperature": -1.0}, r"temperature=-1.0 was given"),
        (torch.arange(2), {"temperature": float("nan")}, r"temperature=nan was given"),
        (torch.arange(2), {"top_k": 0}, r"top_k=0 was given"),
    ],
)
def test_what_cannot_be_sampled_is_refused(prompt, settings, message):
    with pytest.raises(ValueError, match=message):
        next(generate_tokens(model_with(attention_on("exact")), prompt, **settings))


def test_attention_that_is_not_causal_cannot_be_extended():
    attention = BoltzmannAttention(8, build_layer("exact", CONTEXT, 2), causal=False).double()
    with pytest.raises(ValueError, match="to attention with causal=False: extend takes"):
        attention.extend(draw_fields(1, 2, 8))


def test_more_tokens_than_the_context_are_refused():
    model = model_with(attention_on("exact"))
    _, known = model.extend(torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"have shape \(1, 2\) after 4 others: give .* context_length of 5"):
        model.extend(torch.zeros(1, 2, dtype=torch.long), known)


@pytest.mark.parametrize("device", ["hybrid.statevector", "default.qubit", "lightning.qubit"])
@pytest.mark.parametrize("gradient", ["auto", "parameter-shift"])
def test_one_row_of_one_head_is_sampled(device, gradient):
    """PennyLane drops the batch dimension of a single sampled circuit."""
    layer = DQALayer(3, device=device, shots=2000, gradient=gradient, device_options={"seed": 0})
    exact = DQALayer(3)
    fields = draw_fields(1, 1, 1, 3).float()
    assert largest_difference(layer(fields), exact(fields)) < 5 * 0.5 / 2000**0.5
    assert float(layer.standard_error.max()) == pytest.approx(0.5 / 2000**0.5, rel=0.5)
    layer(fields.requires_grad_()).sum().backward()
    assert fields.grad.isfinite().all()
