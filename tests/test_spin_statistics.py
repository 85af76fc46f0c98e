"""Correlations and energies of spins, against loops over all states."""

import itertools

import pytest
import torch
from oracle import causal_mask, draw, draw_mask, marginals_by_table

from hybrid_attention import (
    BoltzmannAttention,
    DQALayer,
    ExactLayer,
    FieldsOnlyLayer,
    LinearSchedule,
    SoftmaxAttention,
    energy,
    exact_correlations,
    record_attention,
)
from hybrid_attention.energy_levels import energy_histogram, energy_levels
from hybrid_attention.spin_statistics import couplings_by_distance, spin_statistics

SCHEDULE = LinearSchedule(8, 10.0)


def states(length):
    return torch.tensor(list(itertools.product((1.0, -1.0), repeat=length)), dtype=torch.float64).view(-1, length)


def correlations_by_table(fields, couplings):
    s = states(len(fields))
    weights = (-energy(s, fields, couplings)).softmax(0)
    return torch.einsum("n,nj,nk->jk", weights, s, s)


@pytest.mark.parametrize("center", [0.0, -12.0, 3.0])
def test_correlations_are_those_of_all_states(center):
    fields, couplings = draw(5, 4, center=center), draw(5, 4, 4, seed=1)
    expected = torch.stack([correlations_by_table(*each) for each in zip(fields, couplings, strict=True)])
    torch.testing.assert_close(exact_correlations(fields, couplings), expected, atol=1e-13, rtol=0)


def test_two_spins_without_fields_correlate_by_the_tanh_of_their_coupling():
    couplings = torch.tensor([[0.0, 0.7], [5.0, 0.0]], dtype=torch.float64)
    found = exact_correlations(torch.zeros(2, dtype=torch.float64), couplings)
    torch.testing.assert_close(found, torch.tensor([[1, 0.7], [0.7, 1]], dtype=torch.float64).tanh().fill_diagonal_(1))


def test_removed_spins_leave_the_smaller_model():
    fields, couplings, present = draw(3, 5), draw(5, 5, seed=1), draw_mask(3, 5, seed=2)
    found = exact_correlations(fields, couplings, present)
    for row, here in enumerate(present):
        places = here.nonzero().squeeze(1)
        whole = torch.zeros(5, 5, dtype=torch.float64)
        whole[places[:, None], places] = correlations_by_table(fields[row, places], couplings[places][:, places])
        torch.testing.assert_close(found[row], whole, atol=1e-13, rtol=0)


def test_couplings_of_heads_broadcast():
    fields, couplings = draw(2, 3, 4), draw(2, 1, 4, 4, seed=1)
    found = exact_correlations(fields, couplings, causal_mask(4)[:3])
    for head, query in itertools.product(range(2), range(3)):
        expected = exact_correlations(fields[head, query], couplings[head, 0], causal_mask(4)[query])
        torch.testing.assert_close(found[head, query], expected)


def test_the_levels_are_the_energies_of_all_states():
    fields, couplings = draw(5), draw(5, 5, seed=1)
    torch.testing.assert_close(energy_levels(fields, couplings), energy(states(5), fields, couplings))
    assert energy_levels(fields[:0], couplings[:0, :0]).tolist() == [0.0]
    with pytest.raises(ValueError, match="up to 24"):
        energy_levels(torch.zeros(25), torch.zeros(25, 25))


def test_shares_fall_into_their_bins():
    edges = torch.tensor([0.0, 1.0, 2.0])
    shares = energy_histogram(torch.tensor([0.0, 0.5, 1.0, 2.0]), torch.tensor([0.1, 0.2, 0.3, 0.4]), edges)
    torch.testing.assert_close(shares, torch.tensor([0.3, 0.7]))


def test_the_mean_coupling_at_each_distance():
    J = torch.tensor([[0.0, 1.0, 5.0], [1.0, 0.0, 3.0], [5.0, 3.0, 0.0]])
    assert couplings_by_distance(J).tolist() == [2.0, 5.0]
    assert couplings_by_distance(J[:1, :1]).shape == (0,)


