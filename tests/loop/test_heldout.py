"""Held-out figures: Pass@k is of verdicts alone, a sum of rewards is a mean, each reward has its own."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from ogrpo.config.train import Data
from ogrpo.evaluation import clustered_interval, mean_interval, pass_at_k
from ogrpo.loop.evaluate import heldout_record, not_evaluated
from ogrpo.loop.parts import HeldoutVerdicts
from ogrpo.setup.prepare import judge_lines, prepare
from ogrpo.setup.presets import main_study
from tests.run.rewards import ODD, VARIED

RIGHT = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]], np.float32)
LENGTH = np.array([[0.5, 2.5, 1, 1], [0, 3, 1, 1], [2, 2, 2, 1]], np.float32)
FORMAT = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [1, 1, 0, 1]], np.float32)
UNKNOWN = np.array([[np.nan, 0, 0, 1], [0] * 4, [1, 1, 1, np.nan]], np.float32)


def summed(values):
    return np.asarray(sum(values.values()), np.float32)


def verdicts(success=None, unparsable=None, **values):
    return HeldoutVerdicts(summed(values), values, success, unparsable, truncated=0.5)


def record(success=None, **values):
    greedy = {name: each[:, :1] for name, each in values.items()}
    return heldout_record(verdicts(success, 0.25, **values), verdicts(success, **greedy), 0.7)


TABLE = [
    # rewards, which is marked; which decides
    ({"right": RIGHT}, None, "right"),
    ({"length": LENGTH}, None, None),
    ({"right": RIGHT, "length": LENGTH}, None, "right"),
    ({"right": RIGHT, "format": FORMAT}, None, None),
    ({"right": RIGHT, "format": FORMAT}, "format", "format"),
    ({"right": UNKNOWN, "length": LENGTH}, "right", "right"),
]


@pytest.mark.parametrize(("values", "marked", "decides"), TABLE)
def test_pass_at_k_is_of_the_reward_that_decides(values, marked, decides):
    metrics = record(marked, **values)
    assert metrics["heldout/by"] == decides
    right = values.get(decides)
    unknown = (None, None, None)
    expected = {
        "pass@1/sampled": unknown if right is None else clustered_interval(right),
        "pass@4/sampled": unknown if right is None else pass_at_k(right, 4),
        "heldout/reward/sampled": mean_interval(summed(values)),
        **{f"heldout/reward/{name}/sampled": mean_interval(x) for name, x in values.items()},
    }
    for key, estimate in expected.items():
        assert [metrics[key], metrics[f"{key}/low"], metrics[f"{key}/high"]] == [*estimate[:3]]
    assert (metrics["pass@1/greedy"] is None) == (decides is None)
    assert metrics["heldout/temperature"] == 0.7
    assert (metrics["heldout/unparsable"], metrics["heldout/truncated"]) == (0.25, 0.5)
    of_rewards = {
        key for key in metrics if any(key.startswith(f"heldout/reward/{n}/") for n in values)
    }
    assert set(not_evaluated(4)) == set(metrics) - of_rewards
    assert not any(not_evaluated(4).values())


def test_shares_say_what_cannot_be_learned_from():
    metrics = record(right=UNKNOWN)
    assert metrics["heldout/unjudged"] == pytest.approx(2 / 12)
    assert metrics["heldout/equal"] == pytest.approx(6 / 10)
    one = heldout_record(verdicts(right=RIGHT[:, :1]), verdicts(right=RIGHT[:, :1]), 1.0)
    assert {key for key in one if key.startswith("pass@")} == {
        f"pass@1/{how}{end}" for how in ("sampled", "greedy") for end in ("", "/low", "/high")
    }


def test_a_reward_is_named_that_decides():
    config = main_study(rewards=(ODD, VARIED), by="varied", data=Data(train=64))
    with closing(prepare(config)) as prepared:
        assert prepared.task.success == "varied"
        assert judge_lines(prepared.task)[0] == "varied decides what is right (Pass@k)"
    with pytest.raises(ValueError, match=r"success is 'vary', and held-out answers are judged by"):
        prepare(replace(config, by="vary"))
