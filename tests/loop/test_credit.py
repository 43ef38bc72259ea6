"""Credit that needs no siblings, or differs between tokens, through the trainer."""

import json
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from ogrpo.batch import tokens_only
from ogrpo.config.method import check
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Data, Replay, Rollout, TrainConfig
from ogrpo.config.update import Optimizer, Override
from ogrpo.core.advantages import RunningMean
from ogrpo.loop import advance, make_collector, resume
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from ogrpo.setup.sources import check_sources
from tests.loop.test_loop import Run, equal, schedule
from tests.loop.walk import SUMS

pytestmark = pytest.mark.slow

RUNNING = Override(advantage="running_baseline", baseline_rate=0.5)


@pytest.fixture(scope="module")
def single():
    alone = Rollout(group_size=1)
    return Run(algorithm="reinforce", rollout=alone, override=RUNNING, schedule=schedule(steps=4))


def test_a_running_baseline_is_the_mean_reward_of_the_steps_before(single):
    seen, total, weight = [], 0.0, 0.0
    for _, after, record in single.steps(4):
        seen.append(record["reward"])
        total, weight = total / 2 + record["reward"] / 2, weight / 2 + 0.5
        np.testing.assert_allclose(after.baseline, (total / weight, weight), rtol=1e-6)
    assert len(set(seen)) > 1


def test_a_resumed_run_knows_its_running_baseline(single):
    state = replace(single.start(), baseline=RunningMean(0.25, 0.5))
    progress = json.loads(json.dumps(state.progress()))
    assert resume(state.arrays(), progress, single.parts).baseline == RunningMean(0.25, 0.5)


def test_an_update_is_held_against_the_baseline_of_its_state(single):
    ends = []
    for baseline in (RunningMean(0.0, 1.0), RunningMean(5.0, 1.0)):
        state = replace(single.start(), baseline=baseline)
        with make_collector(state, single.parts) as collector:
            ends.append(advance(state, single.parts, collector)[0].train.params)
    assert not equal(*ends)


def test_steps_are_judged_where_their_tokens_end():
    config = main_study(algorithm="grpo_process", data=Data(train=64))
    with closing(prepare(config)) as prepared:
        tokenizer, task = prepared.tokenizer, prepared.task
        problem = next(n for n, x in enumerate(task.train) if ";" in x.columns["solution"])
        solution = task.train[problem].columns["solution"]
        texts = [solution, solution.split(";")[0] + "; ; #### 1", "1"]
        ids = np.zeros((1, 3, 16), np.int32)
        mask = np.zeros(ids.shape, bool)
        for g, text in enumerate(texts):
            own = [*tokenizer.encode(text), tokenizer.eos_id]
            ids[0, g, : len(own)], mask[0, g, : len(own)] = own, True
        tokens = {"prompt_ids": np.ones((1, 1), np.int32), "prompt_mask": np.ones((1, 1), bool)}
        batch = tokens_only(**tokens, completion_ids=ids, completion_mask=mask)
        judged = prepared.judge_steps(batch, np.array([problem]))
    ends = [np.flatnonzero(row).tolist() for row in judged.step_ends[0]]
    # 7 + 5 = 12 ; 12 - 3 = 9 #### 9: a word is a token
    assert ends == [[5, 11], [5, 6, 7], []]
    assert judged.step_rewards[0, 0, [5, 11]].tolist() == [0.5, 0.5]
    assert judged.step_rewards[0].sum(axis=-1).tolist() == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, r"off_policy_grpo cannot be computed .* rollout\.group-size = 1.*leave_prompt_out"),
        ({"algorithm": "dpo"}, r"dpo cannot be computed"),
        (
            {"algorithm": "raft", "replay": Replay(sampler="positives")},
            r"replay\.sampler is positives",
        ),
        (
            {"algorithm": "raft", "replay": Replay(refuse_zero_variance=True)},
            r"replay\.refuse-zero-variance is True.* compares",
        ),
        (
            {
                "algorithm": "raft",
                "optimizer": Optimizer(batching="packed", skip_zero_variance=True),
                "override": Override(mask_zero_variance=True),
            },
            r"override\.mask-zero-variance",
        ),
    ],
)
def test_what_compares_siblings_is_refused_where_there_is_none(parts, message):
    with pytest.raises(ValueError, match=message):
        check(main_study(rollout=Rollout(group_size=1), **parts))


def test_a_prompt_cannot_be_left_out_where_it_is_the_only_one():
    config = main_study(override=Override(advantage="leave_prompt_out"))
    check(config)
    with pytest.raises(ValueError, match=r"schedule\.prompts = 1 "):
        check(replace(config, schedule=Schedule(prompts=1)))


def test_a_rate_without_a_running_baseline_is_refused():
    with pytest.raises(ValueError, match=r"override\.baseline-rate is 0\.5, .* nothing here"):
        check(main_study(override=Override(baseline_rate=0.5)))
    with pytest.raises(ValueError, match=r"override\.baseline-rate is 0\.0: give a number above 0"):
        main_study(override=Override(advantage="running_baseline", baseline_rate=0.0))


def test_steps_of_a_task_without_any_are_refused():
    config = TrainConfig(task=SUMS, algorithm="grpo_process")
    with pytest.raises(ValueError, match="grpo_process reads rewards of steps, which the task has"):
        check_sources(config)


def test_groups_of_equal_rewards_are_not_silent_where_steps_differ():
    skips = Optimizer(batching="packed", skip_zero_variance=True)
    with pytest.raises(ValueError, match="groups of equal rewards carry one"):
        check(main_study(algorithm="grpo_process", optimizer=skips))
