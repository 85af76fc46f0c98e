"""How Boltzmann a sampler is: enumeration, fitted inverse temperatures, and what is reported of DQA."""

import itertools
import math

import numpy as np
import pytest
import torch
from oracle import marginals_by_loops
from trotter_oracle import boltzmann_magnetizations, trotter_state
from trotter_oracle import magnetizations as circuit_magnetizations

from hybrid_attention import LinearSchedule
from hybrid_attention.annealing import Annealer
from hybrid_attention.calibration import calibrate, compare
from hybrid_attention.clipping import clip_fields
from hybrid_attention.effective_betas import (
    counted_pseudo_likelihood_betas,
    likelihood_betas,
    pseudo_likelihood_betas,
)
from hybrid_attention.instances import (
    Instances,
    boltzmann_log_probabilities,
    draw_instances,
    draw_samples,
    magnetizations,
)


def exact(instances, beta_h=1.0, beta_J=1.0):
    return boltzmann_log_probabilities(instances.times(beta_h, beta_J)).exp()


def coupling_matrix(couplings, num_spins):
    matrix = torch.zeros(num_spins, num_spins, dtype=couplings.dtype)
    for value, (j, k) in zip(couplings, itertools.combinations(range(num_spins), 2), strict=True):
        matrix[j, k] = value
    return matrix


@pytest.mark.parametrize("num_spins", [1, 2, 5])
def test_enumerated_magnetizations_are_those_of_the_loops(num_spins):
    instances = draw_instances(num_spins, 4, 1.0, 0.7, seed=3, field_mean=0.3)
    expected = torch.stack(
        [
            2 * marginals_by_loops(fields, coupling_matrix(couplings, num_spins)) - 1
            for fields, couplings in zip(instances.fields, instances.couplings, strict=True)
        ]
    )
    torch.testing.assert_close(magnetizations(exact(instances)), expected, rtol=0, atol=1e-12)


def test_drawn_models_have_the_spreads_and_the_seed_they_were_asked_for():
    instances = draw_instances(8, 4000, 0.5, 0.2, seed=1, field_mean=0.3)
    assert instances.fields.dtype == torch.float64
    assert float(instances.fields.std()) == pytest.approx(0.5, rel=0.02)
    assert float(instances.fields.mean()) == pytest.approx(0.3, abs=0.01)
    assert float(instances.couplings.std()) == pytest.approx(0.2, rel=0.02)
    again, other = draw_instances(8, 4000, 0.5, 0.2, 1, 0.3), draw_instances(8, 4000, 0.5, 0.2, 2, 0.3)
    assert torch.equal(again.fields, instances.fields)
    assert torch.equal(again.couplings, instances.couplings)
    assert not torch.equal(other.fields, instances.fields)


@pytest.mark.parametrize("settings", [(0, 1, 1.0, 1.0), (1, 0, 1.0, 1.0), (2, 3, -1.0, 1.0), (2, 3, 1.0, math.inf)])
def test_models_that_cannot_be_drawn_are_refused(settings):
    with pytest.raises(ValueError, match="finite spreads of 0 or more"):
        draw_instances(*settings, seed=0)


def test_models_whose_shapes_do_not_fit_are_refused():
    for fields, couplings in [((2, 3), (2, 2)), ((2, 3), (1, 3)), ((3,), (3,)), ((0, 2), (0, 1)), ((2, 0), (2, 0))]:
        with pytest.raises(ValueError, match=r"give \(N, T\)"):
            Instances(torch.zeros(fields), torch.zeros(couplings))


def test_too_many_spins_to_enumerate_are_refused():
    instances = draw_instances(15, 1, 1.0, 1.0, seed=0)
    for run in (boltzmann_log_probabilities, lambda x: Annealer()(x, LinearSchedule())):
        with pytest.raises(ValueError, match=r"15 spins were given.*14 spins"):
            run(instances)


