"""Statistics over seeds: against numbers worked by hand, against scipy, and on samples whose truth is known."""

import math

import numpy as np
import pytest
from scipy import stats

from lightning_modules.studies.seed_statistics import equivalence, holm, mean_interval, paired_difference, trend

HAND = [1.0, 2.0, 3.0, 4.0]  # mean 2.5, standard deviation sqrt(5 / 3), standard error 0.645497
T_975 = 3.182446  # of 3 degrees of freedom, from a table


def test_the_interval_of_four_numbers_is_the_one_worked_by_hand():
    found = mean_interval(HAND)
    assert (found.mean, found.count) == (2.5, 4)
    assert found.high - found.mean == found.mean - found.low == pytest.approx(T_975 * math.sqrt(5 / 3) / 2, rel=1e-6)


def test_intervals_cover_the_true_mean_as_often_as_they_say():
    draws = np.random.default_rng(0).normal(3.0, 2.0, size=(4000, 5))
    for confidence in (0.8, 0.95):
        inside = [interval.low < 3.0 < interval.high for interval in (mean_interval(x, confidence) for x in draws)]
        assert np.mean(inside) == pytest.approx(confidence, abs=4 * math.sqrt(confidence * (1 - confidence) / 4000))


def test_a_single_seed_has_no_interval_and_no_p_value():
    assert mean_interval([2.0]).low == -math.inf
    assert math.isnan(paired_difference([2.0], [1.0]).p)
    assert equivalence([2.0], [2.0], 1.0).verdict == "undecided"


def test_the_paired_difference_is_that_of_scipy():
    first, second = np.random.default_rng(1).normal(size=(2, 7))
    found, scipys = paired_difference(first, second), stats.ttest_rel(first, second)
    assert found.p == pytest.approx(scipys.pvalue, rel=1e-12)
    assert (found.interval.low, found.interval.high) == pytest.approx(tuple(scipys.confidence_interval()), rel=1e-12)


def test_the_order_of_pairs_matters_and_what_all_pairs_share_does_not():
    first, second, shared = np.random.default_rng(2).normal(size=(3, 9))
    found = paired_difference(first, second)
    assert paired_difference(first + 100 * shared, second + 100 * shared).p == pytest.approx(found.p, rel=1e-9)
    assert paired_difference(first, np.roll(second, 1)).p != pytest.approx(found.p, rel=1e-3)
    turned = paired_difference(second, first)
    assert (turned.p, turned.interval.mean) == pytest.approx((found.p, -found.interval.mean))


def test_p_values_of_no_difference_are_uniform():
    first, second = np.random.default_rng(3).normal(size=(2, 3000, 6))
    p = [paired_difference(*pair).p for pair in zip(first, second, strict=True)]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_no_difference_at_any_seed_is_none_and_the_same_one_at_all_leaves_nothing_to_judge_by():
    assert paired_difference([2.0, 3.0], [2.0, 3.0]).p == 1
    assert equivalence([2.0, 3.0], [2.0, 3.0], 0.1).verdict == "equivalent"
    for first, second in (([2.0, 3.0], [1.0, 2.0]), ([1.0, 1.0], [0.99, 0.99]), ([0.3, 0.2], [0.2, 0.1])):
        assert math.isnan(paired_difference(first, second).p)
        assert equivalence(first, second, 0.005).verdict == "undecided"


def test_a_difference_that_is_the_same_everywhere_has_no_trend():
    found = trend([8, 12, 20], [[0.1, 0.1, 0.1], [0.7, 0.7, 0.7]])
    assert (found.interval.mean, found.p) == (0, 1)


def test_holm_multiplies_the_smallest_p_by_the_number_of_tests_the_next_by_one_less_and_keeps_their_order():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_holm_counts_a_test_without_a_result():
    corrected = holm([0.01, math.nan, 0.2])
    assert corrected[0] == pytest.approx(0.03)
    assert math.isnan(corrected[1])
    assert corrected[2] == pytest.approx(0.4)


