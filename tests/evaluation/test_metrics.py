import json
from math import nan

import numpy as np
import pytest

from ogrpo.evaluation import clustered_interval, majority_at_k, mean_interval, pass_at_k, summary
from tests.evaluation.engines import record

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
    figures = summary([record(0, 0), record(0, 1, correct=nan), record(1, 0), record(1, 1)])
    assert (figures["failed"], figures["pass@1"], figures["reward/correct"]) == (1, 1, 1)
    nothing = summary([record(correct=nan)])
    assert nothing["reward/correct"] is None
    assert "pass@1" not in nothing
    with pytest.raises(ValueError, match="right or wrong: 'correct' has no verdict on any answer"):
        summary([record(correct=nan)], ks=[1], by="correct")


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
