"""Tuned schedules: least errors, what tuning keeps, and the schedules that come with the package."""

import copy
import math
import pickle

import pytest
import torch
import yaml

from hybrid_attention import DQALayer, FreeSchedule, LinearSchedule, PausedSchedule, Schedule, TunedSchedule
from hybrid_attention.calibration import calibrate
from hybrid_attention.instances import draw_instances
from hybrid_attention.schedules import inverse_temperatures
from hybrid_attention.tuned_schedule import available_steps
from hybrid_attention.tuning import rms_errors, tune_angles, tune_duration

SPREADS = [(0.5, 0.2), (1.0, 0.3)]
# The best tau of the linear schedule of 4, 8 and 16 steps at T = 8, for each spread.
BEST_TAU = {4: (5.0, 4.8), 8: (11.2, 10.8), 16: (23.2, 20.8)}


def groups(count=24, sizes=(3, 4)):
    return [draw_instances(T, count, *spreads, seed=T) for T in sizes for spreads in SPREADS]


def test_errors_of_groups_are_those_of_their_reports():
    models = groups()
    schedule = LinearSchedule(4, 4.0)
    assert rms_errors(models, schedule) == pytest.approx([calibrate(each, schedule).rms_error for each in models])


@pytest.mark.parametrize("start", [LinearSchedule(4, 1.0), LinearSchedule(6, 2.0, gamma=1.5), PausedSchedule(5, 1.0)])
def test_the_tuned_duration_is_the_best_of_all(start):
    models = groups()
    lines = []
    found, tried = tune_duration(models, start, lines.append)
    error = math.prod(rms_errors(models, found)) ** 0.25
    assert (type(found), found.steps, found.gamma) == (type(start), start.steps, start.gamma)
    assert dict(tried)[found.tau] == pytest.approx(error)
    assert error == pytest.approx(min(value for _, value in tried))
    taus = [tau for tau, _ in tried]
    assert taus == sorted(taus)
    for tau in torch.linspace(min(taus), max(taus), 40).tolist():
        other = type(start)(start.steps, tau, start.gamma)
        assert math.prod(rms_errors(models, other)) ** 0.25 > error * 0.98
    assert f"tau = {found.tau:.4g}" in lines[-1]


def test_only_tau_times_gamma_matters():
    models = groups()
    one, two = (tune_duration(models, LinearSchedule(4, 1.0, gamma=gamma))[0] for gamma in (1.0, 2.0))
    assert one.tau == pytest.approx(2 * two.tau)


def test_free_angles_do_better_than_the_start_on_models_they_have_not_seen():
    models, start = groups(48), LinearSchedule(3, 4.0)
    lines = []
    tuned = tune_angles(models, [start], restarts=1, iterations=40, progress=lines.append)
    assert isinstance(tuned, FreeSchedule)
    assert tuned.steps == 3
    fresh = [draw_instances(5, 300, *spreads, seed=9) for spreads in SPREADS]
    for before, after in zip(rms_errors(fresh, start), rms_errors(fresh, tuned), strict=True):
        assert after < 0.6 * before
    assert "descent 3 of 3: " in lines[-1]
    assert tuned == tune_angles(models, [start], restarts=1, iterations=40)


def test_tuned_angles_sample_near_beta_one_to_first_order():
    tuned = tune_angles(groups(), [LinearSchedule(2, 2.0)], restarts=0, iterations=30, reach=1.0)
    assert tuned.betas == (1.0, 1.0)
    assert [float(beta) for beta in inverse_temperatures(tuned.angles())] == pytest.approx([1, 1], abs=0.2)


@pytest.mark.parametrize("starts", [[], [LinearSchedule(2, 2.0), LinearSchedule(3, 3.0)]])
def test_starts_of_other_lengths_are_refused(starts):
    with pytest.raises(ValueError, match="give one or more of the same number of steps"):
        tune_angles(groups(), starts)


