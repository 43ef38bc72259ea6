"""A real policy that samples in the collector's threads while the trainer's thread updates it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.collection import CollectionLimits, Collector, Request
from ogrpo.rollout.collection.request_queue import calls
from ogrpo.serving.bridge import embedded_engine
from tests.policy.tiny import make_config, make_params
from tests.rollout.collection.scripted import equal_rewards

CONFIG = make_config(num_layers=1)
SAMPLING = Sampling(temperature=1.0, max_tokens=6, group_size=3)
STEPS = 6


def make_engine():
    return embedded_engine(CONFIG, eos_id=1, batch_size=2, prompt_length=5)


def request_at(step):
    rng = np.random.default_rng(step)
    prompts = [rng.integers(2, 11, rng.integers(1, 6)).astype(np.int32) for _ in range(4)]
    return Request(step, range(4), prompts, seed=100 * step)


@partial(jax.jit, donate_argnums=0)
def update(params):
    """Overwrites the trainer's buffers, as a training step does."""
    return jax.tree.map(lambda x: x * jnp.float32(1.05), params)


def snapshot(params):
    return jax.tree.map(jnp.copy, params)


def collect(limits):
    params, batches = make_params(CONFIG), []
    with Collector(
        make_engine(),
        request_at,
        SAMPLING,
        equal_rewards,
        steps=range(STEPS),
        limits=limits,
        retry_on=(),
    ) as collector:
        for step in range(STEPS):
            collector.publish(snapshot(params), step)
            batches.append(collector.take(step).groups)
            for _ in range(3):
                params = update(params)
    return batches


def replay(lead, prompts_per_call):
    """The same calls one after the other, by an engine that nobody else uses."""
    engine, params, drawn = make_engine(), make_params(CONFIG), []
    for step in range(STEPS):
        engine.publish(snapshot(params), step)
        while len(drawn) < min(step + lead + 1, STEPS):
            drawn.append(by_calls(engine, request_at(len(drawn)), prompts_per_call))
        for _ in range(3):
            params = update(params)
    return drawn


def by_calls(engine, request, prompts_per_call):
    return [
        g
        for c in calls(request, prompts_per_call)
        for g in engine.generate(c.prompts, SAMPLING, c.seed)
    ]


def content(batches):
    return [
        (c.policy_version, c.finish_reason, c.token_ids.tolist(), c.log_probs.tolist())
        for groups in batches
        for group in groups
        for c in group.completions
    ]


@pytest.mark.parametrize(("workers", "prompts_per_call"), [(1, None), (2, 2)])
def test_overlapping_gives_the_groups_of_the_same_calls_one_by_one(workers, prompts_per_call):
    limits = CollectionLimits(
        lead=1, max_staleness=1, workers=workers, prompts_per_call=prompts_per_call
    )
    overlapped = content(collect(limits))
    assert overlapped == content(replay(1, prompts_per_call))
    assert [version for version, *_ in overlapped[::12]] == [0, 0, 1, 2, 3, 4]
    assert overlapped != content(replay(0, prompts_per_call))
