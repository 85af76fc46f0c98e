"""The loss of a single spin's response: what it is of a circuit, and what it punishes."""

import pytest
import torch
from trotter_oracle import magnetizations, trotter_state

from hybrid_attention import LinearSchedule
from hybrid_attention.schedules import single_spin_response
from hybrid_attention.single_spin import single_spin_loss
from hybrid_attention.tuned_schedule import TunedSchedule, available_steps


def angles_at_beta_one(schedule):
    return schedule.angles() / torch.tensor([schedule.beta_h, schedule.beta_J, 1.0], dtype=torch.float64)


def test_the_loss_is_made_of_the_circuits_probabilities():
    angles, reach = angles_at_beta_one(LinearSchedule(4, 5.0)), 3.0
    fields = [reach * (k + 1) / 80 for k in range(80)]
    z = torch.tensor([magnetizations(trotter_state([h], [], angles), 1)[0] for h in fields], dtype=torch.float64)
    exact = torch.tensor(fields, dtype=torch.float64).tanh()
    ratios = (((1 - z) / 2 + 1e-3) / ((1 - exact) / 2 + 1e-3)).log()
    falls = sum(max(1e-4 - (after - before), 0) for before, after in zip(z.tolist(), z.tolist()[1:], strict=False))
    assert falls > 1e-3
    expected = 0.005 * ratios.square().mean() + 3 * falls
    assert float(single_spin_loss(angles, reach)) == pytest.approx(float(expected), rel=1e-9)


def test_a_response_that_falls_costs_more_than_one_that_grows():
    angles = angles_at_beta_one(LinearSchedule(8, 11.0))
    limit = LinearSchedule(8, 11.0).max_field
    assert single_spin_loss(angles, 2 * limit) > 10 * single_spin_loss(angles, limit)


def test_the_loss_is_differentiable_and_nothing_at_reach_zero():
    angles = angles_at_beta_one(LinearSchedule(3, 3.0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda given: single_spin_loss(given, 4.0), angles)
    assert single_spin_loss(angles, 0.0) == 0


@pytest.mark.parametrize("steps", available_steps())
def test_a_key_in_a_large_field_is_ignored_by_the_tuned_schedules(steps):
    """The p that is left where fields are clipped, which exact attention has at |h| of about 3."""
    schedule = TunedSchedule(steps)
    limit = torch.tensor(schedule.max_field, dtype=torch.float64)
    left = float((1 - single_spin_response(schedule.angles(), limit / schedule.beta_h)) / 2)
    print(f"P = {steps}: monotonic up to {schedule.max_field:.3f}, p = {left:.5f} there")
    assert schedule.max_field > {4: 2.1, 8: 3.8, 16: 3.8}[steps]
    assert left < {4: 0.003, 8: 0.0012, 16: 0.0018}[steps]
