"""Batches that are halved as their rows finish: the same samples in fewer rows."""

from itertools import product

import jax
import numpy as np
import pytest
from jax.experimental import io_callback

from ogrpo.batch import take
from ogrpo.policy import sample
from ogrpo.policy.attention import attend
from ogrpo.policy.decoder import unstack
from tests.policy.tiny import make_config, make_params, ragged_batch

pytestmark = pytest.mark.slow

SETTINGS = {"temperature": 0.7, "greedy": False, "group_size": 5, "max_tokens": 40, "eos_id": 3}


def run(config, params, batch, seed=0, **changes):
    prompts = batch.prompt_ids, batch.prompt_mask
    return sample(params, config, *prompts, jax.random.key(seed), **{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def qwen2():
    config = make_config()
    return config, make_params(config), ragged_batch(config)


@pytest.mark.parametrize(("family", "apart"), [("Qwen2", False), ("Qwen3", True)])
def test_halving_the_batch_changes_no_sample(family, apart):
    config = make_config(family)
    params, batch = make_params(config), ragged_batch(config)
    used = unstack(params) if apart else params
    for eos_id, seed in product((3, 7), range(3)):
        changes = {"eos_id": eos_id, "seed": seed}
        whole = run(config, params, batch, **changes)
        halved = run(config, used, batch, halvings=2, **changes)
        for name in ("token_ids", "mask", "finished"):
            np.testing.assert_array_equal(getattr(halved, name), getattr(whole, name))
        np.testing.assert_allclose(halved.log_probs, whole.log_probs, atol=1e-5)


def test_halving_goes_on_with_the_unfinished_rows_alone(qwen2):
    config, params, batch = qwen2
    widths = []

    def attention_fn(queries, segments):
        if len(segments) == 3:
            rows = queries.shape[0] * queries.shape[1]
            io_callback(lambda: widths.append(rows), None, ordered=True)
        return attend(queries, segments)

    samples = run(config, params, batch, attention_fn=attention_fn, halvings=2)
    jax.effects_barrier()
    lengths = np.asarray(samples.mask.sum(-1)).ravel()
    unfinished = [int(np.sum(lengths > step)) for step in range(1, lengths.max())]
    expected = [15 if count > 7 else 7 if count > 3 else 3 for count in unfinished]
    assert widths[::2] == widths[1::2] == expected
    assert set(expected) == {15, 7, 3}, "the case must halve twice"


def test_one_row_cannot_be_halved(qwen2):
    config, params, batch = qwen2
    one = take(batch, slice(1))
    plain, asked = (
        run(config, params, one, group_size=1, max_tokens=6, halvings=n) for n in (0, 4)
    )
    jax.tree.map(np.testing.assert_array_equal, plain, asked)
