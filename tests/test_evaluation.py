import numpy as np
import pytest
from scipy import stats

from ogrpo.evaluation import Z95, clustered_interval, wilson_interval


@pytest.mark.parametrize(("right", "n"), [(0, 20), (3, 20), (13, 20), (20, 20), (411, 512)])
def test_wilson_bounds_are_where_the_score_test_turns(right, n):
    estimate = wilson_interval(np.array([1.0] * right + [0.0] * (n - right), np.float32))
    mean, spread = right / n, Z95**2 / n
    # (mean - p)^2 = spread p (1 - p)
    low, high = sorted(np.roots([1 + spread, -(2 * mean + spread), mean**2]).real)
    assert estimate == pytest.approx((mean, low, high, n), abs=1e-9)


def test_z_is_the_normal_quantile():
    assert pytest.approx(stats.norm.ppf(0.975), rel=1e-12) == Z95


def test_more_samples_of_the_same_prompts_do_not_narrow_the_interval():
    rng = np.random.default_rng(0)
    skill = rng.integers(0, 2, 200).astype(np.float32)  # each prompt always right or always wrong
    widths = [
        (e := clustered_interval(np.repeat(skill[:, None], k, axis=1))).high - e.low
        for k in (2, 50)
    ]
    np.testing.assert_allclose(*widths, rtol=1e-6)


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        skill = rng.beta(2, 3, 100)
        outcomes = (rng.random((100, 4)) < skill[:, None]).astype(np.float32)
        estimate = clustered_interval(outcomes)
        covered += estimate.low <= 0.4 <= estimate.high
    assert abs(covered / 2000 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 2000)


def test_one_sample_a_prompt_is_wilson():
    outcomes = np.array([[1.0], [0.0], [1.0]], np.float32)
    assert clustered_interval(outcomes) == wilson_interval(outcomes[:, 0])


def test_no_prompts_is_an_error():
    with pytest.raises(ValueError, match=r"evaluation\.prompts"):
        wilson_interval(np.zeros(0, np.float32))
