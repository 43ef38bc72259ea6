from itertools import combinations, product
from math import comb, prod

import numpy as np
import pytest
from scipy import stats

from ogrpo.evaluation import Z95, clustered_interval, pass_at_k, wilson_interval


def outcomes_of(*prompts):
    return np.array(prompts, np.float32)


@pytest.mark.parametrize(("right", "n"), [(0, 20), (3, 20), (13, 20), (20, 20), (411, 512)])
def test_wilson_bounds_are_where_the_score_test_turns(right, n):
    estimate = wilson_interval(np.array([1.0] * right + [0.0] * (n - right), np.float32))
    mean, spread = right / n, Z95**2 / n

    def turns(mean):  # (mean - p)^2 = spread p (1 - p)
        return sorted(np.roots([1 + spread, -(2 * mean + spread), mean**2]).real)

    low = turns(mean - 0.5 / n)[0] if right else 0.0
    high = turns(mean + 0.5 / n)[1] if right < n else 1.0
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


@pytest.mark.parametrize(
    "estimate", [wilson_interval, clustered_interval, lambda outcomes: pass_at_k(outcomes, 2)]
)
def test_no_prompts_is_an_error(estimate):
    with pytest.raises(ValueError, match=r"evaluation\.prompts"):
        estimate(np.zeros((0, 4), np.float32))


def test_one_prompt_counts_all_its_samples_and_stays_unsure():
    first = clustered_interval(outcomes_of([1, 0, 0, 0]))
    assert first == clustered_interval(outcomes_of([0, 0, 1, 0]))
    assert first.mean == 0.25
    assert first.low < 0.05
    assert first.high > 0.85


@pytest.mark.parametrize(("prompts", "right"), [(1, 8), (30, 8), (30, 0), (512, 8)])
def test_prompts_that_are_all_alike_are_worth_one_outcome_each(prompts, right):
    outcomes = outcomes_of(*[[1] * right + [0] * (8 - right)] * prompts)
    assert clustered_interval(outcomes) == wilson_interval(outcomes[:, 0])


def test_prompts_equally_often_right_are_worth_no_more_than_their_samples():
    alike = clustered_interval(outcomes_of(*[[1, 0]] * 400))
    independent = wilson_interval(outcomes_of(*[[1, 0]] * 400).ravel())
    assert alike[:3] == pytest.approx(independent[:3])
    few = clustered_interval(outcomes_of([1, 0], [1, 0]))
    assert few.high - few.low > 0.65


# Prompts of two kinds, one as likely as the other: how often each is right.
@pytest.mark.parametrize("skills", [(0.3, 0.3), (0.95, 0.95), (0.1, 0.9), (0.0, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize("prompts", [1, 2, 3, 6])
def test_few_prompts_cover_the_truth_exactly_enumerated(skills, prompts):
    n, truth, covered = 4, sum(skills) / 2, 0.0
    chance = np.mean([stats.binom.pmf(range(n + 1), n, skill) for skill in skills], axis=0)
    for counts in product(range(n + 1), repeat=prompts):
        outcomes = outcomes_of(*([1] * c + [0] * (n - c) for c in counts))
        estimate = clustered_interval(outcomes)
        held = estimate.low - 1e-9 <= truth <= estimate.high + 1e-9
        covered += held * prod(chance[c] for c in counts)
    assert covered >= 0.93


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (4, 2), (4, 3), (5, 5), (7, 3)])
@pytest.mark.parametrize("skill", [0.0, 0.2, 0.85])
def test_pass_at_k_is_unbiased_enumerated_over_all_outcomes(n, k, skill):
    expected = sum(
        skill ** sum(outcome)
        * (1 - skill) ** (n - sum(outcome))
        * pass_at_k(outcomes_of(outcome), k).mean
        for outcome in product((0, 1), repeat=n)
    )
    assert expected == pytest.approx(1 - (1 - skill) ** k, abs=1e-12)


def test_pass_at_k_is_the_share_of_draws_without_return_that_hold_a_right_one():
    outcomes = outcomes_of([1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0])
    for k in range(1, 7):
        draws = [max(drawn) for row in outcomes for drawn in combinations(row, k)]
        assert len(draws) == 3 * comb(6, k)
        assert pass_at_k(outcomes, k).mean == pytest.approx(np.mean(draws), abs=1e-12)


def test_pass_at_one_is_pass_at_1():
    outcomes = np.random.default_rng(2).integers(0, 2, (40, 8)).astype(np.float32)
    assert pass_at_k(outcomes, 1) == pytest.approx(clustered_interval(outcomes), abs=1e-12)


def test_pass_at_all_samples_is_wilsons_of_the_prompts_solved():
    outcomes = (np.random.default_rng(3).random((60, 4)) < 0.2).astype(np.float32)
    assert pass_at_k(outcomes, 4) == wilson_interval(outcomes.max(axis=1))


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_pass_at_k_covers_the_truth_as_often_as_it_says(k):
    rng = np.random.default_rng(4)
    # E[1 - (1 - p)^k] of p from beta(1, 3)
    truth, covered = 1 - stats.beta(1, 3).expect(lambda p: (1 - p) ** k), 0
    for _ in range(2000):
        skill = rng.beta(1, 3, 100)
        outcomes = (rng.random((100, 8)) < skill[:, None]).astype(np.float32)
        estimate = pass_at_k(outcomes, k)
        covered += estimate.low <= truth <= estimate.high
    assert abs(covered / 2000 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 2000)


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_of_fewer_samples_is_refused(k):
    with pytest.raises(ValueError, match=rf"Pass@{k} of 4 samples.*from 1 to 4"):
        pass_at_k(outcomes_of([1, 0, 0, 1]), k)


def test_pass_at_k_of_a_graded_reward_is_refused():
    with pytest.raises(ValueError, match=r"0 or 1, and one is 0\.5.*samples 1"):
        pass_at_k(outcomes_of([1, 0.5, 0, 1]), 2)