def attended(layer, length=4, **settings):
    torch.manual_seed(0)
    if layer.couplings is not None:
        torch.nn.init.normal_(layer.couplings, 0.1, 0.3)
    attention = BoltzmannAttention(6, layer, **settings).double()
    with torch.no_grad(), record_attention(attention) as records:
        attention(torch.randn(2, length, 6, dtype=torch.float64))
    return records[0]


@pytest.mark.parametrize("causal", [True, False])
def test_every_statistic_of_an_exact_layer(causal):
    record = attended(ExactLayer(4, 2), causal=causal)
    found = spin_statistics(record)
    J = record.layer.coupling_matrix().detach()
    torch.testing.assert_close(
        found.correlations, exact_correlations(record.fields[0], J.unsqueeze(1), record.present[0])
    )
    torch.testing.assert_close(found.of_layer, found.of_boltzmann)
    assert not found.sampled
    middle = (found.edges[:, 1:] + found.edges[:, :-1]) / 2
    for head in range(2):
        levels = energy(states(4), record.fields[0, head, -1], J[head])
        mean = ((-levels).softmax(0) * levels).sum()
        width = found.edges[head, 1] - found.edges[head, 0]
        assert abs((middle[head] * found.of_layer[head]).sum() - mean) < width
        torch.testing.assert_close(
            (middle[head] * found.of_states[head]).sum(), levels.mean(), atol=float(width), rtol=0
        )


def test_a_circuit_has_correlations_close_to_exact_ones_and_samples_close_to_its_own():
    quench = spin_statistics(attended(DQALayer(4, 2, schedule=SCHEDULE)))
    exact = spin_statistics(attended(ExactLayer(4, 2)))
    sampled = spin_statistics(attended(DQALayer(4, 2, schedule=SCHEDULE, shots=4000, device_options={"seed": 1})))
    assert 0 < (quench.correlations - exact.correlations).abs().max() < 0.1
    assert 0 < (sampled.correlations - quench.correlations).abs().max() < 0.08
    assert sampled.sampled
    assert not quench.sampled
    torch.testing.assert_close(quench.of_layer.sum(-1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(quench.of_boltzmann, exact.of_boltzmann)


def test_a_circuits_correlations_fit_its_marginals():
    """E[n_j n_k] is at most p_j and p_k, and at least p_j + p_k - 1."""
    record = attended(DQALayer(4, 2, schedule=SCHEDULE), causal=False)
    p = record.marginals[0]
    c = spin_statistics(record).correlations
    together = (c + 2 * p.unsqueeze(-1) + 2 * p.unsqueeze(-2) - 1) / 4
    assert (together <= torch.minimum(p.unsqueeze(-1), p.unsqueeze(-2)) + 1e-6).all()
    assert (together >= p.unsqueeze(-1) + p.unsqueeze(-2) - 1 - 1e-6).all()


def test_without_couplings_spins_are_independent_at_any_length():
    record = attended(FieldsOnlyLayer(30), length=30)
    found = spin_statistics(record)
    m = record.fields[0].tanh()
    assert found.sampled
    torch.testing.assert_close(found.correlations[0, -1, 3, 7], m[0, -1, 3] * m[0, -1, 7])
    assert (found.correlations[0, 4, 5:] == 0).all()
    assert found.of_boltzmann.isnan().all()


def test_records_are_what_the_modules_return():
    torch.manual_seed(0)
    model = torch.nn.Sequential(BoltzmannAttention(6, ExactLayer(4, 2)), SoftmaxAttention(6, 3))
    x = torch.randn(2, 4, 6)
    plain = model(x)
    with record_attention(model) as records:
        assert torch.equal(model(x), plain) or torch.allclose(model(x), plain, atol=1e-6)
        out, weights = model[0](x, need_weights=True)
    first, second = records[:2]
    assert (first.name, second.name) == ("0", "1")
    assert torch.equal(first.weights, weights)
    assert torch.equal(records[-1].weights, model[0](x, need_weights=True)[1])
    assert torch.equal(out, model[0](x))
    expected = marginals_by_table(
        first.fields.double(), first.layer.coupling_matrix().unsqueeze(1).double(), first.present
    )
    torch.testing.assert_close(first.marginals.double(), expected, atol=1e-6, rtol=0)
    assert second.layer is None
    with pytest.raises(ValueError, match="Softmax attention has no spins"):
        spin_statistics(second)
