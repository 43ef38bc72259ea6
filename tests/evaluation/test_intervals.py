import doctest

import numpy as np
import pytest
from scipy import stats

import ogrpo.evaluation.intervals
from benchmarks.interval_coverage import Population, coverage
from ogrpo.evaluation import clustered_interval, mean_interval, wilson_interval
from ogrpo.evaluation.intervals import student_quantile


@pytest.mark.parametrize(("right", "n"), [(1, 1), (0, 6), (5, 20), (17, 17), (81, 263), (511, 512)])
def test_wilson_is_newcombes_closed_form(right, n):
    # Newcombe 1998, Statistics in Medicine 17, method 4
    p, q, z = right / n, 1 - right / n, stats.norm.ppf(0.975)
    low = 2 * n * p + z**2 - 1 - z * np.sqrt(z**2 - 2 - 1 / n + 4 * p * (n * q + 1))
    high = 2 * n * p + z**2 + 1 + z * np.sqrt(z**2 + 2 - 1 / n + 4 * p * (n * q - 1) + 0j).real
    estimate = wilson_interval(np.array([1] * right + [0] * (n - right), np.float32))
    expected = (0 if right == 0 else low / 2 / (n + z**2), 1 if q == 0 else high / 2 / (n + z**2))
    assert (estimate.low, estimate.high) == pytest.approx(expected, abs=1e-12)


def test_newcombes_worked_example():
    # 81 of 263: .2535 to .3682 (Newcombe 1998, table I, method 4)
    estimate = wilson_interval(np.array([1] * 81 + [0] * 182, np.float32))
    assert (round(estimate.low, 4), round(estimate.high, 4)) == (0.2535, 0.3682)


@pytest.mark.parametrize("prompts", [1, 8, 64])
@pytest.mark.parametrize("samples", [1, 16])
def test_all_right_is_not_certainty(prompts, samples):
    estimate = clustered_interval(np.ones((prompts, samples), np.float32))
    assert (estimate.mean, estimate.high) == (1, 1)
    # what Clopper and Pearson would say of one outcome a prompt, from one side or both
    assert 0.02 < estimate.low < 0.05 ** (1 / prompts) + 0.01


def test_the_first_sample_of_one_prompt_is_not_its_pass_at_1():
    estimate = clustered_interval(np.array([[1, 0, 0, 0]], np.float32))
    assert estimate.mean == 0.25
    assert estimate.low < 0.05 < 0.9 < estimate.high < 1


# Each of these held the truth less than .93 of the time, down to .79, before the correction for
# continuity and the quarters of `proportion`.
FAILED = [
    (Population(0.99, "alike"), 17, 1),
    (Population(0.99, 0.7), 64, 64),
    (Population(0.99, 0.3), 128, 16),
    (Population(0.9, 0.7), 10, 64),
    (Population(0.5, 0.7), 3, 64),
]
OTHERS = [
    (Population(0.5, "alike"), 64, 4),
    (Population(0.5, 0.3), 256, 4),
    (Population(0.9, "half"), 30, 32),
    (Population(0.9, 0.1), 128, 8),
    (Population(0.99, "always"), 10, 8),
    (Population(0.99, "half"), 512, 4),
]


@pytest.mark.parametrize(("population", "problems", "samples"), FAILED + OTHERS)
def test_the_interval_holds_the_truth_at_least_93_times_in_100(population, problems, samples):
    assert coverage(population, problems, samples, runs=1500, seed=1).share >= 0.93


def test_more_samples_narrow_the_interval_where_they_tell_something():
    population = Population(0.5, 0.1)
    widths = [coverage(population, 64, n, runs=50, seed=2).width for n in (1, 4, 16)]
    assert widths[0] > 1.3 * widths[1] > 1.3 * 1.2 * widths[2]


def test_an_answer_without_a_verdict_is_left_out_and_not_wrong():
    nan = np.nan
    outcomes = np.array([[1, nan, 0], [nan, nan, nan], [1, 1, 1]], np.float32)
    assert clustered_interval(outcomes).mean == 0.75
    assert clustered_interval(outcomes).n == 2
    assert mean_interval(outcomes).mean == 0.75
    with pytest.raises(ValueError, match="no answer has a verdict"):
        clustered_interval(outcomes[1:2])


def test_mean_interval_is_students_of_the_prompts_means():
    values = np.random.default_rng(3).normal(200, 50, (9, 4))
    means = values.mean(1)
    low, high = stats.t.interval(0.95, 8, means.mean(), stats.sem(means))
    assert mean_interval(values) == pytest.approx((means.mean(), low, high, 9))


def test_one_prompts_mean_has_no_bounds():
    estimate = mean_interval(np.array([[3.0, 5.0]]))
    assert estimate.mean == 4
    assert np.isnan([estimate.low, estimate.high]).all()


def test_students_quantile_is_scipys():
    degrees = [*range(1, 40), 511, 4096]
    found = [student_quantile(n) for n in degrees]
    np.testing.assert_allclose(found, stats.t.ppf(0.975, degrees), rtol=1e-10)


@pytest.mark.parametrize("interval", [clustered_interval, wilson_interval])
def test_a_reward_that_is_no_proportion_is_refused(interval):
    with pytest.raises(ValueError, match=r"an outcome is -1\.0.*take mean_interval"):
        interval(np.array([[0, -1]], np.float32))


def test_an_infinite_number_has_no_mean():
    with pytest.raises(ValueError, match="one is infinite"):
        mean_interval(np.array([[0, np.inf]]))


def test_the_docstrings_example_runs():
    assert doctest.testmod(ogrpo.evaluation.intervals).failed == 0
