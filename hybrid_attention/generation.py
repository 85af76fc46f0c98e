"""Sampling of tokens from a decoder-only transformer, one attention row for each new token."""

import math
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

from hybrid_attention.transformer import DecoderOnlyTransformer


@torch.no_grad()
def generate_tokens(
    model: DecoderOnlyTransformer,
    prompt: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: Generator | None = None,
) -> Iterator[int]:
    """Yield token ids that follow a prompt, without end.

    The model sees the newest context_length tokens, at the positions 0, 1, ... While they are fewer, keys and values
    are kept, and each block attends from the newest position alone. Once the window slides, every token has another
    position than before, and so another embedding: all keys are computed anew. Then too the last block attends from the
    newest position alone, so that a model of one block solves one row, or runs one circuit a head, for every token.

    Args:
        model: with causal attention.
        prompt: (n,), int64, n of 1 or more.
        temperature: logits are divided by it; 0 takes the most likely token.
        top_k: how many of the most likely tokens are sampled from; all of them without it.
        generator: of random numbers; torch's global one without it.

    Raises:
        ValueError: if the prompt is empty or not (n,), or temperature or top_k is not allowed; with the first token.
    """
    if prompt.dim() != 1 or not len(prompt):
        raise ValueError(f"The prompt has shape {tuple(prompt.shape)}: give (n,), with one token or more.")
    check_sampling(temperature, top_k)
    window = prompt[-model.context_length :].unsqueeze(0)
    logits, known = model.extend(window)
    while True:
        token = choose_token(logits[0], temperature, top_k, generator)
        yield int(token)
        newest = token.view(1, 1)
        if window.shape[1] < model.context_length:
            window = torch.cat((window, newest), dim=1)
            logits, known = model.extend(newest, known)
        else:
            window = torch.cat((window[:, 1:], newest), dim=1)
            logits, _ = model.extend(window)


def choose_token(logits: Tensor, temperature: float, top_k: int | None, generator: Generator | None) -> Tensor:
    """Return one token id, int64 (), drawn from softmax(logits / temperature) among the top_k; logits (num_outputs,).

    The lowest of the most likely ids is taken at temperature 0.
    """
    if temperature == 0:
        return logits.argmax()
    values, ids = logits.double().topk(min(top_k or len(logits), len(logits)))
    probabilities = ((values - values[0]) / temperature).softmax(0)
    return ids[torch.multinomial(probabilities, 1, generator=generator)[0]]


def check_sampling(temperature: float, top_k: int | None) -> None:
    """Raise ValueError where generate_tokens cannot sample like this."""
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} was given: give a finite number, or 0 for the most likely token.")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} was given: give 1 or more, or leave it out to sample from all tokens.")