@pytest.mark.parametrize("beta_h", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("beta_J", [0.5, 1.0, 2.0])
def test_fitted_betas_of_exact_distributions_are_exact(beta_h, beta_J):
    instances = draw_instances(5, 40, 0.8, 0.4, seed=1)
    q = exact(instances, beta_h, beta_J)
    assert likelihood_betas(instances, q) == pytest.approx((beta_h, beta_J), rel=1e-8)
    assert counted_pseudo_likelihood_betas(instances, q) == pytest.approx((beta_h, beta_J), rel=1e-8)


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("spreads", [(0.5, 0.2), (1.0, 0.3)])
def test_fitted_betas_of_samples_are_right_to_two_percent(beta, spreads):
    instances = draw_instances(8, 100, *spreads, seed=2)
    samples = draw_samples(exact(instances, beta, beta), 2000, seed=5)
    found = pseudo_likelihood_betas(instances, samples)
    index = ((1 - samples.long()) / 2 * 2 ** torch.arange(7, -1, -1)).sum(2).long()
    counted = torch.zeros(100, 256, dtype=torch.float64).scatter_add_(
        1, index, torch.full(index.shape, 1 / 2000.0).double()
    )
    likely = likelihood_betas(instances, counted)
    print(f"pseudo-likelihood {found}, likelihood {likely}")
    assert found == pytest.approx((beta, beta), rel=0.02)
    assert likely == pytest.approx((beta, beta), rel=0.02)
    assert counted_pseudo_likelihood_betas(instances, counted) == pytest.approx(found, rel=1e-7)


def test_pseudo_likelihood_needs_no_enumeration():
    """Of 30 spins only two are coupled, so that exact samples can be drawn."""
    generator = torch.Generator().manual_seed(0)
    fields = torch.randn(20, 30, dtype=torch.float64, generator=generator)
    couplings = torch.zeros(20, 435, dtype=torch.float64)
    couplings[:, 0] = 0.6
    p = torch.sigmoid(2 * 0.7 * fields)
    samples = torch.where(torch.rand(3000, 20, 30, generator=generator, dtype=torch.float64) < p, 1.0, -1.0)
    pair = exact(Instances(fields[:, :2], couplings[:, :1]), 0.7, 1.4)
    samples = samples.transpose(0, 1).contiguous()
    samples[:, :, :2] = draw_samples(pair, 3000, seed=1)
    assert pseudo_likelihood_betas(Instances(fields, couplings), samples) == pytest.approx((0.7, 1.4), rel=0.03)


def test_betas_that_the_data_do_not_fix_are_nan():
    instances = draw_instances(3, 5, 0.8, 0.4, seed=1)
    no_couplings = Instances(instances.fields, instances.couplings * 0)
    no_fields = Instances(instances.fields * 0, instances.couplings)
    for fit in (likelihood_betas, counted_pseudo_likelihood_betas):
        found = fit(no_couplings, exact(no_couplings, 2.0))
        assert found.beta_h == pytest.approx(2.0)
        assert math.isnan(found.beta_J)
        found = fit(no_fields, exact(no_fields, 1.0, 0.5))
        assert found.beta_J == pytest.approx(0.5)
        assert math.isnan(found.beta_h)
        ground_states = exact(instances, 1e6, 1e6)
        assert all(math.isnan(beta) for beta in fit(instances, ground_states))


def test_distributions_and_samples_of_other_shapes_are_refused():
    instances = draw_instances(3, 5, 0.8, 0.4, seed=1)
    for fit in (likelihood_betas, counted_pseudo_likelihood_betas, compare):
        with pytest.raises(ValueError, match=r"\(5, 4\): give \(5, 8\)"):
            fit(instances, torch.ones(5, 4))
    for samples, weights in [((5, 9, 2), None), ((4, 9, 3), None), ((5, 9, 3), (5, 8)), ((5, 3), None)]:
        with pytest.raises(ValueError, match="do not fit 5 models of 3 spins"):
            pseudo_likelihood_betas(instances, torch.ones(samples), None if weights is None else torch.ones(weights))


@pytest.mark.parametrize("device", ["hybrid.statevector", "default.qubit", "lightning.qubit"])
def test_annealed_distributions_are_those_of_the_circuit(device):
    schedule = LinearSchedule(3, 3.0)
    instances = draw_instances(3, 4, 1.5, 0.5, seed=4)
    assert (instances.fields.abs() > schedule.max_field).any()
    for clip in (True, False):
        fields = clip_fields(instances.fields, schedule.max_field) if clip else instances.fields
        expected = np.stack(
            [
                circuit_magnetizations(trotter_state(h / schedule.beta_h, J / schedule.beta_J, schedule.angles()), 3)
                for h, J in zip(fields.numpy(), instances.couplings.numpy(), strict=True)
            ]
        )
        found = magnetizations(Annealer(device)(instances, schedule, clip))
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-9)


def test_annealed_distributions_are_differentiable_in_the_angles():
    instances = draw_instances(3, 2, 0.5, 0.3, seed=4)
    angles = LinearSchedule(2, 2.0).angles().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: Annealer().run(instances, x), angles)


