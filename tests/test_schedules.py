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

from hybrid_attention import FreeSchedule, LinearSchedule, PausedSchedule, Schedule, SmoothSchedule
from hybrid_attention.free_schedule import interpolate_angles
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
    SmoothSchedule(8, 10.0),
    SmoothSchedule(5, 4.0, gamma=1.3, order=2),
    PausedSchedule(9, 9.0),
    PausedSchedule(8, 8.0, pause_at=0.3, pause=0.4, order=2),
    FreeSchedule((0.7, 0.4, 0.6), (0.3, 0.5, 0.2), (0.5, 0.3, 0.4)),
]


class AnyAngles(Schedule):
    """Angles that no schedule has to have."""

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
    rows = AnyAngles([[tau * p / steps, 0.3, tau / (p + order)] for p in range(1, steps + 1)]).angles()
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
        ({"steps": 4, "tau": 12.0}, r"dt A = 2.62 > pi / 2.*smaller tau"),
    ],
)
def test_settings_that_make_no_quench_are_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        LinearSchedule(**arguments)


def test_a_step_may_turn_spins_by_half_a_turn_and_no_more():
    """With four linear steps the first one has c = 7 tau / 32."""
    limit = math.pi / 2 * 32 / 7
    assert LinearSchedule(4, limit * 0.999).angles()[0, 2] < math.pi / 2
    with pytest.raises(ValueError, match="no longer follows the quench"):
        LinearSchedule(4, limit * 1.001)


def test_a_mixer_above_half_a_turn_reverses_the_fields_before_it():
    angles = LinearSchedule(4, 4.0).angles()
    beyond, reversed_fields = angles.clone(), angles.clone()
    beyond[1, 2] += math.pi / 2
    reversed_fields[:2, 0] *= -1
    h, J = np.array([0.7, -0.4, 0.3]), np.array([0.5, -0.3, 0.6])
    found = magnetizations(trotter_state(h, J, beyond), 3)
    np.testing.assert_allclose(found, magnetizations(trotter_state(h, J, reversed_fields), 3), atol=1e-12)


RAMPS = [LinearSchedule, SmoothSchedule, PausedSchedule]


@pytest.mark.parametrize("ramp", RAMPS)
def test_ramps_rise_from_nothing_to_everything_and_share_their_limit(ramp):
    schedule = ramp(2000, 4.0, gamma=2.0)
    field_angles, pair_angles, mixer_angles = schedule.angles().unbind(1)
    dt = 4.0 / 2000
    assert torch.equal(field_angles, pair_angles)
    torch.testing.assert_close(field_angles / dt + mixer_angles / (2 * dt), torch.ones(2000, dtype=torch.float64))
    assert field_angles[0] < dt * 1e-3
    assert field_angles[-1] > dt * (1 - 1e-3)
    assert (field_angles.diff() >= -1e-18).all()
    with pytest.raises(ValueError, match="no longer follows the quench"):
        ramp(4, 12.0)


def test_a_smooth_ramp_starts_and_ends_at_rest():
    x = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    s = SmoothSchedule().progress(x)
    assert s.tolist() == [0.0, 3 * 0.0625 - 2 * 0.25**3, 0.5, 1.0]
    (slope,) = torch.autograd.grad(s.sum(), x)
    assert slope[0] == slope[3] == 0


def test_a_paused_ramp_rests_for_its_share_of_the_time():
    x = torch.linspace(0, 1, 10_001, dtype=torch.float64)
    s = PausedSchedule(pause_at=0.3, pause=0.4).progress(x)
    assert float((s == 0.3).double().mean()) == pytest.approx(0.4, abs=1e-3)
    moving = s.diff() > 1e-9
    torch.testing.assert_close(
        s.diff()[moving][1:-1], torch.full_like(s[: moving.sum() - 2], 1e-4 / 0.6), rtol=1e-2, atol=1e-4
    )
    assert torch.equal(PausedSchedule(4, 3.0, pause=0.0).angles(), LinearSchedule(4, 3.0).angles())


@pytest.mark.parametrize("arguments", [{"pause_at": 0.0}, {"pause_at": 1.0}, {"pause": 1.0}, {"pause": -0.1}])
def test_a_pause_outside_of_the_ramp_is_refused(arguments):
    with pytest.raises(ValueError, match="take pause_at between 0 and 1"):
        PausedSchedule(**arguments)


def test_free_schedules_hold_the_angles_they_are_given():
    rows = torch.tensor([[0.7, 0.3, 0.5], [0.4, 0.5, 0.3]], dtype=torch.float64)
    schedule = FreeSchedule.from_angles(rows)
    assert torch.equal(schedule.angles(), rows)
    assert schedule.steps == 2
    assert FreeSchedule([0.7, 0.4], [0.3, 0.5], [0.5, 0.3]) == schedule
    assert hash(schedule) == hash(FreeSchedule.from_angles(rows))


@pytest.mark.parametrize(
    ("angles", "words"),
    [
        (([0.1], [0.1, 0.2], [0.3]), "1 field angles, 2 pair angles and 1 mixer angles"),
        (([], [], []), "one step or more"),
        (([0.1], [math.nan], [0.3]), "not finite"),
        (([0.1], [-0.1], [0.3]), "have to be positive"),
    ],
)
def test_free_angles_that_make_no_quench_are_refused(angles, words):
    with pytest.raises(ValueError, match=words):
        FreeSchedule(*angles)


def test_interpolated_angles_of_a_linear_quench_are_those_of_more_steps():
    few, many = LinearSchedule(8, 6.0).angles(), LinearSchedule(16, 6.0).angles()
    inner = slice(1, -1)  # nothing lies beyond the first and last middle of a step
    torch.testing.assert_close(interpolate_angles(few, 16)[inner], many[inner])
    torch.testing.assert_close(interpolate_angles(few, 8), few)
    torch.testing.assert_close(interpolate_angles(few[:1], 3), few[:1].expand(3, 3) / 3)


@pytest.mark.parametrize("rows", [[[0.1, 0.1, -0.3]], [[0.1, -0.1, 0.3]], [[math.nan, 0.1, 0.3]]])
def test_angles_without_positive_inverse_temperatures_are_refused(rows):
    with pytest.raises(ValueError, match="have to be positive"):
        _ = AnyAngles(rows).beta_h
    with pytest.raises(ValueError, match="have to be positive"):
        _ = AnyAngles(rows).max_field


def test_schedules_are_plain_values():
    schedule = LinearSchedule(5, 4.0)
    _ = schedule.max_field
    assert schedule == LinearSchedule(5, 4.0) == copy.deepcopy(schedule) == pickle.loads(pickle.dumps(schedule))
    assert hash(schedule) == hash(LinearSchedule(5, 4.0))
    assert schedule != SmoothSchedule(5, 4.0)
    with pytest.raises(AttributeError):
        schedule.tau = 3.0


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_schedules_are_copied_pickled_and_shown_as_they_were_given(schedule):
    for other in (copy.deepcopy(schedule), pickle.loads(pickle.dumps(schedule)), eval(repr(schedule))):
        assert other == schedule
        assert torch.equal(other.angles(), schedule.angles())
