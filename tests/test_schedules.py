"""Schedules: Trotter order, inverse temperatures, the response of one spin, and what is refused."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from trotter_oracle import Z, continuous_state, magnetizations, on_wires, trotter_state

from hybrid_attention import LinearSchedule, Schedule
from hybrid_attention.schedules import inverse_temperatures, single_spin_response

SCHEDULES = [
    LinearSchedule(),
    LinearSchedule(4, 4.0),
    LinearSchedule(4, 4.0, order=2),
    LinearSchedule(16, 16.0),
    LinearSchedule(40, 8.0),
    LinearSchedule(10, 1.0),
    LinearSchedule(1, 0.01),
    LinearSchedule(12, 6.0, gamma=1.7, order=2),
]


class FreeSchedule(Schedule):
    """Any angles, as a later schedule may have."""

    def __init__(self, rows):
        self.rows = rows

    def angles(self):
        return torch.tensor(self.rows, dtype=torch.float64)


def test_linear_angles():
    dt = 0.5
    assert LinearSchedule(2, 1.0, gamma=3.0).angles().tolist() == [
        [dt * 0.25, dt * 0.25, dt * 3 * 0.75],
        [dt * 0.75, dt * 0.75, dt * 3 * 0.25],
    ]
    assert LinearSchedule(2, 1.0, gamma=3.0, order=2).angles()[:, 2].tolist() == [dt * 3 * 0.5, 0.0]
    assert LinearSchedule().angles().dtype == torch.float64


@pytest.mark.parametrize("order", [1, 2])
def test_error_against_the_continuous_quench_falls_with_the_order(order):
    h, J, tau, gamma = np.array([0.7, -0.4, 0.3]), np.array([0.5, -0.3, 0.6]), 3.0, 1.2
    limit = magnetizations(continuous_state(h, J, tau, gamma), 3)
    steps = np.array([20, 40, 80, 160])
    errors = [
        np.abs(magnetizations(trotter_state(h, J, LinearSchedule(p, tau, gamma, order).angles()), 3) - limit).max()
        for p in map(int, steps)
    ]
    slope = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    print(f"order {order}: slope {slope:.4f}, errors {errors}")
    assert slope == pytest.approx(order, abs=0.1)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_inverse_temperatures_are_the_slopes_of_the_circuit_at_zero(schedule):
    step, angles = 1e-5, schedule.angles()
    field_slope = magnetizations(trotter_state([0.0, step], [0.0], angles), 2)[1] / step
    psi = trotter_state([0.0, 0.0], [step], angles)
    pair_slope = np.vdot(psi, on_wires(Z, [0, 1], 2) @ psi).real / step
    assert schedule.beta_h == pytest.approx(field_slope, rel=1e-6)
    assert schedule.beta_J == pytest.approx(pair_slope, rel=1e-6)


def test_inverse_temperatures_are_differentiable_and_need_no_equal_multipliers():
    angles = torch.rand(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(inverse_temperatures, angles)
    psi = trotter_state([1e-5], [], angles.detach().numpy())
    assert float(inverse_temperatures(angles)[0].detach()) == pytest.approx(magnetizations(psi, 1)[0] / 1e-5, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(field=st.floats(-20, 20), steps=st.integers(1, 6), tau=st.floats(0.1, 5), order=st.sampled_from([1, 2]))
def test_single_spin_response_is_the_circuits(field, steps, tau, order):
    rows = FreeSchedule([[tau * p / steps, 0.3, tau / (p + order)] for p in range(1, steps + 1)]).angles()
    z = single_spin_response(rows, torch.tensor([field], dtype=torch.float64))
    assert float(z[0]) == pytest.approx(magnetizations(trotter_state([field], [], rows), 1)[0], abs=1e-10)


def test_single_spin_response_is_differentiable_in_both():
    angles, fields = LinearSchedule(3, 2.0).angles().requires_grad_(), torch.tensor([0.3, -1.2]).double()
    assert torch.autograd.gradcheck(single_spin_response, (angles, fields.requires_grad_()))


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_response_grows_up_to_max_field_and_falls_beyond(schedule):
    def response(fields):
        return single_spin_response(schedule.angles(), fields / schedule.beta_h)

    below = torch.linspace(0, schedule.max_field, 20_001, dtype=torch.float64)
    beyond = schedule.max_field * torch.linspace(1.001, 1.01, 50, dtype=torch.float64)
    assert (response(below).diff() > 0).all()
    assert (response(beyond).diff() < 0).all()


def test_max_field_of_one_step_in_closed_form():
    """<Z> = sin(2 a h / beta_h) sin(2 c) turns at h = pi beta_h / (4 a), beta_h = 2 a sin(2 c)."""
    for tau in (1e-3, 0.1, 1.0):
        a = c = tau / 2
        expected = math.pi / (4 * a) * 2 * a * math.sin(2 * c)
        assert LinearSchedule(1, tau).max_field == pytest.approx(expected, rel=1e-3)


def test_large_field_turns_the_response_over():
    """At P = 4 the response is nearly 0 at h = 8 and negative at h = 10."""
    schedule = LinearSchedule(4, 4.0)
    small, negative = single_spin_response(
        schedule.angles(), torch.tensor([8.0, 10.0]).double() / schedule.beta_h
    ).tolist()
    print(f"<Z>(8) = {small:.3f}, <Z>(10) = {negative:.3f}")
    assert abs(small) < 0.1
    assert negative < 0
    assert schedule.max_field < 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": 0}, "steps has to be 1 or more"),
        ({"tau": 0.0}, "positive"),
        ({"tau": -1.0}, "positive"),
        ({"tau": math.nan}, "positive"),
        ({"tau": math.inf}, "finite"),
        ({"gamma": 0.0}, "positive"),
        ({"order": 3}, "order 1 or 2"),
        ({"steps": 4, "tau": 8.6}, "smaller tau"),
    ],
)
def test_settings_that_make_no_quench_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        LinearSchedule(**arguments)


def test_four_linear_steps_work_just_below_the_limit():
    assert LinearSchedule(4, 8.5).beta_J > 0


@pytest.mark.parametrize("rows", [[[0.1, 0.1, -0.3]], [[0.1, -0.1, 0.3]], [[math.nan, 0.1, 0.3]]])
def test_free_angles_without_positive_inverse_temperatures_are_refused(rows):
    with pytest.raises(ValueError, match="have to be positive"):
        _ = FreeSchedule(rows).beta_h
    with pytest.raises(ValueError, match="have to be positive"):
        _ = FreeSchedule(rows).max_field


def test_schedules_are_plain_values():
    schedule = LinearSchedule(5, 4.0)
    _ = schedule.max_field
    assert schedule == LinearSchedule(5, 4.0) == copy.deepcopy(schedule) == pickle.loads(pickle.dumps(schedule))
    assert hash(schedule) == hash(LinearSchedule(5, 4.0))
    with pytest.raises(AttributeError):
        schedule.tau = 3.0
