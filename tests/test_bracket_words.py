"""Bracket words against enumeration: counts, uniform draws, and which bracket closes which."""

import itertools
import math
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from datamodules.bracket_words import (
    count_words,
    draw_distinct_words,
    draw_words,
    matching_targets,
    nearest_open_bracket,
)

SMALLEST_P_VALUE = 1e-3


def stack_targets(word):
    """The targets of one word, or None where it is not balanced, and the depth that it reaches."""
    stack, targets, deepest = [], [], 0
    for place, token in enumerate(word):
        if token % 2 == 0:
            stack.append(place)
            targets.append(-100)
        elif stack and word[stack[-1]] == token - 1:
            targets.append(stack.pop())
        else:
            return None, deepest
        deepest = max(deepest, len(stack))
    return (None if stack else targets), deepest


def shapes(length):
    """Every one-type word and its depth, by trying all sequences."""
    tried = ((word, *stack_targets(word)) for word in itertools.product((0, 1), repeat=length))
    return [(word, depth) for word, targets, depth in tried if targets is not None]


def enumerate_words(length, num_types=1, max_depth=None):
    """Every word: each shape with each choice of kinds for its opening brackets."""
    words = []
    for shape, depth in shapes(length):
        if max_depth is not None and depth > max_depth:
            continue
        targets, _ = stack_targets(shape)
        for kinds in itertools.product(range(num_types), repeat=length // 2):
            opened = dict(zip((p for p in range(length) if shape[p] == 0), kinds, strict=True))
            words.append(tuple(2 * opened[p] if targets[p] < 0 else 2 * opened[targets[p]] + 1 for p in range(length)))
    return words


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def as_tuples(words):
    return [tuple(word) for word in words.tolist()]


def test_enumeration_finds_what_trying_every_token_sequence_finds():
    tried = [w for w in itertools.product(range(4), repeat=6) if stack_targets(w)[0] is not None]
    assert sorted(enumerate_words(6, num_types=2)) == sorted(tried)


@pytest.mark.parametrize("num_types", [1, 2, 3])
@pytest.mark.parametrize("length", [2, 4, 6, 8, 10])
def test_counts_are_those_of_enumeration_at_every_depth(length, num_types):
    depths = Counter(depth for _, depth in shapes(length))
    for max_depth in range(1, length // 2 + 3):
        found = sum(number for depth, number in depths.items() if depth <= max_depth) * num_types ** (length // 2)
        assert count_words(length, num_types, max_depth) == found
    assert count_words(length, num_types) == depths.total() * num_types ** (length // 2)


def test_counts_are_catalan_numbers_exactly_at_any_length():
    assert [count_words(length) for length in (8, 12, 16, 20)] == [14, 132, 1430, 16796]
    assert count_words(200, 3) == math.comb(200, 100) // 101 * 3**100


@pytest.mark.parametrize(
    ("length", "num_types", "max_depth"), [(2, 3, None), (8, 1, None), (6, 2, None), (8, 1, 1), (8, 1, 3), (6, 2, 2)]
)
def test_draws_are_uniform_over_all_words(length, num_types, max_depth):
    words = enumerate_words(length, num_types, max_depth)
    drawn = Counter(as_tuples(draw_words(200 * len(words), length, num_types, max_depth, seeded())))
    assert set(drawn) <= set(words)
    assert len(words) == 1 or chisquare([drawn[word] for word in words]).pvalue > SMALLEST_P_VALUE


@pytest.mark.parametrize(("length", "num_types", "max_depth"), [(6, 1, None), (6, 2, 2)])
@pytest.mark.parametrize("part", [0.2, 0.5])
def test_distinct_draws_hold_every_word_equally_often_at_every_place(length, num_types, max_depth, part):
    """Both ways of drawing: rejection for few of the words, a shuffle of all of them for many."""
    words = enumerate_words(length, num_types, max_depth)
    number, repeats = max(1, int(part * len(words))), 20 * len(words)
    generator = seeded(1)
    draws = [as_tuples(draw_distinct_words(number, length, num_types, max_depth, generator)) for _ in range(repeats)]
    for place in {0, number - 1}:
        drawn = Counter(draw[place] for draw in draws)
        assert chisquare([drawn[word] for word in words]).pvalue > SMALLEST_P_VALUE


@pytest.mark.parametrize(("length", "num_types", "max_depth"), [(16, 1, None), (16, 3, None), (16, 2, 3), (40, 5, 1)])
def test_every_draw_is_balanced_in_its_kinds_and_within_the_depth(length, num_types, max_depth):
    for draw in (draw_words, draw_distinct_words):
        for word in as_tuples(draw(200, length, num_types, max_depth, seeded(2))):
            targets, depth = stack_targets(word)
            assert targets is not None
            assert depth <= (max_depth or length)
            assert max(word) < 2 * num_types


@pytest.mark.parametrize(("length", "num_types", "max_depth"), [(8, 1, None), (8, 2, None), (10, 1, 3), (6, 3, 2)])
def test_distinct_draws_of_any_number_up_to_all_words_are_distinct(length, num_types, max_depth):
    words = enumerate_words(length, num_types, max_depth)
    for number in (0, 1, len(words) // 5, len(words) // 3, len(words) - 1, len(words)):
        drawn = as_tuples(draw_distinct_words(number, length, num_types, max_depth, seeded(number)))
        assert len(set(drawn)) == len(drawn) == number
        assert set(drawn) <= set(words)
    assert set(drawn) == set(words)


def test_distinct_draws_work_where_words_outnumber_any_int64():
    assert count_words(200, 3) > 2**63
    assert len(set(as_tuples(draw_distinct_words(50, 200, 3, None, seeded())))) == 50


def test_more_distinct_words_than_exist_are_refused():
    with pytest.raises(ValueError, match=r"15 distinct words were asked for, and there are 14\."):
        draw_distinct_words(15, 8, 1, None, seeded())


@pytest.mark.parametrize("draw", [draw_words, draw_distinct_words])
def test_the_generator_decides_the_draw(draw):
    first, again, other = (draw(100, 16, 1, None, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("length", "num_types", "max_depth"), [(10, 1, None), (6, 2, None), (10, 1, 2)])
def test_targets_are_those_of_a_stack(length, num_types, max_depth):
    words = enumerate_words(length, num_types, max_depth)
    targets = matching_targets(torch.tensor(words))
    assert targets.dtype == torch.int64
    assert targets.tolist() == [stack_targets(word)[0] for word in words]


def test_nearest_open_bracket_is_the_last_opening_token_so_far():
    #                                   (  (  )  )  [  ]
    assert nearest_open_bracket(torch.tensor([[0, 0, 1, 1, 2, 3]])).tolist() == [[0, 1, 1, 1, 4, 4]]


@pytest.mark.parametrize(("length", "right"), [(8, (5, 8)), (12, (7, 12)), (16, (9, 16))])
def test_nearest_open_bracket_is_right_at_its_known_share_of_all_closing_brackets(length, right):
    """62.5, 58.3 and 56.2 percent, which is (T / 2 + 1) / T."""
    words = draw_distinct_words(count_words(length), length, 1, None, seeded())
    targets = matching_targets(words)
    hits = int((nearest_open_bracket(words) == targets).sum())
    assert hits * right[1] == right[0] * int((targets >= 0).sum())
