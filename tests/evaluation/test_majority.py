from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from ogrpo.evaluation import clustered_interval, majority_at_k, pass_at_k


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


def test_it_is_the_mean_over_all_subsets():
    rng = np.random.default_rng(0)
    for n, kinds in product((1, 4, 7, 9), (1, 2, 4, 9)):
        answers = [[None, *"abcdefgh"][i] for i in rng.integers(0, kinds, n)]
        outcomes = np.array([[a in ("a", "c") for a in answers]], np.float32)
        for k in range(1, n + 1):
            found = majority_at_k(outcomes, [answers], k).mean
            assert found == pytest.approx(brute_force(outcomes[0], answers, k), abs=1e-12)


def test_samples_of_one_answer_with_different_verdicts_count_with_their_mean():
    answers, outcomes = list("aaab"), np.array([[1, 0, 1, 0]], np.float32)
    for k in (1, 2, 3, 4):
        found = majority_at_k(outcomes, [answers], k).mean
        assert found == pytest.approx(brute_force(outcomes[0], answers, k), abs=1e-12)


def test_it_is_unbiased_enumerated_over_all_draws():
    chance = {"a": 0.4, "b": 0.35, None: 0.25}
    n, k = 5, 3

    def expected(samples):
        total = 0.0
        for drawn in product(chance, repeat=samples):
            outcome = np.array([[a == "a" for a in drawn]], np.float32)
            total += np.prod([chance[a] for a in drawn]) * majority_at_k(outcome, [drawn], k).mean
        return total

    assert expected(n) == pytest.approx(expected(k), abs=1e-12)


def test_a_tie_is_split_evenly():
    outcomes = np.array([[1, 1, 0, 0, 0, 0]], np.float32)
    assert majority_at_k(outcomes, [list("aabbcc")], 6).mean == pytest.approx(1 / 3)
    assert majority_at_k(outcomes, [["a", "a", "b", "b", None, None]], 6).mean == pytest.approx(0.5)


def test_where_nobody_votes_nothing_is_right():
    assert majority_at_k(np.array([[1, 0]], np.float32), [[None, None]], 2).mean == 0


def test_one_vote_is_pass_at_1():
    rng = np.random.default_rng(1)
    picks = rng.integers(0, 3, (30, 8))
    outcomes = (picks == 0).astype(np.float32)
    found = majority_at_k(outcomes, [[str(x) for x in row] for row in picks], 1)
    assert found == pytest.approx(clustered_interval(outcomes), abs=1e-12)
    assert found == pytest.approx(pass_at_k(outcomes, 1), abs=1e-12)


def test_hundreds_of_samples_lose_no_precision():
    # 600 of 1,000 right: of 501 drawn at least 251 are, nearly always; of 3, by counting
    outcomes = np.array([[1] * 600 + [0] * 400], np.float32)
    answers = [["a"] * 600 + ["b"] * 400]
    assert majority_at_k(outcomes, answers, 501).mean == pytest.approx(1, abs=1e-6)
    two = 3 * (600 * 599 * 400) / (1000 * 999 * 998)
    three = 600 * 599 * 598 / (1000 * 999 * 998)
    assert majority_at_k(outcomes, answers, 3).mean == pytest.approx(two + three, rel=1e-9)


def test_a_sample_without_a_verdict_is_left_out():
    outcomes = np.array([[1, np.nan, 0, 0], [1, np.nan, np.nan, np.nan]], np.float32)
    answers = [list("abcc"), list("aaaa")]
    kept = majority_at_k(np.array([[1, 0, 0]], np.float32), [list("acc")], 2)
    assert majority_at_k(outcomes, answers, 2)[:4] == pytest.approx(kept[:4])


def test_bad_arguments_are_refused():
    outcomes = np.array([[1, 0]], np.float32)
    with pytest.raises(ValueError, match=r"maj@3 of 2 samples.*from 1 to 2"):
        majority_at_k(outcomes, [["a", "b"]], 3)
    with pytest.raises(ValueError, match="answers are not"):
        majority_at_k(outcomes, [["a"]], 1)
    with pytest.raises(ValueError, match="from 0 to 1"):
        majority_at_k(2 * outcomes, [["a", "b"]], 1)
    with pytest.raises(ValueError, match="no prompt has 2 samples with a verdict"):
        majority_at_k(np.array([[1, np.nan]], np.float32), [["a", "b"]], 2)
