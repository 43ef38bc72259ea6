"""Credit that needs no siblings, or differs between tokens, or is PPO's, through the trainer."""

from contextlib import closing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.batch import VALUE_HEAD, tokens_only
from ogrpo.config.train import Certification, Data, Replay, Rollout
from ogrpo.config.update import Optimizer, Override
from ogrpo.learner.update import gradient_of_update, loss_inputs
from ogrpo.setup.build import find_devices, make_spec
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from tests.loop.test_loop import Run, equal, schedule
from tests.run.small_run import untimed

pytestmark = pytest.mark.slow

RUNNING = Override(advantage="running_baseline", baseline_rate=0.5)


@pytest.fixture(scope="module")
def alone():
    """One completion a prompt, held against those before; larger draws."""
    return Run(
        algorithm="reinforce",
        rollout=Rollout(group_size=1),
        override=RUNNING,
        schedule=schedule(steps=4, draw=6, replay=2, evaluate_every=2),
        replay=Replay(groups=12, sampler="uniform"),
        optimizer=Optimizer(learning_rate=0.01, warmup=0),
        certificate=Certification(),
    )


def test_a_running_baseline_is_the_mean_reward_of_the_steps_before(alone):
    seen, total, weight = [], 0.0, 0.0
    for _, after, record in alone.steps(4):
        seen.append(record["reward"])
        total, weight = total / 2 + record["reward"] / 2, weight / 2 + 0.5
        np.testing.assert_allclose(after.baseline, (total / weight, weight), rtol=1e-6)
    assert len(set(seen)) > 1


def test_a_run_with_a_running_mean_resumes_to_the_same_numbers(alone, tmp_path):
    whole = alone.like(tmp_path / "whole").turns()
    again, state = alone.resumed(tmp_path / "stopped", 2)
    assert state.baseline.weight > 0
    turns = again.turns(state)
    assert [untimed(r) for _, r in turns] == [untimed(r) for _, r in whole[3:]]
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


INPUT = {"value_coef": 1.0, "discount": 1.0, "decay": 1.0}


def test_the_critics_first_gradient_is_towards_the_returns():
    """V = 0: d/d bias of the mean of c (V - R)^2 is -2 c mean R, R the discounted reward."""
    ppo = Run(algorithm="ppo", schedule=schedule(steps=2))
    state, batch = ppo.batch(ppo.start())
    assert not np.any(batch.values)
    spec = make_spec(ppo.config, find_devices(ppo.config, ppo.decoder).policy_fn)
    hypers = ppo.parts.method.hypers_at(0, 1.0, 0)
    knobs = {**hypers.knobs, **{name: jnp.float32(x) for name, x in INPUT.items()}}
    hypers = hypers._replace(knobs=knobs)
    inputs = loss_inputs(batch, spec, hypers)
    grads, _ = jax.jit(lambda s: gradient_of_update(s, inputs, hypers, spec))(state.train)
    mask, rewards = np.asarray(batch.active_mask), np.asarray(batch.rewards)
    mean = (rewards[..., None] * mask).sum() / mask.sum()
    assert mean > 0
    np.testing.assert_allclose(grads[VALUE_HEAD]["bias"], -2 * mean, rtol=1e-5)
