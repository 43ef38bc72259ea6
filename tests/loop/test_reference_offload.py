"""The reference policy in the host's memory: the same run, and where its arrays are."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest
from rich.console import Console

from ogrpo.learner.memory import HOST
from ogrpo.loop import snapshot, start, train
from ogrpo.setup.build import make_parts
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from tests.loop.walk import KL, base_of

pytestmark = pytest.mark.slow

STAGES = {**KL, "schedule.steps": 4, "schedule.stages": 2, "evaluation.prompts": 1}


@cache
def made():
    prepared = prepare(base_of(STAGES))
    return prepared, *make_model(prepared, Console(quiet=True))


def begun(offload):
    """Parts and first train state of a run that swaps its reference half-way."""
    prepared, decoder, params = made()
    optimizer = replace(prepared.config.optimizer, offload=offload)
    parts = make_parts(replace(prepared.config, optimizer=optimizer), prepared, decoder)
    return parts, parts.learner.init(snapshot(params))


def lies(tree):
    return {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}


def same(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return all(np.array_equal(ours, theirs) for ours, theirs in pairs)


def test_the_reference_is_on_the_host_alone_through_every_stage():
    # That the numbers stay the same is one of `test_every_option`'s cases.
    parts, first = begun("reference")
    states = [start(first, parts)]
    for state, record in train(states[0], parts):
        states.append(state)
        assert record["step"] == 0 or record["kl/pi_ref"] is not None
    assert all(lies(state.reference) == {HOST} for state in states)
    assert not same(states[0].reference, states[-1].reference)
    assert lies((states[-1].train, states[-1].server)) == {"device"}
