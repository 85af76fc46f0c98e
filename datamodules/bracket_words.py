"""Balanced bracket words: how many there are, uniform draws of them, and which bracket closes which.

A word is a row of int64 tokens; kind t opens with token 2t and closes with 2t + 1.
"""

from fractions import Fraction
from functools import lru_cache

import torch
from torch import Generator, Tensor

NOT_SCORED = -100
_DENSE = 4


def count_words(length: int, num_types: int = 1, max_depth: int | None = None) -> int:
    """Return the number of balanced words, Catalan(T / 2) num_types^(T / 2) where the depth is not limited."""
    return _completions(length, _height(length, max_depth))[length][0] * int(num_types) ** (length // 2)


def draw_words(number: int, length: int, num_types: int, max_depth: int | None, generator: Generator) -> Tensor:
    """Return words drawn uniformly from all balanced words, with replacement: (number, length).

    Each position opens or closes with the exact share of the completions that begin so. Cost: O(number T).
    """
    limit = _height(length, max_depth)
    opens = _opening_probabilities(length, limit)
    height = torch.zeros(number, dtype=torch.long)
    is_open = torch.empty(number, length, dtype=torch.bool)
    for place in range(length):
        is_open[:, place] = torch.rand(number, dtype=torch.float64, generator=generator) < opens[place, height]
        height += torch.where(is_open[:, place], 1, -1)
    kinds = torch.randint(num_types, (number, length), generator=generator)
    return _with_kinds(is_open, kinds)


def draw_distinct_words(
    number: int, length: int, num_types: int, max_depth: int | None, generator: Generator
) -> Tensor:
    """Return distinct words drawn uniformly without replacement: (number, length).

    Raises:
        ValueError: if there are fewer words.

    Cost: O(number T log number).
    """
    total = count_words(length, num_types, max_depth)
    if number > total:
        raise ValueError(f"{number:,} distinct words were asked for, and there are {total:,}.")
    if total <= _DENSE * number:
        order = torch.randperm(total, generator=generator)[:number]
        return _all_words(length, num_types, max_depth)[order]
    words = torch.empty(0, length, dtype=torch.long)
    while len(words) < number:
        more = draw_words(number - len(words) + number // _DENSE + 1, length, num_types, max_depth, generator)
        words = _first_occurrences(torch.cat((words, more)))
    return words[:number]


def matching_targets(words: Tensor) -> Tensor:
    """Return at every closing bracket the position of the bracket that it closes, -100 elsewhere: (N, T) -> (N, T).

    Raises:
        ValueError: if a word is not balanced.
    """
    is_open = words % 2 == 0
    depth = torch.where(is_open, 1, -1).cumsum(dim=1)
    if (depth < 0).any() or (words.shape[1] and depth[:, -1].any()):
        raise ValueError("A word is not balanced: give words in which every bracket closes the last open one.")
    rows = torch.arange(len(words), device=words.device)
    targets = torch.full_like(words, NOT_SCORED)
    stack = torch.zeros(len(words), words.shape[1] // 2 + 1, dtype=torch.long, device=words.device)
    height = torch.zeros_like(rows)
    for place in range(words.shape[1]):
        opening = is_open[:, place]
        stack[rows[opening], height[opening]] = place
        height += torch.where(opening, 1, -1)
        targets[~opening, place] = stack[rows[~opening], height[~opening]]
    return targets


def nearest_open_bracket(words: Tensor) -> Tensor:
    """Return the position of the last opening bracket so far, closed or not: (N, T) -> (N, T), -1 before the first.

    As a guess of matching_targets it is right for 62.5, 58.3 and 56.2 % of the closing brackets of uniform one-type
    words of length 8, 12 and 16.
    """
    places = torch.arange(words.shape[1], device=words.device)
    return torch.where(words % 2 == 0, places, -1).cummax(dim=1).values


def _height(length: int, max_depth: int | None) -> int:
    return length // 2 if max_depth is None else min(max_depth, length // 2)


@lru_cache(maxsize=32)
def _completions(length: int, limit: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each number of places left and each height up to `limit`, how many endings balance the word."""
    rows = [(1, *[0] * limit)]
    for _ in range(length):
        last = (*rows[-1], 0)
        rows.append(tuple(last[h + 1] + (last[h - 1] if h else 0) for h in range(limit + 1)))
    return tuple(rows)


def _opening_probabilities(length: int, limit: int) -> Tensor:
    """Return the share of completions that open next, at each place and height: (T, limit + 1), float64."""
    ways = _completions(length, limit)
    shares = [
        [
            float(Fraction(ways[left - 1][h + 1], ways[left][h])) if h < limit and ways[left][h] else 0.0
            for h in range(limit + 1)
        ]
        for left in range(length, 0, -1)
    ]
    return torch.tensor(shares, dtype=torch.float64).view(length, limit + 1)


def _all_words(length: int, num_types: int, max_depth: int | None) -> Tensor:
    """Return every word once: (count, length)."""
    limit = _height(length, max_depth)
    ways = torch.tensor(_completions(length, limit))
    ways = torch.nn.functional.pad(ways, (0, 1))
    choices = num_types ** (length // 2)
    number = torch.arange(count_words(length, num_types, max_depth))
    shape, kind = number // choices, number % choices
    height = torch.zeros_like(shape)
    is_open = torch.empty(len(number), length, dtype=torch.bool)
    kinds = torch.zeros(len(number), length, dtype=torch.long)
    for place in range(length):
        opening = ways[length - place - 1][height + 1]
        is_open[:, place] = shape < opening
        shape = torch.where(is_open[:, place], shape, shape - opening)
        height += torch.where(is_open[:, place], 1, -1)
        kinds[:, place] = kind % num_types
        kind = torch.where(is_open[:, place], kind // num_types, kind)
    return _with_kinds(is_open, kinds)


def _with_kinds(is_open: Tensor, kinds: Tensor) -> Tensor:
    """Return tokens whose opening brackets have the given kinds, and closing ones those of their partners."""
    opener = matching_targets(torch.where(is_open, 0, 1))
    matched = kinds.gather(1, opener.clamp_min(0))
    return torch.where(is_open, 2 * kinds, 2 * matched + 1)


def _first_occurrences(words: Tensor) -> Tensor:
    """Drop rows that occurred before, keeping the order."""
    _, group = words.unique(dim=0, return_inverse=True)
    first = torch.full((int(group.max()) + 1,), len(words)).scatter_reduce(
        0, group, torch.arange(len(words)), reduce="amin"
    )
    return words[first.sort().values]
