"""The table of all states and the tables of two halves are two ways to the same numbers."""

import pytest
import torch
from oracle import draw, largest_difference

from hybrid_attention import exact_marginals
from hybrid_attention.direct_table import DirectTable
from hybrid_attention.meet_in_the_middle import HalfTables


@pytest.mark.parametrize("size", range(1, 9))
def test_both_tables_give_the_same_sums_and_gradients(size):
    groups, rows = 3, 5
    costs = draw(groups, size, 2, rows, seed=size).abs()
    pairs = draw(groups, 2 ** (size - size // 2), 2 ** (size // 2), seed=1).exp()
    slopes = draw(groups, size + 1, rows, seed=2)
    direct, sums = DirectTable.solve(costs, pairs, careful=True)
    halves, expected = HalfTables.solve(costs, pairs, careful=True)
    assert largest_difference(sums / expected, torch.ones_like(sums)) < 1e-12
    found, reference = direct.gradient(pairs, slopes, True), halves.gradient(pairs, slopes, True)
    for mine, theirs in zip(found, reference, strict=True):
        assert largest_difference(mine, theirs) < 1e-12 * float(theirs.abs().max())


@pytest.mark.parametrize("length", [7, 8, 13])
def test_frozen_couplings_leave_the_gradient_of_the_fields_as_it_is(length):
    h, J = draw(3, length, seed=3).requires_grad_(), draw(length, length, seed=4, spread=0.4)
    alone = torch.autograd.grad(exact_marginals(h, J).square().sum(), h)
    together = torch.autograd.grad(exact_marginals(h, J.requires_grad_()).square().sum(), h)
    assert torch.equal(alone[0], together[0])
