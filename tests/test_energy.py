"""The energy: its sign convention, what it reads of the couplings, and the shapes that it takes."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import draw, largest_difference

from hybrid_attention import energy, exact_marginals


def energy_by_loops(s, h, J):
    total = 0.0
    for j in range(len(s)):
        total -= h[j] * s[j]
        for k in range(j + 1, len(s)):
            total -= J[j][k] * s[j] * s[k]
    return total


def boltzmann_weights(h, J):
    """The states and their probabilities, exp(-energy) normalized."""
    states = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=len(h))), dtype=torch.float64)
    weights = torch.exp(-energy(states, h, J))
    return states, weights / weights.sum()


def test_a_positive_field_favors_attending():
    """h = 2, J = 0 gives p = sigmoid(4) = 0.982, by the energy and by the marginals."""
    h, J = torch.tensor([2.0]).double(), torch.zeros(1, 1).double()
    states, weights = boltzmann_weights(h, J)
    assert float(weights[states[:, 0] == 1]) == pytest.approx(1 / (1 + math.exp(-4)), abs=1e-15)
    assert float(exact_marginals(h, J)) == pytest.approx(0.982, abs=5e-4)


@pytest.mark.parametrize("coupling", [-1.3, -0.2, 0.4, 2.0])
def test_a_positive_coupling_favors_agreement(coupling):
    """Two spins without fields have <s1 s2> = tanh(J12)."""
    J = torch.tensor([[0.0, coupling], [0.0, 0.0]], dtype=torch.float64)
    states, weights = boltzmann_weights(torch.zeros(2).double(), J)
    assert float((weights * states.prod(1)).sum()) == pytest.approx(math.tanh(coupling), abs=1e-14)
    m = 2 * exact_marginals(torch.tensor([0.0, 30.0]).double(), J)[0] - 1
    assert float(m) == pytest.approx(math.tanh(coupling), abs=1e-12), "beside a spin held at +1, m1 = tanh(J12)"


@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data(), size=st.integers(0, 5))
def test_energy_is_the_double_sum(data, size):
    number = st.floats(-100, 100)
    h = data.draw(st.lists(number, min_size=size, max_size=size))
    J = [data.draw(st.lists(number, min_size=size, max_size=size)) for _ in range(size)]
    s = data.draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=size, max_size=size))
    tensors = [
        torch.tensor(x, dtype=torch.float64).view(shape) for x, shape in ((s, [size]), (h, [size]), (J, [size] * 2))
    ]
    assert float(energy(*tensors)) == pytest.approx(energy_by_loops(s, h, J), abs=1e-9)


def test_a_zero_leaves_its_spin_out():
    s, h, J = torch.tensor([1.0, 0.0, -1.0]).double(), draw(3), draw(3, 3, seed=1)
    keep = [0, 2]
    assert energy(s, h, J) == pytest.approx(float(energy(s[keep], h[keep], J[keep][:, keep])), abs=1e-15)


def test_only_the_strict_upper_triangle_is_read():
    s, h = draw(5, 4).sign(), draw(4, seed=1)
    J = draw(4, 4, seed=2)
    filled = torch.where(torch.ones(4, 4, dtype=torch.bool).triu(1), J, math.nan).requires_grad_()
    found = energy(s, h, filled)
    assert torch.equal(found, energy(s, h, J))
    found.sum().backward()
    assert (filled.grad.tril() == 0).all()
    assert (filled.grad[filled.isfinite()] != 0).all()


@pytest.mark.parametrize(
    ("spins", "fields", "couplings"),
    [((4,), (5, 4), (4, 4)), ((7, 1, 4), (5, 4), (4, 4)), ((2, 1, 4), (3, 4), (2, 1, 4, 4)), ((0, 4), (4,), (4, 4))],
)
def test_leading_shapes_broadcast(spins, fields, couplings):
    s, h, J = draw(*spins).sign(), draw(*fields, seed=1), draw(*couplings, seed=2)
    leading = torch.broadcast_shapes(spins[:-1], fields[:-1], couplings[:-2])
    found = energy(s, h, J)
    assert found.shape == leading
    s, h, J = s.expand(*leading, 4), h.expand(*leading, 4), J.expand(*leading, 4, 4)
    for place in itertools.product(*map(range, leading)):
        assert float(found[place]) == pytest.approx(
            energy_by_loops(s[place].tolist(), h[place].tolist(), J[place].tolist()), abs=1e-12
        )


def test_energy_is_differentiable():
    s, h, J = draw(3, 4).sign(), draw(3, 4, seed=1).requires_grad_(), draw(4, 4, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(lambda h, J: energy(s, h, J), (h, J))


def test_marginals_are_those_of_the_energy():
    """p_j = sum of P(s) over the states with s_j = +1, P(s) = exp(-energy) / Z: one convention throughout."""
    h, J = draw(6), draw(6, 6, seed=1)
    states, weights = boltzmann_weights(h, J)
    assert largest_difference(exact_marginals(h, J), weights @ (states > 0).double()) < 1e-14


@pytest.mark.parametrize(
    "shapes",
    [((3,), (4,), (4, 4)), ((4,), (4,), (3, 4)), ((4,), (4,), (4, 3)), ((4,), (4,), (4,)), ((1,), (4,), (4, 4))],
)
def test_shapes_that_do_not_agree_are_named(shapes):
    with pytest.raises(ValueError, match="do not agree"):
        energy(*(torch.zeros(shape) for shape in shapes))
