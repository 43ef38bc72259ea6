"""A run whose engine says which tokens carry loss."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from tests.loop.test_loop import SMALL, Run

pytestmark = pytest.mark.slow


class Masking:
    """The run's own engine; its completions come with the loss masks that `mask_fn` makes."""

    def __init__(self, engine, mask_fn):
        self._engine, self._mask_fn = engine, mask_fn

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def generate(self, prompts, sampling, seed):
        return [
            replace(
                group,
                completions=tuple(
                    replace(c, loss_mask=self._mask_fn(len(c.token_ids))) for c in group.completions
                ),
            )
            for group in self._engine.generate(prompts, sampling, seed)
        ]


@cache
def plain():
    return Run(schedule=replace(SMALL.schedule, steps=3))


def turns(mask_fn):
    run = plain().like()
    collection = run.parts.collection
    masking = replace(collection, engine=Masking(collection.engine, mask_fn))
    run.parts = replace(run.parts, collection=masking)
    return run.params, run.turns()


def same(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_without_a_token_that_carries_loss_nothing_is_learned_and_nothing_certified():
    initial, steps = turns(lambda length: np.zeros(length, bool))
    state, record = steps[-1]
    same(initial, state.train.params)
    assert record["updates"] == 3
    assert record["ess"] == 1
    assert record["kl/mu_pi"] == record["loss"] == record["grad_norm"] == 0
    assert all(record["certificate/completions"] is None for _, record in steps)
    assert state.gaps == ()


def test_a_mask_of_all_tokens_is_no_mask_and_half_of_them_is_another_run():
    plain, full, half = (
        turns(mask_fn)[1]
        for mask_fn in (
            lambda length: None,
            lambda length: np.ones(length, bool),
            lambda length: np.arange(length) % 2 == 0,
        )
    )
    same(plain[-1][0].train.params, full[-1][0].train.params)
    assert plain[-1][1]["loss"] == full[-1][1]["loss"]
    assert plain[-1][1]["certificate/completions"] > 0
    assert plain[1][1]["replay/bytes"] == full[1][1]["replay/bytes"] < half[1][1]["replay/bytes"]
    assert plain[1][1]["tokens"] == half[1][1]["tokens"]
    assert plain[1][1]["grad_norm"] != half[1][1]["grad_norm"]