def test_what_is_reported_of_an_exact_sampler():
    instances = draw_instances(5, 30, 0.8, 0.3, seed=1)
    found = compare(instances, exact(instances))
    expected = boltzmann_magnetizations(instances.fields.numpy(), instances.couplings.numpy())
    assert found.rms_error == pytest.approx(0, abs=1e-12)
    assert found.correlation == pytest.approx(1)
    assert found.kl == pytest.approx(0, abs=1e-12)
    assert found.reverse_kl == pytest.approx(0, abs=1e-12)
    assert found.betas == pytest.approx((1, 1))
    assert found.pseudo_betas == pytest.approx((1, 1))
    assert found.rms_magnetization == pytest.approx(np.sqrt((expected**2).mean()))
    assert (found.num_spins, found.count, found.shots, found.sampling_error) == (5, 30, None, 0.0)


def test_divergences_of_two_states_in_closed_form():
    instances = Instances(torch.tensor([[0.0]]).double(), torch.zeros(1, 0).double())
    found = compare(instances, torch.tensor([[0.25, 0.75]]).double())
    assert found.kl == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))
    assert found.reverse_kl == pytest.approx(-0.5 * math.log(0.5) - 0.5 * math.log(1.5))
    assert found.rms_error == pytest.approx(0.5)
    assert math.isnan(found.correlation)


def test_errors_and_divergences_of_samples_of_an_exact_sampler_are_those_of_sampling():
    """Counting 16 states gives a divergence of 15 / (2 shots) = 0.015, which is taken off; states that are rarely seen
    leave 0.0020 of it, with a spread of 0.0003 between draws."""
    instances = draw_instances(4, 400, 0.8, 0.3, seed=1)
    drawn = torch.multinomial(exact(instances), 500, True, generator=torch.Generator().manual_seed(0))
    counted = torch.stack([torch.bincount(row, minlength=16) for row in drawn])
    found = compare(instances, counted / 500.0, shots=500)
    assert found.rms_error == pytest.approx(found.sampling_error, rel=0.1)
    assert found.kl == pytest.approx(0.002, abs=0.0015)
    assert math.isnan(found.reverse_kl)


def test_the_more_steps_the_closer_to_boltzmann():
    """The design's prototype: 0.992 at tau = 8 in 40 steps, and 0.93 at tau = 1, where h and J are 0.5 and 0.2 wide."""
    instances = draw_instances(8, 100, 0.5, 0.2, seed=7)
    slow, fast = calibrate(instances, LinearSchedule(40, 8.0)), calibrate(instances, LinearSchedule(10, 1.0))
    assert slow.correlation == pytest.approx(0.992, abs=0.004)
    assert fast.correlation < 0.95
    assert slow.kl < fast.kl
    assert slow.betas == pytest.approx((1, 1), abs=0.15)


def test_shots_add_their_own_error():
    instances = draw_instances(4, 60, 0.5, 0.2, seed=7)
    schedule = LinearSchedule(16, 16.0)
    annealer = Annealer("default.qubit", shots=200, device_options={"seed": 3})
    found, without = calibrate(instances, schedule, annealer), calibrate(instances, schedule)
    assert found.shots == 200
    assert found.rms_error == pytest.approx(math.hypot(without.rms_error, found.sampling_error), rel=0.15)
    assert without.sampling_error == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"shots": 1}, "2 or more"), ({"shots": 2.5}, "2 or more"), ({"device": "qiskit.aer"}, "given no shots")],
)
def test_annealers_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        Annealer(**settings)


@pytest.mark.parametrize("device", ["hybrid.statevector", "default.qubit", "lightning.qubit"])
def test_samples_are_those_of_the_distributions(device):
    instances = draw_instances(3, 4, 0.8, 0.4, seed=2)
    schedule = LinearSchedule(3, 3.0)
    samples = Annealer(device, shots=4000, device_options={"seed": 5})
    found = samples.samples(instances, schedule)
    assert found.shape == (4, 4000, 3)
    assert set(found.unique().tolist()) == {-1.0, 1.0}
    expected = magnetizations(Annealer()(instances, schedule))
    torch.testing.assert_close(found.mean(1), expected, rtol=0, atol=5 / math.sqrt(4000))
    with pytest.raises(ValueError, match="without shots"):
        Annealer(device).samples(instances, schedule)
