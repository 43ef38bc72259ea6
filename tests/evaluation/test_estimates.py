"""Intervals against their closed forms and by coverage; Pass@k and maj@k, counted one by one.

The figures of an evaluation are these estimates.
"""

import json
from collections import Counter
from itertools import combinations, combinations_with_replacement, product
from math import comb, factorial, prod

import numpy as np
import pytest
from scipy import stats

from benchmarks.interval_coverage import Population, coverage, pass_truth
from ogrpo.evaluation import clustered_interval, majority_at_k, mean_interval, pass_at_k, summary
from tests.evaluation.engines import outcomes_of, record


@pytest.mark.parametrize(
    ("right", "n"), [(1, 1), (0, 6), (5, 20), (17, 17), (81, 263), (411, 512), (511, 512)]
)
def test_wilson_is_newcombes_closed_form(right, n):
    # Newcombe 1998, Statistics in Medicine 17, method 4
    p, q, z = right / n, 1 - right / n, stats.norm.ppf(0.975)
    low = 2 * n * p + z**2 - 1 - z * np.sqrt(z**2 - 2 - 1 / n + 4 * p * (n * q + 1))
    high = 2 * n * p + z**2 + 1 + z * np.sqrt(z**2 + 2 - 1 / n + 4 * p * (n * q - 1) + 0j).real
    estimate = clustered_interval(outcomes_of(*[[1]] * right, *[[0]] * (n - right)))
    bounds = (0 if right == 0 else low / 2 / (n + z**2), 1 if q == 0 else high / 2 / (n + z**2))
    assert estimate == pytest.approx((p, *bounds, n), abs=1e-7)
    assert estimate[1:3] == pytest.approx(bounds, abs=1e-12)
    if (right, n) == (81, 263):  # the worked example of his table I
        assert (round(estimate.low, 4), round(estimate.high, 4)) == (0.2535, 0.3682)


