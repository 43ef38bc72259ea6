"""Steps that read only the written part of the cache draw what steps that read all of it draw."""

import math
import re
from itertools import product

import jax
import numpy as np
import pytest
from jax.experimental import io_callback

from ogrpo.policy import sample
from ogrpo.policy.attention import attend
from ogrpo.policy.decoder import unstack
from ogrpo.policy.flops import doubling
from tests.policy.tiny import make_config, make_params, ragged_batch

pytestmark = pytest.mark.slow

SETTINGS = {"temperature": 1.0, "greedy": False, "group_size": 5, "max_tokens": 40, "eos_id": 3}


def run(config, params, batch, seed=0, **changes):
    prompts = batch.prompt_ids, batch.prompt_mask
    return sample(params, config, *prompts, jax.random.key(seed), **{**SETTINGS, **changes})


@pytest.mark.parametrize(
    ("least", "length", "expected"),
    [
        (None, 9, (9,)),
        (64, 64, (64,)),
        (64, 65, (64, 65)),
        (64, 1024, (64, 128, 256, 512, 1024)),
        (3, 13, (3, 6, 12, 13)),
    ],
)
def test_lengths_double(least, length, expected):
    assert doubling(least, length) == expected


@pytest.mark.parametrize(
    ("family", "apart", "halvings"), [("Qwen2", False, 0), ("Qwen3", True, 0), ("Qwen2", True, 2)]
)
def test_reading_what_is_written_changes_no_sample(family, apart, halvings):
    config = make_config(family)
    params, batch = make_params(config), ragged_batch(config)
    used, longest = unstack(params) if apart else params, 0
    for eos_id, seed, greedy in product((3, 7), range(2), (False, True)):
        changes = {"eos_id": eos_id, "seed": seed, "greedy": greedy}
        whole = run(config, params, batch, **changes)
        part = run(config, used, batch, least_read=3, halvings=halvings, **changes)
        for name in ("token_ids", "mask", "finished"):
            np.testing.assert_array_equal(getattr(part, name), getattr(whole, name))
        longest = max(longest, int(whole.mask.sum(-1).max()))
        np.testing.assert_allclose(part.log_probs, whole.log_probs, rtol=1e-6, atol=2e-6)
    assert longest > 24, "the case must reach the longest read"


def test_a_step_reads_the_least_length_that_holds_what_is_written():
    config = make_config(num_layers=1)
    params, batch = make_params(config), ragged_batch(config)
    reads = []

    def attention_fn(queries, segments):
        if len(segments) == 3:
            size = segments[1].keys.shape[-3]
            io_callback(lambda: reads.append(size), None, ordered=False)
        return attend(queries, segments)

    samples = run(config, params, batch, max_tokens=15, least_read=3, attention_fn=attention_fn)
    jax.effects_barrier()
    steps = int(samples.mask.sum(-1).max()) - 1
    lengths = np.array([3, 6, 12, 15])
    expected = [int(lengths[lengths >= past].min()) for past in range(steps)]
    assert sorted(reads) == expected
    assert set(reads) == {3, 6, 12, 15}


def test_a_step_writes_the_cache_in_place():
    """By XLA's program for this CPU, unstacked: nothing of the cache's size is copied as it is."""
    config = make_config()
    params, batch = unstack(make_params(config)), ragged_batch(config)
    program = jax.jit(lambda params: run(config, params, batch, max_tokens=53)).lower(params)
    step = (program.compile().as_text() or "").partition("ENTRY")[0]
    whole = math.prod((3, 5, config.num_kv_heads, config.head_dim, 53))
    made = [
        kind
        for computation in step.split("\n\n")
        if "fused_computation" not in computation.partition("(")[0]
        for shape, kind in re.findall(r" = f32\[([\d,]+)\]\S* ([\w-]+)\(", computation)
        if math.prod(int(axis) for axis in shape.split(",")) == whole
    ]
    assert "fusion" in made
    assert "copy" not in made
