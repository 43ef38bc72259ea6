"""Wherever a run is killed, and however far it collects ahead: each prompt once, and none left out."""

import json
from copy import copy
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.dataset as ds
import pytest

from ogrpo.config.train import Evaluation
from ogrpo.data.batching import PromptStream
from ogrpo.loop import resume, start, train
from ogrpo.rollout.collection import CollectionError, CollectionLimits
from ogrpo.setup.build import make_buffer
from tests.loop.test_loop import Run, schedule
from tests.run.small_run import failing

STEPS, EVERY, ATTEMPTS = 8, 3, 60


class Killed(BaseException):
    """The process is gone."""


def watched(one, dying, *names):
    """A copy of an engine or a buffer whose calls count."""
    one = copy(one)
    for name in names:
        setattr(one, name, dying(getattr(one, name)))
    return one


@pytest.fixture(scope="module")
def run():
    return Run(
        schedule=schedule(steps=STEPS, evaluate_every=STEPS),
        evaluation=Evaluation(prompts=2, gradient_variance=False, token_samples=0),
    )


def doomed(run, folder, limits, at):
    """The parts of a run that collects so, in that folder, and is killed at that call of them.

    In whichever thread it is.
    """
    parts, vocab, dying = run.parts, run.decoder.vocab_size, failing(Killed(), at)

    def buffer(state):
        made = make_buffer(run.config, vocab, folder, state)
        return watched(made, dying, "insert", "sample", "state")

    return replace(
        parts,
        schedule=replace(parts.schedule, sync_offset=limits.lead),
        make_buffer=buffer,
        collection=replace(
            parts.collection,
            limits=limits,
            engine=watched(parts.collection.engine, dying, "generate", "publish"),
            reward_fn=dying(parts.collection.reward_fn),
        ),
        learner=replace(parts.learner, update=dying(parts.learner.update)),
    )


def saved(state):
    """A checkpoint, as plain copies."""
    arrays = jax.tree.map(np.array, state.arrays())
    return arrays, json.loads(json.dumps(state.progress()))


def attempt(parts, checkpoint):
    """Goes on until it is done or killed; the newest checkpoint, and whether it is done."""
    arrays, progress = checkpoint
    begun = resume(jax.tree.map(jnp.array, arrays), progress, parts)
    try:
        for state, _ in train(begun, parts):
            if state.step and (state.step % EVERY == 0 or state.step == STEPS):
                checkpoint = saved(state)
    except (Killed, CollectionError) as error:
        if isinstance(error, Killed) or isinstance(error.__cause__, Killed):
            return checkpoint, False
        raise
    return checkpoint, True


def problems(folder):
    """The problem of each group on disk in the order of their ids, each of them whole."""
    table = ds.dataset(folder).to_table(["group", "completion", "problem"])
    rows = sorted(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
    size = 1 + max(completion for _, completion, _ in rows)
    assert [row[:2] for row in rows] == [divmod(n, size) for n in range(len(rows))]
    by_group = {group: problem for group, _, problem in rows}
    assert {(group, problem) for group, _, problem in rows} == {*by_group.items()}
    return [*by_group.values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lead", "workers", "prompts_per_call"), [(0, 2, 1), (1, 1, None), (3, 3, 1)]
)
def test_each_prompt_is_in_the_data_once_wherever_the_run_is_killed(
    run, tmp_path, lead, workers, prompts_per_call
):
    limits = CollectionLimits(lead=lead, workers=workers, prompts_per_call=prompts_per_call)
    rng = np.random.default_rng([lead, workers])
    parts = doomed(run, tmp_path, limits, 1 << 30)
    checkpoint, done, kills = saved(start(run.train_state(), parts)), False, 0
    while not done:
        assert kills < ATTEMPTS
        at = 1 + int(rng.integers(3, 30 + 10 * kills))
        checkpoint, done = attempt(doomed(run, tmp_path, limits, at), checkpoint)
        kills += not done
    assert kills >= 3
    size, count = run.config.schedule.prompts, len(run.parts.prompts.train)
    stream = PromptStream(count, size, run.parts.seed)
    expected = [int(n) for step in range(STEPS) for n in stream.indices(step)]
    assert problems(tmp_path) == expected
    assert checkpoint[1]["completions"] == len(expected) * run.config.rollout.group_size