# Each of these held the truth less than .93 of the time, down to .79, before the correction for
# continuity and the quarters of `proportion`.
NARROW = [
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


@pytest.mark.parametrize(("population", "problems", "samples"), NARROW + OTHERS)
def test_the_interval_holds_the_truth_at_least_93_times_in_100(population, problems, samples):
    assert coverage(population, problems, samples, runs=1500, seed=1) >= 0.93


@pytest.mark.parametrize("kind", ["alike", 0.1, 0.7])
def test_the_true_pass_at_k_is_that_of_skills(kind):
    population = Population(0.4, kind)
    skills = population.skills(np.random.default_rng(1), 40_000)
    expected = np.mean(1 - (1 - skills) ** 4)
    assert pass_truth(population, 4) == pytest.approx(expected, abs=4 * 0.5 / 200)


# Prompts of two kinds, one as likely as the other: how often each is right.
@pytest.mark.parametrize("skills", [(0.3, 0.3), (0.95, 0.95), (0.1, 0.9), (0.0, 1.0), (0.5, 1.0)])
@pytest.mark.parametrize("prompts", [1, 2, 3, 6])
def test_few_prompts_cover_the_truth_exactly_enumerated(skills, prompts):
    """Prompts are exchangeable: each multiset of counts stands for all its orders."""
    n, truth, covered = 4, sum(skills) / 2, 0.0
    chance = np.mean([stats.binom.pmf(range(n + 1), n, skill) for skill in skills], axis=0)
    for counts in combinations_with_replacement(range(n + 1), prompts):
        estimate = clustered_interval(outcomes_of(*([1] * c + [0] * (n - c) for c in counts)))
        orders = factorial(prompts) // prod(map(factorial, Counter(counts).values()))
        holds = estimate.low - 1e-9 <= truth <= estimate.high + 1e-9
        covered += holds * orders * prod(chance[c] for c in counts)
    assert covered >= 0.93


def test_an_answer_without_a_verdict_is_left_out_and_not_wrong():
    nan = np.nan
    outcomes = outcomes_of([1, nan, 0], [nan, nan, nan], [1, 1, 1])
    assert clustered_interval(outcomes).mean == 0.75
    assert clustered_interval(outcomes).n == 2
    assert mean_interval(outcomes).mean == 0.75


@pytest.mark.parametrize(("n", "k"), [(1, 1), (4, 1), (4, 2), (4, 3), (5, 5), (7, 3)])
def test_pass_at_k_is_unbiased_enumerated_over_all_outcomes(n, k):
    estimates = [pass_at_k(outcomes_of([1] * c + [0] * (n - c)), k).mean for c in range(n + 1)]
    for skill in (0.0, 0.2, 0.85):
        mean = stats.binom.pmf(range(n + 1), n, skill) @ estimates
        assert mean == pytest.approx(1 - (1 - skill) ** k, abs=1e-12)


def test_pass_at_k_is_the_share_of_draws_without_return_that_hold_a_right_one():
    outcomes = outcomes_of([1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0])
    for k in range(1, 7):
        draws = [max(drawn) for row in outcomes for drawn in combinations(row, k)]
        assert len(draws) == 3 * comb(6, k)
        assert pass_at_k(outcomes, k).mean == pytest.approx(np.mean(draws), abs=1e-12)


def brute_force(outcomes, answers, k):
    """The mean over all subsets of k samples, counted one by one."""
    outcomes, shares = outcomes.astype(np.float64), []
    for drawn in combinations(range(len(answers)), k):
        votes = Counter(answers[n] for n in drawn if answers[n] is not None)
        top = [answer for answer in votes if votes[answer] == max(votes.values())]
        right = [
            np.mean([y for y, a in zip(outcomes, answers, strict=True) if a == x]) for x in top
        ]
        shares.append(np.mean(right) if top else 0.0)
    return np.mean(shares)


def votes():
    """Answers of up to nine samples; in the last, one answer has different verdicts."""
    rng = np.random.default_rng(0)
    for n, kinds in product((1, 4, 7, 9), (1, 2, 4, 9)):
        answers = [[None, *"abcdefgh"][i] for i in rng.integers(0, kinds, n)]
        yield answers, [a in ("a", "c") for a in answers]
    yield list("aaab"), [1, 0, 1, 0]


def test_majority_is_the_mean_over_all_subsets():
    for answers, right in votes():
        outcomes = outcomes_of(right)
        for k in range(1, len(answers) + 1):
            share = brute_force(outcomes[0], answers, k)
            assert majority_at_k(outcomes, [answers], k).mean == pytest.approx(share, abs=1e-12)


def test_hundreds_of_samples_lose_no_precision():
    # 600 of 1,000 right: of 501 drawn at least 251 are, nearly always; of 3, by counting
    outcomes, answers = outcomes_of([1] * 600 + [0] * 400), [["a"] * 600 + ["b"] * 400]
    assert majority_at_k(outcomes, answers, 501).mean == pytest.approx(1, abs=1e-6)
    two = 3 * (600 * 599 * 400) / (1000 * 999 * 998)
    three = 600 * 599 * 598 / (1000 * 999 * 998)
    assert majority_at_k(outcomes, answers, 3).mean == pytest.approx(two + three, rel=1e-9)


@pytest.mark.parametrize(
    ("estimate", "outcomes", "message"),
    [
        (lambda y: pass_at_k(y, 0), [[1, 0, 0, 1]], r"Pass@0 of 4 samples.*from 1 to 4"),
        (lambda y: pass_at_k(y, 5), [[1, 0, 0, 1]], r"Pass@5 of 4 samples.*from 1 to 4"),
        (lambda y: pass_at_k(y, 2), [[1, 0.5, 0, 1]], r"0 or 1, and one is 0\.5.*samples 1"),
        (lambda y: pass_at_k(y, 2), np.zeros((0, 4)), r"evaluation\.prompts"),
        (lambda y: majority_at_k(y, [["a", "b"]], 3), [[1, 0]], r"maj@3 of 2 samples.*from 1 to 2"),
        (lambda y: majority_at_k(y, [["a"]], 1), [[1, 0]], "answers are not"),
        (lambda y: majority_at_k(y, [["a", "b"]], 1), [[2, 0]], "from 0 to 1"),
        (
            lambda y: majority_at_k(y, [["a", "b"]], 2),
            [[1, np.nan]],
            "no prompt has 2 samples with a verdict",
        ),
        (clustered_interval, [[0, -1]], r"an outcome is -1\.0.*take mean_interval"),
        (clustered_interval, np.zeros((0, 4)), r"evaluation\.prompts"),
        (clustered_interval, [[np.nan] * 3], "no answer has a verdict"),
        (mean_interval, [[0, np.inf]], "one is infinite"),
    ],
)
def test_what_has_no_estimate_or_interval_is_refused(estimate, outcomes, message):
    with pytest.raises(ValueError, match=message):
        estimate(np.array(outcomes, np.float32))


RIGHT = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]], np.float32)
TEXTS = [["4", "4", "5", "6"], ["1", "2", "3", ""], ["4", "4", "4", "7"]]


