"""Several heads under the causal mask, over all sizes that rows are grouped by: values and gradients of each head."""

import pytest
import torch
from oracle import causal_mask, draw, largest_difference, marginals_by_table

from hybrid_attention import exact_marginals

pytestmark = pytest.mark.usefixtures("each_path")


@pytest.mark.parametrize("num_spins", [3, 8, 9, 10, 11, 12])
def test_heads_and_prefixes_equal_the_table(num_spins):
    fields = draw(2, 3, num_spins, num_spins, seed=1).requires_grad_()
    couplings = draw(3, 1, num_spins, num_spins, seed=2, spread=0.4).requires_grad_()
    present = causal_mask(num_spins)
    expected = marginals_by_table(fields, couplings, present)
    ours = exact_marginals(fields, couplings, present)
    assert largest_difference(ours, expected) < 1e-10
    weights = torch.linspace(-1, 2, ours.numel(), dtype=ours.dtype).view(ours.shape)
    grads = [torch.autograd.grad((weights * p).sum(), [fields, couplings]) for p in (ours, expected)]
    for mine, theirs in zip(*grads, strict=True):
        assert largest_difference(mine, theirs) < 1e-10
