"""Flipped rewards: how many, which, always the same ones, and never a held-out one."""

from contextlib import closing

import numpy as np

from ogrpo.loop.judge import flip, flips_at
from ogrpo.protocol import Completion, Group
from ogrpo.rewards.scores import Failure, Scores
from ogrpo.rollout.collection import Request
from ogrpo.setup.prepare import prepare
from tests.loop.walk import BASE, with_options

SIZES = [8] * 40


def request(seed=1, step=3, problems=40):
    return Request(step, list(range(problems)), [np.zeros(1, np.int32)] * problems, seed)


def test_lots_hit_the_share_that_is_asked_for_and_depend_on_seed_and_step():
    lots = flips_at(request(problems=1000), range(1000), [8] * 1000, share=0.3)
    assert abs(lots.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 8000)
    first = flips_at(request(), range(40), SIZES, share=0.3)
    assert np.array_equal(first, flips_at(request(), range(40), SIZES, share=0.3))
    assert not np.array_equal(first, flips_at(request(seed=2), range(40), SIZES, share=0.3))
    assert not np.array_equal(first, flips_at(request(step=4), range(40), SIZES, share=0.3))
    more = flips_at(request(), range(40), SIZES, share=0.4)
    assert (more >= first).all()  # a larger share keeps what a smaller one flips


def test_a_flip_exchanges_0_and_1_and_is_counted_but_not_where_nothing_is_known():
    failed, values = np.arange(4) == 3, {"right": np.float32([0, 1, 0, np.nan])}
    judged = Scores(np.float32([0, 1, 0, 1]), values, failed, (Failure("right", 3, "raised", ""),))
    flipped = flip(judged, np.array([True, True, False, True]))
    assert flipped.rewards.tolist() == [1, 0, 0, 1]
    assert flipped.values["right"].tolist()[:3] == [0, 1, 0]  # what was judged is still told
    assert flipped.values["flipped"].tolist()[:3] == [1, 1, 0]
    assert np.isnan(flipped.values["flipped"][3])


def test_training_is_flipped_and_evaluation_is_not():
    with closing(prepare(with_options(BASE, {"reward.flip": 0.5}))) as prepared:
        one = np.asarray(prepared.tokenizer.encode("1"), np.int32)
        answer = Completion(one, np.zeros(len(one), np.float32), 0, 1.0, "stop")
        groups = [Group(prompt, (answer,) * 8) for prompt in prepared.prompts.train[:4]]
        (score_request, places) = request(problems=4), range(4)
        trained = np.stack([each.rewards for each in prepared.judge(score_request, places, groups)])
        flips = np.stack(
            [x.values["flipped"] for x in prepared.judge(score_request, places, groups)]
        )
        assert 0 < trained.sum() < trained.size
        assert np.array_equal(trained, 1 - flips)
        assert prepared.judge_heldout.heldout(groups[:2]).rewards.tolist() == [[1.0] * 8] * 2
        assert prepared.judge.shown(groups)[0][1][""] == 1