def test_holm_lets_one_false_finding_through_as_seldom_as_one_test():
    p = np.random.default_rng(4).uniform(size=(4000, 5))
    assert np.mean([min(holm(row)) < 0.05 for row in p]) == pytest.approx(0.05, abs=0.014)


def test_equivalence_is_both_one_sided_tests_of_scipy():
    differences = np.random.default_rng(5).normal(0.1, 0.4, size=10)
    found = equivalence(differences, np.zeros(10), margin=0.5)
    assert found.p_low == pytest.approx(stats.ttest_1samp(differences, -0.5, alternative="greater").pvalue, rel=1e-10)
    assert found.p_high == pytest.approx(stats.ttest_1samp(differences, 0.5, alternative="less").pvalue, rel=1e-10)


def test_two_pairs_give_the_p_values_of_a_cauchy_distribution():
    """Mean 0.2, standard error 0.1, and one degree of freedom: P(t > x) = 1/2 - arctan(x) / pi."""
    found = equivalence([0.1, 0.3], [0.0, 0.0], margin=0.5)
    assert found.p_low == pytest.approx(0.5 - math.atan(7) / math.pi)
    assert found.p_high == pytest.approx(0.5 - math.atan(3) / math.pi)
    half = 0.1 * math.tan(0.45 * math.pi)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.2 - half, 0.2 + half))


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.1, -0.1, 0.05, -0.05], "equivalent"),
        ([0.2, 0.21, 0.19, 0.2], "equivalent"),
        ([1.0, 1.1, 0.9, 1.0], "different"),
        ([2.0, -2.0, 1.0, -1.0], "undecided"),
    ],
)
def test_the_verdict_is_equivalent_where_the_90_percent_interval_lies_inside_the_margins(differences, verdict):
    found = equivalence(differences, [0.0] * 4, margin=0.5)
    assert found.verdict == verdict
    inside = found.interval.low > -0.5 and found.interval.high < 0.5
    assert (verdict == "equivalent") == inside == (max(found.p_low, found.p_high) < 0.05)


def test_a_difference_of_the_size_of_the_margin_is_called_equivalent_once_in_twenty():
    draws = np.random.default_rng(6).normal(0.5, 0.2, size=(4000, 8))
    called = np.mean([equivalence(x, np.zeros(8), margin=0.5).verdict == "equivalent" for x in draws])
    assert called == pytest.approx(0.05, abs=0.014)


def test_the_trend_is_the_mean_slope_of_each_seeds_line():
    places = [8, 12, 16]
    values = [[0.0, 4.0, 8.0], [1.0, 3.0, 5.0], [2.0, 2.0, 5.0]]  # slopes 1, 1/2 and 3/8
    found = trend(places, values)
    slopes = [stats.linregress(places, row).slope for row in values]
    assert slopes == pytest.approx([1.0, 0.5, 0.375])
    assert found.interval.mean == pytest.approx(0.625)
    assert found.p == pytest.approx(stats.ttest_1samp(slopes, 0).pvalue, rel=1e-10)


def test_a_seed_that_is_better_everywhere_moves_no_trend():
    values = np.random.default_rng(7).normal(size=(6, 3))
    moved = values + 10 * np.arange(6)[:, None]
    assert trend([4, 8, 12], moved).p == pytest.approx(trend([4, 8, 12], values).p, rel=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_interval([]), "give one or more numbers"),
        (lambda: paired_difference([1.0], [1.0, 2.0]), "Samples of 1 and 2 were given: give pairs"),
        (lambda: equivalence([1.0], [1.0], 0.0), "margin=0.0 was given: give a positive number"),
        (lambda: trend([4, 4], [[1.0, 2.0]]), "give two or more different places"),
        (lambda: trend([4, 8], [[1.0, 2.0, 3.0]]), r"Values of shape \(1, 3\) were given for 2 places"),
    ],
)
def test_what_cannot_be_tested_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
