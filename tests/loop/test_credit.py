"""Credit that needs no siblings, or differs between tokens, through the trainer."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from ogrpo.batch import tokens_only
from ogrpo.config.train import Certification, Data, Replay, Rollout
from ogrpo.config.update import Optimizer, Override
from ogrpo.core.advantages import RunningMean
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.loop import first_arrays, make_collector, resume
from ogrpo.loop.collect import insert, take
from ogrpo.loop.learn import score
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from tests.loop.test_loop import Run, deterministic, equal, schedule

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


@pytest.fixture(scope="module")
def by_kind():
    """One completion a prompt, held against those before of equal answers; larger draws."""
    return Run(
        algorithm="reinforce",
        rollout=Rollout(group_size=1),
        override=replace(RUNNING, baseline_by="answer"),
        schedule=schedule(steps=4, draw=6, replay=2, evaluate_every=2),
        replay=Replay(groups=12, sampler="uniform"),
        optimizer=Optimizer(learning_rate=0.01, warmup=0),
        certificate=Certification(),
    )


def test_each_kind_is_held_against_its_own_rewards_before(by_kind):
    kinds, means = by_kind.parts.method.kinds, {}
    assert kinds == [x.columns["answer"] for x in by_kind.prepared.task.train]
    for _, after, _ in by_kind.steps(4):
        held = after.buffer.sample(len(after.buffer), seed=0)
        new = [n for n, v in enumerate(held.columns.policy_versions.ravel()) if v == after.step - 1]
        seen = {}
        for n in new:
            seen.setdefault(kinds[held.problems[n]], []).append(held.columns.rewards[n, 0])
        for kind, rewards in seen.items():
            total, weight = means.get(kind, (0.0, 0.0))
            means[kind] = total / 2 + np.mean(rewards) / 2, weight / 2 + 0.5
        assert after.baselines.keys() == means.keys()
        for kind, (total, weight) in means.items():
            np.testing.assert_allclose(after.baselines[kind], (total / weight, weight), rtol=1e-6)


def test_an_update_subtracts_the_mean_of_the_kind(by_kind):
    state = by_kind.start()
    draws = []
    for shift in (0.0, 5.0):
        means = {kind: RunningMean(shift, 1.0) for kind in by_kind.parts.method.kinds}
        with make_collector(state, by_kind.parts) as collector:
            fresh = take(by_kind.parts, collector, 0)
        state = insert(state, fresh, by_kind.parts)
        draw = state.buffer.sample(4, seed=0)
        draws.append(score(replace(state, baselines=means), draw, by_kind.parts)[0].rewards)
        state = by_kind.like().start()
    np.testing.assert_allclose(draws[0] - draws[1], 5.0)


def test_a_run_with_means_of_kinds_resumes_to_the_same_numbers(by_kind, tmp_path):
    whole = by_kind.like(tmp_path / "whole").turns()
    run = by_kind.like(tmp_path / "stopped")
    *_, (_, state, _) = run.steps(2)
    with Checkpoints(tmp_path / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(state.step, state.arrays(), state.progress())
        like = first_arrays(run.train_state(), run.parts)
        again = resume(*checkpoints.restore(2, like), run.parts)
    assert again.baselines == state.baselines
    turns = run.turns(again)
    assert [deterministic(r) for _, r in turns] == [deterministic(r) for _, r in whole[3:]]
    assert equal(turns[-1][0].train.params, whole[-1][0].train.params)


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
            token_ids = [*tokenizer.encode(text), tokenizer.eos_id]
            ids[0, g, : len(token_ids)], mask[0, g, : len(token_ids)] = token_ids, True
        tokens = {"prompt_ids": np.ones((1, 1), np.int32), "prompt_mask": np.ones((1, 1), bool)}
        batch = tokens_only(**tokens, completion_ids=ids, completion_mask=mask)
        judged = prepared.judge_steps(batch, np.array([problem]))
    ends = [np.flatnonzero(row).tolist() for row in judged.step_ends[0]]
    # 7 + 5 = 12 ; 12 - 3 = 9 #### 9: a word is a token
    assert ends == [[5, 11], [5, 6, 7], []]
    assert judged.step_rewards[0, 0, [5, 11]].tolist() == [0.5, 0.5]
    assert judged.step_rewards[0].sum(axis=-1).tolist() == [1.0, 0.5, 0.0]