@pytest.mark.parametrize("reach", [-1.0, math.inf, math.nan])
def test_a_reach_that_is_no_field_is_refused(reach):
    with pytest.raises(ValueError, match="give a finite number, 0 or more"):
        tune_angles(groups(), [LinearSchedule(2, 2.0)], reach=reach)


def test_given_betas_replace_those_to_first_order():
    angles = ((0.7, 0.4), (0.3, 0.5), (0.5, 0.3))
    free, given = FreeSchedule(*angles), FreeSchedule(*angles, betas=[1.0, 0.8])
    assert (given.beta_h, given.beta_J) == (1.0, 0.8)
    assert free.beta_h == pytest.approx(float(inverse_temperatures(free.angles())[0]))
    assert given.max_field == pytest.approx(free.max_field / free.beta_h, rel=1e-3)
    for betas in [(1.0,), (1.0, 0.0), (math.nan, 1.0), (1.0, math.inf)]:
        with pytest.raises(ValueError, match="two positive numbers"):
            FreeSchedule(*angles, betas=betas)


def test_schedules_of_4_8_and_16_steps_come_tuned():
    assert available_steps() == (4, 8, 16)
    for steps in available_steps():
        schedule = TunedSchedule(steps)
        assert schedule.angles().shape == (steps, 3)
        assert (schedule.beta_h, schedule.beta_J, schedule.max_field) == (
            schedule.free.beta_h,
            schedule.free.beta_J,
            schedule.free.max_field,
        )
    with pytest.raises(ValueError, match="schedules of 4, 8, 16 steps come tuned"):
        TunedSchedule(5)


def test_files_of_tuned_schedules_name_the_command_that_made_them():
    from hybrid_attention.tuned_schedule import _FOLDER

    for steps in available_steps():
        text = (_FOLDER / f"steps_{steps}.yaml").read_text()
        assert text.startswith("# A schedule for DQALayer, made by: hybrid-attention calibrate")
        assert f"steps_{steps}.yaml" in text.splitlines()[0]
        assert yaml.safe_load(text).keys() == {"model"}


def test_tuned_schedules_are_plain_values():
    schedule = TunedSchedule(8)
    _ = schedule.max_field
    assert isinstance(schedule, Schedule)
    assert schedule == TunedSchedule(8) == copy.deepcopy(schedule) == pickle.loads(pickle.dumps(schedule))
    assert schedule != TunedSchedule(4)
    assert repr(schedule) == "TunedSchedule(steps=8)"
    assert hash(schedule) == hash(TunedSchedule(8))


@pytest.mark.parametrize("steps", [4, 8, 16])
def test_the_tuned_schedules_keep_their_gain_on_fresh_models_of_eight_spins(steps):
    for spreads, tau, tau_16 in zip(SPREADS, BEST_TAU[steps], BEST_TAU[16], strict=True):
        models = [draw_instances(8, 1000, *spreads, seed=12345)]
        schedules = (TunedSchedule(steps), LinearSchedule(steps, tau), LinearSchedule(16, tau_16))
        tuned, linear, linear_16 = (rms_errors(models, schedule)[0] for schedule in schedules)
        print(
            f"P = {steps}, {spreads}: {tuned:.4f}, {linear / tuned:.2f} times less than linear, P = 16 {linear_16:.4f}"
        )
        assert tuned < linear / (3.1 if steps == 8 else 2)
        assert tuned < linear_16


def test_a_layer_with_a_tuned_schedule_gives_the_marginals_of_its_report():
    models = draw_instances(4, 1, 0.8, 0.3, seed=1)
    layer = DQALayer(4, schedule=TunedSchedule(4)).double()
    with torch.no_grad():
        layer.couplings.copy_(models.couplings)
        p = layer(models.fields[:, None])
    from hybrid_attention.annealing import Annealer
    from hybrid_attention.instances import magnetizations

    expected = magnetizations(Annealer()(models, TunedSchedule(4)))
    torch.testing.assert_close(2 * p[:, 0] - 1, expected)