def answers():
    """Returns answers in no order, as nothing may depend on it."""

    def answer(n, g):
        ids = (0,) * (10 * n + g + 1)
        return record(n, g, text=TEXTS[n][g], correct=float(RIGHT[n, g]), token_ids=ids)

    return [answer(n, g) for n, g in np.ndindex(3, 4)][::-1]


def test_every_figure_is_its_estimates():
    figures = summary(answers(), answers_of={"correct": lambda text: text or None})
    for k in (1, 2, 4):
        estimate = pass_at_k(RIGHT, k)
        assert [figures[f"pass@{k}{end}"] for end in ("", "/low", "/high")] == [*estimate[:3]]
        votes = [[text or None for text in row] for row in TEXTS]
        assert figures[f"maj@{k}"] == majority_at_k(RIGHT, votes, k).mean
    assert figures["pass@1"] == clustered_interval(RIGHT).mean == figures["reward/correct"]
    lengths = np.arange(1, 5) + 10.0 * np.arange(3)[:, None]
    tokens = mean_interval(lengths)[:3]
    assert [figures[f"tokens{end}"] for end in ("", "/low", "/high")] == [*tokens]
    assert (figures["tokens/median"], figures["tokens/max"]) == (12.5, 24)
    assert (figures["problems"], figures["answers"], figures["failed"]) == (3, 12, 0)
    assert (figures["truncated"], figures["truncated/low"]) == (0, 0)
    json.dumps(figures, allow_nan=False)


def test_the_ks_are_powers_of_two_and_the_samples_unless_named():
    three = [a for a in answers() if a.sample < 3]
    assert {f"pass@{k}" for k in (1, 2, 3)} == {
        name for name in summary(three) if name.startswith("pass@") and "/" not in name
    }
    assert "pass@2" not in summary(three, ks=[3, 1])
    with pytest.raises(ValueError, match="Pass@8 of 3 samples"):
        summary(three, ks=[8])


def test_a_failed_reward_is_counted_and_no_wrong_answer():
    figures = summary([record(0, 0), record(0, 1, correct=np.nan), record(1, 0), record(1, 1)])
    assert (figures["failed"], figures["pass@1"], figures["reward/correct"]) == (1, 1, 1)
    nothing = summary([record(correct=np.nan)])
    assert nothing["reward/correct"] is None
    assert "pass@1" not in nothing
    with pytest.raises(ValueError, match="right or wrong: 'correct' has no verdict on any answer"):
        summary([record(correct=np.nan)], ks=[1], by="correct")


def test_a_graded_reward_has_a_mean_and_no_pass_at_k():
    graded = [record(n, 0, correct=-0.5 * n) for n in range(3)]
    assert summary(graded)["reward/correct"] == -0.5
    assert "pass@1" not in summary(graded)
    with pytest.raises(ValueError, match=r"needs a reward that says right or wrong: none of"):
        summary(graded, ks=[1])
    with pytest.raises(ValueError, match=r"'correct' is to say right or wrong, and it gave -0\.5"):
        summary(graded, by="correct")


def test_the_reward_that_decides_can_be_named():
    two = [
        record(n, values={"format": 1.0, "correct": float(n == 0)}, reward=1.5) for n in range(4)
    ]
    assert "pass@1" not in summary(two)  # two rewards are 0 or 1
    assert summary(two, by="correct")["pass@1"] == 0.25
    assert summary(two)["reward"] == 1.5
    with pytest.raises(ValueError, match=r"\['format', 'correct'\] of .*; name one by --by"):
        summary(two, ks=[1])
    shaped = [record(n, values={"length": 0.3, "correct": float(n == 0)}) for n in range(4)]
    assert summary(shaped)["pass@1"] == 0.25  # the only one of 0 and 1, wherever it stands
    with pytest.raises(ValueError, match=r"no reward 'corect'; the answers were judged by \['fo"):
        summary(two, by="corect")
