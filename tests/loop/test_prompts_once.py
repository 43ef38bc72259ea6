"""Wherever a run is killed, and however far it collects ahead: each prompt once, and none left out."""

import json
import threading
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

STEPS, EVERY, ATTEMPTS = 8, 3, 60


class Killed(BaseException):
    """The process is gone."""


class Doom:
    """Kills at the n-th call of anything that it watches, in whichever thread that is."""

    def __init__(self, calls):
        self._left, self._lock = calls, threading.Lock()

    def watch(self, function):
        def watched(*arguments, **options):
            with self._lock:
                self._left -= 1
                if self._left < 0:
                    raise Killed
            return function(*arguments, **options)

        return watched


def watched(one, doom, *names):
    """A copy of an engine or a buffer whose calls count."""
    one = copy(one)
    for name in names:
        setattr(one, name, doom.watch(getattr(one, name)))
    return one


@pytest.fixture(scope="module")
def run():
    return Run(
        schedule=schedule(steps=STEPS, evaluate_every=STEPS),
        evaluation=Evaluation(prompts=2, gradient_variance=False, token_samples=0),
    )


def doomed(run, folder, limits, doom):
    """The parts of a run that collects so, in that folder, and ends there."""
    parts, vocab = run.parts, run.decoder.vocab_size

    def bought(state):
        buffer = make_buffer(run.config, vocab, folder, state)
        return watched(buffer, doom, "insert", "sample", "state")

    return replace(
        parts,
        schedule=replace(parts.schedule, sync_offset=limits.lead),
        make_buffer=bought,
        collection=replace(
            parts.collection,
            limits=limits,
            engine=watched(parts.collection.engine, doom, "generate", "publish"),
            reward_fn=doom.watch(parts.collection.reward_fn),
        ),
        learner=replace(parts.learner, update=doom.watch(parts.learner.update)),
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
    parts = doomed(run, tmp_path, limits, Doom(1 << 30))
    checkpoint, done, kills = saved(start(run.train_state(), parts)), False, 0
    while not done:
        assert kills < ATTEMPTS
        doom = Doom(int(rng.integers(3, 30 + 10 * kills)))
        parts = doomed(run, tmp_path, limits, doom)
        checkpoint, done = attempt(parts, checkpoint)
        kills += not done
    assert kills >= 3
    size, count = run.config.schedule.prompts, len(run.parts.prompts.train)
    stream = PromptStream(count, size, run.parts.seed)
    expected = [int(n) for step in range(STEPS) for n in stream.indices(step)]
    assert problems(tmp_path) == expected
    assert checkpoint[1]["completions"] == len(expected) * run.config.rollout.group_size
